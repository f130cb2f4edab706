//! Spans to an OTLP collector: never waiting, within a bounded queue, and counted, so that nothing is lost unseen.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{Event, Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{Array, InstrumentationScope, KeyValue, StringValue, Value};
use opentelemetry_otlp::SpanExporter as OtlpExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanEvents, SpanExporter, SpanLinks, SpanProcessor};

use super::render::SCOPE_NAME;
use super::span::{Attribute, Kind, Span};

/// Spans that may wait for the collector.
const QUEUE_SPANS: u64 = 8192;
/// Bytes that go into one request, as estimated: well below the 4 MiB of which collectors refuse the whole.
const REQUEST_BYTES: usize = 2 * 1024 * 1024;
/// What a span's own fields and the framing of an attribute take, at most.
const SPAN_BYTES: usize = 256;
const ATTRIBUTE_BYTES: usize = 16;
/// How long a shutdown waits for the collector.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// Sends spans.
pub struct Exporter {
    processor: BatchSpanProcessor,
    counts: Arc<Counts>,
    value_bytes_max: usize,
}

/// What became of the spans.
#[derive(Default)]
pub struct Counts {
    enqueued: AtomicU64,
    exported: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

impl Counts {
    /// Spans that never reached the collector.
    pub fn lost(&self) -> u64 {
        self.failed.load(Ordering::Relaxed) + self.dropped.load(Ordering::Relaxed)
    }

    /// Spans that wait for the collector.
    pub fn queued(&self) -> u64 {
        let gone = self.exported.load(Ordering::Relaxed) + self.lost();
        self.enqueued.load(Ordering::Relaxed).saturating_sub(gone)
    }
}

/// Counts what the inner exporter does, and keeps requests small.
#[derive(Debug)]
struct Counting {
    inner: OtlpExporter,
    counts: Arc<Counts>,
}

impl std::fmt::Debug for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Counts {{ lost: {} }}", self.lost())
    }
}

