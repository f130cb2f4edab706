//! The two real programs end to end: a person's first run, budgets, cancels, crashes.

mod hostile;
mod models;
#[cfg(debug_assertions)]
mod points;

use serde_json::Value;

use crate::support::{Daemon, int, runs};

const OFFLINE: &str = "workflows/deep-research-offline.yaml";

/// What a run's transcript says, without anything that differs from run to run.
fn transcript(daemon: &Daemon, run: &str) -> Value {
    daemon.json(0, &["transcript", run])
}

/// Transcripts of a whole tree in the order of the calls that made its runs.
pub fn transcripts(daemon: &Daemon, root: &str) -> Vec<(String, Value)> {
    let tree = daemon.json(0, &["tree", root]);
    let mut all: Vec<(String, Value)> = Vec::new();
    collect(daemon, &tree, String::new(), &mut all);
    all.sort_by(|left, right| left.0.cmp(&right.0));
    all
}

fn collect(daemon: &Daemon, node: &Value, path: String, all: &mut Vec<(String, Value)>) {
    let id = node["run"]["run_id"].as_str().unwrap();
    let here = format!("{path}/{}", node["run"]["tool_call_id"].as_str().unwrap());
    all.push((here.clone(), transcript(daemon, id)));
    for child in node["children"].as_array().into_iter().flatten() {
        collect(daemon, child, here.clone(), all);
    }
}

/// What a run cost but for the calls that were lost.
pub fn settled(run: &Value) -> i64 {
    int(&run["subtree_usage"]["cost_usd_nanos"]) - int(&run["subtree_usage"]["written_off_usd_nanos"])
}

#[test]
fn the_offline_research_has_two_levels_of_children_and_adds_up() {
    let daemon = Daemon::start();
    let run = daemon.json(0, &["run", "-f", OFFLINE]);
    assert_eq!(run["outcome"], "OUTCOME_COMPLETED");
    assert!(!run["output_text"].as_str().unwrap().is_empty());
    let tree = daemon.json(0, &["tree", run["run_id"].as_str().unwrap()]);
    let all = runs(&tree);
    let depths: Vec<i64> = all.iter().map(|run| int(&run["depth"])).collect();
    assert_eq!(depths.iter().filter(|depth| **depth == 1).count(), 3, "{depths:?}");
    assert_eq!(depths.iter().filter(|depth| **depth == 2).count(), 1, "{depths:?}");
    let own: i64 = all.iter().map(|run| int(&run["own_usage"]["cost_usd_nanos"])).sum();
    assert_eq!(own, int(&run["subtree_usage"]["cost_usd_nanos"]));
    assert!(own > 0);
    assert_eq!(int(&run["reserved_usd_nanos"]), 0);
}

#[test]
fn a_parent_sees_answers_and_not_what_its_children_read() {
    let daemon = Daemon::start();
    let run = daemon.json(0, &["run", "-f", OFFLINE]);
    let tree = daemon.json(0, &["tree", run["run_id"].as_str().unwrap()]);
    let parent = transcript(&daemon, run["run_id"].as_str().unwrap()).to_string();
    let data = std::fs::read_to_string(crate::support::root().join("workflows/data/errors.log")).unwrap();
    for line in data.lines().filter(|line| line.len() > 20) {
        assert!(!parent.contains(line), "the parent's transcript holds {line:?}");
    }
    for child in tree["children"].as_array().unwrap() {
        let messages = transcript(&daemon, child["run"]["run_id"].as_str().unwrap());
        let first = &messages["messages"][0];
        assert_eq!(first["role"], "ROLE_SYSTEM");
        let answer = child["run"]["output_text"].as_str().unwrap();
        assert!(parent.contains(&serde_json::to_string(answer).unwrap().trim_matches('"').to_owned()), "{answer}");
    }
}

#[test]
fn a_runaway_stops_at_its_budget_and_goes_on_with_more() {
    let daemon = Daemon::start();
    let run = daemon.json(12, &["run", "-f", "workflows/runaway.yaml", "--budget", "0.01"]);
    let id = run["run_id"].as_str().unwrap();
    let spent = int(&run["subtree_usage"]["cost_usd_nanos"]);
    assert_eq!(run["state"], "RUN_STATE_SUSPENDED");
    assert_eq!(run["outcome"], "OUTCOME_BUDGET");
    assert!(spent > 5_000_000 && spent <= 10_000_000, "{spent}");
    let turns = int(&run["own_usage"]["turn_count"]);
    daemon.expect(0, &["resume", id, "--budget", "0.02"]);
    daemon.run(&["wait", id]);
    let more = daemon.json(0, &["get", id]);
    assert_eq!(more["outcome"], "OUTCOME_BUDGET");
    let spent_more = int(&more["subtree_usage"]["cost_usd_nanos"]);
    assert!(spent_more > spent && spent_more <= 20_000_000, "{spent_more}");
    assert!(int(&more["own_usage"]["turn_count"]) > turns);
    let refused = daemon.run(&["resume", id]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("would stop at once"), "{}", String::from_utf8_lossy(&refused.stderr));
}

