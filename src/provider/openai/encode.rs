//! Requests to Chat Completions bodies. Pure, and stable: the bytes up to the end of the messages are the start of the
//! next turn's, so that a provider's prompt cache goes on hitting.

use std::borrow::Cow;

use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};

use crate::kernel::{AssistantMessage, Message, Request, ToolSpec};
use crate::provider::names::sendable;

/// Which of its two names the output limit goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitField {
    /// `max_tokens`, which every compatible server knows.
    MaxTokens,
    /// `max_completion_tokens`, which OpenAI's reasoning models insist on.
    MaxCompletionTokens,
}

/// Returns the body of a request.
///
/// # Errors
/// A value that has no JSON, such as a temperature that is no number.
pub fn encode(request: &Request, limit: LimitField) -> Result<Vec<u8>, serde_json::Error> {
    let limited = |field| (limit == field).then_some(request.max_output);
    serde_json::to_vec(&Body {
        model: &request.model.model,
        tools: Tools(&request.tools),
        messages: Messages(request),
        stream: true,
        stream_options: StreamOptions { include_usage: true },
        temperature: request.model.temperature,
        top_p: request.model.top_p,
        max_tokens: limited(LimitField::MaxTokens),
        max_completion_tokens: limited(LimitField::MaxCompletionTokens),
    })
}

// What changes from turn to turn comes after the messages, and they only grow.
#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Tools::is_empty")]
    tools: Tools<'a>,
    messages: Messages<'a>,
    stream: bool,
    stream_options: StreamOptions,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<i64>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

struct Tools<'a>(&'a [ToolSpec]);

impl Tools<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Tools<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|tool| Tool {
            kind: "function",
            function: Function { name: &tool.name, description: &tool.description, parameters: &tool.parameters },
        }))
    }
}

#[derive(Serialize)]
struct Tool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    description: &'a str,
    parameters: &'a serde_json::Value,
}

struct Messages<'a>(&'a Request);

impl Serialize for Messages<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        if !self.0.instructions.is_empty() {
            list.serialize_element(&Entry::System { content: &self.0.instructions })?;
        }
        for message in &self.0.messages {
            list.serialize_element(&match &**message {
                Message::User { text } => Entry::User { content: text },
                Message::Assistant(reply) => assistant(reply),
                // The kernel lists results in the order asked, whatever finished first.
                Message::Tool(result) => Entry::Tool { tool_call_id: result.call_id.as_str(), content: &result.output },
            })?;
        }
        list.end()
    }
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
enum Entry<'a> {
    System {
        content: &'a str,
    },
    User {
        content: &'a str,
    },
    Assistant {
        content: Option<&'a str>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<Asked<'a>>,
    },
    Tool {
        tool_call_id: &'a str,
        content: &'a str,
    },
}

#[derive(Serialize)]
struct Asked<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    function: AskedFunction<'a>,
}

#[derive(Serialize)]
struct AskedFunction<'a> {
    name: Cow<'a, str>,
    arguments: String,
}

/// Reasoning is not sent back: servers of this family ignore it or refuse it. The words of a refusal stand for a text.
fn assistant(reply: &AssistantMessage) -> Entry<'_> {
    let words = if reply.text.is_empty() { reply.refusal.as_deref().unwrap_or_default() } else { reply.text.as_str() };
    let tool_calls: Vec<Asked<'_>> = reply
        .calls
        .iter()
        .map(|call| Asked {
            // Wren's id, not the provider's: it is never missing, never twice there, and in a form that all accept.
            id: call.id.as_str(),
            kind: "function",
            function: AskedFunction { name: sendable(&call.tool), arguments: call.args.replay() },
        })
        .collect();
    // Without calls some content must be there; with calls some servers refuse an empty one.
    let content = (!words.is_empty() || tool_calls.is_empty()).then_some(words);
    Entry::Assistant { content, tool_calls }
}
