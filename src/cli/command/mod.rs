//! The commands: what each asks of the daemon and prints of the answer.

mod inspect;
mod steer;
mod submit;
mod watch;
mod workflow;

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;

use clap::{CommandFactory, Parser};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;

use super::address::Address;
use super::arguments::{Cli, Command, Global, Shell, WorkflowCommand};
use super::client::Client;
use super::error::{self, Error};
use super::output::Output;
use super::{Interrupts, Size, StartLocal, Surroundings, Terminal, diagnostic, exit};

/// What a command works with.
struct Session {
    output: Output,
    client: Client,
    stdin: Box<dyn Read + Send>,
    directory: PathBuf,
    terminal: Terminal,
    now_us: fn() -> i64,
    /// How the user calls this program, so that a command to type next reaches the same daemon.
    program: String,
    /// Whether the daemon ends with this process.
    is_own_daemon: bool,
    /// The trace that a submission is part of: the `TRACEPARENT` of the environment, as CI systems and OpenTelemetry's own
    /// tools set it.
    traceparent: Option<String>,
    /// The runs that are being followed, for what is said if the user leaves.
    followed: Vec<String>,
}

impl Session {
    fn size(&self) -> Option<Size> {
        (self.terminal)()
    }

    fn now_us(&self) -> i64 {
        (self.now_us)()
    }

    /// Returns a message of the daemon as it holds where the daemon ends with this command.
    fn for_this_daemon(&self, message: &str) -> String {
        if self.is_own_daemon { error::for_own_daemon(message) } else { message.to_owned() }
    }

    /// Says what can be typed next.
    fn next(&mut self, command: &str) {
        let line = format!("{} {}", self.output.talk_paint.cyan("next:"), with_program(command, &self.program));
        self.output.talk(&line);
    }
}

fn with_program(text: &str, program: &str) -> String {
    text.replace("wrenctl ", &format!("{program} "))
}

/// Runs one command line and returns its exit code.
pub async fn run(args: Vec<OsString>, mut surroundings: Surroundings) -> u8 {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return misused(&error, &mut surroundings),
    };
    let mut output = Output::new(&mut surroundings, &cli.global);
    let program = program(&cli.global);
    let paint = output.talk_paint;
    let (result, mut output) = match without_daemon(&cli.command, &surroundings, &mut output) {
        Some(result) => (result, output),
        None => with_daemon(cli, surroundings, output, program.clone()).await,
    };
    match result {
        Ok(code) => code,
        Err(mut error) => {
            if let Error::Said(said) = &mut error {
                for hint in &mut said.hints {
                    *hint = with_program(hint, &program);
                }
                output.insist(&diagnostic::error(said, paint));
            }
            error.code()
        }
    }
}

fn misused(error: &clap::Error, surroundings: &mut Surroundings) -> u8 {
    let text = error.render();
    let (stream, is_terminal) = if error.use_stderr() {
        (&mut surroundings.stderr, (surroundings.terminal)().is_some())
    } else {
        (&mut surroundings.stdout, surroundings.stdout_is_terminal)
    };
    let colored = is_terminal && (surroundings.variable)("NO_COLOR").is_none();
    let text = if colored { text.ansi().to_string() } else { text.to_string() };
    let _closed = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
    if error.use_stderr() { exit::USAGE } else { exit::OK }
}

/// Returns the program's name with what points it at the same daemon again. The environment does so by itself.
fn program(global: &Global) -> String {
    match (&global.address, global.local) {
        (_, true) => "wrenctl --local".to_owned(),
        (Some(address), false) => format!("wrenctl --address {address}"),
        (None, false) => "wrenctl".to_owned(),
    }
}

fn without_daemon(command: &Command, surroundings: &Surroundings, output: &mut Output) -> Option<Result<u8, Error>> {
    let text = match command {
        Command::Version => {
            let version = env!("CARGO_PKG_VERSION");
            let human = |_| format!("wrenctl {version}");
            let told = output.document(&serde_json::json!({"version": version}), human, &[version.to_owned()]);
            return Some(told.map(|()| exit::OK));
        }
        Command::Completion(args) => match completion(args.shell) {
            Ok(script) => script,
            Err(error) => return Some(Err(error)),
        },
        Command::Workflow(WorkflowCommand::Schema) if surroundings.schema_json.is_empty() => {
            let error = Error::new(exit::ERROR, "the schema is not supported in this build");
            return Some(Err(error.hint("`wrenctl info -o json` of a running daemon has it as workflow_schema_json")));
        }
        Command::Workflow(WorkflowCommand::Schema) => surroundings.schema_json.clone(),
        Command::Run(_)
        | Command::Ps(_)
        | Command::Get(_)
        | Command::Tree(_)
        | Command::Watch(_)
        | Command::Transcript(_)
        | Command::Events(_)
        | Command::Result(_)
        | Command::Cancel(_)
        | Command::Resume(_)
        | Command::Wait(_)
        | Command::Trace(_)
        | Command::Workflow(WorkflowCommand::Validate(_))
        | Command::Models(_)
        | Command::Info => return None,
    };
    Some(output.data(&text).map(|()| exit::OK))
}

fn completion(shell: Shell) -> Result<String, Error> {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
        Shell::PowerShell => clap_complete::Shell::PowerShell,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "wrenctl", &mut script);
    String::from_utf8(script).map_err(|error| Error::internal(&error))
}

