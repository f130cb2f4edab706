//! `search_files`: a regular expression over the lines of files, with progress. It does not decide what may be opened:
//! every file is opened through the held directory.

use std::io::Read;

use globset::{Glob, GlobMatcher};
use grep::regex::{RegexMatcher, RegexMatcherBuilder};
use grep::searcher::sinks::Lossy;
use grep::searcher::{BinaryDetection, Searcher, SearcherBuilder};
use serde_json::Value;

use super::directory::Directory;
use super::files::{number_arg, text_arg};
use super::read::SCANNED_BYTES_MAX;
use super::watched::{Watched, cancelled};
use super::{Ctx, Failure, Progress};

/// Files and directories that one search looks at, at most.
const ENTRIES_MAX: usize = 20_000;
/// Levels below the path that are searched: as many as a path can have.
const DEPTH_MAX: u32 = 64;
/// How often progress is told, in files.
const PROGRESS_EVERY: usize = 200;
/// Characters of a line that are shown.
const LINE_CHARS_MAX: usize = 400;
/// Bytes of a line that is searched, at most: it is held in memory whole.
const LINE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes of a compiled pattern, at most: a short pattern can ask for gigabytes.
const PATTERN_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Files that are named for not having been searched.
const UNSEARCHED_SHOWN: usize = 5;

/// A search under way, and what it has come to.
struct Search<'a> {
    directory: &'a Directory,
    ctx: &'a Ctx,
    matcher: RegexMatcher,
    searcher: Searcher,
    /// Results to give, at most.
    max: usize,
    lines: Vec<String>,
    /// How many files were looked into.
    files: usize,
    /// Files that could not be searched, or not to their end, each with the reason.
    unsearched: Vec<String>,
}

/// Searches.
pub fn search(directory: &Directory, args: &Value, ctx: &Ctx) -> Result<String, Failure> {
    let pattern = text_arg(args, "pattern", "");
    let path = text_arg(args, "path", ".");
    let max = number_arg(args, "max_results").and_then(|max| usize::try_from(max).ok()).unwrap_or(100).max(1);
    let matcher = pattern_of(pattern)?;
    let glob = args.get("glob").and_then(Value::as_str).map(glob_of).transpose()?;
    let (files, more) = files_to_search(directory, path, glob.as_ref(), ctx)?;
    let searcher =
        SearcherBuilder::new().line_number(true).binary_detection(BinaryDetection::quit(0)).heap_limit(Some(LINE_BYTES_MAX)).build();
    let mut search = Search { directory, ctx, matcher, searcher, max, lines: Vec::new(), files: 0, unsearched: Vec::new() };
    for file in &files {
        if search.lines.len() >= max {
            break;
        }
        if search.files > 0 && search.files.is_multiple_of(PROGRESS_EVERY) {
            tell(ctx, search.files, files.len());
        }
        search.look_into(file);
        if ctx.token.is_cancelled() {
            return Err(cancelled());
        }
    }
    tell(ctx, search.files, files.len());
    Ok(search.report(pattern, more))
}

impl Search<'_> {
    fn look_into(&mut self, file: &str) {
        self.files += 1;
        let (handle, size) = match self.directory.file(file) {
            Ok(opened) => opened,
            Err(failure) => return self.unsearched.push(failure.to_string()),
        };
        let (lines, max) = (&mut self.lines, self.max);
        let sink = Lossy(|line, text| {
            let text = text.trim_end();
            let shown: String = text.chars().take(LINE_CHARS_MAX).collect();
            let cut = if shown.len() < text.len() { "…" } else { "" };
            lines.push(format!("{file}:{line}: {shown}{cut}"));
            Ok(lines.len() < max)
        });
        let reader = Watched::new(handle.take(SCANNED_BYTES_MAX), &self.ctx.token);
        if let Err(error) = self.searcher.search_reader(&self.matcher, reader, sink) {
            // The searcher's own words for a line that does not fit name a buffer, not the line.
            let why = if error.to_string().contains("allocation limit") {
                format!("it has a line of more than {LINE_BYTES_MAX} bytes")
            } else {
                error.to_string()
            };
            self.unsearched.push(format!("{file} was not searched to its end: {why}."));
        } else if size > SCANNED_BYTES_MAX && self.lines.len() < max {
            self.unsearched.push(format!("{file} was searched in its first {SCANNED_BYTES_MAX} bytes only, or is binary after its start."));
        }
    }

    fn report(&self, pattern: &str, more: bool) -> String {
        let mut text =
            if self.lines.is_empty() { format!("no line of {} files matches {pattern:?}.", self.files) } else { self.lines.join("\n") };
        if self.lines.len() >= self.max {
            text.push_str(&format!("\n[stopped at {} results; use a narrower pattern or a glob, or raise max_results]", self.max));
        }
        for note in self.unsearched.iter().take(UNSEARCHED_SHOWN) {
            text.push_str(&format!("\n[{note}]"));
        }
        if self.unsearched.len() > UNSEARCHED_SHOWN {
            text.push_str(&format!("\n[{} more files were not searched]", self.unsearched.len() - UNSEARCHED_SHOWN));
        }
        if more {
            text.push_str("\n[there are more files than one search looks at; search a directory below]");
        }
        text
    }
}

fn pattern_of(pattern: &str) -> Result<RegexMatcher, Failure> {
    let mut builder = RegexMatcherBuilder::new();
    builder.line_terminator(Some(b'\n')).size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
    builder.build(pattern).map_err(|error| {
        Failure(format!("the pattern is not a valid regular expression: {error}. Escape special characters with a backslash."))
    })
}

fn glob_of(glob: &str) -> Result<GlobMatcher, Failure> {
    let parsed = Glob::new(glob).map_err(|error| Failure(format!("the glob is not valid: {error}.")))?;
    Ok(parsed.compile_matcher())
}

fn files_to_search(directory: &Directory, path: &str, glob: Option<&GlobMatcher>, ctx: &Ctx) -> Result<(Vec<String>, bool), Failure> {
    let listing = match directory.list(path, DEPTH_MAX, ENTRIES_MAX, &ctx.token) {
        Ok(listing) => listing,
        // A path that is a file is searched alone.
        Err(failure) => match directory.file(path) {
            Ok(_) => return Ok((vec![path.to_owned()], false)),
            Err(_) => return Err(failure),
        },
    };
    let wanted =
        |path: &str| glob.is_none_or(|glob| glob.is_match(path) || path.rsplit('/').next().is_some_and(|name| glob.is_match(name)));
    let files = listing.entries.into_iter().filter(|entry| !entry.is_dir && wanted(&entry.path)).map(|entry| entry.path);
    Ok((files.collect(), listing.more))
}

fn tell(ctx: &Ctx, done: usize, total: usize) {
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    (ctx.progress)(Progress { label: "scanned".to_owned(), done: count(done), total: count(total), unit: "files".to_owned() });
}
