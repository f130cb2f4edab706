//! The vocabulary of a conversation: ids, messages, calls, results, why a model stopped, and what it used.
//!
//! These types are the journal's own JSON. They know no provider: adapters translate to and from them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::agent::{ModelSpec, ToolSpec};
use super::event::Purpose;

/// Names one run. Opaque, unique for ever, and sorted by creation time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(Arc<str>);

impl RunId {
    /// Takes an id made elsewhere; the kernel makes none.
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Self(id.into())
    }

    /// Returns the id's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Names one tool call within its run.
///
/// Wren gives every call an id of its own, since providers leave ids out, repeat them, or count from zero in each
/// reply. The form (nine letters and digits) is the strictest that any provider asks of an id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CallId(String);

impl CallId {
    /// Returns the id of the `index`-th call (from 0) of the reply of turn `turn` (from 1).
    pub fn of(turn: u32, index: usize) -> Self {
        Self(format!("t{turn:04}c{index:03}"))
    }

    /// Takes an id that was made by [`CallId::of`] before, as stores and clients hand it back.
    pub fn from_text(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the id's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// One entry of a transcript. The instructions are not among them: they belong to the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    /// The prompt, or words put in later (a steering message, a request to repair the output).
    User {
        /// The words.
        text: String,
    },
    /// What the model replied.
    Assistant(AssistantMessage),
    /// The one result of one call.
    Tool(ToolResult),
}

/// A whole reply of a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AssistantMessage {
    /// Text meant for the reader, in order.
    pub text: String,
    /// The words of a refusal that the provider keeps apart from the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// What the model thought aloud, if the provider shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// The calls asked for, in the order asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Call>,
    /// What the same model wants to see again as it was, beside text and calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried: Option<Box<Carried>>,
    /// Whether the provider paused in the middle of its reply and goes on once it is sent back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
}

impl AssistantMessage {
    /// Returns the parts to send back to `model`: those that it gave itself. Another model cannot read them.
    pub fn carried_for(&self, model: &ModelSpec) -> Option<&[Part]> {
        let carried = self.carried.as_ref()?;
        (carried.provider == model.provider && carried.model == model.model).then_some(carried.parts.as_slice())
    }
}

/// A reply part by part, where some parts mean something to nobody but the model that made them: signed or encrypted
/// reasoning, what tools at the provider found. Kept only if there are such parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Carried {
    /// The provider that made it, by its name in Wren.
    pub provider: String,
    /// The model that made it.
    pub model: String,
    /// The parts, in the order in which they came.
    pub parts: Vec<Part>,
}

/// One part of a reply, as its provider laid it out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The next piece of the reply's text.
    Text {
        /// How long it is, in bytes.
        bytes: usize,
        /// What stands beside it in the provider's own form (a signature); null for nothing.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        beside: Value,
    },
    /// The reply's next call.
    Call {
        /// What stands beside it in the provider's own form; null for nothing.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        beside: Value,
    },
    /// Anything else, in the provider's own form.
    Opaque(Value),
}

impl Part {
    /// Returns whether it holds something that text and calls alone do not.
    pub fn is_opaque(&self) -> bool {
        match self {
            Self::Text { beside, .. } | Self::Call { beside } => !beside.is_null(),
            Self::Opaque(_) => true,
        }
    }

    /// Returns an upper bound on its bytes in a request, beyond those of text and call.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Text { beside, .. } | Self::Call { beside } if beside.is_null() => 0,
            Self::Text { beside: value, .. } | Self::Call { beside: value } | Self::Opaque(value) => value.to_string().len(),
        }
    }
}

/// One tool call as the model asked for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Wren's own id.
    pub id: CallId,
    /// The provider's id, if it gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// The tool's name as the model wrote it.
    pub tool: String,
    /// The arguments.
    pub args: Args,
}

/// The arguments of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Args {
    /// A JSON object. Absent, empty and `null` arguments are read as `{}`.
    Json(Value),
    /// Text that is no JSON object. It is never run; replays to a provider send `{}` instead.
    Broken {
        /// What arrived.
        raw: String,
        /// Why it cannot be used.
        error: String,
    },
}

impl Args {
    /// Reads what a provider sent as arguments.
    pub fn parse(raw: &str) -> Self {
        let text = raw.trim();
        if text.is_empty() || text == "null" {
            return Self::Json(Value::Object(serde_json::Map::new()));
        }
        match serde_json::from_str::<Value>(text) {
            Ok(value @ Value::Object(_)) => Self::Json(value),
            Ok(_) => Self::Broken { raw: raw.to_owned(), error: "the arguments are not a JSON object".to_owned() },
            Err(error) => Self::Broken { raw: raw.to_owned(), error: format!("the arguments are not valid JSON: {error}") },
        }
    }

    /// Returns the arguments as JSON text that a provider accepts in a replay.
    pub fn replay(&self) -> String {
        match self {
            Self::Json(value) => value.to_string(),
            Self::Broken { .. } => "{}".to_owned(),
        }
    }

    /// Returns the arguments as people should see them.
    pub fn shown(&self) -> String {
        match self {
            Self::Json(value) => value.to_string(),
            Self::Broken { raw, .. } => raw.clone(),
        }
    }
}

