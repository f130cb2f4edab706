//! Money, tokens and runs: limits, prices, and the accounts that every run keeps for its subtree.
//!
//! Money is integer nano-USD. A price is integer pico-USD a token; a turn's cost is summed in i128 and rounded half up
//! once. Both stores post events through [`post`], so they cannot disagree about a cent.

use serde::{Deserialize, Serialize};

use super::event::{Event, Purpose, TurnEnded};
use super::message::Usage;

/// Caps on a run. All but `max_turns` bound the run's whole subtree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Model replies in the run's own loop.
    pub max_turns: u32,
    /// Money.
    pub budget_usd_nanos: i64,
    /// Input plus output tokens.
    pub max_tokens: i64,
    /// Time in state running.
    pub timeout_ms: i64,
    /// Levels below this run.
    pub max_depth: u32,
    /// Runs, this one included.
    pub max_runs: u32,
}

impl Limits {
    /// What a root run gets where neither the workflow nor the submitter says otherwise.
    pub const DEFAULT: Self =
        Self { max_turns: 50, budget_usd_nanos: 1_000_000_000, max_tokens: 2_000_000, timeout_ms: 3_600_000, max_depth: 2, max_runs: 64 };
}

/// What a model's tokens cost, each in pico-USD (1 USD a million tokens is 1,000,000).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    /// Input that no cache knew.
    pub input_pico: i64,
    /// Input read from the provider's cache.
    pub cache_read_pico: i64,
    /// Input written to the provider's cache.
    pub cache_write_pico: i64,
    /// Output.
    pub output_pico: i64,
    /// Output that was reasoning.
    pub reasoning_pico: i64,
}

impl Rates {
    /// Returns rates of which cache reads, cache writes and reasoning may be left out: they cost what input and output do.
    pub fn of(input_pico: i64, output_pico: i64, [cache_read, cache_write, reasoning]: [Option<i64>; 3]) -> Self {
        Self {
            input_pico,
            cache_read_pico: cache_read.unwrap_or(input_pico),
            cache_write_pico: cache_write.unwrap_or(input_pico),
            output_pico,
            reasoning_pico: reasoning.unwrap_or(output_pico),
        }
    }

    /// Returns the dearest that an input token can be.
    pub fn input_pico_max(&self) -> i64 {
        self.input_pico.max(self.cache_read_pico).max(self.cache_write_pico)
    }

    /// Returns the dearest that an output token can be.
    pub fn output_pico_max(&self) -> i64 {
        self.output_pico.max(self.reasoning_pico)
    }

    fn dearer(self, other: Self) -> Self {
        Self {
            input_pico: self.input_pico.max(other.input_pico),
            cache_read_pico: self.cache_read_pico.max(other.cache_read_pico),
            cache_write_pico: self.cache_write_pico.max(other.cache_write_pico),
            output_pico: self.output_pico.max(other.output_pico),
            reasoning_pico: self.reasoning_pico.max(other.reasoning_pico),
        }
    }
}

/// What a model costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Price {
    /// What its tokens cost.
    #[serde(flatten)]
    pub rates: Rates,
    /// What they cost instead in a call that reads much, if that differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub long: Option<Long>,
}

/// What tokens cost in a call whose input is longer than a bound. All tokens of the call cost it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Long {
    /// The bound, in input tokens, cached ones included.
    pub above_tokens: i64,
    /// What the tokens cost.
    #[serde(flatten)]
    pub rates: Rates,
}

impl Price {
    /// Returns what `usage` costs in nano-USD, rounded half up once.
    pub fn cost_usd_nanos(&self, usage: &Usage) -> i64 {
        let usage = usage.sane();
        let rates = self.long.filter(|long| usage.input_tokens > long.above_tokens).map_or(self.rates, |long| long.rates);
        let plain_input = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens;
        let plain_output = usage.output_tokens - usage.reasoning_tokens;
        let pico: i128 = [
            (plain_input, rates.input_pico),
            (usage.cache_read_tokens, rates.cache_read_pico),
            (usage.cache_write_tokens, rates.cache_write_pico),
            (plain_output, rates.output_pico),
            (usage.reasoning_tokens, rates.reasoning_pico),
        ]
        .iter()
        .map(|(tokens, price)| i128::from(*tokens) * i128::from(*price))
        .sum();
        i64::try_from((pico + 500) / 1000).unwrap_or(i64::MAX)
    }

    /// Returns the dearest rates that a call with at most `input_tokens` of input can have.
    pub fn worst_rates(&self, input_tokens: i64) -> Rates {
        self.long.filter(|long| input_tokens > long.above_tokens).map_or(self.rates, |long| self.rates.dearer(long.rates))
    }

