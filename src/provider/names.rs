//! The names of calls in a form that providers take back. It knows no tools, and changes no transcript.
//!
//! A model may call a tool by any name, even by none, and is told that there is no such tool. Providers refuse a request in
//! which such a call stands as it was made, and with it every later turn of the run.

use std::borrow::Cow;

/// The longest name that all of them take.
const NAME_BYTES_MAX: usize = 64;
/// What stands for no name at all.
const UNNAMED: &str = "unnamed";

/// Returns the name under which a call is sent back. A name that a tool can have stays as it is.
pub fn sendable(tool: &str) -> Cow<'_, str> {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '_' | '-');
    if tool.is_empty() {
        Cow::Borrowed(UNNAMED)
    } else if tool.len() <= NAME_BYTES_MAX && tool.chars().all(is_plain) {
        Cow::Borrowed(tool)
    } else {
        let plain = tool.chars().map(|char| if is_plain(char) { char } else { '_' });
        Cow::Owned(plain.take(NAME_BYTES_MAX).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::sendable;

    #[test]
    fn a_name_that_no_tool_has_becomes_one_that_every_provider_takes() {
        assert_eq!(sendable("read_file-2"), "read_file-2");
        assert_eq!(sendable(&"x".repeat(64)), "x".repeat(64));
        assert_eq!(sendable(""), "unnamed");
        assert_eq!(sendable("functions.read file"), "functions_read_file");
        assert_eq!(sendable("読む"), "__");
        assert_eq!(sendable(&"é".repeat(70)), "_".repeat(64));
    }
}
