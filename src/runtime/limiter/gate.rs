//! How many calls of one model may be under way, and how many a minute: what is configured, what the provider says is left,
//! and what its refusals teach. A pure machine: time comes in, and nobody waits here.
//!
//! The number at once starts at what is allowed. A refusal halves it until the provider has proven to take what is sent;
//! from then on a refusal takes one away and marks the height above which the provider is not tried again for a while.
//! Below that it grows by one for every round of calls that it took. Refusals of calls that began before the last cut
//! teach nothing new.

use tokio::time::{Duration, Instant};

use crate::provider::Allowance;
use crate::provider::allowance::Left;
use crate::provider::registry::Limits;

/// Rounds of calls taken after which a height that was refused is tried again.
const PROBE_ROUNDS: u64 = 50;
/// How long a height that was refused is not tried again, if fewer calls come.
const PROBE_AFTER: Duration = Duration::from_secs(60);
/// The part of a minute's allowance that may be used at once; the rest comes evenly, so that no minute sees more than it.
const BURST: f64 = 0.1;
const MINUTE_S: f64 = 60.0;
/// The longest wait that is counted with, in seconds: a day.
const WAIT_S_MAX: f64 = 86_400.0;
/// How long what the provider said is believed. After that somebody asks it, and hears how it is now.
const BELIEVED: Duration = Duration::from_secs(300);

/// Whether a call may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It may.
    Now,
    /// Not before that, whatever comes back until then.
    At(Instant),
    /// Once a call that is under way has come back.
    Full,
}

/// One call that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// How often the height had been cut when it began.
    cuts: u64,
    /// Tokens that were taken for it.
    tokens: i64,
    /// What had been begun in all, once it had.
    begun: Begun,
}

/// What has been begun in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Begun {
    requests: i64,
    tokens: i64,
}

/// The gate of one model.
#[derive(Debug)]
pub struct Gate {
    /// At most so many at once, whatever is learned.
    most: usize,
    /// So many at once now.
    height: usize,
    /// The height that was not refused lately, if one was.
    ceiling: Option<Ceiling>,
    in_flight: usize,
    cuts: u64,
    /// Calls taken since the last cut.
    taken: u64,
    /// Of them, those that were taken while the gate was full, since it last grew.
    round: usize,
    closed_until: Option<Instant>,
    begun: Begun,
    requests: Meter,
    tokens: Meter,
}

#[derive(Debug)]
struct Ceiling {
    height: usize,
    since: Instant,
    /// Calls taken since then.
    taken: u64,
}

impl Gate {
    /// Returns an open gate.
    pub fn new(limits: Limits, most: usize, now: Instant) -> Self {
        let most = limits.concurrency.map_or(most, |concurrency| concurrency.min(most)).max(1);
        let meter = |per_minute: Option<u32>| Meter { set: per_minute.map(|most| Bucket::new(f64::from(most), now)), said: None };
        Self {
            most,
            height: most,
            ceiling: None,
            in_flight: 0,
            cuts: 0,
            taken: 0,
            round: 0,
            closed_until: None,
            begun: Begun::default(),
            requests: meter(limits.requests_per_minute),
            tokens: meter(limits.tokens_per_minute),
        }
    }

    /// Returns whether a call of so many tokens may begin.
    pub fn opening(&self, now: Instant, tokens: i64) -> Opening {
        let times = [Some(self.requests.has(now, 1.0)), Some(self.tokens.has(now, size(tokens))), self.closed_until];
        let at = times.into_iter().flatten().max().filter(|at| *at > now);
        match at {
            Some(at) => Opening::At(at),
            None if self.in_flight >= self.height => Opening::Full,
            None => Opening::Now,
        }
    }

    /// Begins a call.
    pub fn start(&mut self, now: Instant, tokens: i64) -> Grant {
        self.in_flight += 1;
        self.requests.take(now, 1.0);
        self.tokens.take(now, size(tokens));
        self.begun.requests = self.begun.requests.saturating_add(1);
        self.begun.tokens = self.begun.tokens.saturating_add(tokens);
        Grant { cuts: self.cuts, tokens, begun: self.begun }
    }

    /// Notes what the provider says is left. It says so in the answer to a call; what was begun after that call it may not
    /// have seen yet.
    pub fn said(&mut self, grant: &Grant, now: Instant, allowance: &Allowance) {
        let unseen = Begun {
            requests: self.begun.requests.saturating_sub(grant.begun.requests),
            tokens: self.begun.tokens.saturating_sub(grant.begun.tokens),
        };
        self.requests.said(now, allowance.requests, unseen.requests);
        self.tokens.said(now, allowance.tokens, unseen.tokens);
    }

