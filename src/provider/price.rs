//! The price book: what models cost and hold, as data. It decides nothing about money; it only knows figures and where they
//! are from.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::decimal;
use crate::kernel::agent::KnownModel;
use crate::kernel::ledger::{Long, Price, Rates};

const BUILTIN: &str = include_str!("prices.yaml");
/// One USD a million tokens is a million pico-USD a token.
const PICO_SCALE: i32 = 6;
/// What prices from the config are said to come from.
const CONFIG: &str = "config";

/// Prices by provider and model.
#[derive(Clone, Debug, Default)]
pub struct Book {
    version: String,
    sources: Vec<String>,
    models: BTreeMap<(String, String), KnownModel>,
}

/// The price of one model as written down: decimal text, in USD for a million tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    /// Input.
    pub input: String,
    /// Input read from the provider's cache; as input, if absent.
    pub cache_read: Option<String>,
    /// Input written to the provider's cache; as input, if absent.
    pub cache_write: Option<String>,
    /// Output.
    pub output: String,
    /// Output that is reasoning; as output, if absent.
    pub reasoning: Option<String>,
    /// What all tokens of a call cost whose input is longer than a bound.
    pub long: Option<WrittenLong>,
    /// How many tokens a call can hold, input and output together.
    pub window_tokens: Option<i64>,
}

/// The price of calls whose input is longer than a bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenLong {
    /// The bound, in input tokens.
    pub above_tokens: i64,
    /// Input.
    pub input: String,
    /// Input read from the provider's cache; as input, if absent.
    pub cache_read: Option<String>,
    /// Input written to the provider's cache; as input, if absent.
    pub cache_write: Option<String>,
    /// Output.
    pub output: String,
    /// Output that is reasoning; as output, if absent.
    pub reasoning: Option<String>,
}

/// Written prices by provider, then by model.
pub type WrittenBook = BTreeMap<String, BTreeMap<String, Written>>;

/// Why a price book cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {why}")]
pub struct Error {
    /// The place in the book.
    pub place: String,
    /// What is wrong, and what to do.
    pub why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: String,
    sources: Vec<String>,
    providers: WrittenBook,
}

impl Book {
    /// Returns the book that Wren comes with.
    ///
    /// # Errors
    /// None, as long as the tests pass.
    pub fn builtin() -> Result<Self, Error> {
        let file: File =
            serde_yaml::from_str(BUILTIN).map_err(|error| Error { place: "prices.yaml".to_owned(), why: error.to_string() })?;
        let book = Self { version: file.version.clone(), sources: file.sources, models: BTreeMap::new() };
        book.with(&file.providers, &file.version)
    }

    /// Returns the book with prices of the config put over it.
    ///
    /// # Errors
    /// The place of a price that is no decimal number, or too large a one.
    pub fn with_overrides(self, prices: &WrittenBook) -> Result<Self, Error> {
        self.with(prices, CONFIG)
    }

    /// Returns the book's version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns where the figures are from, in words.
    pub fn sources(&self) -> &[String] {
        &self.sources
    }

    /// Returns what is known of a model; nothing, if it is not in the book.
    pub fn model(&self, provider: &str, model: &str) -> KnownModel {
        self.models.get(&(provider.to_owned(), model.to_owned())).cloned().unwrap_or_default()
    }

    /// Returns all models of the book, by provider and then by name.
    pub fn models(&self) -> impl Iterator<Item = (&str, &str, &KnownModel)> {
        self.models.iter().map(|((provider, model), known)| (provider.as_str(), model.as_str(), known))
    }

    fn with(mut self, prices: &WrittenBook, from: &str) -> Result<Self, Error> {
        for (provider, models) in prices {
            for (model, written) in models {
                let place = format!("prices.{provider}.{model}");
                let price = written.read(&place)?;
                if written.window_tokens.is_some_and(|window| window < 1) {
                    return Err(Error { place: format!("{place}.window_tokens"), why: "a window holds at least 1 token".to_owned() });
                }
                let known = self.models.entry((provider.clone(), model.clone())).or_default();
                known.price = Some((price, from.to_owned()));
                known.window_tokens = written.window_tokens.or(known.window_tokens);
            }
        }
        Ok(self)
    }
}

impl Written {
    /// Returns the price. `place` is where it is written, for the error.
    ///
    /// # Errors
    /// An amount that is no decimal number from 0, or has no place in an integer.
    pub fn read(&self, place: &str) -> Result<Price, Error> {
        let base = rates(place, &self.input, &self.output, [&self.cache_read, &self.cache_write, &self.reasoning])?;
        let long = self.long.as_ref().map(|long| {
            let place = format!("{place}.long");
            if long.above_tokens < 0 {
                return Err(Error { place: format!("{place}.above_tokens"), why: "give a number of input tokens, 0 or more".to_owned() });
            }
            let dearer = rates(&place, &long.input, &long.output, [&long.cache_read, &long.cache_write, &long.reasoning])?;
            Ok(Long { above_tokens: long.above_tokens, rates: dearer })
        });
        Ok(Price { rates: base, long: long.transpose()? })
    }
}

fn rates(place: &str, input: &str, output: &str, [cache_read, cache_write, reasoning]: [&Option<String>; 3]) -> Result<Rates, Error> {
    let amount = |field: &str, text: &str| {
        decimal::scaled(text.trim(), PICO_SCALE).ok_or_else(|| Error {
            place: format!("{place}.{field}"),
            why: format!("{text:?} is no amount of USD for a million tokens; write it like \"1.25\""),
        })
    };
    let part = |field: &str, text: &Option<String>| text.as_ref().map(|text| amount(field, text)).transpose();
    let parts = [part("cache_read", cache_read)?, part("cache_write", cache_write)?, part("reasoning", reasoning)?];
    Ok(Rates::of(amount("input", input)?, amount("output", output)?, parts))
}
