//! The price book: what models cost, as data. It decides nothing about money; it only knows figures and where they are from.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::decimal;
use crate::kernel::Price;

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
    prices: BTreeMap<(String, String), (Price, String)>,
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
        let book = Self { version: file.version.clone(), sources: file.sources, prices: BTreeMap::new() };
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

    /// Returns a model's price and where it comes from: the book's version, or `config`.
    pub fn price(&self, provider: &str, model: &str) -> Option<(Price, String)> {
        self.prices.get(&(provider.to_owned(), model.to_owned())).cloned()
    }

    fn with(mut self, prices: &WrittenBook, from: &str) -> Result<Self, Error> {
        for (provider, models) in prices {
            for (model, written) in models {
                let price = written.read(&format!("prices.{provider}.{model}"))?;
                self.prices.insert((provider.clone(), model.clone()), (price, from.to_owned()));
            }
        }
        Ok(self)
    }
}

impl Written {
    /// Returns the price in pico-USD a token. `place` is where it is written, for the error.
    ///
    /// # Errors
    /// An amount that is no decimal number from 0, or has no place in an integer.
    pub fn read(&self, place: &str) -> Result<Price, Error> {
        let amount = |field: &str, text: &str| {
            decimal::scaled(text.trim(), PICO_SCALE).ok_or_else(|| Error {
                place: format!("{place}.{field}"),
                why: format!("{text:?} is no amount of USD for a million tokens; write it like \"1.25\""),
            })
        };
        let or = |field: &str, text: &Option<String>, default: i64| text.as_ref().map_or(Ok(default), |text| amount(field, text));
        let input_pico = amount("input", &self.input)?;
        let output_pico = amount("output", &self.output)?;
        Ok(Price {
            input_pico,
            cache_read_pico: or("cache_read", &self.cache_read, input_pico)?,
            cache_write_pico: or("cache_write", &self.cache_write, input_pico)?,
            output_pico,
            reasoning_pico: or("reasoning", &self.reasoning, output_pico)?,
        })
    }
}
