//! Taking up runs that have no driver: at the daemon's start, on resume, and to end them on cancel.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures_util::{StreamExt, stream};

use super::supervisor::Runtime;
use super::tree::Tree;
use super::{Change, Error, Receipt, RunReceipt};
use crate::kernel::agent::KnownModel;
use crate::kernel::event::{CallFailure, Cause, Event, ModelCause, ModelChanged};
use crate::kernel::next::{Around, Next, next};
use crate::kernel::{Limits, ModelSpec, Outcome, Run, RunId, State};
use crate::store::{self, Batch, CancelMark, Fence, Row};

/// Trees that are opened beside each other at the start.
const TREES_AT_ONCE: usize = 32;

impl Runtime {
    /// Takes over what an earlier daemon left unfinished.
    pub(super) async fn recover(&self) -> Result<(), Error> {
        let rows = self.store().unfinished().await?;
        if rows.is_empty() {
            return Ok(());
        }
        tracing::info!(runs = rows.len(), "taking up unfinished runs");
        let mut trees: BTreeMap<RunId, Vec<Row>> = BTreeMap::new();
        for row in rows {
            trees.entry(row.summary.root.clone()).or_default().push(row);
        }
        let taken = trees.into_iter().map(|(root, rows)| {
            let runtime = self.clone();
            async move { runtime.take_up_or_set_aside(&root, &rows).await }
        });
        stream::iter(taken).buffer_unordered(TREES_AT_ONCE).collect::<()>().await;
        Ok(())
    }

    /// Sets aside what an earlier daemon left unfinished, until somebody resumes or cancels it.
    pub(super) async fn leave_be(&self) -> Result<(), Error> {
        for row in self.store().unfinished().await? {
            let (run, root) = (&row.summary.id, &row.summary.root);
            if row.summary.state != State::Suspended {
                let words = format!("left unfinished by a process that ended; `wrenctl --local resume {root}` goes on with it");
                self.set_aside(root, run, "NOT_TAKEN_UP", words);
            }
        }
        Ok(())
    }

    async fn take_up_or_set_aside(&self, root: &RunId, rows: &[Row]) {
        let taken = async { self.take_up(&self.tree(root).await?, rows).await };
        let Err(error) = taken.await else { return };
        tracing::error!(root_id = %root, %error, "the tree is set aside");
        let reason = if matches!(error, Error::Store(_)) { "JOURNAL_UNREADABLE" } else { "TREE_UNUSABLE" };
        for row in rows {
            self.set_aside(root, &row.summary.id, reason, error.to_string());
        }
    }

    /// Gives every unfinished run of a tree a driver, parents first so that children find their tokens. That a daemon
    /// died is written for all of them before any of them goes on: they write beside each other afterwards, and one that
    /// had not begun could be the first.
    async fn take_up(&self, tree: &Arc<Tree>, rows: &[Row]) -> Result<(), Error> {
        for row in rows.iter().filter(|row| row.summary.state == State::Running) {
            let resumed = vec![Event::RunResumed { cause: Cause::Crash, actor: String::new() }];
            self.resume_run(tree, &row.summary.id, State::Running, resumed).await?;
        }
        for row in rows {
            self.take_back(&row.summary.id);
            let parent = row.summary.parent.as_ref().map(|parent| parent.run.clone());
            self.start_driver(tree, row.summary.id.clone(), parent.as_ref());
        }
        Ok(())
    }

    /// Writes that a run goes on, if it stands as `found` and nobody wants its end. Returns whether it was written.
    async fn resume_run(&self, tree: &Tree, run: &RunId, found: State, events: Vec<Event>) -> Result<bool, Error> {
        let row = match self.store().claim(run).await {
            Ok(claimed) => claimed.row,
            Err(store::Error::Ended) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if row.summary.state != found || (found == State::Suspended && row.cancel.is_some()) {
            return Ok(false);
        }
        let fence = Fence { run: run.clone(), epoch: row.epoch, seq: row.summary.seq };
        let time_us = self.clock().now_us().max(row.summary.updated_us);
        let events = events.into_iter().map(|event| (time_us, event)).collect();
        let batch = Batch { events, time_us, ..Batch::default() };
        let appended = self.store().append(fence, batch).await?;
        tree.feed.publish(appended.recorded);
        Ok(true)
    }

    /// Cancels a run and everything below it. The request is durable before any token fires.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn cancel(&self, run: &RunId, actor: &str, reason: &str, wait: bool) -> Result<Receipt, Error> {
        let (runtime, run, actor, reason) = (self.clone(), run.clone(), actor.to_owned(), reason.to_owned());
        self.detached(Box::pin(async move { runtime.cancel_now(&run, &actor, &reason, wait).await })).await
    }

