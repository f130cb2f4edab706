//! Small pieces of text: money, counts, times, widths. What models and tools wrote is made harmless here.

use std::borrow::Cow;

use pbjson_types::Timestamp;

use crate::wire::v1::Outcome;

const NANOS_PER_MICRO_USD: i64 = 1000;

/// Returns text without characters that steer a terminal. A model or a tool may have written it.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if is_harmless(c) { c } else { '\u{fffd}' }).collect()
}

fn is_harmless(c: char) -> bool {
    // Bidirectional overrides can make text read as what it is not.
    let turns = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c == '\n' || c == '\t' || !(c.is_control() || turns)
}

/// Returns text on one line, harmless, its runs of blanks as one.
pub fn one_line(text: &str) -> String {
    clean(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Returns the cells that text takes, colours left out.
pub fn width(text: &str) -> usize {
    console::measure_text_width(text)
}

/// Cuts text to so many cells, with a mark where it was cut.
pub fn fit(text: &str, cells: usize) -> Cow<'_, str> {
    console::truncate_str(text, cells, "…")
}

/// Fills text with blanks up to so many cells.
pub fn pad(text: &str, cells: usize) -> String {
    format!("{text}{}", " ".repeat(cells.saturating_sub(width(text))))
}

/// Fills text with blanks in front of it up to so many cells.
pub fn pad_left(text: &str, cells: usize) -> String {
    format!("{}{text}", " ".repeat(cells.saturating_sub(width(text))))
}

/// Returns money as dollars with six decimals, rounded half up.
pub fn usd(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let micros = nanos.unsigned_abs().saturating_add(NANOS_PER_MICRO_USD.unsigned_abs() / 2) / NANOS_PER_MICRO_USD.unsigned_abs();
    format!("{sign}${}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

/// Returns money as a decimal number that `--budget` reads, without needless zeros.
pub fn decimal_usd(nanos: i64) -> String {
    let nanos = nanos.max(0);
    let text = format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
    let short = text.trim_end_matches('0');
    let decimals = short.rsplit_once('.').map_or(0, |(_, decimals)| decimals.len());
    format!("{short}{}", "0".repeat(2_usize.saturating_sub(decimals)))
}

/// Returns why a run stopped: the outcome's name and the words that go with it. Some of those begin with the name
/// themselves, and say no more than it does if they end there.
pub fn why(outcome: Outcome, message: &str) -> String {
    let name = enum_name(outcome.as_str_name(), "OUTCOME_");
    let words = without_name(&name, message);
    if words.is_empty() { name } else { format!("{name}: {words}") }
}

/// Returns a message on one line, without a name that it begins with.
pub fn without_name(name: &str, message: &str) -> String {
    let words = one_line(message);
    match words.strip_prefix(name) {
        Some("") => String::new(),
        Some(rest) => rest.strip_prefix(": ").map_or_else(|| words.clone(), ToOwned::to_owned),
        None => words,
    }
}

/// Returns a count with its thousands apart.
pub fn count(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if value < 0 { format!("-{out}") } else { out }
}

/// Returns a count with its noun.
pub fn plural(value: usize, noun: &str) -> String {
    format!("{} {noun}{}", count(i64::try_from(value).unwrap_or(i64::MAX)), if value == 1 { "" } else { "s" })
}

/// Returns a time that has passed: 12ms, 1.2s, 3m12s, 2h05m.
pub fn elapsed(us: i64) -> String {
    let ms = us.max(0) / 1000;
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{ms}ms"),
        1..60 => format!("{seconds}.{}s", ms % 1000 / 100),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Returns microseconds since 1970; 0 if there is no time.
pub fn micros(time: Option<&Timestamp>) -> i64 {
    time.map_or(0, |time| time.seconds.saturating_mul(1_000_000).saturating_add(i64::from(time.nanos) / 1000))
}

/// Returns the time of day, UTC, to the millisecond.
pub fn time_of_day(us: i64) -> String {
    let ms = us.div_euclid(1000).rem_euclid(86_400_000);
    format!("{:02}:{:02}:{:02}.{:03}", ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000)
}

/// Returns date and time as in RFC 3339, to the second.
pub fn date_time(us: i64) -> String {
    let seconds = us.div_euclid(1_000_000);
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days to a civil date, counted in years that begin in March so that a leap day is a year's last.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Returns the name of an enum of the API without its prefix, in small letters.
pub fn enum_name(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_ascii_lowercase()
}
