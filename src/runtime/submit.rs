//! From a client's bundle to a durable root run: check, resolve, store, and only then reply.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::calls::hex;
use super::supervisor::Runtime;
use super::{Checked, CheckedWorkflow, Error, Submission, Submitted};
use crate::kernel::agent::LimitsPatch;
use crate::kernel::event::RunCreated;
use crate::kernel::ledger::Limits;
use crate::kernel::{AgentSpec, RunId};
use crate::store::{NewTree, RequestId};
use crate::tool::{Registry, files_operations};
use crate::workflow::{self, Diagnostic, Launch, Overrides, Plan, Severity, Source, World};

/// What is kept of a submission, so that its tree can be taken up after a restart exactly as it was understood.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Bundle {
    entry: String,
    files: BTreeMap<String, String>,
    #[serde(default)]
    models: BTreeMap<String, String>,
    #[serde(default)]
    mock: bool,
}

impl Bundle {
    fn of(submission: &Submission) -> Self {
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        Self {
            entry: submission.entry_path.clone(),
            files: submission.files.iter().map(|(path, bytes)| (path.clone(), text(bytes))).collect(),
            models: submission.model_overrides.clone(),
            mock: submission.mock,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// Plans that are kept for the next submission of the same bundle.
const PLANS_MAX: usize = 32;

/// The plans of the last submissions, by their bundles' digests: a workflow that is submitted again and again is
/// understood once, and its trees share what was understood. All else that a plan depends on is fixed for a daemon's life.
#[derive(Default)]
pub(super) struct Plans(Mutex<VecDeque<Kept>>);

struct Kept {
    digest: String,
    plan: Arc<Plan>,
    warnings: Vec<Diagnostic>,
}

impl Plans {
    fn get(&self, digest: &str) -> Option<(Arc<Plan>, Vec<Diagnostic>)> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find(|kept| kept.digest == digest).map(|kept| (kept.plan.clone(), kept.warnings.clone()))
    }

    fn keep(&self, digest: &str, plan: &Arc<Plan>, warnings: &[Diagnostic]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|kept| kept.digest != digest);
        kept.truncate(PLANS_MAX - 1);
        kept.push_front(Kept { digest: digest.to_owned(), plan: plan.clone(), warnings: warnings.to_vec() });
    }
}

/// A submission without faults.
struct Understood {
    plan: Arc<Plan>,
    digest: String,
    bundle: Vec<u8>,
    inputs: serde_json::Value,
    launch: Launch,
    warnings: Vec<Diagnostic>,
}

impl Runtime {
    /// Accepts a workflow: durable before this returns. With `validate_only` nothing is stored.
    ///
    /// # Errors
    /// [`Error::Invalid`] with every fault, or what else stands in the way; nothing is created then.
    pub async fn submit(&self, submission: Submission, validate_only: bool) -> Result<Submitted, Error> {
        if self.is_draining() {
            return Err(Error::Draining);
        }
        let received_us = self.clock().now_us();
        let Understood { plan, digest, bundle, inputs, launch, warnings } = self.understand(&submission).await?;
        let limits = self.root_limits(&submission.limits, &launch.limits)?;
        self.check_models(&plan, &launch.agent)?;
        let registry = self.open_registry(&plan, &submission.workspace)?;
        if validate_only {
            return Ok(Submitted { row: None, checked: Some(checked(&plan, digest, limits)), deduplicated: false, warnings });
        }
        self.check_room()?;
        let id = self.new_run_id();
        let created = self.root_created(&submission, &id, limits, &plan, inputs.clone(), launch, &digest);
        let created = RunCreated { received_us, ..created };
        let tree = NewTree {
            id: id.clone(),
            created,
            request: request_id(&submission),
            bundle_digest: digest,
            bundle,
            time_us: self.clock().now_us(),
        };
        let runtime = self.clone();
        self.detached(Box::pin(async move {
            crash_point!("submit/before");
            let created = runtime.store().create(tree).await?;
            crash_point!("submit/after");
            let Some(recorded) = created.recorded else {
                return Ok(Submitted { row: Some(created.row), checked: None, deduplicated: true, warnings });
            };
            // The run is durable: from here on a crash only delays it.
            runtime.open_new_tree(id, plan, inputs, registry, recorded);
            Ok(Submitted { row: Some(created.row), checked: None, deduplicated: false, warnings })
        }))
        .await
    }