    /// Notes how many tokens a call came to.
    pub fn spent(&mut self, grant: &mut Grant, now: Instant, tokens: i64) {
        if let Some(bucket) = &mut self.tokens.set {
            bucket.take(now, size(tokens) - size(grant.tokens));
            grant.tokens = tokens;
        }
    }

    /// Notes that the provider took a call.
    pub fn taken(&mut self, grant: &Grant, now: Instant) {
        if grant.cuts != self.cuts {
            return;
        }
        self.taken += 1;
        self.round += usize::from(self.in_flight >= self.height);
        if let Some(ceiling) = &mut self.ceiling {
            ceiling.taken += 1;
            let rounds = ceiling.taken / count(ceiling.height);
            if rounds >= PROBE_ROUNDS || now.duration_since(ceiling.since) >= PROBE_AFTER {
                *ceiling = Ceiling { height: ceiling.height + 1, since: now, taken: 0 };
            }
        }
        let highest = self.ceiling.as_ref().map_or(self.most, |ceiling| ceiling.height.min(self.most));
        if self.round >= self.height && self.height < highest {
            self.height += 1;
            self.round = 0;
        }
    }

    /// Notes that the provider refused a call because there are too many.
    pub fn refused(&mut self, grant: &mut Grant, now: Instant, retry_after: Option<Duration>) {
        if let Some(at) = retry_after.and_then(|wait| now.checked_add(wait)) {
            self.closed_until = Some(self.closed_until.map_or(at, |until| until.max(at)));
        }
        self.spent(grant, now, 0);
        if grant.cuts != self.cuts {
            return;
        }
        // What was under way is what was refused, also where more was allowed.
        let tried = self.height.min(self.in_flight.max(1));
        if self.taken < count(self.height) {
            self.height = (tried / 2).max(1);
        } else {
            self.height = tried.saturating_sub(1).max(1);
            self.ceiling = Some(Ceiling { height: self.height, since: now, taken: 0 });
        }
        self.cuts += 1;
        self.taken = 0;
        self.round = 0;
    }

    /// Notes that a call is over.
    pub fn leave(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Returns whether the gate is as a new one would be.
    pub fn is_fresh(&self, now: Instant) -> bool {
        self.in_flight == 0
            && self.height == self.most
            && self.closed_until.is_none_or(|until| until <= now)
            && self.requests.is_full(now)
            && self.tokens.is_full(now)
    }
}

/// An allowance as it is set, and as the provider says; both hold.
#[derive(Debug)]
struct Meter {
    set: Option<Bucket>,
    /// With the time at which it was said.
    said: Option<(Bucket, Instant)>,
}

impl Meter {
    fn buckets(&self, now: Instant) -> impl Iterator<Item = &Bucket> {
        let said = self.said.as_ref().filter(|(_, since)| now < *since + BELIEVED);
        self.set.iter().chain(said.map(|(bucket, _)| bucket))
    }

    fn has(&self, now: Instant, amount: f64) -> Instant {
        let set = self.set.as_ref().map_or(now, |bucket| bucket.has(now, amount));
        let said = self.said.as_ref().map_or(now, |(bucket, since)| bucket.has(now, amount).min(*since + BELIEVED));
        set.max(said)
    }

    fn take(&mut self, now: Instant, amount: f64) {
        if let Some(bucket) = &mut self.set {
            bucket.take(now, amount);
        }
        if let Some((bucket, _)) = &mut self.said {
            // The provider's next word is near: no debt is kept beyond one allowance.
            bucket.take(now, amount.min(bucket.capacity));
        }
    }

    fn said(&mut self, now: Instant, left: Option<Left>, unseen: i64) {
        let Some(left) = left else { return };
        self.said = Some((Bucket::said(left, unseen, now), now));
    }

    fn is_full(&self, now: Instant) -> bool {
        self.buckets(now).all(|bucket| bucket.level(now) >= bucket.capacity)
    }
}

/// An allowance that refills evenly.
#[derive(Debug)]
struct Bucket {
    capacity: f64,
    per_second: f64,
    /// What was in it at that time; below zero after a call that was larger than the bucket.
    level: f64,
    at: Instant,
}

impl Bucket {
    fn new(per_minute: f64, now: Instant) -> Self {
        let capacity = (per_minute * BURST).max(1.0);
        let per_second = if per_minute > capacity { (per_minute - capacity) / MINUTE_S } else { per_minute / MINUTE_S };
        Self { capacity, per_second, level: capacity, at: now }
    }

