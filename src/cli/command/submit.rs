//! `run`: submit, watch, print the result; and the watching that other commands share.

use std::time::Duration;

use tonic::Request;

use super::inspect::{print_answer, run_of, say_stop, tree_of};
use super::workflow::valid;
use super::{Session, interrupted};
use crate::cli::address::Address;
use crate::cli::arguments::{Format, Progress, RunArgs};
use crate::cli::diagnostic;
use crate::cli::display::{Display, Target};
use crate::cli::error::Error;
use crate::cli::exit;
use crate::cli::follow::Follow;
use crate::cli::view::{table, text, tree};
use crate::cli::{Interrupts, bundle};
use crate::wire::v1::{CancelRunRequest, CancelRunResponse, Run, RunState, SubmitRunRequest, SubmitRunResponse, WatchRunRequest};

/// How often the tree is drawn anew.
const FRAME: Duration = Duration::from_millis(100);
/// How long a daemon that does not answer may hold up a user who leaves.
pub(super) const FAREWELL: Duration = Duration::from_secs(2);

/// What ended the watching of a run.
pub(super) enum Watched {
    /// The run stopped.
    Stopped,
    /// A Ctrl-C.
    Interrupted,
}

pub(super) async fn run(session: &mut Session, args: &RunArgs, interrupts: &mut Interrupts) -> Result<u8, Error> {
    let request = request(session, args)?;
    let (answer, is_unwanted) = submit(session, request, interrupts).await?;
    warn(session, &answer);
    let run = answer.run.unwrap_or_default();
    if args.dry_run {
        return dry(session, &run, args).await;
    }
    if answer.deduplicated {
        session.output.talk(&format!("this request id was submitted before; this is its run {}", run.run_id));
    }
    if is_unwanted {
        return cancel(session, &run.run_id, None, interrupts).await;
    }
    if args.detach {
        let human = format!("{}\n", run.run_id);
        session.output.document(&run, |_| human, std::slice::from_ref(&run.run_id))?;
        session.next(&format!("wrenctl watch {}", run.run_id));
        return Ok(exit::OK);
    }
    see_through(session, &run.run_id, args.progress, interrupts).await
}

fn request(session: &mut Session, args: &RunArgs) -> Result<SubmitRunRequest, Error> {
    bundle::one_reader(&args.file, &args.inputs)?;
    bundle::once("--label", &args.label)?;
    bundle::once("--set-model", &args.set_model)?;
    let bundle = bundle::workflow(&args.file, &mut *session.stdin)?;
    let inputs = bundle::inputs(&args.inputs, &mut *session.stdin)?;
    Ok(SubmitRunRequest {
        bundle: Some(bundle),
        inputs_json: inputs.unwrap_or_else(|| "{}".to_owned()),
        request_id: args.request_id.clone().unwrap_or_default(),
        labels: args.label.iter().cloned().collect(),
        limits: args.limits.to_wire(),
        model_overrides: args.set_model.iter().cloned().collect(),
        validate_only: args.dry_run,
        workspace: workspace(session, args.workspace.as_deref()),
        mock: args.mock,
    })
}

/// On a unix socket a directory is sent as an absolute path; what is no directory is a name from the daemon's config, and
/// so is everything on TCP, where client and daemon need not see the same disk.
fn workspace(session: &Session, given: Option<&str>) -> String {
    match (&session.client.address, given) {
        (Address::Tcp(_), name) => name.unwrap_or_default().to_owned(),
        (Address::Unix(_), None) => session.directory.to_string_lossy().into_owned(),
        (Address::Unix(_), Some(name)) => {
            let path = session.directory.join(name);
            let found = std::fs::canonicalize(&path).ok().filter(|found| found.is_dir());
            found.map_or_else(|| name.to_owned(), |found| found.to_string_lossy().into_owned())
        }
    }
}

/// Submits. A Ctrl-C meanwhile does not leave a run behind that nobody knows of: the answer is awaited, then cancelled.
async fn submit(session: &mut Session, request: SubmitRunRequest, interrupts: &mut Interrupts) -> Result<(SubmitRunResponse, bool), Error> {
    let mut client = session.client.clone();
    let mut request = Request::new(request);
    // What cannot be sent is not a trace context; the daemon passes over what it cannot read as well.
    if let Some(traceparent) = session.traceparent.as_deref().and_then(|text| text.parse().ok()) {
        request.metadata_mut().insert("traceparent", traceparent);
    }
    let mut answer = std::pin::pin!(client.runs.submit_run(request));
    let (answer, is_unwanted) = tokio::select! {
        answer = &mut answer => (answer, false),
        () = interrupted(interrupts) => tokio::select! {
            answer = &mut answer => (answer, true),
            () = interrupted(interrupts) => {
                let error = Error::new(exit::INTERRUPTED, "the daemon has not answered yet, and the run may go on all the same");
                return Err(error.hint("look for it: `wrenctl ps`"));
            }
        },
    };
    Ok((answer.map_err(|status| session.client.error(&status))?.into_inner(), is_unwanted))
}

fn warn(session: &mut Session, answer: &SubmitRunResponse) {
    if !answer.warnings.is_empty() {
        let text = diagnostic::list(&answer.warnings, session.output.talk_paint);
        session.output.talk(&text);
    }
}

async fn dry(session: &mut Session, run: &Run, args: &RunArgs) -> Result<u8, Error> {
    if session.output.format == Format::Table {
        return valid(session, &run.workflow_name, &run.limits.unwrap_or_default(), &args.file).await;
    }
    session.output.document(run, |_| String::new(), std::slice::from_ref(&run.workflow_name))?;
    Ok(exit::OK)
}

