//! Short ways to make what a store is given.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use wren::kernel::agent::ContextSpec;
use wren::kernel::event::{
    Abort, CallEnded, CallStarted, ChildEnded, ParentCall, Purpose, RunCreated, RunEnded, TurnAborted, TurnEnded, TurnStarted,
};
use wren::kernel::{
    AgentSpec, AssistantMessage, CallId, Effect, Event, Limits, ModelSpec, Outcome, Recorded, Reservation, RunId, Stop, Usage,
};
use wren::store::{Appended, Batch, Error, Fence, NewChild, NewTree, RequestId, Row, Store};

pub const LIMITS: Limits = Limits::DEFAULT;

pub fn id(text: &str) -> RunId {
    RunId::new(text)
}

pub fn created(run: &str, limits: Limits) -> RunCreated {
    let model = ModelSpec {
        alias: "fast".to_owned(),
        provider: "scripted".to_owned(),
        model: "fast".to_owned(),
        max_output: 256,
        temperature: None,
        top_p: None,
        price: None,
        price_version: "workflow".to_owned(),
        window_tokens: None,
        scripted: None,
        fallback: Vec::new(),
    };
    let agent = AgentSpec {
        name: "lead".to_owned(),
        description: String::new(),
        instructions: "Be brief.".into(),
        model: Arc::new(model),
        tools: Arc::new([]),
        output_schema: None,
        context: ContextSpec::default(),
    };
    RunCreated {
        root: id(run),
        parent: None,
        depth: 0,
        workflow: "triage".to_owned(),
        workflow_digest: "d1".to_owned(),
        inputs: json!({"question": "why \u{0} and ünïcode?"}),
        agent,
        prompt: "Look into it.".to_owned(),
        workspace: "/srv".to_owned(),
        limits,
        trace_id: "0af7651916cd43dd8448eb211c80319c".to_owned(),
        parent_span: None,
        received_us: 0,
        sampled: true,
        labels: BTreeMap::new(),
        submitter: "uid:1000".to_owned(),
        models: BTreeMap::new(),
    }
}

pub fn tree(run: &str, limits: Limits) -> NewTree {
    NewTree {
        id: id(run),
        created: created(run, limits),
        request: None,
        bundle_digest: "b1".to_owned(),
        bundle: b"the bundle".to_vec(),
        time_us: 1_000,
    }
}

pub fn requested(run: &str, request: &str, content: &str) -> NewTree {
    let request = RequestId { id: request.to_owned(), content: content.to_owned() };
    NewTree { request: Some(request), ..tree(run, LIMITS) }
}

pub fn call_id(call: &str) -> CallId {
    CallId::from_text(call)
}

pub fn child(parent: &Row, call: &str, run: &str, limits: Limits) -> NewChild {
    let parent_call = ParentCall { run: parent.summary.id.clone(), call_id: call_id(call), tool: "research".to_owned() };
    let created = RunCreated {
        root: parent.summary.root.clone(),
        parent: Some(parent_call),
        depth: parent.summary.depth + 1,
        ..created(run, limits)
    };
    NewChild { id: id(run), created }
}

pub fn child_started(call: &str, run: &str) -> Event {
    Event::ChildStarted { call_id: call_id(call), child: id(run), agent: "research".to_owned() }
}

pub fn turn_started(turn: u32, usd_nanos: i64, tokens: i64) -> Event {
    Event::TurnStarted(TurnStarted {
        turn,
        attempt: 1,
        purpose: Purpose::Task,
        model: "scripted/fast".to_owned(),
        max_output: 256,
        reservation: Reservation { usd_nanos, tokens },
    })
}

pub fn turn_ended(turn: u32, cost_usd_nanos: i64, input_tokens: i64) -> Event {
    Event::TurnEnded(Box::new(TurnEnded {
        turn,
        attempt: 1,
        purpose: Purpose::Task,
        message: AssistantMessage { text: format!("Answer {turn}."), ..AssistantMessage::default() },
        stop: Stop::EndTurn,
        stop_raw: None,
        usage: Usage { input_tokens, output_tokens: 1, ..Usage::default() },
        estimated: false,
        cost_usd_nanos,
        cost_unknown: false,
        provider: "scripted".to_owned(),
        response_id: None,
        response_model: None,
        first_chunk_us: Some(12),
        price_version: "workflow".to_owned(),
        stated_cost_usd_nanos: None,
    }))
}

