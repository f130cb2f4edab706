//! What a provider's refusal means: statuses, error bodies, wordings and waits of every wire family turned into [`Error`].
//! It sends nothing and decides no retry; it only says what may be retried.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use serde_json::Value;

use super::Error;
use crate::kernel::event::Abort;

/// The longest wait that a provider can ask for, in milliseconds. A longer one is cut to this.
pub const RETRY_AFTER_MS_MAX: u64 = 5 * 60 * 1000;
/// The most of a provider's own words that an error repeats, in characters.
const SAID_CHARS_MAX: usize = 500;

/// How providers say that a conversation does not fit their model; lower case.
const CONTEXT_WORDS: [&str; 14] = [
    "context_length_exceeded",
    "exceed_context_size",
    "model_max_prompt_tokens_exceeded",
    "maximum context length",
    "maximum prompt length",
    "available context size",
    "exceed context window",
    "exceeds the context window",
    "context window of this model",
    "context length exceeded",
    "exceeds the maximum number of tokens",
    "prompt is too long",
    "input is too long",
    "reduce the length of the messages",
];
/// How providers say that no money or quota is left, which no waiting mends; lower case.
const QUOTA_WORDS: [&str; 4] = ["insufficient_quota", "exceeded your current quota", "billing_hard_limit", "insufficient credits"];

/// How providers say that their filter refused the request itself; lower case.
const FILTER_WORDS: [&str; 4] = ["content_filter", "content_policy_violation", "responsibleaipolicyviolation", "content management policy"];

/// What an error body says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// In the provider's words.
    pub message: String,
    /// Its code: its own word for it, else its type, else a number.
    pub code: Option<String>,
    /// The HTTP status that the body states, as errors inside streams do.
    pub status: Option<u16>,
    /// How long it asks to wait, in milliseconds, as Google's `RetryInfo` does.
    pub retry_after_ms: Option<u64>,
}

/// Reads an error's JSON, in any of the forms in which servers of this world put it.
pub fn said_in(body: &Value) -> Said {
    let error = body.get("error").filter(|error| !error.is_null()).unwrap_or(body);
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let message = match error {
        Value::String(message) => message.clone(),
        _ => ["message", "detail", "details", "error"]
            .iter()
            .filter_map(|key| error.get(key))
            .find(|value| !value.is_null())
            .map_or_else(String::new, |value| text(value).unwrap_or_else(|| value.to_string())),
    };
    let number = ["code", "status_code", "status"].iter().find_map(|key| error.get(key).and_then(Value::as_u64));
    let code = ["code", "type", "status"].iter().find_map(|key| error.get(key).and_then(text)).or_else(|| number.map(|n| n.to_string()));
    let status = number.and_then(|number| u16::try_from(number).ok()).filter(|status| (400..600).contains(status));
    Said { message: shortened(&message), code, status, retry_after_ms: retry_info(error) }
}

/// Reads `google.rpc.RetryInfo` among an error's details: `"retryDelay": "48.5s"`.
fn retry_info(error: &Value) -> Option<u64> {
    let details = error.get("details")?.as_array()?;
    let delay = details.iter().find_map(|detail| detail.get("retryDelay")?.as_str())?;
    milliseconds(delay.strip_suffix('s')?, 1000.0).filter(|wait| *wait > 0).map(|wait| wait.min(RETRY_AFTER_MS_MAX))
}

/// Returns the error that an HTTP status stands for, in every wire family.
pub fn error_of_status(status: u16, message: &str, retry_after_ms: Option<u64>) -> Error {
    let said = Said { message: shortened(message), retry_after_ms, ..Said::default() };
    classified(status, said)
}

/// Returns the error that an answer with an error status stands for.
pub fn from_response(status: u16, headers: &HeaderMap, body: &[u8], now: SystemTime) -> Error {
    let said = match serde_json::from_slice::<Value>(body) {
        Ok(json) => said_in(json.get(0).unwrap_or(&json)),
        Err(_) => Said { message: plain(body), ..Said::default() },
    };
    let retry_after_ms = retry_after_ms(headers, now).max(said.retry_after_ms);
    classified(status, Said { retry_after_ms, ..said })
}

