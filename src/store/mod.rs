//! Stores: where journals live, with the rows, accounts and command marks that are projected from them.
//!
//! [`Store`] is the only way in. Its one write path for a running run is [`Store::append`]: one fenced transaction that
//! adds events, keeps the accounts of the whole path, creates children and tells a parent of its child's end. A write
//! that was acknowledged survives a crash and, where the store says so, a loss of power.

pub mod memory;
pub mod sqlite;
mod transaction;

use futures_util::future::BoxFuture;

use crate::kernel::event::{ChildEnded, RunCreated};
use crate::kernel::ledger::{Account, Refused};
use crate::kernel::summary::Summary;
use crate::kernel::{Event, Outcome, Recorded, RunId, State};

/// A store of run trees.
///
/// Futures may be dropped at any time by their caller: what was begun completes all the same.
pub trait Store: Send + Sync {
    /// Creates a tree: its root's row and account, and its `run_created` as seq 1 and tree_seq 1. Before this returns
    /// the run is not found after a restart; once it has, it is.
    ///
    /// # Errors
    /// [`Error::RequestIdReused`] if the request id was used for another submission.
    fn create(&self, tree: NewTree) -> BoxFuture<'_, Result<Created, Error>>;

    /// Takes over a run: a new epoch, under which every older fence fails. A run that has ended cannot be claimed.
    fn claim(&self, run: &RunId) -> BoxFuture<'_, Result<Claimed, Error>>;

    /// Adds to the journal of a run that was claimed, all or nothing.
    ///
    /// In one transaction: checks the fence; gives seq and tree_seq; posts every event to the accounts of the path with
    /// [`crate::kernel::ledger::post`]; creates `batch.children` (their row, account and `run_created`); writes
    /// `batch.child_ended` to the parent's journal at the parent's head, under the parent's present epoch.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the run was claimed again since. [`Error::Behind`] if the journal has grown past
    /// `fence.seq` under the same epoch (a child's end): load what is new and append again. [`Error::Refused`] if a
    /// reservation or a child does not fit. [`Error::Cancelled`] if the run bears a cancel mark and the batch would
    /// start something (a turn, a call or a child).
    fn append(&self, fence: Fence, batch: Batch) -> BoxFuture<'_, Result<Appended, Error>>;

    /// Returns up to `limit` events of one run after `after_seq`, in order.
    fn load(&self, run: &RunId, after_seq: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Recorded>, Error>>;

    /// Returns up to `limit` events of a whole tree after `after_tree_seq`, in tree order.
    fn load_tree(&self, root: &RunId, after_tree_seq: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Recorded>, Error>>;

    /// Returns one run's row.
    fn get(&self, run: &RunId) -> BoxFuture<'_, Result<Row, Error>>;

    /// Returns the rows of a run and everything below it: level by level, each level by creation.
    fn subtree(&self, run: &RunId) -> BoxFuture<'_, Result<Vec<Row>, Error>>;

    /// Returns the accounts of a run and of all above it, its own first.
    fn path(&self, run: &RunId) -> BoxFuture<'_, Result<Vec<Account>, Error>>;

    /// Returns up to `limit` ids that begin with `prefix`, newest first.
    fn find(&self, prefix: &str, limit: usize) -> BoxFuture<'_, Result<Vec<RunId>, Error>>;

    /// Returns a page of rows, newest first.
    fn list(&self, query: Query) -> BoxFuture<'_, Result<Page, Error>>;

    /// Returns the runs that a starting daemon has to take up: pending, running and cancelling ones, suspended ones
    /// with outcome drained, and suspended ones that bear a cancel mark; parents before children.
    fn unfinished(&self) -> BoxFuture<'_, Result<Vec<Row>, Error>>;

    /// Marks a run and everything below it that has not ended as to be cancelled, and returns the rows of that whole
    /// subtree as they were at that moment (ended ones included). Children that are being created meanwhile are marked
    /// too, or refused. Marking again changes nothing.
    fn cancel(&self, run: &RunId, mark: CancelMark) -> BoxFuture<'_, Result<Vec<Row>, Error>>;

    /// Returns the stored submission (workflow bundle and what goes with it) of that digest.
    fn bundle(&self, digest: &str) -> BoxFuture<'_, Result<Vec<u8>, Error>>;

    /// Returns the store's name for people: `sqlite (FILE)`.
    fn name(&self) -> String;
}

/// A root run to be created.
#[derive(Clone, Debug)]
pub struct NewTree {
    /// Its id.
    pub id: RunId,
    /// What it is told.
    pub created: RunCreated,
    /// The submission's own id and the SHA-256 of its content, if the client gave one.
    pub request: Option<RequestId>,
    /// SHA-256 in hex of `bundle`, by which trees share it.
    pub bundle_digest: String,
    /// The submission, opaque to the store.
    pub bundle: Vec<u8>,
    /// The time, in microseconds since the Unix epoch.
    pub time_us: i64,
}

/// What makes a submission idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// The client's id.
    pub id: String,
    /// SHA-256 in hex of all that was submitted.
    pub content: String,
}

/// What [`Store::create`] did.
#[derive(Clone, Debug)]
pub struct Created {
    /// The run's row.
    pub row: Row,
    /// Its `run_created`; `None` if the same request had created it before.
    pub recorded: Option<Recorded>,
}

/// A run taken over.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The row, with the new epoch.
    pub row: Row,
    /// The accounts of the run and of all above it, its own first.
    pub path: Vec<Account>,
}

