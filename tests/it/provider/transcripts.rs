//! Random transcripts in Wren's own form, as a run's fold would leave them: every call has its one result, in the order
//! asked. It encodes nothing and judges nothing.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::BoxedStrategy;
use serde_json::{Value, json};
use wren::kernel::message::{Carried, Part};
use wren::kernel::{Args, AssistantMessage, Call, CallId, Message, ModelSpec, Request, ToolResult};

use super::{model, request, tool};

/// Stands in everything opaque that the asked model made itself.
pub const OWN: &str = "own-seal";
/// Stands in everything opaque that another provider or model made.
pub const FOREIGN: &str = "foreign-seal";
/// Stands in every thought that is kept for people.
pub const THOUGHT: &str = "thought-aloud";

/// What a family keeps of its own replies beside text and calls.
#[derive(Clone, Copy, Debug)]
pub struct Sealed {
    /// Whole parts, each holding the seal that it is given.
    pub parts: fn(&str) -> Vec<Value>,
    /// What stands beside a text or null.
    pub beside_text: fn(&str) -> Value,
    /// What stands beside a call or null.
    pub beside_call: fn(&str) -> Value,
}

/// A request, and one that was made earlier in the same run.
#[derive(Debug)]
pub struct Growth {
    /// The earlier one.
    pub before: Request,
    /// The later one.
    pub after: Request,
}

#[derive(Clone, Debug)]
enum Author {
    Asked,
    OtherModel,
    OtherProvider,
}

#[derive(Clone, Debug)]
struct Step {
    text: String,
    refusal: Option<String>,
    thought: bool,
    paused: bool,
    calls: Vec<Asked>,
    words_after: Vec<String>,
    carried: Option<(Author, Layout)>,
}

#[derive(Clone, Debug)]
struct Asked {
    provider_id: Option<String>,
    tool: String,
    raw: String,
    ok: bool,
    output: String,
}

#[derive(Clone, Debug)]
struct Layout {
    cut: usize,
    // For each place in the reply, whether something opaque stands there.
    places: Vec<bool>,
}

/// Returns the name of the asked provider and model, which all families go by here.
pub fn asked_model() -> ModelSpec {
    ModelSpec { provider: "here".to_owned(), ..model("gemini-3-pro") }
}

/// Returns requests of one run at two of its turns. `own` is how the asked family seals, `others` how all families do.
pub fn growths(own: Sealed, others: Vec<Sealed>) -> impl Strategy<Value = Growth> {
    let foreign = select(others);
    (
        words(),
        vec((step(), foreign), 1..7),
        any::<prop::sample::Index>(),
        any::<bool>(),
        option::of(0.0..1.0f64),
        "(|Be brief\\.|“\\PC{1,9}”)",
    )
        .prop_map(move |(prompt, steps, cut, with_tools, temperature, instructions)| {
            let mut messages = vec![Message::User { text: prompt }];
            let mut ends = vec![1];
            for (turn, (step, foreign)) in (1..).zip(&steps) {
                step.play(turn, own, *foreign, &mut messages);
                ends.push(messages.len());
            }
            let asked = ModelSpec { temperature, ..asked_model() };
            let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}});
            let tools = if with_tools { vec![tool("read_file", schema.clone()), tool("roll-dice", schema)] } else { Vec::new() };
            let after = request(asked, &instructions, messages, tools);
            let mut before = after.clone();
            before.messages.truncate(ends[cut.index(ends.len() - 1)]);
            Growth { before, after }
        })
}

impl Step {
    fn play(&self, turn: u32, own: Sealed, foreign: Sealed, messages: &mut Vec<Message>) {
        let calls = self.calls.iter().enumerate().map(|(index, asked)| Call {
            id: CallId::of(turn, index),
            provider_id: asked.provider_id.clone(),
            tool: asked.tool.clone(),
            args: Args::parse(&asked.raw),
        });
        let carried = self.carried.as_ref().map(|(author, layout)| Box::new(self.carried(author, layout, own, foreign)));
        messages.push(Message::Assistant(AssistantMessage {
            text: self.text.clone(),
            refusal: self.refusal.clone(),
            reasoning: self.thought.then(|| THOUGHT.to_owned()),
            calls: calls.collect(),
            carried,
            paused: self.paused && self.calls.is_empty(),
        }));
        messages.extend(self.calls.iter().enumerate().map(|(index, asked)| {
            let call_id = CallId::of(turn, index);
            Message::Tool(ToolResult { call_id, tool: asked.tool.clone(), ok: asked.ok, output: asked.output.clone() })
        }));
        messages.extend(self.words_after.iter().map(|text| Message::User { text: text.clone() }));
        // What is not paused and asks for nothing is the end, unless somebody has more to say.
        if self.calls.is_empty() && !self.paused && self.words_after.is_empty() {
            messages.push(Message::User { text: "Go on.".to_owned() });
        }
    }

