//! Errors as people read them: what happened, and the next command. Statuses of the daemon become these here.

use std::io;

use prost::Message;
use tonic::{Code, Status};
use tonic_types::{ErrorInfo, StatusExt, pb};

use super::address::Address;
use super::{amount, exit};
use crate::wire::v1;

/// Why a command did not do what it should.
#[derive(Debug)]
pub enum Error {
    /// To be said to the user.
    Said(Box<Said>),
    /// Nobody reads stdout any more, as with `| head`. Nothing is to be said.
    BrokenPipe,
    /// The user left.
    Interrupted,
}

/// An error with all that is said about it.
#[derive(Debug, Default)]
pub struct Said {
    /// The exit code.
    pub code: u8,
    /// What is wrong, as a fragment.
    pub message: String,
    /// What is wrong with a document, with places. If any are there, they stand for the message.
    pub diagnostics: Vec<v1::Diagnostic>,
    /// How many diagnostics the daemon found; more than are here if they did not fit.
    pub diagnostic_count: usize,
    /// What to do next.
    pub hints: Vec<String>,
    /// The daemon's code for it; empty if it does not come from there.
    pub reason: String,
}

/// Where a daemon that ends with the command has no file to be mended and nothing to be started again.
const CONFIG_ADVICE: &str = ", or raise `ceilings` in wrend's config";
const RESTART_BEFORE: &str = " where wrend is started, and start it again";
const RESTART_ADVICE: &str = " where wrend is started, restart it and resume the run";

/// Returns a message of the daemon as it holds where the daemon ends with the command.
pub fn for_own_daemon(message: &str) -> String {
    message.replace(RESTART_ADVICE, " and resume the run").replace(CONFIG_ADVICE, "")
}

impl Error {
    /// Makes an error with an exit code.
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self::Said(Box::new(Said { code, message: message.into(), ..Said::default() }))
    }

    /// Makes an error of the command line's use.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(exit::USAGE, message)
    }

    /// Makes an error that should not happen.
    pub fn internal(error: &dyn std::fmt::Display) -> Self {
        Self::new(exit::ERROR, format!("a fault of wrenctl itself: {error}"))
    }

    /// Adds what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        if let Self::Said(said) = &mut self {
            said.hints.push(hint.into());
        }
        self
    }

    /// Makes an error of documents with faults.
    pub fn invalid(diagnostics: Vec<v1::Diagnostic>) -> Self {
        let diagnostic_count = diagnostics.len();
        let message = "the workflow or its inputs are not valid".to_owned();
        Self::Said(Box::new(Said { code: exit::INVALID, message, diagnostics, diagnostic_count, ..Said::default() }))
    }

    /// Makes the error of a daemon that does not answer.
    pub fn unreachable(address: &Address, why: &str) -> Self {
        Self::new(exit::ERROR, format!("no daemon answers at {address}: {why}"))
            .hint("start one with `wrend`, point at another with --address, or work without one: add --local")
    }

    /// Reads a status of the daemon at `address`.
    pub fn status(address: &Address, status: &Status) -> Self {
        let info = status.get_details_error_info();
        if info.is_none() && is_dropped(status) {
            return Self::unreachable(address, &cause(status));
        }
        let info = info.unwrap_or_else(|| ErrorInfo::new("", "", std::collections::HashMap::new()));
        let diagnostics = diagnostics(status);
        let told = info.metadata.get("diagnostic_count").and_then(|count| count.parse().ok()).unwrap_or(0);
        let message =
            if status.message().is_empty() { format!("the daemon answered {:?}", status.code()) } else { status.message().into() };
        let message = match info.reason.as_str() {
            "LIMIT_ABOVE_CEILING" => amount::ceiling(&message).unwrap_or(message),
            // There is no run yet to be resumed.
            "SECRET_MISSING" => message.replace(RESTART_ADVICE, RESTART_BEFORE),
            _ => message,
        };
        let has_command = message.contains("`wrenctl ");
        let hints = if has_command { None } else { next_step(&info, &message) };
        Self::Said(Box::new(Said {
            code: code(status.code(), &info.reason),
            message,
            diagnostic_count: diagnostics.len().max(told),
            diagnostics,
            hints: hints.into_iter().collect(),
            reason: info.reason,
        }))
    }

    /// Says it for a daemon that ends with the command: nobody can start that one again.
    #[must_use]
    pub fn of_own_daemon(mut self) -> Self {
        if let Self::Said(said) = &mut self {
            match said.reason.as_str() {
                "SECRET_MISSING" => {
                    said.message = said.message.replace(RESTART_BEFORE, " and run the command again");
                    said.hints = vec![secret_hint(&said.message, "a provider of another name needs `wrend --config FILE`")];
                }
                "LIMIT_ABOVE_CEILING" => said.message = for_own_daemon(&said.message),
                _ => {}
            }
        }
        self
    }

    /// Returns the exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Said(said) => said.code,
            Self::BrokenPipe => exit::OK,
            Self::Interrupted => exit::INTERRUPTED,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::BrokenPipe;
        }
        Self::new(exit::ERROR, format!("the output cannot be written: {error}"))
    }
}