/// Proves that the writer owns the run and has seen its whole journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The run.
    pub run: RunId,
    /// The epoch of the claim.
    pub epoch: u64,
    /// The last seq that the writer knows.
    pub seq: u64,
}

/// What is appended at once.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The run's events, in order, each with its own time in microseconds since the Unix epoch.
    pub events: Vec<(i64, Event)>,
    /// Runs created by a `child_started` among the events.
    pub children: Vec<NewChild>,
    /// What the parent's journal is told with this run's `run_ended`.
    pub child_ended: Option<ChildEnded>,
    /// When the children are created and the parent is told, in microseconds since the Unix epoch.
    pub time_us: i64,
}

/// A child run to be created.
#[derive(Clone, Debug)]
pub struct NewChild {
    /// Its id.
    pub id: RunId,
    /// What it is told.
    pub created: RunCreated,
}

/// What [`Store::append`] did.
#[derive(Clone, Debug)]
pub struct Appended {
    /// Every event of the transaction, of whatever run, in tree order.
    pub recorded: Vec<Recorded>,
    /// The accounts of the run and of all above it, its own first, as they are now.
    pub path: Vec<Account>,
    /// The cancel mark that the run bears.
    pub cancel: Option<CancelMark>,
}

/// Somebody wants a run to end.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CancelMark {
    /// Who.
    pub actor: String,
    /// Why; may be empty.
    pub reason: String,
    /// When, in microseconds since the Unix epoch.
    pub time_us: i64,
}

/// A run as its row has it.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Row {
    /// The projection of its journal.
    pub summary: Summary,
    /// Its subtree's account.
    pub account: Account,
    /// Its present epoch; 0 before the first claim.
    pub epoch: u64,
    /// The last tree_seq of its tree; kept on the root's row, and filled in from there for others.
    pub tree_seq: u64,
    /// Whether it is to be cancelled.
    pub cancel: Option<CancelMark>,
    /// The digest of its tree's stored submission.
    pub bundle_digest: String,
}

/// Which rows [`Store::list`] returns.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// In one of these states; empty for any.
    pub states: Vec<State>,
    /// With one of these outcomes; empty for any.
    pub outcomes: Vec<Outcome>,
    /// Of this workflow.
    pub workflow: Option<String>,
    /// With all of these labels.
    pub labels: Vec<(String, String)>,
    /// Whether child runs are listed too.
    pub include_descendants: bool,
    /// Continues after the row with this cursor.
    pub cursor: Option<u64>,
    /// At most this many.
    pub limit: usize,
}

/// A page of rows.
#[derive(Clone, Debug)]
pub struct Page {
    /// Newest first.
    pub rows: Vec<Row>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<u64>,
}

/// Why a store did not do what was asked. Named by what the caller does next.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Look for another run.
    #[error("no run {0}")]
    NotFound(RunId),
    /// Use another request id.
    #[error("the request id was used before, for run {0}, with other content")]
    RequestIdReused(RunId),
    /// Let the run go: somebody else owns it.
    #[error("the run was taken over by another owner")]
    Fenced,
    /// Load what is new and append again.
    #[error("the journal has grown to seq {head}")]
    Behind {
        /// The journal's last seq.
        head: u64,
    },
    /// Decide again with fresh figures.
    #[error("{0}")]
    Refused(Refused),
    /// End the run.
    #[error("the run is being cancelled")]
    Cancelled,
    /// Do not touch the run: it has ended.
    #[error("the run has ended")]
    Ended,
    /// Set the run aside: its journal cannot be read by this build.
    #[error("the journal of run {run} cannot be read at seq {seq}: {why}")]
    Unreadable {
        /// The run.
        run: RunId,
        /// Where.
        seq: u64,
        /// What is wrong.
        why: String,
    },
    /// Free some room and try again: the disk is full.
    #[error("the disk is full: {0}")]
    Full(String),
    /// Start the daemon with another data directory or stop the other process.
    #[error("{0}")]
    Locked(String),
    /// Try again later, or mend the machine.
    #[error("the store is not available: {0}")]
    Unavailable(String),
}

/// Returns the state that people see: a run that bears a mark is being cancelled, though its journal may not say so yet.
fn shown_state(row: &Row) -> State {
    if row.cancel.is_some() && row.summary.state != State::Ended { State::Cancelling } else { row.summary.state }
}

/// Returns whether a row is among those that a query asks for, its cursor and limit apart.
fn matches(query: &Query, row: &Row) -> bool {
    let summary = &row.summary;
    let shown = shown_state(row);
    (query.include_descendants || summary.parent.is_none())
        && (query.states.is_empty() || query.states.contains(&shown))
        && (query.outcomes.is_empty() || summary.outcome.is_some_and(|outcome| query.outcomes.contains(&outcome)))
        && query.workflow.as_ref().is_none_or(|workflow| *workflow == summary.workflow)
        && query.labels.iter().all(|(name, value)| summary.labels.get(name) == Some(value))
}

/// Returns whether a starting daemon has to take the row's run up.
fn is_unfinished(row: &Row) -> bool {
    match row.summary.state {
        State::Pending | State::Running | State::Cancelling => true,
        State::Suspended => row.summary.outcome == Some(Outcome::Drained) || row.cancel.is_some(),
        State::Ended => false,
    }
}
