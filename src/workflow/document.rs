//! The language, version 1, as types: what a document may say. The editor schema is made of the same types. What the
//! words mean is decided in the checks.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

/// A workflow.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// The version of the language: v1.
    #[expect(dead_code, reason = "its presence is what is checked")]
    pub wren: Version,
    /// The workflow's name.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// Inputs: each a JSON Schema; without a default an input is required.
    pub inputs: Option<BTreeMap<String, BTreeMap<String, Value>>>,
    /// Models by alias.
    pub models: Option<BTreeMap<String, Model>>,
    /// Tools by name.
    pub tools: Option<BTreeMap<String, Tool>>,
    /// Agents by name.
    pub agents: BTreeMap<String, Agent>,
    /// The agent that the root run is.
    pub agent: String,
    /// Its first message; a template.
    pub prompt: String,
    /// Limits of the root run.
    pub limits: Option<Limits>,
}

/// A version of the language.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
pub enum Version {
    /// This one.
    #[serde(rename = "v1")]
    V1,
}

/// A model: what is asked, and how. Either `use` or `scripted`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// provider/model.
    #[serde(rename = "use")]
    pub uses: Option<String>,
    /// Sampling temperature.
    #[schemars(range(min = 0.0, max = 2.0))]
    pub temperature: Option<f64>,
    /// Nucleus sampling.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub top_p: Option<f64>,
    /// Output tokens of one turn at most. Default 4096.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_output: Option<i64>,
    /// What is asked instead once this model fails, in this order: aliases of `models`, or provider/model.
    #[schemars(length(max = 8))]
    pub fallback: Option<Vec<String>>,
    /// How many tokens a call can hold, input and output together, if the price book does not know it or is wrong.
    #[schemars(range(min = 1))]
    pub window_tokens: Option<i64>,
    /// What it costs, if the price book does not know it or is wrong.
    pub price: Option<Price>,
    /// Whether it may be used under a budget although nobody knows its price.
    pub price_unknown: Option<PriceUnknown>,
    /// Replies that are played instead of asking anybody.
    pub scripted: Option<Scripted>,
}

/// What to do about a model without a price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PriceUnknown {
    /// Use it; its cost counts as 0 and is marked as unknown.
    Allow,
    /// Refuse it at submit.
    Refuse,
}

/// An amount: a number, or a string that holds one.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(transparent)]
pub struct Amount(#[schemars(schema_with = "amount_schema")] pub Value);

fn amount_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": ["number", "string"]})
}

/// A price, each in USD for a million tokens.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Input.
    pub input_usd_per_mtok: Amount,
    /// Output.
    pub output_usd_per_mtok: Amount,
    /// Input read from the provider's cache. Default: as input.
    pub cache_read_usd_per_mtok: Option<Amount>,
    /// Input written to the provider's cache. Default: as input.
    pub cache_write_usd_per_mtok: Option<Amount>,
    /// Reasoning. Default: as output.
    pub reasoning_usd_per_mtok: Option<Amount>,
    /// What all tokens of a call cost whose input is longer than a bound.
    pub long: Option<Box<LongPrice>>,
}

/// The price of calls whose input is longer than a bound, each in USD for a million tokens.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LongPrice {
    /// The bound, in input tokens.
    #[schemars(range(min = 0))]
    pub above_tokens: i64,
    /// Input.
    pub input_usd_per_mtok: Amount,
    /// Output.
    pub output_usd_per_mtok: Amount,
    /// Input read from the provider's cache. Default: as input.
    pub cache_read_usd_per_mtok: Option<Amount>,
    /// Input written to the provider's cache. Default: as input.
    pub cache_write_usd_per_mtok: Option<Amount>,
    /// Reasoning. Default: as output.
    pub reasoning_usd_per_mtok: Option<Amount>,
}

/// A script.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scripted {
    /// What it costs. Default: nothing.
    pub price: Option<Price>,
    /// How long a reply takes: 20ms. A template.
    pub latency: Option<String>,
    /// The replies; the first that matches is given.
    pub replies: Option<Vec<Reply>>,
}

/// A reply of a script: conditions, and what is answered.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reply {
    /// Only for this agent.
    pub agent: Option<String>,
    /// Only at this turn, from 1.
    #[schemars(range(min = 1))]
    pub turn: Option<u32>,
    /// Only at this attempt, from 1.
    #[schemars(range(min = 1))]
    pub attempt: Option<u32>,
    /// Only if the prompt or a result so far has this text.
    pub saw: Option<String>,
    /// What it says.
    pub text: Option<String>,
    /// What it asks for.
    pub calls: Option<Vec<ReplyCall>>,
    /// Why it stops, if not the natural reason.
    pub stop: Option<Stop>,
    /// What it reports as used, if not what is counted.
    pub usage: Option<ReplyUsage>,
    /// Fails instead.
    pub error: Option<ReplyError>,
    /// How long this reply takes. A template.
    pub latency: Option<String>,
}

/// Why a scripted model stops.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    EndTurn,
    ToolCalls,
    Length,
    Refusal,
    Error,
}

/// A call of a scripted reply.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplyCall {
    /// The tool.
    pub tool: String,
    /// Its arguments.
    pub args: Option<BTreeMap<String, Value>>,
}

