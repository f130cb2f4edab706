//! Anthropic's Messages: requests as they go over the wire, and answers that nobody should send.

use serde_json::{Value, json};
use wren::kernel::event::Abort;
use wren::kernel::message::{Carried, Part};
use wren::kernel::{Args, AssistantMessage, Call, CallId, Message, ModelSpec, Reply, Request, Stop, ToolResult};
use wren::provider::answer::Decoder;
use wren::provider::anthropic::{MessagesReader, encode};
use wren::provider::{Delta, Error};

use super::{gather, model, request, tool, user, whole};

fn claude() -> ModelSpec {
    ModelSpec { provider: "anthropic".to_owned(), ..model("claude-x") }
}

fn call(turn: u32, index: usize, args: Args) -> Call {
    Call { id: CallId::of(turn, index), provider_id: Some("toolu_1".to_owned()), tool: "read_file".to_owned(), args }
}

fn result(turn: u32, index: usize, ok: bool, output: &str) -> Message {
    Message::Tool(ToolResult { call_id: CallId::of(turn, index), tool: "read_file".to_owned(), ok, output: output.to_owned() })
}

fn thought() -> Value {
    json!({"type": "thinking", "thinking": "hm", "signature": "c2ln"})
}

fn conversation() -> Vec<Message> {
    let carried = Carried {
        provider: "anthropic".to_owned(),
        model: "claude-x".to_owned(),
        parts: vec![
            Part::Opaque(thought()),
            Part::Text { bytes: 8, beside: json!({"citations": [{"type": "char_location"}]}) },
            Part::Call { beside: Value::Null },
            Part::Call { beside: Value::Null },
        ],
    };
    let calls = vec![call(1, 0, Args::Json(json!({"path": "a"}))), call(1, 1, Args::parse("{\"q\": \"a\" \"b\"}"))];
    vec![
        user("Look."),
        Message::Assistant(AssistantMessage {
            text: "Looking.".to_owned(),
            reasoning: Some("hm".to_owned()),
            calls,
            carried: Some(Box::new(carried)),
            ..AssistantMessage::default()
        }),
        result(1, 0, true, "text of a"),
        result(1, 1, false, "the arguments are not valid JSON"),
        user("Hurry."),
        Message::Assistant(AssistantMessage { refusal: Some("I will not.".to_owned()), ..AssistantMessage::default() }),
        user("Why?"),
        // A turn that is empty, or white space alone, is no turn.
        Message::Assistant(AssistantMessage { text: "\n".to_owned(), ..AssistantMessage::default() }),
        user("Well?"),
    ]
}

fn json_of(request: &Request) -> Value {
    serde_json::from_slice(&encode(request).unwrap()).unwrap()
}

#[test]
fn a_conversation_takes_turns_and_its_own_thoughts_go_back_as_they_were() {
    let tools = vec![tool("read_file", json!({"type": "object", "properties": {"path": {"type": "string"}}}))];
    let body = json_of(&request(claude(), "Be brief.", conversation(), tools));
    assert_eq!(
        body,
        json!({
            "model": "claude-x",
            "tools": [{
                "name": "read_file", "description": "does read_file",
                "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}
            }],
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Look."}]},
                {"role": "assistant", "content": [
                    thought(),
                    {"type": "text", "text": "Looking.", "citations": [{"type": "char_location"}]},
                    {"type": "tool_use", "id": "t0001c000", "name": "read_file", "input": {"path": "a"}},
                    {"type": "tool_use", "id": "t0001c001", "name": "read_file", "input": {}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t0001c000", "content": "text of a"},
                    {"type": "tool_result", "tool_use_id": "t0001c001", "content": "the arguments are not valid JSON", "is_error": true},
                    {"type": "text", "text": "Hurry.", "cache_control": {"type": "ephemeral"}},
                ]},
                {"role": "assistant", "content": [{"type": "text", "text": "I will not."}]},
                {"role": "user", "content": [
                    {"type": "text", "text": "Why?"},
                    {"type": "text", "text": "Well?", "cache_control": {"type": "ephemeral"}},
                ]},
            ],
            "stream": true,
            "max_tokens": 256,
        })
    );
}

