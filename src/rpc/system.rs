//! WorkflowService and SystemService.

use tonic::{Request, Response, Status};

use super::{Api, error, request};
use crate::kernel::Limits;
use crate::runtime::Submission;
use crate::wire::{self, v1};

#[tonic::async_trait]
impl v1::workflow_service_server::WorkflowService for Api {
    async fn validate_workflow(
        &self,
        request: Request<v1::ValidateWorkflowRequest>,
    ) -> Result<Response<v1::ValidateWorkflowResponse>, Status> {
        let submitter = request::principal(&request)?.name;
        let request = request.into_inner();
        let (entry_path, files) = request::bundle(request.bundle)?;
        let submission = Submission {
            entry_path,
            files,
            inputs_json: request.inputs_json,
            model_overrides: request.model_overrides.into_iter().collect(),
            submitter,
            ..Submission::default()
        };
        let checked = request::within(async { Ok(self.runtime.check(submission).await) }).await?;
        let workflow = checked.workflow.map(|workflow| v1::Workflow {
            name: workflow.name,
            digest: workflow.digest,
            description: workflow.description,
            input_schema_json: workflow.input_schema.to_string(),
            agent: workflow.agent,
            limits: Some(wire::limits(&workflow.limits)),
        });
        Ok(Response::new(v1::ValidateWorkflowResponse {
            diagnostics: checked.diagnostics.iter().map(error::diagnostic).collect(),
            workflow,
        }))
    }
}

#[tonic::async_trait]
impl v1::system_service_server::SystemService for Api {
    async fn get_server_info(&self, _request: Request<v1::GetServerInfoRequest>) -> Result<Response<v1::GetServerInfoResponse>, Status> {
        let about = &self.about;
        let capabilities = ["subagents", "resume", "cancel_receipts", "deltas", "trace", "mock"];
        Ok(Response::new(v1::GetServerInfoResponse {
            server_version: env!("CARGO_PKG_VERSION").to_owned(),
            api_version: "v1".to_owned(),
            workflow_versions: vec!["v1".to_owned()],
            capabilities: capabilities.map(ToOwned::to_owned).to_vec(),
            providers: about.providers.clone(),
            store: self.runtime.store_name(),
            ceilings: Some(wire::limits(&about.ceilings)),
            workflow_schema_json: about.workflow_schema_json.clone(),
            start_time: Some(wire::timestamp(about.start_us)),
            price_book_version: about.price_book_version.clone(),
            default_limits: Some(wire::limits(&Limits::DEFAULT)),
            running_run_count: i64::try_from(self.runtime.running()).unwrap_or(i64::MAX),
            dropped_span_count: i64::try_from((about.dropped_spans)()).unwrap_or(i64::MAX),
        }))
    }

    async fn list_models(&self, request: Request<v1::ListModelsRequest>) -> Result<Response<v1::ListModelsResponse>, Status> {
        let provider = request.into_inner().provider;
        if !provider.is_empty() && !self.about.providers.contains(&provider) {
            let words = format!("there is no provider {provider:?}; this daemon has {}", self.about.providers.join(", "));
            return Err(Status::not_found(words));
        }
        let book = self.runtime.book();
        let models = book.models().filter(|(of, _, _)| provider.is_empty() || *of == provider);
        Ok(Response::new(v1::ListModelsResponse {
            models: models
                .map(|(provider, model, known)| wire::known_model(provider, model, known, self.runtime.is_ready(provider)))
                .collect(),
            price_book_version: self.about.price_book_version.clone(),
            price_book_sources: book.sources().to_vec(),
        }))
    }
}
