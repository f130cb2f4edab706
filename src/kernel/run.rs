//! A run as the fold of its journal. [`Run::apply`] is the only thing that changes it, and a fact that cannot follow
//! what was before is a typed error. Running and recovering are the same fold.

mod calls;
mod context;
mod model;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::agent::ModelSpec;
use super::event::{Abort, Cause, Event, Purpose, Recorded, RunCreated, TurnAborted, TurnEnded, TurnStarted};
use super::message::{AssistantMessage, Call, CallId, Message, Request, RunId, Stop};
use super::size;
use super::summary::{Outcome, State, Summary};

pub use calls::{PendingCall, Progress};

/// A run, as its journal says.
#[derive(Clone, Debug)]
pub struct Run {
    /// What a row of a list shows.
    pub summary: Summary,
    /// What it was told at its creation.
    pub created: Arc<RunCreated>,
    /// The conversation: the results of the last reply's calls join it when all of them are there.
    pub transcript: Vec<Arc<Message>>,
    /// The calls of the last reply, in the order asked; empty once all results have joined the transcript.
    pub calls: Vec<PendingCall>,
    /// The model that is asked.
    pub model: Arc<ModelSpec>,
    /// What is asked instead once that fails, in this order.
    pub fallback: Vec<Arc<ModelSpec>>,
    /// Models that somebody chose for agents of this run and of the runs below it, by agent.
    pub models: BTreeMap<String, Arc<ModelSpec>>,
    /// Attempts at the present turn that were another model's, or made room for it.
    others_attempts: u32,
    /// Of the attempts at the present turn, those at which this model's provider said that it is asked too much.
    refusals: u32,
    /// What the last attempt that came to nothing was for.
    pub failed_purpose: Purpose,
    /// Whether the provider called the turn that is to be had too long.
    pub overlong: bool,
    /// The attempt at a turn that is under way.
    pub open_turn: Option<TurnStarted>,
    /// The last attempt that came to nothing, if the turn is still to be had.
    pub last_abort: Option<TurnAborted>,
    /// Why the last reply stopped; `None` before the first.
    pub last_stop: Option<Stop>,
    /// Requests to repair the final answer so far.
    pub repairs: u32,
    /// Calls so far by tool, refused ones left out.
    pub calls_by_tool: BTreeMap<String, u32>,
    /// Children that failed under `on_failure: fail`, in words.
    pub fatal_child: Option<String>,
    /// Takeovers after a crash since a turn or a call last ended.
    pub takeovers: u32,
    /// Bytes said since a provider last counted the conversation.
    bytes_since_count: i64,
    /// Input plus output as a provider last counted them.
    counted_tokens: Option<i64>,
    /// The first message that was not there when it did.
    counted_to: usize,
    /// What the model reads of the transcript.
    window: context::Window,
    /// Time spent running in earlier segments.
    ran_us: i64,
    /// When the present segment began; `None` while suspended, pending or ended.
    segment_from_us: Option<i64>,
    epoch: u64,
}

/// A fact that cannot follow what was before: the journal, or whoever writes it, is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Illegal {
    /// The run.
    pub run: RunId,
    /// The place in its journal.
    pub seq: u64,
    /// The fact's kind.
    pub kind: &'static str,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for Illegal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "journal of run {} is broken at seq {}: {}: {}", self.run, self.seq, self.kind, self.why)
    }
}

impl std::error::Error for Illegal {}

impl Run {
    /// Begins the fold with the first fact of a journal.
    ///
    /// # Errors
    /// [`Illegal`] if that is not a `run_created` at seq 1.
    pub fn create(first: &Recorded) -> Result<Self, Illegal> {
        let Event::RunCreated(created) = &first.event else {
            return Err(illegal(first, "a journal begins with run_created"));
        };
        if first.seq != 1 {
            return Err(illegal(first, "a journal begins at seq 1"));
        }
        let summary = Summary::create(first.run.clone(), created, first.seq, first.time_us);
        let prompt = Message::User { text: created.prompt.clone() };
        Ok(Self {
            summary,
            created: created.clone(),
            transcript: vec![Arc::new(prompt)],
            calls: Vec::new(),
            model: created.agent.model.clone(),
            fallback: created.agent.model.fallback.clone(),
            models: created.models.clone(),
            others_attempts: 0,
            refusals: 0,
            failed_purpose: Purpose::Task,
            overlong: false,
            open_turn: None,
            last_abort: None,
            last_stop: None,
            repairs: 0,
            calls_by_tool: BTreeMap::new(),
            fatal_child: None,
            takeovers: 0,
            bytes_since_count: 0,
            counted_tokens: None,
            counted_to: 0,
            window: context::Window::default(),
            ran_us: 0,
            segment_from_us: None,
            epoch: first.epoch,
        })
    }

