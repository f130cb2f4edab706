//! What only a store in a file has: its lock, its modes, what it refuses to open, and what a crash leaves.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rusqlite::Connection;
use wren::kernel::{Event, Outcome};
use wren::store::sqlite::Sqlite;
use wren::store::{Error, Query, Store};

use super::make::{LIMITS, Pen, call_ended, dump, ended, events, id, tree, turn_ended, turn_started};
use super::sqlite_in;

/// Why a store cannot be opened.
fn refusal(dir: &Path) -> Error {
    match Sqlite::open(dir) {
        Ok(_) => panic!("{} was opened", dir.display()),
        Err(error) => error,
    }
}

fn edit(dir: &Path, sql: &str) {
    assert_ne!(Connection::open(dir.join("wren.db")).unwrap().execute(sql, []).unwrap(), 0, "{sql} changes nothing");
}

#[tokio::test]
async fn a_second_process_is_told_who_holds_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open(dir.path()).unwrap();
    let Error::Locked(message) = refusal(dir.path()) else { panic!("not locked") };
    let lock = dir.path().join("wren.lock");
    for part in [lock.to_str().unwrap(), &format!("process {}", std::process::id()), "--data-dir"] {
        assert!(message.contains(part), "{message}");
    }
    drop(store);
    // A lock file that a killed process left behind holds nobody off.
    assert!(lock.exists());
    Sqlite::open(dir.path()).unwrap();
}

#[tokio::test]
async fn what_is_stored_is_the_owners_alone() {
    let outer = tempfile::tempdir().unwrap();
    let dir = outer.path().join("a/data");
    let store = sqlite_in(&dir);
    store.create(tree("r1", LIMITS)).await.unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    for file in ["wren.db", "wren.db-wal", "wren.db-shm", "wren.lock"] {
        assert_eq!(mode(&dir.join(file)), 0o600, "{file}");
    }
    assert_eq!(store.name(), format!("sqlite ({})", dir.join("wren.db").display()));
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    let outer = tempfile::tempdir().unwrap();
    std::fs::write(outer.path().join("taken"), "a file").unwrap();
    for dir in [outer.path().join("taken"), outer.path().join("taken/below"), "/proc/self/wren".into()] {
        let message = refusal(&dir).to_string();
        assert!(message.contains(dir.to_str().unwrap()) && message.contains("--data-dir"), "{message}");
    }
}

#[tokio::test]
async fn a_file_that_is_no_store_is_refused_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wren.db");
    let noise: Vec<u8> = (0..20_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(&path, &noise).unwrap();
    let message = refusal(dir.path()).to_string();
    assert!(message.contains(path.to_str().unwrap()) && message.contains("not a database"), "{message}");
    assert_eq!(std::fs::read(&path).unwrap(), noise);
}

#[tokio::test]
async fn a_schema_of_another_build_is_refused() {
    let cases = [
        ("INSERT INTO schema_migrations VALUES(99, 'x')", "newer wrend"),
        ("UPDATE schema_migrations SET checksum='x'", "not this build's"),
        ("UPDATE schema_migrations SET version=0", "not this build's"),
        ("UPDATE schema_migrations SET version=-7", "not this build's"),
    ];
    for (sql, wanted) in cases {
        let dir = tempfile::tempdir().unwrap();
        drop(sqlite_in(dir.path()));
        edit(dir.path(), sql);
        let message = refusal(dir.path()).to_string();
        assert!(message.contains(wanted) && message.contains("wren.db"), "{sql}: {message}");
    }
}

