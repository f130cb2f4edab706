//! One run: asks the kernel what is next, does it, writes down what came of it, and asks again.
//!
//! The driver owns its run: it alone writes the run's journal. It holds no lock and spawns no task; a child run is
//! handed to the supervisor. It decides nothing that the kernel can decide.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Duration, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::context::Measure;
use super::journal::{Commit, Journal, Stop};
use super::limiter::{Permit, Want};
use super::supervisor::Runtime;
use super::tree::{Seat, Tree};
use crate::kernel::event::{Abort, CallEnded, CallFailure, ChildEnded, Event, ModelCause, ModelChanged, Purpose, RunEnded, TurnStarted};
use crate::kernel::next::{Answer, Around, Ask, Ending, Need, Next, next};
use crate::kernel::run::Progress;
use crate::kernel::{CallId, Outcome, RunId};
use crate::provider::retry;
use crate::workflow;

/// How long a tool may take to stop once its token has fired.
const TOOL_GRACE: Duration = Duration::from_secs(2);

/// The driver of one run.
pub struct Driver {
    pub(super) runtime: Runtime,
    pub(super) tree: Arc<Tree>,
    pub(super) journal: Journal,
    pub(super) seat: Seat,
    /// Fires for the calls under way when the run is cancelled or its time is up.
    pub(super) calls_token: CancellationToken,
    pub(super) effects: FuturesUnordered<BoxFuture<'static, CallEnded>>,
    waited_for: Option<(u32, u32)>,
    pub(super) permit: Option<Permit>,
    pub(super) measure: Measure,
    cancel_seen: bool,
    deadline_seen: bool,
    drain_seen: bool,
}

/// How a driver left its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Over.
    Ended,
    /// It can go on.
    Suspended(Outcome),
}

impl Driver {
    /// Takes a seat at a run.
    pub fn new(runtime: Runtime, tree: Arc<Tree>, journal: Journal, seat: Seat) -> Self {
        let calls_token = seat.token.child_token();
        Self {
            runtime,
            tree,
            journal,
            seat,
            calls_token,
            effects: FuturesUnordered::new(),
            waited_for: None,
            permit: None,
            measure: Measure::default(),
            cancel_seen: false,
            deadline_seen: false,
            drain_seen: false,
        }
    }

    /// Drives the run until it is suspended or over.
    ///
    /// # Errors
    /// [`Stop`] if the run must be let go as it is.
    pub async fn drive(mut self) -> Result<Left, Stop> {
        self.recover()?;
        loop {
            self.note_cancel().await?;
            let decision = self.decide().await?;
            if !matches!(decision, Next::Ask(_)) {
                self.permit = None;
            }
            match decision {
                Next::Start => self.journal.stage(Event::RunStarted {})?,
                Next::Answer(answers) => self.answer(answers)?,
                Next::Switch(why) => self.switch(why)?,
                Next::Clear(before) => self.clear(before)?,
                Next::Tell(text) => self.journal.stage(Event::MessageReceived { sender: "wren".to_owned(), text })?,
                Next::Call(ids) => self.call(&ids).await?,
                Next::Spawn(ids) => self.spawn(&ids).await?,
                Next::Ask(ask) => self.ask(ask).await?,
                Next::Park(need) => self.park(need).await?,
                Next::End(ending) => {
                    if let Some(left) = self.end(ending).await? {
                        return Ok(left);
                    }
                }
            }
        }
    }

    pub(super) fn run_id(&self) -> RunId {
        self.journal.run.id().clone()
    }

    fn cancelled(&self) -> bool {
        self.seat.token.is_cancelled() || self.journal.cancel.is_some()
    }

    async fn note_cancel(&mut self) -> Result<(), Stop> {
        if !self.cancelled() || self.journal.run.summary.cancel_reason.is_some() {
            return Ok(());
        }
        // The token may be seen before any commit has brought the mark back: who and why stand in the row.
        self.journal.read_mark().await?;
        let (actor, reason) = self.journal.cancel.clone().map_or_else(Default::default, |mark| (mark.actor, mark.reason));
        self.journal.stage(Event::CancelRequested { actor, reason })
    }

