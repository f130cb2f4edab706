//! What each family's encoder sends of any transcript: valid, with a prefix that only grows, with nothing that another model
//! sealed, and with one result for each call. It reads no answers and calls no server.
//!
//! The schemas in `schemas/` hold what the providers' documentation allows of what Wren sends, and nothing else.

use std::collections::HashSet;

use jsonschema::Validator;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use wren::kernel::message::Part;
use wren::kernel::{Args, Message, Request};
use wren::provider::openai::LimitField;
use wren::provider::{anthropic, gemini, ollama, openai, responses};

use super::said::{self, Said};
use super::transcripts::{FOREIGN, Growth, OWN, Sealed, THOUGHT, asked_and_answered, growths};

/// One wire family as these laws see it.
struct Family {
    schema: &'static str,
    encode: fn(&Request) -> Result<Vec<u8>, serde_json::Error>,
    /// Where its conversation stands in a request.
    list: &'static str,
    /// Where the pieces of one turn stand, if its roles take turns.
    pieces: Option<&'static str>,
    /// Who speaks for the model.
    model_role: &'static str,
    said: fn(&Value) -> Vec<Said>,
    sealed: Sealed,
    /// Whether what the asked model sealed goes back to it.
    returns_seals: bool,
}

const CHAT: Family = Family {
    schema: include_str!("schemas/chat.json"),
    encode: |request| openai::encode(request, LimitField::MaxTokens),
    list: "messages",
    pieces: None,
    model_role: "assistant",
    said: said::in_chat,
    sealed: Sealed { parts: |_| Vec::new(), beside_text: |_| Value::Null, beside_call: |_| Value::Null },
    returns_seals: false,
};

