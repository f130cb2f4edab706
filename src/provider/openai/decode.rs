//! An answer of Chat Completions, streamed or whole, as deltas. Pure: bytes in, deltas out, wherever the network cut them.
//! It knows the habits of many servers; each is named where it is met.

use serde_json::Value;

use super::error::in_stream;
use crate::kernel::event::Abort;
use crate::kernel::{ReplyCall, Stop, Usage};
use crate::provider::sse::{SseReader, TooLong};
use crate::provider::{Delta, Error};

/// Calls of one reply at most.
const CALLS_MAX: usize = 1024;
/// Bytes of a whole (not streamed) answer, and of all text and arguments of a streamed one, at most.
const REPLY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Reads one answer.
pub struct Decoder {
    form: Form,
    reply_bytes: usize,
    calls: Vec<Call>,
    finish: Option<String>,
    refused: bool,
    usage: Option<Usage>,
    stated_cost: Option<i64>,
    responded: bool,
    /// Whether the stream said that it is over.
    done: bool,
    /// Whether the reply, or an error, was given out whole.
    closed: bool,
    out: Vec<Result<Delta, Error>>,
}

enum Form {
    /// Not known before the first byte that is no white space.
    Unknown(Vec<u8>),
    Stream(SseReader),
    Whole(Vec<u8>),
}

#[derive(Default)]
struct Call {
    index: Option<u64>,
    id: String,
    name: String,
    args: String,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            form: Form::Unknown(Vec::new()),
            reply_bytes: 0,
            calls: Vec::new(),
            finish: None,
            refused: false,
            usage: None,
            stated_cost: None,
            responded: false,
            done: false,
            closed: false,
            out: Vec::new(),
        }
    }
}