#[tokio::test]
async fn a_damaged_file_is_an_error_and_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    let store = sqlite_in(dir.path());
    for n in 0..50 {
        let mut pen = Pen::of_new(&*store, &format!("r{n}"), LIMITS).await;
        pen.add(vec![turn_started(1, 1, 1), turn_ended(1, 1, 1)]).await.unwrap();
    }
    drop(store);
    let path = dir.path().join("wren.db");
    let whole = std::fs::read(&path).unwrap();
    let mut refused = 0;
    for cut in (0..whole.len()).step_by(1_000) {
        std::fs::write(&path, &whole[..cut]).unwrap();
        refused += usize::from(try_all(dir.path()).await.is_err());
    }
    assert!(refused > 20, "a file that lost its end is noticed: {refused}");
    for page in (1..whole.len() / 2_048).step_by(2) {
        let mut damaged = whole.clone();
        damaged[page * 2_048..(page + 1) * 2_048].fill(0x5a);
        std::fs::write(&path, &damaged).unwrap();
        // Not every page is read, but each is read without a panic.
        let _ = try_all(dir.path()).await;
    }
}

async fn try_all(dir: &Path) -> Result<(), Error> {
    let store = Sqlite::open(dir)?;
    let page = store.list(Query { limit: 1_000, ..Query::default() }).await?;
    if page.rows.len() != 50 {
        return Err(Error::Unavailable("runs are missing".to_owned()));
    }
    for row in page.rows {
        store.load(&row.summary.id, 0, 100).await?;
        store.path(&row.summary.id).await?;
    }
    store.unfinished().await?;
    store.bundle("b1").await?;
    store.create(tree("new", LIMITS)).await?;
    Ok(())
}

#[tokio::test]
async fn a_fact_that_cannot_be_read_sets_its_run_aside_alone() {
    let cases = [
        ("body=CAST('{\"kind\":\"dreamt\"}' AS BLOB)", "dreamt"),
        ("body=CAST('{\"kind\":\"turn_star' AS BLOB)", "EOF"),
        ("body=x'ff00fe'", ""),
        ("version=2", "newer wrend"),
        ("version=-1", "newer wrend"),
    ];
    for (damage, wanted) in cases {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite_in(dir.path());
        let mut bad = Pen::of_new(&*store, "bad", LIMITS).await;
        bad.add(vec![Event::RunStarted {}]).await.unwrap();
        bad.add(vec![call_ended("c1")]).await.unwrap();
        Pen::of_new(&*store, "good", LIMITS).await.add(vec![Event::RunStarted {}]).await.unwrap();
        let before = (dump(&*store, &id("good")).await, store.get(&id("bad")).await.unwrap());
        drop(store);
        edit(dir.path(), &format!("UPDATE events SET {damage} WHERE seq=2 AND run=(SELECT id FROM runs WHERE run_id='bad')"));
        let store = sqlite_in(dir.path());
        for loaded in [store.load(&id("bad"), 0, 10).await, store.load_tree(&id("bad"), 1, 10).await] {
            let Err(Error::Unreadable { run, seq, why }) = loaded else { panic!("{damage}: {loaded:?}") };
            assert_eq!((run, seq), (id("bad"), 2), "{damage}");
            assert!(why.contains(wanted), "{damage}: {why}");
        }
        // Rows are not journals: they are still there, and other runs go on.
        let names: Vec<_> = store.unfinished().await.unwrap().into_iter().map(|row| row.summary.id).collect();
        assert_eq!(names, [id("bad"), id("good")]);
        assert_eq!((dump(&*store, &id("good")).await, store.get(&id("bad")).await.unwrap()), before);
        Pen::of(&*store, "good").await.add(vec![ended(Outcome::Completed)]).await.unwrap();
    }
}

#[tokio::test]
async fn an_unknown_field_of_a_known_fact_is_read_past() {
    let dir = tempfile::tempdir().unwrap();
    let store = sqlite_in(dir.path());
    Pen::of_new(&*store, "r1", LIMITS).await.add(vec![Event::RunStarted {}]).await.unwrap();
    edit(dir.path(), "UPDATE events SET body=CAST('{\"kind\":\"run_started\",\"mood\":\"good\"}' AS BLOB) WHERE seq=2");
    assert_eq!(store.load(&id("r1"), 1, 10).await.unwrap()[0].event, Event::RunStarted {});
}

