//! What the drivers of one tree share: the plan, the tools, the feed, and who is alive.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio_util::sync::CancellationToken;

use super::feed::Feed;
use crate::kernel::{Outcome, RunId};
use crate::store::CancelMark;
use crate::tool::Registry;
use crate::workflow::Plan;

/// A tree that has drivers, or had some a moment ago.
pub struct Tree {
    /// The root run.
    pub root: RunId,
    /// The workflow that every run of the tree follows.
    pub plan: Arc<Plan>,
    /// The workflow's inputs.
    pub inputs: Value,
    /// The tools, opened once for the tree.
    pub registry: Registry,
    /// Where commits and live text go.
    pub feed: Arc<Feed>,
    /// Fires whenever a reservation was settled, for those who wait for money.
    pub settled: Notify,
    /// Fires whenever a driver began or left.
    pub changed: Notify,
    /// Held by a command (cancel, resume) from its look at the tree until its drivers are seated, so that no two commands
    /// act on the same look.
    pub commands: AsyncMutex<()>,
    /// The root of the tree's tokens.
    token: CancellationToken,
    members: Mutex<HashMap<RunId, Member>>,
    /// Who wants which run to end: what the store has already when a token fires.
    marks: Mutex<HashMap<RunId, CancelMark>>,
}

/// One run of the tree, as its relatives need to know it.
#[derive(Clone)]
struct Member {
    token: CancellationToken,
    wake: Arc<Notify>,
    deadline_us: i64,
    driven: bool,
    suspended: Option<Outcome>,
}

/// What a driver is handed when it joins its tree.
pub struct Seat {
    /// Fires when the run is to be cancelled.
    pub token: CancellationToken,
    /// Rings when the run's journal has news from elsewhere, or a child was suspended.
    pub wake: Arc<Notify>,
    /// When the least time limit on the run's path is up.
    pub deadline_us: i64,
}

impl Tree {
    /// Returns a tree without drivers.
    pub fn new(root: RunId, plan: Arc<Plan>, inputs: Value, registry: Registry, feed: Arc<Feed>) -> Self {
        Self {
            root,
            plan,
            inputs,
            registry,
            feed,
            settled: Notify::new(),
            changed: Notify::new(),
            commands: AsyncMutex::new(()),
            token: CancellationToken::new(),
            members: Mutex::default(),
            marks: Mutex::default(),
        }
    }

    /// Seats a driver, unless the run has one.
    pub fn join(&self, run: &RunId, parent: Option<&RunId>) -> Option<Seat> {
        let mut members = self.lock();
        if members.get(run).is_some_and(|member| member.driven) {
            return None;
        }
        let above = parent.and_then(|parent| members.get(parent));
        let token = above.map_or(&self.token, |above| &above.token).child_token();
        let deadline_us = above.map_or(i64::MAX, |above| above.deadline_us);
        let wake = Arc::new(Notify::new());
        let member = Member { token: token.clone(), wake: wake.clone(), deadline_us, driven: true, suspended: None };
        members.insert(run.clone(), member);
        drop(members);
        self.changed.notify_waiters();
        Some(Seat { token, wake, deadline_us })
    }

    /// Returns when the least time limit on a run's path is up, if its driver has worked that out.
    pub fn deadline_us(&self, run: &RunId) -> Option<i64> {
        self.lock().get(run).filter(|member| member.driven).map(|member| member.deadline_us).filter(|deadline_us| *deadline_us != i64::MAX)
    }

    /// Sets when a run's own time is up, and returns when the least time limit on its path is.
    pub fn bound(&self, run: &RunId, deadline_us: i64) -> i64 {
        let mut members = self.lock();
        let Some(member) = members.get_mut(run) else { return deadline_us };
        member.deadline_us = member.deadline_us.min(deadline_us);
        member.deadline_us
    }

    /// Notes that a run's driver has left; `suspended` if the run can go on.
    pub fn leave(&self, run: &RunId, suspended: Option<Outcome>) {
        if let Some(member) = self.lock().get_mut(run) {
            member.driven = false;
            member.suspended = suspended;
        }
        self.changed.notify_waiters();
    }

    /// Notes a run that was suspended before this daemon saw the tree.
    pub fn note_suspended(&self, run: &RunId, outcome: Outcome) {
        let member = Member {
            token: self.token.child_token(),
            wake: Arc::new(Notify::new()),
            deadline_us: i64::MAX,
            driven: false,
            suspended: Some(outcome),
        };
        self.lock().entry(run.clone()).or_insert(member);
    }

    /// Notes that a suspended run goes on and will have a driver in a moment.
    pub fn note_resumed(&self, run: &RunId) {
        if let Some(member) = self.lock().get_mut(run) {
            member.suspended = None;
        }
    }

    /// Returns why a run is suspended, if it is.
    pub fn suspended(&self, run: &RunId) -> Option<Outcome> {
        self.lock().get(run).and_then(|member| member.suspended)
    }

    /// Returns whether the run has a driver.
    pub fn is_driven(&self, run: &RunId) -> bool {
        self.lock().get(run).is_some_and(|member| member.driven)
    }

    /// Returns whether any run has a driver.
    pub fn is_alive(&self) -> bool {
        self.lock().values().any(|member| member.driven)
    }

    /// Returns how many runs have a driver.
    pub fn driven(&self) -> usize {
        self.lock().values().filter(|member| member.driven).count()
    }

    /// Rings for a run.
    pub fn wake(&self, run: &RunId) {
        if let Some(member) = self.lock().get(run) {
            member.wake.notify_one();
        }
    }

    /// Fires the token of a run and so of everything below it. The mark is durable already.
    pub fn cancel(&self, run: &RunId, mark: &CancelMark) {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner).entry(run.clone()).or_insert_with(|| mark.clone());
        let token = self.lock().get(run).map(|member| member.token.clone());
        if let Some(token) = token {
            token.cancel();
        }
    }

    /// Returns who wanted the end of a run whose token has fired in this daemon.
    pub fn mark(&self, run: &RunId) -> Option<CancelMark> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner).get(run).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
