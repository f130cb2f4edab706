//! The daemon dies at every append, once just before it and once just after; what follows must equal the quiet run.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use wren::kernel::event::Event;
use wren::kernel::{Message, Outcome, Recorded, Run, RunId};
use wren::runtime::Live;
use wren::store::Store;
use wren::store::memory::Memory;

use super::faulty::{Asked, Fate, Faulty};
use super::{Bench, paused};

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
        - {agent: worker, turn: 2, calls: [{tool: list_files}]}
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

/// A store that answers a number of appends; at the next one the process dies.
fn dying(store: &Arc<Memory>, appends: i64, commits_last: bool) -> Faulty {
    let left = AtomicI64::new(appends);
    Faulty::new(store, move |asked| match asked {
        Asked::Append if left.fetch_sub(1, Ordering::SeqCst) <= 0 => {
            // Drivers that come after the first one find the process dead.
            if commits_last && left.load(Ordering::SeqCst) == -1 { Fate::DiesAfter } else { Fate::DiesBefore }
        }
        Asked::Append | Asked::Claim | Asked::Load | Asked::Path => Fate::Works,
    })
}

/// Runs the tree to its end over a store. Returns what was seen, and where it can be looked at.
fn play(store: Arc<dyn Store>) -> (tokio::runtime::Runtime, Bench, RunId, Vec<Live>) {
    play_workflow(TREE, store)
}

fn play_workflow(workflow: &str, store: Arc<dyn Store>) -> (tokio::runtime::Runtime, Bench, RunId, Vec<Live>) {
    let runtime = paused();
    let (bench, root, seen) = runtime.block_on(async {
        let bench = Bench::over(store, Arc::new(tempfile::tempdir().unwrap())).await;
        let root = bench.submit(workflow).await;
        let hour = std::time::Duration::from_secs(3600);
        let seen = tokio::time::timeout(hour, bench.follow(&root)).await.expect("it ends by itself");
        (bench, root, seen)
    });
    (runtime, bench, root, seen)
}

/// The quiet run's result.
fn quiet() -> Left {
    let (runtime, bench, root, _) = play(Arc::new(Memory::new()));
    result(&runtime, &bench, &root)
}

