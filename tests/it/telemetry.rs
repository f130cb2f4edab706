//! Spans from the real daemon: at an in-process collector over both protocols, and at a real Jaeger.

mod collector;
mod jaeger;
pub mod laws;

use std::collections::{HashMap, HashSet};

use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::{Span, TracesData};
use serde_json::Value;

use self::collector::Collector;
use crate::support::{Daemon, int, runs};

const SUBMIT: &str = "wren.v1.RunService/SubmitRun";
const OFFLINE: &str = "workflows/deep-research-offline.yaml";

fn text(span: &Span, key: &str) -> Option<String> {
    match value(span, key)? {
        Any::StringValue(text) => Some(text),
        other => panic!("{key}: {other:?}"),
    }
}

fn number(span: &Span, key: &str) -> i64 {
    match value(span, key) {
        Some(Any::IntValue(number)) => number,
        None => 0,
        other => panic!("{key}: {other:?}"),
    }
}

fn value(span: &Span, key: &str) -> Option<Any> {
    let found: Vec<_> = span.attributes.iter().filter(|attribute| attribute.key == key).collect();
    assert!(found.len() < 2, "{key} stands twice on {}", span.name);
    found.first()?.value.clone()?.value
}

/// The spans of the tree itself: all but that of the call which submitted it.
fn of_tree(spans: Vec<Span>) -> Vec<Span> {
    let (submissions, of_tree): (Vec<Span>, Vec<Span>) = spans.into_iter().partition(|span| span.name == SUBMIT);
    assert_eq!(submissions.len(), 1);
    of_tree
}

/// Checks everything that must hold for the spans of one finished tree, which was taken up `segments - 1` times.
fn check(daemon: &Daemon, run: &Value, spans: &[Span], segments: usize) {
    let id = run["run_id"].as_str().unwrap();
    let ids: HashSet<&[u8]> = spans.iter().map(|span| &span.span_id[..]).collect();
    assert_eq!(ids.len(), spans.len(), "a span id stands twice");
    let traces: HashSet<&[u8]> = spans.iter().map(|span| &span.trace_id[..]).collect();
    assert_eq!(traces.len(), 1);
    let roots: Vec<&Span> = spans.iter().filter(|span| span.parent_span_id.is_empty()).collect();
    assert_eq!(roots.len(), segments, "{:?}", roots.iter().map(|span| &span.name).collect::<Vec<_>>());
    assert!(roots.iter().all(|root| root.name.starts_with("invoke_workflow")));
    let by_id: HashMap<&[u8], &Span> = spans.iter().map(|span| (&span.span_id[..], span)).collect();
    for span in spans {
        let keys: HashSet<&str> = span.attributes.iter().map(|attribute| attribute.key.as_str()).collect();
        assert_eq!(keys.len(), span.attributes.len(), "an attribute stands twice on {}", span.name);
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
        if span.parent_span_id.is_empty() {
            continue;
        }
        let parent = by_id.get(&span.parent_span_id[..]).unwrap_or_else(|| panic!("{} has no parent", span.name));
        let kind = |name: &str| name.split(' ').next().unwrap().to_owned();
        let expected: &[&str] = match kind(&span.name).as_str() {
            "invoke_agent" => &["invoke_workflow", "execute_tool"],
            "turn" => &["invoke_agent"],
            "chat" | "execute_tool" => &["turn"],
            other => panic!("a span named {other}"),
        };
        assert!(expected.contains(&kind(&parent.name).as_str()), "{} under {}", span.name, parent.name);
        assert!(
            parent.start_time_unix_nano <= span.start_time_unix_nano && span.end_time_unix_nano <= parent.end_time_unix_nano,
            "{} sticks out of {}",
            span.name,
            parent.name
        );
    }
    // The money: integers on chat spans, the ledger's to the nano.
    let chats: Vec<&Span> = spans.iter().filter(|span| span.name.starts_with("chat ")).collect();
    let nanos: i64 = chats.iter().map(|span| number(span, "wren.cost.usd_nanos") + number(span, "wren.cost.written_off_usd_nanos")).sum();
    assert_eq!(nanos, int(&run["subtree_usage"]["cost_usd_nanos"]));
    // Each turn's figures are its ledger row's.
    let events = daemon.events(id);
    for event in events.iter().filter(|event| !event["turn_ended"].is_null()) {
        let turn = &event["turn_ended"];
        let of_turn = |span: &&Span| {
            text(span, "wren.run.id").as_deref() == event["run_id"].as_str() && span.name == format!("turn {}", turn["turn"])
        };
        let found: Vec<&Span> = spans.iter().filter(of_turn).collect();
        assert!(
            found.iter().any(|span| number(span, "wren.usage.input_tokens") == int(&turn["input_tokens"])
                && number(span, "wren.usage.output_tokens") == int(&turn["output_tokens"])),
            "turn {turn}"
        );
        let cost = int(&turn["cost_usd_nanos"]);
        let is_row =
            |span: &&&Span| matches!(value(span, "wren.cost.usd"), Some(Any::DoubleValue(usd)) if (usd * 1e9).round() as i64 == cost);
        assert!(found.iter().any(|span| is_row(&span)), "the cost of turn {turn}");
        let chat = chats.iter().find(|span| {
            text(span, "wren.run.id").as_deref() == event["run_id"].as_str()
                && number(span, "wren.cost.usd_nanos") == int(&turn["cost_usd_nanos"])
                && number(span, "gen_ai.usage.input_tokens") == int(&turn["input_tokens"])
        });
        assert!(chat.is_some(), "no chat span for {turn}");
    }
    // Tools: their own fee, and a child's cost beside it.
    let tree = daemon.json(0, &["tree", id]);
    let costs: HashMap<String, i64> =
        runs(&tree).iter().map(|run| (run["run_id"].as_str().unwrap().to_owned(), int(&run["subtree_usage"]["cost_usd_nanos"]))).collect();
    for span in spans.iter().filter(|span| span.name.starts_with("execute_tool ")) {
        assert_eq!(value(span, "wren.cost.usd"), Some(Any::DoubleValue(0.0)), "{}", span.name);
        // A span that a crash cut goes on in the segment that follows.
        let is_cut = text(span, "error.type").as_deref() == Some("interrupted");
        if let Some(child) = text(span, "wren.child.run_id").filter(|_| !is_cut) {
            let Some(Any::DoubleValue(cost)) = value(span, "wren.child.cost_usd") else { panic!("no child cost on {}", span.name) };
            assert_eq!((cost * 1e9).round() as i64, costs[&child]);
        }
    }
    let everything = format!("{spans:?}");
    assert!(!everything.contains("Worker 7 stopped"), "an answer is on a span");
    assert!(!everything.contains("self-contained"), "a prompt is on a span");
}

