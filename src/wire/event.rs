//! Facts as the API has them. An API event says more than a fact alone does (a call's arguments, how long it took, the
//! running cost), so a stream of them remembers a little of each run.

use std::collections::HashMap;

use super::{failure, limits, message, outcome, run, stop, timestamp, v1};
use crate::kernel::event::{Cause, Event, Recorded, TurnAborted, TurnEnded};
use crate::kernel::ledger::{Account, Reservation, Totals};
use crate::kernel::message::{CallId, Message, RunId};
use crate::kernel::summary::Summary;

/// What one stream remembers.
#[derive(Default)]
pub struct EventContext {
    runs: HashMap<RunId, Memory>,
}

#[derive(Default)]
struct Memory {
    root: String,
    parent: String,
    trace_id: String,
    totals: Totals,
    open: Reservation,
    /// The calls of the last reply: arguments, start, child.
    calls: HashMap<CallId, CallMemory>,
}

#[derive(Default)]
struct CallMemory {
    args_json: String,
    started_us: Option<i64>,
    child: String,
}

impl EventContext {
    /// Takes in a fact that the stream does not show, because it lies before the stream's cursor.
    pub fn prime(&mut self, recorded: &Recorded) {
        let memory = self.runs.entry(recorded.run.clone()).or_default();
        memory.totals.add(&recorded.event, memory.open);
        match &recorded.event {
            Event::RunCreated(created) => {
                memory.root = created.root.to_string();
                memory.parent = created.parent.as_ref().map(|parent| parent.run.to_string()).unwrap_or_default();
                memory.trace_id.clone_from(&created.trace_id);
            }
            Event::TurnStarted(turn) => memory.open = turn.reservation,
            Event::TurnEnded(turn) => {
                memory.open = Reservation::default();
                let asked = turn.message.calls.iter();
                memory.calls =
                    asked.map(|call| (call.id.clone(), CallMemory { args_json: call.args.shown(), ..CallMemory::default() })).collect();
            }
            Event::TurnAborted(_) => memory.open = Reservation::default(),
            Event::CallStarted(call) => memory.calls.entry(call.call_id.clone()).or_default().started_us = Some(recorded.time_us),
            Event::ChildStarted { call_id, child, .. } => memory.calls.entry(call_id.clone()).or_default().child = child.to_string(),
            Event::RunStarted {}
            | Event::CallEnded(_)
            | Event::CallInDoubt { .. }
            | Event::ChildEnded(_)
            | Event::MessageReceived { .. }
            | Event::LimitsChanged { .. }
            | Event::RunSuspended { .. }
            | Event::RunResumed { .. }
            | Event::CancelRequested { .. }
            | Event::RunEnded(_) => {}
        }
    }

    /// Returns the next fact of the stream as the API has it.
    pub fn event(&mut self, recorded: &Recorded) -> v1::Event {
        self.prime(recorded);
        let empty = Memory::default();
        let memory = self.runs.get(&recorded.run).unwrap_or(&empty);
        v1::Event {
            seq: big(recorded.seq),
            tree_seq: big(recorded.tree_seq),
            run_id: recorded.run.to_string(),
            root_run_id: memory.root.clone(),
            parent_run_id: memory.parent.clone(),
            time: Some(timestamp(recorded.time_us)),
            trace_id: memory.trace_id.clone(),
            payload: Some(payload(recorded, memory)),
        }
    }

    /// Returns something live-only of a run as the API has it.
    pub fn live(&self, of: &RunId, time_us: i64, payload: v1::event::Payload) -> v1::Event {
        let memory = self.runs.get(of);
        v1::Event {
            seq: 0,
            tree_seq: 0,
            run_id: of.to_string(),
            root_run_id: memory.map(|memory| memory.root.clone()).unwrap_or_default(),
            parent_run_id: memory.map(|memory| memory.parent.clone()).unwrap_or_default(),
            time: Some(timestamp(time_us)),
            trace_id: memory.map(|memory| memory.trace_id.clone()).unwrap_or_default(),
            payload: Some(payload),
        }
    }
}