    /// Returns the most that a call can cost, in nano-USD, rounded up.
    pub fn worst_case_usd_nanos(&self, input_tokens: i64, output_tokens: i64) -> i64 {
        let rates = self.worst_rates(input_tokens);
        let pico =
            i128::from(input_tokens) * i128::from(rates.input_pico_max()) + i128::from(output_tokens) * i128::from(rates.output_pico_max());
        i64::try_from((pico.max(0) + 999) / 1000).unwrap_or(i64::MAX)
    }
}

/// What is set aside before a model call, on the run and every run above it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reservation {
    /// Money.
    pub usd_nanos: i64,
    /// Input plus output tokens.
    pub tokens: i64,
}

impl Reservation {
    /// Returns whether nothing is set aside.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns whether what a provider says that it charged is more than 1 % off what was counted. A millionth of a USD is no
/// difference: some state no more digits.
fn is_disputed(cost_usd_nanos: i64, stated_usd_nanos: i64) -> bool {
    let (cost, stated) = (i128::from(cost_usd_nanos), i128::from(stated_usd_nanos));
    let off = (cost - stated).abs();
    off > 1_000 && off * 100 > cost.max(stated)
}

impl TurnEnded {
    /// Returns whether the provider says that it charged something else. What was estimated or has no price is no claim.
    pub fn is_disputed(&self) -> bool {
        let is_claim = !self.estimated && !self.cost_unknown;
        is_claim && self.stated_cost_usd_nanos.is_some_and(|stated| is_disputed(self.cost_usd_nanos, stated))
    }
}

/// Sums over model and tool calls: of one run, or of a subtree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Tokens.
    #[serde(flatten)]
    pub usage: Usage,
    /// Money, written-off money included.
    pub cost_usd_nanos: i64,
    /// The part of the cost that was written off: calls lost in a crash, which may have been charged.
    pub written_off_usd_nanos: i64,
    /// The part of the cost that went beyond what was set aside for it.
    pub overrun_usd_nanos: i64,
    /// Tokens of lost calls, at their reservation.
    pub written_off_tokens: i64,
    /// Whether some of it has no known price.
    pub cost_unknown: bool,
    /// Whether some of it was counted here because the provider did not say.
    pub estimated: bool,
    /// Replies.
    pub turns: i64,
    /// Tool calls that got a result.
    pub calls: i64,
}

impl Totals {
    /// Returns the tokens that count against `max_tokens`.
    pub fn tokens(&self) -> i64 {
        self.usage.total_tokens().saturating_add(self.written_off_tokens)
    }

    fn add_usage(&mut self, usage: &Usage) {
        let usage = usage.sane();
        let sum = &mut self.usage;
        for (total, more) in [
            (&mut sum.input_tokens, usage.input_tokens),
            (&mut sum.output_tokens, usage.output_tokens),
            (&mut sum.cache_read_tokens, usage.cache_read_tokens),
            (&mut sum.cache_write_tokens, usage.cache_write_tokens),
            (&mut sum.reasoning_tokens, usage.reasoning_tokens),
        ] {
            *total = total.saturating_add(more);
        }
    }

    /// Adds what `event` cost. `open` is the reservation of the turn that is under way.
    pub fn add(&mut self, event: &Event, open: Reservation) {
        match event {
            Event::TurnEnded(turn) => {
                self.add_usage(&turn.usage);
                self.turns += i64::from(turn.purpose == Purpose::Task);
                self.estimated |= turn.estimated;
                self.cost_unknown |= turn.cost_unknown;
                self.charge(turn.cost_usd_nanos, open.usd_nanos);
            }
            Event::TurnAborted(turn) => {
                if let Some(usage) = &turn.usage {
                    self.add_usage(usage);
                    self.estimated |= turn.estimated;
                }
                let lost = turn.written_off.usd_nanos.max(0);
                self.charge(turn.cost_usd_nanos.max(0).saturating_add(lost), open.usd_nanos);
                self.written_off_usd_nanos = self.written_off_usd_nanos.saturating_add(lost);
                self.written_off_tokens = self.written_off_tokens.saturating_add(turn.written_off.tokens.max(0));
            }
            Event::CallEnded(_) => self.calls += 1,
            Event::RunCreated(_)
            | Event::RunStarted {}
            | Event::TurnStarted(_)
            | Event::CallStarted(_)
            | Event::CallInDoubt { .. }
            | Event::ChildStarted { .. }
            | Event::ChildEnded(_)
            | Event::MessageReceived { .. }
            | Event::LimitsChanged { .. }
            | Event::ModelChanged(_)
            | Event::ContextCompacted(_)
            | Event::RunSuspended { .. }
            | Event::RunResumed { .. }
            | Event::CancelRequested { .. }
            | Event::RunEnded(_) => {}
        }
    }

