//! Tool calls, and the child runs that answer them.

use super::run::{Part, RunSpans};
use crate::kernel::event::{CallEnded, CallFailure, CallStarted, ChildEnded};
use crate::kernel::ledger::Totals;
use crate::kernel::{CallId, Effect, Outcome, RunId};
use crate::telemetry::attributes::close;
use crate::telemetry::names as n;
use crate::telemetry::span::{Attribute, Span};

/// A call that began and has no result yet.
pub(super) struct OpenCall {
    tool: String,
    effect: Effect,
    attempt: u32,
    child: Option<RunId>,
    ended: Option<ChildEnded>,
    /// `None` between two segments.
    pub(super) span: Option<Span>,
}

impl RunSpans {
    pub(super) fn start_call(&mut self, call: &CallStarted, now_us: i64) {
        self.open_turn(now_us);
        let open = OpenCall { tool: call.tool.clone(), effect: call.effect, attempt: call.attempt, child: None, ended: None, span: None };
        let span = self.begun_span(&call.call_id, &open, now_us);
        self.calls.insert(call.call_id.clone(), Box::new(OpenCall { span: Some(span), ..open }));
    }

    /// Opens the calls that were open in the segment before.
    pub(super) fn reopen_calls(&mut self, now_us: i64) {
        let mut calls = std::mem::take(&mut self.calls);
        for (id, call) in &mut calls {
            call.span = Some(self.begun_span(id, call, now_us));
        }
        self.calls = calls;
    }

    pub(super) fn start_child(&mut self, call: &CallId, child: &RunId) {
        let Some(call) = self.calls.get_mut(call) else { return };
        call.child = Some(child.clone());
        if let Some(span) = &mut call.span {
            span.set_text(n::WREN_CHILD_RUN_ID, child.as_str());
        }
    }

    pub(super) fn end_child(&mut self, ended: &ChildEnded) {
        let Some(call) = self.calls.get_mut(&ended.call_id) else { return };
        call.ended = Some(ended.clone());
        if let Some(span) = &mut call.span {
            set_child(span, ended);
        }
    }

    pub(super) fn end_call(&mut self, ended: &CallEnded, now_us: i64, tree: &Totals) -> Vec<Span> {
        let begun = self.calls.remove(&ended.call_id).and_then(|call| call.span);
        let is_begun = begun.is_some();
        // A call that was answered without running has no span yet: it gets one without length.
        let mut span = begun.unwrap_or_else(|| {
            self.open_turn(now_us);
            self.call_span(&ended.call_id, &ended.tool, 0, now_us)
        });
        span.end_us = now_us.max(span.start_us);
        if is_begun {
            span.set_int(n::WREN_TOOL_OUTPUT_BYTES, i64::try_from(ended.output.len()).unwrap_or(i64::MAX));
            span.set(n::WREN_TOOL_OUTPUT_TRUNCATED, Attribute::Bool(ended.omitted_chars > 0));
        }
        if let Some(failure) = ended.failure {
            set_failure(&mut span, failure);
        }
        close(&mut span, 0, &self.totals, tree);
        let mut spans = vec![span];
        self.calls_due = self.calls_due.saturating_sub(1);
        // A turn ends with the last of its calls.
        if self.calls_due == 0 {
            spans.extend(self.close_turn(now_us, tree));
        }
        spans
    }

    fn begun_span(&self, id: &CallId, call: &OpenCall, now_us: i64) -> Span {
        let mut span = self.call_span(id, &call.tool, call.attempt, now_us);
        span.set(n::WREN_TOOL_READ_ONLY, Attribute::Bool(call.effect == Effect::ReadOnly));
        span.set_int(n::WREN_TOOL_ATTEMPT, call.attempt);
        if let Some(child) = &call.child {
            span.set_text(n::WREN_CHILD_RUN_ID, child.as_str());
        }
        if let Some(ended) = &call.ended {
            set_child(&mut span, ended);
        }
        span
    }

    fn call_span(&self, id: &CallId, tool: &str, attempt: u32, now_us: i64) -> Span {
        let part = Part::Tool { turn: self.turn_index, call: id, attempt };
        let mut span = self.span(part, self.turn.as_ref(), format!("execute_tool {tool}"), now_us);
        span.set_text(n::OPERATION_NAME, "execute_tool");
        span.set_text(n::TOOL_NAME, tool);
        span.set_text(n::TOOL_TYPE, "function");
        span.set_text(n::TOOL_CALL_ID, id.as_str());
        span.set_text(n::AGENT_NAME, self.created.agent.name.as_str());
        span.set_int(n::WREN_TURN_INDEX, self.turn_index);
        span
    }
}

fn set_child(span: &mut Span, ended: &ChildEnded) {
    span.set_text(n::WREN_CHILD_RUN_ID, ended.child.as_str());
    span.set_text(n::WREN_CHILD_OUTCOME, ended.outcome.name());
    span.set_usd(n::WREN_CHILD_COST_USD, ended.subtree_cost_usd_nanos);
}

fn set_failure(span: &mut Span, failure: CallFailure) {
    let kind = match (failure, span.attribute(n::WREN_CHILD_OUTCOME)) {
        (CallFailure::Child, Some(Attribute::Text(outcome))) => outcome.clone(),
        _ => failure.name().to_owned(),
    };
    // Somebody wanted a cancel: it is no error, of this run or of the child that answers for it.
    if failure == CallFailure::Cancelled || kind == Outcome::Cancelled.name() {
        span.set_text(n::WREN_OUTCOME, Outcome::Cancelled.name());
    } else {
        span.fail(kind.clone(), &kind);
    }
}
