//! The spans of one tree, built from its journal in tree order: a workflow segment over agent runs over turns over model
//! calls and tools, a child's run under the tool call that it answers.
//!
//! A segment is one uninterrupted time of a run between its start or resume and its suspension, end or crash. Every open
//! span ends with its segment, and what the run was still waiting for is open again in the next one. A crash is a crash
//! of the whole daemon: with the first run of a tree that is taken up after it, every open span of the tree is closed
//! at the last fact of the dead daemon ("healed"), and every segment that was cut goes on.

mod call;
mod run;
mod turn;

use std::collections::HashMap;
use std::sync::Arc;

use self::run::RunSpans;
use super::attributes::{close, set_outcome};
use super::ids;
use super::names as n;
use super::span::{Attribute, Kind, Link, Span};
use crate::kernel::event::{Cause, Event, Recorded, RunCreated};
use crate::kernel::ledger::Totals;
use crate::kernel::{Outcome, RunId};

/// A resume later than this begins a new trace.
const SAME_TRACE_WITHIN_US: i64 = 15 * 60 * 1_000_000;

/// Builds the spans of one tree.
#[derive(Default)]
pub struct TreeSpans {
    /// Boxed: most trees have one run, and a table has room for four.
    runs: HashMap<RunId, Box<RunSpans>>,
    root: Option<RunId>,
    trace_id: String,
    trace_group: u32,
    totals: Totals,
    runs_created: i64,
    model_calls: i64,
    /// The workflow span of the root's present segment.
    workflow: Option<Span>,
    /// Where the last segment of the root was, for a link from a new trace.
    previous: Option<Link>,
    /// When the root's last segment ended; `None` before the first one, and while one is open.
    stopped_us: Option<i64>,
    /// When the newest fact of the tree was written.
    last_us: i64,
    /// No fact is taken as older than this.
    floor_us: i64,
}

/// Why a segment began, as its spans say it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Began {
    Submitted,
    Crash,
    User,
    Drained,
    /// Nobody resumed it: a suspended run that is taken up to be ended.
    Cancelled,
}

impl Began {
    fn name(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Crash => "resumed_crash",
            Self::User => "resumed_user",
            Self::Drained => "resumed_drained",
            Self::Cancelled => "cancelled",
        }
    }
}

impl From<Cause> for Began {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Crash => Self::Crash,
            Cause::User => Self::User,
            Cause::Drained => Self::Drained,
        }
    }
}

