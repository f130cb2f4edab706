//! Chat Completions answers to deltas: event streams and whole JSON bodies, with the quirks of every server that speaks
//! this family. Pure: bytes in, deltas out, the same whatever way the bytes were cut.
//!
//! An answer is closed by a finish reason or by `[DONE]`; either will do, since servers leave out one or the other. One
//! that ends without both was cut. Calls are given out only at the end, since any piece may still add to them.

use std::mem::take;

use serde_json::Value;

use super::calls::Calls;
use super::usage;
use crate::kernel::event::Abort;
use crate::kernel::{Stop, Usage};
use crate::provider::sse::{Event, Parser};
use crate::provider::{Delta, Error, fail};

/// The most that is read of one answer, in bytes after decompression: a stream wraps every few letters into a few hundred.
pub const ANSWER_BYTES_MAX: usize = 256 << 20;
/// The most that is kept of one answer, in bytes: text, reasoning and calls, or a body that is no stream. No model writes as much.
pub const REPLY_BYTES_MAX: usize = 4 << 20;

type Item = Result<Delta, Error>;

/// Takes the bytes of one answer and gives its deltas.
#[derive(Debug, Default)]
pub struct Decoder {
    form: Form,
    read_bytes: usize,
    kept_bytes: usize,
    calls: Calls,
    response_id: Option<String>,
    response_model: Option<String>,
    usage: Option<Usage>,
    finish: Option<String>,
    has_choice: bool,
    has_content: bool,
    has_refusal: bool,
    is_over: bool,
}

/// What kind of body it is. Its first byte tells; the header is often wrong.
#[derive(Debug, Default)]
enum Form {
    #[default]
    Unknown,
    Stream(Box<Parser>),
    Json(Vec<u8>),
}

