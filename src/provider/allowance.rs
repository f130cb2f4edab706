//! What a provider says about how much more it may be asked: the rate-limit headers of an answer. Pure: time comes in. What
//! is done with it is the limiter's.
//!
//! Two dialects are read: OpenAI's, which Groq, Mistral and gateways speak too
//! (<https://platform.openai.com/docs/guides/rate-limits>), and Anthropic's
//! (<https://docs.claude.com/en/api/rate-limits>). Both say when an allowance is full again.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use prost_types::Timestamp;

/// What is left of a model's allowances, as one answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Calls.
    pub requests: Option<Left>,
    /// Tokens.
    pub tokens: Option<Left>,
}

/// What is left of one allowance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// How much it is when it is full; above 0.
    pub limit: u64,
    /// How much is left now; at most `limit`.
    pub remaining: u64,
    /// In how many milliseconds it is full again.
    pub full_in_ms: u64,
}

/// Reads an answer's headers; `None` where they speak of no allowance. What is incomplete, contradicts itself or is no
/// number says nothing.
pub fn from_headers(headers: &HeaderMap, now: SystemTime) -> Option<Allowance> {
    let of = |what: &str| {
        let openai = |part: &str| format!("x-ratelimit-{part}-{what}");
        let anthropic = |part: &str| format!("anthropic-ratelimit-{what}-{part}");
        left(headers, &openai, now).or_else(|| left(headers, &anthropic, now))
    };
    let allowance = Allowance { requests: of("requests"), tokens: of("tokens") };
    (allowance.requests.is_some() || allowance.tokens.is_some()).then_some(allowance)
}

fn left(headers: &HeaderMap, name: &dyn Fn(&str) -> String, now: SystemTime) -> Option<Left> {
    let text = |part: &str| headers.get(name(part)).and_then(|value| value.to_str().ok()).map(str::trim);
    let limit: u64 = text("limit")?.parse().ok()?;
    let remaining: u64 = text("remaining")?.parse().ok()?;
    let full_in_ms = text("reset").and_then(|reset| length_ms(reset).or_else(|| until_ms(reset, now)))?;
    (limit > 0 && remaining <= limit).then_some(Left { limit, remaining, full_in_ms })
}

/// Reads a length of time as Go writes it: `1h2m3.5s`, `17ms`; a bare number is seconds. Rounded up.
fn length_ms(text: &str) -> Option<u64> {
    let mut total_ms = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at_checked(end)?;
        let unit_end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(unit_end)?;
        let unit_ms = match unit {
            "ms" => 1.0,
            "s" => 1000.0,
            "m" => 60_000.0,
            "h" => 3_600_000.0,
            "d" => 86_400_000.0,
            "" if total_ms == 0.0 => 1000.0,
            _ => return None,
        };
        total_ms += number.parse::<f64>().ok()? * unit_ms;
        rest = tail;
    }
    // Bounded first, so that the conversion holds.
    let bounded = if text.is_empty() { return None } else { total_ms.ceil().min(1e12) };
    u64::try_from(Duration::try_from_secs_f64(bounded / 1000.0).ok()?.as_millis()).ok()
}

/// Reads a time of RFC 3339; a time in the past is now.
fn until_ms(text: &str, now: SystemTime) -> Option<u64> {
    let at = SystemTime::try_from(text.parse::<Timestamp>().ok()?).ok()?;
    u64::try_from(at.duration_since(now).unwrap_or_default().as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn both_dialects_are_read() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let openai = headers(&[
            ("x-ratelimit-limit-requests", "60"),
            ("x-ratelimit-remaining-requests", "59"),
            ("x-ratelimit-reset-requests", "1s"),
            ("x-ratelimit-limit-tokens", "150000"),
            ("x-ratelimit-remaining-tokens", "149984"),
            ("x-ratelimit-reset-tokens", "6m0s"),
        ]);
        let requests = Left { limit: 60, remaining: 59, full_in_ms: 1000 };
        let tokens = Left { limit: 150_000, remaining: 149_984, full_in_ms: 360_000 };
        assert_eq!(from_headers(&openai, now), Some(Allowance { requests: Some(requests), tokens: Some(tokens) }));
        let anthropic = headers(&[
            ("anthropic-ratelimit-requests-limit", "50"),
            ("anthropic-ratelimit-requests-remaining", "0"),
            ("anthropic-ratelimit-requests-reset", "2027-01-15T08:00:20Z"),
            ("anthropic-ratelimit-tokens-limit", "not a number"),
        ]);
        let requests = Left { limit: 50, remaining: 0, full_in_ms: 20_000 };
        assert_eq!(from_headers(&anthropic, now), Some(Allowance { requests: Some(requests), tokens: None }));
    }

    #[test]
    fn lengths_are_read_as_they_are_written() {
        for (text, ms) in [
            ("17ms", Some(17)),
            ("2m59.56s", Some(179_560)),
            ("1h0m0s", Some(3_600_000)),
            ("1.0001s", Some(1001)),
            ("12", Some(12_000)),
            ("0s", Some(0)),
            ("", None),
            ("soon", None),
            ("-1s", None),
            ("1s soon", None),
            ("1.2.3s", None),
            ("1e400", None),
            ("99999999999999999999h", Some(1_000_000_000_000)),
        ] {
            assert_eq!(length_ms(text), ms, "{text:?}");
        }
    }

    #[test]
    fn what_makes_no_sense_says_nothing() {
        for (limit, remaining, reset) in
            [("0", "0", "1s"), ("10", "11", "1s"), ("10", "-1", "1s"), ("10", "5", ""), ("10", "5", "never"), ("1e9", "5", "1s")]
        {
            let headers = headers(&[
                ("x-ratelimit-limit-requests", limit),
                ("x-ratelimit-remaining-requests", remaining),
                ("x-ratelimit-reset-requests", reset),
            ]);
            assert_eq!(from_headers(&headers, SystemTime::now()), None, "{limit} {remaining} {reset}");
        }
    }
}
