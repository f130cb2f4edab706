//! Recorded answers of every family, read as their expectations say: whole, byte by byte, cut at random.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use wren::kernel::message::Part;
use wren::kernel::{Args, Reply, Stop};
use wren::provider::answer::{Decoder, Reader};
use wren::provider::anthropic::MessagesReader;
use wren::provider::gemini::GeminiReader;
use wren::provider::ollama::OllamaReader;
use wren::provider::openai::ChatReader;
use wren::provider::responses::ResponsesReader;
use wren::provider::{Delta, Error, ReplyBuilder, fail};

use super::{Random, gather, recorded};

const CHAT: &str = "openai-chat";

/// Reads an answer that arrives in these pieces.
type Reading = fn(&[&[u8]]) -> Read;

/// The families, each with who reads its answers.
const FAMILIES: [(&str, Reading); 5] = [
    (CHAT, read::<ChatReader>),
    ("openai-responses", read::<ResponsesReader>),
    ("anthropic", read::<MessagesReader>),
    ("gemini", read::<GeminiReader>),
    ("ollama", read::<OllamaReader>),
];

struct Fixture {
    name: String,
    status: u16,
    headers: HeaderMap,
    body: Vec<u8>,
    expect: Value,
}

type Read = (ReplyBuilder, Vec<Delta>, Option<Error>);

#[test]
fn recorded_answers_are_read_as_expected_however_they_are_cut() {
    let Some(root) = recorded() else { return };
    let mut all = 0;
    let mut bad = Vec::new();
    for (family, read) in FAMILIES {
        let fixtures = load(&root, family);
        assert!(!fixtures.is_empty(), "{family}");
        all += fixtures.len();
        bad.extend(fixtures.iter().filter_map(|fixture| Some(format!("{}: {}", fixture.name, check(fixture, read).err()?))));
    }
    println!("{} of {all} recorded answers read as expected", all - bad.len());
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn too_long_a_conversation_is_one_kind_of_error_whoever_words_it() {
    let Some(root) = recorded() else { return };
    let mut seen = 0;
    for fixture in ["anthropic", "deepseek", "llamacpp"].iter().flat_map(|provider| load_dir(&root.join(provider), None)) {
        if !fixture.name.contains("context") || fixture.status == 200 {
            continue;
        }
        let error = fail::from_response(fixture.status, &fixture.headers, &fixture.body, UNIX_EPOCH);
        assert_eq!((error.kind.name(), error.retryable), ("context_length", false), "{}: {error}", fixture.name);
        seen += 1;
    }
    assert!(seen >= 3, "{seen}");
}

#[test]
fn an_answer_cut_after_any_event_before_its_closing_one_is_a_cut_stream() {
    let Some(root) = recorded() else { return };
    let mut cuts = 0;
    for fixture in load(&root, CHAT) {
        if fixture.status != 200 || fixture.expect["outcome"] != "ok" || fixture.body.trim_ascii_start().starts_with(b"{") {
            continue;
        }
        let text = String::from_utf8(fixture.body.clone()).unwrap().replace("\r\n", "\n");
        let ends: Vec<usize> = text.match_indices("\n\n").map(|(at, _)| at + 2).collect();
        for end in ends {
            let part = &text[..end];
            // Closed: from the first finish reason of the first choice on, or at [DONE] where the usage was told.
            let closed = (part.contains("[DONE]") && part.contains("\"usage\":{"))
                || part.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data:")?).ok()).any(|chunk| {
                    let choices = chunk["choices"].as_array().cloned().unwrap_or_default();
                    choices.iter().any(|choice| choice["index"].as_i64().unwrap_or(0) == 0 && choice["finish_reason"].is_string())
                });
            let (builder, _, error) = read::<ChatReader>(&[part.as_bytes()]);
            if closed {
                assert_eq!(error, None, "{}", fixture.name);
                assert!(builder.finish().is_some());
            } else {
                let error = error.unwrap();
                assert_eq!((error.kind.name(), error.retryable), ("cut_stream", true), "{} at {end}", fixture.name);
                assert!(builder.finish().is_none(), "{} at {end}", fixture.name);
                cuts += 1;
            }
        }
    }
    assert!(cuts > 100, "{cuts}");
}

