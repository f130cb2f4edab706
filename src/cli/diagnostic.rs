//! Diagnostics as text: the message, the place, the line with a caret, the help. Pure.

use super::error::Said;
use super::view::{Paint, text};
use crate::wire::v1::{Diagnostic, Severity};

/// Returns an error as it is said on stderr.
pub fn error(said: &Said, paint: Paint) -> String {
    let mut out = String::new();
    if said.diagnostics.is_empty() {
        out.push_str(&format!("{} {}\n", paint.red("error:"), text::clean(&said.message)));
    } else {
        out.push_str(&list(&said.diagnostics, paint));
        let unseen = said.diagnostic_count.saturating_sub(said.diagnostics.len());
        if unseen > 0 {
            out.push_str(&format!("{unseen} more did not fit into the answer; mend these first\n"));
        }
    }
    for hint in &said.hints {
        out.push_str(&format!("{} {}\n", paint.cyan("next:"), text::clean(hint)));
    }
    out
}

/// Returns diagnostics, one after the other, with their number.
pub fn list(diagnostics: &[Diagnostic], paint: Paint) -> String {
    let mut out: String = diagnostics.iter().map(|diagnostic| one(diagnostic, paint) + "\n").collect();
    let count = |severity: Severity| diagnostics.iter().filter(|diagnostic| diagnostic.severity() == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let parts = [(errors, "error"), (warnings, "warning")];
    let parts: Vec<String> = parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| text::plural(*count, what)).collect();
    if !parts.is_empty() {
        out.push_str(&format!("{}\n", parts.join(", ")));
    }
    out
}

/// Returns one diagnostic.
pub fn one(diagnostic: &Diagnostic, paint: Paint) -> String {
    let code = if diagnostic.code.is_empty() { String::new() } else { format!("[{}]", diagnostic.code) };
    let head = match diagnostic.severity() {
        Severity::Warning => paint.yellow(&format!("warning{code}:")),
        Severity::Error | Severity::Unspecified => paint.red(&format!("error{code}:")),
    };
    let mut out = format!("{head} {}\n", paint.bold(&text::clean(&diagnostic.message)));
    let number = diagnostic.line.to_string();
    let margin = " ".repeat(if diagnostic.line > 0 { number.len() } else { 1 });
    let place = place(diagnostic);
    if !place.is_empty() {
        out.push_str(&format!("{margin}{} {place}\n", paint.cyan("-->")));
    }
    if diagnostic.line > 0 && !diagnostic.source_line.is_empty() {
        out.push_str(&format!("{margin} {bar}\n", bar = paint.cyan("|")));
        out.push_str(&format!("{} {} {}\n", paint.cyan(&number), paint.cyan("|"), shown(&diagnostic.source_line)));
        let (blank, carets) = caret(diagnostic);
        out.push_str(&format!("{margin} {} {blank}{}\n", paint.cyan("|"), paint.red(&carets)));
    }
    if !diagnostic.suggestion.is_empty() {
        out.push_str(&format!("{margin} = did you mean `{}`?\n", text::clean(&diagnostic.suggestion)));
    }
    if !diagnostic.help.is_empty() {
        out.push_str(&format!("{margin} = help: {}\n", text::clean(&diagnostic.help)));
    }
    out
}

fn place(diagnostic: &Diagnostic) -> String {
    let path = text::clean(&diagnostic.path);
    match (path.is_empty(), diagnostic.line) {
        (true, line) if line <= 0 => String::new(),
        (_, line) if line <= 0 => path,
        (_, line) => format!("{path}:{line}:{}", diagnostic.column.max(1)),
    }
}

/// A tab is shown as one blank, so that columns and cells agree.
fn shown(line: &str) -> String {
    text::clean(&line.replace('\t', " "))
}

fn caret(diagnostic: &Diagnostic) -> (String, String) {
    let chars: Vec<char> = diagnostic.source_line.chars().collect();
    let start = usize::try_from(diagnostic.column.max(1) - 1).unwrap_or(0).min(chars.len());
    let same_line = diagnostic.end_line == diagnostic.line || diagnostic.end_line == 0;
    let end = if same_line { usize::try_from(diagnostic.end_column.max(1) - 1).unwrap_or(0) } else { chars.len() };
    let end = end.clamp(start, chars.len().max(start));
    // Wide characters take two cells, so cells are measured rather than characters counted.
    let width = |part: Option<&[char]>| text::width(&shown(&part.unwrap_or_default().iter().collect::<String>()));
    (" ".repeat(width(chars.get(..start))), "^".repeat(width(chars.get(start..end)).max(1)))
}
