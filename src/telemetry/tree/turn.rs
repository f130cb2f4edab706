//! Turns and the model calls within them.
//!
//! One chat span is one request that cost something, or that nothing more follows: attempts that cost nothing and are
//! made again are events on it.

use super::run::{Part, RunSpans};
use crate::kernel::event::{Abort, ContextCompacted, ModelChanged, Purpose, TurnAborted, TurnEnded, TurnStarted};
use crate::kernel::ledger::Totals;
use crate::kernel::{Reservation, Stop};
use crate::telemetry::attributes::{close, set_chat_cost, set_usage, set_wren_usage};
use crate::telemetry::names as n;
use crate::telemetry::span::{Attribute, Span, SpanEvent};

impl RunSpans {
    /// Opens the span of the present turn, unless it is open.
    pub(super) fn open_turn(&mut self, now_us: i64) {
        if self.turn.is_some() {
            return;
        }
        let index = self.turn_index;
        let mut turn = self.span(Part::Turn { turn: index }, self.agent.as_ref(), format!("turn {index}"), now_us);
        turn.set_int(n::WREN_TURN_INDEX, index);
        self.turn = Some(turn);
    }

    pub(super) fn start_turn(&mut self, turn: &TurnStarted, now_us: i64) {
        self.open = turn.reservation;
        self.turn_index = turn.turn;
        self.open_turn(now_us);
        if let Some(span) = &mut self.turn {
            span.set_int(n::WREN_TURN_ATTEMPT, turn.attempt);
        }
        if let Some(chat) = &mut self.chat {
            // The attempt before cost nothing: this is the same request, made again.
            chat.error = None;
            chat.unset(n::ERROR_TYPE);
            return;
        }
        let created = self.created.clone();
        let model = self.model.clone();
        let part = Part::Chat { turn: turn.turn, attempt: turn.attempt };
        let mut chat = self.span(part, self.turn.as_ref(), format!("chat {}", model.model), now_us);
        chat.set_text(n::OPERATION_NAME, "chat");
        chat.set_text(n::PROVIDER_NAME, model.provider.as_str());
        chat.set_text(n::REQUEST_MODEL, model.model.as_str());
        chat.set_text(n::AGENT_NAME, created.agent.name.as_str());
        chat.set(n::REQUEST_STREAM, Attribute::Bool(true));
        if turn.purpose == Purpose::Compact {
            chat.set_text(n::WREN_TURN_PURPOSE, turn.purpose.name());
        }
        chat.set_int(n::REQUEST_MAX_TOKENS, turn.max_output);
        if let Some(temperature) = model.temperature {
            chat.set(n::REQUEST_TEMPERATURE, Attribute::Float(temperature));
        }
        if let Some(top_p) = model.top_p {
            chat.set(n::REQUEST_TOP_P, Attribute::Float(top_p));
        }
        chat.events.append(&mut self.retries);
        self.chat = Some(chat);
    }

    /// Another model is asked from here on: the request to the one before is over, and a viewer sees why.
    pub(super) fn change_model(&mut self, changed: &ModelChanged, now_us: i64, tree: &Totals) -> Vec<Span> {
        if changed.agent != self.created.agent.name {
            return Vec::new();
        }
        let attributes = vec![
            (n::WREN_MODEL_BEFORE, Attribute::Text(self.model.full_name())),
            (n::WREN_MODEL_AFTER, Attribute::Text(changed.model.full_name())),
            (n::WREN_MODEL_CAUSE, Attribute::Text(changed.cause.name().to_owned())),
        ];
        self.model = changed.model.clone();
        let spans = self.close_chat(now_us, tree);
        // A run that somebody gave another model is suspended, and has no span open: its next ones name that model.
        if let Some(span) = self.turn.as_mut().or(self.agent.as_mut()) {
            span.events.push(SpanEvent { name: n::EVENT_MODEL_CHANGED, time_us: now_us, attributes });
        }
        spans.into_iter().collect()
    }

    pub(super) fn end_turn(&mut self, turn: &TurnEnded, now_us: i64, tree: &Totals) -> Vec<Span> {
        self.open = Reservation::default();
        self.turn_cost_usd_nanos = self.turn_cost_usd_nanos.saturating_add(turn.cost_usd_nanos);
        if turn.purpose == Purpose::Compact {
            // The turn that it makes room for is still to come.
            return self.end_chat(turn, now_us, tree).into_iter().collect();
        }
        self.finish_reasons.push(turn.stop.name().to_owned());
        self.calls_due = turn.message.calls.len();
        let mut spans: Vec<Span> = self.end_chat(turn, now_us, tree).into_iter().collect();
        if let Some(span) = &mut self.turn {
            set_wren_usage(span, &turn.usage);
            span.set_int(n::WREN_CONTEXT_TOKENS, turn.usage.input_tokens);
            span.set_int(n::WREN_TURN_TOOL_CALLS, i64::try_from(turn.message.calls.len()).unwrap_or(i64::MAX));
            span.set_text(n::WREN_TURN_OUTCOME, outcome_of(turn));
        }
        if turn.message.calls.is_empty() {
            spans.extend(self.close_turn(now_us, tree));
        }
        spans
    }

    fn end_chat(&mut self, turn: &TurnEnded, now_us: i64, tree: &Totals) -> Option<Span> {
        let mut chat = self.chat.take().or_else(|| self.lost_chat.take())?;
        chat.end_us = now_us;
        set_reply(&mut chat, turn);
        close(&mut chat, turn.cost_usd_nanos, &self.totals, tree);
        Some(chat)
    }

