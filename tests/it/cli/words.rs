//! What people type, and how errors read.

use clap::{CommandFactory, Parser};
use prost::Message;
use tonic::{Code, Status};
use tonic_types::pb;
use wren::cli::address::Address;
use wren::cli::arguments::{Cli, Command, LimitArgs};
use wren::cli::error::{Error, Said};
use wren::cli::view::Paint;
use wren::cli::{amount, diagnostic, exit};
use wren::wire::v1::{Diagnostic, DiagnosticList, Outcome, Severity};

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn money_is_read_exactly() {
    for (text, nanos) in [
        ("0.50", 500_000_000),
        ("1", 1_000_000_000),
        (".5", 500_000_000),
        ("$2.50", 2_500_000_000),
        ("0.000000001", 1),
        ("0.1000000000000", 100_000_000),
        ("9223372036.854775807", i64::MAX),
    ] {
        assert_eq!(amount::usd_nanos(text), Ok(nanos), "{text}");
    }
}

#[test]
fn money_that_is_no_budget_says_why() {
    for (text, why) in [
        ("0", "allows no turn"),
        ("0.00", "allows no turn"),
        ("-1", "negative"),
        ("-0.00", "negative"),
        ("NaN", "no plain decimal"),
        ("inf", "no plain decimal"),
        ("1e308", "no plain decimal"),
        ("0,50", "no plain decimal"),
        ("", "no plain decimal"),
        (".", "no plain decimal"),
        ("0x10", "no plain decimal"),
        ("0.0000000001", "finer than"),
        ("9223372036.854775808", "more than can be counted"),
        ("99999999999999999999", "more than can be counted"),
    ] {
        let error = amount::usd_nanos(text).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn times_are_read_with_their_units() {
    for (text, ms) in [("500ms", 500), ("90s", 90_000), ("5m", 300_000), ("1h30m", 5_400_000), ("2d", 172_800_000)] {
        assert_eq!(amount::duration(text).map(|time| time.as_millis()), Ok(ms), "{text}");
    }
    for bad in ["", "5", "0s", "-5m", "1.5h", "m", "5x", "99999999999999999999h", "9223372036854775807h"] {
        assert!(amount::duration(bad).is_err(), "{bad}");
    }
}

#[test]
fn an_address_names_its_form() {
    assert_eq!("unix:/run/wrend.sock".parse(), Ok(Address::Unix("/run/wrend.sock".into())));
    assert_eq!("tcp:localhost:7433".parse(), Ok(Address::Tcp("localhost:7433".to_owned())));
    assert_eq!("tcp:[::1]:7433".parse(), Ok(Address::Tcp("[::1]:7433".to_owned())));
    for bad in ["", "unix:", "tcp:localhost", "tcp::1", "tcp:h:99999", "http://localhost:1", "/run/wrend.sock"] {
        let error = bad.parse::<Address>().unwrap_err();
        assert!(error.contains("unix:PATH or tcp:HOST:PORT"), "{error}");
    }
}

#[test]
fn without_an_address_the_socket_that_exists_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let (runtime, data) = (dir.path().join("run"), dir.path().join("data"));
    std::fs::create_dir_all(data.join("wren")).unwrap();
    let variable = |name: &str| match name {
        "XDG_RUNTIME_DIR" => Some(runtime.display().to_string()),
        "XDG_DATA_HOME" => Some(data.display().to_string()),
        _ => None,
    };
    assert_eq!(Address::usual(&variable), Ok(Address::Unix(runtime.join("wren/wrend.sock"))));
    std::fs::write(data.join("wren/wrend.sock"), "").unwrap();
    assert_eq!(Address::usual(&variable), Ok(Address::Unix(data.join("wren/wrend.sock"))));
    let home = |name: &str| (name == "HOME").then(|| "/home/me".to_owned());
    assert_eq!(Address::usual(&home), Ok(Address::Unix("/home/me/.local/share/wren/wrend.sock".into())));
    assert!(Address::usual(&|_| None).unwrap_err().contains("--address"));
}

#[test]
fn every_outcome_has_its_exit_code() {
    let codes = [
        (Outcome::Completed, 0),
        (Outcome::Unspecified, 1),
        (Outcome::Failed, 10),
        (Outcome::MaxTurns, 11),
        (Outcome::Budget, 12),
        (Outcome::MaxTokens, 12),
        (Outcome::Timeout, 13),
        (Outcome::Approval, 14),
        (Outcome::Blocked, 15),
        (Outcome::ProviderError, 16),
        (Outcome::Drained, 17),
        (Outcome::InDoubt, 18),
        (Outcome::Cancelled, 20),
    ];
    for (outcome, code) in codes {
        assert_eq!(exit::of(outcome), code, "{outcome:?}");
    }
}

#[test]
fn unset_limits_are_not_sent() {
    assert_eq!(LimitArgs::default().to_wire(), None);
    let cli = Cli::try_parse_from(["wrenctl", "resume", "r1", "--budget", "0.02", "--timeout", "90s"]).unwrap();
    let Command::Resume(args) = cli.command else { panic!("not resume") };
    let limits = args.limits.to_wire().unwrap();
    assert_eq!((limits.budget_usd_nanos, limits.timeout.unwrap().seconds, limits.max_turns), (Some(20_000_000), 90, None));
}

fn fault() -> Diagnostic {
    Diagnostic {
        severity: Severity::Error.into(),
        code: "W012".to_owned(),
        message: "unknown field `promt`".to_owned(),
        path: "flow.yaml".to_owned(),
        line: 12,
        column: 3,
        end_line: 12,
        end_column: 8,
        suggestion: "prompt".to_owned(),
        help: "an agent has instructions, model and tools".to_owned(),
        source_line: "  promt: \"x\"".to_owned(),
        ..Diagnostic::default()
    }
}

#[test]
fn a_diagnostic_points_at_its_place() {
    insta::assert_snapshot!(diagnostic::list(&[fault()], Paint::PLAIN), @r#"
    error[W012]: unknown field `promt`
      --> flow.yaml:12:3
       |
    12 |   promt: "x"
       |   ^^^^^
       = did you mean `prompt`?
       = help: an agent has instructions, model and tools

    1 error
    "#);
}

#[test]
fn a_caret_stands_under_wide_characters_and_tabs() {
    let wide = Diagnostic { line: 3, column: 4, end_line: 3, end_column: 6, source_line: "\t日本xy".to_owned(), ..fault() };
    let text = diagnostic::one(&wide, Paint::PLAIN);
    assert!(text.contains("3 |  日本xy\n  |      ^^\n"), "{text}");
    // A place beyond the line, as of something that is missing at its end, is still pointed at.
    let beyond = Diagnostic { column: 400, end_column: 2, ..fault() };
    assert!(diagnostic::one(&beyond, Paint::PLAIN).contains("^\n"));
    let placeless = Diagnostic { line: 0, path: String::new(), source_line: String::new(), ..fault() };
    assert!(!diagnostic::one(&placeless, Paint::PLAIN).contains("-->"));
}

#[test]
fn what_others_wrote_cannot_steer_the_terminal() {
    let hostile = Diagnostic { message: "a\x1b]0;title\x07b".to_owned(), source_line: "x\x1b[2Jy".to_owned(), ..fault() };
    assert!(!diagnostic::one(&hostile, Paint::PLAIN).contains('\x1b'));
}

fn refused(code: Code, reason: &str, message: &str, facts: &[(&str, &str)], list: Option<&DiagnosticList>) -> Said {
    let info = pb::ErrorInfo {
        reason: reason.to_owned(),
        domain: "wren.v1".to_owned(),
        metadata: facts.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
    };
    let any = |name: &str, value: Vec<u8>| prost_types::Any { type_url: format!("type.googleapis.com/{name}"), value };
    let mut details = vec![any("google.rpc.ErrorInfo", info.encode_to_vec())];
    details.extend(list.map(|list| any("wren.v1.DiagnosticList", list.encode_to_vec())));
    let rich = pb::Status { code: code.into(), message: message.to_owned(), details };
    let status = Status::with_details(code, message, rich.encode_to_vec().into());
    match Error::status(&Address::Unix("/s".into()), &status) {
        Error::Said(said) => *said,
        Error::BrokenPipe | Error::Interrupted => panic!("not an error to be said"),
    }
}

#[test]
fn errors_of_the_daemon_end_with_the_next_step() {
    let cases = [
        (Code::NotFound, "RUN_NOT_FOUND", 1, "wrenctl ps --all"),
        (Code::InvalidArgument, "RUN_AMBIGUOUS", 2, "more of the id"),
        (Code::FailedPrecondition, "RUN_NOT_ROOT", 1, "wrenctl resume ROOT1"),
        (Code::FailedPrecondition, "RUN_ENDED", 1, "wrenctl get RUN1"),
        (Code::FailedPrecondition, "RUN_NOT_SUSPENDED", 1, "wrenctl watch RUN1"),
        (Code::FailedPrecondition, "LIMIT_STILL_EXCEEDED", 1, "wrenctl resume RUN1 --budget"),
        (Code::PermissionDenied, "LIMIT_ABOVE_CEILING", 2, "wrenctl info"),
        (Code::FailedPrecondition, "SECRET_MISSING", 1, "--mock"),
        (Code::Unauthenticated, "TOKEN_MISSING", 4, "--token-file"),
        (Code::Unauthenticated, "UID_REFUSED", 4, "your own"),
        (Code::Unavailable, "DRAINING", 1, "try again"),
        (Code::ResourceExhausted, "QUEUE_FULL", 1, "wrenctl ps"),
        (Code::AlreadyExists, "REQUEST_ID_REUSED", 1, "--request-id"),
    ];
    for (code, reason, exit, hint) in cases {
        let said = refused(code, reason, "no", &[("run_id", "RUN1"), ("root_run_id", "ROOT1")], None);
        let text = diagnostic::error(&said, Paint::PLAIN);
        assert_eq!(said.code, exit, "{reason}");
        assert!(text.starts_with("error: no\nnext: ") && text.contains(hint), "{reason}: {text}");
    }
    let field = refused(Code::InvalidArgument, "FIELD_INVALID", "workspace is not known", &[], None);
    assert_eq!((field.code, field.hints.len()), (2, 0));
    // The daemon's own words are not said twice.
    let told = refused(Code::NotFound, "RUN_NOT_FOUND", "no run \"x\"; `wrenctl ps --all` lists the runs", &[], None);
    assert!(told.hints.is_empty());
}

#[test]
fn a_limit_above_its_ceiling_is_told_as_it_was_typed() {
    let tail = " is above this daemon's ceiling of ";
    for (message, told) in [
        (format!("budget_usd_nanos 1000010000000{tail}1000000000000; ask for less"), format!("budget $1000.01{tail}$1000; ask for less")),
        (format!("timeout_ms 691200000{tail}604800000; ask"), format!("timeout 8d{tail}7d; ask")),
        (format!("timeout_ms 5400500{tail}5400000; ask"), format!("timeout 1h30m500ms{tail}1h30m; ask")),
        (format!("max_turns 2000{tail}1000; ask"), format!("max_turns 2,000{tail}1,000; ask")),
        ("something else".to_owned(), "something else".to_owned()),
    ] {
        assert_eq!(refused(Code::PermissionDenied, "LIMIT_ABOVE_CEILING", &message, &[], None).message, told);
    }
}

#[test]
fn a_missing_key_is_told_for_the_daemon_that_lacks_it() {
    let message = "openai: no key for https://api.openai.com/v1; set OPENAI_API_KEY to a valid key where wrend is started, restart it and resume the run";
    let told = refused(Code::FailedPrecondition, "SECRET_MISSING", message, &[], None);
    insta::assert_snapshot!(diagnostic::error(&told, Paint::PLAIN), @r#"
    error: openai: no key for https://api.openai.com/v1; set OPENAI_API_KEY to a valid key where wrend is started, and start it again
    next: for a server of your own set OPENAI_BASE_URL; or try at no cost: `wrenctl run … --mock`
    "#);
    let Error::Said(own) = Error::Said(Box::new(told)).of_own_daemon() else { panic!("nothing is said") };
    insta::assert_snapshot!(diagnostic::error(&own, Paint::PLAIN), @r#"
    error: openai: no key for https://api.openai.com/v1; set OPENAI_API_KEY to a valid key and run the command again
    next: for a server of your own set OPENAI_BASE_URL; or try at no cost: `wrenctl run … --mock`
    "#);
}

#[test]
fn an_invalid_workflow_is_shown_fault_by_fault() {
    let list = DiagnosticList { diagnostics: vec![fault()] };
    let said = refused(Code::InvalidArgument, "WORKFLOW_INVALID", "not valid", &[("diagnostic_count", "3")], Some(&list));
    assert_eq!(said.code, 3);
    let text = diagnostic::error(&said, Paint::PLAIN);
    assert!(text.contains("--> flow.yaml:12:3") && text.contains("2 more did not fit"), "{text}");
}

#[test]
fn a_daemon_that_is_gone_is_told_by_its_address() {
    let error = Error::status(&Address::Unix("/tmp/x.sock".into()), &Status::unavailable("connection refused"));
    let Error::Said(said) = error else { panic!("nothing is said") };
    insta::assert_snapshot!(diagnostic::error(&said, Paint::PLAIN), @r#"
    error: no daemon answers at unix:/tmp/x.sock: connection refused
    next: start one with `wrend`, point at another with --address, or work without one: add --local
    "#);
    assert_eq!(said.code, 1);
}
