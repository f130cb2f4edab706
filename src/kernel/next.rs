//! The loop's one decision: given a run and what surrounds it, what is to be done next?
//!
//! [`next`] is asked after every fact, by a fresh run and by one that was recovered alike. The refusals stand in a
//! fixed order: cancelled; calls without a result; provider failure; final answer; turns, money, tokens, time; the
//! worst case of one more turn.

mod context;
mod provider;

use std::collections::BTreeMap;

use super::agent::Effect;
use super::event::{Abort, CallFailure, ChildEnded, Event, Purpose, RunEnded};
use super::ledger::{Account, Reservation};
use super::message::{Args, CallId, Message, Stop};
use super::run::{PendingCall, Progress, Run};
use super::summary::{Outcome, State};
pub use provider::{ATTEMPTS_MAX, ATTEMPTS_WITH_FALLBACK_MAX, REFUSALS_MAX};

/// How often the model may be asked to repair an answer that does not fit its schema.
pub const REPAIRS_MAX: u32 = 2;
/// How often a run may be taken over after a crash without any turn or call ending in between.
pub const TAKEOVERS_MAX: u32 = 5;

/// What surrounds a run at the moment of the decision.
#[derive(Clone, Debug)]
pub struct Around<'a> {
    /// The time, in microseconds since the Unix epoch.
    pub now_us: i64,
    /// When the least time limit on the path is up.
    pub deadline_us: i64,
    /// The accounts of the run and of all above it.
    pub path: &'a [Account],
    /// An upper bound on the tokens of the next request.
    pub input_tokens_max: i64,
    /// How many it has, as nearly as can be told; a window is kept by this.
    pub context_tokens: i64,
    /// Whether a cancel of this run or of one above it is durable.
    pub cancelled: bool,
    /// Whether the daemon wants to stop at the next turn boundary.
    pub draining: bool,
    /// Whether every child that the run waits for is suspended, and why.
    pub children_suspended: Option<Outcome>,
    /// Why the model is not worth asking now, if other runs have found that out.
    pub model_down: Option<String>,
    /// The last reply read as the agent's output schema asks; `None` where there is no schema.
    pub output: Option<Result<serde_json::Value, String>>,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Begin the run.
    Start,
    /// Set the reservation aside and ask the model.
    Ask(Ask),
    /// Leave long results before this message out of what the model reads.
    Clear(usize),
    /// Ask the next model of the fallback list from here on, for this reason.
    Switch(String),
    /// Give these calls their results: refusals in words, and the answers of children that ended.
    Answer(Vec<Answer>),
    /// Run these tools, at once.
    Call(Vec<CallId>),
    /// Create child runs for these calls.
    Spawn(Vec<CallId>),
    /// Put these words into the conversation.
    Tell(String),
    /// Wait.
    Park(Need),
    /// Stop.
    End(Ending),
}

/// One more turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What for.
    pub purpose: Purpose,
    /// From 1.
    pub turn: u32,
    /// From 1.
    pub attempt: u32,
    /// The most output tokens to ask for.
    pub max_output: i64,
    /// What to set aside.
    pub reservation: Reservation,
}

/// A call's result, given without running a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The call.
    pub call_id: CallId,
    /// The tool's name as the model wrote it.
    pub tool: String,
    /// Why it did not do what was asked; `None` for the answer of a child that completed.
    pub failure: Option<CallFailure>,
    /// What the model reads.
    pub words: String,
}

/// What a parked run waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Its tools and children.
    Calls,
    /// Money or tokens that other runs have set aside.
    Settlement,
}

/// How a run stops.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// Why, in a word.
    pub outcome: Outcome,
    /// Why, as a code; empty if completed.
    pub reason: &'static str,
    /// Why, in words; empty if completed.
    pub message: String,
    /// The answer where the agent has an output schema.
    pub output: Option<serde_json::Value>,
    /// Whether the last reply was cut off.
    pub truncated: bool,
}

