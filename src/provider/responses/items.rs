//! The output items of one response, put together from their pieces and laid out at its end. It runs nothing and judges
//! no arguments.
//!
//! Reasoning goes back to the model that thought it if it is encrypted, and what ran at the provider goes back as it came.
//! Reasoning in the clear is for people alone.

use serde_json::{Value, json};

use crate::kernel::ReplyCall;
use crate::kernel::message::Part;
use crate::provider::answer::{CALLS_MAX, Said};
use crate::provider::fields::{bytes, list, text};
use crate::provider::layout::Layout;

/// The items of one response, so far, in the order begun.
#[derive(Debug, Default)]
pub struct Items {
    items: Vec<(u64, Item)>,
    bytes: usize,
}

#[derive(Debug)]
enum Item {
    Message {
        bytes: usize,
        has_words: bool,
        phase: Option<String>,
    },
    Reasoning {
        item: Value,
        has_words: bool,
    },
    Call(ReplyCall),
    /// A tool that ran at the provider, or any item that no reader knows.
    Other(Value),
}

/// What a piece adds to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A message's text.
    Text,
    /// A message's refusal.
    Refusal,
    /// The reasoning, or a summary of it.
    Thought,
    /// A call's arguments.
    Arguments,
}

impl Items {
    /// Returns whether none has begun.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns whether there are more than anybody means.
    pub fn is_overfull(&self) -> bool {
        self.items.len() > CALLS_MAX
    }

    /// Returns how many bytes are held beyond what was shown.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Begins the item at `index`. Its content comes in pieces, or stands in it once it is done.
    pub fn begin(&mut self, index: u64, item: &Value) {
        if self.is_overfull() || self.at(index).is_some() {
            return;
        }
        let begun = match text(item, "type") {
            Some("message") => Item::Message { bytes: 0, has_words: false, phase: None },
            Some("reasoning") => Item::Reasoning { item: Value::Null, has_words: false },
            Some("function_call") => {
                self.bytes += bytes(item);
                Item::Call(ReplyCall {
                    provider_id: text(item, "call_id").map(str::to_owned),
                    tool: text(item, "name").unwrap_or_default().to_owned(),
                    args_raw: text(item, "arguments").unwrap_or_default().to_owned(),
                })
            }
            _ => Item::Other(Value::Null),
        };
        self.items.push((index, begun));
    }

    /// Adds a piece to the item at `index`, and says what of it is for people. A piece of no item, or of the wrong kind,
    /// says nothing.
    pub fn piece(&mut self, index: u64, piece: Piece, more: &str, said: &mut Said) {
        let Some((_, item)) = self.items.iter_mut().rev().find(|(at, _)| *at == index) else { return };
        match (item, piece) {
            (Item::Message { bytes, has_words, .. }, Piece::Text) => {
                *bytes += more.len();
                *has_words = true;
                said.text(more);
            }
            (Item::Message { has_words, .. }, Piece::Refusal) => {
                *has_words = true;
                said.refusal(more);
            }
            (Item::Reasoning { has_words, .. }, Piece::Thought) => {
                *has_words = true;
                said.reasoning(more);
            }
            (Item::Call(call), Piece::Arguments) => {
                self.bytes += more.len();
                call.args_raw.push_str(more);
            }
            _ => {}
        }
    }

    /// Takes the item at `index` as it is when done. What it holds and no piece has said is said now.
    pub fn done(&mut self, index: u64, whole: &Value, said: &mut Said) {
        self.begin(index, whole);
        let Some(item) = self.at(index) else { return };
        let mut held = 0;
        match item {
            Item::Message { bytes, has_words, phase } => {
                *phase = text(whole, "phase").map(str::to_owned);
                if !*has_words {
                    *has_words = true;
                    for part in list(whole, "content") {
                        let words = text(part, "text").unwrap_or_default();
                        *bytes += words.len();
                        said.text(words);
                        said.refusal(text(part, "refusal").unwrap_or_default());
                    }
                }
            }
            Item::Reasoning { item, has_words } => {
                *item = whole.clone();
                held = bytes(whole);
                if !*has_words {
                    *has_words = true;
                    let thoughts = list(whole, "summary").iter().chain(list(whole, "content"));
                    thoughts.for_each(|part| said.reasoning(text(part, "text").unwrap_or_default()));
                }
            }
            Item::Call(call) => {
                if let Some(arguments) = text(whole, "arguments") {
                    held = arguments.len().saturating_sub(call.args_raw.len());
                    arguments.clone_into(&mut call.args_raw);
                }
            }
            Item::Other(item) => {
                *item = whole.clone();
                held = bytes(whole);
            }
        }
        self.bytes += held;
    }

    /// Takes all out: the calls in the order begun, and the parts, if they say more than text and calls.
    pub fn take(&mut self) -> (Vec<ReplyCall>, Vec<Part>) {
        let mut layout = Layout::default();
        let mut calls = Vec::new();
        for (_, item) in std::mem::take(&mut self.items) {
            match item {
                Item::Message { bytes, phase: None, .. } => layout.text(bytes),
                Item::Message { bytes, phase: Some(phase), .. } => layout.signed_text(bytes, json!({ "phase": phase })),
                Item::Reasoning { item, .. } => {
                    if let Some(sealed) = sealed(&item) {
                        layout.opaque(sealed);
                    }
                }
                Item::Call(call) => {
                    layout.call(Value::Null);
                    calls.push(call);
                }
                Item::Other(Value::Null) => {}
                Item::Other(item) => layout.opaque(item),
            }
        }
        calls.truncate(CALLS_MAX);
        (calls, layout.take())
    }

    fn at(&mut self, index: u64) -> Option<&mut Item> {
        self.items.iter_mut().find(|(at, _)| *at == index).map(|(_, item)| item)
    }
}

/// Returns what of a reasoning item goes back: the fields that the API takes, if the reasoning is encrypted.
fn sealed(item: &Value) -> Option<Value> {
    let encrypted = text(item, "encrypted_content")?;
    let mut sealed = json!({ "type": "reasoning", "summary": list(item, "summary"), "encrypted_content": encrypted });
    if let (Some(id), Some(fields)) = (text(item, "id"), sealed.as_object_mut()) {
        fields.insert("id".to_owned(), Value::from(id));
    }
    Some(sealed)
}
