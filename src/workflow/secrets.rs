//! What looks like a secret in a document: found by its form or by the name it stands under, refused, and never repeated.
//! It recognises forms, not values: what the daemon's own keys are is not known here.

use super::diagnostic::Faults;
use super::scan::SourceMap;

/// How the keys of well-known services begin.
const PREFIXES: [&str; 8] = ["sk-", "sk_live_", "ghp_", "github_pat_", "xoxb-", "xoxp-", "AKIA", "AIza"];
/// Characters after the beginning from which on it is a key and not a word.
const KEY_CHARS_MIN: usize = 12;
/// Names under which secrets stand.
const NAMES: [&str; 6] = ["api_key", "apikey", "api-key", "secret", "password", "access_token"];
/// What to do instead.
const HELP: &str = "set the provider's variable (such as OPENAI_API_KEY) where wrend runs";

/// Returns the bytes of the first key in a text.
fn find_key(text: &str, from: usize) -> Option<std::ops::Range<usize>> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let bytes = text.as_bytes();
    let starts = (from..bytes.len()).filter(|start| *start == 0 || bytes.get(start - 1).is_some_and(|before| !is_part(*before)));
    for start in starts {
        let Some(rest) = bytes.get(start..) else { continue };
        for prefix in PREFIXES.iter().filter(|prefix| rest.starts_with(prefix.as_bytes())) {
            let length = rest.iter().take_while(|byte| is_part(**byte)).count();
            if length >= prefix.len() + KEY_CHARS_MIN {
                return Some(start..start + length);
            }
        }
    }
    None
}

/// Returns a text as it may be shown: an ellipsis for each key in it.
pub fn without_keys(text: &str) -> String {
    let mut shown = String::new();
    let mut from = 0;
    while let Some(key) = find_key(text, from) {
        shown.push_str(text.get(from..key.start).unwrap_or(""));
        shown.push('…');
        from = key.end;
    }
    shown.push_str(text.get(from..).unwrap_or(""));
    shown
}

/// Returns whether a name is one that secrets stand under.
pub fn is_secret_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    NAMES.iter().any(|word| lower.contains(word))
}

/// Returns whether a name or a line speaks of a secret, so that it is not shown.
pub fn looks_secret(text: &str) -> bool {
    is_secret_name(text) || find_key(text, 0).is_some()
}

/// Refuses keys, and texts under names that speak of a secret, at any depth, without showing them.
pub fn check(map: &SourceMap, faults: &mut Faults<'_>) {
    let mut found: Vec<(&String, bool)> = Vec::new();
    for (pointer, node) in map {
        let name = pointer.rsplit_once('/').map_or("", |(_, name)| name);
        let text = node.text.as_deref().unwrap_or("");
        if find_key(name, 0).is_some() {
            found.push((pointer, true));
        } else if find_key(text, 0).is_some() || (!text.is_empty() && is_secret_name(name)) {
            found.push((pointer, false));
        }
    }
    found.sort();
    for (pointer, is_key) in found {
        let message = "this looks like a secret, which does not belong in a workflow: keys stay with the daemon";
        let fault = if is_key { faults.key_error("W015", pointer, message) } else { faults.error("W015", pointer, message) };
        fault.help = HELP.to_owned();
        fault.source_line.clear();
    }
}

/// Refuses a field whose name speaks of a secret.
pub fn refuse_field(pointer: &str, faults: &mut Faults<'_>) {
    if faults.is_refused("W015", pointer) {
        return;
    }
    let message = "this field speaks of a secret, which does not belong in a workflow: keys stay with the daemon";
    let fault = faults.key_error("W015", pointer, message);
    fault.help = HELP.to_owned();
    fault.source_line.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_anywhere_and_words_are_not_keys() {
        for text in ["sk-live-0123456789ab", "use sk-live-0123456789ab now", "a.sk-live-0123456789ab/b", "Bearer:ghp_0123456789abcdef"] {
            assert!(!without_keys(text).contains("0123456789ab"), "{text}");
        }
        for text in ["sk-", "task-oriented-planning-of-work", "a desk-bound-clerk-in-town", "", "…sk-é"] {
            assert_eq!(without_keys(text), text);
        }
        assert_eq!(without_keys("é sk-live-0123456789ab ü AKIA0123456789ABCDEF"), "é … ü …");
    }
}
