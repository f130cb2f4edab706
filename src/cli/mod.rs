//! The command line: commands to requests, events to lines. It talks to a daemon over gRPC alone.
//!
//! It opens no store, starts no daemon and decides nothing about runs: what it needs of the rest of the program comes in
//! as [`Surroundings`]. Data goes to stdout, talk to stderr, both through writers, so a test sees what a person sees.
//!
//! Reading order: [`arguments`] (what can be typed), [`command`] (what is asked of the daemon), [`follow`] (a watched
//! run), [`view`] (events to text, pure), [`error`] and [`exit`] (how it ends).

pub mod address;
pub mod amount;
pub mod arguments;
pub mod bundle;
pub mod client;
pub mod command;
pub mod diagnostic;
pub mod display;
pub mod error;
pub mod exit;
pub mod follow;
pub mod output;
pub mod view;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::pin::Pin;

use futures_util::Stream;
use futures_util::future::BoxFuture;

pub use address::Address;
pub use command::run;
pub use error::Error;

/// Everything that the command line needs of the process around it.
pub struct Surroundings {
    /// Looks up an environment variable; an empty one counts as unset.
    pub variable: Lookup,
    /// The current directory, absolute.
    pub directory: PathBuf,
    /// Where `-` reads from.
    pub stdin: Box<dyn Read + Send>,
    /// Where data goes.
    pub stdout: Box<dyn Write + Send>,
    /// Where talk goes.
    pub stderr: Box<dyn Write + Send>,
    /// Whether a person reads stdout.
    pub stdout_is_terminal: bool,
    /// The size of the terminal behind stderr; `None` if it is none.
    pub terminal: Terminal,
    /// One item for every Ctrl-C.
    pub interrupts: Interrupts,
    /// Microseconds since 1970, UTC.
    pub now_us: fn() -> i64,
    /// Starts what `--local` talks to.
    pub start_local: StartLocal,
    /// What `workflow schema` prints.
    pub schema_json: String,
}

/// Looks up a variable.
pub type Lookup = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Measures a terminal.
pub type Terminal = Box<dyn Fn() -> Option<Size> + Send + Sync>;

/// One item for every Ctrl-C. A stream that ends stands for no further ones.
pub type Interrupts = Pin<Box<dyn Stream<Item = ()> + Send>>;

/// Starts a daemon inside this process for one command. The error is a sentence for the user.
pub type StartLocal = Box<dyn FnOnce() -> BoxFuture<'static, Result<LocalDaemon, String>> + Send>;

/// A daemon inside this process, for one command.
pub struct LocalDaemon {
    /// Where it is reached: `unix:PATH`.
    pub address: String,
    /// Serves it; must be awaited beside the command. `None` if another process serves the same store already.
    pub serve: Option<BoxFuture<'static, Result<(), String>>>,
    /// Ends [`LocalDaemon::serve`] in an orderly way when it is called.
    pub stop: Box<dyn FnOnce() + Send>,
}

/// The size of a terminal in cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Columns.
    pub width: usize,
    /// Lines.
    pub height: usize,
}