    fn carried(&self, author: &Author, layout: &Layout, own: Sealed, foreign: Sealed) -> Carried {
        let asked = asked_model();
        let (provider, model, sealed, seal) = match author {
            Author::Asked => (asked.provider, asked.model, own, OWN),
            Author::OtherModel => (asked.provider, "gemini-3-flash".to_owned(), foreign, FOREIGN),
            Author::OtherProvider => ("there".to_owned(), asked.model, foreign, FOREIGN),
        };
        let opaque = (sealed.parts)(seal);
        let mut places = layout.places.iter().copied().chain(std::iter::repeat(false));
        let mut here = || places.next().unwrap_or(false);
        let mut parts: Vec<Part> = opaque.into_iter().filter(|_| here()).map(Part::Opaque).collect();
        let cut = self.text.char_indices().map(|(at, _)| at).nth(layout.cut).unwrap_or(self.text.len());
        for bytes in [cut, self.text.len() - cut] {
            let beside = if here() { (sealed.beside_text)(seal) } else { Value::Null };
            parts.push(Part::Text { bytes, beside });
        }
        parts.extend(self.calls.iter().map(|_| Part::Call { beside: if here() { (sealed.beside_call)(seal) } else { Value::Null } }));
        Carried { provider, model, parts }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let author = prop_oneof![3 => Just(Author::Asked), 1 => Just(Author::OtherModel), 1 => Just(Author::OtherProvider)];
    let layout = (0..9_usize, vec(any::<bool>(), 8)).prop_map(|(cut, places)| Layout { cut, places });
    let calls = prop_oneof![2 => Just(Vec::new()).boxed(), 5 => vec(asked(), 1..5).boxed()];
    let refusal = option::weighted(0.1, words());
    (any_text(), refusal, any::<bool>(), prop::bool::weighted(0.2), calls, vec(words(), 0..3), option::of((author, layout))).prop_map(
        |(text, refusal, thought, paused, calls, words_after, carried)| Step {
            text,
            refusal,
            thought,
            paused,
            calls,
            words_after,
            carried,
        },
    )
}

fn asked() -> impl Strategy<Value = Asked> {
    let ids = select(vec![None, Some("call_0"), Some("call_0"), Some("toolu_01A"), Some("Aufruf № 7 \"x\""), Some("0")]);
    let tools = prop_oneof![
        8 => select(vec!["read_file", "roll-dice"]).prop_map(str::to_owned),
        1 => select(vec!["", "functions.read_file", "read file", "読む", "roll-dice:0"]).prop_map(str::to_owned),
        1 => Just("long".repeat(40)),
    ];
    (ids, tools, raw_arguments(), prop::bool::weighted(0.7), any_text()).prop_map(|(id, tool, raw, ok, output)| Asked {
        provider_id: id.map(str::to_owned),
        tool,
        raw,
        ok,
        output,
    })
}

/// Arguments as providers give them: objects, nothing, and what cannot be used.
fn raw_arguments() -> BoxedStrategy<String> {
    let value = prop_oneof![any_text().prop_map(Value::from), any::<i64>().prop_map(Value::from), Just(json!([1.5, null, {"a": [true]}]))];
    let object = vec(("\\PC{0,6}", value), 0..4).prop_map(|fields| Value::Object(fields.into_iter().collect()).to_string());
    let marked = Just(json!({"type": "text", "cache_control": {"type": "ephemeral"}}).to_string());
    let odd = select(vec!["", "  ", "null", "{}", "{\"q\": \"a\" \"b\"}", "{\"path\": \"a.tx", "[1]", "7", "\"text\"", "{}{}", "\u{0}"]);
    prop_oneof![4 => object, 1 => marked, 3 => odd.prop_map(str::to_owned)].boxed()
}

/// Words that say something, as prompts do.
fn words() -> BoxedStrategy<String> {
    let chosen = [
        "Look.",
        " \"quoted\\\" \n\t",
        "\u{2028}🌍 東京 naïve e\u{301} \u{0}x",
        ",\"cache_control\":{\"type\":\"ephemeral\"}}]}],\"stream\":true",
    ];
    prop_oneof![2 => "[a-zé🌍]\\PC{0,12}", 1 => select(chosen.to_vec()).prop_map(str::to_owned)].boxed()
}

/// Words, or nothing but white space, as replies and results may be.
fn any_text() -> BoxedStrategy<String> {
    prop_oneof![5 => words(), 1 => Just(String::new()), 1 => Just(" \n".to_owned())].boxed()
}

/// Returns a transcript's calls and results, in the order in which they must stand.
pub fn asked_and_answered(messages: &[Arc<Message>]) -> (Vec<&Call>, Vec<&ToolResult>) {
    let mut calls = Vec::new();
    let mut results = Vec::new();
    for message in messages {
        match &**message {
            Message::User { .. } => {}
            Message::Assistant(reply) => calls.extend(&reply.calls),
            Message::Tool(result) => results.push(result),
        }
    }
    (calls, results)
}