#[test]
fn another_model_is_told_text_and_calls_alone() {
    let body = json_of(&request(ModelSpec { model: "claude-y".to_owned(), ..claude() }, "", conversation(), Vec::new()));
    let kinds: Vec<&str> = body["messages"][1]["content"].as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["text", "tool_use", "tool_use"]);
    assert_eq!(body["messages"][1]["content"][0], json!({"type": "text", "text": "Looking."}));
}

#[test]
fn a_result_without_words_has_no_content_unless_it_failed() {
    let calls = (0..3).map(|index| call(1, index, Args::Json(json!({})))).collect();
    let asks = Message::Assistant(AssistantMessage { calls, ..AssistantMessage::default() });
    let messages = vec![user("Look."), asks, result(1, 0, true, ""), result(1, 1, true, " \n"), result(1, 2, false, "")];
    let body = json_of(&request(claude(), "", messages, Vec::new()));
    assert_eq!(
        body["messages"][2]["content"],
        json!([
            {"type": "tool_result", "tool_use_id": "t0001c000"},
            {"type": "tool_result", "tool_use_id": "t0001c001"},
            {
                "type": "tool_result", "tool_use_id": "t0001c002", "content": "the tool failed and said nothing", "is_error": true,
                "cache_control": {"type": "ephemeral"}
            },
        ])
    );
}

#[test]
fn tools_are_marked_where_no_instructions_are() {
    let tools = vec![tool("a", json!({"type": "object"})), tool("b", json!({"type": "object"}))];
    let body = json_of(&request(claude(), "", vec![user("Hi.")], tools));
    assert_eq!(body.get("system"), None);
    assert_eq!((&body["tools"][0]["cache_control"], &body["tools"][1]["cache_control"]), (&Value::Null, &json!({"type": "ephemeral"})));
}

#[test]
fn apart_from_the_marks_each_turn_begins_with_the_bytes_of_the_one_before() {
    let all = conversation();
    let mut before: Option<String> = None;
    for count in 1..=all.len() {
        let bytes = encode(&request(claude(), "Be brief.", all[..count].to_vec(), Vec::new())).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.matches("cache_control").count() <= 4, "{text}");
        let now = text.replace(",\"cache_control\":{\"type\":\"ephemeral\"}", "");
        if let Some(before) = &before {
            // A turn goes on growing while the same side speaks.
            let (shared, _) = before.rsplit_once("]}],\"stream\"").unwrap();
            assert!(now.starts_with(shared), "{now}\ndoes not begin with\n{shared}");
        }
        before = Some(now);
    }
}

fn feed(events: &[Value]) -> Vec<Result<Delta, Error>> {
    let mut decoder = Decoder::<MessagesReader>::default();
    let text: String =
        events.iter().map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or("data"))).collect();
    let mut items = decoder.feed(text.as_bytes());
    items.extend(decoder.finish());
    items
}

fn start() -> Value {
    json!({"type": "message_start", "message": {"id": "m", "model": "x", "usage": {"input_tokens": 10, "output_tokens": 1}}})
}

fn begin(index: usize, block: Value) -> Value {
    json!({"type": "content_block_start", "index": index, "content_block": block})
}

fn delta(index: usize, delta: Value) -> Value {
    json!({"type": "content_block_delta", "index": index, "delta": delta})
}

fn stop(reason: &str) -> Value {
    json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 7}})
}

fn reply(events: &[Value]) -> Reply {
    whole(feed(events))
}

fn tool_use(index: usize) -> Value {
    begin(index, json!({"type": "tool_use", "id": "same", "name": "f", "input": {}}))
}

#[test]
fn a_call_that_was_cut_at_the_limit_is_kept_broken_and_the_word_kept() {
    let cut = delta(0, json!({"type": "input_json_delta", "partial_json": "{\"a\": \"b"}));
    let got = reply(&[start(), tool_use(0), cut, stop("max_tokens"), json!({"type": "message_stop"})]);
    assert_eq!((got.stop, got.stop_raw.as_deref(), got.calls[0].args_raw.as_str()), (Stop::Length, Some("max_tokens"), "{\"a\": \"b"));
}

