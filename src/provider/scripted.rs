//! The model that plays a script. It keeps no state: which reply is given depends on the request alone, so a run that was
//! killed goes on as if nothing had been. It costs nothing unless the script sets a price.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream;
use serde_json::{Map, Value, json};
use tokio::time::{Duration, sleep};
use tokio_util::sync::CancellationToken;

use super::{Delta, DeltaStream, Error, Provider, tokens};
use crate::kernel::agent::{ScriptedCall, ScriptedReply};
use crate::kernel::event::Purpose;
use crate::kernel::{Effect, Message, ReplyCall, Request, Scripted, Stop, ToolSpec, Usage};

/// Words that stream as one chunk.
const CHUNK_WORDS: usize = 3;

/// The provider named `scripted`.
pub struct ScriptedProvider;

impl Provider for ScriptedProvider {
    fn ready(&self) -> Result<(), Error> {
        Ok(())
    }

    fn send(&self, request: Arc<Request>, token: CancellationToken) -> DeltaStream {
        let empty = Scripted::default();
        let script = request.model.scripted.as_deref().unwrap_or(&empty);
        let reply = choose(script, &request);
        let latency_ms = reply.latency_ms.unwrap_or(script.latency_ms);
        let error = reply.error.as_ref().map(|error| super::fail::error_of_status(error.status, &error.message, error.retry_after_ms));
        let unread = error.is_none().then_some((request, reply));
        let play = Play { unread, deltas: VecDeque::new(), error, token, latency_ms, step: Duration::from_millis(latency_ms) };
        stream::unfold(play, |mut play| async move { play.next().await.map(|item| (item, play)) }).boxed()
    }
}

struct Play {
    /// What is still to be made into deltas.
    unread: Option<(Arc<Request>, ScriptedReply)>,
    latency_ms: u64,
    deltas: VecDeque<Delta>,
    error: Option<Error>,
    token: CancellationToken,
    step: Duration,
}

impl Play {
    async fn next(&mut self) -> Option<Result<Delta, Error>> {
        if let Some((request, reply)) = self.unread.take() {
            // Counting loads a tokenizer the first time, which takes its time: not on the reactor.
            let made = tokio::task::spawn_blocking(move || deltas(&request, &reply)).await;
            self.deltas = made.unwrap_or_default();
            let steps = u64::try_from(self.deltas.len().max(1)).unwrap_or(1);
            self.step = Duration::from_micros(self.latency_ms.saturating_mul(1000) / steps);
        }
        if self.token.is_cancelled() || (self.deltas.is_empty() && self.error.is_none()) {
            return None;
        }
        if !self.step.is_zero() {
            tokio::select! {
                biased;
                () = self.token.cancelled() => return None,
                () = sleep(self.step) => {}
            }
        }
        match self.deltas.pop_front() {
            Some(delta) => Some(Ok(delta)),
            None => self.error.take().map(Err),
        }
    }
}

/// Returns the reply that a script gives to a request: the first that matches, else words that say that none does.
pub fn choose(script: &Scripted, request: &Request) -> ScriptedReply {
    if request.purpose == Purpose::Compact {
        // A script tells what the agent says; its notes are nobody's to invent.
        let text = format!("(a script stands in for the model: {} messages were here)", request.messages.len().saturating_sub(1));
        return ScriptedReply { text, ..ScriptedReply::default() };
    }
    if script.mock {
        return mock(request);
    }
    let matching = script.replies.iter().find(|reply| {
        reply.agent.as_ref().is_none_or(|agent| *agent == request.agent)
            && reply.turn.is_none_or(|turn| turn == request.turn)
            && reply.attempt.is_none_or(|attempt| attempt == request.attempt)
            && reply.saw.as_ref().is_none_or(|saw| has_seen(request, saw))
    });
    matching
        .cloned()
        .unwrap_or_else(|| ScriptedReply { text: "(the script has no reply for this turn)".to_owned(), ..ScriptedReply::default() })
}

fn has_seen(request: &Request, text: &str) -> bool {
    request.messages.iter().any(|message| match &**message {
        Message::User { text: said } => said.contains(text),
        Message::Tool(result) => result.output.contains(text),
        Message::Assistant(_) => false,
    })
}

/// Makes one call of the first tool that starts no child, then quotes its result.
fn mock(request: &Request) -> ScriptedReply {
    let tool = request.tools.iter().find(|tool| tool.effect != Effect::Spawn).or(request.tools.first());
    match tool {
        Some(tool) if request.turn == 1 => {
            let call = ScriptedCall { tool: tool.name.clone(), args: plausible_args(tool) };
            ScriptedReply { calls: vec![call], ..ScriptedReply::default() }
        }
        _ => {
            let result = request.messages.iter().rev().find_map(|message| match &**message {
                Message::Tool(result) => Some(format!("{} said: {}", result.tool, result.output)),
                Message::User { .. } | Message::Assistant(_) => None,
            });
            ScriptedReply {
                text: result.unwrap_or_else(|| format!("{} has nothing to say: it is a mock.", request.agent)),
                ..ScriptedReply::default()
            }
        }
    }
}

/// Returns arguments that a tool's schema is likely to accept.
fn plausible_args(tool: &ToolSpec) -> Value {
    let required = tool.parameters.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut args = Map::new();
    for name in required.iter().filter_map(Value::as_str) {
        let schema = &tool.parameters["properties"][name];
        let value = match schema.get("type").and_then(Value::as_str) {
            _ if schema.get("default").is_some() => schema["default"].clone(),
            _ if schema.get("const").is_some() => schema["const"].clone(),
            _ if schema.get("enum").is_some() => schema["enum"][0].clone(),
            Some("integer" | "number") => schema.get("minimum").cloned().unwrap_or_else(|| json!(1)),
            Some("boolean") => json!(true),
            Some("array") => json!([]),
            Some("object") => json!({}),
            // The one path that exists wherever files do.
            _ if matches!(name, "path" | "dir" | "directory" | "root") => json!("."),
            _ => json!(format!("mock {name} for this tool")),
        };
        args.insert(name.to_owned(), value);
    }
    Value::Object(args)
}

/// Returns a reply's deltas: chunks of text, then the calls, the usage and the stop.
pub fn deltas(request: &Request, reply: &ScriptedReply) -> VecDeque<Delta> {
    let calls: Vec<ReplyCall> = reply
        .calls
        .iter()
        .map(|call| ReplyCall {
            provider_id: None,
            tool: call.tool.clone(),
            args_raw: if call.args.is_null() { "{}".to_owned() } else { call.args.to_string() },
        })
        .collect();
    let usage = reply.usage.unwrap_or_else(|| Usage {
        input_tokens: tokens::input_tokens(request),
        output_tokens: tokens::output_tokens(&reply.text, &calls).min(request.max_output),
        ..Usage::default()
    });
    let natural = if calls.is_empty() { Stop::EndTurn } else { Stop::ToolCalls };
    let stop = reply.stop.unwrap_or(natural);
    let words: Vec<&str> = reply.text.split_inclusive(' ').collect();
    let chunks = words.chunks(CHUNK_WORDS).map(|words| Delta::Text(words.concat()));
    let mut deltas: VecDeque<Delta> = chunks.collect();
    deltas.extend(calls.into_iter().map(Delta::Call));
    deltas.push_back(Delta::Usage(usage));
    deltas.push_back(Delta::Stop { stop, raw: Some(stop.name().to_owned()), paused: false });
    deltas
}