#[test]
fn a_root_at_its_turn_cap_exits_11() {
    let daemon = Daemon::start();
    let run = daemon.json(11, &["run", "-f", "workflows/runaway.yaml", "--max-turns", "3"]);
    assert_eq!(int(&run["own_usage"]["turn_count"]), 3);
}

/// Two research children that never finish: one meets its own turn cap, one its own budget.
const ENDLESS_CHILDREN: &str = r#"
wren: v1
name: endless-children
models:
  script:
    max_output: 64
    scripted:
      price: {input_usd_per_mtok: 2.00, output_usd_per_mtok: 10.00}
      replies:
        - {agent: lead, turn: 1, calls: [{tool: patient, args: {question: "How many errors are there?"}}, {tool: thrifty, args: {question: "How many errors are there?"}}]}
        - {agent: lead, text: "Neither of them finished, and here is what they had."}
        - {text: "Still looking.", calls: [{tool: list_files}]}
tools:
  docs: {files: {root: ./workflows/data, allow: [list_files]}}
  patient: {description: Looks for ever., subagent: seeker, parameters: {question: {type: string}}, prompt: "{{ args.question }}", limits: {max_turns: 6, budget_usd: 0.50}}
  thrifty: {description: Looks for ever., subagent: seeker, parameters: {question: {type: string}}, prompt: "{{ args.question }}", limits: {max_turns: 40, budget_usd: 0.01}}
agents:
  lead: {model: script, instructions: Delegate., tools: [patient, thrifty]}
  seeker: {model: script, instructions: Look., tools: [docs]}
agent: lead
prompt: How many errors?
limits: {max_turns: 5, budget_usd: 1.00, max_depth: 1}
"#;

#[test]
fn children_end_at_their_own_limits_and_the_parent_goes_on() {
    let daemon = Daemon::start();
    let file = daemon.workflow("endless.yaml", ENDLESS_CHILDREN);
    let run = daemon.json(0, &["run", "-f", &file]);
    let tree = daemon.json(0, &["tree", run["run_id"].as_str().unwrap()]);
    let children = tree["children"].as_array().unwrap();
    let by_tool = |tool: &str| children.iter().map(|child| &child["run"]).find(|run| run["tool"] == tool).unwrap();
    let patient = by_tool("patient");
    assert_eq!(patient["outcome"], "OUTCOME_MAX_TURNS");
    assert_eq!(int(&patient["own_usage"]["turn_count"]), 6);
    let thrifty = by_tool("thrifty");
    assert_eq!(thrifty["outcome"], "OUTCOME_BUDGET");
    assert!(int(&thrifty["own_usage"]["cost_usd_nanos"]) <= 10_000_000);
    let parent = transcript(&daemon, run["run_id"].as_str().unwrap()).to_string();
    assert!(parent.contains("outcome max_turns") && parent.contains("outcome budget"), "{parent}");
    assert!(parent.contains("Still looking."), "{parent}");
}

/// A child that hands its whole task on, for ever.
const HANDING_ON: &str = r#"
wren: v1
name: handing-on
models: {script: {scripted: {replies: [
  {agent: worker, turn: 1, calls: [{tool: research, args: {question: "Do it for me."}}]},
  {agent: worker, text: "Done with what I have."}]}}}
tools:
  research: {description: Does it., subagent: worker, parameters: {question: {type: string}}, prompt: "{{ args.question }}", max_calls: 1}
agents:
  worker: {model: script, instructions: Work., tools: [research]}
agent: worker
prompt: Do it.
limits: {max_turns: 4, max_depth: 3, max_runs: 64}
"#;

