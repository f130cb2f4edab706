//! A pure stand-in for the daemon: it does what `next` decides, with replies, results and crashes told to it, on an
//! in-memory path of accounts and a clock that only moves when it is told to.
//!
//! Every fact goes through the fold, so a journal that the fold refuses fails the test that wrote it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use wren::kernel::agent::ContextSpec;
use wren::kernel::event::{
    Abort, CallEnded, CallFailure, CallStarted, Cause, ChildEnded, Event, ModelCause, ModelChanged, ParentCall, Purpose, RunCreated,
    TurnAborted, TurnEnded, TurnStarted,
};
use wren::kernel::ledger::{self, Account, Rates, Refused};
use wren::kernel::next::{Around, Next, next};
use wren::kernel::run::Progress;
use wren::kernel::{
    AgentSpec, CallId, Effect, Limits, LimitsPatch, ModelSpec, OnFailure, Outcome, Price, Recorded, Reply, ReplyCall, Reservation, Run,
    RunId, SpawnSpec, State, Stop, ToolSpec, Usage,
};

/// How many decisions may be taken without anything from outside: more is a loop.
const DECISIONS_MAX: usize = 20_000;

/// One run with its journal and account.
pub struct Node {
    pub run: Run,
    pub journal: Vec<Recorded>,
    pub account: Account,
    pub open: Reservation,
    pub epoch: u64,
    pub cancel: Option<String>,
    /// Each request with the seq of the `turn_started` that it was sent for.
    pub requests: Vec<(u64, String)>,
    parked: bool,
}

/// A tree of runs.
pub struct World {
    pub nodes: BTreeMap<RunId, Node>,
    pub now_us: i64,
    pub draining: bool,
    pub log: Vec<String>,
    pub agent: AgentSpec,
    pub limits: Limits,
    /// Whether the usage of replies is told as an estimate.
    pub estimates: bool,
    tree_seq: u64,
}

/// A tool of the scripts: `read`, or a subagent with its bounds.
pub fn tool(name: &str, effect: Effect, spawn: Option<SpawnSpec>) -> ToolSpec {
    let parameters = json!({"type": "object"});
    ToolSpec { name: name.to_owned(), description: String::new(), parameters, effect, source: name.to_owned(), spawn }
}

pub fn spawn_spec() -> SpawnSpec {
    SpawnSpec { agent: "child".to_owned(), max_calls: 32, max_parallel: 16, on_failure: OnFailure::Return, limits: LimitsPatch::default() }
}

/// 1 USD a million input tokens and 4 a million output tokens.
pub fn price() -> Price {
    let rates = Rates {
        input_pico: 1_000_000,
        cache_read_pico: 100_000,
        cache_write_pico: 1_250_000,
        output_pico: 4_000_000,
        reasoning_pico: 4_000_000,
    };
    Price { rates, long: None }
}

pub fn agent(tools: Vec<ToolSpec>) -> AgentSpec {
    let model = ModelSpec {
        alias: "m".to_owned(),
        provider: "scripted".to_owned(),
        model: "m".to_owned(),
        max_output: 1000,
        temperature: None,
        top_p: None,
        price: Some(price()),
        price_version: "workflow".to_owned(),
        window_tokens: None,
        scripted: None,
        fallback: Vec::new(),
    };
    AgentSpec {
        name: "lead".to_owned(),
        description: String::new(),
        instructions: "Work.".into(),
        model: Arc::new(model),
        tools: tools.into(),
        output_schema: None,
        context: ContextSpec::default(),
    }
}

pub fn id(text: &str) -> RunId {
    RunId::new(text.to_owned())
}

/// A whole reply.
pub fn reply(text: &str, calls: &[(&str, &str)], stop: Stop, usage: Option<Usage>) -> Reply {
    let calls = calls.iter().map(|(tool, args)| ReplyCall {
        provider_id: Some("call_0".to_owned()),
        tool: (*tool).to_owned(),
        args_raw: (*args).to_owned(),
    });
    Reply {
        text: text.to_owned(),
        refusal: None,
        reasoning: None,
        calls: calls.collect(),
        parts: Vec::new(),
        stop,
        paused: false,
        stop_raw: None,
        usage,
        response_id: None,
        response_model: None,
        stated_cost_usd_nanos: None,
    }
}

