//! The real daemon dies at every named point of its source, starts again, and ends as the quiet run: the same
//! transcripts, the same settled cost, no tool run again whose result was written, nothing asked of the model but what
//! the quiet run asks and the calls that were lost.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use wren::kernel::agent::Scripted;

use super::{settled, transcripts};
use crate::stub::Stub;
use crate::support::{Daemon, int, root};

const YAML: &str = r#"
wren: v1
name: points
models:
  m: {use: openai/points, max_output: 64, price: {input_usd_per_mtok: 1.00, output_usd_per_mtok: 4.00}}
tools:
  docs: {files: {root: ./workflows/data, allow: [list_files]}}
  note: {description: Notes., scripted: {takes: 3ms, effect: idempotent, result: noted, log: note.log}}
  research: {description: Looks., subagent: worker, parameters: {question: {type: string}}, prompt: "{{ args.question }}"}
agents:
  lead: {model: m, instructions: You delegate., tools: [research, note]}
  worker: {model: m, instructions: You look., tools: [docs, note]}
agent: lead
prompt: Go.
"#;

const SCRIPT: &str = r#"
price: {input_usd_per_mtok: 1.00, output_usd_per_mtok: 4.00}
latency: 3ms
replies:
  - {agent: lead, turn: 1, calls: [{tool: research, args: {question: one}}, {tool: note}, {tool: research, args: {question: two}}]}
  - {agent: lead, text: Both are done.}
  - {agent: worker, turn: 1, calls: [{tool: list_files}, {tool: note}]}
  - {agent: worker, text: I looked.}
"#;

/// Which occurrences of a point are died at: all of them with `WREN_ALL_CRASH_POINTS`.
fn is_tried(nth: u32) -> bool {
    [1, 2, 4, 7, 12].contains(&nth) || std::env::var_os("WREN_ALL_CRASH_POINTS").is_some()
}

/// The names that the source gives to the macro.
fn points() -> BTreeSet<String> {
    fn collect(dir: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                collect(&entry.path(), found);
                continue;
            }
            let text = std::fs::read_to_string(entry.path()).unwrap();
            found.extend(text.split("crash_point!(\"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()));
        }
    }
    let mut found = BTreeSet::new();
    collect(&root().join("src"), &mut found);
    found
}

fn stub() -> Stub {
    let script: Scripted = serde_yaml::from_str(SCRIPT).unwrap();
    let agents = vec![("You delegate.".to_owned(), "lead".to_owned()), ("You look.".to_owned(), "worker".to_owned())];
    Stub::with_agents(BTreeMap::from([("points".to_owned(), script)]), agents)
}

