//! What holds of the spans of any journal of a tree, whatever happened to it.

use std::collections::{BTreeMap, HashMap, HashSet};

use wren::kernel::event::{CallFailure, Event};
use wren::kernel::{Recorded, RunId};
use wren::telemetry::TreeSpans;
use wren::telemetry::span::{Attribute, Link, Span};

fn text<'a>(span: &'a Span, key: &str) -> Option<&'a str> {
    match span.attribute(key)? {
        Attribute::Text(text) => Some(text),
        other => panic!("{key}: {other:?}"),
    }
}

fn kind(span: &Span) -> &str {
    span.name.split(' ').next().unwrap()
}

/// Returns what a span says that it cost itself, in nano-USD.
pub fn own_cost(span: &Span) -> i64 {
    span.int("wren.cost.usd_nanos") + span.int("wren.cost.written_off_usd_nanos")
}

/// Checks the spans of a tree's journal, which is in tree order. `cost_usd_nanos` is the root's account.
pub fn check(journal: &[&Recorded], now_us: i64, cost_usd_nanos: i64) {
    let spans = TreeSpans::replay(journal.iter().copied(), now_us);
    // Shown where a law does not hold.
    for recorded in journal {
        println!("{} {} {} {}", recorded.time_us, recorded.run, recorded.epoch, recorded.event.kind());
    }
    let ids: HashSet<&str> = spans.iter().map(|span| &*span.span_id).collect();
    assert_eq!(ids.len(), spans.len(), "a span stands twice");
    let by_id: HashMap<&str, &Span> = spans.iter().map(|span| (&*span.span_id, span)).collect();
    for span in &spans {
        check_place(span, &by_id);
    }
    check_traces(&spans);
    check_money(journal, &spans, cost_usd_nanos);
    check_calls(journal, &spans);
}

/// Returns the spans as an indented tree, each with what tells how it came about and how it ended.
pub fn outline(journal: &[&Recorded], now_us: i64) -> String {
    let spans = TreeSpans::replay(journal.iter().copied(), now_us);
    let mut traces: Vec<&str> = Vec::new();
    for span in &spans {
        if !traces.contains(&&*span.trace_id) {
            traces.push(&span.trace_id);
        }
    }
    let mut shown = String::new();
    for (number, trace) in traces.iter().enumerate() {
        shown.push_str(&format!("trace {}\n", number + 1));
        add_outline(None, trace, 0, &spans, &mut shown);
    }
    shown
}

fn add_outline(parent: Option<&str>, trace: &str, level: usize, all: &[Span], shown: &mut String) {
    for span in all.iter().filter(|span| span.parent_span_id.as_deref() == parent && span.trace_id == trace) {
        let mut words = vec![span.name.clone(), format!("{} ms", (span.end_us - span.start_us) / 1000)];
        words.extend(text(span, "wren.segment.cause").map(str::to_owned));
        words.extend(text(span, "wren.outcome").map(|outcome| format!("outcome={outcome}")));
        words.extend(span.attribute("wren.cost.usd_nanos").map(|_| format!("cost={}", own_cost(span))));
        words.extend(span.events.iter().map(|event| format!("event={}", event.name)));
        let known = |link: &&Link| all.iter().any(|span| span.span_id == link.span_id);
        words.extend(span.links.iter().filter(known).map(|_| "linked".to_owned()));
        words.extend(text(span, "error.type").map(|kind| format!("error={kind}")));
        words.extend(span.attribute("wren.unfinished").map(|_| "unfinished".to_owned()));
        shown.push_str(&format!("{}{}\n", "  ".repeat(level + 1), words.join(" ")));
        add_outline(Some(&span.span_id), trace, level + 1, all, shown);
    }
}

