//! Messages answers to deltas. The blocks that an answer consists of are put together elsewhere.
//!
//! An answer is closed by `message_stop`, or, where a gateway leaves that out, by a stop reason. One that ends without
//! both was cut. Calls and parts are given out only at the end.

use std::mem::take;

use serde_json::Value;

use super::blocks::{Blocks, Shown};
use super::usage;
use crate::kernel::Stop;
use crate::provider::answer::{Framing, Reader, Said, too_many_calls};
use crate::provider::fields::text;

/// Reads the answers of the family.
#[derive(Debug, Default)]
pub struct MessagesReader {
    blocks: Blocks,
    reason: Option<String>,
    has_begun: bool,
}

impl Reader for MessagesReader {
    const FRAMING: Framing = Framing::Events;

    fn event(&mut self, event: &Value, said: &mut Said) {
        match text(event, "type") {
            // Proxies repeat it. Names and counts of the first stay.
            Some("message_start") => {
                self.has_begun = true;
                if let Some(message) = event.get("message") {
                    head(message, said);
                }
            }
            Some("content_block_start") => {
                self.has_begun = true;
                if let Some(block) = event.get("content_block").filter(|block| block.is_object()) {
                    show(self.blocks.begin(index_of(event), block), said);
                }
            }
            Some("content_block_delta") => {
                if let Some(delta) = event.get("delta") {
                    show(self.blocks.piece(index_of(event), delta), said);
                }
            }
            Some("message_delta") => {
                self.reason = event.get("delta").and_then(|delta| text(delta, "stop_reason")).map(str::to_owned).or(self.reason.take());
                used(event, said);
            }
            Some("message_stop") => self.end(said),
            Some("error") => said.refuse(event),
            // Kinds that the API may add, and `ping`.
            Some(_) => {}
            None if event.get("error").is_some_and(|error| !error.is_null()) => said.refuse(event),
            None => {}
        }
        if self.blocks.is_overfull() {
            said.malformed(&too_many_calls());
        }
    }

    fn whole(&mut self, body: &Value, said: &mut Said) {
        let Some(blocks) = body.get("content").and_then(Value::as_array) else {
            return if body.get("error").is_some() { said.refuse(body) } else { said.malformed("the answer holds no message") };
        };
        self.has_begun = true;
        head(body, said);
        for (index, block) in (0..).zip(blocks) {
            show(self.blocks.begin(index, block), said);
        }
        self.reason = text(body, "stop_reason").map(str::to_owned);
        if self.blocks.is_overfull() { said.malformed(&too_many_calls()) } else { self.end(said) }
    }

    fn done(&mut self, said: &mut Said) {
        if self.reason.is_none() && !self.has_begun { said.cut(self.has_begun()) } else { self.end(said) }
    }

    fn ended(&mut self, said: &mut Said) {
        if self.reason.is_some() {
            self.end(said);
        }
    }

    fn has_begun(&self) -> bool {
        self.has_begun
    }

    fn held_bytes(&self) -> usize {
        self.blocks.bytes()
    }

    fn abandon(&mut self, said: &mut Said) {
        let (calls, _) = self.blocks.take();
        calls.into_iter().for_each(|call| said.call(call));
    }
}

impl MessagesReader {
    /// The answer has come to its own end.
    fn end(&mut self, said: &mut Said) {
        let (calls, parts) = self.blocks.take();
        let reason = take(&mut self.reason);
        let has_calls = !calls.is_empty();
        calls.into_iter().for_each(|call| said.call(call));
        said.parts(parts);
        if reason.as_deref() == Some("pause_turn") {
            return said.pause(reason);
        }
        said.stop(stop_of(reason.as_deref(), has_calls), reason);
    }
}

fn head(message: &Value, said: &mut Said) {
    said.names(text(message, "id"), text(message, "model"));
    used(message, said);
}

fn used(holder: &Value, said: &mut Said) {
    if let Some(usage) = usage::of(holder) {
        said.usage(usage);
    }
    if let Some(nanos) = usage::stated_cost(holder) {
        said.stated_cost(nanos);
    }
}

fn show(shown: Shown<'_>, said: &mut Said) {
    match shown {
        Shown::Text(words) => said.text(words),
        Shown::Thought(thought) => said.reasoning(thought),
        Shown::Nothing => {}
    }
}

fn index_of(event: &Value) -> u64 {
    event.get("index").and_then(Value::as_u64).unwrap_or(0)
}

/// Maps the API's word for its stop. A turn with calls wants them run, whatever harmless word stands beside.
fn stop_of(word: Option<&str>, has_calls: bool) -> Stop {
    match word {
        Some("max_tokens" | "model_context_window_exceeded") => Stop::Length,
        Some("refusal") => Stop::Refusal,
        Some("tool_use") => Stop::ToolCalls,
        None | Some("end_turn" | "stop_sequence") if has_calls => Stop::ToolCalls,
        None | Some("end_turn" | "stop_sequence") => Stop::EndTurn,
        Some(_) => Stop::Error,
    }
}
