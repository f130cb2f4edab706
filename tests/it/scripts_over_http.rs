//! The shipped scripts with their figures, played in the daemon and over HTTP by a server that speaks every wire family:
//! the same turns, tools and money whichever way. And what a cancel leaves at that server.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use wren::config::Config;
use wren::kernel::agent::{KnownModel, Scripted};
use wren::tool::files_operations;
use wren::workflow::{self, Overrides, Source, World};

use crate::stub::Stub;
use crate::support::{Daemon, int, root};

/// What a run came to: (turns, tool calls, input tokens of each turn, cost in nano-USD).
#[derive(Debug, PartialEq)]
struct Figures {
    turns: i64,
    calls: i64,
    input: Vec<i64>,
    output: Vec<i64>,
    cost: i64,
}

fn figures(daemon: &Daemon, run: &Value) -> Figures {
    let ended: Vec<Value> = daemon
        .events(run["run_id"].as_str().unwrap())
        .iter()
        .map(|event| event["turn_ended"].clone())
        .filter(|turn| !turn.is_null())
        .collect();
    Figures {
        turns: int(&run["own_usage"]["turn_count"]),
        calls: int(&run["own_usage"]["tool_call_count"]),
        input: ended.iter().map(|turn| int(&turn["input_tokens"])).collect(),
        output: ended.iter().map(|turn| int(&turn["output_tokens"])).collect(),
        cost: int(&run["own_usage"]["cost_usd_nanos"]),
    }
}

/// The script of a shipped workflow, and the workflow with a provider in its place.
fn over_http(name: &str, provider: &str) -> (Scripted, String) {
    let text = std::fs::read_to_string(root().join(format!("workflows/{name}.yaml"))).unwrap();
    let source = Source { entry: "w.yaml".to_owned(), files: BTreeMap::from([("w.yaml".to_owned(), text.clone().into_bytes())]) };
    let operations = files_operations();
    let world = World {
        model: &|_, _| KnownModel::default(),
        providers: &["scripted".to_owned()],
        files_operations: &operations,
        ceilings: Config::CEILINGS,
    };
    let (plan, _) = workflow::load(&source, &world, &Overrides::default());
    let plan = plan.unwrap();
    let inputs = plan.inputs("{}").unwrap();
    let script = plan.root(&inputs).unwrap().agent.model.scripted.clone().unwrap();
    let mut document: Value = serde_yaml::from_str(&text).unwrap();
    let model = &mut document["models"]["script"];
    let (price, max_output) = (model["scripted"]["price"].clone(), model["max_output"].clone());
    *model = json!({"use": format!("{provider}/{name}"), "price": price, "max_output": max_output});
    (Scripted::clone(&script), document.to_string())
}

/// The providers that are there without configuration.
const KNOWN: [&str; 4] = ["openai", "anthropic", "gemini", "ollama"];

/// Plays a workflow in the daemon and through each of the providers, which must come to the same.
fn all_ways(name: &str, providers: &[&str], code: i32, more: &[&str]) -> Figures {
    let (script, _) = over_http(name, "openai");
    let stub = Stub::start(BTreeMap::from([(name.to_owned(), script)]));
    let variables = KNOWN.map(|provider| format!("{}_BASE_URL", provider.to_uppercase()));
    let url = stub.url();
    let daemon = Daemon::start_with(&variables.each_ref().map(|variable| (variable.as_str(), url.as_str())));
    let played = figures(&daemon, &daemon.json(code, &[&["run", "-f", &format!("workflows/{name}.yaml")], more].concat()));
    for provider in providers {
        let before = stub.requests().len();
        let file = daemon.workflow("w.yaml", &over_http(name, provider).1);
        let asked = figures(&daemon, &daemon.json(code, &[&["run", "-f", &file], more].concat()));
        assert_eq!(played, asked, "{name}: in the daemon and over {provider}");
        assert_eq!(stub.requests().len() - before, usize::try_from(asked.turns).unwrap());
    }
    played
}

fn both(name: &str, code: i32, more: &[&str]) -> Figures {
    all_ways(name, &["openai"], code, more)
}

/// Prices of the scripts: 1 USD a million tokens in, 4 out, so a token costs 1,000 and 4,000 nano-USD.
fn cost_by_hand(figures: &Figures) -> i64 {
    figures.input.iter().sum::<i64>() * 1000 + figures.output.iter().sum::<i64>() * 4000
}

#[test]
fn plan_lists_reads_and_answers() {
    let found = all_ways("plan", &KNOWN, 0, &[]);
    assert_eq!((found.turns, found.calls), (3, 2));
    assert!(found.input.is_sorted_by(|left, right| left < right), "{:?}", found.input);
    // Turn 1 reads the instructions (4 tokens), the two tools' definitions and the prompt with its frame (5 + 4); turn 2
    // also the call `list_files {}` (2 + 1 + 4) and its listing; turn 3 also the call of `read_file` and the notes.
    assert_eq!(found.output, [3, 8, 10], "list_files + {{}} · read_file + its path · the answer");
    assert_eq!(found.cost, cost_by_hand(&found));
}

#[test]
fn recover_reads_the_error_and_gets_it_right() {
    let found = all_ways("recover", &KNOWN, 0, &[]);
    assert_eq!((found.turns, found.calls), (4, 3));
    assert_eq!(found.cost, cost_by_hand(&found));
}

