//! Tokens of scripted replies, counted with o200k, so that a script's money is arithmetic.
//!
//! The count is over a rendering that a person can repeat by hand. Input: the instructions; for each tool its name, its
//! description and its schema as compact JSON; for each message 4, and its text, its calls (name and arguments as compact
//! JSON) or its result. Output: the text, and each call's name and arguments. Each of these is counted by itself.

use bpe_openai::{Tokenizer, o200k_base};

use crate::kernel::{AssistantMessage, Message, ReplyCall, Request};

/// What a message costs beside its words.
const MESSAGE_TOKENS: i64 = 4;

fn count(tokenizer: &Tokenizer, text: &str) -> i64 {
    if text.is_empty() { 0 } else { i64::try_from(tokenizer.count(text)).unwrap_or(i64::MAX) }
}

/// Returns the input tokens of a request.
pub fn input_tokens(request: &Request) -> i64 {
    // Loading takes tens of milliseconds and megabytes, once, and only where something is scripted.
    let tokenizer = o200k_base();
    let tools: i64 = request
        .tools
        .iter()
        .map(|tool| count(tokenizer, &tool.name) + count(tokenizer, &tool.description) + count(tokenizer, &tool.parameters.to_string()))
        .sum();
    let messages: i64 = request.messages.iter().map(|message| MESSAGE_TOKENS + message_tokens(tokenizer, message)).sum();
    count(tokenizer, &request.instructions) + tools + messages
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