    /// The model reads less of the conversation from here on.
    pub(super) fn compact(&mut self, compacted: &ContextCompacted, now_us: i64) {
        let place = |at: u64| Attribute::Int(i64::try_from(at).unwrap_or(i64::MAX));
        let attributes = vec![
            (n::WREN_CONTEXT_KEPT_FROM, place(compacted.kept_from)),
            (n::WREN_CONTEXT_CLEARED_TO, place(compacted.cleared_to)),
            (n::WREN_CONTEXT_TOKENS, Attribute::Int(compacted.tokens_before)),
        ];
        if let Some(span) = self.turn.as_mut().or(self.agent.as_mut()) {
            span.events.push(SpanEvent { name: n::EVENT_CONTEXT_COMPACTED, time_us: now_us, attributes });
        }
    }

    pub(super) fn abort_turn(&mut self, turn: &TurnAborted, now_us: i64, tree: &Totals) -> Vec<Span> {
        self.open = Reservation::default();
        let lost = turn.reason == Abort::Crash;
        // A crash in a run that was being cancelled is followed by no resume: its call is still among the open ones.
        let cut = if lost { self.lost_chat.take().or_else(|| self.take_lost_chat(now_us)) } else { self.chat.take() };
        let Some(mut chat) = cut else { return Vec::new() };
        chat.set_int(n::WREN_LLM_ATTEMPTS, turn.attempt);
        set_abort(&mut chat, turn);
        if !lost {
            chat.end_us = now_us;
        }
        let is_free = turn.usage.is_none() && turn.cost_usd_nanos == 0 && turn.written_off.is_zero();
        let told = turn.retryable.then(|| retry_event(turn, now_us)).filter(|_| turn.reason.is_provider_error());
        if is_free && let Some(told) = told {
            chat.events.push(told);
            self.chat = Some(chat);
            return Vec::new();
        }
        self.retries.extend(told);
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
        close(&mut chat, turn.cost_usd_nanos.saturating_add(turn.written_off.usd_nanos), &self.totals, tree);
        vec![chat]
    }

    /// Takes the model call that a crash cut; it ended when the daemon died. One that had failed before and was to be made
    /// again is not lost: it is over.
    pub(super) fn take_lost_chat(&mut self, died_us: i64) -> Option<Span> {
        let mut chat = self.chat.take_if(|chat| chat.error.is_none()).or_else(|| self.lost_chat.take())?;
        chat.end_us = chat.end_us.max(died_us);
        Some(chat)
    }

    /// Closes a model call that nothing more is heard of.
    pub(super) fn close_chat(&mut self, now_us: i64, tree: &Totals) -> Option<Span> {
        let mut chat = self.chat.take()?;
        if chat.error.is_none() {
            chat.end_us = now_us.max(chat.start_us);
        }
        close(&mut chat, 0, &self.totals, tree);
        Some(chat)
    }

    pub(super) fn close_turn(&mut self, now_us: i64, tree: &Totals) -> Option<Span> {
        let mut turn = self.turn.take()?;
        turn.end_us = now_us.max(turn.start_us);
        close(&mut turn, std::mem::take(&mut self.turn_cost_usd_nanos), &self.totals, tree);
        Some(turn)
    }
}

fn outcome_of(turn: &TurnEnded) -> &'static str {
    match turn.stop {
        Stop::EndTurn | Stop::ToolCalls if turn.message.calls.is_empty() => "final",
        Stop::EndTurn | Stop::ToolCalls => "tool_calls",
        Stop::Length | Stop::Refusal | Stop::Error => turn.stop.name(),
    }
}

fn set_reply(chat: &mut Span, turn: &TurnEnded) {
    set_usage(chat, &turn.usage);
    set_chat_cost(chat, turn.cost_usd_nanos, turn.cost_unknown);
    chat.set_text(n::WREN_PRICE_TABLE_VERSION, turn.price_version.as_str());
    if let Some(stated) = turn.stated_cost_usd_nanos {
        chat.set_int(n::WREN_COST_STATED_USD_NANOS, stated);
    }
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
}

/// Sets how a model call failed, or that it was stopped.
fn set_abort(chat: &mut Span, turn: &TurnAborted) {
    chat.set(n::RESPONSE_FINISH_REASONS, Attribute::Texts(vec!["error".to_owned()]));
    match turn.reason {
        Abort::Cancelled => chat.set_text(n::WREN_OUTCOME, "cancelled"),
        Abort::Crash => chat.fail("the daemon died", "interrupted"),
        Abort::Timeout
        | Abort::Auth
        | Abort::RateLimited
        | Abort::Quota
        | Abort::Overloaded
        | Abort::ContextLength
        | Abort::NotFound
        | Abort::ContentRefused
        | Abort::InvalidRequest
        | Abort::Provider
        | Abort::Network
        | Abort::CutStream
        | Abort::NoAnswer
        | Abort::Malformed => chat.fail(turn.message.clone(), &kind_of(turn)),
    }
}

/// Names a failed attempt as the semantic conventions ask: by its HTTP status, if it has one.
fn kind_of(turn: &TurnAborted) -> String {
    turn.http_status.map_or_else(|| turn.reason.name().to_owned(), |status| status.to_string())
}

fn retry_event(turn: &TurnAborted, now_us: i64) -> SpanEvent {
    let mut attributes =
        vec![(n::WREN_LLM_ATTEMPT, Attribute::Int(turn.attempt.into())), (n::ERROR_TYPE, Attribute::Text(turn.reason.name().to_owned()))];
    if let Some(status) = turn.http_status {
        attributes.push((n::HTTP_STATUS, Attribute::Int(status.into())));
    }
    if let Some(ms) = turn.retry_after_ms {
        attributes.push((n::WREN_BACKOFF_MS, Attribute::Int(i64::try_from(ms).unwrap_or(i64::MAX))));
    }
    SpanEvent { name: n::EVENT_LLM_RETRY, time_us: now_us, attributes }
}
