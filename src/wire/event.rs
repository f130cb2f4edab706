//! Journal facts as the API's events.
//!
//! A proto event says some things that its fact does not: the arguments of a call that starts, how long a call took,
//! the run's cost so far. [`EventContext`] remembers per unended run just what that needs. A watch that begins in the
//! middle must feed it the facts before its cursor with [`EventContext::prime`], or those fields come out empty.

use std::collections::HashMap;

use super::limits::limits;
use super::run::{failure, outcome, run, seq, timestamp};
use super::transcript::assistant;
use super::v1::{self, event::Payload};
use crate::kernel::event::{CallEnded, Cause, ChildEnded, RunEnded, TurnAborted, TurnEnded, TurnStarted};
use crate::kernel::{Account, CallId, Event, Recorded, Reservation, RunId, Stop, Summary, Totals};

/// What a stream of events has to remember of what went before.
#[derive(Debug, Default)]
pub struct EventContext {
    root: String,
    trace_id: String,
    runs: HashMap<RunId, RunContext>,
}

#[derive(Debug, Default)]
struct RunContext {
    parent: String,
    own: Totals,
    open: Reservation,
    /// Calls of the last reply: an older reply's calls all have their results.
    calls: HashMap<CallId, CallContext>,
}

#[derive(Debug, Default)]
struct CallContext {
    args_json: String,
    started_us: Option<i64>,
    child: String,
}

impl EventContext {
    /// Takes note of a fact that is not shown.
    pub fn prime(&mut self, recorded: &Recorded) {
        self.note(recorded);
        self.forget(recorded);
    }

    /// Returns a fact as an event, and takes note of it.
    pub fn event(&mut self, recorded: &Recorded) -> v1::Event {
        self.note(recorded);
        let context = self.runs.entry(recorded.run.clone()).or_default();
        let event = v1::Event {
            seq: seq(recorded.seq),
            tree_seq: seq(recorded.tree_seq),
            run_id: recorded.run.to_string(),
            root_run_id: self.root.clone(),
            parent_run_id: context.parent.clone(),
            time: Some(timestamp(recorded.time_us)),
            trace_id: self.trace_id.clone(),
            payload: Some(payload(recorded, context)),
        };
        self.forget(recorded);
        event
    }

    /// Returns text that streams.
    pub fn text(&self, run: &RunId, turn: u32, attempt: u32, text: String) -> v1::Event {
        self.live(run, Payload::TextDelta(v1::TextDelta { turn: small(turn), attempt: small(attempt), text }))
    }

    /// Returns a tool's progress.
    pub fn progress(&self, run: &RunId, progress: v1::ToolProgress) -> v1::Event {
        self.live(run, Payload::ToolProgress(progress))
    }

    fn live(&self, run: &RunId, payload: Payload) -> v1::Event {
        v1::Event {
            run_id: run.to_string(),
            root_run_id: self.root.clone(),
            parent_run_id: self.runs.get(run).map_or_else(String::new, |context| context.parent.clone()),
            trace_id: self.trace_id.clone(),
            payload: Some(payload),
            ..Default::default()
        }
    }

    fn note(&mut self, recorded: &Recorded) {
        let context = self.runs.entry(recorded.run.clone()).or_default();
        context.own.add(&recorded.event, context.open);
        match &recorded.event {
            Event::RunCreated(created) => {
                self.root = created.root.to_string();
                self.trace_id.clone_from(&created.trace_id);
                context.parent = created.parent.as_ref().map_or_else(String::new, |parent| parent.run.to_string());
            }
            Event::TurnStarted(turn) => context.open = turn.reservation,
            Event::TurnEnded(turn) => {
                context.open = Reservation::default();
                let calls = turn.message.calls.iter();
                context.calls =
                    calls.map(|call| (call.id.clone(), CallContext { args_json: call.args.shown(), ..CallContext::default() })).collect();
            }
            Event::TurnAborted(_) => context.open = Reservation::default(),
            Event::CallStarted(call) => {
                context.calls.entry(call.call_id.clone()).or_default().started_us = Some(recorded.time_us);
            }
            Event::ChildStarted { call_id, child, .. } => context.calls.entry(call_id.clone()).or_default().child = child.to_string(),
            Event::RunStarted {}
            | Event::CallEnded(_)
            | Event::CallInDoubt { .. }
            | Event::ChildEnded(_)
            | Event::MessageReceived { .. }
            | Event::LimitsChanged { .. }
            | Event::ModelChanged(_)
            | Event::ContextCompacted(_)
            | Event::RunSuspended { .. }
            | Event::RunResumed { .. }
            | Event::CancelRequested { .. }
            | Event::RunEnded(_) => {}
        }
    }

