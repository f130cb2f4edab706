//! RunService.

use std::pin::Pin;

use futures_util::{Stream, StreamExt, stream};
use prost::Message as _;
use tonic::{Code, Request, Response, Status};

use super::error::{self, Problem};
use super::{Api, filter, page, request};
use crate::runtime::{Change, CheckedWorkflow, Live, Query, Receipt, Row, RunReceipt, TraceFormat, Watch};
use crate::wire::{self, EventContext, v1};

/// Below what clients take by default (4 MiB), with room for the frame.
const ANSWER_BYTES_MAX: usize = 3 * 1024 * 1024;
const TRANSCRIPT_BYTES_MAX: usize = 1024 * 1024;

type Events = Pin<Box<dyn Stream<Item = Result<v1::WatchRunResponse, Status>> + Send>>;

fn run(row: &Row) -> v1::Run {
    wire::run(&row.summary, &row.account, row.cancel.as_ref().map(|mark| mark.reason.as_str()))
}

/// A run that was only checked: what it would be, without an id because it is none.
fn would_be(checked: &CheckedWorkflow) -> v1::Run {
    v1::Run {
        workflow_name: checked.name.clone(),
        workflow_digest: checked.digest.clone(),
        agent: checked.agent.clone(),
        limits: Some(wire::limits(&checked.limits)),
        ..v1::Run::default()
    }
}

#[tonic::async_trait]
impl v1::run_service_server::RunService for Api {
    type WatchRunStream = Events;

    async fn submit_run(&self, request: Request<v1::SubmitRunRequest>) -> Result<Response<v1::SubmitRunResponse>, Status> {
        let validate_only = request.get_ref().validate_only;
        let submission = request::submission(self, request)?;
        let submit = async { self.runtime.submit(submission, validate_only).await.map_err(error::status) };
        let done = request::within(submit).await?;
        Ok(Response::new(v1::SubmitRunResponse {
            run: done.row.as_ref().map(run).or_else(|| done.checked.as_ref().map(would_be)),
            deduplicated: done.deduplicated,
            warnings: done.warnings.iter().map(error::diagnostic).collect(),
        }))
    }

    async fn get_run(&self, request: Request<v1::GetRunRequest>) -> Result<Response<v1::GetRunResponse>, Status> {
        request::within(async {
            let id = request::run_id(self, &request.get_ref().run_id).await?;
            let row = self.runtime.get(&id).await.map_err(error::status)?;
            let mut shown = run(&row);
            // A run that was set aside has no fold, and is shown all the same.
            if let Ok(folded) = self.runtime.load(&id).await {
                shown.context_tokens = folded.counted_tokens();
                shown.window_tokens = folded.model.window_tokens.unwrap_or(0);
            }
            Ok(Response::new(v1::GetRunResponse { run: Some(shown) }))
        })
        .await
    }

    async fn list_runs(&self, request: Request<v1::ListRunsRequest>) -> Result<Response<v1::ListRunsResponse>, Status> {
        let request = request.into_inner();
        let sealed = format!("runs\n{}\n{}", request.include_descendants, request.filter);
        let (limit, cursor) = request::page(request.page_size, 50, &request.page_token, &sealed)?;
        let mut query = Query { include_descendants: request.include_descendants, cursor, limit, ..Query::default() };
        filter::parse(&request.filter, &mut query).map_err(|why| error::field("FILTER_INVALID", "filter", why))?;
        request::within(list(self, query, &sealed)).await.map(Response::new)
    }

    async fn watch_run(&self, request: Request<v1::WatchRunRequest>) -> Result<Response<Events>, Status> {
        let request = request.into_inner();
        let after = request::not_negative("after_tree_seq", request.after_tree_seq)?;
        request::within(async { watch(self, request, after).await.map(Response::new) }).await
    }

    async fn get_run_tree(&self, request: Request<v1::GetRunTreeRequest>) -> Result<Response<v1::GetRunTreeResponse>, Status> {
        let request = request.into_inner();
        request::not_negative("max_depth", i64::from(request.max_depth))?;
        request::within(async {
            let id = request::run_id(self, &request.run_id).await?;
            let rows = self.runtime.subtree(&id).await.map_err(error::status)?;
            let as_of = rows.iter().map(|row| row.tree_seq).max().unwrap_or_default();
            let depth_max = (request.max_depth > 0).then_some(request.max_depth);
            let root = wire::tree(rows.iter().map(run).collect(), depth_max, ANSWER_BYTES_MAX);
            Ok(Response::new(v1::GetRunTreeResponse { root, as_of_tree_seq: i64::try_from(as_of).unwrap_or(i64::MAX) }))
        })
        .await
    }