/// Returns the error that stands inside a stream or body whose own status was fine.
pub fn from_stream(body: &Value, reply_begun: bool) -> Error {
    let said = said_in(body);
    let message = said.message.clone();
    // An error inside a stream has no status of its own; its words tell which it would have had.
    let status = said.status.unwrap_or(match () {
        () if says(&said, &["overloaded"]) => 529,
        () if says(&said, &QUOTA_WORDS) || says(&said, &["rate_limit"]) => 429,
        () if says(&said, &["invalid_request"]) => 400,
        () => 500,
    });
    let error = classified(status, said);
    let message = format!("the provider broke its answer off: {}", if message.is_empty() { "it gave no reason" } else { &message });
    Error { message, http_status: Some(200), reply_begun, ..error }
}

/// Returns how long a provider asks to wait: the longest of what its headers say, at most [`RETRY_AFTER_MS_MAX`].
/// A date in the past, a zero and nonsense ask for nothing.
pub fn retry_after_ms(headers: &HeaderMap, now: SystemTime) -> Option<u64> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let millis = text("retry-after-ms").and_then(|text| milliseconds(text, 1.0));
    let after = text("retry-after").and_then(|text| milliseconds(text, 1000.0).or_else(|| until(text, now)));
    millis.max(after).filter(|wait| *wait > 0).map(|wait| wait.min(RETRY_AFTER_MS_MAX))
}

fn milliseconds(text: &str, unit_ms: f64) -> Option<u64> {
    let number: f64 = text.parse().ok()?;
    if !number.is_finite() || number < 0.0 {
        return None;
    }
    // Rounded up: never less than asked. Bounded first, so that the conversion is exact.
    let wait = (number * unit_ms).ceil().min(1e15);
    u64::try_from(Duration::try_from_secs_f64(wait / 1000.0).ok()?.as_millis()).ok()
}

fn until(text: &str, now: SystemTime) -> Option<u64> {
    let date = httpdate::parse_http_date(text).ok()?;
    u64::try_from(date.duration_since(now).ok()?.as_millis()).ok()
}

fn classified(status: u16, said: Said) -> Error {
    let is_asked_wrong = matches!(status, 400 | 413 | 422 | 500);
    // Some say "quota" and mean a minute's allowance: they also say when to come back.
    let no_quota = status == 402
        || (status == 429
            && (said.code.as_deref() == Some("insufficient_quota") || said.retry_after_ms.is_none() && says(&said, &QUOTA_WORDS)));
    // A request over the whole minute's allowance is refused as often as it is sent.
    let never_fits = status == 429 && says(&said, &["request too large"]);
    let (kind, retryable) = match status {
        _ if is_asked_wrong && says(&said, &CONTEXT_WORDS) => (Abort::ContextLength, false),
        _ if no_quota => (Abort::Quota, false),
        _ if never_fits => (Abort::RateLimited, false),
        400 | 403 if says(&said, &FILTER_WORDS) => (Abort::ContentRefused, false),
        400 if says(&said, &["api key not valid", "api_key_invalid"]) => (Abort::Auth, false),
        400 if says(&said, &["model_not_found"]) => (Abort::NotFound, false),
        401 | 403 => (Abort::Auth, false),
        404 => (Abort::NotFound, false),
        408 => (Abort::NoAnswer, true),
        409 | 499 => (Abort::Provider, true),
        429 => (Abort::RateLimited, true),
        503 | 529 => (Abort::Overloaded, true),
        500..=599 => (Abort::Provider, true),
        _ => (Abort::InvalidRequest, false),
    };
    let words = if said.message.is_empty() { String::new() } else { format!(": {}", said.message) };
    let advice = if no_quota { "; the account has no credit left, add some and resume" } else { "" };
    Error {
        kind,
        message: format!("the provider answered {status}{words}{advice}"),
        code: said.code,
        http_status: Some(status),
        retryable,
        retry_after_ms: said.retry_after_ms,
        reply_begun: false,
        unanswered: false,
    }
}

fn says(said: &Said, words: &[&str]) -> bool {
    let text = format!("{} {}", said.code.as_deref().unwrap_or_default(), said.message).to_lowercase();
    words.iter().any(|word| text.contains(word))
}

/// Returns the words of a body that is no JSON; of a web page nothing, since its words help nobody.
fn plain(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    if text.starts_with('<') { "(a web page)".to_owned() } else { shortened(text) }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SAID_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
