//! The command line: commands to requests, events to lines. It talks to a daemon over gRPC alone; what it prints for
//! people is talk and goes to stderr, what it prints as data goes to stdout.

pub mod args;
mod client;
mod command;
mod error;
mod exit;
mod output;
mod run;
pub mod view;
mod watch;

use std::path::PathBuf;

use futures_util::future::BoxFuture;

pub use command::run;

/// A daemon inside this process, for one command.
pub struct LocalDaemon {
    /// Where it is reached: `unix:PATH`.
    pub address: String,
    /// Serves it; must be awaited beside the command. `None` if another process serves the same store already.
    pub serve: Option<BoxFuture<'static, Result<(), String>>>,
    /// Ends [`LocalDaemon::serve`] in an orderly way when it is called.
    pub stop: Box<dyn FnOnce() + Send>,
}

/// What the program hands to the command line, which may not reach for it itself.
pub struct Surroundings {
    /// Starts a daemon inside this process.
    pub start_local: Box<dyn FnOnce() -> BoxFuture<'static, Result<LocalDaemon, String>> + Send>,
    /// Where a daemon listens by default: `unix:PATH`.
    pub default_address: Result<String, String>,
    /// The JSON Schema of workflows.
    pub schema_json: String,
    /// The working directory.
    pub current_dir: PathBuf,
}
