//! A tree of runs as a viewer sees it: built from events as they come, or from what the daemon answers. No text is made here.

use std::collections::HashMap;

use super::line::COMPACT;
use super::text::micros;
use crate::wire::v1::event::Payload;
use crate::wire::v1::{CallStarted, Event, Failure, Limits, Outcome, Run, RunNode, RunState, ToolProgress, TurnAborted, TurnEnded, Usage};

/// A run's place in its tree.
pub type Index = usize;

/// A tree of runs.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    nodes: Vec<Node>,
    by_id: HashMap<String, Index>,
}

/// One run.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Its id.
    pub run_id: String,
    /// The runs below it, oldest first.
    pub children: Vec<Index>,
    /// Whether deeper runs exist that are not here.
    pub has_more: bool,
    /// Its agent.
    pub agent: String,
    /// Its workflow.
    pub workflow: String,
    /// The first words of its prompt.
    pub title: String,
    /// Its limits.
    pub limits: Limits,
    /// Where it stands.
    pub state: RunState,
    /// Why it does not run.
    pub outcome: Outcome,
    /// Why, in words.
    pub failure: Option<Failure>,
    /// What it has spent.
    pub own: Spent,
    /// The calls under way.
    pub calls: Vec<OpenCall>,
    /// The turn under way.
    pub asking: Option<Asking>,
    /// When it began, in microseconds since 1970; 0 if it has not.
    pub start_us: i64,
    /// When it stopped; 0 if it has not.
    pub end_us: i64,
    /// What the daemon says of the whole subtree; better than a sum if runs are missing here.
    subtree: Option<Spent>,
}

/// What runs have spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Replies.
    pub turns: i64,
    /// Input and output tokens.
    pub tokens: i64,
    /// Money, what was written off included.
    pub cost_usd_nanos: i64,
    /// Money for calls that a crash lost.
    pub written_off_usd_nanos: i64,
    /// Runs.
    pub runs: i64,
    /// Whether some of it was counted by Wren.
    pub is_estimated: bool,
    /// Whether some model has no price.
    pub is_cost_unknown: bool,
}

/// A model that is being asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asking {
    /// From 1.
    pub turn: i32,
    /// From 1.
    pub attempt: i32,
    /// Since when.
    pub since_us: i64,
    /// Why the attempt before it came to nothing.
    pub trouble: String,
}

/// A call under way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenCall {
    /// The call.
    pub call_id: String,
    /// Its tool.
    pub tool: String,
    /// The arguments as they were asked for.
    pub args_json: String,
    /// Whether its answer is a child run.
    pub is_spawn: bool,
    /// Since when.
    pub since_us: i64,
    /// What the tool last said of its progress.
    pub progress: String,
}

impl Spent {
    fn of(usage: Option<&Usage>) -> Self {
        usage.map_or_else(Self::default, |usage| Self {
            turns: usage.turn_count.into(),
            tokens: usage.input_tokens.saturating_add(usage.output_tokens),
            cost_usd_nanos: usage.cost_usd_nanos,
            written_off_usd_nanos: usage.written_off_usd_nanos,
            runs: usage.run_count.into(),
            is_estimated: usage.estimated,
            is_cost_unknown: usage.cost_unknown,
        })
    }

    fn plus(self, other: Self) -> Self {
        Self {
            turns: self.turns.saturating_add(other.turns),
            tokens: self.tokens.saturating_add(other.tokens),
            cost_usd_nanos: self.cost_usd_nanos.saturating_add(other.cost_usd_nanos),
            written_off_usd_nanos: self.written_off_usd_nanos.saturating_add(other.written_off_usd_nanos),
            runs: self.runs.saturating_add(other.runs),
            is_estimated: self.is_estimated || other.is_estimated,
            is_cost_unknown: self.is_cost_unknown || other.is_cost_unknown,
        }
    }
}

impl Node {
    /// Returns whether nothing more will happen to it.
    pub fn is_over(&self) -> bool {
        self.state == RunState::Ended
    }