impl World {
    pub fn new() -> Self {
        let limits = Limits { max_turns: 20, ..Limits::DEFAULT };
        let read = tool("read", Effect::ReadOnly, None);
        Self {
            nodes: BTreeMap::new(),
            now_us: 1_000_000_000,
            draining: false,
            log: Vec::new(),
            agent: agent(vec![read]),
            limits,
            estimates: false,
            tree_seq: 0,
        }
    }

    pub fn submit(&mut self) {
        let created = RunCreated {
            root: id("root"),
            parent: None,
            depth: 0,
            workflow: "w".to_owned(),
            workflow_digest: String::new(),
            inputs: json!({}),
            agent: self.agent.clone(),
            prompt: "Do it.".to_owned(),
            workspace: "w".to_owned(),
            limits: self.limits,
            trace_id: "0".repeat(32),
            parent_span: None,
            received_us: 0,
            sampled: true,
            labels: BTreeMap::new(),
            submitter: "ada".to_owned(),
            models: BTreeMap::new(),
        };
        self.create(&id("root"), created, None);
    }

    fn create(&mut self, run: &RunId, created: RunCreated, cancel: Option<String>) {
        self.tree_seq += 1;
        let limits = created.limits;
        let event = Event::RunCreated(Arc::new(created));
        let first = Recorded { run: run.clone(), seq: 1, tree_seq: self.tree_seq, epoch: 0, time_us: self.now_us, event };
        let node = Node {
            run: Run::create(&first).unwrap(),
            journal: vec![first],
            account: Account::open(limits),
            open: Reservation::default(),
            epoch: 1,
            cancel,
            requests: Vec::new(),
            parked: false,
        };
        self.nodes.insert(run.clone(), node);
    }

    /// The journals of all runs in tree order.
    pub fn journal(&self) -> Vec<&Recorded> {
        let mut journal: Vec<&Recorded> = self.nodes.values().flat_map(|node| &node.journal).collect();
        journal.sort_by_key(|recorded| recorded.tree_seq);
        journal
    }

    pub fn node(&self, run: &RunId) -> &Node {
        &self.nodes[run]
    }

    /// The run and all above it, its own first.
    pub fn path_ids(&self, run: &RunId) -> Vec<RunId> {
        let mut path = vec![run.clone()];
        while let Some(parent) = &self.nodes[path.last().unwrap()].run.created.parent {
            path.push(parent.run.clone());
        }
        path
    }

    pub fn subtree(&self, run: &RunId) -> Vec<RunId> {
        self.nodes.keys().filter(|below| self.path_ids(below).contains(run)).cloned().collect()
    }

    fn path(&self, run: &RunId) -> Vec<Account> {
        self.path_ids(run).iter().map(|id| self.nodes[id].account).collect()
    }

    /// Appends as a store does: all or nothing, money checked on the whole path.
    pub fn append(&mut self, run: &RunId, events: Vec<Event>) -> Result<(), Refused> {
        let ids = self.path_ids(run);
        let mut path = self.path(run);
        let mut open = self.nodes[run].open;
        for event in &events {
            let starts = matches!(event, Event::TurnStarted(_) | Event::CallStarted(_) | Event::ChildStarted { .. });
            assert!(self.nodes[run].cancel.is_none() || !starts, "{run} is cancelled and starts something");
            ledger::post(&mut path, &mut open, event)?;
            if matches!(event, Event::ChildStarted { .. }) {
                ledger::post_child(&mut path)?;
            }
        }
        for (id, account) in ids.iter().zip(path) {
            let node = self.nodes.get_mut(id).unwrap();
            node.account = account;
            let Account { limits, reserved, totals, .. } = account;
            assert!(reserved.usd_nanos >= 0 && reserved.tokens >= 0, "less than nothing is set aside at {id}");
            let spent = totals.cost_usd_nanos - totals.overrun_usd_nanos + reserved.usd_nanos;
            assert!(spent <= limits.budget_usd_nanos, "{id}: spent - overrun + reserved is {spent} of {}", limits.budget_usd_nanos);
        }
        self.nodes.get_mut(run).unwrap().open = open;
        for event in events {
            self.record(run, event);
        }
        Ok(())
    }

