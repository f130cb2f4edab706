//! The composition root: puts the rooms together, serves, and drains. It decides nothing about runs.

use std::collections::BTreeMap;
use std::future::Future;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio_util::sync::CancellationToken;

use crate::cli::LocalDaemon;
use crate::config::Config;
use crate::provider::Providers;
use crate::provider::price::{self, Book};
use crate::rpc::auth::Policy;
use crate::rpc::listen::{self, Listener};
use crate::rpc::{self, About, Api};
use crate::runtime::{self, Parts, Runtime};
use crate::store::sqlite::Sqlite;
use crate::store::{self, Store};
use crate::telemetry::Telemetry;
use crate::workflow;

pub use crate::rpc::listen::Address;

const TOKEN_CHARS_MIN: usize = 32;
/// How long clients may take to go once everything is drained.
const GOODBYE: Duration = Duration::from_secs(5);

/// How a daemon is started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where its store is; `None` for `$XDG_DATA_HOME/wren`.
    pub data_dir: Option<PathBuf>,
    /// Where it listens; `None` for what the config says, or the default socket.
    pub listen: Option<Address>,
    /// The rest.
    pub config: Config,
    /// Whether what an earlier daemon left unfinished goes on by itself.
    pub takes_up: bool,
}

/// Why a daemon cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Set what is missing, or mend the config.
    #[error("{0}")]
    Config(String),
    /// Mend the data directory or choose another.
    #[error("the data directory {path} cannot be used: {why}; choose another with --data-dir")]
    DataDir {
        /// The directory.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// See the listener's error.
    #[error(transparent)]
    Listen(#[from] listen::Error),
    /// See the store's error.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// See the runtime's error.
    #[error(transparent)]
    Runtime(#[from] runtime::Error),
    /// See the server's error.
    #[error(transparent)]
    Server(#[from] rpc::ServerError),
}

/// A daemon that is ready to serve.
pub struct Daemon {
    api: Api,
    listener: Listener,
    policy: Policy,
}

/// A daemon for one command without `wrend`.
pub enum Local {
    /// This process serves it.
    Here(Box<Daemon>),
    /// Another command of the same user serves the same store already.
    Elsewhere(Address),
}

/// Starts a daemon: takes over its store and every unfinished run in it, and binds its address.
///
/// # Errors
/// What stands in the way, with the next step.
pub async fn start(options: Options) -> Result<Daemon, Error> {
    raise_open_files();
    let config = &options.config;
    let data_dir = options.data_dir.clone().map_or_else(default_data_dir, Ok)?;
    make_data_dir(&data_dir)?;
    let address = match (&options.listen, &config.listen) {
        (Some(address), _) => address.clone(),
        (None, Some(text)) => text.parse().map_err(|why| Error::Config(format!("listen: {why}")))?,
        (None, None) => default_address(&data_dir),
    };
    let token = token(config, &address)?;
    // The address comes first: whoever finds a daemon there is told so, rather than that its store is locked.
    let listener = Listener::bind(&address).await?;
    let store = open_store(&data_dir).await?;
    let ceilings = config.ceilings();
    let runtime_config = runtime::Config {
        data_dir,
        ceilings,
        turns_in_flight_max: config.turns_in_flight_max.unwrap_or(256),
        trees_max: config.trees_max.unwrap_or(10_000),
        drain_timeout_ms: config.drain_timeout.map_or(30_000, |span| span.0),
        takes_up: options.takes_up,
    };
    let environment = |name: &str| std::env::var(name).ok();
    let providers = Providers::from_env_and_config(&environment, &config.providers).map_err(|error| Error::Config(error.to_string()))?;
    let book = book(config).map_err(|error| Error::Config(error.to_string()))?;
    let telemetry = Telemetry::start(&environment).map_err(Error::Config)?;
    let lost = telemetry.clone();
    let parts = Parts { config: runtime_config, store, providers, book, telemetry };
    let runtime = Runtime::start(parts).await?;
    let about = About {
        providers: runtime.provider_names(),
        price_book_version: runtime.price_book_version(),
        workflow_schema_json: workflow::schema().to_string(),
        ceilings,
        start_us: now_us(),
        dropped_spans: Arc::new(move || lost.lost()),
    };
    let policy =
        Policy { uid: rustix::process::geteuid().as_raw(), token, authorities: authorities(listener.address(), &config.authorities) };
    let workspaces: BTreeMap<String, PathBuf> = config.workspaces.clone();
    let api = Api { runtime, about: Arc::new(about), workspaces: Arc::new(workspaces), closing: CancellationToken::new() };
    Ok(Daemon { api, listener, policy })
}

/// Starts a daemon inside the calling process, on a store of its own, for one command. It lives for that command alone,
/// so a look at old runs neither runs tools nor spends money: what an earlier one left unfinished waits to be resumed.
///
/// # Errors
/// As [`start`].
pub async fn local(data_dir: Option<PathBuf>, config: Config) -> Result<Local, Error> {
    let data_dir = match data_dir {
        Some(data_dir) => data_dir,
        None => default_data_dir()?.join("local"),
    };
    let address = Address::Unix(data_dir.join("wrend.sock"));
    match start(Options { data_dir: Some(data_dir), listen: Some(address), config, takes_up: false }).await {
        Ok(daemon) => Ok(Local::Here(Box::new(daemon))),
        Err(Error::Listen(listen::Error::InUse(address))) => Ok(Local::Elsewhere(address)),
        Err(error) => Err(error),
    }
}

/// Starts a daemon for one command of the command line, which serves it while the command runs.
///
/// # Errors
/// As [`start`], in words.
pub async fn local_for_command() -> Result<LocalDaemon, String> {
    match local(None, Config::default()).await.map_err(|error| error.to_string())? {
        Local::Elsewhere(address) => Ok(LocalDaemon { address: address.to_string(), serve: None, stop: Box::new(|| {}) }),
        Local::Here(daemon) => {
            let address = daemon.address().to_string();
            let stop = CancellationToken::new();
            let stopped = stop.clone().cancelled_owned();
            let serve = async move { daemon.serve(stopped).await.map_err(|error| error.to_string()) };
            Ok(LocalDaemon { address, serve: Some(Box::pin(serve)), stop: Box::new(move || stop.cancel()) })
        }
    }
}

/// Returns where a client looks for a daemon by default.
///
/// # Errors
/// No directory is known for it.
pub fn client_address() -> Result<String, String> {
    let data_dir = default_data_dir().map_err(|error| error.to_string())?;
    Ok(default_address(&data_dir).to_string())
}

/// Returns the JSON Schema of workflows, for editors.
pub fn schema_json() -> String {
    format!("{:#}\n", workflow::schema())
}

impl Daemon {
    /// Returns where it is reached.
    pub fn address(&self) -> &Address {
        self.listener.address()
    }

    /// Serves until `shutdown` is over, then drains: no new work, turns come to their boundaries, telemetry is flushed,
    /// clients are told. Await it; nothing of it runs by itself.
    ///
    /// # Errors
    /// A failure of the server.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let drained = CancellationToken::new();
        let runtime = self.api.runtime.clone();
        let drain = {
            let drained = drained.clone();
            async move {
                runtime.drain().await;
                drained.cancel();
            }
        };
        let overdue = async {
            drained.cancelled().await;
            tokio::time::sleep(GOODBYE).await;
        };
        tokio::select! {
            served = rpc::serve(self.api, self.listener, self.policy, shutdown, drain) => Ok(served?),
            // A client that keeps its connection open must not keep a drained daemon alive.
            () = overdue => Ok(()),
        }
    }
}

/// Returns `$XDG_DATA_HOME/wren`, or `~/.local/share/wren`.
///
/// # Errors
/// Neither variable is set.
pub fn default_data_dir() -> Result<PathBuf, Error> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("XDG_DATA_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| Some(set("HOME")?.join(".local/share")))
        .map(|path| path.join("wren"))
        .ok_or_else(|| Error::Config("neither XDG_DATA_HOME nor HOME is set; say where the data is with --data-dir DIR".to_owned()))
}

/// Returns where a daemon listens, and a client looks, by default.
pub fn default_address(data_dir: &Path) -> Address {
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute() && path.is_dir());
    let directory = runtime_dir.map_or_else(|| data_dir.to_owned(), |path| path.join("wren"));
    Address::Unix(directory.join("wrend.sock"))
}

/// Lets the process open as many files as the system allows: every model call and every client holds one.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
    {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
}

fn book(config: &Config) -> Result<Book, price::Error> {
    let book = Book::builtin()?;
    match &config.prices {
        Some(prices) => book.with_overrides(prices),
        None => Ok(book),
    }
}

fn make_data_dir(path: &Path) -> Result<(), Error> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| Error::DataDir { path: path.to_owned(), why: error.to_string() })
}