impl SpanExporter for Counting {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let mut result = Ok(());
        let mut rest = batch;
        while !rest.is_empty() {
            let later = rest.split_off(spans_that_fit(&rest));
            let count = u64::try_from(rest.len()).unwrap_or(0);
            let sent = self.inner.export(rest).await;
            let counter = if sent.is_ok() { &self.counts.exported } else { &self.counts.failed };
            counter.fetch_add(count, Ordering::Relaxed);
            result = result.and(sent);
            rest = later;
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// Returns how many of the first spans make one request; at least one, however large it is.
fn spans_that_fit(spans: &[SpanData]) -> usize {
    let mut bytes = 0;
    let fit = spans.iter().take_while(|span| {
        bytes += bytes_of(span);
        bytes <= REQUEST_BYTES
    });
    fit.count().max(1)
}

fn bytes_of(span: &SpanData) -> usize {
    let attributes = |list: &[KeyValue]| -> usize {
        list.iter().map(|attribute| ATTRIBUTE_BYTES + attribute.key.as_str().len() + bytes_of_value(&attribute.value)).sum()
    };
    let events: usize = span.events.iter().map(|event| SPAN_BYTES + attributes(&event.attributes)).sum();
    let error = if let Status::Error { description } = &span.status { description.len() } else { 0 };
    SPAN_BYTES * (1 + span.links.len()) + span.name.len() + attributes(&span.attributes) + events + error
}

fn bytes_of_value(value: &Value) -> usize {
    match value {
        Value::String(text) => text.as_str().len(),
        Value::Array(Array::String(list)) => list.iter().map(|text| ATTRIBUTE_BYTES + text.as_str().len()).sum(),
        // Numbers; no list of them is ever long.
        _ => ATTRIBUTE_BYTES,
    }
}

impl Exporter {
    /// Prepares to send to the collector that the environment names.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn start(is_grpc: bool, resource: &Resource, value_bytes_max: usize) -> Result<Self, String> {
        let inner = if is_grpc { OtlpExporter::builder().with_tonic().build() } else { OtlpExporter::builder().with_http().build() };
        let inner = inner.map_err(|error| format!("the OTLP exporter cannot be set up: {error}"))?;
        let counts = Arc::new(Counts::default());
        let config = BatchConfigBuilder::default().with_max_queue_size(usize::try_from(QUEUE_SPANS).unwrap_or(8192)).build();
        let mut processor = BatchSpanProcessor::builder(Counting { inner, counts: counts.clone() }).with_batch_config(config).build();
        processor.set_resource(resource);
        Ok(Self { processor, counts, value_bytes_max })
    }

    /// Hands spans on. Never waits: what the queue does not take is counted as lost.
    pub fn send(&self, spans: Vec<Span>) {
        for span in spans {
            let counts = &self.counts;
            // Counted before it is looked at, so that no two senders take the last place both.
            let gone = counts.exported.load(Ordering::Relaxed) + counts.lost();
            let before_it = counts.enqueued.fetch_add(1, Ordering::Relaxed).saturating_sub(gone);
            match self.data(span).filter(|_| before_it < QUEUE_SPANS) {
                Some(data) => self.processor.on_end(data),
                // The processor would drop it without a word.
                None => {
                    counts.dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Returns what became of the spans.
    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// Sends what waits and stops. Blocks; must not run on a thread that the exporter's own IO needs.
    pub fn shutdown(&self) {
        if let Err(error) = self.processor.shutdown_with_timeout(SHUTDOWN) {
            tracing::warn!(%error, lost = self.counts.lost(), "spans may be lost: the collector did not take them in time");
        }
    }

    fn data(&self, span: Span) -> Option<SpanData> {
        let context = SpanContext::new(
            TraceId::from_hex(&span.trace_id).ok()?,
            SpanId::from_hex(&span.span_id).ok()?,
            TraceFlags::SAMPLED,
            false,
            TraceState::NONE,
        );
        let parent = span.parent_span_id.as_deref().and_then(|parent| SpanId::from_hex(parent).ok());
        let mut events = SpanEvents::default();
        events.events =
            span.events.iter().map(|event| Event::new(event.name, time(event.time_us), self.attributes(&event.attributes), 0)).collect();
        let mut links = SpanLinks::default();
        links.links = span
            .links
            .iter()
            .filter_map(|link| {
                let trace = TraceId::from_hex(&link.trace_id).ok()?;
                let context = SpanContext::new(trace, SpanId::from_hex(&link.span_id).ok()?, TraceFlags::SAMPLED, true, TraceState::NONE);
                Some(Link::new(context, Vec::new(), 0))
            })
            .collect();
        Some(SpanData {
            span_context: context,
            parent_span_id: parent.unwrap_or(SpanId::INVALID),
            parent_span_is_remote: false,
            span_kind: match span.kind {
                Kind::Internal => SpanKind::Internal,
                Kind::Client => SpanKind::Client,
                Kind::Server => SpanKind::Server,
            },
            name: Cow::Owned(span.name.clone()),
            start_time: time(span.start_us),
            end_time: time(span.end_us),
            attributes: self.attributes(&span.attributes),
            dropped_attributes_count: 0,
            events,
            links,
            status: span.error.map_or(Status::Unset, |error| Status::error(self.cut(&error))),
            instrumentation_scope: InstrumentationScope::builder(SCOPE_NAME).with_version(env!("CARGO_PKG_VERSION")).build(),
        })
    }

    fn attributes(&self, attributes: &[(&'static str, Attribute)]) -> Vec<KeyValue> {
        attributes.iter().map(|(key, value)| KeyValue::new(*key, self.value(value))).collect()
    }

    fn value(&self, value: &Attribute) -> Value {
        match value {
            Attribute::Text(text) => Value::String(StringValue::from(self.cut(text))),
            Attribute::Int(number) => Value::I64(*number),
            Attribute::Float(number) => Value::F64(*number),
            Attribute::Bool(yes) => Value::Bool(*yes),
            Attribute::Texts(list) => Value::Array(Array::String(list.iter().map(|text| StringValue::from(self.cut(text))).collect())),
        }
    }

    fn cut(&self, text: &str) -> String {
        let mut end = text.len().min(self.value_bytes_max);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text[..end].to_owned()
    }
}

fn time(time_us: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(time_us).unwrap_or(0))
}