    /// Asks the kernel; a decision that stands on how much is left is only taken on fresh accounts.
    async fn decide(&mut self) -> Result<Next, Stop> {
        self.measure.take(&self.journal.run).await;
        let decision = self.decide_once();
        let on_accounts = match &decision {
            Next::Park(Need::Settlement) => true,
            Next::End(ending) => matches!(ending.outcome, Outcome::Budget | Outcome::MaxTokens),
            Next::Answer(answers) => answers.iter().any(|answer| answer.failure == Some(CallFailure::LimitReached)),
            Next::Start
            | Next::Ask(_)
            | Next::Call(_)
            | Next::Spawn(_)
            | Next::Tell(_)
            | Next::Switch(_)
            | Next::Clear(_)
            | Next::Park(Need::Calls) => false,
        };
        if !on_accounts {
            return Ok(decision);
        }
        self.journal.refresh().await?;
        Ok(self.decide_once())
    }

    fn decide_once(&self) -> Next {
        let run = &self.journal.run;
        let output = run.created.agent.output_schema.as_ref().filter(|_| run.calls.is_empty()).and_then(|schema| {
            let reply = run.last_reply()?;
            Some(workflow::read_output(schema, &reply.text))
        });
        let around = Around {
            now_us: self.runtime.clock().now_us(),
            deadline_us: self.seat.deadline_us,
            path: &self.journal.path,
            input_tokens_max: run.input_tokens_max(),
            context_tokens: self.measure.tokens(),
            cancelled: self.cancelled(),
            draining: self.runtime.is_draining(),
            children_suspended: self.children_suspended(),
            model_down: self.runtime.circuits().down(&run.model),
            output,
        };
        next(run, &around)
    }

    /// Returns why the children are suspended, if every child that the run waits for is.
    fn children_suspended(&self) -> Option<Outcome> {
        let waited: Vec<Option<Outcome>> = self
            .journal
            .run
            .calls
            .iter()
            .filter_map(|pending| match &pending.progress {
                Progress::Child { child, ended: None } => Some(self.tree.suspended(child)),
                Progress::Child { .. } | Progress::Asked | Progress::Started { .. } | Progress::InDoubt { .. } | Progress::Ended(_) => None,
            })
            .collect();
        let first = waited.first().copied().flatten()?;
        waited.iter().all(Option::is_some).then_some(first)
    }

    fn answer(&mut self, answers: Vec<Answer>) -> Result<(), Stop> {
        for answer in answers {
            let Answer { call_id, tool, failure, words } = answer;
            self.journal.stage(Event::CallEnded(CallEnded { call_id, tool, failure, output: words, omitted_chars: 0 }))?;
        }
        Ok(())
    }

    /// Turns to the next model of the list.
    fn switch(&mut self, reason: String) -> Result<(), Stop> {
        let run = &self.journal.run;
        let Some(model) = run.fallback.first().cloned() else { return Ok(()) };
        let agent = run.created.agent.name.clone();
        // What one model's counts have taught says nothing of another's.
        self.measure = Measure::default();
        let changed = ModelChanged { agent, model, cause: ModelCause::Fallback, actor: String::new(), reason };
        self.journal.stage(Event::ModelChanged(Box::new(changed)))
    }

