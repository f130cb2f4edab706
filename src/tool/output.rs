//! The cap on what a tool may say to a model, and the note about what was left out. How a tool bounds what it reads is
//! its own business.

/// Characters of a result that a model gets at most, the note included.
pub const OUTPUT_CHARS_MAX: usize = 24_000;

/// How much of a capped result is taken from its end.
const TAIL_CHARS: usize = 6_000;
/// What is set aside for the note.
const NOTE_CHARS: usize = 300;

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
    let head_chars = OUTPUT_CHARS_MAX - TAIL_CHARS - NOTE_CHARS;
    let omitted = chars - head_chars - TAIL_CHARS;
    let head: String = output.chars().take(head_chars).collect();
    let tail: String = output.chars().skip(chars - TAIL_CHARS).collect();
    let note = format!("\n[… {omitted} characters left out here. {how_to_ask} …]\n");
    (format!("{head}{note}{tail}"), u64::try_from(omitted).unwrap_or(u64::MAX))
}
