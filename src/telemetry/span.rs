//! Spans, built from the journal.

/// One finished span.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// t
    pub trace_id: String,
}
