//! Chat Completions: OpenAI's API and every server that speaks it. A pure encoder and a pure decoder around one streaming
//! send; nothing is retried here and no state is kept but the connection pool.

pub mod decode;
pub mod encode;
pub mod error;

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::redirect::Policy;
use secrecy::{ExposeSecret, SecretString};
use tokio::time::{Duration, timeout};
use tokio_util::sync::CancellationToken;

use self::decode::Decoder;
use self::encode::{LimitName, encode};
use self::error::Place;
use super::{Delta, DeltaStream, Error, Provider};
use crate::kernel::Request;
use crate::kernel::event::Abort;

/// How long to wait for a server at each step.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For the connection, in milliseconds; likewise below.
    pub connect_ms: u64,
    /// For the first byte of the answer.
    pub first_byte_ms: u64,
    /// Between two pieces of it.
    pub idle_ms: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect_ms: 10_000, first_byte_ms: 180_000, idle_ms: 90_000 }
    }
}

/// Bytes of an error's body that are read.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// One endpoint.
#[derive(Clone)]
pub struct OpenAi {
    inner: Arc<Inner>,
}

struct Inner {
    client: reqwest::Client,
    base_url: String,
    key: Option<SecretString>,
    key_variable: String,
    limit_name: LimitName,
    timeouts: Timeouts,
}

impl OpenAi {
    /// Prepares an endpoint. Nothing is sent.
    ///
    /// # Errors
    /// If the base URL is none, or TLS cannot be set up.
    pub fn new(base_url: &str, key: Option<SecretString>, key_variable: &str, timeouts: Timeouts) -> Result<Self, String> {
        // Fails if it was installed before, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let parsed = reqwest::Url::parse(base_url).map_err(|error| format!("base URL {base_url:?}: {error}"))?;
        let is_openai = parsed.host_str() == Some("api.openai.com");
        // A redirect would carry the key and the conversation to another host.
        let client = reqwest::Client::builder()
            .redirect(Policy::none())
            .connect_timeout(Duration::from_millis(timeouts.connect_ms))
            .build()
            .map_err(|error| format!("the HTTP client cannot be set up: {error}"))?;
        let inner = Inner {
            client,
            base_url: base_url.trim_end_matches('/').to_owned(),
            key,
            key_variable: key_variable.to_owned(),
            limit_name: if is_openai { LimitName::MaxCompletionTokens } else { LimitName::MaxTokens },
            timeouts,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns whether a base URL is on this machine, where servers need no key.
    pub fn is_local(base_url: &str) -> bool {
        let host = reqwest::Url::parse(base_url).ok().and_then(|url| url.host_str().map(str::to_owned));
        host.is_some_and(|host| host == "localhost" || host == "[::1]" || host.starts_with("127."))
    }
}

impl Provider for OpenAi {
    fn ready(&self) -> Result<(), Error> {
        if self.inner.key.is_some() || Self::is_local(&self.inner.base_url) {
            return Ok(());
        }
        let variable = &self.inner.key_variable;
        Err(failure(Abort::Auth, format!("no key for {}: set {variable} where wrend runs, or use --mock", self.inner.base_url), false))
    }

    fn send(&self, request: Arc<Request>, token: CancellationToken) -> DeltaStream {
        let state = Sending { inner: self.inner.clone(), request, token, phase: Phase::Unsent, ready: VecDeque::new() };
        stream::unfold(state, |mut state| async move { state.next().await.map(|item| (item, state)) }).boxed()
    }
}

struct Sending {
    inner: Arc<Inner>,
    request: Arc<Request>,
    token: CancellationToken,
    phase: Phase,
    ready: VecDeque<Result<Delta, Error>>,
}

enum Phase {
    Unsent,
    Receiving(Box<reqwest::Response>, Box<Decoder>),
    Over,
}

impl Sending {
    async fn next(&mut self) -> Option<Result<Delta, Error>> {
        let token = self.token.clone();
        tokio::select! {
            biased;
            () = token.cancelled() => {
                // Dropping the response closes its connection.
                self.phase = Phase::Over;
                None
            }
            item = self.step() => item,
        }
    }

    async fn step(&mut self) -> Option<Result<Delta, Error>> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Some(item.map_err(|error| self.inner.redacted(error)));
            }
            match std::mem::replace(&mut self.phase, Phase::Over) {
                Phase::Over => return None,
                Phase::Unsent => match self.inner.open(&self.request).await {
                    Ok(response) => self.phase = Phase::Receiving(Box::new(response), Box::default()),
                    Err(error) => return Some(Err(self.inner.redacted(error))),
                },
                Phase::Receiving(mut response, mut decoder) => {
                    let idle = Duration::from_millis(self.inner.timeouts.idle_ms);
                    match timeout(idle, response.chunk()).await {
                        Ok(Ok(Some(bytes))) => self.ready.extend(decoder.feed(&bytes)),
                        Ok(Ok(None)) => self.ready.extend(decoder.finish()),
                        Ok(Err(error)) => {
                            let why = format!("the provider's stream broke: {}", cause(&error));
                            self.ready.push_back(Err(failure(Abort::CutStream, why, true)));
                            continue;
                        }
                        Err(_) => {
                            let why = format!("the provider sent nothing for {} s", idle.as_secs());
                            self.ready.push_back(Err(failure(Abort::NoAnswer, why, true)));
                            continue;
                        }
                    }
                    if !decoder.is_closed() {
                        self.phase = Phase::Receiving(response, decoder);
                    }
                }
            }
        }
    }
}

