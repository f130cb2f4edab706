//! The `wrend` program: arguments, log, signals and exit code around [`wren::daemon`].

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing_subscriber::EnvFilter;
use wren::config::{Config, LogFormat};
use wren::daemon::{self, Address, Options};

/// Runs trees of AI agents, durably and within their budgets.
#[derive(Parser)]
#[command(name = "wrend", version)]
#[command(after_help = "The config file is YAML, and every key can be left out: listen, token_file, authorities, workspaces, \
    ceilings, log, drain_timeout, turns_in_flight_max, trees_max, providers, prices. README.md has an example. OPENAI_API_KEY, \
    OPENAI_BASE_URL, OTEL_* and RUST_LOG are read from the environment.\n\n\
    The first TERM or INT drains; a second one leaves at once.")]
struct Args {
    /// Where the runs are kept [default: $XDG_DATA_HOME/wren].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Where to listen [default: a socket in $XDG_RUNTIME_DIR/wren or the data directory].
    #[arg(long, value_name = "unix:PATH|tcp:HOST:PORT")]
    listen: Option<Address>,
    /// The config file, in YAML; without one all defaults hold.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The form of the log's lines on stderr.
    #[arg(long, value_name = "FORM")]
    log: Option<Log>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Log {
    Json,
    Text,
}

/// Each signal that asks for an orderly end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(code) => code,
        Err(error) => {
            // Without a stderr there is nobody to tell; the exit code says it.
            let _ = writeln!(std::io::stderr(), "wrend: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let config = args.config.as_deref().map_or_else(|| Ok(Config::default()), Config::read)?;
    log(args.log, &config)?;
    // Before anything is taken over, so that no signal is met by the default of dying.
    let mut signals = Signals::new()?;
    let daemon = daemon::start(Options { data_dir: args.data_dir, listen: args.listen, config, takes_up: true }).await?;
    writeln!(std::io::stdout(), "wrend {} serving on {}", env!("CARGO_PKG_VERSION"), daemon.address())?;
    let (drain, asked) = oneshot::channel();
    let signalled = async {
        signals.next().await;
        tracing::info!("asked to end; a second signal leaves at once");
        // One stream counts both, and the first is counted before anybody can see it answered: whoever signals again
        // once the daemon says that it drains is heard. The receiver is gone only where serving has ended by itself.
        let _ = drain.send(());
        signals.next().await;
        tracing::warn!("a second signal: leaving at once; what was under way is taken up at the next start");
    };
    let asked = async {
        // The sender is dropped only together with this.
        let _ = asked.await;
    };
    tokio::select! {
        () = signalled => Ok(ExitCode::FAILURE),
        served = daemon.serve(asked) => served.map(|()| ExitCode::SUCCESS).map_err(Into::into),
    }
}

fn log(format: Option<Log>, config: &Config) -> Result<(), Box<dyn std::error::Error>> {
    let filter = std::env::var("RUST_LOG").ok().or_else(|| config.log.filter.clone()).unwrap_or_else(|| "info".to_owned());
    let filter =
        EnvFilter::try_new(&filter).map_err(|error| format!("log filter {filter:?}: {error}; write it like info or wren=debug"))?;
    let is_colored = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(is_colored);
    let json = match format {
        Some(Log::Json) => true,
        Some(Log::Text) => false,
        None => config.log.format == LogFormat::Json,
    };
    let set = if json { subscriber.json().try_init() } else { subscriber.try_init() };
    set.map_err(|error| format!("the log cannot be set up: {error}"))?;
    Ok(())
}
