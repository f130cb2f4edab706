//! What a reply asked for: tools run beside each other inside the driver, subagents become child runs, and what a dead
//! daemon left behind is taken up.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use sha2::{Digest, Sha256};
use tokio::time::{Duration, sleep, timeout};

use super::driver::Driver;
use super::journal::{Commit, Stop};
use super::{Live, LiveProgress};
use crate::kernel::event::{Abort, CallEnded, CallFailure, CallStarted, Cause, Event, ParentCall, RunCreated, TurnAborted};
use crate::kernel::ledger::Limits;
use crate::kernel::run::Progress;
use crate::kernel::{Args, Call, CallId, Effect, RunId, State, ToolSpec};
use crate::store::NewChild;
use crate::tool;

/// How long calls that change nothing are waited for before what is staged is written.
const QUICK: Duration = Duration::from_millis(2);

impl Driver {
    /// Brings a run that a dead or drained daemon left behind to where the loop can go on. That a daemon died stands in
    /// the journal before any driver begins.
    pub(super) fn recover(&mut self) -> Result<(), Stop> {
        let run = &self.journal.run;
        match run.summary.state {
            State::Pending | State::Ended => return Ok(()),
            State::Suspended if run.summary.outcome == Some(crate::kernel::Outcome::Drained) => {
                return self.journal.stage(Event::RunResumed { cause: Cause::Drained, actor: String::new() });
            }
            // A suspended run that is driven is one to be cancelled; it needs no resuming for that.
            State::Suspended => return Ok(()),
            State::Running | State::Cancelling => {}
        }
        let open_turn = run.open_turn.clone();
        let started = run.calls.iter().filter_map(|pending| match pending.progress {
            Progress::Started { attempt, .. } => Some((pending.call.clone(), attempt)),
            Progress::Asked | Progress::Child { .. } | Progress::InDoubt { .. } | Progress::Ended(_) => None,
        });
        let started: Vec<(Call, u32)> = started.collect();
        if let Some(turn) = open_turn {
            // The provider may have charged for the lost call: its whole reservation is written off.
            self.journal.stage(Event::TurnAborted(TurnAborted {
                turn: turn.turn,
                attempt: turn.attempt,
                reason: Abort::Crash,
                message: "the daemon died while the model was asked".to_owned(),
                retryable: true,
                http_status: None,
                retry_after_ms: None,
                usage: None,
                estimated: false,
                cost_usd_nanos: 0,
                written_off: turn.reservation,
            }))?;
        }
        for (call, attempt) in started {
            self.take_up(&call, attempt)?;
        }
        Ok(())
    }

    /// Decides by its effect what becomes of a call that was cut by a crash.
    fn take_up(&mut self, call: &Call, attempt: u32) -> Result<(), Stop> {
        let Some(spec) = self.spec(&call.tool) else {
            return self.journal.stage(Event::CallInDoubt { call_id: call.id.clone() });
        };
        match spec.effect {
            Effect::ReadOnly | Effect::Idempotent if !self.is_to_be_cancelled() => {
                let started = self.started(call, &spec, attempt + 1);
                self.journal.stage(Event::CallStarted(started))?;
                self.launch(call, &spec);
                Ok(())
            }
            Effect::ReadOnly | Effect::Idempotent => {
                let (failure, words) = Self::cut_words(true);
                self.journal.stage(Event::CallEnded(ended(call, Some(failure), words.to_owned(), 0)))
            }
            Effect::External | Effect::Spawn => self.journal.stage(Event::CallInDoubt { call_id: call.id.clone() }),
        }
    }

    fn is_to_be_cancelled(&self) -> bool {
        self.journal.cancel.is_some()
    }

    fn spec(&self, tool: &str) -> Option<ToolSpec> {
        self.journal.run.created.agent.tools.iter().find(|spec| spec.name == tool).cloned()
    }

    fn started(&self, call: &Call, spec: &ToolSpec, attempt: u32) -> CallStarted {
        CallStarted {
            call_id: call.id.clone(),
            tool: call.tool.clone(),
            effect: spec.effect,
            idempotency_key: idempotency_key(self.journal.run.id(), &call.id),
            args_digest: hex(&Sha256::digest(call.args.shown().as_bytes())),
            attempt,
        }
    }