    fn record(&mut self, run: &RunId, event: Event) {
        self.tree_seq += 1;
        let node = self.nodes.get_mut(run).unwrap();
        let seq = node.run.summary.seq + 1;
        let recorded = Recorded { run: run.clone(), seq, tree_seq: self.tree_seq, epoch: node.epoch, time_us: self.now_us, event };
        node.run.apply(&recorded).unwrap_or_else(|illegal| panic!("{illegal}\n{}", self.log.join("\n")));
        if let Event::TurnStarted(turn) = &recorded.event {
            node.requests.push((seq, serde_json::to_string(&node.run.request(turn)).unwrap()));
        }
        node.parked = false;
        self.log.push(format!("{run} + {}", super::words::event(&recorded.event)));
        node.journal.push(recorded);
    }

    /// Drives every run until each waits for something from outside.
    pub fn drive(&mut self) {
        for _ in 0..DECISIONS_MAX {
            let ids: Vec<RunId> = self.nodes.keys().cloned().collect();
            let mut moved = false;
            for run in ids {
                moved |= self.step(&run);
            }
            if !moved {
                return;
            }
        }
        panic!("the tree decides for ever\n{}", self.log[self.log.len() - 40..].join("\n"));
    }

    fn step(&mut self, run: &RunId) -> bool {
        let node = &self.nodes[run];
        let suspended = node.run.summary.state == State::Suspended;
        if node.run.summary.state == State::Ended || node.run.open_turn.is_some() || suspended && node.cancel.is_none() {
            return false;
        }
        if let Some(reason) = node.cancel.clone().filter(|_| node.run.summary.cancel_reason.is_none()) {
            self.append(run, vec![Event::CancelRequested { actor: "ada".to_owned(), reason }]).unwrap();
            return true;
        }
        let decision = next(&node.run, &self.around(run, &self.path(run)));
        if !matches!(decision, Next::Park(_)) || !node.parked {
            self.log.push(format!("{run} > {}", super::words::decision(&decision)));
        }
        self.perform(run, decision)
    }

