//! OpenAI's Responses API, as OpenAI and servers that offer its form speak it: xAI, OpenRouter, LM Studio, vLLM and more.
//!
//! Nothing is stored at the provider (`store: false`): each request holds the whole conversation, with the encrypted
//! reasoning of the turns before it.
//!
//! Source: OpenAI API reference, "Responses" and "Streaming events", and recorded answers of the servers above.

mod decode;
pub mod encode;
mod items;
mod usage;

pub use decode::ResponsesReader;
pub use encode::encode;

use super::exchange::Family;
use crate::kernel::Request;

/// The family. All hosts speak it alike.
#[derive(Clone, Copy, Debug)]
pub struct Responses;

impl Family for Responses {
    type Reader = ResponsesReader;

    fn path(&self, _: &Request) -> String {
        "responses".to_owned()
    }

    fn encode(&self, request: &Request) -> Result<Vec<u8>, serde_json::Error> {
        encode(request)
    }
}
