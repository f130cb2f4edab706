//! A reply part by part: laid out while it is read, and laid out again for the model that made it. It knows no family.
//!
//! Most replies are a text and some calls, and need nothing of this. Where a model signs or encrypts a part, its order and
//! every byte of it must come back; a model that did not make it is told text and calls alone.

use serde_json::Value;

use crate::kernel::message::Part;
use crate::kernel::{AssistantMessage, Call, ModelSpec};

/// The parts of a reply that is being read.
#[derive(Debug, Default)]
pub struct Layout {
    parts: Vec<Part>,
    bytes: usize,
}

impl Layout {
    /// Adds the next `more` bytes of the reply's text.
    pub fn text(&mut self, more: usize) {
        if more == 0 {
            return;
        }
        if let Some(Part::Text { bytes, beside: Value::Null }) = self.parts.last_mut() {
            *bytes += more;
        } else {
            self.parts.push(Part::Text { bytes: more, beside: Value::Null });
        }
    }

    /// Adds the next bytes of the reply's text, maybe none, with something beside them.
    pub fn signed_text(&mut self, bytes: usize, beside: Value) {
        self.add(Part::Text { bytes, beside });
    }

    /// Adds the reply's next call, with something beside it or null.
    pub fn call(&mut self, beside: Value) {
        self.add(Part::Call { beside });
    }

    /// Adds anything else.
    pub fn opaque(&mut self, value: Value) {
        self.add(Part::Opaque(value));
    }

    /// Returns how many bytes the parts hold beyond text and calls.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the parts out; none, if text and calls say it all.
    pub fn take(&mut self) -> Vec<Part> {
        let parts = std::mem::take(&mut self.parts);
        if parts.iter().any(Part::is_opaque) { parts } else { Vec::new() }
    }

    fn add(&mut self, part: Part) {
        self.bytes += part.bytes();
        self.parts.push(part);
    }
}

/// One part of a reply that is sent back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Piece<'a> {
    /// Text, and what stood beside it.
    Text(&'a str, Option<&'a Value>),
    /// A call, and what stood beside it.
    Call(&'a Call, Option<&'a Value>),
    /// Anything else, as it came.
    Opaque(&'a Value),
}

/// Returns what to send back of a reply to `model`: as it was laid out if the same model made it, else its text (or the
/// words of its refusal) and its calls.
pub fn pieces<'a>(reply: &'a AssistantMessage, model: &ModelSpec) -> Vec<Piece<'a>> {
    let words = if reply.text.is_empty() { reply.refusal.as_deref().unwrap_or_default() } else { reply.text.as_str() };
    let mut rest = words;
    let mut calls = reply.calls.iter();
    let mut pieces = Vec::new();
    let beside = |value: &'a Value| Some(value).filter(|value| !value.is_null());
    for part in reply.carried_for(model).unwrap_or_default() {
        match part {
            Part::Text { bytes, beside: value } => {
                // A length that does not fit the text would be a broken journal; then the rest stands here as a whole.
                let (text, after) = rest.split_at_checked(*bytes).unwrap_or((rest, ""));
                rest = after;
                pieces.push(Piece::Text(text, beside(value)));
            }
            Part::Call { beside: value } => pieces.extend(calls.next().map(|call| Piece::Call(call, beside(value)))),
            Part::Opaque(value) => pieces.push(Piece::Opaque(value)),
        }
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest, None));
    }
    pieces.extend(calls.map(|call| Piece::Call(call, None)));
    pieces
}
