//! The journal as log lines: one an event, with run, root and trace id.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::kernel::event::{Event, RunCreated, TurnEnded};
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
    fn create(&mut self, created: &RunCreated) {
        self.root = created.root.to_string();
        self.trace_id.clone_from(&created.trace_id);
    }
}

impl EventLog {
    /// Takes in an event that was logged by an earlier daemon.
    pub fn prime(&self, recorded: &Recorded) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = runs.entry(recorded.run.clone()).or_default();
        memory.totals.add(&recorded.event, memory.open);
        match &recorded.event {
            Event::RunCreated(created) => {
                // A tree that was let go and taken up again is read from its beginning.
                *memory = Memory::default();
                memory.create(created);
            }
            Event::TurnStarted(turn) => memory.open = turn.reservation,
            Event::TurnEnded(_) | Event::TurnAborted(_) => memory.open = Reservation::default(),
            Event::RunEnded(_) => {
                runs.remove(&recorded.run);
            }
            Event::RunStarted {}
            | Event::CallStarted(_)
            | Event::CallEnded(_)
            | Event::CallInDoubt { .. }
            | Event::ChildStarted { .. }
            | Event::ChildEnded(_)
            | Event::MessageReceived { .. }
            | Event::LimitsChanged { .. }
            | Event::RunSuspended { .. }
            | Event::RunResumed { .. }
            | Event::CancelRequested { .. } => {}
        }
    }

    /// Writes an event's line.
    pub fn write(&self, recorded: &Recorded) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = runs.entry(recorded.run.clone()).or_default();
        memory.totals.add(&recorded.event, memory.open);
        if let Event::RunCreated(created) = &recorded.event {
            memory.create(created);
        }
        let (run_id, root_id, trace_id) = (recorded.run.as_str(), memory.root.as_str(), memory.trace_id.as_str());
        let (seq, kind) = (recorded.seq, recorded.event.kind());
        match &recorded.event {
            Event::TurnStarted(turn) => {
                memory.open = turn.reservation;
                tracing::debug!(run_id, root_id, trace_id, seq, turn = turn.turn, attempt = turn.attempt, "{kind}");
            }
            Event::TurnEnded(turn) => {
                memory.open = Reservation::default();
                log_turn(turn, (run_id, root_id, trace_id), seq, memory.totals.cost_usd_nanos);
            }
            Event::TurnAborted(turn) => {
                memory.open = Reservation::default();
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
                memory.started_us.insert(call.call_id.clone(), recorded.time_us);
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
            Event::RunCreated(_)
            | Event::RunStarted {}
            | Event::CallInDoubt { .. }
            | Event::ChildStarted { .. }
            | Event::ChildEnded(_)
            | Event::MessageReceived { .. }
            | Event::LimitsChanged { .. }
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
