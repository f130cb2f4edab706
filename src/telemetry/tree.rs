//! The spans of one tree, built from its journal in tree order: a workflow segment over agent runs over turns over model
//! calls and tools, a child's run under the tool call that it answers.
//!
//! A segment is one uninterrupted time of a run between its start or resume and its suspension, end or crash. Every open
//! span ends with its segment; after a crash they are closed at the last fact of the dead daemon ("healed").

use std::collections::HashMap;
use std::sync::Arc;

use super::attributes::{close, set_chat_cost, set_outcome, set_usage, set_wren_usage};
use super::ids;
use super::names as n;
use super::span::{Attribute, Kind, Link, Span, SpanEvent};
use crate::kernel::event::{
    Abort, CallEnded, CallFailure, CallStarted, Cause, ChildEnded, Event, Recorded, RunCreated, TurnAborted, TurnEnded, TurnStarted,
};
use crate::kernel::ledger::Totals;
use crate::kernel::{CallId, Effect, Outcome, Reservation, RunId};

/// A resume later than this begins a new trace.
const SAME_TRACE_WITHIN_US: i64 = 15 * 60 * 1_000_000;

/// Builds the spans of one tree.
#[derive(Default)]
pub struct TreeSpans {
    runs: HashMap<RunId, RunSpans>,
    root: Option<RunId>,
    trace_id: String,
    trace_group: u32,
    tree: Totals,
    tree_runs: i64,
    /// The workflow span of the root's present segment.
    workflow: Option<Span>,
    /// Where the last segment of the root was, for a link from a new trace.
    previous: Option<Link>,
    suspended_at_us: Option<i64>,
}

struct RunSpans {
    created: Arc<RunCreated>,
    segment: u32,
    cause: &'static str,
    agent: Option<Span>,
    turn: Option<Span>,
    turn_index: u32,
    retries: Vec<SpanEvent>,
    chat: Option<Span>,
    calls: HashMap<CallId, OpenCall>,
    /// Calls of the present turn that have no result yet.
    calls_due: usize,
    /// A model call that a crash cut: closed by the fact that writes it off.
    lost_chat: Option<Span>,
    open: Reservation,
    totals: Totals,
    /// What the reply of the open turn cost.
    turn_cost_usd_nanos: i64,
    last_us: i64,
    finish_reasons: Vec<String>,
}

struct OpenCall {
    span: Span,
    started: bool,
}

