//! Token counts and costs as servers of this family state them, made to mean the same for all.
//!
//! The prompt count includes cached tokens everywhere. The completion count includes reasoning, except where the stated
//! total shows that reasoning comes on top of it.

use serde_json::Value;

use crate::kernel::Usage;
use crate::provider::counts;

/// Returns what a chunk or answer says was used.
pub fn of(chunk: &Value) -> Option<Usage> {
    let usage = stated(chunk)?;
    let count = |path: &[&str]| counts::at(usage, path);
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

/// Returns the price that a chunk or answer states for itself, in nano-USD.
pub fn stated_cost(chunk: &Value) -> Option<i64> {
    counts::stated_cost(stated(chunk)?)
}

fn stated(chunk: &Value) -> Option<&Value> {
    let usage = |value: &Value| value.get("usage").filter(|usage| usage.is_object()).is_some();
    // The same counts may stand in both places; one of them is taken.
    if usage(chunk) { chunk.get("usage") } else { chunk.get("x_groq").filter(|value| usage(value))?.get("usage") }
}
