//! The daemon dies at every append, once just before it and once just after; what follows must equal the quiet run.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, pending};
use tokio::sync::Notify;
use wren::kernel::event::Event;
use wren::kernel::ledger::Account;
use wren::kernel::{Message, Outcome, Recorded, Run, RunId};
use wren::runtime::Live;
use wren::store::memory::Memory;
use wren::store::{Appended, Batch, CancelMark, Claimed, Created, Error, Fence, NewTree, Page, Query, Row, Store};

use super::{Bench, paused};

/// A store that answers a number of appends and then never again, as if the process had died.
struct Dying {
    inner: Arc<Memory>,
    left: AtomicI64,
    /// Whether the fatal append is still committed.
    commits_last: bool,
    dead: Arc<Notify>,
    /// A run whose drivers come late.
    slow: Option<RunId>,
}

impl Store for Dying {
    fn create(&self, tree: NewTree) -> BoxFuture<'_, Result<Created, Error>> {
        self.inner.create(tree)
    }

    fn claim(&self, run: &RunId) -> BoxFuture<'_, Result<Claimed, Error>> {
        let run = run.clone();
        Box::pin(async move {
            if self.slow.as_ref() == Some(&run) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            self.inner.claim(&run).await
        })
    }

    fn append(&self, fence: Fence, batch: Batch) -> BoxFuture<'_, Result<Appended, Error>> {
        let left = self.left.fetch_sub(1, Ordering::SeqCst);
        if left > 0 {
            return self.inner.append(fence, batch);
        }
        Box::pin(async move {
            if left == 0 && self.commits_last {
                let _ = self.inner.append(fence, batch).await;
            }
            self.dead.notify_one();
            pending().await
        })
    }

    fn load(&self, run: &RunId, after_seq: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Recorded>, Error>> {
        self.inner.load(run, after_seq, limit)
    }

    fn load_tree(&self, root: &RunId, after_tree_seq: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Recorded>, Error>> {
        self.inner.load_tree(root, after_tree_seq, limit)
    }

    fn get(&self, run: &RunId) -> BoxFuture<'_, Result<Row, Error>> {
        self.inner.get(run)
    }

    fn subtree(&self, run: &RunId) -> BoxFuture<'_, Result<Vec<Row>, Error>> {
        Store::subtree(&*self.inner, run)
    }

    fn path(&self, run: &RunId) -> BoxFuture<'_, Result<Vec<Account>, Error>> {
        self.inner.path(run)
    }

    fn find(&self, prefix: &str, limit: usize) -> BoxFuture<'_, Result<Vec<RunId>, Error>> {
        self.inner.find(prefix, limit)
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Page, Error>> {
        self.inner.list(query)
    }

    fn unfinished(&self) -> BoxFuture<'_, Result<Vec<Row>, Error>> {
        self.inner.unfinished()
    }

    fn cancel(&self, run: &RunId, mark: CancelMark) -> BoxFuture<'_, Result<Vec<Row>, Error>> {
        self.inner.cancel(run, mark)
    }

    fn bundle(&self, digest: &str) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        self.inner.bundle(digest)
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}

const TREE: &str = r#"
wren: v1
name: crashing
models:
  script:
    max_output: 64
    scripted:
      price: {input_usd_per_mtok: 1.00, output_usd_per_mtok: 2.00}
      latency: 10ms
      replies:
        - {agent: lead, turn: 1, calls: [{tool: research, args: {question: one}}, {tool: scan}, {tool: research, args: {question: two}}]}
        - {agent: lead, turn: 2, attempt: 1, error: {status: 503}}
        - {agent: lead, text: Both are done.}
        - {agent: worker, turn: 1, calls: [{tool: list_files}, {tool: scan}]}
        - {agent: worker, text: I looked.}
tools:
  docs: {files: {root: .}}
  scan: {description: Scans., scripted: {takes: 5ms, effect: idempotent, result: scanned, log: scan.log}}
  research: {description: Looks., subagent: worker, parameters: {question: {type: string}}, prompt: "{{ args.question }}"}
agents:
  lead: {model: script, instructions: Delegate., tools: [research, scan]}
  worker: {model: script, instructions: Work., tools: [docs, scan]}
agent: lead
prompt: Go.
"#;

/// What must be the same whatever happened on the way.
#[derive(Debug, PartialEq)]
struct Left {
    settled_usd_nanos: i64,
    transcripts: Vec<(String, Vec<Message>)>,
}

