//! Commands that follow runs: watch, events, wait.

use std::collections::HashMap;
use std::time::Duration;

use super::Session;
use super::inspect::{run_of, say_stop, steps, tree_of};
use super::submit::{FAREWELL, Watched, drive};
use crate::cli::arguments::{EventsArgs, Format, Progress, Until, WaitArgs, WatchArgs};
use crate::cli::display::{Display, Target};
use crate::cli::error::Error;
use crate::cli::exit;
use crate::cli::follow::{Follow, has_stopped};
use crate::cli::output;
use crate::cli::view::{table, text, tree as model};
use crate::wire::v1::{Run, RunNode, RunState, WatchRunRequest};

pub(super) async fn watch(session: &mut Session, args: &WatchArgs) -> Result<u8, Error> {
    let run = run_of(session, &args.events.name.run).await?;
    session.followed = vec![run.run_id.clone()];
    let (progress, target) = match (session.output.format, args.progress) {
        (Format::Jsonl, _) => (Progress::Jsonl, Target::Data),
        (_, Progress::Tree) => (Progress::Tree, Target::Talk),
        (Format::Table, Progress::Auto | Progress::Plain) => (Progress::Plain, Target::Data),
        (Format::Table, other) => (other, Target::Data),
        (Format::Json | Format::Yaml | Format::Name, _) => return Err(no_stream("watch")),
    };
    let mut display = Display::new(progress, target, session.size().is_some(), &session.output);
    let mut follow = Follow::new(
        session.client.clone(),
        WatchRunRequest {
            run_id: run.run_id.clone(),
            after_tree_seq: args.events.after,
            include_descendants: !args.events.no_descendants,
            // The tree shows the progress of tools.
            include_deltas: args.events.deltas || progress == Progress::Tree,
            stop_when_suspended: true,
        },
    );
    match drive(session, &mut follow, &mut display, None).await? {
        Watched::Interrupted => return Err(Error::Interrupted),
        Watched::Stopped => {}
    }
    if progress == Progress::Tree {
        let told = tree_of(session, &run.run_id, 0).await?;
        display.finish(Some(&model::Tree::of(&told)), session.now_us(), session.size(), &mut session.output);
    }
    let run = run_of(session, &run.run_id).await?;
    say_stop(session, &run);
    Ok(exit::of(run.outcome()))
}

fn no_stream(command: &str) -> Error {
    Error::usage(format!("{command} prints a stream, which this form cannot hold; use -o jsonl"))
}

/// Prints the journal as far as it goes now. Deltas are live only, so with them the run is followed until it stops.
pub(super) async fn events(session: &mut Session, args: &EventsArgs) -> Result<u8, Error> {
    let progress = match session.output.format {
        Format::Jsonl => Progress::Jsonl,
        Format::Table => Progress::Plain,
        Format::Json | Format::Yaml | Format::Name => return Err(no_stream("events")),
    };
    let root = tree_of(session, &args.name.run, 0).await?;
    let run = root.run.clone().unwrap_or_default();
    let is_whole = args.deltas || has_stopped(&run, true);
    // Of a run under way the last event is told by the counts of its runs, so all of them are read, and those up to
    // `after` are left out here.
    let mut open = if is_whole { HashMap::new() } else { last_seqs(&root, !args.no_descendants) };
    let mut display = Display::new(progress, Target::Data, false, &session.output);
    let mut follow = Follow::new(
        session.client.clone(),
        WatchRunRequest {
            run_id: run.run_id.clone(),
            after_tree_seq: if is_whole { args.after } else { 0 },
            include_descendants: !args.no_descendants,
            include_deltas: args.deltas,
            stop_when_suspended: true,
        },
    );
    while is_whole || !open.is_empty() {
        let Some(event) = follow.next().await? else { break };
        if open.get(&event.run_id).is_some_and(|last| event.seq >= *last) {
            open.remove(&event.run_id);
        }
        if event.tree_seq == 0 || event.tree_seq > args.after {
            display.event(&event, &mut session.output)?;
        }
    }
    Ok(exit::OK)
}

fn last_seqs(root: &RunNode, with_descendants: bool) -> HashMap<String, i64> {
    let mut seqs = HashMap::new();
    let mut open = vec![root];
    while let Some(node) = open.pop() {
        if let Some(run) = node.run.as_ref().filter(|run| run.last_seq > 0) {
            seqs.insert(run.run_id.clone(), run.last_seq);
        }
        if with_descendants {
            open.extend(&node.children);
        }
    }
    seqs
}