#[test]
fn children_that_hand_their_task_on_are_stopped_in_words() {
    let daemon = Daemon::start();
    let file = daemon.workflow("handing-on.yaml", HANDING_ON);
    let run = daemon.json(0, &["run", "-f", &file]);
    let tree = daemon.json(0, &["tree", run["run_id"].as_str().unwrap()]);
    let all = runs(&tree);
    assert_eq!(all.len(), 4, "a root and three levels");
    let deepest = all.iter().max_by_key(|run| int(&run["depth"])).unwrap();
    let words = transcript(&daemon, deepest["run_id"].as_str().unwrap()).to_string();
    assert!(words.contains("max_depth"), "{words}");

    let file = daemon.workflow("few-runs.yaml", &HANDING_ON.replace("max_runs: 64", "max_runs: 2"));
    let run = daemon.json(0, &["run", "-f", &file]);
    let tree = daemon.json(0, &["tree", run["run_id"].as_str().unwrap()]);
    assert_eq!(runs(&tree).len(), 2);
    let child = tree["children"][0]["run"]["run_id"].as_str().unwrap();
    assert!(transcript(&daemon, child).to_string().contains("max_runs"));
}

#[test]
fn cancel_from_a_second_client_leaves_nothing_running() {
    let daemon = Daemon::start();
    let run = daemon.submit(&["-f", "workflows/slow-scan.yaml"]);
    wait_for(&daemon, &run, |event| event.get("call_started").is_some_and(|call| !call.is_null()));
    let receipt = daemon.json(0, &["cancel", &run, "--reason", "enough"]);
    assert!(!receipt["receipts"].as_array().unwrap().is_empty(), "{receipt}");
    let ended = daemon.json(0, &["get", &run]);
    assert_eq!(ended["outcome"], "OUTCOME_CANCELLED");
    assert_eq!(ended["cancel_reason"], "enough");
    let waited = daemon.run(&["wait", &run]);
    assert_eq!(waited.status.code(), Some(20));
}