fn payload(recorded: &Recorded, memory: &Memory) -> v1::event::Payload {
    use v1::event::Payload;
    match &recorded.event {
        Event::RunCreated(created) => {
            let summary = Summary::create(recorded.run.clone(), created, recorded.seq, recorded.time_us);
            let account = Account::open(created.limits);
            Payload::RunCreated(v1::RunCreated { run: Some(run(&summary, &account, false)), prompt: created.prompt.clone() })
        }
        Event::RunStarted {} => Payload::RunStarted(v1::RunStarted {}),
        Event::TurnStarted(turn) => Payload::TurnStarted(v1::TurnStarted {
            turn: int(turn.turn),
            attempt: int(turn.attempt),
            model: turn.model.clone(),
            max_output: turn.max_output,
            reserved_usd_nanos: turn.reservation.usd_nanos,
            reserved_tokens: turn.reservation.tokens,
        }),
        Event::TurnEnded(turn) => Payload::TurnEnded(turn_ended(turn, memory)),
        Event::TurnAborted(turn) => Payload::TurnAborted(turn_aborted(turn)),
        Event::CallStarted(call) => Payload::CallStarted(v1::CallStarted {
            call_id: call.call_id.to_string(),
            tool: call.tool.clone(),
            args_json: memory.calls.get(&call.call_id).map(|call| call.args_json.clone()).unwrap_or_default(),
            effect: call.effect.name().to_owned(),
            attempt: int(call.attempt),
        }),
        Event::CallEnded(call) => {
            let known = memory.calls.get(&call.call_id);
            let started_us = known.and_then(|known| known.started_us);
            Payload::CallEnded(v1::CallEnded {
                call_id: call.call_id.to_string(),
                tool: call.tool.clone(),
                ok: call.failure.is_none(),
                failure: call.failure.map(|failure| failure.name().to_owned()).unwrap_or_default(),
                output: call.output.clone(),
                omitted_char_count: big(call.omitted_chars),
                elapsed_ms: started_us.map_or(0, |started_us| (recorded.time_us - started_us).max(0) / 1000),
                child_run_id: known.map(|known| known.child.clone()).unwrap_or_default(),
            })
        }
        Event::CallInDoubt { call_id } => Payload::CallInDoubt(v1::CallInDoubt { call_id: call_id.to_string() }),
        Event::ChildStarted { call_id, child, agent } => {
            Payload::ChildStarted(v1::ChildStarted { call_id: call_id.to_string(), child_run_id: child.to_string(), agent: agent.clone() })
        }
        Event::ChildEnded(child) => Payload::ChildEnded(v1::ChildEnded {
            call_id: child.call_id.to_string(),
            child_run_id: child.child.to_string(),
            outcome: outcome(Some(child.outcome)).into(),
            failure: failure(&child.reason, &child.message),
            turn_count: int(child.turns),
            subtree_cost_usd_nanos: child.subtree_cost_usd_nanos,
        }),
        Event::MessageReceived { sender, text } => {
            Payload::MessageReceived(v1::MessageReceived { sender: sender.clone(), text: text.clone() })
        }
        Event::LimitsChanged { limits: all, actor, reason } => {
            Payload::LimitsChanged(v1::LimitsChanged { limits: Some(limits(all)), actor: actor.clone(), reason: reason.clone() })
        }
        Event::RunSuspended { outcome: why, reason, message, text } => Payload::RunSuspended(v1::RunSuspended {
            outcome: outcome(Some(*why)).into(),
            failure: failure(reason, message),
            output_text: text.clone(),
            turn_count: turns(memory),
            cost_usd_nanos: memory.totals.cost_usd_nanos,
        }),
        Event::RunResumed { cause, actor } => {
            let cause = match cause {
                Cause::Crash => "crash",
                Cause::User => "user",
                Cause::Drained => "drained",
            };
            Payload::RunResumed(v1::RunResumed { cause: cause.to_owned(), actor: actor.clone() })
        }
        Event::CancelRequested { actor, reason } => {
            Payload::CancelRequested(v1::CancelRequested { actor: actor.clone(), reason: reason.clone() })
        }
        Event::RunEnded(ended) => Payload::RunEnded(v1::RunEnded {
            outcome: outcome(Some(ended.outcome)).into(),
            failure: failure(&ended.reason, &ended.message),
            output_text: ended.text.clone(),
            output_json: ended.output.as_ref().map(ToString::to_string).unwrap_or_default(),
            truncated: ended.truncated,
            turn_count: turns(memory),
            cost_usd_nanos: memory.totals.cost_usd_nanos,
        }),
    }
}

fn turn_ended(turn: &TurnEnded, memory: &Memory) -> v1::TurnEnded {
    v1::TurnEnded {
        turn: int(turn.turn),
        attempt: int(turn.attempt),
        message: Some(message(&Message::Assistant(turn.message.clone()))),
        stop: stop(turn.stop).into(),
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
        run_cost_usd_nanos: memory.totals.cost_usd_nanos,
        first_chunk_us: turn.first_chunk_us.unwrap_or_default(),
    }
}

fn turn_aborted(turn: &TurnAborted) -> v1::TurnAborted {
    let usage = turn.usage.unwrap_or_default();
    v1::TurnAborted {
        turn: int(turn.turn),
        attempt: int(turn.attempt),
        reason: turn.reason.name().to_owned(),
        message: turn.message.clone(),
        retryable: turn.retryable,
        http_status: turn.http_status.map(i32::from).unwrap_or_default(),
        cost_usd_nanos: turn.cost_usd_nanos,
        written_off_usd_nanos: turn.written_off.usd_nanos,
        estimated: turn.estimated,
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
    }
}

fn turns(memory: &Memory) -> i32 {
    i32::try_from(memory.totals.turns).unwrap_or(i32::MAX)
}

fn int(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn big(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