impl Decoder {
    /// Takes the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Item> {
        let mut items = Vec::new();
        if self.is_over || bytes.is_empty() {
            return items;
        }
        self.read_bytes += bytes.len();
        if self.read_bytes > ANSWER_BYTES_MAX {
            self.fail(too_long(ANSWER_BYTES_MAX), &mut items);
            return items;
        }
        let mut bytes = bytes;
        if matches!(self.form, Form::Unknown) {
            let start = bytes.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(bytes.len());
            bytes = &bytes[start..];
            let Some(first) = bytes.first() else { return items };
            self.form = match first {
                b'{' | b'[' => Form::Json(Vec::new()),
                b'<' => {
                    let message = "the server answered with a web page; is the base URL right? It usually ends in /v1";
                    self.fail(malformed(message), &mut items);
                    return items;
                }
                _ => Form::Stream(Box::default()),
            };
        }
        match &mut self.form {
            Form::Unknown => {}
            Form::Json(body) if body.len() + bytes.len() > REPLY_BYTES_MAX => self.fail(too_long(REPLY_BYTES_MAX), &mut items),
            Form::Json(body) => body.extend_from_slice(bytes),
            Form::Stream(parser) => {
                let mut events = Vec::new();
                let fed = parser.feed(bytes, &mut events);
                for event in &events {
                    self.event(event, &mut items);
                }
                if let Err(error) = fed
                    && !self.is_over
                {
                    self.fail(malformed(&error.to_string()), &mut items);
                }
            }
        }
        items
    }

    /// Says that the body has ended.
    pub fn finish(&mut self) -> Vec<Item> {
        let mut items = Vec::new();
        if self.is_over {
            return items;
        }
        match take(&mut self.form) {
            Form::Unknown => {}
            Form::Json(body) => self.body(&body, &mut items),
            Form::Stream(mut parser) => {
                // What has no blank line after it may be half an event. If it reads as a whole one, it is one.
                if let Some(event) = parser.finish().filter(|event| is_done(event) || serde_json::from_slice::<Value>(&event.data).is_ok())
                {
                    self.event(&event, &mut items);
                }
                // Here the body's end is the only sign of an end, and a polite close looks the same in the middle of a reply.
                if !self.is_over && self.finish.is_some() {
                    self.end(&mut items);
                }
            }
        }
        if !self.is_over {
            self.fail(cut(self.has_begun()), &mut items);
        }
        items
    }

    /// Says that no more bytes will come, for `error`. An answer that is closed already has lost nothing.
    pub fn lose(&mut self, error: Error) -> Vec<Item> {
        let mut items = Vec::new();
        if self.is_over {
        } else if self.finish.is_some() {
            self.end(&mut items);
        } else {
            self.fail(error, &mut items);
        }
        items
    }

    /// Returns whether the answer has ended, well or not.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns whether any part of a reply has arrived.
    pub fn has_begun(&self) -> bool {
        // A whole JSON body is sent when its reply is whole, so that its first byte means that all of it was made.
        self.has_choice || self.usage.is_some() || matches!(&self.form, Form::Json(body) if !body.is_empty())
    }

    fn event(&mut self, event: &Event, items: &mut Vec<Item>) {
        if self.is_over {
            return;
        }
        if is_done(event) {
            return self.end(items);
        }
        if event.data.trim_ascii().is_empty() {
            return;
        }
        let begun = self.has_begun();
        match serde_json::from_slice::<Value>(&event.data) {
            Ok(chunk) if event.name.as_deref() == Some("error") => self.refuse(&chunk, begun, items),
            Ok(chunk) => self.chunk(&chunk, items),
            Err(error) => self.fail(malformed(&format!("an event of the stream is not valid JSON: {error}")), items),
        }
    }

    fn body(&mut self, body: &[u8], items: &mut Vec<Item>) {
        match serde_json::from_slice::<Value>(body) {
            Ok(Value::Array(list)) if list.len() == 1 => list.iter().for_each(|answer| self.answer(answer, items)),
            Ok(answer) => self.answer(&answer, items),
            Err(error) if error.is_eof() => self.fail(cut(true), items),
            Err(error) => {
                let error = malformed(&format!("the answer is not valid JSON: {error}"));
                self.fail(Error { reply_begun: true, ..error }, items);
            }
        }
    }

    fn answer(&mut self, answer: &Value, items: &mut Vec<Item>) {
        self.chunk(answer, items);
        if self.is_over {
        } else if self.has_choice {
            self.end(items);
        } else {
            self.fail(malformed("the answer holds no choice, so no reply"), items);
        }
    }

    fn chunk(&mut self, chunk: &Value, items: &mut Vec<Item>) {
        let (begun, before) = (self.has_begun(), items.len());
        self.names(chunk, items);
        if let Some(choice) = first_choice(chunk) {
            // A chunk that carries an error often carries an empty choice beside it.
            self.has_choice |= is_error(chunk).is_none();
            self.choice(choice, items);
        }
        if let Some(usage) = usage::of(chunk) {
            // The sums only grow: whatever a later chunk says, what was stated once is not taken back.
            let usage = self.usage.map_or(usage, |before| usage::most(before, usage));
            self.usage = Some(usage);
            items.push(Ok(Delta::Usage(usage)));
        }
        if let Some(nanos) = usage::stated_cost(chunk) {
            items.push(Ok(Delta::StatedCost(nanos)));
        }
        if let Some(error) = is_error(chunk) {
            self.refuse(error, begun, items);
        } else if self.calls.is_overfull() {
            self.fail(malformed(&format!("the reply asks for more than {} calls", super::calls::CALLS_MAX)), items);
        } else {
            self.kept_bytes += items.iter().skip(before).map(text_bytes).sum::<usize>();
            if self.kept_bytes + self.calls.bytes() > REPLY_BYTES_MAX {
                self.fail(too_long(REPLY_BYTES_MAX), items);
            }
        }
    }

    fn names(&mut self, chunk: &Value, items: &mut Vec<Item>) {
        let text = |key: &str| chunk.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned);
        let (id, model) = (text("id"), text("model"));
        let is_news = (self.response_id.is_none() && id.is_some()) || (self.response_model.is_none() && model.is_some());
        if is_news {
            self.response_id = take(&mut self.response_id).or(id);
            self.response_model = take(&mut self.response_model).or(model);
            items.push(Ok(Delta::Response { id: self.response_id.clone(), model: self.response_model.clone() }));
        }
    }

    fn choice(&mut self, choice: &Value, items: &mut Vec<Item>) {
        // Where both are there, the message repeats what all deltas have said.
        if let Some(delta) = choice.get("delta").filter(|delta| delta.is_object()) {
            self.part(delta, items);
            entries(delta).for_each(|entry| self.calls.add(entry));
        } else if let Some(message) = choice.get("message").filter(|message| message.is_object()) {
            self.part(message, items);
            entries(message).for_each(|entry| self.calls.add_whole(entry));
        }
        if self.finish.is_none() {
            let word = choice.get("finish_reason").and_then(Value::as_str).filter(|word| !word.is_empty());
            self.finish = word.map(str::to_owned);
        }
    }

    fn part(&mut self, part: &Value, items: &mut Vec<Item>) {
        let text = |key: &str| part.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        // Proxies that know both names of it send it under both.
        if let Some(thought) = text("reasoning_content").or_else(|| text("reasoning")) {
            items.push(Ok(Delta::Reasoning(thought.to_owned())));
        }
        match part.get("content") {
            Some(Value::String(text)) => self.text(text, items),
            Some(Value::Array(pieces)) => pieces.iter().for_each(|piece| self.piece(piece, items)),
            _ => {}
        }
        if let Some(refusal) = text("refusal") {
            self.refusal(refusal, items);
        }
        if let Some(call) = part.get("function_call").filter(|call| call.is_object()) {
            self.calls.add_function(call);
        }
    }

    /// One piece of a content that is a list.
    fn piece(&mut self, piece: &Value, items: &mut Vec<Item>) {
        let text = |key: &str| piece.get(key).and_then(Value::as_str);
        match piece.get("thinking") {
            Some(Value::String(thought)) => items.push(Ok(Delta::Reasoning(thought.clone()))),
            Some(Value::Array(thoughts)) => {
                let thoughts = thoughts.iter().filter_map(|thought| thought.get("text").and_then(Value::as_str));
                items.extend(thoughts.map(|thought| Ok(Delta::Reasoning(thought.to_owned()))));
            }
            _ => {}
        }
        if let Some(words) = text("text") {
            self.text(words, items);
        }
        if let Some(words) = text("refusal") {
            self.refusal(words, items);
        }
    }

    fn text(&mut self, text: &str, items: &mut Vec<Item>) {
        if !text.is_empty() {
            self.has_content = true;
            items.push(Ok(Delta::Text(text.to_owned())));
        }
    }

    fn refusal(&mut self, words: &str, items: &mut Vec<Item>) {
        if !words.is_empty() {
            self.has_refusal = true;
            items.push(Ok(Delta::Refusal(words.to_owned())));
        }
    }

    /// The answer has come to its own end.
    fn end(&mut self, items: &mut Vec<Item>) {
        if self.finish.is_none() && !self.has_choice {
            return self.fail(cut(self.has_begun()), items);
        }
        self.is_over = true;
        let calls = self.calls.take();
        let stop = stop_of(self.finish.as_deref(), !calls.is_empty(), self.has_refusal);
        items.extend(calls.into_iter().map(|call| Ok(Delta::Call(call))));
        items.push(Ok(Delta::Stop { stop, raw: take(&mut self.finish) }));
    }

    fn refuse(&mut self, error: &Value, begun: bool, items: &mut Vec<Item>) {
        self.fail(fail::from_stream(error, begun), items);
    }

    /// Ends the answer with an error. What was begun of calls goes out first: the error voids it, but it was made, and an
    /// estimate of what is charged must count it.
    fn fail(&mut self, error: Error, items: &mut Vec<Item>) {
        self.is_over = true;
        items.extend(self.calls.take().into_iter().map(|call| Ok(Delta::Call(call))));
        items.push(Err(Error { reply_begun: error.reply_begun || self.has_begun(), ..error }));
    }
}