/// A span is where it belongs, and inside what it belongs to.
fn check_place(span: &Span, by_id: &HashMap<&str, &Span>) {
    let keys: HashSet<&str> = span.attributes.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys.len(), span.attributes.len(), "an attribute stands twice on {}", span.name);
    assert!(span.start_us <= span.end_us, "{} ends before it begins", span.name);
    assert_eq!(span.error.is_some(), span.attribute("error.type").is_some(), "{} {:?}", span.name, span.error);
    assert!(span.attribute("wren.cost.tree_usd").is_some(), "{} was not closed", span.name);
    let Some(parent) = &span.parent_span_id else { return assert_eq!(kind(span), "invoke_workflow", "a root of its trace") };
    let parent = by_id.get(&**parent).unwrap_or_else(|| panic!("{} of {:?} has no parent", span.name, text(span, "wren.run.id")));
    let belongs: &[&str] = match kind(span) {
        "invoke_agent" => &["invoke_workflow", "execute_tool"],
        "turn" => &["invoke_agent"],
        "chat" | "execute_tool" => &["turn"],
        other => panic!("a span named {other}"),
    };
    assert!(belongs.contains(&kind(parent)), "{} under {}", span.name, parent.name);
    assert_eq!(span.trace_id, parent.trace_id);
    let inside = parent.start_us <= span.start_us && span.end_us <= parent.end_us;
    assert!(inside, "{} of {:?} sticks out of {}", span.name, text(span, "wren.run.id"), parent.name);
    if kind(parent) == "execute_tool" {
        assert_eq!(text(parent, "wren.child.run_id"), text(span, "wren.run.id"));
    }
}

/// A new trace is linked to the one before, and nothing links within a trace.
fn check_traces(spans: &[Span]) {
    let mut seen: Vec<&str> = Vec::new();
    let mut segments: Vec<&Span> = spans.iter().filter(|span| kind(span) == "invoke_workflow").collect();
    segments.sort_by_key(|span| span.int("wren.segment.index"));
    for span in segments {
        if seen.last().is_some_and(|last| *last != span.trace_id) {
            assert_eq!(span.links.iter().map(|link| &*link.trace_id).collect::<Vec<_>>(), [*seen.last().unwrap()]);
        } else {
            // The first one is linked to its submission, which is another's.
            let links: Vec<&str> =
                span.links.iter().map(|link| &*link.trace_id).filter(|trace| spans.iter().any(|span| span.trace_id == *trace)).collect();
            assert!(links.is_empty(), "{links:?}");
        }
        assert_eq!(text(span, "wren.segment.previous_trace_id"), seen.last().copied());
        seen.push(&span.trace_id);
    }
}

/// Every nano-dollar is on one chat span, and every reply's figures on its turn.
fn check_money(journal: &[&Recorded], spans: &[Span], cost_usd_nanos: i64) {
    let sum: i64 = spans.iter().filter(|span| kind(span) == "chat").map(own_cost).sum();
    assert_eq!(sum, cost_usd_nanos, "the chat spans add up to the ledger");
    let mut replies: BTreeMap<(&RunId, u32), i64> = BTreeMap::new();
    for recorded in journal {
        if let Event::TurnEnded(turn) = &recorded.event {
            // Notes that made room for a turn are paid by it.
            *replies.entry((&recorded.run, turn.turn)).or_insert(0) += turn.cost_usd_nanos;
        }
    }
    for ((run, turn), cost) in replies {
        let of_turn = |span: &&Span| kind(span) == "turn" && text(span, "wren.run.id") == Some(run.as_str());
        let shown: Vec<f64> = spans
            .iter()
            .filter(of_turn)
            .filter(|span| span.int("wren.turn.index") == i64::from(turn))
            .map(|span| match span.attribute("wren.cost.usd") {
                Some(Attribute::Float(usd)) => *usd,
                other => panic!("{other:?}"),
            })
            .collect();
        let sum = (shown.iter().sum::<f64>() * 1e9).round();
        assert!((sum - cost as f64).abs() < 1.0, "turn {turn} of {run} cost {cost}, its spans say {shown:?}");
    }
}

/// Every call that has a result has a span that says how it went.
fn check_calls(journal: &[&Recorded], spans: &[Span]) {
    for recorded in journal {
        let Event::CallEnded(call) = &recorded.event else { continue };
        let of_call = |span: &&Span| {
            kind(span) == "execute_tool"
                && text(span, "gen_ai.tool.call.id") == Some(call.call_id.as_str())
                && text(span, "wren.run.id") == Some(recorded.run.as_str())
        };
        // What was wanted by somebody is no error, nor what a child did not do because of it.
        let failed = match call.failure {
            None | Some(CallFailure::Cancelled) => Some(false),
            Some(CallFailure::Child) => None,
            Some(_) => Some(true),
        };
        let says_so =
            |span: &Span| failed.is_none_or(|failed| span.error.is_some() == failed) && text(span, "error.type") != Some("interrupted");
        assert!(spans.iter().filter(of_call).any(says_so), "call {} of {}", call.call_id, recorded.run);
    }
}
