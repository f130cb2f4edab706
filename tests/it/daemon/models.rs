//! One run over three providers' wire formats, through a rate limit, a crash and a bad key: what it read stays read, what
//! each charged is what the ledger says, and what one model signed goes to no other.

use std::collections::BTreeMap;

use serde_json::json;
use wren::kernel::Scripted;
use wren::kernel::agent::{ScriptedCall, ScriptedError, ScriptedReply};
use wren::provider::price::Book;

use super::wait_for;
use crate::stub::{Seen, Stub, Wire, sealed};
use crate::support::{Daemon, int};

const WORKFLOW: &str = r#"
wren: v1
name: three-providers
models:
  main: {use: openai/gpt-5-mini, fallback: [anthropic/claude-sonnet-5]}
tools:
  scan:
    description: Scans.
    parameters: {part: {type: string}}
    scripted: {takes: 400ms, effect: read_only, result: All quiet., log: scan.log}
agents: {lead: {model: main, instructions: "Scan, then say what you found.", tools: [scan]}}
agent: lead
prompt: Go.
"#;

fn scan(turn: u32, part: &str) -> ScriptedReply {
    let call = ScriptedCall { tool: "scan".to_owned(), args: json!({"part": part}) };
    ScriptedReply { turn: Some(turn), text: format!("First {part}."), calls: vec![call], ..ScriptedReply::default() }
}

fn refusal(turn: u32, status: u16) -> ScriptedReply {
    let error = ScriptedError { status, retry_after_ms: Some(1), message: "no".to_owned() };
    ScriptedReply { turn: Some(turn), error: Some(error), ..ScriptedReply::default() }
}

fn stub(model: &str, replies: Vec<ScriptedReply>) -> Stub {
    Stub::start(BTreeMap::from([(model.to_owned(), Scripted { replies, ..Scripted::default() })]))
}

/// What a server says that it charged, at the price book's prices.
fn charged(seen: &[Seen], provider: &str) -> i64 {
    let book = Book::builtin().unwrap();
    let cost = |seen: &Seen| {
        let (price, _) = book.model(provider, &seen.model).price.unwrap();
        seen.charged.map_or(0, |usage| price.cost_usd_nanos(&usage))
    };
    seen.iter().map(cost).sum()
}

#[test]
fn a_run_goes_on_over_three_wire_formats_and_its_ledger_is_what_the_three_charged() {
    let chat = stub("gpt-5-mini", vec![scan(1, "one"), refusal(2, 429)]);
    let messages = stub("claude-sonnet-5", vec![scan(2, "two"), refusal(3, 401)]);
    let done = ScriptedReply { turn: Some(4), text: "All quiet.".to_owned(), ..ScriptedReply::default() };
    let gemini = stub("gemini-2.5-flash", vec![scan(3, "three"), done]);
    let mut daemon = Daemon::start_with(&[
        ("OPENAI_BASE_URL", &chat.url()),
        ("ANTHROPIC_BASE_URL", &messages.url()),
        ("GEMINI_BASE_URL", &gemini.url()),
    ]);
    let file = daemon.workflow("w.yaml", WORKFLOW);
    let run = daemon.submit(&["-f", &file]);
    // Killed while the call is under way that the second model asked for.
    let mut calls = 0;
    wait_for(&daemon, &run, |event| {
        calls += i32::from(!event["call_started"].is_null());
        calls == 2
    });
    daemon.kill();
    daemon.serve();
    daemon.run(&["wait", &run]);
    let suspended = daemon.json(0, &["get", &run]);
    assert_eq!(
        (&suspended["state"], &suspended["failure"]["reason"]),
        (&json!("RUN_STATE_SUSPENDED"), &json!("PROVIDER_AUTH")),
        "{suspended}"
    );
    daemon.expect(0, &["resume", &run, "--set-model", "lead=gemini/gemini-2.5-flash"]);
    daemon.expect(0, &["wait", &run]);
    let ended = daemon.json(0, &["get", &run]);
    assert_eq!((&ended["outcome"], &ended["output_text"]), (&json!("OUTCOME_COMPLETED"), &json!("All quiet.")), "{ended}");

    let seen = [(&chat, "openai", Wire::Chat), (&messages, "anthropic", Wire::Messages), (&gemini, "gemini", Wire::Gemini)];
    let turns = |stub: &Stub| stub.requests().iter().map(|seen| (seen.turn, seen.charged.is_some())).collect::<Vec<_>>();
    assert_eq!(turns(&chat), [(1, true), (2, false), (2, false)], "rate limited twice, then left");
    assert_eq!(turns(&messages), [(2, true), (3, false)]);
    assert_eq!(turns(&gemini), [(3, true), (4, true)]);
    let sum: i64 = seen.iter().map(|(stub, provider, _)| charged(&stub.requests(), provider)).sum();
    assert!(seen.iter().all(|(stub, provider, _)| charged(&stub.requests(), provider) > 0));
    assert_eq!(int(&ended["subtree_usage"]["cost_usd_nanos"]), sum);
    assert_eq!(int(&ended["reserved_usd_nanos"]), 0);

    // What each brought back of what a model signed: its own, where its format wants that, and nobody else's.
    let sealed_in = |stub: &Stub| stub.requests().iter().map(|seen| seen.sealed.clone()).collect::<Vec<_>>();
    assert!(sealed_in(&chat).iter().all(Vec::is_empty));
    assert_eq!(sealed_in(&messages), [vec![], vec![sealed("claude-sonnet-5", 2)]]);
    assert_eq!(sealed_in(&gemini), [vec![], vec![sealed("gemini-2.5-flash", 3)]]);
    for (stub, _, wire) in seen {
        assert!(stub.requests().iter().all(|seen| seen.wire == wire));
    }
    let changes: Vec<String> =
        daemon.events(&run).iter().filter_map(|event| event["model_changed"]["model"].as_str().map(str::to_owned)).collect();
    assert_eq!(changes, ["anthropic/claude-sonnet-5", "gemini/gemini-2.5-flash"]);
}

#[test]
fn the_models_that_are_known_are_listed_with_what_they_cost_and_hold() {
    let daemon = Daemon::start_with(&[("ANTHROPIC_API_KEY", "k")]);
    let table = daemon.expect(0, &["models", "gemini"]);
    let row = |name: &str| {
        let at = table.lines().position(|line| line.trim_start().starts_with(name)).unwrap_or_else(|| panic!("{name}: {table}"));
        table.lines().nth(at).unwrap().split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(row("gemini/gemini-2.5-flash")[..6], ["gemini/gemini-2.5-flash", "0.30", "0.03", "0.30", "2.50", "1,048,576"]);
    assert_eq!(row("above")[..6], ["above", "200,000", "tokens", "2.50", "0.25", "2.50"]);
    assert!(table.contains("no key") && !table.contains("anthropic/"), "{table}");
    let all = daemon.json(0, &["models"]);
    let find = |name: &str| all["models"].as_array().unwrap().iter().find(|model| model["model"] == name).unwrap().clone();
    assert_eq!(find("claude-sonnet-5")["ready"], true);
    assert_eq!(int(&find("claude-sonnet-5")["rates"]["cache_write_pico"]), 2_500_000);
    let unknown = daemon.run(&["models", "nosuch"]);
    let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(said.contains("there is no provider \"nosuch\"") && said.contains("anthropic"), "{said}");
}
