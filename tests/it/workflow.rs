//! Workflows: what is accepted, and what is refused with its place.

#[path = "workflow/bounds.rs"]
mod bounds;
#[path = "workflow/gallery.rs"]
mod gallery;

use std::collections::BTreeMap;

use proptest::prelude::*;
use wren::config::Config;
use wren::kernel::agent::KnownModel;
use wren::kernel::ledger::{Price, Rates};
use wren::tool::files_operations;
use wren::workflow::{self, Diagnostic, Overrides, Plan, Severity, Source, World};

use crate::support::root;

const PRICE: Price = Price {
    rates: Rates {
        input_pico: 250_000,
        cache_read_pico: 25_000,
        cache_write_pico: 250_000,
        output_pico: 2_000_000,
        reasoning_pico: 2_000_000,
    },
    long: None,
};

fn load(text: impl Into<Vec<u8>>) -> (Option<Plan>, Vec<Diagnostic>) {
    load_with(text, &Overrides::default())
}

fn load_with(text: impl Into<Vec<u8>>, overrides: &Overrides) -> (Option<Plan>, Vec<Diagnostic>) {
    let source = Source { entry: "w.yaml".to_owned(), files: BTreeMap::from([("w.yaml".to_owned(), text.into())]) };
    let operations = files_operations();
    let world = World {
        model: &|provider, model| match (provider, model) {
            ("openai", "nobody-knows") => KnownModel::default(),
            ("openai", _) => KnownModel { price: Some((PRICE, "test".to_owned())), window_tokens: Some(400_000) },
            _ => KnownModel::default(),
        },
        providers: &["openai".to_owned(), "scripted".to_owned()],
        files_operations: &operations,
        ceilings: Config::CEILINGS,
    };
    workflow::load(&source, &world, overrides)
}

/// Every fault as people read it.
fn faults(text: impl Into<Vec<u8>>) -> String {
    let (plan, diagnostics) = load(text);
    assert!(plan.is_none(), "it was accepted");
    diagnostics.iter().map(Diagnostic::render).collect::<Vec<_>>().join("")
}

const SMALL: &str = "wren: v1
name: small
models: {m: {scripted: {replies: [{text: hi}]}}}
agents: {a: {model: m, instructions: Say hi.}}
agent: a
prompt: Go.
";

fn with(line: &str) -> String {
    format!("{SMALL}{line}\n")
}

#[test]
fn every_shipped_workflow_is_valid() {
    let mut count = 0;
    for entry in std::fs::read_dir(root().join("workflows")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let (plan, diagnostics) = load(std::fs::read(&path).unwrap());
        assert!(plan.is_some() && diagnostics.is_empty(), "{}: {diagnostics:?}", path.display());
        count += 1;
    }
    assert!(count >= 9, "{count}");
}

#[test]
fn the_editor_schema_is_current() {
    let committed = std::fs::read_to_string(root().join("workflows/wren.v1.schema.json")).unwrap();
    assert_eq!(committed, wren::daemon::schema_json(), "run: cargo run --bin wrenctl -- workflow schema > workflows/wren.v1.schema.json");
}

