//! The daemon's configuration: strict YAML, one struct made of each room's own. It opens no file but its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, de};

use crate::kernel::{Limits, LimitsPatch};
use crate::provider;

/// What may stand in `wrend`'s config file. Everything can be left out.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where to listen: `unix:PATH` or `tcp:HOST:PORT`.
    pub listen: Option<String>,
    /// The file that holds the bearer token of TCP clients; readable by its owner alone.
    pub token_file: Option<PathBuf>,
    /// Names under which the daemon may be addressed over TCP, beside its own address.
    pub authorities: Vec<String>,
    /// Directories that runs may use as their workspace, by name.
    pub workspaces: BTreeMap<String, PathBuf>,
    /// Limits that no root run may exceed.
    pub ceilings: Ceilings,
    /// What is written to the log.
    pub log: Log,
    /// How long a shutdown waits for turn boundaries.
    pub drain_timeout: Option<Span>,
    /// Model calls under way at once.
    pub turns_in_flight_max: Option<usize>,
    /// Trees that may be unfinished at once.
    pub trees_max: Option<usize>,
    /// Model endpoints by name.
    pub providers: provider::registry::Config,
    /// Prices over those of the built-in book.
    pub prices: Option<provider::price::WrittenBook>,
}

/// Limits that no root run may exceed, as far as they are set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ceilings {
    /// Model replies in a run's own loop.
    pub max_turns: Option<u32>,
    /// Money, in USD.
    pub budget_usd: Option<f64>,
    /// Input plus output tokens.
    pub max_tokens: Option<i64>,
    /// Time in state running.
    pub timeout: Option<Span>,
    /// Levels below the root.
    pub max_depth: Option<u32>,
    /// Runs, the root included.
    pub max_runs: Option<u32>,
}

/// What is written to the log.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// The form of its lines.
    pub format: LogFormat,
    /// Which lines: `info`, `wren=debug`, …; `RUST_LOG` wins.
    pub filter: Option<String>,
}

/// The form of the log's lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// A length of time, written as `90s`, `1h30m` or `500ms`; in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub u64);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        span(&text).map(Self).ok_or_else(|| de::Error::custom(format!("{text:?} is no length of time; write it like 90s, 1h30m or 500ms")))
    }
}

/// Why a config cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {why}")]
pub struct Error {
    place: String,
    why: String,
}

const USD_NANOS: f64 = 1e9;
/// Above this a budget is a slip of the pen.
const BUDGET_USD_MAX: f64 = 1_000_000.0;

impl Config {
    /// What holds where the config sets no ceiling.
    pub const CEILINGS: Limits = Limits {
        max_turns: 1000,
        budget_usd_nanos: 1_000_000_000_000,
        max_tokens: 1_000_000_000,
        timeout_ms: 7 * 24 * 3_600_000,
        max_depth: 8,
        max_runs: 10_000,
    };

    /// Reads a config file.
    ///
    /// # Errors
    /// A file that cannot be read, or what is wrong in it, with its place.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let place = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|error| Error { place: place.clone(), why: format!("cannot be read: {error}") })?;
        Self::parse(&place, &text)
    }

    /// Reads a config from its text; `place` names it in messages.
    ///
    /// # Errors
    /// What is wrong in it, with line and column.
    pub fn parse(place: &str, text: &str) -> Result<Self, Error> {
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(Self::default());
        }
        let config: Self = serde_yaml::from_str(text).map_err(|error| {
            let at = error.location().map_or_else(String::new, |at| format!(":{}:{}", at.line(), at.column()));
            Error { place: format!("{place}{at}"), why: hint(&error.to_string()) }
        })?;
        config.check().map_err(|why| Error { place: place.to_owned(), why })?;
        Ok(config)
    }

    /// Returns the ceilings, defaults filled in.
    pub fn ceilings(&self) -> Limits {
        let set = &self.ceilings;
        let patch = LimitsPatch {
            max_turns: set.max_turns,
            budget_usd_nanos: set.budget_usd.map(nanos),
            max_tokens: set.max_tokens,
            timeout_ms: set.timeout.map(|span| i64::try_from(span.0).unwrap_or(i64::MAX)),
            max_depth: set.max_depth,
            max_runs: set.max_runs,
        };
        patch.over(Self::CEILINGS)
    }

    fn check(&self) -> Result<(), String> {
        for (name, directory) in &self.workspaces {
            if name.is_empty() || name.starts_with('/') {
                return Err(format!("workspaces: {name:?} is no name; a name is not empty and does not begin with `/`"));
            }
            if !directory.is_absolute() {
                return Err(format!("workspaces.{name}: {} is not an absolute path", directory.display()));
            }
        }
        let set = &self.ceilings;
        if set.budget_usd.is_some_and(|usd| !(usd > 0.0 && usd <= BUDGET_USD_MAX)) {
            return Err(format!("ceilings.budget_usd: give an amount above 0 and up to {BUDGET_USD_MAX}"));
        }
        let zero = [
            ("ceilings.max_turns", set.max_turns == Some(0)),
            ("ceilings.max_tokens", set.max_tokens.is_some_and(|tokens| tokens <= 0)),
            ("ceilings.timeout", set.timeout == Some(Span(0))),
            ("ceilings.max_runs", set.max_runs == Some(0)),
            ("turns_in_flight_max", self.turns_in_flight_max == Some(0)),
            ("trees_max", self.trees_max == Some(0)),
        ];
        zero.iter().find(|(_, bad)| *bad).map_or(Ok(()), |(name, _)| Err(format!("{name}: give a number above 0")))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "checked to be above 0 and at most a million USD")]
fn nanos(usd: f64) -> i64 {
    (usd * USD_NANOS).round() as i64
}

fn span(text: &str) -> Option<u64> {
    let mut total = 0_u64;
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, tail) = rest.split_at_checked(digits)?;
        let unit = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(unit)?;
        let ms = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(ms)?)?;
        rest = tail;
    }
    Some(total)
}

/// Adds what was probably meant to serde's words about an unknown field.
fn hint(message: &str) -> String {
    let Some((_, tail)) = message.split_once("unknown field `") else { return message.to_owned() };
    let mut quoted = tail.split('`').step_by(2);
    let Some(wrong) = quoted.next() else { return message.to_owned() };
    let known = tail.split('`').skip(2).step_by(2);
    let near = known.map(|name| (strsim::damerau_levenshtein(wrong, name), name)).min();
    match near {
        Some((distance, name)) if distance <= 3 => format!("{message}; did you mean `{name}`?"),
        _ => message.to_owned(),
    }
}