/// The result of one call, as the model reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The call that this answers.
    pub call_id: CallId,
    /// The tool's name as the model wrote it.
    pub tool: String,
    /// Whether the tool did what was asked.
    pub ok: bool,
    /// The words.
    pub output: String,
}

/// Why a model stopped talking. Closed: adapters map every provider's words onto these and keep the word beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// It said what it had to say.
    EndTurn,
    /// It wants tools to run.
    ToolCalls,
    /// The output limit cut it off.
    Length,
    /// It, or a filter, declined.
    Refusal,
    /// A malformed call, or a word that no adapter knows.
    Error,
}

impl Stop {
    /// Returns the name used in JSON, spans and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::EndTurn => "end_turn",
            Self::ToolCalls => "tool_calls",
            Self::Length => "length",
            Self::Refusal => "refusal",
            Self::Error => "error",
        }
    }
}

/// Tokens of one model call, counted alike for every provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Every token the model read, cached ones included.
    pub input_tokens: i64,
    /// Every token charged as output, reasoning included.
    pub output_tokens: i64,
    /// The part of the input that was read from the provider's cache.
    pub cache_read_tokens: i64,
    /// The part of the input that was written to the provider's cache.
    pub cache_write_tokens: i64,
    /// The part of the output that was reasoning.
    pub reasoning_tokens: i64,
}

impl Usage {
    /// Returns input plus output.
    pub fn total_tokens(&self) -> i64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// Returns the same counts with nonsense taken out: nothing below zero or above `TOKENS_MAX`, no part above its
    /// whole. A provider's arithmetic must never lower a bill or overflow one.
    pub fn sane(self) -> Self {
        /// More than any model reads or writes in one call.
        const TOKENS_MAX: i64 = 1_000_000_000;
        let whole = |n: i64| n.clamp(0, TOKENS_MAX);
        let input_tokens = whole(self.input_tokens);
        let output_tokens = whole(self.output_tokens);
        let cache_read_tokens = self.cache_read_tokens.clamp(0, input_tokens);
        Self {
            input_tokens,
            output_tokens,
            cache_read_tokens,
            cache_write_tokens: self.cache_write_tokens.clamp(0, input_tokens - cache_read_tokens),
            reasoning_tokens: self.reasoning_tokens.clamp(0, output_tokens),
        }
    }
}

/// One model call, complete: what every adapter encodes. A pure function of the journal up to its `turn_started`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Request {
    /// The asking agent's name.
    pub agent: String,
    /// The model and its parameters.
    pub model: Arc<ModelSpec>,
    /// The system prompt; empty for none.
    pub instructions: Arc<str>,
    /// The conversation so far.
    pub messages: Vec<Arc<Message>>,
    /// The tools on offer.
    pub tools: Arc<[ToolSpec]>,
    /// The most tokens that the reply may have.
    pub max_output: i64,
    /// The turn that this asks for, from 1.
    pub turn: u32,
    /// Which try at this turn it is, from 1.
    pub attempt: u32,
    /// What it is for.
    pub purpose: Purpose,
}

/// What a provider answered, put together from its deltas; ids are not yet Wren's.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// Text meant for the reader.
    pub text: String,
    /// The words of a refusal kept apart from the text.
    pub refusal: Option<String>,
    /// What the model thought aloud.
    pub reasoning: Option<String>,
    /// The calls in the order asked.
    pub calls: Vec<ReplyCall>,
    /// The reply part by part, if some parts are more than text and calls; else empty.
    pub parts: Vec<Part>,
    /// Why the model stopped.
    pub stop: Stop,
    /// Whether it paused in the middle, and goes on once its reply is sent back.
    pub paused: bool,
    /// The provider's own word for it, if it said one.
    pub stop_raw: Option<String>,
    /// What it used; `None` if the provider did not say.
    pub usage: Option<Usage>,
    /// The provider's id of the answer.
    pub response_id: Option<String>,
    /// The model that answered, in the provider's words.
    pub response_model: Option<String>,
    /// What the provider says that it charged, if it says so.
    pub stated_cost_usd_nanos: Option<i64>,
}

/// One call in a provider's answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplyCall {
    /// The provider's id, if it gave one.
    pub provider_id: Option<String>,
    /// The tool's name.
    pub tool: String,
    /// The arguments as they arrived.
    pub args_raw: String,
}

impl Reply {
    /// Returns the reply of `model` as turn `turn`'s message, each call under an id of Wren's own.
    pub fn into_message(self, turn: u32, model: &ModelSpec) -> AssistantMessage {
        let calls = self.calls.into_iter().enumerate().map(|(index, call)| Call {
            id: CallId::of(turn, index),
            provider_id: call.provider_id,
            tool: call.tool,
            args: Args::parse(&call.args_raw),
        });
        let carried = (!self.parts.is_empty())
            .then(|| Box::new(Carried { provider: model.provider.clone(), model: model.model.clone(), parts: self.parts }));
        AssistantMessage {
            text: self.text,
            refusal: self.refusal,
            reasoning: self.reasoning,
            calls: calls.collect(),
            carried,
            paused: self.paused,
        }
    }
}