/// Returns whether one event or line closes an answer of its family.
fn closes(family: &str, event: &Value) -> bool {
    match family {
        "openai-responses" => matches!(event["type"].as_str(), Some("response.completed" | "response.incomplete" | "response.failed")),
        "gemini" => event["candidates"][0]["finishReason"].is_string() || event["promptFeedback"]["blockReason"].is_string(),
        "ollama" => event["done"] == true,
        other => panic!("no family {other}"),
    }
}

#[test]
fn an_answer_of_the_other_families_is_whole_from_its_closing_event_on_and_not_before() {
    let Some(root) = recorded() else { return };
    for (family, read, mark) in [
        ("openai-responses", read::<ResponsesReader> as Reading, "\n\n"),
        ("gemini", read::<GeminiReader>, "\n\n"),
        ("ollama", read::<OllamaReader>, "\n"),
    ] {
        let (mut cuts, mut whole) = (0, 0);
        for fixture in load(&root, family) {
            let text = String::from_utf8(fixture.body.clone()).unwrap().replace("\r\n", "\n");
            let is_one_document = mark == "\n\n" && text.trim_start().starts_with(['{', '[']);
            if fixture.status != 200 || fixture.expect["outcome"] != "ok" || is_one_document {
                continue;
            }
            for end in text.match_indices(mark).map(|(at, _)| at + mark.len()) {
                let part = &text[..end];
                let mut events = part.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data:").unwrap_or(line)).ok());
                let closed = events.any(|event: Value| closes(family, &event));
                let (builder, _, error) = read(&[part.as_bytes()]);
                if closed {
                    assert_eq!(error, None, "{} at {end}", fixture.name);
                    assert!(builder.finish().is_some(), "{} at {end}", fixture.name);
                    whole += 1;
                } else {
                    let error = error.unwrap_or_else(|| panic!("{} at {end} is taken for whole", fixture.name));
                    assert_eq!((error.kind.name(), error.retryable), ("cut_stream", true), "{} at {end}", fixture.name);
                    assert!(builder.finish().is_none(), "{} at {end}", fixture.name);
                    cuts += 1;
                }
            }
        }
        assert!(cuts > 5 && whole > 1, "{family}: {cuts} cut, {whole} whole");
    }
}

fn load(root: &Path, family: &str) -> Vec<Fixture> {
    let mut dirs: Vec<PathBuf> = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    dirs.sort();
    dirs.iter().flat_map(|dir| load_dir(dir, Some(family))).collect()
}

fn load_dir(dir: &Path, family: Option<&str>) -> Vec<Fixture> {
    let mut metas: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    metas.retain(|path| path.to_string_lossy().ends_with(".meta.json"));
    metas.sort();
    let json = |path: &str| serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap();
    let mut fixtures = Vec::new();
    for path in metas {
        let path = path.to_string_lossy().into_owned();
        let stem = path.strip_suffix(".meta.json").unwrap();
        let meta = json(&path);
        if family.is_some_and(|family| meta["family"] != family) {
            continue;
        }
        let mut headers = HeaderMap::new();
        for (name, value) in meta["headers"].as_object().into_iter().flatten() {
            let value = HeaderValue::from_str(value.as_str().unwrap()).unwrap();
            headers.insert(HeaderName::from_bytes(name.as_bytes()).unwrap(), value);
        }
        fixtures.push(Fixture {
            name: stem.rsplit('/').take(2).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("/"),
            status: u16::try_from(meta["status"].as_u64().unwrap()).unwrap(),
            headers,
            body: std::fs::read(format!("{stem}.response.txt")).unwrap(),
            expect: json(&format!("{stem}.expect.json")),
        });
    }
    fixtures
}

fn read<R: Reader>(pieces: &[&[u8]]) -> Read {
    let mut decoder = Decoder::<R>::default();
    let mut items = Vec::new();
    for piece in pieces {
        items.extend(decoder.feed(piece));
    }
    items.extend(decoder.finish());
    assert!(decoder.finish().is_empty() && decoder.feed(b"data: more").is_empty(), "something came after the end");
    gather(items)
}