fn over(protocol: &str, with_kill: bool) {
    let collector = Collector::start();
    let endpoint = if protocol == "grpc" { collector.grpc() } else { collector.http() };
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_METRICS_EXPORTER", "none"),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
    ];
    let mut daemon = Daemon::start_with(&environment);
    let pace = if with_kill { "pace=150ms" } else { "pace=20ms" };
    let run = daemon.submit(&["-f", OFFLINE, "-i", pace]);
    if with_kill {
        // In the middle: after a child has asked for something and before the tree is done.
        crate::daemon::wait_for(&daemon, &run, |event| !event["child_started"].is_null());
        daemon.kill();
        daemon.serve();
    }
    daemon.run(&["wait", &run]);
    let run = daemon.json(0, &["get", &run]);
    // The journal's own spans say how many must arrive.
    // The journal's own spans say which must arrive.
    let file = daemon.expect(0, &["trace", run["run_id"].as_str().unwrap(), "--format", "otlp-json"]);
    let rendered: TracesData = serde_json::from_str(&file).unwrap();
    let rendered = &rendered.resource_spans[0].scope_spans[0].spans;
    assert!(rendered.len() > 30);
    check(&daemon, &run, rendered, if with_kill { 2 } else { 1 });
    if with_kill {
        daemon.terminate();
        // What was finished but not yet sent when the daemon died is lost to the collector; the journal has it all.
        let spans = collector.spans();
        let ids: HashSet<&[u8]> = spans.iter().map(|span| &span.span_id[..]).collect();
        assert_eq!(ids.len(), spans.len(), "a span was sent twice");
        // The spans that were open when it died arrived, as did all that came afterwards.
        let of_root = |span: &&Span| span.name.starts_with("invoke_workflow");
        assert_eq!(spans.iter().filter(of_root).count(), 2);
        for span in of_tree(spans) {
            assert!(rendered.contains(&span), "{span:?}");
        }
        return;
    }
    let spans = of_tree(collector.wait_for(rendered.len() + 1));
    check(&daemon, &run, &spans, 1);
    daemon.terminate();
    assert_eq!(collector.spans().len(), rendered.len() + 1, "every span is there once");
}

