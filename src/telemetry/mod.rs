//! Telemetry: the journal as spans, metrics and log lines, their export, and the names of their attributes.
//!
//! Spans are built from facts, never from live code: a run leaves the same spans whether anybody exports them, and a
//! recovered daemon closes the spans of the one that died. No prompt, argument, result or secret is ever on one.

mod attributes;
mod export;
pub mod ids;
mod log;
mod metrics;
pub mod names;
pub mod render;
pub mod span;
mod tree;

use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;

use crate::kernel::Recorded;
use export::Exporter;
use log::EventLog;
use metrics::Metrics;
use span::Span;

pub use tree::TreeSpans;

/// The daemon's spans, metrics and event log. Cheap to clone; all clones are one.
#[derive(Clone, Default)]
pub struct Telemetry {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    exporter: Option<Exporter>,
    metrics: Option<Metrics>,
    log: EventLog,
    sampler: Sampler,
}

/// Which new trees are traced.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Sampler {
    #[default]
    All,
    None,
    /// This share of them.
    Ratio(f64),
}

/// Bytes of an attribute's value, where the environment sets no other bound.
const VALUE_BYTES_MAX: usize = 8 * 1024;

impl Telemetry {
    /// Starts what the environment asks for with OpenTelemetry's own variables: nothing unless an endpoint is named.
    ///
    /// # Errors
    /// What is wrong with a variable, and its name.
    pub fn start(environment: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let set = |name: &str| environment(name).filter(|value| !value.is_empty());
        let sampler = sampler(&set)?;
        let disabled = set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let inner = Inner { sampler, ..Inner::default() };
        if disabled {
            return Ok(Self { inner: Arc::new(inner) });
        }
        // The HTTP exporter's client takes the process's TLS provider; one that is there already is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let resource = resource(&set);
        let exporter = match signal(&set, "TRACES")? {
            None => None,
            Some(is_grpc) => Some(Exporter::start(is_grpc, &resource, value_bytes_max(&set)?)?),
        };
        let metrics = match signal(&set, "METRICS")? {
            None => None,
            Some(is_grpc) => Some(Metrics::start(is_grpc, &resource, exporter.as_ref().map(Exporter::counts))?),
        };
        Ok(Self { inner: Arc::new(Inner { exporter, metrics, ..inner }) })
    }

    /// Sends finished spans, if somebody wants them. Never waits.
    pub fn export(&self, spans: Vec<Span>) {
        if let Some(exporter) = self.inner.exporter.as_ref().filter(|_| !spans.is_empty()) {
            let lost = exporter.counts().lost();
            exporter.send(spans);
            if let Some(metrics) = &self.inner.metrics {
                let more = exporter.counts().lost().saturating_sub(lost);
                if more > 0 {
                    metrics.spans_lost(more);
                }
            }
        }
    }

    /// Takes in a fact of the past, so that the lines of what follows can name its run's root, trace and sums.
    pub fn prime(&self, recorded: &Recorded) {
        self.inner.log.prime(recorded);
    }

    /// Logs and counts a fact.
    pub fn observe(&self, recorded: &Recorded) {
        self.inner.log.write(recorded);
        if let Some(metrics) = &self.inner.metrics {
            metrics.observe(recorded);
        }
    }

    /// Decides whether a new tree is traced. Decided once, and kept in its journal.
    pub fn sample(&self, trace_id: &str) -> bool {
        match self.inner.sampler {
            Sampler::All => true,
            Sampler::None => false,
            Sampler::Ratio(share) => {
                let low = u32::from_str_radix(trace_id.get(24..32).unwrap_or("0"), 16).unwrap_or(0);
                f64::from(low) < share * (f64::from(u32::MAX) + 1.0)
            }
        }
    }

    /// Returns how many spans never reached the collector.
    pub fn lost(&self) -> u64 {
        self.inner.exporter.as_ref().map_or(0, |exporter| exporter.counts().lost())
    }

    /// Sends what waits, for at most some seconds, and stops.
    pub async fn shutdown(&self) {
        let inner = self.inner.clone();
        // Off the reactor: the exporter's own IO runs on it.
        let flushed = tokio::task::spawn_blocking(move || {
            if let Some(exporter) = &inner.exporter {
                exporter.shutdown();
            }
            if let Some(metrics) = &inner.metrics {
                metrics.shutdown();
            }
        });
        let _ = flushed.await;
    }
}

/// Returns whether a signal is exported, and then whether over gRPC.
fn signal(set: &dyn Fn(&str) -> Option<String>, name: &str) -> Result<Option<bool>, String> {
    let exporter = set(&format!("OTEL_{name}_EXPORTER"));
    match exporter.as_deref() {
        Some("none") => return Ok(None),
        Some("otlp") | None => {}
        Some(other) => return Err(format!("OTEL_{name}_EXPORTER={other} is not supported; use otlp or none")),
    }
    let endpoint = set(&format!("OTEL_EXPORTER_OTLP_{name}_ENDPOINT")).or_else(|| set("OTEL_EXPORTER_OTLP_ENDPOINT"));
    let Some(endpoint) = endpoint else { return Ok(None) };
    let protocol = set(&format!("OTEL_EXPORTER_OTLP_{name}_PROTOCOL")).or_else(|| set("OTEL_EXPORTER_OTLP_PROTOCOL"));
    match protocol.as_deref() {
        Some("grpc") => Ok(Some(true)),
        Some("http/protobuf") => Ok(Some(false)),
        Some(other) => Err(format!("OTEL_EXPORTER_OTLP_PROTOCOL={other} is not supported; use grpc or http/protobuf")),
        // The port that collectors speak gRPC on; elsewhere the standard's default holds.
        None => Ok(Some(endpoint.trim_end_matches('/').ends_with(":4317"))),
    }
}

fn sampler(set: &dyn Fn(&str) -> Option<String>) -> Result<Sampler, String> {
    match set("OTEL_TRACES_SAMPLER").as_deref() {
        None | Some("always_on" | "parentbased_always_on") => Ok(Sampler::All),
        Some("always_off" | "parentbased_always_off") => Ok(Sampler::None),
        Some("traceidratio" | "parentbased_traceidratio") => {
            let text = set("OTEL_TRACES_SAMPLER_ARG").unwrap_or_else(|| "1.0".to_owned());
            let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
            share.map(Sampler::Ratio).ok_or_else(|| format!("OTEL_TRACES_SAMPLER_ARG={text} must be a number from 0 to 1"))
        }
        Some(other) => Err(format!("OTEL_TRACES_SAMPLER={other} is not supported")),
    }
}

fn value_bytes_max(set: &dyn Fn(&str) -> Option<String>) -> Result<usize, String> {
    match set("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT") {
        None => Ok(VALUE_BYTES_MAX),
        Some(text) => text.parse().map_err(|_| format!("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT={text} must be a whole number")),
    }
}

fn resource(set: &dyn Fn(&str) -> Option<String>) -> Resource {
    let named = set("OTEL_SERVICE_NAME").is_some() || set("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|list| list.contains("service.name="));
    // Viewers correct for clocks between hosts; spans without a host look as if each had its own.
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()).unwrap_or_default();
    let attributes = [
        KeyValue::new("host.name", if host.is_empty() { "localhost".to_owned() } else { host }),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", std::process::id().to_string()),
    ];
    let builder = Resource::builder().with_attributes(attributes);
    if named { builder.build() } else { builder.with_service_name(render::SERVICE_NAME).build() }
}
