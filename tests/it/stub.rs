//! A test server that speaks Chat Completions and plays the kernel's scripts over the network.
//!
//! It answers from the request alone: the model's name picks the script, the assistant messages count the turn, and the
//! tokens are counted as the scripted provider counts them, so that a workflow costs the same through either. What a
//! request cannot tell is agreed upon: the agent is the one whose needle its system message contains (see
//! [`Stub::with_agents`]; without needles, scripts leave `agent:` out), and a request whose model and messages were seen
//! before is its next attempt.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request as HttpRequest, Response as HttpResponse, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use wren::kernel::agent::Scripted;
use wren::kernel::{Args, AssistantMessage, Call, CallId, Effect, Message, ModelSpec, Request, Stop, ToolResult, ToolSpec, Usage};
use wren::provider::{Delta, scripted};

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// One request that arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    /// When it arrived.
    pub at: Instant,
    /// The model asked for.
    pub model: String,
    /// The agent that asked, if a needle told; else empty.
    pub agent: String,
    /// Its turn, from 1.
    pub turn: u32,
    /// Its attempt, from 1.
    pub attempt: u32,
    /// The whole body.
    pub body: Value,
    /// The `Authorization` header.
    pub authorization: Option<String>,
}

/// The server. It stops when dropped.
pub struct Stub {
    address: SocketAddr,
    shared: Arc<Shared>,
    closing: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    scripts: BTreeMap<String, Scripted>,
    // A text of a system message, and the agent that it gives away.
    agents: Vec<(String, String)>,
    seen: Mutex<Vec<Seen>>,
    aborted: AtomicUsize,
}

impl Stub {
    /// Starts a server that plays each script under its model's name.
    pub fn start(scripts: BTreeMap<String, Scripted>) -> Self {
        Self::with_agents(scripts, Vec::new())
    }

    /// Starts a server that also tells agents apart: each by a text that only its instructions contain.
    pub fn with_agents(scripts: BTreeMap<String, Scripted>, agents: Vec<(String, String)>) -> Self {
        let shared = Arc::new(Shared { scripts, agents, seen: Mutex::default(), aborted: AtomicUsize::new(0) });
        let closing = CancellationToken::new();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        // A thread and a clock of its own: tests may pause theirs.
        let thread = {
            let (shared, closing) = (shared.clone(), closing.clone());
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(serve(listener, shared, closing));
            })
        };
        Self { address, shared, closing, thread: Some(thread) }
    }

    /// Returns the base URL.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Returns what has been asked, in the order of arrival.
    pub fn requests(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Returns how many answers were dropped by their client before their end.
    pub fn aborted(&self) -> usize {
        self.shared.aborted.load(Ordering::SeqCst)
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.closing.cancel();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

async fn serve(listener: std::net::TcpListener, shared: Arc<Shared>, closing: CancellationToken) {
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let mut connections = FuturesUnordered::new();
    loop {
        tokio::select! {
            () = closing.cancelled() => return,
            accepted = listener.accept() => {
                let Ok((socket, _)) = accepted else { continue };
                let shared = shared.clone();
                let service = service_fn(move |request| {
                    let shared = shared.clone();
                    async move { Ok::<_, Infallible>(answer(&shared, request).await) }
                });
                connections.push(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service));
            }
            Some(_) = connections.next() => {}
        }
    }
}

async fn answer(shared: &Arc<Shared>, request: HttpRequest<Incoming>) -> HttpResponse<Body> {
    if request.uri().path() != "/v1/chat/completions" {
        return refusal(StatusCode::NOT_FOUND, "no such path", None);
    }
    let authorization = request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned());
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let Ok(body) = serde_json::from_slice::<Value>(&body) else {
        return refusal(StatusCode::BAD_REQUEST, "the body is not JSON", None);
    };
    let model = body["model"].as_str().unwrap_or_default().to_owned();
    let Some(script) = shared.scripts.get(&model).cloned() else {
        return refusal(StatusCode::NOT_FOUND, &format!("The model `{model}` does not exist"), None);
    };
    if body["stream"] != true {
        return refusal(StatusCode::BAD_REQUEST, "this server streams only; ask with \"stream\": true", None);
    }
    let request = see(shared, body, authorization);
    let reply = scripted::choose(&script, &request);
    let latency = Duration::from_millis(reply.latency_ms.unwrap_or(script.latency_ms));
    if let Some(error) = &reply.error {
        tokio::time::sleep(latency).await;
        return refusal(StatusCode::from_u16(error.status).unwrap(), &error.message, error.retry_after_ms);
    }
    let mut framing = Framing { model: &model, turn: request.turn, calls: 0 };
    let chunks: Vec<String> = scripted::deltas(&request, &reply).iter().flat_map(|delta| framing.chunks_of(delta)).collect();
    let step = latency / u32::try_from(chunks.len().max(1)).unwrap();
    let guard = Guard { shared: shared.clone(), left: chunks.len() };
    let frames = stream::unfold((chunks.into_iter(), guard), move |(mut chunks, mut guard)| async move {
        let chunk = chunks.next()?;
        if !step.is_zero() {
            tokio::time::sleep(step).await;
        }
        guard.left -= 1;
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(chunk))), (chunks, guard)))
    });
    let body = StreamBody::new(frames).boxed_unsync();
    HttpResponse::builder().header("content-type", "text/event-stream").body(body).unwrap()
}