fn result(runtime: &tokio::runtime::Runtime, bench: &Bench, root: &RunId) -> Left {
    runtime.block_on(async {
        let rows = bench.runtime.subtree(root).await.unwrap();
        let totals = rows[0].account.totals;
        let mut transcripts = Vec::new();
        for row in &rows {
            assert_eq!(row.summary.outcome, Some(Outcome::Completed), "{row:?}");
            assert!(row.account.reserved.is_zero());
            let run: Run = bench.runtime.load(&row.summary.id).await.unwrap();
            let call = row.summary.parent.as_ref().map(|parent| parent.call_id.to_string()).unwrap_or_default();
            transcripts.push((call, run.transcript.iter().map(|message| (**message).clone()).collect()));
        }
        transcripts.sort_by(|left, right| left.0.cmp(&right.0));
        let seen = bench.follow(root).await;
        let journal: Vec<&Recorded> =
            seen.iter().filter_map(|live| if let Live::Recorded(recorded) = live { Some(&**recorded) } else { None }).collect();
        let end_us = journal.last().unwrap().time_us;
        crate::telemetry::laws::check(&journal, end_us, totals.cost_usd_nanos);
        check_log(bench, &journal);
        Left { settled_usd_nanos: totals.cost_usd_nanos - totals.written_off_usd_nanos, transcripts }
    })
}

/// Every execution of the tool has a beginning in the journal, and none came after its result: a call that is finished
/// never runs again, and one that was cut runs once more for each time that it was taken up.
fn check_log(bench: &Bench, journal: &[&Recorded]) {
    let log = std::fs::read_to_string(bench.dir.path().join("data/tool-logs/scan.log")).unwrap();
    let mut begun = std::collections::BTreeMap::new();
    let mut ended = std::collections::BTreeSet::new();
    for recorded in journal {
        match &recorded.event {
            Event::CallStarted(call) if call.tool == "scan" => {
                assert!(!ended.contains(&(recorded.run.clone(), call.call_id.clone())), "a finished call was started again");
                *begun.entry((recorded.run.clone(), call.call_id.clone())).or_insert(0) += 1;
            }
            Event::CallEnded(call) if call.tool == "scan" => {
                ended.insert((recorded.run.clone(), call.call_id.clone()));
            }
            _ => {}
        }
    }
    assert_eq!(begun.len(), 3);
    for ((run, call), times) in begun {
        let ran = log.lines().filter(|line| line.contains(run.as_str()) && line.contains(call.as_str())).count();
        assert!((1..=times).contains(&ran), "call {call} of {run} was begun {times} times and ran {ran} times");
    }
}

#[test]
fn a_death_at_any_append_changes_nothing_but_the_write_offs() {
    let quiet_runtime = paused();
    let (quiet_bench, quiet_root) = quiet_runtime.block_on(async {
        let bench = Bench::start().await;
        let root = bench.submit(TREE).await;
        bench.follow(&root).await;
        (bench, root)
    });
    let quiet = result(&quiet_runtime, &quiet_bench, &quiet_root);

    let mut points = 0;
    for commits_last in [false, true] {
        for appends in 0.. {
            let (store, dir) = (Arc::new(Memory::new()), Arc::new(tempfile::tempdir().unwrap()));
            let dead = Arc::new(Notify::new());
            let dying = Dying { inner: store.clone(), left: AtomicI64::new(appends), commits_last, dead: dead.clone(), slow: None };
            let first = paused();
            let (root, died) = first.block_on(async {
                let bench = Bench::over(Arc::new(dying), dir.clone()).await;
                let root = bench.submit(TREE).await;
                let died = tokio::select! {
                    () = dead.notified() => true,
                    _ = bench.follow(&root) => false,
                };
                (root, died)
            });
            // Every task of the dead daemon is gone with its runtime.
            drop(first);
            let second = paused();
            let bench = second.block_on(async {
                // Children that had not begun are ready before their parent is: they must not write before it.
                let slow = Some(root.clone());
                let store = Dying { inner: store, left: AtomicI64::new(i64::MAX), commits_last, dead: Arc::new(Notify::new()), slow };
                let bench = Bench::over(Arc::new(store), dir).await;
                bench.follow(&root).await;
                bench
            });
            assert_eq!(result(&second, &bench, &root), quiet, "after {appends} appends, committed: {commits_last}");
            if !died {
                break;
            }
            points += 1;
        }
    }
    println!("{points} deaths, every one of them ended as the quiet run");
    assert!(points > 30, "{points}");
}
