//! What is checked of every request before the runtime hears of it.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use tonic::{Code, Request, Status};

use super::auth::Principal;
use super::error::{self, Problem};
use super::{Api, page};
use crate::kernel::{LimitsPatch, RunId};
use crate::runtime::Submission;
use crate::wire::{self, v1};

const BUNDLE_BYTES_MAX: usize = 1024 * 1024;
const REQUEST_ID_CHARS_MAX: usize = 128;
const REASON_CHARS_MAX: usize = 1000;
const LABELS_MAX: usize = 32;
const LABEL_KEY_CHARS_MAX: usize = 63;
const LABEL_VALUE_CHARS_MAX: usize = 255;
const RUN_ID_CHARS_MAX: usize = 128;
/// How long an answer that waits for nobody may take.
const UNARY_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns who makes the request.
pub fn principal<T>(request: &Request<T>) -> Result<Principal, Status> {
    let known = request.extensions().get::<Principal>().cloned();
    known.ok_or_else(|| Problem::new(Code::Unauthenticated, "PEER_UNKNOWN", "the request does not say who it comes from").status())
}

/// Bounds an answer's time. What the store has begun completes all the same.
pub async fn within<T>(answer: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    match tokio::time::timeout(UNARY_TIMEOUT, answer).await {
        Ok(answer) => answer,
        Err(_) => {
            Err(Problem::new(Code::DeadlineExceeded, "TIMEOUT", "no answer within 30 s; the daemon or its disk is overloaded").status())
        }
    }
}

/// Returns the run of that id, unique prefix or `@latest`.
pub async fn run_id(api: &Api, name: &str) -> Result<RunId, Status> {
    if name.is_empty() {
        return Err(error::field("FIELD_INVALID", "run_id", "is empty; give a run's id, a prefix that only one run has, or @latest"));
    }
    bounded("run_id", name, RUN_ID_CHARS_MAX)?;
    api.runtime.resolve(name).await.map_err(error::status)
}

/// Returns the limits that were set.
pub fn limits(limits: Option<&v1::Limits>) -> Result<LimitsPatch, Status> {
    limits.map_or_else(|| Ok(LimitsPatch::default()), wire::patch).map_err(|bad| error::fields("FIELD_INVALID", &bad))
}

/// Returns a reason within its bound.
pub fn reason(text: &str) -> Result<(), Status> {
    bounded("reason", text, REASON_CHARS_MAX)
}

/// Returns a whole number that may not be negative.
pub fn not_negative(name: &str, value: i64) -> Result<u64, Status> {
    u64::try_from(value).map_err(|_| error::field("FIELD_INVALID", name, format!("is {value}; it may not be negative")))
}

fn bounded(name: &str, text: &str, chars_max: usize) -> Result<(), Status> {
    let chars = text.chars().count();
    if chars > chars_max {
        return Err(error::field("FIELD_INVALID", name, format!("has {chars} characters; at most {chars_max} are allowed")));
    }
    if text.chars().any(|c| c.is_control() && c != '\n' && c != '\t') {
        return Err(error::field("FIELD_INVALID", name, "holds control characters"));
    }
    Ok(())
}

/// Returns the files of a bundle.
pub fn bundle(bundle: Option<v1::Bundle>) -> Result<(String, BTreeMap<String, Vec<u8>>), Status> {
    let bundle = bundle.ok_or_else(|| error::field("FIELD_INVALID", "bundle", "is missing; send the workflow's file"))?;
    let bytes: usize = bundle.files.iter().map(|file| file.path.len() + file.content.len()).sum();
    if bytes > BUNDLE_BYTES_MAX {
        let message = format!("the bundle has {bytes} bytes; at most {BUNDLE_BYTES_MAX} are taken");
        return Err(Problem::new(Code::ResourceExhausted, "MESSAGE_TOO_LARGE", message).status());
    }
    let mut files = BTreeMap::new();
    for file in bundle.files {
        if let Some(_first) = files.insert(file.path.clone(), file.content) {
            return Err(error::field("FIELD_INVALID", "bundle.files", format!("holds {:?} twice", file.path)));
        }
    }
    if !files.contains_key(&bundle.entry_path) {
        return Err(error::field("FIELD_INVALID", "bundle.entry_path", format!("{:?} is not among the files", bundle.entry_path)));
    }
    Ok((bundle.entry_path, files))
}

