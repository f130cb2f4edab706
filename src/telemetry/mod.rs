//! Telemetry: the journal as spans and metrics, their export, and the names of their attributes.
//!
//! Spans are built from facts, never from live code: a run leaves the same spans whether anybody exports them, and a
//! recovered daemon closes the spans of the one that died.

pub mod span;

/// The daemon's spans and metrics.
#[derive(Clone, Default)]
pub struct Telemetry {}
use crate::kernel::Recorded;
impl Telemetry {
    /// stub
    pub fn export(&self, _: Vec<span::Span>) {}
    /// stub
    pub fn observe(&self, _: &Recorded) {}
    /// stub
    pub fn sample(&self, _: &str) -> bool {
        true
    }
    /// stub
    pub async fn shutdown(&self) {}
}
/// stub
pub struct TreeSpans {}
impl TreeSpans {
    /// stub
    pub fn new() -> Self {
        Self {}
    }
    /// stub
    pub fn on(&mut self, _: &Recorded) -> Vec<span::Span> {
        vec![]
    }
    /// stub
    pub fn replay<'a>(_: impl IntoIterator<Item = &'a Recorded>, _: i64) -> Vec<span::Span> {
        vec![]
    }
}
/// stub
pub mod render {
    use super::span::Span;
    /// stub
    pub fn text(_: &[Span]) -> String {
        String::new()
    }
    /// stub
    pub fn otlp_json(_: &[Span]) -> String {
        String::new()
    }
    /// stub
    pub fn jaeger_json(_: &[Span]) -> String {
        String::new()
    }
}
/// stub
pub mod ids {
    /// stub
    pub fn trace_id(_: &crate::kernel::RunId, _: u32) -> String {
        String::new()
    }
}