    /// Checks a workflow, and the inputs if there are any, and says all that is wrong.
    pub async fn check(&self, submission: Submission) -> Checked {
        let digest = hex(&Sha256::digest(Bundle::of(&submission).bytes()));
        let (plan, mut diagnostics) = self.compile(Bundle::of(&submission), submission.files.clone()).await;
        let Some(plan) = plan else { return Checked { diagnostics, workflow: None } };
        if !submission.inputs_json.is_empty()
            && let Err(faults) = plan.inputs(&submission.inputs_json)
        {
            diagnostics.extend(faults);
        }
        let workflow = checked(&plan, digest, plan.limits().over(Limits::DEFAULT));
        let faulty = diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error);
        Checked { diagnostics, workflow: (!faulty).then_some(workflow) }
    }

    async fn understand(&self, submission: &Submission) -> Result<Understood, Error> {
        let kept = Bundle::of(submission);
        let bundle = kept.bytes();
        let digest = hex(&Sha256::digest(&bundle));
        // What is not UTF-8 is no longer what it was once it is kept as text, so it is looked at itself.
        let is_text = submission.files.values().all(|bytes| std::str::from_utf8(bytes).is_ok());
        let (plan, warnings) = match self.plans().get(&digest).filter(|_| is_text) {
            Some(known) => known,
            None => {
                let (plan, diagnostics) = self.compile(kept, submission.files.clone()).await;
                let plan = Arc::new(plan.ok_or_else(|| Error::Invalid(diagnostics.clone()))?);
                self.plans().keep(&digest, &plan, &diagnostics);
                (plan, diagnostics)
            }
        };
        let inputs_json = if submission.inputs_json.is_empty() { "{}" } else { &submission.inputs_json };
        let inputs = plan.inputs(inputs_json).map_err(Error::Invalid)?;
        let launch = plan.root(&inputs).map_err(|fault| Error::Invalid(vec![fault]))?;
        Ok(Understood { plan, digest, bundle, inputs, launch, warnings })
    }

    /// Compiles a bundle off the reactor: a hostile document may take its time there.
    async fn compile(&self, bundle: Bundle, files: BTreeMap<String, Vec<u8>>) -> (Option<Plan>, Vec<Diagnostic>) {
        let runtime = self.clone();
        let compiled = tokio::task::spawn_blocking(move || runtime.compile_here(bundle, files)).await;
        compiled.unwrap_or_else(|error| (None, vec![internal_fault(&error.to_string())]))
    }

    fn compile_here(&self, bundle: Bundle, files: BTreeMap<String, Vec<u8>>) -> (Option<Plan>, Vec<Diagnostic>) {
        let source = Source { entry: bundle.entry, files };
        let operations = files_operations();
        let providers = self.provider_names();
        let world = World {
            model: &|provider, model| self.model(provider, model),
            providers: &providers,
            files_operations: &operations,
            ceilings: self.config().ceilings,
        };
        workflow::load(&source, &world, &Overrides { models: bundle.models, mock: bundle.mock })
    }

    /// Compiles the stored submission of a tree again.
    pub(super) async fn stored_plan(&self, digest: &str) -> Result<Arc<Plan>, Error> {
        if let Some((plan, _)) = self.plans().get(digest) {
            return Ok(plan);
        }
        let bytes = self.store().bundle(digest).await?;
        let bundle: Bundle =
            serde_json::from_slice(&bytes).map_err(|error| Error::SetAside(format!("the stored workflow cannot be read: {error}")))?;
        let files = bundle.files.iter().map(|(path, text)| (path.clone(), text.clone().into_bytes())).collect();
        let (plan, diagnostics) = self.compile(bundle, files).await;
        let Some(plan) = plan.map(Arc::new) else {
            let first =
                diagnostics.into_iter().find(|diagnostic| diagnostic.severity == Severity::Error).map(|diagnostic| diagnostic.message);
            return Err(Error::SetAside(format!(
                "the stored workflow is not valid for this daemon any more: {}",
                first.unwrap_or_default()
            )));
        };
        self.plans().keep(digest, &plan, &diagnostics);
        Ok(plan)
    }

    pub(super) fn open_registry(&self, plan: &Plan, workspace: &Path) -> Result<Registry, Error> {
        Registry::open(plan.sources(), workspace, &self.config().data_dir).map_err(|error| Error::Workspace(error.to_string()))
    }

    /// The submitter's limits go over the workflow's, those over the defaults; the daemon's ceilings bound them all.
    fn root_limits(&self, submitted: &LimitsPatch, workflow: &LimitsPatch) -> Result<Limits, Error> {
        let limits = submitted.or(workflow).over(Limits::DEFAULT);
        self.check_ceilings(&limits)?;
        Ok(limits)
    }

