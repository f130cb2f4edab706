//! Scripts: played in the process and over the network, with the same replies and the same money.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wren::kernel::agent::{ScriptedCall, ScriptedError, ScriptedReply};
use wren::kernel::{Effect, Message, Reply, Request, Scripted, Stop, ToolResult, ToolSpec, Usage};
use wren::provider::anthropic::{Messages, without_version};
use wren::provider::exchange::{Client, Family};
use wren::provider::gemini::Gemini;
use wren::provider::http::{Auth, Config, Timeouts};
use wren::provider::ollama::Ollama;
use wren::provider::openai::Chat;
use wren::provider::responses::Responses;
use wren::provider::scripted::ScriptedProvider;
use wren::provider::{Delta, Error, Provider, tokens};

use super::{gather, model, request, tool, user};
use crate::stub::{Stub, Wire};

async fn ask(provider: &dyn Provider, request: &Request) -> Result<Reply, Error> {
    let items = provider.send(Arc::new(request.clone()), CancellationToken::new()).collect::<Vec<_>>().await;
    let (builder, _, error) = gather(items);
    error.map_or_else(|| Ok(builder.finish().unwrap()), Err)
}

fn config(url: &str) -> Config {
    Config {
        name: "openai".to_owned(),
        base_url: url.to_owned(),
        key: None,
        auth: Auth::Bearer,
        headers: &[],
        key_advice: "set OPENAI_API_KEY".to_owned(),
        timeouts: Timeouts::default(),
    }
}

fn openai(url: &str) -> Client<Chat> {
    Client::new(config(url), Chat::of).unwrap()
}

/// A client of every family.
fn clients(url: &str) -> Vec<(Wire, Box<dyn Provider>)> {
    fn boxed<F: Family>(config: Config, family: F) -> Box<dyn Provider> {
        Box::new(Client::new(config, |_| family).unwrap())
    }
    vec![
        (Wire::Chat, Box::new(openai(url))),
        (Wire::Responses, boxed(config(url), Responses)),
        (Wire::Messages, boxed(without_version(config(url)), Messages)),
        (Wire::Gemini, boxed(config(url), Gemini)),
        (Wire::Ollama, boxed(config(url), Ollama)),
    ]
}

/// What of a usage a family can state.
fn as_stated(wire: Wire, usage: Usage) -> Usage {
    match wire {
        Wire::Chat | Wire::Responses | Wire::Messages => usage,
        Wire::Gemini => Usage { cache_write_tokens: 0, ..usage },
        Wire::Ollama => Usage { input_tokens: usage.input_tokens, output_tokens: usage.output_tokens, ..Usage::default() },
    }
}

fn with_script(request: &Request, script: &Scripted) -> Request {
    let mut model = (*request.model).clone();
    model.scripted = Some(Arc::new(script.clone()));
    Request { model: Arc::new(model), ..request.clone() }
}

fn call(tool: &str, args: Value) -> ScriptedCall {
    ScriptedCall { tool: tool.to_owned(), args }
}

fn plan() -> Scripted {
    let text = |text: &str| ScriptedReply { text: text.to_owned(), ..ScriptedReply::default() };
    Scripted {
        replies: vec![
            ScriptedReply { agent: Some("child".to_owned()), ..text("The child answers.") },
            ScriptedReply {
                turn: Some(1),
                attempt: Some(1),
                error: Some(ScriptedError { status: 503, retry_after_ms: Some(20), message: "busy".to_owned() }),
                ..ScriptedReply::default()
            },
            ScriptedReply {
                turn: Some(1),
                calls: vec![call("list_files", json!({"path": ".", "depth": 2})), call("list_files", Value::Null)],
                ..text("I will look around first, in 東京 too.")
            },
            ScriptedReply { saw: Some("errors.log".to_owned()), turn: Some(2), ..text("There is an errors.log of some size.") },
            ScriptedReply { turn: Some(3), stop: Some(Stop::Length), calls: vec![call("read_file", json!({"path": "x"}))], ..text("") },
            ScriptedReply {
                turn: Some(4),
                usage: Some(Usage {
                    input_tokens: 1000,
                    output_tokens: 70,
                    cache_read_tokens: 600,
                    cache_write_tokens: 30,
                    reasoning_tokens: 40,
                }),
                ..text("Counted by hand.")
            },
        ],
        ..Scripted::default()
    }
}

