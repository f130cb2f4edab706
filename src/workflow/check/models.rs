//! Models: aliases, parameters, prices, scripts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Context;
use crate::kernel::agent::{ScriptedCall, ScriptedError, ScriptedReply};
use crate::kernel::ledger::{Long, Rates};
use crate::kernel::{ModelSpec, Price, Scripted, Stop, Usage};
use crate::workflow::diagnostic::{Faults, nearest};
use crate::workflow::document;
use crate::workflow::plan::PlannedModel;
use crate::workflow::scalar;
use crate::workflow::scan::join;

/// Output tokens of a turn, where nobody says otherwise.
const MAX_OUTPUT_DEFAULT: i64 = 4096;

impl Context<'_> {
    /// Returns every alias, and every `provider/model` that an agent names itself.
    pub(super) fn models(&self, inputs: &BTreeSet<String>, faults: &mut Faults<'_>) -> BTreeMap<String, Option<PlannedModel>> {
        let mut models = BTreeMap::new();
        for (alias, model) in self.document.models.iter().flatten() {
            let pointer = join("/models", alias);
            self.check_name(&pointer, alias, faults);
            models.insert(alias.clone(), self.model(&pointer, alias, model, inputs, faults));
        }
        for (name, agent) in &self.document.agents {
            if agent.model.contains('/') && !models.contains_key(&agent.model) {
                let pointer = join(&join("/agents", name), "model");
                let model = document::Model { uses: Some(agent.model.clone()), ..document::Model::default() };
                models.insert(agent.model.clone(), self.model(&pointer, &agent.model, &model, inputs, faults));
            }
        }
        let lists: Vec<(&String, Vec<PlannedModel>)> = self
            .document
            .models
            .iter()
            .flatten()
            .filter_map(|(alias, model)| Some((alias, self.fallback(alias, model.fallback.as_ref()?, &models, faults))))
            .collect();
        for (alias, list) in lists {
            if let Some(Some(model)) = models.get_mut(alias) {
                model.fallback = list;
            }
        }
        models
    }

    /// Resolves what is asked instead of a model. An alias keeps its own parameters; a bare name has those of the model.
    fn fallback(
        &self,
        alias: &str,
        names: &[String],
        models: &BTreeMap<String, Option<PlannedModel>>,
        faults: &mut Faults<'_>,
    ) -> Vec<PlannedModel> {
        let pointer = join(&join("/models", alias), "fallback");
        let own = models.get(alias).and_then(Option::as_ref);
        // A script stands for whatever would fail and whatever would be asked instead.
        let Some(own) = own.filter(|_| !self.overrides.mock) else { return Vec::new() };
        let mut list: Vec<PlannedModel> = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let pointer = join(&pointer, &index.to_string());
            let found = match models.get(name) {
                Some(found) => found.clone().map(|found| PlannedModel { fallback: Vec::new(), ..found }),
                None if name.contains('/') => {
                    let spec =
                        ModelSpec { alias: name.clone(), window_tokens: None, scripted: None, fallback: Vec::new(), ..own.spec.clone() };
                    let unknown = own.spec.price.is_none().then_some(document::PriceUnknown::Allow);
                    self.asked(&pointer, spec, name, None, unknown, faults)
                }
                None => {
                    let known: Vec<&str> = models.keys().map(String::as_str).filter(|known| *known != alias).collect();
                    let fault = faults.error("W021", &pointer, format!("there is no model `{name}`"));
                    fault.suggestion = nearest(name, known.iter().copied()).unwrap_or("").to_owned();
                    fault.help = format!("use an alias from `models:` or provider/model; aliases: {}", known.join(", "));
                    None
                }
            };
            let Some(found) = found else { continue };
            if std::iter::once(own).chain(&list).any(|before| is_same(&before.spec, &found.spec)) {
                faults.error("W024", &pointer, format!("`{name}` was tried already when its turn comes"));
                continue;
            }
            list.push(found);
        }
        list
    }

    fn model(
        &self,
        pointer: &str,
        alias: &str,
        model: &document::Model,
        inputs: &BTreeSet<String>,
        faults: &mut Faults<'_>,
    ) -> Option<PlannedModel> {
        let max_output = model.max_output.unwrap_or(MAX_OUTPUT_DEFAULT);
        let spec = ModelSpec {
            alias: alias.to_owned(),
            provider: "scripted".to_owned(),
            model: alias.to_owned(),
            max_output,
            temperature: model.temperature,
            top_p: model.top_p,
            price: Some(Price::default()),
            price_version: "workflow".to_owned(),
            window_tokens: model.window_tokens,
            scripted: None,
            fallback: Vec::new(),
        };
        if self.overrides.mock {
            let mock = Scripted { mock: true, ..Scripted::default() };
            let spec = ModelSpec { scripted: Some(Arc::new(mock)), ..spec };
            return Some(PlannedModel { spec, latency: None, reply_latencies: BTreeMap::new(), fallback: Vec::new() });
        }
        let replaced = self.overrides.models.get(alias);
        match (&model.uses, &model.scripted, replaced) {
            (_, _, Some(other)) => self.asked(pointer, spec, other, None, model.price_unknown, faults),
            (Some(_), Some(_), None) => {
                faults.error("W024", pointer, format!("model `{alias}` has both `use` and `scripted`"));
                None
            }
            (Some(name), None, None) => self.asked(pointer, spec, name, model.price.as_ref(), model.price_unknown, faults),
            (None, Some(script), None) => Some(self.scripted(&join(pointer, "scripted"), spec, script, inputs, faults)),
            (None, None, None) => {
                faults.error("W024", pointer, format!("model `{alias}` needs `use: provider/model` or `scripted:`"));
                None
            }
        }
    }

    /// Resolves a model that a provider is asked for.
    fn asked(
        &self,
        pointer: &str,
        spec: ModelSpec,
        name: &str,
        price: Option<&document::Price>,
        unknown: Option<document::PriceUnknown>,
        faults: &mut Faults<'_>,
    ) -> Option<PlannedModel> {
        let at = if self.map.contains_key(&join(pointer, "use")) { join(pointer, "use") } else { pointer.to_owned() };
        let Some((provider, model)) = name.split_once('/').filter(|(provider, model)| !provider.is_empty() && !model.is_empty()) else {
            faults.error("W024", &at, format!("`{name}` must be provider/model, such as openai/gpt-5-mini"));
            return None;
        };
        if provider == "scripted" || !self.world.providers.iter().any(|known| known == provider) {
            let known: Vec<&str> = self.world.providers.iter().map(String::as_str).filter(|known| *known != "scripted").collect();
            let fault = faults.error("W025", &at, format!("there is no provider `{provider}` in this daemon"));
            fault.suggestion = nearest(provider, known.iter().copied()).unwrap_or("").to_owned();
            fault.help = format!("providers: {}", known.join(", "));
            return None;
        }
        let own = price.and_then(|price| self.price(&join(pointer, "price"), price, faults)).map(|price| (price, "workflow".to_owned()));
        let known = (self.world.model)(provider, model);
        let window_tokens = spec.window_tokens.or(known.window_tokens);
        let known = own.or(known.price);
        if known.is_none() && unknown != Some(document::PriceUnknown::Allow) {
            let fault = faults.error("W026", &at, format!("the price of `{name}` is not known, so a budget cannot be kept"));
            fault.help = "give it a `price:` or say `price_unknown: allow`".to_owned();
            return None;
        }
        let (price, price_version) = known.map_or((None, "unknown".to_owned()), |(price, version)| (Some(price), version));
        let spec = ModelSpec { provider: provider.to_owned(), model: model.to_owned(), price, price_version, window_tokens, ..spec };
        Some(PlannedModel { spec, latency: None, reply_latencies: BTreeMap::new(), fallback: Vec::new() })
    }

    fn price(&self, pointer: &str, price: &document::Price, faults: &mut Faults<'_>) -> Option<Price> {
        let parts = [&price.cache_read_usd_per_mtok, &price.cache_write_usd_per_mtok, &price.reasoning_usd_per_mtok];
        let rates = self.rates(pointer, &price.input_usd_per_mtok, &price.output_usd_per_mtok, parts, faults)?;
        let Some(long) = &price.long else { return Some(Price { rates, long: None }) };
        if long.above_tokens < 0 {
            let at = join(&join(pointer, "long"), "above_tokens");
            faults.error("W022", &at, "above_tokens: give a number of input tokens, 0 or more".to_owned());
            return None;
        }
        let parts = [&long.cache_read_usd_per_mtok, &long.cache_write_usd_per_mtok, &long.reasoning_usd_per_mtok];
        let dearer = self.rates(&join(pointer, "long"), &long.input_usd_per_mtok, &long.output_usd_per_mtok, parts, faults)?;
        Some(Price { rates, long: Some(Long { above_tokens: long.above_tokens, rates: dearer }) })
    }

    /// Reads amounts; those that may be left out are what is read from the cache, what is written to it, and reasoning.
    fn rates(
        &self,
        pointer: &str,
        input: &document::Amount,
        output: &document::Amount,
        [cache_read, cache_write, reasoning]: [&Option<document::Amount>; 3],
        faults: &mut Faults<'_>,
    ) -> Option<Rates> {
        let mut amount = |name: &str, amount: &document::Amount| {
            let pointer = join(pointer, name);
            match scalar::pico_per_token(&self.source_text(&pointer, &amount.0)) {
                Ok(pico) => Some(pico),
                Err(why) => {
                    faults.error("W022", &pointer, format!("{name}: {why}"));
                    None
                }
            }
        };
        let input_pico = amount("input_usd_per_mtok", input)?;
        let output_pico = amount("output_usd_per_mtok", output)?;
        let mut part = |name: &str, value: &Option<document::Amount>| match value {
            Some(value) => amount(name, value).map(Some),
            None => Some(None),
        };
        let parts = [
            part("cache_read_usd_per_mtok", cache_read)?,
            part("cache_write_usd_per_mtok", cache_write)?,
            part("reasoning_usd_per_mtok", reasoning)?,
        ];
        Some(Rates::of(input_pico, output_pico, parts))
    }

    fn scripted(
        &self,
        pointer: &str,
        mut spec: ModelSpec,
        script: &document::Scripted,
        inputs: &BTreeSet<String>,
        faults: &mut Faults<'_>,
    ) -> PlannedModel {
        if let Some(price) = &script.price {
            spec.price = self.price(&join(pointer, "price"), price, faults);
        }
        let latency = script.latency.clone();
        if let Some(text) = &latency {
            self.latency(&join(pointer, "latency"), text, inputs, faults);
        }
        let mut replies = Vec::new();
        let mut reply_latencies = BTreeMap::new();
        for (index, reply) in script.replies.iter().flatten().enumerate() {
            let pointer = join(&join(pointer, "replies"), &index.to_string());
            if let Some(text) = &reply.latency {
                self.latency(&join(&pointer, "latency"), text, inputs, faults);
                reply_latencies.insert(index, text.clone());
            }
            replies.push(self.reply(&pointer, reply, faults));
        }
        spec.scripted = Some(Arc::new(Scripted { latency_ms: 0, mock: false, replies }));
        PlannedModel { spec, latency, reply_latencies, fallback: Vec::new() }
    }

    fn latency(&self, pointer: &str, text: &str, inputs: &BTreeSet<String>, faults: &mut Faults<'_>) {
        if text.contains("{{") {
            self.template(pointer, text, inputs, faults);
        } else {
            self.duration(pointer, "latency", text, faults);
        }
    }

    fn reply(&self, pointer: &str, reply: &document::Reply, faults: &mut Faults<'_>) -> ScriptedReply {
        if let Some(agent) = reply.agent.as_ref().filter(|agent| !self.document.agents.contains_key(*agent)) {
            let known: Vec<&str> = self.document.agents.keys().map(String::as_str).collect();
            let fault = faults.error("W020", &join(pointer, "agent"), format!("there is no agent `{agent}`"));
            fault.suggestion = nearest(agent, known).unwrap_or("").to_owned();
        }
        let error = reply.error.as_ref().map(|error| ScriptedError {
            status: error.status,
            retry_after_ms: error.retry_after.as_ref().and_then(|text| {
                let ms = self.duration(&join(&join(pointer, "error"), "retry_after"), "retry_after", text, faults);
                ms.and_then(|ms| u64::try_from(ms).ok())
            }),
            message: error.message.clone().unwrap_or_default(),
        });
        let calls = reply.calls.iter().flatten().map(|call| ScriptedCall {
            tool: call.tool.clone(),
            args: serde_json::Value::Object(call.args.clone().unwrap_or_default().into_iter().collect()),
        });
        ScriptedReply {
            agent: reply.agent.clone(),
            turn: reply.turn,
            attempt: reply.attempt,
            saw: reply.saw.clone(),
            text: reply.text.clone().unwrap_or_default(),
            calls: calls.collect(),
            stop: reply.stop.map(stop),
            usage: reply.usage.map(usage),
            error,
            latency_ms: None,
        }
    }
}

/// Returns whether asking one is asking the other. Scripts are told apart by their alias.
fn is_same(one: &ModelSpec, other: &ModelSpec) -> bool {
    (&one.provider, &one.model) == (&other.provider, &other.model)
}

fn stop(stop: document::Stop) -> Stop {
    match stop {
        document::Stop::EndTurn => Stop::EndTurn,
        document::Stop::ToolCalls => Stop::ToolCalls,
        document::Stop::Length => Stop::Length,
        document::Stop::Refusal => Stop::Refusal,
        document::Stop::Error => Stop::Error,
    }
}

fn usage(usage: document::ReplyUsage) -> Usage {
    Usage {
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
        cache_read_tokens: usage.cache_read_tokens.unwrap_or(0),
        cache_write_tokens: usage.cache_write_tokens.unwrap_or(0),
        reasoning_tokens: usage.reasoning_tokens.unwrap_or(0),
    }
}
