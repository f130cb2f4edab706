//! Token counts as this family states them, made to mean the same for all. Its input count leaves the cache out.

use serde_json::Value;

use crate::kernel::Usage;
use crate::provider::counts;

/// Returns what a message or an event says was used.
pub fn of(holder: &Value) -> Option<Usage> {
    let usage = holder.get("usage").filter(|usage| usage.is_object())?;
    let count = |path: &[&str]| counts::at(usage, path);
    let (input, output) = (count(&["input_tokens"]), count(&["output_tokens"]));
    if input.is_none() && output.is_none() {
        return None;
    }
    let cache_read_tokens = count(&["cache_read_input_tokens"]).unwrap_or(0);
    let cache_write_tokens = count(&["cache_creation_input_tokens"]).unwrap_or(0);
    Some(Usage {
        input_tokens: input.unwrap_or(0) + cache_read_tokens + cache_write_tokens,
        output_tokens: output.unwrap_or(0),
        cache_read_tokens,
        cache_write_tokens,
        reasoning_tokens: count(&["output_tokens_details", "thinking_tokens"]).unwrap_or(0),
    })
}

/// Returns the price that a message or an event states for itself, in nano-USD. Gateways do.
pub fn stated_cost(holder: &Value) -> Option<i64> {
    counts::stated_cost(holder.get("usage")?)
}
