//! One request and its answer over HTTP, the same for every wire family. It keeps no state between calls and never retries.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::{StreamExt, stream};
use reqwest::Response;
use tokio_util::sync::CancellationToken;

use super::allowance;
use super::answer::{Decoder, Reader};
use super::http::{Config, Endpoint};
use super::{Delta, DeltaStream, Error, Provider};
use crate::kernel::Request;
use crate::kernel::event::Abort;

/// A wire family: where a request goes, what it says, and who reads the answer.
pub trait Family: Send + Sync + 'static {
    /// Who reads the answers.
    type Reader: Reader + std::fmt::Debug;

    /// Returns where a request goes, below the base URL.
    fn path(&self, request: &Request) -> String;

    /// Returns the body of a request.
    ///
    /// # Errors
    /// A value that has no JSON, such as a temperature that is no number.
    fn encode(&self, request: &Request) -> Result<Vec<u8>, serde_json::Error>;
}

/// A server that speaks the family `F`.
pub struct Client<F> {
    endpoint: Arc<Endpoint>,
    family: Arc<F>,
}

impl<F: Family> Client<F> {
    /// Checks the configuration. `family` is made for the endpoint's host. Nothing is sent.
    ///
    /// # Errors
    /// In words, what is wrong with it.
    pub fn new(config: Config, family: impl FnOnce(&str) -> F) -> Result<Self, String> {
        let endpoint = Endpoint::new(config)?;
        let family = family(endpoint.host());
        Ok(Self { endpoint: Arc::new(endpoint), family: Arc::new(family) })
    }
}

impl<F: Family> Provider for Client<F> {
    fn ready(&self) -> Result<(), Error> {
        self.endpoint.ready().map_err(|error| self.endpoint.told(error))
    }

    fn send(&self, request: Arc<Request>, token: CancellationToken) -> DeltaStream {
        let (endpoint, family) = (self.endpoint.clone(), self.family.clone());
        let exchange = Exchange { endpoint, family, request, token, stage: Stage::Asking, ready: VecDeque::new() };
        stream::unfold(exchange, |mut exchange| async move { exchange.next().await.map(|item| (item, exchange)) }).boxed()
    }
}

/// One request and its answer. Dropping it, or reaching [`Stage::Over`], closes the connection.
struct Exchange<F: Family> {
    endpoint: Arc<Endpoint>,
    family: Arc<F>,
    request: Arc<Request>,
    token: CancellationToken,
    stage: Stage<F::Reader>,
    ready: VecDeque<Result<Delta, Error>>,
}

enum Stage<R> {
    Asking,
    /// The head of an answer came.
    Answered {
        response: Box<Response>,
    },
    Reading {
        response: Box<Response>,
        decoder: Box<Decoder<R>>,
        is_first: bool,
    },
    Over,
}

impl<F: Family> Exchange<F> {
    async fn next(&mut self) -> Option<Result<Delta, Error>> {
        let token = self.token.clone();
        loop {
            if token.is_cancelled() {
                self.stage = Stage::Over;
                return None;
            }
            if let Some(item) = self.ready.pop_front() {
                return Some(item.map_err(|error| self.endpoint.told(error)));
            }
            if matches!(self.stage, Stage::Over) {
                return None;
            }
            tokio::select! {
                biased;
                () = token.cancelled() => {}
                step = self.step() => {
                    if let Err(error) = step {
                        self.ready.push_back(Err(error));
                    }
                }
            }
        }
    }

    /// Goes one step on. What is dropped in the middle is over.
    async fn step(&mut self) -> Result<(), Error> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Over => {}
            Stage::Asking => {
                let body = self.family.encode(&self.request).map_err(|error| unencodable(&error))?;
                let response = Box::new(self.endpoint.post(&self.family.path(&self.request), body).await?);
                // A refusal says it too, so this comes before its reading.
                let allowance = allowance::from_headers(response.headers(), SystemTime::now());
                self.ready.extend(allowance.map(|allowance| Ok(Delta::Allowance(allowance))));
                self.stage = Stage::Answered { response };
            }
            Stage::Answered { response } => {
                let response = Box::new(self.endpoint.accept(*response, &self.request.model.model).await?);
                self.stage = Stage::Reading { response, decoder: Box::default(), is_first: true };
            }
            Stage::Reading { mut response, mut decoder, is_first } => {
                let items = match self.endpoint.chunk(&mut response, is_first).await {
                    Ok(Some(bytes)) => decoder.feed(&bytes),
                    Ok(None) => decoder.finish(),
                    Err(error) => decoder.lose(error),
                };
                self.ready.extend(items);
                if !decoder.is_over() {
                    self.stage = Stage::Reading { response, decoder, is_first: false };
                }
            }
        }
        Ok(())
    }
}

fn unencodable(error: &serde_json::Error) -> Error {
    Error {
        kind: Abort::InvalidRequest,
        message: format!("the request cannot be written as JSON: {error}"),
        code: None,
        http_status: None,
        retryable: false,
        retry_after_ms: None,
        reply_begun: false,
        unanswered: false,
    }
}
