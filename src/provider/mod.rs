//! Model providers: wire formats around one streaming `send`, retries, and prices.
//!
//! An adapter is a pure encoder and a pure decoder around the one [`Provider::send`]. It keeps no state between calls,
//! knows no run, and never retries: who may be asked again, and when, is data in [`Error`], and the driver decides.

pub mod allowance;
pub mod answer;
pub mod anthropic;
mod counts;
mod decimal;
pub mod exchange;
pub mod fail;
mod fields;
pub mod gemini;
pub mod http;
pub mod layout;
mod names;
pub mod ollama;
pub mod openai;
pub mod price;
pub mod registry;
pub mod responses;
pub mod retry;
pub mod scripted;
pub mod sse;
pub mod tokens;

use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use tokio_util::sync::CancellationToken;

use crate::kernel::event::Abort;
pub use allowance::Allowance;
pub use registry::Providers;

use crate::kernel::message::Part;
use crate::kernel::{Reply, ReplyCall, Request, Stop, Usage};

/// One model endpoint.
pub trait Provider: Send + Sync {
    /// Checks before a run is accepted what can be checked without a request (that a key is there).
    ///
    /// # Errors
    /// An [`Abort::Auth`] error that names what to set.
    fn ready(&self) -> Result<(), Error>;

    /// Sends one request. The stream ends after its [`Delta::Stop`], after its first error, or without either once
    /// `token` is cancelled; dropping it closes the connection.
    fn send(&self, request: Arc<Request>, token: CancellationToken) -> DeltaStream;
}

/// What [`Provider::send`] gives.
pub type DeltaStream = Pin<Box<dyn Stream<Item = Result<Delta, Error>> + Send>>;

/// A piece of a reply. [`Delta::Stop`] is the last one of a whole reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    /// How much more the provider may be asked; before all that is of the reply.
    Allowance(Allowance),
    /// More text for the reader.
    Text(String),
    /// More of a refusal that is kept apart from the text.
    Refusal(String),
    /// More of what the model thinks aloud.
    Reasoning(String),
    /// A whole call, once nothing more of it can come.
    Call(ReplyCall),
    /// The reply part by part, where some parts are more than text and calls.
    Parts(Vec<Part>),
    /// What was used so far; a later one replaces an earlier one.
    Usage(Usage),
    /// What the provider says that it charged, in nano-USD.
    StatedCost(i64),
    /// The provider's names for the answer.
    Response {
        /// Its id.
        id: Option<String>,
        /// The model that answers.
        model: Option<String>,
    },
    /// The reply is whole.
    Stop {
        /// Why the model stopped.
        stop: Stop,
        /// The provider's own word for it.
        raw: Option<String>,
        /// Whether it paused in the middle of its reply, and goes on once that is sent back.
        paused: bool,
    },
}

/// Why a request came to nothing. Holds no secret.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What kind of failure.
    pub kind: Abort,
    /// In words, for people: what failed, and what to do about it.
    pub message: String,
    /// The provider's own code for it, if it gave one.
    pub code: Option<String>,
    /// The HTTP status, if one was received.
    pub http_status: Option<u16>,
    /// Whether the same request may be sent again.
    pub retryable: bool,
    /// How long the provider asked to wait, in milliseconds, clamped.
    pub retry_after_ms: Option<u64>,
    /// Whether any part of a reply had arrived, so that the provider may charge for it.
    pub reply_begun: bool,
    /// Whether the request went out and nothing came back that says what became of it, so that the provider may charge for
    /// what it read.
    pub unanswered: bool,
}

/// Puts deltas together.
#[derive(Debug, Default)]
pub struct ReplyBuilder {
    text: String,
    refusal: Option<String>,
    reasoning: Option<String>,
    calls: Vec<ReplyCall>,
    parts: Vec<Part>,
    usage: Option<Usage>,
    response_id: Option<String>,
    response_model: Option<String>,
    stated_cost_usd_nanos: Option<i64>,
    stop: Option<(Stop, Option<String>, bool)>,
}

impl ReplyBuilder {
    /// Adds the next delta.
    pub fn push(&mut self, delta: Delta) {
        match delta {
            Delta::Allowance(_) => {}
            Delta::Text(more) => self.text.push_str(&more),
            Delta::Refusal(more) => self.refusal.get_or_insert_default().push_str(&more),
            Delta::Reasoning(more) => self.reasoning.get_or_insert_default().push_str(&more),
            Delta::Call(call) => self.calls.push(call),
            Delta::Usage(usage) => self.usage = Some(usage),
            Delta::StatedCost(nanos) => self.stated_cost_usd_nanos = Some(nanos),
            Delta::Response { id, model } => {
                self.response_id = id.or(self.response_id.take());
                self.response_model = model.or(self.response_model.take());
            }
            Delta::Parts(parts) => self.parts = parts,
            Delta::Stop { stop, raw, paused } => self.stop = Some((stop, raw, paused)),
        }
    }

    /// Returns what was used as far as the provider said.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Returns how many bytes of output have arrived.
    pub fn output_bytes(&self) -> usize {
        let calls: usize = self.calls.iter().map(|call| call.tool.len() + call.args_raw.len()).sum();
        self.text.len() + self.refusal.as_ref().map_or(0, String::len) + self.reasoning.as_ref().map_or(0, String::len) + calls
    }

    /// Returns the text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the whole reply; `None` if its stop never came.
    pub fn finish(self) -> Option<Reply> {
        let (stop, stop_raw, paused) = self.stop?;
        Some(Reply {
            text: self.text,
            refusal: self.refusal,
            reasoning: self.reasoning,
            calls: self.calls,
            parts: self.parts,
            stop,
            paused,
            stop_raw,
            usage: self.usage,
            response_id: self.response_id,
            response_model: self.response_model,
            stated_cost_usd_nanos: self.stated_cost_usd_nanos,
        })
    }
}
