//! The file: its directory, its lock and its settings. What is in it is others' business.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{error_of, schema};
use crate::store::Error;

/// The first SQLite that does not corrupt a WAL file when it is reset in the wrong moment.
const SQLITE_VERSION_MIN: i32 = 3_051_003;

/// Statements that a connection keeps compiled; more than there are.
const STATEMENTS_MAX: usize = 64;

/// The lock on a data directory: it goes when this is dropped, or with the process however that ends.
pub struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing alone is not enough: a process that is being started elsewhere in this one holds a copy of the handle
        // until it executes its program, and with it the lock.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Creates the directory, readable to its owner alone, and takes the lock on it.
pub fn prepare(dir: &Path) -> Result<Lock, Error> {
    let cannot = |error: std::io::Error| {
        Error::Unavailable(format!("cannot use data directory {}: {error}; choose another one with --data-dir", dir.display()))
    };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(cannot)?;
    let path = dir.join("wren.lock");
    let mut lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(cannot)?;
    if let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        if error != Errno::WOULDBLOCK {
            return Err(cannot(error.into()));
        }
        let mut holder = String::new();
        // Who holds it is only for people to read; it is empty for a moment while the holder writes it.
        let _ = lock.read_to_string(&mut holder);
        let holder = holder.trim();
        let who = if holder.is_empty() { "another process".to_owned() } else { format!("process {holder}") };
        return Err(Error::Locked(format!("{} is held by {who}; stop that process, or start with another --data-dir", path.display())));
    }
    lock.set_len(0).and_then(|()| lock.seek(SeekFrom::Start(0))).and_then(|_| write!(lock, "{}", std::process::id())).map_err(cannot)?;
    Ok(Lock(lock))
}

/// Which file on which disk a path named, so that another one in its place is not taken for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

/// Returns which file the path names now.
pub fn identity(path: &Path) -> Result<Identity, Error> {
    let found = path.metadata().map_err(|error| Error::Unavailable(format!("cannot find {}: {error}", path.display())))?;
    Ok(Identity { device: found.dev(), inode: found.ino() })
}

/// Opens the file for the one writer, creates it where there is none, and brings its schema up to date.
pub fn connect_writer(path: &Path) -> Result<Connection, Error> {
    if rusqlite::version_number() < SQLITE_VERSION_MIN {
        return Err(Error::Unavailable(format!("SQLite {} may corrupt its log; at least 3.51.3 is needed", rusqlite::version())));
    }
    if !path.exists() {
        // SQLite gives a new file and its log the mode of the umask; this one holds prompts.
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(|error| Error::Unavailable(format!("cannot create {}: {error}", path.display())))?;
    }
    connect_existing(path)
}

/// Opens the file for the one writer again. A file that is gone, as under a disk that was taken away, or that is another
/// one than before is refused: an empty store in its place would answer that nothing ever ran.
pub fn reconnect_writer(path: &Path, before: Identity) -> Result<Connection, Error> {
    if identity(path)? != before {
        let why = "is not the file that was opened; bring that one back, or restart wrend to go on with this one";
        return Err(Error::Unavailable(format!("{} {why}", path.display())));
    }
    connect_existing(path)
}

fn connect_existing(path: &Path) -> Result<Connection, Error> {
    let advice = "restore it from a backup, or start with another --data-dir";
    let unusable = |error: rusqlite::Error| Error::Unavailable(format!("cannot open {}: {error}; {advice}", path.display()));
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(unusable)?;
    // What SQLite may not write it opens for reading, without a word and for as long as the connection lasts.
    if connection.is_readonly("main").map_err(unusable)? {
        return Err(Error::Unavailable(format!("{} cannot be written; make it and its disk writable", path.display())));
    }
    // Small pages: an append changes a few rows in three pages, and whole pages are what goes into the log. The size of a
    // file that exists stays as it is.
    connection
        .execute_batch(
            "PRAGMA page_size=2048; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON; PRAGMA busy_timeout=5000;
             PRAGMA wal_autocheckpoint=0; PRAGMA journal_size_limit=67108864; PRAGMA cache_size=-16000; PRAGMA trusted_schema=OFF;",
        )
        .map_err(unusable)?;
    keep_statements(&connection).map_err(unusable)?;
    schema::migrate(&connection, schema::MIGRATIONS).map_err(|why| Error::Unavailable(format!("cannot use {}: {why}", path.display())))?;
    Ok(connection)
}

/// Opens the file for reading.
pub fn connect_reader(path: &Path) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| error_of(&error))?;
    connection
        .execute_batch("PRAGMA busy_timeout=5000; PRAGMA cache_size=-4000; PRAGMA trusted_schema=OFF;")
        .map_err(|error| error_of(&error))?;
    keep_statements(&connection).map_err(|error| error_of(&error))?;
    Ok(connection)
}

/// Every statement is compiled once: all of them are kept, and none is planned anew for the values that it is given.
fn keep_statements(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(|_| ())
}
