//! The tables inside the writer's transaction, with the rows of active runs kept at hand. Which jobs share a transaction
//! is the writer's business.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rusqlite::{CachedStatement, Connection, OptionalExtension, params, params_from_iter};

use super::row::{HOT_COLUMNS, Hot, hot, is_cold_changed, state_code};
use super::{error_of, file, reader};
use crate::kernel::event::EVENT_VERSION;
use crate::kernel::{Recorded, RunId, State};
use crate::store::transaction::Tables;
use crate::store::{Error, Row};

/// Rows kept in memory at most; they are only a cache.
const CACHED_ROWS_MAX: usize = 4096;
/// Pages of the log after which it is copied back into the file.
const CHECKPOINT_PAGES: i64 = 1000;
/// Commits between two looks at the log's length.
const CHECKPOINT_LOOK_EVERY: u32 = 64;

/// The one connection that writes.
pub struct SqlTables {
    path: PathBuf,
    identity: file::Identity,
    connection: Connection,
    /// Whether the connection failed in a way after which it must not be trusted.
    is_broken: bool,
    /// Rows of active runs with their integer keys, as they are inside the open transaction.
    cache: HashMap<RunId, (i64, Row)>,
    /// What the present job has put, to be forgotten if it fails.
    touched: Vec<RunId>,
    /// Why the whole open transaction is gone, if it is.
    lost: Option<Error>,
    /// Bytes of events in the open transaction.
    written: usize,
    commits: u32,
}

