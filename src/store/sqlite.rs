//! The SQLite store: one file, one process, one writer thread. WAL with synchronous=FULL, so that what was answered
//! survives a crash and a loss of power.

mod file;
mod reader;
mod row;
mod schema;
mod tables;
mod writer;

use std::path::{Path, PathBuf};

use futures_util::future::BoxFuture;

use super::transaction;
use super::{Appended, Batch, CancelMark, Claimed, Created, Error, Fence, NewTree, Page, Query, Row, Store};
use crate::kernel::ledger::Account;
use crate::kernel::{Recorded, RunId};

/// The store.
pub struct Sqlite {
    path: PathBuf,
    writer: writer::Writer,
    readers: reader::Readers,
    /// Held for the life of the store; the last field, so that nothing is written after it is given back.
    _lock: file::Lock,
}

impl Sqlite {
    /// Opens the store in a directory, creating both if they are not there. Blocks.
    ///
    /// # Errors
    /// [`Error::Locked`] if another process has it; [`Error::Unavailable`] if it cannot be opened, is damaged, or was
    /// written by a newer version.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let lock = file::prepare(dir)?;
        let path = dir.join("wren.db");
        let writer = writer::Writer::start(tables::SqlTables::open(&path)?)?;
        let readers = reader::Readers::open(&path)?;
        Ok(Self { path, writer, readers, _lock: lock })
    }
}

impl Store for Sqlite {
    fn create(&self, tree: NewTree) -> BoxFuture<'_, Result<Created, Error>> {
        Box::pin(self.writer.write(move |tables| transaction::create(tables, tree)))
    }

    fn claim(&self, run: &RunId) -> BoxFuture<'_, Result<Claimed, Error>> {
        let run = run.clone();
        Box::pin(self.writer.write(move |tables| transaction::claim(tables, &run)))
    }

    fn append(&self, fence: Fence, batch: Batch) -> BoxFuture<'_, Result<Appended, Error>> {
        Box::pin(self.writer.write(move |tables| transaction::append(tables, &fence, batch)))
    }

    fn load(&self, run: &RunId, after_seq: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Recorded>, Error>> {
        let run = run.clone();
        Box::pin(self.readers.read(move |connection| reader::load(connection, &run, after_seq, limit)))
    }

    fn load_tree(&self, root: &RunId, after_tree_seq: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Recorded>, Error>> {
        let root = root.clone();
        Box::pin(self.readers.read(move |connection| reader::load_tree(connection, &root, after_tree_seq, limit)))
    }

    fn get(&self, run: &RunId) -> BoxFuture<'_, Result<Row, Error>> {
        let run = run.clone();
        Box::pin(self.readers.read(move |connection| reader::get(connection, &run)))
    }

    fn subtree(&self, run: &RunId) -> BoxFuture<'_, Result<Vec<Row>, Error>> {
        let run = run.clone();
        Box::pin(self.readers.read(move |connection| reader::subtree(connection, &run)))
    }

    fn path(&self, run: &RunId) -> BoxFuture<'_, Result<Vec<Account>, Error>> {
        let run = run.clone();
        Box::pin(self.readers.read(move |connection| reader::path(connection, &run)))
    }

    fn find(&self, prefix: &str, limit: usize) -> BoxFuture<'_, Result<Vec<RunId>, Error>> {
        let prefix = prefix.to_owned();
        Box::pin(self.readers.read(move |connection| reader::find(connection, &prefix, limit)))
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Page, Error>> {
        Box::pin(self.readers.read(move |connection| reader::list(connection, &query)))
    }

    fn unfinished(&self) -> BoxFuture<'_, Result<Vec<Row>, Error>> {
        Box::pin(self.readers.read(reader::unfinished))
    }

    fn cancel(&self, run: &RunId, mark: CancelMark) -> BoxFuture<'_, Result<Vec<Row>, Error>> {
        let run = run.clone();
        Box::pin(self.writer.write(move |tables| transaction::cancel(tables, &run, &mark)))
    }

    fn bundle(&self, digest: &str) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        let digest = digest.to_owned();
        Box::pin(self.readers.read(move |connection| reader::bundle(connection, &digest)))
    }

    fn name(&self) -> String {
        format!("sqlite ({})", self.path.display())
    }
}

/// Names what went wrong by what the caller does next.
fn error_of(error: &rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DiskFull) => Error::Full(error.to_string()),
        _ => Error::Unavailable(error.to_string()),
    }
}
