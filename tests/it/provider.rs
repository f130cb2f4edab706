//! Tests of the provider room.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use wren::kernel::{Message, ModelSpec, Reply, Request, ToolSpec};
use wren::provider::{Delta, Error, ReplyBuilder};

mod anthropic;
mod client;
mod encode;
mod events;
mod fixtures;
mod hostile;
mod money;
mod roundtrip;
mod said;
mod scripted;
mod transcripts;

/// Returns the directory of recorded answers, or prints that it is missing.
fn recorded() -> Option<PathBuf> {
    let shared = std::env::var_os("WREN_SHARED").map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared"), PathBuf::from);
    let fixtures = shared.join("fixtures/provider");
    if !fixtures.is_dir() {
        println!("skipped: no recorded answers at {}", fixtures.display());
        return None;
    }
    Some(fixtures)
}

/// Puts items together up to the first error.
fn gather(items: impl IntoIterator<Item = Result<Delta, Error>>) -> (ReplyBuilder, Vec<Delta>, Option<Error>) {
    let mut builder = ReplyBuilder::default();
    let mut deltas = Vec::new();
    for item in items {
        match item {
            Ok(delta) => {
                deltas.push(delta.clone());
                builder.push(delta);
            }
            Err(error) => return (builder, deltas, Some(error)),
        }
    }
    (builder, deltas, None)
}

fn whole(items: impl IntoIterator<Item = Result<Delta, Error>>) -> Reply {
    let (builder, _, error) = gather(items);
    assert_eq!(error, None);
    builder.finish().unwrap()
}

/// Small and good enough for choosing where to cut.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(bound.max(1)).unwrap()).unwrap()
    }
}

fn model(name: &str) -> ModelSpec {
    ModelSpec {
        alias: "main".to_owned(),
        provider: "openai".to_owned(),
        model: name.to_owned(),
        max_output: 256,
        temperature: None,
        top_p: None,
        price: None,
        price_version: "test".to_owned(),
        window_tokens: None,
        scripted: None,
        fallback: Vec::new(),
    }
}

fn request(model: ModelSpec, instructions: &str, messages: Vec<Message>, tools: Vec<ToolSpec>) -> Request {
    let turns = messages.iter().filter(|message| matches!(message, Message::Assistant(_))).count();
    Request {
        agent: "lead".to_owned(),
        max_output: model.max_output,
        model: Arc::new(model),
        instructions: instructions.into(),
        messages: messages.into_iter().map(Arc::new).collect(),
        tools: tools.into(),
        turn: u32::try_from(turns + 1).unwrap(),
        attempt: 1,
        purpose: wren::kernel::event::Purpose::Task,
    }
}

fn user(text: &str) -> Message {
    Message::User { text: text.to_owned() }
}

fn tool(name: &str, parameters: Value) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        description: format!("does {name}"),
        parameters,
        effect: wren::kernel::Effect::ReadOnly,
        source: "test".to_owned(),
        spawn: None,
    }
}
