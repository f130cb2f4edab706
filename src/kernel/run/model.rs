//! Which model a run asks, and how often the present one was tried at the present turn.

use super::{Illegal, Progress, Run, illegal};
use crate::kernel::event::{Abort, ModelCause, ModelChanged, Recorded};
use crate::kernel::size;
use crate::kernel::summary::State;

impl Run {
    pub(super) fn change_model(&mut self, recorded: &Recorded, changed: &ModelChanged) -> Result<(), Illegal> {
        self.check_quiet(recorded)?;
        let is_own = changed.agent == self.created.agent.name;
        match changed.cause {
            ModelCause::Fallback => {
                self.check_state(recorded, &[State::Running])?;
                if !is_own || self.fallback.first() != Some(&changed.model) {
                    return Err(illegal(recorded, "it is not the next fallback of this run"));
                }
                self.fallback.remove(0);
            }
            ModelCause::User => {
                self.check_state(recorded, &[State::Suspended])?;
                self.models.insert(changed.agent.clone(), changed.model.clone());
                if is_own {
                    self.fallback.clone_from(&changed.model.fallback);
                }
            }
        }
        if is_own {
            self.model = changed.model.clone();
            self.others_attempts = self.others_attempts.max(self.provider_failures());
            self.refusals = 0;
            self.overlong = false;
            self.forget_count();
        }
        Ok(())
    }

    /// What one model's tokenizer counted is no bound for another's: the bytes of everything said stand in for it.
    fn forget_count(&mut self) {
        if self.counted_tokens.is_none() {
            return;
        }
        let results = self.calls.iter().map(|pending| match &pending.progress {
            Progress::Ended(result) => size::of_text(&result.output) + size::FRAME_TOKENS_MAX,
            Progress::Asked | Progress::Started { .. } | Progress::Child { .. } | Progress::InDoubt { .. } => 0,
        });
        self.bytes_since_count = self.read_bytes() + results.sum::<i64>();
        self.counted_tokens = Some(0);
    }

    /// Returns how many times in a row the present model was tried at the present turn and failed.
    pub fn tries(&self) -> u32 {
        self.provider_failures().saturating_sub(self.others_attempts)
    }

    /// Nothing failed that is still to be made good: of the attempts at the present turn, `others` are counted no more.
    pub(super) fn settle_attempts(&mut self, others: u32) {
        self.last_abort = None;
        self.others_attempts = others;
        self.refusals = 0;
    }

    /// Returns at how many of those tries the provider said that it is asked too much.
    pub fn refusals(&self) -> u32 {
        self.refusals
    }

    /// Returns how many times in a row the present turn was tried and the provider failed, whichever model it was.
    fn provider_failures(&self) -> u32 {
        self.last_abort.as_ref().filter(|abort| abort.reason.is_provider_error()).map_or(0, |abort| abort.attempt)
    }

    /// Returns the attempt that the next try at the present turn is, from 1.
    pub fn next_attempt(&self) -> u32 {
        self.last_abort.as_ref().map_or(self.others_attempts + 1, |abort| match abort.reason {
            // A lost or cut call is no failure of the provider: the same attempt is made again, so that what a script
            // or a provider does at attempt n does not depend on crashes.
            Abort::Crash | Abort::Cancelled | Abort::Timeout => abort.attempt,
            Abort::Auth
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
            | Abort::Malformed => abort.attempt + 1,
        })
    }
}
