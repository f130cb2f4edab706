//! Every command but `run`: ask, print, and choose the exit code.

use std::path::Path;
use std::time::Duration;

use clap::CommandFactory;

use super::args::{Args, Command, Format, Global, LimitArgs, TraceForm, WaitFor, WorkflowCommand};
use super::client::Client;
use super::error::{Error, render};
use super::output::Output;
use super::run::{RunRequest, bundle, finish, inputs_json, interrupts};
use super::view::{outcome_name, short, state_name};
use super::watch::follow;
use super::{Surroundings, exit, run as run_command, view};
use crate::kernel::next::usd;
use crate::wire::v1;

/// Runs one command and returns the program's exit code.
pub async fn run(args: Args, surroundings: Surroundings) -> u8 {
    let output = Output::new(&args.global);
    match dispatch(args, surroundings, &output).await {
        Ok(code) => code,
        Err(error) => {
            if !error.message.is_empty() {
                output.say(&error.message);
            }
            error.code
        }
    }
}

async fn dispatch(args: Args, surroundings: Surroundings, output: &Output) -> Result<u8, Error> {
    let Args { global, command } = args;
    match &command {
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Args::command(), "wrenctl", &mut script);
            output.data(&String::from_utf8_lossy(&script))?;
            return Ok(0);
        }
        Command::Workflow { command: WorkflowCommand::Schema } => {
            output.data(&surroundings.schema_json)?;
            return Ok(0);
        }
        _ => {}
    }
    let current_dir = surroundings.current_dir;
    if !global.local {
        let address = global.address.clone().map_or(surroundings.default_address, Ok).map_err(Error::new)?;
        let client = Client::connect(&address, global.token_file.as_deref()).await?;
        return perform(&client, command, &global, &current_dir, output).await;
    }
    let daemon = (surroundings.start_local)().await.map_err(|why| Error::new(format!("error: {why}")))?;
    let work = async {
        let client = Client::connect(&daemon.address, None).await?;
        let done = perform(&client, command, &global, &current_dir, output).await;
        drop(client);
        (daemon.stop)();
        done
    };
    let Some(serve) = daemon.serve else { return work.await };
    let (done, served) = tokio::join!(work, serve);
    served.map_err(|why| Error::new(format!("error: {why}")))?;
    done
}

async fn perform(client: &Client, command: Command, global: &Global, current_dir: &Path, output: &Output) -> Result<u8, Error> {
    match command {
        Command::Run { workflow, limits, label, request_id, detach, progress, dry_run, mock } => {
            if detach && global.local {
                return Err(Error::usage(
                    "error: --detach needs a daemon: with --local the run ends with this command\nhint: start `wrend` and leave --local out",
                ));
            }
            let request = RunRequest {
                workflow: &workflow,
                limits: &limits,
                labels: &label,
                request_id: request_id.as_deref(),
                detach,
                progress,
                dry_run,
                mock,
            };
            run_command::run(client, request, current_dir, output).await
        }
        Command::Ps { all, filter, descendants, limit } => ps(client, all, filter, descendants, limit, output).await,
        Command::Get { run } => {
            let run = get(client, &run).await?;
            print_run(&run, output)?;
            Ok(0)
        }
        Command::Tree { run, depth } => tree(client, run, depth, output).await,
        Command::Watch { run, after, deltas, no_descendants } => watch(client, run, after, deltas, !no_descendants, output).await,
        Command::Transcript { run } => transcript(client, run, output).await,
        Command::Events { run, after, no_descendants } => events(client, run, after, !no_descendants, output).await,
        Command::Result { run } => result(client, run, output).await,
        Command::Cancel { run, reason, no_wait } => cancel(client, run, reason, !no_wait, output).await,
        Command::Resume { run, limits: patch, reason } => resume(client, run, &patch, reason, output).await,
        Command::Wait { run, until, timeout } => wait(client, run, until, timeout, output).await,
        Command::Trace { run, format, file } => trace(client, run, format, file.as_deref(), output).await,
        Command::Workflow { command: WorkflowCommand::Validate { file, input } } => validate(client, &file, &input, output).await,
        Command::Workflow { command: WorkflowCommand::Schema } | Command::Completion { .. } => Ok(0),
        Command::Info => info(client, output).await,
    }
}

async fn get(client: &Client, run: &str) -> Result<v1::Run, Error> {
    let request = v1::GetRunRequest { run_id: run.to_owned() };
    Ok(client.runs().get_run(request).await?.into_inner().run.unwrap_or_default())
}