impl Decoder {
    /// Takes the next bytes and returns what they complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Result<Delta, Error>> {
        if !self.closed {
            self.take(bytes);
        }
        std::mem::take(&mut self.out)
    }

    /// Ends the answer and returns what is left: its stop, or why it has none.
    pub fn finish(&mut self) -> Vec<Result<Delta, Error>> {
        if !self.closed {
            match std::mem::replace(&mut self.form, Form::Unknown(Vec::new())) {
                Form::Unknown(_) => self.fail(Abort::CutStream, "the provider's answer is empty"),
                Form::Whole(body) => self.whole(&body),
                Form::Stream(mut reader) => {
                    if reader.finish().is_err() {
                        self.too_long();
                    }
                    self.events(&mut reader);
                    self.end();
                }
            }
        }
        std::mem::take(&mut self.out)
    }

    /// Returns whether the reply, or its failure, is complete; what comes after it says nothing.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    fn take(&mut self, bytes: &[u8]) {
        match &mut self.form {
            Form::Unknown(held) => {
                held.extend_from_slice(bytes);
                let first = held.iter().find(|byte| !byte.is_ascii_whitespace()).copied();
                let held = std::mem::take(held);
                match first {
                    None => self.form = Form::Unknown(if held.len() > 4096 { Vec::new() } else { held }),
                    Some(b'{' | b'[' | b'<') => {
                        self.form = Form::Whole(Vec::new());
                        self.take(&held);
                    }
                    Some(_) => {
                        self.form = Form::Stream(SseReader::default());
                        self.take(&held);
                    }
                }
            }
            Form::Whole(body) => {
                body.extend_from_slice(bytes);
                if body.len() > REPLY_BYTES_MAX {
                    self.too_long();
                }
            }
            Form::Stream(reader) => {
                let fed = reader.feed(bytes);
                let mut reader = std::mem::take(reader);
                self.events(&mut reader);
                self.form = Form::Stream(reader);
                if fed == Err(TooLong) {
                    self.too_long();
                }
            }
        }
    }

    fn events(&mut self, reader: &mut SseReader) {
        while !self.closed
            && let Some(event) = reader.next()
        {
            let data = event.data.trim();
            if data == "[DONE]" {
                self.done = true;
                self.end();
            } else if !data.is_empty() {
                match serde_json::from_str::<Value>(data) {
                    Ok(chunk) => self.chunk(&chunk),
                    Err(error) => self.fail(Abort::Malformed, &format!("the provider's stream is not JSON: {error}")),
                }
            }
        }
    }

    fn chunk(&mut self, chunk: &Value) {
        self.common(chunk);
        if self.closed {
            return;
        }
        // Some answer with several candidates, interleaved: only the first counts. A first chunk may have none.
        let choices = chunk.get("choices").and_then(Value::as_array).into_iter().flatten();
        for choice in choices.filter(|choice| choice.get("index").and_then(Value::as_u64).unwrap_or(0) == 0) {
            if let Some(delta) = choice.get("delta") {
                self.piece(delta);
            }
            self.finished(choice);
        }
    }

    fn whole(&mut self, body: &[u8]) {
        let answer: Value = match serde_json::from_slice(body) {
            Ok(answer) => answer,
            Err(error) => {
                self.fail(Abort::Malformed, &format!("the provider's answer is not JSON: {error}"));
                return;
            }
        };
        self.common(&answer);
        if self.closed {
            return;
        }
        let first = answer.get("choices").and_then(|choices| choices.get(0)).cloned().unwrap_or(Value::Null);
        // A filtered answer may have no message at all.
        if let Some(message) = first.get("message") {
            self.piece(message);
        }
        self.finished(&first);
        self.done = true;
        self.end();
    }

    /// Reads what stands beside the choices.
    fn common(&mut self, chunk: &Value) {
        if !self.responded {
            let text = |name: &str| chunk.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned);
            let (id, model) = (text("id"), text("model"));
            self.responded = id.is_some();
            if id.is_some() || model.is_some() {
                self.out.push(Ok(Delta::Response { id, model }));
            }
        }
        // The usage may come in a field of the provider's own as well: it is one usage.
        let usage = chunk.get("usage").filter(|usage| usage.is_object()).or_else(|| chunk.get("x_groq")?.get("usage"));
        if let Some(usage) = usage {
            self.usage = read_usage(usage).or(self.usage);
            self.stated_cost = read_cost(usage).or(self.stated_cost);
        }
        if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
            if let Some(choice) = chunk.get("choices").and_then(|choices| choices.get(0)) {
                self.finished(choice);
            }
            let error = in_stream(error);
            self.close_usage();
            self.out.push(Err(error));
            self.closed = true;
        }
    }

    fn piece(&mut self, piece: &Value) {
        let reasoning = piece.get("reasoning_content").or_else(|| piece.get("reasoning")).and_then(Value::as_str);
        if let Some(text) = reasoning.filter(|text| !text.is_empty()) {
            self.count(text.len());
            self.out.push(Ok(Delta::Reasoning(text.to_owned())));
        }
        match piece.get("content") {
            Some(Value::String(text)) => self.text(text),
            // A list of parts: thinking and text.
            Some(Value::Array(parts)) => parts.iter().for_each(|part| self.part(part)),
            _ => {}
        }
        if let Some(text) = piece.get("refusal").and_then(Value::as_str).filter(|text| !text.is_empty()) {
            self.count(text.len());
            self.refused = true;
            self.out.push(Ok(Delta::Refusal(text.to_owned())));
        }
        for (position, call) in piece.get("tool_calls").and_then(Value::as_array).into_iter().flatten().enumerate() {
            self.call(call, position);
        }
    }

    fn part(&mut self, part: &Value) {
        if let Some(text) = part.get("text").and_then(Value::as_str) {
            self.text(text);
        }
        if let Some(thoughts) = part.get("thinking").and_then(Value::as_array) {
            let text: String = thoughts.iter().filter_map(|thought| thought.get("text").and_then(Value::as_str)).collect();
            self.count(text.len());
            self.out.push(Ok(Delta::Reasoning(text)));
        }
    }

    fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.count(text.len());
            self.out.push(Ok(Delta::Text(text.to_owned())));
        }
    }

    fn call(&mut self, piece: &Value, position: usize) {
        let function = piece.get("function").unwrap_or(&Value::Null);
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let (id, name) = (text(piece.get("id")), text(function.get("name")));
        let args = match function.get("arguments") {
            Some(Value::String(args)) => args.clone(),
            // Absent and null mean nothing more; an object is arguments that were not put into a string.
            Some(Value::Null) | None => String::new(),
            Some(other) => other.to_string(),
        };
        self.count(args.len() + name.len());
        let index = piece.get("index").and_then(Value::as_u64);
        let known = self.calls.iter().rposition(|call| match index {
            Some(index) => call.index == Some(index),
            None => call.index.is_none() && (id.is_empty() || call.id == id),
        });
        // Parallel calls that all say index 0 differ by their ids.
        let known = known.filter(|known| {
            let call = &self.calls[*known];
            id.is_empty() || call.id.is_empty() || call.id == id
        });
        let known =
            if index.is_none() && known.is_none() && id.is_empty() && name.is_empty() { self.calls.len().checked_sub(1) } else { known };
        let _ = position;
        match known {
            Some(known) => {
                let call = &mut self.calls[known];
                // Later pieces may carry an empty name and id, or the same ones again: the first that is there stays.
                if call.id.is_empty() {
                    call.id = id;
                }
                if call.name.is_empty() {
                    call.name = name;
                }
                call.args.push_str(&args);
            }
            None if self.calls.len() >= CALLS_MAX => {
                self.fail(Abort::Malformed, &format!("the reply asks for more than {CALLS_MAX} calls"));
            }
            None => self.calls.push(Call { index, id, name, args }),
        }
    }

    fn finished(&mut self, choice: &Value) {
        if let Some(word) = choice.get("finish_reason").and_then(Value::as_str).filter(|word| !word.is_empty()) {
            self.finish.get_or_insert_with(|| word.to_owned());
        }
    }

    /// Gives out the end of the reply, if it has one.
    fn end(&mut self) {
        if self.closed {
            return;
        }
        // Without its own word for the end, and without [DONE], a stream was cut, however politely.
        if self.finish.is_none() && !self.done {
            self.fail(Abort::CutStream, "the provider's stream ended before its end");
            return;
        }
        let stop = self.stop();
        for call in std::mem::take(&mut self.calls) {
            let provider_id = (!call.id.is_empty()).then_some(call.id);
            self.out.push(Ok(Delta::Call(ReplyCall { provider_id, tool: call.name, args_raw: call.args })));
        }
        self.close_usage();
        self.out.push(Ok(Delta::Stop { stop, raw: self.finish.clone() }));
        self.closed = true;
    }

    fn close_usage(&mut self) {
        if let Some(usage) = self.usage {
            self.out.push(Ok(Delta::Usage(usage)));
        }
        if let Some(cost) = self.stated_cost {
            self.out.push(Ok(Delta::StatedCost(cost)));
        }
    }

    fn stop(&self) -> Stop {
        let asked = !self.calls.is_empty();
        let natural = if asked { Stop::ToolCalls } else { Stop::EndTurn };
        if self.refused {
            return Stop::Refusal;
        }
        match self.finish.as_deref() {
            None | Some("stop" | "end_turn" | "eos" | "stop_sequence" | "eos_token") => natural,
            Some("tool_calls" | "function_call" | "tool_use") => Stop::ToolCalls,
            Some("length" | "max_tokens" | "model_length") => Stop::Length,
            Some("content_filter" | "refusal" | "safety") => Stop::Refusal,
            Some(_) => Stop::Error,
        }
    }

    fn count(&mut self, bytes: usize) {
        self.reply_bytes += bytes;
        if self.reply_bytes > REPLY_BYTES_MAX {
            self.too_long();
        }
    }

    fn too_long(&mut self) {
        self.fail(Abort::Malformed, "the provider's answer is too long to be read");
    }

    fn fail(&mut self, kind: Abort, message: &str) {
        if self.closed {
            return;
        }
        self.close_usage();
        self.out.push(Err(Error {
            kind,
            message: message.to_owned(),
            code: None,
            http_status: None,
            retryable: kind == Abort::CutStream,
            retry_after_ms: None,
            reply_begun: self.responded || self.reply_bytes > 0,
        }));
        self.closed = true;
    }
}

