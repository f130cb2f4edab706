//! The gRPC edge: who calls, what they may, and every error as a status.
//!
//! Handlers check a request, ask [`crate::runtime::Runtime`], and convert what it answers. They hold no state of runs.

pub mod auth;
pub mod error;
pub mod filter;
pub mod listen;
pub mod page;
mod request;
mod runs;
mod server;
mod system;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::kernel::Limits;
use crate::runtime::Runtime;

pub use server::{Error as ServerError, serve};

/// The domain of every error's ErrorInfo.
pub const ERROR_DOMAIN: &str = "wren.v1";

/// What the services answer about the daemon, put together once by whoever starts it.
#[derive(Clone)]
pub struct About {
    /// The names of the providers.
    pub providers: Vec<String>,
    /// The version of the price book.
    pub price_book_version: String,
    /// The JSON Schema of workflow documents.
    pub workflow_schema_json: String,
    /// Limits that no root run may exceed.
    pub ceilings: Limits,
    /// When the daemon started, in microseconds since the Unix epoch.
    pub start_us: i64,
    /// Returns how many spans were dropped so far.
    pub dropped_spans: Arc<dyn Fn() -> u64 + Send + Sync>,
}

/// What all services share.
#[derive(Clone)]
pub struct Api {
    /// The trees.
    pub runtime: Runtime,
    /// What is said about the daemon.
    pub about: Arc<About>,
    /// Named directories that runs may use as their workspace.
    pub workspaces: Arc<BTreeMap<String, PathBuf>>,
    /// Fires when open streams shall end.
    pub closing: CancellationToken,
}