    /// Sets money aside, asks the model, and stages what came of it.
    async fn ask(&mut self, ask: Ask) -> Result<(), Stop> {
        let model = self.journal.run.model.clone();
        if !self.backed_off(&ask).await? || !self.permitted(&ask).await? {
            return Ok(());
        }
        let started = TurnStarted {
            turn: ask.turn,
            attempt: ask.attempt,
            purpose: ask.purpose,
            model: model.full_name(),
            max_output: ask.max_output,
            reservation: ask.reservation,
        };
        self.journal.stage(Event::TurnStarted(started.clone()))?;
        if self.journal.commit().await? == Commit::Again {
            return Ok(());
        }
        let closed = self.turn(&started).await;
        self.note_limits(&closed);
        self.runtime.circuits().note(
            &model,
            match &closed {
                Event::TurnAborted(aborted) => Some(aborted.reason),
                _ => None,
            },
        );
        self.permit = None;
        match closed {
            Event::TurnEnded(ended) if started.purpose == Purpose::Compact => self.compact(&started, *ended),
            closed => {
                self.measure.learn(&closed);
                self.journal.stage(closed)
            }
        }
    }

    /// Waits before another attempt. Returns whether the turn may be asked for now; else the world has changed.
    async fn backed_off(&mut self, ask: &Ask) -> Result<bool, Stop> {
        // After a change of the model the failures before it were another's, and nothing is waited for.
        let failed = self.journal.run.last_abort.as_ref().filter(|_| self.journal.run.tries() > 0);
        let Some(failed) = failed.filter(|_| self.waited_for != Some((ask.turn, ask.attempt))) else { return Ok(true) };
        let jitter = u64::try_from(self.runtime.clock().now_us()).unwrap_or(0);
        let wait = Duration::from_millis(retry::delay_ms(self.journal.run.tries(), failed.reason, failed.retry_after_ms, jitter));
        // What is staged (the aborted attempt) frees money for others: it must not wait with us.
        if self.journal.commit().await? == Commit::Again {
            return Ok(false);
        }
        if self.interrupted(sleep(wait)).await {
            return Ok(false);
        }
        self.waited_for = Some((ask.turn, ask.attempt));
        Ok(true)
    }

    /// Waits for the right to ask the model. A parked run holds none, so children never wait for their parents.
    async fn permitted(&mut self, ask: &Ask) -> Result<bool, Stop> {
        let run = &self.journal.run;
        let want = Want {
            provider: run.model.provider.clone(),
            model: run.model.model.clone(),
            root: run.created.root.clone(),
            depth: run.created.depth,
            tokens: ask.reservation.tokens,
        };
        self.permit = self.permit.take().filter(|permit| permit.serves(&want));
        if self.permit.is_some() {
            return Ok(true);
        }
        let limiter = self.runtime.limiter().clone();
        if let Some(permit) = limiter.try_acquire(&want) {
            self.permit = Some(permit);
            return Ok(true);
        }
        if self.journal.commit().await? == Commit::Again {
            return Ok(false);
        }
        let mut permit = None;
        // The wait may have been long, or cut short: either way the kernel decides again, on fresh figures.
        self.interrupted(async { permit = Some(limiter.acquire(&want).await) }).await;
        self.permit = permit;
        Ok(false)
    }

    /// Tells the limiter what became of an attempt. A script refuses for the sake of its own run, and says nothing of a
    /// provider.
    fn note_limits(&mut self, closed: &Event) {
        let is_scripted = self.journal.run.model.scripted.is_some();
        let Some(permit) = self.permit.as_mut().filter(|_| !is_scripted) else { return };
        match closed {
            Event::TurnEnded(ended) => {
                permit.taken();
                permit.spent(ended.usage.total_tokens());
            }
            Event::TurnAborted(aborted) => {
                let spent = aborted.usage.map_or(0, |usage| usage.total_tokens());
                match aborted.reason {
                    Abort::RateLimited | Abort::Overloaded => permit.refused(aborted.retry_after_ms),
                    Abort::CutStream | Abort::Malformed | Abort::Cancelled => {
                        permit.taken();
                        permit.spent(spent);
                    }
                    Abort::Auth
                    | Abort::Quota
                    | Abort::ContextLength
                    | Abort::NotFound
                    | Abort::Provider
                    | Abort::Network
                    | Abort::ContentRefused
                    | Abort::InvalidRequest => permit.spent(spent),
                    // Nobody knows what the provider counts of these.
                    Abort::NoAnswer | Abort::Timeout | Abort::Crash => {}
                }
            }
            _ => {}
        }
    }

