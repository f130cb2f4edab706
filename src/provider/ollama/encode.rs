//! Requests to Ollama's chat bodies. Pure, and stable: the bytes up to the end of the messages are the start of the next
//! turn's, so that the server's cache of the prompt goes on hitting.

use serde::Serialize;
use serde_json::Value;

use crate::kernel::{Args, AssistantMessage, Message, Request, ToolSpec};

/// Returns the body of a request.
///
/// # Errors
/// A value that has no JSON, such as a temperature that is no number.
pub fn encode(request: &Request) -> Result<Vec<u8>, serde_json::Error> {
    let system = (!request.instructions.is_empty()).then(|| Entry::System { content: &request.instructions });
    serde_json::to_vec(&Body {
        model: &request.model.model,
        tools: request.tools.iter().map(tool).collect(),
        messages: system.into_iter().chain(request.messages.iter().map(|message| entry(message))).collect(),
        stream: true,
        options: Options { num_predict: request.max_output, temperature: request.model.temperature, top_p: request.model.top_p },
    })
}

// What changes from turn to turn comes after the messages, and they only grow.
#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    messages: Vec<Entry<'a>>,
    stream: bool,
    options: Options,
}

#[derive(Serialize)]
struct Options {
    num_predict: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
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
    description: &'a str,
    parameters: &'a Value,
}

fn tool(tool: &ToolSpec) -> Tool<'_> {
    Tool { kind: "function", function: Function { name: &tool.name, description: &tool.description, parameters: &tool.parameters } }
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
        content: &'a str,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<Asked<'a>>,
    },
    // Older servers know a result by its tool's name, newer ones by its call's id.
    Tool {
        content: &'a str,
        tool_name: &'a str,
        tool_call_id: &'a str,
    },
}

#[derive(Serialize)]
struct Asked<'a> {
    id: &'a str,
    function: AskedFunction<'a>,
}

#[derive(Serialize)]
struct AskedFunction<'a> {
    name: &'a str,
    arguments: Arguments<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Arguments<'a> {
    Whole(&'a Value),
    // What cannot be parsed cannot be sent; its result tells the model what was wrong with it.
    Broken {},
}

fn entry(message: &Message) -> Entry<'_> {
    match message {
        Message::User { text } => Entry::User { content: text },
        Message::Assistant(reply) => assistant(reply),
        Message::Tool(result) => Entry::Tool { content: &result.output, tool_name: &result.tool, tool_call_id: result.call_id.as_str() },
    }
}

/// Thinking is not sent back: the templates of most models drop it. The words of a refusal stand for a text.
fn assistant(reply: &AssistantMessage) -> Entry<'_> {
    let content = if reply.text.is_empty() { reply.refusal.as_deref().unwrap_or_default() } else { reply.text.as_str() };
    let tool_calls = reply.calls.iter().map(|call| {
        let arguments = match &call.args {
            Args::Json(value) => Arguments::Whole(value),
            Args::Broken { .. } => Arguments::Broken {},
        };
        Asked { id: call.id.as_str(), function: AskedFunction { name: &call.tool, arguments } }
    });
    Entry::Assistant { content, tool_calls: tool_calls.collect() }
}
