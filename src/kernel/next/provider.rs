//! What a failed attempt at a turn means: try again, ask another model, or stop. How long to wait is not decided here.

use super::{Ending, Next};
use crate::kernel::event::Abort;
use crate::kernel::run::Run;
use crate::kernel::summary::Outcome;

/// How often the provider may fail at one turn before the run gives up.
pub const ATTEMPTS_MAX: u32 = 5;
/// How often it may say that it is asked too much before the run gives up. The limiter learns from each such answer, so
/// this is for a provider that refuses whatever it is sent.
pub const REFUSALS_MAX: u32 = 20;
/// How often it may fail before another model is asked, where there is one.
pub const ATTEMPTS_WITH_FALLBACK_MAX: u32 = 2;
/// A wait that a provider asks for, in milliseconds, above which another model is asked at once.
const WAIT_MS_MAX: u64 = 10_000;

/// Decides on the last attempt, if the provider failed at it. `None`: go on, which is to try again.
pub(super) fn failed(run: &Run) -> Option<Next> {
    // After a change of the model the failures before it were another's.
    let abort = run.last_abort.as_ref().filter(|_| run.tries() > 0)?;
    let has_other = !run.fallback.is_empty() && another_may_cure(abort.reason);
    let (may, wait_ms_max) = match (has_other, abort.reason) {
        (true, _) => (run.tries() < ATTEMPTS_WITH_FALLBACK_MAX, WAIT_MS_MAX),
        (false, Abort::RateLimited | Abort::Overloaded) => (run.refusals() < REFUSALS_MAX, u64::MAX),
        // What was refused for being too much is no failure of this kind.
        (false, _) => (run.tries().saturating_sub(run.refusals()) < ATTEMPTS_MAX, u64::MAX),
    };
    if abort.retryable && may && abort.retry_after_ms.is_none_or(|wait_ms| wait_ms <= wait_ms_max) {
        return None;
    }
    let tries = if run.tries() > 1 { format!(" ({} attempts)", run.tries()) } else { String::new() };
    let words = format!("{}{tries}", abort.message);
    if has_other {
        return Some(Next::Switch(words));
    }
    Some(Next::End(Ending::new(Outcome::ProviderError, reason(abort.reason), words)))
}

/// Returns whether another model may well succeed where one failed so. A request that is wrong, or that a filter refused, is
/// not handed from one provider to the next until one takes it.
fn another_may_cure(reason: Abort) -> bool {
    match reason {
        Abort::Auth
        | Abort::RateLimited
        | Abort::Quota
        | Abort::Overloaded
        | Abort::ContextLength
        | Abort::NotFound
        | Abort::Provider
        | Abort::Network
        | Abort::CutStream
        | Abort::NoAnswer
        | Abort::Malformed => true,
        Abort::ContentRefused | Abort::InvalidRequest | Abort::Cancelled | Abort::Timeout | Abort::Crash => false,
    }
}

/// Returns the code for a run that stops because of such a failure.
fn reason(reason: Abort) -> &'static str {
    match reason {
        Abort::Auth => "PROVIDER_AUTH",
        Abort::ContextLength => "CONTEXT_LENGTH",
        Abort::Quota => "PROVIDER_QUOTA",
        Abort::NotFound => "MODEL_NOT_FOUND",
        Abort::ContentRefused => "CONTENT_REFUSED",
        Abort::InvalidRequest => "PROVIDER_REFUSED_REQUEST",
        Abort::RateLimited
        | Abort::Overloaded
        | Abort::Provider
        | Abort::Network
        | Abort::CutStream
        | Abort::NoAnswer
        | Abort::Malformed
        | Abort::Cancelled
        | Abort::Timeout
        | Abort::Crash => "PROVIDER_FAILED",
    }
}
