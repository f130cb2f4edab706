//! Token counts as providers write them, with nonsense taken out. What each count includes is each family's own matter.

use serde_json::Value;

use super::decimal;
use crate::kernel::Usage;

/// More than any model reads or writes in one call.
const TOKENS_MAX: i64 = 1_000_000_000;

/// Returns the count at `path` inside `usage`; `None` if there is no number.
pub fn at(usage: &Value, path: &[&str]) -> Option<i64> {
    let value = path.iter().try_fold(usage, |value, key| value.get(key))?;
    value.is_number().then(|| tokens(value))
}

/// Returns the larger of each count.
pub fn most(one: Usage, other: Usage) -> Usage {
    Usage {
        input_tokens: one.input_tokens.max(other.input_tokens),
        output_tokens: one.output_tokens.max(other.output_tokens),
        cache_read_tokens: one.cache_read_tokens.max(other.cache_read_tokens),
        cache_write_tokens: one.cache_write_tokens.max(other.cache_write_tokens),
        reasoning_tokens: one.reasoning_tokens.max(other.reasoning_tokens),
    }
}

/// Returns the price that a usage states for itself, in nano-USD.
pub fn stated_cost(usage: &Value) -> Option<i64> {
    let number = match usage.get("cost")? {
        Value::Number(number) => number,
        Value::Object(parts) => parts.get("total_cost")?.as_number()?,
        _ => return None,
    };
    decimal::scaled(&number.to_string(), 9)
}

fn tokens(value: &Value) -> i64 {
    let count = match (value.as_i64(), value.as_u64()) {
        (Some(count), _) => count,
        (None, Some(_)) => TOKENS_MAX,
        // `as` keeps to the bounds of an i64, and the clamp to ours.
        (None, None) => value.as_f64().map_or(0, |count| count as i64),
    };
    count.clamp(0, TOKENS_MAX)
}
