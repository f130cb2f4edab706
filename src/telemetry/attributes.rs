//! What spans say of tokens, money and outcomes. Which span says it is the tree's business.

use super::names as n;
use super::span::{Attribute, Span};
use crate::kernel::ledger::Totals;
use crate::kernel::{Outcome, Usage};

/// Sets the tokens under the standard names. On chat spans alone.
pub(super) fn set_usage(span: &mut Span, usage: &Usage) {
    span.set_int(n::USAGE_INPUT_TOKENS, usage.input_tokens);
    span.set_int(n::USAGE_OUTPUT_TOKENS, usage.output_tokens);
    span.set_int(n::USAGE_CACHE_READ, usage.cache_read_tokens);
    span.set_int(n::USAGE_CACHE_WRITE, usage.cache_write_tokens);
    // The name that viewers know for the same count.
    span.set_int(n::USAGE_CACHE_CREATION, usage.cache_write_tokens);
    span.set_int(n::USAGE_REASONING, usage.reasoning_tokens);
}

/// Sets the tokens under our own names.
pub(super) fn set_wren_usage(span: &mut Span, usage: &Usage) {
    span.set_int(n::WREN_USAGE_INPUT, usage.input_tokens);
    span.set_int(n::WREN_USAGE_OUTPUT, usage.output_tokens);
    span.set_int(n::WREN_USAGE_CACHE_READ, usage.cache_read_tokens);
    span.set_int(n::WREN_USAGE_CACHE_WRITE, usage.cache_write_tokens);
    span.set_int(n::WREN_USAGE_REASONING, usage.reasoning_tokens);
}

/// Sets the money of a model call. On chat spans alone.
pub(super) fn set_chat_cost(chat: &mut Span, cost_usd_nanos: i64, unknown: bool) {
    chat.set_int(n::WREN_COST_USD_NANOS, cost_usd_nanos);
    if unknown {
        chat.set(n::WREN_COST_UNKNOWN, Attribute::Bool(true));
        return;
    }
    chat.set_usd(n::USAGE_COST, cost_usd_nanos);
    chat.set_usd(n::OPERATION_COST, cost_usd_nanos);
    chat.set_text(n::WREN_COST_SOURCE, "price_table");
}

/// Sets how a run stopped, and whether that is a failure.
pub(super) fn set_outcome(span: &mut Span, outcome: Option<Outcome>) {
    let Some(outcome) = outcome else { return };
    span.set_text(n::WREN_OUTCOME, outcome.name());
    match outcome {
        // What a person or an operator wants is no failure.
        Outcome::Completed | Outcome::Cancelled | Outcome::Drained | Outcome::InDoubt => {}
        Outcome::Failed
        | Outcome::Blocked
        | Outcome::MaxTurns
        | Outcome::Budget
        | Outcome::MaxTokens
        | Outcome::Timeout
        | Outcome::ProviderError => {
            span.error = Some(outcome.name().to_owned());
            span.set_text(n::ERROR_TYPE, outcome.name());
        }
    }
}

/// Sets what every span carries at its end: what it cost itself, and what its run and tree have cost so far.
pub(super) fn close(span: &mut Span, own: i64, run: &Totals, tree: &Totals) {
    span.set_usd(n::WREN_COST_USD, own);
    span.set_usd(n::WREN_COST_RUN_USD, run.cost_usd_nanos);
    span.set_usd(n::WREN_COST_TREE_USD, tree.cost_usd_nanos);
}
