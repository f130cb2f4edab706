//! What can be typed. The doc comments here are the help texts.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::address::Address;
use super::amount;
use crate::wire::v1;

/// Submit, watch and steer runs of AI agents on a wrend daemon.
#[derive(Debug, Parser)]
#[command(name = "wrenctl", version, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = "RUN is a run's id, a prefix that only one run has, or @latest.\n\
    Exit codes of run, watch, wait and result: 0 completed, 1 error, 2 usage, 3 invalid workflow or inputs, 4 authentication,\n\
    10 failed, 11 max_turns, 12 budget or tokens, 13 timeout, 14 approval pending, 15 blocked, 16 provider error, 17 drained,\n\
    18 in doubt, 20 cancelled, 130 interrupted.")]
pub struct Cli {
    /// What applies to every command.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// What applies to every command.
#[derive(Args, Debug)]
pub struct Global {
    /// The daemon: unix:PATH or tcp:HOST:PORT [env: WREN_ADDRESS] [default: the socket of this user's wrend]
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub address: Option<Address>,
    /// A file that holds the token for a daemon on TCP [env: WREN_TOKEN, the token itself]
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Work without a daemon, on a store of its own
    #[arg(long, global = true, conflicts_with = "address")]
    pub local: bool,
    /// How data is printed on stdout
    #[arg(short = 'o', global = true, value_enum, value_name = "FORMAT", default_value = "table")]
    pub format: Format,
    /// When to use colour; auto heeds NO_COLOR and CLICOLOR
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value = "auto")]
    pub color: When,
    /// Say nothing on stderr but errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

/// How data is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// One document.
    Json,
    /// One document a line.
    Jsonl,
    /// The same data as YAML.
    Yaml,
    /// Ids alone, one a line.
    Name,
}

/// When colour is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// On a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Submit a workflow, watch it and print its result
    Run(Box<RunArgs>),
    /// List runs
    Ps(PsArgs),
    /// Show one run
    Get(RunName),
    /// Show a run with everything below it
    Tree(TreeArgs),
    /// Watch a run until it stops
    Watch(WatchArgs),
    /// Print a run's conversation
    Transcript(RunName),
    /// Print the events of a run's journal
    Events(EventsArgs),
    /// Print a run's result
    Result(RunName),
    /// Cancel runs and everything below them, and print what became of each
    Cancel(CancelArgs),
    /// Let a suspended run go on, with other limits if given
    Resume(ResumeArgs),
    /// Wait until runs stop
    Wait(WaitArgs),
    /// Print a run's spans
    Trace(TraceArgs),
    /// Check workflows
    #[command(subcommand)]
    Workflow(WorkflowCommand),
    /// List the models whose prices are known, with what they hold
    Models(ModelsArgs),
    /// Show what the daemon is and can do
    Info,
    /// Print a completion script for a shell
    Completion(CompletionArgs),
    /// Print the version
    Version,
}

/// The commands about workflow files.
#[derive(Debug, Subcommand)]
pub enum WorkflowCommand {
    /// Say all that is wrong with a workflow, and show its limits
    Validate(ValidateArgs),
    /// Print the JSON Schema of the workflow language, for editors
    Schema,
}

/// `wrenctl models`.
#[derive(Args, Debug)]
pub struct ModelsArgs {
    /// Only models of this provider
    #[arg(value_name = "PROVIDER", default_value = "", hide_default_value = true)]
    pub provider: String,
}

/// A run's name.
#[derive(Args, Debug)]
pub struct RunName {
    /// Its id, a prefix that only one run has, or @latest
    #[arg(value_name = "RUN")]
    pub run: String,
}

/// Where inputs come from.
#[derive(Args, Debug, Default)]
pub struct InputArgs {
    /// An input of the workflow; read as the type that the workflow asks for
    #[arg(short, long = "input", value_name = "KEY=VALUE", value_parser = amount::pair)]
    pub input: Vec<(String, String)>,
    /// A JSON or YAML file with inputs; - for stdin. What -i says goes first
    #[arg(long, value_name = "FILE")]
    pub input_file: Option<PathBuf>,
}

