//! Runs and trees as the API shows them.

use std::collections::{HashMap, HashSet};

use pbjson_types::Timestamp;

use super::limits::limits;
use super::v1;
use crate::kernel::{Account, Outcome, State, Summary, Totals};

/// Returns a time given in microseconds since the Unix epoch.
pub fn timestamp(time_us: i64) -> Timestamp {
    let nanos = i32::try_from(time_us.rem_euclid(1_000_000) * 1000).unwrap_or_default();
    Timestamp { seconds: time_us.div_euclid(1_000_000), nanos }
}

/// Returns a state.
pub fn state(state: State) -> v1::RunState {
    match state {
        State::Pending => v1::RunState::Pending,
        State::Running => v1::RunState::Running,
        State::Suspended => v1::RunState::Suspended,
        State::Cancelling => v1::RunState::Cancelling,
        State::Ended => v1::RunState::Ended,
    }
}

/// Returns an outcome.
pub fn outcome(outcome: Outcome) -> v1::Outcome {
    match outcome {
        Outcome::Completed => v1::Outcome::Completed,
        Outcome::Failed => v1::Outcome::Failed,
        Outcome::Blocked => v1::Outcome::Blocked,
        Outcome::Cancelled => v1::Outcome::Cancelled,
        Outcome::MaxTurns => v1::Outcome::MaxTurns,
        Outcome::Budget => v1::Outcome::Budget,
        Outcome::MaxTokens => v1::Outcome::MaxTokens,
        Outcome::Timeout => v1::Outcome::Timeout,
        Outcome::InDoubt => v1::Outcome::InDoubt,
        Outcome::ProviderError => v1::Outcome::ProviderError,
        Outcome::Drained => v1::Outcome::Drained,
    }
}

/// Returns why a run is not running; `None` where there is nothing to say.
pub fn failure(reason: &str, message: &str) -> Option<v1::Failure> {
    (!reason.is_empty() || !message.is_empty()).then(|| v1::Failure { reason: reason.to_owned(), message: message.to_owned() })
}

/// Returns the sums of `runs` runs.
pub fn usage(totals: &Totals, runs: u32) -> v1::Usage {
    v1::Usage {
        input_tokens: totals.usage.input_tokens,
        output_tokens: totals.usage.output_tokens,
        cache_read_tokens: totals.usage.cache_read_tokens,
        cache_write_tokens: totals.usage.cache_write_tokens,
        reasoning_tokens: totals.usage.reasoning_tokens,
        cost_usd_nanos: totals.cost_usd_nanos,
        cost_unknown: totals.cost_unknown,
        turn_count: i32::try_from(totals.turns).unwrap_or(i32::MAX),
        tool_call_count: i32::try_from(totals.calls).unwrap_or(i32::MAX),
        run_count: i32::try_from(runs).unwrap_or(i32::MAX),
        written_off_usd_nanos: totals.written_off_usd_nanos,
        overrun_usd_nanos: totals.overrun_usd_nanos,
        estimated: totals.estimated,
    }
}

/// Returns a run. `cancel_reason` is that of a cancel mark, which may be there before the journal says so: a run that
/// bears one and has not ended is shown as cancelling.
pub fn run(summary: &Summary, account: &Account, cancel_reason: Option<&str>) -> v1::Run {
    let cancelling = cancel_reason.is_some() && summary.state != State::Ended;
    let shown = if cancelling { State::Cancelling } else { summary.state };
    let stopped = summary.outcome.filter(|_| !cancelling);
    let parent = summary.parent.as_ref();
    v1::Run {
        run_id: summary.id.to_string(),
        parent_run_id: parent.map_or_else(String::new, |parent| parent.run.to_string()),
        root_run_id: summary.root.to_string(),
        depth: i32::try_from(summary.depth).unwrap_or(i32::MAX),
        agent: summary.agent.clone(),
        tool_call_id: parent.map_or_else(String::new, |parent| parent.call_id.to_string()),
        workflow_name: summary.workflow.clone(),
        workflow_digest: summary.workflow_digest.clone(),
        labels: summary.labels.clone().into_iter().collect(),
        submitter: summary.submitter.clone(),
        state: state(shown).into(),
        outcome: stopped.map_or(v1::Outcome::Unspecified, outcome).into(),
        failure: stopped.and_then(|_| failure(&summary.reason, &summary.message)),
        inputs_json: if summary.inputs.is_null() { String::new() } else { summary.inputs.to_string() },
        output_json: summary.output.as_ref().map_or_else(String::new, ToString::to_string),
        output_text: summary.text.clone(),
        limits: Some(limits(&summary.limits)),
        own_usage: Some(usage(&summary.own, 1)),
        subtree_usage: Some(usage(&account.totals, account.runs)),
        reserved_usd_nanos: account.reserved.usd_nanos,
        last_seq: seq(summary.seq),
        trace_id: summary.trace_id.clone(),
        create_time: Some(timestamp(summary.created_us)),
        start_time: summary.started_us.map(timestamp),
        end_time: summary.ended_us.map(timestamp),
        update_time: Some(timestamp(summary.updated_us)),
        truncated: summary.truncated,
        model: summary.model.clone(),
        title: summary.title.clone(),
        tool: parent.map_or_else(String::new, |parent| parent.tool.clone()),
        cancel_reason: cancel_reason.map(ToOwned::to_owned).or_else(|| summary.cancel_reason.clone()).unwrap_or_default(),
        context_tokens: 0,
        window_tokens: 0,
    }
}

/// Returns the tree of `runs`, which begin with its root and name parents before children. Levels deeper than
/// `depth_max` below the root, and what is beyond `bytes_max`, are left out and said to be. `None` without runs.
pub fn tree(runs: Vec<v1::Run>, depth_max: Option<i32>, bytes_max: usize) -> Option<v1::RunNode> {
    let root_depth = runs.first()?.depth;
    let mut bytes = 0_usize;
    let mut kept: Vec<v1::Run> = Vec::with_capacity(runs.len());
    let mut ids = HashSet::new();
    let mut cut = HashSet::new();
    for run in runs {
        bytes = bytes.saturating_add(prost::Message::encoded_len(&run));
        let is_root = kept.is_empty();
        let too_deep = depth_max.is_some_and(|most| run.depth.saturating_sub(root_depth) > most);
        // A child of a run that was left out is left out with it: the mark on the nearest one that is shown tells of both.
        if is_root || (!too_deep && bytes <= bytes_max && ids.contains(&run.parent_run_id)) {
            ids.insert(run.run_id.clone());
            kept.push(run);
        } else {
            cut.insert(run.parent_run_id);
        }
    }
    let mut children: HashMap<String, Vec<v1::RunNode>> = HashMap::new();
    let root_id = kept.first()?.run_id.clone();
    // From the back: every run's children are complete before the run itself is reached, without recursion.
    for run in kept.into_iter().rev() {
        let mut below = children.remove(&run.run_id).unwrap_or_default();
        below.reverse();
        let parent = run.parent_run_id.clone();
        let children_truncated = cut.contains(&run.run_id);
        let node = v1::RunNode { run: Some(run), children: below, children_truncated };
        if node.run.as_ref().is_some_and(|run| run.run_id == root_id) {
            return Some(node);
        }
        children.entry(parent).or_default().push(node);
    }
    None
}

/// Returns a journal position as the API shows it.
pub(super) fn seq(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}
