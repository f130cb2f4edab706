//! Conversations as the API shows them.

use super::v1;
use crate::kernel::{AssistantMessage, Message};

/// Returns the instructions as the conversation's first message; `None` if there are none.
pub fn system(instructions: &str) -> Option<v1::Message> {
    (!instructions.is_empty()).then(|| v1::Message { role: v1::Role::System.into(), text: instructions.to_owned(), ..Default::default() })
}

/// Returns one entry of a transcript.
pub fn message(message: &Message) -> v1::Message {
    match message {
        Message::User { text } => v1::Message { role: v1::Role::User.into(), text: text.clone(), ..Default::default() },
        Message::Assistant(reply) => assistant(reply),
        Message::Tool(result) => v1::Message {
            role: v1::Role::Tool.into(),
            text: result.output.clone(),
            tool_call_id: result.call_id.to_string(),
            tool: result.tool.clone(),
            is_error: !result.ok,
            ..Default::default()
        },
    }
}

/// Returns a reply.
pub fn assistant(reply: &AssistantMessage) -> v1::Message {
    let calls =
        reply.calls.iter().map(|call| v1::ToolCall { call_id: call.id.to_string(), tool: call.tool.clone(), args_json: call.args.shown() });
    v1::Message {
        role: v1::Role::Assistant.into(),
        text: reply.text.clone(),
        tool_calls: calls.collect(),
        refusal: reply.refusal.clone().unwrap_or_default(),
        reasoning: reply.reasoning.clone().unwrap_or_default(),
        ..Default::default()
    }
}