/// Notes an answer that is dropped before its end.
struct Guard {
    shared: Arc<Shared>,
    left: usize,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.left > 0 {
            self.shared.aborted.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn refusal(status: StatusCode, message: &str, retry_after_ms: Option<u64>) -> HttpResponse<Body> {
    let body = json!({"error": {"message": message, "type": "stub_error"}}).to_string();
    let mut response = HttpResponse::builder().status(status).header("content-type", "application/json");
    if let Some(wait) = retry_after_ms {
        response = response.header("retry-after-ms", wait.to_string());
    }
    response.body(Full::from(body).boxed_unsync()).unwrap()
}

/// Notes a request, and reads it back into what the adapter encoded.
fn see(shared: &Shared, body: Value, authorization: Option<String>) -> Request {
    let mut request = decode(&body);
    let mut seen = shared.seen.lock().unwrap();
    let before = seen.iter().filter(|seen| seen.body["model"] == body["model"] && seen.body["messages"] == body["messages"]).count();
    request.attempt = u32::try_from(before + 1).unwrap();
    let agent = shared.agents.iter().find(|(needle, _)| request.instructions.contains(needle.as_str()));
    request.agent = agent.map(|(_, agent)| agent.clone()).unwrap_or_default();
    seen.push(Seen {
        at: Instant::now(),
        model: request.model.model.clone(),
        agent: request.agent.clone(),
        turn: request.turn,
        attempt: request.attempt,
        body,
        authorization,
    });
    request
}

fn decode(body: &Value) -> Request {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut instructions = String::new();
    let mut messages = Vec::new();
    for entry in body["messages"].as_array().into_iter().flatten() {
        match entry["role"].as_str().unwrap_or_default() {
            "system" => instructions = text(&entry["content"]),
            "user" => messages.push(Message::User { text: text(&entry["content"]) }),
            "assistant" => {
                let calls = entry["tool_calls"].as_array().into_iter().flatten().map(|call| Call {
                    id: CallId::from_text(text(&call["id"])),
                    provider_id: None,
                    tool: text(&call["function"]["name"]),
                    args: Args::parse(call["function"]["arguments"].as_str().unwrap_or_default()),
                });
                let calls = calls.collect();
                messages.push(Message::Assistant(AssistantMessage { text: text(&entry["content"]), calls, ..Default::default() }));
            }
            _ => messages.push(Message::Tool(ToolResult {
                call_id: CallId::from_text(text(&entry["tool_call_id"])),
                tool: String::new(),
                ok: true,
                output: text(&entry["content"]),
            })),
        }
    }
    let turns = messages.iter().filter(|message| matches!(message, Message::Assistant(_))).count();
    let tools = body["tools"].as_array().into_iter().flatten().map(|tool| ToolSpec {
        name: text(&tool["function"]["name"]),
        description: text(&tool["function"]["description"]),
        parameters: tool["function"]["parameters"].clone(),
        effect: Effect::ReadOnly,
        source: String::new(),
        spawn: None,
    });
    let max_output = body["max_tokens"].as_i64().or(body["max_completion_tokens"].as_i64()).unwrap_or(i64::MAX);
    Request {
        agent: String::new(),
        model: Arc::new(ModelSpec {
            alias: String::new(),
            provider: "stub".to_owned(),
            model: text(&body["model"]),
            max_output,
            temperature: None,
            top_p: None,
            price: None,
            price_version: String::new(),
            scripted: None,
            fallback: Vec::new(),
        }),
        instructions: instructions.into(),
        messages: messages.into_iter().map(Arc::new).collect(),
        tools: tools.collect(),
        max_output,
        turn: u32::try_from(turns + 1).unwrap(),
        attempt: 1,
    }
}

/// Puts deltas into the frames that OpenAI sends.
struct Framing<'a> {
    model: &'a str,
    turn: u32,
    calls: usize,
}

impl Framing<'_> {
    fn chunk(&self, choices: Value, usage: Value) -> String {
        let id = format!("chatcmpl-stub-{}", self.turn);
        let chunk =
            json!({"id": id, "object": "chat.completion.chunk", "created": 0, "model": self.model, "choices": choices, "usage": usage});
        format!("data: {chunk}\n\n")
    }

    fn piece(&self, delta: Value) -> String {
        self.chunk(json!([{"index": 0, "delta": delta, "finish_reason": null}]), Value::Null)
    }

    fn chunks_of(&mut self, delta: &Delta) -> Vec<String> {
        match delta {
            Delta::Text(text) => vec![self.piece(json!({"content": text}))],
            Delta::Refusal(text) => vec![self.piece(json!({"refusal": text}))],
            Delta::Reasoning(text) => vec![self.piece(json!({"reasoning_content": text}))],
            Delta::Call(call) => {
                let index = self.calls;
                self.calls += 1;
                let id = format!("call_{index}");
                let head = json!({"index": index, "id": id, "type": "function", "function": {"name": call.tool, "arguments": ""}});
                let rest = json!({"index": index, "function": {"arguments": call.args_raw}});
                vec![self.piece(json!({"tool_calls": [head]})), self.piece(json!({"tool_calls": [rest]}))]
            }
            Delta::Usage(usage) => vec![self.chunk(json!([]), usage_of(usage))],
            Delta::Stop { stop, .. } => {
                let word = match stop {
                    Stop::EndTurn => "stop",
                    Stop::ToolCalls => "tool_calls",
                    Stop::Length => "length",
                    Stop::Refusal => "content_filter",
                    Stop::Error => "error",
                };
                let last = self.chunk(json!([{"index": 0, "delta": {}, "finish_reason": word}]), Value::Null);
                vec![last, "data: [DONE]\n\n".to_owned()]
            }
            Delta::Parts(_) | Delta::StatedCost(_) | Delta::Response { .. } => Vec::new(),
        }
    }
}

fn usage_of(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens(),
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens, "cache_write_tokens": usage.cache_write_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    })
}