/// Returns the limits that options name.
pub fn limits(args: &LimitArgs) -> v1::Limits {
    v1::Limits {
        max_turns: args.max_turns,
        budget_usd_nanos: args.budget,
        max_tokens: args.max_tokens,
        timeout: args
            .timeout
            .map(|ms| pbjson_types::Duration { seconds: ms / 1000, nanos: i32::try_from(ms % 1000).unwrap_or(0) * 1_000_000 }),
        max_depth: None,
        max_runs: None,
    }
}

/// Prints one run.
pub fn print_run(run: &v1::Run, output: &Output) -> Result<(), Error> {
    output.document(run, || run_table(run), || run.run_id.clone())
}

fn run_table(run: &v1::Run) -> String {
    let own = run.own_usage.clone().unwrap_or_default();
    let all = run.subtree_usage.clone().unwrap_or_default();
    let limits = run.limits.clone().unwrap_or_default();
    let failure = run.failure.clone().unwrap_or_default();
    let mut rows = vec![
        ("run", run.run_id.clone()),
        ("workflow", run.workflow_name.clone()),
        ("agent", format!("{} ({})", run.agent, run.model)),
        ("state", how(run)),
    ];
    if !failure.message.is_empty() {
        rows.push(("reason", format!("{}: {}", failure.reason, failure.message)));
    }
    if !run.parent_run_id.is_empty() {
        rows.push(("parent", format!("{} (call {} of {})", run.parent_run_id, run.tool_call_id, run.tool)));
    }
    rows.push(("turns", format!("{} of {}", own.turn_count, limits.max_turns.unwrap_or_default())));
    rows.push(("tokens", format!("{} of {}", all.input_tokens + all.output_tokens, limits.max_tokens.unwrap_or_default())));
    rows.push(("cost", cost(&all, limits.budget_usd_nanos.unwrap_or_default())));
    rows.push(("runs", format!("{} of {}", all.run_count, limits.max_runs.unwrap_or_default())));
    rows.push(("trace", run.trace_id.clone()));
    if !run.output_text.is_empty() {
        rows.push(("text", short(&run.output_text, 300)));
    }
    rows.iter().map(|(name, value)| format!("{name:<9} {value}")).collect::<Vec<_>>().join("\n")
}

fn cost(usage: &v1::Usage, budget: i64) -> String {
    let mut text = format!("{} of {}", usd(usage.cost_usd_nanos), usd(budget));
    for (amount, what) in [(usage.written_off_usd_nanos, "written off"), (usage.overrun_usd_nanos, "over what was reserved")] {
        if amount > 0 {
            text.push_str(&format!(", {} {what}", usd(amount)));
        }
    }
    if usage.cost_unknown {
        text.push_str(", and what has no known price");
    }
    if usage.estimated {
        text.push_str(", partly estimated");
    }
    text
}

fn how(run: &v1::Run) -> String {
    match run.outcome() {
        v1::Outcome::Unspecified => state_name(run.state()),
        outcome => format!("{} ({})", state_name(run.state()), outcome_name(outcome)),
    }
}

/// Returns what to type next about a run that stopped.
pub fn what_next(run: &v1::Run) -> String {
    let id = &run.run_id;
    let failure = run.failure.clone().unwrap_or_default();
    let budget = run.limits.clone().unwrap_or_default();
    let double = usd(budget.budget_usd_nanos.unwrap_or_default().saturating_mul(2))
        .trim_start_matches('$')
        .trim_end_matches('0')
        .trim_end_matches('.')
        .to_owned();
    let turns = budget.max_turns.unwrap_or_default();
    let next = match run.outcome() {
        v1::Outcome::Completed | v1::Outcome::Unspecified => return String::new(),
        _ if run.state() != v1::RunState::Suspended => format!("look with `wrenctl transcript {id}`"),
        v1::Outcome::Budget => format!("go on with `wrenctl resume {id} --budget {double}`"),
        v1::Outcome::MaxTurns => format!("go on with `wrenctl resume {id} --max-turns {}`", turns.saturating_mul(2)),
        v1::Outcome::MaxTokens => format!("go on with `wrenctl resume {id} --max-tokens N`"),
        v1::Outcome::Timeout => format!("go on with `wrenctl resume {id} --timeout TIME`"),
        v1::Outcome::Failed
        | v1::Outcome::Cancelled
        | v1::Outcome::Blocked
        | v1::Outcome::Approval
        | v1::Outcome::ProviderError
        | v1::Outcome::Drained
        | v1::Outcome::InDoubt => format!("go on with `wrenctl resume {id}`"),
    };
    format!("{}: {}\nhint: {next}", outcome_name(run.outcome()), failure.message)
}

