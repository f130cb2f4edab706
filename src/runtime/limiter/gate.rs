//! How many calls of one model may be under way, and how many a minute: what is configured, and what the provider's
//! refusals teach. A pure machine: time comes in, and nobody waits here.
//!
//! The number at once starts at what is allowed. A refusal halves it until the provider has proven to take what is sent;
//! from then on a refusal takes one away and marks the height above which the provider is not tried again for a while.
//! Below that it grows by one for every round of calls that it took. Refusals of calls that began before the last cut
//! teach nothing new.

use tokio::time::{Duration, Instant};

use crate::provider::registry::Limits;

/// Rounds of calls taken after which a height that was refused is tried again.
const PROBE_ROUNDS: u64 = 50;
/// How long a height that was refused is not tried again, if fewer calls come.
const PROBE_AFTER: Duration = Duration::from_secs(60);
/// The part of a minute's allowance that may be used at once; the rest comes evenly, so that no minute sees more than it.
const BURST: f64 = 0.1;
const MINUTE_S: f64 = 60.0;

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
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
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
        let bucket = |per_minute: u32| Bucket::new(f64::from(per_minute), now);
        Self {
            most,
            height: most,
            ceiling: None,
            in_flight: 0,
            cuts: 0,
            taken: 0,
            round: 0,
            closed_until: None,
            requests: limits.requests_per_minute.map(bucket),
            tokens: limits.tokens_per_minute.map(bucket),
        }
    }

    /// Returns whether a call of so many tokens may begin.
    pub fn opening(&self, now: Instant, tokens: i64) -> Opening {
        let buckets = [(&self.requests, 1.0), (&self.tokens, size(tokens))];
        let times = buckets.into_iter().filter_map(|(bucket, amount)| bucket.as_ref().map(|bucket| bucket.has(now, amount)));
        let at = times.chain(self.closed_until).max().filter(|at| *at > now);
        match at {
            Some(at) => Opening::At(at),
            None if self.in_flight >= self.height => Opening::Full,
            None => Opening::Now,
        }
    }

    /// Begins a call.
    pub fn start(&mut self, now: Instant, tokens: i64) -> Grant {
        self.in_flight += 1;
        if let Some(bucket) = &mut self.requests {
            bucket.take(now, 1.0);
        }
        if let Some(bucket) = &mut self.tokens {
            bucket.take(now, size(tokens));
        }
        Grant { cuts: self.cuts, tokens }
    }

    /// Notes how many tokens a call came to.
    pub fn spent(&mut self, grant: &mut Grant, now: Instant, tokens: i64) {
        if let Some(bucket) = &mut self.tokens {
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
        let is_full = |bucket: &Option<Bucket>| bucket.as_ref().is_none_or(|bucket| bucket.level(now) >= bucket.capacity);
        self.in_flight == 0
            && self.height == self.most
            && self.closed_until.is_none_or(|until| until <= now)
            && is_full(&self.requests)
            && is_full(&self.tokens)
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
        now + Duration::from_secs_f64(missing / self.per_second) + Duration::from_micros(1)
    }

    fn take(&mut self, now: Instant, amount: f64) {
        self.level = (self.level(now) - amount).min(self.capacity);
        self.at = now;
    }
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
}
