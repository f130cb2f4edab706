//! Token counts as this family states them, made to mean the same for all. Its count of candidates leaves thoughts out, and
//! its count of the prompt leaves out what tools at the provider fed the model.

use serde_json::Value;

use crate::kernel::Usage;
use crate::provider::counts;

/// Returns what an answer, or a piece of one, says was used.
pub fn of(answer: &Value) -> Option<Usage> {
    let usage = answer.get("usageMetadata").filter(|usage| usage.is_object())?;
    let count = |key: &str| counts::at(usage, &[key]);
    let (prompt, candidates, thoughts) = (count("promptTokenCount"), count("candidatesTokenCount"), count("thoughtsTokenCount"));
    if prompt.is_none() && candidates.is_none() && thoughts.is_none() {
        return None;
    }
    Some(Usage {
        input_tokens: prompt.unwrap_or(0) + count("toolUsePromptTokenCount").unwrap_or(0),
        output_tokens: candidates.unwrap_or(0) + thoughts.unwrap_or(0),
        cache_read_tokens: count("cachedContentTokenCount").unwrap_or(0),
        cache_write_tokens: 0,
        reasoning_tokens: thoughts.unwrap_or(0),
    })
}
