//! A test server that speaks every wire family and plays the kernel's scripts over the network.
//!
//! It answers from the request alone: the model's name picks the script, the assistant messages count the turn, and the
//! tokens are counted as the scripted provider counts them, so that a workflow costs the same through either. What a
//! request cannot tell is agreed upon: the agent is the one whose needle its system message contains (see
//! [`Stub::with_agents`]; without needles, scripts leave `agent:` out), and a request that says what another said before is
//! its next attempt.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
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
use wren::kernel::{Request, Usage};
use wren::provider::{Delta, scripted};

use self::read::Asked;

mod read;
mod write;

pub use write::sealed;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A wire family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Chat,
    Responses,
    Messages,
    Gemini,
    Ollama,
}

impl Wire {
    /// Returns the family whose path this is. One base URL serves all.
    fn of(path: &str) -> Option<Self> {
        match path.strip_prefix("/v1/")? {
            "chat/completions" => Some(Self::Chat),
            "responses" => Some(Self::Responses),
            "messages" => Some(Self::Messages),
            "api/chat" => Some(Self::Ollama),
            path if path.starts_with("models/") && path.ends_with(":streamGenerateContent") => Some(Self::Gemini),
            _ => None,
        }
    }

    fn model(self, path: &str, body: &Value) -> String {
        let in_path = || path.rsplit_once('/').unwrap().1.split(':').next().unwrap();
        if self == Self::Gemini { in_path() } else { body["model"].as_str().unwrap_or_default() }.to_owned()
    }

    fn max_output(self, body: &Value) -> i64 {
        let limit = match self {
            Self::Chat => body["max_tokens"].as_i64().or(body["max_completion_tokens"].as_i64()),
            Self::Responses => body["max_output_tokens"].as_i64(),
            Self::Messages => body["max_tokens"].as_i64(),
            Self::Gemini => body["generationConfig"]["maxOutputTokens"].as_i64(),
            Self::Ollama => body["options"]["num_predict"].as_i64(),
        };
        limit.unwrap_or(i64::MAX)
    }
}

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
    /// The family in which it was asked.
    pub wire: Wire,
    /// What it brings back of what a model signed or encrypted.
    pub sealed: Vec<String>,
    /// What is charged for it; nothing if it was refused.
    pub charged: Option<Usage>,
    /// What tells its messages from others.
    said: u64,
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
    let path = request.uri().path().to_owned();
    let Some(wire) = Wire::of(&path) else { return refusal(StatusCode::NOT_FOUND, "no such path", None) };
    let authorization = request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned());
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let Ok(body) = serde_json::from_slice::<Value>(&body) else {
        return refusal(StatusCode::BAD_REQUEST, "the body is not JSON", None);
    };
    let model = wire.model(&path, &body);
    let Some(script) = shared.scripts.get(&model).cloned() else {
        return refusal(StatusCode::NOT_FOUND, &format!("The model `{model}` does not exist"), None);
    };
    if wire != Wire::Gemini && body["stream"] != true {
        return refusal(StatusCode::BAD_REQUEST, "this server streams only; ask with \"stream\": true", None);
    }
    let (request, index) = see(shared, wire, &model, &body, authorization);
    let reply = scripted::choose(&script, &request);
    let latency = Duration::from_millis(reply.latency_ms.unwrap_or(script.latency_ms));
    if let Some(error) = &reply.error {
        tokio::time::sleep(latency).await;
        return refusal(StatusCode::from_u16(error.status).unwrap(), &error.message, error.retry_after_ms);
    }
    let deltas: Vec<Delta> = scripted::deltas(&request, &reply).into();
    let charged = deltas.iter().find_map(|delta| if let Delta::Usage(usage) = delta { Some(*usage) } else { None });
    shared.seen.lock().unwrap()[index].charged = charged;
    let chunks = write::frames(wire, &model, request.turn, &deltas);
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
    let kind = if wire == Wire::Ollama { "application/x-ndjson" } else { "text/event-stream" };
    HttpResponse::builder().header("content-type", kind).body(body).unwrap()
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

/// Notes a request, and reads it back into what the adapter encoded. Returns where it is noted.
fn see(shared: &Shared, wire: Wire, model: &str, body: &Value, authorization: Option<String>) -> (Request, usize) {
    let asked = Asked::read(wire, body);
    let sealed = asked.sealed.clone();
    let mut request = asked.into_request(model, wire.max_output(body));
    let mut seen = shared.seen.lock().unwrap();
    let said = said(body);
    let before = seen.iter().filter(|seen| seen.model == model && seen.said == said).count();
    request.attempt = u32::try_from(before + 1).unwrap();
    let agent = shared.agents.iter().find(|(needle, _)| request.instructions.contains(needle.as_str()));
    request.agent = agent.map(|(_, agent)| agent.clone()).unwrap_or_default();
    seen.push(Seen {
        at: Instant::now(),
        model: model.to_owned(),
        agent: request.agent.clone(),
        turn: request.turn,
        attempt: request.attempt,
        wire,
        sealed,
        charged: None,
        said,
        authorization,
    });
    (request, seen.len() - 1)
}

/// What tells the messages of a request from others: a request with the same is its next attempt.
fn said(body: &Value) -> u64 {
    let messages = ["messages", "input", "contents"].iter().find_map(|key| body.get(*key));
    let mut hasher = DefaultHasher::new();
    messages.map(Value::to_string).hash(&mut hasher);
    hasher.finish()
}
