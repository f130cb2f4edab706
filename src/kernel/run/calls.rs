//! The calls of a run's last reply: how far each one is, and which fact may follow. It decides nothing about them.

use std::sync::Arc;

use super::{Illegal, Run, illegal};
use crate::kernel::agent::{Effect, OnFailure};
use crate::kernel::event::{CallEnded, CallFailure, ChildEnded, Recorded};
use crate::kernel::message::{Call, CallId, Message, RunId, ToolResult};
use crate::kernel::size;
use crate::kernel::summary::State;

/// A call of the last reply and how far it is.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingCall {
    /// The call.
    pub call: Call,
    /// How far it is.
    pub progress: Progress,
}

/// How far a call is.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// Nothing was done about it.
    Asked,
    /// A tool runs, or ran when the daemon died.
    Started {
        /// When.
        at_us: i64,
        /// From 1.
        attempt: u32,
    },
    /// A child run is at it.
    Child {
        /// The child.
        child: RunId,
        /// How it ended, once it has.
        ended: Option<Box<ChildEnded>>,
    },
    /// A crash left it open whether it happened.
    InDoubt {
        /// When it had started.
        at_us: i64,
        /// Whether somebody resumed the run since, so that the model shall be told.
        released: bool,
    },
    /// It has its result.
    Ended(ToolResult),
}

impl Run {
    pub(super) fn pending(&mut self, recorded: &Recorded, id: &CallId) -> Result<&mut PendingCall, Illegal> {
        let found = self.calls.iter_mut().find(|pending| pending.call.id == *id);
        found.ok_or_else(|| illegal(recorded, &format!("the last reply has no call {id}")))
    }

    pub(super) fn start_call(&mut self, recorded: &Recorded, id: &CallId, attempt: u32) -> Result<(), Illegal> {
        self.check_state(recorded, &[State::Running])?;
        let pending = self.pending(recorded, id)?;
        let expected = match pending.progress {
            Progress::Asked => 1,
            Progress::Started { attempt, .. } => attempt.saturating_add(1),
            Progress::Child { .. } | Progress::InDoubt { .. } | Progress::Ended(_) => {
                return Err(illegal(recorded, "the call cannot be started any more"));
            }
        };
        if attempt != expected {
            return Err(illegal(recorded, &format!("expected attempt {expected}")));
        }
        pending.progress = Progress::Started { at_us: recorded.time_us, attempt };
        let tool = pending.call.tool.clone();
        if attempt == 1 {
            *self.calls_by_tool.entry(tool).or_default() += 1;
        }
        Ok(())
    }

    pub(super) fn end_call(&mut self, recorded: &Recorded, call: &CallEnded) -> Result<(), Illegal> {
        self.check_state(recorded, &[State::Running, State::Cancelling])?;
        let fails_parent = call.failure == Some(CallFailure::Child) && self.fails_parent(&call.tool);
        let pending = self.pending(recorded, &call.call_id)?;
        match pending.progress {
            Progress::Ended(_) => return Err(illegal(recorded, "the call has its result already")),
            Progress::Child { ended: None, .. } => return Err(illegal(recorded, "the call's child has not ended")),
            Progress::Asked | Progress::Started { .. } | Progress::InDoubt { .. } | Progress::Child { ended: Some(_), .. } => {}
        }
        pending.progress = Progress::Ended(ToolResult {
            call_id: call.call_id.clone(),
            tool: call.tool.clone(),
            ok: call.failure.is_none(),
            output: call.output.clone(),
        });
        if fails_parent {
            self.fatal_child = Some(call.output.clone());
        }
        self.bytes_since_count += size::of_text(&call.output) + size::FRAME_TOKENS_MAX;
        self.takeovers = 0;
        if self.calls.iter().all(|pending| matches!(pending.progress, Progress::Ended(_))) {
            for pending in std::mem::take(&mut self.calls) {
                if let Progress::Ended(result) = pending.progress {
                    self.transcript.push(Arc::new(Message::Tool(result)));
                }
            }
        }
        Ok(())
    }

    fn fails_parent(&self, tool: &str) -> bool {
        let spec = self.created.agent.tools.iter().find(|spec| spec.name == tool);
        spec.and_then(|spec| spec.spawn.as_ref()).is_some_and(|spawn| spawn.on_failure == OnFailure::Fail)
    }

    pub(super) fn doubt_call(&mut self, recorded: &Recorded, id: &CallId) -> Result<(), Illegal> {
        let pending = self.pending(recorded, id)?;
        let Progress::Started { at_us, .. } = pending.progress else {
            return Err(illegal(recorded, "only a started call can be in doubt"));
        };
        pending.progress = Progress::InDoubt { at_us, released: false };
        Ok(())
    }

    pub(super) fn start_child(&mut self, recorded: &Recorded, id: &CallId, child: &RunId) -> Result<(), Illegal> {
        self.check_state(recorded, &[State::Running])?;
        let pending = self.pending(recorded, id)?;
        if !matches!(pending.progress, Progress::Started { .. }) {
            return Err(illegal(recorded, "only a started call can get its child"));
        }
        pending.progress = Progress::Child { child: child.clone(), ended: None };
        Ok(())
    }

    pub(super) fn end_child(&mut self, recorded: &Recorded, child: &ChildEnded) -> Result<(), Illegal> {
        let pending = self.pending(recorded, &child.call_id)?;
        match &mut pending.progress {
            Progress::Child { child: id, ended } if *id == child.child && ended.is_none() => {
                *ended = Some(Box::new(child.clone()));
                Ok(())
            }
            Progress::Asked | Progress::Started { .. } | Progress::Child { .. } | Progress::InDoubt { .. } | Progress::Ended(_) => {
                Err(illegal(recorded, "the call has no such running child"))
            }
        }
    }

    /// Nobody is at a call that was started before the run was suspended (a crash loop stops a run in the middle of its
    /// calls): what may be run again is asked for again, of anything else nobody knows whether it happened.
    pub(super) fn take_back_started(&mut self) {
        let tools = &self.created.agent.tools;
        for pending in &mut self.calls {
            let Progress::Started { at_us, .. } = pending.progress else { continue };
            let effect = tools.iter().find(|tool| tool.name == pending.call.tool).map(|tool| tool.effect);
            pending.progress = match effect {
                Some(Effect::ReadOnly | Effect::Idempotent) => Progress::Asked,
                Some(Effect::External | Effect::Spawn) | None => Progress::InDoubt { at_us, released: false },
            };
        }
    }

    /// Returns whether a crash cannot be this run's doing: it had nothing under way but children, which count their own.
    pub(super) fn only_waits_for_children(&self) -> bool {
        let tool_runs = self.calls.iter().any(|pending| matches!(pending.progress, Progress::Started { .. }));
        let child_runs = self.calls.iter().any(|pending| matches!(pending.progress, Progress::Child { ended: None, .. }));
        self.open_turn.is_none() && !tool_runs && child_runs
    }
}
