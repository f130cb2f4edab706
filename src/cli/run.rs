//! `wrenctl run`: bundle, submit, follow, and on Ctrl-C cancel.

use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::args::{Format, LimitArgs, Progress, WorkflowArgs};
use super::client::Client;
use super::command::{limits, print_receipt, print_run};
use super::error::{Error, render};
use super::exit;
use super::output::Output;
use super::watch::{Show, follow};
use crate::wire::v1;

/// What `run` was asked for.
pub struct RunRequest<'a> {
    /// The workflow and its inputs.
    pub workflow: &'a WorkflowArgs,
    /// Limits over the workflow's own.
    pub limits: &'a LimitArgs,
    /// Labels.
    pub labels: &'a [(String, String)],
    /// Makes it idempotent.
    pub request_id: Option<&'a str>,
    /// Whether to return at once.
    pub detach: bool,
    /// How to show it.
    pub progress: Progress,
    /// Whether only to check.
    pub dry_run: bool,
    /// Whether to replace the models.
    pub mock: bool,
}

/// Reads a workflow file for a request.
///
/// # Errors
/// If it cannot be read.
pub fn bundle(file: &Path) -> Result<v1::Bundle, Error> {
    let content = std::fs::read(file).map_err(|error| Error::usage(format!("error: {}: {error}", file.display())))?;
    let path = file.display().to_string();
    Ok(v1::Bundle { entry_path: path.clone(), files: vec![v1::SourceFile { path, content: content.into() }] })
}

/// Puts the inputs of a command line together.
///
/// # Errors
/// If the input file cannot be read or is no JSON object.
pub fn inputs_json(pairs: &[(String, String)], file: Option<&str>) -> Result<String, Error> {
    let mut inputs: Map<String, Value> = match file {
        None => Map::new(),
        Some(name) => {
            let mut text = String::new();
            let read = if name == "-" {
                std::io::stdin().read_to_string(&mut text)
            } else {
                std::fs::File::open(name).and_then(|mut file| file.read_to_string(&mut text))
            };
            read.map_err(|error| Error::usage(format!("error: input file {name}: {error}")))?;
            serde_json::from_str(&text).map_err(|error| Error::usage(format!("error: input file {name} is not a JSON object: {error}")))?
        }
    };
    for (key, value) in pairs {
        inputs.insert(key.clone(), Value::String(value.clone()));
    }
    Ok(Value::Object(inputs).to_string())
}

/// Submits a workflow and follows it.
///
/// # Errors
/// Those of the daemon; a run that did not complete is no error but an exit code.
pub async fn run(client: &Client, request: RunRequest<'_>, current_dir: &Path, output: &Output) -> Result<u8, Error> {
    let workspace = match &request.workflow.workspace {
        // A name stays a name; a path is made absolute, since the daemon's working directory is another.
        Some(given) if !given.contains('/') && !current_dir.join(given).is_dir() => given.clone(),
        Some(given) => absolute(current_dir, given)?,
        None => absolute(current_dir, ".")?,
    };
    let submit = v1::SubmitRunRequest {
        bundle: Some(bundle(&request.workflow.file)?),
        inputs_json: inputs_json(&request.workflow.input, request.workflow.input_file.as_deref())?,
        request_id: request.request_id.unwrap_or_default().to_owned(),
        labels: request.labels.iter().cloned().collect(),
        limits: Some(limits(request.limits)),
        model_overrides: request.workflow.set_model.iter().cloned().collect(),
        validate_only: request.dry_run,
        workspace,
        mock: request.mock,
    };
    let submitted = client.runs().submit_run(submit).await?.into_inner();
    for warning in &submitted.warnings {
        output.talk(&render(warning));
    }
    if request.dry_run {
        output.talk("valid; nothing was created");
        return Ok(0);
    }
    let run = submitted.run.unwrap_or_default();
    if submitted.deduplicated {
        output.talk(&format!("this request was made before: run {}", run.run_id));
    }
    if request.detach {
        output.document(&run, || run.run_id.clone(), || run.run_id.clone())?;
        output.talk(&format!("hint: follow it with `wrenctl watch {}`", run.run_id));
        return Ok(0);
    }
    let mut show = Show::new(request.progress, output);
    let interrupted = attend(client, &run.run_id, &mut show, output).await?;
    if let Some(code) = interrupted {
        return Ok(code);
    }
    let run = client.runs().get_run(v1::GetRunRequest { run_id: run.run_id }).await?.into_inner().run.unwrap_or_default();
    finish(&run, output)
}

fn absolute(current_dir: &Path, given: &str) -> Result<String, Error> {
    let path = current_dir.join(given);
    let path = path.canonicalize().map_err(|error| Error::usage(format!("error: workspace {}: {error}", path.display())))?;
    Ok(path.display().to_string())
}

/// Follows a run; returns an exit code if Ctrl-C ended that.
async fn attend(client: &Client, run_id: &str, show: &mut Show, output: &Output) -> Result<Option<u8>, Error> {
    let request = v1::WatchRunRequest {
        run_id: run_id.to_owned(),
        after_tree_seq: 0,
        include_descendants: true,
        include_deltas: true,
        stop_when_suspended: true,
    };
    let mut interrupts = interrupts()?;
    {
        let following = follow(client, request, |event| {
            show.event(&event, output);
            Ok(())
        });
        tokio::pin!(following);
        tokio::select! {
            followed = &mut following => {
                followed?;
                return Ok(None);
            }
            _ = interrupts.recv() => {}
        }
    }
    output.say("cancelling; a second Ctrl-C leaves at once");
    let request = v1::CancelRunRequest { run_id: run_id.to_owned(), reason: "interrupted at the command line".to_owned(), wait: true };
    let mut runs = client.runs();
    tokio::select! {
        cancelled = runs.cancel_run(request) => {
            print_receipt(&cancelled?.into_inner(), output)?;
            Ok(Some(20))
        }
        _ = interrupts.recv() => Ok(Some(exit::INTERRUPTED)),
    }
}

/// Listens for Ctrl-C.
///
/// # Errors
/// If the system refuses.
pub fn interrupts() -> Result<Signal, Error> {
    signal(SignalKind::interrupt()).map_err(|error| Error::new(format!("error: signals: {error}")))
}

/// Prints what a run came to and returns its exit code.
///
/// # Errors
/// If stdout is gone.
pub fn finish(run: &v1::Run, output: &Output) -> Result<u8, Error> {
    if output.format == Format::Table {
        let answer = if run.output_json.is_empty() { &run.output_text } else { &run.output_json };
        if !answer.is_empty() {
            output.data(answer)?;
        }
    } else {
        print_run(run, output)?;
    }
    output.talk(&super::command::what_next(run));
    Ok(exit::of_run(run))
}
