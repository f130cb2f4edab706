//! Commands that only look: ps, get, tree, transcript, result, trace, models, info.

use super::Session;
use crate::cli::arguments::{Format, LIMIT_MAX, ModelsArgs, PsArgs, TraceArgs, TraceKind, TreeArgs};
use crate::cli::bundle;
use crate::cli::error::Error;
use crate::cli::exit;
use crate::cli::follow;
use crate::cli::output;
use crate::cli::view::frame::{self, Look};
use crate::cli::view::{Paint, table, text, transcript as conversation, tree as model};
use crate::wire::v1::{
    GetRunRequest, GetRunTreeRequest, GetServerInfoRequest, GetTraceRequest, GetTranscriptRequest, GetTranscriptResponse,
    ListModelsRequest, ListRunsRequest, ListRunsResponse, Outcome, Run, RunNode, TraceFormat,
};

/// The states of runs that have not ended; the daemon filters by one at a time.
const OPEN_STATES: [&str; 4] = ["PENDING", "RUNNING", "SUSPENDED", "CANCELLING"];
const PAGE: u32 = 1000;

/// Asks for one run.
pub(super) async fn run_of(session: &mut Session, name: &str) -> Result<Run, Error> {
    let client = &mut session.client;
    let answer = client.runs.get_run(GetRunRequest { run_id: name.to_owned() }).await;
    let answer = answer.map_err(|status| client.error(&status))?;
    let run = answer.into_inner().run.ok_or_else(|| Error::internal(&"the daemon answered without a run"))?;
    Ok(as_it_holds(session, run))
}

/// Puts why a run stopped as it holds for this daemon, where people read it; data stays as the API gives it.
fn as_it_holds(session: &Session, mut run: Run) -> Run {
    if session.output.format == Format::Table
        && let Some(failure) = &mut run.failure
    {
        failure.message = session.for_this_daemon(&failure.message);
    }
    run
}

/// Asks for a run with all below it.
pub(super) async fn tree_of(session: &mut Session, name: &str, max_depth: i32) -> Result<RunNode, Error> {
    let client = &mut session.client;
    let answer = client.runs.get_run_tree(GetRunTreeRequest { run_id: name.to_owned(), max_depth }).await;
    let answer = answer.map_err(|status| client.error(&status))?;
    let mut root = answer.into_inner().root.ok_or_else(|| Error::internal(&"the daemon answered without a tree"))?;
    let mut open = vec![&mut root];
    while let Some(node) = open.pop() {
        node.run = node.run.take().map(|run| as_it_holds(session, run));
        open.extend(&mut node.children);
    }
    Ok(root)
}

pub(super) async fn ps(session: &mut Session, args: &PsArgs) -> Result<u8, Error> {
    bundle::once("--label", &args.label)?;
    let labels = args.label.iter().map(|(key, value)| format!("labels.{key} = {}", quoted(value)));
    let terms: Vec<String> = args.filter.iter().cloned().chain(labels).collect();
    let says_state = args.filter.as_ref().is_some_and(|filter| filter.contains("state") || filter.contains("outcome"));
    let filters: Vec<String> = if args.all || says_state {
        vec![terms.join(" AND ")]
    } else {
        // The user's own terms come first, so that the columns of an error are those of what was typed.
        OPEN_STATES.iter().map(|state| [terms.clone(), vec![format!("state = {state}")]].concat().join(" AND ")).collect()
    };
    let (mut runs, mut more) = (Vec::new(), false);
    for filter in filters {
        let (found, is_cut) = list(session, filter, args).await?;
        runs.extend(found);
        more |= is_cut;
    }
    // Ids sort by creation; a run that changed its state between two answers is in both.
    runs.sort_by(|one, other| other.run_id.cmp(&one.run_id));
    runs.dedup_by(|one, other| one.run_id == other.run_id);
    let most = usize::try_from(args.limit).unwrap_or(usize::MAX);
    if more || runs.len() > most {
        runs.truncate(most);
        let doubled = args.limit.saturating_mul(2).min(LIMIT_MAX);
        session.output.talk(&format!("these are the newest {}; more: --limit {doubled}", args.limit));
    }
    let now_us = session.now_us();
    let names: Vec<String> = runs.iter().map(|run| run.run_id.clone()).collect();
    if session.output.format == Format::Jsonl {
        for run in &runs {
            session.output.data(&output::json_line(run)?)?;
        }
        return Ok(exit::OK);
    }
    let is_empty = runs.is_empty();
    let answer = ListRunsResponse { runs, next_page_token: String::new() };
    let list = serde_json::json!({"runs": serde_json::to_value(&answer.runs).map_err(|error| Error::internal(&error))?});
    session.output.document(&list, |paint| table::runs(&answer.runs, now_us, paint), &names)?;
    if is_empty && !args.all && session.output.format == Format::Table {
        session.output.talk("no run is under way");
        session.next("wrenctl ps --all");
    }
    Ok(exit::OK)
}