    async fn cancel_now(&self, run: &RunId, actor: &str, reason: &str, wait: bool) -> Result<Receipt, Error> {
        let now_us = self.clock().now_us();
        let mark = CancelMark { actor: actor.to_owned(), reason: reason.to_owned(), time_us: now_us };
        let summary = self.store().get(run).await?.summary;
        let before = if summary.state == State::Ended {
            self.store().cancel(run, mark).await?
        } else {
            self.cancel_unfinished(run, &summary.root, mark, wait).await?
        };
        let row = self.get(run).await?;
        if !wait {
            return Ok(Receipt { row, runs: Vec::new(), quiescent_ms: 0 });
        }
        let runs = self.receipts(&before, now_us).await?;
        let quiescent_ms = runs.iter().map(|receipt| receipt.quiescent_ms).max().unwrap_or(0);
        Ok(Receipt { row, runs, quiescent_ms })
    }

    /// Marks a run and everything below it, fires their tokens, and sees that each of them has a driver. Returns the rows
    /// as they were when they were marked.
    async fn cancel_unfinished(&self, run: &RunId, root: &RunId, mark: CancelMark, wait: bool) -> Result<Vec<Row>, Error> {
        let tree = match self.tree(root).await {
            Ok(tree) => tree,
            Err(error) => {
                // Nobody can drive it here; the mark is written all the same, for the daemon that can.
                self.store().cancel(run, mark).await?;
                return Err(error);
            }
        };
        let commands = tree.commands.lock().await;
        crash_point!("cancel/before");
        let before = self.store().cancel(run, mark.clone()).await?;
        crash_point!("cancel/after");
        let unfinished: Vec<&Row> = before.iter().filter(|row| row.summary.state != State::Ended).collect();
        for row in &unfinished {
            // Each of them: a run that was resumed has another token than the one its children were seated under.
            tree.cancel(&row.summary.id, row.cancel.as_ref().unwrap_or(&mark));
        }
        // Runs that nobody drives (suspended ones) are driven to their end.
        for row in &unfinished {
            let parent = row.summary.parent.as_ref().map(|parent| parent.run.clone());
            self.take_back(&row.summary.id);
            self.start_driver(&tree, row.summary.id.clone(), parent.as_ref());
        }
        drop(commands);
        if wait {
            self.wait_until_left(&tree, &unfinished).await;
        }
        self.forget_if_idle(tree);
        Ok(before)
    }

    async fn wait_until_left(&self, tree: &Tree, rows: &[&Row]) {
        loop {
            let changed = tree.changed.notified();
            tokio::pin!(changed);
            // Listening begins before the look, so that nobody leaves unnoticed between the two.
            changed.as_mut().enable();
            if !rows.iter().any(|row| tree.is_driven(&row.summary.id)) {
                return;
            }
            changed.await;
        }
    }

    /// Says of each run how it stood when it was marked, and what became of it and its calls since.
    async fn receipts(&self, before: &[Row], marked_us: i64) -> Result<Vec<RunReceipt>, Error> {
        let Some(first) = before.first() else { return Ok(Vec::new()) };
        let since = self.read_tree(&first.summary.root, first.tree_seq).await?;
        let mut receipts: Vec<RunReceipt> = before.iter().map(receipt).collect();
        let at: HashMap<RunId, usize> = receipts.iter().enumerate().map(|(at, receipt)| (receipt.run.clone(), at)).collect();
        for recorded in &since {
            let Some(receipt) = at.get(&recorded.run).and_then(|at| receipts.get_mut(*at)) else { continue };
            if let Event::RunEnded(ended) = &recorded.event {
                receipt.outcome = Some(ended.outcome);
                receipt.quiescent_ms = (recorded.time_us - marked_us).max(0) / 1000;
            }
            if let Event::CallEnded(call) = &recorded.event {
                match call.failure {
                    Some(CallFailure::Cancelled) => receipt.calls_cancelled += 1,
                    Some(CallFailure::InDoubt) => receipt.calls_in_doubt += 1,
                    _ => receipt.calls_finished += 1,
                }
            }
        }
        Ok(receipts)
    }

    /// Lets a suspended root go on. Durable before this returns.
    ///
    /// # Errors
    /// [`Error::LimitStillExceeded`] if it would stop at once; nothing is changed then.
    pub async fn resume(&self, run: &RunId, change: impl Into<Change>, actor: &str, reason: &str) -> Result<Row, Error> {
        let (runtime, run, actor, reason) = (self.clone(), run.clone(), actor.to_owned(), reason.to_owned());
        let change = change.into();
        self.detached(Box::pin(async move {
            runtime.check_resumable(&runtime.get(&run).await?)?;
            let tree = runtime.tree(&run).await?;
            let commands = tree.commands.lock().await;
            let resumed = runtime.resume_now(&tree, &run, change, &actor, &reason).await;
            drop(commands);
            runtime.forget_if_idle(tree);
            resumed
        }))
        .await
    }

