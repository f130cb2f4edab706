//! Ollama's answers to deltas: one JSON object a line, the last of which says that it is done. An answer that ends without
//! it was cut. Calls come whole, and are given out at the end.

use serde_json::Value;

use crate::kernel::{ReplyCall, Stop, Usage};
use crate::provider::answer::{CALLS_MAX, Framing, Reader, Said, too_many_calls};
use crate::provider::counts;
use crate::provider::fields::{bytes, list, text};

/// Reads the answers of the family.
#[derive(Debug, Default)]
pub struct OllamaReader {
    calls: Vec<ReplyCall>,
    bytes: usize,
    has_begun: bool,
}

impl Reader for OllamaReader {
    const FRAMING: Framing = Framing::Lines;

    fn event(&mut self, line: &Value, said: &mut Said) {
        if line.get("error").is_some_and(|error| !error.is_null()) {
            return said.refuse(line);
        }
        said.names(None, text(line, "model"));
        if let Some(message) = line.get("message") {
            self.has_begun = true;
            said.reasoning(text(message, "thinking").unwrap_or_default());
            said.text(text(message, "content").unwrap_or_default());
            list(message, "tool_calls").iter().for_each(|call| self.call(call));
        }
        if self.calls.len() > CALLS_MAX {
            return said.malformed(&too_many_calls());
        }
        if line["done"] == true {
            if let Some(usage) = usage_of(line) {
                said.usage(usage);
            }
            self.end(text(line, "done_reason"), said);
        }
    }

    fn whole(&mut self, body: &Value, said: &mut Said) {
        self.event(body, said);
    }

    fn done(&mut self, said: &mut Said) {
        said.cut(self.has_begun);
    }

    fn ended(&mut self, _: &mut Said) {}

    fn has_begun(&self) -> bool {
        self.has_begun
    }

    fn held_bytes(&self) -> usize {
        self.bytes
    }

    fn abandon(&mut self, said: &mut Said) {
        std::mem::take(&mut self.calls).into_iter().for_each(|call| said.call(call));
    }
}

impl OllamaReader {
    fn call(&mut self, call: &Value) {
        if self.calls.len() > CALLS_MAX {
            return;
        }
        let Some(function) = call.get("function") else { return };
        self.bytes += bytes(call);
        self.calls.push(ReplyCall {
            provider_id: text(call, "id").map(str::to_owned),
            tool: text(function, "name").unwrap_or_default().to_owned(),
            args_raw: function.get("arguments").filter(|args| !args.is_null()).map(Value::to_string).unwrap_or_default(),
        });
    }

    fn end(&mut self, reason: Option<&str>, said: &mut Said) {
        let stop = match reason {
            Some("length") => Stop::Length,
            None | Some("stop") if !self.calls.is_empty() => Stop::ToolCalls,
            None | Some("stop") => Stop::EndTurn,
            // It loaded or unloaded a model and said nothing.
            Some(_) => Stop::Error,
        };
        std::mem::take(&mut self.calls).into_iter().for_each(|call| said.call(call));
        said.stop(stop, reason.map(str::to_owned));
    }
}

fn usage_of(line: &Value) -> Option<Usage> {
    let (input, output) = (counts::at(line, &["prompt_eval_count"]), counts::at(line, &["eval_count"]));
    (input.is_some() || output.is_some()).then(|| Usage {
        input_tokens: input.unwrap_or(0),
        output_tokens: output.unwrap_or(0),
        ..Usage::default()
    })
}