    pub fn around<'a>(&self, run: &RunId, path: &'a [Account]) -> Around<'a> {
        let node = &self.nodes[run];
        let left_us = |id: &RunId| {
            let above = &self.nodes[id].run;
            above.summary.limits.timeout_ms.saturating_mul(1000).saturating_sub(above.running_us(self.now_us))
        };
        let output = node.run.created.agent.output_schema.as_ref().filter(|_| node.run.calls.is_empty()).and_then(|_| {
            let reply = node.run.last_reply()?;
            Some(match serde_json::from_str::<Value>(&reply.text) {
                Ok(value @ Value::Object(_)) => Ok(value),
                Ok(_) | Err(_) => Err("it is not an object".to_owned()),
            })
        });
        Around {
            now_us: self.now_us,
            deadline_us: self.now_us + self.path_ids(run).iter().map(left_us).min().unwrap(),
            path,
            input_tokens_max: node.run.input_tokens_max(),
            context_tokens: node.run.input_tokens_max(),
            cancelled: node.cancel.is_some(),
            draining: self.draining,
            children_suspended: self.children_suspended(run),
            model_down: None,
            output,
        }
    }

    fn children_suspended(&self, run: &RunId) -> Option<Outcome> {
        let waited = self.nodes[run].run.calls.iter().filter_map(|pending| match &pending.progress {
            Progress::Child { child, ended: None } => {
                let child = &self.nodes[child].run.summary;
                Some(child.outcome.filter(|_| child.state == State::Suspended))
            }
            _ => None,
        });
        let waited: Vec<Option<Outcome>> = waited.collect();
        let first = waited.first().copied().flatten()?;
        waited.iter().all(Option::is_some).then_some(first)
    }

    fn perform(&mut self, run: &RunId, decision: Next) -> bool {
        match decision {
            Next::Start => self.append(run, vec![Event::RunStarted {}]).unwrap(),
            Next::Tell(text) => self.append(run, vec![Event::MessageReceived { sender: "wren".to_owned(), text }]).unwrap(),
            Next::Answer(answers) => {
                let ended = answers.into_iter().map(|answer| {
                    Event::CallEnded(CallEnded {
                        call_id: answer.call_id,
                        tool: answer.tool,
                        failure: answer.failure,
                        output: answer.words,
                        omitted_chars: 0,
                    })
                });
                self.append(run, ended.collect()).unwrap();
            }
            Next::Call(ids) => {
                let started = ids.iter().map(|id| self.started(run, id, 1)).collect();
                self.append(run, started).unwrap();
            }
            Next::Spawn(ids) => ids.iter().for_each(|call| self.spawn(run, call)),
            Next::Ask(ask) => {
                let started = TurnStarted {
                    turn: ask.turn,
                    attempt: ask.attempt,
                    purpose: ask.purpose,
                    model: self.nodes[run].run.model.full_name(),
                    max_output: ask.max_output,
                    reservation: ask.reservation,
                };
                self.append(run, vec![Event::TurnStarted(started)]).expect("what is decided on fresh accounts fits");
            }
            Next::Clear(before) => {
                let cleared = self.nodes[run].run.cleared(before, 0);
                self.append(run, vec![Event::ContextCompacted(Box::new(cleared))]).unwrap();
            }
            Next::Switch(reason) => {
                let node = &self.nodes[run].run;
                let (agent, model) = (node.created.agent.name.clone(), node.fallback[0].clone());
                let changed = ModelChanged { agent, model, cause: ModelCause::Fallback, actor: String::new(), reason };
                self.append(run, vec![Event::ModelChanged(Box::new(changed))]).unwrap();
            }
            Next::Park(_) => {
                self.nodes.get_mut(run).unwrap().parked = true;
                return false;
            }
            Next::End(ending) => self.end(run, ending.into_event(&self.nodes[run].run)),
        }
        true
    }

    fn end(&mut self, run: &RunId, event: Event) {
        let told = match &event {
            Event::RunEnded(ended) => self.nodes[run].run.created.parent.clone().map(|parent| {
                let ended = (**ended).clone();
                let child_ended = ChildEnded {
                    call_id: parent.call_id,
                    child: run.clone(),
                    outcome: ended.outcome,
                    reason: ended.reason,
                    message: ended.message,
                    text: ended.text,
                    output: ended.output,
                    truncated: ended.truncated,
                    turns: self.nodes[run].run.turns(),
                    subtree_cost_usd_nanos: self.nodes[run].account.totals.cost_usd_nanos,
                };
                (parent.run, child_ended)
            }),
            _ => None,
        };
        self.append(run, vec![event]).unwrap();
        if let Some((parent, ended)) = told {
            self.append(&parent, vec![Event::ChildEnded(Box::new(ended))]).unwrap();
        }
    }

    fn started(&self, run: &RunId, call: &CallId, attempt: u32) -> Event {
        let node = &self.nodes[run].run;
        let tool = node.call(call).unwrap().call.tool.clone();
        let effect = node.created.agent.tools.iter().find(|spec| spec.name == tool).unwrap().effect;
        Event::CallStarted(CallStarted {
            call_id: call.clone(),
            tool,
            effect,
            idempotency_key: format!("{run}/{call}"),
            args_digest: String::new(),
            attempt,
        })
    }

    fn spawn(&mut self, run: &RunId, call: &CallId) {
        let parent = &self.nodes[run].run;
        let child = id(&format!("{run}/{call}"));
        let tool = parent.call(call).unwrap().call.tool.clone();
        let spawn = parent.created.agent.tools.iter().find(|spec| spec.name == tool).unwrap().spawn.clone().unwrap();
        let above = parent.summary.limits;
        let asked = spawn.limits.over(above);
        let limits = Limits {
            max_turns: asked.max_turns,
            budget_usd_nanos: asked.budget_usd_nanos.min(above.budget_usd_nanos),
            max_tokens: asked.max_tokens.min(above.max_tokens),
            timeout_ms: asked.timeout_ms.min(above.timeout_ms),
            max_depth: asked.max_depth.min(parent.summary.limits.max_depth.saturating_sub(1)),
            max_runs: asked.max_runs.min(above.max_runs),
        };
        let created = RunCreated {
            parent: Some(ParentCall { run: run.clone(), call_id: call.clone(), tool }),
            depth: parent.created.depth + 1,
            agent: AgentSpec { name: spawn.agent.clone(), output_schema: None, ..parent.created.agent.clone() },
            prompt: "Look into it.".to_owned(),
            limits,
            ..(*parent.created).clone()
        };
        let events =
            vec![self.started(run, call, 1), Event::ChildStarted { call_id: call.clone(), child: child.clone(), agent: spawn.agent }];
        let cancel = self.nodes[run].cancel.clone();
        self.append(run, events).expect("what is decided on fresh accounts fits");
        self.create(&child, created, cancel);
    }

    /// The model of `run` answers.
    pub fn answer(&mut self, run: &RunId, reply: Reply) {
        let open = self.nodes[run].run.open_turn.clone().unwrap_or_else(|| panic!("{run} asks nobody\n{}", self.log.join("\n")));
        let usage = reply.usage.unwrap_or(Usage { input_tokens: 100, output_tokens: 50, ..Usage::default() });
        let ended = TurnEnded {
            turn: open.turn,
            attempt: open.attempt,
            purpose: open.purpose,
            stop: reply.stop,
            stop_raw: None,
            usage,
            estimated: self.estimates,
            cost_usd_nanos: price().cost_usd_nanos(&usage),
            cost_unknown: false,
            provider: "scripted".to_owned(),
            response_id: None,
            response_model: None,
            first_chunk_us: None,
            price_version: "workflow".to_owned(),
            stated_cost_usd_nanos: None,
            message: reply.into_message(open.turn, &self.node(run).run.created.agent.model),
        };
        let now = &self.nodes[run].run;
        let notes = (open.purpose == Purpose::Compact).then(|| now.summarised(ended.message.text.clone(), now.cut().unwrap(), 0));
        let notes = notes.map(|notes| Event::ContextCompacted(Box::new(notes)));
        let facts = std::iter::once(Event::TurnEnded(Box::new(ended))).chain(notes).collect();
        self.append(run, facts).unwrap();
    }

    /// The attempt of `run` comes to nothing.
    pub fn abort(&mut self, run: &RunId, reason: Abort, retryable: bool, usage: Option<Usage>) {
        let open = self.nodes[run].run.open_turn.clone().unwrap_or_else(|| panic!("{run} asks nobody\n{}", self.log.join("\n")));
        let written_off = if reason == Abort::Crash { open.reservation } else { Reservation::default() };
        let aborted = TurnAborted {
            turn: open.turn,
            attempt: open.attempt,
            reason,
            message: format!("the model failed: {}", reason.name()),
            retryable,
            http_status: None,
            retry_after_ms: None,
            usage,
            estimated: false,
            cost_usd_nanos: usage.map_or(0, |usage| price().cost_usd_nanos(&usage)),
            written_off,
        };
        self.append(run, vec![Event::TurnAborted(aborted)]).unwrap();
    }

    /// A tool of `run` comes back.
    pub fn finish(&mut self, run: &RunId, call: &CallId, failure: Option<CallFailure>, output: &str) {
        let tool = self.nodes[run].run.call(call).unwrap().call.tool.clone();
        let ended = CallEnded { call_id: call.clone(), tool, failure, output: output.to_owned(), omitted_chars: 0 };
        self.append(run, vec![Event::CallEnded(ended)]).unwrap();
    }

    /// The cancel of a subtree becomes durable. What is under way hears of it later.
    pub fn cancel(&mut self, run: &RunId, reason: &str) {
        for below in self.subtree(run) {
            self.nodes.get_mut(&below).unwrap().cancel.get_or_insert_with(|| reason.to_owned());
        }
    }

    /// What is under way in cancelled runs is cut.
    pub fn cut(&mut self) {
        let ids: Vec<RunId> = self.nodes.keys().cloned().collect();
        for run in ids.into_iter().filter(|run| self.nodes[run].cancel.is_some()).collect::<Vec<_>>() {
            if self.nodes[&run].run.open_turn.is_some() {
                self.abort(&run, Abort::Cancelled, false, None);
            }
            for call in self.under_way(&run) {
                self.finish(&run, &call, Some(CallFailure::Cancelled), "The run was cancelled while this call ran.");
            }
        }
    }

    /// The tools of `run` that have not come back.
    pub fn under_way(&self, run: &RunId) -> Vec<CallId> {
        let run = &self.nodes[run].run;
        if run.summary.state == State::Suspended {
            // The driver that left the run took its tools with it: nothing of them is heard any more.
            return Vec::new();
        }
        let started = run.calls.iter().filter(|pending| matches!(pending.progress, Progress::Started { .. }));
        started.map(|pending| pending.call.id.clone()).collect()
    }

    /// The daemon dies, and another takes every run over.
    pub fn crash(&mut self) {
        let ids: Vec<RunId> = self.nodes.keys().cloned().collect();
        for run in ids {
            let node = self.nodes.get_mut(&run).unwrap();
            node.epoch += 1;
            node.parked = false;
            let state = node.run.summary.state;
            if !matches!(state, State::Running | State::Cancelling) {
                continue;
            }
            if state == State::Running {
                self.append(&run, vec![Event::RunResumed { cause: Cause::Crash, actor: String::new() }]).unwrap();
            }
            if self.nodes[&run].run.open_turn.is_some() {
                self.abort(&run, Abort::Crash, true, None);
            }
            for call in self.under_way(&run) {
                self.take_up(&run, &call);
            }
        }
    }

    fn take_up(&mut self, run: &RunId, call: &CallId) {
        let node = &self.nodes[run];
        let pending = node.run.call(call).unwrap();
        let effect = node.run.created.agent.tools.iter().find(|spec| spec.name == pending.call.tool).unwrap().effect;
        let Progress::Started { attempt, .. } = pending.progress else { return };
        match effect {
            Effect::ReadOnly | Effect::Idempotent if node.cancel.is_some() => self.finish(run, call, Some(CallFailure::Cancelled), "cut"),
            Effect::ReadOnly | Effect::Idempotent => {
                let again = self.started(run, call, attempt + 1);
                self.append(run, vec![again]).unwrap();
            }
            Effect::External | Effect::Spawn => self.append(run, vec![Event::CallInDoubt { call_id: call.clone() }]).unwrap(),
        }
    }

    /// Somebody resumes the root; its suspended descendants go on with it.
    pub fn resume(&mut self, limits: LimitsPatch) {
        let root = id("root");
        if !limits.is_empty() {
            let limits = limits.over(self.nodes[&root].run.summary.limits);
            let changed = Event::LimitsChanged { limits, actor: "ada".to_owned(), reason: String::new() };
            self.append(&root, vec![changed]).unwrap();
        }
        self.resume_all(Cause::User);
    }

    /// A drained daemon starts again.
    pub fn restart(&mut self) {
        self.draining = false;
        self.resume_all(Cause::Drained);
    }

    fn resume_all(&mut self, cause: Cause) {
        let ids: Vec<RunId> = self.nodes.keys().cloned().collect();
        for run in ids {
            let summary = &self.nodes[&run].run.summary;
            let wanted = cause == Cause::User || summary.outcome == Some(Outcome::Drained);
            if summary.state == State::Suspended && wanted {
                self.nodes.get_mut(&run).unwrap().epoch += 1;
                self.append(&run, vec![Event::RunResumed { cause, actor: "ada".to_owned() }]).unwrap();
            }
        }
    }
}