    async fn resume_now(&self, tree: &Arc<Tree>, run: &RunId, change: Change, actor: &str, reason: &str) -> Result<Row, Error> {
        if self.is_draining() {
            return Err(Error::Draining);
        }
        // The store's own row: what is shown as suspended may be a run that this daemon could not drive so far.
        let row = self.store().get(run).await?;
        if row.summary.state != State::Suspended && self.is_set_aside(run) {
            return self.try_again(tree, run, &change).await;
        }
        self.check_resumable(&row)?;
        // The suspension may have been seen before its driver has left, and no second driver is seated beside it.
        self.wait_until_left(tree, &[&row]).await;
        let folded = self.load(run).await?;
        let chosen = self.chosen_models(tree, &change.models, actor)?;
        let limits = (!change.limits.is_empty()).then(|| change.limits.over(folded.summary.limits));
        if let Some(limits) = &limits {
            self.check_ceilings(limits)?;
        }
        self.check_goes_on(folded, limits.as_ref(), &chosen).await?;
        let mut events = Vec::with_capacity(2 + chosen.len());
        if let Some(limits) = limits {
            events.push(Event::LimitsChanged { limits, actor: actor.to_owned(), reason: reason.to_owned() });
        }
        events.extend(chosen.iter().cloned());
        events.push(Event::RunResumed { cause: Cause::User, actor: actor.to_owned() });
        if !self.resume_run(tree, run, State::Suspended, events).await? {
            return Err(Error::NotSuspended(run.clone()));
        }
        // The root is durable and must have its driver now, whatever becomes of its children.
        let (children, result) = self.resume_children(tree, run, &chosen, actor).await;
        self.start_driver(tree, run.clone(), None);
        for (child, parent) in children {
            self.start_driver(tree, child, parent.as_ref());
        }
        result?;
        // A daemon that takes nothing up by itself may have left some of them in the middle of a turn.
        let left = self.store().subtree(run).await?.into_iter().filter(|row| self.is_set_aside(&row.summary.id)).collect::<Vec<_>>();
        self.take_up(tree, &left).await?;
        self.get(run).await
    }

    /// Lets the suspended runs below a root go on. One that ended or is to be cancelled meanwhile is left alone. Returns
    /// those that go on, each with its parent, also where the store failed in the middle.
    async fn resume_children(
        &self,
        tree: &Tree,
        root: &RunId,
        chosen: &[Event],
        actor: &str,
    ) -> (Vec<(RunId, Option<RunId>)>, Result<(), Error>) {
        let mut children: Vec<(RunId, Option<RunId>)> = Vec::new();
        let resumed = async {
            for child in self.store().subtree(root).await?.into_iter().skip(1).filter(|child| child.summary.state == State::Suspended) {
                self.wait_until_left(tree, &[&child]).await;
                let mut events = chosen.to_vec();
                events.push(Event::RunResumed { cause: Cause::User, actor: actor.to_owned() });
                if self.resume_run(tree, &child.summary.id, State::Suspended, events).await? {
                    // The root must not find it still suspended: it would stop again for its sake.
                    tree.note_resumed(&child.summary.id);
                    children.push((child.summary.id.clone(), child.summary.parent.map(|parent| parent.run)));
                }
            }
            Ok(())
        };
        let result = resumed.await;
        (children, result)
    }

    /// Returns the facts that say which models were chosen.
    fn chosen_models(&self, tree: &Tree, models: &BTreeMap<String, String>, actor: &str) -> Result<Vec<Event>, Error> {
        let chosen = models.iter().map(|(agent, name)| {
            let model = self.chosen_model(tree, agent, name).map_err(|why| Error::NoSuchModel(format!("{agent}={name}: {why}")))?;
            let (cause, actor) = (ModelCause::User, actor.to_owned());
            Ok(Event::ModelChanged(Box::new(ModelChanged { agent: agent.clone(), model, cause, actor, reason: String::new() })))
        });
        chosen.collect()
    }