    /// Starts tools: the intent of all of them is durable before the first one runs.
    pub(super) async fn call(&mut self, ids: &[CallId]) -> Result<(), Stop> {
        let mut ready: Vec<(Call, ToolSpec)> = Vec::new();
        for id in ids {
            let Some((call, spec, args)) = self.wanted(id) else { continue };
            match self.tree.registry.check(&spec, &args) {
                Ok(()) => ready.push((call, spec)),
                Err(fault) => self.journal.stage(Event::CallEnded(invalid(&call, &fault)))?,
            }
        }
        for (call, spec) in &ready {
            let started = self.started(call, spec, 1);
            self.journal.stage(Event::CallStarted(started))?;
        }
        if ready.iter().all(|(_, spec)| spec.effect == Effect::ReadOnly) {
            return self.look_while_writing(&ready).await;
        }
        if self.journal.commit().await? == Commit::Again {
            return Ok(());
        }
        for (call, spec) in &ready {
            self.launch(call, spec);
        }
        Ok(())
    }

    /// Runs calls that change nothing, whose intent needs no commit of its own: what is quick shares the commit of the
    /// reply before it and of the turn after it. A crash in between loses no more than one in the model call would, and
    /// such calls may run again. What is not quick is made durable as under way, like any other call.
    async fn look_while_writing(&mut self, ready: &[(Call, ToolSpec)]) -> Result<(), Stop> {
        let mut running: FuturesUnordered<_> = ready.iter().filter_map(|(call, spec)| self.effect(call, spec)).collect();
        let window = sleep(QUICK);
        tokio::pin!(window);
        loop {
            tokio::select! {
                biased;
                ended = running.next() => match ended {
                    Some(ended) => self.journal.stage(Event::CallEnded(ended))?,
                    None => return Ok(()),
                },
                () = &mut window => break,
            }
        }
        // Where the intents did not become durable the calls are decided anew, so nobody may be at them any more.
        if self.journal.commit().await? == Commit::Done {
            self.effects.extend(running);
        }
        Ok(())
    }

    fn wanted(&self, id: &CallId) -> Option<(Call, ToolSpec, serde_json::Value)> {
        let call = self.journal.run.call(id)?.call.clone();
        let spec = self.spec(&call.tool)?;
        let Args::Json(args) = call.args.clone() else { return None };
        Some((call, spec, args))
    }

    /// Puts a call whose intent is durable among those under way.
    fn launch(&mut self, call: &Call, spec: &ToolSpec) {
        let effect = self.effect(call, spec);
        self.effects.extend(effect);
    }

