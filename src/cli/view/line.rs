//! Events as lines: the time, who, what. One event is one line, deltas of text apart.

use std::collections::HashMap;

use super::Paint;
use super::frame::hint;
use super::text::{clean, count, elapsed, enum_name, fit, micros, one_line, pad, plural, time_of_day, usd, without_name};
use crate::wire::v1::event::Payload;
use crate::wire::v1::{
    CallEnded, ChildEnded, ContextCompacted, Event, Failure, Limits, Message, ModelChanged, Outcome, Run, RunCreated, RunEnded, RunResumed,
    RunSuspended, TurnAborted, TurnEnded, TurnStarted,
};

/// A turn's purpose where it is notes that stand in for the conversation.
pub const COMPACT: &str = "compact";

const WORDS_CELLS: usize = 100;
const NAME_CELLS: usize = 16;
const ID_TAIL: usize = 4;

/// Turns events into lines; it remembers the names of runs.
#[derive(Clone, Debug)]
pub struct Narrator {
    names: HashMap<String, String>,
    last_us: i64,
    paint: Paint,
}

impl Narrator {
    /// Makes one that knows no run yet.
    pub fn new(paint: Paint) -> Self {
        Self { names: HashMap::new(), last_us: 0, paint }
    }

    /// Returns the line of an event; `None` for a payload that this version does not know.
    pub fn line(&mut self, event: &Event) -> Option<String> {
        if let Some(Payload::RunCreated(RunCreated { run: Some(run), .. })) = &event.payload {
            self.names.insert(event.run_id.clone(), name(run));
        }
        let who = self.name_of(&event.run_id);
        let what = self.what(event)?;
        // What is live only bears no time of its own.
        self.last_us = if event.time.is_some() { micros(event.time.as_ref()) } else { self.last_us };
        let time = time_of_day(self.last_us);
        Some(format!("{} {} {what}", self.paint.dim(&time), self.paint.cyan(&pad(&who, NAME_CELLS))))
    }

    fn name_of(&self, run_id: &str) -> String {
        self.names.get(run_id).cloned().unwrap_or_else(|| format!("#{}", tail(run_id)))
    }

    fn what(&self, event: &Event) -> Option<String> {
        Some(match event.payload.as_ref()? {
            Payload::RunCreated(created) => run_created(event, created),
            Payload::RunStarted(_) => "started".to_owned(),
            Payload::TurnStarted(turn) => turn_started(turn),
            Payload::TurnEnded(turn) => turn_ended(turn),
            Payload::TurnAborted(turn) => self.paint.yellow(&turn_aborted(turn)),
            Payload::CallStarted(call) => {
                let again = if call.attempt > 1 { format!(" again, attempt {}", call.attempt) } else { String::new() };
                format!("{}{again} {}", one_line(&call.tool), hint(&call.args_json)).trim_end().to_owned()
            }
            Payload::CallEnded(call) => call_ended(call, self.paint),
            Payload::CallInDoubt(call) => {
                self.paint.yellow(&format!("call {} may or may not have taken effect before the crash", one_line(&call.call_id)))
            }
            Payload::ChildStarted(child) => format!("started {}#{}", one_line(&child.agent), tail(&child.child_run_id)),
            Payload::ChildEnded(child) => child_ended(child, &self.name_of(&child.child_run_id)),
            Payload::MessageReceived(message) => {
                format!("message from {}: {}", one_line(&message.sender), words(&message.text))
            }
            Payload::LimitsChanged(changed) => {
                let limits = limits(&changed.limits.unwrap_or_default());
                format!("limits changed by {}: {limits}{}", one_line(&changed.actor), because(&changed.reason))
            }
            Payload::ModelChanged(changed) => model_changed(changed, self.paint),
            Payload::ContextCompacted(compacted) => context_compacted(compacted),
            Payload::RunSuspended(stop) => self.paint.yellow(&run_suspended(stop)),
            Payload::RunResumed(resumed) => run_resumed(resumed),
            Payload::CancelRequested(cancel) => {
                self.paint.yellow(&format!("cancel asked for by {}{}", one_line(&cancel.actor), because(&cancel.reason)))
            }
            Payload::RunEnded(stop) => run_ended(stop, self.paint),
            Payload::TextDelta(delta) => format!("> {}", clean(delta.text.trim_end_matches('\n'))),
            Payload::ToolProgress(progress) => format!("{} {}", one_line(&progress.tool), words(&progress.text)),
        })
    }
}

