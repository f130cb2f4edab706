//! Answers that nobody should send: bounded and typed, never a panic.

use proptest::prelude::*;
use serde_json::{Value, json};
use wren::kernel::event::Abort;
use wren::kernel::{Args, Reply, Stop};
use wren::provider::answer::Decoder;
use wren::provider::openai::ChatReader;
use wren::provider::{Delta, Error};

use super::{gather, model, whole};

fn feed_all(bytes: &[u8]) -> Vec<Result<Delta, Error>> {
    let mut decoder = Decoder::<ChatReader>::default();
    let mut items = decoder.feed(bytes);
    items.extend(decoder.finish());
    items
}

fn stream(chunks: &[Value]) -> String {
    chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect()
}

fn piece(delta: Value) -> Value {
    json!({"id": "a", "choices": [{"index": 0, "delta": delta}]})
}

fn finish(word: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": word}]})
}

fn calls(entries: Value) -> Value {
    piece(json!({"tool_calls": entries}))
}

fn reply(chunks: &[Value]) -> Reply {
    whole(feed_all(format!("{}data: [DONE]\n\n", stream(chunks)).as_bytes()))
}

fn error(bytes: &[u8]) -> Error {
    let (builder, _, error) = gather(feed_all(bytes));
    assert!(builder.finish().is_none());
    error.unwrap()
}

#[test]
fn a_line_without_end_is_refused_with_little_memory() {
    let mut decoder = Decoder::<ChatReader>::default();
    let block = vec![b'x'; 1 << 20];
    let mut items = decoder.feed(b"data: ");
    let mut fed = 0;
    while items.is_empty() && fed < 200 {
        items = decoder.feed(&block);
        fed += 1;
    }
    assert!(fed <= 2, "{fed}");
    let (_, _, error) = gather(items);
    assert_eq!(error.unwrap().kind, Abort::Malformed);
    assert!(decoder.is_over() && decoder.feed(&block).is_empty());
}

#[test]
fn an_answer_without_end_is_refused() {
    let chunk = stream(&[piece(json!({"content": "x".repeat(64 * 1024)}))]);
    let mut decoder = Decoder::<ChatReader>::default();
    let items = (0..1000).find_map(|_| decoder.feed(chunk.as_bytes()).into_iter().find_map(Result::err));
    let error = items.unwrap();
    assert_eq!((error.kind, error.retryable, error.reply_begun), (Abort::Malformed, false, true));
}

#[test]
fn ten_thousand_calls_are_refused() {
    let many: Vec<Value> =
        (0..10_000).map(|n| calls(json!([{"index": n, "id": format!("c{n}"), "function": {"name": "f", "arguments": "{}"}}]))).collect();
    assert_eq!(error(stream(&many).as_bytes()).kind, Abort::Malformed);
    let entries: Vec<Value> = (0..10_000).map(|n| json!({"id": format!("c{n}"), "function": {"name": "f", "arguments": "{}"}})).collect();
    let body = json!({"choices": [{"message": {"tool_calls": entries}, "finish_reason": "tool_calls"}]}).to_string();
    assert_eq!(error(body.as_bytes()).kind, Abort::Malformed);
}

