//! Models of the price book, as the API shows them.

use super::v1;
use crate::kernel::agent::KnownModel;
use crate::kernel::ledger::Rates;

/// Returns what is known of a model. `ready` is whether the daemon can ask its provider.
pub fn known_model(provider: &str, model: &str, known: &KnownModel, ready: bool) -> v1::KnownModel {
    let price = known.price.as_ref();
    let long = price.and_then(|(price, _)| price.long);
    v1::KnownModel {
        provider: provider.to_owned(),
        model: model.to_owned(),
        rates: price.map(|(price, _)| rates(&price.rates)),
        long_rates: long.map(|long| rates(&long.rates)),
        long_above_tokens: long.map_or(0, |long| long.above_tokens),
        price_version: price.map(|(_, version)| version.clone()).unwrap_or_default(),
        window_tokens: known.window_tokens.unwrap_or(0),
        ready,
    }
}

fn rates(rates: &Rates) -> v1::Rates {
    v1::Rates {
        input_pico: rates.input_pico,
        cache_read_pico: rates.cache_read_pico,
        cache_write_pico: rates.cache_write_pico,
        output_pico: rates.output_pico,
        reasoning_pico: rates.reasoning_pico,
    }
}
