//! The commands and their options; their doc lines are the help text.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

use super::exit;

/// Submits, watches, cancels and resumes runs of AI agents.
#[derive(Debug, Parser)]
#[command(name = "wrenctl", version, after_help = exit::HELP, max_term_width = 100)]
pub struct Args {
    #[command(flatten)]
    pub(super) global: Global,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Clone, ClapArgs)]
pub(super) struct Global {
    /// Where the daemon is: unix:PATH or tcp:HOST:PORT.
    #[arg(long, global = true, env = "WREN_ADDRESS", value_name = "ADDRESS")]
    pub address: Option<String>,
    /// File with the bearer token, for tcp.
    #[arg(long, global = true, env = "WREN_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Work without a daemon, on a store of its own.
    #[arg(long, global = true, conflicts_with = "address")]
    pub local: bool,
    /// Form of the output.
    #[arg(short, long, global = true, value_enum, default_value = "table")]
    pub output: Format,
    /// Colour.
    #[arg(long, global = true, value_enum, default_value = "auto")]
    pub color: Color,
    /// Print data only.
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Table,
    Json,
    Jsonl,
    Yaml,
    Name,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Color {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Progress {
    /// A tree on a terminal, else plain lines.
    Auto,
    /// The live tree.
    Tree,
    /// One line an event.
    Plain,
    /// One JSON object an event.
    Jsonl,
    /// Nothing.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TraceForm {
    Text,
    OtlpJson,
    JaegerJson,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum WaitFor {
    Ended,
    Suspended,
}

#[derive(Debug, Clone, Default, ClapArgs)]
pub(super) struct LimitArgs {
    /// Money in USD: 0.50.
    #[arg(long, value_name = "USD", value_parser = usd)]
    pub budget: Option<i64>,
    /// Replies of the root's model.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    pub max_turns: Option<i32>,
    /// Input plus output tokens.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    pub max_tokens: Option<i64>,
    /// Time in state running: 90s, 5m, 1h.
    #[arg(long, value_name = "TIME", value_parser = duration_ms)]
    pub timeout: Option<i64>,
}

#[derive(Debug, Clone, ClapArgs)]
pub(super) struct WorkflowArgs {
    /// The workflow.
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// An input; the workflow's schema says what the value is read as.
    #[arg(short, long = "input", value_name = "KEY=VALUE", value_parser = pair)]
    pub input: Vec<(String, String)>,
    /// Inputs from a JSON file; - for standard input.
    #[arg(long, value_name = "FILE")]
    pub input_file: Option<String>,
    /// Another model for an alias.
    #[arg(long, value_name = "ALIAS=PROVIDER/MODEL", value_parser = pair)]
    pub set_model: Vec<(String, String)>,
    /// Directory that file tools are confined to, or a name from the daemon's config. Default: the current directory.
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Submit a workflow and follow it to its end.
    Run {
        #[command(flatten)]
        workflow: WorkflowArgs,
        #[command(flatten)]
        limits: LimitArgs,
        /// A label.
        #[arg(short, long = "label", value_name = "KEY=VALUE", value_parser = pair)]
        label: Vec<(String, String)>,
        /// Makes the submission idempotent: the same id and content give the same run.
        #[arg(long, value_name = "ID")]
        request_id: Option<String>,
        /// Print the run's id and return.
        #[arg(short, long)]
        detach: bool,
        /// How the run is shown on stderr.
        #[arg(long, value_enum, default_value = "auto")]
        progress: Progress,
        /// Check only; nothing is created.
        #[arg(long)]
        dry_run: bool,
        /// Replace every model by one that makes one tool call and quotes its result, at no cost.
        #[arg(long)]
        mock: bool,
    },
    /// List runs, newest first.
    Ps {
        /// Also runs that have ended.
        #[arg(short, long)]
        all: bool,
        /// Terms joined by AND: state = RUNNING, outcome = BUDGET, workflow = "x", labels.team = "y".
        #[arg(long, value_name = "EXPR", default_value = "")]
        filter: String,
        /// Also child runs.
        #[arg(long)]
        descendants: bool,
        /// At most this many.
        #[arg(long, value_name = "N", default_value = "50", value_parser = clap::value_parser!(i32).range(1..=1000))]
        limit: i32,
    },
    /// Show one run.
    Get {
        /// An id, the beginning of one, or @latest.
        run: String,
    },
    /// Show a run with everything below it.
    Tree {
        /// An id, the beginning of one, or @latest.
        run: String,
        /// Levels to show; 0 for all.
        #[arg(long, default_value = "0")]
        depth: i32,
    },
    /// Follow a run: its journal, then live.
    Watch {
        /// An id, the beginning of one, or @latest.
        run: String,
        /// Begin after this tree_seq.
        #[arg(long, value_name = "SEQ", default_value = "0")]
        after: i64,
        /// Also text as it streams.
        #[arg(long)]
        deltas: bool,
        /// Not the runs below it.
        #[arg(long)]
        no_descendants: bool,
    },
    /// Show what was said in a run.
    Transcript {
        /// An id, the beginning of one, or @latest.
        run: String,
    },
    /// Print a run's journal so far.
    Events {
        /// An id, the beginning of one, or @latest.
        run: String,
        /// Begin after this tree_seq.
        #[arg(long, value_name = "SEQ", default_value = "0")]
        after: i64,
        /// Not the runs below it.
        #[arg(long)]
        no_descendants: bool,
    },
    /// Print a run's answer.
    Result {
        /// An id, the beginning of one, or @latest.
        run: String,
    },
    /// Cancel runs and everything below them, and wait until it is quiet.
    Cancel {
        /// Ids, beginnings of ids, or @latest.
        #[arg(required = true)]
        run: Vec<String>,
        /// Why.
        #[arg(long, default_value = "")]
        reason: String,
        /// Do not wait for the end.
        #[arg(long)]
        no_wait: bool,
    },
    /// Let a suspended run go on, with other limits if given.
    Resume {
        /// An id, the beginning of one, or @latest.
        run: String,
        #[command(flatten)]
        limits: LimitArgs,
        /// Why.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Wait for runs.
    Wait {
        /// Ids, beginnings of ids, or @latest.
        #[arg(required = true)]
        run: Vec<String>,
        /// What is waited for. Default: ended or suspended.
        #[arg(long = "for", value_enum)]
        until: Option<WaitFor>,
        /// For at most this long.
        #[arg(long, value_name = "TIME", value_parser = duration_ms)]
        timeout: Option<i64>,
    },
    /// Print the spans of a run's tree.
    Trace {
        /// An id, the beginning of one, or @latest.
        run: String,
        /// Form of the trace.
        #[arg(long, value_enum, default_value = "text")]
        format: TraceForm,
        /// Write to a file.
        #[arg(long, value_name = "FILE", id = "trace_file")]
        file: Option<PathBuf>,
    },
    /// Work with workflow files.
    Workflow {
        #[command(subcommand)]
        command: WorkflowCommand,
    },
    /// Show what the daemon is and can do.
    Info,
    /// Print a script that completes commands in a shell.
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum WorkflowCommand {
    /// Say everything that is wrong with a workflow, and which limits it has.
    Validate {
        /// The workflow.
        file: PathBuf,
        /// An input to check too.
        #[arg(short, long = "input", value_name = "KEY=VALUE", value_parser = pair)]
        input: Vec<(String, String)>,
    },
    /// Print the JSON Schema of workflows, for editors.
    Schema,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write it as KEY=VALUE".to_owned()),
    }
}

/// Reads an amount of USD as nano-USD, exactly.
fn usd(text: &str) -> Result<i64, String> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || text.ends_with('.') {
        return Err("write a plain amount in USD such as 0.50".to_owned());
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > 9 {
        return Err("at most 9 decimal places".to_owned());
    }
    match format!("{whole}{fraction:0<9}").parse::<i64>() {
        Ok(0) => Err("must be more than 0".to_owned()),
        Ok(nanos) => Ok(nanos),
        Err(_) => Err("is too large".to_owned()),
    }
}

/// Reads a time as milliseconds.
fn duration_ms(text: &str) -> Result<i64, String> {
    let split = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let (amount, unit) = text.split_at(split);
    let unit_ms: i64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err("write a number and a unit, such as 90s, 5m or 1h".to_owned()),
    };
    let amount: i64 = amount.parse().map_err(|_| "write a number and a unit, such as 90s, 5m or 1h".to_owned())?;
    match amount.checked_mul(unit_ms) {
        Some(ms) if ms > 0 => Ok(ms),
        Some(_) => Err("must be more than 0".to_owned()),
        None => Err("is too long".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_commands_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn money_and_time_are_exact_or_refused() {
        assert_eq!(usd("0.02"), Ok(20_000_000));
        assert_eq!(usd("1"), Ok(1_000_000_000));
        for bad in ["0", "-1", "NaN", "1e308", "", "1.", ".5", "0.0000000001", "99999999999999"] {
            assert!(usd(bad).is_err(), "{bad}");
        }
        assert_eq!(duration_ms("90s"), Ok(90_000));
        for bad in ["", "90", "0s", "1.5h", "1w", "99999999999999999h"] {
            assert!(duration_ms(bad).is_err(), "{bad}");
        }
    }
}
