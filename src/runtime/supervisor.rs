//! The trees of runs: who is driven, cancel, resume, drain. The only place in the crate that spawns tasks.
//!
//! A command (cancel, resume) is committed first, then acted on, then answered. So a crash between any two of these
//! leaves a command that the next start still knows.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::{Duration, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::circuit::Circuits;
use super::clock::Clock;
use super::driver::{Driver, Left};
use super::feed::Feed;
use super::journal::{self, Journal, Start, Stop, patiently};
use super::limiter::Limiter;
use super::submit::Plans;
use super::tree::{Seat, Tree};
use super::{Config, Error};
use crate::kernel::agent::KnownModel;
use crate::kernel::ledger::Account;
use crate::kernel::{Outcome, Recorded, Run, RunId, State};
use crate::provider::price::Book;
use crate::provider::{Provider, Providers};
use crate::store::{self, Page, Query, Row, Store};
use crate::telemetry::Telemetry;
use crate::tool::Registry;
use crate::workflow::Plan;

/// A running daemon's trees. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Runtime {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    store: Arc<dyn Store>,
    providers: Providers,
    book: Book,
    telemetry: Telemetry,
    clock: Clock,
    limiter: Arc<Limiter>,
    circuits: Circuits,
    drivers: TaskTracker,
    draining: CancellationToken,
    plans: Plans,
    trees: Mutex<HashMap<RunId, Arc<Tree>>>,
    /// Feeds live as long as their tree or somebody who watches it.
    feeds: Mutex<HashMap<RunId, Weak<Feed>>>,
    /// Runs that this daemon cannot drive, with a code and the reason in words.
    set_aside: Mutex<HashMap<RunId, (&'static str, String)>>,
}

/// What the runtime stands on.
pub struct Parts {
    /// Its configuration.
    pub config: Config,
    /// Where the journals are.
    pub store: Arc<dyn Store>,
    /// Who is asked.
    pub providers: Providers,
    /// What they cost.
    pub book: Book,
    /// Where spans and metrics go.
    pub telemetry: Telemetry,
}

impl Runtime {
    /// Starts: takes over every unfinished run of the store, if so configured, then accepts submissions.
    ///
    /// # Errors
    /// Those of the store. A run that cannot be taken over is set aside and stops nobody.
    pub async fn start(parts: Parts) -> Result<Self, Error> {
        let Parts { config, store, providers, book, telemetry } = parts;
        let limiter = Arc::new(Limiter::new(config.turns_in_flight_max, providers.clone()));
        let inner = Inner {
            config,
            store,
            providers,
            book,
            telemetry,
            clock: Clock::start(),
            limiter,
            circuits: Circuits::default(),
            drivers: TaskTracker::new(),
            draining: CancellationToken::new(),
            plans: Plans::default(),
            trees: Mutex::default(),
            feeds: Mutex::default(),
            set_aside: Mutex::default(),
        };
        let runtime = Self { inner: Arc::new(inner) };
        if runtime.config().takes_up {
            runtime.recover().await?;
        } else {
            runtime.leave_be().await?;
        }
        Ok(runtime)
    }

    /// Resolves an id, a prefix that one run alone has, or `@latest`.
    ///
    /// # Errors
    /// [`Error::NotFound`] or [`Error::Ambiguous`].
    pub async fn resolve(&self, name: &str) -> Result<RunId, Error> {
        /// How many candidates are shown.
        const SHOWN_MAX: usize = 5;
        if name == "@latest" {
            let page = self.store().list(Query { limit: 1, ..Query::default() }).await?;
            return page.rows.into_iter().next().map(|row| row.summary.id).ok_or_else(|| Error::NotFound(name.to_owned()));
        }
        let prefix = name.to_ascii_uppercase();
        if prefix.is_empty() {
            return Err(Error::NotFound(name.to_owned()));
        }
        let found = self.store().find(&prefix, SHOWN_MAX).await?;
        match &found[..] {
            [] => Err(Error::NotFound(name.to_owned())),
            [one] => Ok(one.clone()),
            [..] if found.iter().any(|id| id.as_str() == prefix) => Ok(RunId::new(prefix)),
            some => Err(Error::Ambiguous { prefix: name.to_owned(), count: some.len(), some: found.clone() }),
        }
    }