#[test]
fn a_runaway_reads_with_the_square_of_its_cap() {
    let sums: Vec<i64> = ["8", "20", "50", "100"]
        .iter()
        .map(|cap| {
            let found = both("runaway", 11, &["--max-turns", cap]);
            assert_eq!(found.turns.to_string(), **cap);
            let steps: Vec<i64> = found.input.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(steps.iter().all(|step| *step == steps[0]), "each turn adds the same: {steps:?}");
            assert_eq!(found.cost, cost_by_hand(&found));
            println!("runaway capped at {cap} turns: {} input tokens", found.input.iter().sum::<i64>());
            found.input.iter().sum()
        })
        .collect();
    // With a first turn of a and d more each turn, n turns read n a + n (n - 1) d / 2: two and a half times the turns read
    // well over four times the tokens.
    assert!(sums[2] > 4 * sums[1] && sums[3] > 3 * sums[2], "{sums:?}");
}

#[test]
fn a_cancel_drops_the_streams_and_nothing_is_asked_after_it() {
    let slow = Scripted {
        latency_ms: 60_000,
        replies: vec![wren::kernel::agent::ScriptedReply { text: "word ".repeat(200), ..Default::default() }],
        ..Scripted::default()
    };
    let stub = Stub::start(BTreeMap::from([("slow".to_owned(), slow)]));
    let daemon = Daemon::start_with(&[("OPENAI_BASE_URL", &stub.url())]);
    let text = std::fs::read_to_string(root().join("workflows/slow-scan.yaml")).unwrap();
    let mut document: Value = serde_yaml::from_str(&text).unwrap();
    document["models"]["net"] =
        json!({"use": "openai/slow", "price": {"input_usd_per_mtok": 1, "output_usd_per_mtok": 4}, "max_output": 512});
    document["agents"]["narrator"]["model"] = json!("net");
    let file = daemon.workflow("w.yaml", &document.to_string());
    let run = daemon.submit(&["-f", &file]);
    // Both children have a model call under way, and the parent's tool sleeps.
    let mut asked = 0;
    crate::daemon::wait_for(&daemon, &run, |event| {
        asked += i32::from(event["turn_started"]["model"] == "openai/slow");
        asked == 2
    });
    while stub.requests().len() < 2 {
        std::thread::yield_now();
    }
    let receipt = daemon.json(0, &["cancel", &run, "--reason", "enough"]);
    let requests = stub.requests().len();
    assert_eq!(receipt["receipts"].as_array().unwrap().len(), 3, "{receipt}");
    for one in receipt["receipts"].as_array().unwrap() {
        assert_eq!(one["outcome"], "OUTCOME_CANCELLED", "{one}");
    }
    assert_eq!(daemon.run(&["wait", &run]).status.code(), Some(20));
    while stub.aborted() < 2 {
        std::thread::yield_now();
    }
    assert_eq!(stub.requests().len(), requests, "a request came after the cancel");
    let ended = daemon.json(0, &["get", &run]);
    assert_eq!(int(&ended["reserved_usd_nanos"]), 0);
    assert_eq!(daemon.json(0, &["info"])["running_run_count"], json!("0"));
}

#[test]
fn cancelling_one_child_leaves_its_sibling_alone() {
    let daemon = Daemon::start();
    let run = daemon.submit(&["-f", "workflows/slow-scan.yaml", "-i", "pace=2s"]);
    let mut children = Vec::new();
    crate::daemon::wait_for(&daemon, &run, |event| {
        if let Some(child) = event["child_started"]["child_run_id"].as_str() {
            children.push(child.to_owned());
        }
        children.len() == 2
    });
    daemon.json(0, &["cancel", &children[0]]);
    daemon.run(&["wait", &children[1]]);
    assert_eq!(daemon.json(0, &["get", &children[0]])["outcome"], "OUTCOME_CANCELLED");
    assert_eq!(daemon.json(0, &["get", &children[1]])["outcome"], "OUTCOME_COMPLETED");
    daemon.json(0, &["cancel", &run]);
}

#[test]
fn a_provider_that_is_not_there_suspends_the_run_and_a_missing_key_refuses_it() {
    let daemon = Daemon::start_with(&[("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")]);
    let (_, yaml) = over_http("plan", "openai");
    let file = daemon.workflow("w.yaml", &yaml);
    let run = daemon.json(16, &["run", "-f", &file]);
    assert_eq!((run["state"].as_str(), run["outcome"].as_str()), (Some("RUN_STATE_SUSPENDED"), Some("OUTCOME_PROVIDER_ERROR")));
    assert!(run["failure"]["message"].as_str().unwrap().contains("127.0.0.1:1"), "{run}");
    assert_eq!(int(&run["subtree_usage"]["cost_usd_nanos"]), 0);

    let daemon = Daemon::start();
    let file = daemon.workflow("w.yaml", &yaml);
    let refused = daemon.run(&["run", "-f", &file]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("OPENAI_API_KEY"), "{}", String::from_utf8_lossy(&refused.stderr));
    assert_eq!(daemon.json(0, &["ps", "-a"])["runs"].as_array().unwrap().len(), 0, "nothing was created");
}