    fn forget(&mut self, recorded: &Recorded) {
        if matches!(recorded.event, Event::RunEnded(_)) {
            self.runs.remove(&recorded.run);
        }
    }
}

fn payload(recorded: &Recorded, context: &RunContext) -> Payload {
    match &recorded.event {
        Event::RunCreated(created) => {
            let summary = Summary::create(recorded.run.clone(), created, recorded.seq, recorded.time_us);
            let run = run(&summary, &Account::open(created.limits), None);
            Payload::RunCreated(v1::RunCreated { run: Some(run), prompt: created.prompt.clone() })
        }
        Event::RunStarted {} => Payload::RunStarted(v1::RunStarted {}),
        Event::TurnStarted(turn) => turn_started(turn),
        Event::TurnEnded(turn) => turn_ended(turn, context.own.cost_usd_nanos),
        Event::TurnAborted(turn) => turn_aborted(turn),
        Event::CallStarted(call) => Payload::CallStarted(v1::CallStarted {
            call_id: call.call_id.to_string(),
            tool: call.tool.clone(),
            args_json: context.calls.get(&call.call_id).map_or_else(String::new, |known| known.args_json.clone()),
            effect: call.effect.name().to_owned(),
            attempt: small(call.attempt),
        }),
        Event::CallEnded(call) => call_ended(call, context.calls.get(&call.call_id), recorded.time_us),
        Event::CallInDoubt { call_id } => Payload::CallInDoubt(v1::CallInDoubt { call_id: call_id.to_string() }),
        Event::ChildStarted { call_id, child, agent } => {
            Payload::ChildStarted(v1::ChildStarted { call_id: call_id.to_string(), child_run_id: child.to_string(), agent: agent.clone() })
        }
        Event::ChildEnded(ended) => child_ended(ended),
        Event::MessageReceived { sender, text } => {
            Payload::MessageReceived(v1::MessageReceived { sender: sender.clone(), text: text.clone() })
        }
        Event::LimitsChanged { limits: all, actor, reason } => {
            Payload::LimitsChanged(v1::LimitsChanged { limits: Some(limits(all)), actor: actor.clone(), reason: reason.clone() })
        }
        Event::ModelChanged(changed) => Payload::ModelChanged(v1::ModelChanged {
            agent: changed.agent.clone(),
            model: changed.model.full_name(),
            cause: changed.cause.name().to_owned(),
            actor: changed.actor.clone(),
            reason: changed.reason.clone(),
        }),
        Event::ContextCompacted(compacted) => Payload::ContextCompacted(v1::ContextCompacted {
            summary: compacted.summary.clone().unwrap_or_default(),
            kept_from: seq(compacted.kept_from),
            cleared_to: seq(compacted.cleared_to),
            tokens_before: compacted.tokens_before,
        }),
        Event::RunSuspended { outcome: why, reason, message, text } => Payload::RunSuspended(v1::RunSuspended {
            outcome: outcome(*why).into(),
            failure: failure(reason, message),
            output_text: text.clone(),
            turn_count: wide(context.own.turns),
            cost_usd_nanos: context.own.cost_usd_nanos,
        }),
        Event::RunResumed { cause, actor } => {
            Payload::RunResumed(v1::RunResumed { cause: cause_name(*cause).to_owned(), actor: actor.clone() })
        }
        Event::CancelRequested { actor, reason } => {
            Payload::CancelRequested(v1::CancelRequested { actor: actor.clone(), reason: reason.clone() })
        }
        Event::RunEnded(ended) => run_ended(ended, &context.own),
    }
}

fn turn_started(turn: &TurnStarted) -> Payload {
    Payload::TurnStarted(v1::TurnStarted {
        turn: small(turn.turn),
        attempt: small(turn.attempt),
        model: turn.model.clone(),
        max_output: turn.max_output,
        reserved_usd_nanos: turn.reservation.usd_nanos,
        reserved_tokens: turn.reservation.tokens,
        purpose: turn.purpose.name().to_owned(),
    })
}

