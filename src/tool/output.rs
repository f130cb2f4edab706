//! The cap on what a tool may say to a model, and the note about what was left out.

/// Characters of a result that a model gets at most.
pub const OUTPUT_CHARS_MAX: usize = 24_000;

/// How much of a capped result is taken from its end.
const TAIL_CHARS: usize = 6_000;

/// Returns the output within the cap, head and tail kept, and how many characters were left out.
pub fn cap(output: String, how_to_ask: &str) -> (String, u64) {
    // Bytes bound characters: most results need no counting.
    if output.len() <= OUTPUT_CHARS_MAX {
        return (output, 0);
    }
    let chars = output.chars().count();
    if chars <= OUTPUT_CHARS_MAX {
        return (output, 0);
    }
    let omitted = chars - OUTPUT_CHARS_MAX;
    let head: String = output.chars().take(OUTPUT_CHARS_MAX - TAIL_CHARS).collect();
    let tail: String = output.chars().skip(chars - TAIL_CHARS).collect();
    let note = format!("\n[… {omitted} characters left out here. {how_to_ask} …]\n");
    (format!("{head}{note}{tail}"), u64::try_from(omitted).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_left_alone_and_what_does_not_says_so() {
        assert_eq!(cap("é".repeat(OUTPUT_CHARS_MAX), "Ask for less."), ("é".repeat(OUTPUT_CHARS_MAX), 0));
        let (capped, omitted) = cap("a".repeat(OUTPUT_CHARS_MAX + 17), "Ask for less.");
        assert_eq!(omitted, 17);
        assert!(capped.contains("17 characters left out here. Ask for less."));
    }
}
