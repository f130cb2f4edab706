//! Events and runs as text.

use pbjson_types::Timestamp;
use wren::cli::display::redraw;
use wren::cli::view::frame::{Look, frame};
use wren::cli::view::line::Narrator;
use wren::cli::view::tree::Tree;
use wren::cli::view::{Paint, table, text, transcript};
use wren::wire::v1::event::Payload;
use wren::wire::v1::{
    CallEnded, CallStarted, CancelReceipt, ChildEnded, ChildStarted, Event, Failure, GetRunResponse, Limits, LimitsChanged,
    ListRunsResponse, Message, Outcome, Role, Run, RunCreated, RunEnded, RunNode, RunResumed, RunStarted, RunState, RunSuspended, Stop,
    TextDelta, ToolCall, ToolProgress, TurnAborted, TurnEnded, TurnStarted, Usage,
};

/// 2026-12-01T00:00:00Z.
const EPOCH_S: i64 = 1_796_083_200;

fn time(ms: i64) -> Option<Timestamp> {
    Some(Timestamp { seconds: EPOCH_S + ms / 1000, nanos: i32::try_from(ms % 1000).unwrap() * 1_000_000 })
}

fn now_us(ms: i64) -> i64 {
    text::micros(time(ms).as_ref())
}

/// An event of a run of the tree below ROOT, at so many milliseconds.
pub fn event(run: &str, ms: i64, payload: Payload) -> Event {
    let parent = match run {
        "ROOT" => "",
        "KID1-AAAA" | "KID2-BBBB" => "ROOT",
        _ => "KID1-AAAA",
    };
    Event {
        seq: 1,
        tree_seq: ms + 1,
        run_id: run.to_owned(),
        root_run_id: "ROOT".to_owned(),
        parent_run_id: parent.to_owned(),
        time: time(ms),
        trace_id: "t".to_owned(),
        payload: Some(payload),
    }
}

pub fn created(run: &str, agent: &str, title: &str) -> Payload {
    let is_root = run == "ROOT";
    Payload::RunCreated(RunCreated {
        run: Some(Run {
            run_id: run.to_owned(),
            parent_run_id: if is_root { String::new() } else { "ROOT".to_owned() },
            workflow_name: "deep-research".to_owned(),
            agent: agent.to_owned(),
            title: title.to_owned(),
            limits: Some(Limits {
                max_turns: Some(6),
                budget_usd_nanos: is_root.then_some(500_000_000),
                max_runs: is_root.then_some(12),
                ..Limits::default()
            }),
            ..Run::default()
        }),
        prompt: title.to_owned(),
    })
}

fn asks(turn: i32, attempt: i32) -> Payload {
    Payload::TurnStarted(TurnStarted {
        turn,
        attempt,
        model: "openai/m".to_owned(),
        reserved_usd_nanos: 4_000_000,
        ..TurnStarted::default()
    })
}

fn replies(turn: i32, input_tokens: i64, cost: i64) -> Payload {
    Payload::TurnEnded(TurnEnded {
        turn,
        attempt: 1,
        stop: Stop::ToolCalls.into(),
        input_tokens,
        output_tokens: 10,
        cost_usd_nanos: cost,
        run_cost_usd_nanos: cost,
        ..TurnEnded::default()
    })
}

fn calls(id: &str, tool: &str, args: &str, effect: &str) -> Payload {
    let (call_id, tool, args_json, effect) = (id.to_owned(), tool.to_owned(), args.to_owned(), effect.to_owned());
    Payload::CallStarted(CallStarted { call_id, tool, args_json, effect, attempt: 1 })
}

pub fn ended(outcome: Outcome, message: &str) -> Payload {
    let failure = (!message.is_empty()).then(|| Failure { reason: "X".to_owned(), message: message.to_owned() });
    Payload::RunEnded(RunEnded { outcome: outcome.into(), failure, turn_count: 1, ..RunEnded::default() })
}

