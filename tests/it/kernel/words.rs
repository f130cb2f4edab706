//! Decisions and facts as the golden scripts show them: a line each.

use wren::kernel::CallId;
use wren::kernel::event::{CallFailure, Event, Purpose};
use wren::kernel::next::{Ending, Need, Next};

fn ids(calls: &[CallId]) -> String {
    calls.iter().map(CallId::as_str).collect::<Vec<_>>().join(" ")
}

fn or_ok(failure: Option<CallFailure>) -> &'static str {
    failure.map_or("ok", CallFailure::name)
}

fn ending(ending: &Ending) -> String {
    let truncated = if ending.truncated { " truncated" } else { "" };
    let why = if ending.reason.is_empty() { String::new() } else { format!(" {} {:?}", ending.reason, ending.message) };
    format!("end {}{truncated}{why}", ending.outcome.name())
}

pub fn decision(next: &Next) -> String {
    match next {
        Next::Start => "start".to_owned(),
        Next::Ask(ask) if ask.purpose == Purpose::Compact => format!("ask for notes at turn {} attempt {}", ask.turn, ask.attempt),
        Next::Ask(ask) => format!("ask turn {} attempt {} max_output {}", ask.turn, ask.attempt, ask.max_output),
        Next::Answer(answers) => {
            let answers = answers.iter().map(|answer| format!("{}={}", answer.call_id, or_ok(answer.failure)));
            format!("answer {}", answers.collect::<Vec<_>>().join(" "))
        }
        Next::Call(calls) => format!("call {}", ids(calls)),
        Next::Spawn(calls) => format!("spawn {}", ids(calls)),
        Next::Tell(text) => format!("tell {text:?}"),
        Next::Clear(before) => format!("clear before {before}"),
        Next::Switch(why) => format!("switch {why:?}"),
        Next::Park(Need::Calls) => "park for calls".to_owned(),
        Next::Park(Need::Settlement) => "park for settlement".to_owned(),
        Next::End(stop) => ending(stop),
    }
}

pub fn event(event: &Event) -> String {
    fact(event).trim_end().to_owned()
}

fn fact(event: &Event) -> String {
    let kind = event.kind();
    match event {
        Event::TurnStarted(turn) => {
            let purpose = if turn.purpose == Purpose::Compact { " compact" } else { "" };
            format!(
                "{kind}{purpose} {} attempt {} reserves {} nano-USD {} tokens",
                turn.turn, turn.attempt, turn.reservation.usd_nanos, turn.reservation.tokens
            )
        }
        Event::TurnEnded(turn) if turn.purpose == Purpose::Compact => format!("{kind} compact {} cost {}", turn.turn, turn.cost_usd_nanos),
        Event::TurnEnded(turn) => format!("{kind} {} {} cost {}", turn.turn, turn.stop.name(), turn.cost_usd_nanos),
        Event::TurnAborted(turn) => format!(
            "{kind} {} attempt {} {} cost {} written off {}",
            turn.turn,
            turn.attempt,
            turn.reason.name(),
            turn.cost_usd_nanos,
            turn.written_off.usd_nanos
        ),
        Event::CallStarted(call) => format!("{kind} {} {} attempt {} key {}", call.call_id, call.tool, call.attempt, call.idempotency_key),
        Event::CallEnded(call) => format!("{kind} {} {} {:?}", call.call_id, or_ok(call.failure), call.output),
        Event::CallInDoubt { call_id } => format!("{kind} {call_id}"),
        Event::ChildStarted { call_id, child, .. } => format!("{kind} {call_id} {child}"),
        Event::ChildEnded(ended) => format!("{kind} {} {} cost {}", ended.call_id, ended.outcome.name(), ended.subtree_cost_usd_nanos),
        Event::ModelChanged(changed) => format!("{kind} {} {} {}", changed.agent, changed.model.full_name(), changed.cause.name()),
        Event::ContextCompacted(compacted) => {
            let notes = compacted.summary.as_deref().unwrap_or("");
            format!("{kind} from {} kept, to {} cleared {notes:?}", compacted.kept_from, compacted.cleared_to)
        }
        Event::RunSuspended { outcome, reason, .. } => format!("{kind} {} {reason}", outcome.name()),
        Event::RunResumed { cause, .. } => format!("{kind} {cause:?}"),
        Event::RunEnded(ended) => format!("{kind} {} {}", ended.outcome.name(), ended.reason),
        Event::CancelRequested { reason, .. } => format!("{kind} {reason:?}"),
        Event::RunCreated(_) | Event::RunStarted {} | Event::MessageReceived { .. } | Event::LimitsChanged { .. } => kind.to_owned(),
    }
}
