//! Requests to generateContent bodies. Pure, and stable: the bytes up to the end of the contents are the start of the next
//! turn's, so that the provider's implicit cache goes on hitting.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;

use crate::kernel::{Args, AssistantMessage, Call, Message, Request, ToolResult, ToolSpec};
use crate::provider::layout::{Piece, pieces};
use crate::provider::names::sendable;

/// What the API takes for the signature of a call that another model made (its documentation, "Thought signatures", FAQ).
const FOREIGN_SIGNATURE: &str = "skip_thought_signature_validator";
/// Models that check no signatures, by the beginnings of their names.
const UNCHECKED: [&str; 3] = ["gemini-1", "gemini-2", "gemma"];

/// Returns the body of a request.
///
/// # Errors
/// A value that has no JSON, such as a temperature that is no number.
pub fn encode(request: &Request) -> Result<Vec<u8>, serde_json::Error> {
    let system = (!request.instructions.is_empty()).then(|| System { parts: [Part::text(&request.instructions)] });
    serde_json::to_vec(&Body {
        tools: Tools::of(&request.tools),
        system_instruction: system,
        contents: contents(request),
        generation_config: GenerationConfig {
            max_output_tokens: request.max_output,
            temperature: request.model.temperature,
            top_p: request.model.top_p,
        },
    })
}

// What changes from turn to turn comes after the contents, and they only grow.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<[Tools<'a>; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_instruction: Option<System<'a>>,
    contents: Vec<Content<'a>>,
    generation_config: GenerationConfig,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GenerationConfig {
    max_output_tokens: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tools<'a> {
    function_declarations: Vec<Declaration<'a>>,
}

impl<'a> Tools<'a> {
    fn of(tools: &'a [ToolSpec]) -> Option<[Self; 1]> {
        let declarations = tools.iter().map(|tool| Declaration {
            name: &tool.name,
            description: &tool.description,
            parameters_json_schema: &tool.parameters,
        });
        (!tools.is_empty()).then(|| [Self { function_declarations: declarations.collect() }])
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Declaration<'a> {
    name: &'a str,
    description: &'a str,
    parameters_json_schema: &'a Value,
}

#[derive(Serialize)]
struct System<'a> {
    parts: [Part<'a>; 1],
}

#[derive(Serialize)]
struct Content<'a> {
    role: Role,
    parts: Vec<Part<'a>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Role {
    User,
    Model,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Part<'a> {
    Ours(Ours<'a>),
    Theirs(&'a Value),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Ours<'a> {
    #[serde(flatten)]
    said: PartOf<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thought_signature: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum PartOf<'a> {
    Text(&'a str),
    FunctionCall(FunctionCall<'a>),
    FunctionResponse(FunctionResponse<'a>),
}

#[derive(Serialize)]
struct FunctionCall<'a> {
    id: &'a str,
    name: Cow<'a, str>,
    args: Arguments<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Arguments<'a> {
    Whole(&'a Value),
    // What cannot be parsed cannot be sent; its result tells the model what was wrong with it.
    Broken {},
}

#[derive(Serialize)]
struct FunctionResponse<'a> {
    id: &'a str,
    name: Cow<'a, str>,
    response: Response<'a>,
}

/// The keys by which the API tells a result from an error.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum Response<'a> {
    Output(&'a str),
    Error(&'a str),
}

impl<'a> Part<'a> {
    fn of(said: PartOf<'a>, thought_signature: Option<&'a str>) -> Self {
        Self::Ours(Ours { said, thought_signature })
    }

    fn text(text: &'a str) -> Self {
        Self::of(PartOf::Text(text), None)
    }

    fn call(call: &'a Call, signature: Option<&'a str>) -> Self {
        let args = match &call.args {
            Args::Json(value) => Arguments::Whole(value),
            Args::Broken { .. } => Arguments::Broken {},
        };
        // Wren's id, not the provider's: it is never missing, and never twice there.
        Self::of(PartOf::FunctionCall(FunctionCall { id: call.id.as_str(), name: sendable(&call.tool), args }), signature)
    }

    fn result(result: &'a ToolResult) -> Self {
        let response = if result.ok { Response::Output(&result.output) } else { Response::Error(&result.output) };
        Self::of(PartOf::FunctionResponse(FunctionResponse { id: result.call_id.as_str(), name: sendable(&result.tool), response }), None)
    }
}

/// Roles take turns: all results of one reply, and the words put in after them, are one turn of the user.
fn contents(request: &Request) -> Vec<Content<'_>> {
    let mut contents: Vec<Content<'_>> = Vec::new();
    for message in &request.messages {
        let (role, parts) = match &**message {
            Message::User { text } => (Role::User, vec![Part::text(text)]),
            Message::Tool(result) => (Role::User, vec![Part::result(result)]),
            Message::Assistant(reply) => (Role::Model, reply_parts(reply, request)),
        };
        match contents.last_mut() {
            _ if parts.is_empty() => {}
            Some(last) if last.role == role => last.parts.extend(parts),
            _ => contents.push(Content { role, parts }),
        }
    }
    contents
}

fn reply_parts<'a>(reply: &'a AssistantMessage, request: &Request) -> Vec<Part<'a>> {
    let model = request.model.model.rsplit('/').next().unwrap_or_default();
    // The first call of a reply must be signed, and only that one. A call that another model made has no signature.
    let mut unsigned = Some(FOREIGN_SIGNATURE).filter(|_| !UNCHECKED.iter().any(|unchecked| model.starts_with(unchecked)));
    let mut parts = Vec::new();
    for piece in pieces(reply, &request.model) {
        let signature = |beside: Option<&'a Value>| beside.and_then(|beside| beside.get("thoughtSignature")).and_then(Value::as_str);
        match piece {
            Piece::Text("", None) => {}
            Piece::Text(text, beside) => parts.push(Part::of(PartOf::Text(text), signature(beside))),
            Piece::Call(call, beside) => {
                let instead = unsigned.take();
                parts.push(Part::call(call, signature(beside).or(instead)));
            }
            Piece::Opaque(value) => parts.push(Part::Theirs(value)),
        }
    }
    parts
}
