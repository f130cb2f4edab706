//! The closed list of facts that a journal holds, version 1, and the envelope each of them travels in.
//!
//! Facts are past tense. A kind or version that this build does not know makes it set the run aside; an unknown field
//! of a known kind is read past. Streamed text and progress are not facts and never come here.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::agent::{AgentSpec, Effect, ModelSpec};
use super::ledger::{Limits, Reservation};
use super::message::{AssistantMessage, CallId, RunId, Stop, Usage};
use super::summary::Outcome;

/// The version of the event list that this build writes and reads.
pub const EVENT_VERSION: u32 = 1;

/// A fact with its place in the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// The run it happened to.
    pub run: RunId,
    /// Its place in the run's journal: gapless from 1.
    pub seq: u64,
    /// Its place in the whole tree's order: gapless from 1.
    pub tree_seq: u64,
    /// The ownership of the run under which it was written; never falls within a run.
    pub epoch: u64,
    /// When, in microseconds since the Unix epoch.
    pub time_us: i64,
    /// The fact.
    pub event: Event,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Event {
    /// The run was accepted and is durable.
    RunCreated(Arc<RunCreated>),
    /// Its driver began.
    RunStarted {},
    /// The model is about to be asked, and the worst case was set aside.
    TurnStarted(TurnStarted),
    /// The model answered; the whole reply is here.
    TurnEnded(Box<TurnEnded>),
    /// An attempt at a turn came to nothing.
    TurnAborted(TurnAborted),
    /// A tool is about to run.
    CallStarted(CallStarted),
    /// A call got its one result.
    CallEnded(CallEnded),
    /// A call with an outside effect was cut by a crash: nobody knows whether it happened.
    CallInDoubt {
        /// The call.
        call_id: CallId,
    },
    /// A child run was created for a call, in the same transaction.
    ChildStarted {
        /// The call that it answers.
        call_id: CallId,
        /// The child.
        child: RunId,
        /// The child's agent.
        agent: String,
    },
    /// A child run ended, in the same transaction.
    ChildEnded(Box<ChildEnded>),
    /// Words were put into the conversation.
    MessageReceived {
        /// Who spoke: `wren`, or a client.
        sender: String,
        /// The words.
        text: String,
    },
    /// The run's limits are others from here on.
    LimitsChanged {
        /// All of them.
        limits: Limits,
        /// Who changed them.
        actor: String,
        /// Why; may be empty.
        reason: String,
    },
    /// Another model is asked from here on.
    ModelChanged(Box<ModelChanged>),
    /// The model reads less of the conversation from here on.
    ContextCompacted(Box<ContextCompacted>),
    /// The run stopped and can go on.
    RunSuspended {
        /// Why, in a word.
        outcome: Outcome,
        /// Why, as a code.
        reason: String,
        /// Why, in words.
        message: String,
        /// The text so far.
        text: String,
    },
    /// The run went on.
    RunResumed {
        /// Why.
        cause: Cause,
        /// Who asked for it; empty if nobody did.
        actor: String,
    },
    /// Somebody asked for the end of the run or of one above it.
    CancelRequested {
        /// Who.
        actor: String,
        /// Why; may be empty.
        reason: String,
    },
    /// The run is over for good.
    RunEnded(Box<RunEnded>),
}

/// What a run is told at its creation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunCreated {
    /// The root of its tree; itself for a root.
    pub root: RunId,
    /// The run and call that it answers; `None` for a root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ParentCall>,
    /// Levels below the root.
    pub depth: u32,
    /// The workflow's name.
    pub workflow: String,
    /// SHA-256 of the workflow's bundle, in hex.
    pub workflow_digest: String,
    /// The workflow's inputs after defaults and coercion. Empty for a child: its prompt holds what it needs.
    pub inputs: Value,
    /// The agent.
    pub agent: AgentSpec,
    /// The first message.
    pub prompt: String,
    /// The directory that file tools are confined to: an absolute path.
    pub workspace: String,
    /// All limits, resolved.
    pub limits: Limits,
    /// The trace that its spans belong to: 32 hex digits.
    pub trace_id: String,
    /// The span that its own hangs under: 16 hex digits; `None` for a root of a trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_span: Option<String>,
    /// Whether its spans are exported.
    pub sampled: bool,
    /// When the daemon took in the submission, in microseconds since the Unix epoch; 0 for a child.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub received_us: i64,
    /// The submitter's labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Who submitted the tree.
    pub submitter: String,
    /// Models that somebody chose, by agent, for this run's children and theirs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, Arc<ModelSpec>>,
}

fn is_zero(time_us: &i64) -> bool {
    *time_us == 0
}

/// The call that a child run answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentCall {
    /// The parent run.
    pub run: RunId,
    /// Its call.
    pub call_id: CallId,
    /// The name of the tool that was called.
    pub tool: String,
}

/// What a turn is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// The agent's own work.
    #[default]
    Task,
    /// Notes that stand in for the conversation, to make room. It is no turn of the agent.
    Compact,
}

