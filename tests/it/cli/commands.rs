//! Whole commands against a daemon that answers from a script.

use tonic::Status;
use wren::cli::Size;
use wren::wire::v1;
use wren::wire::v1::event::Payload;
use wren::wire::v1::{Diagnostic, Event, Message, Outcome, Role, Run, RunState, RunSuspended, Severity};

use super::fake::{After, Script, Seen, Setting, alone};
use super::view::{created, ended, event, suspended_run};

fn completed_run() -> Run {
    let (state, outcome) = (RunState::Ended.into(), Outcome::Completed.into());
    Run { state, outcome, failure: None, output_text: "The answer.".to_owned(), ..suspended_run() }
}

fn running_run() -> Run {
    Run { state: RunState::Running.into(), outcome: 0, failure: None, output_text: String::new(), ..suspended_run() }
}

fn begins() -> Event {
    event("ROOT", 0, created("ROOT", "lead", "Why?"))
}

fn ends(outcome: Outcome) -> Event {
    event("ROOT", 5, ended(outcome, ""))
}

fn suspends() -> Event {
    event("ROOT", 5, Payload::RunSuspended(RunSuspended { outcome: Outcome::Budget.into(), ..RunSuspended::default() }))
}

fn script(run: Run, watches: Vec<(Vec<Event>, After)>) -> Script {
    Script { watches: watches.into(), ..Script::new(run) }
}

async fn play(script: Script, args: &[&str]) -> (Seen, Script) {
    script.play(args, Setting::default()).await
}

#[tokio::test]
async fn run_prints_the_result_and_keeps_talk_apart() {
    let script = script(completed_run(), vec![(vec![begins(), ends(Outcome::Completed)], After::End)]);
    let args =
        ["run", "-f", "-", "-i", "topic=a=b", "--budget", "0.50", "-l", "team=core", "--set-model", "smart=openai/x", "--request-id", "q"];
    let (seen, asked) = play(script, &args).await;
    assert_eq!((seen.code, seen.stdout.as_str()), (0, "The answer.\n"));
    assert!(seen.stderr.contains("accepted runaway") || seen.stderr.contains("accepted deep-research"), "{}", seen.stderr);
    assert!(seen.stderr.contains("ended: completed") && seen.stderr.contains("✔ runaway ROOT  completed"), "{}", seen.stderr);
    let submitted = &asked.submitted[0];
    assert_eq!(submitted.inputs_json, "{\"topic\":\"a=b\"}");
    assert_eq!(submitted.limits.unwrap().budget_usd_nanos, Some(500_000_000));
    assert_eq!((submitted.labels["team"].as_str(), submitted.model_overrides["smart"].as_str()), ("core", "openai/x"));
    assert_eq!((submitted.request_id.as_str(), submitted.validate_only, submitted.mock), ("q", false, false));
    assert_eq!(submitted.bundle.as_ref().unwrap().files[0].content, "wren: v1\n".as_bytes());
    assert!(submitted.workspace.starts_with('/'));
}

#[tokio::test]
async fn a_dropped_watch_goes_on_from_its_last_event() {
    let watches = vec![(vec![begins()], After::Break), (Vec::new(), After::End), (vec![ends(Outcome::Completed)], After::End)];
    let mut script = script(running_run(), watches);
    script.run.output_text = "partial".to_owned();
    let (seen, asked) = play(script, &["run", "-f", "-", "--progress", "jsonl"]).await;
    let cursors: Vec<i64> = asked.watched.iter().map(|request| request.after_tree_seq).collect();
    assert_eq!(cursors, [0, 1, 1]);
    let seqs: Vec<String> = seen
        .stderr
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()?["tree_seq"].as_str().map(ToOwned::to_owned))
        .collect();
    assert_eq!(seqs, ["1", "6"]);
}