pub(super) async fn wait(session: &mut Session, args: &WaitArgs) -> Result<u8, Error> {
    let runs = match args.timeout {
        None => wait_all(session, args).await?,
        Some(limit) => {
            let waited = tokio::time::timeout(limit, wait_all(session, args)).await;
            match waited {
                Ok(runs) => runs?,
                Err(_) => return Err(overdue(session, limit, args.until).await),
            }
        }
    };
    let names: Vec<String> = runs.iter().map(|run| run.run_id.clone()).collect();
    let now_us = session.now_us();
    match (session.output.format, runs.as_slice()) {
        (Format::Jsonl, runs) => {
            for run in runs {
                session.output.data(&output::json_line(run)?)?;
            }
        }
        (_, [run]) => session.output.document(run, |paint| table::runs(std::slice::from_ref(run), now_us, paint), &names)?,
        (_, runs) => {
            let list = serde_json::json!({"runs": serde_json::to_value(runs).map_err(|error| Error::internal(&error))?});
            session.output.document(&list, |paint| table::runs(runs, now_us, paint), &names)?;
        }
    }
    for run in &runs {
        say_stop(session, run);
    }
    // With several runs the first that did not complete speaks for all.
    Ok(runs.iter().map(|run| exit::of(run.outcome())).find(|code| *code != exit::OK).unwrap_or(exit::OK))
}

async fn wait_all(session: &mut Session, args: &WaitArgs) -> Result<Vec<Run>, Error> {
    let suspended_counts = args.until == Until::Suspended;
    // What is followed stands there by the names that were typed until the ids are known: the time may be up before.
    session.followed.clone_from(&args.runs);
    let mut open = Vec::new();
    for name in &args.runs {
        open.push(run_of(session, name).await?);
    }
    session.followed = open.iter().map(|run| run.run_id.clone()).collect();
    let mut runs = Vec::new();
    for mut run in open {
        while !has_stopped(&run, suspended_counts) {
            let request = WatchRunRequest {
                run_id: run.run_id.clone(),
                after_tree_seq: 0,
                include_descendants: false,
                include_deltas: false,
                stop_when_suspended: suspended_counts,
            };
            let mut follow = Follow::new(session.client.clone(), request);
            while follow.next().await?.is_some() {}
            run = run_of(session, &run.run_id).await?;
        }
        session.followed.retain(|id| *id != run.run_id);
        runs.push(run);
    }
    Ok(runs)
}

/// The error of a wait that took too long: where each run stands that is still waited for, and what moves it.
async fn overdue(session: &mut Session, limit: Duration, until: Until) -> Error {
    let wanted = match until {
        Until::Ended => "ended",
        Until::Suspended => "stopped",
    };
    let standing = followed(session).await;
    let said: Vec<&str> = standing.iter().map(|(said, _)| said.as_str()).collect();
    let error = Error::new(exit::ERROR, format!("not all runs have {wanted} after {} s: {}", limit.as_secs_f64(), said.join("; ")));
    standing.iter().flat_map(|(_, steps)| steps).fold(error, |error, step| error.hint(step))
}

/// Says where the runs stand that the user stops to follow. Nothing of it changes them.
pub(super) async fn leave(session: &mut Session) {
    for (said, steps) in followed(session).await {
        session.output.talk(&said);
        for step in steps {
            session.next(&step);
        }
    }
}

/// Returns where the followed runs stand, and what can be typed next. A daemon that does not answer is not waited for.
async fn followed(session: &mut Session) -> Vec<(String, Vec<String>)> {
    let until = tokio::time::Instant::now() + FAREWELL;
    let mut standing = Vec::new();
    for id in std::mem::take(&mut session.followed) {
        let asked = tokio::time::timeout_at(until, run_of(session, &id)).await;
        let run = asked.ok().and_then(Result::ok).unwrap_or_else(|| Run { run_id: id, ..Run::default() });
        standing.push(stands(session, &run));
    }
    standing
}

fn stands(session: &Session, run: &Run) -> (String, Vec<String>) {
    let id = &run.run_id;
    let state = text::enum_name(run.state().as_str_name(), "RUN_STATE_");
    let why = text::why(run.outcome(), run.failure.as_ref().map_or("", |failure| &failure.message));
    let watch = || vec![format!("wrenctl watch {id}")];
    match run.state() {
        RunState::Suspended | RunState::Ended => (format!("run {id} is {state}: {why}"), steps(session, run)),
        RunState::Cancelling => (format!("run {id} is being cancelled; that goes on without wrenctl"), watch()),
        RunState::Unspecified | RunState::Pending | RunState::Running => (format!("run {id} goes on without wrenctl"), watch()),
    }
}
