//! Every form of fault as people read it. After a change of words: `INSTA_UPDATE=always cargo test --test it workflow`,
//! and read the difference.

use std::fmt::Write;

use wren::workflow::{Diagnostic, Overrides};

use super::{SMALL, load, load_with, with};

/// Renders what is wrong with each document, under its name.
fn gallery(documents: &[(&str, String)]) -> String {
    let mut text = String::new();
    for (name, document) in documents {
        let (plan, diagnostics) = load(document.clone());
        let verdict = if plan.is_some() { "accepted" } else { "refused" };
        let shown: String = diagnostics.iter().map(Diagnostic::render).collect();
        writeln!(text, "## {name}: {verdict}\n{shown}").unwrap();
    }
    text
}

fn model(text: &str) -> String {
    SMALL.replace("scripted: {replies: [{text: hi}]}", text)
}

fn agent(text: &str) -> String {
    SMALL.replace("instructions: Say hi.", text)
}

fn tool(text: &str) -> String {
    agent("tools: [t]").replace("agents:", &format!("tools: {{t: {{{text}}}}}\nagents:"))
}

#[test]
fn faults_of_yaml() {
    let shown = gallery(&[
        ("empty", String::new()),
        ("not yaml", "wren: [v1\nname: x".to_owned()),
        ("a tab", "wren: v1\nlimits:\n\tmax_turns: 1\n".to_owned()),
        ("two documents", with("---\nwren: v1")),
        ("an alias to nothing", with("description: *nobody")),
        ("an alias inside itself", with("description: &a [*a]")),
        ("an alias as a key", with("description: &a x\n*a : y")),
        ("a tag", with("description: !!str x")),
        ("a tagged list", with("description: !mine [x]")),
        ("a merge key", with("<<: {description: x}")),
        ("a key that is a number", with("1: x")),
        ("a key that is true or false", with("True: x")),
        ("an unquoted template", SMALL.replace("Go.", "{{ inputs.x }}")),
        ("two double keys", with("name: again\nprompt: again\nlimits: {max_turns: 1, max_turns: 2}")),
        ("too deep", with(&format!("limits: {}{}", "[".repeat(70), "]".repeat(70)))),
        ("a number out of range", with("limits: {max_turns: 99999999999999999999}")),
    ]);
    insta::assert_snapshot!(shown);
}

#[test]
fn faults_of_shape() {
    let shown = gallery(&[
        ("a list", "- wren: v1\n".to_owned()),
        ("nothing in it", "{}\n".to_owned()),
        ("another version", SMALL.replace("wren: v1", "wren: v2")),
        ("a word that is none of those", tool("description: d, scripted: {effect: idempotnt}")),
        ("an unknown field", with("limits: {max_turn: 1}")),
        ("a field to come", with("policy: {rules: []}")),
        ("steps", "wren: v1\nname: s\nagents: {}\nsteps: []\n".to_owned()),
        ("a prompt file", SMALL.replace("Go.", "{file: notes/prompt.md}")),
        ("a file of instructions", agent("instructions: {file: notes/prompt.md}")),
        ("on_length to come", agent("on_length: tell")),
        ("on_length as it is", agent("on_length: block")),
        ("a number for a string", SMALL.replace("Go.", "3.10")),
        ("an empty field", with("description:")),
        ("a string for a mapping", with("limits: many")),
        ("a word for a number", with("limits: {max_turns: many}")),
        ("a fraction", with("limits: {max_turns: 5.0}")),
        ("an exponent", with("limits: {max_turns: 1e3}")),
        ("too small", with("limits: {max_turns: 0}")),
        ("too large", with("limits: {max_turns: 4294967296}")),
        ("not a number", with("limits: {budget_usd: .nan}")),
        ("negative usage", model("scripted: {replies: [{usage: {input_tokens: -1, output_tokens: 1}}]}")),
    ]);
    insta::assert_snapshot!(shown);
}

