//! The journal as log lines: one an event, with run, root and trace id.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::kernel::event::Event;
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

impl EventLog {
    /// Writes an event's line.
    pub fn write(&self, recorded: &Recorded) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = runs.entry(recorded.run.clone()).or_default();
        memory.totals.add(&recorded.event, memory.open);
        if let Event::RunCreated(created) = &recorded.event {
            memory.root = created.root.to_string();
            memory.trace_id.clone_from(&created.trace_id);
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
                    run_cost_usd_nanos = memory.totals.cost_usd_nanos,
                    stop = turn.stop.name(),
                    "{kind}"
                );
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
                tracing::info!(run_id, root_id, trace_id, seq, outcome, reason = ended.reason, turns, cost_usd_nanos, "{kind}");
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
