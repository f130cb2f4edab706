//! `workflow validate`, and what it and a dry run say of a valid workflow.

use std::path::Path;

use super::Session;
use crate::cli::arguments::{Format, ValidateArgs};
use crate::cli::error::Error;
use crate::cli::view::{table, text};
use crate::cli::{bundle, diagnostic, exit};
use crate::wire::v1::{GetServerInfoRequest, Limits, Severity, ValidateWorkflowRequest, ValidateWorkflowResponse};

pub(super) async fn validate(session: &mut Session, args: &ValidateArgs) -> Result<u8, Error> {
    bundle::one_reader(&args.file, &args.inputs)?;
    bundle::once("--set-model", &args.set_model)?;
    let request = ValidateWorkflowRequest {
        bundle: Some(bundle::workflow(&args.file, &mut *session.stdin)?),
        inputs_json: bundle::inputs(&args.inputs, &mut *session.stdin)?.unwrap_or_default(),
        model_overrides: args.set_model.iter().cloned().collect(),
    };
    let client = &mut session.client;
    let answer = client.workflows.validate_workflow(request).await;
    let answer: ValidateWorkflowResponse = answer.map_err(|status| client.error(&status))?.into_inner();
    let is_valid = answer.diagnostics.iter().all(|one| one.severity() == Severity::Warning);
    let code = if is_valid { exit::OK } else { exit::INVALID };
    if session.output.format != Format::Table {
        let names: Vec<String> = answer.workflow.iter().map(|workflow| workflow.name.clone()).collect();
        session.output.document(&answer, |_| String::new(), &names)?;
        return Ok(code);
    }
    if !answer.diagnostics.is_empty() {
        let told = diagnostic::list(&answer.diagnostics, session.output.talk_paint);
        session.output.insist(&told);
    }
    let Some(workflow) = answer.workflow.filter(|_| is_valid) else { return Ok(code) };
    valid(session, &workflow.name, &workflow.limits.unwrap_or_default(), &args.file).await
}

/// Says that a workflow is valid, with its limits beside the defaults.
pub(super) async fn valid(session: &mut Session, name: &str, limits: &Limits, file: &Path) -> Result<u8, Error> {
    let client = &mut session.client;
    let info = client.system.get_server_info(GetServerInfoRequest {}).await;
    let defaults = info.map_err(|status| client.error(&status))?.into_inner().default_limits;
    let limits = table::limits(limits, defaults.as_ref(), session.output.paint);
    session.output.data(&format!("{} is valid\n\n{limits}", text::one_line(name)))?;
    session.next(&format!("wrenctl run -f {}", file.display()));
    Ok(exit::OK)
}
