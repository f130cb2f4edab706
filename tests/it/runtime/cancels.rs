//! A cancel at every fact of a tree: at its root, in its middle, twice at once, beside a drain, and just after a crash.
//! What follows is always the same: nobody is at work any more, every run has one end, every call one result, and the
//! receipt says so.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::join;
use tokio::time::{Duration, sleep};
use wren::kernel::event::{CallFailure, Event};
use wren::kernel::{Message, Outcome, Recorded, RunId, State};
use wren::runtime::{Live, Receipt, Watch};
use wren::store::memory::Memory;

use super::{Bench, paused};

/// Three levels; leaves that stream for long, tools that sleep, and children that end on their own.
const TREE: &str = r#"
wren: v1
name: deep
models:
  script:
    max_output: 64
    scripted:
      price: {input_usd_per_mtok: 1.00, output_usd_per_mtok: 2.00}
      latency: 10ms
      replies:
        - {agent: lead, turn: 1, calls: [{tool: research, args: {question: one}}, {tool: nap}, {tool: research, args: {question: two}}, {tool: research, args: {question: three}}]}
        - {agent: lead, text: All are done.}
        - {agent: worker, turn: 1, calls: [{tool: list_files}, {tool: check, args: {claim: a}}, {tool: check, args: {claim: b}}, {tool: nap}]}
        - {agent: worker, text: I looked.}
        - {agent: checker, turn: 1, calls: [{tool: nap}]}
        - {agent: checker, text: It holds.}
tools:
  docs: {files: {root: .}}
  nap: {description: Sleeps., scripted: {takes: 30ms, effect: external, result: slept}}
  research: {description: Looks., subagent: worker, parameters: {question: {type: string}}, prompt: "{{ args.question }}", max_parallel: 2}
  check: {description: Checks., subagent: checker, parameters: {claim: {type: string}}, prompt: "{{ args.claim }}"}
agents:
  lead: {model: script, instructions: Delegate., tools: [research, nap]}
  worker: {model: script, instructions: Work., tools: [docs, check, nap]}
  checker: {model: script, instructions: Check., tools: [nap]}
agent: lead
prompt: Go.
"#;

/// Waits until the tree has this many facts. Returns whether it ever has.
async fn reached(bench: &Bench, root: &RunId, facts: u64) -> bool {
    let watch = Watch { run: root.clone(), after_tree_seq: 0, include_descendants: true, include_deltas: false, stop_when_suspended: true };
    let mut seen = bench.runtime.watch(watch).await.unwrap();
    while let Some(live) = seen.next().await {
        if matches!(live.unwrap(), Live::Recorded(recorded) if recorded.tree_seq >= facts) {
            return true;
        }
    }
    false
}

