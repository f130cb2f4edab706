//! One run's spans: its segment, and what is open within it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::call::OpenCall;
use crate::kernel::event::RunCreated;
use crate::kernel::ledger::Totals;
use crate::kernel::{CallId, ModelSpec, Outcome, Reservation, RunId};
use crate::telemetry::attributes::{close, set_outcome, set_wren_usage};
use crate::telemetry::ids;
use crate::telemetry::names as n;
use crate::telemetry::span::{Attribute, Kind, Span, SpanEvent};

/// What the spans of one run are made from.
pub(super) struct RunSpans {
    pub(super) id: RunId,
    pub(super) created: Arc<RunCreated>,
    /// The model that is asked.
    pub(super) model: Arc<ModelSpec>,
    /// The present segment, from 1; 0 before the first.
    pub(super) segment: u32,
    /// The trace of the present segment.
    trace_id: String,
    /// Whether the present segment was opened for another run's sake: the fact of its own is still to come.
    pub(super) opened_early: bool,
    /// Whether the present segment is there only because a child's is: no fact of its own has come.
    pub(super) opened_for_child: bool,
    pub(super) agent: Option<Span>,
    pub(super) turn: Option<Span>,
    pub(super) turn_index: u32,
    /// What the reply of the open turn cost.
    pub(super) turn_cost_usd_nanos: i64,
    pub(super) chat: Option<Span>,
    /// A model call that a crash cut: finished by the fact that writes it off.
    pub(super) lost_chat: Option<Span>,
    /// Attempts that had spans of their own, to be told on the span of the one that follows.
    pub(super) retries: Vec<SpanEvent>,
    /// Calls that began and have no result; their spans are open while a segment is.
    pub(super) calls: BTreeMap<CallId, Box<OpenCall>>,
    /// Calls of the present turn that have no result yet, begun or not.
    pub(super) calls_due: usize,
    pub(super) open: Reservation,
    pub(super) totals: Totals,
    pub(super) finish_reasons: Vec<String>,
}

/// Sets what every span says of where it belongs.
pub(super) fn set_place(span: &mut Span, run: &RunId, root: &RunId) {
    span.set_text(n::WREN_RUN_ID, run.as_str());
    span.set_text(n::WREN_RUN_ROOT_ID, root.as_str());
    span.set_text(n::CONVERSATION_ID, root.as_str());
}

/// Sets which segment a span stands for, and why it began.
pub(super) fn set_segment(span: &mut Span, segment: u32, cause: &'static str) {
    span.set_int(n::WREN_SEGMENT_INDEX, segment);
    span.set_text(n::WREN_SEGMENT_CAUSE, cause);
}

/// Which span of a segment: what its id is made from.
#[derive(Clone, Copy)]
pub(super) enum Part<'a> {
    Agent,
    Turn { turn: u32 },
    Chat { turn: u32, attempt: u32 },
    Tool { turn: u32, call: &'a CallId, attempt: u32 },
}

impl RunSpans {
    pub(super) fn new(id: RunId, created: Arc<RunCreated>) -> Self {
        Self {
            id,
            model: created.agent.model.clone(),
            created,
            segment: 0,
            trace_id: String::new(),
            opened_early: false,
            opened_for_child: false,
            agent: None,
            turn: None,
            turn_index: 0,
            turn_cost_usd_nanos: 0,
            chat: None,
            lost_chat: None,
            retries: Vec::new(),
            calls: BTreeMap::new(),
            calls_due: 0,
            open: Reservation::default(),
            totals: Totals::default(),
            finish_reasons: Vec::new(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.agent.is_some()
    }

    /// Returns the span that the run of a call's child hangs under.
    pub(super) fn span_above_child(&self, call: &CallId) -> Option<String> {
        let tool = self.calls.get(call).and_then(|call| call.span.as_ref());
        tool.or(self.agent.as_ref()).map(|span| span.span_id.clone())
    }

    /// Begins a span of the present segment under `parent`.
    pub(super) fn span(&self, part: Part<'_>, parent: Option<&Span>, name: String, now_us: i64) -> Span {
        let (kind, (part, turn, call, attempt)) = match part {
            Part::Agent => (Kind::Internal, ("agent", 0, "", 0)),
            Part::Turn { turn } => (Kind::Internal, ("turn", turn, "", 0)),
            Part::Chat { turn, attempt } => (Kind::Client, ("chat", turn, "", attempt)),
            Part::Tool { turn, call, attempt } => (Kind::Internal, ("tool", turn, call.as_str(), attempt)),
        };
        let span_id = ids::span_id(&self.id, self.segment, part, turn, call, attempt);
        let parent = parent.map(|span| span.span_id.clone());
        let mut span = Span::open(self.trace_id.clone(), span_id, parent, name, kind, now_us);
        set_place(&mut span, &self.id, &self.created.root);
        span
    }

    /// Begins the next segment, with what the run waits for open again in it.
    pub(super) fn open_segment(&mut self, trace_id: &str, parent: Option<String>, cause: &'static str, now_us: i64) {
        self.segment += 1;
        trace_id.clone_into(&mut self.trace_id);
        let created = self.created.clone();
        let agent = &created.agent;
        let mut span = self.span(Part::Agent, None, format!("invoke_agent {}", agent.name), now_us);
        span.parent_span_id = parent;
        span.set_text(n::OPERATION_NAME, "invoke_agent");
        span.set_text(n::AGENT_NAME, agent.name.as_str());
        if !agent.description.is_empty() {
            span.set_text(n::AGENT_DESCRIPTION, agent.description.as_str());
        }
        span.set_text(n::REQUEST_MODEL, self.model.model.as_str());
        span.set_int(n::WREN_RUN_DEPTH, created.depth);
        if let Some(parent) = &created.parent {
            span.set_text(n::WREN_RUN_PARENT_ID, parent.run.as_str());
            span.set_text(n::WREN_PARENT_TOOL_CALL_ID, parent.call_id.as_str());
        }
        set_segment(&mut span, self.segment, cause);
        span.set_usd(n::WREN_BUDGET_USD, created.limits.budget_usd_nanos);
        span.set_int(n::WREN_BUDGET_TOKENS, created.limits.max_tokens);
        span.set_int(n::WREN_BUDGET_TURNS, created.limits.max_turns);
        self.agent = Some(span);
        if self.calls_due > 0 {
            self.open_turn(now_us);
            self.reopen_calls(now_us);
        }
    }

    /// Ends every open span of the segment, the innermost first.
    pub(super) fn close_segment(&mut self, now_us: i64, outcome: Option<Outcome>, tree: &Totals) -> Vec<Span> {
        let mut spans: Vec<Span> = self.close_chat(now_us, tree).into_iter().chain(self.lost_chat.take()).collect();
        let cut: Vec<Span> = self.calls.values_mut().filter_map(|call| call.span.take()).collect();
        for mut span in cut {
            span.end_us = now_us.max(span.start_us);
            close(&mut span, 0, &self.totals, tree);
            spans.push(span);
        }
        spans.extend(self.close_turn(now_us, tree));
        self.retries.clear();
        let Some(mut agent) = self.agent.take() else { return spans };
        agent.end_us = now_us.max(agent.start_us);
        agent.set_int(n::WREN_TURNS, self.totals.turns);
        set_wren_usage(&mut agent, &self.totals.usage);
        if !self.finish_reasons.is_empty() {
            agent.set(n::RESPONSE_FINISH_REASONS, Attribute::Texts(std::mem::take(&mut self.finish_reasons)));
        }
        set_outcome(&mut agent, outcome);
        close(&mut agent, 0, &self.totals, tree);
        spans.push(agent);
        spans
    }
}
