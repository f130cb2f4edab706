//! Responses' events to deltas. The items that an answer consists of are put together elsewhere.
//!
//! An answer is closed by `response.completed`, `.incomplete` or `.failed`. One that ends without them was cut. Calls and
//! parts are given out only at the end.

use serde_json::Value;

use super::items::{Items, Piece};
use super::usage;
use crate::kernel::Stop;
use crate::provider::answer::{Framing, Reader, Said, too_many_calls};
use crate::provider::fields::{list, text};

/// Reads the answers of the family.
#[derive(Debug, Default)]
pub struct ResponsesReader {
    items: Items,
    has_begun: bool,
    has_refused: bool,
}

impl Reader for ResponsesReader {
    const FRAMING: Framing = Framing::Events;

    fn event(&mut self, event: &Value, said: &mut Said) {
        let index = event.get("output_index").and_then(Value::as_u64).unwrap_or(0);
        let item = event.get("item").unwrap_or(&Value::Null);
        match text(event, "type") {
            Some("response.created" | "response.in_progress" | "response.queued") => self.head(&event["response"], said),
            Some("response.output_item.added") => {
                self.has_begun = true;
                self.items.begin(index, item);
            }
            Some("response.output_item.done") => {
                self.has_begun = true;
                self.items.done(index, item, said);
            }
            Some("response.output_text.delta") => self.piece(event, Piece::Text, said),
            Some("response.refusal.delta") => {
                self.has_refused = true;
                self.piece(event, Piece::Refusal, said);
            }
            Some("response.reasoning_text.delta" | "response.reasoning_summary_text.delta") => self.piece(event, Piece::Thought, said),
            // Summaries come in parts with nothing between them.
            Some("response.reasoning_summary_part.added") if event["summary_index"].as_u64().is_some_and(|part| part > 0) => {
                self.items.piece(index, Piece::Thought, "\n\n", said);
            }
            Some("response.function_call_arguments.delta") => self.piece(event, Piece::Arguments, said),
            Some("response.completed" | "response.incomplete" | "response.failed") => self.whole(&event["response"], said),
            Some("error") => said.refuse(event),
            // Kinds that repeat what was said, and those that the API may add.
            Some(_) => {}
            None if event.get("error").is_some_and(|error| !error.is_null()) => said.refuse(event),
            None => {}
        }
        if self.items.is_overfull() {
            said.malformed(&too_many_calls());
        }
    }

    fn whole(&mut self, body: &Value, said: &mut Said) {
        let Some(status) = text(body, "status") else {
            return if body.get("error").is_some_and(|error| !error.is_null()) {
                said.refuse(body);
            } else {
                said.malformed("the answer holds no response");
            };
        };
        self.head(body, said);
        // A stream has given its items already; a server that gives none on the way gives them here.
        if self.items.is_empty() {
            (0..).zip(list(body, "output")).for_each(|(index, item)| self.items.done(index, item, said));
        }
        self.has_refused |= list(body, "output").iter().flat_map(|item| list(item, "content")).any(|part| text(part, "refusal").is_some());
        if status == "failed" {
            return said.refuse(body);
        }
        if self.items.is_overfull() {
            return said.malformed(&too_many_calls());
        }
        let reason = body.get("incomplete_details").and_then(|details| text(details, "reason"));
        self.end(status, reason, said);
    }

    fn done(&mut self, said: &mut Said) {
        said.cut(self.has_begun);
    }

    fn ended(&mut self, _: &mut Said) {}

    fn has_begun(&self) -> bool {
        self.has_begun
    }

    fn held_bytes(&self) -> usize {
        self.items.bytes()
    }

    fn abandon(&mut self, said: &mut Said) {
        let (calls, _) = self.items.take();
        calls.into_iter().for_each(|call| said.call(call));
    }
}

impl ResponsesReader {
    fn head(&mut self, response: &Value, said: &mut Said) {
        self.has_begun = true;
        said.names(text(response, "id"), text(response, "model"));
        if let Some(usage) = usage::of(response) {
            said.usage(usage);
        }
        if let Some(nanos) = usage::stated_cost(response) {
            said.stated_cost(nanos);
        }
    }

    fn piece(&mut self, event: &Value, piece: Piece, said: &mut Said) {
        let index = event.get("output_index").and_then(Value::as_u64).unwrap_or(0);
        self.items.piece(index, piece, text(event, "delta").unwrap_or_default(), said);
    }

    /// The answer has come to its own end.
    fn end(&mut self, status: &str, reason: Option<&str>, said: &mut Said) {
        let (calls, parts) = self.items.take();
        let stop = match (status, reason) {
            ("completed", _) if !calls.is_empty() => Stop::ToolCalls,
            ("completed", _) if self.has_refused => Stop::Refusal,
            ("completed", _) => Stop::EndTurn,
            ("incomplete", Some("max_output_tokens")) => Stop::Length,
            ("incomplete", Some("content_filter")) => Stop::Refusal,
            _ => Stop::Error,
        };
        let raw = reason.filter(|_| status != "completed").map_or_else(|| status.to_owned(), |reason| format!("{status}:{reason}"));
        calls.into_iter().for_each(|call| said.call(call));
        said.parts(parts);
        said.stop(stop, Some(raw));
    }
}
