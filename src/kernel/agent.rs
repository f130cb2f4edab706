//! What an agent is told to be: its instructions, its model, its tools. Fixed at the run's creation and kept in the
//! journal, so that an edit of a workflow never touches a run that exists.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

use super::ledger::{Limits, Price};

/// What is known of a model before it is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownModel {
    /// What it costs, and where that is written: the price book's version, or `config`.
    pub price: Option<(Price, String)>,
    /// How many tokens a call can hold, input and output together.
    pub window_tokens: Option<i64>,
}

/// An agent, ready to run: templates rendered, aliases resolved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentSpec {
    /// Its name in the workflow.
    pub name: String,
    /// What it is for, in a line; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The system prompt; may be empty.
    pub instructions: Arc<str>,
    /// The model it asks.
    pub model: Arc<ModelSpec>,
    /// The tools it may ask for, in the order offered. Names are unique.
    pub tools: Arc<[ToolSpec]>,
    /// The JSON Schema that its final answer must fit, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// What happens to a conversation that outgrows the model.
    #[serde(default, skip_serializing_if = "ContextSpec::is_default")]
    pub context: ContextSpec,
}

/// What happens to a conversation that outgrows the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextSpec {
    /// Whether room is made.
    pub on_full: OnFull,
    /// The last replies, with the results of their calls, that stay as they are, as far as they leave half of the room.
    pub keep_turns: u32,
}

impl Default for ContextSpec {
    fn default() -> Self {
        Self { on_full: OnFull::Compact, keep_turns: 4 }
    }
}

impl ContextSpec {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks for it")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What happens when the conversation does not fit the model any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFull {
    /// Old results are left out, then the model writes notes that stand in for what was said.
    Compact,
    /// The run stops.
    Fail,
}

/// A model with its parameters and price.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// The name that the workflow uses (an alias, or `provider/model` itself).
    pub alias: String,
    /// The provider's name in Wren: `openai`, `scripted`, or one from the daemon's config.
    pub provider: String,
    /// The model's name as the provider knows it.
    pub model: String,
    /// The most output tokens asked for in one turn.
    pub max_output: i64,
    /// Sampling temperature, if set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus sampling, if set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// What it costs; `None` only where the workflow says `price_unknown: allow`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
    /// Where the price comes from: the price book's version, `workflow` or `config`.
    pub price_version: String,
    /// How many tokens a call can hold, input and output together, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_tokens: Option<i64>,
    /// The script, where the provider is `scripted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scripted: Option<Arc<Scripted>>,
    /// What is asked instead once this model fails, in this order. Those have no list of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallback: Vec<Arc<ModelSpec>>,
}

impl ModelSpec {
    /// Returns its name as people write it: `provider/model`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.provider, self.model)
    }

    /// The output below which a turn is not worth asking for.
    pub fn output_floor(&self) -> i64 {
        self.max_output.min(256)
    }
}

/// The replies of a scripted model. The first that matches is given; what matches depends on the transcript alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Scripted {
    /// How long a reply takes, in milliseconds.
    pub latency_ms: u64,
    /// Whether every agent makes one tool call and then quotes its result, whatever `replies` says.
    pub mock: bool,
    /// The replies, tried in order.
    pub replies: Vec<ScriptedReply>,
}

/// One reply of a script: conditions first, then what is answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScriptedReply {
    /// Matches this agent only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Matches this turn only, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
    /// Matches this attempt at the turn only, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Matches if the prompt or a result so far contains this text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saw: Option<String>,
    /// The text of the reply.
    pub text: String,
    /// The calls of the reply.
    pub calls: Vec<ScriptedCall>,
    /// The stop, if not the natural one (`tool_calls` with calls, else `end_turn`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<super::message::Stop>,
    /// The usage to report, if not the counted one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<super::message::Usage>,
    /// Fails instead of replying.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ScriptedError>,
    /// How long this reply takes in milliseconds, if not the script's latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<u64>,
}

/// A call in a scripted reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScriptedCall {
    /// The tool's name.
    pub tool: String,
    /// The arguments; an object.
    #[serde(default)]
    pub args: Value,
}

/// A failure in a scripted reply, as an HTTP provider would report it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScriptedError {
    /// The HTTP status.
    pub status: u16,
    /// What `Retry-After` would say, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The message.
    #[serde(default)]
    pub message: String,
}