#[tokio::test]
async fn a_script_says_and_costs_the_same_in_the_process_and_over_the_network_in_every_family() {
    for wire in [Wire::Chat, Wire::Responses, Wire::Messages, Wire::Gemini, Wire::Ollama] {
        the_plan_is_played_over(wire).await;
    }
}

async fn the_plan_is_played_over(wire: Wire) {
    let script = plan();
    let agents = vec![("You are the child.".to_owned(), "child".to_owned()), ("You lead.".to_owned(), "lead".to_owned())];
    let stub = Stub::with_agents(BTreeMap::from([("plan".to_owned(), script.clone())]), agents);
    let (_, network) = clients(&stub.url()).into_iter().find(|(family, _)| *family == wire).unwrap();
    let tools = vec![tool("list_files", json!({"type": "object", "properties": {"path": {"type": "string"}}}))];
    let mut messages = vec![user("What is here?")];
    let mut inputs = Vec::new();
    for turn in 1..=5 {
        for attempt in 1..=2 {
            let mut request = request(model("plan"), "You lead.", messages.clone(), tools.clone());
            request.attempt = attempt;
            let here = ask(&ScriptedProvider, &with_script(&request, &script)).await;
            let there = ask(&*network, &request).await;
            match (here, there) {
                (Ok(here), Ok(there)) => {
                    let of = |reply: &Reply| {
                        let calls: Vec<_> = reply.calls.iter().map(|call| (call.tool.clone(), call.args_raw.clone())).collect();
                        (reply.text.clone(), calls, reply.stop, reply.usage.map(|usage| as_stated(wire, usage)))
                    };
                    assert_eq!(of(&here), of(&there), "{wire:?}, turn {turn}");
                    inputs.push(here.usage.unwrap().input_tokens);
                    if attempt == 2 {
                        let message = here.into_message(turn, &request.model);
                        let calls = message.calls.clone();
                        messages.push(Message::Assistant(message));
                        if calls.is_empty() {
                            messages.push(user("Go on."));
                        }
                        messages.extend(calls.into_iter().map(|call| {
                            let output = format!("errors.log, for {}", call.id);
                            Message::Tool(ToolResult { call_id: call.id, tool: call.tool, ok: true, output })
                        }));
                    }
                }
                (Err(here), Err(there)) => {
                    assert_eq!((turn, attempt), (1, 1));
                    let of = |error: &Error| (error.kind, error.http_status, error.retryable, error.retry_after_ms, error.reply_begun);
                    assert_eq!(of(&here), of(&there));
                    assert_eq!(here.retry_after_ms, Some(20));
                }
                (here, there) => panic!("turn {turn}: {here:?} here, {there:?} there"),
            }
        }
    }
    assert!(inputs.windows(2).all(|pair| pair[0] <= pair[1] || pair[0] == 1000), "{inputs:?}");
    let child = request(model("plan"), "You are the child.", vec![user("Go.")], Vec::new());
    assert_eq!(ask(&*network, &child).await.unwrap().text, "The child answers.");
    let seen = stub.requests();
    assert_eq!(seen.len(), 11);
    assert_eq!((seen[1].turn, seen[1].attempt, seen[1].agent.as_str()), (1, 2, "lead"));
    assert!(seen.iter().all(|seen| seen.model == "plan" && seen.authorization.is_none()), "a local server needs no key");
    assert!(seen.windows(2).all(|pair| pair[0].at <= pair[1].at));
    assert_eq!(stub.aborted(), 0);
}

#[test]
fn tokens_are_counted_as_a_person_would_count_them() {
    let parameters = json!({"type": "object"});
    let request = request(model("m"), "Be brief.", vec![user("Hello there"), user("")], vec![tool("list", parameters)]);
    let count = |text: &str| i64::try_from(bpe_openai::o200k_base().count(text)).unwrap();
    let by_hand = count("Be brief.") + count("list") + count("does list") + count("{\"type\":\"object\"}") + 4 + count("Hello there") + 4;
    assert_eq!(tokens::input_tokens(&request), by_hand);
    assert_eq!(count("Hello there"), 2);
    assert_eq!(tokens::output_tokens("Hello there", &[]), 2);
}