fn check(fixture: &Fixture, read: fn(&[&[u8]]) -> Read) -> Result<(), String> {
    if fixture.status != 200 {
        let error = fail::from_response(fixture.status, &fixture.headers, &fixture.body, UNIX_EPOCH);
        return error_is(&error, &fixture.expect["error"]);
    }
    let body = fixture.body.as_slice();
    as_expected(read(&[body]), &fixture.expect).map_err(|why| format!("whole: {why}"))?;
    let bytes: Vec<&[u8]> = body.chunks(1).collect();
    as_expected(read(&bytes), &fixture.expect).map_err(|why| format!("byte by byte: {why}"))?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..20 {
        let mut cuts: Vec<usize> = (0..=random.below(40)).map(|_| random.below(body.len())).collect();
        cuts.push(body.len());
        cuts.sort_unstable();
        let mut start = 0;
        let mut pieces = Vec::new();
        for cut in cuts {
            pieces.push(&body[start..cut]);
            start = cut;
        }
        as_expected(read(&pieces), &fixture.expect).map_err(|why| format!("cut at random ({round}): {why}"))?;
    }
    Ok(())
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: &T, right: &T) -> Result<(), String> {
    if got == right { Ok(()) } else { Err(format!("{what} is {got:?}, not {right:?}")) }
}

fn as_expected((builder, deltas, error): Read, expect: &Value) -> Result<(), String> {
    let text = |pick: &dyn Fn(&Delta) -> Option<String>| deltas.iter().filter_map(pick).collect::<String>();
    let said = text(&|delta| if let Delta::Text(text) = delta { Some(text.clone()) } else { None });
    same("text", &said.as_str(), &expect["text"].as_str().unwrap())?;
    let refusal = text(&|delta| if let Delta::Refusal(text) = delta { Some(text.clone()) } else { None });
    same("refusal", &refusal.as_str(), &expect["refusal"].as_str().unwrap_or_default())?;
    let thought = text(&|delta| if let Delta::Reasoning(text) = delta { Some(text.clone()) } else { None });
    let bare = |text: &str| text.split_whitespace().collect::<String>();
    same("reasoning", &bare(&thought), &bare(expect["reasoning"]["text"].as_str().unwrap_or_default()))?;
    usage_is(&builder, &expect["usage"])?;
    let stated = deltas.iter().rev().find_map(|delta| if let Delta::StatedCost(nanos) = delta { Some(*nanos) } else { None });
    let right = expect["cost_usd"].as_f64().map(|usd| (usd * 1e9).round() as i64);
    same("stated cost", &stated, &right)?;
    match (expect["outcome"].as_str().unwrap(), error) {
        ("ok", None) => reply_is(builder, expect),
        ("error", Some(error)) => error_is(&error, &expect["error"]),
        (outcome, error) => Err(format!("outcome is {error:?}, not {outcome}")),
    }
}

fn usage_is(builder: &ReplyBuilder, expect: &Value) -> Result<(), String> {
    let got = builder
        .usage()
        .map(|usage| [usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens, usage.reasoning_tokens]);
    let right = expect
        .is_object()
        .then(|| ["input", "output", "cached_read", "cache_write", "reasoning"].map(|count| expect[count].as_i64().unwrap_or(0)));
    same("usage", &got, &right)
}

