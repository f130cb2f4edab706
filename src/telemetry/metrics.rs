//! Metrics of the daemon, counted from facts and pushed over OTLP.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, MeterProvider, UpDownCounter};
use opentelemetry_otlp::MetricExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};

use super::export::Counts;
use super::render::SCOPE_NAME;
use crate::kernel::event::{CallEnded, CallFailure, Event};
use crate::kernel::{CallId, Recorded, RunId};

/// Upper bounds of durations in seconds, those of the semantic conventions for generative AI.
const SECONDS: [f64; 14] = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];
/// Upper bounds of token counts, those of the same conventions.
const TOKENS: [f64; 14] =
    [1.0, 4.0, 16.0, 64.0, 256.0, 1_024.0, 4_096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0, 67_108_864.0];

/// The instruments.
pub struct Metrics {
    provider: SdkMeterProvider,
    runs_started: Counter<u64>,
    runs_ended: Counter<u64>,
    runs_running: UpDownCounter<i64>,
    turns: Counter<u64>,
    retries: Counter<u64>,
    tokens: Counter<u64>,
    cost_usd: Counter<f64>,
    calls: Counter<u64>,
    turn_tokens: Histogram<u64>,
    turn_seconds: Histogram<f64>,
    call_seconds: Histogram<f64>,
    spans_lost: Counter<u64>,
    under_way: Mutex<HashMap<RunId, UnderWay>>,
}

/// What began in a running run, and when: what durations are counted from.
#[derive(Default)]
struct UnderWay {
    turn_us: Option<i64>,
    calls_us: HashMap<CallId, i64>,
}

