//! Errors as statuses: one code and one reason for each, always with ErrorInfo, and with the details that a client acts on.

use std::collections::HashMap;

use prost::Message;
use prost_types::Any;
use tonic::{Code, Status};
use tonic_types::pb;

use super::ERROR_DOMAIN;
use crate::runtime::{Error, StoreError};
use crate::wire::{Violation, v1};
use crate::workflow::{Diagnostic, Severity};

/// Details travel in a header, and many clients refuse headers beyond 8 KiB; base64 takes a third more.
const DETAILS_BYTES_MAX: usize = 5 * 1024;

/// An error that becomes a status.
#[derive(Debug)]
pub struct Problem {
    code: Code,
    reason: &'static str,
    message: String,
    metadata: HashMap<String, String>,
    details: Vec<Any>,
}

impl Problem {
    /// Begins an error.
    pub fn new(code: Code, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), metadata: HashMap::new(), details: Vec::new() }
    }

    /// Adds a fact that programs can read.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl ToString) -> Self {
        self.metadata.insert(key.to_owned(), value.to_string());
        self
    }

    /// Says that the same request may be sent again after so many seconds.
    #[must_use]
    pub fn retry_after(mut self, seconds: i64) -> Self {
        let info = pb::RetryInfo { retry_delay: Some(prost_types::Duration { seconds, nanos: 0 }) };
        self.details.push(any("google.rpc.RetryInfo", &info));
        self
    }

    /// Names the run that was looked for.
    #[must_use]
    pub fn resource(mut self, name: &str) -> Self {
        let info = pb::ResourceInfo {
            resource_type: "wren.v1.Run".to_owned(),
            resource_name: name.to_owned(),
            description: self.message.clone(),
            ..Default::default()
        };
        self.details.push(any("google.rpc.ResourceInfo", &info));
        self
    }

    /// Returns the status.
    pub fn status(self) -> Status {
        let info = pb::ErrorInfo { reason: self.reason.to_owned(), domain: ERROR_DOMAIN.to_owned(), metadata: self.metadata };
        let mut details = vec![any("google.rpc.ErrorInfo", &info)];
        details.extend(self.details);
        let status = pb::Status { code: self.code.into(), message: self.message.clone(), details };
        Status::with_details(self.code, self.message, status.encode_to_vec().into())
    }
}

/// Returns the status for fields that cannot be used.
pub fn fields(reason: &'static str, violations: &[Violation]) -> Status {
    let message = violations.iter().map(|bad| format!("{} {}", bad.field, bad.description)).collect::<Vec<_>>().join("; ");
    let field_violations = violations.iter().map(|bad| pb::bad_request::FieldViolation {
        field: bad.field.clone(),
        description: bad.description.clone(),
        ..Default::default()
    });
    let mut problem = Problem::new(Code::InvalidArgument, reason, message);
    problem.details.push(any("google.rpc.BadRequest", &pb::BadRequest { field_violations: field_violations.collect() }));
    problem.status()
}

/// Returns the status for one field that cannot be used.
pub fn field(reason: &'static str, field: &str, description: impl Into<String>) -> Status {
    fields(reason, &[Violation { field: field.to_owned(), description: description.into() }])
}

/// Returns the status of an error of the runtime.
pub fn status(error: Error) -> Status {
    let message = error.to_string();
    match error {
        Error::Invalid(diagnostics) => invalid(&diagnostics),
        Error::NotFound(name) => not_found(&name),
        Error::Ambiguous { some, count, .. } => {
            let some = some.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            Problem::new(Code::InvalidArgument, "RUN_AMBIGUOUS", format!("{message}: {some}; give more of the id"))
                .with("count", count)
                .with("run_ids", some)
                .status()
        }
        Error::NotRoot { run, root } => {
            Problem::new(Code::FailedPrecondition, "RUN_NOT_ROOT", message).with("run_id", run).with("root_run_id", root).status()
        }
        Error::Ended(run, outcome) => {
            Problem::new(Code::FailedPrecondition, "RUN_ENDED", message).with("run_id", run).with("outcome", outcome).status()
        }
        Error::NotSuspended(run) => Problem::new(Code::FailedPrecondition, "RUN_NOT_SUSPENDED", message).with("run_id", run).status(),
        Error::LimitStillExceeded { run, .. } => {
            Problem::new(Code::FailedPrecondition, "LIMIT_STILL_EXCEEDED", message).with("run_id", run).status()
        }
        Error::SeqAhead { after, last } => {
            Problem::new(Code::OutOfRange, "SEQ_AHEAD", message).with("after_tree_seq", after).with("last_tree_seq", last).status()
        }
        Error::SetAside(_) => Problem::new(Code::FailedPrecondition, "RUN_SET_ASIDE", message).status(),
        Error::AboveCeiling(_) => Problem::new(Code::PermissionDenied, "LIMIT_ABOVE_CEILING", message).status(),
        Error::Missing(_) => Problem::new(Code::FailedPrecondition, "SECRET_MISSING", message).status(),
        Error::NoSuchModel(_) => field("FIELD_INVALID", "models", message),
        Error::Workspace(_) => field("FIELD_INVALID", "workspace", message),
        Error::QueueFull(trees) => {
            Problem::new(Code::ResourceExhausted, "QUEUE_FULL", format!("{message}; try again when some have ended"))
                .with("unfinished_trees", trees)
                .retry_after(10)
                .status()
        }
        Error::Draining => draining(),
        Error::Store(error) => store(&error),
    }
}