#[test]
fn every_span_arrives_over_grpc_and_adds_up() {
    over("grpc", false);
}

#[test]
fn every_span_arrives_over_http_and_adds_up() {
    over("http/protobuf", false);
}

#[test]
fn a_killed_tree_has_no_span_twice_and_its_trace_adds_up() {
    over("grpc", true);
}

/// Runs a small workflow as part of `traceparent`, or of nothing, and returns its submission's and workflow's spans.
fn submitted_under(traceparent: &str) -> (Span, Span) {
    let collector = Collector::start();
    let daemon = Daemon::start_with(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.grpc()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_METRICS_EXPORTER", "none"),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
    ]);
    let file = daemon.workflow("eight.yaml", EIGHT);
    let output = daemon.ctl(&["run", "-f", &file]).env("TRACEPARENT", traceparent).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let spans = collector.wait_for(1 + 2 + 2 + 2 + 8 + 8 * 6);
    let named = |name: &str| spans.iter().find(|span| span.name == name).unwrap().clone();
    (named(SUBMIT), named("invoke_workflow eight"))
}

#[test]
fn a_submission_without_a_trace_has_a_short_one_that_is_linked_both_ways() {
    for traceparent in ["", "00-zz-zz-00", "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"] {
        let (submit, workflow) = submitted_under(traceparent);
        assert_eq!(submit.kind(), SpanKind::Server);
        assert_ne!(submit.trace_id, workflow.trace_id);
        assert!(submit.parent_span_id.is_empty() && workflow.parent_span_id.is_empty());
        let ends = |span: &Span| (span.trace_id.clone(), span.span_id.clone());
        let links = |span: &Span| span.links.iter().map(|link| (link.trace_id.clone(), link.span_id.clone())).collect::<Vec<_>>();
        assert_eq!((links(&submit), links(&workflow)), (vec![ends(&workflow)], vec![ends(&submit)]));
        assert!(submit.end_time_unix_nano <= workflow.start_time_unix_nano);
    }
}

#[test]
fn a_submitter_of_this_machine_has_the_tree_in_its_own_trace() {
    let (submit, workflow) = submitted_under("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    for span in [submit, workflow] {
        assert_eq!(span.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes());
        assert_eq!(span.parent_span_id, 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());
        assert!(span.links.is_empty(), "a link within a trace would be taken for the parent");
    }
}

#[test]
fn a_collector_that_is_not_there_hinders_nobody() {
    let daemon = Daemon::start_with(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]);
    let run = daemon.json(0, &["run", "-f", OFFLINE, "-i", "pace=5ms"]);
    assert_eq!(run["outcome"], "OUTCOME_COMPLETED");
}

/// A collector that holds back its answers is waited for beside the runs, and has everything once it answers.
#[test]
fn a_slow_collector_hinders_nobody_and_gets_everything_later() {
    let collector = Collector::slow();
    let daemon = Daemon::start_with(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.grpc()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "600000"),
        ("OTEL_METRICS_EXPORTER", "none"),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
    ]);
    let file = daemon.workflow("eight.yaml", EIGHT);
    for _ in 0..3 {
        let run = daemon.json(0, &["run", "-f", &file]);
        assert_eq!(run["outcome"], "OUTCOME_COMPLETED");
    }
    assert!(collector.spans().is_empty());
    collector.open();
    let spans = collector.wait_for(3 * (1 + 2 + 2 + 2 + 8 + 8 * 6));
    let ids: HashSet<&[u8]> = spans.iter().map(|span| &span.span_id[..]).collect();
    assert_eq!(ids.len(), spans.len());
}

/// Nor does one that never answers keep a daemon alive: it says what may be lost and leaves.
#[test]
fn a_collector_that_never_answers_does_not_keep_the_daemon() {
    let collector = Collector::slow();
    let mut daemon = Daemon::start_with(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.grpc()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_METRICS_EXPORTER", "none"),
    ]);
    let file = daemon.workflow("eight.yaml", EIGHT);
    daemon.json(0, &["run", "-f", &file]);
    assert!(daemon.terminate().success());
    assert!(daemon.logged().contains("spans may be lost"), "{}", daemon.logged());
}

