//! Replies in the frames of every wire family. Where a family signs or encrypts what a model thinks, a reply with calls
//! brings such a part.

use serde_json::{Value, json};
use wren::kernel::{ReplyCall, Stop, Usage};
use wren::provider::Delta;

use super::Wire;

/// A reply to write.
struct Reply<'a> {
    model: &'a str,
    id: String,
    texts: Vec<&'a str>,
    calls: Vec<&'a ReplyCall>,
    usage: Usage,
    stop: Stop,
    sealed: Option<String>,
}

/// Returns the frames of a reply.
pub fn frames(wire: Wire, model: &str, turn: u32, deltas: &[Delta]) -> Vec<String> {
    let calls: Vec<&ReplyCall> = deltas.iter().filter_map(|delta| if let Delta::Call(call) = delta { Some(call) } else { None }).collect();
    let reply = Reply {
        model,
        id: format!("stub-{turn}"),
        texts: deltas.iter().filter_map(|delta| if let Delta::Text(text) = delta { Some(text.as_str()) } else { None }).collect(),
        sealed: (!calls.is_empty()).then(|| sealed(model, turn)),
        calls,
        usage: deltas.iter().find_map(|delta| if let Delta::Usage(usage) = delta { Some(*usage) } else { None }).unwrap_or_default(),
        stop: deltas.iter().find_map(|delta| if let Delta::Stop { stop, .. } = delta { Some(*stop) } else { None }).unwrap(),
    };
    match wire {
        Wire::Chat => chat(&reply),
        Wire::Responses => responses(&reply),
        Wire::Messages => anthropic(&reply),
        Wire::Gemini => gemini(&reply),
        Wire::Ollama => ollama(&reply),
    }
}

/// Returns what a model seals its thoughts of a turn with.
pub fn sealed(model: &str, turn: u32) -> String {
    format!("sealed-{model}-{turn}")
}

fn args(call: &ReplyCall) -> Value {
    serde_json::from_str(&call.args_raw).unwrap()
}

fn chat(reply: &Reply<'_>) -> Vec<String> {
    let chunk = |choices: Value, usage: Value| {
        let chunk = json!({
            "id": format!("chatcmpl-{}", reply.id), "object": "chat.completion.chunk", "created": 0, "model": reply.model,
            "choices": choices, "usage": usage,
        });
        format!("data: {chunk}\n\n")
    };
    let piece = |delta: Value| chunk(json!([{"index": 0, "delta": delta, "finish_reason": null}]), Value::Null);
    let mut frames: Vec<String> = reply.texts.iter().map(|text| piece(json!({"content": text}))).collect();
    for (index, call) in reply.calls.iter().enumerate() {
        let id = format!("call_{index}");
        let head = json!({"index": index, "id": id, "type": "function", "function": {"name": call.tool, "arguments": ""}});
        let rest = json!({"index": index, "function": {"arguments": call.args_raw}});
        frames.extend([piece(json!({"tool_calls": [head]})), piece(json!({"tool_calls": [rest]}))]);
    }
    let usage = json!({
        "prompt_tokens": reply.usage.input_tokens,
        "completion_tokens": reply.usage.output_tokens,
        "total_tokens": reply.usage.total_tokens(),
        "prompt_tokens_details": {"cached_tokens": reply.usage.cache_read_tokens, "cache_write_tokens": reply.usage.cache_write_tokens},
        "completion_tokens_details": {"reasoning_tokens": reply.usage.reasoning_tokens},
    });
    frames.push(chunk(json!([]), usage));
    let word = match reply.stop {
        Stop::EndTurn => "stop",
        Stop::ToolCalls => "tool_calls",
        Stop::Length => "length",
        Stop::Refusal => "content_filter",
        Stop::Error => "error",
    };
    frames.push(chunk(json!([{"index": 0, "delta": {}, "finish_reason": word}]), Value::Null));
    frames.push("data: [DONE]\n\n".to_owned());
    frames
}

fn named(event: &Value) -> String {
    format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap())
}

fn responses(reply: &Reply<'_>) -> Vec<String> {
    let mut frames = vec![named(&json!({"type": "response.created", "response": {"id": reply.id, "model": reply.model, "usage": null}}))];
    let mut items = Vec::new();
    if let Some(sealed) = &reply.sealed {
        items.push(json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed}));
    }
    if !reply.texts.is_empty() {
        let content = json!([{"type": "output_text", "text": reply.texts.concat(), "annotations": []}]);
        items.push(json!({"type": "message", "id": "msg_1", "role": "assistant", "content": content}));
    }
    for (index, call) in reply.calls.iter().enumerate() {
        items.push(json!({"type": "function_call", "call_id": format!("call_{index}"), "name": call.tool, "arguments": call.args_raw}));
    }
    for (index, item) in items.iter().enumerate() {
        let mut begun = item.clone();
        begun.as_object_mut().unwrap().retain(|key, _| key != "content");
        if item["type"] == "function_call" {
            begun["arguments"] = json!("");
        }
        frames.push(named(&json!({"type": "response.output_item.added", "output_index": index, "item": begun})));
        let pieces: Vec<Value> = match item["type"].as_str().unwrap() {
            "message" => reply.texts.iter().map(|text| json!({"type": "response.output_text.delta", "delta": text})).collect(),
            "function_call" => vec![json!({"type": "response.function_call_arguments.delta", "delta": item["arguments"]})],
            _ => Vec::new(),
        };
        for mut piece in pieces {
            piece["output_index"] = json!(index);
            frames.push(named(&piece));
        }
        frames.push(named(&json!({"type": "response.output_item.done", "output_index": index, "item": item})));
    }
    let (status, reason) = match reply.stop {
        Stop::EndTurn | Stop::ToolCalls => ("completed", None),
        Stop::Length => ("incomplete", Some("max_output_tokens")),
        Stop::Refusal => ("incomplete", Some("content_filter")),
        Stop::Error => ("incomplete", Some("unheard_of")),
    };
    let usage = json!({
        "input_tokens": reply.usage.input_tokens,
        "input_tokens_details": {"cached_tokens": reply.usage.cache_read_tokens, "cache_write_tokens": reply.usage.cache_write_tokens},
        "output_tokens": reply.usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": reply.usage.reasoning_tokens},
    });
    let details = reason.map_or(Value::Null, |reason| json!({"reason": reason}));
    let response =
        json!({"id": reply.id, "model": reply.model, "status": status, "incomplete_details": details, "output": items, "usage": usage});
    frames.push(named(&json!({"type": format!("response.{status}"), "response": response})));
    frames
}

