//! One answer's bytes to deltas, whatever the wire family: what kind of body it is, its bounds, its end. What the events
//! mean is each family's [`Reader`]'s business. Pure: bytes in, deltas out, the same whatever way the bytes were cut.
//!
//! Every answer ends in exactly one [`Delta::Stop`] or one error, and nothing comes after it.

use std::mem::take;

use serde_json::Value;

use super::counts;
use super::sse::{Event, Parser, TooLong};
use super::{Delta, Error, fail};
use crate::kernel::event::Abort;
use crate::kernel::message::Part;
use crate::kernel::{ReplyCall, Stop, Usage};

/// The most that is read of one answer, in bytes after decompression: a stream wraps every few letters into a few hundred.
pub const ANSWER_BYTES_MAX: usize = 256 << 20;
/// The most that is kept of one answer, in bytes: text, reasoning and calls, or a body that is no stream. No model writes as much.
pub const REPLY_BYTES_MAX: usize = 4 << 20;
/// The most calls in one reply. More is no reply that anybody meant.
pub const CALLS_MAX: usize = 4096;

type Item = Result<Delta, Error>;

/// How a family cuts a stream into events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Server-sent events.
    Events,
    /// One JSON value a line.
    Lines,
}

/// What a wire family makes of an answer's events. It says everything through [`Said`].
pub trait Reader: Default + Send + 'static {
    /// How the family streams.
    const FRAMING: Framing;

    /// Takes one event of a stream.
    fn event(&mut self, event: &Value, said: &mut Said);

    /// Takes an answer that came whole. It is over after it.
    fn whole(&mut self, body: &Value, said: &mut Said);

    /// Takes a `[DONE]`: the stream says that it is over.
    fn done(&mut self, said: &mut Said);

    /// No more bytes will come: closes the reply if its own end was there before. The end of the body alone is no sign of one.
    fn ended(&mut self, said: &mut Said);

    /// Returns whether any part of a reply has arrived.
    fn has_begun(&self) -> bool;

    /// Returns how many bytes of calls and parts are held back until the end.
    fn held_bytes(&self) -> usize;

    /// Gives out the calls held back of an answer that failed: the error voids them, but they were made, and an estimate
    /// of what is charged must count them.
    fn abandon(&mut self, said: &mut Said);
}

/// What a reader says of an answer, so far.
#[derive(Debug, Default)]
pub struct Said {
    items: Vec<Item>,
    usage: Option<Usage>,
    response_id: Option<String>,
    response_model: Option<String>,
    kept_bytes: usize,
    calls: usize,
    failure: Option<Error>,
    is_over: bool,
}

impl Said {
    /// Returns whether the answer has ended, well or not.
    pub fn is_over(&self) -> bool {
        self.is_over || self.failure.is_some()
    }

    /// More text for the reader.
    pub fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.kept_bytes += text.len();
            self.items.push(Ok(Delta::Text(text.to_owned())));
        }
    }

    /// More of a refusal that is kept apart from the text.
    pub fn refusal(&mut self, words: &str) {
        if !words.is_empty() {
            self.kept_bytes += words.len();
            self.items.push(Ok(Delta::Refusal(words.to_owned())));
        }
    }

    /// More of what the model thinks aloud.
    pub fn reasoning(&mut self, thought: &str) {
        if !thought.is_empty() {
            self.kept_bytes += thought.len();
            self.items.push(Ok(Delta::Reasoning(thought.to_owned())));
        }
    }

    /// What was used so far. Sums only grow: whatever a later event says, what was stated once is not taken back.
    pub fn usage(&mut self, usage: Usage) {
        let usage = self.usage.map_or(usage, |before| counts::most(before, usage));
        self.usage = Some(usage);
        self.items.push(Ok(Delta::Usage(usage)));
    }

    /// What the provider says that it charged.
    pub fn stated_cost(&mut self, usd_nanos: i64) {
        self.items.push(Ok(Delta::StatedCost(usd_nanos)));
    }

    /// The provider's names for the answer; the first of each stay.
    pub fn names(&mut self, id: Option<&str>, model: Option<&str>) {
        let text = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
        let (id, model) = (text(id), text(model));
        if (self.response_id.is_none() && id.is_some()) || (self.response_model.is_none() && model.is_some()) {
            self.response_id = take(&mut self.response_id).or(id);
            self.response_model = take(&mut self.response_model).or(model);
            self.items.push(Ok(Delta::Response { id: self.response_id.clone(), model: self.response_model.clone() }));
        }
    }

    /// A whole call.
    pub fn call(&mut self, call: ReplyCall) {
        if self.calls < CALLS_MAX {
            self.calls += 1;
            self.items.push(Ok(Delta::Call(call)));
        }
    }

    /// The reply part by part, if its parts are more than text and calls. Comes once, before the stop.
    pub fn parts(&mut self, parts: Vec<Part>) {
        if !parts.is_empty() {
            self.items.push(Ok(Delta::Parts(parts)));
        }
    }

    /// The reply is whole.
    pub fn stop(&mut self, stop: Stop, raw: Option<String>) {
        self.end(Delta::Stop { stop, raw, paused: false });
    }

    /// The provider paused in the middle of its reply, and goes on once it is sent back.
    pub fn pause(&mut self, raw: Option<String>) {
        self.end(Delta::Stop { stop: Stop::EndTurn, raw, paused: true });
    }

    /// The answer failed. What was begun of calls goes out before the error does.
    pub fn fail(&mut self, error: Error) {
        if !self.is_over() {
            self.failure = Some(error);
        }
    }

    /// The answer failed, and this part of it says why.
    pub fn refuse(&mut self, error: &Value) {
        self.fail(fail::from_stream(error, false));
    }

    /// The answer ended before its end.
    pub fn cut(&mut self, reply_begun: bool) {
        self.fail(cut(reply_begun));
    }

    /// The answer cannot be read.
    pub fn malformed(&mut self, what: &str) {
        self.fail(malformed(what));
    }

    fn end(&mut self, stop: Delta) {
        if !self.is_over() {
            self.is_over = true;
            self.items.push(Ok(stop));
        }
    }
}

