//! What a transaction means, once for all stores: which checks, which rows, which events, in which order. A store
//! brings [`Tables`] and all-or-nothing; what is here brings the meaning.

use super::{Appended, Batch, CancelMark, Claimed, Created, Error, Fence, NewChild, NewTree, Row};
use crate::kernel::event::{ChildEnded, Event, ParentCall};
use crate::kernel::ledger::{self, Account};
use crate::kernel::summary::Summary;
use crate::kernel::{Recorded, RunId, State};

/// A store's tables inside one transaction. A failed transaction leaves no trace of what was put.
pub trait Tables {
    /// Returns a run's row.
    fn row(&mut self, run: &RunId) -> Result<Option<Row>, Error>;
    /// Writes a run's row, new or known.
    fn put(&mut self, row: Row) -> Result<(), Error>;
    /// Adds an event.
    fn add(&mut self, recorded: &Recorded, root: &RunId) -> Result<(), Error>;
    /// Returns the run and content of a request id.
    fn request(&mut self, id: &str) -> Result<Option<(RunId, String)>, Error>;
    /// Keeps a request id.
    fn put_request(&mut self, id: &str, content: &str, run: &RunId) -> Result<(), Error>;
    /// Keeps a submission under its digest.
    fn put_bundle(&mut self, digest: &str, bytes: &[u8]) -> Result<(), Error>;
    /// Returns the run and everything below it, parents before children.
    fn subtree(&mut self, run: &RunId) -> Result<Vec<RunId>, Error>;
    /// Returns whether a call has its child already.
    fn has_child(&mut self, parent: &RunId, call_id: &str) -> Result<bool, Error>;
}

fn known(tables: &mut dyn Tables, run: &RunId) -> Result<Row, Error> {
    tables.row(run)?.ok_or_else(|| Error::NotFound(run.clone()))
}

/// See [`super::Store::create`].
pub fn create(tables: &mut dyn Tables, tree: NewTree) -> Result<Created, Error> {
    if let Some(request) = &tree.request
        && let Some((run, content)) = tables.request(&request.id)?
    {
        if content != request.content {
            return Err(Error::RequestIdReused(run));
        }
        return Ok(Created { row: known(tables, &run)?, recorded: None });
    }
    check_unused(tables, &tree.id)?;
    let recorded = Recorded {
        run: tree.id.clone(),
        seq: 1,
        tree_seq: 1,
        epoch: 0,
        time_us: tree.time_us,
        event: Event::RunCreated(std::sync::Arc::new(tree.created.clone())),
    };
    let row = Row {
        summary: Summary::create(tree.id.clone(), &tree.created, 1, tree.time_us),
        account: Account::open(tree.created.limits),
        epoch: 0,
        tree_seq: 1,
        cancel: None,
        bundle_digest: tree.bundle_digest.clone(),
    };
    tables.put_bundle(&tree.bundle_digest, &tree.bundle)?;
    tables.put(row.clone())?;
    tables.add(&recorded, &tree.id)?;
    if let Some(request) = &tree.request {
        tables.put_request(&request.id, &request.content, &tree.id)?;
    }
    Ok(Created { row, recorded: Some(recorded) })
}

/// See [`super::Store::claim`].
pub fn claim(tables: &mut dyn Tables, run: &RunId) -> Result<Claimed, Error> {
    let mut row = known(tables, run)?;
    if row.summary.state == State::Ended {
        return Err(Error::Ended);
    }
    row.epoch += 1;
    tables.put(row.clone())?;
    let rows = path(tables, &row)?;
    row.tree_seq = rows.last().map_or(0, |root| root.tree_seq);
    Ok(Claimed { row, path: rows.into_iter().map(|row| row.account).collect() })
}

/// Refuses an id that a run has already: its row and journal would be overwritten.
fn check_unused(tables: &mut dyn Tables, run: &RunId) -> Result<(), Error> {
    match tables.row(run)? {
        None => Ok(()),
        Some(_) => Err(Error::Unavailable(format!("run {run} exists already"))),
    }
}

/// Returns the rows of a run and of all above it, its own first.
fn path(tables: &mut dyn Tables, row: &Row) -> Result<Vec<Row>, Error> {
    let mut path = vec![row.clone()];
    let mut above = row.summary.parent.clone();
    while let Some(parent) = above {
        let row = known(tables, &parent.run)?;
        above = row.summary.parent.clone();
        path.push(row);
    }
    Ok(path)
}

