//! The projection of a run's journal that lists, trees and rows show: everything but the conversation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::event::{Event, ParentCall, Recorded, RunCreated};
use super::ledger::{Limits, Reservation, Totals};
use super::message::RunId;

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Accepted; no driver has begun.
    Pending,
    /// A driver has it, or will as soon as a daemon runs.
    Running,
    /// It can go on, but not by itself (except after a drain).
    Suspended,
    /// Its end was asked for and is under way.
    Cancelling,
    /// Over.
    Ended,
}

impl State {
    /// Returns the name used in JSON and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Suspended => "suspended",
            Self::Cancelling => "cancelling",
            Self::Ended => "ended",
        }
    }
}

/// Why a run is not running. Wren alone decides it, never a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The model finished.
    Completed,
    /// A fatal error.
    Failed,
    /// A cut reply that asked for tools, or a refusal.
    Blocked,
    /// Somebody cancelled it.
    Cancelled,
    /// Its own replies reached `max_turns`.
    MaxTurns,
    /// Too little money is left for another turn.
    Budget,
    /// Too few tokens are left for another turn.
    MaxTokens,
    /// Its time is up.
    Timeout,
    /// A person must decide whether a call happened, or why it keeps crashing.
    InDoubt,
    /// The provider failed after its retries.
    ProviderError,
    /// The daemon shut down at a turn boundary.
    Drained,
}

impl Outcome {
    /// Returns the name used in JSON, spans and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Blocked => "blocked",
            Self::Cancelled => "cancelled",
            Self::MaxTurns => "max_turns",
            Self::Budget => "budget",
            Self::MaxTokens => "max_tokens",
            Self::Timeout => "timeout",
            Self::InDoubt => "in_doubt",
            Self::ProviderError => "provider_error",
            Self::Drained => "drained",
        }
    }

    /// Returns whether a run that stops so is suspended rather than ended.
    pub fn suspends(self, is_root: bool) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Cancelled => false,
            Self::InDoubt | Self::Drained => true,
            Self::Blocked | Self::MaxTurns | Self::Budget | Self::MaxTokens | Self::Timeout | Self::ProviderError => is_root,
        }
    }
}

/// A run without its conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The run.
    pub id: RunId,
    /// The root of its tree.
    pub root: RunId,
    /// The call that it answers; `None` for a root.
    pub parent: Option<ParentCall>,
    /// Levels below the root.
    pub depth: u32,
    /// The workflow's name.
    pub workflow: String,
    /// SHA-256 of the workflow's bundle, in hex.
    pub workflow_digest: String,
    /// The agent's name.
    pub agent: String,
    /// The model, as the workflow names it.
    pub model: String,
    /// The first words of the prompt, for trees and lists.
    pub title: String,
    /// The workflow's inputs.
    pub inputs: Value,
    /// The submitter's labels.
    pub labels: BTreeMap<String, String>,
    /// Who submitted the tree.
    pub submitter: String,
    /// The trace.
    pub trace_id: String,
    /// Where it stands.
    pub state: State,
    /// Why it is not running; `None` while it is.
    pub outcome: Option<Outcome>,
    /// Why, as a code.
    pub reason: String,
    /// Why, in words.
    pub message: String,
    /// Its last text.
    pub text: String,
    /// Its answer where the agent has an output schema.
    pub output: Option<Value>,
    /// Whether the last reply was cut off.
    pub truncated: bool,
    /// All limits.
    pub limits: Limits,
    /// What it used itself, its children left out.
    pub own: Totals,
    /// What its turn under way has set aside.
    pub open: Reservation,
    /// Why its cancel was asked for; `None` if it was not.
    pub cancel_reason: Option<String>,
    /// The last event's place in its journal.
    pub seq: u64,
    /// When it was accepted, in microseconds since the Unix epoch; likewise below.
    pub created_us: i64,
    /// When it first ran.
    pub started_us: Option<i64>,
    /// When it ended.
    pub ended_us: Option<i64>,
    /// When its last event happened.
    pub updated_us: i64,
}

/// How much of the prompt a title shows.
const TITLE_CHARS_MAX: usize = 120;

impl Summary {
    /// Returns the row of a run that was just created.
    pub fn create(id: RunId, created: &RunCreated, seq: u64, time_us: i64) -> Self {
        Self {
            id,
            root: created.root.clone(),
            parent: created.parent.clone(),
            depth: created.depth,
            workflow: created.workflow.clone(),
            workflow_digest: created.workflow_digest.clone(),
            agent: created.agent.name.clone(),
            model: created.agent.model.full_name(),
            title: created.prompt.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(TITLE_CHARS_MAX).collect(),
            inputs: created.inputs.clone(),
            labels: created.labels.clone(),
            submitter: created.submitter.clone(),
            trace_id: created.trace_id.clone(),
            state: State::Pending,
            outcome: None,
            reason: String::new(),
            message: String::new(),
            text: String::new(),
            output: None,
            truncated: false,
            limits: created.limits,
            own: Totals::default(),
            open: Reservation::default(),
            cancel_reason: None,
            seq,
            created_us: time_us,
            started_us: None,
            ended_us: None,
            updated_us: time_us,
        }
    }

    /// Brings the row up to date. The event's legality is [`super::Run`]'s business, not this one's.
    pub fn apply(&mut self, recorded: &Recorded) {
        self.seq = recorded.seq;
        self.updated_us = recorded.time_us;
        self.own.add(&recorded.event, self.open);
        match &recorded.event {
            Event::RunStarted {} => {
                self.state = State::Running;
                self.started_us.get_or_insert(recorded.time_us);
            }
            Event::TurnStarted(turn) => self.open = turn.reservation,
            Event::TurnEnded(_) | Event::TurnAborted(_) => self.open = Reservation::default(),
            Event::LimitsChanged { limits, .. } => self.limits = *limits,
            Event::ModelChanged(changed) if changed.agent == self.agent => self.model = changed.model.full_name(),
            Event::RunSuspended { outcome, reason, message, text } => {
                self.state = State::Suspended;
                self.stopped(*outcome, reason, message, text);
            }
            Event::RunResumed { .. } => {
                self.state = State::Running;
                self.outcome = None;
                self.reason.clear();
                self.message.clear();
            }
            Event::CancelRequested { reason, .. } => {
                self.state = State::Cancelling;
                self.outcome = None;
                self.cancel_reason = Some(reason.clone());
            }
            Event::RunEnded(ended) => {
                self.state = State::Ended;
                self.stopped(ended.outcome, &ended.reason, &ended.message, &ended.text);
                self.output.clone_from(&ended.output);
                self.truncated = ended.truncated;
                self.ended_us = Some(recorded.time_us);
            }
            Event::RunCreated(_)
            | Event::CallStarted(_)
            | Event::CallEnded(_)
            | Event::CallInDoubt { .. }
            | Event::ChildStarted { .. }
            | Event::ChildEnded(_)
            | Event::ModelChanged(_)
            | Event::ContextCompacted(_)
            | Event::MessageReceived { .. } => {}
        }
    }

    fn stopped(&mut self, outcome: Outcome, reason: &str, message: &str, text: &str) {
        self.outcome = Some(outcome);
        reason.clone_into(&mut self.reason);
        message.clone_into(&mut self.message);
        text.clone_into(&mut self.text);
    }
}
