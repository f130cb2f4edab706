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
        let (name, value) = match rest {
            [(_, Token::Word(name)), (_, Token::Equals), (_, Token::Word(value) | Token::Text(value)), ..] => (name, value),
            [(_, Token::Word(_)), (_, Token::Equals), ..] => return Err(format!("column {}: a value is missing", at(rest, 2))),
            [(_, Token::Word(_)), ..] => return Err(format!("column {}: `=` is missing; only `name = value` is supported", at(rest, 1))),
            _ => return Err(format!("column {}: a name is missing: state, outcome, workflow or labels.KEY", at(rest, 0))),
        };
        term(name, value, query).map_err(|why| format!("column {}: {why}", at(rest, 0)))?;
        rest = rest.get(3..).unwrap_or_default();
        match rest {
            [] => {}
            [(_, Token::Word(word)), ..] if word == "AND" => {
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

fn term(name: &str, value: &str, query: &mut Query) -> Result<(), String> {
    match name {
        "state" if query.states.is_empty() => query.states.push(one_of("state", "RUN_STATE_", value, &STATES)?),
        "outcome" if query.outcomes.is_empty() => query.outcomes.push(one_of("outcome", "OUTCOME_", value, &OUTCOMES)?),
        "workflow" if query.workflow.is_none() => query.workflow = Some(value.to_owned()),
        "state" | "outcome" | "workflow" => return Err(format!("{name} is given twice, and no run has two")),
        _ => match name.strip_prefix("labels.") {
            Some(key) if !key.is_empty() => query.labels.push((key.to_owned(), value.to_owned())),
            _ => return Err(format!("there is no {name:?} to filter by: use state, outcome, workflow or labels.KEY")),
        },
    }
    Ok(())
}

fn one_of<T: Copy>(what: &str, prefix: &str, value: &str, all: &[(&str, T)]) -> Result<T, String> {
    let upper = value.to_ascii_uppercase();
    let short = upper.strip_prefix(prefix).unwrap_or(&upper);
    all.iter().find(|(name, _)| *name == short).map(|(_, found)| *found).ok_or_else(|| {
        let names = all.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        format!("{value:?} is no {what}: use one of {names}")
    })
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
