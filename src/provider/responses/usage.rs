//! Token counts as this family states them. Its input count includes the cache, its output count the reasoning.

use serde_json::Value;

use crate::kernel::Usage;
use crate::provider::counts;

/// Returns what a response says was used.
pub fn of(response: &Value) -> Option<Usage> {
    let usage = response.get("usage").filter(|usage| usage.is_object())?;
    let count = |path: &[&str]| counts::at(usage, path);
    let (input, output) = (count(&["input_tokens"]), count(&["output_tokens"]));
    if input.is_none() && output.is_none() {
        return None;
    }
    Some(Usage {
        input_tokens: input.unwrap_or(0),
        output_tokens: output.unwrap_or(0),
        cache_read_tokens: count(&["input_tokens_details", "cached_tokens"]).unwrap_or(0),
        cache_write_tokens: count(&["input_tokens_details", "cache_write_tokens"]).unwrap_or(0),
        reasoning_tokens: count(&["output_tokens_details", "reasoning_tokens"]).unwrap_or(0),
    })
}

/// Returns the price that a response states for itself, in nano-USD. Gateways do.
pub fn stated_cost(response: &Value) -> Option<i64> {
    counts::stated_cost(response.get("usage")?)
}