/// Shows a run until it stops and prints what came of it. The first Ctrl-C cancels it.
pub(super) async fn see_through(session: &mut Session, run_id: &str, progress: Progress, interrupts: &mut Interrupts) -> Result<u8, Error> {
    let is_terminal = session.size().is_some();
    let mut display = Display::new(progress, Target::Talk, is_terminal, &session.output);
    let mut follow = Follow::new(
        session.client.clone(),
        WatchRunRequest {
            run_id: run_id.to_owned(),
            after_tree_seq: 0,
            include_descendants: true,
            // Plain lines have no room for words as they stream.
            include_deltas: progress != Progress::Plain && (progress != Progress::Auto || is_terminal),
            stop_when_suspended: true,
        },
    );
    match drive(session, &mut follow, &mut display, Some(interrupts)).await? {
        Watched::Stopped => settle(session, run_id, Some(&mut display)).await,
        Watched::Interrupted => cancel(session, run_id, Some(&mut display), interrupts).await,
    }
}

/// Shows events as they come. Without `interrupts` somebody else heeds them.
pub(super) async fn drive(
    session: &mut Session,
    follow: &mut Follow,
    display: &mut Display,
    mut interrupts: Option<&mut Interrupts>,
) -> Result<Watched, Error> {
    let mut frames = tokio::time::interval(FRAME);
    frames.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        // One future for as long as it takes: a frame must not begin its pauses between connections anew.
        let mut next = std::pin::pin!(follow.next());
        let event = loop {
            tokio::select! {
                biased;
                () = heed(interrupts.as_deref_mut()) => return Ok(Watched::Interrupted),
                _ = frames.tick() => display.draw(session.now_us(), session.size(), &mut session.output),
                event = &mut next => break event?,
            }
        };
        match event {
            Some(event) => display.event(&event, &mut session.output)?,
            None => return Ok(Watched::Stopped),
        }
    }
}

async fn heed(interrupts: Option<&mut Interrupts>) {
    match interrupts {
        Some(interrupts) => interrupted(interrupts).await,
        None => std::future::pending().await,
    }
}

async fn settle(session: &mut Session, run_id: &str, display: Option<&mut Display>) -> Result<u8, Error> {
    let run = run_of(session, run_id).await?;
    if let Some(display) = display {
        // The daemon's figures are the ledger's own; a viewer that missed something would be wrong.
        let told = tree_of(session, run_id, 0).await.ok();
        let last = told.as_ref().map(tree::Tree::of);
        display.finish(last.as_ref(), session.now_us(), session.size(), &mut session.output);
    }
    print_answer(session, &run)?;
    say_stop(session, &run);
    Ok(exit::of(run.outcome()))
}

async fn cancel(session: &mut Session, run_id: &str, mut display: Option<&mut Display>, interrupts: &mut Interrupts) -> Result<u8, Error> {
    if let Some(display) = display.as_deref_mut() {
        display.clear(&mut session.output);
    }
    session.output.talk("cancelling; Ctrl-C again leaves as soon as the daemon has it");
    let mut client = session.client.clone();
    let mut answer = std::pin::pin!(client.runs.cancel_run(cancelling(run_id, true)));
    let answer = tokio::select! {
        answer = &mut answer => answer,
        () = interrupted(interrupts) => return leave(session, run_id).await,
    };
    let unsure = |error: Error| error.hint(format!("the run may go on; cancel it: `wrenctl cancel {run_id}`"));
    let answer: CancelRunResponse = answer.map_err(|status| unsure(session.client.error(&status)))?.into_inner();
    let receipts = table::receipts(&answer.receipts, session.output.talk_paint);
    session.output.talk(&receipts);
    settle(session, run_id, display).await
}

fn cancelling(run_id: &str, wait: bool) -> CancelRunRequest {
    CancelRunRequest { run_id: run_id.to_owned(), reason: "interrupted by the user".to_owned(), wait }
}

/// Leaves a run that is being cancelled. The first request may not have left this process yet, and it answers only when
/// all has ended; one that does not wait answers as soon as the cancel is durable, so it says whether it can be relied on.
async fn leave(session: &mut Session, run_id: &str) -> Result<u8, Error> {
    let mut client = session.client.clone();
    let asked = tokio::time::timeout(FAREWELL, client.runs.cancel_run(cancelling(run_id, false))).await;
    let why = match asked {
        Ok(Ok(answer)) => {
            let run = answer.into_inner().run.unwrap_or_default();
            let holds = match run.state() {
                RunState::Ended => format!("run {run_id} has ended: {}", text::enum_name(run.outcome().as_str_name(), "OUTCOME_")),
                RunState::Unspecified | RunState::Pending | RunState::Running | RunState::Suspended | RunState::Cancelling => {
                    format!("run {run_id} is cancelled for sure: the daemon has stored it and stops what still runs")
                }
            };
            session.output.insist(&holds);
            session.next(&format!("wrenctl watch {run_id}"));
            return Ok(exit::INTERRUPTED);
        }
        Ok(Err(status)) => format!(": {}", text::one_line(status.message())),
        Err(_) => format!(" within {} s", FAREWELL.as_secs()),
    };
    let error = Error::new(exit::INTERRUPTED, format!("the cancel of run {run_id} is not confirmed{why}; it may go on"));
    Err(error.hint(format!("`wrenctl cancel {run_id}`")))
}