#[tokio::test(start_paused = true)]
async fn a_reply_takes_its_time_and_a_cancel_cuts_it_short() {
    let reply =
        ScriptedReply { text: "one two three four five six seven eight nine".to_owned(), latency_ms: Some(900), ..Default::default() };
    let script = Scripted { replies: vec![reply], ..Scripted::default() };
    let request = Arc::new(with_script(&request(model("m"), "", vec![user("Go.")], Vec::new()), &script));
    let began = Instant::now();
    let mut stream = ScriptedProvider.send(request.clone(), CancellationToken::new());
    let mut texts = 0;
    while let Some(item) = stream.next().await {
        texts += usize::from(matches!(item.unwrap(), Delta::Text(_)));
    }
    assert!(texts > 1, "streamed in pieces");
    assert_eq!(began.elapsed().as_millis() / 10, 90);

    let token = CancellationToken::new();
    let mut stream = ScriptedProvider.send(request, token.clone());
    assert!(stream.next().await.is_some());
    token.cancel();
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn a_script_that_has_run_out_ends_the_turn() {
    let request = with_script(&request(model("m"), "", vec![user("Go.")], Vec::new()), &Scripted::default());
    let reply = ask(&ScriptedProvider, &request).await.unwrap();
    assert_eq!((reply.text.as_str(), reply.stop), ("(the script has no reply for this turn)", Stop::EndTurn));
}

#[tokio::test]
async fn a_mock_calls_one_tool_that_starts_no_child_and_quotes_its_result() {
    let script = Scripted { mock: true, ..Scripted::default() };
    let spawn = ToolSpec { effect: Effect::Spawn, ..tool("research", json!({"type": "object"})) };
    let schema = json!({
        "type": "object",
        "properties": {"path": {"type": "string"}, "depth": {"type": "integer", "minimum": 2}, "how": {"enum": ["fast", "slow"]}, "why": {"type": "string"}},
        "required": ["path", "depth", "how"],
    });
    let tools = vec![spawn, tool("list_files", schema.clone())];
    let first = with_script(&request(model("m"), "", vec![user("Go.")], tools.clone()), &script);
    let reply = ask(&ScriptedProvider, &first).await.unwrap();
    assert_eq!((reply.calls.len(), reply.calls[0].tool.as_str(), reply.stop), (1, "list_files", Stop::ToolCalls));
    let args: Value = serde_json::from_str(&reply.calls[0].args_raw).unwrap();
    assert_eq!(args, json!({"path": ".", "depth": 2, "how": "fast"}));
    assert!(jsonschema::is_valid(&schema, &args));
    let message = reply.into_message(1, &super::model("m"));
    let result =
        ToolResult { call_id: message.calls[0].id.clone(), tool: "list_files".to_owned(), ok: true, output: "notes.txt".to_owned() };
    let messages = vec![user("Go."), Message::Assistant(message), Message::Tool(result)];
    let second = with_script(&request(model("m"), "", messages, tools), &script);
    let reply = ask(&ScriptedProvider, &second).await.unwrap();
    assert!(reply.text.contains("notes.txt") && reply.calls.is_empty(), "{}", reply.text);
}

#[tokio::test]
async fn the_stub_says_which_model_it_lacks() {
    let stub = Stub::start(BTreeMap::new());
    let error = ask(&openai(&stub.url()), &request(model("nope"), "", vec![user("Hi.")], Vec::new())).await.unwrap_err();
    assert_eq!(error.http_status, Some(404));
    assert!(error.message.contains("\"nope\"") && error.message.contains(&stub.url()), "{error}");
}

#[tokio::test]
async fn the_stub_notes_answers_that_were_dropped() {
    let reply = ScriptedReply { text: "a b c d e f g h i j k l".to_owned(), latency_ms: Some(60_000), ..Default::default() };
    let quick = ScriptedReply { turn: Some(2), ..ScriptedReply::default() };
    let stub = Stub::start(BTreeMap::from([("slow".to_owned(), Scripted { replies: vec![quick, reply], ..Scripted::default() })]));
    let token = CancellationToken::new();
    let mut stream = openai(&stub.url()).send(Arc::new(request(model("slow"), "", vec![user("Hi.")], Vec::new())), token.clone());
    let cancel = async {
        while stub.requests().is_empty() {
            tokio::task::yield_now().await;
        }
        token.cancel();
    };
    assert!(futures_util::future::join(stream.next(), cancel).await.0.is_none());
    while stub.aborted() == 0 {
        tokio::task::yield_now().await;
    }
}