/// Takes the bytes of one answer and gives its deltas.
#[derive(Debug)]
pub struct Decoder<R> {
    form: Form,
    read_bytes: usize,
    reader: R,
    said: Said,
}

/// What kind of body it is. Its first byte tells; the header is often wrong.
#[derive(Debug, Default)]
enum Form {
    #[default]
    Unknown,
    Stream(Box<Parser>),
    Lines(Vec<u8>),
    Json(Vec<u8>),
}

impl<R: Reader> Default for Decoder<R> {
    fn default() -> Self {
        Self { form: Form::default(), read_bytes: 0, reader: R::default(), said: Said::default() }
    }
}

impl<R: Reader> Decoder<R> {
    /// Takes the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Item> {
        if self.is_over() || bytes.is_empty() {
            return Vec::new();
        }
        self.read_bytes += bytes.len();
        if self.read_bytes > ANSWER_BYTES_MAX {
            self.said.fail(too_long(ANSWER_BYTES_MAX));
            return self.given();
        }
        let mut bytes = bytes;
        if matches!(self.form, Form::Unknown) {
            let start = bytes.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(bytes.len());
            bytes = &bytes[start..];
            let Some(first) = bytes.first() else { return Vec::new() };
            self.form = match (first, R::FRAMING) {
                (b'<', _) => {
                    self.said.malformed("the server answered with a web page; is the base URL right?");
                    return self.given();
                }
                (b'{', Framing::Lines) => Form::Lines(Vec::new()),
                (b'{' | b'[', _) => Form::Json(Vec::new()),
                _ => Form::Stream(Box::default()),
            };
        }
        match &mut self.form {
            Form::Unknown => {}
            Form::Json(body) if body.len() + bytes.len() > REPLY_BYTES_MAX => self.said.fail(too_long(REPLY_BYTES_MAX)),
            Form::Json(body) => body.extend_from_slice(bytes),
            Form::Lines(_) => self.lines(bytes),
            Form::Stream(parser) => {
                let mut events = Vec::new();
                let fed = parser.feed(bytes, &mut events);
                events.iter().for_each(|event| self.event(event));
                if let Err(error) = fed {
                    self.said.malformed(&error.to_string());
                }
            }
        }
        self.given()
    }

    /// Says that the body has ended.
    pub fn finish(&mut self) -> Vec<Item> {
        if self.is_over() {
            return Vec::new();
        }
        match take(&mut self.form) {
            Form::Unknown => {}
            Form::Json(body) => self.body(&body),
            Form::Lines(rest) => {
                if !rest.trim_ascii().is_empty() {
                    self.line(&rest);
                }
            }
            Form::Stream(mut parser) => {
                // What has no blank line after it may be half an event. If it reads as a whole one, it is one.
                let last = parser.finish().filter(|event| is_done(event) || serde_json::from_slice::<Value>(&event.data).is_ok());
                last.iter().for_each(|event| self.event(event));
            }
        }
        self.close(None)
    }

    /// Says that no more bytes will come, for `error`. An answer that is closed already has lost nothing.
    pub fn lose(&mut self, error: Error) -> Vec<Item> {
        if self.is_over() { Vec::new() } else { self.close(Some(error)) }
    }

    /// Returns whether the answer has ended, well or not.
    pub fn is_over(&self) -> bool {
        self.said.is_over
    }

    fn has_begun(&self) -> bool {
        // A whole JSON body is sent when its reply is whole, so that its first byte means that all of it was made.
        self.reader.has_begun() || self.said.usage.is_some() || matches!(&self.form, Form::Json(body) if !body.is_empty())
    }

    fn close(&mut self, error: Option<Error>) -> Vec<Item> {
        if !self.said.is_over() {
            self.reader.ended(&mut self.said);
        }
        if !self.said.is_over() {
            let begun = self.has_begun();
            self.said.fail(error.unwrap_or_else(|| cut(begun)));
        }
        self.given()
    }

    /// Returns what has been said since the last time, the failure last.
    fn given(&mut self) -> Vec<Item> {
        if !self.said.is_over() && self.said.kept_bytes + self.reader.held_bytes() > REPLY_BYTES_MAX {
            self.said.fail(too_long(REPLY_BYTES_MAX));
        }
        if let Some(error) = self.said.failure.take() {
            self.reader.abandon(&mut self.said);
            let reply_begun = error.reply_begun || self.has_begun();
            self.said.items.push(Err(Error { reply_begun, ..error }));
            self.said.is_over = true;
        }
        take(&mut self.said.items)
    }

    fn event(&mut self, event: &Event) {
        if self.said.is_over() || event.data.trim_ascii().is_empty() {
            return;
        }
        if is_done(event) {
            return self.reader.done(&mut self.said);
        }
        match serde_json::from_slice::<Value>(&event.data) {
            // An error that stands alone between the events, or under the name of one.
            Ok(value) if event.is_bare || event.name.as_deref() == Some("error") => self.said.refuse(&value),
            Ok(value) => self.reader.event(&value, &mut self.said),
            Err(_) if event.is_bare => {}
            // The rest of it is lost, as where a connection ends within a line.
            Err(error) if error.is_eof() => {
                let begun = self.has_begun();
                self.said.cut(begun);
            }
            Err(error) => {
                let error = malformed(&format!("an event of the stream is not valid JSON: {error}"));
                self.said.fail(Error { unanswered: !self.has_begun(), ..error });
            }
        }
        self.bound_calls();
    }

    fn lines(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let Form::Lines(line) = &mut self.form else { return };
            line.extend_from_slice(&rest[..end]);
            let line = take(line);
            rest = &rest[end + 1..];
            if !line.trim_ascii().is_empty() {
                self.line(&line);
            }
            if self.said.is_over() {
                return;
            }
        }
        let Form::Lines(line) = &mut self.form else { return };
        if line.len() + rest.len() > super::sse::LINE_BYTES_MAX {
            return self.said.malformed(&TooLong::Line.to_string());
        }
        line.extend_from_slice(rest);
    }

    fn line(&mut self, line: &[u8]) {
        match serde_json::from_slice::<Value>(line) {
            Ok(value) => self.reader.event(&value, &mut self.said),
            Err(error) if error.is_eof() => {
                let begun = self.has_begun();
                self.said.cut(begun);
            }
            Err(error) => self.said.malformed(&format!("a line of the stream is not valid JSON: {error}")),
        }
        self.bound_calls();
    }

    fn body(&mut self, body: &[u8]) {
        match serde_json::from_slice::<Value>(body) {
            Ok(Value::Array(list)) if list.len() == 1 => list.iter().for_each(|answer| self.reader.whole(answer, &mut self.said)),
            // A stream whose pieces were put into one list.
            Ok(Value::Array(list)) => {
                for piece in &list {
                    if !self.said.is_over() {
                        self.reader.event(piece, &mut self.said);
                    }
                }
                if !self.reader.has_begun() && !self.said.is_over() {
                    self.said.malformed("the answer is a list that holds no reply");
                }
            }
            Ok(answer) => self.reader.whole(&answer, &mut self.said),
            Err(error) if error.is_eof() => self.said.cut(true),
            Err(error) => {
                let error = malformed(&format!("the answer is not valid JSON: {error}"));
                self.said.fail(Error { reply_begun: true, ..error });
            }
        }
        self.bound_calls();
    }

    fn bound_calls(&mut self) {
        if self.said.calls >= CALLS_MAX && !self.said.is_over() {
            self.said.malformed(&too_many_calls());
        }
    }
}

/// Returns the words for a reply with too many calls.
pub fn too_many_calls() -> String {
    format!("the reply asks for more than {CALLS_MAX} calls")
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