impl SqlTables {
    /// Opens the file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::on(file::connect_writer(path)?, path)
    }

    /// Takes a connection that is set up.
    pub fn on(connection: Connection, path: &Path) -> Result<Self, Error> {
        Ok(Self {
            path: path.to_owned(),
            identity: file::identity(path)?,
            connection,
            is_broken: false,
            cache: HashMap::new(),
            touched: Vec::new(),
            lost: None,
            written: 0,
            commits: 0,
        })
    }

    fn run(&self, sql: &str) -> Result<(), Error> {
        self.prepare(sql)?.execute([]).map(|_| ()).map_err(|error| error_of(&error))
    }

    fn prepare(&self, sql: &str) -> Result<CachedStatement<'_>, Error> {
        self.connection.prepare_cached(sql).map_err(|error| error_of(&error))
    }

    /// Begins the transaction that the next jobs share.
    pub fn begin(&mut self) -> Result<(), Error> {
        if self.is_broken {
            // After a failed sync nobody knows what of the log is on the disk. What a fresh connection reads is the truth.
            self.connection = file::reconnect_writer(&self.path, self.identity)?;
            self.cache.clear();
            self.is_broken = false;
        }
        self.lost = None;
        self.written = 0;
        let begun = self.run("BEGIN IMMEDIATE");
        // SQLite may have opened the log for reading alone while the disk was so, and keeps it like that: only a fresh
        // connection sees that the disk is well again.
        self.is_broken = matches!(&begun, Err(error) if !matches!(error, Error::Full(_)));
        begun
    }

    /// Returns whether another job may join the transaction.
    pub fn takes_more(&self, bytes_max: usize) -> bool {
        self.lost.is_none() && self.written < bytes_max
    }

    /// Makes the transaction durable. Where this fails, nothing is known of it: a caller has to look.
    pub fn commit(&mut self) -> Result<(), Error> {
        let committed = match self.lost.take() {
            Some(lost) => Err(lost),
            None => self.run("COMMIT"),
        };
        if let Err(error) = &committed {
            // What the cache holds may not be in the file.
            self.cache.clear();
            if !self.connection.is_autocommit() {
                let _ = self.run("ROLLBACK");
            }
            self.is_broken = !matches!(error, Error::Full(_));
        }
        committed
    }

    /// Runs one job in a savepoint of its own: a job that fails takes nothing else down.
    pub fn atomically<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        self.touched.clear();
        self.run("SAVEPOINT job")?;
        let result = work(self).and_then(|value| self.run("RELEASE job").map(|()| value));
        if let Err(error) = &result {
            for run in self.touched.drain(..) {
                self.cache.remove(&run);
            }
            if self.connection.is_autocommit() {
                // A full or failing disk has undone the whole transaction, and with it what the jobs before this one did.
                self.lost = Some(error.clone());
            } else if let Err(stuck) = self.run("ROLLBACK TO job").and_then(|()| self.run("RELEASE job")) {
                // Half a job must never be committed with the others.
                let _ = self.run("ROLLBACK");
                self.lost = Some(stuck);
            }
        }
        result
    }

    /// Undoes the whole transaction, as SQLite does by itself where the disk fails.
    #[cfg(test)]
    pub fn undo_all(&self) {
        let _ = self.run("ROLLBACK");
    }

    /// Keeps the cache and the log within bounds, after a commit was answered.
    pub fn tidy_up(&mut self) {
        if self.cache.len() > CACHED_ROWS_MAX {
            self.cache.clear();
        }
        self.commits = self.commits.wrapping_add(1);
        if !self.commits.is_multiple_of(CHECKPOINT_LOOK_EVERY) {
            return;
        }
        let pages = self.connection.query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| row.get::<_, i64>(1)).unwrap_or(0);
        if pages > CHECKPOINT_PAGES {
            // Passive: it copies what no reader needs and never waits for one. A crash in it is harmless: the log is
            // whole until the next one begins.
            let _ = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        }
    }

    /// Copies the whole log back, before the file is closed.
    pub fn close(self) {
        let _ = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }

    /// Reads a row into the cache, unless it is there.
    fn cached(&mut self, run: &RunId) -> Result<Option<&(i64, Row)>, Error> {
        if !self.cache.contains_key(run)
            && let Some(found) = reader::row(&self.connection, run)?
        {
            self.cache.insert(run.clone(), found);
        }
        Ok(self.cache.get(run))
    }

    fn key(&mut self, run: &RunId) -> Result<i64, Error> {
        self.cached(run)?.map(|(key, _)| *key).ok_or_else(|| Error::NotFound(run.clone()))
    }

    fn insert(&mut self, row: &Row) -> Result<i64, Error> {
        let run = &row.summary.id;
        let parent = row.summary.parent.as_ref();
        let parent_key = parent.map(|parent| self.key(&parent.run)).transpose()?;
        let root_key = if row.summary.root == *run { None } else { Some(self.key(&row.summary.root)?) };
        let sql = "INSERT INTO runs(run_id, root, parent, call_id, workflow, bundle_digest, state, takes_up, summary)
                   VALUES(?1, coalesce(?2, (SELECT coalesce(max(id), 0)+1 FROM runs)), ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        let values = params![
            run.as_str(),
            root_key,
            parent_key,
            parent.map(|parent| parent.call_id.as_str()),
            row.summary.workflow,
            row.bundle_digest,
            state_code(crate::store::shown_state(row)),
            crate::store::is_unfinished(row),
            json(&row.summary)?,
        ];
        let key = self.prepare(sql)?.insert(values).map_err(|error| error_of(&error))?;
        write_hot(&mut self.prepare(insert_hot())?, key, &hot(row))?;
        Ok(key)
    }

    fn update_cold(&mut self, key: i64, row: &Row) -> Result<(), Error> {
        let sql = "UPDATE runs SET state=?2, outcome=?3, takes_up=?4, cancel=?5, summary=?6 WHERE id=?1";
        let cancel = row.cancel.as_ref().map(json).transpose()?;
        let values = params![
            key,
            state_code(crate::store::shown_state(row)),
            row.summary.outcome.map(|outcome| outcome.name()),
            crate::store::is_unfinished(row),
            cancel,
            json(&row.summary)?,
        ];
        self.prepare(sql)?.execute(values).map(|_| ()).map_err(|error| error_of(&error))
    }
}

fn json(value: &impl serde::Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(|error| Error::Unavailable(error.to_string()))
}