async fn ps(client: &Client, all: bool, filter: String, include_descendants: bool, limit: i32, output: &Output) -> Result<u8, Error> {
    let request = v1::ListRunsRequest { page_size: limit, page_token: String::new(), filter, include_descendants };
    let mut listed = client.runs().list_runs(request).await?.into_inner();
    if !all {
        listed.runs.retain(|run| run.state() != v1::RunState::Ended);
    }
    let rows = |runs: &[v1::Run]| {
        let mut lines =
            vec![format!("{:<26}  {:<24}  {:<22}  {:>5}  {:>8}  {:>11}", "RUN", "WORKFLOW", "STATE", "TURNS", "TOKENS", "COST")];
        for run in runs {
            let usage = run.subtree_usage.clone().unwrap_or_default();
            lines.push(format!(
                "{:<26}  {:<24}  {:<22}  {:>5}  {:>8}  {:>11}",
                run.run_id,
                short(&run.workflow_name, 23),
                how(run),
                usage.turn_count,
                usage.input_tokens + usage.output_tokens,
                usd(usage.cost_usd_nanos)
            ));
        }
        lines.join("\n")
    };
    let ids = || listed.runs.iter().map(|run| run.run_id.clone()).collect::<Vec<_>>().join("\n");
    output.document(&listed, || rows(&listed.runs), ids)?;
    if listed.runs.is_empty() && !all && output.format == Format::Table {
        output.talk("hint: nothing runs; `wrenctl ps -a` lists what has ended too");
    }
    Ok(0)
}

async fn tree(client: &Client, run: String, max_depth: i32, output: &Output) -> Result<u8, Error> {
    let root = client.runs().get_run_tree(v1::GetRunTreeRequest { run_id: run, max_depth }).await?.into_inner().root.unwrap_or_default();
    let mut ids = Vec::new();
    node_ids(&root, &mut ids);
    output.document(&root, || node_lines(&root, "", "").join("\n"), || ids.join("\n"))?;
    Ok(0)
}

fn node_ids(node: &v1::RunNode, ids: &mut Vec<String>) {
    ids.extend(node.run.as_ref().map(|run| run.run_id.clone()));
    node.children.iter().for_each(|child| node_ids(child, ids));
}

fn node_lines(node: &v1::RunNode, lead: &str, below: &str) -> Vec<String> {
    let run = node.run.clone().unwrap_or_default();
    let all = run.subtree_usage.clone().unwrap_or_default();
    let own = run.own_usage.clone().unwrap_or_default();
    let failure = run.failure.as_ref().map(|failure| format!("  {}", short(&failure.message, 60))).unwrap_or_default();
    let head = format!(
        "{lead}{} {}  {}  {} turns  {} tokens  {}{failure}",
        run.agent,
        run.run_id,
        how(&run),
        own.turn_count,
        all.input_tokens + all.output_tokens,
        usd(all.cost_usd_nanos)
    );
    let mut lines = vec![head];
    for (index, child) in node.children.iter().enumerate() {
        let (branch, next) = if index + 1 == node.children.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        lines.extend(node_lines(child, &format!("{below}{branch}"), &format!("{below}{next}")));
    }
    lines
}

async fn watch(client: &Client, run: String, after: i64, deltas: bool, include_descendants: bool, output: &Output) -> Result<u8, Error> {
    let request = v1::WatchRunRequest {
        run_id: run.clone(),
        after_tree_seq: after,
        include_descendants,
        include_deltas: deltas,
        stop_when_suspended: true,
    };
    let mut interrupts = interrupts()?;
    tokio::select! {
        followed = follow(client, request, |event| print_event(&event, output)) => followed?,
        _ = interrupts.recv() => {
            output.talk(&format!("\nthe run goes on; hint: `wrenctl watch {run}`"));
            return Ok(exit::INTERRUPTED);
        }
    }
    let run = get(client, &run).await?;
    output.talk(&what_next(&run));
    Ok(exit::of_run(&run))
}

fn print_event(event: &v1::Event, output: &Output) -> Result<(), Error> {
    match output.format {
        Format::Table | Format::Name => view::line(event).map_or(Ok(()), |line| output.data(&line)),
        Format::Json | Format::Jsonl | Format::Yaml => {
            let line = serde_json::to_string(event).map_err(|error| Error::new(format!("error: {error}")))?;
            output.data(&line)
        }
    }
}