const RESPONSES: Family = Family {
    schema: include_str!("schemas/responses.json"),
    encode: responses::encode,
    list: "input",
    pieces: None,
    model_role: "assistant",
    said: said::in_input,
    sealed: Sealed {
        parts: |seal| {
            vec![
                json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": seal}], "encrypted_content": seal, "id": "rs_1"}),
                json!({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": seal}}),
            ]
        },
        // The API takes two words here and no seal, so another model's seal is a word that it must never see.
        beside_text: |seal| json!({"phase": if seal == OWN { "commentary" } else { seal }}),
        beside_call: |_| Value::Null,
    },
    returns_seals: true,
};

const MESSAGES: Family = Family {
    schema: include_str!("schemas/messages.json"),
    encode: anthropic::encode,
    list: "messages",
    pieces: Some("content"),
    model_role: "assistant",
    said: said::in_blocks,
    sealed: Sealed {
        parts: |seal| {
            vec![
                json!({"type": "thinking", "thinking": seal, "signature": seal}),
                json!({"type": "redacted_thinking", "data": seal}),
                json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": seal}}),
                json!({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [
                    {"type": "web_search_result", "url": "https://example.com", "title": "a", "encrypted_content": seal}
                ]}),
            ]
        },
        beside_text: |seal| json!({"citations": [{"type": "web_search_result_location", "encrypted_index": seal}]}),
        beside_call: |_| Value::Null,
    },
    returns_seals: true,
};

const GEMINI: Family = Family {
    schema: include_str!("schemas/generate_content.json"),
    encode: gemini::encode,
    list: "contents",
    pieces: Some("parts"),
    model_role: "model",
    said: said::in_parts,
    sealed: Sealed {
        parts: |seal| {
            vec![
                json!({"executableCode": {"language": "PYTHON", "code": seal}, "thoughtSignature": seal}),
                json!({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": seal}}),
            ]
        },
        beside_text: |seal| json!({"thoughtSignature": seal}),
        beside_call: |seal| json!({"thoughtSignature": seal}),
    },
    returns_seals: true,
};

const OLLAMA: Family = Family { schema: include_str!("schemas/ollama.json"), encode: ollama::encode, ..CHAT };

#[test]
fn chat_completions_requests_keep_the_laws() {
    keeps_the_laws(&CHAT);
}

#[test]
fn responses_requests_keep_the_laws() {
    keeps_the_laws(&RESPONSES);
}

#[test]
fn messages_requests_keep_the_laws_and_their_marks_stay_in_reach() {
    keeps_the_laws(&MESSAGES);
}

#[test]
fn generate_content_requests_keep_the_laws() {
    keeps_the_laws(&GEMINI);
}

#[test]
fn ollama_requests_keep_the_laws() {
    keeps_the_laws(&OLLAMA);
}

fn keeps_the_laws(family: &Family) {
    let validator = jsonschema::validator_for(&serde_json::from_str(family.schema).unwrap()).unwrap();
    let config = ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
    let others = [&CHAT, &RESPONSES, &MESSAGES, &GEMINI].map(|family| family.sealed).to_vec();
    let outcome = TestRunner::new(config)
        .run(&growths(family.sealed, others), |growth| laws(family, &validator, &growth).map_err(TestCaseError::fail));
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

fn laws(family: &Family, validator: &Validator, growth: &Growth) -> Result<(), String> {
    let before = sent(family, &growth.before)?;
    let after = sent(family, &growth.after)?;
    for (text, request) in [(&before, &growth.before), (&after, &growth.after)] {
        let body: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let faults: Vec<String> = validator.iter_errors(&body).map(|fault| format!("{}: {fault}", fault.instance_path())).collect();
        law(faults.is_empty(), || format!("it is not valid: {}\n{text}", faults.join("\n")))?;
        nothing_foreign(family, text, request)?;
        one_result_a_call(family, &body, request)?;
    }
    grows(family, &before, &after)
}

fn law(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

fn sent(family: &Family, request: &Request) -> Result<String, String> {
    let bytes = (family.encode)(request).map_err(|error| error.to_string())?;
    law((family.encode)(request).is_ok_and(|again| again == bytes), || "the same request has other bytes".to_owned())?;
    String::from_utf8(bytes).map_err(|error| error.to_string())
}

fn nothing_foreign(family: &Family, text: &str, request: &Request) -> Result<(), String> {
    law(!text.contains(FOREIGN), || format!("another model's seal is sent: {text}"))?;
    law(!text.contains(THOUGHT), || format!("a thought for people is sent: {text}"))?;
    law(family.returns_seals || !text.contains(OWN), || format!("a seal is sent where none is known: {text}"))?;
    for message in request.messages.iter().filter(|_| family.returns_seals) {
        let Message::Assistant(reply) = &**message else { continue };
        for part in reply.carried_for(&request.model).unwrap_or_default() {
            if let Part::Opaque(value) = part {
                law(text.contains(&value.to_string()), || format!("its own {value} does not come back as it was: {text}"))?;
            }
        }
    }
    Ok(())
}

/// Each call stands where it was asked, with its results behind its reply, in the order asked and before anything else.
fn one_result_a_call(family: &Family, body: &Value, request: &Request) -> Result<(), String> {
    let said = (family.said)(body);
    let (calls, results) = asked_and_answered(&request.messages);
    let mut ids = HashSet::new();
    let mut open: Vec<(&str, &str)> = Vec::new();
    let mut asked = calls.iter();
    let mut answered = results.iter();
    for (index, item) in said.iter().enumerate() {
        let is_models = matches!(item, Said::Model | Said::Call { .. });
        let before = index.checked_sub(1).and_then(|index| said.get(index));
        let was_models = matches!(before, Some(Said::Model | Said::Call { .. }));
        law(open.is_empty() || matches!(item, Said::Result { .. }) || (is_models && was_models), || {
            format!("{item:?} stands before {open:?}: {body}")
        })?;
        match item {
            Said::User | Said::Model => {}
            Said::Call { id, name, args } => {
                let call = asked.next().ok_or_else(|| format!("nobody asked for {item:?}"))?;
                law(ids.insert(id.as_str()), || format!("the id {id} stands twice: {body}"))?;
                let right = if let Args::Json(value) = &call.args { value.clone() } else { json!({}) };
                law(id == call.id.as_str() && *args == right, || format!("{item:?} is not {call:?}"))?;
                law(*name == call.tool || !matches!(call.tool.as_str(), "read_file" | "roll-dice"), || {
                    format!("{item:?} is not {call:?}")
                })?;
                open.push((id, name));
            }
            Said::Result { id, words, failed, name } => {
                let result = answered.next().ok_or_else(|| format!("nobody gave {item:?}"))?;
                law(!open.is_empty() && open.remove(0) == (id, name.as_deref().unwrap_or(&sent_name(&said, id))), || {
                    format!("{item:?} answers no call, or not the next: {body}")
                })?;
                let same_words = *words == result.output || result.output.trim().is_empty();
                law(id == result.call_id.as_str() && same_words, || format!("{item:?} is not {result:?}"))?;
                law(failed.is_none_or(|failed| failed != result.ok), || format!("{item:?} is not {result:?}"))?;
            }
        }
    }
    let rest = asked.count() + answered.count() + open.len();
    law(rest == 0, || format!("{rest} calls or results are missing: {body}"))
}

fn sent_name(said: &[Said], wanted: &str) -> String {
    let name = said.iter().find_map(|item| if let Said::Call { id, name, .. } = item { (id == wanted).then_some(name) } else { None });
    name.cloned().unwrap_or_default()
}

/// The later request begins with the bytes of the earlier one, up to the end of its conversation.
fn grows(family: &Family, before: &str, after: &str) -> Result<(), String> {
    let (head, turns) = split(family, before)?;
    let (later_head, later_turns) = split(family, after)?;
    law(head == later_head, || format!("what stands before the conversation changes: {head}\n{later_head}"))?;
    let Some(pieces) = family.pieces else {
        return law(later_turns.starts_with(&turns), || format!("{turns:?}\nis no beginning of\n{later_turns:?}"));
    };
    let (turns, marks) = unmarked(family, pieces, &turns)?;
    let (later_turns, later_marks) = unmarked(family, pieces, &later_turns)?;
    takes_turns(family, &turns)?;
    takes_turns(family, &later_turns)?;
    let (last, done) = turns.split_last().ok_or("it says nothing")?;
    let (later, rest) = later_turns.split_at(done.len().min(later_turns.len()));
    law(done == later, || format!("{done:?}\nis no beginning of\n{later_turns:?}"))?;
    // The last turn may go on growing while the same side speaks.
    let same = rest.first().is_some_and(|first| first.role == last.role && first.pieces.starts_with(&last.pieces));
    law(same, || format!("{last:?}\ndoes not begin\n{rest:?}"))?;
    let count = |turns: &[Turn]| turns.iter().map(|turn| turn.pieces.len()).sum::<usize>();
    if family.list == "messages" {
        marks_stand(head, before, &turns, &marks)?;
        marks_stand(later_head, after, &later_turns, &later_marks)?;
        let end = marks.last().copied().unwrap_or(count(&turns));
        if one_exchange(&turns, &later_turns) {
            // The API looks back twenty blocks from a mark for what was cached before.
            let in_reach = later_marks.iter().any(|mark| *mark >= end && mark - end <= 20);
            law(in_reach, || format!("what was marked at {end} is out of reach of {later_marks:?}: {after}"))?;
        }
    }
    Ok(())
}

#[derive(Debug, PartialEq)]
struct Turn {
    role: String,
    pieces: Vec<String>,
}

/// Returns whether the later request is no more than a reply and what follows it away.
fn one_exchange(before: &[Turn], after: &[Turn]) -> bool {
    after.len() <= before.len() + 2
}

/// Returns the bytes before the conversation, and the conversation entry by entry.
fn split<'a>(family: &Family, text: &'a str) -> Result<(&'a str, Vec<&'a str>), String> {
    #[derive(Deserialize)]
    struct Lists<'a> {
        #[serde(borrow, alias = "input", alias = "contents")]
        messages: &'a RawValue,
    }
    let lists: Lists<'a> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let list = lists.messages.get();
    let entries: Vec<&'a RawValue> = serde_json::from_str(list).map_err(|error| error.to_string())?;
    let key = format!("\"{}\":", family.list);
    let start = list.as_ptr().addr() - text.as_ptr().addr();
    let head = &text[..start];
    law(head.ends_with(&key), || format!("{head} does not end in {key}"))?;
    let entries: Vec<&str> = entries.into_iter().map(RawValue::get).collect();
    law(format!("[{}]", entries.join(",")) == list, || format!("there are bytes between the entries: {list}"))?;
    Ok((head, entries))
}

/// Returns the turns without the marks of the cache, and the number of each marked piece.
fn unmarked(family: &Family, pieces: &str, entries: &[&str]) -> Result<(Vec<Turn>, Vec<usize>), String> {
    const MARK: &str = ",\"cache_control\":{\"type\":\"ephemeral\"}}";
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Raw<'a> {
        role: &'a str,
        #[serde(borrow, alias = "parts")]
        content: Vec<&'a RawValue>,
    }
    let (mut turns, mut marks, mut count) = (Vec::new(), Vec::new(), 0);
    for entry in entries {
        let raw: Raw<'_> = serde_json::from_str(entry).map_err(|error| error.to_string())?;
        let mut bare = Vec::new();
        for piece in raw.content {
            count += 1;
            let is_marked = serde_json::from_str::<Value>(piece.get()).is_ok_and(|piece| piece.get("cache_control").is_some());
            bare.push(if is_marked {
                marks.push(count);
                let rest = piece.get().strip_suffix(MARK).ok_or_else(|| format!("the mark is not the last of {piece}"))?;
                format!("{rest}}}")
            } else {
                piece.get().to_owned()
            });
        }
        let whole = format!("{{\"role\":\"{}\",\"{pieces}\":[", raw.role);
        law(entry.starts_with(&whole), || format!("{entry} does not begin with {whole}"))?;
        turns.push(Turn { role: raw.role.to_owned(), pieces: bare });
    }
    law(marks.is_empty() || family.list == "messages", || "a family without marks has some".to_owned())?;
    Ok((turns, marks))
}

fn takes_turns(family: &Family, turns: &[Turn]) -> Result<(), String> {
    let roles: Vec<&str> = turns.iter().map(|turn| turn.role.as_str()).collect();
    let right = roles.iter().enumerate().all(|(index, role)| *role == if index % 2 == 0 { "user" } else { family.model_role });
    law(right, || format!("they do not take turns: {roles:?}"))
}

/// The marks stand on the ends of the last two turns of the user, and on the head: no more than the four that are allowed.
fn marks_stand(head: &str, text: &str, turns: &[Turn], marks: &[usize]) -> Result<(), String> {
    let mut end = 0;
    let ends = turns.iter().map(|turn| {
        end += turn.pieces.len();
        (turn.role.as_str(), end)
    });
    let users: Vec<usize> = ends.filter(|(role, _)| *role == "user").map(|(_, end)| end).collect();
    law(marks == &users[users.len().saturating_sub(2)..], || format!("the marks {marks:?} do not stand at the ends of {users:?}: {text}"))?;
    let heads = head.matches(",\"cache_control\":{\"type\":\"ephemeral\"}}").count();
    law(heads <= 1 && heads + marks.len() <= 4, || format!("there are too many marks: {text}"))
}
