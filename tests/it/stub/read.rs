//! Requests of every wire family, read back into what an adapter encoded.

use std::sync::Arc;

use serde_json::Value;
use wren::kernel::{Args, AssistantMessage, Call, CallId, Effect, Message, ModelSpec, Request, ToolResult, ToolSpec};

use super::Wire;

/// What was asked, as far as a request tells.
#[derive(Default)]
pub struct Asked {
    instructions: String,
    messages: Vec<Message>,
    tools: Vec<ToolSpec>,
    /// What the request brings back of what a model signed or encrypted, in order.
    pub sealed: Vec<String>,
}

impl Asked {
    /// Reads the body of a request.
    pub fn read(wire: Wire, body: &Value) -> Self {
        let mut asked = Self::default();
        match wire {
            Wire::Chat => asked.chat(body),
            Wire::Responses => asked.responses(body),
            Wire::Messages => asked.anthropic(body),
            Wire::Gemini => asked.gemini(body),
            Wire::Ollama => asked.ollama(body),
        }
        asked
    }

    /// Returns it as the request that the adapter was given.
    pub fn into_request(self, model: &str, max_output: i64) -> Request {
        let turns = self.messages.iter().filter(|message| matches!(message, Message::Assistant(_))).count();
        Request {
            agent: String::new(),
            model: Arc::new(ModelSpec {
                alias: String::new(),
                provider: "stub".to_owned(),
                model: model.to_owned(),
                max_output,
                temperature: None,
                top_p: None,
                price: None,
                price_version: String::new(),
                window_tokens: None,
                scripted: None,
                fallback: Vec::new(),
            }),
            instructions: self.instructions.into(),
            messages: self.messages.into_iter().map(Arc::new).collect(),
            tools: self.tools.into(),
            max_output,
            turn: u32::try_from(turns + 1).unwrap(),
            attempt: 1,
            purpose: wren::kernel::event::Purpose::Task,
        }
    }

    fn chat(&mut self, body: &Value) {
        for entry in list(&body["messages"]) {
            match text(&entry["role"]) {
                "system" => self.instructions = text(&entry["content"]).to_owned(),
                "user" => self.user(text(&entry["content"])),
                "assistant" => {
                    self.says(text(&entry["content"]));
                    for call in list(&entry["tool_calls"]) {
                        let function = &call["function"];
                        self.calls(text(&call["id"]), text(&function["name"]), text(&function["arguments"]));
                    }
                }
                _ => self.result(text(&entry["tool_call_id"]), "", true, text(&entry["content"])),
            }
        }
        list(&body["tools"]).iter().for_each(|tool| self.tool(&tool["function"], "parameters"));
    }

    fn responses(&mut self, body: &Value) {
        self.instructions = text(&body["instructions"]).to_owned();
        for item in list(&body["input"]) {
            match (text(&item["type"]), text(&item["role"])) {
                ("message", "assistant") => list(&item["content"]).iter().for_each(|part| self.says(text(&part["text"]))),
                ("message", _) => list(&item["content"]).iter().for_each(|part| self.user(text(&part["text"]))),
                ("function_call", _) => self.calls(text(&item["call_id"]), text(&item["name"]), text(&item["arguments"])),
                ("function_call_output", _) => self.result(text(&item["call_id"]), "", true, text(&item["output"])),
                _ => {
                    self.reply();
                    self.sealed.push(text(&item["encrypted_content"]).to_owned());
                }
            }
        }
        list(&body["tools"]).iter().for_each(|tool| self.tool(tool, "parameters"));
    }

