//! The generated API and the conversions between it and the kernel. Nothing else here: no policy, no IO.

use crate::kernel::agent::LimitsPatch;
use crate::kernel::ledger::{Account, Limits, Totals};
use crate::kernel::message::Message;
use crate::kernel::summary::Summary;
use crate::kernel::{Outcome, Run, State, Stop};

pub mod event;

/// The messages and services of `proto/wren/v1/wren.proto`.
#[expect(missing_docs, clippy::all, reason = "generated code")]
pub mod v1 {
    tonic::include_proto!("wren.v1");
    include!(concat!(env!("OUT_DIR"), "/wren.v1.serde.rs"));
}

/// The encoded descriptors of the API, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wren_descriptor.bin"));

/// Returns a time as the API has it.
pub fn timestamp(time_us: i64) -> pbjson_types::Timestamp {
    let nanos = i32::try_from(time_us.rem_euclid(1_000_000) * 1000).unwrap_or(0);
    pbjson_types::Timestamp { seconds: time_us.div_euclid(1_000_000), nanos }
}

/// Returns a state as the API has it.
pub fn state(state: State) -> v1::RunState {
    match state {
        State::Pending => v1::RunState::Pending,
        State::Running => v1::RunState::Running,
        State::Suspended => v1::RunState::Suspended,
        State::Cancelling => v1::RunState::Cancelling,
        State::Ended => v1::RunState::Ended,
    }
}

/// Returns an outcome as the API has it; unspecified while there is none.
pub fn outcome(outcome: Option<Outcome>) -> v1::Outcome {
    match outcome {
        None => v1::Outcome::Unspecified,
        Some(Outcome::Completed) => v1::Outcome::Completed,
        Some(Outcome::Failed) => v1::Outcome::Failed,
        Some(Outcome::Blocked) => v1::Outcome::Blocked,
        Some(Outcome::Cancelled) => v1::Outcome::Cancelled,
        Some(Outcome::MaxTurns) => v1::Outcome::MaxTurns,
        Some(Outcome::Budget) => v1::Outcome::Budget,
        Some(Outcome::MaxTokens) => v1::Outcome::MaxTokens,
        Some(Outcome::Timeout) => v1::Outcome::Timeout,
        Some(Outcome::InDoubt) => v1::Outcome::InDoubt,
        Some(Outcome::ProviderError) => v1::Outcome::ProviderError,
        Some(Outcome::Drained) => v1::Outcome::Drained,
    }
}

/// Returns a stop as the API has it.
pub fn stop(stop: Stop) -> v1::Stop {
    match stop {
        Stop::EndTurn => v1::Stop::EndTurn,
        Stop::ToolCalls => v1::Stop::ToolCalls,
        Stop::Length => v1::Stop::Length,
        Stop::Refusal => v1::Stop::Refusal,
        Stop::Error => v1::Stop::Error,
    }
}

/// Returns all limits as the API has them.
pub fn limits(limits: &Limits) -> v1::Limits {
    v1::Limits {
        max_turns: Some(small(limits.max_turns)),
        budget_usd_nanos: Some(limits.budget_usd_nanos),
        max_tokens: Some(limits.max_tokens),
        timeout: Some(duration(limits.timeout_ms)),
        max_depth: Some(small(limits.max_depth)),
        max_runs: Some(small(limits.max_runs)),
    }
}

fn duration(duration_ms: i64) -> pbjson_types::Duration {
    let nanos = i32::try_from(duration_ms.rem_euclid(1000) * 1_000_000).unwrap_or(0);
    pbjson_types::Duration { seconds: duration_ms.div_euclid(1000), nanos }
}