    /// Returns the work of a call.
    fn effect(&self, call: &Call, spec: &ToolSpec) -> Option<BoxFuture<'static, CallEnded>> {
        let Args::Json(args) = call.args.clone() else { return None };
        let token = self.calls_token.child_token();
        let ctx = tool::Ctx {
            run: self.run_id(),
            call_id: call.id.clone(),
            idempotency_key: idempotency_key(self.journal.run.id(), &call.id),
            token: token.clone(),
            progress: self.progress(call),
        };
        let work = self.tree.registry.run(spec, args, ctx);
        let cancel = self.seat.token.clone();
        let call = call.clone();
        Some(Box::pin(async move {
            tokio::pin!(work);
            if token.is_cancelled() {
                // Cut before it began: nothing of it runs.
                let (failure, words) = Self::cut_words(cancel.is_cancelled());
                return ended(&call, Some(failure), words.to_owned(), 0);
            }
            crash_point!("effect/before");
            let finished = tokio::select! {
                biased;
                finished = &mut work => Some(finished),
                () = token.cancelled() => timeout(Self::grace(), &mut work).await.ok(),
            };
            crash_point!("effect/after");
            let (failure, words) = Self::cut_words(cancel.is_cancelled());
            match finished {
                Some(finished) if finished.ok => ended(&call, None, finished.output, finished.omitted_chars),
                // An error that a tool raises because it was cut is the cut.
                Some(_) if token.is_cancelled() => ended(&call, Some(failure), words.to_owned(), 0),
                Some(finished) => ended(&call, Some(CallFailure::Failed), finished.output, finished.omitted_chars),
                None => ended(&call, Some(failure), format!("{words} It did not stop in time and was abandoned."), 0),
            }
        }))
    }

    fn progress(&self, call: &Call) -> Arc<dyn Fn(tool::Progress) + Send + Sync> {
        let (feed, run, call_id, tool) = (self.tree.feed.clone(), self.run_id(), call.id.clone(), call.tool.clone());
        Arc::new(move |progress| {
            let (run, call_id, tool) = (run.clone(), call_id.clone(), tool.clone());
            feed.show(Live::Progress(Arc::new(LiveProgress { run, call_id, tool, progress })));
        })
    }

    /// Creates child runs: each with the fact that says so, all in one transaction.
    pub(super) async fn spawn(&mut self, ids: &[CallId]) -> Result<(), Stop> {
        let mut has_children = false;
        for id in ids {
            let Some((call, spec, args)) = self.wanted(id) else { continue };
            let launch = match self.tree.registry.check(&spec, &args) {
                Ok(()) => self.tree.plan.child(&spec, &args, &self.tree.inputs),
                Err(fault) => Err(fault),
            };
            let launch = match launch {
                Ok(launch) => launch,
                Err(fault) => {
                    self.journal.stage(Event::CallEnded(invalid(&call, &fault)))?;
                    continue;
                }
            };
            let child = self.runtime.new_run_id();
            let created = self.child_created(&call, launch);
            let event = Event::ChildStarted { call_id: call.id.clone(), child: child.clone(), agent: created.agent.name.clone() };
            // A subagent call is journaled as started like any other; its effect is the child.
            let started = self.started(&call, &spec, 1);
            self.journal.stage(Event::CallStarted(started))?;
            self.journal.stage_child(event, NewChild { id: child.clone(), created })?;
            has_children = true;
        }
        if !has_children || self.journal.commit().await? == Commit::Again {
            return Ok(());
        }
        crash_point!("spawn/after");
        for child in self.journal.take_created() {
            self.runtime.start_new(&self.tree, &child, &self.journal.path, Some(&self.run_id()));
        }
        Ok(())
    }

    fn child_created(&self, call: &Call, launch: crate::workflow::Launch) -> RunCreated {
        let run = &self.journal.run;
        let mut agent = launch.agent;
        if let Some(chosen) = run.models.get(&agent.name) {
            agent.model = chosen.clone();
        }
        let above = run.summary.limits;
        let asked = launch.limits.over(Limits { max_turns: Limits::DEFAULT.max_turns, ..above });
        // A child can ask for less than its parent has, never for more.
        let limits = Limits {
            max_turns: asked.max_turns,
            budget_usd_nanos: asked.budget_usd_nanos.min(above.budget_usd_nanos),
            max_tokens: asked.max_tokens.min(above.max_tokens),
            timeout_ms: asked.timeout_ms.min(above.timeout_ms),
            max_depth: asked.max_depth.min(above.max_depth.saturating_sub(1)),
            max_runs: asked.max_runs.min(above.max_runs),
        };
        RunCreated {
            root: run.created.root.clone(),
            parent: Some(ParentCall { run: run.id().clone(), call_id: call.id.clone(), tool: call.tool.clone() }),
            depth: run.created.depth + 1,
            workflow: run.created.workflow.clone(),
            workflow_digest: run.created.workflow_digest.clone(),
            inputs: serde_json::Value::Object(serde_json::Map::new()),
            agent,
            prompt: launch.prompt,
            workspace: run.created.workspace.clone(),
            limits,
            trace_id: run.created.trace_id.clone(),
            parent_span: None,
            received_us: 0,
            sampled: run.created.sampled,
            labels: std::collections::BTreeMap::new(),
            submitter: run.created.submitter.clone(),
            models: run.models.clone(),
        }
    }
}

fn ended(call: &Call, failure: Option<CallFailure>, output: String, omitted_chars: u64) -> CallEnded {
    CallEnded { call_id: call.id.clone(), tool: call.tool.clone(), failure, output, omitted_chars }
}

fn invalid(call: &Call, fault: &str) -> CallEnded {
    ended(call, Some(CallFailure::InvalidArguments), fault.to_owned(), 0)
}

fn idempotency_key(run: &RunId, call: &CallId) -> String {
    hex(&Sha256::digest(format!("wren/call/{run}/{call}").as_bytes())[..16])
}

/// Returns bytes as lower-case hex.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