    /// A provider's allowance refills evenly too, as far as one can tell from outside: what is missing comes until it is full.
    fn said(left: Left, unseen: i64, now: Instant) -> Self {
        let (capacity, remaining) = (amount(left.limit), amount(left.remaining));
        let full_in_s = Duration::from_millis(left.full_in_ms).as_secs_f64();
        let missing = capacity - remaining;
        // Of a full one nothing is said of how fast it fills; most are a minute's.
        let per_second = if missing > 0.0 && full_in_s > 0.0 { missing / full_in_s } else { capacity / MINUTE_S };
        Self { capacity, per_second, level: (remaining - size(unseen)).max(0.0), at: now }
    }

    fn level(&self, now: Instant) -> f64 {
        let refilled = now.saturating_duration_since(self.at).as_secs_f64().mul_add(self.per_second, self.level);
        refilled.min(self.capacity)
    }

    /// Returns when an amount is there. What is larger than the bucket goes when it is full, and is paid off after that.
    fn has(&self, now: Instant, amount: f64) -> Instant {
        let missing = amount.min(self.capacity) - self.level(now);
        if missing <= 0.0 {
            return now;
        }
        // A microsecond more than the division says, so that whoever wakes then finds it there.
        let wait_s = (missing / self.per_second).min(WAIT_S_MAX);
        now + Duration::from_secs_f64(wait_s) + Duration::from_micros(1)
    }

