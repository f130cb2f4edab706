//! Tools: what each entry offers to a model.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use serde_json::{Value, json};

use super::Context;
use crate::kernel::agent::OnFailure;
use crate::kernel::{Effect, ScriptedTool, SpawnSpec, ToolSource, ToolSpec};
use crate::workflow::diagnostic::{Faults, nearest};
use crate::workflow::document;
use crate::workflow::scan::join;

/// Calls of one subagent tool in one run, where nobody says otherwise.
const MAX_CALLS_DEFAULT: u32 = 32;
/// Children of one subagent tool at once, where nobody says otherwise.
const MAX_PARALLEL_DEFAULT: u32 = 16;

/// All tools of a workflow.
#[derive(Default)]
pub(super) struct Tools {
    /// What each entry offers, in order.
    pub offers: BTreeMap<String, Vec<ToolSpec>>,
    /// Prompts of subagent tools.
    pub prompts: BTreeMap<String, String>,
    /// How each entry is opened.
    pub sources: Vec<(String, ToolSource)>,
}

impl Context<'_> {
    pub(super) fn tools(&self, inputs: &BTreeSet<String>, faults: &mut Faults<'_>) -> Tools {
        let mut tools = Tools::default();
        for (name, tool) in self.document.tools.iter().flatten() {
            let pointer = join("/tools", name);
            self.check_name(&pointer, name, faults);
            match (&tool.files, &tool.subagent, &tool.scripted) {
                (Some(files), None, None) => self.files(&pointer, name, tool, files, &mut tools, faults),
                (None, Some(agent), None) => self.subagent(&pointer, name, tool, agent, inputs, &mut tools, faults),
                (None, None, Some(script)) => self.played(&pointer, name, tool, script, &mut tools, faults),
                (None, None, None) => {
                    faults.error("W027", &pointer, format!("tool `{name}` needs one of `files`, `subagent` and `scripted`"));
                }
                _ => {
                    faults.error("W027", &pointer, format!("tool `{name}` has more than one of `files`, `subagent` and `scripted`"));
                }
            }
        }
        tools
    }

    fn files(&self, pointer: &str, name: &str, tool: &document::Tool, files: &document::Files, tools: &mut Tools, faults: &mut Faults<'_>) {
        let at = join(pointer, "files");
        let stays_inside = Path::new(&files.root).components().all(|part| matches!(part, Component::CurDir | Component::Normal(_)));
        if files.root.is_empty() || !stays_inside {
            let fault = faults.error("W028", &join(&at, "root"), format!("root `{}` must be a path inside the workspace", files.root));
            fault.help = "give it relative to the workspace, without `..`".to_owned();
        }
        refuse_meaningless(pointer, tool, "files", &["description", "parameters"], faults);
        let known: Vec<&str> = self.world.files_operations.iter().map(|operation| operation.name.as_str()).collect();
        let mut offers = Vec::new();
        let allowed: Vec<String> = files.allow.clone().unwrap_or_else(|| known.iter().map(|name| (*name).to_owned()).collect());
        for (index, wanted) in allowed.iter().enumerate() {
            match self.world.files_operations.iter().find(|operation| operation.name == *wanted) {
                Some(operation) => offers.push(ToolSpec { source: name.to_owned(), ..operation.clone() }),
                None => {
                    let at = join(&join(&at, "allow"), &index.to_string());
                    let fault = faults.error("W028", &at, format!("there is no file operation `{wanted}`"));
                    fault.suggestion = nearest(wanted, known.iter().copied()).unwrap_or("").to_owned();
                    fault.help = format!("operations: {}", known.join(", "));
                }
            }
        }
        tools.offers.insert(name.to_owned(), offers);
        tools.sources.push((name.to_owned(), ToolSource::Files { root: files.root.clone() }));
    }

    #[expect(clippy::too_many_arguments, reason = "one entry of the document and where its parts go")]
    fn subagent(
        &self,
        pointer: &str,
        name: &str,
        tool: &document::Tool,
        agent: &str,
        inputs: &BTreeSet<String>,
        tools: &mut Tools,
        faults: &mut Faults<'_>,
    ) {
        if !self.document.agents.contains_key(agent) {
            let known: Vec<&str> = self.document.agents.keys().map(String::as_str).collect();
            let fault = faults.error("W020", &join(pointer, "subagent"), format!("there is no agent `{agent}`"));
            fault.suggestion = nearest(agent, known.iter().copied()).unwrap_or("").to_owned();
            fault.help = format!("agents: {}", known.join(", "));
        }
        if tool.description.is_none() {
            faults.error("W027", pointer, format!("tool `{name}` needs a `description`: the model decides by it"));
        }
        let parameters = self.parameters(pointer, tool, faults);
        let mut names = inputs.clone();
        names.extend(tool.parameters.iter().flatten().map(|(name, _)| format!("args.{name}")));
        match &tool.prompt {
            Some(prompt) => self.template(&join(pointer, "prompt"), prompt, &names, faults),
            None => {
                faults.error("W027", pointer, format!("tool `{name}` needs a `prompt`: the child's first message"));
            }
        }
        let limits = self.limits(&join(pointer, "limits"), tool.limits.as_ref(), faults);
        let spawn = SpawnSpec {
            agent: agent.to_owned(),
            max_calls: tool.max_calls.unwrap_or(MAX_CALLS_DEFAULT),
            max_parallel: tool.max_parallel.unwrap_or(MAX_PARALLEL_DEFAULT),
            on_failure: match tool.on_failure {
                Some(document::OnFailure::Fail) => OnFailure::Fail,
                Some(document::OnFailure::Return) | None => OnFailure::Return,
            },
            limits,
        };
        let spec = ToolSpec {
            name: name.to_owned(),
            description: tool.description.clone().unwrap_or_default(),
            parameters,
            effect: Effect::Spawn,
            source: name.to_owned(),
            spawn: Some(spawn),
        };
        tools.offers.insert(name.to_owned(), vec![spec]);
        tools.prompts.insert(name.to_owned(), tool.prompt.clone().unwrap_or_default());
        tools.sources.push((name.to_owned(), ToolSource::Subagent));
    }

    fn played(
        &self,
        pointer: &str,
        name: &str,
        tool: &document::Tool,
        script: &document::ScriptedTool,
        tools: &mut Tools,
        faults: &mut Faults<'_>,
    ) {
        let at = join(pointer, "scripted");
        refuse_meaningless(pointer, tool, "scripted", &[], faults);
        if let Some(log) = script.log.as_ref().filter(|log| !is_file_name(log)) {
            let fault = faults.error("W028", &join(&at, "log"), format!("log `{log}` must be a plain file name"));
            fault.help = "the daemon keeps it among its tool-logs".to_owned();
        }
        let mut ms = |field: &str, text: &Option<String>| {
            let ms = text.as_ref().and_then(|text| self.duration(&join(&at, field), field, text, faults));
            ms.and_then(|ms| u64::try_from(ms).ok()).unwrap_or(0)
        };
        let (takes_ms, progress_every_ms) = (ms("takes", &script.takes), ms("progress_every", &script.progress_every));
        let effect = match script.effect {
            Some(document::ToolEffect::Idempotent) => Effect::Idempotent,
            Some(document::ToolEffect::External) => Effect::External,
            Some(document::ToolEffect::ReadOnly) | None => Effect::ReadOnly,
        };
        let spec = ToolSpec {
            name: name.to_owned(),
            description: tool.description.clone().unwrap_or_default(),
            parameters: self.parameters(pointer, tool, faults),
            effect,
            source: name.to_owned(),
            spawn: None,
        };
        let played = ScriptedTool {
            takes_ms,
            progress_every_ms,
            total: script.total.unwrap_or(0),
            unit: script.unit.clone().unwrap_or_else(|| "files".to_owned()),
            effect,
            result: script.result.clone().unwrap_or_default(),
            fails: script.fails.clone(),
            panics: script.panics.clone(),
            log: script.log.clone(),
        };
        tools.offers.insert(name.to_owned(), vec![spec]);
        tools.sources.push((name.to_owned(), ToolSource::Scripted(played)));
    }

    /// Returns the object schema of a tool's parameters.
    fn parameters(&self, pointer: &str, tool: &document::Tool, faults: &mut Faults<'_>) -> Value {
        let mut properties = serde_json::Map::new();
        let mut required = Vec::new();
        for (name, schema) in tool.parameters.iter().flatten() {
            if !schema.contains_key("default") {
                required.push(Value::String(name.clone()));
            }
            properties.insert(name.clone(), Value::Object(schema.clone().into_iter().collect()));
        }
        let parameters = json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
        if let Err(error) = jsonschema::validator_for(&parameters) {
            faults.error("W018", &join(pointer, "parameters"), format!("the parameters are not valid JSON Schemas: {error}"));
        }
        parameters
    }
}

fn is_file_name(name: &str) -> bool {
    !name.contains('\0') && Path::new(name).file_name().is_some_and(|file| file == name)
}

/// Refuses fields that would be ignored: those of children on a tool that starts none, and `more`.
fn refuse_meaningless(pointer: &str, tool: &document::Tool, kind: &str, more: &[&str], faults: &mut Faults<'_>) {
    let fields = [
        ("description", tool.description.is_some()),
        ("parameters", tool.parameters.is_some()),
        ("prompt", tool.prompt.is_some()),
        ("limits", tool.limits.is_some()),
        ("max_calls", tool.max_calls.is_some()),
        ("max_parallel", tool.max_parallel.is_some()),
        ("on_failure", tool.on_failure.is_some()),
    ];
    let applies = |field: &str| more.contains(&field) || !matches!(field, "description" | "parameters");
    for (field, _) in fields.iter().filter(|(field, is_set)| *is_set && applies(field)) {
        faults.key_error("W027", &join(pointer, field), format!("`{field}` has no meaning for a `{kind}` tool"));
    }
}