impl Purpose {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Compact => "compact",
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks for it")]
    fn is_task(&self) -> bool {
        *self == Self::Task
    }
}

/// See [`Event::ContextCompacted`]. Places are those of the whole transcript, from 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContextCompacted {
    /// What stands in for the messages that are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// The first message behind the prompt that is read; 0 while all are.
    pub kept_from: u64,
    /// Long results before this message are left out.
    pub cleared_to: u64,
    /// Tokens of the conversation before, about.
    pub tokens_before: i64,
}

/// See [`Event::TurnStarted`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnStarted {
    /// From 1.
    pub turn: u32,
    /// From 1 in each turn.
    pub attempt: u32,
    /// What it is for.
    pub purpose: Purpose,
    /// The model asked.
    pub model: String,
    /// The most output tokens asked for.
    pub max_output: i64,
    /// What was set aside on the whole path.
    pub reservation: Reservation,
}

/// See [`Event::TurnEnded`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnEnded {
    /// From 1.
    pub turn: u32,
    /// The attempt that succeeded; so also how many there were.
    pub attempt: u32,
    /// What it was for.
    #[serde(default, skip_serializing_if = "Purpose::is_task")]
    pub purpose: Purpose,
    /// The reply.
    pub message: AssistantMessage,
    /// Why the model stopped.
    pub stop: Stop,
    /// The provider's own word for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_raw: Option<String>,
    /// What it used.
    pub usage: Usage,
    /// Whether the usage was counted here because the provider did not say.
    #[serde(default)]
    pub estimated: bool,
    /// What it cost.
    pub cost_usd_nanos: i64,
    /// Whether the model has no price, so that the cost is not known.
    #[serde(default)]
    pub cost_unknown: bool,
    /// The provider's name.
    pub provider: String,
    /// The provider's id of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_id: Option<String>,
    /// The model that answered, in the provider's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_model: Option<String>,
    /// Microseconds from the request to its first delta.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_chunk_us: Option<i64>,
    /// The version of the price used.
    pub price_version: String,
    /// What the provider says that it charged, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stated_cost_usd_nanos: Option<i64>,
}

/// See [`Event::TurnAborted`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnAborted {
    /// From 1.
    pub turn: u32,
    /// Which attempt.
    pub attempt: u32,
    /// Why.
    pub reason: Abort,
    /// In words, without secrets.
    pub message: String,
    /// Whether the same request may be sent again.
    pub retryable: bool,
    /// The HTTP status, if one was received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
    /// How long the provider asked to wait, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// What it used, as far as known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Whether the usage was counted here.
    #[serde(default)]
    pub estimated: bool,
    /// What it cost, written-off money left out.
    pub cost_usd_nanos: i64,
    /// What may have been charged for a call that was lost: the whole reservation.
    #[serde(default)]
    pub written_off: Reservation,
}

/// Why an attempt at a turn came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Abort {
    /// The key was refused or is missing.
    Auth,
    /// Too many requests.
    RateLimited,
    /// No credit or quota is left, which no waiting mends.
    Quota,
    /// The provider has no room.
    Overloaded,
    /// The conversation does not fit the model.
    ContextLength,
    /// The provider knows no such model, or there is nothing at its address.
    NotFound,
    /// The provider's filter refused the request itself.
    ContentRefused,
    /// The provider calls the request wrong.
    InvalidRequest,
    /// The provider failed.
    Provider,
    /// The connection failed or was never made.
    Network,
    /// The stream ended before its end.
    CutStream,
    /// No answer in time.
    NoAnswer,
    /// What came could not be read.
    Malformed,
    /// The run was cancelled.
    Cancelled,
    /// The run's own time was up.
    Timeout,
    /// The daemon died.
    Crash,
}

impl Abort {
    /// Returns the name used in JSON, spans and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::RateLimited => "rate_limited",
            Self::Quota => "quota",
            Self::Overloaded => "overloaded",
            Self::ContextLength => "context_length",
            Self::NotFound => "not_found",
            Self::ContentRefused => "content_refused",
            Self::InvalidRequest => "invalid_request",
            Self::Provider => "provider",
            Self::Network => "network",
            Self::CutStream => "cut_stream",
            Self::NoAnswer => "no_answer",
            Self::Malformed => "malformed",
            Self::Cancelled => "cancelled",
            Self::Timeout => "timeout",
            Self::Crash => "crash",
        }
    }

    /// Returns whether the provider says that it is asked too much.
    pub fn is_refusal(self) -> bool {
        matches!(self, Self::RateLimited | Self::Overloaded)
    }

    /// Returns whether the provider is to blame, so that it counts as one of its tries.
    pub fn is_provider_error(self) -> bool {
        match self {
            Self::Auth
            | Self::RateLimited
            | Self::Quota
            | Self::Overloaded
            | Self::ContextLength
            | Self::NotFound
            | Self::ContentRefused
            | Self::InvalidRequest
            | Self::Provider
            | Self::Network
            | Self::CutStream
            | Self::NoAnswer
            | Self::Malformed => true,
            Self::Cancelled | Self::Timeout | Self::Crash => false,
        }
    }
}