fn token(config: &Config, address: &Address) -> Result<Option<[u8; 32]>, Error> {
    let (Address::Tcp(_), file) = (address, &config.token_file) else { return Ok(None) };
    let Some(file) = file else {
        let message =
            "over TCP a token is needed: put 32 random characters or more into a file of mode 0600 and name it as token_file in the config";
        return Err(Error::Config(message.to_owned()));
    };
    let bad = |why: String| Error::Config(format!("token_file {}: {why}", file.display()));
    let found = std::fs::metadata(file).map_err(|error| bad(format!("cannot be read: {error}")))?;
    if found.mode() & 0o077 != 0 {
        return Err(bad(format!("others may read it; run `chmod 600 {}`", file.display())));
    }
    let text = std::fs::read_to_string(file).map_err(|error| bad(format!("cannot be read: {error}")))?;
    let token = text.trim();
    if token.chars().count() < TOKEN_CHARS_MIN {
        return Err(bad(format!("the token is too short; use {TOKEN_CHARS_MIN} random characters or more")));
    }
    Ok(Some(Policy::digest(token)))
}

fn authorities(address: &Address, more: &[String]) -> Vec<String> {
    let Address::Tcp(bound) = address else { return Vec::new() };
    let own = [bound.to_string(), format!("localhost:{}", bound.port())];
    own.into_iter().chain(more.iter().cloned()).collect()
}

fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

async fn open_store(data_dir: &Path) -> Result<Arc<dyn Store>, Error> {
    let dir = data_dir.to_owned();
    let opened = tokio::task::spawn_blocking(move || Sqlite::open(&dir)).await;
    let opened = opened.map_err(|error| store::Error::Unavailable(format!("the store could not be opened: {error}")))?;
    Ok(Arc::new(opened?))
}
