//! Requests as they go over the wire.

use serde_json::{Value, json};
use wren::kernel::{Args, AssistantMessage, Call, CallId, Message, Request, ToolResult};
use wren::provider::openai::{LimitField, encode};
use wren::provider::{anthropic, gemini, responses};

use super::{model, request, tool, user};

fn call(turn: u32, index: usize, args: Args) -> Call {
    Call { id: CallId::of(turn, index), provider_id: Some("call_0".to_owned()), tool: "read_file".to_owned(), args }
}

fn result(turn: u32, index: usize, output: &str) -> Message {
    Message::Tool(ToolResult { call_id: CallId::of(turn, index), tool: "read_file".to_owned(), ok: true, output: output.to_owned() })
}

fn asks(text: &str, calls: Vec<Call>) -> Message {
    Message::Assistant(AssistantMessage { text: text.to_owned(), calls, ..AssistantMessage::default() })
}

fn json_of(request: &Request, limit: LimitField) -> Value {
    serde_json::from_slice(&encode(request, limit).unwrap()).unwrap()
}

fn conversation() -> Vec<Message> {
    vec![
        user("Look."),
        asks("Looking.", vec![call(1, 0, Args::Json(json!({"path": "a"}))), call(1, 1, Args::parse("{\"q\": \"a\" \"b\"}"))]),
        result(1, 0, "text of a"),
        result(1, 1, "the arguments are not valid JSON"),
        asks("", vec![call(2, 0, Args::Json(json!({})))]),
        result(2, 0, "more"),
        asks("Done.", Vec::new()),
        user("Again."),
    ]
}

#[test]
fn a_conversation_is_one_message_for_each_reply_with_results_in_the_order_asked() {
    let tools = vec![tool("read_file", json!({"type": "object", "properties": {"path": {"type": "string"}}}))];
    let body = json_of(&request(model("gpt-x"), "Be brief.", conversation(), tools), LimitField::MaxTokens);
    assert_eq!(
        body,
        json!({
            "model": "gpt-x",
            "tools": [{"type": "function", "function": {
                "name": "read_file", "description": "does read_file",
                "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}
            }}],
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Look."},
                {"role": "assistant", "content": "Looking.", "tool_calls": [
                    {"id": "t0001c000", "type": "function", "function": {"name": "read_file", "arguments": "{\"path\":\"a\"}"}},
                    {"id": "t0001c001", "type": "function", "function": {"name": "read_file", "arguments": "{}"}},
                ]},
                {"role": "tool", "tool_call_id": "t0001c000", "content": "text of a"},
                {"role": "tool", "tool_call_id": "t0001c001", "content": "the arguments are not valid JSON"},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "t0002c000", "type": "function", "function": {"name": "read_file", "arguments": "{}"}},
                ]},
                {"role": "tool", "tool_call_id": "t0002c000", "content": "more"},
                {"role": "assistant", "content": "Done."},
                {"role": "user", "content": "Again."},
            ],
            "stream": true,
            "stream_options": {"include_usage": true},
            "max_tokens": 256,
        })
    );
}

#[test]
fn each_turn_begins_with_the_bytes_of_the_one_before() {
    let all = conversation();
    let bytes = |count: usize, max_output: i64| {
        let mut request = request(model("m"), "Be brief.", all[..count].to_vec(), vec![tool("read_file", json!({"type": "object"}))]);
        request.max_output = max_output;
        String::from_utf8(encode(&request, LimitField::MaxTokens).unwrap()).unwrap()
    };
    let mut before: Option<String> = None;
    for count in 1..=all.len() {
        // A smaller output limit, as when money runs short, changes nothing that a cache could know.
        let now = bytes(count, 300 - i64::try_from(count).unwrap());
        if let Some(before) = &before {
            let (shared, _) = before.rsplit_once("],\"stream\"").unwrap();
            assert!(now.starts_with(shared), "{now}\ndoes not begin with\n{shared}");
        }
        assert_eq!(now, bytes(count, 300 - i64::try_from(count).unwrap()));
        before = Some(now);
    }
}

#[test]
fn what_is_not_set_is_not_sent() {
    let body = json_of(&request(model("m"), "", vec![user("Hi.")], Vec::new()), LimitField::MaxCompletionTokens);
    let keys: Vec<&String> = body.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["model", "messages", "stream", "stream_options", "max_completion_tokens"]);
    assert_eq!(body["messages"], json!([{"role": "user", "content": "Hi."}]));
    let mut tuned = model("m");
    (tuned.temperature, tuned.top_p) = (Some(0.5), Some(0.9));
    let body = json_of(&request(tuned, "", vec![user("Hi.")], Vec::new()), LimitField::MaxTokens);
    assert_eq!((&body["temperature"], &body["top_p"]), (&json!(0.5), &json!(0.9)));
}

#[test]
fn a_refusal_is_sent_back_as_what_was_said() {
    let refused = Message::Assistant(AssistantMessage { refusal: Some("I will not.".to_owned()), ..AssistantMessage::default() });
    let body = json_of(&request(model("m"), "", vec![user("Do."), refused, user("Why?")], Vec::new()), LimitField::MaxTokens);
    assert_eq!(body["messages"][1], json!({"role": "assistant", "content": "I will not."}));
}

#[test]
fn a_call_by_a_name_that_no_tool_has_is_sent_back_under_one_that_providers_take() {
    for (name, sent) in [("", "unnamed"), ("functions.read file", "functions_read_file"), ("read_file", "read_file")] {
        let asked = Call { tool: name.to_owned(), ..call(1, 0, Args::Json(json!({}))) };
        let told = ToolResult { call_id: CallId::of(1, 0), tool: name.to_owned(), ok: false, output: "there is none".to_owned() };
        let request = request(model("m"), "", vec![user("Go."), asks("", vec![asked]), Message::Tool(told)], Vec::new());
        let at = |bytes: Result<Vec<u8>, serde_json::Error>, place: &str| {
            serde_json::from_slice::<Value>(&bytes.unwrap()).unwrap().pointer(place).cloned().unwrap()
        };
        assert_eq!(at(encode(&request, LimitField::MaxTokens), "/messages/1/tool_calls/0/function/name"), sent);
        assert_eq!(at(responses::encode(&request), "/input/1/name"), sent);
        assert_eq!(at(anthropic::encode(&request), "/messages/1/content/0/name"), sent);
        assert_eq!(at(gemini::encode(&request), "/contents/1/parts/0/functionCall/name"), sent);
        assert_eq!(at(gemini::encode(&request), "/contents/2/parts/0/functionResponse/name"), sent);
    }
}