impl Ending {
    fn new(outcome: Outcome, reason: &'static str, message: impl Into<String>) -> Self {
        Self { outcome, reason, message: message.into(), output: None, truncated: false }
    }

    /// Returns the fact that this ending is for `run`: suspended or ended.
    pub fn into_event(self, run: &Run) -> Event {
        let text = run.last_text();
        if self.outcome.suspends(run.is_root()) {
            return Event::RunSuspended { outcome: self.outcome, reason: self.reason.to_owned(), message: self.message, text };
        }
        Event::RunEnded(Box::new(RunEnded {
            outcome: self.outcome,
            reason: self.reason.to_owned(),
            message: self.message,
            text,
            output: self.output,
            truncated: self.truncated,
        }))
    }
}

/// Decides.
pub fn next(run: &Run, around: &Around<'_>) -> Next {
    if around.cancelled {
        return cancelled(run);
    }
    if run.summary.state == State::Pending {
        return Next::Start;
    }
    if run.takeovers >= TAKEOVERS_MAX {
        let words = format!("taken over {} times without a turn or a call ending in between; resume it to try again", run.takeovers);
        return Next::End(Ending::new(Outcome::InDoubt, "CRASH_LOOP", words));
    }
    if !run.calls.is_empty() {
        return pending_calls(run, around);
    }
    if let Some(words) = &run.fatal_child {
        return Next::End(Ending::new(Outcome::Failed, "CHILD_FAILED", words.clone()));
    }
    if let Some(decision) = context::too_long(run, around).or_else(|| provider::failed(run)) {
        return decision;
    }
    if let Some(decision) = answered(run, around) {
        return decision;
    }
    if around.draining {
        return Next::End(Ending::new(Outcome::Drained, "DRAINED", "the daemon is shutting down; the run goes on at its next start"));
    }
    if let Some(ending) = limit_reached(run, around) {
        return Next::End(ending);
    }
    ask(run, around)
}

fn cancelled(run: &Run) -> Next {
    let open: Vec<&PendingCall> = run.calls.iter().filter(|pending| !matches!(pending.progress, Progress::Ended(_))).collect();
    if open.iter().any(|pending| in_flight(pending)) {
        return Next::Park(Need::Calls);
    }
    if !open.is_empty() {
        return Next::Answer(open.iter().map(|pending| cancelled_answer(pending)).collect());
    }
    let reason = run.summary.cancel_reason.as_deref().filter(|reason| !reason.is_empty());
    let words = reason.map_or_else(|| "cancelled".to_owned(), |reason| format!("cancelled: {reason}"));
    Next::End(Ending::new(Outcome::Cancelled, "CANCELLED", words))
}

fn cancelled_answer(pending: &PendingCall) -> Answer {
    match &pending.progress {
        Progress::Child { ended: Some(ended), .. } => child_answer(pending, ended),
        Progress::InDoubt { .. } => {
            refusal(pending, CallFailure::InDoubt, "Cut by a crash; it may have taken effect. The run was cancelled.")
        }
        Progress::Asked | Progress::Started { .. } | Progress::Child { .. } | Progress::Ended(_) => {
            refusal(pending, CallFailure::Cancelled, "Not run: the run was cancelled.")
        }
    }
}

/// Returns whether somebody is at the call: a tool, or a child that has not ended.
fn in_flight(pending: &PendingCall) -> bool {
    match &pending.progress {
        Progress::Started { .. } => true,
        Progress::Child { ended, .. } => ended.is_none(),
        Progress::Asked | Progress::InDoubt { .. } | Progress::Ended(_) => false,
    }
}

