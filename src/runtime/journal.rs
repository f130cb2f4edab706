//! One run's pen: stages facts on the run's fold and commits them in as few transactions as the order allows.
//!
//! A fact is staged as soon as it is known and committed before anything that depends on it leaves the process. Staged
//! facts are of two kinds. Results (a reply, a call's end) happened and are never lost: when a transaction is refused
//! they are staged again on the fresh journal. Intents (a turn, a call, a child about to start, an end) are decisions:
//! they are dropped, and the kernel decides again.

use std::sync::Arc;

use tokio::time::{Duration, sleep};

use super::clock::Clock;
use super::tree::Tree;
use crate::kernel::event::{ChildEnded, Event};
use crate::kernel::ledger::Account;
use crate::kernel::run::Illegal;
use crate::kernel::{CallId, Recorded, Run, RunId};
use crate::store::{self, Batch, CancelMark, Fence, NewChild, Store};

/// How many events are read at once.
const PAGE_EVENTS: usize = 1024;

/// What a driver begins with.
pub struct Start {
    /// The run as its journal says it is.
    pub run: Run,
    /// The epoch that its facts are written under.
    pub epoch: u64,
    /// The accounts of the run and of all above it, its own first.
    pub path: Vec<Account>,
    /// The cancel mark that the run bears.
    pub cancel: Option<CancelMark>,
}

impl Start {
    /// Returns the beginning of a run that was created a moment ago by this daemon: nobody else can own it, so there is
    /// nothing to claim and nothing to read. `above` are the accounts of the runs above it.
    pub fn of_new(created: &Recorded, above: &[Account]) -> Result<Self, Illegal> {
        let run = Run::create(created)?;
        let path = std::iter::once(Account::open(run.created.limits)).chain(above.iter().copied()).collect();
        Ok(Self { run, epoch: created.epoch, path, cancel: None })
    }
}

/// The pen of one run's driver.
pub struct Journal {
    store: Arc<dyn Store>,
    tree: Arc<Tree>,
    clock: Clock,
    epoch: u64,
    /// The run, staged facts included.
    pub run: Run,
    /// The accounts of the run and of all above it, as of the last commit or [`Journal::refresh`].
    pub path: Vec<Account>,
    /// The cancel mark that the run bears, as far as known.
    pub cancel: Option<CancelMark>,
    committed_seq: u64,
    /// Facts with their times, not yet durable.
    staged: Vec<(i64, Event)>,
    children: Vec<NewChild>,
    child_ended: Option<ChildEnded>,
    /// The child runs that the last commit created.
    created: Vec<Recorded>,
}

/// What came of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// Everything staged is durable and published.
    Done,
    /// The world had changed: results are staged again, intents were dropped. Decide again.
    Again,
}

/// Why a driver must let its run go.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// Another owner has it.
    #[error("another owner has taken the run over")]
    Fenced,
    /// Its journal and its writer disagree: a fault of Wren.
    #[error(transparent)]
    Illegal(#[from] Illegal),
    /// The store cannot give the journal back.
    #[error(transparent)]
    Store(store::Error),
}

/// The waiting for a store that is full or fails: longer each time, up to five seconds.
#[derive(Default)]
struct Wait {
    times: u32,
}

impl Wait {
    async fn out(&mut self, run: &RunId, why: &str) {
        let wait_ms = (100_u64 << self.times.min(6)).min(5_000);
        self.times += 1;
        tracing::error!(run_id = %run, error = why, wait_ms, "the store does not answer; the run waits");
        sleep(Duration::from_millis(wait_ms)).await;
    }
}

/// Asks the store until it answers: a full or failing disk is waited out, so that what a driver holds is never dropped
/// for it. For questions that may be asked again.
///
/// # Errors
/// [`Stop::Store`] for what waiting does not mend.
pub async fn patiently<T, F: Future<Output = Result<T, store::Error>>>(run: &RunId, ask: impl Fn() -> F) -> Result<T, Stop> {
    let mut wait = Wait::default();
    loop {
        match ask().await {
            Err(store::Error::Full(why) | store::Error::Unavailable(why)) => wait.out(run, &why).await,
            answer => return answer.map_err(Stop::Store),
        }
    }
}

