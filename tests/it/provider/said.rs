//! A request's conversation read back from its wire form, whatever the family: who speaks, what is asked, what is answered.
//! It checks no law.

use serde_json::Value;

/// One thing in a request's conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// Words of the user, or instructions.
    User,
    /// Anything of the model's that is no call.
    Model,
    /// A call.
    Call { id: String, name: String, args: Value },
    /// A result, with what the family says of it beside the words.
    Result { id: String, words: String, failed: Option<bool>, name: Option<String> },
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn call(id: &Value, name: &Value, args: &Value) -> Said {
    let args = args.as_str().map_or_else(|| args.clone(), |raw| serde_json::from_str(raw).unwrap_or_default());
    Said::Call { id: text(id), name: text(name), args }
}

fn result(id: &Value, words: &Value) -> Said {
    Said::Result { id: text(id), words: text(words), failed: None, name: None }
}

/// Reads Chat Completions, and Ollama's form of it.
pub fn in_chat(body: &Value) -> Vec<Said> {
    let of_message = |message: &Value| match message["role"].as_str() {
        Some("assistant") => {
            let calls = list(&message["tool_calls"]).iter();
            let calls = calls.map(|asked| call(&asked["id"], &asked["function"]["name"], &asked["function"]["arguments"]));
            std::iter::once(Said::Model).chain(calls).collect()
        }
        Some("tool") => {
            let name = message.get("tool_name").map(text);
            vec![Said::Result { id: text(&message["tool_call_id"]), words: text(&message["content"]), failed: None, name }]
        }
        _ => vec![Said::User],
    };
    list(&body["messages"]).iter().flat_map(of_message).collect()
}

/// Reads Responses.
pub fn in_input(body: &Value) -> Vec<Said> {
    let of_item = |item: &Value| match (item["type"].as_str(), item["role"].as_str()) {
        (Some("function_call"), _) => call(&item["call_id"], &item["name"], &item["arguments"]),
        (Some("function_call_output"), _) => result(&item["call_id"], &item["output"]),
        (_, Some("user")) => Said::User,
        _ => Said::Model,
    };
    list(&body["input"]).iter().map(of_item).collect()
}

/// Reads Anthropic's Messages.
pub fn in_blocks(body: &Value) -> Vec<Said> {
    let of_block = |role: &Value, block: &Value| match block["type"].as_str() {
        Some("tool_use") => call(&block["id"], &block["name"], &block["input"]),
        Some("tool_result") => {
            let failed = Some(block["is_error"] == true);
            Said::Result { id: text(&block["tool_use_id"]), words: text(&block["content"]), failed, name: None }
        }
        _ if role == "user" => Said::User,
        _ => Said::Model,
    };
    list(&body["messages"]).iter().flat_map(|turn| list(&turn["content"]).iter().map(|block| of_block(&turn["role"], block))).collect()
}

/// Reads generateContent.
pub fn in_parts(body: &Value) -> Vec<Said> {
    let of_part = |role: &Value, part: &Value| {
        if let Some(asked) = part.get("functionCall") {
            return call(&asked["id"], &asked["name"], &asked["args"]);
        }
        let Some(answer) = part.get("functionResponse") else { return if role == "user" { Said::User } else { Said::Model } };
        let (failed, words) = match answer["response"].get("error") {
            Some(words) => (true, text(words)),
            None => (false, text(&answer["response"]["output"])),
        };
        Said::Result { id: text(&answer["id"]), words, failed: Some(failed), name: Some(text(&answer["name"])) }
    };
    list(&body["contents"]).iter().flat_map(|turn| list(&turn["parts"]).iter().map(|part| of_part(&turn["role"], part))).collect()
}