#[test]
fn faults_of_meaning() {
    let shown = gallery(&[
        ("a bad name", SMALL.replace("name: small", "name: a b")),
        ("no such agent", SMALL.replace("agent: a\n", "agent: aa\n")),
        ("no such model", SMALL.replace("model: m,", "model: mm,")),
        ("no such tool", agent("tools: [docs]")),
        ("no such operation", tool("files: {root: .}").replace("[t]", "[t.read_fil]")),
        ("no such provider", model("use: opnai/gpt-5")),
        ("a model without a provider", model("use: gpt-5")),
        ("a model twice", model("use: openai/gpt-5, scripted: {}")),
        ("a model of nothing", model("temperature: 1")),
        ("a price that nobody knows", model("use: openai/nobody-knows")),
        ("a price that is none", model("use: openai/x, price: {input_usd_per_mtok: cheap, output_usd_per_mtok: 1}")),
        ("an input without a schema", with("inputs: {x: {type: strin}}")),
        ("a default that does not fit", with("inputs: {x: {type: integer, default: many}}")),
        ("a name in a template", with("inputs: {topic: {type: string}}").replace("Go.", "'{{ inputs.topc }}'")),
        ("a name in brackets", with("inputs: {topic: {type: string}}").replace("Go.", "\"{{ inputs['topc'] }}\"")),
        ("a filter", SMALL.replace("Go.", "\"{{ 'x' | uper }}\"")),
        ("a template's grammar", SMALL.replace("Go.", "'{% if %}'")),
        ("no budget", with("limits: {budget_usd: 0}")),
        ("a budget too exact", with("limits: {budget_usd: 0.0000000001}")),
        ("no duration", with("limits: {timeout: '5'}")),
        ("above a ceiling", with("limits: {budget_usd: 1000000, max_runs: 4000000000}")),
        ("the root agent above a ceiling", agent("limits: {budget_usd: 1000000}")),
        ("an agent of a reply", model("scripted: {replies: [{agent: b}]}")),
    ]);
    insta::assert_snapshot!(shown);
}

#[test]
fn faults_of_tools() {
    let shown = gallery(&[
        ("a tool of nothing", tool("description: d")),
        ("a tool of two kinds", tool("files: {root: .}, scripted: {}")),
        ("a root outside", tool("files: {root: ../up}")),
        ("an unknown file operation", tool("files: {root: ., allow: [write_file]}")),
        ("fields without meaning on files", tool("files: {root: .}, description: d, max_calls: 1, on_failure: fail")),
        (
            "fields without meaning on a script",
            tool("scripted: {}, prompt: p, limits: {}, max_calls: 1, max_parallel: 1, on_failure: fail"),
        ),
        ("a log elsewhere", tool("description: d, scripted: {log: ../x}")),
        ("a child without words", tool("subagent: a")),
        ("a child of nobody", tool("subagent: b, description: d, prompt: p")),
        (
            "a child above its root",
            tool("subagent: a, description: d, prompt: p, limits: {budget_usd: 2, max_tokens: 20, timeout: 2h}")
                + "limits: {budget_usd: 1, max_tokens: 10, timeout: 1h}\n",
        ),
        ("two tools of one name", tool("files: {root: .}").replace("[t]", "[t, t.read_file]")),
        (
            "nobody uses these",
            with("tools: {t: {scripted: {}}}")
                .replace("agents: {", "agents: {spare: {model: m}, ")
                .replace("models: {", "models: {spare: {scripted: {}}, "),
        ),
    ]);
    insta::assert_snapshot!(shown);
}

#[test]
fn faults_of_a_submission() {
    let shown = |diagnostics: Vec<Diagnostic>| diagnostics.iter().map(Diagnostic::render).collect::<String>();
    let (plan, _) = load(with("inputs: {topic: {type: string}, depth: {type: [integer, 'null'], default: 1}}"));
    let plan = plan.unwrap();
    assert_eq!(plan.inputs(r#"{"topic": "7", "depth": "7"}"#).unwrap(), serde_json::json!({"topic": "7", "depth": 7}));
    let mut text = String::new();
    for json in ["", "[]", "{}", r#"{"topic": "x", "dept": 2}"#, r#"{"topic": 1, "depth": "deep"}"#] {
        writeln!(text, "## inputs {json}\n{}", shown(plan.inputs(json).unwrap_err())).unwrap();
    }
    for (alias, meant) in [("mm", "openai/gpt-5"), ("openai/nosuch", "openai/gpt-5"), ("m", "nobody/gpt-5"), ("m", "gpt-5")] {
        let overrides = Overrides { models: [(alias.to_owned(), meant.to_owned())].into(), mock: false };
        let (plan, diagnostics) = load_with(SMALL, &overrides);
        assert!(plan.is_none());
        writeln!(text, "## --set-model {alias}={meant}\n{}", shown(diagnostics)).unwrap();
    }
    let (plan, _) = load(SMALL.replace("Go.", "\"{{ 'x' + 1 }}\""));
    writeln!(text, "## a template that fails\n{}", plan.unwrap().root(&serde_json::json!({})).unwrap_err().render()).unwrap();
    insta::assert_snapshot!(text);
}