#[test]
fn a_closed_store_is_free_while_processes_are_started() {
    let dir = tempfile::tempdir().unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Each start copies the open handles of this process for a moment, the store's lock among them.
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                std::process::Command::new("true").status().unwrap();
            }
        });
        let opened = (0..200).try_for_each(|_| wren::store::sqlite::Sqlite::open(dir.path()).map(drop));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        opened.unwrap();
    });
}

/// Copies the files as a crash would leave them, the log cut to `log` bytes.
fn crash_image(from: &Path, to: &Path, log: &[u8]) {
    std::fs::copy(from.join("wren.db"), to.join("wren.db")).unwrap();
    std::fs::write(to.join("wren.db-wal"), log).unwrap();
}

#[tokio::test]
async fn what_was_answered_survives_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let store = sqlite_in(dir.path());
    let mut pen = Pen::of_new(&*store, "r1", LIMITS).await;
    pen.add(vec![Event::RunStarted {}]).await.unwrap();
    pen.spawn("c1", "k1", LIMITS).await.unwrap();
    // The store is still open: nothing was closed or copied back in an orderly way.
    let after = tempfile::tempdir().unwrap();
    crash_image(dir.path(), after.path(), &std::fs::read(dir.path().join("wren.db-wal")).unwrap());
    let reopened = sqlite_in(after.path());
    assert_eq!(dump(&*reopened, &id("r1")).await, dump(&*store, &id("r1")).await);
    assert_eq!(reopened.bundle("b1").await.unwrap(), b"the bundle");
    let mut pen = Pen::of(&*reopened, "r1").await;
    assert_eq!(pen.fence.epoch, 2);
    pen.add(vec![ended(Outcome::Completed)]).await.unwrap();
}

#[tokio::test]
async fn a_torn_log_loses_its_torn_end_and_nothing_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = sqlite_in(dir.path());
    let mut pen = Pen::of_new(&*store, "r1", LIMITS).await;
    // The log's length after each transaction, and the journal's.
    let log = dir.path().join("wren.db-wal");
    let mut marks = Vec::new();
    for turn in 1..=4 {
        pen.add(vec![turn_started(turn, 1, 1), turn_ended(turn, 1, 1)]).await.unwrap();
        marks.push((std::fs::read(&log).unwrap().len(), pen.fence.seq));
    }
    let whole = events(&*store, &id("r1")).await;
    let bytes = std::fs::read(&log).unwrap();
    for cut in (marks[0].0..=bytes.len()).step_by(211) {
        let after = tempfile::tempdir().unwrap();
        crash_image(dir.path(), after.path(), &bytes[..cut]);
        let reopened = sqlite_in(after.path());
        let kept = marks.iter().rfind(|(length, _)| *length <= cut).unwrap().1;
        assert_eq!(events(&*reopened, &id("r1")).await, whole[..usize::try_from(kept).unwrap()], "cut at {cut}");
        let row = reopened.get(&id("r1")).await.unwrap();
        assert_eq!((row.summary.seq, row.tree_seq), (kept, kept));
        // It goes on from there, and what is new is readable.
        let mut pen = Pen::of(&*reopened, "r1").await;
        pen.add(vec![call_ended("c1")]).await.unwrap();
        drop(reopened);
        assert_eq!(events(&*sqlite_in(after.path()), &id("r1")).await.last().unwrap().seq, kept + 1);
    }
}

#[tokio::test]
async fn a_closed_store_is_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = sqlite_in(dir.path());
    let mut pen = Pen::of_new(&*store, "r1", LIMITS).await;
    for turn in 1..=300 {
        pen.add(vec![turn_started(turn, 1, 1)]).await.unwrap();
        pen.add(vec![turn_ended(turn, 1, 1)]).await.unwrap();
    }
    // The log was copied back on the way, not only at the end.
    assert!(dir.path().join("wren.db").metadata().unwrap().len() > 50_000);
    let before = dump(&*store, &id("r1")).await;
    drop(store);
    assert!(!dir.path().join("wren.db-wal").exists() || dir.path().join("wren.db-wal").metadata().unwrap().len() == 0);
    assert_eq!(dump(&*sqlite_in(dir.path()), &id("r1")).await, before);
}
