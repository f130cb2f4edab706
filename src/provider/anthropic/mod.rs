//! Anthropic's Messages API, as Anthropic and gateways that offer its form speak it.
//!
//! Source: Anthropic API reference, "Messages" and "Streaming messages", version 2023-06-01, and recorded answers.

mod blocks;
mod decode;
pub mod encode;
mod usage;

pub use decode::MessagesReader;
pub use encode::encode;

use super::exchange::Family;
use super::http::Config;
use crate::kernel::Request;

/// Headers that every request of the family carries.
pub const HEADERS: &[(&str, &str)] = &[("anthropic-version", "2023-06-01")];
/// The header in which the key goes out.
pub const KEY_HEADER: &str = "x-api-key";

/// Returns the configuration with a base URL that ends before the API's version. People write it both ways.
pub fn without_version(mut config: Config) -> Config {
    let url = config.base_url.trim_end_matches('/');
    config.base_url = url.strip_suffix("/v1").unwrap_or(url).to_owned();
    config
}

/// The family. All hosts speak it alike.
#[derive(Clone, Copy, Debug)]
pub struct Messages;

impl Family for Messages {
    type Reader = MessagesReader;

    fn path(&self, _: &Request) -> String {
        "v1/messages".to_owned()
    }

    fn encode(&self, request: &Request) -> Result<Vec<u8>, serde_json::Error> {
        encode(request)
    }
}
