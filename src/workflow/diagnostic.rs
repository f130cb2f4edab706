//! Faults with their places: collected, put in order, and rendered for people.

use std::fmt::Write;

use super::scan::{Place, Refused, SourceMap};
use super::secrets::{looks_secret, without_keys};
use super::{Diagnostic, Severity};

/// Collects the faults of one document.
pub struct Faults<'a> {
    path: &'a str,
    map: &'a SourceMap,
    lines: Vec<&'a str>,
    found: Vec<Diagnostic>,
    /// How many more there were than are kept.
    more: usize,
    /// Whether there is an error among those that are not kept.
    is_worse: bool,
    spare: Option<Diagnostic>,
}

/// Faults that are kept: a document with more is hostile, or not a workflow at all.
const FAULTS_MAX: usize = 100;
/// Characters of any part of a fault at most, whatever a document puts into it.
const PART_CHARS_MAX: usize = 400;

/// Which part of a value a fault points at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// The key.
    Key,
    /// The value.
    Value,
}

impl<'a> Faults<'a> {
    /// Begins a collection.
    pub fn new(path: &'a str, text: &'a str, map: &'a SourceMap) -> Self {
        Self { path, map, lines: text.lines().collect(), found: Vec::new(), more: 0, is_worse: false, spare: None }
    }

    /// Adds an error at a value.
    pub fn error(&mut self, code: &'static str, pointer: &str, message: impl Into<String>) -> &mut Diagnostic {
        self.push(Severity::Error, code, pointer, At::Value, message.into())
    }

    /// Adds an error at a key.
    pub fn key_error(&mut self, code: &'static str, pointer: &str, message: impl Into<String>) -> &mut Diagnostic {
        self.push(Severity::Error, code, pointer, At::Key, message.into())
    }

    /// Adds a warning at a value's key.
    pub fn warning(&mut self, code: &'static str, pointer: &str, message: impl Into<String>) -> &mut Diagnostic {
        self.push(Severity::Warning, code, pointer, At::Key, message.into())
    }

    fn push(&mut self, severity: Severity, code: &'static str, pointer: &str, at: At, message: String) -> &mut Diagnostic {
        if self.found.len() >= FAULTS_MAX {
            // Nobody will see it, so nothing is looked up for it; only whether it is an error matters.
            self.more += 1;
            self.is_worse |= severity == Severity::Error;
            return self.spare.insert(diagnostic(severity, code, String::new(), self.path, Place::default(), "", String::new()));
        }
        let place = self.place(pointer, at);
        let index = usize::try_from(place.line).unwrap_or(0).saturating_sub(1);
        let line = shown_line(self.lines.get(index).copied().unwrap_or(""));
        let fault = diagnostic(severity, code, message, self.path, place, pointer, line);
        let last = self.found.len();
        self.found.push(fault);
        &mut self.found[last]
    }

    /// Returns where a value stands: itself or, where it is missing, the nearest value around it.
    fn place(&self, pointer: &str, at: At) -> Place {
        let mut pointer = pointer;
        loop {
            if let Some(node) = self.map.get(pointer) {
                return match (at, node.key) {
                    (At::Key, Some(key)) => key,
                    // A collection is shown by its key: its own extent is many lines.
                    (At::Value, Some(key)) if node.text.is_none() => key,
                    (At::Key | At::Value, _) => node.value,
                };
            }
            match pointer.rfind('/') {
                Some(cut) => pointer = &pointer[..cut],
                None => return Place { line: 1, column: 1, end_line: 1, end_column: 1 },
            }
        }
    }

    /// Returns whether there is an error among the faults.
    pub fn has_errors(&self) -> bool {
        self.is_worse || self.found.iter().any(|fault| fault.severity == Severity::Error)
    }

    /// Returns whether an error with this code is at this place.
    pub fn is_refused(&self, code: &str, pointer: &str) -> bool {
        self.found.iter().any(|fault| fault.code == code && fault.pointer == pointer)
    }

    /// Returns a scalar as it was written.
    pub fn source_of(&self, pointer: &str) -> Option<&'a str> {
        self.map.get(pointer)?.text.as_deref()
    }

    /// Returns the faults in the order of their places.
    pub fn into_sorted(self) -> Vec<Diagnostic> {
        let mut found: Vec<Diagnostic> = self.found.into_iter().map(bounded).collect();
        found.sort_by_key(|fault| (fault.line, fault.column));
        found.dedup();
        if self.more > 0 {
            let mut more = placeless("W050", self.path, format!("{} more faults are not shown", self.more), String::new());
            if !self.is_worse {
                more.severity = Severity::Warning;
            }
            found.push(more);
        }
        found
    }
}

