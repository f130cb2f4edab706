//! Exit codes: what a script can tell a run's end by.

use crate::wire::v1;

/// All of them, for the help text.
pub const HELP: &str = "Exit codes of run, watch, wait and result:
  0 completed  1 error  2 usage  3 invalid workflow or inputs  4 not allowed
  10 failed  11 max_turns  12 budget or tokens  13 timeout  14 approval pending  15 blocked
  16 provider error  17 drained  18 in doubt  20 cancelled  130 interrupted";

/// An error.
pub const ERROR: u8 = 1;
/// Wrong usage.
pub const USAGE: u8 = 2;
/// An invalid workflow or input.
pub const INVALID: u8 = 3;
/// Not allowed.
pub const DENIED: u8 = 4;
/// Left by a signal.
pub const INTERRUPTED: u8 = 130;

/// Returns the code of a run that is suspended or has ended; an error for one that goes on.
pub fn of_run(run: &v1::Run) -> u8 {
    match run.outcome() {
        v1::Outcome::Completed => 0,
        v1::Outcome::Failed => 10,
        v1::Outcome::MaxTurns => 11,
        v1::Outcome::Budget | v1::Outcome::MaxTokens => 12,
        v1::Outcome::Timeout => 13,
        v1::Outcome::Approval => 14,
        v1::Outcome::Blocked => 15,
        v1::Outcome::ProviderError => 16,
        v1::Outcome::Drained => 17,
        v1::Outcome::InDoubt => 18,
        v1::Outcome::Cancelled => 20,
        v1::Outcome::Unspecified => ERROR,
    }
}
