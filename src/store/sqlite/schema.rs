//! The schema and how a file is brought to it. It knows nothing of what the tables mean.
//!
//! What is written with every append is narrow: a row of integers a run (`heads`), and the event itself under one index
//! for a root, two for a child. What is wide (`runs`) is written when a run is made and when it stops.

use rusqlite::Connection;
use sha2::{Digest, Sha256};

/// The schema, one step a version. A step that was released is never changed: its checksum is kept in the file.
///
/// Events are in the order they were written, so that the table only grows at its end. A root's events are found by the
/// tree's index alone, which spares one written page with each of its appends.
pub const MIGRATIONS: &[&str] = &["
CREATE TABLE runs(
  id INTEGER PRIMARY KEY,
  run_id TEXT NOT NULL UNIQUE,
  root INTEGER NOT NULL,
  parent INTEGER REFERENCES runs(id),
  call_id TEXT,
  workflow TEXT NOT NULL,
  bundle_digest TEXT NOT NULL,
  state INTEGER NOT NULL,
  outcome TEXT,
  takes_up INTEGER NOT NULL,
  cancel BLOB,
  summary BLOB NOT NULL,
  UNIQUE(parent, call_id)
);
CREATE INDEX runs_state ON runs(state);
CREATE INDEX runs_takes_up ON runs(id) WHERE takes_up = 1;
CREATE TABLE heads(
  id INTEGER PRIMARY KEY REFERENCES runs(id),
  epoch INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  tree_seq INTEGER NOT NULL,
  updated_us INTEGER NOT NULL,
  open_usd_nanos INTEGER NOT NULL,
  open_tokens INTEGER NOT NULL,
  own_input_tokens INTEGER NOT NULL,
  own_output_tokens INTEGER NOT NULL,
  own_cache_read_tokens INTEGER NOT NULL,
  own_cache_write_tokens INTEGER NOT NULL,
  own_reasoning_tokens INTEGER NOT NULL,
  own_cost_usd_nanos INTEGER NOT NULL,
  own_written_off_usd_nanos INTEGER NOT NULL,
  own_overrun_usd_nanos INTEGER NOT NULL,
  own_written_off_tokens INTEGER NOT NULL,
  own_cost_unknown INTEGER NOT NULL,
  own_estimated INTEGER NOT NULL,
  own_turns INTEGER NOT NULL,
  own_calls INTEGER NOT NULL,
  reserved_usd_nanos INTEGER NOT NULL,
  reserved_tokens INTEGER NOT NULL,
  tree_input_tokens INTEGER NOT NULL,
  tree_output_tokens INTEGER NOT NULL,
  tree_cache_read_tokens INTEGER NOT NULL,
  tree_cache_write_tokens INTEGER NOT NULL,
  tree_reasoning_tokens INTEGER NOT NULL,
  tree_cost_usd_nanos INTEGER NOT NULL,
  tree_written_off_usd_nanos INTEGER NOT NULL,
  tree_overrun_usd_nanos INTEGER NOT NULL,
  tree_written_off_tokens INTEGER NOT NULL,
  tree_cost_unknown INTEGER NOT NULL,
  tree_estimated INTEGER NOT NULL,
  tree_turns INTEGER NOT NULL,
  tree_calls INTEGER NOT NULL,
  tree_runs INTEGER NOT NULL
);
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
CREATE UNIQUE INDEX events_tree ON events(root, tree_seq);
CREATE UNIQUE INDEX events_run ON events(run, seq) WHERE run <> root;
CREATE TABLE requests(id TEXT PRIMARY KEY, content TEXT NOT NULL, run_id TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE bundles(digest TEXT PRIMARY KEY, body BLOB NOT NULL);
"];

/// Applies the steps that the file lacks. A file that is newer than this build, or whose history differs, is refused.
pub fn migrate(connection: &Connection, steps: &[&str]) -> Result<(), String> {
    let words = |error: rusqlite::Error| error.to_string();
    connection
        .execute_batch("CREATE TABLE IF NOT EXISTS schema_migrations(version INTEGER PRIMARY KEY, checksum TEXT NOT NULL)")
        .map_err(words)?;
    let mut statement = connection.prepare("SELECT version, checksum FROM schema_migrations ORDER BY version").map_err(words)?;
    let applied = statement.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))).map_err(words)?;
    let applied: Vec<(i64, String)> = applied.collect::<Result<_, _>>().map_err(words)?;
    drop(statement);
    for (index, (version, checksum)) in applied.iter().enumerate() {
        match steps.get(index) {
            None => return Err(format!("it is at schema version {version} and this build knows {}; use a newer wrend", steps.len())),
            Some(step) if usize::try_from(*version) != Ok(index + 1) || checksum_of(step) != *checksum => {
                return Err(format!("its schema version {version} is not this build's; use the wrend that made it"));
            }
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

    #[test]
    fn a_step_that_fails_leaves_the_step_before() {
        let connection = Connection::open_in_memory().unwrap();
        assert!(migrate(&connection, &["CREATE TABLE a(x)", "CREATE TABLE b(x); nonsense"]).is_err());
        let _ = connection.execute_batch("ROLLBACK");
        migrate(&connection, &["CREATE TABLE a(x)", "CREATE TABLE b(x)"]).unwrap();
    }
}
