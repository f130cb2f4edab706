//! What people type as money, time and pairs, read exactly, and the daemon's limits as people type them. No float is on the way.

use std::time::Duration;

use super::view::text;

const NANOS_PER_USD: i64 = 1_000_000_000;
const DECIMALS_MAX: usize = 9;

/// Reads dollars as nano-USD.
///
/// # Errors
/// Why it is no budget.
pub fn usd_nanos(text: &str) -> Result<i64, String> {
    let bare = text.trim().trim_start_matches('$');
    if bare.starts_with('-') {
        return Err(format!("a budget of {text} is negative; give dollars above 0, like 0.50"));
    }
    let (whole, decimals) = bare.split_once('.').unwrap_or((bare, ""));
    let is_plain = |part: &str| part.chars().all(|c| c.is_ascii_digit());
    if (whole.is_empty() && decimals.is_empty()) || !is_plain(whole) || !is_plain(decimals) {
        return Err(format!("{text:?} is no plain decimal number of dollars; write it like 0.50, without exponent or words"));
    }
    if decimals.trim_end_matches('0').len() > DECIMALS_MAX {
        return Err(format!("{text} is finer than a billionth of a dollar; at most {DECIMALS_MAX} decimals are kept"));
    }
    let too_much = || format!("{text} is more than can be counted; the most is {}", i64::MAX / NANOS_PER_USD);
    let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| too_much())? };
    let fraction: String = decimals.chars().chain(std::iter::repeat('0')).take(DECIMALS_MAX).collect();
    let fraction: i64 = fraction.parse().map_err(|_| too_much())?;
    let nanos = whole.checked_mul(NANOS_PER_USD).and_then(|nanos| nanos.checked_add(fraction)).ok_or_else(too_much)?;
    if nanos == 0 {
        return Err(format!("a budget of {text} allows no turn at all; give more, or use --mock to run without cost"));
    }
    Ok(nanos)
}

/// Reads a time: `90s`, `5m`, `1h30m`, `500ms`.
///
/// # Errors
/// Why it is none.
pub fn duration(text: &str) -> Result<Duration, String> {
    let form = "write it like 90s, 5m or 1h30m";
    let mut rest = text.trim();
    let mut total_ms: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "" => return Err(format!("{text:?} has no unit; {form}")),
            _ => return Err(format!("{text:?} is no time; {form}")),
        };
        let number: u64 = number.parse().map_err(|_| format!("{text:?} is no time; {form}"))?;
        let added = number.checked_mul(unit_ms).and_then(|ms| total_ms.checked_add(ms)).filter(|ms| *ms <= i64::MAX as u64 / 1_000_000);
        total_ms = added.ok_or_else(|| format!("{text} is longer than can be counted"))?;
        rest = tail;
    }
    if total_ms == 0 {
        return Err(format!("{text:?} is no time above 0; {form}"));
    }
    Ok(Duration::from_millis(total_ms))
}

/// Reads `key=value`. Only the first `=` divides.
///
/// # Errors
/// There is no key.
pub fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is no pair; write it as key=value")),
    }
}

/// Returns the daemon's refusal of a limit with money in dollars and time in days and hours, as they were typed; `None` if
/// it does not read `NAME ASKED is above this daemon's ceiling of CEILING; …`.
pub fn ceiling(message: &str) -> Option<String> {
    const IS_ABOVE: &str = " is above this daemon's ceiling of ";
    let (asked, rest) = message.split_once(IS_ABOVE)?;
    let (name, asked) = asked.split_once(' ')?;
    let (ceiling, rest) = rest.split_once(';')?;
    let (asked, ceiling) = (asked.parse().ok()?, ceiling.parse().ok()?);
    let (name, show): (&str, fn(i64) -> String) = match name {
        "budget_usd_nanos" => ("budget", dollars),
        "timeout_ms" => ("timeout", span),
        other => (other, text::count),
    };
    Some(format!("{name} {}{IS_ABOVE}{};{rest}", show(asked), show(ceiling)))
}

fn dollars(nanos: i64) -> String {
    let exact = text::decimal_usd(nanos);
    format!("${}", exact.strip_suffix(".00").unwrap_or(&exact))
}

/// Returns a time as it can be typed, exactly.
fn span(ms: i64) -> String {
    let mut rest = ms.max(0);
    let mut out = String::new();
    for (unit_ms, unit) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")] {
        if rest >= unit_ms {
            out.push_str(&format!("{}{unit}", rest / unit_ms));
            rest %= unit_ms;
        }
    }
    if out.is_empty() { "0s".to_owned() } else { out }
}
