//! One HTTP endpoint: its client, its key, its timeouts, and what its failures mean to people. It knows no wire format.
//!
//! Redirects are never followed, since the key would go along. What is read is bounded, and the key is taken out of every
//! word that leaves here.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, LOCATION};
use http::{HeaderName, HeaderValue, StatusCode};
use reqwest::{Client, Response, Url, redirect};
use secrecy::{ExposeSecret, SecretString};
use tokio::time::timeout;

use super::{Error, fail};
use crate::kernel::event::Abort;

/// The most that is read of an error's body, in bytes.
const ERROR_BYTES_MAX: usize = 64 * 1024;
/// What stands for a key that a server echoes.
const REDACTED: &str = "[key]";

/// How an endpoint is reached.
#[derive(Clone, Debug)]
pub struct Config {
    /// The provider's name in Wren.
    pub name: String,
    /// The URL before the family's own paths: `https://api.openai.com/v1`.
    pub base_url: String,
    /// The key, if there is one.
    pub key: Option<SecretString>,
    /// How the key is shown.
    pub auth: Auth,
    /// Headers that every request carries, beside the usual ones.
    pub headers: &'static [(&'static str, &'static str)],
    /// What to do about a key that is missing or refused, in the imperative: `set OPENAI_API_KEY`.
    pub key_advice: String,
    /// How long it may take.
    pub timeouts: Timeouts,
}

/// The header in which a key goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// `Authorization: Bearer KEY`.
    Bearer,
    /// A header of its own that holds the bare key.
    Header(&'static str),
}

impl Auth {
    fn value(self, key: &SecretString) -> Option<(HeaderName, HeaderValue)> {
        let (name, text) = match self {
            Self::Bearer => (AUTHORIZATION, format!("Bearer {}", key.expose_secret())),
            Self::Header(name) => (HeaderName::from_static(name), key.expose_secret().to_owned()),
        };
        let mut value = HeaderValue::from_str(&text).ok()?;
        value.set_sensitive(true);
        Some((name, value))
    }
}

/// How long an endpoint may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until there is a connection, in milliseconds.
    pub connect_ms: u64,
    /// Until the first byte of an answer, in milliseconds.
    pub first_byte_ms: u64,
    /// Between two pieces of an answer, keep-alives included, in milliseconds.
    pub idle_ms: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect_ms: 10_000, first_byte_ms: 120_000, idle_ms: 60_000 }
    }
}

/// An endpoint, ready to be asked.
pub struct Endpoint {
    config: Config,
    base_url: Url,
    client: Client,
}

