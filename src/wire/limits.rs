//! Limits between the proto and the kernel, with the bounds that any sane limit keeps. Ceilings are not known here.

use pbjson_types::Duration;

use super::v1;
use crate::kernel::{Limits, LimitsPatch};

/// One field of a request that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The field's path in the request: `limits.max_turns`.
    pub field: String,
    /// What is wrong with it and what is allowed.
    pub description: String,
}

const COUNT_MAX: i64 = 1_000_000;
const TOKENS_MAX: i64 = 1_000_000_000_000;
/// One million USD.
const USD_NANOS_MAX: i64 = 1_000_000_000_000_000;
/// A year.
const TIMEOUT_MS_MAX: i64 = 366 * 24 * 3_600_000;

/// Returns the limits as the API shows them: all set.
pub fn limits(limits: &Limits) -> v1::Limits {
    v1::Limits {
        max_turns: Some(count(limits.max_turns)),
        budget_usd_nanos: Some(limits.budget_usd_nanos),
        max_tokens: Some(limits.max_tokens),
        timeout: Some(duration(limits.timeout_ms)),
        max_depth: Some(count(limits.max_depth)),
        max_runs: Some(count(limits.max_runs)),
    }
}

/// Returns the limits that a client has set.
///
/// # Errors
/// Every limit that is negative, zero (`max_depth` may be) or absurdly large.
pub fn patch(limits: &v1::Limits) -> Result<LimitsPatch, Vec<Violation>> {
    let mut bad = Vec::new();
    let patch = LimitsPatch {
        max_turns: bounded("max_turns", limits.max_turns.map(i64::from), 1, COUNT_MAX, &mut bad).and_then(small),
        budget_usd_nanos: bounded("budget_usd_nanos", limits.budget_usd_nanos, 1, USD_NANOS_MAX, &mut bad),
        max_tokens: bounded("max_tokens", limits.max_tokens, 1, TOKENS_MAX, &mut bad),
        timeout_ms: limits.timeout.as_ref().and_then(|timeout| timeout_ms(timeout, &mut bad)),
        max_depth: bounded("max_depth", limits.max_depth.map(i64::from), 0, COUNT_MAX, &mut bad).and_then(small),
        max_runs: bounded("max_runs", limits.max_runs.map(i64::from), 1, COUNT_MAX, &mut bad).and_then(small),
    };
    if bad.is_empty() { Ok(patch) } else { Err(bad) }
}

fn bounded(name: &str, value: Option<i64>, least: i64, most: i64, bad: &mut Vec<Violation>) -> Option<i64> {
    let value = value?;
    if (least..=most).contains(&value) {
        return Some(value);
    }
    bad.push(Violation { field: format!("limits.{name}"), description: format!("is {value}; give {least} to {most}, or leave it out") });
    None
}

fn timeout_ms(timeout: &Duration, bad: &mut Vec<Violation>) -> Option<i64> {
    let ms = timeout.seconds.saturating_mul(1000).saturating_add(i64::from(timeout.nanos) / 1_000_000);
    if (1..=TIMEOUT_MS_MAX).contains(&ms) {
        return Some(ms);
    }
    let description = format!("is {ms} ms; give a time above 0 and of at most 366 days, or leave it out");
    bad.push(Violation { field: "limits.timeout".to_owned(), description });
    None
}

fn small(value: i64) -> Option<u32> {
    u32::try_from(value).ok()
}

fn count(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

fn duration(ms: i64) -> Duration {
    Duration { seconds: ms / 1000, nanos: i32::try_from(ms % 1000).unwrap_or_default() * 1_000_000 }
}
