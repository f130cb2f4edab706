//! A workflow that was understood: what its root and its children are told.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::inputs::{self, InputSchemas};
use super::output::instruction;
use super::{Diagnostic, Launch, diagnostic, scalar, template};
use crate::kernel::agent::{ContextSpec, LimitsPatch};
use crate::kernel::{AgentSpec, ModelSpec, ToolSource, ToolSpec};

/// A workflow without faults.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) path: String,
    pub(super) name: String,
    pub(super) description: String,
    pub(super) inputs: InputSchemas,
    pub(super) agents: BTreeMap<String, PlannedAgent>,
    /// Prompts of subagent tools, by tool.
    pub(super) child_prompts: BTreeMap<String, String>,
    pub(super) sources: Vec<(String, ToolSource)>,
    pub(super) agent: String,
    pub(super) prompt: String,
    pub(super) limits: LimitsPatch,
}

/// An agent whose templates are not rendered yet.
#[derive(Clone, Debug)]
pub(super) struct PlannedAgent {
    pub description: String,
    pub model: PlannedModel,
    pub instructions: String,
    pub tools: Vec<ToolSpec>,
    pub output_schema: Option<Value>,
    pub context: ContextSpec,
    pub limits: LimitsPatch,
}

/// A model whose latencies are not rendered yet.
#[derive(Clone, Debug)]
pub(super) struct PlannedModel {
    pub spec: ModelSpec,
    /// The script's latency, a template.
    pub latency: Option<String>,
    /// Latencies of single replies, by their place in the script.
    pub reply_latencies: BTreeMap<usize, String>,
    /// What is asked instead, in this order. Those have no list of their own.
    pub fallback: Vec<PlannedModel>,
}

impl Plan {
    /// Returns the workflow's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what it is for; may be empty.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Returns the JSON Schema of its inputs.
    pub fn input_schema(&self) -> Value {
        inputs::whole_schema(&self.inputs)
    }

    /// Returns the agent that the root run is.
    pub fn root_agent(&self) -> &str {
        &self.agent
    }

    /// Returns the limits that the workflow sets for its root.
    pub fn limits(&self) -> LimitsPatch {
        let own = self.agents.get(&self.agent).map(|agent| agent.limits).unwrap_or_default();
        self.limits.or(&own)
    }

    /// Returns the tools' entries, as they are to be opened.
    pub fn sources(&self) -> &[(String, ToolSource)] {
        &self.sources
    }

    /// Returns the names of the agents.
    pub fn agent_names(&self) -> Vec<&str> {
        self.agents.keys().map(String::as_str).collect()
    }

    /// Returns the model that an agent asks, fallbacks and scripts left out.
    pub fn model_of(&self, agent: &str) -> Option<&ModelSpec> {
        self.agents.get(agent).map(|agent| &agent.model.spec)
    }

    /// Returns the names of the providers that its agents ask.
    pub fn providers_used(&self) -> Vec<String> {
        let models = self.agents.values().flat_map(|agent| std::iter::once(&agent.model).chain(&agent.model.fallback));
        let mut names: Vec<String> = models.map(|model| model.spec.provider.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Reads the inputs of a submission: defaults filled in, words read as what the schema asks for.
    ///
    /// # Errors
    /// Every fault.
    pub fn inputs(&self, json: &str) -> Result<Value, Vec<Diagnostic>> {
        inputs::read(&self.inputs, json)
    }

    /// Returns what the root run is told.
    ///
    /// # Errors
    /// A template that fails on these inputs.
    pub fn root(&self, inputs: &Value) -> Result<Launch, Diagnostic> {
        let failed = |why: String| diagnostic::placeless("W031", &self.path, why, String::new());
        let agent = self.build(&self.agent, inputs).map_err(failed)?;
        let prompt = template::render(&self.prompt, inputs, None).map_err(|why| failed(format!("prompt: {why}")))?;
        Ok(Launch { agent, prompt, limits: self.limits() })
    }

    /// Returns what a child run is told that answers a call of `tool`.
    ///
    /// # Errors
    /// Words for the model that called.
    pub fn child(&self, tool: &ToolSpec, args: &Value, inputs: &Value) -> Result<Launch, String> {
        let spawn = tool.spawn.as_ref().ok_or_else(|| format!("{:?} starts no child run", tool.name))?;
        let text = self.child_prompts.get(&tool.source).ok_or_else(|| format!("the workflow has no tool {:?}", tool.source))?;
        let agent = self.build(&spawn.agent, inputs)?;
        let prompt = template::render(text, inputs, Some(&with_defaults(args, &tool.parameters)))?;
        let own = self.agents.get(&spawn.agent).map(|agent| agent.limits).unwrap_or_default();
        Ok(Launch { agent, prompt, limits: spawn.limits.or(&own) })
    }

    fn build(&self, name: &str, inputs: &Value) -> Result<AgentSpec, String> {
        let agent = self.agents.get(name).ok_or_else(|| format!("the workflow has no agent {name:?}"))?;
        let mut instructions =
            template::render(&agent.instructions, inputs, None).map_err(|why| format!("instructions of {name}: {why}"))?;
        if let Some(schema) = &agent.output_schema {
            if !instructions.is_empty() {
                instructions.push_str("\n\n");
            }
            instructions.push_str(&instruction(schema));
        }
        Ok(AgentSpec {
            name: name.to_owned(),
            description: agent.description.clone(),
            instructions: instructions.into(),
            model: Arc::new(agent.model.build(inputs)?),
            tools: agent.tools.clone().into(),
            output_schema: agent.output_schema.clone(),
            context: agent.context,
        })
    }
}

impl PlannedModel {
    fn build(&self, inputs: &Value) -> Result<ModelSpec, String> {
        let mut spec = self.spec.clone();
        spec.fallback = self.fallback.iter().map(|model| model.build(inputs).map(Arc::new)).collect::<Result<_, _>>()?;
        let Some(script) = spec.scripted.take() else { return Ok(spec) };
        let mut script = (*script).clone();
        if let Some(latency) = &self.latency {
            script.latency_ms = latency_ms(latency, inputs)?;
        }
        for (index, latency) in &self.reply_latencies {
            if let Some(reply) = script.replies.get_mut(*index) {
                reply.latency_ms = Some(latency_ms(latency, inputs)?);
            }
        }
        spec.scripted = Some(Arc::new(script));
        Ok(spec)
    }
}

fn latency_ms(text: &str, inputs: &Value) -> Result<u64, String> {
    let rendered = template::render(text, inputs, None).map_err(|why| format!("latency: {why}"))?;
    let ms = scalar::duration_ms(rendered.trim()).map_err(|why| format!("latency: {why}"))?;
    Ok(u64::try_from(ms).unwrap_or(0))
}

fn with_defaults(args: &Value, schema: &Value) -> Value {
    let mut args = args.clone();
    if let (Value::Object(args), Some(properties)) = (&mut args, schema.get("properties").and_then(Value::as_object)) {
        for (name, property) in properties {
            if let Some(default) = property.get("default") {
                args.entry(name.clone()).or_insert_with(|| default.clone());
            }
        }
    }
    args
}