fn small(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn small_i64(count: i64) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Reads limits that a client asks for.
///
/// # Errors
/// The field and what is wrong with it.
pub fn limits_patch(limits: Option<&v1::Limits>) -> Result<LimitsPatch, (String, String)> {
    let Some(limits) = limits else { return Ok(LimitsPatch::default()) };
    let count = |name: &str, value: Option<i32>, least: u32| -> Result<Option<u32>, (String, String)> {
        let Some(value) = value else { return Ok(None) };
        match u32::try_from(value) {
            Ok(value) if value >= least => Ok(Some(value)),
            _ => Err((format!("limits.{name}"), format!("must be at least {least}, and is {value}"))),
        }
    };
    let amount = |name: &str, value: Option<i64>| match value {
        Some(value) if value < 1 => Err((format!("limits.{name}"), format!("must be more than 0, and is {value}"))),
        other => Ok(other),
    };
    let timeout_ms = match &limits.timeout {
        None => None,
        Some(timeout) => {
            let ms = timeout.seconds.checked_mul(1000).and_then(|ms| ms.checked_add(i64::from(timeout.nanos) / 1_000_000));
            match ms {
                Some(ms) if ms > 0 => Some(ms),
                _ => return Err(("limits.timeout".to_owned(), "must be more than 0 and less than 292 million years".to_owned())),
            }
        }
    };
    Ok(LimitsPatch {
        max_turns: count("max_turns", limits.max_turns, 1)?,
        budget_usd_nanos: amount("budget_usd_nanos", limits.budget_usd_nanos)?,
        max_tokens: amount("max_tokens", limits.max_tokens)?,
        timeout_ms,
        max_depth: count("max_depth", limits.max_depth, 0)?,
        max_runs: count("max_runs", limits.max_runs, 1)?,
    })
}

/// Returns sums as the API has them.
pub fn usage(totals: &Totals, runs: u32) -> v1::Usage {
    v1::Usage {
        input_tokens: totals.usage.input_tokens,
        output_tokens: totals.usage.output_tokens,
        cache_read_tokens: totals.usage.cache_read_tokens,
        cache_write_tokens: totals.usage.cache_write_tokens,
        reasoning_tokens: totals.usage.reasoning_tokens,
        cost_usd_nanos: totals.cost_usd_nanos,
        cost_unknown: totals.cost_unknown,
        turn_count: small_i64(totals.turns),
        tool_call_count: small_i64(totals.calls),
        run_count: small(runs),
        written_off_usd_nanos: totals.written_off_usd_nanos,
        overrun_usd_nanos: totals.overrun_usd_nanos,
        estimated: totals.estimated,
    }
}

/// Returns why a run stopped, if there is anything to say.
pub fn failure(reason: &str, message: &str) -> Option<v1::Failure> {
    (!reason.is_empty()).then(|| v1::Failure { reason: reason.to_owned(), message: message.to_owned() })
}

/// Returns a run as the API has it. `cancelling` says that a cancel is durable, whether or not its driver knows yet.
pub fn run(summary: &Summary, account: &Account, cancelling: bool) -> v1::Run {
    let shown = if cancelling && summary.state != State::Ended { State::Cancelling } else { summary.state };
    v1::Run {
        run_id: summary.id.to_string(),
        parent_run_id: summary.parent.as_ref().map(|parent| parent.run.to_string()).unwrap_or_default(),
        root_run_id: summary.root.to_string(),
        depth: small(summary.depth),
        agent: summary.agent.clone(),
        tool_call_id: summary.parent.as_ref().map(|parent| parent.call_id.to_string()).unwrap_or_default(),
        workflow_name: summary.workflow.clone(),
        workflow_digest: summary.workflow_digest.clone(),
        labels: summary.labels.clone().into_iter().collect(),
        submitter: summary.submitter.clone(),
        state: state(shown).into(),
        outcome: outcome(summary.outcome).into(),
        failure: failure(&summary.reason, &summary.message),
        inputs_json: summary.inputs.to_string(),
        output_json: summary.output.as_ref().map(ToString::to_string).unwrap_or_default(),
        output_text: summary.text.clone(),
        limits: Some(limits(&summary.limits)),
        own_usage: Some(usage(&summary.own, 1)),
        subtree_usage: Some(usage(&account.totals, account.runs)),
        reserved_usd_nanos: account.reserved.usd_nanos,
        last_seq: i64::try_from(summary.seq).unwrap_or(i64::MAX),
        trace_id: summary.trace_id.clone(),
        create_time: Some(timestamp(summary.created_us)),
        start_time: summary.started_us.map(timestamp),
        end_time: summary.ended_us.map(timestamp),
        update_time: Some(timestamp(summary.updated_us)),
        truncated: summary.truncated,
        model: summary.model.clone(),
        title: summary.title.clone(),
        tool: summary.parent.as_ref().map(|parent| parent.tool.clone()).unwrap_or_default(),
        cancel_reason: summary.cancel_reason.clone().unwrap_or_default(),
    }
}

/// Returns a run's conversation, its instructions first if it has any.
pub fn transcript(run: &Run) -> Vec<v1::Message> {
    let instructions = &run.created.agent.instructions;
    let system = (!instructions.is_empty()).then(|| v1::Message {
        role: v1::Role::System.into(),
        text: instructions.to_string(),
        ..v1::Message::default()
    });
    system.into_iter().chain(run.transcript.iter().map(|said| message(said))).collect()
}

/// Returns one message as the API has it.
pub fn message(message: &Message) -> v1::Message {
    match message {
        Message::User { text } => v1::Message { role: v1::Role::User.into(), text: text.clone(), ..v1::Message::default() },
        Message::Tool(result) => v1::Message {
            role: v1::Role::Tool.into(),
            text: result.output.clone(),
            tool_call_id: result.call_id.to_string(),
            tool: result.tool.clone(),
            is_error: !result.ok,
            ..v1::Message::default()
        },
        Message::Assistant(reply) => v1::Message {
            role: v1::Role::Assistant.into(),
            text: reply.text.clone(),
            refusal: reply.refusal.clone().unwrap_or_default(),
            reasoning: reply.reasoning.clone().unwrap_or_default(),
            tool_calls: reply
                .calls
                .iter()
                .map(|call| v1::ToolCall { call_id: call.id.to_string(), tool: call.tool.clone(), args_json: call.args.shown() })
                .collect(),
            ..v1::Message::default()
        },
    }
}