/// See [`Event::CallStarted`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallStarted {
    /// The call.
    pub call_id: CallId,
    /// The tool's name.
    pub tool: String,
    /// What running it does.
    pub effect: Effect,
    /// The same for every attempt at this call; handed to the tool.
    pub idempotency_key: String,
    /// SHA-256 of the arguments, in hex.
    pub args_digest: String,
    /// From 1; more after a crash.
    pub attempt: u32,
}

/// See [`Event::CallEnded`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallEnded {
    /// The call.
    pub call_id: CallId,
    /// The tool's name as the model wrote it.
    pub tool: String,
    /// Why it did not do what was asked; `None` if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<CallFailure>,
    /// What the model reads.
    pub output: String,
    /// How many characters of the tool's output were left out.
    #[serde(default)]
    pub omitted_chars: u64,
}

/// Why a call did not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallFailure {
    /// No such tool.
    UnknownTool,
    /// The arguments do not fit.
    InvalidArguments,
    /// A bound on calls, depth or runs.
    LimitReached,
    /// The reply that asked for it was cut or refused, so nothing of it is run.
    NotRun,
    /// The tool failed or panicked.
    Failed,
    /// The run was cancelled.
    Cancelled,
    /// The run's time was up.
    Timeout,
    /// A crash left it open whether it happened.
    InDoubt,
    /// The child run did not complete.
    Child,
}

impl CallFailure {
    /// Returns the name used in JSON, spans and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::UnknownTool => "unknown_tool",
            Self::InvalidArguments => "invalid_arguments",
            Self::LimitReached => "limit_reached",
            Self::NotRun => "not_run",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Timeout => "timeout",
            Self::InDoubt => "in_doubt",
            Self::Child => "child",
        }
    }
}

/// See [`Event::ChildEnded`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChildEnded {
    /// The call that it answers.
    pub call_id: CallId,
    /// The child.
    pub child: RunId,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, as a code; empty if it completed.
    pub reason: String,
    /// Why, in words; empty if it completed.
    pub message: String,
    /// Its last text.
    pub text: String,
    /// Its answer where its agent has an output schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Whether its last reply was cut off.
    #[serde(default)]
    pub truncated: bool,
    /// Its own turns.
    pub turns: u32,
    /// What its whole subtree cost.
    pub subtree_cost_usd_nanos: i64,
}

/// Why a run went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The daemon died and another took the run over.
    Crash,
    /// Somebody asked.
    User,
    /// The daemon had been shut down in an orderly way.
    Drained,
}

/// See [`Event::ModelChanged`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelChanged {
    /// The agent that asks it: the run's own, or one of the runs below it.
    pub agent: String,
    /// The model.
    pub model: Arc<ModelSpec>,
    /// Why it was changed.
    pub cause: ModelCause,
    /// Who asked for it; empty if nobody did.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub actor: String,
    /// What was wrong with the one before, in words; empty if somebody asked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// Why a run asks another model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelCause {
    /// The one before failed, and this one is next in its list.
    Fallback,
    /// Somebody asked.
    User,
}

impl ModelCause {
    /// Returns the name used in JSON, spans and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fallback => "fallback",
            Self::User => "user",
        }
    }
}

/// See [`Event::RunEnded`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEnded {
    /// How.
    pub outcome: Outcome,
    /// Why, as a code; empty if it completed.
    pub reason: String,
    /// Why, in words; empty if it completed.
    pub message: String,
    /// The last text.
    pub text: String,
    /// The answer where the agent has an output schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Whether the last reply was cut off.
    #[serde(default)]
    pub truncated: bool,
}

impl Event {
    /// Returns the fact's name in JSON, proto and logs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::RunCreated(_) => "run_created",
            Self::RunStarted {} => "run_started",
            Self::TurnStarted(_) => "turn_started",
            Self::TurnEnded(_) => "turn_ended",
            Self::TurnAborted(_) => "turn_aborted",
            Self::CallStarted(_) => "call_started",
            Self::CallEnded(_) => "call_ended",
            Self::CallInDoubt { .. } => "call_in_doubt",
            Self::ChildStarted { .. } => "child_started",
            Self::ChildEnded(_) => "child_ended",
            Self::MessageReceived { .. } => "message_received",
            Self::LimitsChanged { .. } => "limits_changed",
            Self::ModelChanged(_) => "model_changed",
            Self::ContextCompacted(_) => "context_compacted",
            Self::RunSuspended { .. } => "run_suspended",
            Self::RunResumed { .. } => "run_resumed",
            Self::CancelRequested { .. } => "cancel_requested",
            Self::RunEnded(_) => "run_ended",
        }
    }
}