/// Follows a run until an event is seen.
pub fn wait_for(daemon: &Daemon, run: &str, mut wanted: impl FnMut(&Value) -> bool) {
    use std::io::{BufRead, BufReader};
    let mut watch = daemon.ctl(&["watch", run, "-o", "jsonl"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut found = false;
    for line in lines {
        let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
        if wanted(&event) {
            found = true;
            break;
        }
    }
    let _ = watch.kill();
    let _ = watch.wait();
    assert!(found, "the run ended without it");
}

#[test]
fn a_killed_daemon_takes_its_runs_up_and_nothing_is_done_twice() {
    let args = ["-f", OFFLINE, "-i", "pace=150ms"];
    let quiet = Daemon::start();
    let quiet_run = quiet.json(0, &[&["run"], &args[..]].concat());
    let quiet_id = quiet_run["run_id"].as_str().unwrap();
    let quiet_transcripts = transcripts(&quiet, quiet_id);

    let mut daemon = Daemon::start();
    let run = daemon.submit(&args);
    // Killed as soon as each of these has happened: in a model call, waiting for children, in a child's turn.
    let moments: [fn(&Value) -> bool; 4] = [
        |event| !event["turn_started"].is_null(),
        |event| !event["child_started"].is_null(),
        |event| !event["call_ended"].is_null(),
        |event| !event["child_ended"].is_null(),
    ];
    for moment in moments {
        wait_for(&daemon, &run, moment);
        daemon.kill();
        daemon.serve();
    }
    daemon.expect(0, &["wait", &run]);
    let recovered = daemon.json(0, &["get", &run]);
    assert_eq!(settled(&recovered), settled(&quiet_run));
    assert!(int(&recovered["subtree_usage"]["written_off_usd_nanos"]) > 0, "the first kill hit a model call");
    assert_eq!(int(&recovered["subtree_usage"]["run_count"]), int(&quiet_run["subtree_usage"]["run_count"]));
    assert_eq!(transcripts(&daemon, &run), quiet_transcripts);
}

#[test]
fn a_drained_daemon_goes_on_at_its_next_start() {
    let mut daemon = Daemon::start();
    let run = daemon.submit(&["-f", OFFLINE, "-i", "pace=100ms"]);
    wait_for(&daemon, &run, |event| !event["child_started"].is_null());
    assert!(daemon.terminate().success());
    daemon.serve();
    daemon.expect(0, &["wait", &run]);
    let ended = daemon.json(0, &["get", &run]);
    assert_eq!(ended["outcome"], "OUTCOME_COMPLETED");
    assert_eq!(int(&ended["subtree_usage"]["written_off_usd_nanos"]), 0, "a drain loses no call");
}

#[test]
fn twenty_kills_at_places_all_over_the_tree_change_nothing_but_the_write_offs() {
    let args = ["-f", OFFLINE, "-i", "pace=40ms"];
    let mut daemon = Daemon::start();
    let quiet = daemon.json(0, &[&["run"], &args[..]].concat());
    let quiet_id = quiet["run_id"].as_str().unwrap();
    let quiet_transcripts = transcripts(&daemon, quiet_id);
    let last = daemon.events(quiet_id).iter().map(|event| int(&event["tree_seq"])).max().unwrap();
    let mut hit = std::collections::BTreeSet::new();
    for kill in 0..20 {
        let run = daemon.submit(&args);
        // Somewhere between the first model call and the last: which event that is differs from run to run.
        let at = 3 + kill * (last - 8) / 20;
        let seen = std::cell::RefCell::new(Value::Null);
        wait_for(&daemon, &run, |event| {
            seen.replace(event.clone());
            int(&event["tree_seq"]) >= at
        });
        daemon.kill();
        daemon.serve();
        daemon.expect(0, &["wait", &run]);
        let ended = daemon.json(0, &["get", &run]);
        let lost = int(&ended["subtree_usage"]["written_off_usd_nanos"]);
        let seen = seen.into_inner();
        let payloads = ["turn_started", "turn_ended", "call_started", "call_ended", "child_started", "child_ended"];
        let what = payloads.iter().find(|name| !seen[**name].is_null()).unwrap_or(&"other");
        println!("killed at tree_seq {} ({what}): written off {lost} nano-USD", seen["tree_seq"]);
        hit.insert(*what);
        assert_eq!(settled(&ended), settled(&quiet), "killed at {seen}");
        assert_eq!(int(&ended["subtree_usage"]["run_count"]), int(&quiet["subtree_usage"]["run_count"]), "killed at {seen}");
        assert_eq!(int(&ended["reserved_usd_nanos"]), 0);
        assert_eq!(transcripts(&daemon, &run), quiet_transcripts, "killed at {seen}");
    }
    assert!(hit.len() >= 3, "the kills hit too few kinds of moments: {hit:?}");
}

#[test]
fn what_is_left_of_a_budget_is_less_than_the_cheapest_next_turn() {
    let daemon = Daemon::start();
    let mut turns = std::collections::BTreeSet::new();
    for (budget, nanos) in [("0.01", 10_000_000), ("0.02", 20_000_000), ("0.05", 50_000_000)] {
        let run = daemon.json(12, &["run", "-f", "workflows/runaway.yaml", "--budget", budget]);
        let left = nanos - int(&run["subtree_usage"]["cost_usd_nanos"]);
        let last = daemon
            .events(run["run_id"].as_str().unwrap())
            .iter()
            .filter_map(|event| event["turn_ended"]["input_tokens"].as_str().map(|text| text.parse::<i64>().unwrap()))
            .max()
            .unwrap();
        // The next turn would read more than the last one, and be allowed 64 tokens (the script's max_output is its floor).
        assert!(left >= 0 && left < last * 1000 + 64 * 4000 + 200_000, "{budget}: {left} left, the last turn read {last}");
        turns.insert(int(&run["own_usage"]["turn_count"]));
    }
    assert_eq!(turns.len(), 3, "{turns:?}");
}

#[test]
fn a_dry_run_answers_what_would_run_and_creates_nothing() {
    let daemon = Daemon::start();
    let run = daemon.json(0, &["run", "--dry-run", "-f", "workflows/runaway.yaml", "--budget", "0.03"]);
    assert_eq!((run["run_id"].as_str(), run["workflow_name"].as_str(), run["agent"].as_str()), (Some(""), Some("runaway"), Some("runner")));
    assert_eq!(int(&run["limits"]["budget_usd_nanos"]), 30_000_000);
    assert!(int(&run["limits"]["max_runs"]) > 0, "the defaults are filled in: {run}");
    assert_eq!(daemon.json(0, &["ps", "--all"])["runs"], serde_json::json!([]));
    let shown = daemon.expect(0, &["run", "--dry-run", "-f", "workflows/runaway.yaml", "--budget", "0.03"]);
    assert!(shown.starts_with("runaway is valid\n") && shown.contains("$0.030000"), "{shown}");
}

#[test]
fn limits_above_the_ceilings_are_refused_in_the_users_units() {
    let daemon = Daemon::start();
    for (flag, value, said) in [
        ("--budget", "1000.01", "budget $1000.01 is above this daemon's ceiling of $1000;"),
        ("--timeout", "8d", "timeout 8d is above this daemon's ceiling of 7d;"),
    ] {
        let refused = daemon.run(&["run", "-f", "workflows/runaway.yaml", flag, value]);
        let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2));
        assert!(stderr.contains(said), "{stderr}");
    }
}