fn labels(labels: &BTreeMap<String, String>) -> Result<(), Status> {
    if labels.len() > LABELS_MAX {
        return Err(error::field("FIELD_INVALID", "labels", format!("there are {}; at most {LABELS_MAX} are allowed", labels.len())));
    }
    for (key, value) in labels {
        let plain = key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'));
        if key.is_empty() || key.len() > LABEL_KEY_CHARS_MAX || !plain {
            let rule = format!("use 1 to {LABEL_KEY_CHARS_MAX} letters, digits, `_`, `-`, `.` or `/`");
            return Err(error::field("FIELD_INVALID", "labels", format!("{key:?} is no label's key: {rule}")));
        }
        bounded(&format!("labels.{key}"), value, LABEL_VALUE_CHARS_MAX)?;
    }
    Ok(())
}

/// Returns the directory that a run may use: a configured one by its name, or, for the daemon's own user on the unix
/// socket, any absolute path.
pub fn workspace(api: &Api, principal: &Principal, name: &str) -> Result<PathBuf, Status> {
    if let Some(directory) = api.workspaces.get(name) {
        return Ok(directory.clone());
    }
    let names = api.workspaces.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    let named = if names.is_empty() { "the daemon's config names none".to_owned() } else { format!("the daemon's config names {names}") };
    let bad = |why: String| Err(error::field("FIELD_INVALID", "workspace", why));
    match (principal.local, name) {
        (true, "") => bad(format!("is missing; pass the absolute path of the directory that file tools may read, or a name ({named})")),
        (false, "") => bad(format!("is missing; pass a name ({named})")),
        (true, path) if path.starts_with('/') && !path.contains('\0') => Ok(PathBuf::from(path)),
        (true, other) => bad(format!("{other:?} is neither an absolute path nor a known name ({named})")),
        (false, other) => bad(format!("{other:?} is not a known name ({named}); over TCP no path is taken")),
    }
}

/// Returns a submission, checked as far as this room can.
pub fn submission(api: &Api, request: Request<v1::SubmitRunRequest>) -> Result<Submission, Status> {
    let principal = principal(&request)?;
    // A stranger may not hang spans under a trace of their choosing.
    let traceparent = principal.local.then(|| request.metadata().get("traceparent")?.to_str().ok().map(ToOwned::to_owned)).flatten();
    let request = request.into_inner();
    bounded("request_id", &request.request_id, REQUEST_ID_CHARS_MAX)?;
    let set: BTreeMap<_, _> = request.labels.into_iter().collect();
    labels(&set)?;
    let limits = limits(request.limits.as_ref())?;
    if request.inputs_json.len() > BUNDLE_BYTES_MAX {
        return Err(error::field("FIELD_INVALID", "inputs_json", format!("is longer than {BUNDLE_BYTES_MAX} bytes")));
    }
    // A check reads no file, so it needs no workspace.
    let needs_none = request.validate_only && request.workspace.is_empty();
    let workspace = if needs_none { PathBuf::new() } else { workspace(api, &principal, &request.workspace)? };
    let (entry_path, files) = bundle(request.bundle)?;
    Ok(Submission {
        entry_path,
        files,
        inputs_json: request.inputs_json,
        request_id: request.request_id,
        labels: set,
        limits,
        model_overrides: request.model_overrides.into_iter().collect(),
        mock: request.mock,
        workspace,
        submitter: principal.name,
        traceparent,
    })
}

/// Returns a page's size and cursor.
pub fn page(size: i32, default: usize, token: &str, sealed: &str) -> Result<(usize, Option<u64>), Status> {
    Ok((page::size(size, default)?, page::cursor(token, sealed)?))
}
