//! What a model is told about arguments that do not fit.

use serde_json::{Value, json};
use wren::kernel::{Effect, ToolSource, ToolSpec};

use super::{Bench, ctx, operation_spec};

#[test]
fn the_operations_are_read_only_closed_and_described() {
    for spec in wren::tool::files_operations() {
        assert_eq!((spec.effect, spec.source.as_str()), (Effect::ReadOnly, ""));
        assert!(!spec.description.is_empty());
        assert_eq!(spec.parameters["additionalProperties"], false);
        for (name, property) in spec.parameters["properties"].as_object().unwrap() {
            assert!(property["description"].is_string(), "{}.{name}", spec.name);
        }
    }
}

#[test]
fn every_fault_is_told_at_once_with_its_argument_and_what_is_expected() {
    let bench = Bench::new();
    let args = json!({"path": 7, "start_line": 0, "end_lin": 3});
    let words = bench.registry.check(&operation_spec("read_file"), &args).unwrap_err();
    for part in [
        "\"read_file\"",
        "path: 7 is not of type \"string\"",
        "start_line: 0 is less than the minimum of 1",
        "'end_lin' was unexpected",
        "must fit this schema",
        "\"end_line\"",
    ] {
        assert!(words.contains(part), "{part} is not in: {words}");
    }
    let words = bench.registry.check(&operation_spec("search_files"), &json!({})).unwrap_err();
    assert!(words.contains("\"pattern\" is a required property"), "{words}");
    for not_an_object in [Value::Null, json!("text"), json!([1])] {
        let words = bench.registry.check(&operation_spec("list_files"), &not_an_object).unwrap_err();
        assert!(words.contains("is not of type \"object\""), "{words}");
    }
    assert_eq!(bench.registry.check(&operation_spec("list_files"), &json!({})), Ok(()));
}

#[test]
fn a_huge_argument_or_a_thousand_faults_give_short_words() {
    let bench = Bench::new();
    let huge = json!({"path": "a.txt", "start_line": "é".repeat(1_000_000)});
    let words = bench.registry.check(&operation_spec("read_file"), &huge).unwrap_err();
    assert!(words.contains("start_line: the value is not of type \"integer\""), "{words}");
    let spec =
        ToolSpec { parameters: json!({"type": "object", "additionalProperties": {"type": "integer"}}), ..operation_spec("read_file") };
    let many: Value = (0..1_000).map(|index| (format!("a{index}"), json!("x"))).collect::<serde_json::Map<_, _>>().into();
    let words = Bench::new().registry.check(&spec, &many).unwrap_err();
    assert!(words.contains("and more") && words.len() < 8_000, "{}", words.len());
}

#[test]
fn a_subagents_arguments_are_checked_and_a_broken_schema_is_said() {
    let bench = Bench::with(&[("research", ToolSource::Subagent)]);
    let mut spec = ToolSpec {
        name: "research".to_owned(),
        source: "research".to_owned(),
        effect: Effect::Spawn,
        parameters: json!({"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}),
        ..operation_spec("read_file")
    };
    assert_eq!(bench.registry.check(&spec, &json!({"topic": "x"})), Ok(()));
    assert!(bench.registry.check(&spec, &json!({})).unwrap_err().contains("\"topic\" is a required property"));
    spec.name = "other".to_owned();
    spec.parameters = json!({"type": "nonsense"});
    assert!(bench.registry.check(&spec, &json!({})).unwrap_err().contains("the schema of \"other\" is broken"));
}

#[tokio::test]
async fn a_tool_that_is_not_open_is_a_failed_call() {
    let bench = Bench::with(&[("research", ToolSource::Subagent)]);
    for (source, name) in [("absent", "read_file"), ("docs", "write_file"), ("research", "research")] {
        let spec = ToolSpec { name: name.to_owned(), source: source.to_owned(), ..operation_spec("read_file") };
        let finished = bench.registry.run(&spec, json!({}), ctx()).await;
        assert!(!finished.ok && finished.output.starts_with(&format!("Tool {name:?} failed: ")), "{}", finished.output);
    }
}
