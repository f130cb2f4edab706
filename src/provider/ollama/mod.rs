//! Ollama's own chat API. Ollama speaks Chat Completions too; its own API alone says how many tokens were read and takes
//! the size of the context.
//!
//! Source: Ollama's API documentation, "Generate a chat completion", and recorded answers.

mod decode;
pub mod encode;

pub use decode::OllamaReader;
pub use encode::encode;

use super::exchange::Family;
use crate::kernel::Request;

/// The family. All hosts speak it alike.
#[derive(Clone, Copy, Debug)]
pub struct Ollama;

impl Family for Ollama {
    type Reader = OllamaReader;

    fn path(&self, _: &Request) -> String {
        "api/chat".to_owned()
    }

    fn encode(&self, request: &Request) -> Result<Vec<u8>, serde_json::Error> {
        encode(request)
    }
}