#[test]
fn without_a_daemon_nobody_is_told_to_start_one_again() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().unwrap();
    let local = |args: &[&str]| daemon.ctl(args).env("XDG_DATA_HOME", dir.path()).output().unwrap();
    let refused = local(&["run", "--local", "-f", "workflows/deep-research.yaml", "-i", "topic=Why did worker 7 stop?"]);
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("set OPENAI_API_KEY to a valid key and run the command again"), "{stderr}");
    assert!(stderr.contains("OPENAI_BASE_URL") && !stderr.contains("wrend"), "{stderr}");
    let refused = local(&["run", "--local", "-f", "workflows/runaway.yaml", "--budget", "1000.01"]);
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(stderr.contains("$1000; ask for less\n") && !stderr.contains("wrend"), "{stderr}");
}

/// Without a file handle left nobody new is let in; all are served when some come free.
#[test]
fn a_daemon_without_file_handles_waits_for_some() {
    let daemon = Daemon::start();
    let run = daemon.submit(&["-f", "workflows/plan.yaml"]);
    daemon.run(&["wait", &run]);
    let before = daemon.json(0, &["get", &run]);
    daemon.forbid_files(true);
    let asking: Vec<_> =
        (0..5).map(|_| daemon.ctl(&["get", &run, "-o", "json"]).stdout(std::process::Stdio::piped()).spawn().unwrap()).collect();
    while !daemon.logged().contains("no connection can be accepted") {
        std::thread::yield_now();
    }
    daemon.forbid_files(false);
    for asked in asking {
        let answer = asked.wait_with_output().unwrap();
        assert_eq!(answer.status.code(), Some(0));
        assert_eq!(serde_json::from_slice::<Value>(&answer.stdout).unwrap(), before);
    }
    // Said once for the whole time, however often it was tried.
    assert_eq!(daemon.logged().matches("no connection can be accepted").count(), 1);
    daemon.json(0, &["run", "-f", "workflows/plan.yaml"]);
}

#[test]
fn wrend_says_that_it_drains_and_leaves_at_the_second_signal() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let dir = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", dir.path().join("wrend.sock").display());
    let mut wrend = Command::new(env!("CARGO_BIN_EXE_wrend"))
        .env_remove("RUST_LOG")
        .args(["--data-dir", dir.path().join("data").to_str().unwrap(), "--listen", &address])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut serving = String::new();
    BufReader::new(wrend.stdout.take().unwrap()).read_line(&mut serving).unwrap();
    assert!(serving.contains("serving"), "{serving}");
    let ctl = |args: &[&str]| {
        let mut ctl = Command::new(env!("CARGO_BIN_EXE_wrenctl"));
        ctl.current_dir(crate::support::root()).env("WREN_ADDRESS", &address).args(args);
        ctl
    };
    let submitted = ctl(&["run", "-d", "-f", "workflows/slow-scan.yaml", "-i", "pace=600s"]).output().unwrap();
    let run = String::from_utf8(submitted.stdout).unwrap();
    // Once a child's reply is under way, which takes longer than any test, a drain has something to wait for.
    let mut watch = ctl(&["watch", run.trim(), "-o", "jsonl"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut events =
        BufReader::new(watch.stdout.take().unwrap()).lines().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    assert!(events.any(|event| event["parent_run_id"] != "" && event["turn_started"].is_object()));
    watch.kill().unwrap();
    watch.wait().unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(wrend.id()).unwrap()).unwrap();
    let signal = || rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let mut lines = BufReader::new(wrend.stderr.take().unwrap()).lines().map(Result::unwrap);
    signal();
    let drains = lines.find(|line| line.contains("draining")).unwrap();
    assert!(drains.contains("runs=") && !drains.contains("runs=0") && !drains.contains('\x1b'), "{drains:?}");
    signal();
    assert!(lines.any(|line| line.contains("leaving at once")));
    assert_eq!(wrend.wait().unwrap().code(), Some(1));
}

#[test]
fn the_readmes_config_is_one() {
    let readme = std::fs::read_to_string(crate::support::root().join("README.md")).unwrap();
    let section = readme.split("## The daemon's config").nth(1).unwrap();
    let yaml = section.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let config = wren::config::Config::parse("README.md", yaml).unwrap();
    assert!(!config.workspaces.is_empty() && config.token_file.is_some() && config.ceilings.budget_usd.is_some());
    assert!(!config.providers.endpoints.is_empty() && config.prices.is_some());
}
