//! The content blocks of one answer, put together from their pieces and laid out at its end. It runs nothing and judges
//! no arguments.
//!
//! Thinking goes back to the model that thought it with its signature and unchanged; what ran at the provider goes back as
//! it came. Thinking without a signature is for people alone: the API refuses it.

use serde_json::{Map, Value, json};

use crate::kernel::ReplyCall;
use crate::kernel::message::Part;
use crate::provider::answer::CALLS_MAX;
use crate::provider::layout::Layout;

/// The blocks of one answer, so far, in the order begun.
#[derive(Debug, Default)]
pub struct Blocks {
    blocks: Vec<(u64, Block)>,
    bytes: usize,
}

#[derive(Debug)]
enum Block {
    Text {
        bytes: usize,
        citations: Vec<Value>,
    },
    Thinking {
        text: String,
        signature: String,
    },
    Call {
        call: ReplyCall,
        begun: Value,
    },
    /// A tool that runs at the provider, or any block that no reader knows. Its input may come in pieces.
    Other {
        block: Value,
        input: String,
    },
}

/// What a piece says to people, at once.
#[derive(Debug, PartialEq, Eq)]
pub enum Shown<'a> {
    /// Text for the reader.
    Text(&'a str),
    /// What the model thinks aloud.
    Thought(&'a str),
    /// Nothing yet.
    Nothing,
}

impl Blocks {
    /// Returns whether there are more than anybody means.
    pub fn is_overfull(&self) -> bool {
        self.blocks.len() > CALLS_MAX
    }

    /// Returns how many bytes are held beyond what was shown.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Begins the block at `index`. A whole message's blocks begin with all that they hold.
    pub fn begin<'a>(&mut self, index: u64, block: &'a Value) -> Shown<'a> {
        if self.is_overfull() {
            return Shown::Nothing;
        }
        let (block, shown) = match text(block, "type") {
            "text" => {
                let words = text(block, "text");
                let citations = block.get("citations").and_then(Value::as_array).cloned().unwrap_or_default();
                self.bytes += citations.iter().map(held).sum::<usize>();
                (Block::Text { bytes: words.len(), citations }, Shown::Text(words))
            }
            "thinking" => {
                let thought = text(block, "thinking");
                let signature = text(block, "signature").to_owned();
                self.bytes += signature.len();
                (Block::Thinking { text: thought.to_owned(), signature }, Shown::Thought(thought))
            }
            "tool_use" => {
                self.bytes += held(block);
                let id = Some(text(block, "id")).filter(|id| !id.is_empty()).map(str::to_owned);
                let call = ReplyCall { provider_id: id, tool: text(block, "name").to_owned(), args_raw: String::new() };
                (Block::Call { call, begun: block.get("input").cloned().unwrap_or_default() }, Shown::Nothing)
            }
            _ => {
                self.bytes += held(block);
                (Block::Other { block: block.clone(), input: String::new() }, Shown::Nothing)
            }
        };
        self.blocks.push((index, block));
        shown
    }

    /// Adds a piece to the block at `index`. A piece of no block, or of the wrong kind, says nothing.
    pub fn piece<'a>(&mut self, index: u64, delta: &'a Value) -> Shown<'a> {
        let Some((_, block)) = self.blocks.iter_mut().rev().find(|(at, _)| *at == index) else { return Shown::Nothing };
        match (block, text(delta, "type")) {
            (Block::Text { bytes, .. }, "text_delta") => {
                let words = text(delta, "text");
                *bytes += words.len();
                return Shown::Text(words);
            }
            (Block::Text { citations, .. }, "citations_delta") => {
                if let Some(citation) = delta.get("citation") {
                    self.bytes += held(citation);
                    citations.push(citation.clone());
                }
            }
            (Block::Thinking { text: all, .. }, "thinking_delta") => {
                let thought = text(delta, "thinking");
                all.push_str(thought);
                return Shown::Thought(thought);
            }
            (Block::Thinking { signature, .. }, "signature_delta") => {
                signature.push_str(text(delta, "signature"));
                self.bytes += text(delta, "signature").len();
            }
            (Block::Call { call, .. }, "input_json_delta") => {
                call.args_raw.push_str(text(delta, "partial_json"));
                self.bytes += text(delta, "partial_json").len();
            }
            (Block::Other { input, .. }, "input_json_delta") => {
                input.push_str(text(delta, "partial_json"));
                self.bytes += text(delta, "partial_json").len();
            }
            _ => {}
        }
        Shown::Nothing
    }

    /// Takes all out: the calls in the order begun, and the parts, if they say more than text and calls.
    pub fn take(&mut self) -> (Vec<ReplyCall>, Vec<Part>) {
        let mut layout = Layout::default();
        let mut calls = Vec::new();
        for (_, block) in std::mem::take(&mut self.blocks) {
            match block {
                Block::Text { bytes, citations } if citations.is_empty() => layout.text(bytes),
                Block::Text { bytes, citations } => layout.signed_text(bytes, json!({ "citations": citations })),
                Block::Thinking { signature, .. } if signature.is_empty() => {}
                Block::Thinking { text, signature } => {
                    layout.opaque(json!({ "type": "thinking", "thinking": text, "signature": signature }));
                }
                // The bound falls on blocks, so that calls and parts stay in step.
                Block::Call { call, begun } => {
                    layout.call(Value::Null);
                    calls.push(with_input(call, &begun));
                }
                Block::Other { block, input } => layout.opaque(with_whole_input(block, &input)),
            }
        }
        calls.truncate(CALLS_MAX);
        (calls, layout.take())
    }
}

/// The arguments come in pieces, or all at once when the block begins.
fn with_input(mut call: ReplyCall, begun: &Value) -> ReplyCall {
    if call.args_raw.is_empty() && begun.as_object().is_none_or(|input| !input.is_empty()) && !begun.is_null() {
        call.args_raw = begun.to_string();
    }
    call
}

fn with_whole_input(mut block: Value, input: &str) -> Value {
    let whole = serde_json::from_str::<Map<String, Value>>(input);
    if let (Some(fields), Ok(input)) = (block.as_object_mut(), whole) {
        fields.insert("input".to_owned(), Value::Object(input));
    }
    block
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn held(value: &Value) -> usize {
    value.to_string().len()
}
