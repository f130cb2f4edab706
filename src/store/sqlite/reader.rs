//! Reading: a few read-only connections, each read short and complete before it is handed out, so that no reader pins the
//! log.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::Semaphore;

use super::row::{HOT_COLUMNS, restore, state_code};
use super::{error_of, file};
use crate::kernel::event::EVENT_VERSION;
use crate::kernel::ledger::Account;
use crate::kernel::summary::Summary;
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
                // One transaction, so that what is read together is of one moment.
                let result = words(connection.unchecked_transaction()).and_then(|transaction| read(&transaction));
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

/// What [`row_of`] reads, from `runs r JOIN heads h`. The tree's head is the root's.
fn row_columns() -> &'static str {
    static COLUMNS: OnceLock<String> = OnceLock::new();
    COLUMNS.get_or_init(|| {
        let hot = HOT_COLUMNS.map(|column| format!("h.{column}")).join(", ");
        let tree_seq = "(SELECT tree_seq FROM heads WHERE heads.id=r.root)";
        format!("r.id, r.run_id, r.summary, r.cancel, r.bundle_digest, {tree_seq}, {hot} FROM runs r JOIN heads h ON h.id=r.id")
    })
}

/// Where the columns of `heads` begin in [`row_columns`].
const HOT_AT: usize = 6;

fn row_of(row: &rusqlite::Row<'_>) -> Result<(i64, Row), Error> {
    let id: String = words(row.get(1))?;
    let mut hot = [0; HOT_COLUMNS.len()];
    for (at, value) in hot.iter_mut().enumerate() {
        *value = words(row.get(HOT_AT + at))?;
    }
    let broken = |why: serde_json::Error| Error::Unavailable(format!("the row of run {id} cannot be read: {why}"));
    let summary: Summary = serde_json::from_slice(words(row.get_ref(2))?.as_blob().unwrap_or_default()).map_err(broken)?;
    let cancel = words(row.get::<_, Option<Vec<u8>>>(3))?;
    let cancel = cancel.map(|cancel| serde_json::from_slice(&cancel)).transpose().map_err(broken)?;
    let account = Account::open(summary.limits);
    let mut found = Row { summary, account, epoch: 0, tree_seq: 0, cancel, bundle_digest: words(row.get(4))? };
    restore(&mut found, &hot);
    found.tree_seq = words(row.get(5))?;
    Ok((words(row.get(0))?, found))
}

/// Returns a run's key and row.
pub fn row(connection: &Connection, run: &RunId) -> Result<Option<(i64, Row)>, Error> {
    let mut statement = words(connection.prepare_cached(&format!("SELECT {} WHERE r.run_id=?1", row_columns())))?;
    let mut rows = words(statement.query([run.as_str()]))?;
    words(rows.next())?.map(row_of).transpose()
}

/// See [`crate::store::Store::get`].
pub fn get(connection: &Connection, run: &RunId) -> Result<Row, Error> {
    row(connection, run)?.map(|(_, found)| found).ok_or_else(|| Error::NotFound(run.clone()))
}

/// See [`crate::store::Store::load`].
pub fn load(connection: &Connection, run: &RunId, after_seq: u64, limit: usize) -> Result<Vec<Recorded>, Error> {
    let mut statement = words(connection.prepare_cached("SELECT id, id=root FROM runs WHERE run_id=?1"))?;
    let found = statement.query_row([run.as_str()], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, bool>(1)?))).optional();
    let Some((key, is_root)) = words(found)? else { return Ok(Vec::new()) };
    let sql = if is_root {
        // A seq is never above its tree_seq, so the tree's index serves for where to begin.
        "SELECT ?4, seq, tree_seq, epoch, time_us, version, body FROM events
         WHERE root=?1 AND tree_seq>?2 AND run=?1 AND seq>?2 ORDER BY tree_seq LIMIT ?3"
    } else {
        "SELECT ?4, seq, tree_seq, epoch, time_us, version, body FROM events
         WHERE run=?1 AND run<>root AND seq>?2 ORDER BY seq LIMIT ?3"
    };
    let mut statement = words(connection.prepare_cached(sql))?;
    let mut rows = words(statement.query(params![key, after_seq, limit, run.as_str()]))?;
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
    let version: i64 = words(row.get(5))?;
    if version != i64::from(EVENT_VERSION) {
        return Err(unreadable(format!("its version is {version}, and this build knows {EVENT_VERSION}; use a newer wrend")));
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
    ids.iter().map(|id| get(connection, id)).collect()
}

/// See [`crate::store::Store::path`].
pub fn path(connection: &Connection, run: &RunId) -> Result<Vec<Account>, Error> {
    let mut accounts = Vec::new();
    let mut at = Some(run.clone());
    while let Some(id) = at {
        let found = get(connection, &id)?;
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

/// See [`crate::store::Store::list`]. The columns narrow the search; [`crate::store::matches`] has the last word.
pub fn list(connection: &Connection, query: &Query) -> Result<Page, Error> {
    let mut wanted = vec!["r.id<?1".to_owned(), "(?2 IS NULL OR r.workflow=?2)".to_owned()];
    if !query.include_descendants {
        wanted.push("r.parent IS NULL".to_owned());
    }
    if !query.states.is_empty() {
        let codes: Vec<_> = query.states.iter().map(|state| state_code(*state).to_string()).collect();
        wanted.push(format!("r.state IN ({})", codes.join(",")));
    }
    if !query.outcomes.is_empty() {
        let names: Vec<_> = query.outcomes.iter().map(|outcome| format!("'{}'", outcome.name())).collect();
        wanted.push(format!("r.outcome IN ({})", names.join(",")));
    }
    let sql = format!("SELECT {} WHERE {} ORDER BY r.id DESC", row_columns(), wanted.join(" AND "));
    let mut statement = words(connection.prepare_cached(&sql))?;
    let before = query.cursor.map_or(i64::MAX, |cursor| i64::try_from(cursor).unwrap_or(i64::MAX));
    let mut found = words(statement.query(params![before, query.workflow]))?;
    let mut rows = Vec::new();
    let mut last = None;
    while let Some(row) = words(found.next())? {
        let (key, row) = row_of(row)?;
        if !crate::store::matches(query, &row) {
            continue;
        }
        if rows.len() == query.limit {
            return Ok(Page { rows, next: last });
        }
        last = u64::try_from(key).ok();
        rows.push(row);
    }
    Ok(Page { rows, next: None })
}

/// See [`crate::store::Store::unfinished`].
pub fn unfinished(connection: &Connection) -> Result<Vec<Row>, Error> {
    let sql = format!("SELECT {} WHERE r.takes_up=1 ORDER BY r.id", row_columns());
    let mut statement = words(connection.prepare_cached(&sql))?;
    let mut found = words(statement.query([]))?;
    let mut rows = Vec::new();
    while let Some(row) = words(found.next())? {
        rows.push(row_of(row)?.1);
    }
    Ok(rows)
}

/// See [`crate::store::Store::bundle`].
pub fn bundle(connection: &Connection, digest: &str) -> Result<Vec<u8>, Error> {
    let found = connection.query_row("SELECT body FROM bundles WHERE digest=?1", [digest], |row| row.get(0)).optional();
    words(found)?.ok_or_else(|| Error::Unavailable(format!("the stored submission {digest} is missing")))
}