async fn events(client: &Client, run: String, after: i64, include_descendants: bool, output: &Output) -> Result<u8, Error> {
    // The journal so far: what comes later is `watch`'s business.
    let tree = client.runs().get_run_tree(v1::GetRunTreeRequest { run_id: run.clone(), max_depth: 1 }).await?.into_inner();
    if after >= tree.as_of_tree_seq {
        return Ok(0);
    }
    let request =
        v1::WatchRunRequest { run_id: run, after_tree_seq: after, include_descendants, include_deltas: false, stop_when_suspended: true };
    let mut stream = client.runs().watch_run(request).await?.into_inner();
    let last = tree.as_of_tree_seq;
    loop {
        // A run that waits has no further event; the last one that there was is known.
        let next = tokio::time::timeout(Duration::from_secs(2), stream.message()).await;
        let Ok(message) = next else { return Ok(0) };
        let Some(event) = message?.and_then(|response| response.event) else { return Ok(0) };
        print_event(&event, output)?;
        if event.tree_seq >= last {
            return Ok(0);
        }
    }
}

async fn transcript(client: &Client, run: String, output: &Output) -> Result<u8, Error> {
    let mut whole = v1::GetTranscriptResponse::default();
    let mut page_token = String::new();
    loop {
        let request = v1::GetTranscriptRequest { run_id: run.clone(), page_size: 0, page_token };
        let page = client.runs().get_transcript(request).await?.into_inner();
        whole.messages.extend(page.messages);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    let table = || whole.messages.iter().map(message_text).collect::<Vec<_>>().join("\n\n");
    output.document(&whole, table, || run.clone())?;
    Ok(0)
}

fn message_text(message: &v1::Message) -> String {
    let role = match message.role() {
        v1::Role::System => "instructions".to_owned(),
        v1::Role::User => "user".to_owned(),
        v1::Role::Assistant => "assistant".to_owned(),
        v1::Role::Tool if message.is_error => format!("{} ({}) failed", message.tool, message.tool_call_id),
        v1::Role::Tool => format!("{} ({})", message.tool, message.tool_call_id),
        v1::Role::Unspecified => "?".to_owned(),
    };
    let mut parts = vec![format!("── {role}")];
    parts.extend([&message.reasoning, &message.text, &message.refusal].into_iter().filter(|text| !text.is_empty()).cloned());
    parts.extend(message.tool_calls.iter().map(|call| format!("→ {} ({}) {}", call.tool, call.call_id, call.args_json)));
    parts.join("\n")
}

async fn result(client: &Client, run: String, output: &Output) -> Result<u8, Error> {
    let run = get(client, &run).await?;
    if run.outcome() == v1::Outcome::Unspecified {
        return Err(Error::new(format!("error: run {} is {}; hint: `wrenctl wait {}`", run.run_id, state_name(run.state()), run.run_id)));
    }
    finish(&run, output)
}

async fn cancel(client: &Client, runs: Vec<String>, reason: String, wait: bool, output: &Output) -> Result<u8, Error> {
    for run_id in runs {
        let request = v1::CancelRunRequest { run_id, reason: reason.clone(), wait };
        print_receipt(&client.runs().cancel_run(request).await?.into_inner(), output)?;
    }
    Ok(0)
}

/// Prints what a cancel did to each run.
pub fn print_receipt(receipt: &v1::CancelRunResponse, output: &Output) -> Result<(), Error> {
    let run = receipt.run.clone().unwrap_or_default();
    let table = || {
        let mut lines = vec![format!("{} {}; quiet after {} ms", run.run_id, how(&run), receipt.quiescent_ms)];
        lines.push(format!(
            "{:<26}  {:<16}  {:<10}  {:<12}  {:>9}  {:>8}  {:>8}  {:>6}",
            "RUN", "AGENT", "WAS", "OUTCOME", "CANCELLED", "FINISHED", "IN DOUBT", "MS"
        ));
        for one in &receipt.receipts {
            lines.push(format!(
                "{:<26}  {:<16}  {:<10}  {:<12}  {:>9}  {:>8}  {:>8}  {:>6}",
                one.run_id,
                short(&one.agent, 15),
                state_name(one.state_at_cancel()),
                outcome_name(one.outcome()),
                one.calls_cancelled,
                one.calls_finished,
                one.calls_in_doubt,
                one.quiescent_ms
            ));
        }
        lines.join("\n")
    };
    output.document(receipt, table, || run.run_id.clone())
}

async fn resume(client: &Client, run_id: String, patch: &LimitArgs, reason: String, output: &Output) -> Result<u8, Error> {
    let request = v1::ResumeRunRequest { run_id, limits: Some(limits(patch)), reason };
    let run = client.runs().resume_run(request).await?.into_inner().run.unwrap_or_default();
    output.document(&run, || run.run_id.clone(), || run.run_id.clone())?;
    output.talk(&format!("resumed; hint: follow it with `wrenctl watch {}`", run.run_id));
    Ok(0)
}

async fn wait(client: &Client, runs: Vec<String>, until: Option<WaitFor>, timeout_ms: Option<i64>, output: &Output) -> Result<u8, Error> {
    let mut interrupts = interrupts()?;
    let all = async {
        let mut worst = 0;
        for run in runs {
            let request = v1::WatchRunRequest {
                run_id: run.clone(),
                after_tree_seq: 0,
                include_descendants: false,
                include_deltas: false,
                stop_when_suspended: until != Some(WaitFor::Ended),
            };
            follow(client, request, |_| Ok(())).await?;
            let run = get(client, &run).await?;
            print_run(&run, output)?;
            output.talk(&what_next(&run));
            worst = exit::of_run(&run).max(worst);
        }
        Ok::<u8, Error>(worst)
    };
    let limit = timeout_ms.map_or(Duration::MAX, |ms| Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX)));
    tokio::select! {
        done = all => done,
        () = tokio::time::sleep(limit) => Err(Error::new("error: the time to wait is over; the run goes on")),
        _ = interrupts.recv() => Ok(exit::INTERRUPTED),
    }
}

