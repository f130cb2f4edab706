//! The journal as log lines: one an event, with run, root and trace id.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::kernel::event::{Event, TurnEnded};
use crate::kernel::ledger::{Reservation, Totals};
use crate::kernel::{CallId, Recorded, RunId};

/// Writes log lines; remembers of each run what its lines need.
#[derive(Default)]
pub struct EventLog {
    runs: Mutex<HashMap<RunId, Memory>>,
}

#[derive(Default)]
struct Memory {
    root: String,
    trace_id: String,
    totals: Totals,
    open: Reservation,
    started_us: HashMap<CallId, i64>,
}

impl Memory {
    fn add(&mut self, recorded: &Recorded) {
        self.totals.add(&recorded.event, self.open);
        match &recorded.event {
            // A tree that was let go and taken up again is read from its beginning, so this begins anew.
            Event::RunCreated(created) => {
                *self = Self { root: created.root.to_string(), trace_id: created.trace_id.clone(), ..Self::default() };
            }
            Event::TurnStarted(turn) => self.open = turn.reservation,
            Event::TurnEnded(_) | Event::TurnAborted(_) => self.open = Reservation::default(),
            Event::CallStarted(call) => {
                self.started_us.insert(call.call_id.clone(), recorded.time_us);
            }
            Event::RunStarted {}
            | Event::CallEnded(_)
            | Event::CallInDoubt { .. }
            | Event::ChildStarted { .. }
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
}

impl EventLog {
    /// Takes in an event that was logged by an earlier daemon.
    pub fn prime(&self, recorded: &Recorded) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.entry(recorded.run.clone()).or_default().add(recorded);
        if matches!(recorded.event, Event::RunEnded(_)) {
            runs.remove(&recorded.run);
        }
    }

    /// Writes an event's line.
    pub fn write(&self, recorded: &Recorded) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = runs.entry(recorded.run.clone()).or_default();
        memory.add(recorded);
        let (run_id, root_id, trace_id) = (recorded.run.as_str(), memory.root.as_str(), memory.trace_id.as_str());
        let (seq, kind) = (recorded.seq, recorded.event.kind());
        match &recorded.event {
            Event::TurnStarted(turn) => {
                tracing::debug!(run_id, root_id, trace_id, seq, turn = turn.turn, attempt = turn.attempt, "{kind}");
            }
            Event::TurnEnded(turn) => log_turn(turn, (run_id, root_id, trace_id), seq, memory.totals.cost_usd_nanos),
            Event::TurnAborted(turn) => {
                tracing::warn!(
                    run_id,
                    root_id,
                    trace_id,
                    seq,
                    turn = turn.turn,
                    attempt = turn.attempt,
                    reason = turn.reason.name(),
                    message = turn.message,
                    "{kind}"
                );
            }
            Event::CallStarted(call) => {
                tracing::debug!(run_id, root_id, trace_id, seq, call_id = call.call_id.as_str(), tool = call.tool, "{kind}");
            }
            Event::CallEnded(call) => {
                let started_us = memory.started_us.remove(&call.call_id).unwrap_or(recorded.time_us);
                let ms = (recorded.time_us - started_us) / 1000;
                let ok = call.failure.is_none();
                tracing::info!(run_id, root_id, trace_id, seq, call_id = call.call_id.as_str(), tool = call.tool, ms, ok, "{kind}");
            }
            Event::RunSuspended { outcome, reason, .. } => {
                let (outcome, turns, cost_usd_nanos) = (outcome.name(), memory.totals.turns, memory.totals.cost_usd_nanos);
                tracing::info!(run_id, root_id, trace_id, seq, outcome, reason, turns, cost_usd_nanos, "{kind}");
            }
            Event::RunEnded(ended) => {
                let (outcome, turns, cost_usd_nanos) = (ended.outcome.name(), memory.totals.turns, memory.totals.cost_usd_nanos);
                let reason = &ended.reason;
                tracing::info!(run_id, root_id, trace_id, seq, outcome, reason, turns, cost_usd_nanos, "{kind}");
                runs.remove(&recorded.run);
            }
            Event::ModelChanged(changed) => {
                let (agent, model, cause) = (&changed.agent, changed.model.full_name(), changed.cause.name());
                tracing::warn!(run_id, root_id, trace_id, seq, agent, model, cause, message = changed.reason, "{kind}");
            }
            Event::RunCreated(_)
            | Event::RunStarted {}
            | Event::CallInDoubt { .. }
            | Event::ChildStarted { .. }
            | Event::ChildEnded(_)
            | Event::MessageReceived { .. }
            | Event::LimitsChanged { .. }
            | Event::ContextCompacted(_)
            | Event::RunResumed { .. }
            | Event::CancelRequested { .. } => tracing::info!(run_id, root_id, trace_id, seq, "{kind}"),
        }
    }
}

fn log_turn(turn: &TurnEnded, (run_id, root_id, trace_id): (&str, &str, &str), seq: u64, run_cost_usd_nanos: i64) {
    tracing::info!(
        run_id,
        root_id,
        trace_id,
        seq,
        turn = turn.turn,
        input_tokens = turn.usage.input_tokens,
        output_tokens = turn.usage.output_tokens,
        total_tokens = turn.usage.total_tokens(),
        cost_usd_nanos = turn.cost_usd_nanos,
        run_cost_usd_nanos,
        stop = turn.stop.name(),
        "turn_ended"
    );
}