    /// Returns one run.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn get(&self, run: &RunId) -> Result<Row, Error> {
        Ok(self.shown(self.store().get(run).await?))
    }

    /// Returns a page of runs.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn list(&self, query: Query) -> Result<Page, Error> {
        let page = self.store().list(query).await?;
        Ok(Page { rows: page.rows.into_iter().map(|row| self.shown(row)).collect(), next: page.next })
    }

    /// Returns a run and everything below it, parents before children.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn subtree(&self, run: &RunId) -> Result<Vec<Row>, Error> {
        Ok(self.store().subtree(run).await?.into_iter().map(|row| self.shown(row)).collect())
    }

    /// Returns the fold of a run's journal.
    ///
    /// # Errors
    /// [`Error::Store`], or [`Error::SetAside`] if the journal cannot be read.
    pub async fn load(&self, run: &RunId) -> Result<Run, Error> {
        let journal = journal::read(&**self.store(), run, 0).await?;
        let folded = Run::fold(&journal).map_err(|illegal| Error::SetAside(illegal.to_string()))?;
        folded.ok_or_else(|| Error::NotFound(run.to_string()))
    }

    /// Stops at turn boundaries, as far as they come within the drain timeout. Submissions are refused from here on.
    pub async fn drain(&self) {
        self.inner.draining.cancel();
        self.inner.drivers.close();
        let wait = Duration::from_millis(self.inner.config.drain_timeout_ms);
        if timeout(wait, self.inner.drivers.wait()).await.is_err() {
            let left = self.running();
            tracing::warn!(runs = left, "drain timeout: the calls under way are cut and taken up at the next start");
        }
        self.inner.telemetry.shutdown().await;
    }

    /// Returns how many runs have a driver now.
    pub fn running(&self) -> usize {
        lock(&self.inner.trees).values().map(|tree| tree.driven()).sum()
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// Returns the store's name for people.
    pub fn store_name(&self) -> String {
        self.store().name()
    }

    /// Returns the names of the providers.
    pub fn provider_names(&self) -> Vec<String> {
        self.inner.providers.names()
    }

    /// Returns the version of the price book.
    pub fn price_book_version(&self) -> String {
        self.inner.book.version().to_owned()
    }

    /// Returns the spans and metrics.
    pub fn telemetry(&self) -> &Telemetry {
        &self.inner.telemetry
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    pub(super) fn clock(&self) -> Clock {
        self.inner.clock
    }

    pub(super) fn plans(&self) -> &Plans {
        &self.inner.plans
    }

    pub(super) fn limiter(&self) -> &Arc<Limiter> {
        &self.inner.limiter
    }

    pub(super) fn circuits(&self) -> &Circuits {
        &self.inner.circuits
    }

    pub(super) fn provider(&self, name: &str) -> Option<Arc<dyn Provider>> {
        self.inner.providers.get(name)
    }

    /// Returns the price book.
    pub fn book(&self) -> &Book {
        &self.inner.book
    }

    /// Returns whether a provider is there, with a key if it needs one.
    pub fn is_ready(&self, provider: &str) -> bool {
        self.provider(provider).is_some_and(|provider| provider.ready().is_ok())
    }

    pub(super) fn model(&self, provider: &str, model: &str) -> KnownModel {
        self.inner.book.model(provider, model)
    }

    pub(super) fn is_draining(&self) -> bool {
        self.inner.draining.is_cancelled()
    }

    pub(super) fn drain_token(&self) -> CancellationToken {
        self.inner.draining.clone()
    }

    /// Makes a new id: unique, and sorted by time.
    pub(super) fn new_run_id(&self) -> RunId {
        RunId::new(ulid::Ulid::new().to_string())
    }

    pub(super) fn check_room(&self) -> Result<(), Error> {
        let trees = lock(&self.inner.trees).len();
        if trees >= self.inner.config.trees_max { Err(Error::QueueFull(trees)) } else { Ok(()) }
    }

    pub(super) fn feed(&self, root: &RunId) -> Arc<Feed> {
        let mut feeds = lock(&self.inner.feeds);
        if let Some(feed) = feeds.get(root).and_then(Weak::upgrade) {
            return feed;
        }
        feeds.retain(|_, feed| feed.strong_count() > 0);
        let feed = Arc::new(Feed::new(self.inner.telemetry.clone()));
        feeds.insert(root.clone(), Arc::downgrade(&feed));
        feed
    }

    pub(super) fn open_new_tree(&self, root: RunId, plan: Arc<Plan>, inputs: serde_json::Value, registry: Registry, created: Recorded) {
        let feed = self.feed(&root);
        feed.open(&[]);
        feed.publish([created.clone()]);
        let tree = Arc::new(Tree::new(root, plan, inputs, registry, feed));
        self.start_new(&tree, &created, &[], None);
    }

    /// Returns the live tree of a root, opening it from the store if it has none.
    pub(super) async fn tree(&self, root: &RunId) -> Result<Arc<Tree>, Error> {
        if let Some(tree) = lock(&self.inner.trees).get(root) {
            return Ok(tree.clone());
        }
        let rows = self.store().subtree(root).await?;
        let row = rows.first().ok_or_else(|| Error::NotFound(root.to_string()))?;
        let plan = self.stored_plan(&row.bundle_digest).await?;
        let run = self.load(root).await?;
        let registry = self.open_registry(&plan, std::path::Path::new(&run.created.workspace))?;
        let feed = self.feed(root);
        if !feed.is_open() {
            feed.open(&self.read_tree(root, 0).await?);
        }
        let tree = Arc::new(Tree::new(root.clone(), plan, run.created.inputs.clone(), registry, feed));
        // A drained run goes on at once, so nobody stops for its sake.
        let rests = |row: &&Row| row.summary.state == State::Suspended && row.summary.outcome != Some(Outcome::Drained);
        for row in rows.iter().filter(rests) {
            tree.note_suspended(&row.summary.id, row.summary.outcome.unwrap_or(Outcome::InDoubt));
        }
        Ok(lock(&self.inner.trees).entry(root.clone()).or_insert(tree).clone())
    }

    /// Reads a tree's journal after a tree_seq.
    pub(super) async fn read_tree(&self, root: &RunId, after: u64) -> Result<Vec<Arc<Recorded>>, Error> {
        Ok(journal::read_tree(&**self.store(), root, after).await?.into_iter().map(Arc::new).collect())
    }

    /// Gives a run a driver, unless it has one. The seat is taken before this returns, so a cancel that comes next
    /// finds the run driven even if its task has not begun.
    pub(super) fn start_driver(&self, tree: &Arc<Tree>, run: RunId, parent: Option<&RunId>) {
        self.spawn_driver(tree, run, parent, None);
    }

    /// Gives a run that was created a moment ago its driver. `above` are the accounts of the runs above it.
    pub(super) fn start_new(&self, tree: &Arc<Tree>, created: &Recorded, above: &[Account], parent: Option<&RunId>) {
        // What cannot be begun is read from the store, and set aside by whoever reads it.
        self.spawn_driver(tree, created.run.clone(), parent, Start::of_new(created, above).ok());
    }

    fn spawn_driver(&self, tree: &Arc<Tree>, run: RunId, parent: Option<&RunId>, start: Option<Start>) {
        let Some(seat) = tree.join(&run, parent) else { return };
        lock(&self.inner.trees).entry(tree.root.clone()).or_insert_with(|| tree.clone());
        let (runtime, tree, parent) = (self.clone(), tree.clone(), parent.cloned());
        // Boxed: a driver starts drivers, and a future cannot hold its own type.
        let task: BoxFuture<'static, ()> = Box::pin(async move { runtime.drive(tree, run, parent, seat, start).await });
        self.inner.drivers.spawn(task);
    }

    async fn drive(self, tree: Arc<Tree>, run: RunId, parent: Option<RunId>, seat: Seat, start: Option<Start>) {
        let driving = AssertUnwindSafe(self.drive_from(tree.clone(), run.clone(), seat, start)).catch_unwind();
        let driven = driving.await;
        // One process owns the store, so only a command of this one can have fenced the driver out: the run is taken up
        // again as that command left it.
        let fenced = matches!(&driven, Ok(Err(Stop::Fenced)));
        let suspended = match driven {
            Ok(Ok(Left::Ended)) => None,
            Ok(Ok(Left::Suspended(outcome))) => Some(outcome),
            Ok(Err(stop)) => self.let_go(&tree.root, &run, &stop),
            Err(_) => {
                tracing::error!(run_id = %run, "the driver panicked; the run is taken up at the next start");
                self.set_aside(
                    &tree.root,
                    &run,
                    "DRIVER_PANICKED",
                    "its driver panicked; restart the daemon to take it up again".to_owned(),
                );
                Some(Outcome::InDoubt)
            }
        };
        tree.leave(&run, suspended);
        if let Some(parent) = parent.as_ref().filter(|_| suspended.is_some()) {
            tree.wake(parent);
        }
        if fenced && !self.is_draining() {
            self.start_driver(&tree, run, parent.as_ref());
        }
        self.forget_if_idle(tree);
    }

    /// Runs a command to its end whether or not its caller stays: a client that goes away after the commit must not keep
    /// what was committed from being acted on.
    pub(super) async fn detached<T: Send + 'static>(&self, work: BoxFuture<'static, Result<T, Error>>) -> Result<T, Error> {
        let gone = |error: tokio::task::JoinError| store::Error::Unavailable(format!("the command stopped unexpectedly: {error}"));
        self.inner.drivers.spawn(work).await.map_err(gone)?
    }

    async fn drive_from(&self, tree: Arc<Tree>, run: RunId, mut seat: Seat, start: Option<Start>) -> Result<Left, Stop> {
        let start = match start {
            Some(start) => start,
            None => match self.claim(&run).await? {
                Some(start) => start,
                None => return Ok(Left::Ended),
            },
        };
        seat.deadline_us = tree.bound(&run, self.path_deadline_us(&tree, &start.run).await?);
        let pen = Journal::new(self.store().clone(), tree.clone(), self.clock(), start);
        Driver::new(self.clone(), tree, pen, seat).drive().await
    }

    /// Takes a run over from whoever had it. `None` if it has ended.
    async fn claim(&self, run: &RunId) -> Result<Option<Start>, Stop> {
        let claimed = match patiently(run, || self.store().claim(run)).await {
            Ok(claimed) => claimed,
            Err(Stop::Store(store::Error::Ended)) => return Ok(None),
            Err(stop) => return Err(stop),
        };
        let journal = patiently(run, || journal::read(&**self.store(), run, 0)).await?;
        let folded = Run::fold(&journal)?.ok_or_else(|| Stop::Store(store::Error::NotFound(run.clone())))?;
        Ok(Some(Start { run: folded, epoch: claimed.row.epoch, path: claimed.path, cancel: claimed.row.cancel }))
    }

    /// Returns when the run's own time is up, if it runs from now on.
    fn deadline_us(&self, run: &Run) -> i64 {
        let ran_us = run.running_us(run.summary.updated_us);
        let left_us = run.summary.limits.timeout_ms.saturating_mul(1000).saturating_sub(ran_us);
        self.clock().now_us().saturating_add(left_us)
    }

    /// Returns when the least time limit on a run's path is up. A parent that was started in the same moment (after a
    /// restart or a resume) has no deadline in the tree yet, so it is worked out from its journal.
    async fn path_deadline_us(&self, tree: &Tree, run: &Run) -> Result<i64, Stop> {
        let mut deadline_us = self.deadline_us(run);
        let mut above = run.created.parent.as_ref().map(|parent| parent.run.clone());
        while let Some(id) = above {
            if let Some(known_us) = tree.deadline_us(&id) {
                return Ok(deadline_us.min(known_us));
            }
            let journal = patiently(&id, || journal::read(&**self.store(), &id, 0)).await?;
            let Some(parent) = Run::fold(&journal)? else { break };
            deadline_us = deadline_us.min(self.deadline_us(&parent));
            above = parent.created.parent.as_ref().map(|parent| parent.run.clone());
        }
        Ok(deadline_us)
    }

    fn let_go(&self, root: &RunId, run: &RunId, stop: &Stop) -> Option<Outcome> {
        match stop {
            Stop::Fenced => {
                tracing::warn!(run_id = %run, "another owner has taken the run over");
                None
            }
            Stop::Illegal(_) | Stop::Store(_) => {
                tracing::error!(run_id = %run, error = %stop, "the run is set aside");
                self.set_aside(root, run, "JOURNAL_UNREADABLE", stop.to_string());
                Some(Outcome::InDoubt)
            }
        }
    }

    /// Lets go of a tree, and drops it if nobody drives it and nobody else holds it; its feed lives on while it is
    /// watched.
    pub(super) fn forget_if_idle(&self, tree: Arc<Tree>) {
        let mut trees = lock(&self.inner.trees);
        let (root, alive) = (tree.root.clone(), tree.is_alive());
        // Inside the lock, so that of two who leave together the second one sees the map's hold alone.
        drop(tree);
        if !alive && trees.get(&root).is_some_and(|held| Arc::strong_count(held) == 1) {
            trees.remove(&root);
        }
    }

    pub(super) fn live_tree(&self, root: &RunId) -> Option<Arc<Tree>> {
        lock(&self.inner.trees).get(root).cloned()
    }

    /// Notes that this daemon cannot drive a run; nothing is written to its journal, so watchers are told apart from it.
    pub(super) fn set_aside(&self, root: &RunId, run: &RunId, reason: &'static str, message: String) {
        lock(&self.inner.set_aside).insert(run.clone(), (reason, message));
        self.feed(root).look_again();
    }

    /// Returns whether this daemon could not drive a run.
    pub(super) fn is_set_aside(&self, run: &RunId) -> bool {
        lock(&self.inner.set_aside).contains_key(run)
    }

    /// Forgets that a run could not be driven: it is about to be tried again.
    pub(super) fn take_back(&self, run: &RunId) {
        lock(&self.inner.set_aside).remove(run);
    }

    /// Returns a row as people shall see it: a run that was set aside is suspended, whatever its journal says, and one
    /// that has a driver again runs, though its journal is about to say so only.
    pub(super) fn shown(&self, mut row: Row) -> Row {
        if row.summary.state == State::Ended {
            return row;
        }
        let driven = || self.live_tree(&row.summary.root).is_some_and(|tree| tree.is_driven(&row.summary.id));
        if row.summary.state == State::Suspended && row.summary.outcome == Some(Outcome::Drained) && !self.is_draining() && driven() {
            row.summary.state = State::Running;
            row.summary.outcome = None;
            return row;
        }
        if let Some((reason, message)) = lock(&self.inner.set_aside).get(&row.summary.id) {
            row.summary.state = State::Suspended;
            row.summary.outcome = Some(Outcome::InDoubt);
            (*reason).clone_into(&mut row.summary.reason);
            row.summary.message.clone_from(message);
        }
        row
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these hold is valid after every statement, so a panic elsewhere spoils nothing.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
