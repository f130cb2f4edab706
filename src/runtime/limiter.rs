//! Who may ask which model now: one limiter for all runs of the daemon. Each model of each provider has a lane with a
//! [`gate`] that opens and closes by what is configured, by what the provider says is left, and by what it takes; the daemon
//! as a whole has a number of calls under way at once.
//!
//! Where runs wait, trees take turns, so that a large tree keeps no small one waiting; within a tree the deepest run goes
//! first, for others wait for it, and then the one that waited longest. It decides nothing about a run: a run that waits
//! can be cancelled, and nothing that it waited costs it a turn.

mod gate;

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};
use tokio::time::{Duration, Instant, sleep_until};

use self::gate::{Gate, Grant, Opening};
use crate::kernel::RunId;
use crate::provider::{Allowance, Providers};

/// Lanes above which those that remember nothing are dropped: a lane's name comes from workflows.
const LANES_MAX: usize = 1024;
/// How long a run waits at most before it looks again, where nothing says when the gate opens.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// One call that a run wants to make.
#[derive(Clone, Debug)]
pub struct Want {
    /// The provider's name.
    pub provider: String,
    /// The model's name at the provider.
    pub model: String,
    /// The run's tree.
    pub root: RunId,
    /// Levels between the run and the root.
    pub depth: u32,
    /// Tokens that the call takes at most, input and output.
    pub tokens: i64,
}

impl Want {
    fn lane(&self) -> LaneName {
        (self.provider.clone(), self.model.clone())
    }
}

/// Provider and model.
type LaneName = (String, String);
/// Where a waiting run stands within its tree: deepest first, then in the order in which they came.
type Rank = (Reverse<u32>, u64);

/// The limiter.
pub struct Limiter {
    /// Calls under way at once, of all models together.
    in_flight_max: usize,
    providers: Providers,
    state: Mutex<State>,
    /// Rung when somebody's turn may come with time alone, so that whoever waits looks when.
    timed: Notify,
}

#[derive(Default)]
struct State {
    in_flight: usize,
    arrivals: u64,
    lanes: BTreeMap<LaneName, Lane>,
    /// The lane that had the last word where the daemon as a whole was full.
    last: Option<LaneName>,
}

struct Lane {
    gate: Gate,
    waiting: BTreeMap<RunId, BTreeMap<Rank, Waiter>>,
    /// The trees that wait, the next one first.
    turns: VecDeque<RunId>,
}

struct Waiter {
    tokens: i64,
    permit: oneshot::Sender<Permit>,
}

/// The right to make one call; it is given back when this is dropped.
pub struct Permit {
    limiter: Arc<Limiter>,
    lane: LaneName,
    grant: Grant,
}

impl Limiter {
    /// Returns a limiter under which nothing is under way.
    pub fn new(in_flight_max: usize, providers: Providers) -> Self {
        Self { in_flight_max, providers, state: Mutex::default(), timed: Notify::new() }
    }

    /// Gives a permit if nobody has to wait for it.
    pub fn try_acquire(self: &Arc<Self>, want: &Want) -> Option<Permit> {
        let mut state = self.lock();
        let is_full = state.in_flight >= self.in_flight_max;
        let lane = self.lane(&mut state, want.lane());
        let is_open = !is_full && lane.waiting.is_empty() && lane.gate.opening(Instant::now(), want.tokens) == Opening::Now;
        if !is_open {
            return None;
        }
        let grant = lane.gate.start(Instant::now(), want.tokens);
        state.in_flight += 1;
        Some(Permit { limiter: self.clone(), lane: want.lane(), grant })
    }

    /// Waits until it is this call's turn. Dropping the future gives the place up.
    pub async fn acquire(self: &Arc<Self>, want: &Want) -> Permit {
        let (permit, mut given) = oneshot::channel();
        let _place = {
            let mut state = self.lock();
            state.arrivals += 1;
            let rank = (Reverse(want.depth), state.arrivals);
            let lane = self.lane(&mut state, want.lane());
            lane.add(&want.root, rank, Waiter { tokens: want.tokens, permit });
            Place { limiter: self, want, rank }
        };
        loop {
            let timed = self.timed.notified();
            tokio::pin!(timed);
            // Listening begins before the look, so that no ring falls between the two.
            timed.as_mut().enable();
            let opens = self.serve(want);
            tokio::select! {
                biased;
                permit = &mut given => {
                    if let Ok(permit) = permit {
                        return permit;
                    }
                    // The sender goes only with the permit or with the place, and this holds the place.
                    std::future::pending::<()>().await;
                }
                () = timed => {}
                () = sleep_until(opens) => {}
            }
        }
    }

    /// Gives permits to whose turn it is. Returns when the gate of a call may open by itself.
    fn serve(self: &Arc<Self>, want: &Want) -> Instant {
        let now = Instant::now();
        let (unclaimed, opens) = {
            let mut state = self.lock();
            let unclaimed = self.give(&mut state, now);
            let lane = self.lane(&mut state, want.lane());
            let opens = match lane.gate.opening(now, want.tokens) {
                Opening::At(at) => at,
                Opening::Now | Opening::Full => now + LOOK_AGAIN,
            };
            (unclaimed, opens)
        };
        // Each gives its place back, for which it needs the lock.
        drop(unclaimed);
        opens
    }