    fn take(&mut self, now: Instant, amount: f64) {
        self.level = (self.level(now) - amount).min(self.capacity);
        self.at = now;
    }
}

#[expect(clippy::cast_precision_loss, reason = "an allowance needs no exact count")]
fn amount(count: u64) -> f64 {
    count as f64
}

#[expect(clippy::cast_precision_loss, reason = "an allowance needs no exact count")]
fn size(tokens: i64) -> f64 {
    tokens as f64
}

fn count(height: usize) -> u64 {
    u64::try_from(height).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A provider that takes so many at once, asked as often as the gate allows; returns how many it refused of how many.
    fn play(gate: &mut Gate, takes: usize, calls: usize, now: Instant) -> (usize, usize) {
        let mut under_way: std::collections::VecDeque<Grant> = std::collections::VecDeque::new();
        let (mut refused, mut taken) = (0, 0);
        while taken < calls {
            if gate.opening(now, 1) == Opening::Now {
                let mut grant = gate.start(now, 1);
                if under_way.len() < takes {
                    under_way.push_back(grant);
                } else {
                    refused += 1;
                    gate.refused(&mut grant, now, None);
                    gate.leave();
                }
            } else {
                let grant = under_way.pop_front().unwrap();
                taken += 1;
                gate.taken(&grant, now);
                gate.leave();
            }
        }
        (refused, under_way.len())
    }

    #[test]
    fn the_number_at_once_settles_at_what_the_provider_takes() {
        let now = Instant::now();
        let mut gate = Gate::new(Limits::default(), 256, now);
        let (refused, _) = play(&mut gate, 10, 300, now);
        assert!(refused <= 10, "{refused} refused before it is known");
        gate.in_flight = 0;
        let (refused, under_way) = play(&mut gate, 10, 10_000, now);
        assert!(refused <= 100, "{refused} of 10,000 refused after it is known");
        assert!((8..=10).contains(&under_way), "{under_way} of 10 under way");
        // The provider takes more: it is found out.
        gate.in_flight = 0;
        let (_, under_way) = play(&mut gate, 20, 100_000, now);
        assert!((16..=20).contains(&under_way), "{under_way} of 20 under way");
        // It takes less.
        gate.in_flight = 0;
        let (refused, under_way) = play(&mut gate, 2, 1_000, now);
        assert!(under_way <= 2 && refused <= 50, "{under_way} of 2 under way, {refused} refused");
    }

    #[test]
    fn refusals_of_calls_from_before_a_cut_teach_nothing() {
        let now = Instant::now();
        let mut gate = Gate::new(Limits::default(), 64, now);
        let mut grants: Vec<Grant> = (0..64).map(|_| gate.start(now, 1)).collect();
        for grant in &mut grants {
            gate.refused(grant, now, None);
            gate.leave();
        }
        assert_eq!(gate.height, 32);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_was_asked_for_closes_the_gate() {
        let now = Instant::now();
        let mut gate = Gate::new(Limits::default(), 4, now);
        let mut grant = gate.start(now, 1);
        gate.refused(&mut grant, now, Some(Duration::from_secs(7)));
        gate.leave();
        assert_eq!(gate.opening(now, 1), Opening::At(now + Duration::from_secs(7)));
        assert_eq!(gate.opening(now + Duration::from_secs(7), 1), Opening::Now);
    }

    /// Begins calls as soon as the gate opens; returns when each of them began, in seconds.
    fn begin(gate: &mut Gate, calls: usize, tokens: i64, start: Instant) -> Vec<f64> {
        let mut now = start;
        let mut times = Vec::new();
        while times.len() < calls {
            match gate.opening(now, tokens) {
                Opening::Now => {
                    gate.start(now, tokens);
                    times.push((now - start).as_secs_f64());
                }
                Opening::At(at) => now = at,
                Opening::Full => gate.leave(),
            }
        }
        times
    }

    #[test]
    fn no_minute_sees_more_than_its_allowance() {
        let now = Instant::now();
        for per_minute in [2, 10, 60, 600] {
            let limits = Limits { requests_per_minute: Some(per_minute), ..Limits::default() };
            let times = begin(&mut Gate::new(limits, 1000, now), 2 * per_minute as usize + 1, 1, now);
            let first = times.iter().filter(|time| **time < 60.0).count();
            assert!(first <= per_minute as usize && first + 2 >= per_minute as usize, "{first} of {per_minute}");
            assert!(per_minute == 2 || times.last().unwrap() <= &135.0, "{per_minute}: {times:?}");
        }
        let limits = Limits { tokens_per_minute: Some(60_000), ..Limits::default() };
        // A call that is larger than what may be used at once is paid off before the next one.
        let times = begin(&mut Gate::new(limits, 1000, now), 4, 30_000, now);
        assert!(times[0] == 0.0 && times[3] > 80.0, "{times:?}");
    }

    #[test]
    fn tokens_that_were_set_aside_and_not_used_come_back() {
        let now = Instant::now();
        let limits = Limits { tokens_per_minute: Some(1000), ..Limits::default() };
        let mut gate = Gate::new(limits, 4, now);
        let mut grant = gate.start(now, 1000);
        assert!(matches!(gate.opening(now, 10), Opening::At(_)));
        gate.taken(&grant, now);
        gate.spent(&mut grant, now, 10);
        gate.leave();
        assert_eq!(gate.opening(now, 10), Opening::Now);
        let mut other = gate.start(now, 500);
        gate.refused(&mut other, now, None);
        gate.leave();
        assert_eq!(gate.opening(now, 10), Opening::Now);
    }

    fn requests(limit: u64, remaining: u64, full_in_ms: u64) -> Allowance {
        Allowance { requests: Some(Left { limit, remaining, full_in_ms }), tokens: None }
    }

    #[test]
    fn what_the_provider_says_is_left_holds() {
        let now = Instant::now();
        let mut gate = Gate::new(Limits::default(), 64, now);
        let grant = gate.start(now, 1);
        // Sixty a minute, and none left: one comes back in a second.
        gate.said(&grant, now, &requests(60, 0, 60_000));
        let Opening::At(at) = gate.opening(now, 1) else { panic!("it is open") };
        assert_eq!((at - now).as_millis(), 1000);
        // Three are left, and two were begun since: one may begin.
        let (_, _) = (gate.start(now, 1), gate.start(now, 1));
        gate.said(&grant, now, &requests(60, 3, 57_000));
        assert_eq!(gate.opening(now, 1), Opening::Now);
        gate.start(now, 1);
        assert!(matches!(gate.opening(now, 1), Opening::At(_)));
    }

    #[test]
    fn what_the_provider_says_opens_nothing_that_is_set() {
        let now = Instant::now();
        let mut gate = Gate::new(Limits { requests_per_minute: Some(10), ..Limits::default() }, 64, now);
        let grant = gate.start(now, 1);
        gate.said(&grant, now, &requests(1000, 999, 60));
        assert!(matches!(gate.opening(now, 1), Opening::At(_)));
    }

    #[test]
    fn a_word_that_shuts_the_gate_for_long_is_believed_for_minutes() {
        let now = Instant::now();
        let mut gate = Gate::new(Limits::default(), 64, now);
        let mut grant = gate.start(now, 1);
        gate.said(&grant, now, &requests(1, 0, u64::MAX));
        assert_eq!(gate.opening(now, 1), Opening::At(now + BELIEVED));
        assert_eq!(gate.opening(now + BELIEVED, 1), Opening::Now);
        gate.taken(&grant, now);
        gate.spent(&mut grant, now, 1);
        gate.leave();
        assert!(!gate.is_fresh(now) && gate.is_fresh(now + BELIEVED));
    }

    #[test]
    fn a_debt_is_one_allowance_at_most() {
        let now = Instant::now();
        let mut gate = Gate::new(Limits::default(), 64, now);
        let grant = gate.start(now, 1);
        let many = Allowance { requests: None, tokens: Some(Left { limit: 1000, remaining: 1000, full_in_ms: 0 }) };
        gate.said(&grant, now, &many);
        gate.start(now, 1_000_000);
        let Opening::At(at) = gate.opening(now, 1) else { panic!("it is open") };
        assert!(at - now < Duration::from_secs(1));
    }
}