#[test]
fn a_death_at_any_append_changes_nothing_but_the_write_offs() {
    let quiet = quiet();
    let mut points = 0;
    for commits_last in [false, true] {
        for appends in 0.. {
            let (store, dir) = (Arc::new(Memory::new()), Arc::new(tempfile::tempdir().unwrap()));
            let dying = dying(&store, appends, commits_last);
            let dead = dying.dead.clone();
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
                let store = Faulty { slow, ..Faulty::new(&store, |_| Fate::Works) };
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

/// The disk is full, or its answers are lost, at any moment and for a while: every driver waits, and goes on as if
/// nothing had been.
#[test]
fn a_store_that_fails_for_a_while_costs_time_alone() {
    let quiet = quiet();
    let mut points = 0;
    for (fate, times) in [(Fate::Refused, 1), (Fate::Refused, 4), (Fate::Lost, 1), (Fate::Lost, 3)] {
        for first in 0.. {
            let asked = Arc::new(AtomicI64::new(0));
            let seen = asked.clone();
            let failing = Faulty::new(&Arc::new(Memory::new()), move |_| {
                let nth = seen.fetch_add(1, Ordering::SeqCst);
                if (first..first + times).contains(&nth) { fate } else { Fate::Works }
            });
            let (runtime, bench, root, _) = play(Arc::new(failing));
            // The disk is whole again before anybody looks.
            let reached = asked.swap(i64::MAX / 2, Ordering::SeqCst) > first;
            let left = result(&runtime, &bench, &root);
            assert_eq!(left, quiet, "{fate:?} {times} times from question {first} on");
            let written_off = runtime.block_on(bench.runtime.get(&root)).unwrap().account.totals.written_off_usd_nanos;
            assert_eq!(written_off, 0, "{fate:?} {times} times from question {first} on");
            if !reached {
                break;
            }
            points += 1;
        }
    }
    println!("{points} failures, every one of them ended as the quiet run");
    assert!(points > 60, "{points}");
}

/// A transaction that comes too late is decided anew; of a quick call that had begun and ended in it both are kept.
#[test]
fn an_append_that_came_too_late_loses_nothing_that_happened() {
    let quiet = quiet();
    let mut points = 0;
    for late in 0.. {
        let appends = Arc::new(AtomicI64::new(0));
        let seen = appends.clone();
        let failing = Faulty::new(&Arc::new(Memory::new()), move |asked| match asked {
            Asked::Append if seen.fetch_add(1, Ordering::SeqCst) == late => Fate::Behind,
            Asked::Append | Asked::Claim | Asked::Load | Asked::Path => Fate::Works,
        });
        let (runtime, bench, root, seen) = play(Arc::new(failing));
        assert_eq!(result(&runtime, &bench, &root), quiet, "append {late}");
        let mut begun = std::collections::BTreeSet::new();
        for live in &seen {
            let Live::Recorded(fact) = live else { continue };
            match &fact.event {
                Event::CallStarted(call) => assert!(begun.insert((fact.run.clone(), call.call_id.clone())), "begun twice, append {late}"),
                Event::CallEnded(call) => {
                    assert!(
                        begun.contains(&(fact.run.clone(), call.call_id.clone())),
                        "{} ended and never began, append {late}",
                        call.tool
                    );
                }
                _ => {}
            }
        }
        if appends.load(Ordering::SeqCst) <= late {
            break;
        }
        points += 1;
    }
    assert!(points > 15, "{points}");
}

/// A tree in which the lead asks for `wide` children at once, and each of them for one more where it is `deep`.
fn spreading(wide: usize, deep: bool) -> String {
    let deep = if deep {
        "{agent: worker, turn: 1, calls: [{tool: ask, args: {question: two}}]}"
    } else {
        "{agent: worker, turn: 1, text: I know.}"
    };
    let calls = vec!["{tool: research, args: {question: one}}"; wide].join(", ");
    format!(
        r#"
wren: v1
name: deep
models:
  script:
    max_output: 64
    scripted:
      price: {{input_usd_per_mtok: 1.00, output_usd_per_mtok: 2.00}}
      replies:
        - {{agent: lead, turn: 1, calls: [{calls}]}}
        - {{agent: lead, text: All are done.}}
        - {deep}
        - {{agent: worker, text: I asked.}}
        - {{agent: scout, text: I looked.}}
tools:
  research: {{description: Looks., subagent: worker, parameters: {{question: {{type: string}}}}, prompt: "{{{{ args.question }}}}", max_parallel: 400, max_calls: 400}}
  ask: {{description: Asks., subagent: scout, parameters: {{question: {{type: string}}}}, prompt: "{{{{ args.question }}}}"}}
agents:
  lead: {{model: script, instructions: Delegate., tools: [research]}}
  worker: {{model: script, instructions: Work., tools: [ask]}}
  scout: {{model: script, instructions: Look.}}
agent: lead
prompt: Go.
limits: {{max_runs: 1000, max_turns: 5}}
"#
    )
}

fn outcomes(runtime: &tokio::runtime::Runtime, bench: &Bench, root: &RunId) -> Vec<Option<Outcome>> {
    runtime.block_on(bench.runtime.subtree(root)).unwrap().iter().map(|row| row.summary.outcome).collect()
}

/// Plays a tree whose nth append is done and its answer lost. Returns whether there was such an append.
fn play_with_a_lost_answer(tree: &str, nth: i64, runs: usize) -> bool {
    let asked = Arc::new(AtomicI64::new(0));
    let seen = asked.clone();
    let failing = Faulty::new(&Arc::new(Memory::new()), move |asked| match asked {
        Asked::Append if seen.fetch_add(1, Ordering::SeqCst) == nth => Fate::Lost,
        Asked::Append | Asked::Claim | Asked::Load | Asked::Path => Fate::Works,
    });
    let to_ended = failing.to_ended.clone();
    let (runtime, bench, root, _) = play_workflow(tree, Arc::new(failing));
    assert_eq!(outcomes(&runtime, &bench, &root), vec![Some(Outcome::Completed); runs], "append {nth}");
    // Whoever lost the answer that ended a run asks once more.
    assert!(to_ended.load(Ordering::SeqCst) <= 1, "a run that had ended was begun again, append {nth}");
    asked.load(Ordering::SeqCst) > nth
}

/// While a run looks for its own transaction, the others of the tree go on; what they began is left to them.
#[test]
fn after_a_lost_answer_a_run_begins_its_own_children_alone() {
    let points = (0..).take_while(|nth| play_with_a_lost_answer(&spreading(3, true), *nth, 7)).count();
    assert!(points > 20, "{points}");
}

#[test]
fn a_long_transaction_whose_answer_was_lost_is_found_whole() {
    // The first append is the reply, the second one begins the children: more facts than are read at once.
    assert!(play_with_a_lost_answer(&spreading(350, false), 1, 351));
}
