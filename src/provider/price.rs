//! The price book: what models cost, as data.

use std::collections::BTreeMap;

use crate::kernel::Price;

/// Prices by provider and model.
#[derive(Clone, Debug, Default)]
pub struct Book {
    version: String,
    prices: BTreeMap<(String, String), Price>,
}

impl Book {
    /// Returns the book's version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns a model's price and where it comes from.
    pub fn price(&self, provider: &str, model: &str) -> Option<(Price, String)> {
        let price = self.prices.get(&(provider.to_owned(), model.to_owned()))?;
        Some((*price, self.version.clone()))
    }
}