/// Caps on a run.
#[derive(Args, Clone, Debug, Default)]
pub struct LimitArgs {
    /// Dollars that the run and all below it may spend
    #[arg(long, value_name = "USD", value_parser = amount::usd_nanos, allow_hyphen_values = true)]
    pub budget: Option<i64>,
    /// Replies of the model in the run's own loop
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    pub max_turns: Option<i32>,
    /// Tokens that the run and all below it may use
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    pub max_tokens: Option<i64>,
    /// Time that the run may take: 90s, 5m, 1h
    #[arg(long, value_name = "TIME", value_parser = amount::duration)]
    pub timeout: Option<Duration>,
    /// Levels of runs below it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    pub max_depth: Option<i32>,
    /// Runs, itself and all below it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    pub max_runs: Option<i32>,
}

impl LimitArgs {
    /// Returns them as the API takes them; `None` if none is set.
    pub fn to_wire(&self) -> Option<v1::Limits> {
        let limits = v1::Limits {
            max_turns: self.max_turns,
            budget_usd_nanos: self.budget,
            max_tokens: self.max_tokens,
            timeout: self.timeout.map(|time| pbjson_types::Duration {
                seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
                nanos: i32::try_from(time.subsec_nanos()).unwrap_or(0),
            }),
            max_depth: self.max_depth,
            max_runs: self.max_runs,
        };
        (limits != v1::Limits::default()).then_some(limits)
    }
}

/// Arguments of `run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// The workflow's YAML file; - for stdin
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Its inputs.
    #[command(flatten)]
    pub inputs: InputArgs,
    /// Use another model for an alias of the workflow
    #[arg(long, value_name = "ALIAS=MODEL", value_parser = amount::pair)]
    pub set_model: Vec<(String, String)>,
    /// Its limits.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// The directory whose files the run may use, or a workspace's name with a daemon on TCP [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<String>,
    /// A label to find the run by
    #[arg(short, long = "label", value_name = "KEY=VALUE", value_parser = amount::pair)]
    pub label: Vec<(String, String)>,
    /// Makes the submission repeatable: the same id with the same content gives the same run
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
    /// Print the run's id and return
    #[arg(short, long, conflicts_with_all = ["local", "dry_run"])]
    pub detach: bool,
    /// What is shown on stderr while it runs
    #[arg(long, value_enum, value_name = "KIND", default_value = "auto")]
    pub progress: Progress,
    /// Only check the workflow and its inputs
    #[arg(long)]
    pub dry_run: bool,
    /// Replace every model by one that makes one tool call and quotes its result, at no cost
    #[arg(long)]
    pub mock: bool,
}

/// What is shown while a run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Progress {
    /// A tree on a terminal, else plain lines.
    Auto,
    /// A tree that is redrawn in place.
    Tree,
    /// A line for every event.
    Plain,
    /// The events as JSON, one a line.
    Jsonl,
    /// Nothing.
    None,
}

/// How many runs `ps` lists at most.
pub const LIMIT_MAX: u32 = 100_000;

/// Arguments of `ps`.
#[derive(Args, Debug)]
pub struct PsArgs {
    /// Also runs that have ended
    #[arg(short, long)]
    pub all: bool,
    /// Terms joined by AND: state = RUNNING, outcome = BUDGET, workflow = "x", labels.team = "y"
    #[arg(long, value_name = "EXPR")]
    pub filter: Option<String>,
    /// Only runs with this label
    #[arg(short, long = "label", value_name = "KEY=VALUE", value_parser = amount::pair)]
    pub label: Vec<(String, String)>,
    /// How many at most
    #[arg(long, value_name = "N", default_value = "50", value_parser = clap::value_parser!(u32).range(1..=i64::from(LIMIT_MAX)))]
    pub limit: u32,
    /// Also the runs below the roots
    #[arg(long)]
    pub descendants: bool,
}