async fn with_daemon(cli: Cli, surroundings: Surroundings, output: Output, program: String) -> (Result<u8, Error>, Output) {
    let Surroundings { variable, directory, stdin, terminal, interrupts, now_us, start_local, .. } = surroundings;
    let token = match token(&cli.global, variable.as_ref()) {
        Ok(token) => token,
        Err(error) => return (Err(error), output),
    };
    let (address, server) = match reach(&cli.global, variable.as_ref(), start_local).await {
        Ok(reached) => reached,
        Err(error) => return (Err(error), output),
    };
    let is_own_daemon = server.is_some();
    let traceparent = variable("TRACEPARENT");
    let work = async move {
        let client = match Client::connect(address, token.as_deref(), is_own_daemon).await {
            Ok(client) => client,
            Err(error) => return (Err(error), output),
        };
        let mut session =
            Session { output, client, stdin, directory, terminal, now_us, program, is_own_daemon, traceparent, followed: Vec::new() };
        let result = dispatch(&mut session, cli.command, interrupts).await;
        (result, session.output)
    };
    match server {
        None => work.await,
        Some((serving, stop)) => beside(serving, stop, work).await,
    }
}

/// What drives a daemon of this process, and what ends it.
type Server = (BoxFuture<'static, Result<(), String>>, Box<dyn FnOnce() + Send>);

async fn reach(
    global: &Global,
    variable: &(dyn Fn(&str) -> Option<String> + Send + Sync),
    start_local: StartLocal,
) -> Result<(Address, Option<Server>), Error> {
    if !global.local {
        return Ok((address(global, variable)?, None));
    }
    let local = start_local().await.map_err(|why| Error::new(exit::ERROR, why))?;
    let address = local.address.parse().map_err(|why: String| Error::internal(&why))?;
    Ok((address, local.serve.map(|serving| (serving, local.stop))))
}

/// Drives a server until the work is done, then lets it drain.
async fn beside<T>(
    mut serving: BoxFuture<'static, Result<(), String>>,
    stop: Box<dyn FnOnce() + Send>,
    work: impl Future<Output = (Result<T, Error>, Output)>,
) -> (Result<T, Error>, Output) {
    let mut work = std::pin::pin!(work);
    let mut is_serving = true;
    loop {
        tokio::select! {
            (result, output) = &mut work => {
                stop();
                let drained = if is_serving { serving.await } else { Ok(()) };
                let result = result.and_then(|done| drained.map(|()| done).map_err(|why| Error::new(exit::ERROR, why)));
                return (result, output);
            }
            // The work notices by itself that nobody answers any more, and says so better.
            _stopped = &mut serving, if is_serving => is_serving = false,
        }
    }
}

fn address(global: &Global, variable: &dyn Fn(&str) -> Option<String>) -> Result<Address, Error> {
    match (&global.address, variable("WREN_ADDRESS")) {
        (Some(address), _) => Ok(address.clone()),
        (None, Some(text)) => text.parse().map_err(|why| Error::usage(format!("WREN_ADDRESS: {why}"))),
        (None, None) => Address::usual(variable).map_err(Error::usage),
    }
}

fn token(global: &Global, variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<String>, Error> {
    let Some(path) = &global.token_file else { return Ok(variable("WREN_TOKEN")) };
    let unreadable = |error: std::io::Error| Error::new(exit::AUTH, format!("cannot read the token file {}: {error}", path.display()));
    std::fs::read_to_string(path).map(Some).map_err(unreadable)
}

async fn dispatch(session: &mut Session, command: Command, mut interrupts: Interrupts) -> Result<u8, Error> {
    match command {
        // These two know what to do with a Ctrl-C themselves.
        Command::Run(args) => submit::run(session, &args, &mut interrupts).await,
        Command::Resume(args) => steer::resume(session, &args, &mut interrupts).await,
        other => {
            let work = looking(session, other);
            tokio::select! {
                result = work => result,
                () = interrupted(&mut interrupts) => {
                    watch::leave(session).await;
                    Err(Error::Interrupted)
                }
            }
        }
    }
}

async fn looking(session: &mut Session, command: Command) -> Result<u8, Error> {
    match command {
        Command::Ps(args) => inspect::ps(session, &args).await,
        Command::Get(args) => inspect::get(session, &args.run).await,
        Command::Tree(args) => inspect::tree(session, &args).await,
        Command::Transcript(args) => inspect::transcript(session, &args.run).await,
        Command::Result(args) => inspect::result(session, &args.run).await,
        Command::Trace(args) => inspect::trace(session, &args).await,
        Command::Models(args) => inspect::models(session, &args).await,
        Command::Info => inspect::info(session).await,
        Command::Watch(args) => watch::watch(session, &args).await,
        Command::Events(args) => watch::events(session, &args).await,
        Command::Wait(args) => watch::wait(session, &args).await,
        Command::Cancel(args) => steer::cancel(session, &args).await,
        Command::Workflow(WorkflowCommand::Validate(args)) => workflow::validate(session, &args).await,
        Command::Run(_) | Command::Resume(_) | Command::Workflow(WorkflowCommand::Schema) | Command::Completion(_) | Command::Version => {
            Err(Error::internal(&"a command went the wrong way"))
        }
    }
}

/// Waits for a Ctrl-C.
async fn interrupted(interrupts: &mut Interrupts) {
    if interrupts.next().await.is_none() {
        std::future::pending::<()>().await;
    }
}
