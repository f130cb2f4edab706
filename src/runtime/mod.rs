//! The runtime: carries out what the kernel decides, for one run ([`driver`]) and for the trees ([`supervisor`]).
//!
//! The supervisor is the only place in the crate that spawns tasks. Nobody outside this room touches the store, the
//! providers or the tools: the rpc room asks [`Runtime`].

mod calls;
mod circuit;
pub mod clock;
mod context;
pub mod driver;
pub mod feed;
pub mod journal;
mod limiter;
mod recovery;
mod submit;
pub mod supervisor;
pub mod tree;
mod turn;
mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::kernel::agent::LimitsPatch;
use crate::kernel::{CallId, Limits, Outcome, Recorded, RunId, State};
use crate::store;
use crate::workflow::Diagnostic;

pub use crate::store::{Error as StoreError, Page, Query, Row};
pub use supervisor::{Parts, Runtime};

/// What the runtime is told at its start.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where tools keep their logs.
    pub data_dir: PathBuf,
    /// Limits that no root run may exceed.
    pub ceilings: Limits,
    /// Model calls under way at once.
    pub turns_in_flight_max: usize,
    /// Trees that may be unfinished at once; a submission beyond that is refused.
    pub trees_max: usize,
    /// How long a drain waits for turn boundaries, in milliseconds.
    pub drain_timeout_ms: u64,
    /// Whether what an earlier daemon left unfinished goes on by itself. If not, each such run waits until it is resumed.
    pub takes_up: bool,
}

/// A workflow to be run, from a client.
#[derive(Clone, Debug, Default)]
pub struct Submission {
    /// The bundle's entry file.
    pub entry_path: String,
    /// The bundle's files by path.
    pub files: BTreeMap<String, Vec<u8>>,
    /// The inputs as a JSON object; empty for none.
    pub inputs_json: String,
    /// The client's id of this submission; empty for none.
    pub request_id: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Limits over the workflow's own.
    pub limits: LimitsPatch,
    /// Alias to `provider/model`.
    pub model_overrides: BTreeMap<String, String>,
    /// Whether every model is replaced by a mock.
    pub mock: bool,
    /// The directory of the file tools: an absolute path that the rpc room has allowed.
    pub workspace: PathBuf,
    /// Who submits.
    pub submitter: String,
    /// The caller's trace context (`traceparent` header), if it is trusted to be the parent.
    pub traceparent: Option<String>,
}

/// What a submission became.
#[derive(Clone, Debug)]
pub struct Submitted {
    /// The root run's row; `None` where it was only checked.
    pub row: Option<Row>,
    /// What it was understood as, with the limits that hold for it; `None` where it was accepted.
    pub checked: Option<CheckedWorkflow>,
    /// Whether the same request had created it before.
    pub deduplicated: bool,
    /// Warnings of the workflow.
    pub warnings: Vec<Diagnostic>,
}

/// What a workflow was understood as.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Everything that is wrong or doubtful.
    pub diagnostics: Vec<Diagnostic>,
    /// The workflow; `None` if there are errors.
    pub workflow: Option<CheckedWorkflow>,
}

/// A workflow without faults.
#[derive(Clone, Debug)]
pub struct CheckedWorkflow {
    /// Its name.
    pub name: String,
    /// Its description; may be empty.
    pub description: String,
    /// SHA-256 of its bundle, in hex.
    pub digest: String,
    /// The JSON Schema of its inputs.
    pub input_schema: serde_json::Value,
    /// The root's agent.
    pub agent: String,
    /// The root's limits, defaults filled in.
    pub limits: Limits,
}

/// Something that a watcher sees. Shared: every slot of every feed is as large as the largest item, and every watcher gets a
/// copy.
#[derive(Clone, Debug)]
pub enum Live {
    /// A fact of the journal.
    Recorded(Arc<Recorded>),
    /// Text as it streams; void if its attempt is aborted.
    Text(Arc<LiveText>),
    /// A tool's progress.
    Progress(Arc<LiveProgress>),
}

/// A piece of a reply's text.
#[derive(Debug)]
pub struct LiveText {
    /// The run.
    pub run: RunId,
    /// The turn.
    pub turn: u32,
    /// The attempt.
    pub attempt: u32,
    /// More text.
    pub text: String,
}

/// How far a tool is.
#[derive(Debug)]
pub struct LiveProgress {
    /// The run.
    pub run: RunId,
    /// The call.
    pub call_id: CallId,
    /// The tool's name.
    pub tool: String,
    /// How far it is.
    pub progress: crate::tool::Progress,
}