    /// Waits for `future`, unless a cancel, the deadline or a drain comes first. Returns whether one did.
    async fn interrupted(&mut self, future: impl Future<Output = ()>) -> bool {
        let deadline = self.runtime.clock().instant(self.seat.deadline_us);
        let draining = self.runtime.drain_token();
        tokio::select! {
            biased;
            () = self.seat.token.cancelled() => true,
            () = draining.cancelled() => true,
            () = sleep_until(deadline) => true,
            () = future => false,
        }
    }

    /// Commits what is staged and waits for something to change.
    async fn park(&mut self, need: Need) -> Result<(), Stop> {
        if self.journal.commit().await? == Commit::Again {
            return Ok(());
        }
        let tree = self.tree.clone();
        let settled = tree.settled.notified();
        tokio::pin!(settled);
        // Listening begins before the last look at the accounts, so that no settlement falls between the two.
        settled.as_mut().enable();
        if need == Need::Settlement {
            self.journal.refresh().await?;
            if self.decide_once() != Next::Park(Need::Settlement) {
                return Ok(());
            }
        }
        let deadline = self.runtime.clock().instant(self.seat.deadline_us);
        let draining = self.runtime.drain_token();
        tokio::select! {
            Some(ended) = self.effects.next(), if !self.effects.is_empty() => {
                self.journal.stage(Event::CallEnded(ended))?;
            }
            () = self.seat.wake.notified() => self.journal.catch_up().await?,
            () = self.seat.token.cancelled(), if !self.cancel_seen => self.cancel_seen = true,
            () = sleep_until(deadline), if !self.deadline_seen => {
                self.deadline_seen = true;
                self.calls_token.cancel();
            }
            () = draining.cancelled(), if !self.drain_seen => self.drain_seen = true,
            () = settled, if need == Need::Settlement => {}
        }
        Ok(())
    }

    /// Stops the run. `None`: the world had changed, decide again.
    async fn end(&mut self, ending: Ending) -> Result<Option<Left>, Stop> {
        let event = ending.into_event(&self.journal.run);
        let parent = self.journal.run.created.parent.as_ref().map(|parent| parent.call_id.clone());
        let child_ended = match (&event, parent) {
            (Event::RunEnded(ended), Some(call_id)) => Some(self.child_ended(ended, call_id)),
            _ => None,
        };
        let left = match &event {
            Event::RunSuspended { outcome, .. } => Left::Suspended(*outcome),
            _ => Left::Ended,
        };
        self.journal.stage_end(event, child_ended)?;
        Ok((self.journal.commit().await? == Commit::Done).then_some(left))
    }

    fn child_ended(&self, ended: &RunEnded, call_id: CallId) -> ChildEnded {
        let run = &self.journal.run;
        ChildEnded {
            call_id,
            child: run.id().clone(),
            outcome: ended.outcome,
            reason: ended.reason.clone(),
            message: ended.message.clone(),
            text: ended.text.clone(),
            output: ended.output.clone(),
            truncated: ended.truncated,
            turns: run.turns(),
            // The store's to say: it settles the last turn in the same transaction.
            subtree_cost_usd_nanos: 0,
        }
    }

    /// Returns what a call comes to once its token has fired: the cancel, or the time that is up.
    pub(super) fn cut_words(cancelled: bool) -> (CallFailure, &'static str) {
        if cancelled {
            (CallFailure::Cancelled, "The run was cancelled while this call ran.")
        } else {
            (CallFailure::Timeout, "The run's time was up while this call ran.")
        }
    }

    /// How long a call may take to stop.
    pub(super) fn grace() -> Duration {
        TOOL_GRACE
    }

    /// Returns why a model call is cut now, if it is.
    pub(super) fn cut_reason(&self) -> Abort {
        if self.cancelled() { Abort::Cancelled } else { Abort::Timeout }
    }
}
