//! Reading: a few read-only connections, each read short and complete before it is handed out, so that no reader pins the
//! log.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::Semaphore;

use super::{error_of, file};
use crate::kernel::event::EVENT_VERSION;
use crate::kernel::ledger::Account;
use crate::kernel::{Event, Recorded, RunId};
use crate::store::{Error, Page, Query, Row};

/// Read-only connections.
const READERS: usize = 4;

/// The pool of readers.
pub struct Readers {
    idle: Arc<Mutex<Vec<Connection>>>,
    turns: Arc<Semaphore>,
}

impl Readers {
    /// Opens the connections.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let idle = (0..READERS).map(|_| file::connect_reader(path)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { idle: Arc::new(Mutex::new(idle)), turns: Arc::new(Semaphore::new(READERS)) })
    }

    /// Runs one read off the reactor.
    pub fn read<T, R>(&self, read: R) -> impl Future<Output = Result<T, Error>> + Send + use<T, R>
    where
        T: Send + 'static,
        R: FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    {
        let (idle, turns) = (self.idle.clone(), self.turns.clone());
        async move {
            let gone = || Error::Unavailable("the store is closed".to_owned());
            let turn = turns.acquire_owned().await.map_err(|_| gone())?;
            let reading = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                let connection = idle.lock().unwrap_or_else(PoisonError::into_inner).pop().ok_or_else(gone)?;
                let result = read(&connection);
                idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
                result
            });
            reading.await.map_err(|error| Error::Unavailable(format!("a read failed: {error}")))?
        }
    }
}

fn words<T>(result: rusqlite::Result<T>) -> Result<T, Error> {
    result.map_err(|error| error_of(&error))
}

fn parse_row(body: &[u8]) -> Result<Row, Error> {
    serde_json::from_slice(body).map_err(|error| Error::Unavailable(format!("a run's row cannot be read: {error}")))
}

/// Returns a run's key and row, without its tree's head.
pub fn row(connection: &Connection, run: &RunId) -> Result<Option<(i64, Row)>, Error> {
    let mut statement = words(connection.prepare_cached("SELECT id, body FROM runs WHERE run_id=?1"))?;
    let found = statement.query_row([run.as_str()], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?)));
    words(found.optional())?.map(|(key, body)| Ok((key, parse_row(&body)?))).transpose()
}

/// Fills in the tree's head, which only the root's row keeps.
fn shown(connection: &Connection, mut found: Row) -> Result<Row, Error> {
    if found.summary.root != found.summary.id {
        found.tree_seq = row(connection, &found.summary.root)?.map_or(0, |(_, root)| root.tree_seq);
    }
    Ok(found)
}

/// See [`crate::store::Store::get`].
pub fn get(connection: &Connection, run: &RunId) -> Result<Row, Error> {
    let (_, found) = row(connection, run)?.ok_or_else(|| Error::NotFound(run.clone()))?;
    shown(connection, found)
}

/// See [`crate::store::Store::load`].
pub fn load(connection: &Connection, run: &RunId, after_seq: u64, limit: usize) -> Result<Vec<Recorded>, Error> {
    let sql = "SELECT ?4, e.seq, e.tree_seq, e.epoch, e.time_us, e.version, e.body FROM events e JOIN runs r ON r.id=e.run
               WHERE r.run_id=?1 AND e.seq>?2 ORDER BY e.seq LIMIT ?3";
    let mut statement = words(connection.prepare_cached(sql))?;
    let mut rows = words(statement.query(params![run.as_str(), after_seq, limit, run.as_str()]))?;
    let mut events = Vec::new();
    while let Some(row) = words(rows.next())? {
        events.push(recorded(row)?);
    }
    Ok(events)
}

/// See [`crate::store::Store::load_tree`].
pub fn load_tree(connection: &Connection, root: &RunId, after_tree_seq: u64, limit: usize) -> Result<Vec<Recorded>, Error> {
    let sql = "SELECT r.run_id, e.seq, e.tree_seq, e.epoch, e.time_us, e.version, e.body FROM events e JOIN runs r ON r.id=e.run
               WHERE e.root=(SELECT id FROM runs WHERE run_id=?1) AND e.tree_seq>?2 ORDER BY e.tree_seq LIMIT ?3";
    let mut statement = words(connection.prepare_cached(sql))?;
    let mut rows = words(statement.query(params![root.as_str(), after_tree_seq, limit]))?;
    let mut events = Vec::new();
    while let Some(row) = words(rows.next())? {
        events.push(recorded(row)?);
    }
    Ok(events)
}

fn recorded(row: &rusqlite::Row<'_>) -> Result<Recorded, Error> {
    let run = RunId::new(words(row.get::<_, String>(0))?);
    let seq: u64 = words(row.get(1))?;
    let unreadable = |why: String| Error::Unreadable { run: run.clone(), seq, why };
    let version: u32 = words(row.get(5))?;
    if version > EVENT_VERSION {
        return Err(unreadable(format!("its version {version} is newer than this build's {EVENT_VERSION}")));
    }
    let body: Vec<u8> = words(row.get(6))?;
    let event: Event = serde_json::from_slice(&body).map_err(|error| unreadable(error.to_string()))?;
    Ok(Recorded { run, seq, tree_seq: words(row.get(2))?, epoch: words(row.get(3))?, time_us: words(row.get(4))?, event })
}

