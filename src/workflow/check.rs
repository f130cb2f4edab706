//! From text to a plan: the scan, the shape, and then what the words mean, each fault at its place.

mod agents;
mod models;
mod tools;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::diagnostic::{Faults, nearest, of_refused, placeless};
use super::document::{self, Document};
use super::plan::Plan;
use super::scan::{self, SourceMap, join};
use super::{Diagnostic, Overrides, Source, World, scalar, schema, secrets, template};
use crate::kernel::agent::LimitsPatch;
use crate::kernel::ledger::Limits;

/// Bytes of a whole bundle at most.
const BUNDLE_BYTES_MAX: usize = 1024 * 1024;

/// What the parts of the check share.
struct Context<'a> {
    world: &'a World<'a>,
    overrides: &'a Overrides,
    map: &'a SourceMap,
    document: &'a Document,
}

/// Reads a workflow. There is a plan only if there is no error; warnings may come with it.
pub fn load(source: &Source, world: &World<'_>, overrides: &Overrides) -> (Option<Plan>, Vec<Diagnostic>) {
    let path = &source.entry;
    let refuse = |code, message: String, help: &str| (None, vec![placeless(code, path, message, help.to_owned())]);
    let total: usize = source.files.values().map(Vec::len).sum();
    if total > BUNDLE_BYTES_MAX {
        return refuse("W001", format!("the bundle has {total} bytes and may have {BUNDLE_BYTES_MAX}"), "");
    }
    let Some(bytes) = source.files.get(path) else {
        return refuse("W001", "the bundle lacks its entry file".to_owned(), "");
    };
    let Ok(text) = std::str::from_utf8(bytes) else {
        return refuse("W002", "the file is not UTF-8".to_owned(), "save it as UTF-8");
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let map = match scan::scan(text) {
        Ok(map) => map,
        Err(refused) => return (None, refused.into_iter().map(|refused| of_refused(refused, path, text)).collect()),
    };
    let value: Value = match serde_yaml::from_str(text) {
        Ok(value) => value,
        Err(error) => return (None, vec![not_read(&error, &map, path, text)]),
    };
    if value.is_null() {
        return refuse("W002", "the file is empty".to_owned(), "a workflow begins with `wren: v1`");
    }
    let mut faults = Faults::new(path, text, &map);
    secrets::check(&map, &mut faults);
    schema::check_shape(&value, &mut faults);
    if faults.has_errors() {
        return (None, faults.into_sorted());
    }
    let document: Document = match serde_json::from_value(value) {
        Ok(document) => document,
        Err(error) => {
            faults.error("W013", "", format!("this is not a workflow: {error}"));
            return (None, faults.into_sorted());
        }
    };
    let context = Context { world, overrides, map: &map, document: &document };
    let plan = context.plan(path, &mut faults);
    let failed = faults.has_errors();
    (plan.filter(|_| !failed), faults.into_sorted())
}

/// Returns the fault of a document that the scan let through and that cannot be read, such as a number out of range.
fn not_read(error: &serde_yaml::Error, map: &SourceMap, path: &str, text: &str) -> Diagnostic {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let (line, column) = error.location().map_or((0, 0), |location| (number(location.line()), number(location.column())));
    let node = map.iter().find(|(_, node)| node.value.line == line && node.value.column == column && node.text.is_some());
    let place = match node {
        Some((_, node)) => node.value,
        None => scan::Place { line, column, end_line: line, end_column: column.saturating_add(1) },
    };
    let message = match node {
        Some((pointer, _)) if error.to_string().contains("out of range") => format!("{} is a number out of range", schema::dotted(pointer)),
        _ => format!("this is not valid YAML: {error}"),
    };
    let refused = scan::Refused { code: "W002", message, help: String::new(), place };
    of_refused(refused, path, text)
}

impl Context<'_> {
    fn plan(&self, path: &str, faults: &mut Faults<'_>) -> Option<Plan> {
        let document = self.document;
        self.check_name("/name", &document.name, faults);
        let inputs = self.inputs(faults);
        let input_names: BTreeSet<String> = inputs.keys().map(|name| format!("inputs.{name}")).collect();
        let models = self.models(&input_names, faults);
        let tools = self.tools(&input_names, faults);
        let agents = self.agents(&models, &tools, &input_names, faults);
        self.template("/prompt", &document.prompt, &input_names, faults);
        if !document.agents.contains_key(&document.agent) {
            let known: Vec<&str> = document.agents.keys().map(String::as_str).collect();
            let fault = faults.error("W020", "/agent", format!("there is no agent `{}`", document.agent));
            fault.suggestion = nearest(&document.agent, known.iter().copied()).unwrap_or("").to_owned();
            fault.help = format!("agents: {}", known.join(", "));
        }
        let limits = self.limits("/limits", document.limits.as_ref(), faults);
        let root = agents.as_ref().and_then(|agents| agents.get(&document.agent)).map(|agent| agent.limits).unwrap_or_default();
        self.check_ceilings(&limits.or(&root), faults);
        self.warn_above_root(&limits.or(&root), faults);
        for alias in self.overrides.models.keys().filter(|alias| !models.contains_key(*alias)) {
            let known: Vec<&str> = models.keys().map(String::as_str).collect();
            let fault = faults.error("W021", "/models", format!("--set-model names `{alias}`, and there is no such model here"));
            fault.suggestion = nearest(alias, known.iter().copied()).unwrap_or("").to_owned();
            fault.help = format!("models: {}", known.join(", "));
        }
        self.warn_unused(faults);
        Some(Plan {
            path: path.to_owned(),
            name: document.name.clone(),
            description: document.description.clone().unwrap_or_default(),
            inputs,
            agents: agents?,
            child_prompts: tools.prompts,
            sources: tools.sources,
            agent: document.agent.clone(),
            prompt: document.prompt.clone(),
            limits,
        })
    }

    fn check_name(&self, pointer: &str, name: &str, faults: &mut Faults<'_>) {
        let fits = !name.is_empty() && name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        if !fits {
            faults.error("W017", pointer, format!("the name `{name}` must have 1 to 64 letters, digits, `-` or `_`"));
        }
    }

    fn inputs(&self, faults: &mut Faults<'_>) -> BTreeMap<String, Value> {
        let mut inputs = BTreeMap::new();
        for (name, schema) in self.document.inputs.iter().flatten() {
            let pointer = join("/inputs", name);
            self.check_name(&pointer, name, faults);
            let schema = Value::Object(schema.clone().into_iter().collect());
            match (jsonschema::validator_for(&schema), schema.get("default")) {
                (Err(error), _) => {
                    faults.error("W018", &pointer, format!("input `{name}` is not a valid JSON Schema: {error}"));
                }
                (Ok(validator), Some(default)) if !validator.is_valid(default) => {
                    faults.error("W018", &join(&pointer, "default"), format!("the default of input `{name}` does not fit its own schema"));
                }
                (Ok(_), _) => {}
            }
            inputs.insert(name.clone(), schema);
        }
        inputs
    }

    /// Checks a template and the names in it.
    fn template(&self, pointer: &str, text: &str, known: &BTreeSet<String>, faults: &mut Faults<'_>) {
        for fault in template::check(text, known).err().into_iter().flatten() {
            let suggestion =
                fault.unknown.as_deref().and_then(|name| nearest(name, known.iter().map(String::as_str))).unwrap_or("").to_owned();
            faults.error("W019", pointer, fault.message).suggestion = suggestion;
        }
    }

    /// Reads a scalar by its source text, so that an amount is exactly what was written.
    fn source_text(&self, pointer: &str, value: &Value) -> String {
        let text = self.map.get(pointer).and_then(|node| node.text.clone());
        text.unwrap_or_else(|| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    }

    fn limits(&self, pointer: &str, limits: Option<&document::Limits>, faults: &mut Faults<'_>) -> LimitsPatch {
        let Some(limits) = limits else { return LimitsPatch::default() };
        let budget_usd_nanos = limits.budget_usd.as_ref().and_then(|amount| {
            let pointer = join(pointer, "budget_usd");
            match scalar::usd_nanos(&self.source_text(&pointer, &amount.0)) {
                Ok(nanos) => Some(nanos),
                Err(why) => {
                    faults.error("W022", &pointer, format!("budget_usd: {why}"));
                    None
                }
            }
        });
        let timeout_ms = limits.timeout.as_ref().and_then(|text| {
            let pointer = join(pointer, "timeout");
            self.duration(&pointer, "timeout", text, faults).filter(|ms| {
                if *ms == 0 {
                    faults.error("W022", &pointer, "timeout: must be more than 0");
                }
                *ms > 0
            })
        });
        LimitsPatch {
            max_turns: limits.max_turns,
            budget_usd_nanos,
            max_tokens: limits.max_tokens,
            timeout_ms,
            max_depth: limits.max_depth,
            max_runs: limits.max_runs,
        }
    }

    fn duration(&self, pointer: &str, name: &str, text: &str, faults: &mut Faults<'_>) -> Option<i64> {
        match scalar::duration_ms(text) {
            Ok(ms) => Some(ms),
            Err(why) => {
                faults.error("W022", pointer, format!("{name}: {why}"));
                None
            }
        }
    }

    fn check_ceilings(&self, limits: &LimitsPatch, faults: &mut Faults<'_>) {
        let asked = limits.over(Limits::DEFAULT);
        let ceilings = self.world.ceilings;
        let over = [
            ("max_turns", i64::from(asked.max_turns) > i64::from(ceilings.max_turns), ceilings.max_turns.to_string()),
            ("budget_usd", asked.budget_usd_nanos > ceilings.budget_usd_nanos, crate::kernel::next::usd(ceilings.budget_usd_nanos)),
            ("max_tokens", asked.max_tokens > ceilings.max_tokens, ceilings.max_tokens.to_string()),
            ("timeout", asked.timeout_ms > ceilings.timeout_ms, format!("{}s", ceilings.timeout_ms / 1000)),
            ("max_depth", asked.max_depth > ceilings.max_depth, ceilings.max_depth.to_string()),
            ("max_runs", asked.max_runs > ceilings.max_runs, ceilings.max_runs.to_string()),
        ];
        for (name, _, ceiling) in over.iter().filter(|(_, is_over, _)| *is_over) {
            // The limit is the workflow's own, or else that of the agent that its root is.
            let own = join("/limits", name);
            let at = if self.map.contains_key(&own) { own } else { join(&join(&join("/agents", &self.document.agent), "limits"), name) };
            faults.error("W023", &at, format!("{name} is above this daemon's ceiling of {ceiling}"));
        }
    }

    /// Warns of limits of children that can never be reached, as the root's are smaller.
    fn warn_above_root(&self, root: &LimitsPatch, faults: &mut Faults<'_>) {
        for (name, tool) in self.document.tools.iter().flatten() {
            let Some(limits) = tool.limits.as_ref().filter(|_| tool.subagent.is_some()) else { continue };
            let pointer = join(&join("/tools", name), "limits");
            let budget = limits.budget_usd.as_ref();
            let budget = budget.and_then(|amount| scalar::usd_nanos(&self.source_text(&join(&pointer, "budget_usd"), &amount.0)).ok());
            let timeout = limits.timeout.as_ref().and_then(|text| scalar::duration_ms(text).ok());
            let above = [
                ("budget_usd", budget, root.budget_usd_nanos),
                ("max_tokens", limits.max_tokens, root.max_tokens),
                ("timeout", timeout, root.timeout_ms),
            ];
            for (field, own, root) in above {
                if own.zip(root).is_some_and(|(own, root)| own > root) {
                    faults.warning("W043", &join(&pointer, field), format!("a child's {field} above its root's: the root's holds"));
                }
            }
        }
    }

    fn warn_unused(&self, faults: &mut Faults<'_>) {
        let document = self.document;
        let mut used_agents = BTreeSet::from([document.agent.as_str()]);
        used_agents.extend(document.tools.iter().flatten().filter_map(|(_, tool)| tool.subagent.as_deref()));
        for name in document.agents.keys().filter(|name| !used_agents.contains(name.as_str())) {
            faults.warning("W040", &join("/agents", name), format!("agent `{name}` is never used"));
        }
        let named: Vec<&str> = document.agents.values().flat_map(|agent| agent.tools.iter().flatten()).map(String::as_str).collect();
        for name in document.tools.iter().flatten().map(|(name, _)| name) {
            let is_named = |tool: &&str| *tool == name || tool.starts_with(&format!("{name}."));
            if !named.iter().any(is_named) {
                faults.warning("W041", &join("/tools", name), format!("tool `{name}` is never used"));
            }
        }
        for name in document.models.iter().flatten().map(|(name, _)| name) {
            let is_fallback = document.models.iter().flatten().any(|(_, model)| model.fallback.iter().flatten().any(|other| other == name));
            if !is_fallback && !document.agents.values().any(|agent| agent.model == *name) {
                faults.warning("W042", &join("/models", name), format!("model `{name}` is never used"));
            }
        }
    }
}
