//! Tools: what the model may do to the world, each with a schema for its arguments and a declared effect.
//!
//! A tool's failure is a message to the model, never an error of the run. Subagents are not here: a child run is a
//! decision of the kernel that the runtime carries out.

mod directory;
mod files;
mod output;
mod read;
mod registry;
mod scripted;
mod search;
mod watched;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::kernel::CallId;
use crate::kernel::RunId;

pub use files::files_operations;
pub use registry::{Finished, OpenError, Registry};

/// Something a model can call.
pub trait Tool: Send + Sync {
    /// Runs one call. `args` has been checked against the tool's schema. Once `ctx.token` is cancelled the future must
    /// return soon; what it returns then is the cancel.
    fn run(&self, args: Value, ctx: Ctx) -> BoxFuture<'static, Result<String, Failure>>;
}

/// What a call is handed beside its arguments.
#[derive(Clone)]
pub struct Ctx {
    /// The run that calls.
    pub run: RunId,
    /// The call.
    pub call_id: CallId,
    /// The same for every attempt at this call.
    pub idempotency_key: String,
    /// Fires when the call shall stop.
    pub token: CancellationToken,
    /// Takes progress, for whoever watches; never waits.
    pub progress: Arc<dyn Fn(Progress) + Send + Sync>,
}

/// How far a call is. Live only, never journaled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done: `scanned`.
    pub label: String,
    /// How many are done.
    pub done: u64,
    /// How many there are; 0 if not known.
    pub total: u64,
    /// What is counted: `files`.
    pub unit: String,
}

/// Why a call did not do what was asked, in words for the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);