fn pending_calls(run: &Run, around: &Around<'_>) -> Next {
    let answers = answers(run, around);
    if !answers.is_empty() {
        return Next::Answer(answers);
    }
    let asked: Vec<&PendingCall> = run.calls.iter().filter(|pending| pending.progress == Progress::Asked).collect();
    let (spawns, tools): (Vec<_>, Vec<_>) = asked.into_iter().partition(|pending| effect(run, pending) == Some(Effect::Spawn));
    if !around.draining {
        let spawns = startable(run, &spawns);
        if !spawns.is_empty() {
            return Next::Spawn(spawns);
        }
    }
    if !tools.is_empty() && !around.draining {
        return Next::Call(tools.iter().map(|pending| pending.call.id.clone()).collect());
    }
    let tool_runs = run.calls.iter().any(|pending| matches!(pending.progress, Progress::Started { .. }));
    let doubted = run.calls.iter().find(|pending| matches!(pending.progress, Progress::InDoubt { .. }));
    let child_runs = run.calls.iter().any(|pending| matches!(&pending.progress, Progress::Child { ended: None, .. }));
    if !tool_runs
        && !child_runs
        && let Some(doubted) = doubted
    {
        let words = format!(
            "call {} of tool {:?} was cut by a crash and may have taken effect; check, then resume the run: the model is told that the outcome is unknown",
            doubted.call.id, doubted.call.tool
        );
        return Next::End(Ending::new(Outcome::InDoubt, "CALL_IN_DOUBT", words));
    }
    // A parent stays until its children have stopped: what it waits for is then over in the journal before it is.
    if !tool_runs && around.draining && (!child_runs || around.children_suspended.is_some()) {
        return Next::End(Ending::new(Outcome::Drained, "DRAINED", "the daemon is shutting down; the run goes on at its next start"));
    }
    match around.children_suspended {
        Some(outcome) if !tool_runs => {
            let words = "every child that this run waits for is suspended; resume this run to resume them".to_owned();
            Next::End(Ending::new(outcome, "CHILDREN_SUSPENDED", words))
        }
        Some(_) | None => Next::Park(Need::Calls),
    }
}

fn effect(run: &Run, pending: &PendingCall) -> Option<Effect> {
    run.created.agent.tools.iter().find(|tool| tool.name == pending.call.tool).map(|tool| tool.effect)
}

/// Returns the subagent calls that may start now under each tool's `max_parallel`.
fn startable(run: &Run, asked: &[&PendingCall]) -> Vec<CallId> {
    let mut running: BTreeMap<&str, u32> = BTreeMap::new();
    for pending in run.calls.iter().filter(|pending| in_flight(pending)) {
        *running.entry(&pending.call.tool).or_default() += 1;
    }
    let mut startable = Vec::new();
    for pending in asked {
        let spec = run.created.agent.tools.iter().find(|tool| tool.name == pending.call.tool);
        let parallel_max = spec.and_then(|tool| tool.spawn.as_ref()).map_or(1, |spawn| spawn.max_parallel.max(1));
        let at_once = running.entry(&pending.call.tool).or_default();
        if *at_once < parallel_max {
            *at_once += 1;
            startable.push(pending.call.id.clone());
        }
    }
    startable
}

/// Returns the calls that are answered in words, in the order asked.
fn answers(run: &Run, around: &Around<'_>) -> Vec<Answer> {
    let mut answers = Vec::new();
    let mut calls_by_tool = run.calls_by_tool.clone();
    let mut runs_left = around.path.iter().map(Account::runs_left).min().unwrap_or(0);
    let time_up = around.now_us >= around.deadline_us;
    for pending in &run.calls {
        match &pending.progress {
            Progress::Ended(_) | Progress::Started { .. } => {}
            Progress::Child { ended: None, .. } => {}
            Progress::Child { ended: Some(ended), .. } => answers.push(child_answer(pending, ended)),
            Progress::InDoubt { released: false, .. } => {}
            Progress::InDoubt { at_us, released: true } => {
                let words = format!(
                    "Tool {:?} was started at {} but the daemon died before its result was known. It may have taken effect. Verify before you repeat it.",
                    pending.call.tool,
                    utc(*at_us)
                );
                answers.push(refusal(pending, CallFailure::InDoubt, &words));
            }
            Progress::Asked => {
                let refused = refuse_asked(run, pending, &mut calls_by_tool, &mut runs_left);
                let refused = refused.or_else(|| time_up.then(|| (CallFailure::Timeout, "Not run: the run's time is up.".to_owned())));
                if let Some((failure, words)) = refused {
                    answers.push(refusal(pending, failure, &words));
                }
            }
        }
    }
    answers
}

