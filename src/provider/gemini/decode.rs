//! generateContent's answers to deltas, streamed or whole: both come in the same form. Only the first candidate counts, as
//! only one is asked for.
//!
//! Pieces may follow the one that states why the model stopped, so an answer is closed by the end of its body, and well only
//! if a reason was stated before. Calls and parts are given out only then.

use serde_json::Value;

use super::parts::Parts;
use super::usage;
use crate::kernel::Stop;
use crate::provider::answer::{Framing, Reader, Said, too_many_calls};
use crate::provider::fields::{list, text};

/// Reads the answers of the family.
#[derive(Debug, Default)]
pub struct GeminiReader {
    parts: Parts,
    reason: Option<String>,
    has_begun: bool,
}

impl Reader for GeminiReader {
    const FRAMING: Framing = Framing::Events;

    fn event(&mut self, answer: &Value, said: &mut Said) {
        if answer.get("error").is_some_and(|error| !error.is_null()) {
            return said.refuse(answer);
        }
        said.names(text(answer, "responseId"), text(answer, "modelVersion"));
        if let Some(usage) = usage::of(answer) {
            said.usage(usage);
        }
        let first = |candidate: &&Value| candidate.get("index").and_then(Value::as_u64).unwrap_or(0) == 0;
        if let Some(candidate) = list(answer, "candidates").iter().find(first) {
            self.has_begun = true;
            let content = candidate.get("content").unwrap_or(&Value::Null);
            list(content, "parts").iter().for_each(|part| self.parts.add(part, said));
            if let Some(reason) = text(candidate, "finishReason") {
                self.reason = Some(reason.to_owned());
            }
        } else if let Some(reason) = answer.get("promptFeedback").and_then(|feedback| text(feedback, "blockReason")) {
            self.has_begun = true;
            self.reason.get_or_insert_with(|| format!("prompt:{reason}"));
        }
        if self.parts.is_overfull() {
            said.malformed(&too_many_calls());
        }
    }

    fn whole(&mut self, body: &Value, said: &mut Said) {
        self.event(body, said);
        if !self.has_begun && !said.is_over() {
            return said.malformed("the answer holds no candidate");
        }
        self.done(said);
    }

    fn done(&mut self, said: &mut Said) {
        if !said.is_over() && self.reason.is_none() {
            return said.cut(self.has_begun);
        }
        self.ended(said);
    }

    fn ended(&mut self, said: &mut Said) {
        let Some(reason) = self.reason.take().filter(|_| !said.is_over()) else { return };
        let (calls, parts) = self.parts.take();
        let stop = stop_of(&reason, !calls.is_empty());
        calls.into_iter().for_each(|call| said.call(call));
        said.parts(parts);
        said.stop(stop, Some(reason));
    }

    fn has_begun(&self) -> bool {
        self.has_begun
    }

    fn held_bytes(&self) -> usize {
        self.parts.bytes()
    }

    fn abandon(&mut self, said: &mut Said) {
        let (calls, _) = self.parts.take();
        calls.into_iter().for_each(|call| said.call(call));
    }
}

/// Maps the API's word for its stop. A turn with calls wants them run, though the word is the same.
fn stop_of(word: &str, has_calls: bool) -> Stop {
    match word {
        "STOP" if has_calls => Stop::ToolCalls,
        "STOP" => Stop::EndTurn,
        "MAX_TOKENS" => Stop::Length,
        "SAFETY"
        | "RECITATION"
        | "BLOCKLIST"
        | "PROHIBITED_CONTENT"
        | "SPII"
        | "LANGUAGE"
        | "MODEL_ARMOR"
        | "IMAGE_SAFETY"
        | "IMAGE_PROHIBITED_CONTENT"
        | "IMAGE_RECITATION" => Stop::Refusal,
        _ if word.starts_with("prompt:") => Stop::Refusal,
        // MALFORMED_FUNCTION_CALL, UNEXPECTED_TOOL_CALL, OTHER, and what the API may add.
        _ => Stop::Error,
    }
}
