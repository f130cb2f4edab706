//! Metrics of the daemon, counted from facts and pushed over OTLP.

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, MeterProvider, UpDownCounter};
use opentelemetry_otlp::MetricExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};

use super::render::SCOPE_NAME;
use crate::kernel::Event;
use crate::kernel::Recorded;

/// The instruments.
pub struct Metrics {
    provider: SdkMeterProvider,
    runs_started: Counter<u64>,
    runs_ended: Counter<u64>,
    runs_unfinished: UpDownCounter<i64>,
    turns: Counter<u64>,
    retries: Counter<u64>,
    tokens: Counter<u64>,
    cost_usd: Counter<f64>,
    calls: Counter<u64>,
    turn_tokens: Histogram<u64>,
    spans_lost: Counter<u64>,
}

impl Metrics {
    /// Prepares to push to the collector that the environment names.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn start(is_grpc: bool, resource: &Resource) -> Result<Self, String> {
        let exporter = if is_grpc { MetricExporter::builder().with_tonic().build() } else { MetricExporter::builder().with_http().build() };
        let exporter = exporter.map_err(|error| format!("the OTLP metric exporter cannot be set up: {error}"))?;
        let provider =
            SdkMeterProvider::builder().with_resource(resource.clone()).with_reader(PeriodicReader::builder(exporter).build()).build();
        let meter = provider.meter(SCOPE_NAME);
        Ok(Self {
            runs_started: meter.u64_counter("wren.runs.started").build(),
            runs_ended: meter.u64_counter("wren.runs.ended").build(),
            runs_unfinished: meter.i64_up_down_counter("wren.runs.unfinished").build(),
            turns: meter.u64_counter("wren.turns").build(),
            retries: meter.u64_counter("wren.llm.retries").build(),
            tokens: meter.u64_counter("wren.tokens").with_unit("{token}").build(),
            cost_usd: meter.f64_counter("wren.cost").with_unit("{USD}").build(),
            calls: meter.u64_counter("wren.tool.calls").build(),
            turn_tokens: meter.u64_histogram("gen_ai.client.inference.operation.input_tokens").with_unit("{token}").build(),
            spans_lost: meter.u64_counter("wren.spans.lost").build(),
            provider,
        })
    }

    /// Counts a fact.
    pub fn observe(&self, recorded: &Recorded) {
        match &recorded.event {
            Event::RunCreated(_) => {
                self.runs_started.add(1, &[]);
                self.runs_unfinished.add(1, &[]);
            }
            Event::RunEnded(ended) => {
                self.runs_ended.add(1, &[KeyValue::new("wren.outcome", ended.outcome.name())]);
                self.runs_unfinished.add(-1, &[]);
            }
            Event::TurnEnded(turn) => {
                self.turns.add(1, &[KeyValue::new("gen_ai.provider.name", turn.provider.clone())]);
                let count = |tokens: i64| u64::try_from(tokens).unwrap_or(0);
                self.tokens.add(count(turn.usage.input_tokens), &[KeyValue::new("direction", "input")]);
                self.tokens.add(count(turn.usage.output_tokens), &[KeyValue::new("direction", "output")]);
                self.turn_tokens.record(count(turn.usage.input_tokens), &[]);
                self.charge(turn.cost_usd_nanos);
            }
            Event::TurnAborted(turn) => {
                self.retries.add(1, &[KeyValue::new("error.type", turn.reason.name())]);
                self.charge(turn.cost_usd_nanos.saturating_add(turn.written_off.usd_nanos));
            }
            Event::CallEnded(call) => {
                let verdict = call.failure.map_or("ok", crate::kernel::event::CallFailure::name);
                self.calls.add(1, &[KeyValue::new("gen_ai.tool.name", call.tool.clone()), KeyValue::new("verdict", verdict)]);
            }
            Event::RunStarted {}
            | Event::TurnStarted(_)
            | Event::CallStarted(_)
            | Event::CallInDoubt { .. }
            | Event::ChildStarted { .. }
            | Event::ChildEnded(_)
            | Event::MessageReceived { .. }
            | Event::LimitsChanged { .. }
            | Event::RunSuspended { .. }
            | Event::RunResumed { .. }
            | Event::CancelRequested { .. } => {}
        }
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
