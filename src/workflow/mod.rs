//! Workflows: YAML into checked types, every fault at once and each with its place; templates; what an agent is told.
//!
//! This room reads text and returns values. It opens no file, asks no provider and keeps no state: what it must know
//! of the world comes in as [`World`].

mod check;
mod diagnostic;
mod document;
mod inputs;
mod output;
mod plan;
mod scalar;
mod scan;
mod schema;
mod secrets;
mod template;

use std::collections::BTreeMap;

use crate::kernel::agent::{KnownModel, LimitsPatch};
use crate::kernel::{AgentSpec, Limits, ToolSpec};

pub use check::load;
pub use output::read_output;
pub use plan::Plan;
pub use schema::schema;

/// A workflow's text: the entry file and the files that it names, as the client bundled them.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// The path of the entry file, as people should see it in messages.
    pub entry: String,
    /// The files by path.
    pub files: BTreeMap<String, Vec<u8>>,
}

/// What a workflow may refer to.
pub struct World<'a> {
    /// What is known of (provider, model).
    pub model: &'a dyn Fn(&str, &str) -> KnownModel,
    /// The names of the providers that exist, `scripted` included.
    pub providers: &'a [String],
    /// The operations of a `files` tool; their `source` is empty.
    pub files_operations: &'a [ToolSpec],
    /// Limits that no root run may exceed.
    pub ceilings: Limits,
}

/// What a submitter changes in a workflow.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Alias to `provider/model`.
    pub models: BTreeMap<String, String>,
    /// Whether every model is replaced by a mock.
    pub mock: bool,
}

/// How bad a [`Diagnostic`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The workflow cannot be run.
    Error,
    /// It can, but something is doubtful.
    Warning,
}

/// Something wrong, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad.
    pub severity: Severity,
    /// A stable code: `W012`.
    pub code: &'static str,
    /// What is wrong, as a fragment.
    pub message: String,
    /// The file.
    pub path: String,
    /// From 1; 0 if the place is not known. Likewise below.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
    /// The line of the end.
    pub end_line: u32,
    /// The column after the end.
    pub end_column: u32,
    /// JSON pointer into the document.
    pub pointer: String,
    /// What was probably meant; may be empty.
    pub suggestion: String,
    /// What is allowed, or what to do; may be empty.
    pub help: String,
    /// The line of the document; may be empty.
    pub source_line: String,
}

/// An agent ready to be started.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The agent.
    pub agent: AgentSpec,
    /// Its first message.
    pub prompt: String,
    /// The limits that the workflow sets for it.
    pub limits: LimitsPatch,
}
