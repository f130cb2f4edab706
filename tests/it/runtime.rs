//! The runtime on the in-memory store: whole trees without programs or sockets.

mod allowance;
mod cancels;
mod commands;
mod context;
mod crash;
mod faulty;
mod limiter;
mod models;
mod watchers;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::StreamExt;
use wren::config::Config;
use wren::kernel::agent::LimitsPatch;
use wren::kernel::{Event, Outcome, RunId, State};
use wren::provider::Providers;
use wren::provider::price::Book;
use wren::runtime::{self, Live, Parts, Runtime, Submission, Watch};
use wren::store::Store;
use wren::store::memory::Memory;
use wren::telemetry::Telemetry;

/// A runtime on a fresh store, or on one that an earlier runtime used.
pub struct Bench {
    pub runtime: Runtime,
    pub dir: Arc<tempfile::TempDir>,
}

impl Bench {
    pub async fn start() -> Self {
        Self::on(Arc::new(Memory::new()), Arc::new(tempfile::tempdir().unwrap())).await
    }

    pub async fn on(store: Arc<Memory>, dir: Arc<tempfile::TempDir>) -> Self {
        Self::over(store, dir).await
    }

    /// A runtime that sees its store through another.
    pub async fn over(store: Arc<dyn Store>, dir: Arc<tempfile::TempDir>) -> Self {
        // The workspace lies apart from the daemon's own files.
        std::fs::create_dir_all(dir.path().join("work/docs")).unwrap();
        std::fs::write(dir.path().join("work/docs/a.txt"), "a line\n").unwrap();
        Self::on_bare(store, dir).await
    }

    /// A runtime whose workspace is left as it is.
    pub async fn on_bare(store: Arc<dyn Store>, dir: Arc<tempfile::TempDir>) -> Self {
        let config = Self::config(&dir);
        Self::with(config, store, dir, Providers::scripted_only(), Book::default()).await
    }

    async fn with(config: runtime::Config, store: Arc<dyn Store>, dir: Arc<tempfile::TempDir>, providers: Providers, book: Book) -> Self {
        let parts = Parts { config, store, providers, book, telemetry: Telemetry::default() };
        Self { runtime: Runtime::start(parts).await.unwrap(), dir }
    }

    fn config(dir: &tempfile::TempDir) -> runtime::Config {
        runtime::Config {
            data_dir: dir.path().join("data"),
            ceilings: Config::CEILINGS,
            turns_in_flight_max: 64,
            trees_max: 1_000,
            drain_timeout_ms: 5_000,
            takes_up: true,
        }
    }

    pub fn submission(&self, yaml: &str) -> Submission {
        Submission {
            entry_path: "w.yaml".to_owned(),
            files: BTreeMap::from([("w.yaml".to_owned(), yaml.as_bytes().to_vec())]),
            workspace: self.dir.path().join("work"),
            submitter: "test".to_owned(),
            ..Submission::default()
        }
    }

    pub async fn submit(&self, yaml: &str) -> RunId {
        self.runtime.submit(self.submission(yaml), false).await.unwrap().row.unwrap().summary.id
    }

    /// Follows a run until it is suspended or over, and returns everything that was seen.
    pub async fn follow(&self, run: &RunId) -> Vec<Live> {
        let watch =
            Watch { run: run.clone(), after_tree_seq: 0, include_descendants: true, include_deltas: true, stop_when_suspended: true };
        self.runtime.watch(watch).await.unwrap().map(|item| item.unwrap()).collect().await
    }
}

/// A tokio runtime whose clock moves when nobody can.
fn paused() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

const TWO_CHILDREN: &str = r#"
wren: v1
name: two-children
models:
  script:
    scripted:
      price: {input_usd_per_mtok: 1.00, output_usd_per_mtok: 2.00}
      latency: 10ms
      replies:
        - {agent: lead, turn: 1, calls: [{tool: research, args: {question: one}}, {tool: research, args: {question: two}}]}
        - {agent: lead, text: Both are done.}
        - {agent: worker, turn: 1, calls: [{tool: list_files}, {tool: nosuch}]}
        - {agent: worker, text: I looked.}
tools:
  docs: {files: {root: .}}
  research: {description: Looks., subagent: worker, parameters: {question: {type: string}}, prompt: "{{ args.question }}"}
agents:
  lead: {model: script, instructions: Delegate., tools: [research]}
  worker: {model: script, instructions: Work., tools: [docs]}
agent: lead
prompt: Go.
"#;

#[tokio::test(start_paused = true)]
async fn a_tree_runs_to_its_end_and_adds_up() {
    let bench = Bench::start().await;
    let run = bench.submit(TWO_CHILDREN).await;
    let seen = bench.follow(&run).await;
    let rows = bench.runtime.subtree(&run).await.unwrap();
    assert_eq!(rows.len(), 3);
    for row in &rows {
        assert_eq!(row.summary.state, State::Ended, "{row:?}");
        assert_eq!(row.summary.outcome, Some(Outcome::Completed));
        assert!(row.account.reserved.is_zero());
    }
    let own: i64 = rows.iter().map(|row| row.summary.own.cost_usd_nanos).sum();
    assert_eq!(own, rows[0].account.totals.cost_usd_nanos);
    let seqs: Vec<u64> =
        seen.iter().filter_map(|live| if let Live::Recorded(recorded) = live { Some(recorded.tree_seq) } else { None }).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    let text: String = seen
        .iter()
        .filter_map(|live| if let Live::Text(piece) = live { (piece.run == run).then_some(piece.text.as_str()) } else { None })
        .collect();
    assert_eq!(text, "Both are done.");
}