/// Usage of a scripted reply, in tokens.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplyUsage {
    /// Read in all, from and into caches included.
    #[schemars(range(min = 0))]
    pub input_tokens: i64,
    /// Written in all, reasoning included.
    #[schemars(range(min = 0))]
    pub output_tokens: i64,
    /// Read from the cache.
    #[schemars(range(min = 0))]
    pub cache_read_tokens: Option<i64>,
    /// Written to the cache.
    #[schemars(range(min = 0))]
    pub cache_write_tokens: Option<i64>,
    /// Spent on reasoning.
    #[schemars(range(min = 0))]
    pub reasoning_tokens: Option<i64>,
}

/// A failure of a scripted reply.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplyError {
    /// The HTTP status.
    #[schemars(range(min = 400, max = 599))]
    pub status: u16,
    /// What Retry-After would say: 10ms.
    pub retry_after: Option<String>,
    /// The message.
    pub message: Option<String>,
}

/// A tool. Exactly one of `files`, `subagent` and `scripted`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// What it does, for the model. Required for a subagent.
    pub description: Option<String>,
    /// Read-only file operations.
    pub files: Option<Files>,
    /// The agent that a child run is.
    pub subagent: Option<String>,
    /// A tool that plays a script.
    pub scripted: Option<ScriptedTool>,
    /// Arguments: each a JSON Schema; without a default one is required.
    pub parameters: Option<BTreeMap<String, BTreeMap<String, Value>>>,
    /// The child's first message; a template over `args` and `inputs`.
    pub prompt: Option<String>,
    /// Limits of each child's subtree.
    pub limits: Option<Limits>,
    /// Calls in one run at most. Default 32.
    #[schemars(range(min = 1))]
    pub max_calls: Option<u32>,
    /// Children at once in one run. Default 16.
    #[schemars(range(min = 1))]
    pub max_parallel: Option<u32>,
    /// What a child that does not complete means to its parent. Default `return`.
    pub on_failure: Option<OnFailure>,
}

/// What a child that does not complete means to its parent.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The parent reads an error and goes on.
    Return,
    /// The parent fails too.
    Fail,
}

/// File operations inside a directory.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// The directory, relative to the run's workspace.
    pub root: String,
    /// The operations on offer. Default: all.
    pub allow: Option<Vec<String>>,
}

/// A tool that plays a script.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScriptedTool {
    /// How long it takes: 5s. Default: no time.
    pub takes: Option<String>,
    /// How often it tells its progress: 100ms. Default: never.
    pub progress_every: Option<String>,
    /// What the progress counts to.
    pub total: Option<u64>,
    /// What is counted. Default: files.
    pub unit: Option<String>,
    /// What running it does to the world. Default: read_only.
    pub effect: Option<ToolEffect>,
    /// What it answers.
    pub result: Option<String>,
    /// Fails with this message instead.
    pub fails: Option<String>,
    /// Panics with this message instead.
    pub panics: Option<String>,
    /// A file in the daemon's tool-logs that gets one line for each execution.
    pub log: Option<String>,
}

/// What running a tool does to the world.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolEffect {
    /// Nothing.
    ReadOnly,
    /// Something that may be done again under the same key.
    Idempotent,
    /// Something that must not be done twice.
    External,
}

/// What happens to a conversation that outgrows the model's window.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// Whether room is made. Default `compact`.
    pub on_full: Option<OnFull>,
    /// The last replies, with the results of their calls, that stay as they are, as far as they leave half of the room. Default 4.
    #[schemars(range(min = 1))]
    pub keep_turns: Option<u32>,
}

/// What happens when the conversation does not fit the model any more.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFull {
    /// Old results are left out, then the model writes notes that stand in for what was said.
    Compact,
    /// The run stops.
    Fail,
}

/// An agent.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Agent {
    /// What it is for.
    pub description: Option<String>,
    /// A model's alias, or provider/model.
    pub model: String,
    /// The system prompt; a template.
    pub instructions: Option<String>,
    /// Its tools: an entry's name for all of its operations, or entry.operation.
    pub tools: Option<Vec<String>>,
    /// The JSON Schema of its final answer.
    pub output_schema: Option<BTreeMap<String, Value>>,
    /// Its limits where no tool or submitter says otherwise.
    pub limits: Option<Limits>,
    /// What happens to a conversation that outgrows the model's window.
    pub context: Option<Context>,
    /// What happens to a reply that asks for tools and was cut off. Default `block`.
    #[expect(dead_code, reason = "it has one value, which is what happens")]
    pub on_length: Option<OnLength>,
}

/// What happens to a reply that asks for tools and was cut off.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnLength {
    /// None of its calls runs, and the run stops as blocked.
    Block,
}

/// Caps. All but `max_turns` bound the whole subtree.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Model replies in the run's own loop. Default 50.
    #[schemars(range(min = 1))]
    pub max_turns: Option<u32>,
    /// Money in USD. Default 1.
    pub budget_usd: Option<Amount>,
    /// Input plus output tokens. Default 2,000,000.
    #[schemars(range(min = 1))]
    pub max_tokens: Option<i64>,
    /// Time in state running: 15m. Default 1h.
    pub timeout: Option<String>,
    /// Levels below the run. Default 2.
    pub max_depth: Option<u32>,
    /// Runs, the run itself included. Default 64.
    #[schemars(range(min = 1))]
    pub max_runs: Option<u32>,
}