/// Returns the newest runs, up to the limit or a little more, and whether there are others.
async fn list(session: &mut Session, filter: String, args: &PsArgs) -> Result<(Vec<Run>, bool), Error> {
    let most = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let mut request = ListRunsRequest {
        page_size: i32::try_from(args.limit.min(PAGE)).unwrap_or(0),
        page_token: String::new(),
        filter,
        include_descendants: args.descendants,
    };
    let mut runs = Vec::new();
    loop {
        let client = &mut session.client;
        let answer = client.runs.list_runs(request.clone()).await;
        let page = answer.map_err(|status| client.error(&status))?.into_inner();
        runs.extend(page.runs);
        if runs.len() >= most || page.next_page_token.is_empty() {
            return Ok((runs, !page.next_page_token.is_empty()));
        }
        request.page_token = page.next_page_token;
    }
}

fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

pub(super) async fn get(session: &mut Session, name: &str) -> Result<u8, Error> {
    let run = run_of(session, name).await?;
    session.output.document(&run, |paint| table::run(&run, paint), std::slice::from_ref(&run.run_id))?;
    if session.output.format == Format::Table {
        for step in steps(session, &run) {
            session.next(&step);
        }
    }
    Ok(exit::OK)
}

pub(super) async fn tree(session: &mut Session, args: &TreeArgs) -> Result<u8, Error> {
    let root = tree_of(session, &args.name.run, args.depth).await?;
    let now_us = session.now_us();
    let width = session.size().filter(|_| session.output.stdout_is_terminal).map(|size| size.width);
    let human = |paint: Paint| {
        let look = Look { width, height: None, is_full: true, paint };
        frame::frame(&model::Tree::of(&root), now_us, &look).join("\n")
    };
    session.output.document(&root, human, &ids(&root))?;
    Ok(exit::OK)
}

fn ids(root: &RunNode) -> Vec<String> {
    let mut ids = Vec::new();
    let mut open = vec![root];
    while let Some(node) = open.pop() {
        ids.extend(node.run.as_ref().map(|run| run.run_id.clone()));
        open.extend(node.children.iter().rev());
    }
    ids
}

