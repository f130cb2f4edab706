//! A store in memory: the model that the others are checked against, and what tests use. Nothing survives it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::future::{BoxFuture, FutureExt, ready};

use super::transaction::{self, Tables};
use super::{Appended, Batch, CancelMark, Claimed, Created, Error, Fence, NewTree, Page, Query, Row, Store};
use crate::kernel::ledger::Account;
use crate::kernel::{Recorded, RunId};

/// The store.
#[derive(Default)]
pub struct Memory {
    data: Mutex<Data>,
}

#[derive(Clone, Default)]
struct Data {
    /// In the order of creation.
    order: Vec<RunId>,
    rows: HashMap<RunId, Row>,
    /// By root and tree_seq.
    events: BTreeMap<(RunId, u64), Recorded>,
    requests: HashMap<String, (RunId, String)>,
    bundles: HashMap<String, Vec<u8>>,
}

impl Memory {
    /// Returns an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Data> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one transaction: on a copy that replaces the data only if it succeeds.
    fn write<T>(&self, work: impl FnOnce(&mut Data) -> Result<T, Error>) -> Result<T, Error> {
        let mut data = self.lock();
        let mut copy = data.clone();
        let result = work(&mut copy)?;
        *data = copy;
        Ok(result)
    }
}

impl Data {
    /// Returns a row with its tree's head filled in.
    fn shown(&self, run: &RunId) -> Option<Row> {
        let mut row = self.rows.get(run)?.clone();
        row.tree_seq = self.rows.get(&row.summary.root).map_or(0, |root| root.tree_seq);
        Some(row)
    }

    fn below(&self, run: &RunId) -> Vec<RunId> {
        let mut found = vec![run.clone()];
        let mut level = found.clone();
        while !level.is_empty() {
            let is_child = |id: &&RunId| {
                self.rows.get(*id).and_then(|row| row.summary.parent.as_ref()).is_some_and(|above| level.contains(&above.run))
            };
            let next: Vec<RunId> = self.order.iter().filter(is_child).cloned().collect();
            found.extend(next.iter().cloned());
            level = next;
        }
        found
    }
}

impl Tables for Data {
    fn row(&mut self, run: &RunId) -> Result<Option<Row>, Error> {
        Ok(self.rows.get(run).cloned())
    }

    fn put(&mut self, row: Row) -> Result<(), Error> {
        let id = row.summary.id.clone();
        if self.rows.insert(id.clone(), row).is_none() {
            self.order.push(id);
        }
        Ok(())
    }

    fn add(&mut self, recorded: &Recorded, root: &RunId) -> Result<(), Error> {
        self.events.insert((root.clone(), recorded.tree_seq), recorded.clone());
        Ok(())
    }

    fn request(&mut self, id: &str) -> Result<Option<(RunId, String)>, Error> {
        Ok(self.requests.get(id).cloned())
    }

    fn put_request(&mut self, id: &str, content: &str, run: &RunId) -> Result<(), Error> {
        self.requests.insert(id.to_owned(), (run.clone(), content.to_owned()));
        Ok(())
    }

    fn put_bundle(&mut self, digest: &str, bytes: &[u8]) -> Result<(), Error> {
        self.bundles.insert(digest.to_owned(), bytes.to_vec());
        Ok(())
    }

    fn subtree(&mut self, run: &RunId) -> Result<Vec<RunId>, Error> {
        Ok(if self.rows.contains_key(run) { self.below(run) } else { Vec::new() })
    }

    fn has_child(&mut self, parent: &RunId, call_id: &str) -> Result<bool, Error> {
        let mut parents = self.rows.values().filter_map(|row| row.summary.parent.as_ref());
        Ok(parents.any(|above| above.run == *parent && above.call_id.as_str() == call_id))
    }
}

fn done<T: Send + 'static>(result: Result<T, Error>) -> BoxFuture<'static, Result<T, Error>> {
    ready(result).boxed()
}