    fn charge(&mut self, cost_usd_nanos: i64, reserved_usd_nanos: i64) {
        let cost = cost_usd_nanos.max(0);
        self.cost_usd_nanos = self.cost_usd_nanos.saturating_add(cost);
        self.overrun_usd_nanos = self.overrun_usd_nanos.saturating_add(cost.saturating_sub(reserved_usd_nanos).max(0));
    }
}

/// What a run's whole subtree may spend, has set aside and has spent.
///
/// For every account and at every moment: cost - overrun + reserved <= limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// The run's limits. `max_turns` and the time are not kept here: they need no sum over the subtree.
    pub limits: Limits,
    /// Set aside by turns that are under way.
    pub reserved: Reservation,
    /// Spent.
    pub totals: Totals,
    /// Runs in the subtree, this one included.
    pub runs: u32,
}

/// Why an event may not be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Money or tokens: what is asked for is not left on some account of the path.
    OverBudget,
    /// Runs: one more would be over `max_runs` of some account of the path.
    OverRuns,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::OverBudget => "the reservation is more than what is left",
            Self::OverRuns => "one more run is over max_runs",
        })
    }
}

impl std::error::Error for Refused {}

impl Account {
    /// Opens the account of a new run.
    pub fn open(limits: Limits) -> Self {
        Self { limits, reserved: Reservation::default(), totals: Totals::default(), runs: 1 }
    }

    /// Returns what is left if every open reservation came back unused.
    pub fn left(&self) -> Reservation {
        Reservation {
            usd_nanos: self.limits.budget_usd_nanos.saturating_sub(self.totals.cost_usd_nanos),
            tokens: self.limits.max_tokens.saturating_sub(self.totals.tokens()),
        }
    }

    /// Returns how many more runs the subtree may hold.
    pub fn runs_left(&self) -> u32 {
        self.limits.max_runs.saturating_sub(self.runs)
    }

    fn fits(&self, more: Reservation) -> bool {
        if more.usd_nanos < 0 || more.tokens < 0 {
            // Less than nothing would free what others have set aside.
            return false;
        }
        let left = self.left();
        let usd = self.reserved.usd_nanos.saturating_add(more.usd_nanos);
        let tokens = self.reserved.tokens.saturating_add(more.tokens);
        usd <= left.usd_nanos && tokens <= left.tokens
    }
}

/// Posts one event of a run to its own account and all above it (`path`, the run's own first).
///
/// `open` is the reservation of the run's turn that is under way, and is brought up to date. Nothing is changed where
/// the event is refused.
///
/// # Errors
/// [`Refused::OverBudget`] if a turn's reservation does not fit on every account.
pub fn post(path: &mut [Account], open: &mut Reservation, event: &Event) -> Result<(), Refused> {
    match event {
        Event::TurnStarted(turn) => {
            if !path.iter().all(|account| account.fits(turn.reservation)) {
                return Err(Refused::OverBudget);
            }
            for account in path.iter_mut() {
                account.reserved.usd_nanos += turn.reservation.usd_nanos;
                account.reserved.tokens += turn.reservation.tokens;
            }
            *open = turn.reservation;
        }
        Event::TurnEnded(_) | Event::TurnAborted(_) => {
            for account in path.iter_mut() {
                account.reserved.usd_nanos -= open.usd_nanos;
                account.reserved.tokens -= open.tokens;
                account.totals.add(event, *open);
            }
            *open = Reservation::default();
        }
        Event::CallEnded(_) => {
            for account in path.iter_mut() {
                account.totals.add(event, *open);
            }
        }
        Event::LimitsChanged { limits, .. } => {
            if let Some(own) = path.first_mut() {
                own.limits = *limits;
            }
        }
        Event::RunCreated(_)
        | Event::RunStarted {}
        | Event::CallStarted(_)
        | Event::CallInDoubt { .. }
        | Event::ChildStarted { .. }
        | Event::ChildEnded(_)
        | Event::MessageReceived { .. }
        | Event::ModelChanged(_)
        | Event::ContextCompacted(_)
        | Event::RunSuspended { .. }
        | Event::RunResumed { .. }
        | Event::CancelRequested { .. }
        | Event::RunEnded(_) => {}
    }
    Ok(())
}

/// Counts one new child run on its parent's account and all above it.
///
/// # Errors
/// [`Refused::OverRuns`] if some account has no room; nothing is changed then.
pub fn post_child(path: &mut [Account]) -> Result<(), Refused> {
    if path.iter().any(|account| account.runs_left() == 0) {
        return Err(Refused::OverRuns);
    }
    for account in path.iter_mut() {
        account.runs += 1;
    }
    Ok(())
}
