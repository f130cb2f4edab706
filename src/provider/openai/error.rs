//! Failures of Chat Completions servers: which kind, whether to try again, when, and what a person should do.

use std::time::SystemTime;

use serde_json::Value;

use crate::kernel::event::Abort;
use crate::provider::Error;

/// The longest wait that a provider may ask for.
const RETRY_AFTER_MS_MAX: u64 = 5 * 60 * 1000;
/// Characters of a provider's message that are kept.
const MESSAGE_CHARS_MAX: usize = 500;

/// What a message about an endpoint may name.
#[derive(Clone, Debug)]
pub struct Place {
    /// The base URL, without secrets.
    pub base_url: String,
    /// The variable that holds the key.
    pub key_variable: String,
    /// The model asked for.
    pub model: String,
}

/// Reads an answer that is not 2xx.
pub fn of_response(status: u16, header: &dyn Fn(&str) -> Option<String>, body: &[u8], place: &Place) -> Error {
    let said = Said::read(body);
    let (kind, retryable) = kind_of(status, &said);
    let told = if said.message.is_empty() { String::new() } else { format!(": {}", said.message) };
    let hint = match kind {
        Abort::Auth => format!("; set {} to a key that {} accepts", place.key_variable, place.base_url),
        Abort::InvalidRequest if status == 404 => format!("; does {} know the model {:?}?", place.base_url, place.model),
        _ => String::new(),
    };
    Error {
        kind,
        message: format!("the provider answered {status}{told}{hint}"),
        code: said.code,
        http_status: Some(status),
        retryable,
        retry_after_ms: retry_after_ms(header),
        reply_begun: false,
    }
}

/// Reads an error object in the middle of a stream.
pub fn in_stream(error: &Value) -> Error {
    let said = Said::of(error);
    let status =
        error.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok()).filter(|code| (400..600).contains(code));
    let (kind, retryable) = match status {
        Some(status) => kind_of(status, &said),
        None => match said.code.as_deref() {
            Some(code) if code.contains("rate_limit") => (Abort::RateLimited, true),
            Some(code) if code.contains("overloaded") => (Abort::Overloaded, true),
            Some(code) if code.contains("invalid_request") || code.contains("tool_use_failed") => (Abort::InvalidRequest, false),
            _ if said.is_context_length() => (Abort::ContextLength, false),
            _ => (Abort::Provider, true),
        },
    };
    Error {
        kind,
        message: format!("the provider's stream ended in an error: {}", said.message),
        code: said.code,
        http_status: Some(200),
        retryable,
        retry_after_ms: None,
        reply_begun: true,
    }
}

/// What a body says, in any of the forms that servers use.
struct Said {
    message: String,
    code: Option<String>,
}

impl Said {
    fn read(body: &[u8]) -> Self {
        match serde_json::from_slice::<Value>(body) {
            Ok(Value::Array(list)) => Self::of(list.first().and_then(|first| first.get("error")).unwrap_or(&Value::Null)),
            Ok(value) => Self::of(value.get("error").unwrap_or(&value)),
            // A proxy's page, perhaps: its first words.
            Err(_) => Self { message: bounded(&String::from_utf8_lossy(body)), code: None },
        }
    }

    fn of(error: &Value) -> Self {
        if let Some(text) = error.as_str() {
            return Self { message: bounded(text), code: None };
        }
        let text = |name: &str| error.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned);
        let raw = error.get("metadata").and_then(|metadata| metadata.get("raw")).and_then(Value::as_str);
        let message = text("message").or_else(|| text("detail")).unwrap_or_default();
        // A router puts the words of the provider behind it beside its own.
        let message = raw.map_or(message.clone(), |raw| format!("{message}: {raw}"));
        let number = error.get("code").and_then(Value::as_i64).map(|code| code.to_string());
        Self { message: bounded(&message), code: text("code").or_else(|| text("type")).or(number) }
    }

    fn is_context_length(&self) -> bool {
        const SIGNS: [&str; 9] = [
            "context_length_exceeded",
            "maximum context length",
            "exceeds the available context size",
            "exceed_context_size",
            "context window",
            "prompt is too long",
            "too many input tokens",
            "input is too long",
            "reduce the length of the messages",
        ];
        let message = self.message.to_ascii_lowercase();
        let code = self.code.as_deref().unwrap_or_default();
        SIGNS.iter().any(|sign| message.contains(sign) || code.contains(sign))
    }
}

fn kind_of(status: u16, said: &Said) -> (Abort, bool) {
    let code = said.code.as_deref().unwrap_or_default();
    match status {
        _ if said.is_context_length() => (Abort::ContextLength, false),
        401 | 403 => (Abort::Auth, false),
        // No waiting brings money back.
        402 => (Abort::Auth, false),
        429 if code == "insufficient_quota" => (Abort::RateLimited, false),
        429 => (Abort::RateLimited, true),
        408 => (Abort::NoAnswer, true),
        409 => (Abort::Provider, true),
        503 | 529 => (Abort::Overloaded, true),
        500..=599 => (Abort::Provider, true),
        _ => (Abort::InvalidRequest, false),
    }
}

/// Reads how long the provider asks to wait: the longest of what its headers say, clamped. Nonsense says nothing.
fn retry_after_ms(header: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    let ms = header("retry-after-ms").and_then(|text| text.trim().parse::<f64>().ok());
    let after = header("retry-after").and_then(|text| {
        let text = text.trim();
        if let Ok(seconds) = text.parse::<f64>() {
            return Some(seconds * 1000.0);
        }
        let date = httpdate::parse_http_date(text).ok()?;
        // A date in the past asks for nothing.
        date.duration_since(SystemTime::now()).ok().map(|wait| wait.as_secs_f64() * 1000.0)
    });
    let asked = [ms, after]
        .into_iter()
        .flatten()
        .filter(|ms| ms.is_finite() && *ms >= 0.0)
        .fold(None, |most: Option<f64>, ms| Some(most.map_or(ms, |most| most.max(ms))));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and clamped just before")]
    asked.map(|ms| ms.ceil().min(RETRY_AFTER_MS_MAX as f64) as u64)
}

fn bounded(text: &str) -> String {
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if flat.chars().count() <= MESSAGE_CHARS_MAX {
        flat
    } else {
        format!("{}…", flat.chars().take(MESSAGE_CHARS_MAX).collect::<String>())
    }
}