fn name(run: &Run) -> String {
    let agent = one_line(&run.agent);
    if run.parent_run_id.is_empty() { agent } else { format!("{agent}#{}", tail(&run.run_id)) }
}

/// The end of an id tells runs of one tree apart; its beginning is the time, which they share.
fn tail(run_id: &str) -> String {
    let chars: Vec<char> = run_id.chars().collect();
    chars.iter().skip(chars.len().saturating_sub(ID_TAIL)).collect()
}

fn words(text: &str) -> String {
    fit(&one_line(text), WORDS_CELLS).into_owned()
}

fn because(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(" ({})", words(reason)) }
}

fn outcome_name(outcome: Outcome) -> String {
    enum_name(outcome.as_str_name(), "OUTCOME_")
}

fn failure(outcome: Outcome, failure: Option<&Failure>) -> String {
    let told = failure.map(|failure| words(&without_name(&outcome_name(outcome), &failure.message))).filter(|message| !message.is_empty());
    told.map_or_else(String::new, |message| format!(": {message}"))
}

/// Returns the limits that are set, in words.
pub fn limits(limits: &Limits) -> String {
    let timeout = limits.timeout.as_ref().map(|time| elapsed(time.seconds.saturating_mul(1_000_000) + i64::from(time.nanos) / 1000));
    let parts = [
        limits.max_turns.map(|turns| format!("{} turns", count(turns.into()))),
        limits.budget_usd_nanos.map(usd),
        limits.max_tokens.map(|tokens| format!("{} tokens", count(tokens))),
        timeout,
        limits.max_depth.map(|depth| format!("depth {depth}")),
        limits.max_runs.map(|runs| format!("{} runs", count(runs.into()))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn run_created(event: &Event, created: &RunCreated) -> String {
    let Some(run) = &created.run else { return "accepted".to_owned() };
    let title = if run.title.is_empty() { String::new() } else { format!(" \"{}\"", words(&run.title)) };
    let limits = run.limits.as_ref().map(|all| format!(" within {}", limits(all))).unwrap_or_default();
    let workflow = if run.parent_run_id.is_empty() { format!(" {} {}", one_line(&run.workflow_name), event.run_id) } else { String::new() };
    format!("accepted{workflow}{title}{limits}")
}

fn turn_started(turn: &TurnStarted) -> String {
    let attempt = if turn.attempt > 1 { format!(", attempt {}", turn.attempt) } else { String::new() };
    let what = if turn.purpose == COMPACT { " notes to make room," } else { "" };
    format!("turn {}{attempt}:{what} asking {}, {} set aside", turn.turn, one_line(&turn.model), usd(turn.reserved_usd_nanos))
}

fn turn_ended(turn: &TurnEnded) -> String {
    let stop = enum_name(turn.stop().as_str_name(), "STOP_");
    let about = if turn.estimated { "about " } else { "" };
    let unknown = if turn.cost_unknown { " (price unknown)" } else { "" };
    let stated = turn.stated_cost_usd_nanos.filter(|_| turn.cost_disputed);
    let stated = stated.map_or_else(String::new, |nanos| format!(" (the provider says {})", usd(nanos)));
    let said = turn.message.as_ref().map(said).unwrap_or_default();
    format!(
        "turn {}: {stop}, {about}{} + {} tokens, {}{unknown}{stated}, run {}{said}",
        turn.turn,
        count(turn.input_tokens),
        count(turn.output_tokens),
        usd(turn.cost_usd_nanos),
        usd(turn.run_cost_usd_nanos)
    )
}

fn context_compacted(compacted: &ContextCompacted) -> String {
    let about = count(compacted.tokens_before);
    if compacted.summary.is_empty() {
        return format!("made room: long results before message {} are left out, of about {about} tokens", compacted.cleared_to);
    }
    format!(
        "made room: notes stand in for the messages before {}, of about {about} tokens: {}",
        compacted.kept_from,
        words(&compacted.summary)
    )
}

fn said(message: &Message) -> String {
    let text = words(&message.text);
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

fn turn_aborted(turn: &TurnAborted) -> String {
    let status = if turn.http_status > 0 { format!(" ({})", turn.http_status) } else { String::new() };
    let message = if turn.message.is_empty() { String::new() } else { format!(": {}", words(&turn.message)) };
    let lost = if turn.written_off_usd_nanos > 0 { format!("; {} written off", usd(turn.written_off_usd_nanos)) } else { String::new() };
    let spent = if turn.cost_usd_nanos > 0 { format!("; {} spent", usd(turn.cost_usd_nanos)) } else { String::new() };
    let next = if turn.retryable { "; may be tried again" } else { "" };
    format!("turn {}, attempt {}: {}{status}{message}{spent}{lost}{next}", turn.turn, turn.attempt, one_line(&turn.reason))
}

fn call_ended(call: &CallEnded, paint: Paint) -> String {
    let tool = one_line(&call.tool);
    let time = if call.elapsed_ms > 0 { format!(" {}", elapsed(call.elapsed_ms.saturating_mul(1000))) } else { String::new() };
    if !call.ok {
        return paint.yellow(&format!("{tool} {}{time}: {}", one_line(&call.failure), words(&call.output)));
    }
    let characters = call.output.chars().count();
    let cut = if call.omitted_char_count > 0 { format!(", {} left out", count(call.omitted_char_count)) } else { String::new() };
    format!("{tool} ok{time}, {}{cut}", plural(characters, "character"))
}

fn child_ended(child: &ChildEnded, name: &str) -> String {
    let turns = plural(usize::try_from(child.turn_count).unwrap_or(0), "turn");
    let why = failure(child.outcome(), child.failure.as_ref());
    format!("{name} ended: {}, {turns}, {}{why}", outcome_name(child.outcome()), usd(child.subtree_cost_usd_nanos))
}

fn run_suspended(stop: &RunSuspended) -> String {
    let turns = plural(usize::try_from(stop.turn_count).unwrap_or(0), "turn");
    format!(
        "suspended: {}, {turns}, {}{}",
        outcome_name(stop.outcome()),
        usd(stop.cost_usd_nanos),
        failure(stop.outcome(), stop.failure.as_ref())
    )
}

fn run_resumed(resumed: &RunResumed) -> String {
    let actor = if resumed.actor.is_empty() { String::new() } else { format!(" by {}", one_line(&resumed.actor)) };
    format!("resumed{actor} ({})", one_line(&resumed.cause))
}

fn model_changed(changed: &ModelChanged, paint: Paint) -> String {
    let actor = if changed.actor.is_empty() { String::new() } else { format!(" by {}", one_line(&changed.actor)) };
    let text = format!("{} asks {} from here on{actor}{}", one_line(&changed.agent), one_line(&changed.model), because(&changed.reason));
    if changed.cause == "fallback" { paint.yellow(&text) } else { text }
}

fn run_ended(stop: &RunEnded, paint: Paint) -> String {
    let turns = plural(usize::try_from(stop.turn_count).unwrap_or(0), "turn");
    let cut = if stop.truncated { ", the last reply was cut off" } else { "" };
    let text = format!(
        "ended: {}, {turns}, {}{cut}{}",
        outcome_name(stop.outcome()),
        usd(stop.cost_usd_nanos),
        failure(stop.outcome(), stop.failure.as_ref())
    );
    if stop.outcome() == Outcome::Completed { paint.green(&text) } else { paint.yellow(&text) }
}