/// Returns whether the connection, rather than the daemon, is to blame, so that a watched run may be taken up again.
pub fn is_dropped(status: &Status) -> bool {
    let by_transport = matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled);
    by_transport && status.get_details_error_info().is_none_or(|_| status.code() == Code::Unavailable)
}

fn cause(status: &Status) -> String {
    let mut deepest: Option<&dyn std::error::Error> = std::error::Error::source(status);
    let mut text = status.message().to_owned();
    while let Some(error) = deepest {
        text = error.to_string();
        deepest = error.source();
    }
    text
}

fn diagnostics(status: &Status) -> Vec<v1::Diagnostic> {
    let Ok(rich) = pb::Status::decode(status.details()) else { return Vec::new() };
    let lists = rich.details.iter().filter(|any| any.type_url.ends_with("wren.v1.DiagnosticList"));
    lists.filter_map(|any| v1::DiagnosticList::decode(any.value.as_slice()).ok()).flat_map(|list| list.diagnostics).collect()
}

fn code(code: Code, reason: &str) -> u8 {
    match (reason, code) {
        ("WORKFLOW_INVALID" | "INPUTS_INVALID", _) => exit::INVALID,
        ("FIELD_INVALID" | "RUN_AMBIGUOUS" | "LIMIT_ABOVE_CEILING" | "FILTER_INVALID" | "PAGE_TOKEN_INVALID", _) => exit::USAGE,
        (_, Code::Unauthenticated | Code::PermissionDenied) => exit::AUTH,
        _ => exit::ERROR,
    }
}

fn next_step(info: &ErrorInfo, message: &str) -> Option<String> {
    let fact = |key: &str| info.metadata.get(key).map_or("RUN", String::as_str);
    let run = fact("run_id");
    let step = match info.reason.as_str() {
        "RUN_NOT_FOUND" => "`wrenctl ps --all` lists the runs that there are, and with --descendants those below them".to_owned(),
        "RUN_AMBIGUOUS" => "give more of the id; `wrenctl ps --all` shows ids in full".to_owned(),
        "RUN_NOT_ROOT" => format!("name the root of its tree: `wrenctl resume {}`", fact("root_run_id")),
        "RUN_ENDED" => format!("see what came of it: `wrenctl get {run}`"),
        "RUN_NOT_SUSPENDED" => format!("it goes on by itself; follow it: `wrenctl watch {run}`"),
        "LIMIT_STILL_EXCEEDED" => {
            format!(
                "give a higher total: `wrenctl resume {run} --budget USD`, or --max-turns, --max-tokens, --timeout; see `wrenctl get {run}`"
            )
        }
        "LIMIT_ABOVE_CEILING" => "`wrenctl info` shows the ceilings of this daemon".to_owned(),
        "SECRET_MISSING" => secret_hint(message, "set it in the environment of wrend and start wrend again"),
        "JOURNAL_UNREADABLE" => format!("nothing is appended to it and no other run stops; see `wrenctl get {run}`"),
        "QUEUE_FULL" => "see what runs: `wrenctl ps`".to_owned(),
        "DRAINING" | "STORE_UNAVAILABLE" => "try again in some seconds".to_owned(),
        "STORE_FULL" => "free space on the disk of the daemon's data directory, then try again".to_owned(),
        "REQUEST_ID_REUSED" => "use another --request-id, or leave it out".to_owned(),
        "TOKEN_MISSING" | "TOKEN_INVALID" => "name the token's file with --token-file, or set WREN_TOKEN".to_owned(),
        "UID_REFUSED" | "PEER_UNKNOWN" => "use the daemon as the user that started it, or start your own: `wrend`".to_owned(),
        _ => return None,
    };
    Some(step)
}

/// Returns what to do about a missing key; `otherwise` is what helps with a provider of any other name.
fn secret_hint(message: &str, otherwise: &str) -> String {
    let own = if message.contains("OPENAI_API_KEY") { "for a server of your own set OPENAI_BASE_URL" } else { otherwise };
    format!("{own}; or try at no cost: `wrenctl run … --mock`")
}
