//! Two hundred watchers of one tree: none misses or repeats a fact, whatever it does, and the run does not notice them.

use futures_util::StreamExt;
use futures_util::future::join_all;
use wren::kernel::RunId;
use wren::runtime::{Live, Watch};

use super::{Bench, journal_shape};

const WATCHERS: usize = 200;

/// Twenty children of three turns each, so that the feed's room is passed.
fn wide() -> String {
    let calls = vec!["{tool: research, args: {question: what}}"; 20].join(", ");
    format!(
        r#"
wren: v1
name: wide
models:
  script:
    scripted:
      price: {{input_usd_per_mtok: 1.00, output_usd_per_mtok: 2.00}}
      latency: 10ms
      replies:
        - {{agent: lead, turn: 1, calls: [{calls}]}}
        - {{agent: lead, text: All are done.}}
        - {{agent: worker, turn: 1, calls: [{{tool: list_files}}]}}
        - {{agent: worker, turn: 2, calls: [{{tool: list_files}}, {{tool: nosuch}}]}}
        - {{agent: worker, text: I looked.}}
tools:
  docs: {{files: {{root: .}}}}
  research: {{description: Looks., subagent: worker, parameters: {{question: {{type: string}}}}, prompt: "{{{{ args.question }}}}", max_calls: 20}}
agents:
  lead: {{model: script, instructions: Delegate., tools: [research]}}
  worker: {{model: script, instructions: Work., tools: [docs]}}
agent: lead
prompt: Go.
"#
    )
}

fn watch(run: &RunId, after_tree_seq: u64, include_deltas: bool) -> Watch {
    Watch { run: run.clone(), after_tree_seq, include_descendants: true, include_deltas, stop_when_suspended: true }
}

/// The facts that a watcher sees who hangs up after every `patience` items and comes back where it was.
async fn facts(bench: &Bench, run: &RunId, patience: usize, deltas: bool) -> Vec<u64> {
    let mut seqs: Vec<u64> = Vec::new();
    loop {
        let after = seqs.last().copied().unwrap_or(0);
        let mut seen = bench.runtime.watch(watch(run, after, deltas)).await.unwrap();
        for _ in 0..patience {
            match seen.next().await {
                Some(Ok(Live::Recorded(recorded))) => seqs.push(recorded.tree_seq),
                Some(Ok(Live::Text(_) | Live::Progress(_))) => {}
                Some(Err(error)) => panic!("{error}"),
                None => return seqs,
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_hundred_watchers_miss_and_repeat_nothing_and_change_nothing() {
    let alone = Bench::start().await;
    let run = alone.submit(&wide()).await;
    alone.follow(&run).await;
    let expected = journal_shape(&alone, &run).await;

    let watched = Bench::start().await;
    let run = watched.submit(&wide()).await;
    // The first takes one item and then reads nothing while the tree runs.
    let mut idle = watched.runtime.watch(watch(&run, 0, true)).await.unwrap();
    assert!(idle.next().await.is_some());
    // Some stay, some come and go; with live text and without.
    let patience = |nth: usize| if nth.is_multiple_of(4) { 7 + nth } else { usize::MAX };
    let seen = join_all((1..WATCHERS).map(|nth| facts(&watched, &run, patience(nth), nth % 2 == 0))).await;
    assert_eq!(journal_shape(&watched, &run).await, expected);
    let last = watched.runtime.get(&run).await.unwrap().tree_seq;
    assert!(last > 256, "the feed's room is not passed: {last}");
    let all: Vec<u64> = (1..=last).collect();
    for (nth, seqs) in seen.iter().enumerate() {
        assert_eq!(*seqs, all, "watcher {nth}");
    }
    let rest: Vec<u64> = idle
        .filter_map(|live| std::future::ready(if let Live::Recorded(recorded) = live.unwrap() { Some(recorded.tree_seq) } else { None }))
        .collect()
        .await;
    assert_eq!(rest, all[1..], "who read nothing reads the journal");
    // A run that has ended is read in the same way, also by who comes back to its last fact.
    assert_eq!(facts(&watched, &run, 50, true).await, all);
    assert!(watched.runtime.watch(watch(&run, last, true)).await.unwrap().next().await.is_none());
}