fn refuse_asked(
    run: &Run,
    pending: &PendingCall,
    calls_by_tool: &mut BTreeMap<String, u32>,
    runs_left: &mut u32,
) -> Option<(CallFailure, String)> {
    match run.last_stop {
        Some(Stop::Length) => {
            let words = "Not run: the reply that asked for this was cut off by its output limit, so its calls may be incomplete. Ask for less in one reply.";
            return Some((CallFailure::NotRun, words.to_owned()));
        }
        Some(Stop::Refusal | Stop::Error) => {
            return Some((CallFailure::NotRun, "Not run: the reply that asked for this did not end properly.".to_owned()));
        }
        Some(Stop::EndTurn | Stop::ToolCalls) | None => {}
    }
    if run.fatal_child.is_some() {
        return Some((CallFailure::NotRun, "Not run: a child run failed, and this run ends with it (on_failure: fail).".to_owned()));
    }
    let tools = &run.created.agent.tools;
    let Some(tool) = tools.iter().find(|tool| tool.name == pending.call.tool) else {
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        let available = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return Some((CallFailure::UnknownTool, format!("no tool named {:?} is registered; available: {available}", pending.call.tool)));
    };
    if let Args::Broken { raw, error } = &pending.call.args {
        let shown: String = raw.chars().take(200).collect();
        return Some((CallFailure::InvalidArguments, format!("Not run: {error}. You sent: {shown}. Send one JSON object.")));
    }
    let spawn = tool.spawn.as_ref()?;
    let used = calls_by_tool.entry(tool.name.clone()).or_default();
    if *used >= spawn.max_calls {
        let words = format!(
            "Not run: {:?} may be called {} times in one run (max_calls), and was. Work with the answers you have.",
            tool.name, spawn.max_calls
        );
        return Some((CallFailure::LimitReached, words));
    }
    if run.summary.limits.max_depth == 0 {
        let words = format!(
            "Not run: a child of this run would be deeper than max_depth allows. Do the work of {:?} yourself, or answer without it.",
            tool.name
        );
        return Some((CallFailure::LimitReached, words));
    }
    if *runs_left == 0 {
        let words = "Not run: the tree has as many runs as max_runs allows. Work with the answers you have.".to_owned();
        return Some((CallFailure::LimitReached, words));
    }
    *used += 1;
    *runs_left -= 1;
    None
}

fn refusal(pending: &PendingCall, failure: CallFailure, words: &str) -> Answer {
    Answer { call_id: pending.call.id.clone(), tool: pending.call.tool.clone(), failure: Some(failure), words: words.to_owned() }
}

/// Returns what the parent's model reads of a child that ended.
fn child_answer(pending: &PendingCall, ended: &ChildEnded) -> Answer {
    let failure = (ended.outcome != Outcome::Completed).then_some(CallFailure::Child);
    let words = match (&failure, &ended.output) {
        (Some(_), _) => child_words(ended),
        (None, Some(output)) => output.to_string(),
        (None, None) if ended.text.is_empty() => "The child run completed without any text.".to_owned(),
        (None, None) if ended.truncated => format!("{}\n[cut off by the child's output limit]", ended.text),
        (None, None) => ended.text.clone(),
    };
    Answer { call_id: pending.call.id.clone(), tool: pending.call.tool.clone(), failure, words }
}

