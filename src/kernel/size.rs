//! How many tokens a piece of a request can have at most, from its bytes: no tokenizer makes more tokens than there are
//! bytes. It counts no real tokens and knows no model.

use super::agent::AgentSpec;
use super::message::{Message, Part};

/// The most that a provider's own framing adds to one message or call.
pub(super) const FRAME_TOKENS_MAX: i64 = 16;

/// The most that a provider's own framing adds to one tool.
const TOOL_FRAME_TOKENS_MAX: i64 = 64;

/// Returns the bound of a bare text.
pub(super) fn of_text(text: &str) -> i64 {
    i64::try_from(text.len()).unwrap_or(i64::MAX)
}

/// Returns the bound of what every request of an agent repeats: its instructions and its tools.
pub(super) fn of_agent(agent: &AgentSpec) -> i64 {
    let tools = agent
        .tools
        .iter()
        .map(|tool| of_text(&tool.name) + of_text(&tool.description) + of_text(&tool.parameters.to_string()) + TOOL_FRAME_TOKENS_MAX);
    of_text(&agent.instructions) + tools.sum::<i64>() + FRAME_TOKENS_MAX
}

/// Returns the bound of one message with its frame.
pub(super) fn of_message(message: &Message) -> i64 {
    FRAME_TOKENS_MAX
        + match message {
            Message::User { text } => of_text(text),
            Message::Tool(result) => of_text(&result.output),
            Message::Assistant(reply) => {
                let calls = reply.calls.iter().map(|call| of_text(&call.tool) + of_text(&call.args.shown()) + FRAME_TOKENS_MAX);
                let parts: usize = reply.carried.as_ref().map_or(0, |carried| carried.parts.iter().map(Part::bytes).sum());
                of_text(&reply.text)
                    + reply.refusal.as_deref().map_or(0, of_text)
                    + calls.sum::<i64>()
                    + i64::try_from(parts).unwrap_or(i64::MAX)
            }
        }
}