/// Collectors refuse the whole of a request over 4 MiB: more goes out in several.
#[test]
fn a_collector_that_refuses_large_requests_loses_nothing() {
    const TURNS: usize = 400;
    // As long as a value on a span can be; it stands there twice: as the model asked for and as the one that answered.
    let model = "m".repeat(8 * 1024);
    let script: wren::kernel::agent::Scripted = serde_json::from_value(serde_json::json!({
        "replies": [{"calls": [{"tool": "noop", "args": {}}]}]
    }))
    .unwrap();
    let stub = crate::stub::Stub::start(std::collections::BTreeMap::from([(model.clone(), script)]));
    let collector = Collector::start();
    let mut daemon = Daemon::start_with(&[
        ("OPENAI_BASE_URL", stub.url().as_str()),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.grpc()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_METRICS_EXPORTER", "none"),
        // All at once, at the end.
        ("OTEL_BSP_SCHEDULE_DELAY", "3600000"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8192"),
    ]);
    let yaml = format!(
        "wren: v1\nname: long-names\nmodels: {{m: {{use: 'openai/{model}', max_output: 64, price: {{input_usd_per_mtok: 0.01, output_usd_per_mtok: 0.01}}}}}}\n\
         tools: {{noop: {{description: Does nothing., scripted: {{effect: read_only, result: ok}}}}}}\n\
         agents: {{lead: {{model: m, instructions: Go on., tools: [noop]}}}}\nagent: lead\nprompt: Go.\nlimits: {{max_turns: {TURNS}}}\n"
    );
    let file = daemon.workflow("long-names.yaml", &yaml);
    daemon.json(11, &["run", "-f", &file]);
    assert!(daemon.terminate().success());
    let spans = of_tree(collector.spans());
    assert_eq!(spans.iter().filter(|span| span.name.starts_with("chat ")).count(), TURNS, "{}", daemon.logged());
    assert_eq!(spans.len(), 2 + 3 * TURNS);
    let sent: usize = spans.iter().map(prost::Message::encoded_len).sum();
    assert!(sent > 4 * 1024 * 1024, "{sent} bytes would have fitted into one request");
}

/// Eight children beside each other, each with a tool of its own.
const EIGHT: &str = r#"
wren: v1
name: eight
models:
  script:
    max_output: 64
    scripted:
      price: {input_usd_per_mtok: 1.00, output_usd_per_mtok: 2.00}
      latency: 20ms
      replies:
        - {agent: lead, turn: 1, calls: [{tool: research, args: {n: 1}}, {tool: research, args: {n: 2}}, {tool: research, args: {n: 3}}, {tool: research, args: {n: 4}}, {tool: research, args: {n: 5}}, {tool: research, args: {n: 6}}, {tool: research, args: {n: 7}}, {tool: research, args: {n: 8}}]}
        - {agent: lead, text: All eight are done.}
        - {agent: worker, turn: 1, calls: [{tool: list_files}]}
        - {agent: worker, text: Looked.}
tools:
  docs: {files: {root: ./workflows/data}}
  research: {description: Looks., subagent: worker, parameters: {n: {type: integer}}, prompt: "Look at {{ args.n }}."}
agents:
  lead: {model: script, instructions: Delegate., tools: [research]}
  worker: {model: script, instructions: Work., tools: [docs]}
agent: lead
prompt: Go.
"#;

#[test]
fn eight_parallel_children_hang_under_their_own_tools() {
    let collector = Collector::start();
    let daemon = Daemon::start_with(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.grpc()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_METRICS_EXPORTER", "none"),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
    ]);
    let file = daemon.workflow("eight.yaml", EIGHT);
    let run = daemon.json(0, &["run", "-f", &file]);
    // Two of the root, its two turns and calls; eight tools; and seven spans of each child.
    let spans = of_tree(collector.wait_for(1 + 2 + 2 + 2 + 8 + 8 * 6));
    check(&daemon, &run, &spans, 1);
    let tree = daemon.json(0, &["tree", run["run_id"].as_str().unwrap()]);
    let by_id: HashMap<&[u8], &Span> = spans.iter().map(|span| (&span.span_id[..], span)).collect();
    for child in tree["children"].as_array().unwrap() {
        let (id, call) = (child["run"]["run_id"].as_str().unwrap(), child["run"]["tool_call_id"].as_str().unwrap());
        let agent =
            spans.iter().find(|span| span.name == "invoke_agent worker" && text(span, "wren.run.id").as_deref() == Some(id)).unwrap();
        let tool = by_id[&agent.parent_span_id[..]];
        assert_eq!(text(tool, "gen_ai.tool.call.id").as_deref(), Some(call));
        assert_eq!(text(tool, "wren.child.run_id").as_deref(), Some(id));
    }
}