    /// Gives permits as long as somebody waits who can have one. Returns those whose receivers were gone.
    fn give(self: &Arc<Self>, state: &mut State, now: Instant) -> Vec<Permit> {
        let mut unclaimed = Vec::new();
        while state.in_flight < self.in_flight_max {
            let can = |lane: &Lane| lane.opening(now) == Some(Opening::Now);
            // The lanes take turns too: after the one that was served last, from there on around.
            let after = state.last.as_ref().and_then(|last| state.lanes.iter().find(|(name, lane)| *name > last && can(lane)));
            let Some(name) = after.or_else(|| state.lanes.iter().find(|(_, lane)| can(lane))).map(|(name, _)| name.clone()) else { break };
            let Some(lane) = state.lanes.get_mut(&name) else { break };
            let Some(waiter) = lane.take_next() else { break };
            let grant = lane.gate.start(now, waiter.tokens);
            state.in_flight += 1;
            state.last = Some(name.clone());
            if let Err(permit) = waiter.permit.send(Permit { limiter: self.clone(), lane: name, grant }) {
                unclaimed.push(permit);
            }
        }
        unclaimed
    }

    /// Gives what came back to whose turn it is. Where a gate opens with time alone, those who wait at it are told: nobody
    /// else would wake them then.
    fn pass_on(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let now = Instant::now();
        let unclaimed = self.give(&mut state, now);
        let is_timed = state.lanes.values().any(|lane| matches!(lane.opening(now), Some(Opening::At(_))));
        drop(state);
        if is_timed {
            self.timed.notify_waiters();
        }
        // Each gives its place back, for which it needs the lock.
        drop(unclaimed);
    }

    fn lane<'a>(&self, state: &'a mut State, name: LaneName) -> &'a mut Lane {
        if state.lanes.len() > LANES_MAX && !state.lanes.contains_key(&name) {
            state.lanes.retain(|_, lane| !lane.waiting.is_empty() || !lane.gate.is_fresh(Instant::now()));
        }
        let limits = self.providers.limits(&name.0);
        let gate = || Gate::new(limits, self.in_flight_max, Instant::now());
        state.lanes.entry(name).or_insert_with(|| Lane { gate: gate(), waiting: BTreeMap::new(), turns: VecDeque::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    fn add(&mut self, root: &RunId, rank: Rank, waiter: Waiter) {
        let tree = self.waiting.entry(root.clone()).or_default();
        if tree.is_empty() {
            self.turns.push_back(root.clone());
        }
        tree.insert(rank, waiter);
    }

    /// Returns whether the call whose turn it is may begin; `None` where nobody waits.
    fn opening(&self, now: Instant) -> Option<Opening> {
        let tree = self.waiting.get(self.turns.front()?)?;
        tree.first_key_value().map(|(_, waiter)| self.gate.opening(now, waiter.tokens))
    }

    fn take_next(&mut self) -> Option<Waiter> {
        let root = self.turns.pop_front()?;
        let tree = self.waiting.get_mut(&root)?;
        let (_, waiter) = tree.pop_first()?;
        if tree.is_empty() {
            self.waiting.remove(&root);
        } else {
            self.turns.push_back(root);
        }
        Some(waiter)
    }

    fn remove(&mut self, root: &RunId, rank: Rank) {
        let Some(tree) = self.waiting.get_mut(root) else { return };
        tree.remove(&rank);
        if tree.is_empty() {
            self.waiting.remove(root);
            self.turns.retain(|waits| waits != root);
        }
    }
}

/// A place among those who wait, given up when this is dropped.
struct Place<'a> {
    limiter: &'a Arc<Limiter>,
    want: &'a Want,
    rank: Rank,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.limiter.lock();
        if let Some(lane) = state.lanes.get_mut(&self.want.lane()) {
            lane.remove(&self.want.root, self.rank);
        }
        // Whoever stands behind may need fewer tokens.
        self.limiter.pass_on(state);
    }
}

impl Permit {
    /// Returns whether this serves such a call.
    pub fn serves(&self, want: &Want) -> bool {
        (&want.provider, &want.model) == (&self.lane.0, &self.lane.1)
    }

    /// Notes that the provider took the request.
    pub fn taken(&mut self) {
        self.with_gate(|gate, grant| gate.taken(grant, Instant::now()));
    }

    /// Notes how many tokens the call came to.
    pub fn spent(&mut self, tokens: i64) {
        self.with_gate(|gate, grant| gate.spent(grant, Instant::now(), tokens));
    }

    /// Notes what the provider says is left.
    pub fn said(&mut self, allowance: &Allowance) {
        let mut state = self.limiter.lock();
        if let Some(lane) = state.lanes.get_mut(&self.lane) {
            lane.gate.said(&self.grant, Instant::now(), allowance);
        }
        // It may be more than was thought.
        self.limiter.pass_on(state);
    }

    /// Notes that the provider refused the request because there are too many, and when it may be asked again.
    pub fn refused(&mut self, retry_after_ms: Option<u64>) {
        self.with_gate(|gate, grant| gate.refused(grant, Instant::now(), retry_after_ms.map(Duration::from_millis)));
    }

    fn with_gate(&mut self, note: impl FnOnce(&mut Gate, &mut Grant)) {
        let mut state = self.limiter.lock();
        if let Some(lane) = state.lanes.get_mut(&self.lane) {
            note(&mut lane.gate, &mut self.grant);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.limiter.lock();
        state.in_flight = state.in_flight.saturating_sub(1);
        if let Some(lane) = state.lanes.get_mut(&self.lane) {
            lane.gate.leave();
        }
        self.limiter.pass_on(state);
    }
}
