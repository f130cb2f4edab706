//! Requests to Responses bodies. Pure, and stable: the bytes up to the end of the input are the start of the next turn's,
//! so that a provider's prompt cache goes on hitting.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;

use crate::kernel::{AssistantMessage, Call, Message, Request, ToolSpec};
use crate::provider::layout::{Piece, pieces};
use crate::provider::names::sendable;

/// Models that do not reason, by the beginnings of their names. They refuse a request for encrypted reasoning.
const UNREASONING: [&str; 3] = ["gpt-3", "gpt-4", "chatgpt-"];

/// Returns the body of a request.
///
/// # Errors
/// A value that has no JSON, such as a temperature that is no number.
pub fn encode(request: &Request) -> Result<Vec<u8>, serde_json::Error> {
    let model = request.model.model.as_str();
    let bare = model.rsplit('/').next().unwrap_or(model);
    let reasons = !UNREASONING.iter().any(|unreasoning| bare.starts_with(unreasoning));
    serde_json::to_vec(&Body {
        model,
        instructions: &request.instructions,
        tools: request.tools.iter().map(Tool::of).collect(),
        input: input(request),
        stream: true,
        store: false,
        include: if reasons { &["reasoning.encrypted_content"] } else { &[] },
        max_output_tokens: request.max_output,
        temperature: request.model.temperature,
        top_p: request.model.top_p,
    })
}

// What changes from turn to turn comes after the input, and that only grows.
#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    instructions: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    input: Vec<Item<'a>>,
    stream: bool,
    store: bool,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    include: &'a [&'a str],
    max_output_tokens: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
}

#[derive(Serialize)]
struct Tool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    description: &'a str,
    parameters: &'a Value,
    // Left out, the API makes it true, and refuses schemas with optional fields.
    strict: bool,
}

impl<'a> Tool<'a> {
    fn of(tool: &'a ToolSpec) -> Self {
        Self { kind: "function", name: &tool.name, description: &tool.description, parameters: &tool.parameters, strict: false }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Item<'a> {
    Ours(Ours<'a>),
    Theirs(&'a Value),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Ours<'a> {
    Message {
        role: &'static str,
        content: [Content<'a>; 1],
        #[serde(skip_serializing_if = "Option::is_none")]
        phase: Option<&'a Value>,
    },
    FunctionCall {
        call_id: &'a str,
        name: Cow<'a, str>,
        arguments: String,
    },
    FunctionCallOutput {
        call_id: &'a str,
        output: &'a str,
    },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Content<'a> {
    InputText { text: &'a str },
    OutputText { text: &'a str },
}

fn input(request: &Request) -> Vec<Item<'_>> {
    let mut items = Vec::new();
    for message in &request.messages {
        match &**message {
            Message::User { text } => {
                items.push(Item::Ours(Ours::Message { role: "user", content: [Content::InputText { text }], phase: None }));
            }
            Message::Assistant(reply) => items.extend(reply_items(reply, request)),
            // The kernel lists results in the order asked, whatever finished first.
            Message::Tool(result) => {
                items.push(Item::Ours(Ours::FunctionCallOutput { call_id: result.call_id.as_str(), output: &result.output }));
            }
        }
    }
    items
}

fn reply_items<'a>(reply: &'a AssistantMessage, request: &Request) -> impl Iterator<Item = Item<'a>> {
    pieces(reply, &request.model).into_iter().filter_map(|piece| match piece {
        Piece::Text("", _) => None,
        Piece::Text(text, beside) => {
            let phase = beside.and_then(|beside| beside.get("phase"));
            Some(Item::Ours(Ours::Message { role: "assistant", content: [Content::OutputText { text }], phase }))
        }
        Piece::Call(call, _) => Some(Item::Ours(call_item(call))),
        Piece::Opaque(value) => Some(Item::Theirs(value)),
    })
}

fn call_item(call: &Call) -> Ours<'_> {
    // Wren's id, not the provider's: it is never missing, never twice there, and in a form that all accept.
    Ours::FunctionCall { call_id: call.id.as_str(), name: sendable(&call.tool), arguments: call.args.replay() }
}