    /// Folds a whole journal.
    ///
    /// # Errors
    /// [`Illegal`] at the first fact that cannot follow, or if there is none at all.
    pub fn fold<'a>(journal: impl IntoIterator<Item = &'a Recorded>) -> Result<Option<Self>, Illegal> {
        let mut journal = journal.into_iter();
        let Some(first) = journal.next() else { return Ok(None) };
        let mut run = Self::create(first)?;
        for recorded in journal {
            run.apply(recorded)?;
        }
        Ok(Some(run))
    }

    /// Returns the run's id.
    pub fn id(&self) -> &RunId {
        &self.summary.id
    }

    /// Returns whether it is the root of its tree.
    pub fn is_root(&self) -> bool {
        self.created.parent.is_none()
    }

    /// Returns the replies so far.
    pub fn turns(&self) -> u32 {
        u32::try_from(self.summary.own.turns).unwrap_or(u32::MAX)
    }

    /// Returns how long it has been in state running, up to `now_us`.
    pub fn running_us(&self, now_us: i64) -> i64 {
        self.ran_us.saturating_add(self.segment_from_us.map_or(0, |from| now_us.saturating_sub(from).max(0)))
    }

    /// Returns the text of the last reply that had any. What a reply said before it was paused belongs to it.
    pub fn last_text(&self) -> String {
        let mut text = String::new();
        for message in self.transcript.iter().rev() {
            let Message::Assistant(reply) = &**message else { continue };
            if !text.is_empty() && !reply.paused {
                break;
            }
            text.insert_str(0, &reply.text);
        }
        text
    }

    /// Returns the last message if it is the model's.
    pub fn last_reply(&self) -> Option<&AssistantMessage> {
        match self.transcript.last().map(|message| &**message) {
            Some(Message::Assistant(reply)) => Some(reply),
            Some(Message::User { .. } | Message::Tool(_)) | None => None,
        }
    }

    /// Returns the pending call of that id.
    pub fn call(&self, id: &CallId) -> Option<&PendingCall> {
        self.calls.iter().find(|pending| pending.call.id == *id)
    }

    /// Returns an upper bound on the tokens of the next request: what a provider last counted and the bytes said
    /// since, for no tokenizer makes more tokens than there are bytes.
    pub fn input_tokens_max(&self) -> i64 {
        let said = self.bytes_since_count;
        self.counted_tokens.map_or_else(
            || said + size::of_agent(&self.created.agent) + size::of_text(&self.created.prompt) + size::FRAME_TOKENS_MAX,
            |counted| counted + said,
        )
    }

    /// Notes what a provider counted. An estimate is no bound, nor is a count that leaves the input out: then the bytes
    /// of everything said stand in for it.
    fn count(&mut self, turn: &TurnEnded) {
        let usage = turn.usage.sane();
        if turn.estimated || usage.input_tokens == 0 {
            self.counted_tokens = Some(0);
            self.bytes_since_count = self.whole_bytes(&turn.message);
        } else {
            self.counted_tokens = Some(usage.total_tokens());
            self.counted_to = self.transcript.len() + 1;
            self.bytes_since_count = 0;
        }
    }

    /// Returns the request of the attempt that `turn` began: a function of the journal up to it, and of nothing else.
    pub fn request(&self, turn: &TurnStarted) -> Request {
        let agent = &self.created.agent;
        Request {
            agent: agent.name.clone(),
            model: self.model.clone(),
            instructions: agent.instructions.clone(),
            messages: match turn.purpose {
                Purpose::Task => self.read_messages(),
                Purpose::Compact => self.summary_messages(self.cut().unwrap_or(self.transcript.len())),
            },
            tools: agent.tools.clone(),
            purpose: turn.purpose,
            max_output: turn.max_output,
            turn: turn.turn,
            attempt: turn.attempt,
        }
    }

    /// Adds the next fact.
    ///
    /// # Errors
    /// [`Illegal`] if it cannot follow what was before. The run must not be used after that.
    pub fn apply(&mut self, recorded: &Recorded) -> Result<(), Illegal> {
        self.check_place(recorded)?;
        match &recorded.event {
            Event::RunCreated(_) => return Err(illegal(recorded, "the run exists already")),
            Event::RunStarted {} => self.start(recorded)?,
            Event::TurnStarted(turn) => self.start_turn(recorded, turn)?,
            Event::TurnEnded(turn) if turn.purpose == Purpose::Compact => {
                self.close_turn(recorded, turn.turn, turn.attempt)?;
                // The turn itself is still to be had; its attempts go on from here.
                self.settle_attempts(turn.attempt);
                self.takeovers = 0;
            }
            Event::TurnEnded(turn) => {
                self.close_turn(recorded, turn.turn, turn.attempt)?;
                if has_twins(&turn.message.calls) {
                    return Err(illegal(recorded, "two calls have the same id"));
                }
                self.settle_attempts(0);
                self.overlong = false;
                self.last_stop = Some(turn.stop);
                self.count(turn);
                self.calls = turn.message.calls.iter().map(|call| PendingCall { call: call.clone(), progress: Progress::Asked }).collect();
                self.transcript.push(Arc::new(Message::Assistant(turn.message.clone())));
                self.takeovers = 0;
            }
            Event::TurnAborted(turn) => {
                self.failed_purpose = self.open_turn.as_ref().map_or(Purpose::Task, |open| open.purpose);
                self.overlong |= turn.reason == Abort::ContextLength && self.failed_purpose == Purpose::Task;
                self.refusals += u32::from(turn.reason.is_refusal());
                self.close_turn(recorded, turn.turn, turn.attempt)?;
                self.last_abort = Some(turn.clone());
            }
            Event::CallStarted(call) => self.start_call(recorded, &call.call_id, call.attempt)?,
            Event::CallEnded(call) => self.end_call(recorded, call)?,
            Event::CallInDoubt { call_id } => self.doubt_call(recorded, call_id)?,
            Event::ChildStarted { call_id, child, .. } => self.start_child(recorded, call_id, child)?,
            Event::ChildEnded(child) => self.end_child(recorded, child)?,
            Event::MessageReceived { text, .. } => self.receive(recorded, text)?,
            Event::LimitsChanged { .. } => {}
            Event::ModelChanged(changed) => self.change_model(recorded, changed)?,
            Event::ContextCompacted(compacted) => self.compact(recorded, compacted)?,
            Event::RunSuspended { outcome, .. } => self.suspend(recorded, *outcome)?,
            Event::RunResumed { cause, .. } => self.resume(recorded, *cause)?,
            Event::CancelRequested { .. } => {
                if self.summary.state == State::Suspended {
                    self.take_back_started();
                }
                // A suspended run is woken by its cancel, so its clock runs again until it has ended.
                self.segment_from_us.get_or_insert(recorded.time_us);
            }
            Event::RunEnded(ended) => self.end(recorded, ended.outcome)?,
        }
        self.summary.apply(recorded);
        Ok(())
    }

    fn check_place(&mut self, recorded: &Recorded) -> Result<(), Illegal> {
        if recorded.run != self.summary.id {
            return Err(illegal(recorded, "the fact belongs to another run"));
        }
        if recorded.seq != self.summary.seq + 1 {
            return Err(illegal(recorded, &format!("expected seq {}", self.summary.seq + 1)));
        }
        if recorded.epoch < self.epoch {
            return Err(illegal(recorded, "its epoch is older than the one before"));
        }
        if self.summary.state == State::Ended {
            return Err(illegal(recorded, "the run has ended"));
        }
        self.epoch = recorded.epoch;
        Ok(())
    }

    fn start(&mut self, recorded: &Recorded) -> Result<(), Illegal> {
        if self.summary.state != State::Pending {
            return Err(illegal(recorded, "the run has started already"));
        }
        self.segment_from_us = Some(recorded.time_us);
        Ok(())
    }

    fn start_turn(&mut self, recorded: &Recorded, turn: &TurnStarted) -> Result<(), Illegal> {
        if self.summary.state != State::Running {
            return Err(illegal(recorded, "the run is not running"));
        }
        if self.open_turn.is_some() {
            return Err(illegal(recorded, "a turn is under way"));
        }
        if !self.calls.is_empty() {
            return Err(illegal(recorded, "calls of the last reply have no result yet"));
        }
        if turn.turn != self.turns() + 1 || turn.attempt != self.next_attempt() {
            return Err(illegal(recorded, &format!("expected turn {}, attempt {}", self.turns() + 1, self.next_attempt())));
        }
        self.open_turn = Some(turn.clone());
        Ok(())
    }

    fn close_turn(&mut self, recorded: &Recorded, turn: u32, attempt: u32) -> Result<(), Illegal> {
        match self.open_turn.take() {
            Some(open) if open.turn == turn && open.attempt == attempt => Ok(()),
            Some(_) => Err(illegal(recorded, "another turn or attempt is under way")),
            None => Err(illegal(recorded, "no turn is under way")),
        }
    }

    fn receive(&mut self, recorded: &Recorded, text: &str) -> Result<(), Illegal> {
        if self.open_turn.is_some() || !self.calls.is_empty() {
            return Err(illegal(recorded, "words can come in between turns only"));
        }
        // After a resumed refusal the words only ask it to go on: there is no stop then, and nothing was repaired.
        if self.last_reply().is_some() && self.last_stop.is_some() {
            self.repairs += 1;
        }
        self.transcript.push(Arc::new(Message::User { text: text.to_owned() }));
        self.bytes_since_count += size::of_text(text) + size::FRAME_TOKENS_MAX;
        Ok(())
    }

    fn suspend(&mut self, recorded: &Recorded, outcome: Outcome) -> Result<(), Illegal> {
        self.check_state(recorded, &[State::Running])?;
        self.check_quiet(recorded)?;
        if !outcome.suspends(self.is_root()) {
            return Err(illegal(recorded, &format!("{} ends this run", outcome.name())));
        }
        self.stop_clock(recorded.time_us);
        Ok(())
    }

    fn end(&mut self, recorded: &Recorded, outcome: Outcome) -> Result<(), Illegal> {
        self.check_state(recorded, &[State::Running, State::Cancelling])?;
        self.check_quiet(recorded)?;
        if !self.calls.is_empty() {
            return Err(illegal(recorded, "calls of the last reply have no result yet"));
        }
        if outcome.suspends(self.is_root()) {
            return Err(illegal(recorded, &format!("{} suspends this run", outcome.name())));
        }
        self.stop_clock(recorded.time_us);
        Ok(())
    }

    fn check_quiet(&self, recorded: &Recorded) -> Result<(), Illegal> {
        if self.open_turn.is_some() { Err(illegal(recorded, "a turn is under way")) } else { Ok(()) }
    }

    fn check_state(&self, recorded: &Recorded, allowed: &[State]) -> Result<(), Illegal> {
        if allowed.contains(&self.summary.state) {
            return Ok(());
        }
        Err(illegal(recorded, &format!("it cannot happen in state {}", self.summary.state.name())))
    }

    fn resume(&mut self, recorded: &Recorded, cause: Cause) -> Result<(), Illegal> {
        match cause {
            Cause::Crash => {
                self.check_state(recorded, &[State::Running])?;
                // The time between the last fact and the takeover had no daemon, so it does not count.
                self.stop_clock(self.summary.updated_us);
                if !self.only_waits_for_children() {
                    self.takeovers += 1;
                }
            }
            Cause::User | Cause::Drained => {
                if self.summary.state != State::Suspended {
                    return Err(illegal(recorded, "only a suspended run can be resumed"));
                }
            }
        }
        if self.summary.state == State::Suspended {
            self.take_back_started();
        }
        if cause == Cause::User {
            self.takeovers = 0;
            self.settle_attempts(0);
            self.overlong = false;
            for pending in &mut self.calls {
                if let Progress::InDoubt { released, .. } = &mut pending.progress {
                    *released = true;
                }
            }
            if matches!(self.summary.outcome, Some(Outcome::Blocked | Outcome::ProviderError)) {
                // What stopped the run was its last reply; looked at again, it would stop it again.
                self.last_stop = None;
            }
        }
        self.segment_from_us = Some(recorded.time_us);
        Ok(())
    }

    fn stop_clock(&mut self, now_us: i64) {
        self.ran_us = self.running_us(now_us);
        self.segment_from_us = None;
    }

    fn whole_bytes(&self, reply: &AssistantMessage) -> i64 {
        self.read_bytes() + size::of_message(&Message::Assistant(reply.clone()))
    }
}

fn has_twins(calls: &[Call]) -> bool {
    let ids: BTreeSet<&str> = calls.iter().map(|call| call.id.as_str()).collect();
    ids.len() < calls.len()
}

fn illegal(recorded: &Recorded, why: &str) -> Illegal {
    Illegal { run: recorded.run.clone(), seq: recorded.seq, kind: recorded.event.kind(), why: why.to_owned() }
}