async fn journal(bench: &Bench, root: &RunId) -> Vec<Arc<Recorded>> {
    let seen = bench.follow(root).await;
    seen.into_iter().filter_map(|live| if let Live::Recorded(recorded) = live { Some(recorded) } else { None }).collect()
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// What must hold of a tree whose `cancelled` subtree was cancelled, of which `receipt` tells.
async fn check(bench: &Bench, root: &RunId, receipt: &Receipt) {
    let cancelled = receipt.row.summary.id.clone();
    let rows = bench.runtime.subtree(&cancelled).await.unwrap();
    let facts = journal(bench, root).await;
    let told: BTreeMap<&RunId, _> = receipt.runs.iter().map(|receipt| (&receipt.run, receipt)).collect();
    assert_eq!((told.len(), receipt.runs.len()), (rows.len(), rows.len()), "a receipt for each run, once");
    for row in &rows {
        let id = &row.summary.id;
        assert_eq!(row.summary.state, State::Ended, "{row:?}");
        assert!(row.account.reserved.is_zero(), "{row:?}");
        assert_eq!(told[id].outcome, row.summary.outcome, "{row:?}");
        let own = || facts.iter().filter(|fact| fact.run == *id);
        let cut = own().filter(|fact| matches!(&fact.event, Event::CallEnded(call) if call.failure == Some(CallFailure::Cancelled)));
        assert_eq!(told[id].calls_cancelled as usize, cut.count(), "{id}");
        assert_eq!(own().filter(|fact| matches!(fact.event, Event::RunEnded(_))).count(), 1, "{id} has one end");
        let transcript = bench.runtime.load(id).await.unwrap().transcript;
        let mut asked: Vec<String> = Vec::new();
        for message in &transcript {
            match &**message {
                Message::Assistant(reply) => {
                    assert!(asked.is_empty(), "{id}: a reply before {asked:?} have results");
                    asked.extend(reply.calls.iter().map(|call| call.id.to_string()));
                }
                Message::Tool(result) => {
                    let at = asked.iter().position(|call| *call == result.call_id.to_string());
                    asked.remove(at.unwrap_or_else(|| panic!("{id}: a result that nobody asked for, or a second one")));
                }
                Message::User { .. } => assert!(asked.is_empty(), "{id}: words before {asked:?} have results"),
            }
        }
        assert!(asked.is_empty(), "{id}: {asked:?} have no result");
    }
    let totals = bench.runtime.get(root).await.unwrap().account.totals;
    let end_us = facts.last().unwrap().time_us;
    let journal: Vec<&Recorded> = facts.iter().map(|fact| &**fact).collect();
    crate::telemetry::laws::check(&journal, end_us, totals.cost_usd_nanos);
}

/// Whatever comes after the answer, nothing of the tree moves.
async fn stays(bench: &Bench, root: &RunId) {
    let before = bench.runtime.get(root).await.unwrap();
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(bench.runtime.get(root).await.unwrap(), before);
}

/// Plays `scene` at every fact of the tree; it answers whether that fact was ever reached. Returns how many were.
fn at_every_fact<F: Future<Output = bool>>(scene: impl Fn(u64) -> F) -> u64 {
    let mut at = 1;
    while paused().block_on(scene(at)) {
        at += 1;
    }
    at - 1
}

#[test]
fn a_cancel_of_the_root_leaves_nobody_at_work() {
    let facts = at_every_fact(|at| async move {
        let bench = Bench::start().await;
        let before = tasks();
        let root = bench.submit(TREE).await;
        if !reached(&bench, &root, at).await {
            return false;
        }
        let receipt = bench.runtime.cancel(&root, "ada", "enough", true).await.unwrap();
        assert_eq!((bench.runtime.running(), tasks()), (0, before), "at fact {at}");
        check(&bench, &root, &receipt).await;
        stays(&bench, &root).await;
        true
    });
    assert!(facts > 100, "{facts}");
}

#[test]
fn a_cancel_in_the_middle_ends_that_subtree_alone() {
    let facts = at_every_fact(|at| async move {
        let bench = Bench::start().await;
        let root = bench.submit(TREE).await;
        if !reached(&bench, &root, at).await {
            return false;
        }
        let rows = bench.runtime.subtree(&root).await.unwrap();
        let Some(middle) = rows.iter().filter(|row| row.summary.depth == 1).nth(usize::try_from(at).unwrap() % 2) else { return true };
        let receipt = bench.runtime.cancel(&middle.summary.id, "ada", "not this one", true).await.unwrap();
        check(&bench, &root, &receipt).await;
        bench.follow(&root).await;
        let cut: Vec<&RunId> = receipt.runs.iter().map(|run| &run.run).collect();
        let rows = bench.runtime.subtree(&root).await.unwrap();
        for row in rows.iter().filter(|row| !cut.contains(&&row.summary.id)) {
            assert_eq!(row.summary.cancel_reason, None, "{row:?}");
            assert_eq!(row.summary.outcome, Some(Outcome::Completed), "{row:?}");
        }
        assert_eq!(bench.runtime.running(), 0);
        true
    });
    assert!(facts > 100, "{facts}");
}

#[test]
fn two_cancels_at_once_are_one() {
    at_every_fact(|at| async move {
        let bench = Bench::start().await;
        let before = tasks();
        let root = bench.submit(TREE).await;
        if !reached(&bench, &root, at).await {
            return false;
        }
        let (one, other) =
            join(bench.runtime.cancel(&root, "ada", "enough", true), bench.runtime.cancel(&root, "bob", "enough", true)).await;
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!((bench.runtime.running(), tasks()), (0, before), "at fact {at}");
        check(&bench, &root, &one).await;
        let outcomes = |receipt: &Receipt| receipt.runs.iter().map(|run| (run.run.clone(), run.outcome)).collect::<Vec<_>>();
        assert_eq!(outcomes(&one), outcomes(&other));
        let asked = journal(&bench, &root).await;
        let asked = asked.iter().filter(|fact| fact.run == root && matches!(fact.event, Event::CancelRequested { .. })).count();
        assert!(asked <= 1, "{asked}");
        true
    });
}

#[test]
fn a_cancel_beside_a_drain_is_done_before_the_daemon_leaves() {
    at_every_fact(|at| async move {
        let bench = Bench::start().await;
        let root = bench.submit(TREE).await;
        if !reached(&bench, &root, at).await {
            return false;
        }
        let (receipt, ()) = join(bench.runtime.cancel(&root, "ada", "enough", true), bench.runtime.drain()).await;
        assert_eq!(bench.runtime.running(), 0, "at fact {at}");
        check(&bench, &root, &receipt.unwrap()).await;
        true
    });
}

#[test]
fn a_cancel_just_after_a_crash_finds_every_run() {
    let mut at = 1;
    loop {
        let (store, dir) = (Arc::new(Memory::new()), Arc::new(tempfile::tempdir().unwrap()));
        // Dropped in the middle of whatever it does.
        let left = paused().block_on(async {
            let bench = Bench::on(store.clone(), dir.clone()).await;
            let root = bench.submit(TREE).await;
            reached(&bench, &root, at).await.then_some(root)
        });
        let Some(root) = left else { break };
        paused().block_on(async {
            let bench = Bench::on(store.clone(), dir.clone()).await;
            let receipt = bench.runtime.cancel(&root, "ada", "enough", true).await.unwrap();
            assert_eq!(bench.runtime.running(), 0, "at fact {at}");
            check(&bench, &root, &receipt).await;
            stays(&bench, &root).await;
        });
        at += 1;
    }
    assert!(at > 100, "{at}");
}