/// One tool as the model sees it, with what Wren must know to run it safely.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// The name that the model calls.
    pub name: String,
    /// What it does, in the model's words.
    pub description: String,
    /// The JSON Schema of its arguments; an object schema.
    pub parameters: Value,
    /// What running it does to the world.
    pub effect: Effect,
    /// The key of the `tools:` entry that it belongs to.
    pub source: String,
    /// How a child is started, where the effect is [`Effect::Spawn`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spawn: Option<SpawnSpec>,
}

/// Where a `tools:` entry gets its operations from, as the tool room needs it to open them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolSource {
    /// Read-only file operations inside a directory.
    Files {
        /// The directory, relative to the run's workspace.
        root: String,
    },
    /// A child run; the runtime's business, with nothing to open.
    Subagent,
    /// A tool that plays a script.
    Scripted(ScriptedTool),
}

/// A tool that plays a script: it takes its time, reports progress, and answers what it is told to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScriptedTool {
    /// How long it takes, in milliseconds. It sleeps on the call's token.
    pub takes_ms: u64,
    /// How often it reports progress, in milliseconds; 0 for never.
    pub progress_every_ms: u64,
    /// What the progress counts to.
    pub total: u64,
    /// What is counted, for people: `files`.
    pub unit: String,
    /// What running it is declared to do to the world.
    pub effect: Effect,
    /// What it answers.
    pub result: String,
    /// Fails with this message instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fails: Option<String>,
    /// Panics with this message instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub panics: Option<String>,
    /// Appends one line for each execution to this file under the data directory's `tool-logs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
}

/// The bounds of a subagent tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpawnSpec {
    /// The agent that the child runs.
    pub agent: String,
    /// The most calls of it in one parent run.
    pub max_calls: u32,
    /// The most children of it at once in one parent run.
    pub max_parallel: u32,
    /// Whether a child that does not complete fails its parent.
    pub on_failure: OnFailure,
    /// The limits of each child's subtree, as far as the workflow sets them.
    pub limits: LimitsPatch,
}

/// What a child that did not complete means to its parent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The parent reads an error result and goes on.
    #[default]
    Return,
    /// The parent fails too.
    Fail,
}

/// Limits of which only some are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitsPatch {
    /// See [`Limits::max_turns`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<u32>,
    /// See [`Limits::budget_usd_nanos`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_usd_nanos: Option<i64>,
    /// See [`Limits::max_tokens`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<i64>,
    /// See [`Limits::timeout_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    /// See [`Limits::max_depth`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_depth: Option<u32>,
    /// See [`Limits::max_runs`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_runs: Option<u32>,
}

impl LimitsPatch {
    /// Returns whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns `base` with what is set here put over it.
    pub fn over(&self, base: Limits) -> Limits {
        Limits {
            max_turns: self.max_turns.unwrap_or(base.max_turns),
            budget_usd_nanos: self.budget_usd_nanos.unwrap_or(base.budget_usd_nanos),
            max_tokens: self.max_tokens.unwrap_or(base.max_tokens),
            timeout_ms: self.timeout_ms.unwrap_or(base.timeout_ms),
            max_depth: self.max_depth.unwrap_or(base.max_depth),
            max_runs: self.max_runs.unwrap_or(base.max_runs),
        }
    }

    /// Returns this with what is unset taken from `lower`.
    pub fn or(&self, lower: &Self) -> Self {
        Self {
            max_turns: self.max_turns.or(lower.max_turns),
            budget_usd_nanos: self.budget_usd_nanos.or(lower.budget_usd_nanos),
            max_tokens: self.max_tokens.or(lower.max_tokens),
            timeout_ms: self.timeout_ms.or(lower.timeout_ms),
            max_depth: self.max_depth.or(lower.max_depth),
            max_runs: self.max_runs.or(lower.max_runs),
        }
    }
}

/// What running a tool does to the world. It decides what a crash in the middle of a call means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Changes nothing: may be run again.
    ReadOnly,
    /// May be run again under the same idempotency key.
    Idempotent,
    /// Changes something outside: never silently run again.
    External,
    /// Starts a child run: found again by (parent run, call id).
    Spawn,
}

impl Effect {
    /// Returns the name used in JSON, YAML and spans.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "read_only",
            Self::Idempotent => "idempotent",
            Self::External => "external",
            Self::Spawn => "spawn",
        }
    }
}
