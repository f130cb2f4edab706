//! Requests to Messages bodies. Pure, and stable: apart from the marks of the cache, the bytes up to the end of the
//! messages are the start of the next turn's.
//!
//! The API caches nothing unasked. Marks stand behind the tools and instructions, which siblings share; behind the end of
//! the last request, where its entry is found however many results have come since (the API looks back twenty blocks and
//! no further); and behind the end of this one. It allows four.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;

use crate::kernel::{Args, AssistantMessage, Call, Message, Request, ToolResult};
use crate::provider::layout::{Piece, pieces};
use crate::provider::names::sendable;

/// What stands for the words of a tool that failed without any.
const SILENT_FAILURE: &str = "the tool failed and said nothing";

/// Returns the body of a request.
///
/// # Errors
/// A value that has no JSON, such as a temperature that is no number.
pub fn encode(request: &Request) -> Result<Vec<u8>, serde_json::Error> {
    let system = (!request.instructions.trim().is_empty()).then(|| [Block::marked_text(&request.instructions)]);
    let last_tool = if system.is_none() { request.tools.len().checked_sub(1) } else { None };
    let tools = request.tools.iter().enumerate().map(|(index, tool)| Tool {
        name: &tool.name,
        description: &tool.description,
        input_schema: &tool.parameters,
        cache_control: (last_tool == Some(index)).then_some(Mark::EPHEMERAL),
    });
    serde_json::to_vec(&Body {
        model: &request.model.model,
        tools: tools.collect(),
        system,
        messages: turns(request),
        stream: true,
        max_tokens: request.max_output,
        temperature: request.model.temperature,
        top_p: request.model.top_p,
    })
}

// What changes from turn to turn comes after the messages, and they only grow.
#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<[Block<'a>; 1]>,
    messages: Vec<Turn<'a>>,
    stream: bool,
    max_tokens: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
}

#[derive(Serialize)]
struct Tool<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    description: &'a str,
    input_schema: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<Mark>,
}

#[derive(Serialize)]
struct Turn<'a> {
    role: Role,
    content: Vec<Block<'a>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Role {
    User,
    Assistant,
}

#[derive(Clone, Copy, Serialize)]
struct Mark {
    #[serde(rename = "type")]
    kind: &'static str,
}

impl Mark {
    const EPHEMERAL: Self = Self { kind: "ephemeral" };
}

#[derive(Serialize)]
#[serde(untagged)]
enum Block<'a> {
    Ours {
        #[serde(flatten)]
        content: Content<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<Mark>,
    },
    Theirs(&'a Value),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Content<'a> {
    Text {
        text: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        citations: Option<&'a Value>,
    },
    ToolUse {
        id: &'a str,
        name: Cow<'a, str>,
        input: Input<'a>,
    },
    ToolResult {
        tool_use_id: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        content: &'a str,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Input<'a> {
    Whole(&'a Value),
    // What cannot be parsed cannot be sent; its result tells the model what was wrong with it.
    Broken {},
}

impl<'a> Block<'a> {
    fn of(content: Content<'a>) -> Self {
        Self::Ours { content, cache_control: None }
    }

    fn text(text: &'a str, beside: Option<&'a Value>) -> Self {
        Self::of(Content::Text { text, citations: beside.and_then(|beside| beside.get("citations")) })
    }

    fn marked_text(text: &'a str) -> Self {
        Self::Ours { content: Content::Text { text, citations: None }, cache_control: Some(Mark::EPHEMERAL) }
    }

    fn call(call: &'a Call) -> Self {
        let input = match &call.args {
            Args::Json(value) => Input::Whole(value),
            Args::Broken { .. } => Input::Broken {},
        };
        // Wren's id, not the provider's: it is never missing, never twice there, and in a form that all accept.
        Self::of(Content::ToolUse { id: call.id.as_str(), name: sendable(&call.tool), input })
    }

    fn result(result: &'a ToolResult) -> Self {
        // White space alone is refused here too, and a failure must have words.
        let content = match (result.output.trim().is_empty(), result.ok) {
            (false, _) => &result.output,
            (true, true) => "",
            (true, false) => SILENT_FAILURE,
        };
        Self::of(Content::ToolResult { tool_use_id: result.call_id.as_str(), content, is_error: !result.ok })
    }
}

/// Roles take turns: all results of one reply, and the words put in after them, are one turn of the user.
fn turns(request: &Request) -> Vec<Turn<'_>> {
    let mut turns: Vec<Turn<'_>> = Vec::new();
    for message in &request.messages {
        let (role, content) = match &**message {
            Message::User { text } => (Role::User, vec![Block::text(text, None)]),
            Message::Tool(result) => (Role::User, vec![Block::result(result)]),
            Message::Assistant(reply) => (Role::Assistant, reply_blocks(reply, request)),
        };
        match turns.last_mut() {
            _ if content.is_empty() => {}
            Some(last) if last.role == role => last.content.extend(content),
            _ => turns.push(Turn { role, content }),
        }
    }
    let users = turns.iter_mut().rev().filter(|turn| turn.role == Role::User);
    for turn in users.take(2) {
        if let Some(Block::Ours { cache_control, .. }) = turn.content.last_mut() {
            *cache_control = Some(Mark::EPHEMERAL);
        }
    }
    turns
}

/// Text of white space alone is refused by the API, so it is left out.
fn reply_blocks<'a>(reply: &'a AssistantMessage, request: &Request) -> Vec<Block<'a>> {
    let blocks = pieces(reply, &request.model).into_iter().filter_map(|piece| match piece {
        Piece::Text(text, beside) => (!text.trim().is_empty()).then(|| Block::text(text, beside)),
        Piece::Call(call, _) => Some(Block::call(call)),
        Piece::Opaque(value) => Some(Block::Theirs(value)),
    });
    blocks.collect()
}