impl TreeSpans {
    /// Returns a builder that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Builds the spans of a whole journal, but for the submission's, which belongs to the submitter. What is still open
    /// ends at `now_us` and says so.
    pub fn replay<'a>(journal: impl IntoIterator<Item = &'a Recorded>, now_us: i64) -> Vec<Span> {
        let mut tree = Self::new();
        let mut spans: Vec<Span> =
            journal.into_iter().flat_map(|recorded| tree.on(recorded)).filter(|span| span.kind != Kind::Server).collect();
        let now_us = now_us.max(tree.last_us);
        for run in tree.parents_first() {
            for mut span in tree.close_segment(&run, now_us, None) {
                span.set(n::WREN_UNFINISHED, Attribute::Bool(true));
                spans.push(span);
            }
        }
        spans.sort_by_key(|span| span.start_us);
        spans
    }

    /// Takes in the next fact and returns the spans that it finishes.
    pub fn on(&mut self, recorded: &Recorded) -> Vec<Span> {
        // Runs write beside each other, so a later fact of another run may be a little older. A clock that was set back
        // while no daemon ran is another matter: what follows stays behind what was.
        if matches!(recorded.event, Event::RunResumed { .. }) && recorded.time_us < self.last_us {
            self.floor_us = self.last_us;
        }
        let (id, now_us) = (&recorded.run, recorded.time_us.max(self.floor_us));
        if let Event::RunCreated(created) = &recorded.event {
            self.create(id, created);
            self.last_us = self.last_us.max(now_us);
            let is_submitted = created.parent.is_none() && created.sampled;
            return is_submitted.then(|| submission(id, created, now_us)).into_iter().collect();
        }
        let Some(run) = self.runs.get_mut(id).filter(|run| run.created.sampled) else { return Vec::new() };
        run.totals.add(&recorded.event, run.open);
        self.totals.add(&recorded.event, run.open);
        let totals = self.totals;
        let spans = match &recorded.event {
            Event::RunStarted {} => {
                self.open_segment(id, now_us, Began::Submitted);
                Vec::new()
            }
            Event::RunResumed { cause, .. } => self.resume(id, (*cause).into(), now_us),
            Event::TurnStarted(turn) => {
                self.model_calls += 1;
                run.start_turn(turn, now_us);
                Vec::new()
            }
            Event::TurnEnded(turn) => run.end_turn(turn, now_us, &totals),
            Event::TurnAborted(turn) => run.abort_turn(turn, now_us, &totals),
            Event::CallStarted(call) => {
                run.start_call(call, now_us);
                Vec::new()
            }
            Event::ChildStarted { call_id, child, .. } => {
                run.start_child(call_id, child);
                Vec::new()
            }
            Event::ChildEnded(child) => {
                run.end_child(child);
                Vec::new()
            }
            Event::CallEnded(call) => run.end_call(call, now_us, &totals),
            Event::ModelChanged(changed) => run.change_model(changed, now_us, &totals),
            Event::ContextCompacted(compacted) => {
                run.compact(compacted, now_us);
                Vec::new()
            }
            Event::RunSuspended { outcome, .. } => self.stop(id, now_us, *outcome),
            Event::RunEnded(ended) => self.stop(id, now_us, ended.outcome),
            Event::CancelRequested { reason, .. } => {
                run.opened_for_child = false;
                self.open_segment(id, now_us, Began::Cancelled);
                self.note_cancel(id, reason);
                Vec::new()
            }
            Event::RunCreated(_) | Event::CallInDoubt { .. } | Event::MessageReceived { .. } | Event::LimitsChanged { .. } => Vec::new(),
        };
        self.last_us = self.last_us.max(now_us);
        spans
    }

    fn create(&mut self, id: &RunId, created: &Arc<RunCreated>) {
        if created.parent.is_none() {
            self.root = Some(id.clone());
            self.trace_id.clone_from(&created.trace_id);
        }
        self.runs_created += 1;
        self.runs.insert(id.clone(), Box::new(RunSpans::new(id.clone(), created.clone())));
    }

    fn note_cancel(&mut self, id: &RunId, reason: &str) {
        if !reason.is_empty()
            && let Some(agent) = self.runs.get_mut(id).and_then(|run| run.agent.as_mut())
        {
            agent.set_text(n::WREN_CANCEL_REASON, reason);
        }
    }

    /// Opens a run's next segment unless one is open, and before it those of the runs above, which may be taken up later
    /// in the journal than their children.
    fn open_segment(&mut self, id: &RunId, now_us: i64, began: Began) {
        let Some(run) = self.runs.get(id) else { return };
        if run.agent.is_some() {
            return;
        }
        let created = run.created.clone();
        let parent = match &created.parent {
            None => {
                let segment = run.segment + 1;
                Some(self.open_workflow(id, &created, segment, now_us, began))
            }
            Some(parent) => {
                self.open_segment_for_child(&parent.run, now_us, began);
                self.runs.get(&parent.run).and_then(|above| above.span_above_child(&parent.call_id))
            }
        };
        if let Some(run) = self.runs.get_mut(id) {
            run.open_segment(&self.trace_id, parent, began.name(), now_us);
        }
    }

    fn open_segment_for_child(&mut self, id: &RunId, now_us: i64, began: Began) {
        let was_open = self.runs.get(id).is_some_and(|run| run.is_open());
        self.open_segment(id, now_us, began);
        if let Some(run) = self.runs.get_mut(id) {
            run.opened_for_child |= !was_open;
        }
    }

    /// Opens the workflow's span over the root's segment and returns its id. After a long pause it begins a new trace.
    fn open_workflow(&mut self, id: &RunId, created: &RunCreated, segment: u32, now_us: i64, began: Began) -> String {
        if self.stopped_us.take().is_some_and(|stopped_us| now_us - stopped_us > SAME_TRACE_WITHIN_US) {
            self.trace_group += 1;
            self.trace_id = ids::trace_id(id, self.trace_group);
        }
        let parent = (self.trace_group == 0).then(|| created.parent_span.clone()).flatten();
        let span_id = ids::span_id(id, segment, "workflow", 0, "", 0);
        let name = format!("invoke_workflow {}", created.workflow);
        let mut workflow = Span::open(self.trace_id.clone(), span_id.clone(), parent, name, Kind::Internal, now_us);
        run::set_place(&mut workflow, id, &created.root);
        workflow.set_text(n::OPERATION_NAME, "invoke_workflow");
        workflow.set_text(n::AGENT_NAME, created.workflow.as_str());
        workflow.set_text(n::WORKFLOW_NAME, created.workflow.as_str());
        workflow.set_text(n::WREN_WORKFLOW_VERSION, created.workflow_digest.as_str());
        run::set_segment(&mut workflow, segment, began.name());
        workflow.set_usd(n::WREN_TREE_BUDGET_USD, created.limits.budget_usd_nanos);
        workflow.set_int(n::WREN_TREE_BUDGET_TOKENS, created.limits.max_tokens);
        if began == Began::Submitted && created.parent_span.is_none() {
            let (trace_id, span_id) = ids::submission(id);
            workflow.links.push(Link { trace_id, span_id });
        }
        if let Some(previous) = self.previous.take() {
            workflow.set_text(n::WREN_SEGMENT_PREVIOUS_TRACE_ID, previous.trace_id.as_str());
            // A link within the trace would be taken for the parent by viewers.
            if previous.trace_id != self.trace_id {
                workflow.links.push(previous);
            }
        }
        self.workflow = Some(workflow);
        span_id
    }

    fn resume(&mut self, id: &RunId, began: Began, now_us: i64) -> Vec<Span> {
        let Some(run) = self.runs.get_mut(id) else { return Vec::new() };
        run.opened_for_child = false;
        if std::mem::take(&mut run.opened_early) {
            // Its segment was opened when another run of the tree was taken up.
            return Vec::new();
        }
        if began != Began::Crash {
            self.open_segment(id, now_us, began);
            return Vec::new();
        }
        let cut: Vec<RunId> = self.parents_first().into_iter().filter(|run| self.runs.get(run).is_some_and(|run| run.is_open())).collect();
        let spans = self.heal(&cut);
        for run in &cut {
            self.open_segment(run, now_us, began);
            if run != id
                && let Some(run) = self.runs.get_mut(run)
            {
                run.opened_early = true;
            }
        }
        self.open_segment(id, now_us, began);
        spans
    }

    /// Closes what a dead daemon had open, at the last fact that it wrote. A model call waits for the fact that says what
    /// it may have cost.
    fn heal(&mut self, cut: &[RunId]) -> Vec<Span> {
        let died_us = self.last_us;
        let mut spans = Vec::new();
        // Children first, as they would have ended.
        for id in cut.iter().rev() {
            let lost = self.runs.get_mut(id).and_then(|run| run.take_lost_chat(died_us));
            spans.append(&mut self.close_segment(id, died_us, None));
            if let Some(run) = self.runs.get_mut(id) {
                run.lost_chat = lost;
            }
        }
        for span in spans.iter_mut().filter(|span| span.error.is_none()) {
            span.fail("the daemon died", "interrupted");
        }
        spans
    }

    fn parents_first(&self) -> Vec<RunId> {
        let mut runs: Vec<(u32, &RunId)> = self.runs.iter().map(|(id, run)| (run.created.depth, id)).collect();
        runs.sort_unstable();
        runs.into_iter().map(|(_, id)| id.clone()).collect()
    }

    /// Ends a run's segment, and those above it that were opened for its sake alone: the runs above may stay suspended
    /// for days.
    fn stop(&mut self, id: &RunId, now_us: i64, outcome: Outcome) -> Vec<Span> {
        let mut spans = self.close_segment(id, now_us, Some(outcome));
        let mut above = self.parent_of(id);
        while let Some(parent) = above {
            let is_needed =
                self.runs.values().any(|run| run.is_open() && run.created.parent.as_ref().is_some_and(|above| above.run == parent));
            if is_needed || !self.runs.get(&parent).is_some_and(|run| run.opened_for_child) {
                break;
            }
            spans.append(&mut self.close_segment(&parent, now_us, None));
            above = self.parent_of(&parent);
        }
        spans
    }

    fn parent_of(&self, id: &RunId) -> Option<RunId> {
        Some(self.runs.get(id)?.created.parent.as_ref()?.run.clone())
    }

    /// Ends every open span of a run's segment, the innermost first.
    fn close_segment(&mut self, id: &RunId, now_us: i64, outcome: Option<Outcome>) -> Vec<Span> {
        let totals = self.totals;
        let Some(run) = self.runs.get_mut(id) else { return Vec::new() };
        run.opened_early = false;
        run.opened_for_child = false;
        let mut spans = run.close_segment(now_us, outcome, &totals);
        let own = run.totals;
        if self.root.as_ref() == Some(id)
            && let Some(mut workflow) = self.workflow.take()
        {
            workflow.end_us = now_us.max(workflow.start_us);
            workflow.set_int(n::WREN_TREE_RUNS, self.runs_created);
            workflow.set_int(n::WREN_TREE_TURNS, totals.turns);
            workflow.set_int(n::WREN_TREE_LLM_CALLS, self.model_calls);
            workflow.set_int(n::WREN_TREE_TOOL_CALLS, totals.calls);
            workflow.set_int(n::WREN_TREE_INPUT_TOKENS, totals.usage.input_tokens);
            workflow.set_int(n::WREN_TREE_OUTPUT_TOKENS, totals.usage.output_tokens);
            workflow.set_int(n::WREN_TREE_CACHE_READ_TOKENS, totals.usage.cache_read_tokens);
            workflow.set_int(n::WREN_TREE_CACHE_WRITE_TOKENS, totals.usage.cache_write_tokens);
            workflow.set_int(n::WREN_TREE_REASONING_TOKENS, totals.usage.reasoning_tokens);
            set_outcome(&mut workflow, outcome);
            close(&mut workflow, 0, &own, &totals);
            self.previous = Some(Link { trace_id: workflow.trace_id.clone(), span_id: workflow.span_id.clone() });
            self.stopped_us = Some(workflow.end_us);
            spans.push(workflow);
        }
        spans
    }
}

/// Returns the span of the call that submitted a tree. It is no parent of the tree, which lives long after it: it stands
/// beside it in the submitter's trace, or in a short one of its own that is linked both ways.
fn submission(id: &RunId, created: &RunCreated, now_us: i64) -> Span {
    const METHOD: &str = "wren.v1.RunService/SubmitRun";
    let (own_trace_id, span_id) = ids::submission(id);
    let is_guest = created.parent_span.is_some();
    let trace_id = if is_guest { created.trace_id.clone() } else { own_trace_id };
    let start_us = created.received_us.min(now_us);
    let mut span = Span::open(trace_id, span_id, created.parent_span.clone(), METHOD.to_owned(), Kind::Server, start_us);
    span.end_us = now_us;
    run::set_place(&mut span, id, &created.root);
    span.set_text(n::RPC_SYSTEM, "grpc");
    span.set_text(n::RPC_METHOD, METHOD);
    span.set_text(n::RPC_STATUS, "OK");
    if !is_guest {
        span.links.push(Link { trace_id: created.trace_id.clone(), span_id: ids::span_id(id, 1, "workflow", 0, "", 0) });
    }
    span
}
