//! `search_files`: a regular expression over the lines of files, with progress.

use globset::{Glob, GlobMatcher};
use grep::regex::RegexMatcher;
use grep::searcher::sinks::Lossy;
use grep::searcher::{BinaryDetection, SearcherBuilder};
use serde_json::Value;

use super::directory::Directory;
use super::files::{number_arg, text_arg};
use super::{Ctx, Failure, Progress};

/// Files that one search looks into, at most.
const FILES_MAX: usize = 20_000;
/// Levels below the path that are searched.
const DEPTH_MAX: u32 = 32;
/// How often progress is told, in files.
const PROGRESS_EVERY: usize = 200;
/// Characters of a line that are shown.
const LINE_CHARS_MAX: usize = 400;

/// Searches.
pub fn search(directory: &Directory, args: &Value, ctx: &Ctx) -> Result<String, Failure> {
    let pattern = text_arg(args, "pattern", "");
    let path = text_arg(args, "path", ".");
    let max = number_arg(args, "max_results").and_then(|max| usize::try_from(max).ok()).unwrap_or(100).max(1);
    let matcher = RegexMatcher::new_line_matcher(pattern).map_err(|error| {
        Failure(format!("the pattern is not a valid regular expression: {error}. Escape special characters with a backslash."))
    })?;
    let glob = args.get("glob").and_then(Value::as_str).map(matcher_of).transpose()?;
    let (files, more) = files_to_search(directory, path, glob.as_ref(), ctx)?;
    let mut found = Vec::new();
    let mut searcher = SearcherBuilder::new().line_number(true).binary_detection(BinaryDetection::quit(0)).build();
    for (index, file) in files.iter().enumerate() {
        if ctx.token.is_cancelled() {
            return Err(Failure("cancelled".to_owned()));
        }
        if index % PROGRESS_EVERY == 0 && index > 0 {
            tell(ctx, index, files.len());
        }
        // What cannot be opened (a link to outside, no permission) is no match.
        let Ok((handle, _)) = directory.file(file) else { continue };
        let sink = Lossy(|line, text| {
            let shown: String = text.trim_end().chars().take(LINE_CHARS_MAX).collect();
            found.push(format!("{file}:{line}: {shown}"));
            Ok(found.len() < max)
        });
        // A read that fails in the middle keeps what was found before it.
        let _ = searcher.search_file(&matcher, &handle, sink);
        if found.len() >= max {
            break;
        }
    }
    tell(ctx, files.len(), files.len());
    Ok(report(pattern, &found, max, files.len(), more))
}

fn report(pattern: &str, found: &[String], max: usize, files: usize, more: bool) -> String {
    if found.is_empty() {
        return format!("no line of {files} files matches {pattern:?}.");
    }
    let mut text = found.join("\n");
    if found.len() >= max {
        text.push_str(&format!("\n[stopped at {max} results; use a narrower pattern or a glob, or raise max_results]"));
    }
    if more {
        text.push_str(&format!("\n[only the first {FILES_MAX} files were looked at; search a directory below]"));
    }
    text
}

fn matcher_of(glob: &str) -> Result<GlobMatcher, Failure> {
    let parsed = Glob::new(glob).map_err(|error| Failure(format!("the glob is not valid: {error}.")))?;
    Ok(parsed.compile_matcher())
}

fn files_to_search(directory: &Directory, path: &str, glob: Option<&GlobMatcher>, ctx: &Ctx) -> Result<(Vec<String>, bool), Failure> {
    let listed = directory.list(path, DEPTH_MAX, FILES_MAX, &|| !ctx.token.is_cancelled());
    let (entries, more) = match listed {
        Ok(listed) => listed,
        // A path that is a file is searched alone.
        Err(failure) => match directory.file(path) {
            Ok(_) => return Ok((vec![path.to_owned()], false)),
            Err(_) => return Err(failure),
        },
    };
    let wanted =
        |path: &str| glob.is_none_or(|glob| glob.is_match(path) || path.rsplit('/').next().is_some_and(|name| glob.is_match(name)));
    Ok((entries.into_iter().filter(|entry| !entry.is_dir && wanted(&entry.path)).map(|entry| entry.path).collect(), more))
}

fn tell(ctx: &Ctx, done: usize, total: usize) {
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    (ctx.progress)(Progress { label: "scanned".to_owned(), done: count(done), total: count(total), unit: "files".to_owned() });
}
