//! OpenAI's Chat Completions, as OpenAI and most other servers speak it: vLLM, llama.cpp, Ollama, LM Studio, Groq,
//! OpenRouter, Mistral, DeepSeek and more.
//!
//! Source: OpenAI API reference, "Chat Completions", and the recorded answers of the servers above.

mod calls;
mod decode;
pub mod encode;
mod usage;

pub use decode::ChatReader;
pub use encode::{LimitField, encode};

use super::exchange::Family;
use crate::kernel::Request;

/// The family, as one host speaks it.
#[derive(Clone, Copy, Debug)]
pub struct Chat {
    limit: LimitField,
}

impl Chat {
    /// Returns the family as `host` speaks it.
    pub fn of(host: &str) -> Self {
        Self { limit: limit_field(host) }
    }
}

impl Family for Chat {
    type Reader = ChatReader;

    fn path(&self, _: &Request) -> String {
        "chat/completions".to_owned()
    }

    fn encode(&self, request: &Request) -> Result<Vec<u8>, serde_json::Error> {
        encode(request, self.limit)
    }
}

/// OpenAI's own reasoning models refuse `max_tokens`; other servers of the family know nothing else, or both.
fn limit_field(host: &str) -> LimitField {
    match host {
        "api.openai.com" => LimitField::MaxCompletionTokens,
        _ if host.ends_with(".openai.azure.com") || host.ends_with(".api.openai.com") => LimitField::MaxCompletionTokens,
        _ => LimitField::MaxTokens,
    }
}

#[cfg(test)]
mod tests {
    use super::{LimitField, limit_field};

    #[test]
    fn the_output_limit_goes_by_the_name_that_the_host_knows() {
        for host in ["api.openai.com", "eu.api.openai.com", "mine.openai.azure.com"] {
            assert_eq!(limit_field(host), LimitField::MaxCompletionTokens, "{host}");
        }
        for host in ["127.0.0.1", "openrouter.ai", "api.openai.com.example", "notapi.openai.com"] {
            assert_eq!(limit_field(host), LimitField::MaxTokens, "{host}");
        }
    }
}
