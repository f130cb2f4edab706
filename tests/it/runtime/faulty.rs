//! A store that fails as told: the process dies at it, or the disk does not take what it is given for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, pending};
use tokio::sync::Notify;
use wren::kernel::ledger::Account;
use wren::kernel::{Recorded, RunId, State};
use wren::store::memory::Memory;
use wren::store::{Appended, Batch, CancelMark, Claimed, Created, Error, Fence, NewTree, Page, Query, Row, Store};

/// What becomes of a question to the store.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// It is answered.
    Works,
    /// It is refused, and nothing is done.
    Refused,
    /// It is refused because the journal has grown meanwhile: decide again.
    Behind,
    /// It is done, but the answer says that it failed.
    Lost,
    /// The process dies before it is done.
    DiesBefore,
    /// The process dies after it is done.
    DiesAfter,
}

/// A question that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Append,
    Claim,
    Load,
    Path,
}

/// The store.
pub struct Faulty {
    pub inner: Arc<Memory>,
    pub fate: Box<dyn Fn(Asked) -> Fate + Send + Sync>,
    /// Told when the process dies.
    pub dead: Arc<Notify>,
    /// A run whose drivers come late.
    pub slow: Option<RunId>,
    /// How often somebody wanted to write to a run that had ended.
    pub to_ended: Arc<AtomicU64>,
}

impl Faulty {
    pub fn new(inner: &Arc<Memory>, fate: impl Fn(Asked) -> Fate + Send + Sync + 'static) -> Self {
        Self { inner: inner.clone(), fate: Box::new(fate), dead: Arc::new(Notify::new()), slow: None, to_ended: Arc::default() }
    }

    /// `work` is called only if it is to be done: the store inside may do it at once.
    async fn ask<'a, T>(&'a self, asked: Asked, work: impl FnOnce() -> BoxFuture<'a, Result<T, Error>> + Send) -> Result<T, Error> {
        let fate = (self.fate)(asked);
        match fate {
            Fate::Works => work().await,
            Fate::Refused => Err(Error::Full("no room".to_owned())),
            Fate::Behind => Err(Error::Behind { head: 0 }),
            Fate::Lost => {
                let _ = work().await;
                Err(Error::Unavailable("the answer is lost".to_owned()))
            }
            Fate::DiesBefore | Fate::DiesAfter => {
                if matches!(fate, Fate::DiesAfter) {
                    let _ = work().await;
                }
                self.dead.notify_one();
                pending().await
            }
        }
    }
}

impl Store for Faulty {
    fn create(&self, tree: NewTree) -> BoxFuture<'_, Result<Created, Error>> {
        self.inner.create(tree)
    }

    fn claim(&self, run: &RunId) -> BoxFuture<'_, Result<Claimed, Error>> {
        let run = run.clone();
        Box::pin(async move {
            if self.slow.as_ref() == Some(&run) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            self.ask(Asked::Claim, || self.inner.claim(&run)).await
        })
    }

    fn append(&self, fence: Fence, batch: Batch) -> BoxFuture<'_, Result<Appended, Error>> {
        Box::pin(async move {
            let run = fence.run.clone();
            let has_ended = matches!(self.inner.get(&run).await, Ok(row) if row.summary.state == State::Ended);
            self.to_ended.fetch_add(u64::from(has_ended), Ordering::SeqCst);
            self.ask(Asked::Append, || self.inner.append(fence, batch)).await
        })
    }

    fn load(&self, run: &RunId, after_seq: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Recorded>, Error>> {
        let run = run.clone();
        Box::pin(async move { self.ask(Asked::Load, || self.inner.load(&run, after_seq, limit)).await })
    }

    fn path(&self, run: &RunId) -> BoxFuture<'_, Result<Vec<Account>, Error>> {
        let run = run.clone();
        Box::pin(async move { self.ask(Asked::Path, || self.inner.path(&run)).await })
    }

    fn load_tree(&self, root: &RunId, after_tree_seq: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Recorded>, Error>> {
        self.inner.load_tree(root, after_tree_seq, limit)
    }

    fn get(&self, run: &RunId) -> BoxFuture<'_, Result<Row, Error>> {
        self.inner.get(run)
    }

    fn subtree(&self, run: &RunId) -> BoxFuture<'_, Result<Vec<Row>, Error>> {
        Store::subtree(&*self.inner, run)
    }

    fn find(&self, prefix: &str, limit: usize) -> BoxFuture<'_, Result<Vec<RunId>, Error>> {
        self.inner.find(prefix, limit)
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Page, Error>> {
        self.inner.list(query)
    }

    fn unfinished(&self) -> BoxFuture<'_, Result<Vec<Row>, Error>> {
        self.inner.unfinished()
    }

    fn cancel(&self, run: &RunId, mark: CancelMark) -> BoxFuture<'_, Result<Vec<Row>, Error>> {
        self.inner.cancel(run, mark)
    }

    fn bundle(&self, digest: &str) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        self.inner.bundle(digest)
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}
