//! Tokens of scripted replies, counted with o200k, so that a script's money is arithmetic.
//!
//! The count is over a rendering that a person can repeat by hand. Input: the instructions; for each tool its name, its
//! description and its schema as compact JSON; for each message 4, and its text, its calls (name and arguments as compact
//! JSON) or its result. Output: the text, and each call's name and arguments. Each of these is counted by itself.

use std::sync::Arc;

use bpe_openai::{Tokenizer, o200k_base};

use crate::kernel::message::Part;
use crate::kernel::{AssistantMessage, Message, ReplyCall, Request, ToolSpec};

/// What a message costs beside its words.
const MESSAGE_TOKENS: i64 = 4;
/// What is sealed is base64 for the most part, of which nobody but its provider knows the tokens.
const CARRIED_BYTES_PER_TOKEN: usize = 3;

fn count(tokenizer: &Tokenizer, text: &str) -> i64 {
    if text.is_empty() { 0 } else { i64::try_from(tokenizer.count(text)).unwrap_or(i64::MAX) }
}

/// Returns the input tokens of a request.
pub fn input_tokens(request: &Request) -> i64 {
    // Loading takes tens of milliseconds and megabytes, once, and only where something is scripted.
    let tokenizer = o200k_base();
    let messages: i64 = request.messages.iter().map(|message| MESSAGE_TOKENS + message_tokens(tokenizer, message)).sum();
    agent_tokens(&request.instructions, &request.tools) + messages
}

/// Returns the tokens of what every request of an agent repeats.
pub fn agent_tokens(instructions: &str, tools: &[ToolSpec]) -> i64 {
    let tokenizer = o200k_base();
    let tool = |tool: &ToolSpec| {
        count(tokenizer, &tool.name) + count(tokenizer, &tool.description) + count(tokenizer, &tool.parameters.to_string())
    };
    count(tokenizer, instructions) + tools.iter().map(tool).sum::<i64>()
}

/// Returns the tokens of a piece of a conversation, with those of what is carried along unread, such as sealed reasoning.
pub fn messages_tokens(messages: &[Arc<Message>]) -> i64 {
    let tokenizer = o200k_base();
    let one = |message: &Arc<Message>| MESSAGE_TOKENS + message_tokens(tokenizer, message) + carried_tokens(message);
    messages.iter().map(one).sum()
}

fn carried_tokens(message: &Message) -> i64 {
    let Message::Assistant(AssistantMessage { carried: Some(carried), .. }) = message else { return 0 };
    let bytes: usize = carried.parts.iter().map(Part::bytes).sum();
    i64::try_from(bytes / CARRIED_BYTES_PER_TOKEN).unwrap_or(i64::MAX)
}

fn message_tokens(tokenizer: &Tokenizer, message: &Message) -> i64 {
    match message {
        Message::User { text } => count(tokenizer, text),
        Message::Tool(result) => count(tokenizer, &result.output),
        Message::Assistant(reply) => assistant_tokens(tokenizer, reply),
    }
}

fn assistant_tokens(tokenizer: &Tokenizer, reply: &AssistantMessage) -> i64 {
    let calls: i64 = reply.calls.iter().map(|call| count(tokenizer, &call.tool) + count(tokenizer, &call.args.replay())).sum();
    count(tokenizer, &reply.text) + calls
}

/// Returns the output tokens of a reply.
pub fn output_tokens(text: &str, calls: &[ReplyCall]) -> i64 {
    let tokenizer = o200k_base();
    let calls: i64 = calls.iter().map(|call| count(tokenizer, &call.tool) + count(tokenizer, &call.args_raw)).sum();
    count(tokenizer, text) + calls
}
