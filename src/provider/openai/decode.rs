//! Chat Completions answers to deltas, with the quirks of every server that speaks this family.
//!
//! An answer is closed by a finish reason or by `[DONE]`; either will do, since servers leave out one or the other. One
//! that ends without both was cut. Calls are given out only at the end, since any piece may still add to them.

use std::mem::take;

use serde_json::Value;

use super::calls::Calls;
use super::usage;
use crate::kernel::Stop;
use crate::provider::answer::{Framing, Reader, Said, too_many_calls};

/// Reads the answers of the family.
#[derive(Debug, Default)]
pub struct ChatReader {
    calls: Calls,
    finish: Option<String>,
    has_choice: bool,
    has_usage: bool,
    has_refusal: bool,
}

impl Reader for ChatReader {
    const FRAMING: Framing = Framing::Events;

    fn event(&mut self, chunk: &Value, said: &mut Said) {
        said.names(text(chunk, "id"), text(chunk, "model"));
        if let Some(choice) = first_choice(chunk) {
            // A chunk that carries an error often carries an empty choice beside it.
            self.has_choice |= !is_error(chunk);
            self.choice(choice, said);
        }
        if let Some(usage) = usage::of(chunk) {
            self.has_usage = true;
            said.usage(usage);
        }
        if let Some(nanos) = usage::stated_cost(chunk) {
            said.stated_cost(nanos);
        }
        if is_error(chunk) {
            said.refuse(chunk);
        } else if self.calls.is_overfull() {
            said.malformed(&too_many_calls());
        }
    }

    fn whole(&mut self, body: &Value, said: &mut Said) {
        self.event(body, said);
        if said.is_over() {
        } else if self.has_choice {
            self.end(said);
        } else {
            said.malformed("the answer holds no choice, so no reply");
        }
    }

    fn done(&mut self, said: &mut Said) {
        // Some servers say so when they break an answer off for another one. What was counted is whole all the same.
        if self.finish.is_some() || (self.has_choice && self.has_usage) { self.end(said) } else { said.cut(self.has_begun()) }
    }

    fn ended(&mut self, said: &mut Said) {
        // A polite close looks the same in the middle of a reply: only a finish reason closes one.
        if self.finish.is_some() {
            self.end(said);
        }
    }

    fn has_begun(&self) -> bool {
        self.has_choice
    }

    fn held_bytes(&self) -> usize {
        self.calls.bytes()
    }

    fn abandon(&mut self, said: &mut Said) {
        self.calls.take().into_iter().for_each(|call| said.call(call));
    }
}

impl ChatReader {
    fn choice(&mut self, choice: &Value, said: &mut Said) {
        // Where both are there, the message repeats what all deltas have said.
        if let Some(delta) = choice.get("delta").filter(|delta| delta.is_object()) {
            self.part(delta, said);
            entries(delta).for_each(|entry| self.calls.add(entry));
        } else if let Some(message) = choice.get("message").filter(|message| message.is_object()) {
            self.part(message, said);
            entries(message).for_each(|entry| self.calls.add_whole(entry));
        }
        if self.finish.is_none() {
            self.finish = text(choice, "finish_reason").map(str::to_owned);
        }
    }

    fn part(&mut self, part: &Value, said: &mut Said) {
        // Proxies that know both names of it send it under both.
        if let Some(thought) = text(part, "reasoning_content").or_else(|| text(part, "reasoning")) {
            said.reasoning(thought);
        }
        match part.get("content") {
            Some(Value::String(text)) => said.text(text),
            Some(Value::Array(pieces)) => pieces.iter().for_each(|piece| self.piece(piece, said)),
            _ => {}
        }
        if let Some(refusal) = text(part, "refusal") {
            self.refusal(refusal, said);
        }
        if let Some(call) = part.get("function_call").filter(|call| call.is_object()) {
            self.calls.add_function(call);
        }
    }

    /// One piece of a content that is a list.
    fn piece(&mut self, piece: &Value, said: &mut Said) {
        match piece.get("thinking") {
            Some(Value::String(thought)) => said.reasoning(thought),
            Some(Value::Array(thoughts)) => {
                thoughts.iter().filter_map(|thought| text(thought, "text")).for_each(|thought| said.reasoning(thought));
            }
            _ => {}
        }
        if let Some(words) = text(piece, "text") {
            said.text(words);
        }
        if let Some(words) = text(piece, "refusal") {
            self.refusal(words, said);
        }
    }

    fn refusal(&mut self, words: &str, said: &mut Said) {
        self.has_refusal = true;
        said.refusal(words);
    }

    /// The answer has come to its own end.
    fn end(&mut self, said: &mut Said) {
        let calls = self.calls.take();
        let stop = stop_of(self.finish.as_deref(), !calls.is_empty(), self.has_refusal);
        calls.into_iter().for_each(|call| said.call(call));
        said.stop(stop, take(&mut self.finish));
    }
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn entries(part: &Value) -> impl Iterator<Item = &Value> {
    part.get("tool_calls").and_then(Value::as_array).into_iter().flatten()
}

fn first_choice(chunk: &Value) -> Option<&Value> {
    let choices = chunk.get("choices")?.as_array()?;
    choices.iter().find(|choice| choice.get("index").and_then(Value::as_i64).unwrap_or(0) == 0)
}

/// Returns whether a chunk says that it is an error.
fn is_error(chunk: &Value) -> bool {
    let has_error = chunk.get("error").is_some_and(|error| error.is_object() || error.as_str().is_some_and(|text| !text.is_empty()));
    let is_error = chunk.get("object").and_then(Value::as_str) == Some("error")
        || (chunk.get("choices").is_none() && chunk.get("detail").is_some_and(|detail| !detail.is_null()));
    has_error || is_error
}

/// Maps a provider's word for its stop. A turn with calls wants them run, whatever harmless word stands beside.
fn stop_of(word: Option<&str>, has_calls: bool, has_refusal: bool) -> Stop {
    match word {
        Some("length" | "max_tokens" | "model_length") => Stop::Length,
        Some("content_filter" | "safety" | "refusal") => Stop::Refusal,
        _ if has_refusal => Stop::Refusal,
        Some("tool_calls" | "function_call" | "tool_use") => Stop::ToolCalls,
        None | Some("stop" | "eos" | "eos_token" | "end_turn" | "stop_sequence") if has_calls => Stop::ToolCalls,
        None | Some("stop" | "eos" | "eos_token" | "end_turn" | "stop_sequence") => Stop::EndTurn,
        Some(_) => Stop::Error,
    }
}