#[tokio::test(start_paused = true)]
async fn a_cancel_ends_the_whole_tree_and_says_how() {
    let bench = Bench::start().await;
    let yaml = TWO_CHILDREN.replace("latency: 10ms", "latency: 1h");
    let run = bench.submit(&yaml).await;
    let watch = Watch { run: run.clone(), after_tree_seq: 0, include_descendants: true, include_deltas: false, stop_when_suspended: false };
    let mut seen = bench.runtime.watch(watch).await.unwrap();
    while let Some(live) = seen.next().await {
        if let Live::Recorded(recorded) = live.unwrap()
            && matches!(recorded.event, Event::TurnStarted(_))
        {
            break;
        }
    }
    let receipt = bench.runtime.cancel(&run, "test", "enough", true).await.unwrap();
    assert_eq!(receipt.row.summary.outcome, Some(Outcome::Cancelled));
    assert_eq!(receipt.row.summary.cancel_reason.as_deref(), Some("enough"));
    assert_eq!(receipt.runs.len(), 1);
    // The model had the request and had said nothing: what it read is charged, as an estimate.
    let own = receipt.row.summary.own;
    assert!(own.estimated && own.cost_usd_nanos > 0 && own.usage.input_tokens > 0, "{own:?}");
    assert_eq!((own.usage.output_tokens, own.written_off_usd_nanos), (0, 0));
    assert_eq!(bench.runtime.running(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_suspended_root_goes_on_with_a_higher_limit() {
    let bench = Bench::start().await;
    let yaml = TWO_CHILDREN.replace("prompt: Go.", "prompt: Go.\nlimits: {max_turns: 1}");
    let run = bench.submit(&yaml).await;
    bench.follow(&run).await;
    let row = bench.runtime.get(&run).await.unwrap();
    assert_eq!((row.summary.state, row.summary.outcome), (State::Suspended, Some(Outcome::MaxTurns)));
    let refused = bench.runtime.resume(&run, LimitsPatch::default(), "test", "").await;
    assert!(matches!(refused, Err(runtime::Error::LimitStillExceeded { .. })), "{refused:?}");
    bench.runtime.resume(&run, LimitsPatch { max_turns: Some(5), ..LimitsPatch::default() }, "test", "").await.unwrap();
    bench.follow(&run).await;
    assert_eq!(bench.runtime.get(&run).await.unwrap().summary.outcome, Some(Outcome::Completed));
}

/// The kinds of a tree's facts, run by run: what must not depend on who looks.
async fn journal_shape(bench: &Bench, root: &RunId) -> Vec<(String, Vec<serde_json::Value>)> {
    let mut shape = Vec::new();
    for row in bench.runtime.subtree(root).await.unwrap() {
        let call = row.summary.parent.as_ref().map(|parent| parent.call_id.to_string()).unwrap_or_default();
        let run = bench.runtime.load(&row.summary.id).await.unwrap();
        let transcript = serde_json::to_value(run.transcript.iter().map(|message| (**message).clone()).collect::<Vec<_>>()).unwrap();
        let row =
            serde_json::json!({"seq": row.summary.seq, "own": row.summary.own, "account": row.account, "outcome": row.summary.outcome});
        shape.push((call, vec![transcript, row]));
    }
    shape.sort_by(|left, right| left.0.cmp(&right.0));
    shape
}

#[tokio::test(start_paused = true)]
async fn nobody_and_ten_watchers_leave_the_same_journal() {
    let alone = Bench::start().await;
    let run = alone.submit(TWO_CHILDREN).await;
    while alone.runtime.get(&run).await.unwrap().summary.state != State::Ended {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let expected = journal_shape(&alone, &run).await;

    let watched = Bench::start().await;
    let run = watched.submit(TWO_CHILDREN).await;
    // One of the ten takes a first item and then reads nothing more.
    let watch = |after_tree_seq| Watch {
        run: run.clone(),
        after_tree_seq,
        include_descendants: true,
        include_deltas: true,
        stop_when_suspended: true,
    };
    let mut idle = watched.runtime.watch(watch(0)).await.unwrap();
    assert!(idle.next().await.is_some());
    let readers = futures_util::future::join_all((0..9).map(|_| watched.follow(&run)));
    for seen in readers.await {
        let seqs: Vec<u64> =
            seen.iter().filter_map(|live| if let Live::Recorded(recorded) = live { Some(recorded.tree_seq) } else { None }).collect();
        assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    }
    assert_eq!(journal_shape(&watched, &run).await, expected);
    // The idle one still misses and repeats nothing.
    let rest: Vec<Live> = idle.map(|item| item.unwrap()).collect().await;
    let seqs: Vec<u64> =
        rest.iter().filter_map(|live| if let Live::Recorded(recorded) = live { Some(recorded.tree_seq) } else { None }).collect();
    assert_eq!(seqs, (2..=seqs.len() as u64 + 1).collect::<Vec<_>>());
}