async fn trace(client: &Client, run_id: String, format: TraceForm, file: Option<&Path>, output: &Output) -> Result<u8, Error> {
    let format = match format {
        TraceForm::Text => v1::TraceFormat::Text,
        TraceForm::OtlpJson => v1::TraceFormat::OtlpJson,
        TraceForm::JaegerJson => v1::TraceFormat::JaegerJson,
    };
    let answer = client.runs().get_trace(v1::GetTraceRequest { run_id, format: format.into() }).await?.into_inner();
    match file {
        None => output.data(&answer.content)?,
        Some(file) => {
            std::fs::write(file, &answer.content).map_err(|error| Error::new(format!("error: {}: {error}", file.display())))?;
            output.talk(&format!("trace {} with {} spans written to {}", answer.trace_id, answer.span_count, file.display()));
        }
    }
    Ok(0)
}

async fn validate(client: &Client, file: &Path, input: &[(String, String)], output: &Output) -> Result<u8, Error> {
    let inputs = if input.is_empty() { String::new() } else { inputs_json(input, None)? };
    let request = v1::ValidateWorkflowRequest { bundle: Some(bundle(file)?), inputs_json: inputs, model_overrides: Default::default() };
    let answer = client.workflows().validate_workflow(request).await?.into_inner();
    let faults: Vec<String> = answer.diagnostics.iter().map(render).collect();
    if output.format == Format::Table {
        output.say(&faults.join("\n"));
    }
    let table = || answer.workflow.as_ref().map(workflow_table).unwrap_or_default();
    output.document(&answer, table, || answer.workflow.as_ref().map(|workflow| workflow.name.clone()).unwrap_or_default())?;
    Ok(if answer.workflow.is_some() { 0 } else { exit::INVALID })
}

fn workflow_table(workflow: &v1::Workflow) -> String {
    let limits = workflow.limits.clone().unwrap_or_default();
    let timeout = limits.timeout.clone().unwrap_or_default();
    let rows = [
        ("workflow", workflow.name.clone()),
        ("agent", workflow.agent.clone()),
        ("max_turns", limits.max_turns.unwrap_or_default().to_string()),
        ("budget_usd", usd(limits.budget_usd_nanos.unwrap_or_default())),
        ("max_tokens", limits.max_tokens.unwrap_or_default().to_string()),
        ("timeout", format!("{}s", timeout.seconds)),
        ("max_depth", limits.max_depth.unwrap_or_default().to_string()),
        ("max_runs", limits.max_runs.unwrap_or_default().to_string()),
    ];
    let mut lines: Vec<String> = rows.iter().map(|(name, value)| format!("{name:<11} {value}")).collect();
    lines
        .push("No call starts unless its worst case fits; what a provider bills beyond that is booked and shown as an overrun.".to_owned());
    lines.join("\n")
}

async fn info(client: &Client, output: &Output) -> Result<u8, Error> {
    let answer = client.system().get_server_info(v1::GetServerInfoRequest {}).await?.into_inner();
    let table = || {
        let rows = [
            ("version", answer.server_version.clone()),
            ("store", answer.store.clone()),
            ("providers", answer.providers.join(", ")),
            ("prices", answer.price_book_version.clone()),
            ("running", answer.running_run_count.to_string()),
            ("spans lost", answer.dropped_span_count.to_string()),
        ];
        rows.iter().map(|(name, value)| format!("{name:<11} {value}")).collect::<Vec<_>>().join("\n")
    };
    output.document(&answer, table, || answer.server_version.clone())?;
    Ok(0)
}
