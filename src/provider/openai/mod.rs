//! OpenAI's Chat Completions, as OpenAI and most other servers speak it: vLLM, llama.cpp, Ollama, LM Studio, Groq,
//! OpenRouter, Mistral, DeepSeek and more. It keeps no state between calls and never retries.

mod calls;
pub mod decode;
pub mod encode;
mod usage;

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use reqwest::Response;
use tokio_util::sync::CancellationToken;

pub use decode::Decoder;
pub use encode::{LimitField, encode};

use super::http::{Config, Endpoint};
use super::{Delta, DeltaStream, Error, Provider};
use crate::kernel::Request;
use crate::kernel::event::Abort;

/// A server that speaks Chat Completions.
pub struct OpenAi {
    endpoint: Arc<Endpoint>,
    limit: LimitField,
}

impl OpenAi {
    /// Checks the configuration. Nothing is sent.
    ///
    /// # Errors
    /// In words, what is wrong with it.
    pub fn new(config: Config) -> Result<Self, String> {
        let endpoint = Endpoint::new(config)?;
        let limit = limit_field(endpoint.host());
        Ok(Self { endpoint: Arc::new(endpoint), limit })
    }
}

/// OpenAI's own reasoning models refuse `max_tokens`; other servers of the family know nothing else, or both.
fn limit_field(host: &str) -> LimitField {
    match host {
        "api.openai.com" => LimitField::MaxCompletionTokens,
        _ if host.ends_with(".openai.azure.com") || host.ends_with(".api.openai.com") => LimitField::MaxCompletionTokens,
        _ => LimitField::MaxTokens,
    }
}

impl Provider for OpenAi {
    fn ready(&self) -> Result<(), Error> {
        self.endpoint.ready()
    }

    fn send(&self, request: Arc<Request>, token: CancellationToken) -> DeltaStream {
        let endpoint = self.endpoint.clone();
        let exchange = Exchange { endpoint, request, limit: self.limit, token, stage: Stage::Asking, ready: VecDeque::new() };
        stream::unfold(exchange, |mut exchange| async move { exchange.next().await.map(|item| (item, exchange)) }).boxed()
    }
}

/// One request and its answer. Dropping it, or reaching [`Stage::Over`], closes the connection.
struct Exchange {
    endpoint: Arc<Endpoint>,
    request: Arc<Request>,
    limit: LimitField,
    token: CancellationToken,
    stage: Stage,
    ready: VecDeque<Result<Delta, Error>>,
}

enum Stage {
    Asking,
    Reading { response: Box<Response>, decoder: Box<Decoder>, is_first: bool },
    Over,
}

impl Exchange {
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
                        self.stage = Stage::Over;
                        return Some(Err(error));
                    }
                }
            }
        }
    }

    /// Goes one step on. An error here was told already.
    async fn step(&mut self) -> Result<(), Error> {
        match &mut self.stage {
            Stage::Over => {}
            Stage::Asking => {
                let model = &self.request.model.model;
                let body = encode(&self.request, self.limit).map_err(|error| self.endpoint.told(unencodable(&error)))?;
                let response = Box::new(self.endpoint.post("chat/completions", body, model).await?);
                self.stage = Stage::Reading { response, decoder: Box::default(), is_first: true };
            }
            Stage::Reading { response, decoder, is_first } => {
                let items = match self.endpoint.chunk(response, *is_first).await {
                    Ok(Some(bytes)) => decoder.feed(&bytes),
                    Ok(None) => decoder.finish(),
                    Err(error) => decoder.lose(error),
                };
                *is_first = false;
                self.ready.extend(items);
                if decoder.is_over() {
                    self.stage = Stage::Over;
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

#[cfg(test)]
mod tests {
    use super::{LimitField, limit_field};

    #[test]
    fn the_output_limit_goes_by_the_name_that_the_host_knows() {
        for host in ["api.openai.com", "eu.api.openai.com", "mine.openai.azure.com"] {
            assert_eq!(limit_field(host), LimitField::MaxCompletionTokens, "{host}");
        }
        for host in ["127.0.0.1", "openrouter.ai", "api.openai.com.example", "notapi.openai.com"] {
            assert_eq!(limit_field(host), LimitField::MaxTokens, "{host}");
        }
    }
}