impl Endpoint {
    /// Checks the configuration and makes the client. Nothing is sent.
    ///
    /// # Errors
    /// In words, what is wrong with the base URL or the key, or why there is no TLS.
    pub fn new(config: Config) -> Result<Self, String> {
        let base_url = parse(&config.base_url)?;
        if let Some(key) = &config.key {
            config.auth.value(key).ok_or("the key holds characters that no HTTP header can carry; write it on one line, in ASCII")?;
        }
        // Another room may have installed the same provider already; whichever came first serves both.
        let _already_there = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .user_agent(concat!("wren/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            .connect_timeout(Duration::from_millis(config.timeouts.connect_ms));
        if is_loopback(&base_url) {
            // A proxy of the environment cannot reach this machine's own loopback.
            builder = builder.no_proxy();
        }
        if base_url.scheme() == "http" {
            // No certificate is needed, so a machine that has none must not stand in the way.
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().map_err(|error| format!("no HTTP client can be made: {}", causes(&error)))?;
        Ok(Self { config, base_url, client })
    }

    /// Checks that a key is there, or that none is needed.
    ///
    /// # Errors
    /// [`Abort::Auth`], naming what to set.
    pub fn ready(&self) -> Result<(), Error> {
        if self.config.key.is_some() || is_loopback(&self.base_url) {
            return Ok(());
        }
        let message = format!("no key for {}; {}", self.base_url.as_str().trim_end_matches('/'), self.config.key_advice);
        Err(failure(Abort::Auth, false, message))
    }

    /// Returns the host's name.
    pub fn host(&self) -> &str {
        self.base_url.host_str().unwrap_or_default()
    }

    /// Sends a JSON body and waits for the head of the answer.
    ///
    /// # Errors
    /// No connection, or no answer in time.
    pub async fn post(&self, path: &str, body: Vec<u8>) -> Result<Response, Error> {
        self.ready()?;
        let url = format!("{}/{path}", self.base_url.as_str().trim_end_matches('/'));
        let mut request =
            self.client.post(url).header(CONTENT_TYPE, "application/json").header(ACCEPT, "text/event-stream, application/json");
        for (name, value) in self.config.headers {
            request = request.header(*name, *value);
        }
        if let Some((name, value)) = self.config.key.as_ref().and_then(|key| self.config.auth.value(key)) {
            request = request.header(name, value);
        }
        match timeout(Duration::from_millis(self.config.timeouts.first_byte_ms), request.body(body).send()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(self.unreachable(&error)),
            Err(_) => Err(self.silent(true)),
        }
    }

    /// Returns an answer that is a success.
    ///
    /// # Errors
    /// What any other answer means; its body is read for it.
    pub async fn accept(&self, response: Response, model: &str) -> Result<Response, Error> {
        if response.status().is_success() { Ok(response) } else { Err(self.refused(response, model).await) }
    }

    /// Reads the next piece of an answer; `None` at its end.
    ///
    /// # Errors
    /// The connection is lost, or nothing comes in time.
    pub async fn chunk(&self, response: &mut Response, is_first: bool) -> Result<Option<Bytes>, Error> {
        let Timeouts { first_byte_ms, idle_ms, .. } = self.config.timeouts;
        let wait_ms = if is_first { first_byte_ms } else { idle_ms };
        match timeout(Duration::from_millis(wait_ms), response.chunk()).await {
            Ok(Ok(chunk)) => Ok(chunk),
            Ok(Err(error)) => {
                let error = failure(Abort::CutStream, true, format!("the connection was lost during the answer: {}", causes(&error)));
                // The head came and nothing behind it: what the provider read it may charge for.
                Err(Error { unanswered: is_first, ..error })
            }
            Err(_) => Err(self.silent(is_first)),
        }
    }

    /// Returns an error under the provider's name and without its key.
    pub fn told(&self, error: Error) -> Error {
        let message = format!("{}: {}", self.config.name, error.message);
        Error { message: self.redacted(message), code: error.code.map(|code| self.redacted(code)), ..error }
    }

    fn redacted(&self, text: String) -> String {
        match &self.config.key {
            Some(key) if text.contains(key.expose_secret()) => text.replace(key.expose_secret(), REDACTED),
            _ => text,
        }
    }

    fn silent(&self, is_first: bool) -> Error {
        let Timeouts { first_byte_ms, idle_ms, .. } = self.config.timeouts;
        let message = if is_first {
            format!("no answer from {} within {} s", self.base_url, first_byte_ms / 1000)
        } else {
            format!("the answer stalled: nothing came for {} s", idle_ms / 1000)
        };
        Error { unanswered: is_first, ..failure(Abort::NoAnswer, true, message) }
    }

    fn unreachable(&self, error: &reqwest::Error) -> Error {
        let cause = causes(error);
        if error.is_connect() {
            return failure(Abort::Network, true, format!("no connection to {}: {cause}; is a server listening there?", self.base_url));
        }
        let message = format!("the connection to {} was lost before an answer: {cause}", self.base_url);
        Error { unanswered: true, ..failure(Abort::Network, true, message) }
    }

    async fn refused(&self, mut response: Response, model: &str) -> Error {
        let status = response.status();
        let headers = response.headers().clone();
        let mut body = Vec::new();
        while let Ok(Some(chunk)) = self.chunk(&mut response, false).await {
            body.extend_from_slice(&chunk);
            if body.len() >= ERROR_BYTES_MAX {
                body.truncate(ERROR_BYTES_MAX);
                break;
            }
        }
        let error = fail::from_response(status.as_u16(), &headers, &body, SystemTime::now());
        let message = if status.is_redirection() {
            let target =
                headers.get(LOCATION).and_then(|location| location.to_str().ok()).and_then(|location| self.base_url.join(location).ok());
            let host = target.as_ref().and_then(Url::host_str).unwrap_or("nowhere");
            format!(
                "the provider answered {}, a redirect to {host}, which is not followed; set the base URL to where it should go",
                status.as_u16()
            )
        } else if status == StatusCode::NOT_FOUND {
            format!("{}; is {model:?} a model that {} has, and is that base URL right?", error.message, self.base_url)
        } else if error.kind == Abort::Auth {
            format!("{}; {}", error.message, self.config.key_advice)
        } else {
            error.message
        };
        Error { message, ..error }
    }
}

fn parse(text: &str) -> Result<Url, String> {
    let url =
        Url::parse(text).map_err(|error| format!("the base URL {text:?} is none: {error}; write it like https://api.openai.com/v1"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(format!("the base URL {text:?} is none of http or https; write it like https://api.openai.com/v1"));
    }
    // Not shown: what stands there may be a secret.
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
        return Err("the base URL holds a user, a password or a query; keys belong into the key's own variable or file".to_owned());
    }
    Ok(url)
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.ends_with(".localhost") || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Returns what lies at the bottom of a failure: the outer layers only say that a request failed.
fn causes(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

fn failure(kind: Abort, retryable: bool, message: String) -> Error {
    Error { kind, message, code: None, http_status: None, retryable, retry_after_ms: None, reply_begun: false, unanswered: false }
}
