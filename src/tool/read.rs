//! `read_file`: a text file, whole or a range of its lines, within bounds of memory and time whatever the file's size.

use std::io::{self, BufRead, BufReader, Read};

use serde_json::Value;

use super::directory::Directory;
use super::files::{number_arg, text_arg};
use super::watched::{Watched, cancelled};
use super::{Ctx, Failure};

/// Bytes of a file that are held, at most.
const HELD_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Bytes of a file that are gone through for a line or a match, at most.
pub const SCANNED_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Bytes at the start of a file in which a NUL means that it is no text.
const PROBED_BYTES: usize = 8_000;

/// Reads.
pub fn read(directory: &Directory, args: &Value, ctx: &Ctx) -> Result<String, Failure> {
    let path = text_arg(args, "path", "");
    let (start, end) = (number_arg(args, "start_line"), number_arg(args, "end_line"));
    if let (Some(start), Some(end)) = (start, end)
        && end < start
    {
        return Err(Failure(format!("end_line {end} is before start_line {start}.")));
    }
    let (file, size) = directory.file(path)?;
    let failed = |error: io::Error| {
        if ctx.token.is_cancelled() { cancelled() } else { Failure(format!("{path} cannot be read: {error}.")) }
    };
    let mut reader = BufReader::with_capacity(64 * 1024, Watched::new(file.take(SCANNED_BYTES_MAX), &ctx.token));
    let probe = reader.fill_buf().map_err(failed)?;
    if probe.iter().take(PROBED_BYTES).any(|byte| *byte == 0) {
        return Err(Failure(format!("{path} is a binary file of {size} bytes and is not shown.")));
    }
    if start.is_none() && end.is_none() {
        let mut bytes = Vec::new();
        reader.take(HELD_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
        return Ok(whole(path, size, &bytes));
    }
    let (start, end) = (start.unwrap_or(1).max(1), end.unwrap_or(u64::MAX));
    let range = range(&mut reader, start, end).map_err(failed)?;
    if range.bytes.is_empty() {
        let seen = if size > SCANNED_BYTES_MAX { format!(" in its first {SCANNED_BYTES_MAX} bytes") } else { String::new() };
        return Err(Failure(format!("{path} has {} lines{seen}; start_line {start} is past its end.", range.lines_before)));
    }
    let text = String::from_utf8_lossy(&range.bytes);
    let mut shown = text.lines().collect::<Vec<_>>().join("\n");
    if range.cut {
        shown.push_str(&format!("\n[more than {HELD_BYTES_MAX} bytes; ask for fewer lines]"));
    }
    Ok(shown)
}

fn whole(path: &str, size: u64, bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return format!("{path} is empty.");
    }
    let mut text = String::from_utf8_lossy(bytes).into_owned();
    if size > HELD_BYTES_MAX {
        text.push_str(&format!(
            "\n[the file has {size} bytes; these are from its first {HELD_BYTES_MAX}. For the rest give start_line and end_line; search_files tells line numbers]"
        ));
    }
    text
}

struct Range {
    bytes: Vec<u8>,
    /// How many lines there are before the range.
    lines_before: u64,
    /// Whether the range was longer than is held.
    cut: bool,
}

fn range(reader: &mut impl BufRead, start: u64, end: u64) -> io::Result<Range> {
    let mut range = Range { bytes: Vec::new(), lines_before: 0, cut: false };
    while range.lines_before + 1 < start {
        if reader.skip_until(b'\n')? == 0 {
            return Ok(range);
        }
        range.lines_before += 1;
    }
    let mut room = reader.take(HELD_BYTES_MAX);
    for _ in start..=end {
        if room.read_until(b'\n', &mut range.bytes)? == 0 {
            break;
        }
    }
    range.cut = room.limit() == 0;
    Ok(range)
}