/// Arguments of `tree`.
#[derive(Args, Debug)]
pub struct TreeArgs {
    /// Which run
    #[command(flatten)]
    pub name: RunName,
    /// Levels below it; 0 for all
    #[arg(long, value_name = "N", default_value = "0", value_parser = clap::value_parser!(i32).range(0..))]
    pub depth: i32,
}

/// Arguments of `watch`.
#[derive(Args, Debug)]
pub struct WatchArgs {
    /// Which events.
    #[command(flatten)]
    pub events: EventsArgs,
    /// Lines on stdout, or a tree on stderr
    #[arg(long, value_enum, value_name = "KIND", default_value = "plain")]
    pub progress: Progress,
}

/// Which events.
#[derive(Args, Debug)]
pub struct EventsArgs {
    /// Of which run
    #[command(flatten)]
    pub name: RunName,
    /// Only events after this tree_seq
    #[arg(long, value_name = "SEQ", default_value = "0", value_parser = clap::value_parser!(i64).range(0..))]
    pub after: i64,
    /// Also text as it streams and progress of tools
    #[arg(long)]
    pub deltas: bool,
    /// Only the run's own events
    #[arg(long)]
    pub no_descendants: bool,
}

/// Arguments of `cancel`.
#[derive(Args, Debug)]
pub struct CancelArgs {
    /// Ids, prefixes or @latest
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<String>,
    /// Why; kept in the journal
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    /// Return as soon as the request is stored
    #[arg(long)]
    pub no_wait: bool,
}

/// Arguments of `resume`.
#[derive(Args, Debug)]
pub struct ResumeArgs {
    /// Which run
    #[command(flatten)]
    pub name: RunName,
    /// Let an agent ask another model from here on, in the whole tree
    #[arg(long, value_name = "AGENT=PROVIDER/MODEL", value_parser = amount::pair)]
    pub set_model: Vec<(String, String)>,
    /// New totals, not increments.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Why; kept in the journal
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
}

/// Arguments of `wait`.
#[derive(Args, Debug)]
pub struct WaitArgs {
    /// Ids, prefixes or @latest
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<String>,
    /// Whether being suspended is enough
    #[arg(long = "for", value_enum, value_name = "STATE", default_value = "suspended")]
    pub until: Until,
    /// How long to wait at most
    #[arg(long, value_name = "TIME", value_parser = amount::duration)]
    pub timeout: Option<Duration>,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Until {
    /// The run has ended.
    Ended,
    /// The run is suspended or has ended.
    Suspended,
}

/// Arguments of `trace`.
#[derive(Args, Debug)]
pub struct TraceArgs {
    /// Which run
    #[command(flatten)]
    pub name: RunName,
    /// For people, for an OTLP collector, or for Jaeger's UI
    #[arg(long = "format", value_enum, value_name = "FORMAT", default_value = "text")]
    pub kind: TraceKind,
    /// Write to a file
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// The form of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TraceKind {
    /// An indented tree.
    Text,
    /// ExportTraceServiceRequest as JSON.
    OtlpJson,
    /// The file that Jaeger's UI opens.
    JaegerJson,
}

/// Arguments of `workflow validate`.
#[derive(Args, Debug)]
pub struct ValidateArgs {
    /// The workflow's YAML file; - for stdin
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Inputs to be checked against it.
    #[command(flatten)]
    pub inputs: InputArgs,
    /// Use another model for an alias of the workflow
    #[arg(long, value_name = "ALIAS=MODEL", value_parser = amount::pair)]
    pub set_model: Vec<(String, String)>,
}

/// Arguments of `completion`.
#[derive(Args, Debug)]
pub struct CompletionArgs {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    pub shell: Shell,
}

/// A shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
    /// PowerShell
    #[value(name = "powershell")]
    PowerShell,
}