/// Returns a run and everything below it, parents before children, siblings by creation; empty if there is no such run.
pub fn subtree_ids(connection: &Connection, run: &RunId) -> Result<Vec<RunId>, Error> {
    let sql = "WITH RECURSIVE below(id, level) AS (
                 SELECT id, 0 FROM runs WHERE run_id=?1
                 UNION ALL SELECT r.id, below.level+1 FROM runs r JOIN below ON r.parent=below.id)
               SELECT r.run_id FROM below JOIN runs r ON r.id=below.id ORDER BY below.level, r.id";
    let mut statement = words(connection.prepare_cached(sql))?;
    let ids = words(statement.query_map([run.as_str()], |row| Ok(RunId::new(row.get::<_, String>(0)?))))?;
    words(ids.collect())
}

/// See [`crate::store::Store::subtree`].
pub fn subtree(connection: &Connection, run: &RunId) -> Result<Vec<Row>, Error> {
    let ids = subtree_ids(connection, run)?;
    if ids.is_empty() {
        return Err(Error::NotFound(run.clone()));
    }
    let head = get(connection, run)?.tree_seq;
    let mut rows = Vec::with_capacity(ids.len());
    for id in ids {
        if let Some((_, mut row)) = row(connection, &id)? {
            row.tree_seq = head;
            rows.push(row);
        }
    }
    Ok(rows)
}

/// See [`crate::store::Store::path`].
pub fn path(connection: &Connection, run: &RunId) -> Result<Vec<Account>, Error> {
    // One transaction, so that the accounts are of one moment.
    let transaction = words(connection.unchecked_transaction())?;
    let mut accounts = Vec::new();
    let mut at = Some(run.clone());
    while let Some(id) = at {
        let (_, found) = row(&transaction, &id)?.ok_or_else(|| Error::NotFound(id.clone()))?;
        accounts.push(found.account);
        at = found.summary.parent.map(|parent| parent.run);
    }
    Ok(accounts)
}

/// See [`crate::store::Store::find`].
pub fn find(connection: &Connection, prefix: &str, limit: usize) -> Result<Vec<RunId>, Error> {
    // A range instead of LIKE: it uses the index, and no character of the prefix means anything.
    let sql = "SELECT run_id FROM runs WHERE run_id>=?1 AND run_id<?1||char(1114111) ORDER BY id DESC LIMIT ?2";
    let mut statement = words(connection.prepare_cached(sql))?;
    let ids = words(statement.query_map(params![prefix, limit], |row| Ok(RunId::new(row.get::<_, String>(0)?))))?;
    words(ids.collect())
}

/// See [`crate::store::Store::list`].
pub fn list(connection: &Connection, query: &Query) -> Result<Page, Error> {
    let sql = if query.include_descendants {
        "SELECT id, body FROM runs WHERE id<?1 ORDER BY id DESC"
    } else {
        "SELECT id, body FROM runs WHERE id<?1 AND parent IS NULL ORDER BY id DESC"
    };
    let mut statement = words(connection.prepare_cached(sql))?;
    let before = query.cursor.map_or(i64::MAX, |cursor| i64::try_from(cursor).unwrap_or(i64::MAX));
    let mut found = words(statement.query([before]))?;
    let mut rows = Vec::new();
    let mut last = None;
    while let Some(row) = words(found.next())? {
        let body: Vec<u8> = words(row.get(1))?;
        let parsed = parse_row(&body)?;
        if !crate::store::matches(query, &parsed) {
            continue;
        }
        if rows.len() == query.limit {
            return Ok(Page { rows, next: last });
        }
        last = Some(words(row.get(0))?);
        rows.push(shown(connection, parsed)?);
    }
    Ok(Page { rows, next: None })
}

/// See [`crate::store::Store::unfinished`].
pub fn unfinished(connection: &Connection) -> Result<Vec<Row>, Error> {
    let mut statement = words(connection.prepare_cached("SELECT body FROM runs WHERE takes_up=1 ORDER BY id"))?;
    let mut found = words(statement.query([]))?;
    let mut rows = Vec::new();
    while let Some(row) = words(found.next())? {
        let body: Vec<u8> = words(row.get(0))?;
        rows.push(shown(connection, parse_row(&body)?)?);
    }
    Ok(rows)
}

/// See [`crate::store::Store::bundle`].
pub fn bundle(connection: &Connection, digest: &str) -> Result<Vec<u8>, Error> {
    let found = connection.query_row("SELECT body FROM bundles WHERE digest=?1", [digest], |row| row.get(0)).optional();
    words(found)?.ok_or_else(|| Error::Unavailable(format!("the stored submission {digest} is missing")))
}
