//! Agents: their model, their tools by name, the form of their answer.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Context;
use super::tools::Tools;
use crate::kernel::ToolSpec;
use crate::kernel::agent::{ContextSpec, OnFull};
use crate::workflow::diagnostic::{Faults, nearest};
use crate::workflow::document;
use crate::workflow::plan::{PlannedAgent, PlannedModel};
use crate::workflow::scan::join;

impl Context<'_> {
    pub(super) fn agents(
        &self,
        models: &BTreeMap<String, Option<PlannedModel>>,
        tools: &Tools,
        inputs: &BTreeSet<String>,
        faults: &mut Faults<'_>,
    ) -> Option<BTreeMap<String, PlannedAgent>> {
        let mut agents = BTreeMap::new();
        let mut complete = true;
        for (name, agent) in &self.document.agents {
            let pointer = join("/agents", name);
            self.check_name(&pointer, name, faults);
            let instructions = agent.instructions.clone().unwrap_or_default();
            self.template(&join(&pointer, "instructions"), &instructions, inputs, faults);
            let offers = self.offers(&pointer, agent, tools, faults);
            let output_schema = self.output_schema(&pointer, agent, faults);
            let limits = self.limits(&join(&pointer, "limits"), agent.limits.as_ref(), faults);
            let Some(model) = self.model_of(&pointer, agent, models, faults) else {
                complete = false;
                continue;
            };
            let description = agent.description.clone().unwrap_or_default();
            agents.insert(
                name.clone(),
                PlannedAgent { description, model, instructions, tools: offers, output_schema, context: context_of(agent), limits },
            );
        }
        complete.then_some(agents)
    }

    fn model_of(
        &self,
        pointer: &str,
        agent: &document::Agent,
        models: &BTreeMap<String, Option<PlannedModel>>,
        faults: &mut Faults<'_>,
    ) -> Option<PlannedModel> {
        match models.get(&agent.model) {
            // A model that is there and faulty has had its say.
            Some(found) => found.clone(),
            None => {
                let known: Vec<&str> = models.keys().map(String::as_str).collect();
                let fault = faults.error("W021", &join(pointer, "model"), format!("there is no model `{}`", agent.model));
                fault.suggestion = nearest(&agent.model, known.iter().copied()).unwrap_or("").to_owned();
                fault.help = format!("use an alias from `models:` or provider/model; aliases: {}", known.join(", "));
                None
            }
        }
    }

    fn output_schema(&self, pointer: &str, agent: &document::Agent, faults: &mut Faults<'_>) -> Option<Value> {
        let schema = Value::Object(agent.output_schema.clone()?.into_iter().collect());
        if let Err(error) = jsonschema::validator_for(&schema) {
            faults.error("W018", &join(pointer, "output_schema"), format!("output_schema is not a valid JSON Schema: {error}"));
        }
        Some(schema)
    }

    /// Returns the operations that an agent may call: `docs` is all of an entry, `docs.read_file` one of it.
    fn offers(&self, pointer: &str, agent: &document::Agent, tools: &Tools, faults: &mut Faults<'_>) -> Vec<ToolSpec> {
        let mut offers: Vec<ToolSpec> = Vec::new();
        for (index, name) in agent.tools.iter().flatten().enumerate() {
            let at = join(&join(pointer, "tools"), &index.to_string());
            let (entry, operation) = name.split_once('.').map_or((name.as_str(), None), |(entry, operation)| (entry, Some(operation)));
            let Some(all) = tools.offers.get(entry) else {
                if self.document.tools.iter().flatten().any(|(known, _)| known == entry) {
                    continue;
                }
                let known: Vec<&str> = self.document.tools.iter().flatten().map(|(name, _)| name.as_str()).collect();
                let fault = faults.error("W029", &at, format!("there is no tool `{entry}`"));
                fault.suggestion = nearest(entry, known.iter().copied()).unwrap_or("").to_owned();
                fault.help = if known.is_empty() { "the workflow has no tools".to_owned() } else { format!("tools: {}", known.join(", ")) };
                continue;
            };
            let wanted: Vec<&ToolSpec> = all.iter().filter(|spec| operation.is_none_or(|operation| spec.name == operation)).collect();
            // An entry that offers nothing at all is at fault itself, and that is said there.
            if let Some(operation) = operation.filter(|_| wanted.is_empty()) {
                let known: Vec<&str> = all.iter().map(|spec| spec.name.as_str()).collect();
                let fault = faults.error("W029", &at, format!("tool `{entry}` has no operation `{operation}`"));
                fault.suggestion = nearest(operation, known.iter().copied()).unwrap_or("").to_owned();
                fault.help = format!("operations: {}", known.join(", "));
            }
            for spec in wanted {
                match offers.iter().find(|offer| offer.name == spec.name) {
                    Some(other) => {
                        let words = format!(
                            "`{}` is offered twice, by `{}` and `{}`: the model could not tell them apart",
                            spec.name, other.source, spec.source
                        );
                        faults.error("W029", &at, words);
                    }
                    None => offers.push(spec.clone()),
                }
            }
        }
        offers
    }
}

fn context_of(agent: &document::Agent) -> ContextSpec {
    let default = ContextSpec::default();
    let Some(context) = agent.context else { return default };
    let on_full = context.on_full.map_or(default.on_full, |on_full| match on_full {
        document::OnFull::Compact => OnFull::Compact,
        document::OnFull::Fail => OnFull::Fail,
    });
    ContextSpec { on_full, keep_turns: context.keep_turns.unwrap_or(default.keep_turns) }
}
