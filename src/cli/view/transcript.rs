//! A conversation as text.

use super::Paint;
use super::text::{clean, one_line};
use crate::wire::v1::{Message, Role};

/// Returns one message: who, then the words, then the calls that it asks for.
pub fn message(message: &Message, paint: Paint) -> String {
    let who = match message.role() {
        Role::System => "instructions".to_owned(),
        Role::User => "user".to_owned(),
        Role::Assistant => "assistant".to_owned(),
        Role::Tool => {
            let failed = if message.is_error { ", not done" } else { "" };
            format!("result of {} ({}{failed})", one_line(&message.tool), one_line(&message.tool_call_id))
        }
        Role::Unspecified => "other".to_owned(),
    };
    let mut out = format!("{}\n", paint.cyan(&format!("── {who} ──")));
    for (label, text) in [("thought: ", &message.reasoning), ("", &message.text), ("refused: ", &message.refusal)] {
        if !text.is_empty() {
            out.push_str(&format!("{label}{}\n", clean(text).trim_end_matches('\n')));
        }
    }
    for call in &message.tool_calls {
        out.push_str(&format!("{} {} {} ({})\n", paint.cyan("→"), one_line(&call.tool), clean(&call.args_json), one_line(&call.call_id)));
    }
    out
}