fn anthropic(reply: &Reply<'_>) -> Vec<String> {
    let usage = &reply.usage;
    let start = json!({
        "id": reply.id, "type": "message", "role": "assistant", "model": reply.model, "content": [],
        "usage": {
            "input_tokens": usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens,
            "cache_read_input_tokens": usage.cache_read_tokens,
            "cache_creation_input_tokens": usage.cache_write_tokens,
            "output_tokens": 1,
        },
    });
    let mut frames = vec![named(&json!({"type": "message_start", "message": start}))];
    let mut blocks = Vec::new();
    if let Some(sealed) = &reply.sealed {
        let pieces = vec![json!({"type": "thinking_delta", "thinking": "Hm."}), json!({"type": "signature_delta", "signature": sealed})];
        blocks.push((json!({"type": "thinking", "thinking": "", "signature": ""}), pieces));
    }
    if !reply.texts.is_empty() {
        let pieces = reply.texts.iter().map(|text| json!({"type": "text_delta", "text": text})).collect();
        blocks.push((json!({"type": "text", "text": ""}), pieces));
    }
    for (index, call) in reply.calls.iter().enumerate() {
        let block = json!({"type": "tool_use", "id": format!("toolu_{index}"), "name": call.tool, "input": {}});
        blocks.push((block, vec![json!({"type": "input_json_delta", "partial_json": call.args_raw})]));
    }
    for (index, (block, pieces)) in blocks.into_iter().enumerate() {
        frames.push(named(&json!({"type": "content_block_start", "index": index, "content_block": block})));
        frames.extend(pieces.iter().map(|piece| named(&json!({"type": "content_block_delta", "index": index, "delta": piece}))));
        frames.push(named(&json!({"type": "content_block_stop", "index": index})));
    }
    let word = match reply.stop {
        Stop::EndTurn => "end_turn",
        Stop::ToolCalls => "tool_use",
        Stop::Length => "max_tokens",
        Stop::Refusal => "refusal",
        Stop::Error => "unheard_of",
    };
    let spent = json!({
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    });
    frames.push(named(&json!({"type": "message_delta", "delta": {"stop_reason": word}, "usage": spent})));
    frames.push(named(&json!({"type": "message_stop"})));
    frames
}

fn gemini(reply: &Reply<'_>) -> Vec<String> {
    let mut parts: Vec<Value> = reply.texts.iter().map(|text| json!({"text": text})).collect();
    for (index, call) in reply.calls.iter().enumerate() {
        let mut part = json!({"functionCall": {"name": call.tool, "args": args(call)}});
        if let Some(sealed) = reply.sealed.as_ref().filter(|_| index == 0) {
            part["thoughtSignature"] = json!(sealed);
        }
        parts.push(part);
    }
    let chunk = |candidate: Value| json!({"candidates": [candidate], "modelVersion": reply.model, "responseId": reply.id});
    let piece = |part: &Value| chunk(json!({"content": {"parts": [part], "role": "model"}, "index": 0}));
    let mut frames: Vec<String> = parts.iter().map(|part| format!("data: {}\r\n\r\n", piece(part))).collect();
    let word = match reply.stop {
        Stop::EndTurn | Stop::ToolCalls => "STOP",
        Stop::Length => "MAX_TOKENS",
        Stop::Refusal => "SAFETY",
        Stop::Error => "OTHER",
    };
    let mut last = chunk(json!({"content": {"role": "model"}, "finishReason": word, "index": 0}));
    last["usageMetadata"] = json!({
        "promptTokenCount": reply.usage.input_tokens,
        "cachedContentTokenCount": reply.usage.cache_read_tokens,
        "candidatesTokenCount": reply.usage.output_tokens - reply.usage.reasoning_tokens,
        "thoughtsTokenCount": reply.usage.reasoning_tokens,
    });
    frames.push(format!("data: {last}\r\n\r\n"));
    frames
}

fn ollama(reply: &Reply<'_>) -> Vec<String> {
    let line = |message: Value| format!("{}\n", json!({"model": reply.model, "message": message, "done": false}));
    let mut frames: Vec<String> = reply.texts.iter().map(|text| line(json!({"role": "assistant", "content": text}))).collect();
    for call in &reply.calls {
        let asked = json!([{"function": {"name": call.tool, "arguments": args(call)}}]);
        frames.push(line(json!({"role": "assistant", "content": "", "tool_calls": asked})));
    }
    let word = match reply.stop {
        // The API has no word for a refusal.
        Stop::EndTurn | Stop::ToolCalls | Stop::Refusal => "stop",
        Stop::Length => "length",
        Stop::Error => "unload",
    };
    let last = json!({
        "model": reply.model, "message": {"role": "assistant", "content": ""}, "done": true, "done_reason": word,
        "prompt_eval_count": reply.usage.input_tokens, "eval_count": reply.usage.output_tokens,
    });
    frames.push(format!("{last}\n"));
    frames
}