pub(super) async fn transcript(session: &mut Session, name: &str) -> Result<u8, Error> {
    if session.output.format == Format::Name {
        let run = run_of(session, name).await?;
        session.output.data(&run.run_id)?;
        return Ok(exit::OK);
    }
    let mut request = GetTranscriptRequest { run_id: name.to_owned(), page_size: 0, page_token: String::new() };
    let mut messages = Vec::new();
    loop {
        let client = &mut session.client;
        let answer = client.runs.get_transcript(request.clone()).await;
        let page = answer.map_err(|status| client.error(&status))?.into_inner();
        match session.output.format {
            Format::Table => {
                for message in &page.messages {
                    let text = conversation::message(message, session.output.paint);
                    session.output.data(&text)?;
                }
            }
            Format::Jsonl => {
                for message in &page.messages {
                    session.output.data(&output::json_line(message)?)?;
                }
            }
            Format::Json | Format::Yaml | Format::Name => messages.extend(page.messages),
        }
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    match session.output.format {
        Format::Table | Format::Jsonl => {}
        Format::Json | Format::Yaml | Format::Name => {
            let answer = GetTranscriptResponse { messages, next_page_token: String::new() };
            let list = serde_json::json!({"messages": serde_json::to_value(&answer.messages).map_err(|error| Error::internal(&error))?});
            session.output.document(&list, |_| String::new(), &[name.to_owned()])?;
        }
    }
    Ok(exit::OK)
}

/// Prints what a run answered. A reader of stdout that has gone does not change how the run stopped.
pub(super) fn print_answer(session: &mut Session, run: &Run) -> Result<(), Error> {
    let for_terminal = session.output.stdout_is_terminal;
    let human = |_: Paint| {
        let answer = answer_text(run);
        if for_terminal { text::clean(&answer) } else { answer }
    };
    match session.output.document(run, human, std::slice::from_ref(&run.run_id)) {
        Err(Error::BrokenPipe) => Ok(()),
        other => other,
    }
}

fn answer_text(run: &Run) -> String {
    if run.output_json.is_empty() {
        return run.output_text.clone();
    }
    let value: Result<serde_json::Value, _> = serde_json::from_str(&run.output_json);
    value.and_then(|value| serde_json::to_string_pretty(&value)).unwrap_or_else(|_| run.output_json.clone())
}

pub(super) async fn result(session: &mut Session, name: &str) -> Result<u8, Error> {
    let run = run_of(session, name).await?;
    if !follow::has_stopped(&run, true) {
        let id = &run.run_id;
        return Err(Error::new(exit::ERROR, format!("run {id} has no result yet")).hint(format!("wait for it: `wrenctl wait {id}`")));
    }
    print_answer(session, &run)?;
    say_stop(session, &run);
    Ok(exit::of(run.outcome()))
}

/// Says how a run stopped, unless it completed, and what can be done about it.
pub(super) fn say_stop(session: &mut Session, run: &Run) {
    let paint = session.output.talk_paint;
    if exit::of(run.outcome()) == exit::OK {
        if run.truncated {
            session.output.talk(&format!("{} the last reply was cut off by its output limit", paint.yellow("note:")));
        }
        return;
    }
    let why = run.failure.as_ref().map_or("", |failure| &failure.message);
    let why = text::why(run.outcome(), &session.for_this_daemon(why));
    let verb = text::enum_name(run.state().as_str_name(), "RUN_STATE_");
    session.output.insist(&format!("{} run {} {verb}: {why}", paint.yellow("stopped:"), run.run_id));
    for step in steps(session, run) {
        session.next(&step);
    }
}

/// Returns what can be typed about a run that has stopped. A child goes on with its root.
pub(super) fn steps(session: &Session, run: &Run) -> Vec<String> {
    match run.outcome() {
        _ if !run.parent_run_id.is_empty() => Vec::new(),
        // A daemon of one command takes nothing up by itself.
        Outcome::Drained if session.is_own_daemon => vec![format!("wrenctl resume {}", run.run_id)],
        _ => table::next_steps(run),
    }
}

pub(super) async fn trace(session: &mut Session, args: &TraceArgs) -> Result<u8, Error> {
    match (session.output.format, args.kind) {
        (Format::Table | Format::Name, _) | (Format::Json, TraceKind::OtlpJson | TraceKind::JaegerJson) => {}
        (Format::Json, TraceKind::Text) | (Format::Jsonl | Format::Yaml, _) => {
            return Err(Error::usage("trace has no such form; use --format otlp-json or --format jaeger-json"));
        }
    }
    let format = match args.kind {
        TraceKind::Text => TraceFormat::Text,
        TraceKind::OtlpJson => TraceFormat::OtlpJson,
        TraceKind::JaegerJson => TraceFormat::JaegerJson,
    };
    let client = &mut session.client;
    let answer = client.runs.get_trace(GetTraceRequest { run_id: args.name.run.clone(), format: format.into() }).await;
    let answer = answer.map_err(|status| client.error(&status))?.into_inner();
    match (&args.output, session.output.format) {
        (Some(path), _) => {
            std::fs::write(path, &answer.content)
                .map_err(|error| Error::new(exit::ERROR, format!("cannot write {}: {error}", path.display())))?;
            let spans = text::plural(usize::try_from(answer.span_count).unwrap_or(0), "span");
            session.output.talk(&format!("{spans} of trace {} written to {}", answer.trace_id, path.display()));
        }
        (None, Format::Name) => session.output.data(&answer.trace_id)?,
        (None, Format::Table | Format::Json | Format::Jsonl | Format::Yaml) => session.output.data(&answer.content)?,
    }
    Ok(exit::OK)
}

pub(super) async fn models(session: &mut Session, args: &ModelsArgs) -> Result<u8, Error> {
    let client = &mut session.client;
    let answer = client.system.list_models(ListModelsRequest { provider: args.provider.clone() }).await;
    let answer = answer.map_err(|status| client.error(&status))?.into_inner();
    let names: Vec<String> = answer.models.iter().map(|model| format!("{}/{}", model.provider, model.model)).collect();
    session.output.document(&answer, |paint| table::models(&answer.models, paint), &names)?;
    let others = "others can be used with a `price:` in the workflow or under `prices` in the daemon's config";
    session.output.talk(&format!("USD for a million tokens, price book {}; {others}", answer.price_book_version));
    Ok(exit::OK)
}

pub(super) async fn info(session: &mut Session) -> Result<u8, Error> {
    let client = &mut session.client;
    let answer = client.system.get_server_info(GetServerInfoRequest {}).await;
    let info = answer.map_err(|status| client.error(&status))?.into_inner();
    let address = session.client.address.to_string();
    session.output.document(&info, |paint| table::info(&info, &address, paint), std::slice::from_ref(&info.server_version))?;
    Ok(exit::OK)
}
