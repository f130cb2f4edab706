//! The read-only file operations: `list_files`, `read_file`, `search_files`. All of them stay inside a held directory.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::directory::{Directory, Listing};
use super::{Ctx, Failure, Tool, read, search};
use crate::kernel::{Effect, ToolSpec};

/// Entries that a listing shows at most.
const LISTED_MAX: usize = 500;

/// Returns the operations with their schemas; the tools entry that offers them fills in their source.
pub fn files_operations() -> Vec<ToolSpec> {
    let operation = |name: &str, description: &str, properties: Value, required: &[&str]| ToolSpec {
        name: name.to_owned(),
        description: description.to_owned(),
        parameters: json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false}),
        effect: Effect::ReadOnly,
        source: String::new(),
        spawn: None,
    };
    vec![
        operation(
            "list_files",
            "Lists files and directories with their sizes in bytes.",
            json!({
                "path": {"type": "string", "description": "Directory to list, relative to the root. Default: the root."},
                "depth": {"type": "integer", "minimum": 1, "maximum": 16, "description": "Levels to show. Default 2."}
            }),
            &[],
        ),
        operation(
            "read_file",
            "Reads a text file, whole or a range of its lines.",
            json!({
                "path": {"type": "string", "description": "File to read, relative to the root."},
                "start_line": {"type": "integer", "minimum": 1, "description": "First line, from 1."},
                "end_line": {"type": "integer", "minimum": 1, "description": "Last line, included."}
            }),
            &["path"],
        ),
        operation(
            "search_files",
            "Searches files line by line for a regular expression. Gives path:line: text.",
            json!({
                "pattern": {"type": "string", "minLength": 1, "description": "Regular expression."},
                "path": {"type": "string", "description": "File or directory to search. Default: the root."},
                "glob": {"type": "string", "description": "Only files whose path matches, such as *.log."},
                "max_results": {"type": "integer", "minimum": 1, "maximum": 1000, "description": "Default 100."}
            }),
            &["pattern"],
        ),
    ]
}

/// One operation on one held directory.
pub struct FilesTool {
    directory: Arc<Directory>,
    operation: Operation,
}

#[derive(Clone, Copy)]
enum Operation {
    List,
    Read,
    Search,
}

impl FilesTool {
    /// Returns the operation of that name.
    pub fn new(directory: Arc<Directory>, name: &str) -> Option<Self> {
        let operation = match name {
            "list_files" => Operation::List,
            "read_file" => Operation::Read,
            "search_files" => Operation::Search,
            _ => return None,
        };
        Some(Self { directory, operation })
    }
}

impl Tool for FilesTool {
    fn run(&self, args: Value, ctx: Ctx) -> BoxFuture<'static, Result<String, Failure>> {
        let (directory, operation) = (self.directory.clone(), self.operation);
        Box::pin(async move {
            let work = tokio::task::spawn_blocking(move || match operation {
                Operation::List => list(&directory, &args, &ctx),
                Operation::Read => read::read(&directory, &args, &ctx),
                Operation::Search => search::search(&directory, &args, &ctx),
            });
            work.await.unwrap_or_else(|error| Err(Failure(format!("it stopped unexpectedly: {error}"))))
        })
    }
}

/// Returns a text argument, or its default.
pub fn text_arg<'a>(args: &'a Value, name: &str, default: &'a str) -> &'a str {
    args.get(name).and_then(Value::as_str).unwrap_or(default)
}

/// Returns a whole-number argument, if given.
pub fn number_arg(args: &Value, name: &str) -> Option<u64> {
    // A schema's integer may be written 3.0.
    let value = args.get(name)?;
    value.as_u64().or_else(|| value.as_f64().filter(|number| *number >= 0.0 && *number < 1e15).map(|number| number as u64))
}

fn list(directory: &Directory, args: &Value, ctx: &Ctx) -> Result<String, Failure> {
    let path = text_arg(args, "path", ".");
    let depth = number_arg(args, "depth").and_then(|depth| u32::try_from(depth).ok()).unwrap_or(2);
    let Listing { entries, more } = directory.list(path, depth, LISTED_MAX, &ctx.token)?;
    if entries.is_empty() {
        return Ok(format!("{path} is empty."));
    }
    let lines = entries
        .iter()
        .map(|entry| if entry.is_dir { format!("{}/", entry.path) } else { format!("{}  {} bytes", entry.path, entry.bytes) });
    let mut text = lines.collect::<Vec<_>>().join("\n");
    if more {
        text.push_str(&format!("\n[only {LISTED_MAX} entries are shown; list a directory below, or a smaller depth]"));
    }
    Ok(text)
}