    pub(super) fn check_ceilings(&self, limits: &Limits) -> Result<(), Error> {
        let ceilings = self.config().ceilings;
        let over = [
            ("max_turns", i64::from(limits.max_turns), i64::from(ceilings.max_turns)),
            ("budget_usd_nanos", limits.budget_usd_nanos, ceilings.budget_usd_nanos),
            ("max_tokens", limits.max_tokens, ceilings.max_tokens),
            ("timeout_ms", limits.timeout_ms, ceilings.timeout_ms),
            ("max_depth", i64::from(limits.max_depth), i64::from(ceilings.max_depth)),
            ("max_runs", i64::from(limits.max_runs), i64::from(ceilings.max_runs)),
        ];
        match over.iter().find(|(_, asked, ceiling)| asked > ceiling) {
            Some((name, asked, ceiling)) => Err(Error::AboveCeiling(format!(
                "{name} {asked} is above this daemon's ceiling of {ceiling}; ask for less, or raise `ceilings` in wrend's config"
            ))),
            None => Ok(()),
        }
    }

    /// Finds out now, rather than in the middle of a run, that a key is missing.
    fn check_models(&self, plan: &Plan, root: &AgentSpec) -> Result<(), Error> {
        let mut names: Vec<String> = plan.providers_used();
        names.push(root.model.provider.clone());
        names.sort();
        names.dedup();
        for name in names {
            let provider =
                self.provider(&name).ok_or_else(|| Error::Missing(format!("no provider named {name:?} is configured in this daemon")))?;
            provider.ready().map_err(|error| Error::Missing(error.message))?;
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "each is one field's source")]
    fn root_created(
        &self,
        submission: &Submission,
        id: &RunId,
        limits: Limits,
        plan: &Plan,
        inputs: serde_json::Value,
        launch: Launch,
        digest: &str,
    ) -> RunCreated {
        let parent = submission.traceparent.as_deref().and_then(parse_traceparent);
        let (trace_id, parent_span, sampled) = match parent {
            Some((trace_id, span_id, sampled)) => (trace_id, Some(span_id), sampled),
            None => {
                let trace_id = crate::telemetry::ids::trace_id(id, 0);
                let sampled = self.telemetry().sample(&trace_id);
                (trace_id, None, sampled)
            }
        };
        RunCreated {
            root: id.clone(),
            parent: None,
            depth: 0,
            workflow: plan.name().to_owned(),
            workflow_digest: digest.to_owned(),
            inputs,
            agent: launch.agent,
            prompt: launch.prompt,
            workspace: submission.workspace.to_string_lossy().into_owned(),
            limits,
            trace_id,
            parent_span,
            sampled,
            received_us: 0,
            labels: submission.labels.clone(),
            submitter: submission.submitter.clone(),
            models: std::collections::BTreeMap::new(),
        }
    }
}

fn checked(plan: &Plan, digest: String, limits: Limits) -> CheckedWorkflow {
    CheckedWorkflow {
        name: plan.name().to_owned(),
        description: plan.description().to_owned(),
        digest,
        input_schema: plan.input_schema(),
        agent: plan.root_agent().to_owned(),
        limits,
    }
}

fn request_id(submission: &Submission) -> Option<RequestId> {
    if submission.request_id.is_empty() {
        return None;
    }
    let content = serde_json::to_vec(&(
        Bundle::of(submission),
        &submission.inputs_json,
        &submission.labels,
        &submission.limits,
        submission.workspace.to_string_lossy(),
    ));
    Some(RequestId { id: submission.request_id.clone(), content: hex(&Sha256::digest(content.unwrap_or_default())) })
}

/// Reads a W3C `traceparent`: version 00, a trace id, a span id, flags. `None` for anything else.
fn parse_traceparent(text: &str) -> Option<(String, String, bool)> {
    let parts: Vec<&str> = text.trim().split('-').collect();
    let [version, trace_id, span_id, flags] = parts[..] else { return None };
    let is_hex =
        |text: &str, len: usize| text.len() == len && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let is_zero = |text: &str| text.bytes().all(|byte| byte == b'0');
    if version != "00" || !is_hex(trace_id, 32) || !is_hex(span_id, 16) || !is_hex(flags, 2) || is_zero(trace_id) || is_zero(span_id) {
        return None;
    }
    let sampled = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
    Some((trace_id.to_owned(), span_id.to_owned(), sampled))
}

fn internal_fault(why: &str) -> Diagnostic {
    Diagnostic {
        severity: Severity::Error,
        code: "W000",
        message: format!("the workflow could not be checked: {why}"),
        path: String::new(),
        line: 0,
        column: 0,
        end_line: 0,
        end_column: 0,
        pointer: String::new(),
        suggestion: String::new(),
        help: String::new(),
        source_line: String::new(),
    }
}
