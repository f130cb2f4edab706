//! A finished span, as plain data: what is exported, rendered and tested alike.

/// One finished span.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// 32 hex digits.
    pub trace_id: String,
    /// 16 hex digits.
    pub span_id: String,
    /// The span above it; `None` for the root of its trace.
    pub parent_span_id: Option<String>,
    /// Its name.
    pub name: String,
    /// What it is to the outside.
    pub kind: Kind,
    /// When it began, in microseconds since the Unix epoch.
    pub start_us: i64,
    /// When it ended.
    pub end_us: i64,
    /// Attributes, each key once, in the order set.
    pub attributes: Vec<(&'static str, Attribute)>,
    /// What happened within it.
    pub events: Vec<SpanEvent>,
    /// Spans of other traces that it goes on from.
    pub links: Vec<Link>,
    /// Why it failed; `None` if it did not, or if a person ended it.
    pub error: Option<String>,
}

/// What a span is to the outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Work of this process.
    Internal,
    /// A call to another.
    Client,
    /// A call from another.
    Server,
}

/// An attribute's value.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// Text.
    Text(String),
    /// A whole number.
    Int(i64),
    /// A number; money that backends read as such.
    Float(f64),
    /// Yes or no.
    Bool(bool),
    /// A list of texts.
    Texts(Vec<String>),
}

/// Something that happened within a span.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanEvent {
    /// What.
    pub name: &'static str,
    /// When, in microseconds since the Unix epoch.
    pub time_us: i64,
    /// More about it.
    pub attributes: Vec<(&'static str, Attribute)>,
}

/// A span of another trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// 32 hex digits.
    pub trace_id: String,
    /// 16 hex digits.
    pub span_id: String,
}

impl Span {
    /// Returns a span that begins now and says nothing yet.
    pub(super) fn open(trace_id: String, span_id: String, parent: Option<String>, name: String, kind: Kind, start_us: i64) -> Self {
        Self {
            trace_id,
            span_id,
            parent_span_id: parent,
            name,
            kind,
            start_us,
            end_us: start_us,
            attributes: Vec::with_capacity(24),
            events: Vec::new(),
            links: Vec::new(),
            error: None,
        }
    }

    /// Returns an attribute.
    pub fn attribute(&self, key: &str) -> Option<&Attribute> {
        self.attributes.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// Returns a whole-number attribute; 0 if it is not there.
    pub fn int(&self, key: &str) -> i64 {
        match self.attribute(key) {
            Some(Attribute::Int(value)) => *value,
            Some(Attribute::Text(_) | Attribute::Float(_) | Attribute::Bool(_) | Attribute::Texts(_)) | None => 0,
        }
    }

    /// Sets an attribute, in place of the one of that key if there is one.
    pub fn set(&mut self, key: &'static str, value: Attribute) {
        match self.attributes.iter_mut().find(|(name, _)| *name == key) {
            Some((_, old)) => *old = value,
            None => self.attributes.push((key, value)),
        }
    }

    /// Takes an attribute away.
    pub(super) fn unset(&mut self, key: &str) {
        self.attributes.retain(|(name, _)| *name != key);
    }

    /// Marks it as failed: `why` for people, `kind` as its `error.type`.
    pub(super) fn fail(&mut self, why: impl Into<String>, kind: &str) {
        self.error = Some(why.into());
        self.set_text(super::names::ERROR_TYPE, kind);
    }

    /// Sets a text.
    pub fn set_text(&mut self, key: &'static str, text: impl Into<String>) {
        self.set(key, Attribute::Text(text.into()));
    }

    /// Sets a whole number.
    pub fn set_int(&mut self, key: &'static str, number: impl Into<i64>) {
        self.set(key, Attribute::Int(number.into()));
    }

    /// Sets an amount of money as the float in USD that backends read.
    pub fn set_usd(&mut self, key: &'static str, nanos: i64) {
        #[expect(clippy::cast_precision_loss, reason = "the integer stands beside it")]
        self.set(key, Attribute::Float(nanos as f64 / 1e9));
    }
}