    fn describe(&mut self, run: &Run) {
        self.agent.clone_from(&run.agent);
        self.workflow.clone_from(&run.workflow_name);
        self.title.clone_from(&run.title);
        self.limits = run.limits.unwrap_or_default();
    }

    fn turn_ended(&mut self, turn: &TurnEnded) {
        self.asking = None;
        let is_own = turn.purpose != COMPACT;
        self.own.turns += i64::from(is_own);
        self.own.tokens = self.own.tokens.saturating_add(turn.input_tokens).saturating_add(turn.output_tokens);
        // A viewer that came late has not seen all turns; the run's own sum has.
        self.own.cost_usd_nanos = self.own.cost_usd_nanos.saturating_add(turn.cost_usd_nanos).max(turn.run_cost_usd_nanos);
        self.own.turns = self.own.turns.max(i64::from(turn.turn) - i64::from(!is_own));
        self.own.is_estimated |= turn.estimated;
        self.own.is_cost_unknown |= turn.cost_unknown;
    }

    fn turn_aborted(&mut self, turn: &TurnAborted) {
        self.own.tokens = self.own.tokens.saturating_add(turn.input_tokens).saturating_add(turn.output_tokens);
        let cost = turn.cost_usd_nanos.saturating_add(turn.written_off_usd_nanos);
        self.own.cost_usd_nanos = self.own.cost_usd_nanos.saturating_add(cost);
        self.own.written_off_usd_nanos = self.own.written_off_usd_nanos.saturating_add(turn.written_off_usd_nanos);
        self.own.is_estimated |= turn.estimated;
        let trouble = if turn.http_status > 0 { format!("{} ({})", turn.reason, turn.http_status) } else { turn.reason.clone() };
        if let Some(asking) = &mut self.asking {
            asking.trouble = trouble;
        }
    }

    fn call_started(&mut self, call: &CallStarted, now_us: i64) {
        // A call that a crash cut short is started again under the same id.
        self.calls.retain(|open| open.call_id != call.call_id);
        self.calls.push(OpenCall {
            call_id: call.call_id.clone(),
            tool: call.tool.clone(),
            args_json: call.args_json.clone(),
            is_spawn: call.effect == "spawn",
            since_us: now_us,
            progress: String::new(),
        });
    }

    fn progress(&mut self, progress: &ToolProgress) {
        if let Some(call) = self.calls.iter_mut().find(|call| call.call_id == progress.call_id) {
            call.progress.clone_from(&progress.text);
        }
    }

    fn stop(&mut self, state: RunState, outcome: Outcome, failure: Option<&Failure>, now_us: i64) {
        self.state = state;
        self.outcome = outcome;
        self.failure = failure.cloned();
        self.end_us = now_us;
        self.asking = None;
        self.calls.clear();
    }
}

impl Tree {
    /// Builds a tree from the daemon's answer.
    pub fn of(root: &RunNode) -> Self {
        let mut tree = Self::default();
        // With a list instead of recursion, a deep tree cannot exhaust the stack.
        let mut open = vec![(None, root)];
        while let Some((parent, node)) = open.pop() {
            let Some(run) = &node.run else { continue };
            let index = tree.insert(&run.run_id, parent);
            if let Some(built) = tree.nodes.get_mut(index) {
                built.describe(run);
                built.state = run.state();
                built.outcome = run.outcome();
                built.failure.clone_from(&run.failure);
                built.own = Spent { runs: 1, ..Spent::of(run.own_usage.as_ref()) };
                built.subtree = run.subtree_usage.as_ref().map(|usage| Spent::of(Some(usage)));
                built.start_us = micros(run.start_time.as_ref().or(run.create_time.as_ref()));
                let stopped = run.end_time.as_ref().or_else(|| run.update_time.as_ref().filter(|_| run.state() == RunState::Suspended));
                built.end_us = micros(stopped);
                built.has_more = node.children_truncated;
            }
            open.extend(node.children.iter().rev().map(|child| (Some(index), child)));
        }
        tree
    }