fn child_words(ended: &ChildEnded) -> String {
    let cost = usd(ended.subtree_cost_usd_nanos);
    let why = if ended.message.is_empty() { String::new() } else { format!(": {}", ended.message) };
    let head = format!("The child run stopped early (outcome {}{why}; {} turns, {cost}).", ended.outcome.name(), ended.turns);
    if ended.text.is_empty() { format!("{head} It gave no result.") } else { format!("{head} Its partial text:\n{}", ended.text) }
}

/// Returns an amount as people read it: `$0.002470`.
pub fn usd(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let micros = (nanos.unsigned_abs() + 500) / 1000;
    format!("{sign}${}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

/// Returns a time as `2026-11-30T12:00:00Z`.
fn utc(time_us: i64) -> String {
    let seconds = time_us.div_euclid(1_000_000);
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Civil date from days since 1970-01-01, counting years from March so that the leap day comes last.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// Decides on the last reply, all of whose calls have their results. `None`: ask again.
fn answered(run: &Run, around: &Around<'_>) -> Option<Next> {
    let stop = run.last_stop?;
    let final_reply = run.last_reply();
    match stop {
        Stop::Refusal => Some(Next::End(Ending::new(Outcome::Blocked, "REFUSAL", refusal_words(run)))),
        Stop::Error => Some(Next::End(Ending::new(Outcome::ProviderError, "MALFORMED_REPLY", "the model's reply ended in an error"))),
        Stop::Length if final_reply.is_none() && replied_last(run) => {
            let words = "the reply was cut off by max_output while it asked for tools, so none of them ran; resume it with a larger max_output, or let it ask for less";
            Some(Next::End(Ending::new(Outcome::Blocked, "LENGTH_WITH_CALLS", words)))
        }
        Stop::EndTurn | Stop::ToolCalls | Stop::Length => {
            // A paused reply is sent back as it is, and the provider goes on with it.
            final_reply.filter(|reply| !reply.paused)?;
            Some(finished(run, around, stop == Stop::Length))
        }
    }
}

/// Returns whether nothing but results came after the last reply.
fn replied_last(run: &Run) -> bool {
    let last = run.transcript.iter().rev().find(|message| !matches!(&***message, Message::Tool(_)));
    last.is_some_and(|message| matches!(&**message, Message::Assistant(_)))
}

fn finished(run: &Run, around: &Around<'_>, truncated: bool) -> Next {
    let mut ending = Ending::new(Outcome::Completed, "", "");
    ending.truncated = truncated;
    match &around.output {
        None => Next::End(ending),
        Some(Ok(value)) => {
            ending.output = Some(value.clone());
            Next::End(ending)
        }
        Some(Err(fault)) if run.repairs < REPAIRS_MAX => {
            if let Some(ending) = limit_reached(run, around) {
                return Next::End(ending);
            }
            Next::Tell(format!(
                "Your answer does not fit the schema that it must have: {fault}. Answer again with the corrected JSON alone, nothing before or after it."
            ))
        }
        Some(Err(fault)) => {
            let words = format!("the answer does not fit output_schema after {REPAIRS_MAX} repairs: {fault}");
            Next::End(Ending::new(Outcome::Failed, "INVALID_OUTPUT", words))
        }
    }
}

fn refusal_words(run: &Run) -> String {
    let words = run.transcript.iter().rev().find_map(|message| match &**message {
        Message::Assistant(reply) => Some(reply.refusal.clone().unwrap_or_default()),
        Message::User { .. } | Message::Tool(_) => None,
    });
    match words.filter(|words| !words.is_empty()) {
        Some(words) => format!("the model refused: {words}"),
        None => "the model or its provider's filter refused".to_owned(),
    }
}

fn limit_reached(run: &Run, around: &Around<'_>) -> Option<Ending> {
    let limits = &run.summary.limits;
    if run.turns() >= limits.max_turns {
        let words = format!("{} of {} turns used", run.turns(), limits.max_turns);
        return Some(Ending::new(Outcome::MaxTurns, "MAX_TURNS", words));
    }
    let left = least_left(around.path);
    if left.usd_nanos <= 0 {
        return Some(Ending::new(Outcome::Budget, "BUDGET", format!("nothing is left of the budget of {}", usd(limits.budget_usd_nanos))));
    }
    if left.tokens <= 0 {
        return Some(Ending::new(Outcome::MaxTokens, "MAX_TOKENS", format!("nothing is left of max_tokens {}", limits.max_tokens)));
    }
    // A turn that was cut because the time was up says so itself: the clock that cut it and this one may differ a little.
    let cut = run.last_abort.as_ref().is_some_and(|abort| abort.reason == Abort::Timeout);
    if cut || around.now_us >= around.deadline_us {
        return Some(Ending::new(Outcome::Timeout, "TIMEOUT", "the time limit is up"));
    }
    None
}

fn least_left(path: &[Account]) -> Reservation {
    let mut least = Reservation { usd_nanos: i64::MAX, tokens: i64::MAX };
    for account in path {
        let left = account.left();
        least.usd_nanos = least.usd_nanos.min(left.usd_nanos);
        least.tokens = least.tokens.min(left.tokens);
    }
    least
}

fn ask(run: &Run, around: &Around<'_>) -> Next {
    if run.last_reply().is_some_and(|reply| !reply.paused) {
        // A blocked run was resumed: no provider goes on from its own last word.
        return Next::Tell("Please go on.".to_owned());
    }
    if let Some(why) = around.model_down.as_ref().filter(|_| !run.fallback.is_empty()) {
        return Next::Switch(why.clone());
    }
    let room = match context::room(run, around) {
        Ok(room) => room,
        Err(full) => return full,
    };
    priced(run, around, Purpose::Task, around.input_tokens_max, run.model.max_output.min(room))
}

/// Asks for as much of `output` as the path can pay for, with so much input at most.
fn priced(run: &Run, around: &Around<'_>, purpose: Purpose, input: i64, output: i64) -> Next {
    let model = &run.model;
    let left = least_left(around.path);
    let worst = |output: i64| model.price.map_or(0, |price| price.worst_case_usd_nanos(input, output));
    let floor = model.output_floor();
    if worst(floor) > left.usd_nanos {
        let words = format!("{} is left on the path, and one more turn may cost {}", usd(left.usd_nanos), usd(worst(floor)));
        return Next::End(Ending::new(Outcome::Budget, "BUDGET", words));
    }
    if input.saturating_add(floor) > left.tokens {
        let words = format!("{} tokens are left on the path, and one more turn may use {}", left.tokens, input.saturating_add(floor));
        return Next::End(Ending::new(Outcome::MaxTokens, "MAX_TOKENS", words));
    }
    let by_tokens = left.tokens - input;
    let rates = model.price.map(|price| price.worst_rates(input));
    let by_money = rates.filter(|rates| rates.output_pico_max() > 0).map_or(i64::MAX, |rates| {
        let pico_left = i128::from(left.usd_nanos) * 1000 - i128::from(input) * i128::from(rates.input_pico_max());
        i64::try_from(pico_left / i128::from(rates.output_pico_max())).unwrap_or(i64::MAX)
    });
    let max_output = output.min(by_tokens).min(by_money).max(floor.min(output));
    let reservation = Reservation { usd_nanos: worst(max_output), tokens: input.saturating_add(max_output) };
    let free = around.path.iter().all(|account| {
        let left = account.left();
        account.reserved.usd_nanos.saturating_add(reservation.usd_nanos) <= left.usd_nanos
            && account.reserved.tokens.saturating_add(reservation.tokens) <= left.tokens
    });
    if !free {
        return Next::Park(Need::Settlement);
    }
    Next::Ask(Ask { purpose, turn: run.turns() + 1, attempt: run.next_attempt(), max_output, reservation })
}