    fn anthropic(&mut self, body: &Value) {
        self.instructions = list(&body["system"]).iter().map(|block| text(&block["text"])).collect();
        for turn in list(&body["messages"]) {
            for block in list(&turn["content"]) {
                match (text(&block["type"]), text(&turn["role"])) {
                    ("text", "user") => self.user(text(&block["text"])),
                    ("text", _) => self.says(text(&block["text"])),
                    ("tool_use", _) => self.calls(text(&block["id"]), text(&block["name"]), &block["input"].to_string()),
                    ("tool_result", _) => {
                        let ok = block["is_error"] != true;
                        self.result(text(&block["tool_use_id"]), "", ok, text(&block["content"]));
                    }
                    _ => {
                        self.reply();
                        self.sealed.push(text(&block["signature"]).to_owned());
                    }
                }
            }
        }
        list(&body["tools"]).iter().for_each(|tool| self.tool(tool, "input_schema"));
    }

    fn gemini(&mut self, body: &Value) {
        self.instructions = list(&body["systemInstruction"]["parts"]).iter().map(|part| text(&part["text"])).collect();
        for content in list(&body["contents"]) {
            for part in list(&content["parts"]) {
                if let Some(signature) = part["thoughtSignature"].as_str() {
                    self.sealed.push(signature.to_owned());
                }
                if let Some(words) = part["text"].as_str() {
                    if content["role"] == "user" { self.user(words) } else { self.says(words) }
                } else if let Some(call) = part["functionCall"].as_object() {
                    self.calls(text(&call["id"]), text(&call["name"]), &call["args"].to_string());
                } else {
                    let answer = &part["functionResponse"];
                    let (output, error) = (answer["response"]["output"].as_str(), answer["response"]["error"].as_str());
                    self.result(text(&answer["id"]), text(&answer["name"]), output.is_some(), output.or(error).unwrap());
                }
            }
        }
        let tools = list(&body["tools"]).iter().flat_map(|tools| list(&tools["functionDeclarations"]));
        tools.for_each(|tool| self.tool(tool, "parametersJsonSchema"));
    }

    fn ollama(&mut self, body: &Value) {
        for entry in list(&body["messages"]) {
            match text(&entry["role"]) {
                "system" => self.instructions = text(&entry["content"]).to_owned(),
                "user" => self.user(text(&entry["content"])),
                "assistant" => {
                    self.says(text(&entry["content"]));
                    for call in list(&entry["tool_calls"]) {
                        let function = &call["function"];
                        self.calls(text(&call["id"]), text(&function["name"]), &function["arguments"].to_string());
                    }
                }
                _ => self.result(text(&entry["tool_call_id"]), text(&entry["tool_name"]), true, text(&entry["content"])),
            }
        }
        list(&body["tools"]).iter().for_each(|tool| self.tool(&tool["function"], "parameters"));
    }

    fn user(&mut self, words: &str) {
        self.messages.push(Message::User { text: words.to_owned() });
    }

    fn says(&mut self, words: &str) {
        self.reply().text.push_str(words);
    }

    fn calls(&mut self, id: &str, tool: &str, args: &str) {
        let call = Call { id: CallId::from_text(id), provider_id: None, tool: tool.to_owned(), args: Args::parse(args) };
        self.reply().calls.push(call);
    }

    fn result(&mut self, id: &str, tool: &str, ok: bool, output: &str) {
        let result = ToolResult { call_id: CallId::from_text(id), tool: tool.to_owned(), ok, output: output.to_owned() };
        self.messages.push(Message::Tool(result));
    }

    /// The reply whose pieces are being read.
    fn reply(&mut self) -> &mut AssistantMessage {
        if !matches!(self.messages.last(), Some(Message::Assistant(_))) {
            self.messages.push(Message::Assistant(AssistantMessage::default()));
        }
        let Some(Message::Assistant(reply)) = self.messages.last_mut() else { unreachable!() };
        reply
    }

    fn tool(&mut self, tool: &Value, parameters: &str) {
        self.tools.push(ToolSpec {
            name: text(&tool["name"]).to_owned(),
            description: text(&tool["description"]).to_owned(),
            parameters: tool[parameters].clone(),
            effect: Effect::ReadOnly,
            source: String::new(),
            spawn: None,
        });
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