/// A lead with two children, one of them with a child of its own, as far as `until_ms`.
fn story(until_ms: i64) -> Tree {
    let events = [
        event("ROOT", 0, created("ROOT", "lead", "Why did worker 7 stop?")),
        event("ROOT", 1, Payload::RunStarted(RunStarted {})),
        event("ROOT", 2, asks(1, 1)),
        event("ROOT", 500, replies(1, 1200, 1_500_000)),
        event("ROOT", 501, calls("c1", "research", "{\"question\":\"a\"}", "spawn")),
        event("ROOT", 502, calls("c2", "research", "{\"question\":\"b\"}", "spawn")),
        event("KID1-AAAA", 503, created("KID1-AAAA", "researcher", "What does the error log say?")),
        event("KID2-BBBB", 503, created("KID2-BBBB", "researcher", "研究 どう\u{1b}[31m")),
        event("KID1-AAAA", 504, Payload::RunStarted(RunStarted {})),
        event("KID1-AAAA", 505, asks(1, 1)),
        event("KID1-AAAA", 700, replies(1, 400, 410_000)),
        event("KID1-AAAA", 701, calls("c3", "check", "{}", "spawn")),
        event("GRANDKID", 702, created("GRANDKID", "checker", "Verify")),
        event("KID2-BBBB", 703, Payload::RunStarted(RunStarted {})),
        event("KID2-BBBB", 704, asks(1, 1)),
        event("KID2-BBBB", 900, replies(1, 300, 300_000)),
        event("KID2-BBBB", 901, calls("c4", "search_files", "{\"pattern\":\"timeout\"}", "read_only")),
        event(
            "KID2-BBBB",
            902,
            Payload::ToolProgress(ToolProgress {
                call_id: "c4".to_owned(),
                text: "scanned 200 of 1200 files".to_owned(),
                ..ToolProgress::default()
            }),
        ),
        event("GRANDKID", 903, Payload::RunStarted(RunStarted {})),
        event("GRANDKID", 904, asks(1, 1)),
        event("GRANDKID", 950, replies(1, 90, 100_000)),
        event("GRANDKID", 960, ended(Outcome::Completed, "")),
        event("KID1-AAAA", 1000, asks(2, 1)),
        event(
            "KID1-AAAA",
            1100,
            Payload::TurnAborted(TurnAborted {
                turn: 2,
                attempt: 1,
                reason: "rate_limited".to_owned(),
                http_status: 429,
                ..TurnAborted::default()
            }),
        ),
        event("KID1-AAAA", 1200, asks(2, 2)),
        event("KID1-AAAA", 2000, ended(Outcome::MaxTurns, "6 of 6 turns are used")),
    ];
    let mut tree = Tree::default();
    for event in events.iter().filter(|event| event.tree_seq <= until_ms + 1) {
        tree.apply(event);
    }
    tree
}

const WIDE: Look = Look { width: None, height: None, is_full: false, paint: Paint::PLAIN };

fn picture(tree: &Tree, ms: i64, look: &Look) -> String {
    frame(tree, now_us(ms), look).join("\n")
}