/// Reads a run's journal after a seq; all of it after 0.
///
/// # Errors
/// Those of the store.
pub async fn read(store: &dyn Store, run: &RunId, after_seq: u64) -> Result<Vec<Recorded>, store::Error> {
    let mut journal: Vec<Recorded> = Vec::new();
    loop {
        let after = journal.last().map_or(after_seq, |last| last.seq);
        let page = store.load(run, after, PAGE_EVENTS).await?;
        if page.is_empty() {
            return Ok(journal);
        }
        journal.extend(page);
    }
}

/// Reads the journal of a tree after a tree_seq.
///
/// # Errors
/// Those of the store.
pub async fn read_tree(store: &dyn Store, root: &RunId, after_tree_seq: u64) -> Result<Vec<Recorded>, store::Error> {
    let mut journal: Vec<Recorded> = Vec::new();
    loop {
        let after = journal.last().map_or(after_tree_seq, |last| last.tree_seq);
        let page = store.load_tree(root, after, PAGE_EVENTS).await?;
        if page.is_empty() {
            return Ok(journal);
        }
        journal.extend(page);
    }
}

impl Journal {
    /// Takes the pen of a run.
    pub fn new(store: Arc<dyn Store>, tree: Arc<Tree>, clock: Clock, start: Start) -> Self {
        let Start { run, epoch, path, cancel } = start;
        Self {
            store,
            tree,
            clock,
            epoch,
            committed_seq: run.summary.seq,
            run,
            path,
            cancel,
            staged: Vec::new(),
            children: Vec::new(),
            child_ended: None,
            created: Vec::new(),
        }
    }

    /// Adds a fact to the run. It is durable only after [`Journal::commit`].
    ///
    /// # Errors
    /// [`Stop::Illegal`] if it cannot follow.
    pub fn stage(&mut self, event: Event) -> Result<(), Stop> {
        self.stage_at(self.clock.now_us(), event)
    }

    fn stage_at(&mut self, time_us: i64, event: Event) -> Result<(), Stop> {
        // It never falls behind the run's own past, so a clock that jumps back turns no span around.
        let time_us = time_us.max(self.run.summary.updated_us);
        let recorded = Recorded {
            run: self.run.id().clone(),
            seq: self.run.summary.seq + 1,
            // Given by the store; the fold does not look at it.
            tree_seq: 0,
            epoch: self.epoch,
            time_us,
            event,
        };
        self.run.apply(&recorded)?;
        self.staged.push((time_us, recorded.event));
        Ok(())
    }

    /// Stages the creation of a child run together with the fact that says so.
    ///
    /// # Errors
    /// As [`Journal::stage`].
    pub fn stage_child(&mut self, event: Event, child: NewChild) -> Result<(), Stop> {
        self.stage(event)?;
        self.children.push(child);
        Ok(())
    }

    /// Stages the end of a run together with what its parent is told.
    ///
    /// # Errors
    /// As [`Journal::stage`].
    pub fn stage_end(&mut self, event: Event, child_ended: Option<ChildEnded>) -> Result<(), Stop> {
        self.stage(event)?;
        self.child_ended = child_ended;
        Ok(())
    }