/// Returns the status of a daemon that is being shut down.
pub fn draining() -> Status {
    Problem::new(Code::Unavailable, "DRAINING", "the daemon is shutting down; try again when it is back").retry_after(5).status()
}

fn not_found(name: &str) -> Status {
    // Lines of events show a child as its agent and the end of its id, which is no beginning.
    let next = if name.contains('#') {
        "what stands after # is the end of an id: `wrenctl tree ROOT -o name` shows the ids of a tree in full"
    } else {
        "`wrenctl ps --all` lists the runs that there are, and with --descendants those below them"
    };
    let message = format!("no run {name:?}; {next}");
    Problem::new(Code::NotFound, "RUN_NOT_FOUND", message).with("run_id", name).resource(name).status()
}

fn store(error: &StoreError) -> Status {
    let message = error.to_string();
    match error {
        StoreError::NotFound(run) => not_found(run.as_str()),
        StoreError::RequestIdReused(run) => {
            Problem::new(Code::AlreadyExists, "REQUEST_ID_REUSED", format!("{message}; use another request id"))
                .with("run_id", run)
                .status()
        }
        StoreError::Ended => Problem::new(Code::FailedPrecondition, "RUN_ENDED", message).status(),
        StoreError::Unreadable { run, seq, .. } => {
            Problem::new(Code::DataLoss, "JOURNAL_UNREADABLE", message).with("run_id", run).with("seq", seq).status()
        }
        StoreError::Full(_) => Problem::new(Code::ResourceExhausted, "STORE_FULL", message).status(),
        StoreError::Locked(_) | StoreError::Unavailable(_) => {
            Problem::new(Code::Unavailable, "STORE_UNAVAILABLE", message).retry_after(5).status()
        }
        // The runtime settles these itself; one that comes out is a fault of this program.
        StoreError::Fenced | StoreError::Behind { .. } | StoreError::Refused(_) | StoreError::Cancelled => {
            Problem::new(Code::Internal, "BUG", message).status()
        }
    }
}

fn invalid(diagnostics: &[Diagnostic]) -> Status {
    let errors = diagnostics.iter().filter(|one| one.severity == Severity::Error).count();
    let first = diagnostics.iter().find(|one| one.severity == Severity::Error);
    let place = first.map_or_else(String::new, |one| {
        let head: String = one.message.chars().take(300).collect();
        format!(": {}:{}:{}: {head}", one.path, one.line, one.column)
    });
    let more = if errors > 1 { format!(" (and {} more)", errors - 1) } else { String::new() };
    let message = format!("the workflow or its inputs are not valid{place}{more}");
    let mut list = v1::DiagnosticList::default();
    let mut bytes = 0;
    for one in diagnostics {
        let one = diagnostic(one);
        bytes += one.encoded_len() + 4;
        if bytes > DETAILS_BYTES_MAX - message.len().min(DETAILS_BYTES_MAX / 2) * 2 {
            break;
        }
        list.diagnostics.push(one);
    }
    let inputs = !diagnostics.is_empty() && diagnostics.iter().filter(|one| one.severity == Severity::Error).all(|one| one.path.is_empty());
    let reason = if inputs { "INPUTS_INVALID" } else { "WORKFLOW_INVALID" };
    let mut problem = Problem::new(Code::InvalidArgument, reason, message).with("diagnostic_count", diagnostics.len());
    problem.details.push(any("wren.v1.DiagnosticList", &list));
    problem.status()
}

/// Returns a diagnostic as the API shows it.
pub fn diagnostic(diagnostic: &Diagnostic) -> v1::Diagnostic {
    let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    v1::Diagnostic {
        severity: match diagnostic.severity {
            Severity::Error => v1::Severity::Error,
            Severity::Warning => v1::Severity::Warning,
        }
        .into(),
        code: diagnostic.code.to_owned(),
        message: diagnostic.message.clone(),
        path: diagnostic.path.clone(),
        line: number(diagnostic.line),
        column: number(diagnostic.column),
        end_line: number(diagnostic.end_line),
        end_column: number(diagnostic.end_column),
        pointer: diagnostic.pointer.clone(),
        suggestion: diagnostic.suggestion.clone(),
        help: diagnostic.help.clone(),
        source_line: diagnostic.source_line.clone(),
    }
}

fn any(name: &str, message: &impl Message) -> Any {
    Any { type_url: format!("type.googleapis.com/{name}"), value: message.encode_to_vec() }
}