impl TreeSpans {
    /// Returns a builder that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Builds the spans of a whole journal. What is still open ends at `now_us` and says so.
    pub fn replay<'a>(journal: impl IntoIterator<Item = &'a Recorded>, now_us: i64) -> Vec<Span> {
        let mut tree = Self::new();
        let mut spans: Vec<Span> = journal.into_iter().flat_map(|recorded| tree.on(recorded)).collect();
        let runs: Vec<RunId> = tree.runs.keys().cloned().collect();
        for run in runs {
            for mut span in tree.close_segment(&run, now_us, None) {
                span.set(n::WREN_UNFINISHED, Attribute::Bool(true));
                spans.push(span);
            }
        }
        spans.sort_by(|left, right| (left.start_us, &left.span_id).cmp(&(right.start_us, &right.span_id)));
        spans
    }

    /// Takes in the next fact and returns the spans that it finishes.
    pub fn on(&mut self, recorded: &Recorded) -> Vec<Span> {
        if let Event::RunCreated(created) = &recorded.event {
            self.create(&recorded.run, created);
            return Vec::new();
        }
        let Some(run) = self.runs.get_mut(&recorded.run) else { return Vec::new() };
        if !run.created.sampled {
            return Vec::new();
        }
        run.totals.add(&recorded.event, run.open);
        self.tree.add(&recorded.event, run.open);
        let last_us = std::mem::replace(&mut run.last_us, recorded.time_us);
        match &recorded.event {
            Event::RunStarted {} => {
                self.open_segment(&recorded.run, recorded.time_us, "submitted");
                Vec::new()
            }
            Event::RunResumed { cause, .. } => self.resume(&recorded.run, *cause, recorded.time_us, last_us),
            Event::TurnStarted(turn) => {
                self.start_turn(&recorded.run, turn, recorded.time_us);
                Vec::new()
            }
            Event::TurnEnded(turn) => self.end_turn(&recorded.run, turn, recorded.time_us),
            Event::TurnAborted(turn) => self.abort_turn(&recorded.run, turn, recorded.time_us),
            Event::CallStarted(call) => {
                self.start_call(&recorded.run, call, recorded.time_us);
                Vec::new()
            }
            Event::ChildStarted { call_id, child, .. } => {
                if let Some(call) = run.calls.get_mut(call_id) {
                    call.span.set_text(n::WREN_CHILD_RUN_ID, child.as_str());
                }
                Vec::new()
            }
            Event::ChildEnded(child) => {
                self.end_child(&recorded.run, child);
                Vec::new()
            }
            Event::CallEnded(call) => self.end_call(&recorded.run, call, recorded.time_us),
            Event::RunSuspended { outcome, .. } => {
                if self.root.as_ref() == Some(&recorded.run) {
                    self.suspended_at_us = Some(recorded.time_us);
                }
                self.close_segment(&recorded.run, recorded.time_us, Some(*outcome))
            }
            Event::RunEnded(ended) => self.close_segment(&recorded.run, recorded.time_us, Some(ended.outcome)),
            Event::CancelRequested { reason, .. } => {
                if let Some(agent) = &mut run.agent
                    && !reason.is_empty()
                {
                    agent.set_text(n::WREN_CANCEL_REASON, reason.as_str());
                }
                Vec::new()
            }
            Event::RunCreated(_) | Event::CallInDoubt { .. } | Event::MessageReceived { .. } | Event::LimitsChanged { .. } => Vec::new(),
        }
    }

    fn create(&mut self, id: &RunId, created: &Arc<RunCreated>) {
        if created.parent.is_none() {
            self.root = Some(id.clone());
            self.trace_id.clone_from(&created.trace_id);
        }
        self.tree_runs += 1;
        let run = RunSpans {
            created: created.clone(),
            segment: 0,
            cause: "submitted",
            agent: None,
            turn: None,
            turn_index: 0,
            retries: Vec::new(),
            chat: None,
            calls: HashMap::new(),
            calls_due: 0,
            lost_chat: None,
            open: Reservation::default(),
            totals: Totals::default(),
            turn_cost_usd_nanos: 0,
            last_us: 0,
            finish_reasons: Vec::new(),
        };
        self.runs.insert(id.clone(), run);
    }

    /// Returns the span that a run's own hangs under, in the tree's present trace.
    fn parent_span(&self, run: &RunSpans) -> Option<String> {
        match &run.created.parent {
            None => self.workflow.as_ref().map(|workflow| workflow.span_id.clone()),
            Some(parent) => {
                let above = self.runs.get(&parent.run)?;
                let open = above.calls.get(&parent.call_id).map(|call| call.span.span_id.clone());
                open.or_else(|| above.agent.as_ref().map(|agent| agent.span_id.clone()))
            }
        }
    }

    fn base(&self, run: &RunId, span_id: String, parent: Option<String>, name: String, kind: Kind, start_us: i64) -> Span {
        let root = self.root.as_ref().map_or("", RunId::as_str);
        let mut span = Span {
            trace_id: self.trace_id.clone(),
            span_id,
            parent_span_id: parent,
            name,
            kind,
            start_us,
            end_us: start_us,
            attributes: Vec::with_capacity(24),
            events: Vec::new(),
            links: Vec::new(),
            error: None,
        };
        span.set_text(n::WREN_RUN_ID, run.as_str());
        span.set_text(n::WREN_RUN_ROOT_ID, root);
        span.set_text(n::CONVERSATION_ID, root);
        span
    }

    fn open_segment(&mut self, id: &RunId, now_us: i64, cause: &'static str) {
        let Some(run) = self.runs.get_mut(id) else { return };
        run.segment += 1;
        run.cause = cause;
        let (segment, created) = (run.segment, run.created.clone());
        if created.parent.is_none() {
            let parent = (self.trace_group == 0).then(|| created.parent_span.clone()).flatten();
            let mut workflow = self.base(
                id,
                ids::span_id(id, segment, "workflow", 0, "", 0),
                parent,
                format!("invoke_workflow {}", created.workflow),
                Kind::Internal,
                now_us,
            );
            workflow.set_text(n::OPERATION_NAME, "invoke_workflow");
            workflow.set_text(n::AGENT_NAME, created.workflow.as_str());
            workflow.set_text(n::WORKFLOW_NAME, created.workflow.as_str());
            workflow.set_text(n::WREN_WORKFLOW_VERSION, created.workflow_digest.as_str());
            workflow.set_int(n::WREN_SEGMENT_INDEX, segment);
            workflow.set_text(n::WREN_SEGMENT_CAUSE, cause);
            workflow.set_usd(n::WREN_TREE_BUDGET_USD, created.limits.budget_usd_nanos);
            workflow.set_int(n::WREN_TREE_BUDGET_TOKENS, created.limits.max_tokens);
            if let Some(previous) = self.previous.take() {
                workflow.set_text(n::WREN_SEGMENT_PREVIOUS_TRACE_ID, previous.trace_id.as_str());
                // A link within the trace would be taken for the parent by viewers.
                if previous.trace_id != self.trace_id {
                    workflow.links.push(previous);
                }
            }
            self.workflow = Some(workflow);
        }
        let Some(run) = self.runs.get(id) else { return };
        let parent = self.parent_span(run);
        let agent = &created.agent;
        let mut span = self.base(
            id,
            ids::span_id(id, segment, "agent", 0, "", 0),
            parent,
            format!("invoke_agent {}", agent.name),
            Kind::Internal,
            now_us,
        );
        span.set_text(n::OPERATION_NAME, "invoke_agent");
        span.set_text(n::AGENT_NAME, agent.name.as_str());
        if !agent.description.is_empty() {
            span.set_text(n::AGENT_DESCRIPTION, agent.description.as_str());
        }
        span.set_text(n::REQUEST_MODEL, agent.model.model.as_str());
        span.set_int(n::WREN_RUN_DEPTH, created.depth);
        if let Some(parent) = &created.parent {
            span.set_text(n::WREN_RUN_PARENT_ID, parent.run.as_str());
            span.set_text(n::WREN_PARENT_TOOL_CALL_ID, parent.call_id.as_str());
        }
        span.set_int(n::WREN_SEGMENT_INDEX, segment);
        span.set_text(n::WREN_SEGMENT_CAUSE, cause);
        span.set_usd(n::WREN_BUDGET_USD, created.limits.budget_usd_nanos);
        span.set_int(n::WREN_BUDGET_TOKENS, created.limits.max_tokens);
        span.set_int(n::WREN_BUDGET_TURNS, created.limits.max_turns);
        if let Some(run) = self.runs.get_mut(id) {
            run.agent = Some(span);
        }
    }

    fn resume(&mut self, id: &RunId, cause: Cause, now_us: i64, last_us: i64) -> Vec<Span> {
        let mut spans = Vec::new();
        let cause = match cause {
            Cause::Crash => {
                spans = self.heal(id, last_us);
                "resumed_crash"
            }
            Cause::User => "resumed_user",
            Cause::Drained => "resumed_drained",
        };
        if self.root.as_ref() == Some(id) {
            let stopped_us = self.suspended_at_us.take().unwrap_or(last_us);
            if now_us - stopped_us > SAME_TRACE_WITHIN_US {
                self.trace_group += 1;
                self.trace_id = ids::trace_id(id, self.trace_group);
            }
        }
        self.open_segment(id, now_us, cause);
        spans
    }

    /// Closes what a dead daemon had open, at the last fact that it wrote. The model call waits for the fact that says
    /// what it may have cost.
    fn heal(&mut self, id: &RunId, last_us: i64) -> Vec<Span> {
        if let Some(run) = self.runs.get_mut(id) {
            run.lost_chat = run.chat.take();
        }
        let mut spans = self.close_segment(id, last_us, None);
        for span in &mut spans {
            span.error = Some("the daemon died".to_owned());
            span.set_text(n::ERROR_TYPE, "interrupted");
        }
        spans
    }

    fn start_turn(&mut self, id: &RunId, turn: &TurnStarted, now_us: i64) {
        let Some(run) = self.runs.get_mut(id) else { return };
        run.open = turn.reservation;
        let (segment, created) = (run.segment, run.created.clone());
        let agent_span = run.agent.as_ref().map(|agent| agent.span_id.clone());
        if run.turn.is_none() {
            run.turn_index = turn.turn;
            let mut span = self.base(
                id,
                ids::span_id(id, segment, "turn", turn.turn, "", 0),
                agent_span,
                format!("turn {}", turn.turn),
                Kind::Internal,
                now_us,
            );
            span.set_int(n::WREN_TURN_INDEX, turn.turn);
            if let Some(run) = self.runs.get_mut(id) {
                run.turn = Some(span);
            }
        }
        let Some(run) = self.runs.get(id) else { return };
        let parent = run.turn.as_ref().map(|span| span.span_id.clone());
        let model = &created.agent.model;
        let mut chat = self.base(
            id,
            ids::span_id(id, segment, "chat", turn.turn, "", turn.attempt),
            parent,
            format!("chat {}", model.model),
            Kind::Client,
            now_us,
        );
        chat.set_text(n::OPERATION_NAME, "chat");
        chat.set_text(n::PROVIDER_NAME, model.provider.as_str());
        chat.set_text(n::REQUEST_MODEL, model.model.as_str());
        chat.set_text(n::AGENT_NAME, created.agent.name.as_str());
        chat.set(n::REQUEST_STREAM, Attribute::Bool(true));
        chat.set_int(n::REQUEST_MAX_TOKENS, turn.max_output);
        if let Some(temperature) = model.temperature {
            chat.set(n::REQUEST_TEMPERATURE, Attribute::Float(temperature));
        }
        if let Some(top_p) = model.top_p {
            chat.set(n::REQUEST_TOP_P, Attribute::Float(top_p));
        }
        if let Some(run) = self.runs.get_mut(id) {
            if let Some(span) = &mut run.turn {
                span.set_int(n::WREN_TURN_ATTEMPT, turn.attempt);
            }
            run.chat = Some(chat);
        }
    }

    fn end_turn(&mut self, id: &RunId, turn: &TurnEnded, now_us: i64) -> Vec<Span> {
        let tree = self.tree;
        let Some(run) = self.runs.get_mut(id) else { return Vec::new() };
        run.open = Reservation::default();
        run.finish_reasons.push(turn.stop.name().to_owned());
        run.calls_due = turn.message.calls.len();
        run.turn_cost_usd_nanos = turn.cost_usd_nanos;
        let mut spans = Vec::new();
        if let Some(mut chat) = run.chat.take() {
            chat.end_us = now_us;
            set_usage(&mut chat, &turn.usage);
            set_chat_cost(&mut chat, turn.cost_usd_nanos, turn.cost_unknown);
            chat.set_text(n::WREN_PRICE_TABLE_VERSION, turn.price_version.as_str());
            if let Some(id) = &turn.response_id {
                chat.set_text(n::RESPONSE_ID, id.as_str());
            }
            if let Some(model) = &turn.response_model {
                chat.set_text(n::RESPONSE_MODEL, model.as_str());
            }
            let reason = turn.stop_raw.clone().unwrap_or_else(|| turn.stop.name().to_owned());
            chat.set(n::RESPONSE_FINISH_REASONS, Attribute::Texts(vec![reason]));
            if let Some(first_us) = turn.first_chunk_us {
                #[expect(clippy::cast_precision_loss, reason = "a time to show")]
                chat.set(n::RESPONSE_TIME_TO_FIRST_CHUNK, Attribute::Float(first_us as f64 / 1e6));
            }
            if turn.estimated {
                chat.set(n::WREN_USAGE_ESTIMATED, Attribute::Bool(true));
            }
            chat.set_int(n::WREN_LLM_ATTEMPTS, turn.attempt);
            chat.events.append(&mut run.retries);
            close(&mut chat, turn.cost_usd_nanos, &run.totals, &tree);
            spans.push(chat);
        }
        if let Some(span) = &mut run.turn {
            set_wren_usage(span, &turn.usage);
            span.set_int(n::WREN_CONTEXT_TOKENS, turn.usage.input_tokens);
            span.set_int(n::WREN_TURN_TOOL_CALLS, i64::try_from(turn.message.calls.len()).unwrap_or(i64::MAX));
            span.set_text(n::WREN_TURN_OUTCOME, if turn.message.calls.is_empty() { "final" } else { "tool_calls" });
        }
        if turn.message.calls.is_empty() {
            spans.extend(self.close_turn(id, now_us));
        }
        spans
    }

    fn abort_turn(&mut self, id: &RunId, turn: &TurnAborted, now_us: i64) -> Vec<Span> {
        let tree = self.tree;
        let Some(run) = self.runs.get_mut(id) else { return Vec::new() };
        run.open = Reservation::default();
        let lost = turn.reason == Abort::Crash;
        let chat = if lost { run.lost_chat.take().or_else(|| run.chat.take()) } else { run.chat.take() };
        let mut spans = Vec::new();
        if let Some(mut chat) = chat {
            if !lost {
                chat.end_us = now_us;
            }
            if let Some(usage) = &turn.usage {
                set_usage(&mut chat, usage);
            }
            if turn.estimated {
                chat.set(n::WREN_USAGE_ESTIMATED, Attribute::Bool(true));
            }
            if lost {
                // What may have been charged is no cost that a backend should add up; it stands apart.
                chat.set_int(n::WREN_COST_WRITTEN_OFF_USD_NANOS, turn.written_off.usd_nanos);
                chat.set_int(n::WREN_COST_USD_NANOS, turn.cost_usd_nanos);
            } else {
                set_chat_cost(&mut chat, turn.cost_usd_nanos, false);
            }
            chat.set(n::RESPONSE_FINISH_REASONS, Attribute::Texts(vec!["error".to_owned()]));
            chat.set_int(n::WREN_LLM_ATTEMPTS, turn.attempt);
            match turn.reason {
                Abort::Cancelled => chat.set_text(n::WREN_OUTCOME, "cancelled"),
                Abort::Crash => {
                    chat.error = Some("the daemon died".to_owned());
                    chat.set_text(n::ERROR_TYPE, "interrupted");
                }
                _ => {
                    chat.error = Some(turn.message.clone());
                    let kind = turn.http_status.map_or_else(|| turn.reason.name().to_owned(), |status| status.to_string());
                    chat.set_text(n::ERROR_TYPE, kind);
                }
            }
            let own = turn.cost_usd_nanos.saturating_add(turn.written_off.usd_nanos);
            close(&mut chat, own, &run.totals, &tree);
            spans.push(chat);
        }
        if turn.reason.is_provider_error() {
            let mut attributes = vec![
                (n::WREN_LLM_ATTEMPT, Attribute::Int(turn.attempt.into())),
                (n::ERROR_TYPE, Attribute::Text(turn.reason.name().to_owned())),
            ];
            if let Some(status) = turn.http_status {
                attributes.push((n::HTTP_STATUS, Attribute::Int(status.into())));
            }
            run.retries.push(SpanEvent { name: n::EVENT_LLM_RETRY, time_us: now_us, attributes });
        }
        spans
    }

    fn start_call(&mut self, id: &RunId, call: &CallStarted, now_us: i64) {
        let Some(run) = self.runs.get_mut(id) else { return };
        if run.turn.is_none() {
            // A call that is taken up after a crash, in a segment that has no turn of its own yet.
            let turn_index = run.turn_index;
            let (segment, agent) = (run.segment, run.agent.as_ref().map(|agent| agent.span_id.clone()));
            let mut span = self.base(
                id,
                ids::span_id(id, segment, "turn", turn_index, "", 0),
                agent,
                format!("turn {turn_index}"),
                Kind::Internal,
                now_us,
            );
            span.set_int(n::WREN_TURN_INDEX, turn_index);
            if let Some(run) = self.runs.get_mut(id) {
                run.turn = Some(span);
            }
        }
        let Some(run) = self.runs.get(id) else { return };
        let mut span = self.call_span(id, run, &call.call_id, &call.tool, call.attempt, now_us);
        span.set(n::WREN_TOOL_READ_ONLY, Attribute::Bool(call.effect == Effect::ReadOnly));
        span.set_int(n::WREN_TOOL_ATTEMPT, call.attempt);
        if let Some(run) = self.runs.get_mut(id) {
            run.calls.insert(call.call_id.clone(), OpenCall { span, started: true });
        }
    }

    fn call_span(&self, id: &RunId, run: &RunSpans, call_id: &CallId, tool: &str, attempt: u32, now_us: i64) -> Span {
        let parent = run.turn.as_ref().or(run.agent.as_ref()).map(|span| span.span_id.clone());
        let span_id = ids::span_id(id, run.segment, "tool", run.turn_index, call_id.as_str(), attempt);
        let mut span = self.base(id, span_id, parent, format!("execute_tool {tool}"), Kind::Internal, now_us);
        span.set_text(n::OPERATION_NAME, "execute_tool");
        span.set_text(n::TOOL_NAME, tool);
        span.set_text(n::TOOL_TYPE, "function");
        span.set_text(n::TOOL_CALL_ID, call_id.as_str());
        span.set_text(n::AGENT_NAME, run.created.agent.name.as_str());
        span.set_int(n::WREN_TURN_INDEX, run.turn_index);
        span
    }

    fn end_child(&mut self, id: &RunId, child: &ChildEnded) {
        let Some(call) = self.runs.get_mut(id).and_then(|run| run.calls.get_mut(&child.call_id)) else { return };
        call.span.set_text(n::WREN_CHILD_RUN_ID, child.child.as_str());
        call.span.set_text(n::WREN_CHILD_OUTCOME, child.outcome.name());
        call.span.set_usd(n::WREN_CHILD_COST_USD, child.subtree_cost_usd_nanos);
    }

    fn end_call(&mut self, id: &RunId, call: &CallEnded, now_us: i64) -> Vec<Span> {
        let tree = self.tree;
        let Some(run) = self.runs.get(id) else { return Vec::new() };
        let refused = || OpenCall { span: self.call_span(id, run, &call.call_id, &call.tool, 0, now_us), started: false };
        // A call that was answered without running has no span yet: it gets one without length.
        let unstarted = (!run.calls.contains_key(&call.call_id)).then(refused);
        let Some(run) = self.runs.get_mut(id) else { return Vec::new() };
        let Some(OpenCall { mut span, started }) = unstarted.or_else(|| run.calls.remove(&call.call_id)) else { return Vec::new() };
        span.end_us = now_us;
        if started {
            span.set_int(n::WREN_TOOL_OUTPUT_BYTES, i64::try_from(call.output.len()).unwrap_or(i64::MAX));
            span.set(n::WREN_TOOL_OUTPUT_TRUNCATED, Attribute::Bool(call.omitted_chars > 0));
        }
        if let Some(failure) = call.failure {
            let kind = match (failure, span.attribute(n::WREN_CHILD_OUTCOME)) {
                (CallFailure::Child, Some(Attribute::Text(outcome))) => outcome.clone(),
                _ => failure.name().to_owned(),
            };
            if failure == CallFailure::Cancelled {
                span.set_text(n::WREN_OUTCOME, "cancelled");
            } else {
                span.error = Some(kind.clone());
                span.set_text(n::ERROR_TYPE, kind);
            }
        }
        close(&mut span, 0, &run.totals, &tree);
        run.calls_due = run.calls_due.saturating_sub(1);
        let was_last = run.calls_due == 0;
        let mut spans = vec![span];
        // A turn ends with the last of its calls.
        if was_last {
            spans.extend(self.close_turn(id, now_us));
        }
        spans
    }

    fn close_turn(&mut self, id: &RunId, now_us: i64) -> Vec<Span> {
        let tree = self.tree;
        let Some(run) = self.runs.get_mut(id) else { return Vec::new() };
        let Some(mut turn) = run.turn.take() else { return Vec::new() };
        turn.end_us = now_us;
        close(&mut turn, std::mem::take(&mut run.turn_cost_usd_nanos), &run.totals, &tree);
        vec![turn]
    }

    /// Ends every open span of a run's segment, the innermost first.
    fn close_segment(&mut self, id: &RunId, now_us: i64, outcome: Option<Outcome>) -> Vec<Span> {
        let tree = self.tree;
        let tree_runs = self.tree_runs;
        let Some(run) = self.runs.get_mut(id) else { return Vec::new() };
        let mut spans = Vec::new();
        let open_calls: Vec<Span> = run.calls.drain().map(|(_, call)| call.span).collect();
        let turn_cost_usd_nanos = std::mem::take(&mut run.turn_cost_usd_nanos);
        let turn = run.turn.take().map(|turn| (turn, turn_cost_usd_nanos));
        for (mut span, own) in run.chat.take().into_iter().chain(open_calls).map(|span| (span, 0)).chain(turn) {
            span.end_us = now_us.max(span.start_us);
            close(&mut span, own, &run.totals, &tree);
            spans.push(span);
        }
        run.retries.clear();
        let Some(mut agent) = run.agent.take() else { return spans };
        agent.end_us = now_us.max(agent.start_us);
        agent.set_int(n::WREN_TURNS, run.totals.turns);
        set_wren_usage(&mut agent, &run.totals.usage);
        if !run.finish_reasons.is_empty() {
            agent.set(n::RESPONSE_FINISH_REASONS, Attribute::Texts(run.finish_reasons.clone()));
        }
        set_outcome(&mut agent, outcome);
        close(&mut agent, 0, &run.totals, &tree);
        let link = Link { trace_id: agent.trace_id.clone(), span_id: agent.span_id.clone() };
        spans.push(agent);
        if self.root.as_ref() == Some(id)
            && let Some(mut workflow) = self.workflow.take()
        {
            workflow.end_us = now_us.max(workflow.start_us);
            workflow.set_int(n::WREN_TREE_RUNS, tree_runs);
            workflow.set_int(n::WREN_TREE_TURNS, tree.turns);
            workflow.set_int(n::WREN_TREE_TOOL_CALLS, tree.calls);
            workflow.set_int(n::WREN_TREE_INPUT_TOKENS, tree.usage.input_tokens);
            workflow.set_int(n::WREN_TREE_OUTPUT_TOKENS, tree.usage.output_tokens);
            set_outcome(&mut workflow, outcome);
            close(&mut workflow, 0, &run.totals, &tree);
            self.previous = Some(Link { trace_id: workflow.trace_id.clone(), span_id: workflow.span_id.clone() });
            spans.push(workflow);
        } else if self.root.as_ref() == Some(id) {
            self.previous = Some(link);
        }
        spans
    }
}
