//! Google's generateContent API, as the Gemini API and Vertex AI speak it.
//!
//! Source: Gemini API reference, "Generating content" (v1beta), "Function calling" and "Thought signatures", and recorded
//! answers.

mod decode;
pub mod encode;
mod parts;
mod usage;

pub use decode::GeminiReader;
pub use encode::encode;

use super::exchange::Family;
use crate::kernel::Request;

/// The header in which the key goes out.
pub const KEY_HEADER: &str = "x-goog-api-key";

/// The family. All hosts speak it alike.
#[derive(Clone, Copy, Debug)]
pub struct Gemini;

impl Family for Gemini {
    type Reader = GeminiReader;

    fn path(&self, request: &Request) -> String {
        let model = &request.model.model;
        // A tuned model, or one of another publisher, is named with its own collection.
        let collection = if model.contains('/') { "" } else { "models/" };
        format!("{collection}{}:streamGenerateContent?alt=sse", escaped(model))
    }

    fn encode(&self, request: &Request) -> Result<Vec<u8>, serde_json::Error> {
        encode(request)
    }
}

/// Returns a model's name as a part of a URL's path.
fn escaped(model: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'@' | b'/');
    model.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn a_models_name_cannot_leave_its_place_in_the_path() {
        assert_eq!(escaped("gemini-2.5-flash"), "gemini-2.5-flash");
        assert_eq!(escaped("tunedModels/a b?key=1#x"), "tunedModels/a%20b%3Fkey%3D1%23x");
    }
}