    /// Returns the model of that name with the parameters of the one that the agent's workflow names.
    fn chosen_model(&self, tree: &Tree, agent: &str, name: &str) -> Result<Arc<ModelSpec>, String> {
        let Some(base) = tree.plan.model_of(agent) else {
            return Err(format!("the workflow has no agent {agent:?}; its agents: {}", tree.plan.agent_names().join(", ")));
        };
        let Some((provider, model)) = name.split_once('/').filter(|(provider, model)| !provider.is_empty() && !model.is_empty()) else {
            return Err("a model is written provider/model, such as openai/gpt-5-mini".to_owned());
        };
        let known = self.provider(provider).filter(|_| provider != "scripted");
        let known =
            known.ok_or_else(|| format!("this daemon has no provider {provider:?}; it has {}", self.provider_names().join(", ")))?;
        known.ready().map_err(|error| error.message)?;
        let KnownModel { price, window_tokens } = self.model(provider, model);
        if price.is_none() && base.price.is_some() {
            return Err("its price is not known, so a budget cannot be kept; add it to `prices` in the daemon's config".to_owned());
        }
        let (price, price_version) = price.map_or((None, "unknown".to_owned()), |(price, version)| (Some(price), version));
        Ok(Arc::new(ModelSpec {
            alias: name.to_owned(),
            provider: provider.to_owned(),
            model: model.to_owned(),
            price,
            price_version,
            window_tokens,
            scripted: None,
            fallback: Vec::new(),
            ..base.clone()
        }))
    }

    /// Takes up a tree that this daemon could not drive before.
    async fn try_again(&self, tree: &Arc<Tree>, run: &RunId, change: &Change) -> Result<Row, Error> {
        if !change.limits.is_empty() || !change.models.is_empty() {
            let words = "it was set aside in the middle of a turn; resume it without new limits and models first, and set them once it is suspended";
            return Err(Error::SetAside(words.to_owned()));
        }
        let rows: Vec<Row> = self.store().subtree(run).await?.into_iter().filter(|row| row.summary.state != State::Ended).collect();
        self.take_up(tree, &rows).await?;
        self.get(run).await
    }

    fn check_resumable(&self, row: &Row) -> Result<(), Error> {
        let summary = &row.summary;
        if summary.parent.is_some() {
            return Err(Error::NotRoot { run: summary.id.clone(), root: summary.root.clone() });
        }
        match summary.state {
            State::Suspended if summary.reason == "JOURNAL_UNREADABLE" => Err(Error::SetAside(summary.message.clone())),
            // A cancel was committed: its driver is about to end the run.
            State::Suspended if row.cancel.is_some() => Err(Error::NotSuspended(summary.id.clone())),
            State::Suspended => Ok(()),
            State::Ended => Err(Error::Ended(summary.id.clone(), summary.outcome.map_or("ended", Outcome::name))),
            State::Pending | State::Running | State::Cancelling => Err(Error::NotSuspended(summary.id.clone())),
        }
    }

    /// Asks the kernel what the run would do under the new limits, before anything is written.
    async fn check_goes_on(&self, run: Run, limits: Option<&Limits>, chosen: &[Event]) -> Result<(), Error> {
        let mut resumed = run;
        let mut path = self.store().path(resumed.id()).await?;
        for event in chosen {
            if let Event::ModelChanged(changed) = event
                && changed.agent == resumed.created.agent.name
            {
                resumed.model = changed.model.clone();
            }
        }
        if let (Some(limits), Some(own)) = (limits, path.first_mut()) {
            resumed.summary.limits = *limits;
            own.limits = *limits;
        }
        resumed.summary.state = State::Running;
        resumed.last_abort = None;
        resumed.takeovers = 0;
        let ran_us = resumed.running_us(resumed.summary.updated_us);
        let left_us = resumed.summary.limits.timeout_ms.saturating_mul(1000).saturating_sub(ran_us);
        let around = Around {
            now_us: 0,
            deadline_us: left_us,
            path: &path,
            input_tokens_max: resumed.input_tokens_max(),
            // Whether it fits is looked at once it runs: another model may hold more.
            context_tokens: 0,
            cancelled: false,
            draining: false,
            children_suspended: None,
            model_down: None,
            output: None,
        };
        match next(&resumed, &around) {
            Next::End(ending) => match ending.outcome {
                Outcome::MaxTurns | Outcome::Budget | Outcome::MaxTokens | Outcome::Timeout => {
                    Err(Error::LimitStillExceeded { run: resumed.id().clone(), why: ending.message })
                }
                Outcome::Completed
                | Outcome::Failed
                | Outcome::Blocked
                | Outcome::Cancelled
                | Outcome::InDoubt
                | Outcome::ProviderError
                | Outcome::Drained => Ok(()),
            },
            Next::Start
            | Next::Ask(_)
            | Next::Answer(_)
            | Next::Call(_)
            | Next::Spawn(_)
            | Next::Tell(_)
            | Next::Switch(_)
            | Next::Clear(_)
            | Next::Park(_) => Ok(()),
        }
    }
}

fn receipt(before: &Row) -> RunReceipt {
    RunReceipt {
        run: before.summary.id.clone(),
        agent: before.summary.agent.clone(),
        state_at_cancel: before.summary.state,
        outcome: before.summary.outcome,
        calls_cancelled: 0,
        calls_finished: 0,
        calls_in_doubt: 0,
        quiescent_ms: 0,
    }
}