impl Metrics {
    /// Prepares to push to the collector that the environment names.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn start(is_grpc: bool, resource: &Resource, spans: Option<Arc<Counts>>) -> Result<Self, String> {
        let exporter = if is_grpc { MetricExporter::builder().with_tonic().build() } else { MetricExporter::builder().with_http().build() };
        let exporter = exporter.map_err(|error| format!("the OTLP metric exporter cannot be set up: {error}"))?;
        let provider =
            SdkMeterProvider::builder().with_resource(resource.clone()).with_reader(PeriodicReader::builder(exporter).build()).build();
        let meter = provider.meter(SCOPE_NAME);
        if let Some(spans) = spans {
            // It is asked for as long as the provider lives; the handle to it has nothing to add.
            let _ = meter
                .u64_observable_gauge("wren.spans.queued")
                .with_callback(move |observer| observer.observe(spans.queued(), &[]))
                .build();
        }
        Ok(Self {
            runs_started: meter.u64_counter("wren.runs.started").build(),
            runs_ended: meter.u64_counter("wren.runs.ended").build(),
            runs_running: meter.i64_up_down_counter("wren.runs.running").build(),
            turns: meter.u64_counter("wren.turns").build(),
            retries: meter.u64_counter("wren.llm.retries").build(),
            tokens: meter.u64_counter("wren.tokens").with_unit("{token}").build(),
            cost_usd: meter.f64_counter("wren.cost").with_unit("{USD}").build(),
            calls: meter.u64_counter("wren.tool.calls").build(),
            turn_tokens: meter
                .u64_histogram("gen_ai.client.inference.operation.input_tokens")
                .with_unit("{token}")
                .with_boundaries(TOKENS.to_vec())
                .build(),
            turn_seconds: meter.f64_histogram("gen_ai.client.inference.duration").with_unit("s").with_boundaries(SECONDS.to_vec()).build(),
            call_seconds: meter.f64_histogram("gen_ai.execute_tool.duration").with_unit("s").with_boundaries(SECONDS.to_vec()).build(),
            spans_lost: meter.u64_counter("wren.spans.lost").build(),
            under_way: Mutex::default(),
            provider,
        })
    }

    /// Counts a fact.
    pub fn observe(&self, recorded: &Recorded) {
        let (run, now_us) = (&recorded.run, recorded.time_us);
        match &recorded.event {
            Event::RunCreated(_) => self.runs_started.add(1, &[]),
            Event::RunStarted {} | Event::RunResumed { .. } => self.begin(run),
            Event::RunSuspended { .. } => self.finish(run),
            Event::RunEnded(ended) => {
                self.runs_ended.add(1, &[KeyValue::new("wren.outcome", ended.outcome.name())]);
                self.finish(run);
            }
            Event::TurnStarted(_) => self.note(run, |under_way| under_way.turn_us = Some(now_us)),
            Event::TurnEnded(turn) => {
                let provider = KeyValue::new("gen_ai.provider.name", turn.provider.clone());
                self.turns.add(1, std::slice::from_ref(&provider));
                let count = |tokens: i64| u64::try_from(tokens).unwrap_or(0);
                self.tokens.add(count(turn.usage.input_tokens), &[KeyValue::new("direction", "input")]);
                self.tokens.add(count(turn.usage.output_tokens), &[KeyValue::new("direction", "output")]);
                self.turn_tokens.record(count(turn.usage.input_tokens), &[]);
                self.charge(turn.cost_usd_nanos);
                self.end_turn(run, now_us, provider);
            }
            Event::TurnAborted(turn) => {
                let why = KeyValue::new("error.type", turn.reason.name());
                self.retries.add(1, std::slice::from_ref(&why));
                self.charge(turn.cost_usd_nanos.saturating_add(turn.written_off.usd_nanos));
                self.end_turn(run, now_us, why);
            }
            Event::CallStarted(call) => self.note(run, |under_way| {
                under_way.calls_us.insert(call.call_id.clone(), now_us);
            }),
            Event::CallEnded(call) => self.end_call(run, call, now_us),
            Event::CallInDoubt { .. }
            | Event::ChildStarted { .. }
            | Event::ChildEnded(_)
            | Event::MessageReceived { .. }
            | Event::LimitsChanged { .. }
            | Event::ModelChanged(_)
            | Event::ContextCompacted(_)
            | Event::CancelRequested { .. } => {}
        }
    }

    fn begin(&self, run: &RunId) {
        let mut runs = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.insert(run.clone(), UnderWay::default()).is_none() {
            self.runs_running.add(1, &[]);
        }
    }

    /// Forgets a run. One that was suspended and is ended now was forgotten before.
    fn finish(&self, run: &RunId) {
        if self.under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(run).is_some() {
            self.runs_running.add(-1, &[]);
        }
    }

    fn note(&self, run: &RunId, note: impl FnOnce(&mut UnderWay)) {
        if let Some(under_way) = self.under_way.lock().unwrap_or_else(PoisonError::into_inner).get_mut(run) {
            note(under_way);
        }
    }

    fn end_turn(&self, run: &RunId, now_us: i64, told: KeyValue) {
        self.note(run, |under_way| {
            if let Some(began_us) = under_way.turn_us.take() {
                self.turn_seconds.record(seconds(now_us - began_us), &[told]);
            }
        });
    }

    fn end_call(&self, run: &RunId, call: &CallEnded, now_us: i64) {
        let tool = KeyValue::new("gen_ai.tool.name", call.tool.clone());
        let verdict = call.failure.map_or("ok", CallFailure::name);
        self.calls.add(1, &[tool.clone(), KeyValue::new("verdict", verdict)]);
        self.note(run, |under_way| {
            // A call that was answered without running took no time to tell of.
            if let Some(began_us) = under_way.calls_us.remove(&call.call_id) {
                self.call_seconds.record(seconds(now_us - began_us), &[tool]);
            }
        });
    }

    fn charge(&self, nanos: i64) {
        #[expect(clippy::cast_precision_loss, reason = "a metric; the ledger keeps the integer")]
        self.cost_usd.add(nanos as f64 / 1e9, &[]);
    }

    /// Counts spans that never reached the collector.
    pub fn spans_lost(&self, count: u64) {
        self.spans_lost.add(count, &[]);
    }

    /// Pushes what waits and stops. Blocks.
    pub fn shutdown(&self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::warn!(%error, "metrics may be lost");
        }
    }
}

fn seconds(us: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a time to show")]
    let seconds = us.max(0) as f64 / 1e6;
    seconds
}
