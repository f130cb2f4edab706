//! The `wrenctl` program: hands the process's surroundings to the command line and exits with its code.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::signal::unix::{SignalKind, signal};
use wren::cli::{self, Size, Surroundings};
use wren::daemon;

#[tokio::main]
async fn main() -> ExitCode {
    // Without the signal, Ctrl-C ends the process as it always does.
    let interrupts = futures_util::stream::unfold(signal(SignalKind::interrupt()).ok(), |signals| async move {
        let mut signals = signals?;
        signals.recv().await.map(|()| ((), Some(signals)))
    });
    let surroundings = Surroundings {
        variable: Box::new(|name| std::env::var(name).ok().filter(|value| !value.is_empty())),
        directory: std::env::current_dir().unwrap_or_default(),
        stdin: Box::new(std::io::stdin()),
        stdout: Box::new(std::io::stdout()),
        stderr: Box::new(std::io::stderr()),
        stdout_is_terminal: std::io::stdout().is_terminal(),
        terminal: Box::new(|| {
            let (height, width) = Some(console::Term::stderr()).filter(console::Term::is_term)?.size_checked()?;
            Some(Size { width: width.into(), height: height.into() })
        }),
        interrupts: Box::pin(interrupts),
        now_us: || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
        },
        start_local: Box::new(|| Box::pin(daemon::local_for_command())),
        schema_json: daemon::schema_json(),
    };
    ExitCode::from(cli::run(std::env::args_os().collect(), surroundings).await)
}
