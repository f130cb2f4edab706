//! The writer thread: the only connection that writes. What is queued while one transaction syncs goes into the next one
//! together, so many runs share one sync.
//!
//! Crash story: a caller is answered after COMMIT has synced the log. Before that, nothing of its work is found after a
//! restart; after it, all of it is. A caller that goes away does not stop what it began.

use std::collections::HashMap;
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::{mpsc, oneshot};

use super::{error_of, reader};
use crate::kernel::event::EVENT_VERSION;
use crate::kernel::{Recorded, RunId, State};
use crate::store::transaction::Tables;
use crate::store::{Error, Row};

/// Transactions that may wait.
const QUEUE_MAX: usize = 1024;
/// Transactions that share one commit at most.
const GROUP_MAX: usize = 256;
/// Rows kept in memory at most; they are only a cache.
const CACHED_ROWS_MAX: usize = 4096;
/// Pages of the log after which it is copied back into the file.
const CHECKPOINT_PAGES: i64 = 1000;
/// Commits between two looks at the log's length.
const CHECKPOINT_LOOK_EVERY: u32 = 64;

/// The handle to the writer thread.
pub struct Writer {
    queue: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// Does its work and returns how to answer, given the fate of the commit.
type Job = Box<dyn FnOnce(&mut SqlTables) -> Answer + Send>;
type Answer = Box<dyn FnOnce(Result<(), Error>) + Send>;

impl Writer {
    /// Starts the thread.
    pub fn start(connection: Connection) -> Result<Self, Error> {
        let (queue, jobs) = mpsc::channel(QUEUE_MAX);
        let thread = std::thread::Builder::new().name("wren-store-writer".to_owned()).spawn(move || work(connection, jobs));
        let thread = thread.map_err(|error| Error::Unavailable(format!("cannot start the writer thread: {error}")))?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    /// Runs one transaction, durable before this returns.
    pub fn write<T, W>(&self, work: W) -> impl Future<Output = Result<T, Error>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce(&mut SqlTables) -> Result<T, Error> + Send + 'static,
    {
        let queue = self.queue.clone();
        async move {
            let (reply, answer) = oneshot::channel();
            let job: Job = Box::new(move |tables| {
                let result = tables.atomically(work);
                Box::new(move |committed| {
                    // Nobody listens any more: the work is done all the same.
                    let _ = reply.send(result.and_then(|value| committed.map(|()| value)));
                })
            });
            let gone = || Error::Unavailable("the store's writer has stopped".to_owned());
            queue.ok_or_else(gone)?.send(job).await.map_err(|_| gone())?;
            answer.await.map_err(|_| gone())?
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Closing the queue ends the thread once it is empty.
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn work(connection: Connection, mut jobs: mpsc::Receiver<Job>) {
    let mut tables = SqlTables { connection, cache: HashMap::new(), touched: Vec::new(), commits: 0 };
    while let Some(first) = jobs.blocking_recv() {
        let begun = tables.run("BEGIN IMMEDIATE");
        let mut answers = Vec::new();
        if let Err(error) = begun {
            // Nothing was begun: every job of the group fails alike, and the next group tries again.
            refuse(first, &mut tables, &error);
            continue;
        }
        answers.push(first(&mut tables));
        while answers.len() < GROUP_MAX
            && let Ok(job) = jobs.try_recv()
        {
            answers.push(job(&mut tables));
        }
        let committed = tables.run("COMMIT");
        if committed.is_err() {
            // What the cache holds may not be in the file.
            tables.cache.clear();
            let _ = tables.run("ROLLBACK");
        }
        for answer in answers {
            answer(committed.clone());
        }
        tables.tidy_up();
    }
    let _ = tables.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
}

/// Answers a job whose transaction could not begin. Its work runs outside a transaction only as far as its first write,
/// which fails for the same reason; a brief pause keeps a broken disk from spinning the thread.
fn refuse(job: Job, tables: &mut SqlTables, error: &Error) {
    std::thread::sleep(Duration::from_millis(50));
    tables.cache.clear();
    let answer = {
        let broken = error.clone();
        let answer = job(tables);
        move || answer(Err(broken))
    };
    answer();
}

/// The tables inside the writer's transaction.
pub struct SqlTables {
    connection: Connection,
    /// Rows of active runs with their integer keys, as they are inside the open transaction.
    cache: HashMap<RunId, (i64, Row)>,
    /// What the present job has put, to be forgotten if it fails.
    touched: Vec<RunId>,
    commits: u32,
}

impl SqlTables {
    fn run(&self, sql: &str) -> Result<(), Error> {
        self.connection.execute_batch(sql).map_err(|error| error_of(&error))
    }

    /// Runs one job in a savepoint of its own: a job that fails takes nothing else down.
    fn atomically<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        self.touched.clear();
        self.run("SAVEPOINT job")?;
        let result = work(self).and_then(|value| self.run("RELEASE job").map(|()| value));
        if result.is_err() {
            for run in self.touched.drain(..) {
                self.cache.remove(&run);
            }
            // Where the transaction itself is gone (a full disk), there is no savepoint left to go back to.
            let _ = self.run("ROLLBACK TO job; RELEASE job");
        }
        result
    }

    /// Keeps the cache and the log within bounds, after a commit was answered.
    fn tidy_up(&mut self) {
        if self.cache.len() > CACHED_ROWS_MAX {
            self.cache.clear();
        }
        self.commits = self.commits.wrapping_add(1);
        if !self.commits.is_multiple_of(CHECKPOINT_LOOK_EVERY) {
            return;
        }
        let pages = self.connection.query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| row.get::<_, i64>(1)).unwrap_or(0);
        if pages > CHECKPOINT_PAGES {
            // Passive: it copies what no reader needs and never waits for one.
            let _ = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        }
    }

    fn cached(&mut self, run: &RunId) -> Result<Option<(i64, Row)>, Error> {
        if let Some(found) = self.cache.get(run) {
            return Ok(Some(found.clone()));
        }
        let found = reader::row(&self.connection, run)?;
        if let Some(found) = &found {
            self.cache.insert(run.clone(), found.clone());
        }
        Ok(found)
    }

    fn key(&mut self, run: &RunId) -> Result<i64, Error> {
        self.cached(run)?.map(|(key, _)| key).ok_or_else(|| Error::NotFound(run.clone()))
    }
}

impl Tables for SqlTables {
    fn row(&mut self, run: &RunId) -> Result<Option<Row>, Error> {
        Ok(self.cached(run)?.map(|(_, row)| row))
    }

    fn put(&mut self, row: Row) -> Result<(), Error> {
        let run = row.summary.id.clone();
        let body = serde_json::to_vec(&row).map_err(|error| Error::Unavailable(error.to_string()))?;
        let takes_up = crate::store::is_unfinished(&row);
        let state = state_code(row.summary.state);
        let key = match self.cached(&run)? {
            Some((key, _)) => {
                let mut update = self
                    .connection
                    .prepare_cached("UPDATE runs SET state=?2, takes_up=?3, body=?4 WHERE id=?1")
                    .map_err(|error| error_of(&error))?;
                update.execute(params![key, state, takes_up, body]).map_err(|error| error_of(&error))?;
                key
            }
            None => {
                let parent = row.summary.parent.as_ref();
                let parent_key = parent.map(|parent| self.key(&parent.run)).transpose()?;
                let root_key = if row.summary.root == run { None } else { Some(self.key(&row.summary.root)?) };
                let sql = "INSERT INTO runs(run_id, parent, call_id, root, state, takes_up, body) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)";
                let mut insert = self.connection.prepare_cached(sql).map_err(|error| error_of(&error))?;
                let call_id = parent.map(|parent| parent.call_id.as_str());
                // A root's own key is known only once it is inserted.
                let key = insert
                    .insert(params![run.as_str(), parent_key, call_id, root_key.unwrap_or(0), state, takes_up, body])
                    .map_err(|error| error_of(&error))?;
                if root_key.is_none() {
                    self.connection.execute("UPDATE runs SET root=id WHERE id=?1", [key]).map_err(|error| error_of(&error))?;
                }
                key
            }
        };
        self.touched.push(run.clone());
        if row.summary.state == State::Ended && row.summary.parent.is_some() {
            self.cache.remove(&run);
        } else {
            self.cache.insert(run, (key, row));
        }
        Ok(())
    }

    fn add(&mut self, recorded: &Recorded, root: &RunId) -> Result<(), Error> {
        let (root, run) = (self.key(root)?, self.key(&recorded.run)?);
        let body = serde_json::to_vec(&recorded.event).map_err(|error| Error::Unavailable(error.to_string()))?;
        let sql = "INSERT INTO events(root, tree_seq, run, seq, epoch, time_us, version, body) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let mut insert = self.connection.prepare_cached(sql).map_err(|error| error_of(&error))?;
        let values = params![root, recorded.tree_seq, run, recorded.seq, recorded.epoch, recorded.time_us, EVENT_VERSION, body];
        insert.execute(values).map_err(|error| error_of(&error))?;
        Ok(())
    }

    fn request(&mut self, id: &str) -> Result<Option<(RunId, String)>, Error> {
        let found = self.connection.query_row("SELECT run_id, content FROM requests WHERE id=?1", [id], |row| {
            Ok((RunId::new(row.get::<_, String>(0)?), row.get(1)?))
        });
        found.optional().map_err(|error| error_of(&error))
    }

    fn put_request(&mut self, id: &str, content: &str, run: &RunId) -> Result<(), Error> {
        let inserted =
            self.connection.execute("INSERT INTO requests(id, content, run_id) VALUES(?1, ?2, ?3)", params![id, content, run.as_str()]);
        inserted.map(|_| ()).map_err(|error| error_of(&error))
    }

    fn put_bundle(&mut self, digest: &str, bytes: &[u8]) -> Result<(), Error> {
        let inserted = self.connection.execute("INSERT OR IGNORE INTO bundles(digest, body) VALUES(?1, ?2)", params![digest, bytes]);
        inserted.map(|_| ()).map_err(|error| error_of(&error))
    }

    fn subtree(&mut self, run: &RunId) -> Result<Vec<RunId>, Error> {
        reader::subtree_ids(&self.connection, run)
    }

    fn has_child(&mut self, parent: &RunId, call_id: &str) -> Result<bool, Error> {
        let parent = self.key(parent)?;
        let found = self.connection.query_row("SELECT 1 FROM runs WHERE parent=?1 AND call_id=?2", params![parent, call_id], |_| Ok(()));
        Ok(found.optional().map_err(|error| error_of(&error))?.is_some())
    }
}

/// Returns the number that stands for a state in the file.
fn state_code(state: State) -> i64 {
    match state {
        State::Pending => 1,
        State::Running => 2,
        State::Suspended => 3,
        State::Cancelling => 4,
        State::Ended => 5,
    }
}
