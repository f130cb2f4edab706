//! Telemetry: the journal as spans and metrics, their export, and the names of their attributes.
//!
//! Spans are built from facts, never from live code: a run leaves the same spans whether anybody exports them, and a
//! recovered daemon closes the spans of the one that died.

pub mod span;

/// The daemon's spans and metrics.
#[derive(Clone, Default)]
pub struct Telemetry {}
