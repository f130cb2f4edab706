//! A request as Chat Completions wants it. Pure, and stable: a later turn's request begins with the bytes of an earlier
//! one's messages, so that prompt caches hit.

use serde_json::{Map, Value, json};

use crate::kernel::{Message, Request};

/// Which name the output limit goes by: OpenAI's own API has renamed it, and compatible servers know the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitName {
    /// `max_completion_tokens`.
    MaxCompletionTokens,
    /// `max_tokens`.
    MaxTokens,
}

/// Returns the request's body.
pub fn encode(request: &Request, limit: LimitName) -> Value {
    let mut body = Map::new();
    body.insert("model".to_owned(), json!(request.model.model));
    body.insert("messages".to_owned(), Value::Array(messages(request)));
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            json!({"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters}})
        });
        body.insert("tools".to_owned(), tools.collect());
    }
    let limit = match limit {
        LimitName::MaxCompletionTokens => "max_completion_tokens",
        LimitName::MaxTokens => "max_tokens",
    };
    body.insert(limit.to_owned(), json!(request.max_output));
    if let Some(temperature) = request.model.temperature {
        body.insert("temperature".to_owned(), json!(temperature));
    }
    if let Some(top_p) = request.model.top_p {
        body.insert("top_p".to_owned(), json!(top_p));
    }
    body.insert("stream".to_owned(), json!(true));
    body.insert("stream_options".to_owned(), json!({"include_usage": true}));
    Value::Object(body)
}

fn messages(request: &Request) -> Vec<Value> {
    let system = (!request.instructions.is_empty()).then(|| json!({"role": "system", "content": *request.instructions}));
    system.into_iter().chain(request.messages.iter().map(|said| message(said))).collect()
}

fn message(message: &Message) -> Value {
    match message {
        Message::User { text } => json!({"role": "user", "content": text}),
        Message::Tool(result) => json!({"role": "tool", "tool_call_id": result.call_id.as_str(), "content": result.output}),
        Message::Assistant(reply) => {
            let mut encoded = Map::new();
            encoded.insert("role".to_owned(), json!("assistant"));
            // Servers differ on whether a message with calls may have an empty text; all take null.
            let text = reply.refusal.as_ref().filter(|_| reply.text.is_empty()).unwrap_or(&reply.text);
            encoded.insert("content".to_owned(), if text.is_empty() && !reply.calls.is_empty() { Value::Null } else { json!(text) });
            if !reply.calls.is_empty() {
                // Wren's own ids: providers repeat theirs, or leave them out.
                let calls = reply.calls.iter().map(|call| {
                    json!({"id": call.id.as_str(), "type": "function", "function": {"name": call.tool, "arguments": call.args.replay()}})
                });
                encoded.insert("tool_calls".to_owned(), calls.collect());
            }
            Value::Object(encoded)
        }
    }
}