    /// Returns the root: the run that was first heard of.
    pub fn root(&self) -> Option<&Node> {
        self.nodes.first()
    }

    /// Returns a run by its place.
    pub fn node(&self, index: Index) -> Option<&Node> {
        self.nodes.get(index)
    }

    /// Returns what a run and all below it have spent.
    pub fn subtree(&self, index: Index) -> Spent {
        let mut sum = Spent::default();
        let mut open = vec![index];
        while let Some(index) = open.pop() {
            let Some(node) = self.nodes.get(index) else { continue };
            match node.subtree {
                Some(told) => sum = sum.plus(told),
                None => {
                    sum = sum.plus(node.own);
                    open.extend(&node.children);
                }
            }
        }
        sum
    }

    /// Takes in an event.
    pub fn apply(&mut self, event: &Event) {
        let parent = self.by_id.get(&event.parent_run_id).copied();
        let index = self.by_id.get(&event.run_id).copied().unwrap_or_else(|| self.insert(&event.run_id, parent));
        let now_us = micros(event.time.as_ref());
        let Some(node) = self.nodes.get_mut(index) else { return };
        let Some(payload) = &event.payload else { return };
        match payload {
            Payload::RunCreated(created) => {
                if let Some(run) = &created.run {
                    node.describe(run);
                }
                node.state = RunState::Pending;
            }
            Payload::RunStarted(_) => {
                node.state = RunState::Running;
                node.start_us = now_us;
            }
            Payload::TurnStarted(turn) => {
                node.state = if node.state == RunState::Cancelling { node.state } else { RunState::Running };
                let trouble = node.asking.take().map(|asking| asking.trouble).filter(|_| turn.attempt > 1).unwrap_or_default();
                node.asking = Some(Asking { turn: turn.turn, attempt: turn.attempt, since_us: now_us, trouble });
            }
            Payload::TurnEnded(turn) => node.turn_ended(turn),
            Payload::TurnAborted(turn) => node.turn_aborted(turn),
            Payload::CallStarted(call) => node.call_started(call, now_us),
            Payload::CallEnded(call) => node.calls.retain(|open| open.call_id != call.call_id),
            Payload::CallInDoubt(call) => node.calls.retain(|open| open.call_id != call.call_id),
            Payload::LimitsChanged(changed) => node.limits = changed.limits.unwrap_or(node.limits),
            Payload::RunSuspended(stop) => {
                node.own.cost_usd_nanos = node.own.cost_usd_nanos.max(stop.cost_usd_nanos);
                node.stop(RunState::Suspended, stop.outcome(), stop.failure.as_ref(), now_us);
            }
            Payload::RunResumed(_) => {
                node.stop(RunState::Running, Outcome::Unspecified, None, 0);
            }
            Payload::CancelRequested(_) => node.state = RunState::Cancelling,
            Payload::RunEnded(stop) => {
                node.own.cost_usd_nanos = node.own.cost_usd_nanos.max(stop.cost_usd_nanos);
                node.own.turns = node.own.turns.max(stop.turn_count.into());
                node.stop(RunState::Ended, stop.outcome(), stop.failure.as_ref(), now_us);
            }
            Payload::ToolProgress(progress) => node.progress(progress),
            Payload::ChildStarted(_)
            | Payload::ChildEnded(_)
            | Payload::MessageReceived(_)
            | Payload::ModelChanged(_)
            | Payload::ContextCompacted(_)
            | Payload::TextDelta(_) => {}
        }
    }

    fn insert(&mut self, run_id: &str, parent: Option<Index>) -> Index {
        let index = self.nodes.len();
        self.nodes.push(Node { run_id: run_id.to_owned(), own: Spent { runs: 1, ..Spent::default() }, ..Node::default() });
        self.by_id.insert(run_id.to_owned(), index);
        if let Some(parent) = parent.and_then(|parent| self.nodes.get_mut(parent)) {
            parent.children.push(index);
        }
        index
    }
}