pub fn turn_aborted(turn: u32, cost_usd_nanos: i64, written_off: Reservation) -> Event {
    Event::TurnAborted(TurnAborted {
        turn,
        attempt: 1,
        reason: if written_off.is_zero() { Abort::CutStream } else { Abort::Crash },
        message: "cut".to_owned(),
        retryable: true,
        http_status: None,
        retry_after_ms: None,
        usage: None,
        estimated: false,
        cost_usd_nanos,
        written_off,
    })
}

pub fn call_started(call: &str) -> Event {
    Event::CallStarted(CallStarted {
        call_id: call_id(call),
        tool: "read_file".to_owned(),
        effect: Effect::ReadOnly,
        idempotency_key: format!("key-{call}"),
        args_digest: "00".to_owned(),
        attempt: 1,
    })
}

pub fn call_ended(call: &str) -> Event {
    let output = "line\u{0} ünïcode".to_owned();
    Event::CallEnded(CallEnded { call_id: call_id(call), tool: "read_file".to_owned(), failure: None, output, omitted_chars: 0 })
}

pub fn suspended(outcome: Outcome) -> Event {
    Event::RunSuspended { outcome, reason: outcome.name().to_uppercase(), message: "stopped".to_owned(), text: "so far".to_owned() }
}

pub fn ended(outcome: Outcome) -> Event {
    Event::RunEnded(Box::new(RunEnded {
        outcome,
        reason: String::new(),
        message: String::new(),
        text: "The answer.".to_owned(),
        output: Some(json!({"b": 1, "a": 2})),
        truncated: false,
    }))
}

pub fn child_ended(call: &str, run: &str, outcome: Outcome) -> ChildEnded {
    ChildEnded {
        call_id: call_id(call),
        child: id(run),
        outcome,
        reason: String::new(),
        message: String::new(),
        text: "The answer.".to_owned(),
        output: None,
        truncated: false,
        turns: 1,
        subtree_cost_usd_nanos: 7,
    }
}

pub fn batch(events: Vec<Event>) -> Batch {
    let events = events.into_iter().map(|event| (2_000, event)).collect();
    Batch { events, time_us: 2_000, ..Batch::default() }
}

/// A run that was claimed, with the fence that its driver keeps.
pub struct Pen<'a> {
    pub store: &'a dyn Store,
    pub fence: Fence,
}

impl<'a> Pen<'a> {
    /// Claims a run.
    pub async fn of(store: &'a dyn Store, run: &str) -> Self {
        let row = store.claim(&id(run)).await.unwrap().row;
        Self { store, fence: Fence { run: id(run), epoch: row.epoch, seq: row.summary.seq } }
    }

    /// Creates a tree and claims its root.
    pub async fn of_new(store: &'a dyn Store, run: &str, limits: Limits) -> Self {
        store.create(tree(run, limits)).await.unwrap();
        Self::of(store, run).await
    }

    /// Appends, and moves the fence on by what was written to this run.
    pub async fn write(&mut self, batch: Batch) -> Result<Appended, Error> {
        let appended = self.store.append(self.fence.clone(), batch).await?;
        if let Some(last) = appended.recorded.iter().rfind(|recorded| recorded.run == self.fence.run) {
            self.fence.seq = last.seq;
        }
        Ok(appended)
    }

    /// Appends events only.
    pub async fn add(&mut self, events: Vec<Event>) -> Result<Appended, Error> {
        self.write(batch(events)).await
    }

    /// Starts a child for a call.
    pub async fn spawn(&mut self, call: &str, run: &str, limits: Limits) -> Result<Appended, Error> {
        let row = self.store.get(&self.fence.run).await?;
        let children = vec![child(&row, call, run, limits)];
        self.write(Batch { children, ..batch(vec![child_started(call, run)]) }).await
    }

    pub async fn row(&self) -> Row {
        self.store.get(&self.fence.run).await.unwrap()
    }
}

/// Everything that can be read about a tree, events as their bytes.
pub async fn dump(store: &dyn Store, root: &RunId) -> (Vec<Row>, Vec<String>) {
    let rows = store.subtree(root).await.unwrap();
    (rows, events(store, root).await.iter().map(|recorded| serde_json::to_string(recorded).unwrap()).collect())
}

/// A tree's whole journal.
pub async fn events(store: &dyn Store, root: &RunId) -> Vec<Recorded> {
    store.load_tree(root, 0, usize::MAX >> 1).await.unwrap()
}
