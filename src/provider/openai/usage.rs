//! Token counts and costs as servers of this family state them, made to mean the same for all.
//!
//! The prompt count includes cached tokens everywhere. The completion count includes reasoning, except where the stated
//! total shows that reasoning comes on top of it.

use serde_json::Value;

use crate::kernel::Usage;
use crate::provider::decimal;

/// More than any model reads or writes in one call.
const TOKENS_MAX: i64 = 1_000_000_000;

/// Returns what a chunk or answer says was used.
pub fn of(chunk: &Value) -> Option<Usage> {
    let usage = stated(chunk)?;
    let count = |path: &[&str]| {
        let value = path.iter().try_fold(usage, |value, key| value.get(key))?;
        value.is_number().then(|| tokens(value))
    };
    let prompt = count(&["prompt_tokens"]);
    let completion = count(&["completion_tokens"]);
    if prompt.is_none() && completion.is_none() {
        return None;
    }
    let (prompt, completion) = (prompt.unwrap_or(0), completion.unwrap_or(0));
    let reasoning = count(&["completion_tokens_details", "reasoning_tokens"]).or_else(|| count(&["reasoning_tokens"])).unwrap_or(0);
    let on_top = reasoning > 0 && count(&["total_tokens"]) == Some(prompt + completion + reasoning);
    let cached = count(&["prompt_tokens_details", "cached_tokens"])
        .or_else(|| count(&["prompt_cache_hit_tokens"]))
        .or_else(|| count(&["cached_tokens"]));
    let written = count(&["prompt_tokens_details", "cache_write_tokens"]).or_else(|| count(&["cache_creation_input_tokens"]));
    Some(Usage {
        input_tokens: prompt,
        output_tokens: if on_top { completion + reasoning } else { completion },
        cache_read_tokens: cached.unwrap_or(0),
        cache_write_tokens: written.unwrap_or(0),
        reasoning_tokens: reasoning,
    })
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

/// Returns the price that a chunk or answer states for itself, in nano-USD.
pub fn stated_cost(chunk: &Value) -> Option<i64> {
    let cost = stated(chunk)?.get("cost")?;
    match cost {
        Value::Number(number) => decimal::scaled(&number.to_string(), 9),
        Value::Object(parts) => decimal::scaled(&parts.get("total_cost")?.as_number()?.to_string(), 9),
        _ => None,
    }
}

fn stated(chunk: &Value) -> Option<&Value> {
    let usage = |value: &Value| value.get("usage").filter(|usage| usage.is_object()).is_some();
    // The same counts may stand in both places; one of them is taken.
    if usage(chunk) { chunk.get("usage") } else { chunk.get("x_groq").filter(|value| usage(value))?.get("usage") }
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
