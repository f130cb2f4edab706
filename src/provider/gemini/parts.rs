//! The parts of one answer, laid out as they come. It runs nothing and judges no arguments.
//!
//! A signature belongs to the part beside which it came, and goes back with it. Thoughts are for people alone; images that
//! a model draws are not kept.

use serde_json::{Value, json};

use crate::kernel::ReplyCall;
use crate::kernel::message::Part;
use crate::provider::answer::{CALLS_MAX, Said};
use crate::provider::fields::{bytes, text};
use crate::provider::layout::Layout;

/// The parts of one answer, so far.
#[derive(Debug, Default)]
pub struct Parts {
    layout: Layout,
    calls: Vec<ReplyCall>,
    count: usize,
    bytes: usize,
}

impl Parts {
    /// Returns whether there are more calls, or more parts that are kept as they came, than anybody means.
    pub fn is_overfull(&self) -> bool {
        self.count > CALLS_MAX
    }

    /// Returns how many bytes are held beyond what was shown.
    pub fn bytes(&self) -> usize {
        self.bytes + self.layout.bytes()
    }

    /// Adds the next part, and says what of it is for people.
    pub fn add(&mut self, part: &Value, said: &mut Said) {
        if self.is_overfull() {
            return;
        }
        let signature = text(part, "thoughtSignature").map(|signature| json!({ "thoughtSignature": signature }));
        self.count += usize::from(signature.is_some());
        if let Some(call) = part.get("functionCall").filter(|call| call.is_object()) {
            self.count += 1;
            let args_raw = call.get("args").filter(|args| !args.is_null()).map(Value::to_string).unwrap_or_default();
            self.bytes += bytes(call);
            self.calls.push(ReplyCall {
                provider_id: text(call, "id").map(str::to_owned),
                tool: text(call, "name").unwrap_or_default().to_owned(),
                args_raw,
            });
            self.layout.call(signature.unwrap_or_default());
        } else if let Some(words) = part.get("text").and_then(Value::as_str) {
            match signature {
                _ if part["thought"] == true => said.reasoning(words),
                Some(signature) => {
                    said.text(words);
                    self.layout.signed_text(words.len(), signature);
                }
                None => {
                    said.text(words);
                    self.layout.text(words.len());
                }
            }
        } else if part.get("inlineData").is_none() && part.as_object().is_some_and(|fields| !fields.is_empty()) {
            // Code that ran at the provider and what came of it, or any part that no reader knows.
            self.count += 1;
            self.layout.opaque(part.clone());
        }
    }

    /// Takes all out: the calls in the order asked, and the parts, if they say more than text and calls.
    pub fn take(&mut self) -> (Vec<ReplyCall>, Vec<Part>) {
        (std::mem::take(&mut self.calls), self.layout.take())
    }
}
