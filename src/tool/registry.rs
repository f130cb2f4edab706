//! The tools of one tree: opened once, arguments checked against their schemas, results within bounds, panics contained.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::directory::Directory;
use super::files::FilesTool;
use super::output::cap;
use super::scripted::PlayedTool;
use super::{Ctx, Tool};
use crate::kernel::{ToolSource, ToolSpec};

/// Faults of one call's arguments that are told, at most.
const FAULTS_MAX: usize = 16;
/// Characters of one fault, at most.
const FAULT_CHARS_MAX: usize = 300;

/// The tools of one tree.
pub struct Registry {
    sources: HashMap<String, Source>,
    /// Compiled schemas by (source, operation): a schema is compiled once, at its first call.
    validators: Mutex<HashMap<(String, String), Arc<jsonschema::Validator>>>,
}

enum Source {
    Files(Arc<Directory>),
    Played(Arc<dyn Tool>),
    Subagent,
}

/// What a call came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Whether the tool did what was asked.
    pub ok: bool,
    /// What the model reads.
    pub output: String,
    /// How many characters of the tool's output were left out.
    pub omitted_chars: u64,
}

/// Why a tool cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tool {tool:?}: {why}")]
pub struct OpenError {
    /// The key of its entry.
    pub tool: String,
    /// Why, and what to do.
    pub why: String,
}

impl Registry {
    /// Opens the tools. File roots are held from here on.
    ///
    /// # Errors
    /// [`OpenError`] for the first tool that cannot be opened.
    pub fn open(sources: &[(String, ToolSource)], workspace: &Path, data_dir: &Path) -> Result<Self, OpenError> {
        let mut opened = HashMap::new();
        for (key, source) in sources {
            let failed = |why: String| OpenError { tool: key.clone(), why };
            let source = match source {
                ToolSource::Files { root } => {
                    let directory = Directory::open(workspace, root).map_err(failed)?;
                    Source::Files(Arc::new(directory))
                }
                ToolSource::Scripted(script) => Source::Played(Arc::new(PlayedTool::new(script.clone(), data_dir).map_err(failed)?)),
                ToolSource::Subagent => Source::Subagent,
            };
            opened.insert(key.clone(), source);
        }
        Ok(Self { sources: opened, validators: Mutex::default() })
    }

    /// Checks a call's arguments.
    ///
    /// # Errors
    /// Every fault, in words that tell the model what to send instead.
    pub fn check(&self, spec: &ToolSpec, args: &Value) -> Result<(), String> {
        let validator = self.validator(spec)?;
        let mut faults: Vec<String> = validator.iter_errors(args).take(FAULTS_MAX + 1).map(|error| fault(&error)).collect();
        if faults.is_empty() {
            return Ok(());
        }
        if faults.len() > FAULTS_MAX {
            faults.truncate(FAULTS_MAX);
            faults.push("and more".to_owned());
        }
        Err(format!(
            "The arguments of {:?} are not valid: {}. They must fit this schema: {}",
            spec.name,
            faults.join("; "),
            spec.parameters
        ))
    }

    fn validator(&self, spec: &ToolSpec) -> Result<Arc<jsonschema::Validator>, String> {
        let key = (spec.source.clone(), spec.name.clone());
        let mut validators = self.validators.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(validator) = validators.get(&key) {
            return Ok(validator.clone());
        }
        let validator =
            jsonschema::validator_for(&spec.parameters).map_err(|error| format!("the schema of {:?} is broken: {error}", spec.name))?;
        let validator = Arc::new(validator);
        validators.insert(key, validator.clone());
        Ok(validator)
    }

    /// Runs one call whose arguments were checked. It never fails: what goes wrong is said in its output.
    pub fn run(&self, spec: &ToolSpec, args: Value, ctx: Ctx) -> BoxFuture<'static, Finished> {
        let name = spec.name.clone();
        let tool: Option<Arc<dyn Tool>> = match self.sources.get(&spec.source) {
            Some(Source::Files(directory)) => FilesTool::new(directory.clone(), &spec.name).map(|tool| Arc::new(tool) as Arc<dyn Tool>),
            Some(Source::Played(tool)) => Some(tool.clone()),
            Some(Source::Subagent) | None => None,
        };
        let Some(tool) = tool else {
            let output = format!("Tool {name:?} failed: it is not open in this run.");
            return Box::pin(async move { Finished { ok: false, output, omitted_chars: 0 } });
        };
        Box::pin(async move {
            let ran = AssertUnwindSafe(async { tool.run(args, ctx).await }).catch_unwind().await;
            let (ok, output) = match ran {
                Ok(Ok(output)) => (true, output),
                Ok(Err(failure)) => (false, format!("Tool {name:?} failed: {failure}")),
                Err(panic) => (false, format!("Tool {name:?} failed: it panicked: {}", panic_words(&*panic))),
            };
            let (output, omitted_chars) = cap(output, how_to_ask(&name));
            Finished { ok, output, omitted_chars }
        })
    }
}

/// Says which argument is wrong and how. Arguments can be of any size, and a fault quotes what it found.
fn fault(error: &jsonschema::ValidationError<'_>) -> String {
    let at = error.instance_path().to_string();
    let mut what = error.to_string();
    if what.chars().nth(FAULT_CHARS_MAX).is_some() {
        what = error.masked_with("the value").to_string().chars().take(FAULT_CHARS_MAX).collect();
    }
    if at.is_empty() { what } else { format!("{}: {what}", at.trim_start_matches('/')) }
}

fn how_to_ask(tool: &str) -> &'static str {
    match tool {
        "read_file" => "Ask for a range with start_line and end_line.",
        "search_files" => "Use a narrower pattern, a glob, or a smaller max_results.",
        "list_files" => "List a directory below, or a smaller depth.",
        _ => "Ask for less.",
    }
}

fn panic_words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}