    async fn get_transcript(&self, request: Request<v1::GetTranscriptRequest>) -> Result<Response<v1::GetTranscriptResponse>, Status> {
        let request = request.into_inner();
        request::within(transcript(self, request)).await.map(Response::new)
    }

    async fn cancel_run(&self, request: Request<v1::CancelRunRequest>) -> Result<Response<v1::CancelRunResponse>, Status> {
        let actor = request::principal(&request)?.name;
        let request = request.into_inner();
        request::reason(&request.reason)?;
        let id = request::run_id(self, &request.run_id).await?;
        // With wait this takes as long as the tools take to stop; the client's own deadline bounds it.
        let receipt = self.runtime.cancel(&id, &actor, &request.reason, request.wait).await.map_err(error::status)?;
        Ok(Response::new(cancelled(&receipt)))
    }

    async fn resume_run(&self, request: Request<v1::ResumeRunRequest>) -> Result<Response<v1::ResumeRunResponse>, Status> {
        let actor = request::principal(&request)?.name;
        let request = request.into_inner();
        request::reason(&request.reason)?;
        let limits = request::limits(request.limits.as_ref())?;
        request::within(async {
            let id = request::run_id(self, &request.run_id).await?;
            let change = Change { limits, models: request.models.into_iter().collect() };
            let row = self.runtime.resume(&id, change, &actor, &request.reason).await.map_err(error::status)?;
            Ok(Response::new(v1::ResumeRunResponse { run: Some(run(&row)) }))
        })
        .await
    }

    async fn get_trace(&self, request: Request<v1::GetTraceRequest>) -> Result<Response<v1::GetTraceResponse>, Status> {
        let request = request.into_inner();
        let format = match v1::TraceFormat::try_from(request.format) {
            Ok(v1::TraceFormat::Unspecified | v1::TraceFormat::Text) => TraceFormat::Text,
            Ok(v1::TraceFormat::OtlpJson) => TraceFormat::OtlpJson,
            Ok(v1::TraceFormat::JaegerJson) => TraceFormat::JaegerJson,
            Err(_) => return Err(error::field("FIELD_INVALID", "format", "is not known; use text, OTLP JSON or Jaeger JSON")),
        };
        request::within(async {
            let id = request::run_id(self, &request.run_id).await?;
            let trace = self.runtime.render_trace(&id, format).await.map_err(error::status)?;
            let span_count = i64::try_from(trace.span_count).unwrap_or(i64::MAX);
            Ok(Response::new(v1::GetTraceResponse { content: trace.content, trace_id: trace.trace_id, span_count }))
        })
        .await
    }
}

async fn list(api: &Api, mut query: Query, sealed: &str) -> Result<v1::ListRunsResponse, Status> {
    loop {
        let found = api.runtime.list(query.clone()).await.map_err(error::status)?;
        let runs: Vec<v1::Run> = found.rows.iter().map(run).collect();
        let mut bytes = 0;
        let fit = runs.iter().take_while(|run| {
            bytes += run.encoded_len() + 8;
            bytes <= ANSWER_BYTES_MAX
        });
        let fit = fit.count();
        // A cursor stands at a page's end only, so a page that is too heavy is asked for again with fewer rows.
        if fit < runs.len() && query.limit > 1 {
            query.limit = fit.max(1);
            continue;
        }
        let next_page_token = found.next.map_or_else(String::new, |cursor| page::token(cursor, sealed));
        return Ok(v1::ListRunsResponse { runs, next_page_token });
    }
}

