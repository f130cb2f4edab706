//! A run's row as columns: what changes with every append apart from what seldom changes. It reads and writes no file.

use crate::kernel::ledger::Totals;
use crate::kernel::summary::Summary;
use crate::kernel::{Reservation, State, Usage};
use crate::store::Row;

/// The columns of `heads`, its key left out, in the order of [`Hot`].
pub const HOT_COLUMNS: [&str; 35] = [
    "epoch",
    "seq",
    "tree_seq",
    "updated_us",
    "open_usd_nanos",
    "open_tokens",
    "own_input_tokens",
    "own_output_tokens",
    "own_cache_read_tokens",
    "own_cache_write_tokens",
    "own_reasoning_tokens",
    "own_cost_usd_nanos",
    "own_written_off_usd_nanos",
    "own_overrun_usd_nanos",
    "own_written_off_tokens",
    "own_cost_unknown",
    "own_estimated",
    "own_turns",
    "own_calls",
    "reserved_usd_nanos",
    "reserved_tokens",
    "tree_input_tokens",
    "tree_output_tokens",
    "tree_cache_read_tokens",
    "tree_cache_write_tokens",
    "tree_reasoning_tokens",
    "tree_cost_usd_nanos",
    "tree_written_off_usd_nanos",
    "tree_overrun_usd_nanos",
    "tree_written_off_tokens",
    "tree_cost_unknown",
    "tree_estimated",
    "tree_turns",
    "tree_calls",
    "tree_runs",
];

/// The values of [`HOT_COLUMNS`].
pub type Hot = [i64; HOT_COLUMNS.len()];

/// Returns what changes with every append. A tree's head is kept on its root's row alone.
pub fn hot(row: &Row) -> Hot {
    let Row { summary, account, epoch, tree_seq, cancel: _, bundle_digest: _ } = row;
    let tree_seq = if summary.id == summary.root { *tree_seq } else { 0 };
    let mut hot = [0; HOT_COLUMNS.len()];
    let head = [whole(*epoch), whole(summary.seq), whole(tree_seq), summary.updated_us, summary.open.usd_nanos, summary.open.tokens];
    let reserved = [account.reserved.usd_nanos, account.reserved.tokens];
    let values = head.into_iter().chain(totals(&summary.own)).chain(reserved).chain(totals(&account.totals));
    for (place, value) in hot.iter_mut().zip(values.chain([i64::from(account.runs)])) {
        *place = value;
    }
    hot
}

/// Puts what [`hot`] took back into a row. The account's limits are those of the run.
pub fn restore(row: &mut Row, hot: &Hot) {
    let [epoch, seq, tree_seq, updated_us, open_usd, open_tokens, rest @ ..] = *hot;
    row.epoch = count(epoch);
    row.tree_seq = count(tree_seq);
    row.summary.seq = count(seq);
    row.summary.updated_us = updated_us;
    row.summary.open = Reservation { usd_nanos: open_usd, tokens: open_tokens };
    let [own @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = rest;
    row.summary.own = totals_of(own);
    let [_, _, _, _, _, _, _, _, _, _, _, _, _, reserved_usd, reserved_tokens, tree @ .., runs] = rest;
    row.account.reserved = Reservation { usd_nanos: reserved_usd, tokens: reserved_tokens };
    row.account.totals = totals_of(tree);
    row.account.runs = u32::try_from(runs).unwrap_or(u32::MAX);
    row.account.limits = row.summary.limits;
}

fn totals(totals: &Totals) -> [i64; 13] {
    let Totals {
        usage,
        cost_usd_nanos,
        written_off_usd_nanos,
        overrun_usd_nanos,
        written_off_tokens,
        cost_unknown,
        estimated,
        turns,
        calls,
    } = *totals;
    let Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens } = usage;
    [
        input_tokens,
        output_tokens,
        cache_read_tokens,
        cache_write_tokens,
        reasoning_tokens,
        cost_usd_nanos,
        written_off_usd_nanos,
        overrun_usd_nanos,
        written_off_tokens,
        i64::from(cost_unknown),
        i64::from(estimated),
        turns,
        calls,
    ]
}

fn totals_of(values: [i64; 13]) -> Totals {
    let [
        input_tokens,
        output_tokens,
        cache_read_tokens,
        cache_write_tokens,
        reasoning_tokens,
        cost,
        lost,
        over,
        lost_tokens,
        unknown,
        estimated,
        turns,
        calls,
    ] = values;
    Totals {
        usage: Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens },
        cost_usd_nanos: cost,
        written_off_usd_nanos: lost,
        overrun_usd_nanos: over,
        written_off_tokens: lost_tokens,
        cost_unknown: unknown != 0,
        estimated: estimated != 0,
        turns,
        calls,
    }
}

/// A count as SQLite keeps it; none comes near the bound.
fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn count(whole: i64) -> u64 {
    u64::try_from(whole).unwrap_or(0)
}

/// Returns whether something differs that [`hot`] does not hold. Each field is named, so that a new one cannot be
/// forgotten.
pub fn is_cold_changed(old: &Row, new: &Row) -> bool {
    let Summary {
        id: _,
        root: _,
        parent: _,
        depth: _,
        workflow: _,
        workflow_digest: _,
        agent: _,
        title: _,
        inputs: _,
        labels: _,
        submitter: _,
        trace_id: _,
        created_us: _,
        // Above: fixed when the run is made. Next: hot.
        seq: _,
        updated_us: _,
        own: _,
        open: _,
        state,
        outcome,
        reason,
        message,
        text,
        output,
        model,
        truncated,
        limits,
        cancel_reason,
        started_us,
        ended_us,
    } = &old.summary;
    let now = &new.summary;
    old.cancel != new.cancel
        || model != &now.model
        || (state, outcome, reason, message) != (&now.state, &now.outcome, &now.reason, &now.message)
        || (text, output, truncated, limits) != (&now.text, &now.output, &now.truncated, &now.limits)
        || (cancel_reason, started_us, ended_us) != (&now.cancel_reason, &now.started_us, &now.ended_us)
}

/// Returns the number that stands for a state in the file.
pub fn state_code(state: State) -> i64 {
    match state {
        State::Pending => 1,
        State::Running => 2,
        State::Suspended => 3,
        State::Cancelling => 4,
        State::Ended => 5,
    }
}