/// Reads usage so that input includes what was cached and output includes what was reasoned.
fn read_usage(usage: &Value) -> Option<Usage> {
    let count = |name: &str| usage.get(name).and_then(Value::as_i64);
    let part = |of: &str, name: &str| usage.get(of).and_then(|parts| parts.get(name)).and_then(Value::as_i64);
    let (input, output) = (count("prompt_tokens")?, count("completion_tokens").unwrap_or(0));
    let reasoning = part("completion_tokens_details", "reasoning_tokens").or_else(|| count("reasoning_tokens")).unwrap_or(0);
    // xAI's completion leaves the reasoning out; its total tells.
    let beside = reasoning > 0 && count("total_tokens") == Some(input.saturating_add(output).saturating_add(reasoning));
    Some(Usage {
        input_tokens: input,
        output_tokens: if beside { output.saturating_add(reasoning) } else { output },
        cache_read_tokens: part("prompt_tokens_details", "cached_tokens").or_else(|| count("prompt_cache_hit_tokens")).unwrap_or(0),
        cache_write_tokens: part("prompt_tokens_details", "cache_write_tokens").unwrap_or(0),
        reasoning_tokens: reasoning,
    })
}

/// Reads what the provider says that it charged, in nano-USD. It is told, not used: Wren charges by its price book.
fn read_cost(usage: &Value) -> Option<i64> {
    let cost = usage.get("cost")?;
    let usd = cost.as_f64().or_else(|| cost.get("total_cost").and_then(Value::as_f64))?;
    #[expect(clippy::cast_possible_truncation, reason = "bounded just before")]
    (0.0..1e6).contains(&usd).then(|| (usd * 1e9).round() as i64)
}
