//! The filter of ListRuns: terms `name = value` joined by AND. The rest of AIP-160 is refused, with its place.

use crate::kernel::{Outcome, State};
use crate::runtime::Query;

const STATES: [(&str, State); 5] = [
    ("PENDING", State::Pending),
    ("RUNNING", State::Running),
    ("SUSPENDED", State::Suspended),
    ("CANCELLING", State::Cancelling),
    ("ENDED", State::Ended),
];

const OUTCOMES: [(&str, Outcome); 11] = [
    ("COMPLETED", Outcome::Completed),
    ("FAILED", Outcome::Failed),
    ("BLOCKED", Outcome::Blocked),
    ("CANCELLED", Outcome::Cancelled),
    ("MAX_TURNS", Outcome::MaxTurns),
    ("BUDGET", Outcome::Budget),
    ("MAX_TOKENS", Outcome::MaxTokens),
    ("TIMEOUT", Outcome::Timeout),
    ("IN_DOUBT", Outcome::InDoubt),
    ("PROVIDER_ERROR", Outcome::ProviderError),
    ("DRAINED", Outcome::Drained),
];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Equals,
}

type Place = usize;

/// Puts the terms of `filter` into `query`.
///
/// # Errors
/// What cannot be read, with its column from 1.
pub fn parse(filter: &str, query: &mut Query) -> Result<(), String> {
    let tokens = tokens(filter)?;
    let mut rest = tokens.as_slice();
    let end = filter.chars().count() + 1;
    while !rest.is_empty() {
        let at = |tokens: &[(Place, Token)], index: usize| tokens.get(index).map_or(end, |(place, _)| *place);
        let (name, value, place) = match rest {
            [(_, Token::Word(name)), (_, Token::Equals), (place, Token::Word(value) | Token::Text(value)), ..] => (name, value, *place),
            [(_, Token::Word(_)), (_, Token::Equals), ..] => return Err(format!("column {}: a value is missing", at(rest, 2))),
            [(_, Token::Word(_)), ..] => return Err(format!("column {}: `=` is missing; only `name = value` is supported", at(rest, 1))),
            _ => return Err(format!("column {}: a name is missing: state, outcome, workflow or labels.KEY", at(rest, 0))),
        };
        term(name, value, query).map_err(|fault| match fault {
            Fault::Name(why) => format!("column {}: {why}", at(rest, 0)),
            Fault::Value(why) => format!("column {place}: {why}"),
        })?;
        rest = rest.get(3..).unwrap_or_default();
        match rest {
            [] => {}
            [(_, Token::Word(word)), ..] if word.eq_ignore_ascii_case("AND") => {
                if rest.len() == 1 {
                    return Err(format!("column {end}: a term is missing after AND"));
                }
                rest = rest.get(1..).unwrap_or_default();
            }
            _ => return Err(format!("column {}: AND is missing; OR, NOT and brackets are not supported", at(rest, 0))),
        }
    }
    Ok(())
}

/// Which side of a term is wrong, and why.
enum Fault {
    Name(String),
    Value(String),
}

fn term(name: &str, value: &str, query: &mut Query) -> Result<(), Fault> {
    match name {
        "state" if query.states.is_empty() => query.states.push(state(value)?),
        "outcome" if query.outcomes.is_empty() => query.outcomes.push(outcome(value)?),
        "workflow" if query.workflow.is_none() => query.workflow = Some(value.to_owned()),
        "state" | "outcome" | "workflow" => return Err(Fault::Name(format!("{name} is given twice, and no run has two"))),
        _ => match name.strip_prefix("labels.") {
            Some(key) if !key.is_empty() => query.labels.push((key.to_owned(), value.to_owned())),
            _ => return Err(Fault::Name(format!("there is no {name:?} to filter by: use state, outcome, workflow or labels.KEY"))),
        },
    }
    Ok(())
}

fn state(value: &str) -> Result<State, Fault> {
    let meant = || known("OUTCOME_", value, &OUTCOMES).map(|(name, _)| format!("outcome = {name}"));
    known("RUN_STATE_", value, &STATES).map(|(_, state)| state).ok_or_else(|| unknown("state", value, &STATES, meant()))
}

fn outcome(value: &str) -> Result<Outcome, Fault> {
    let meant = || known("RUN_STATE_", value, &STATES).map(|(name, _)| format!("state = {name}"));
    known("OUTCOME_", value, &OUTCOMES).map(|(_, outcome)| outcome).ok_or_else(|| unknown("outcome", value, &OUTCOMES, meant()))
}

/// Finds a word among those of the API, in any case and with or without the API's prefix.
fn known<T: Copy>(prefix: &str, value: &str, all: &[(&'static str, T)]) -> Option<(&'static str, T)> {
    let upper = value.to_ascii_uppercase();
    let short = upper.strip_prefix(prefix).unwrap_or(&upper);
    all.iter().find(|(name, _)| *name == short).copied()
}

fn unknown<T>(what: &str, value: &str, all: &[(&str, T)], meant: Option<String>) -> Fault {
    let names = all.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let meant = meant.map_or_else(String::new, |term| format!("did you mean `{term}`? or "));
    Fault::Value(format!("{value:?} is no {what}: {meant}use one of {names}"))
}

fn tokens(filter: &str) -> Result<Vec<(Place, Token)>, String> {
    let mut tokens = Vec::new();
    let mut chars = (1..).zip(filter.chars()).peekable();
    while let Some((place, first)) = chars.next() {
        match first {
            ' ' | '\t' | '\n' => {}
            '=' => tokens.push((place, Token::Equals)),
            '"' => {
                let mut text = String::new();
                loop {
                    match chars.next() {
                        Some((_, '"')) => break,
                        Some((_, '\\')) => text.extend(chars.next().map(|(_, escaped)| escaped)),
                        Some((_, other)) => text.push(other),
                        None => return Err(format!("column {place}: the text that begins here has no closing quote")),
                    }
                }
                tokens.push((place, Token::Text(text)));
            }
            _ if is_word(first) => {
                let mut word = String::from(first);
                while let Some((_, next)) = chars.next_if(|(_, next)| is_word(*next)) {
                    word.push(next);
                }
                tokens.push((place, Token::Word(word)));
            }
            other => return Err(format!("column {place}: {other:?} is not supported here; put values in double quotes")),
        }
    }
    Ok(tokens)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/')
}
