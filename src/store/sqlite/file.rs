//! The file: its directory, its lock, its settings and its schema.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rusqlite::{Connection, OpenFlags};
use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};

use super::error_of;
use crate::store::Error;

/// The schema, one step a version. A step that was released is never changed: its checksum is kept in the file.
const MIGRATIONS: &[&str] = &["
CREATE TABLE runs(
  id INTEGER PRIMARY KEY,
  run_id TEXT NOT NULL UNIQUE,
  parent INTEGER REFERENCES runs(id),
  call_id TEXT,
  root INTEGER NOT NULL,
  state INTEGER NOT NULL,
  takes_up INTEGER NOT NULL,
  body BLOB NOT NULL,
  UNIQUE(parent, call_id)
);
CREATE INDEX runs_root ON runs(root);
CREATE INDEX runs_takes_up ON runs(id) WHERE takes_up = 1;
CREATE TABLE events(
  root INTEGER NOT NULL,
  tree_seq INTEGER NOT NULL,
  run INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  time_us INTEGER NOT NULL,
  version INTEGER NOT NULL,
  body BLOB NOT NULL
);
CREATE UNIQUE INDEX events_run ON events(run, seq);
CREATE UNIQUE INDEX events_tree ON events(root, tree_seq);
CREATE TABLE requests(id TEXT PRIMARY KEY, content TEXT NOT NULL, run_id TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE bundles(digest TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
"];

/// The first SQLite that does not corrupt a WAL file when it is reset in the wrong moment.
const SQLITE_VERSION_MIN: i32 = 3_051_003;

/// Creates the directory, readable to its owner alone, and takes the lock on it.
pub fn prepare(dir: &Path) -> Result<File, Error> {
    let cannot = |error: std::io::Error| {
        Error::Unavailable(format!("cannot use data directory {}: {error}; choose another one with --data-dir", dir.display()))
    };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(cannot)?;
    let path = dir.join("wren.lock");
    let mut lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(cannot)?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut holder = String::new();
        // Who holds it is only for people to read.
        let _ = lock.read_to_string(&mut holder);
        let holder = holder.trim();
        let who = if holder.is_empty() { "another process".to_owned() } else { format!("process {holder}") };
        return Err(Error::Locked(format!("the store in {} is in use by {who}; stop it, or start with another --data-dir", dir.display())));
    }
    lock.set_len(0).and_then(|()| lock.seek(SeekFrom::Start(0))).and_then(|_| write!(lock, "{}", std::process::id())).map_err(cannot)?;
    Ok(lock)
}

/// Opens the file for the one writer and brings its schema up to date.
pub fn connect_writer(path: &Path) -> Result<Connection, Error> {
    if rusqlite::version_number() < SQLITE_VERSION_MIN {
        return Err(Error::Unavailable(format!("SQLite {} may corrupt its log; at least 3.51.3 is needed", rusqlite::version())));
    }
    let unusable = |error: rusqlite::Error| Error::Unavailable(format!("cannot open {}: {error}", path.display()));
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
    let connection = Connection::open(path).map_err(unusable)?;
    connection
        .execute_batch(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON; PRAGMA busy_timeout=5000;
             PRAGMA wal_autocheckpoint=0; PRAGMA journal_size_limit=67108864; PRAGMA cache_size=-16000; PRAGMA trusted_schema=OFF;",
        )
        .map_err(unusable)?;
    migrate(&connection, MIGRATIONS).map_err(|why| Error::Unavailable(format!("cannot use {}: {why}", path.display())))?;
    Ok(connection)
}

/// Opens the file for reading.
pub fn connect_reader(path: &Path) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| error_of(&error))?;
    connection
        .execute_batch("PRAGMA busy_timeout=5000; PRAGMA cache_size=-4000; PRAGMA trusted_schema=OFF;")
        .map_err(|error| error_of(&error))?;
    Ok(connection)
}

/// Applies the steps that the file lacks. A file that is newer than this build, or whose history differs, is refused.
fn migrate(connection: &Connection, steps: &[&str]) -> Result<(), String> {
    let words = |error: rusqlite::Error| error.to_string();
    connection
        .execute_batch("CREATE TABLE IF NOT EXISTS schema_migrations(version INTEGER PRIMARY KEY, checksum TEXT NOT NULL)")
        .map_err(words)?;
    let mut statement = connection.prepare("SELECT version, checksum FROM schema_migrations ORDER BY version").map_err(words)?;
    let applied = statement.query_map([], |row| Ok((row.get::<_, usize>(0)?, row.get::<_, String>(1)?))).map_err(words)?;
    let applied: Vec<(usize, String)> = applied.collect::<Result<_, _>>().map_err(words)?;
    drop(statement);
    for (version, checksum) in &applied {
        match steps.get(version - 1) {
            None => return Err(format!("it is at schema version {version} and this build knows {}; use a newer wrend", steps.len())),
            Some(step) if checksum_of(step) != *checksum => return Err(format!("its schema version {version} is not this build's")),
            Some(_) => {}
        }
    }
    for (index, step) in steps.iter().enumerate().skip(applied.len()) {
        // One transaction a step: a crash in between leaves the step before.
        let sql = format!("BEGIN IMMEDIATE; {step}; INSERT INTO schema_migrations VALUES({}, '{}'); COMMIT;", index + 1, checksum_of(step));
        connection.execute_batch(&sql).map_err(words)?;
    }
    Ok(())
}

fn checksum_of(step: &str) -> String {
    Sha256::digest(step.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_or_changed_schema_is_refused() {
        let connection = Connection::open_in_memory().unwrap();
        migrate(&connection, &["CREATE TABLE a(x)", "CREATE TABLE b(x)"]).unwrap();
        migrate(&connection, &["CREATE TABLE a(x)", "CREATE TABLE b(x)", "CREATE TABLE c(x)"]).unwrap();
        assert!(migrate(&connection, &["CREATE TABLE a(x)"]).unwrap_err().contains("newer wrend"));
        assert!(migrate(&connection, &["CREATE TABLE z(x)", "CREATE TABLE b(x)", "CREATE TABLE c(x)"]).is_err());
    }
}