    /// Makes everything staged durable and publishes it. A full or failing disk is waited out: nothing that happened is
    /// lost, and nothing goes on before it is written.
    ///
    /// # Errors
    /// [`Stop`] if the run must be let go.
    pub async fn commit(&mut self) -> Result<Commit, Stop> {
        if self.staged.is_empty() {
            return Ok(Commit::Done);
        }
        let mut wait = Wait::default();
        let mut unsure = false;
        loop {
            let fence = Fence { run: self.run.id().clone(), epoch: self.epoch, seq: self.committed_seq };
            let batch = Batch {
                events: self.staged.clone(),
                children: self.children.clone(),
                child_ended: self.child_ended.clone(),
                time_us: self.run.summary.updated_us,
            };
            crash_point!("append/before");
            match self.store.append(fence, batch).await {
                Ok(appended) => {
                    crash_point!("append/after");
                    self.path = appended.path;
                    self.cancel = appended.cancel.or(self.cancel.take());
                    self.committed(appended.recorded);
                    return Ok(Commit::Done);
                }
                Err(store::Error::Full(why) | store::Error::Unavailable(why)) => {
                    // Whether the transaction took place is not known: look before writing it again.
                    unsure = true;
                    wait.out(self.run.id(), &why).await;
                }
                Err(store::Error::Fenced | store::Error::Ended) => return Err(Stop::Fenced),
                Err(store::Error::Behind { .. }) if unsure && Box::pin(self.find_committed()).await? => return Ok(Commit::Done),
                Err(store::Error::Behind { .. } | store::Error::Refused(_) | store::Error::Cancelled) => {
                    // Boxed, as is all that is seldom: every driver would hold the room for it.
                    Box::pin(self.restage()).await?;
                    return Ok(Commit::Again);
                }
                Err(
                    error @ (store::Error::NotFound(_)
                    | store::Error::RequestIdReused(_)
                    | store::Error::Unreadable { .. }
                    | store::Error::Locked(_)),
                ) => {
                    return Err(Stop::Store(error));
                }
            }
        }
    }

    fn committed(&mut self, recorded: Vec<Recorded>) {
        let settles = self.staged.iter().any(|(_, event)| matches!(event, Event::TurnEnded(_) | Event::TurnAborted(_)));
        self.committed_seq = self.run.summary.seq;
        // After an answer that was lost, what other runs of the tree wrote is among them.
        let is_ours = |recorded: &Recorded| {
            matches!(recorded.event, Event::RunCreated(_)) && self.children.iter().any(|child| child.id == recorded.run)
        };
        self.created = match self.children[..] {
            [] => Vec::new(),
            [..] => recorded.iter().filter(|recorded| is_ours(recorded)).cloned().collect(),
        };
        self.clear_staged();
        let parent = self.run.created.parent.as_ref().map(|parent| parent.run.clone());
        let told_parent = parent.filter(|parent| recorded.iter().any(|recorded| recorded.run == *parent));
        self.tree.feed.publish(recorded);
        if settles {
            self.tree.settled.notify_waiters();
        }
        if let Some(parent) = told_parent {
            self.tree.wake(&parent);
        }
    }

    /// Takes the child runs that the last commit created.
    pub fn take_created(&mut self) -> Vec<Recorded> {
        std::mem::take(&mut self.created)
    }

    fn clear_staged(&mut self) {
        self.staged.clear();
        self.children.clear();
        self.child_ended = None;
    }

    /// Looks whether a transaction whose answer was lost took place, and publishes it if so.
    async fn find_committed(&mut self) -> Result<bool, Stop> {
        let news = patiently(self.run.id(), || read(&*self.store, self.run.id(), self.committed_seq)).await?;
        let ours: Vec<&Recorded> = news.iter().filter(|recorded| !matches!(recorded.event, Event::ChildEnded(_))).collect();
        let found = ours
            .first()
            .is_some_and(|first| first.epoch == self.epoch && self.staged.first().map(|(_, event)| event) == Some(&first.event));
        if !found {
            return Ok(false);
        }
        let before = news.first().map_or(0, |first| first.tree_seq.saturating_sub(1));
        let root = self.run.created.root.clone();
        let tree_news = patiently(self.run.id(), || read_tree(&*self.store, &root, before)).await?;
        self.reload().await?;
        self.committed(tree_news);
        self.refresh().await?;
        Ok(true)
    }