#[test]
fn calls_with_one_id_or_none_stay_apart_and_whole_inputs_are_taken() {
    let events = [
        start(),
        tool_use(0),
        delta(0, json!({"type": "input_json_delta", "partial_json": "{\"n\":1}"})),
        tool_use(1),
        begin(2, json!({"type": "tool_use", "name": "g", "input": {"n": 3}})),
        stop("end_turn"),
        json!({"type": "message_stop"}),
    ];
    let got = reply(&events);
    let calls: Vec<(&str, Option<&str>, &str)> =
        got.calls.iter().map(|call| (call.tool.as_str(), call.provider_id.as_deref(), call.args_raw.as_str())).collect();
    assert_eq!(calls, [("f", Some("same"), "{\"n\":1}"), ("f", Some("same"), ""), ("g", None, "{\"n\":3}")]);
    assert_eq!(got.stop, Stop::ToolCalls);
}

#[test]
fn thinking_that_nobody_signed_is_shown_and_not_sent_back() {
    let events = [
        start(),
        begin(0, json!({"type": "thinking", "thinking": ""})),
        delta(0, json!({"type": "thinking_delta", "thinking": "hm"})),
        begin(1, json!({"type": "text", "text": "So."})),
        stop("stop_sequence"),
        json!({"type": "message_stop"}),
    ];
    let got = reply(&events);
    assert_eq!((got.reasoning.as_deref(), got.text.as_str(), got.parts.len(), got.stop), (Some("hm"), "So.", 0, Stop::EndTurn));
}

#[test]
fn an_answer_that_is_cut_anywhere_before_its_stop_reason_is_no_reply() {
    let events = [start(), begin(0, json!({"type": "text", "text": "a"})), tool_use(1), json!({"type": "content_block_stop", "index": 1})];
    for count in 1..=events.len() {
        let (builder, _, error) = gather(feed(&events[..count]));
        let error = error.unwrap();
        assert_eq!((error.kind, error.retryable, error.reply_begun), (Abort::CutStream, true, true));
        assert_eq!(builder.usage().unwrap().input_tokens, 10, "what was said is kept");
        assert!(builder.finish().is_none());
    }
}

#[test]
fn odd_shapes_are_read_past() {
    let odd = [
        json!({"type": "unheard_of", "delta": 7}),
        json!({"type": 5}),
        json!([]),
        json!(null),
        json!({"type": "message_start", "message": "no"}),
        json!({"type": "message_start", "message": {"usage": {"input_tokens": -5, "output_tokens": 1e300}, "id": 4, "model": []}}),
        json!({"type": "content_block_start", "index": -1, "content_block": null}),
        json!({"type": "content_block_delta", "index": 99, "delta": {"type": "text_delta", "text": "lost"}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": {}}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "of a text"}}),
        json!({"type": "message_delta", "delta": null, "usage": []}),
        json!({"type": "content_block_stop", "index": "x"}),
    ];
    let mut events = vec![start(), begin(0, json!({"type": "text", "text": "a"}))];
    events.extend(odd);
    events.extend([
        delta(0, json!({"type": "text_delta", "text": "b"})),
        begin(1, json!({"type": "from_the_future", "id": "z"})),
        stop("unheard_of"),
        json!({"type": "message_stop"}),
    ]);
    let got = reply(&events);
    assert_eq!((got.text.as_str(), got.stop), ("ab", Stop::Error));
    assert_eq!(got.usage.unwrap().output_tokens, 1_000_000_000, "absurd, and bounded");
    assert_eq!(got.parts.last(), Some(&Part::Opaque(json!({"type": "from_the_future", "id": "z"}))));
}

#[test]
fn ten_thousand_calls_are_refused() {
    let mut events = vec![start()];
    events.extend((0..10_000).map(tool_use));
    let (_, deltas, error) = gather(feed(&events));
    assert_eq!(error.unwrap().kind, Abort::Malformed);
    assert!(deltas.len() < 5000);
    let blocks: Vec<Value> = (0..10_000).map(|n| json!({"type": "tool_use", "id": format!("{n}"), "name": "f", "input": {}})).collect();
    let body = json!({"type": "message", "content": blocks, "stop_reason": "tool_use"}).to_string();
    let mut decoder = Decoder::<MessagesReader>::default();
    decoder.feed(body.as_bytes());
    let (_, _, error) = gather(decoder.finish());
    assert_eq!(error.unwrap().kind, Abort::Malformed);
}