#[tokio::test]
async fn a_budget_stop_exits_12_with_the_command_that_goes_on() {
    let script = script(suspended_run(), vec![(vec![begins(), suspends()], After::End)]);
    let (seen, asked) = play(script, &["run", "-f", "-", "--progress", "none"]).await;
    assert_eq!((seen.code, seen.stdout.as_str()), (12, "Let me look once more.\n"));
    insta::assert_snapshot!(seen.stderr, @r#"
    stopped: run ROOT suspended: budget: $0.000500 is left, one more turn may cost $0.001137
    next: wrenctl resume ROOT --budget 0.02
    "#);
    assert!(asked.watched[0].stop_when_suspended && asked.watched[0].include_descendants);
}

#[tokio::test]
async fn json_is_the_run_itself() {
    let script = script(suspended_run(), vec![(vec![suspends()], After::End)]);
    let (seen, _) = play(script, &["run", "-f", "-", "-o", "json", "-q"]).await;
    let json: serde_json::Value = serde_json::from_str(&seen.stdout).unwrap();
    assert_eq!((json["run_id"].as_str(), json["outcome"].as_str()), (Some("ROOT"), Some("OUTCOME_BUDGET")));
    assert_eq!(seen.code, 12);
    assert!(seen.stderr.starts_with("stopped: run ROOT") && seen.stderr.lines().count() == 1, "{}", seen.stderr);
}

#[tokio::test]
async fn the_first_interrupt_cancels_and_prints_the_receipt() {
    let mut script = script(running_run(), vec![(vec![begins()], After::Interrupt)]);
    script.cancelled = Some(Run { state: RunState::Ended.into(), outcome: Outcome::Cancelled.into(), ..running_run() });
    let (seen, asked) = play(script, &["run", "-f", "-"]).await;
    assert_eq!(seen.code, 20);
    assert!(asked.asked[0].starts_with("CancelRun") && asked.asked[0].contains("wait: true"), "{:?}", asked.asked);
    assert!(seen.stderr.contains("CANCELLED") && seen.stderr.contains("stopped: run ROOT ended: cancelled"), "{}", seen.stderr);
}

#[tokio::test]
async fn a_run_that_beat_the_interrupt_keeps_its_outcome() {
    let mut script = script(running_run(), vec![(vec![begins()], After::Interrupt)]);
    script.cancelled = Some(completed_run());
    let (seen, _) = play(script, &["run", "-f", "-"]).await;
    assert_eq!((seen.code, seen.stdout.as_str()), (0, "The answer.\n"));
}

#[tokio::test]
async fn the_second_interrupt_leaves_once_the_daemon_has_the_cancel() {
    let mut script = script(running_run(), vec![(vec![begins()], After::Interrupt)]);
    script.cancel_hangs = true;
    let (seen, asked) = play(script, &["run", "-f", "-", "--progress", "none"]).await;
    assert_eq!(seen.code, 130);
    assert!(asked.asked.len() == 2 && asked.asked[1].contains("wait: false"), "{:?}", asked.asked);
    insta::assert_snapshot!(seen.stderr, @r#"
    cancelling; Ctrl-C again leaves as soon as the daemon has it
    run ROOT is cancelled for sure: the daemon has stored it and stops what still runs
    next: wrenctl watch ROOT
    "#);
}

#[tokio::test]
async fn a_cancel_that_is_not_confirmed_says_so() {
    let mut script = script(running_run(), vec![(vec![begins()], After::Interrupt)]);
    script.cancel_hangs = true;
    script.cancel_refusal = Some(Status::unavailable("gone"));
    let (seen, _) = play(script, &["run", "-f", "-", "--progress", "none", "-q"]).await;
    assert_eq!(seen.code, 130);
    insta::assert_snapshot!(seen.stderr, @r#"
    error: the cancel of run ROOT is not confirmed: gone; it may go on
    next: `wrenctl cancel ROOT`
    "#);
}

#[tokio::test]
async fn an_interrupt_of_watch_and_wait_only_lets_go() {
    for command in ["watch", "wait"] {
        let script = script(running_run(), vec![(vec![begins()], After::Interrupt)]);
        let (seen, asked) = play(script, &[command, "ROOT"]).await;
        assert_eq!(seen.code, 130, "{command}");
        assert!(asked.asked.is_empty(), "{:?}", asked.asked);
        assert_eq!(seen.stderr, "run ROOT goes on without wrenctl\nnext: wrenctl watch ROOT\n", "{command}");
    }
}

#[tokio::test]
async fn an_interrupt_of_cancel_says_where_the_run_stands() {
    let cancelling = Run { state: RunState::Cancelling.into(), ..running_run() };
    let stands =
        [(running_run(), "run ROOT goes on without wrenctl"), (cancelling, "run ROOT is being cancelled; that goes on without wrenctl")];
    for (run, said) in stands {
        let script = Script { cancel_hangs: true, ..Script::new(run) };
        let (seen, _) = play(script, &["cancel", "ROOT"]).await;
        assert_eq!((seen.code, seen.stderr), (130, format!("{said}\nnext: wrenctl watch ROOT\n")));
    }
}

#[tokio::test]
async fn a_dry_run_says_what_is_valid_within_which_limits() {
    let limits = Some(v1::Limits { max_turns: Some(6), ..v1::Limits::default() });
    let run = Run { workflow_name: "w".to_owned(), limits, ..Run::default() };
    let (seen, asked) = play(Script::new(run.clone()), &["run", "-f", "-", "--dry-run"]).await;
    assert!(seen.code == 0 && asked.submitted[0].validate_only);
    assert!(seen.stdout.starts_with("w is valid\n\nLIMIT "), "{}", seen.stdout);
    let row: Vec<&str> = seen.stdout.lines().find(|line| line.starts_with("max_turns")).unwrap().split_whitespace().collect();
    assert_eq!(row, ["max_turns", "6", "50"]);
    let (seen, _) = play(Script::new(run), &["run", "-f", "-", "--dry-run", "-o", "name"]).await;
    assert_eq!(seen.stdout, "w\n");
}

#[tokio::test]
async fn detach_prints_the_id_alone() {
    let (seen, asked) = play(Script::new(running_run()), &["run", "-f", "-", "-d"]).await;
    assert_eq!((seen.code, seen.stdout.as_str()), (0, "ROOT\n"));
    assert_eq!(seen.stderr, "next: wrenctl watch ROOT\n");
    assert!(asked.watched.is_empty());
}

#[tokio::test]
async fn a_terminal_gets_a_tree_that_stays() {
    let script = script(completed_run(), vec![(vec![begins(), ends(Outcome::Completed)], After::End)]);
    let setting = Setting { size: Some(Size { width: 100, height: 20 }), ..Setting::default() };
    let (seen, _) = script.play(&["run", "-f", "-", "--color", "never"], setting).await;
    assert_eq!((seen.code, seen.stdout.as_str()), (0, "The answer.\n"));
    // What is left after the last redraw is the tree as the daemon told it.
    let last = seen.stderr.rsplit("\x1b[?2026l").next().unwrap();
    assert!(last.starts_with("✔ runaway ROOT  completed") && !last.contains('\x1b'), "{last:?}");
}

#[tokio::test]
async fn an_invalid_workflow_exits_3() {
    let fault = Diagnostic {
        severity: Severity::Error.into(),
        message: "no".to_owned(),
        path: "stdin.yaml".to_owned(),
        line: 1,
        ..Diagnostic::default()
    };
    let mut script = Script::new(running_run());
    script.validated = v1::ValidateWorkflowResponse { diagnostics: vec![fault], workflow: None };
    let (seen, _) = play(script, &["workflow", "validate", "-"]).await;
    assert_eq!((seen.code, seen.stdout.as_str()), (3, ""));
    assert!(seen.stderr.contains("--> stdin.yaml:1:1"), "{}", seen.stderr);
}

#[tokio::test]
async fn a_valid_workflow_shows_its_limits_and_the_defaults() {
    let limits = Some(v1::Limits { max_turns: Some(6), ..v1::Limits::default() });
    let mut script = Script::new(running_run());
    script.validated.workflow = Some(v1::Workflow { name: "w".to_owned(), limits, ..v1::Workflow::default() });
    let (seen, _) = play(script, &["workflow", "validate", "-"]).await;
    assert_eq!(seen.code, 0);
    let row: Vec<&str> = seen.stdout.lines().find(|line| line.starts_with("max_turns")).unwrap().split_whitespace().collect();
    assert_eq!(row, ["max_turns", "6", "50"]);
}

#[tokio::test]
async fn a_refusal_of_the_daemon_is_said_and_leaves_nothing_on_stdout() {
    let mut script = Script::new(running_run());
    script.refusal = Some(Status::invalid_argument("the bundle is missing"));
    let (seen, _) = play(script, &["run", "-f", "-"]).await;
    assert_eq!((seen.code, seen.stdout.as_str(), seen.stderr.as_str()), (1, "", "error: the bundle is missing\n"));
}

#[tokio::test]
async fn ps_asks_for_what_is_under_way_and_all_for_everything() {
    let (seen, asked) = play(Script::new(suspended_run()), &["ps", "-o", "json", "-l", "team=a\"b"]).await;
    let json: serde_json::Value = serde_json::from_str(&seen.stdout).unwrap();
    assert_eq!(json["runs"].as_array().map(Vec::len), Some(1));
    assert_eq!(json["runs"][0]["run_id"], "ROOT");
    assert_eq!(asked.asked.len(), 4);
    assert!(asked.asked[0].contains(r#"labels.team = \"a\\\"b\" AND state = PENDING"#), "{}", asked.asked[0]);
    let (seen, asked) = play(Script::new(suspended_run()), &["ps", "--all", "-o", "name"]).await;
    assert_eq!((seen.stdout.as_str(), asked.asked.len()), ("", 1));
}

#[tokio::test]
async fn ps_says_when_there_are_more() {
    let mut script = Script::new(suspended_run());
    script.has_more_runs = true;
    let (seen, _) = play(script, &["ps", "--limit", "1", "-o", "name"]).await;
    assert_eq!((seen.stdout.as_str(), seen.stderr.as_str()), ("ROOT\n", "these are the newest 1; more: --limit 2\n"));
    let (seen, _) = play(Script::new(suspended_run()), &["ps", "--limit", "1", "-o", "name"]).await;
    assert_eq!((seen.stdout.as_str(), seen.stderr.as_str()), ("ROOT\n", ""));
}

#[tokio::test]
async fn wait_ends_on_suspended_unless_told_otherwise() {
    let (seen, asked) = play(Script::new(suspended_run()), &["wait", "ROOT", "-o", "name"]).await;
    assert_eq!((seen.code, seen.stdout.as_str(), asked.watched.len()), (12, "ROOT\n", 0));
    let script = script(suspended_run(), vec![(Vec::new(), After::Interrupt)]);
    let (seen, asked) = play(script, &["wait", "ROOT", "--for", "ended"]).await;
    assert_eq!((seen.code, asked.watched[0].stop_when_suspended), (130, false));
}

#[tokio::test]
async fn wait_gives_up_after_its_timeout() {
    let script = script(running_run(), vec![(Vec::new(), After::Break)]);
    let (seen, _) = play(script, &["wait", "ROOT", "--timeout", "1ms"]).await;
    assert_eq!(seen.code, 1);
    let said = "error: not all runs have stopped after 0.001 s: run ROOT goes on without wrenctl\nnext: wrenctl watch ROOT\n";
    assert_eq!(seen.stderr, said);
}

#[tokio::test]
async fn a_wait_for_the_end_of_a_suspended_run_says_what_it_waits_for() {
    for interrupt in [After::Open, After::Interrupt] {
        let script = script(suspended_run(), vec![(Vec::new(), interrupt)]);
        let (seen, _) = play(script, &["wait", "ROOT", "--for", "ended", "--timeout", "50ms"]).await;
        assert!(matches!(seen.code, 1 | 130), "{}", seen.code);
        let said = "run ROOT is suspended: budget: $0.000500 is left, one more turn may cost $0.001137\n\
            next: wrenctl resume ROOT --budget 0.02\n";
        assert!(seen.stderr.ends_with(said), "{}", seen.stderr);
    }
}

#[tokio::test]
async fn events_of_a_running_run_end_where_the_journal_does() {
    let run = Run { last_seq: 2, ..running_run() };
    let second = Event { seq: 2, ..event("ROOT", 3, Payload::RunStarted(v1::RunStarted {})) };
    let script = script(run, vec![(vec![begins(), second], After::Open)]);
    let (seen, _) = play(script, &["events", "ROOT", "-o", "jsonl", "--after", "1"]).await;
    let lines: Vec<serde_json::Value> = seen.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((seen.code, lines.len()), (0, 1));
    assert_eq!((lines[0]["tree_seq"].as_str(), lines[0]["run_id"].as_str()), (Some("4"), Some("ROOT")));
    assert!(lines[0]["run_started"].is_object() && lines[0]["trace_id"] == "t");
}

#[tokio::test]
async fn a_stream_is_refused_in_forms_that_cannot_hold_it() {
    for command in ["watch", "events"] {
        let (seen, _) = play(Script::new(running_run()), &[command, "ROOT", "-o", "json"]).await;
        assert_eq!(seen.code, 2);
        assert!(seen.stderr.contains("use -o jsonl"), "{}", seen.stderr);
    }
}

#[tokio::test]
async fn watch_prints_lines_and_exits_by_outcome() {
    let script = script(
        Run { outcome: Outcome::Failed.into(), state: RunState::Ended.into(), ..running_run() },
        vec![(vec![begins(), ends(Outcome::Failed)], After::End)],
    );
    let (seen, _) = play(script, &["watch", "ROOT"]).await;
    assert_eq!(seen.code, 10);
    assert!(seen.stdout.lines().count() == 2 && seen.stdout.contains("ended: failed"), "{}", seen.stdout);
    assert!(seen.stderr.ends_with("next: wrenctl transcript ROOT\n"), "{}", seen.stderr);
}

#[tokio::test]
async fn result_of_a_run_under_way_is_an_error_with_the_next_step() {
    let (seen, _) = play(Script::new(running_run()), &["result", "ROOT"]).await;
    assert_eq!((seen.code, seen.stdout.as_str()), (1, ""));
    assert!(seen.stderr.contains("next: wait for it: `wrenctl wait ROOT`"), "{}", seen.stderr);
}

#[tokio::test]
async fn resume_returns_after_its_commit() {
    let (seen, asked) = play(Script::new(suspended_run()), &["resume", "ROOT", "--budget", "0.02", "--reason", "go on"]).await;
    assert_eq!((seen.code, seen.stdout.as_str()), (0, "ROOT\n"));
    assert!(seen.stderr.ends_with("next: wrenctl watch ROOT\n"), "{}", seen.stderr);
    assert!(asked.asked[0].contains("budget_usd_nanos: Some(20000000)") && asked.asked[0].contains("go on"), "{}", asked.asked[0]);
    assert!(asked.watched.is_empty());
}

#[tokio::test]
async fn cancel_prints_its_receipt() {
    let (seen, asked) = play(Script::new(running_run()), &["cancel", "ROOT", "--reason", "enough"]).await;
    assert_eq!(seen.code, 0);
    assert!(seen.stdout.starts_with("RUN ") && seen.stdout.ends_with("ROOT was quiet after 7 ms\n"), "{}", seen.stdout);
    assert!(asked.asked[0].contains("enough"), "{}", asked.asked[0]);
    for wait in [&["cancel", "ROOT"][..], &["cancel", "ROOT", "--no-wait"]] {
        let (seen, _) = play(Script::new(completed_run()), wait).await;
        assert_eq!((seen.code, seen.stdout.as_str()), (0, "ROOT already ended: completed\n"));
    }
}

#[tokio::test]
async fn a_transcript_is_read_to_its_last_page() {
    let message = |text: &str| Message { role: Role::User.into(), text: text.to_owned(), ..Message::default() };
    let mut script = Script::new(completed_run());
    script.pages = vec![vec![message("one")], vec![message("two")]];
    let (seen, _) = play(script, &["transcript", "ROOT", "-o", "json"]).await;
    let json: serde_json::Value = serde_json::from_str(&seen.stdout).unwrap();
    let texts: Vec<&str> = json["messages"].as_array().unwrap().iter().filter_map(|message| message["text"].as_str()).collect();
    assert_eq!(texts, ["one", "two"]);
    let (seen, _) = play(Script::new(completed_run()), &["transcript", "@latest", "-o", "name"]).await;
    assert_eq!(seen.stdout, "ROOT\n");
}

#[tokio::test]
async fn a_trace_goes_to_stdout_or_a_file() {
    let (seen, _) = play(Script::new(completed_run()), &["trace", "ROOT", "--format", "jaeger-json"]).await;
    assert_eq!(seen.stdout, "TRACE_FORMAT_JAEGER_JSON\n");
    let (seen, _) = play(Script::new(completed_run()), &["trace", "ROOT", "--format", "otlp-json", "-o", "json"]).await;
    assert_eq!(seen.stdout, "TRACE_FORMAT_OTLP_JSON\n");
    for form in ["json", "jsonl", "yaml"] {
        let (seen, _) = play(Script::new(completed_run()), &["trace", "ROOT", "-o", form]).await;
        assert_eq!((seen.code, seen.stdout.as_str()), (2, ""));
        assert!(seen.stderr.contains("--format otlp-json or --format jaeger-json"), "{}", seen.stderr);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.json");
    let (seen, _) = play(Script::new(completed_run()), &["trace", "ROOT", "--output", path.to_str().unwrap()]).await;
    assert_eq!((seen.stdout.as_str(), std::fs::read_to_string(&path).unwrap().as_str()), ("", "TRACE_FORMAT_TEXT\n"));
}

#[tokio::test]
async fn the_token_comes_from_a_file_or_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    std::fs::write(&path, "from-file\n").unwrap();
    let variables = || vec![("WREN_TOKEN", "from-env".to_owned())];
    for (args, token) in [(vec!["info"], "Bearer from-env"), (vec!["info", "--token-file", path.to_str().unwrap()], "Bearer from-file")] {
        let (seen, _) = Script::new(running_run()).play(&args, Setting { variables: variables(), ..Setting::default() }).await;
        assert!(seen.stdout.contains(token), "{}", seen.stdout);
    }
}

#[tokio::test]
async fn a_reader_that_has_gone_ends_it_quietly() {
    let gone = || Setting { is_stdout_gone: true, ..Setting::default() };
    let (seen, _) = Script::new(suspended_run()).play(&["get", "ROOT"], gone()).await;
    assert_eq!((seen.code, seen.stderr.as_str()), (0, ""));
    // How a run stopped is still told by the exit code.
    let script = script(suspended_run(), vec![(vec![suspends()], After::End)]);
    let (seen, _) = script.play(&["run", "-f", "-", "-q"], gone()).await;
    assert_eq!(seen.code, 12);
}

#[tokio::test]
async fn without_a_daemon_the_address_and_the_ways_out_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", dir.path().join("no.sock").display());
    let seen = alone(&["ps", "--address", &address], Setting::default()).await;
    assert_eq!((seen.code, seen.stdout.as_str()), (1, ""));
    assert!(seen.stderr.contains(&address) && seen.stderr.contains("`wrend`") && seen.stderr.contains("--local"), "{}", seen.stderr);
    let seen = alone(&["ps", "--local"], Setting::default()).await;
    assert_eq!((seen.code, seen.stderr.as_str()), (1, "error: the local store is locked\n"));
}

#[tokio::test]
async fn wrong_usage_exits_2_and_says_why() {
    for (args, why) in [
        (vec!["run", "-f", "w.yaml", "--budget", "0"], "allows no turn"),
        (vec!["run", "-f", "w.yaml", "--budget", "-1"], "negative"),
        (vec!["run", "-f", "w.yaml", "--budget", "NaN"], "no plain decimal"),
        (vec!["run", "-f", "w.yaml", "--budget", "1e308"], "no plain decimal"),
        (vec!["run", "-f", "w.yaml", "--timeout", "5"], "no unit"),
        (vec!["run", "-f", "w.yaml", "-i", "novalue"], "key=value"),
        (vec!["run", "-f", "w.yaml", "--local", "-d"], "cannot be used with"),
        (vec!["ps", "--address", "http://x"], "unix:PATH or tcp:HOST:PORT"),
        (vec!["frobnicate"], "unrecognized subcommand"),
    ] {
        let seen = alone(&args, Setting::default()).await;
        assert_eq!((seen.code, seen.stdout.as_str()), (2, ""), "{args:?}: {}", seen.stderr);
        assert!(seen.stderr.contains(why), "{args:?}: {}", seen.stderr);
    }
    for (args, why) in [
        (vec!["run", "-f", "-", "--input-file", "-"], "standard input can be read once"),
        (vec!["workflow", "validate", "-", "--input-file", "-"], "standard input can be read once"),
        (vec!["run", "-f", "-", "-i", "topic=a", "-i", "topic=b"], "--input topic is given twice"),
        (vec!["run", "-f", "-", "-l", "team=a", "-l", "team=b"], "--label team is given twice"),
        (vec!["ps", "-l", "team=a", "-l", "team=b"], "--label team is given twice"),
    ] {
        let (seen, asked) = play(Script::new(running_run()), &args).await;
        assert_eq!((seen.code, seen.stdout.as_str(), asked.submitted.len()), (2, "", 0), "{args:?}: {}", seen.stderr);
        assert!(seen.stderr.contains(why), "{args:?}: {}", seen.stderr);
    }
    let (seen, asked) = play(Script::new(running_run()), &["run", "-f", "/nowhere/w.yaml"]).await;
    assert_eq!((seen.code, asked.submitted.len()), (2, 0));
    assert!(seen.stderr.contains("cannot read /nowhere/w.yaml"), "{}", seen.stderr);
}

#[tokio::test]
async fn some_commands_need_no_daemon() {
    assert_eq!(alone(&["version"], Setting::default()).await.stdout, format!("wrenctl {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(
        alone(&["version", "-o", "jsonl"], Setting::default()).await.stdout,
        format!("{{\"version\":\"{}\"}}\n", env!("CARGO_PKG_VERSION"))
    );
    assert_eq!(alone(&["version", "-o", "yaml"], Setting::default()).await.stdout, format!("version: {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(alone(&["workflow", "schema"], Setting::default()).await.stdout, "{\"type\": \"object\"}\n");
    assert!(alone(&["--help"], Setting::default()).await.stdout.contains("Exit codes"));
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let seen = alone(&["completion", shell], Setting::default()).await;
        assert!(seen.code == 0 && seen.stdout.contains("wrenctl"), "{shell}");
    }
}
