//! Errors as people read them: what went wrong, and what to type next.

use prost::Message;
use tonic::{Code, Status};

use super::exit;
use crate::wire::v1;

/// Why a command did not do what was asked.
#[derive(Debug)]
pub struct Error {
    /// What is printed, without a newline at its end.
    pub message: String,
    /// The exit code.
    pub code: u8,
}

impl Error {
    /// An error with the general code.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: exit::ERROR }
    }

    /// Wrong usage.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: exit::USAGE }
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        let (reason, diagnostics) = details(&status);
        if !diagnostics.is_empty() {
            let faults: Vec<String> = diagnostics.iter().map(render).collect();
            return Self { message: faults.join("\n").trim_end().to_owned(), code: exit::INVALID };
        }
        let code = match (status.code(), reason.as_str()) {
            (_, "WORKFLOW_INVALID" | "INPUTS_INVALID") => exit::INVALID,
            (Code::Unauthenticated | Code::PermissionDenied, _) => exit::DENIED,
            _ => exit::ERROR,
        };
        let hint = match reason.as_str() {
            "RUN_NOT_SUSPENDED" => "\nhint: `wrenctl get RUN` shows how it stands",
            "LIMIT_STILL_EXCEEDED" => "\nhint: raise the limit, such as with `wrenctl resume RUN --budget …` or `--max-turns …`",
            "RUN_ENDED" => "\nhint: `wrenctl result RUN` prints what it came to",
            _ => "",
        };
        Self { message: format!("error: {}{hint}", status.message()), code }
    }
}

/// Reads the details of a status: the reason, and the faults of a workflow.
fn details(status: &Status) -> (String, Vec<v1::Diagnostic>) {
    let mut reason = String::new();
    let mut diagnostics = Vec::new();
    let Ok(rich) = tonic_types::pb::Status::decode(status.details()) else { return (reason, diagnostics) };
    for any in rich.details {
        if any.type_url.ends_with("google.rpc.ErrorInfo") {
            if let Ok(info) = tonic_types::pb::ErrorInfo::decode(&*any.value) {
                reason = info.reason;
            }
        } else if any.type_url.ends_with("wren.v1.DiagnosticList")
            && let Ok(list) = v1::DiagnosticList::decode(&*any.value)
        {
            diagnostics = list.diagnostics;
        }
    }
    (reason, diagnostics)
}

/// Returns a fault with its place, the line of the document and a caret.
pub fn render(fault: &v1::Diagnostic) -> String {
    let kind = if fault.severity() == v1::Severity::Warning { "warning" } else { "error" };
    let mut lines = vec![format!("{kind}[{}]: {}", fault.code, fault.message)];
    if fault.line > 0 {
        lines.push(format!("  --> {}:{}:{}", fault.path, fault.line, fault.column));
    } else if !fault.path.is_empty() {
        lines.push(format!("  --> {}", fault.path));
    }
    let mut notes = Vec::new();
    if !fault.suggestion.is_empty() {
        notes.push(format!("did you mean `{}`?", fault.suggestion));
    }
    if !fault.help.is_empty() {
        notes.push(fault.help.clone());
    }
    let notes = notes.join("   ");
    if fault.source_line.is_empty() {
        if !notes.is_empty() {
            lines.push(format!("   = {notes}"));
        }
    } else {
        let gutter = fault.line.to_string();
        let width = if fault.end_line == fault.line { (fault.end_column - fault.column).clamp(1, 120) } else { 1 };
        let pad = " ".repeat(usize::try_from(fault.column - 1).unwrap_or(0));
        let carets = "^".repeat(usize::try_from(width).unwrap_or(1));
        lines.push(format!("{gutter} | {}", fault.source_line));
        lines.push(format!("{} | {pad}{carets} {notes}", " ".repeat(gutter.len())).trim_end().to_owned());
    }
    lines.push(String::new());
    lines.join("\n")
}
