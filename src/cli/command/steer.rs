//! Commands that change what runs do: cancel, resume.

use super::Session;
use super::submit::see_through;
use crate::cli::Interrupts;
use crate::cli::arguments::{CancelArgs, Format, Progress, ResumeArgs};
use crate::cli::error::Error;
use crate::cli::view::{Paint, line, table, text};
use crate::cli::{bundle, exit, output};
use crate::wire::v1::{CancelRunRequest, CancelRunResponse, ResumeRunRequest, RunState};

pub(super) async fn cancel(session: &mut Session, args: &CancelArgs) -> Result<u8, Error> {
    let mut answers: Vec<CancelRunResponse> = Vec::new();
    // Whoever leaves before the answer is told where each of them stands.
    session.followed.clone_from(&args.runs);
    for name in &args.runs {
        let client = &mut session.client;
        let request = CancelRunRequest { run_id: name.clone(), reason: args.reason.clone(), wait: !args.no_wait };
        let answer = client.runs.cancel_run(request).await;
        answers.push(answer.map_err(|status| client.error(&status))?.into_inner());
    }
    let names: Vec<String> = answers.iter().filter_map(|answer| answer.run.as_ref()).map(|run| run.run_id.clone()).collect();
    match (session.output.format, answers.as_slice()) {
        (Format::Jsonl, answers) => {
            for answer in answers {
                session.output.data(&output::json_line(answer)?)?;
            }
        }
        (_, [answer]) => session.output.document(answer, |paint| receipt(std::slice::from_ref(answer), paint), &names)?,
        (_, answers) => session.output.document(&answers, |paint| receipt(answers, paint), &names)?,
    }
    Ok(exit::OK)
}

fn receipt(answers: &[CancelRunResponse], paint: Paint) -> String {
    let cut = answers.iter().filter(|answer| !had_ended(answer));
    let receipts: Vec<_> = cut.flat_map(|answer| answer.receipts.iter().cloned()).collect();
    let mut out = if receipts.is_empty() { String::new() } else { table::receipts(&receipts, paint) };
    for answer in answers {
        let run = answer.run.clone().unwrap_or_default();
        let id = &run.run_id;
        out.push_str(&match (had_ended(answer), answer.receipts.is_empty()) {
            (true, _) => format!("{id} already ended: {}\n", text::enum_name(run.outcome().as_str_name(), "OUTCOME_")),
            (false, true) => format!("{id} is {}\n", text::enum_name(run.state().as_str_name(), "RUN_STATE_")),
            (false, false) => format!("{id} was quiet after {} ms\n", text::count(answer.quiescent_ms)),
        });
    }
    out
}

/// Returns whether there was nothing left to cancel.
fn had_ended(answer: &CancelRunResponse) -> bool {
    let is_over = answer.run.as_ref().is_some_and(|run| run.state() == RunState::Ended);
    is_over && answer.receipts.iter().all(|receipt| receipt.state_at_cancel() == RunState::Ended)
}

pub(super) async fn resume(session: &mut Session, args: &ResumeArgs, interrupts: &mut Interrupts) -> Result<u8, Error> {
    bundle::once("--set-model", &args.set_model)?;
    let request = ResumeRunRequest {
        run_id: args.name.run.clone(),
        limits: args.limits.to_wire(),
        reason: args.reason.clone(),
        models: args.set_model.iter().cloned().collect(),
    };
    let client = &mut session.client;
    let answer = tokio::select! {
        answer = client.runs.resume_run(request) => answer,
        () = super::interrupted(interrupts) => return Err(Error::Interrupted),
    };
    let answer = answer.map_err(|status| session.client.error(&status))?.into_inner();
    let run = answer.run.unwrap_or_default();
    let limits = run.limits.as_ref().map(line::limits).unwrap_or_default();
    session.output.talk(&format!("resumed within {limits}"));
    if session.is_own_daemon {
        // The daemon ends with this process, and the run would be suspended again at once.
        return see_through(session, &run.run_id, Progress::Auto, interrupts).await;
    }
    let human = format!("{}\n", run.run_id);
    session.output.document(&run, |_| human, std::slice::from_ref(&run.run_id))?;
    session.next(&format!("wrenctl watch {}", run.run_id));
    Ok(exit::OK)
}
