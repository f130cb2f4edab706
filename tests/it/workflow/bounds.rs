//! Hostile documents: refused at their place, with little said and nothing given away.

use std::fmt::Write;

use serde_json::json;
use wren::workflow::read_output;

use super::{SMALL, check_bounds, faults, load, with};

/// Runs one document and holds it to the bounds of every answer.
fn refused(text: impl Into<Vec<u8>>) -> String {
    let text = text.into();
    let answer = load(text.clone());
    check_bounds(&answer);
    faults(text)
}

/// Nine levels of lists of nine.
fn bomb() -> String {
    let mut text = String::from("wren: v1\nl0: &l0 [x,x,x,x,x,x,x,x,x]\n");
    for level in 1..10 {
        let above = vec![format!("*l{}", level - 1); 9].join(",");
        writeln!(text, "l{level}: &l{level} [{above}]").unwrap();
    }
    text
}

#[test]
fn aliases_do_not_grow() {
    assert!(bomb().len() < 600);
    assert!(refused(bomb()).contains("more than 20000 nodes after expansion"));
    for kilobytes in [25, 200] {
        // One long list, and half of the document aliases to it.
        let items = "x,".repeat(kilobytes * 250);
        let aliases = "*a,".repeat(kilobytes * 170);
        let text = refused(format!("a: &a [{items}]\nb: [{aliases}]\n"));
        assert!(text.contains("[W004]") && text.contains("after expansion"), "{text}");
    }
    // One long text, many aliases to it.
    let text = refused(format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), "*a,".repeat(90)));
    assert!(text.contains("bytes of text after expansion"), "{text}");
    assert!(refused(format!("a: &a x\nb: [{}]\n", "*a,".repeat(101))).contains("more than 100 aliases"));
}

#[test]
fn depth_and_size_are_bounded() {
    for deep in ["[".repeat(200_000), "{a: ".repeat(60_000), "- ".repeat(100_000)] {
        refused(deep);
    }
    assert!(refused("[".repeat(200_000)).contains("[W007]"));
    assert!(refused("x".repeat(300_000)).contains("[W001]"));
    assert!(refused("x".repeat(10_000_000)).contains("[W001]"));
}

#[test]
fn many_faults_are_counted_and_not_listed() {
    let many: String = (0..9_000).map(|number| format!("field_{number}: {{a: b}}\n")).collect();
    let (_, diagnostics) = load(with(&many));
    assert_eq!(diagnostics.len(), 101);
    assert!(diagnostics[100].message.contains("more faults are not shown"), "{:?}", diagnostics[100]);
    refused(with(&"name: x\n".repeat(9_000)));
    // Thousands of agents on one line, each with a model that nobody has: neither the line nor the list of them is shown.
    let agents: String = (0..4_000).map(|number| format!("agent_with_a_long_name_{number}: {{model: nobody}}, ")).collect();
    refused(SMALL.replace("agents: {", &format!("agents: {{{agents}")).replace("agent: a\n", "agent: nobody\n"));
}

#[test]
fn long_values_are_not_echoed() {
    let long = "z".repeat(100_000);
    for text in [
        SMALL.replace("wren: v1", &format!("wren: {long}")),
        SMALL.replace("name: small", &format!("name: {long}")),
        SMALL.replace("agent: a\n", &format!("agent: {long}\n")),
        SMALL.replace("model: m", &format!("model: {long}")),
        SMALL.replace("Go.", &format!("'{{{{ {long} }}}}'")),
        with(&format!("{long}: 1")),
        with(&format!("{long}: 1\n{long}: 2")),
        with(&format!("limits: {{budget_usd: {long}, timeout: {long}}}")),
        with(&format!("inputs: {{x: {{type: {long}}}}}")),
        with(&format!("description: {{x: [{}{long}", " ".repeat(50_000))),
    ] {
        let shown = refused(text);
        assert!(!shown.contains(&"z".repeat(401)), "{}", shown.len());
    }
}

#[test]
fn what_lies_outside_stays_unknown() {
    let here = env!("CARGO_MANIFEST_DIR");
    // The same words whether the path exists or not, but for the path itself.
    let said = |path: &str| {
        let prompt = refused(SMALL.replace("Go.", &format!("{{file: {path}}}")));
        let files = SMALL.replace("agents: {a: {", &format!("tools: {{t: {{files: {{root: {path}}}}}}}\nagents: {{a: {{tools: [t], "));
        format!("{prompt}{}", refused(files)).replace(path, "PATH").replace('^', "")
    };
    assert_eq!(said(here), said("/no/such/directory"));
    for place in ["workspace: /etc", "workspace: ../x"] {
        assert!(refused(with(place)).contains("unknown field `workspace`"));
    }
    // What looks like an address is a text like any other: nothing is read.
    assert!(load(SMALL.replace("Go.", "file:///etc/hostname")).0.unwrap().root(&json!({})).unwrap().prompt.starts_with("file:"));
}