impl Store for Memory {
    fn create(&self, tree: NewTree) -> BoxFuture<'_, Result<Created, Error>> {
        done(self.write(|data| transaction::create(data, tree)))
    }

    fn claim(&self, run: &RunId) -> BoxFuture<'_, Result<Claimed, Error>> {
        done(self.write(|data| transaction::claim(data, run)))
    }

    fn append(&self, fence: Fence, batch: Batch) -> BoxFuture<'_, Result<Appended, Error>> {
        done(self.write(|data| transaction::append(data, &fence, batch)))
    }

    fn load(&self, run: &RunId, after_seq: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Recorded>, Error>> {
        let data = self.lock();
        let wanted = data.events.values().filter(|recorded| recorded.run == *run && recorded.seq > after_seq);
        done(Ok(wanted.take(limit).cloned().collect()))
    }

    fn load_tree(&self, root: &RunId, after_tree_seq: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Recorded>, Error>> {
        let data = self.lock();
        let range = data.events.range((root.clone(), after_tree_seq + 1)..=(root.clone(), u64::MAX));
        done(Ok(range.take(limit).map(|(_, recorded)| recorded.clone()).collect()))
    }

    fn get(&self, run: &RunId) -> BoxFuture<'_, Result<Row, Error>> {
        done(self.lock().shown(run).ok_or_else(|| Error::NotFound(run.clone())))
    }

    fn subtree(&self, run: &RunId) -> BoxFuture<'_, Result<Vec<Row>, Error>> {
        let data = self.lock();
        if !data.rows.contains_key(run) {
            return done(Err(Error::NotFound(run.clone())));
        }
        done(Ok(data.below(run).iter().filter_map(|id| data.shown(id)).collect()))
    }

    fn path(&self, run: &RunId) -> BoxFuture<'_, Result<Vec<Account>, Error>> {
        let data = self.lock();
        let mut accounts = Vec::new();
        let mut at = Some(run.clone());
        while let Some(row) = at.and_then(|id| data.rows.get(&id)) {
            accounts.push(row.account);
            at = row.summary.parent.as_ref().map(|parent| parent.run.clone());
        }
        done(if accounts.is_empty() { Err(Error::NotFound(run.clone())) } else { Ok(accounts) })
    }

    fn find(&self, prefix: &str, limit: usize) -> BoxFuture<'_, Result<Vec<RunId>, Error>> {
        let data = self.lock();
        let found = data.order.iter().rev().filter(|id| id.as_str().starts_with(prefix));
        done(Ok(found.take(limit).cloned().collect()))
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Page, Error>> {
        let data = self.lock();
        let mut rows = Vec::new();
        let mut last = None;
        let places = data.order.iter().enumerate().rev().map(|(index, id)| (index as u64 + 1, id));
        for (place, id) in places.filter(|(place, _)| query.cursor.is_none_or(|cursor| *place < cursor)) {
            let Some(row) = data.shown(id).filter(|row| super::matches(&query, row)) else { continue };
            if rows.len() == query.limit {
                return done(Ok(Page { rows, next: last }));
            }
            rows.push(row);
            last = Some(place);
        }
        done(Ok(Page { rows, next: None }))
    }

    fn unfinished(&self) -> BoxFuture<'_, Result<Vec<Row>, Error>> {
        let data = self.lock();
        done(Ok(data.order.iter().filter_map(|id| data.shown(id)).filter(super::is_unfinished).collect()))
    }

    fn cancel(&self, run: &RunId, mark: CancelMark) -> BoxFuture<'_, Result<Vec<Row>, Error>> {
        done(self.write(|data| transaction::cancel(data, run, &mark)))
    }

    fn bundle(&self, digest: &str) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        let found = self.lock().bundles.get(digest).cloned();
        done(found.ok_or_else(|| Error::Unavailable(format!("the stored submission {digest} is missing"))))
    }

    fn name(&self) -> String {
        "memory".to_owned()
    }
}