/// See [`super::Store::append`].
pub fn append(tables: &mut dyn Tables, fence: &Fence, batch: Batch) -> Result<Appended, Error> {
    let row = known(tables, &fence.run)?;
    check_fence(&row, fence)?;
    if row.cancel.is_some() && (batch.events.iter().any(|(_, event)| starts_something(event)) || !batch.children.is_empty()) {
        return Err(Error::Cancelled);
    }
    let mut rows = path(tables, &row)?;
    let mut accounts: Vec<Account> = rows.iter().map(|row| row.account).collect();
    let root = row.summary.root.clone();
    // The root is the last of the path, and may be the run itself.
    let mut tree_seq = rows.last().map_or(0, |root| root.tree_seq);
    let mut recorded = Vec::with_capacity(batch.events.len() + batch.children.len() + 1);
    let mut summary = row.summary.clone();
    for (time_us, event) in batch.events {
        let mut open = summary.open;
        ledger::post(&mut accounts, &mut open, &event).map_err(Error::Refused)?;
        tree_seq += 1;
        let fact = Recorded { run: fence.run.clone(), seq: summary.seq + 1, tree_seq, epoch: fence.epoch, time_us, event };
        summary.apply(&fact);
        tables.add(&fact, &root)?;
        recorded.push(fact);
    }
    for child in batch.children {
        ledger::post_child(&mut accounts).map_err(Error::Refused)?;
        tree_seq += 1;
        recorded.push(create_child(tables, &row, child, tree_seq, batch.time_us)?);
    }
    for (row, account) in rows.iter_mut().zip(&accounts) {
        row.account = *account;
    }
    if let Some(own) = rows.first_mut() {
        own.summary = summary;
    }
    // A parent that has ended hears nothing more: a fact after its last one would make its journal unreadable.
    let hears = rows.get(1).is_none_or(|parent| parent.summary.state != State::Ended);
    if let Some(mut ended) = batch.child_ended.filter(|_| hears) {
        tree_seq += 1;
        // What this very transaction settles is part of it.
        ended.subtree_cost_usd_nanos = accounts.first().map_or(0, |own| own.totals.cost_usd_nanos);
        let parent = rows.get_mut(1).ok_or_else(|| Error::Unavailable(format!("run {} has no parent to tell of its end", fence.run)))?;
        recorded.push(tell_parent(tables, parent, ended, tree_seq, batch.time_us, &root)?);
    }
    if let Some(root) = rows.last_mut() {
        root.tree_seq = tree_seq;
    }
    for row in rows {
        tables.put(row)?;
    }
    Ok(Appended { recorded, path: accounts, cancel: row.cancel })
}

fn check_fence(row: &Row, fence: &Fence) -> Result<(), Error> {
    if row.epoch != fence.epoch {
        return Err(Error::Fenced);
    }
    // Before the end is looked at: a writer that does not know whether its last append took place repeats it, and finds
    // out by being behind, also where that append ended the run.
    if row.summary.seq != fence.seq {
        return Err(Error::Behind { head: row.summary.seq });
    }
    if row.summary.state == State::Ended {
        return Err(Error::Ended);
    }
    Ok(())
}

/// Returns whether the event begins something that a cancelled run must not begin.
fn starts_something(event: &Event) -> bool {
    matches!(event, Event::TurnStarted(_) | Event::CallStarted(_) | Event::ChildStarted { .. })
}

fn create_child(tables: &mut dyn Tables, parent: &Row, child: NewChild, tree_seq: u64, time_us: i64) -> Result<Recorded, Error> {
    check_unused(tables, &child.id)?;
    let own = |call: &&ParentCall| call.run == parent.summary.id && child.created.root == parent.summary.root;
    let call = child.created.parent.as_ref().filter(own);
    let call = call.ok_or_else(|| Error::Unavailable(format!("run {} is not a child of run {}", child.id, parent.summary.id)))?;
    if tables.has_child(&call.run, call.call_id.as_str())? {
        return Err(Error::Unavailable(format!("call {} of run {} has a child already", call.call_id, call.run)));
    }
    let row = Row {
        summary: Summary::create(child.id.clone(), &child.created, 1, time_us),
        account: Account::open(child.created.limits),
        epoch: 0,
        tree_seq: 0,
        cancel: None,
        bundle_digest: parent.bundle_digest.clone(),
    };
    tables.put(row)?;
    let event = Event::RunCreated(std::sync::Arc::new(child.created));
    let recorded = Recorded { run: child.id, seq: 1, tree_seq, epoch: 0, time_us, event };
    tables.add(&recorded, &parent.summary.root)?;
    Ok(recorded)
}

fn tell_parent(
    tables: &mut dyn Tables,
    parent: &mut Row,
    ended: ChildEnded,
    tree_seq: u64,
    time_us: i64,
    root: &RunId,
) -> Result<Recorded, Error> {
    let fact = Recorded {
        run: parent.summary.id.clone(),
        seq: parent.summary.seq + 1,
        tree_seq,
        epoch: parent.epoch,
        // A parent's journal never goes back in time, whatever its child's clock says.
        time_us: time_us.max(parent.summary.updated_us),
        event: Event::ChildEnded(Box::new(ended)),
    };
    parent.summary.apply(&fact);
    tables.add(&fact, root)?;
    Ok(fact)
}

/// See [`super::Store::cancel`].
pub fn cancel(tables: &mut dyn Tables, run: &RunId, mark: &CancelMark) -> Result<Vec<Row>, Error> {
    let root = known(tables, run)?.summary.root;
    let tree_seq = known(tables, &root)?.tree_seq;
    let mut before = Vec::new();
    for id in tables.subtree(run)? {
        let row = known(tables, &id)?;
        if row.summary.state != State::Ended && row.cancel.is_none() {
            tables.put(Row { cancel: Some(mark.clone()), ..row.clone() })?;
        }
        before.push(Row { tree_seq, ..row });
    }
    Ok(before)
}