fn turn_ended(turn: &TurnEnded, run_cost_usd_nanos: i64) -> Payload {
    let stop = match turn.stop {
        Stop::EndTurn => v1::Stop::EndTurn,
        Stop::ToolCalls => v1::Stop::ToolCalls,
        Stop::Length => v1::Stop::Length,
        Stop::Refusal => v1::Stop::Refusal,
        Stop::Error => v1::Stop::Error,
    };
    Payload::TurnEnded(v1::TurnEnded {
        turn: small(turn.turn),
        attempt: small(turn.attempt),
        message: Some(assistant(&turn.message)),
        stop: stop.into(),
        stop_raw: turn.stop_raw.clone().unwrap_or_default(),
        input_tokens: turn.usage.input_tokens,
        output_tokens: turn.usage.output_tokens,
        total_tokens: turn.usage.total_tokens(),
        cache_read_tokens: turn.usage.cache_read_tokens,
        cache_write_tokens: turn.usage.cache_write_tokens,
        reasoning_tokens: turn.usage.reasoning_tokens,
        cost_usd_nanos: turn.cost_usd_nanos,
        cost_unknown: turn.cost_unknown,
        estimated: turn.estimated,
        provider: turn.provider.clone(),
        response_id: turn.response_id.clone().unwrap_or_default(),
        response_model: turn.response_model.clone().unwrap_or_default(),
        run_cost_usd_nanos,
        first_chunk_us: turn.first_chunk_us.unwrap_or_default(),
        purpose: turn.purpose.name().to_owned(),
        stated_cost_usd_nanos: turn.stated_cost_usd_nanos,
        cost_disputed: turn.is_disputed(),
    })
}

fn turn_aborted(turn: &TurnAborted) -> Payload {
    let usage = turn.usage.unwrap_or_default();
    Payload::TurnAborted(v1::TurnAborted {
        turn: small(turn.turn),
        attempt: small(turn.attempt),
        reason: turn.reason.name().to_owned(),
        message: turn.message.clone(),
        retryable: turn.retryable,
        http_status: turn.http_status.map_or(0, i32::from),
        cost_usd_nanos: turn.cost_usd_nanos,
        written_off_usd_nanos: turn.written_off.usd_nanos,
        estimated: turn.estimated,
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
    })
}

fn call_ended(call: &CallEnded, known: Option<&CallContext>, time_us: i64) -> Payload {
    let started_us = known.and_then(|known| known.started_us);
    Payload::CallEnded(v1::CallEnded {
        call_id: call.call_id.to_string(),
        tool: call.tool.clone(),
        ok: call.failure.is_none(),
        failure: call.failure.map_or_else(String::new, |failure| failure.name().to_owned()),
        output: call.output.clone(),
        omitted_char_count: seq(call.omitted_chars),
        elapsed_ms: started_us.map_or(0, |from| (time_us - from).max(0) / 1000),
        child_run_id: known.map_or_else(String::new, |known| known.child.clone()),
    })
}

fn child_ended(ended: &ChildEnded) -> Payload {
    Payload::ChildEnded(v1::ChildEnded {
        call_id: ended.call_id.to_string(),
        child_run_id: ended.child.to_string(),
        outcome: outcome(ended.outcome).into(),
        failure: failure(&ended.reason, &ended.message),
        turn_count: small(ended.turns),
        subtree_cost_usd_nanos: ended.subtree_cost_usd_nanos,
    })
}

fn run_ended(ended: &RunEnded, own: &Totals) -> Payload {
    Payload::RunEnded(v1::RunEnded {
        outcome: outcome(ended.outcome).into(),
        failure: failure(&ended.reason, &ended.message),
        output_text: ended.text.clone(),
        output_json: ended.output.as_ref().map_or_else(String::new, ToString::to_string),
        truncated: ended.truncated,
        turn_count: wide(own.turns),
        cost_usd_nanos: own.cost_usd_nanos,
    })
}

fn cause_name(cause: Cause) -> &'static str {
    match cause {
        Cause::Crash => "crash",
        Cause::User => "user",
        Cause::Drained => "drained",
    }
}

fn small(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

fn wide(value: i64) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}