/// Runs `wrenctl` until it or the daemon is gone. Returns whether the daemon died.
fn dies_during(daemon: &mut Daemon, args: &[&str]) -> bool {
    let mut asking = daemon.ctl(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    loop {
        if daemon.is_dead() {
            let _ = asking.kill();
            asking.wait().unwrap();
            return true;
        }
        if asking.try_wait().unwrap().is_some() {
            // It may be dying behind its last answer: its end says what it died of.
            return daemon.is_dead() || daemon.terminate().signal() == Some(9);
        }
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// What must be the same.
#[derive(Debug, PartialEq)]
struct Left {
    settled: i64,
    runs: i64,
    outcome: Value,
    transcripts: Vec<(String, Value)>,
}

fn left(daemon: &Daemon, run: &str) -> Left {
    let row = daemon.json(0, &["get", run]);
    assert_eq!(int(&row["reserved_usd_nanos"]), 0);
    Left {
        settled: settled(&row),
        runs: int(&row["subtree_usage"]["run_count"]),
        outcome: row["outcome"].clone(),
        transcripts: transcripts(daemon, run),
    }
}

/// Every execution of the recording tool stands in the journal as begun, and none came after its call's result.
fn check_tool(daemon: &Daemon, events: &[Value]) {
    let log = std::fs::read_to_string(daemon.data_dir().join("tool-logs/note.log")).unwrap();
    let mut begun: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut ended = BTreeSet::new();
    for event in events {
        let of = |payload: &str| {
            let call = &event[payload];
            (call["tool"] == "note").then(|| (event["run_id"].as_str().unwrap().to_owned(), call["call_id"].as_str().unwrap().to_owned()))
        };
        if let Some(call) = of("call_started") {
            assert!(!ended.contains(&call), "{call:?} was begun after its result");
            *begun.entry(call).or_default() += 1;
        }
        if let Some(call) = of("call_ended") {
            ended.insert(call);
        }
    }
    assert_eq!(begun.len(), 3, "{begun:?}");
    for ((run, call), times) in begun {
        let ran = log.lines().filter(|line| line.contains(&run) && line.contains(&call)).count();
        assert!((1..=times).contains(&ran), "{call} of {run} was begun {times} times and ran {ran} times");
    }
}

#[test]
fn a_death_at_any_named_point_changes_nothing_but_the_write_offs() {
    let quiet_stub = stub();
    let quiet_daemon = Daemon::start_with(&[("OPENAI_BASE_URL", &quiet_stub.url())]);
    let file = quiet_daemon.workflow("points.yaml", YAML);
    let run = quiet_daemon.submit(&["-f", &file]);
    quiet_daemon.expect(0, &["wait", &run]);
    let quiet = left(&quiet_daemon, &run);
    check_tool(&quiet_daemon, &quiet_daemon.events(&run));
    let asked = quiet_stub.requests().len();

    let points = points();
    let mut died = BTreeMap::new();
    for point in points.iter().filter(|point| !point.starts_with("cancel/")) {
        for nth in (1..=100).filter(|nth| is_tried(*nth)) {
            let stub = stub();
            let mut daemon = Daemon::start_with(&[("OPENAI_BASE_URL", &stub.url()), ("WREN_CRASH_POINT", &format!("{point}#{nth}"))]);
            let file = daemon.workflow("points.yaml", YAML);
            let dead = dies_during(&mut daemon, &["run", "-q", "--request-id", "once", "-f", &file]);
            if !dead {
                break;
            }
            daemon.unset("WREN_CRASH_POINT");
            daemon.serve();
            // Whether the submission was answered or not, to say it again is the same run.
            let run = daemon.expect(0, &["run", "-d", "--request-id", "once", "-f", &file]).trim().to_owned();
            daemon.expect(0, &["wait", &run]);
            assert_eq!(left(&daemon, &run), quiet, "{point}#{nth}");
            let events = daemon.events(&run);
            check_tool(&daemon, &events);
            let lost = events.iter().filter(|event| !event["turn_aborted"].is_null()).count();
            let written_off = int(&daemon.json(0, &["get", &run])["subtree_usage"]["written_off_usd_nanos"]);
            assert_eq!(written_off > 0, lost > 0, "{point}#{nth}: a lost call may have been charged");
            let requests = stub.requests().len();
            assert!(
                (asked..=asked + lost).contains(&requests),
                "{point}#{nth}: {requests} requests, {asked} in the quiet run, {lost} lost"
            );
            *died.entry(point.clone()).or_insert(0) += 1;
        }
    }
    println!("{} points, {} deaths: {died:?}", died.len(), died.values().sum::<i32>());
    let never: Vec<&String> = points.iter().filter(|point| !point.starts_with("cancel/") && !died.contains_key(*point)).collect();
    assert!(never.is_empty(), "points that were never reached: {never:?}");
}

/// A daemon that dies on either side of a cancel's commit: without it the run goes on, with it the next start ends it.
#[test]
fn a_death_around_a_cancel_leaves_it_whole_or_not_at_all() {
    let around = [("cancel/before", false), ("cancel/after", true)];
    let named: Vec<String> = points().into_iter().filter(|point| point.starts_with("cancel/")).collect();
    assert_eq!(BTreeSet::from(around.map(|(point, _)| point.to_owned())), named.into_iter().collect(), "a point that nobody dies at");
    for (point, cancelled) in around {
        let mut daemon = Daemon::start_with(&[("WREN_CRASH_POINT", &format!("{point}#1"))]);
        let run = daemon.submit(&["-f", "workflows/deep-research-offline.yaml", "-i", "pace=400ms"]);
        assert!(dies_during(&mut daemon, &["cancel", &run]));
        daemon.unset("WREN_CRASH_POINT");
        daemon.serve();
        daemon.run(&["wait", &run]);
        let row = daemon.json(0, &["get", &run]);
        let expected = if cancelled { "OUTCOME_CANCELLED" } else { "OUTCOME_COMPLETED" };
        assert_eq!(row["outcome"], expected, "{point}");
        assert_eq!(int(&row["reserved_usd_nanos"]), 0);
    }
}