async fn watch(api: &Api, request: v1::WatchRunRequest, after: u64) -> Result<Events, Status> {
    let run = request::run_id(api, &request.run_id).await?;
    let row = api.runtime.get(&run).await.map_err(error::status)?;
    if after > row.tree_seq {
        let message = format!("after_tree_seq is {after}, and the tree's last is {}; is this another daemon's run?", row.tree_seq);
        return Err(Problem::new(Code::OutOfRange, "SEQ_AHEAD", message).with("last_tree_seq", row.tree_seq).status());
    }
    // From the beginning, whatever the cursor: the facts before it are not shown but remembered, see EventContext.
    let watch = Watch {
        run,
        after_tree_seq: 0,
        include_descendants: request.include_descendants,
        include_deltas: request.include_deltas,
        stop_when_suspended: request.stop_when_suspended,
    };
    let live = api.runtime.watch(watch).await.map_err(error::status)?;
    let mut context = EventContext::default();
    let events = live.filter_map(move |item| {
        let event = item.map_err(error::status).map(|live| shown(&mut context, live, after)).transpose();
        std::future::ready(event.map(|event| event.map(|event| v1::WatchRunResponse { event: Some(event) })))
    });
    let closing = api.closing.clone();
    let ended = api.closing.clone();
    let farewell = stream::once(async move { ended.is_cancelled().then(|| Err(error::draining())) }).filter_map(std::future::ready);
    Ok(events.take_until(closing.cancelled_owned()).chain(farewell).boxed())
}

fn shown(context: &mut EventContext, live: Live, after: u64) -> Option<v1::Event> {
    match live {
        Live::Recorded(recorded) if recorded.tree_seq <= after => {
            context.prime(&recorded);
            None
        }
        Live::Recorded(recorded) => Some(context.event(&recorded)),
        Live::Text(piece) => Some(context.text(&piece.run, piece.turn, piece.attempt, piece.text.clone())),
        Live::Progress(of_call) => {
            let progress = &of_call.progress;
            let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
            let of = if progress.total > 0 { format!(" of {}", progress.total) } else { String::new() };
            let text = format!("{} {}{of} {}", progress.label, progress.done, progress.unit).trim().to_owned();
            let (done, total) = (number(progress.done), number(progress.total));
            let (call_id, tool) = (of_call.call_id.to_string(), of_call.tool.clone());
            Some(context.progress(&of_call.run, v1::ToolProgress { call_id, tool, text, done, total }))
        }
    }
}

async fn transcript(api: &Api, request: v1::GetTranscriptRequest) -> Result<v1::GetTranscriptResponse, Status> {
    let id = request::run_id(api, &request.run_id).await?;
    let sealed = format!("transcript\n{id}");
    let (limit, cursor) = request::page(request.page_size, 100, &request.page_token, &sealed)?;
    let loaded = api.runtime.load(&id).await.map_err(error::status)?;
    let from = usize::try_from(cursor.unwrap_or_default()).unwrap_or(usize::MAX);
    let all = wire::system(&loaded.created.agent.instructions).into_iter();
    let all = all.chain(loaded.transcript.iter().map(|message| wire::message(message)));
    let (mut messages, mut bytes, mut more) = (Vec::new(), 0, false);
    for message in all.skip(from) {
        bytes += message.encoded_len();
        // One message is always given, however long it is: else the pages would not get on.
        if messages.len() == limit || (bytes > TRANSCRIPT_BYTES_MAX && !messages.is_empty()) {
            more = true;
            break;
        }
        messages.push(message);
    }
    let next = u64::try_from(from.saturating_add(messages.len())).unwrap_or(u64::MAX);
    Ok(v1::GetTranscriptResponse { messages, next_page_token: if more { page::token(next, &sealed) } else { String::new() } })
}

fn cancelled(receipt: &Receipt) -> v1::CancelRunResponse {
    let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    let one = |run: &RunReceipt| v1::CancelReceipt {
        run_id: run.run.to_string(),
        agent: run.agent.clone(),
        state_at_cancel: wire::state(run.state_at_cancel).into(),
        outcome: run.outcome.map_or(v1::Outcome::Unspecified, wire::outcome).into(),
        calls_cancelled: number(run.calls_cancelled),
        calls_finished: number(run.calls_finished),
        calls_in_doubt: number(run.calls_in_doubt),
        quiescent_ms: run.quiescent_ms,
    };
    v1::CancelRunResponse {
        run: Some(run(&receipt.row)),
        receipts: receipt.runs.iter().map(one).collect(),
        quiescent_ms: receipt.quiescent_ms,
    }
}
