//! Exit codes. They are a contract with scripts: a number here never changes its meaning.

use crate::wire::v1::Outcome;

/// All went well; of a run: it completed.
pub const OK: u8 = 0;
/// An error in wrenctl or in the daemon.
pub const ERROR: u8 = 1;
/// The command line cannot be understood.
pub const USAGE: u8 = 2;
/// The workflow or its inputs are not valid.
pub const INVALID: u8 = 3;
/// The daemon does not let this user in.
pub const AUTH: u8 = 4;
/// A second Ctrl-C, or one while only looking.
pub const INTERRUPTED: u8 = 130;

/// Returns the exit code of a run that stopped so.
pub fn of(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Completed => OK,
        Outcome::Unspecified => ERROR,
        Outcome::Failed => 10,
        Outcome::MaxTurns => 11,
        Outcome::Budget | Outcome::MaxTokens => 12,
        Outcome::Timeout => 13,
        Outcome::Approval => 14,
        Outcome::Blocked => 15,
        Outcome::ProviderError => 16,
        Outcome::Drained => 17,
        Outcome::InDoubt => 18,
        Outcome::Cancelled => 20,
    }
}