#[test]
fn what_is_no_reply_is_a_typed_error() {
    for (bytes, kind) in [
        (&b""[..], Abort::CutStream),
        (b"   \n\n  ", Abort::CutStream),
        (b": only comments\n\n", Abort::CutStream),
        (b"data: [DONE]\n\n", Abort::CutStream),
        (b"data: {\"choices\":[]}\n\ndata: [DONE]\n\n", Abort::CutStream),
        // A server that breaks an answer off for another request says nothing but this.
        (b"data: {\"choices\":[{\"delta\":{\"content\":\"ha\"}}]}\n\ndata: [DONE]\n\n", Abort::CutStream),
        (b"data: {\"choices\":[{\"delta\":{\"content\":\"ha\"}}]}\n\ndata: {\"choices\":[{\"del\n\n", Abort::CutStream),
        (b"data: \xff\xfe\n\n", Abort::Malformed),
        (b"data: not json\n\n", Abort::Malformed),
        (b"data: {\"choices\":[{\"delta\":{\"content\":\"\xc3\x28\"}}]}\n\n", Abort::Malformed),
        (b"<!doctype html><title>hello</title>", Abort::Malformed),
        (b"{\"choices\": [{\"message\": {\"content\": \"ha", Abort::CutStream),
        (b"{\"choices\": []}", Abort::Malformed),
        (b"{\"hello\": 1}", Abort::Malformed),
        (b"[1, 2]", Abort::Malformed),
        (b"{]", Abort::Malformed),
        (b"{\"error\": {\"message\": \"no\", \"code\": 503}}", Abort::Overloaded),
        (b"{\"error\": \"no\"}", Abort::Provider),
        (b"{\"object\": \"error\", \"message\": \"bad\", \"code\": 400}", Abort::InvalidRequest),
        (b"\x00\x01\x02", Abort::CutStream),
    ] {
        assert_eq!(error(bytes).kind, kind, "{:?}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn odd_shapes_are_read_past() {
    let odd = [
        json!({"choices": null}),
        json!({"choices": "no"}),
        json!({"choices": [{"delta": null}]}),
        json!({"choices": [{"delta": {"content": 5, "tool_calls": {"a": 1}, "refusal": [], "reasoning": {}}}], "usage": 7, "id": 9, "model": []}),
        json!([]),
        json!(null),
        json!("text"),
        json!({"type": "unheard_of", "delta": {"content": "no"}}),
        calls(json!([7, null, {"function": 3}, {}])),
    ];
    let mut chunks = vec![piece(json!({"content": "a"}))];
    chunks.extend(odd);
    chunks.extend([piece(json!({"content": "b"})), finish("stop")]);
    let text = format!("event: unheard_of\n{}data: [DONE]\n\n", stream(&chunks));
    assert_eq!(whole(feed_all(text.as_bytes())).text, "ab");
}

#[test]
fn impossible_counts_never_lower_a_bill_or_overflow_it() {
    let used =
        |usage: Value| reply(&[piece(json!({"content": "x"})), json!({"choices": [], "usage": usage}), finish("stop")]).usage.unwrap();
    let usage = used(json!({"prompt_tokens": -5, "completion_tokens": 9_223_372_036_854_775_808_u64, "total_tokens": 1e300}));
    assert_eq!((usage.input_tokens, usage.output_tokens), (0, 1_000_000_000));
    let usage = used(json!({"prompt_tokens": 1e300, "completion_tokens": -1e300, "prompt_tokens_details": {"cached_tokens": -7}}));
    assert_eq!((usage.input_tokens, usage.output_tokens, usage.cache_read_tokens), (1_000_000_000, 0, 0));
    // Said once, it is not taken back.
    let chunks = [
        piece(json!({"content": "x"})),
        json!({"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 50}}),
        json!({"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0}}),
        finish("stop"),
    ];
    assert_eq!(reply(&chunks).usage.unwrap().total_tokens(), 150);
    // A cost that is no amount is no statement.
    let cost = |cost: Value| reply(&[piece(json!({"content": "x"})), json!({"choices": [], "usage": {"cost": cost}}), finish("stop")]);
    for nonsense in [json!(-1), json!(1e300), json!("0.5"), json!({})] {
        assert_eq!(cost(nonsense).stated_cost_usd_nanos, None);
    }
    assert_eq!(cost(json!(0.000_000_000_5)).stated_cost_usd_nanos, Some(1));
}

#[test]
fn the_first_id_and_name_stay_and_only_arguments_are_added() {
    for later in
        [json!({"name": "", "arguments": "\"a\":1}"}), json!({"name": "read", "arguments": "\"a\":1}"}), json!({"arguments": "\"a\":1}"})]
    {
        let chunks = [
            calls(json!([{"index": 0, "id": "c1", "function": {"name": "read", "arguments": "{"}}])),
            calls(json!([{"index": 0, "id": "", "function": later}])),
            finish("tool_calls"),
        ];
        let reply = reply(&chunks);
        assert_eq!(reply.calls.len(), 1);
        assert_eq!((reply.calls[0].tool.as_str(), reply.calls[0].provider_id.as_deref()), ("read", Some("c1")));
        assert_eq!(reply.calls[0].args_raw, "{\"a\":1}");
    }
}

#[test]
fn calls_without_ids_or_with_one_id_twice_stay_apart() {
    let entry = |id: Option<&str>, index: Option<i64>, n: i64| {
        let mut entry = json!({"function": {"name": "dice", "arguments": format!("{{\"n\":{n}}}")}});
        if let Some(id) = id {
            entry["id"] = json!(id);
        }
        if let Some(index) = index {
            entry["index"] = json!(index);
        }
        entry
    };
    let cases = [
        [entry(None, Some(0), 1), entry(None, Some(1), 2)],
        [entry(None, None, 1), entry(None, None, 2)],
        [entry(Some("same"), Some(0), 1), entry(Some("same"), Some(1), 2)],
        [entry(Some("same"), None, 1), entry(Some("same"), None, 2)],
        [entry(Some("a"), Some(0), 1), entry(Some("b"), Some(0), 2)],
        [entry(None, Some(0), 1), entry(None, Some(0), 2)],
    ];
    for entries in cases {
        let one_chunk = reply(&[calls(json!(entries)), finish("stop")]);
        let two_chunks = reply(&[calls(json!([entries[0]])), calls(json!([entries[1]])), finish("stop")]);
        let body = json!({"choices": [{"message": {"tool_calls": entries}, "finish_reason": "stop"}]}).to_string();
        for reply in [one_chunk, two_chunks, whole(feed_all(body.as_bytes()))] {
            let args: Vec<&str> = reply.calls.iter().map(|call| call.args_raw.as_str()).collect();
            assert_eq!(args, ["{\"n\":1}", "{\"n\":2}"], "{entries:?}");
            assert_eq!(reply.stop, Stop::ToolCalls, "whatever the word beside");
            let message = reply.into_message(1, &model("m"));
            assert_ne!(message.calls[0].id, message.calls[1].id);
        }
    }
}

#[test]
fn no_arguments_mean_an_empty_object_in_every_form() {
    for arguments in [json!(""), json!("  "), Value::Null, json!("null"), json!("{}"), json!({})] {
        let entry = json!([{"index": 0, "id": "c", "function": {"name": "ping", "arguments": arguments}}]);
        let body = json!({"choices": [{"message": {"tool_calls": entry}, "finish_reason": "tool_calls"}]}).to_string();
        for reply in [reply(&[calls(entry), finish("tool_calls")]), whole(feed_all(body.as_bytes()))] {
            assert_eq!(reply.into_message(1, &model("m")).calls[0].args, Args::Json(json!({})));
        }
    }
    let missing = reply(&[calls(json!([{"index": 0, "id": "c", "function": {"name": "ping"}}])), finish("tool_calls")]);
    assert_eq!(missing.into_message(1, &model("m")).calls[0].args, Args::Json(json!({})));
}

#[test]
fn a_reply_cut_at_its_length_gives_its_calls_as_they_came_to_be_refused() {
    for arguments in ["{\"path\":\"a.txt\",\"content\":\"abc", "{\"path\":\"a.txt\"}", ""] {
        let reply =
            reply(&[calls(json!([{"index": 0, "id": "c", "function": {"name": "write", "arguments": arguments}}])), finish("length")]);
        assert_eq!((reply.stop, reply.calls.len()), (Stop::Length, 1));
        assert_eq!(reply.calls[0].args_raw, arguments);
    }
}

#[test]
fn every_word_for_a_stop_has_one_meaning() {
    for (word, stop) in [
        ("stop", Stop::EndTurn),
        ("eos", Stop::EndTurn),
        ("stop_sequence", Stop::EndTurn),
        ("length", Stop::Length),
        ("content_filter", Stop::Refusal),
        ("tool_calls", Stop::ToolCalls),
        ("function_call", Stop::ToolCalls),
        ("a_new_word", Stop::Error),
        ("error", Stop::Error),
    ] {
        let reply = reply(&[piece(json!({"content": "x"})), finish(word)]);
        assert_eq!((reply.stop, reply.stop_raw.as_deref()), (stop, Some(word)));
    }
    let counted = json!({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}});
    let inferred = reply(&[piece(json!({"content": "x"})), counted]);
    assert_eq!((inferred.stop, inferred.stop_raw), (Stop::EndTurn, None));
    let refused = reply(&[piece(json!({"refusal": "I will not."})), finish("stop")]);
    assert_eq!((refused.stop, refused.refusal.as_deref()), (Stop::Refusal, Some("I will not.")));
}

#[test]
fn errors_in_the_stream_say_whether_anything_had_begun() {
    let overloaded = json!({"error": {"message": "Overloaded", "type": "overloaded_error"}});
    let before = error(stream(std::slice::from_ref(&overloaded)).as_bytes());
    assert_eq!((before.kind, before.retryable, before.reply_begun), (Abort::Overloaded, true, false));
    let half = [
        piece(json!({"content": "half"})),
        calls(json!([{"index": 0, "id": "c", "function": {"name": "write", "arguments": "{\"a\":"}}])),
        overloaded,
        finish("tool_calls"),
    ];
    let (builder, _, error) = gather(feed_all(stream(&half).as_bytes()));
    let error = error.unwrap();
    assert_eq!((error.kind, error.retryable, error.reply_begun), (Abort::Overloaded, true, true));
    assert_eq!(builder.output_bytes(), "half".len() + "write".len() + "{\"a\":".len(), "what was made is counted");
    assert!(builder.finish().is_none(), "and never run");
}

#[test]
fn usage_is_counted_once_wherever_it_stands() {
    let usage = json!({"prompt_tokens": 201, "completion_tokens": 58, "total_tokens": 259});
    let chunks = [
        piece(json!({"content": "x"})),
        json!({"choices": [], "x_groq": {"usage": usage}}),
        finish("stop"),
        json!({"choices": [], "usage": usage}),
    ];
    assert_eq!(reply(&chunks).usage.unwrap().total_tokens(), 259);
    let on_top =
        json!({"prompt_tokens": 432, "completion_tokens": 68, "total_tokens": 636, "completion_tokens_details": {"reasoning_tokens": 136}});
    let usage = reply(&[piece(json!({"content": "x"})), json!({"choices": [], "usage": on_top}), finish("stop")]).usage.unwrap();
    assert_eq!((usage.output_tokens, usage.reasoning_tokens), (204, 136));
}

proptest! {
    #[test]
    fn any_bytes_end_in_one_stop_or_one_error(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..8), framed in any::<bool>()) {
        let mut decoder = Decoder::<ChatReader>::default();
        let mut items = Vec::new();
        for piece in &pieces {
            if framed {
                items.extend(decoder.feed(b"data: "));
            }
            items.extend(decoder.feed(piece));
            if framed {
                items.extend(decoder.feed(b"\n\n"));
            }
        }
        items.extend(decoder.finish());
        let ends = items.iter().filter(|item| matches!(item, Err(_) | Ok(Delta::Stop { .. }))).count();
        prop_assert_eq!(ends, 1);
        let ends_last = matches!(items.last(), Some(Err(_) | Ok(Delta::Stop { .. })));
        prop_assert!(ends_last, "something came after the end");
    }
}