/// How a watcher wants to watch.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The run.
    pub run: RunId,
    /// The last tree_seq that the watcher has; 0 for none.
    pub after_tree_seq: u64,
    /// Whether runs below it are watched too.
    pub include_descendants: bool,
    /// Whether live text and progress are wanted.
    pub include_deltas: bool,
    /// Whether a suspended run ends the stream.
    pub stop_when_suspended: bool,
}

/// How a trace is rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFormat {
    /// An indented tree for people.
    Text,
    /// OTLP JSON.
    OtlpJson,
    /// The file that Jaeger's UI opens.
    JaegerJson,
}

/// A rendered trace.
#[derive(Clone, Debug)]
pub struct RenderedTrace {
    /// The text.
    pub content: String,
    /// The trace: 32 hex digits.
    pub trace_id: String,
    /// How many spans.
    pub span_count: usize,
}

/// What became of a cancelled subtree.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// The run that was asked for, as it is now.
    pub row: Row,
    /// One entry for each run of the subtree; empty without wait.
    pub runs: Vec<RunReceipt>,
    /// From the commit of the request to the end of the last run.
    pub quiescent_ms: i64,
}

/// How one run stood when its cancel was committed, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunReceipt {
    /// The run.
    pub run: RunId,
    /// Its agent.
    pub agent: String,
    /// How it stood.
    pub state_at_cancel: State,
    /// How it ended; `None` if it has not yet.
    pub outcome: Option<Outcome>,
    /// Calls that the cancel cut or kept from running.
    pub calls_cancelled: u32,
    /// Calls that got their own result after the cancel.
    pub calls_finished: u32,
    /// Calls that may or may not have happened.
    pub calls_in_doubt: u32,
    /// From the commit of the request to the run's end.
    pub quiescent_ms: i64,
}

/// What is changed about a run when it is resumed.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Its limits, as far as they are set.
    pub limits: LimitsPatch,
    /// Models as `provider/model`, by the agent that asks them from here on, in the whole tree.
    pub models: BTreeMap<String, String>,
}

impl From<LimitsPatch> for Change {
    fn from(limits: LimitsPatch) -> Self {
        Self { limits, models: BTreeMap::new() }
    }
}

/// Why the runtime did not do what was asked. Named by what the caller does next.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Mend the workflow or its inputs.
    #[error("the workflow or its inputs are not valid")]
    Invalid(Vec<Diagnostic>),
    /// Look for another run.
    #[error("no run {0:?}")]
    NotFound(String),
    /// Give more of the id.
    #[error("{prefix:?} is the beginning of {count} runs or more")]
    Ambiguous {
        /// What was given.
        prefix: String,
        /// How many begin so, up to a small bound.
        count: usize,
        /// Some of them.
        some: Vec<RunId>,
    },
    /// Ask for the root instead.
    #[error("run {run} is a child; only the root {root} can be resumed")]
    NotRoot {
        /// The run.
        run: RunId,
        /// Its root.
        root: RunId,
    },
    /// Nothing to do: it is over.
    #[error("run {0} has ended ({1})")]
    Ended(RunId, &'static str),
    /// Wait until it is suspended.
    #[error("run {0} is not suspended")]
    NotSuspended(RunId),
    /// Raise the limit.
    #[error("run {run} would stop at once: {why}")]
    LimitStillExceeded {
        /// The run.
        run: RunId,
        /// Which limit, and how much is needed.
        why: String,
    },
    /// Give less: the daemon's config does not allow it.
    #[error("{0}")]
    AboveCeiling(String),
    /// Set what is missing (a key) in the daemon's environment or config.
    #[error("{0}")]
    Missing(String),
    /// Give a directory that exists and can be read.
    #[error("{0}")]
    Workspace(String),
    /// Begin at the end that there is.
    #[error("tree_seq {after} is ahead of the tree, whose last is {last}")]
    SeqAhead {
        /// What was asked for.
        after: u64,
        /// The last one that exists.
        last: u64,
    },
    /// Name an agent of the workflow, and a model that the daemon can ask.
    #[error("{0}")]
    NoSuchModel(String),
    /// Look at the run: it was set aside.
    #[error("{0}")]
    SetAside(String),
    /// Try again when some runs have ended.
    #[error("{0} trees are unfinished, and the daemon takes no more")]
    QueueFull(usize),
    /// Try again with the daemon that follows.
    #[error("the daemon is shutting down")]
    Draining,
    /// See the store's error.
    #[error(transparent)]
    Store(#[from] store::Error),
}