#[test]
fn no_secret_is_repeated_wherever_it_stands() {
    let key = "sk-live-0123456789abcdefghij";
    for text in [
        SMALL.replace("Say hi.", &format!("use {key} now")),
        SMALL.replace("Go.", &format!("'{{{{ {key} }}}}'")),
        SMALL.replace("wren: v1", &format!("wren: {key}")),
        SMALL.replace("agents: {a:", &format!("agents: {{{key}: {{modl: m}}, a:")),
        SMALL.replace("models: {m:", &format!("models: {{{key}:")),
        with(&format!("{key}: x")),
        with(&format!("{key}: x\n{key}: y")),
        with(&format!("inputs: {{x: {{type: string, default: {key}}}}}")),
        with(&format!("inputs: {{x: {{type: string, api_key: {key}}}}}")),
        with(&format!("inputs: {{x: {{type: {key}}}}}")),
        with(&format!("description: !{key} x")),
        with(&format!("description: *{key}")),
        with(&format!("description: [{key}")),
        with(&format!("limits: {{budget_usd: {key}}}")),
    ] {
        let (plan, diagnostics) = load(text);
        assert!(plan.is_none());
        assert!(!format!("{diagnostics:?}").contains("0123456789"), "{diagnostics:?}");
    }
    let hidden = faults(with("inputs: {x: {type: string, api_key: hunter2, default: a}}"));
    assert!(hidden.contains("[W015]") && !hidden.contains("hunter2"), "{hidden}");
}

#[test]
fn words_that_other_readers_turn_into_something_else_stay_words() {
    let text = with(
        "inputs:
  no: {type: string, default: no}
  on: {type: string, default: on}
  y: {type: string, default: y}
  nan: {type: string, default: 12:30}
  zero: {type: string, default: 0123}",
    );
    let (plan, diagnostics) = load(text);
    let inputs = plan.unwrap_or_else(|| panic!("{diagnostics:?}")).inputs("{}").unwrap();
    assert_eq!(inputs, json!({"no": "no", "on": "on", "y": "y", "nan": "12:30", "zero": "0123"}));
    for number in ["3.10", "5", "true"] {
        let shown = faults(SMALL.replace("Go.", number));
        assert!(shown.contains("must be a string") && shown.contains("w.yaml:6:9"), "{shown}");
    }
    let shown = faults(with("agents: {b: {model: m}}\ninputs: {x: {type: string, type: integer}}"));
    assert_eq!(shown.matches("[W006]").count(), 2, "{shown}");
    // An amount behind an alias is as exact as any other.
    let (plan, _) = load(with("inputs: {x: {type: number, default: &tiny 0.000000001}}\nlimits: {budget_usd: *tiny}"));
    assert_eq!(plan.unwrap().limits().budget_usd_nanos, Some(1));
    // A mark of byte order is no second document.
    assert!(load(format!("\u{feff}{SMALL}")).0.is_some());
}

#[test]
fn a_template_has_a_short_leash() {
    let render = |template: &str| {
        let text = with("inputs: {x: {type: string, default: '{{ inputs.y }}'}}").replace("Go.", &json!(template).to_string());
        let (plan, diagnostics) = load(text);
        let plan = plan.ok_or_else(|| format!("{diagnostics:?}"))?;
        let inputs = plan.inputs("{}").unwrap();
        plan.root(&inputs).map(|launch| launch.prompt).map_err(|fault| fault.message)
    };
    assert_eq!(render("{{ inputs.x }}").unwrap(), "{{ inputs.y }}");
    assert_eq!(render("{% for i in range(3) %}{{ i }}{% endfor %}").unwrap(), "012");
    for hostile in [
        "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}",
        "{% for a in range(20000) %}{{ inputs.x * 100 }}{% endfor %}",
        "{{ range(100000000) | list }}",
        "{{ 'a' * 1000000000 }}",
        "{% include '/etc/hostname' %}",
        "{{ self.environment }}",
        "{{ inputs.__class__ }}",
    ] {
        assert!(render(hostile).is_err(), "{hostile}");
    }
}

#[test]
fn an_answer_is_found_among_words() {
    let schema = json!({"type": "object", "required": ["v"], "properties": {"v": {"type": "integer"}}});
    for text in [
        "{\"v\": 1}",
        "```json\n{\"v\": 1}\n```",
        "```\nnot this\n```\nbut\n```json\n{\"v\": 1}\n```",
        "As {asked}: {\"v\": 1}. [Done]",
        "{\"w\": 0} or rather {\"v\": 1}",
    ] {
        assert_eq!(read_output(&schema, text), Ok(json!({"v": 1})), "{text}");
    }
    assert_eq!(read_output(&json!({"type": "array"}), "Here: [1, 2]."), Ok(json!([1, 2])));
    assert!(read_output(&schema, "It is {\"v\": \"one\"}.").unwrap_err().contains("integer"));
    assert!(read_output(&schema, "one").unwrap_err().contains("not valid JSON"));
    assert!(read_output(&schema, "").unwrap_err().contains("empty"));
    assert!(read_output(&schema, &"{[".repeat(200_000)).is_err());
}
