//! Tests of the edge: who is let in, what is read of a request, and what the API shows.

use http::{HeaderMap, Uri};
use tonic::Code;
use tonic_types::StatusExt;
use wren::config::Config;
use wren::kernel::{AssistantMessage, LimitsPatch, Outcome, RunId, State};
use wren::rpc::auth::{Peer, Policy};
use wren::rpc::listen::{Address, Error as ListenError, Listener};
use wren::rpc::{error, filter, page};
use wren::runtime::{Error, Query};
use wren::wire::{self, v1};

fn parsed(text: &str) -> Result<Query, String> {
    let mut query = Query::default();
    filter::parse(text, &mut query).map(|()| query)
}

#[test]
fn a_filter_joins_terms_by_and() {
    let query = parsed(r#"state = RUNNING AND outcome = OUTCOME_BUDGET AND workflow = "x \"y\"" AND labels.team = core"#).unwrap();
    assert_eq!(query.states, [State::Running]);
    assert_eq!(query.outcomes, [Outcome::Budget]);
    assert_eq!(query.workflow.as_deref(), Some("x \"y\""));
    assert_eq!(query.labels, [("team".to_owned(), "core".to_owned())]);
    assert!(parsed("  ").unwrap().states.is_empty());
    let small = parsed("state = running and outcome = budget").unwrap();
    assert_eq!((&small.states[..], &small.outcomes[..]), (&[State::Running][..], &[Outcome::Budget][..]));
}

#[test]
fn a_filter_that_cannot_be_read_names_the_column() {
    for (text, begins) in [
        ("state = SLEEPING", "column 9: \"SLEEPING\" is no state: use one of PENDING, RUNNING"),
        ("outcome=BAD", "column 9: \"BAD\" is no outcome: use one of COMPLETED, FAILED"),
        ("state = completed", "column 9: \"completed\" is no state: did you mean `outcome = COMPLETED`?"),
        ("outcome = running", "column 11: \"running\" is no outcome: did you mean `state = RUNNING`?"),
        ("state = RUNNING OR state = ENDED", "column 17: AND is missing"),
        ("state = RUNNING AND", "column 20: a term is missing"),
        ("state =", "column 8: a value is missing"),
        ("state", "column 6: `=` is missing"),
        ("owner = me", "column 1: there is no \"owner\""),
        ("workflow = \"x", "column 12: the text that begins here"),
        ("state = RUNNING AND state = ENDED", "column 21: state is given twice"),
        ("a > 1", "column 3: '>' is not supported"),
        ("' OR 1=1", "column 1:"),
    ] {
        let why = parsed(text).unwrap_err();
        assert!(why.starts_with(begins), "{text}: {why}");
    }
}

#[test]
fn a_page_token_serves_its_own_request_alone() {
    let token = page::token(77, "runs\nstate = RUNNING");
    assert_eq!(page::cursor(&token, "runs\nstate = RUNNING").unwrap(), Some(77));
    assert_eq!(page::cursor("", "any").unwrap(), None);
    for bad in [token.as_str(), "x", "ü".repeat(20).as_str(), "0000000000000000ff"] {
        let status = page::cursor(bad, "runs\n").unwrap_err();
        assert_eq!(status.get_details_error_info().unwrap().reason, "PAGE_TOKEN_INVALID");
    }
    assert_eq!((page::size(0, 50).unwrap(), page::size(5000, 50).unwrap()), (50, 1000));
    assert_eq!(page::size(-1, 50).unwrap_err().code(), Code::InvalidArgument);
}

#[test]
fn only_the_own_user_comes_in_over_the_socket() {
    let policy = Policy { uid: 7, token: None, authorities: Vec::new() };
    let (uri, headers) = (Uri::from_static("http://x/"), HeaderMap::new());
    let own = policy.admit(Some(Peer::Unix { uid: Some(7) }), &uri, &headers).unwrap();
    assert!(own.local);
    assert_eq!(own.name, "uid:7");
    for peer in [Some(Peer::Unix { uid: Some(8) }), Some(Peer::Unix { uid: None }), None] {
        assert_eq!(policy.admit(peer, &uri, &headers).unwrap_err().code(), Code::Unauthenticated);
    }
}

#[test]
fn tcp_needs_the_token_and_the_daemons_own_name() {
    let policy = Policy { uid: 7, token: Some(Policy::digest("secret")), authorities: vec!["localhost:7".to_owned()] };
    let peer = Some(Peer::Tcp("127.0.0.1:9".parse().unwrap()));
    let ask = |authority: &'static str, token: Option<&'static str>| {
        let mut headers = HeaderMap::new();
        token.map(|token| headers.insert("authorization", token.parse().unwrap()));
        policy.admit(peer, &Uri::from_static(authority), &headers).map_err(|status| status.get_details_error_info().unwrap().reason)
    };
    assert!(!ask("http://localhost:7/", Some("Bearer secret")).unwrap().local);
    assert_eq!(ask("http://localhost:7/", None).unwrap_err(), "TOKEN_MISSING");
    assert_eq!(ask("http://localhost:7/", Some("Basic secret")).unwrap_err(), "TOKEN_MISSING");
    assert_eq!(ask("http://localhost:7/", Some("Bearer other")).unwrap_err(), "TOKEN_INVALID");
    assert_eq!(ask("http://evil.example:7/", Some("Bearer secret")).unwrap_err(), "AUTHORITY_REFUSED");
    let closed = Policy { token: None, ..policy.clone() };
    let refused = closed.admit(peer, &Uri::from_static("http://localhost:7/"), &HeaderMap::new());
    assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
}

#[tokio::test]
async fn a_socket_in_use_is_named_and_a_stale_one_replaced() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run/wrend.sock");
    std::fs::create_dir(dir.path().join("run")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let address = Address::Unix(path.clone());
    let listener = Listener::bind(&address).await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let again = Listener::bind(&address).await.err().unwrap();
    assert!(matches!(&again, ListenError::InUse(named) if *named == address), "{again}");
    drop(listener);
    assert!(!path.exists());
    std::fs::write(&path, "a file").unwrap();
    assert!(matches!(Listener::bind(&address).await, Err(ListenError::Refused { .. })));
    std::fs::set_permissions(path.parent().unwrap(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let open = Listener::bind(&address).await.err().unwrap().to_string();
    assert!(open.contains("chmod go-w"), "{open}");
    assert!(Listener::bind(&"tcp:0.0.0.0:0".parse().unwrap()).await.is_err());
}

#[test]
fn addresses_read_as_they_are_written() {
    for text in ["unix:/run/w.sock", "tcp:127.0.0.1:80", "tcp:[::1]:80"] {
        assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
    }
    for text in ["", "/x", "unix:", "tcp:nowhere", "http:1"] {
        assert!(text.parse::<Address>().is_err(), "{text}");
    }
}

#[test]
fn every_error_has_its_code_and_reason() {
    let run = || RunId::new("r1");
    for (error, code, reason) in [
        (Error::NotFound("x".to_owned()), Code::NotFound, "RUN_NOT_FOUND"),
        (Error::Ended(run(), "completed"), Code::FailedPrecondition, "RUN_ENDED"),
        (Error::NotSuspended(run()), Code::FailedPrecondition, "RUN_NOT_SUSPENDED"),
        (Error::AboveCeiling("too much".to_owned()), Code::PermissionDenied, "LIMIT_ABOVE_CEILING"),
        (Error::Missing("no key".to_owned()), Code::FailedPrecondition, "SECRET_MISSING"),
        (Error::QueueFull(3), Code::ResourceExhausted, "QUEUE_FULL"),
        (Error::Draining, Code::Unavailable, "DRAINING"),
        (Error::Store(wren::runtime::StoreError::RequestIdReused(run())), Code::AlreadyExists, "REQUEST_ID_REUSED"),
    ] {
        let status = error::status(error);
        let info = status.get_details_error_info().unwrap();
        assert_eq!((status.code(), info.reason.as_str(), info.domain.as_str()), (code, reason, "wren.v1"));
    }
    let tail = error::status(Error::NotFound("researcher#XVH5".to_owned()));
    assert!(tail.message().contains("`wrenctl tree ROOT -o name`"), "{}", tail.message());
    let bad = error::field("FIELD_INVALID", "page_size", "is -1");
    assert_eq!(bad.get_details_bad_request().unwrap().field_violations.first().unwrap().field, "page_size");
}

#[test]
fn an_invalid_workflow_carries_its_diagnostics_within_a_header() {
    use prost::Message;
    let one = wren::workflow::Diagnostic {
        severity: wren::workflow::Severity::Error,
        code: "W012",
        message: "unknown field `agnet`".to_owned(),
        path: "a.yaml".to_owned(),
        line: 3,
        column: 5,
        end_line: 3,
        end_column: 10,
        pointer: "/agnet".to_owned(),
        suggestion: "agent".to_owned(),
        help: String::new(),
        source_line: "    agnet: x".to_owned(),
    };
    let status = error::status(Error::Invalid(vec![one; 500]));
    assert!(status.details().len() < 6 * 1024, "{}", status.details().len());
    assert!(status.message().contains("a.yaml:3:5"), "{}", status.message());
    let whole = tonic_types::pb::Status::decode(status.details()).unwrap();
    let list = whole.details.iter().find(|any| any.type_url.ends_with("wren.v1.DiagnosticList")).unwrap();
    let list = v1::DiagnosticList::decode(list.value.as_slice()).unwrap();
    assert!(list.diagnostics.len() > 5);
    assert_eq!(list.diagnostics.first().unwrap().suggestion, "agent");
}

#[test]
fn limits_are_bounded_field_by_field() {
    let set = v1::Limits { max_turns: Some(3), max_depth: Some(0), ..Default::default() };
    assert_eq!(wire::patch(&set).unwrap(), LimitsPatch { max_turns: Some(3), max_depth: Some(0), ..LimitsPatch::default() });
    let bad = v1::Limits {
        max_turns: Some(0),
        budget_usd_nanos: Some(-1),
        max_tokens: Some(i64::MAX),
        timeout: Some(pbjson_types::Duration { seconds: i64::MAX, nanos: 0 }),
        max_depth: Some(-1),
        max_runs: Some(0),
    };
    let fields: Vec<String> = wire::patch(&bad).unwrap_err().into_iter().map(|bad| bad.field).collect();
    assert_eq!(
        fields,
        ["limits.max_turns", "limits.budget_usd_nanos", "limits.max_tokens", "limits.timeout", "limits.max_depth", "limits.max_runs"]
    );
    let shown = wire::limits(&wren::kernel::Limits::DEFAULT);
    assert_eq!(wire::patch(&shown).unwrap().over(Config::CEILINGS), wren::kernel::Limits::DEFAULT);
}

fn node(id: &str, parent: &str, depth: i32) -> v1::Run {
    v1::Run { run_id: id.to_owned(), parent_run_id: parent.to_owned(), depth, ..Default::default() }
}

fn outline(node: &v1::RunNode) -> String {
    let below: Vec<String> = node.children.iter().map(outline).collect();
    let cut = if node.children_truncated { "+" } else { "" };
    format!("{}{cut}({})", node.run.as_ref().unwrap().run_id, below.join(" "))
}

#[test]
fn a_tree_keeps_order_and_says_what_it_leaves_out() {
    let runs = || vec![node("a", "z", 1), node("b", "a", 2), node("c", "a", 2), node("d", "b", 3), node("e", "b", 3)];
    assert_eq!(outline(&wire::tree(runs(), None, usize::MAX).unwrap()), "a(b(d() e()) c())");
    assert_eq!(outline(&wire::tree(runs(), Some(1), usize::MAX).unwrap()), "a(b+() c())");
    assert_eq!(outline(&wire::tree(runs(), None, 0).unwrap()), "a+()");
    assert!(wire::tree(Vec::new(), None, 10).is_none());
}

#[test]
fn times_before_and_after_the_epoch_keep_their_nanos_positive() {
    assert_eq!((wire::timestamp(1_500_001).seconds, wire::timestamp(1_500_001).nanos), (1, 500_001_000));
    assert_eq!((wire::timestamp(-1).seconds, wire::timestamp(-1).nanos), (-1, 999_999_000));
    assert_eq!(wire::assistant(&AssistantMessage::default()).role(), v1::Role::Assistant);
    assert!(wire::system("").is_none());
}

#[test]
fn a_config_is_strict_and_its_errors_have_a_place() {
    let config = Config::parse("w.yaml", "workspaces: {docs: /srv/docs}\nceilings: {budget_usd: 2.5, timeout: 1h30m}\n").unwrap();
    assert_eq!(config.ceilings().budget_usd_nanos, 2_500_000_000);
    assert_eq!(config.ceilings().timeout_ms, 5_400_000);
    assert_eq!(Config::parse("w.yaml", "# nothing\n").unwrap(), Config::default());
    for (text, part) in [
        ("listen: unix:/x\nworkspace: {}\n", "did you mean `workspaces`?"),
        ("listen: unix:/x\nworkspace: {}\n", "w.yaml:2:"),
        ("workspaces: {docs: docs}\n", "not an absolute path"),
        ("ceilings: {budget_usd: .nan}\n", "ceilings.budget_usd"),
        ("ceilings: {budget_usd: 1e308}\n", "ceilings.budget_usd"),
        ("drain_timeout: 10\n", "length of time"),
        ("drain_timeout: 5 parsecs\n", "length of time"),
        ("trees_max: 0\n", "trees_max"),
    ] {
        let why = Config::parse("w.yaml", text).unwrap_err().to_string();
        assert!(why.contains(part), "{text}: {why}");
    }
}

fn fact(seq: u64, time_us: i64, event: serde_json::Value) -> wren::kernel::Recorded {
    serde_json::from_value(serde_json::json!({"run": "r", "seq": seq, "tree_seq": seq, "epoch": 1, "time_us": time_us, "event": event}))
        .unwrap()
}

fn journal() -> Vec<wren::kernel::Recorded> {
    use serde_json::json;
    let model = json!({"alias": "m", "provider": "scripted", "model": "m", "max_output": 9, "price_version": "x"});
    let agent = json!({"name": "lead", "instructions": "", "model": model, "tools": []});
    let limits = wren::kernel::Limits::DEFAULT;
    let created = json!({"kind": "run_created", "root": "r", "depth": 0, "workflow": "w", "workflow_digest": "d",
        "inputs": {}, "agent": agent, "prompt": "go", "workspace": "/", "limits": limits, "trace_id": "t", "sampled": true, "submitter": "uid:0"});
    let call = json!({"id": "t0001c000", "tool": "read_file", "args": {"json": {"path": "a"}}});
    vec![
        fact(1, 0, created),
        fact(2, 10, json!({"kind": "run_started"})),
        fact(
            3,
            20,
            json!({"kind": "turn_started", "turn": 1, "attempt": 1, "purpose": "task", "model": "m", "max_output": 9, "reservation": {"usd_nanos": 50}}),
        ),
        fact(
            4,
            30,
            json!({"kind": "turn_ended", "turn": 1, "attempt": 1, "message": {"text": "", "calls": [call]}, "stop": "tool_calls",
            "usage": {"input_tokens": 5, "output_tokens": 2}, "cost_usd_nanos": 40, "provider": "scripted", "price_version": "x"}),
        ),
        fact(
            5,
            1_000,
            json!({"kind": "call_started", "call_id": "t0001c000", "tool": "read_file", "effect": "read_only",
            "idempotency_key": "k", "args_digest": "d", "attempt": 1}),
        ),
        fact(6, 9_000, json!({"kind": "call_ended", "call_id": "t0001c000", "tool": "read_file", "output": "x"})),
        fact(7, 9_500, json!({"kind": "run_ended", "outcome": "completed", "reason": "", "message": "", "text": "done"})),
    ]
}

#[test]
fn events_say_what_went_before_and_do_so_from_any_cursor_on() {
    let journal = journal();
    let mut context = wire::EventContext::default();
    let all: Vec<v1::Event> = journal.iter().map(|recorded| context.event(recorded)).collect();
    let payload = |seq: usize| all[seq - 1].payload.clone().unwrap();
    let v1::event::Payload::CallStarted(started) = payload(5) else { panic!() };
    assert_eq!((started.args_json.as_str(), started.effect.as_str()), (r#"{"path":"a"}"#, "read_only"));
    let v1::event::Payload::CallEnded(ended) = payload(6) else { panic!() };
    assert_eq!((ended.elapsed_ms, ended.ok), (8, true));
    let v1::event::Payload::TurnEnded(turn) = payload(4) else { panic!() };
    assert_eq!((turn.run_cost_usd_nanos, turn.total_tokens, turn.stop()), (40, 7, v1::Stop::ToolCalls));
    let v1::event::Payload::RunEnded(end) = payload(7) else { panic!() };
    assert_eq!((end.turn_count, end.cost_usd_nanos, end.failure), (1, 40, None));
    assert!(all.iter().all(|event| event.root_run_id == "r" && event.trace_id == "t"));
    for cursor in 0..journal.len() {
        let mut later = wire::EventContext::default();
        let (before, after) = journal.split_at(cursor);
        before.iter().for_each(|recorded| later.prime(recorded));
        let events: Vec<v1::Event> = after.iter().map(|recorded| later.event(recorded)).collect();
        assert_eq!(events, all[cursor..]);
    }
}