#[test]
fn an_unknown_field_is_named_with_what_was_meant() {
    let text = faults(with("limits: {max_turn: 12, budget_usd: 0.10}"));
    insta::assert_snapshot!(text, @r"
    error[W012]: unknown field `max_turn` in limits
      --> w.yaml:7:10
    7 | limits: {max_turn: 12, budget_usd: 0.10}
      |          ^^^^^^^^ did you mean `max_turns`?   allowed: max_turns, budget_usd, max_tokens, timeout, max_depth, max_runs
    ");
}

#[test]
fn all_faults_are_named_at_once_in_the_order_of_their_places() {
    let text = faults(
        "wren: v1
name: small
models: {m: {scripted: {replies: [{text: hi}]}}}
tools: {docs: {files: {root: ../secret}}}
agents: {a: {model: n, tools: [dox], instructions: '{{ inputs.topc }}'}}
inputs: {topic: {type: string}}
agent: b
prompt: Go.
limits: {budget_usd: 0, timeout: '5'}
",
    );
    let error = |line: &str| text.matches(line).count();
    assert_eq!(error("error["), 7, "{text}");
    for part in [
        "root `../secret`",
        "there is no model `n`",
        "there is no tool `dox`",
        "`inputs.topc` is not known",
        "there is no agent `b`",
        "must be more than 0",
        "timeout",
    ] {
        assert_eq!(error(part).min(1), 1, "{part} in {text}");
    }
    let lines: Vec<u32> =
        text.lines().filter_map(|line| line.trim().strip_prefix("--> w.yaml:")?.split(':').next()?.parse().ok()).collect();
    assert!(lines.is_sorted(), "{lines:?}");
}

#[test]
fn hostile_yaml_is_refused_before_anything_is_built() {
    let bomb = format!(
        "a: &a [x,x,x,x,x,x,x,x,x]\n{}",
        (1..10)
            .map(|n| format!("{}: &{} [{}]\n", letter(n), letter(n), vec![format!("*{}", letter(n - 1)); 9].join(",")))
            .collect::<String>()
    );
    assert!(faults(bomb).contains("after expansion"));
    let quadratic = format!("a: &a [{}]\nb: [{}]\n", "x,".repeat(12_000), "*a,".repeat(90));
    assert!(faults(quadratic).contains("after expansion"));
    assert!(faults("[".repeat(200_000)).contains("W00"));
    assert!(faults("x".repeat(10_000_000)).contains("bytes"));
    let many: String = (0..9_000).map(|n| format!("field_{n}: 1\n")).collect();
    let (_, diagnostics) = load(with(&many));
    assert!(diagnostics.len() <= 101, "{}", diagnostics.len());
}

fn letter(n: usize) -> char {
    char::from(b'a' + u8::try_from(n).unwrap())
}

#[test]
fn odd_yaml_is_refused_with_its_place() {
    for (line, code, place) in [
        ("name: again", "W006", "7:1"),
        ("limits: {max_turns: 1, max_turns: 2}", "W006", "7:24"),
        ("<<: {a: 1}", "W005", "7:1"),
        ("description: !tag x", "W005", "7:14"),
        ("---\nwren: v1", "W003", "7:1"),
        ("1: x", "W005", "7:1"),
        ("? {a: b}\n: c", "W005", "7:3"),
        ("description: {{ inputs.x }}", "W005", "7:15"),
        ("tool_polcy: {}", "W012", "7:1"),
        ("steps: []", "W016", "7:1"),
    ] {
        let text = faults(with(line));
        assert!(text.contains(&format!("[{code}]")) && text.contains(&format!("w.yaml:{place}")), "{line}: {text}");
    }
}

#[test]
fn words_stay_words_and_a_number_is_no_string() {
    let ok = "wren: v1\nname: small\ndescription: no\nmodels: {m: {scripted: {replies: [{text: on}, {text: 'y'}]}}}\nagents: {a: {model: m, instructions: off}}\nagent: a\nprompt: yes\n";
    let (plan, diagnostics) = load(ok);
    assert!(plan.is_some(), "{diagnostics:?}");
    assert_eq!(plan.unwrap().description(), "no");
    let text = faults(SMALL.replace("prompt: Go.", "prompt: 3.10"));
    assert!(text.contains("prompt is a number and must be a string") && text.contains("quote it") && text.contains("w.yaml:6:9"), "{text}");
}

#[test]
fn amounts_are_exact_or_refused() {
    for bad in ["-1", "NaN", ".nan", "1e308", "0", "0.0000000001", "'much'"] {
        let text = faults(with(&format!("limits: {{budget_usd: {bad}}}")));
        assert!(text.contains("budget_usd") && text.contains("w.yaml:7:"), "{bad}: {text}");
    }
    let (plan, _) = load(with("limits: {budget_usd: 0.10, timeout: 90s}"));
    let limits = plan.unwrap().limits();
    assert_eq!((limits.budget_usd_nanos, limits.timeout_ms), (Some(100_000_000), Some(90_000)));
    let aliased = "wren: v1\nname: &amount 0.000001\n";
    assert!(load(aliased).0.is_none());
}

#[test]
fn a_secret_is_refused_and_never_shown() {
    let key = "sk-live-0123456789abcdefghij";
    for text in [
        with(&format!("models2: {{api_key: {key}}}")),
        SMALL.replace("instructions: Say hi.", &format!("instructions: use {key} now")),
        SMALL.replace("wren: v1", &format!("wren: {key}")),
        SMALL.replace("name: small", &format!("{key}: small")),
        SMALL.replace("scripted: {", &format!("api_key: {key}, scripted: {{")),
    ] {
        let text = faults(text);
        assert!(!text.contains(key), "{text}");
    }
}

#[test]
fn a_model_without_a_price_needs_a_word() {
    let unknown = SMALL.replace("scripted: {replies: [{text: hi}]}", "use: openai/nobody-knows");
    assert!(faults(unknown.clone()).contains("price"));
    assert!(load(unknown.replace("nobody-knows", "nobody-knows, price_unknown: allow")).0.is_some());
    assert!(faults(SMALL.replace("scripted: {replies: [{text: hi}]}", "use: opnai/gpt-5")).contains("did you mean `openai`"));
}

#[test]
fn a_template_is_checked_before_anything_runs() {
    for bad in ["{{ inputs.x", "{{ inputs.nope }}", "{{ 'x' | nosuch }}", "{% if 1 is nosuch %}{% endif %}", "{{ steps.a.output }}"] {
        let text = faults(SMALL.replace("prompt: Go.", &format!("prompt: \"{bad}\"")));
        assert!(text.contains("[W019]") && text.contains("w.yaml:6:9"), "{bad}: {text}");
    }
}

#[test]
fn inputs_are_read_as_their_schema_asks() {
    let (plan, _) = load(with(
        "inputs: {n: {type: integer, minimum: 1}, on: {type: boolean, default: false}, list: {type: array, default: []}, s: {type: string, default: x}}",
    ));
    let plan = plan.unwrap();
    let read = plan.inputs(r#"{"n": "3", "on": "true", "list": "[1]", "s": "7"}"#).unwrap();
    assert_eq!(read, serde_json::json!({"list": [1], "n": 3, "on": true, "s": "7"}));
    let faults = |json: &str| plan.inputs(json).unwrap_err().iter().map(Diagnostic::render).collect::<String>();
    assert!(faults("{}").contains("-i n=…"));
    assert!(faults(r#"{"n": "many"}"#).contains("input `n`"));
    assert!(faults(r#"{"n": 0}"#).contains("input `n`"));
    assert!(faults(r#"{"n": 1, "lst": []}"#).contains("did you mean `list`"));
    assert!(faults("[]").contains("JSON object"));
}

#[test]
fn a_mock_and_another_model_can_stand_in() {
    let text = SMALL.replace("scripted: {replies: [{text: hi}]}", "use: openai/gpt-5");
    let (plan, _) = load_with(text.clone(), &Overrides { mock: true, ..Overrides::default() });
    assert_eq!(plan.unwrap().providers_used(), ["scripted"]);
    let models = BTreeMap::from([("m".to_owned(), "openai/gpt-5-mini".to_owned())]);
    let (plan, _) = load_with(text.clone(), &Overrides { models, mock: false });
    assert_eq!(plan.unwrap().root(&serde_json::json!({})).unwrap().agent.model.model, "gpt-5-mini");
    let models = BTreeMap::from([("x".to_owned(), "openai/gpt-5-mini".to_owned())]);
    assert!(load_with(text, &Overrides { models, mock: false }).0.is_none());
}

/// The shipped workflows' bytes.
fn shipped() -> Vec<Vec<u8>> {
    let mut paths: Vec<_> = std::fs::read_dir(root().join("workflows")).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Holds what every answer keeps to: a plan or an error, and no fault without bounds.
fn check_bounds((plan, diagnostics): &(Option<Plan>, Vec<Diagnostic>)) {
    let has_error = diagnostics.iter().any(|fault| fault.severity == Severity::Error);
    assert_ne!(plan.is_some(), has_error, "{diagnostics:?}");
    assert!(diagnostics.len() <= 101, "{}", diagnostics.len());
    for fault in diagnostics {
        let shown = fault.render();
        assert!(shown.chars().count() <= 2_500, "{shown}");
        assert!(!fault.message.is_empty() && fault.code.starts_with('W'), "{fault:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        check_bounds(&load(bytes));
    }

    #[test]
    fn no_text_of_yaml_signs_makes_it_panic(text in r#"[-a:{}\[\], \n&*!|>'"%@#?~.0-9éß\t]{0,200}"#) {
        check_bounds(&load(text));
    }

    #[test]
    fn no_mutation_of_a_workflow_makes_it_panic(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        cut in 0usize..40,
        put in prop::collection::vec(any::<u8>(), 0..12),
        again in any::<prop::sample::Index>(),
    ) {
        let mut text = which.get(&shipped()).clone();
        let at = at.index(text.len());
        let end = (at + cut).min(text.len());
        text.splice(at..end, put);
        // A line that stands twice, somewhere else.
        let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
        let line = again.get(&lines).to_vec();
        text.extend(line);
        check_bounds(&load(text));
    }
}
