//! The writer thread: the only connection that writes. What is queued while one transaction syncs goes into the next one
//! together, so many runs share one sync. What a job does is not its business.
//!
//! Crash story: a caller is answered after COMMIT has synced the log. Killed before that, nothing of its work is found
//! after a restart; killed between the sync and the answer, all of it is, and the caller, if it lives, looks before it
//! repeats. A caller that goes away does not stop what it began.

use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot};

use super::tables::SqlTables;
use crate::store::Error;

/// Transactions that may wait.
const QUEUE_MAX: usize = 1024;
/// Transactions that share one commit at most.
const GROUP_MAX: usize = 256;
/// Bytes of events after which no further transaction joins a commit.
const GROUP_BYTES_MAX: usize = 1 << 20;

/// The handle to the writer thread.
pub struct Writer {
    queue: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// Does its work, unless there is no transaction to do it in, and returns how to answer, given the fate of the commit.
type Job = Box<dyn FnOnce(Result<&mut SqlTables, Error>) -> Answer + Send>;
type Answer = Box<dyn FnOnce(Result<(), Error>) + Send>;

impl Writer {
    /// Starts the thread.
    pub fn start(tables: SqlTables) -> Result<Self, Error> {
        let (queue, jobs) = mpsc::channel(QUEUE_MAX);
        let thread = std::thread::Builder::new().name("wren-store-writer".to_owned()).spawn(move || work(tables, jobs));
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
                let result = tables.and_then(|tables| tables.atomically(work));
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

fn work(mut tables: SqlTables, mut jobs: mpsc::Receiver<Job>) {
    while let Some(first) = jobs.blocking_recv() {
        if let Err(error) = tables.begin() {
            first(Err(error.clone()))(Err(error));
            continue;
        }
        let mut answers = vec![first(Ok(&mut tables))];
        while answers.len() < GROUP_MAX
            && tables.takes_more(GROUP_BYTES_MAX)
            && let Ok(job) = jobs.try_recv()
        {
            answers.push(job(Ok(&mut tables)));
        }
        crash_point!("commit/before");
        let committed = tables.commit();
        crash_point!("commit/after");
        for answer in answers {
            answer(committed.clone());
        }
        tables.tidy_up();
    }
    tables.close();
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::super::file;
    use super::*;
    use crate::kernel::RunId;
    use crate::store::transaction::Tables;

    /// A writer on a file in which no more than a few pages are free.
    fn narrow(dir: &std::path::Path, free_pages: i64) -> Writer {
        let path = dir.join("wren.db");
        let connection = file::connect_writer(&path).unwrap();
        let used: i64 = connection.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
        connection.query_row(&format!("PRAGMA max_page_count={}", used + free_pages), [], |_| Ok(())).unwrap();
        Writer::start(SqlTables::on(connection, &path).unwrap()).unwrap()
    }

    fn bundles(dir: &std::path::Path) -> Vec<String> {
        let connection = file::connect_reader(&dir.join("wren.db")).unwrap();
        let mut statement = connection.prepare("SELECT digest FROM bundles ORDER BY digest").unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn a_full_disk_fails_everything_that_shared_its_commit_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let writer = narrow(dir.path(), 8);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let put = |name: &'static str, size: usize| writer.write(move |tables| tables.put_bundle(name, &vec![0; size]));
            put("a", 10).await.unwrap();
            // The writer is held in one job until the rest of the group is queued behind it.
            let (queued, wait) = channel::<()>();
            let first = writer.write(move |tables| {
                wait.recv().unwrap();
                tables.put_bundle("b", b"small")
            });
            let queue_it = async {
                // Polled after the others of the join below, each of which has been sent by then.
                queued.send(()).unwrap();
            };
            let (b, c, d, ()) = tokio::join!(first, put("c", 1 << 16), put("d", 10), queue_it);
            assert!(matches!(c, Err(Error::Full(_))), "{c:?}");
            // Whoever was told of a failure finds nothing of it, whoever was told of a success finds all.
            let wanted: Vec<&str> =
                [("a", true), ("b", b.is_ok()), ("d", d.is_ok())].into_iter().filter(|(_, kept)| *kept).map(|(name, _)| name).collect();
            assert_eq!(bundles(dir.path()), wanted);
            assert!(b.is_err(), "it shared the commit that was undone");
            put("e", 10).await.unwrap();
            assert!(bundles(dir.path()).contains(&"e".to_owned()), "there is room for what is small");
        });
    }

    #[test]
    fn a_connection_that_failed_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let writer = narrow(dir.path(), 1_000);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let undone = writer.write(|tables| {
                tables.put_bundle("a", b"x")?;
                tables.undo_all();
                Err::<(), _>(Error::Unavailable("the disk failed".to_owned()))
            });
            assert!(matches!(undone.await, Err(Error::Unavailable(_))));
            writer.write(|tables| tables.put_bundle("b", b"x")).await.unwrap();
            assert_eq!(bundles(dir.path()), ["b"]);
            // What was cached before is read again.
            assert!(writer.write(|tables| tables.row(&RunId::new("nobody"))).await.unwrap().is_none());
        });
    }

    #[test]
    fn a_connection_that_can_only_read_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("wren.db");
        let connection = file::connect_writer(&path).unwrap();
        // As where the log could only be opened for reading.
        connection.execute_batch("PRAGMA query_only=ON").unwrap();
        let writer = Writer::start(SqlTables::on(connection, &path).unwrap()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let refused = writer.write(|tables| tables.put_bundle("a", b"x")).await;
            assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
            writer.write(|tables| tables.put_bundle("b", b"x")).await.unwrap();
            assert_eq!(bundles(dir.path()), ["b"]);
        });
    }

    #[test]
    fn a_store_that_is_gone_is_waited_for_and_never_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let writer = narrow(dir.path(), 1_000);
        let (path, elsewhere) = (dir.path().join("wren.db"), dir.path().join("elsewhere.db"));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let put = |name: &'static str| writer.write(move |tables| tables.put_bundle(name, b"x"));
            put("a").await.unwrap();
            let undone = writer.write(|tables| {
                tables.undo_all();
                Err::<(), _>(Error::Unavailable("the disk failed".to_owned()))
            });
            assert!(undone.await.is_err());
            std::fs::rename(&path, &elsewhere).unwrap();
            let words = |answer: Result<(), Error>| answer.unwrap_err().to_string();
            assert!(words(put("b").await).contains("cannot find"));
            assert!(!path.exists());
            std::fs::write(&path, b"").unwrap();
            assert!(words(put("c").await).contains("is not the file that was opened"));
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
            std::fs::rename(&elsewhere, &path).unwrap();
            put("d").await.unwrap();
            assert_eq!(bundles(dir.path()), ["a", "d"]);
        });
    }
}