fn reply_is(builder: ReplyBuilder, expect: &Value) -> Result<(), String> {
    let reply = builder.finish().ok_or("there is no stop")?;
    let stop = match expect["stop"].as_str().unwrap() {
        "end_turn" | "stop_sequence" => Stop::EndTurn,
        "tool_calls" => Stop::ToolCalls,
        "length" => Stop::Length,
        "refusal" | "content_filter" => Stop::Refusal,
        "pause" => Stop::EndTurn,
        _ => Stop::Error,
    };
    same("stop", &reply.stop, &stop)?;
    same("whether it paused", &reply.paused, &(expect["stop"] == "pause"))?;
    parts_are(&reply, expect)?;
    same("the word for it", &reply.stop_raw.as_deref(), &expect["stop_raw"].as_str())?;
    let calls = expect["tool_calls"].as_array().unwrap();
    let broken = expect["broken_tool_calls"].as_array().unwrap();
    same("number of calls", &reply.calls.len(), &(calls.len() + broken.len()))?;
    for (got, right) in reply.calls.iter().zip(calls) {
        same("name", &got.tool.as_str(), &right["name"].as_str().unwrap())?;
        same("id", &got.provider_id.as_deref(), &right["id"].as_str())?;
        same("arguments", &Args::parse(&got.args_raw), &Args::Json(right["args"].clone()))?;
    }
    for (got, right) in reply.calls.iter().skip(calls.len()).zip(broken) {
        same("name", &got.tool.as_str(), &right["name"].as_str().unwrap())?;
        same("id", &got.provider_id.as_deref(), &right["id"].as_str())?;
        same("arguments as they came", &got.args_raw.as_str(), &right["args_raw"].as_str().unwrap())?;
        // The kernel runs no call of a reply that was cut off at its length, or that ended in an error.
        if !matches!(reply.stop, Stop::Length | Stop::Error) {
            return Err(format!("a broken call would be run: the stop is {:?}", reply.stop));
        }
    }
    Ok(())
}

/// What only the model that made it can read is kept, part by part.
fn parts_are(reply: &Reply, expect: &Value) -> Result<(), String> {
    let text: usize = reply.parts.iter().map(|part| if let Part::Text { bytes, .. } = part { *bytes } else { 0 }).sum();
    let calls = reply.parts.iter().filter(|part| matches!(part, Part::Call { .. })).count();
    if !reply.parts.is_empty() {
        same("bytes of text in the parts", &text, &reply.text.len())?;
        same("calls in the parts", &calls, &reply.calls.len())?;
    }
    let kept = serde_json::to_string(&reply.parts).unwrap();
    let named = |name: &str| kept.matches(&format!("\"{name}\":\"")).count();
    let reasoning = &expect["reasoning"];
    let expected = |key: &str| usize::try_from(reasoning[key].as_u64().unwrap_or(0)).unwrap();
    same("signatures kept", &(named("signature") + named("thoughtSignature")), &expected("signatures"))?;
    same("redacted blocks kept", &kept.matches("\"type\":\"redacted_thinking\"").count(), &expected("redacted"))?;
    let encrypted = |part: &&Part| matches!(part, Part::Opaque(item) if item["encrypted_content"].is_string());
    same("encrypted items kept", &reply.parts.iter().filter(encrypted).count(), &expected("encrypted"))?;
    for tool in expect["server_tools"].as_array().into_iter().flatten() {
        let id = tool["id"].as_str().unwrap();
        if !kept.contains(&format!("\"id\":\"{id}\"")) {
            return Err(format!("the call {id} that ran at the provider is not kept"));
        }
    }
    Ok(())
}

fn error_is(error: &Error, expect: &Value) -> Result<(), String> {
    let kinds: Vec<&str> = expect["kinds"].as_array().unwrap().iter().map(|kind| kind.as_str().unwrap()).collect();
    if !kinds.contains(&error.kind.name()) {
        return Err(format!("kind is {:?}, not one of {kinds:?}: {error}", error.kind));
    }
    same("status", &error.http_status.map(u64::from), &expect["http_status"].as_u64())?;
    if let Some(code) = expect["code"].as_str() {
        same("code", &error.code.as_deref(), &Some(code))?;
    }
    let words = expect["message_has"].as_str().unwrap_or_default();
    if !error.message.contains(words) {
        return Err(format!("message {:?} lacks {words:?}", error.message));
    }
    if let Some(retryable) = expect["retryable"].as_bool() {
        same("retryable", &error.retryable, &retryable)?;
    }
    if let Some(seconds) = expect["retry_after_s"].as_f64() {
        same("wait", &error.retry_after_ms, &Some((seconds * 1000.0) as u64))?;
    }
    let in_stream = expect["in_stream"].as_bool().unwrap_or(false);
    same("whether a reply had begun", &error.reply_begun, &in_stream)
}