fn insert_hot() -> &'static str {
    static SQL: OnceLock<String> = OnceLock::new();
    SQL.get_or_init(|| format!("INSERT INTO heads(id, {}) VALUES(?{})", HOT_COLUMNS.join(", "), ", ?".repeat(HOT_COLUMNS.len())))
}

fn update_hot() -> &'static str {
    static SQL: OnceLock<String> = OnceLock::new();
    SQL.get_or_init(|| {
        let set: Vec<_> = HOT_COLUMNS.iter().enumerate().map(|(at, column)| format!("{column}=?{}", at + 2)).collect();
        format!("UPDATE heads SET {} WHERE id=?1", set.join(", "))
    })
}

fn write_hot(statement: &mut CachedStatement<'_>, key: i64, hot: &Hot) -> Result<(), Error> {
    let values = params_from_iter(std::iter::once(&key).chain(hot));
    statement.execute(values).map(|_| ()).map_err(|error| error_of(&error))
}

impl Tables for SqlTables {
    fn row(&mut self, run: &RunId) -> Result<Option<Row>, Error> {
        Ok(self.cached(run)?.map(|(_, row)| row.clone()))
    }

    fn put(&mut self, row: Row) -> Result<(), Error> {
        let run = row.summary.id.clone();
        self.touched.push(run.clone());
        let changes = self.cached(&run)?.map(|(key, old)| (*key, is_cold_changed(old, &row), hot(old) != hot(&row)));
        let key = match changes {
            None => self.insert(&row)?,
            Some((key, is_cold_changed, is_hot_changed)) => {
                if is_cold_changed {
                    self.update_cold(key, &row)?;
                }
                if is_hot_changed {
                    write_hot(&mut self.prepare(update_hot())?, key, &hot(&row))?;
                }
                key
            }
        };
        if row.summary.state == State::Ended && row.summary.parent.is_some() {
            self.cache.remove(&run);
        } else {
            self.cache.insert(run, (key, row));
        }
        Ok(())
    }

    fn add(&mut self, recorded: &Recorded, root: &RunId) -> Result<(), Error> {
        let (root, run) = (self.key(root)?, self.key(&recorded.run)?);
        let body = json(&recorded.event)?;
        self.written += body.len();
        let sql = "INSERT INTO events(root, tree_seq, run, seq, epoch, time_us, version, body) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let values = params![root, recorded.tree_seq, run, recorded.seq, recorded.epoch, recorded.time_us, EVENT_VERSION, body];
        self.prepare(sql)?.execute(values).map(|_| ()).map_err(|error| error_of(&error))
    }

    fn request(&mut self, id: &str) -> Result<Option<(RunId, String)>, Error> {
        let found = self
            .prepare("SELECT run_id, content FROM requests WHERE id=?1")?
            .query_row([id], |row| Ok((RunId::new(row.get::<_, String>(0)?), row.get(1)?)));
        found.optional().map_err(|error| error_of(&error))
    }

    fn put_request(&mut self, id: &str, content: &str, run: &RunId) -> Result<(), Error> {
        let mut insert = self.prepare("INSERT INTO requests(id, content, run_id) VALUES(?1, ?2, ?3)")?;
        insert.execute(params![id, content, run.as_str()]).map(|_| ()).map_err(|error| error_of(&error))
    }

    fn put_bundle(&mut self, digest: &str, bytes: &[u8]) -> Result<(), Error> {
        self.written += bytes.len();
        let mut insert = self.prepare("INSERT OR IGNORE INTO bundles(digest, body) VALUES(?1, ?2)")?;
        insert.execute(params![digest, bytes]).map(|_| ()).map_err(|error| error_of(&error))
    }

    fn subtree(&mut self, run: &RunId) -> Result<Vec<RunId>, Error> {
        reader::subtree_ids(&self.connection, run)
    }

    fn has_child(&mut self, parent: &RunId, call_id: &str) -> Result<bool, Error> {
        let parent = self.key(parent)?;
        let mut find = self.prepare("SELECT 1 FROM runs WHERE parent=?1 AND call_id=?2")?;
        find.exists(params![parent, call_id]).map_err(|error| error_of(&error))
    }
}