#[test]
fn a_tree_shows_what_each_run_does_now() {
    insta::assert_snapshot!(picture(&story(910), 2100, &WIDE), @r#"
    ● deep-research ROOT  running 2.0s  $0.002210 of $0.500000  turns 1/6  1,930 tokens  runs 4/12  waits for 2 runs
    ├─ ● researcher "What does the error log say?"  turn 1/6  410 tokens  $0.000410  waits for 1 run
    │  └─ ● checker "Verify"                        turn 1/6    0 tokens  $0.000000  asking 1.1s
    └─ ● researcher "研究 どう�[31m"                turn 1/6  310 tokens  $0.000300  search_files scanned 200 of 1200 files 1.1s
    "#);
}

#[test]
fn finished_children_fold_and_an_attempt_says_why_it_is_made() {
    insta::assert_snapshot!(picture(&story(1500), 2100, &WIDE), @r#"
    ● deep-research ROOT  running 2.0s  $0.002310 of $0.500000  turns 1/6  2,030 tokens  runs 4/12  waits for 2 runs
    ├─ ● researcher "What does the error log say?"  turn 2/6  410 tokens  $0.000410  asking again, attempt 2 after rate_limited (429) 900ms
    │  └─ ✔ checker "Verify"                        1 turn    100 tokens  $0.000100
    └─ ● researcher "研究 どう�[31m"                turn 1/6  310 tokens  $0.000300  search_files scanned 200 of 1200 files 1.1s
    "#);
}

#[test]
fn a_finished_subtree_is_one_line_that_keeps_its_sum() {
    let tree = story(3000);
    let folded = picture(&tree, 3000, &WIDE);
    assert!(folded.contains("+1 run") && folded.contains("$0.000510") && !folded.contains("checker"), "{folded}");
    insta::assert_snapshot!(picture(&tree, 3000, &Look { is_full: true, ..WIDE }), @r#"
    ● deep-research ROOT  running 2.9s  $0.002310 of $0.500000  turns 1/6  2,030 tokens  runs 4/12  own $0.001500  waits for 2 runs
    ├─ ■ researcher "What does the error log say?"  1 turn    410 tokens  $0.000410  max_turns: 6 of 6 turns are used
    │  └─ ✔ checker "Verify"                        1 turn    100 tokens  $0.000100
    └─ ● researcher "研究 どう�[31m"                turn 1/6  310 tokens  $0.000300  search_files scanned 200 of 1200 files 2.0s
    "#);
}

#[test]
fn no_line_is_wider_than_the_terminal_and_no_picture_higher() {
    let tree = story(1500);
    for width in [20, 40, 80, 100] {
        for height in [4, 5, 24] {
            let look = Look { width: Some(width), height: Some(height), is_full: false, paint: Paint::new(true) };
            let lines = frame(&tree, now_us(2100), &look);
            assert!(lines.iter().all(|line| text::width(line) <= width), "{width}: {lines:?}");
            assert!(lines.len() < height.max(5), "{height}: {lines:?}");
        }
    }
}

#[test]
fn a_narrow_terminal_gets_the_root_on_two_lines() {
    insta::assert_snapshot!(picture(&story(910), 2100, &Look { width: Some(79), height: Some(24), ..WIDE }), @r#"
    ● deep-research ROOT  running 2.0s
      $0.002210 of $0.500000  turns 1/6  1,930 tokens  runs 4/12  waits for 2 runs
    ├─ ● researcher "What does t…"  turn 1/6  410 tokens  $0.000410  waits for 1 r…
    │  └─ ● checker "Verify"        turn 1/6    0 tokens  $0.000000  asking 1.1s
    └─ ● researcher "研究 どう�[…"  turn 1/6  310 tokens  $0.000300  search_files …
    "#);
}

#[test]
fn colour_adds_nothing_to_the_words() {
    let tree = story(1500);
    let colored = picture(&tree, 2100, &Look { paint: Paint::new(true), ..WIDE });
    assert!(colored.contains("\x1b["));
    assert_eq!(console::strip_ansi_codes(&colored), picture(&tree, 2100, &WIDE));
}

#[test]
fn a_redraw_goes_up_over_what_it_drew() {
    assert_eq!(redraw(0, &["a".to_owned()]), "\x1b[?2026h\r\x1b[Ja\n\x1b[?2026l");
    assert_eq!(redraw(3, &[]), "\x1b[?2026h\x1b[3A\r\x1b[J\x1b[?2026l");
}

pub fn suspended_run() -> Run {
    let usage = Usage { input_tokens: 900, output_tokens: 100, cost_usd_nanos: 9_500_000, turn_count: 7, run_count: 1, ..Usage::default() };
    Run {
        run_id: "ROOT".to_owned(),
        root_run_id: "ROOT".to_owned(),
        workflow_name: "runaway".to_owned(),
        agent: "looper".to_owned(),
        title: "Never stop".to_owned(),
        state: RunState::Suspended.into(),
        outcome: Outcome::Budget.into(),
        failure: Some(Failure { reason: "BUDGET".to_owned(), message: "$0.000500 is left, one more turn may cost $0.001137".to_owned() }),
        output_text: "Let me look once more.".to_owned(),
        limits: Some(Limits { budget_usd_nanos: Some(10_000_000), max_turns: Some(50), ..Limits::default() }),
        own_usage: Some(usage),
        subtree_usage: Some(usage),
        create_time: time(0),
        start_time: time(0),
        update_time: time(1500),
        ..Run::default()
    }
}

#[test]
fn a_suspended_run_says_why_and_what_to_type() {
    let run = suspended_run();
    let node = RunNode { run: Some(run.clone()), children: Vec::new(), children_truncated: true };
    insta::assert_snapshot!(picture(&Tree::of(&node), 9000, &Look { is_full: true, ..WIDE }), @r#"
    ‖ runaway ROOT  suspended: budget 1.5s  $0.009500 of $0.010000  turns 7/50  1,000 tokens  runs 1
    └─ … deeper runs are not shown
       budget: $0.000500 is left, one more turn may cost $0.001137
    "#);
    assert_eq!(table::next_steps(&run), ["wrenctl resume ROOT --budget 0.02"]);
    let stopped =
        |outcome: Outcome, state: RunState| table::next_steps(&Run { outcome: outcome.into(), state: state.into(), ..run.clone() });
    assert_eq!(stopped(Outcome::MaxTurns, RunState::Suspended), ["wrenctl resume ROOT --max-turns 100"]);
    assert_eq!(stopped(Outcome::Failed, RunState::Ended), ["wrenctl transcript ROOT"]);
    assert!(stopped(Outcome::Completed, RunState::Ended).is_empty());
    assert!(stopped(Outcome::Unspecified, RunState::Running).is_empty());
}

#[test]
fn events_are_lines() {
    let mut narrator = Narrator::new(Paint::PLAIN);
    let ok = CallEnded { tool: "read_file".to_owned(), ok: true, output: "abc".to_owned(), elapsed_ms: 12, ..CallEnded::default() };
    let bad = CallEnded { ok: false, failure: "failed".to_owned(), output: "no such file: x\nsee".to_owned(), ..ok.clone() };
    let failure = Some(Failure { reason: "BUDGET".to_owned(), message: "too little is left".to_owned() });
    let payloads = [
        ("ROOT", created("ROOT", "lead", "Why?")),
        ("ROOT", Payload::RunStarted(RunStarted {})),
        ("ROOT", asks(1, 2)),
        ("ROOT", replies(1, 1200, 1_500_000)),
        (
            "ROOT",
            Payload::TurnAborted(TurnAborted {
                turn: 2,
                attempt: 1,
                reason: "crash".to_owned(),
                written_off_usd_nanos: 4_000_000,
                retryable: true,
                ..TurnAborted::default()
            }),
        ),
        ("ROOT", calls("c1", "read_file", "{\"path\":\"errors.log\"}", "read_only")),
        ("ROOT", Payload::CallEnded(ok)),
        ("ROOT", Payload::CallEnded(bad)),
        (
            "ROOT",
            Payload::ChildStarted(ChildStarted {
                child_run_id: "KID1-AAAA".to_owned(),
                agent: "researcher".to_owned(),
                ..ChildStarted::default()
            }),
        ),
        ("KID1-AAAA", created("KID1-AAAA", "researcher", "a\x1b[2Jb")),
        (
            "ROOT",
            Payload::ChildEnded(ChildEnded {
                child_run_id: "KID1-AAAA".to_owned(),
                outcome: Outcome::Completed.into(),
                turn_count: 1,
                subtree_cost_usd_nanos: 410_000,
                ..ChildEnded::default()
            }),
        ),
        (
            "ROOT",
            Payload::RunSuspended(RunSuspended { outcome: Outcome::Budget.into(), failure, turn_count: 2, ..RunSuspended::default() }),
        ),
        (
            "ROOT",
            Payload::LimitsChanged(LimitsChanged {
                limits: Some(Limits { budget_usd_nanos: Some(20_000_000), ..Limits::default() }),
                actor: "me".to_owned(),
                reason: "go on".to_owned(),
            }),
        ),
        ("ROOT", Payload::RunResumed(RunResumed { cause: "user".to_owned(), actor: "me".to_owned() })),
        ("ROOT", ended(Outcome::Completed, "")),
    ];
    let mut lines: Vec<String> = (0..).zip(payloads).filter_map(|(ms, (run, payload))| narrator.line(&event(run, ms, payload))).collect();
    // What is live only has no time; the line takes the last one known.
    let delta =
        Event { time: None, ..event("ROOT", 0, Payload::TextDelta(TextDelta { text: "half a wo".to_owned(), ..TextDelta::default() })) };
    lines.extend(narrator.line(&delta));
    insta::assert_snapshot!(lines.join("\n"), @r#"
    00:00:00.000 lead             accepted deep-research ROOT "Why?" within 6 turns, $0.500000, 12 runs
    00:00:00.001 lead             started
    00:00:00.002 lead             turn 1, attempt 2: asking openai/m, $0.004000 set aside
    00:00:00.003 lead             turn 1: tool_calls, 1,200 + 10 tokens, $0.001500, run $0.001500
    00:00:00.004 lead             turn 2, attempt 1: crash; $0.004000 written off; may be tried again
    00:00:00.005 lead             read_file errors.log
    00:00:00.006 lead             read_file ok 12ms, 3 characters
    00:00:00.007 lead             read_file failed 12ms: no such file: x see
    00:00:00.008 lead             started researcher#AAAA
    00:00:00.009 researcher#AAAA  accepted "a�[2Jb" within 6 turns
    00:00:00.010 lead             researcher#AAAA ended: completed, 1 turn, $0.000410
    00:00:00.011 lead             suspended: budget, 2 turns, $0.000000: too little is left
    00:00:00.012 lead             limits changed by me: $0.020000 (go on)
    00:00:00.013 lead             resumed by me (user)
    00:00:00.014 lead             ended: completed, 1 turn, $0.000000
    00:00:00.014 lead             > half a wo
    "#);
}

#[test]
fn nothing_is_said_twice_of_why_a_run_stopped() {
    for (message, words) in
        [("", "cancelled"), ("cancelled", "cancelled"), ("cancelled: enough", "cancelled: enough"), ("x", "cancelled: x")]
    {
        assert_eq!(text::why(Outcome::Cancelled, message), words);
    }
    let failure = |message: &str| Some(Failure { reason: "CANCELLED".to_owned(), message: message.to_owned() });
    let mut narrator = Narrator::new(Paint::PLAIN);
    let line = narrator.line(&event("ROOT", 0, ended(Outcome::Cancelled, "cancelled"))).unwrap();
    assert!(line.ends_with("ended: cancelled, 1 turn, $0.000000"), "{line}");
    let line = narrator.line(&event("ROOT", 0, ended(Outcome::Cancelled, "cancelled: enough"))).unwrap();
    assert!(line.ends_with("ended: cancelled, 1 turn, $0.000000: enough"), "{line}");
    for (message, row) in [("cancelled", "CANCELLED\n"), ("cancelled: enough", "CANCELLED: enough\n"), ("", "CANCELLED\n")] {
        let run = Run { failure: failure(message), outcome: Outcome::Cancelled.into(), state: RunState::Ended.into(), ..suspended_run() };
        assert!(table::run(&run, Paint::PLAIN).contains(&format!("reason         {row}")), "{message}");
    }
}

#[test]
fn a_receipt_is_a_table() {
    let receipts = [
        CancelReceipt {
            run_id: "ROOT".to_owned(),
            agent: "lead".to_owned(),
            state_at_cancel: RunState::Running.into(),
            outcome: Outcome::Cancelled.into(),
            calls_cancelled: 2,
            calls_finished: 1,
            calls_in_doubt: 0,
            quiescent_ms: 1042,
        },
        CancelReceipt {
            run_id: "KID1-AAAA".to_owned(),
            agent: "researcher".to_owned(),
            state_at_cancel: RunState::Ended.into(),
            outcome: Outcome::Completed.into(),
            ..CancelReceipt::default()
        },
    ];
    insta::assert_snapshot!(table::receipts(&receipts, Paint::PLAIN), @r#"
    RUN        AGENT       WAS      NOW        CALLS CANCELLED  CALLS FINISHED  CALLS IN DOUBT     MS
    ROOT       lead        running  cancelled                2               1               0  1,042
    KID1-AAAA  researcher  ended    completed                0               0               0      0
    "#);
}

#[test]
fn lists_runs_and_limits_are_tables() {
    let run = suspended_run();
    insta::assert_snapshot!(table::runs(std::slice::from_ref(&run), now_us(60_000), Paint::PLAIN), @r#"
    RUN   STATE              WORKFLOW  AGENT     AGE  TURNS  RUNS  TOKENS       COST  TITLE
    ROOT  suspended: budget  runaway   looper  1m00s      7     1   1,000  $0.009500  Never stop
    "#);
    insta::assert_snapshot!(table::run(&run, Paint::PLAIN), @r#"
    run            ROOT
    state          suspended: budget
    reason         BUDGET: $0.000500 is left, one more turn may cost $0.001137
    workflow       runaway
    agent          looper
    title          Never stop
    limits         50 turns, $0.010000
    own usage      $0.009500, 900 + 100 tokens, turns 7, calls 0, runs 1
    subtree usage  $0.009500, 900 + 100 tokens, turns 7, calls 0, runs 1
    created        2026-12-01T00:00:00Z
    started        2026-12-01T00:00:00Z
    "#);
    let defaults = Limits { max_turns: Some(50), budget_usd_nanos: Some(1_000_000_000), max_tokens: Some(2_000_000), ..Limits::default() };
    insta::assert_snapshot!(table::limits(&run.limits.unwrap(), Some(&defaults), Paint::PLAIN), @r#"
    LIMIT       THIS WORKFLOW    DEFAULT
    max_turns              50         50
    budget_usd      $0.010000  $1.000000
    max_tokens              -  2,000,000
    timeout                 -          -
    max_depth               -          -
    max_runs                -          -
    "#);
}

#[test]
fn a_transcript_names_who_speaks() {
    let messages = [
        Message { role: Role::System.into(), text: "Be brief.".to_owned(), ..Message::default() },
        Message {
            role: Role::Assistant.into(),
            text: "I look.".to_owned(),
            tool_calls: vec![ToolCall { call_id: "c1".to_owned(), tool: "read_file".to_owned(), args_json: "{\"path\":\"a\"}".to_owned() }],
            ..Message::default()
        },
        Message {
            role: Role::Tool.into(),
            tool: "read_file".to_owned(),
            tool_call_id: "c1".to_owned(),
            is_error: true,
            text: "no such \x1b[31mfile".to_owned(),
            ..Message::default()
        },
    ];
    let text: String = messages.iter().map(|message| transcript::message(message, Paint::PLAIN)).collect();
    insta::assert_snapshot!(text, @r#"
    ── instructions ──
    Be brief.
    ── assistant ──
    I look.
    → read_file {"path":"a"} (c1)
    ── result of read_file (c1, not done) ──
    no such �[31mfile
    "#);
}

#[test]
fn json_has_the_protos_own_names_and_every_field() {
    let run = Run { last_seq: 7, ..suspended_run() };
    let json = serde_json::to_value(&run).unwrap();
    assert_eq!(json["run_id"], "ROOT");
    assert_eq!(json["state"], "RUN_STATE_SUSPENDED");
    assert_eq!(json["outcome"], "OUTCOME_BUDGET");
    assert_eq!(json["subtree_usage"]["cost_usd_nanos"], "9500000");
    assert_eq!(json["subtree_usage"]["written_off_usd_nanos"], "0");
    assert_eq!(json["last_seq"], "7");
    assert_eq!(json["truncated"], false);
    assert_eq!(json["parent_run_id"], "");
    let node = serde_json::to_value(RunNode { run: Some(run.clone()), ..RunNode::default() }).unwrap();
    assert_eq!((node["run"]["run_id"].as_str(), node["children"].as_array().map(Vec::len)), (Some("ROOT"), Some(0)));
    let list = serde_json::to_value(ListRunsResponse { runs: vec![run.clone()], ..ListRunsResponse::default() }).unwrap();
    assert_eq!(list["runs"][0]["run_id"], "ROOT");
    let back: GetRunResponse = serde_json::from_value(serde_json::json!({"run": json})).unwrap();
    assert_eq!(back.run, Some(run));
}

#[test]
fn small_figures_read_well() {
    assert_eq!(
        [text::usd(2_470_000), text::usd(500), text::usd(499), text::usd(-1_500_000)],
        ["$0.002470", "$0.000001", "$0.000000", "-$0.001500"]
    );
    assert_eq!([text::decimal_usd(20_000_000), text::decimal_usd(1), text::decimal_usd(3_000_000_000)], ["0.02", "0.000000001", "3.00"]);
    assert_eq!([text::count(0), text::count(1_234_567), text::count(-1000)], ["0", "1,234,567", "-1,000"]);
    let times = [0, 999_000, 1_250_000, 192_000_000, 7_500_000_000, 90_000_000_000].map(text::elapsed);
    assert_eq!(times, ["0ms", "999ms", "1.2s", "3m12s", "2h05m", "1d01h"]);
    assert_eq!(text::date_time(EPOCH_S * 1_000_000), "2026-12-01T00:00:00Z");
    assert_eq!(text::date_time(951_782_400_000_000), "2000-02-29T00:00:00Z");
}