/// Returns the error of a connection that was lost before the answer's end.
pub fn cut(reply_begun: bool) -> Error {
    let message = if reply_begun { "the provider's answer was cut off before its end" } else { "the provider's answer was empty" };
    Error {
        kind: Abort::CutStream,
        message: message.to_owned(),
        code: None,
        http_status: Some(200),
        retryable: true,
        retry_after_ms: None,
        reply_begun,
        unanswered: !reply_begun,
    }
}

fn too_long(bytes_max: usize) -> Error {
    malformed(&format!("it is longer than {bytes_max} bytes"))
}

fn text_bytes(item: &Item) -> usize {
    match item {
        Ok(Delta::Text(text) | Delta::Reasoning(text) | Delta::Refusal(text)) => text.len(),
        Ok(Delta::Call(_) | Delta::Usage(_) | Delta::StatedCost(_) | Delta::Response { .. } | Delta::Stop { .. }) | Err(_) => 0,
    }
}

fn malformed(what: &str) -> Error {
    Error {
        kind: Abort::Malformed,
        message: format!("the provider's answer could not be read: {what}"),
        code: None,
        http_status: Some(200),
        retryable: false,
        retry_after_ms: None,
        reply_begun: false,
        unanswered: false,
    }
}

fn is_done(event: &Event) -> bool {
    event.data.trim_ascii() == b"[DONE]"
}

fn entries(part: &Value) -> impl Iterator<Item = &Value> {
    part.get("tool_calls").and_then(Value::as_array).into_iter().flatten()
}

fn first_choice(chunk: &Value) -> Option<&Value> {
    let choices = chunk.get("choices")?.as_array()?;
    choices.iter().find(|choice| choice.get("index").and_then(Value::as_i64).unwrap_or(0) == 0)
}

/// Returns the part of a chunk that says that it is an error.
fn is_error(chunk: &Value) -> Option<&Value> {
    let has_error = chunk.get("error").is_some_and(|error| error.is_object() || error.as_str().is_some_and(|text| !text.is_empty()));
    let is_error = chunk.get("object").and_then(Value::as_str) == Some("error")
        || (chunk.get("choices").is_none() && chunk.get("detail").is_some_and(|detail| !detail.is_null()));
    (has_error || is_error).then_some(chunk)
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