/// Returns a fault that the scan found.
pub fn of_refused(refused: Refused, path: &str, text: &str) -> Diagnostic {
    let line = source_line(text, refused.place.line);
    let mut fault = diagnostic(Severity::Error, refused.code, refused.message, path, refused.place, "", line);
    fault.help = refused.help;
    bounded(fault)
}

/// Returns a fault as it may leave the room: no part long, and no secret in any of them.
fn bounded(mut fault: Diagnostic) -> Diagnostic {
    for part in [&mut fault.message, &mut fault.pointer, &mut fault.suggestion, &mut fault.help] {
        *part = without_keys(part);
        if let Some((cut, _)) = part.char_indices().nth(PART_CHARS_MAX) {
            part.truncate(cut);
            part.push('…');
        }
    }
    fault
}

/// Returns a fault without a place in a document.
pub fn placeless(code: &'static str, path: &str, message: String, help: String) -> Diagnostic {
    let mut fault = diagnostic(Severity::Error, code, message, path, Place::default(), "", String::new());
    fault.help = help;
    bounded(fault)
}

fn diagnostic(
    severity: Severity,
    code: &'static str,
    message: String,
    path: &str,
    place: Place,
    pointer: &str,
    line: String,
) -> Diagnostic {
    Diagnostic {
        severity,
        code,
        message,
        path: path.to_owned(),
        line: place.line,
        column: place.column,
        end_line: place.end_line,
        end_column: place.end_column,
        pointer: pointer.to_owned(),
        suggestion: String::new(),
        help: String::new(),
        source_line: line,
    }
}

/// Returns a line as it may be shown: within bounds, and nothing that looks like a key.
fn source_line(text: &str, line: u32) -> String {
    let index = usize::try_from(line).unwrap_or(0).saturating_sub(1);
    shown_line(text.lines().nth(index).unwrap_or(""))
}

fn shown_line(line: &str) -> String {
    /// How much of a line is shown.
    const CHARS_MAX: usize = 200;
    /// How much of it is looked at: what is cut off at the end of the shown part may be a key's middle.
    const LOOKED_AT_MAX: usize = 2 * CHARS_MAX;
    let looked_at = line.char_indices().nth(LOOKED_AT_MAX).and_then(|(cut, _)| line.get(..cut)).unwrap_or(line);
    if looks_secret(looked_at) {
        return String::new();
    }
    looked_at.chars().filter(|char| !char.is_control() || *char == '\t').take(CHARS_MAX).collect()
}

/// Returns the name that was probably meant.
pub fn nearest<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let scored = known.into_iter().map(|known| (strsim::jaro_winkler(name, known), known));
    let best = scored.filter(|(score, _)| *score >= 0.8).max_by(|left, right| left.0.total_cmp(&right.0));
    best.map(|(_, known)| known)
}

impl Diagnostic {
    /// Returns the fault as people read it, with the line of the document and a caret under the place.
    pub fn render(&self) -> String {
        let kind = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let mut text = format!("{kind}[{}]: {}\n", self.code, self.message);
        // Writing to a String cannot fail.
        if self.line == 0 {
            if !self.path.is_empty() {
                let _ = writeln!(text, "  --> {}", self.path);
            }
        } else {
            let _ = writeln!(text, "  --> {}:{}:{}", self.path, self.line, self.column);
        }
        let mut notes = Vec::new();
        if !self.suggestion.is_empty() {
            notes.push(format!("did you mean `{}`?", self.suggestion));
        }
        if !self.help.is_empty() {
            notes.push(self.help.clone());
        }
        let notes = notes.join("   ");
        if self.source_line.is_empty() {
            if !notes.is_empty() {
                let _ = writeln!(text, "   = {notes}");
            }
            return text;
        }
        let gutter = self.line.to_string();
        let shown = u32::try_from(self.source_line.chars().count()).unwrap_or(u32::MAX);
        if self.column > shown.saturating_add(1) {
            // The place lies behind what is shown of a long line.
            let _ = writeln!(text, "{gutter} | {}…", self.source_line);
            if !notes.is_empty() {
                let _ = writeln!(text, "   = {notes}");
            }
            return text;
        }
        let wide = if self.end_line == self.line { self.end_column.saturating_sub(self.column).max(1) } else { 1 };
        let pad = " ".repeat(usize::try_from(self.column.saturating_sub(1)).unwrap_or(0));
        let carets = "^".repeat(usize::try_from(wide.min(120)).unwrap_or(1));
        let _ = writeln!(text, "{gutter} | {}", self.source_line);
        let _ = writeln!(text, "{} | {pad}{carets} {notes}", " ".repeat(gutter.len()));
        text.truncate(text.trim_end().len());
        text.push('\n');
        text
    }
}