    /// Takes up what others wrote to this run's journal (a child's end). Staged facts are staged again on top.
    ///
    /// # Errors
    /// [`Stop`] if the run must be let go.
    pub async fn catch_up(&mut self) -> Result<(), Stop> {
        let news = patiently(self.run.id(), || read(&*self.store, self.run.id(), self.committed_seq)).await?;
        if news.is_empty() {
            return Ok(());
        }
        if !self.staged.is_empty() {
            return Box::pin(self.restage()).await;
        }
        for recorded in &news {
            self.run.apply(recorded)?;
        }
        self.committed_seq = self.run.summary.seq;
        Ok(())
    }

    /// Reads the accounts of the path afresh.
    ///
    /// # Errors
    /// [`Stop::Store`] if the store cannot say.
    pub async fn refresh(&mut self) -> Result<(), Stop> {
        self.path = patiently(self.run.id(), || self.store.path(self.run.id())).await?;
        Ok(())
    }

    /// Reads the run's cancel mark, unless it is known.
    ///
    /// # Errors
    /// [`Stop::Store`] if the store cannot say.
    pub async fn read_mark(&mut self) -> Result<(), Stop> {
        if self.cancel.is_none() {
            self.cancel = self.tree.mark(self.run.id());
        }
        if self.cancel.is_none() {
            self.cancel = patiently(self.run.id(), || self.store.get(self.run.id())).await?.cancel;
        }
        Ok(())
    }

    async fn restage(&mut self) -> Result<(), Stop> {
        let staged = std::mem::take(&mut self.staged);
        self.clear_staged();
        self.reload().await?;
        self.refresh().await?;
        self.cancel = patiently(self.run.id(), || self.store.get(self.run.id())).await?.cancel;
        // A quick call has begun and ended before its intent was written: both happened. Under a cancel mark the store
        // takes no beginning any more, and the result stands alone.
        let is_over = |id: &CallId| staged.iter().any(|(_, event)| matches!(event, Event::CallEnded(call) if call.call_id == *id));
        let happened = |event: &Event| match event {
            Event::CallStarted(call) => self.cancel.is_none() && is_over(&call.call_id),
            other => !is_intent(other),
        };
        let results: Vec<(i64, Event)> = staged.iter().filter(|(_, event)| happened(event)).cloned().collect();
        // What others wrote meanwhile may be newer: everything moves behind it together, so that a call stays as long as it was.
        let late_us = results.first().map_or(0, |(first_us, _)| self.run.summary.updated_us.saturating_sub(*first_us).max(0));
        for (time_us, event) in results {
            self.stage_at(time_us.saturating_add(late_us), event)?;
        }
        Ok(())
    }

    async fn reload(&mut self) -> Result<(), Stop> {
        let journal = patiently(self.run.id(), || read(&*self.store, self.run.id(), 0)).await?;
        if let Some(run) = Run::fold(&journal)? {
            self.committed_seq = run.summary.seq;
            self.run = run;
        }
        Ok(())
    }
}

/// Returns whether the fact is a decision about what comes, rather than something that happened.
fn is_intent(event: &Event) -> bool {
    match event {
        Event::TurnStarted(_) | Event::CallStarted(_) | Event::ChildStarted { .. } | Event::RunSuspended { .. } | Event::RunEnded(_) => {
            true
        }
        Event::RunCreated(_)
        | Event::RunStarted {}
        | Event::TurnEnded(_)
        | Event::TurnAborted(_)
        | Event::CallEnded(_)
        | Event::CallInDoubt { .. }
        | Event::ChildEnded(_)
        | Event::MessageReceived { .. }
        | Event::LimitsChanged { .. }
        | Event::ModelChanged(_)
        | Event::ContextCompacted(_)
        | Event::RunResumed { .. }
        | Event::CancelRequested { .. } => false,
    }
}