impl Inner {
    /// Sends the request and waits for a good answer to begin.
    async fn open(&self, request: &Request) -> Result<reqwest::Response, Error> {
        let body = serde_json::to_vec(&encode(request, self.limit_name))
            .map_err(|error| failure(Abort::InvalidRequest, error.to_string(), false))?;
        let mut builder = self.client.post(format!("{}/chat/completions", self.base_url)).header(CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            let header = HeaderValue::from_str(&format!("Bearer {}", key.expose_secret()));
            let mut header =
                header.map_err(|_| failure(Abort::Auth, format!("{} has characters that no header may have", self.key_variable), false))?;
            header.set_sensitive(true);
            builder = builder.header(AUTHORIZATION, header);
        }
        let wait = Duration::from_millis(self.timeouts.first_byte_ms);
        let sent = timeout(wait, builder.body(body).send()).await;
        let response = match sent {
            Err(_) => return Err(failure(Abort::NoAnswer, format!("{} did not answer within {} s", self.base_url, wait.as_secs()), true)),
            Ok(Err(error)) if error.is_connect() => {
                let why = format!("cannot connect to {}: {}; is a server listening there?", self.base_url, cause(&error));
                return Err(failure(Abort::Network, why, true));
            }
            Ok(Err(error)) => return Err(failure(Abort::Network, format!("{}: {}", self.base_url, cause(&error)), true)),
            Ok(Ok(response)) => response,
        };
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        Err(self.refused(response, request).await)
    }

    async fn refused(&self, mut response: reqwest::Response, request: &Request) -> Error {
        let status = response.status();
        if status.is_redirection() {
            return failure(
                Abort::InvalidRequest,
                format!("{} answered with a redirect, which is not followed; set the base URL to where it leads", self.base_url),
                false,
            );
        }
        let headers = response.headers().clone();
        let mut body = Vec::new();
        let idle = Duration::from_millis(self.timeouts.idle_ms);
        while body.len() < ERROR_BYTES_MAX
            && let Ok(Ok(Some(bytes))) = timeout(idle, response.chunk()).await
        {
            body.extend_from_slice(&bytes);
        }
        body.truncate(ERROR_BYTES_MAX);
        let place = Place { base_url: self.base_url.clone(), key_variable: self.key_variable.clone(), model: request.model.model.clone() };
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        error::of_response(status.as_u16(), &header, &body, &place)
    }

    /// Takes the key out of a message, should a server have echoed it.
    fn redacted(&self, mut error: Error) -> Error {
        if let Some(key) = self.key.as_ref().map(ExposeSecret::expose_secret).filter(|key| !key.is_empty()) {
            error.message = error.message.replace(key, "[key]");
            error.code = error.code.map(|code| code.replace(key, "[key]"));
        }
        error
    }
}

fn failure(kind: Abort, message: String, retryable: bool) -> Error {
    // A stream that broke or fell silent had begun; what failed before that had not.
    let reply_begun = matches!(kind, Abort::CutStream) || (kind == Abort::NoAnswer && message.contains("sent nothing"));
    Error { kind, message, code: None, http_status: None, retryable, retry_after_ms: None, reply_begun }
}

/// Returns the innermost cause, without the URL, which may hold secrets.
fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}
