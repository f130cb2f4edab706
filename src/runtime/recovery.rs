//! Taking up runs that have no driver: at the daemon's start, on resume, and to end them on cancel.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::supervisor::Runtime;
use super::tree::Tree;
use super::{Error, Receipt, RunReceipt};
use crate::kernel::agent::LimitsPatch;
use crate::kernel::event::{CallFailure, Cause, Event};
use crate::kernel::next::{Around, Next, next};
use crate::kernel::{Limits, Outcome, Run, RunId, State};
use crate::store::{Batch, CancelMark, Fence, Row};

impl Runtime {
    /// Takes over what an earlier daemon left unfinished: parents first, so that children find their tokens.
    pub(super) async fn recover(&self) -> Result<(), Error> {
        let rows = self.store().unfinished().await?;
        if rows.is_empty() {
            return Ok(());
        }
        tracing::info!(runs = rows.len(), "taking up unfinished runs");
        if let Err(error) = self.note_crashes(&rows).await {
            tracing::error!(%error, "a crash could not be noted; each run notes it for itself");
        }
        let mut unusable: HashMap<RunId, String> = HashMap::new();
        for row in rows {
            let root = row.summary.root.clone();
            let tree = match (unusable.get(&root), self.tree(&root).await) {
                (None, Ok(tree)) => tree,
                (Some(why), _) => {
                    self.set_aside(&row.summary.id, "TREE_UNUSABLE", why.clone());
                    continue;
                }
                (None, Err(error)) => {
                    tracing::error!(run_id = %row.summary.id, %error, "the run is set aside");
                    let reason = if matches!(error, Error::Store(_)) { "JOURNAL_UNREADABLE" } else { "TREE_UNUSABLE" };
                    self.set_aside(&row.summary.id, reason, error.to_string());
                    unusable.insert(root, error.to_string());
                    continue;
                }
            };
            let parent = row.summary.parent.as_ref().map(|parent| parent.run.clone());
            self.start_driver(&tree, row.summary.id, parent.as_ref());
        }
        Ok(())
    }

    /// Writes that a tree was cut before anything else of it is written. Its runs are taken up beside each other, and one
    /// that had not begun, or was drained, could be the first to write: its spans would begin within a segment that is
    /// over. A tree that this daemon cannot use is told of when its runs are set aside.
    async fn note_crashes(&self, rows: &[Row]) -> Result<(), Error> {
        let has_fresh: HashSet<&RunId> = rows
            .iter()
            .filter(|row| !matches!(row.summary.state, State::Running | State::Cancelling))
            .map(|row| &row.summary.root)
            .collect();
        let mut noted: HashSet<&RunId> = HashSet::new();
        for row in rows.iter().filter(|row| row.summary.state == State::Running && has_fresh.contains(&row.summary.root)) {
            let (run, root) = (&row.summary.id, &row.summary.root);
            if noted.contains(root) {
                continue;
            }
            let Ok(tree) = self.tree(root).await else { continue };
            noted.insert(root);
            let claimed = self.claim(run).await?;
            let resumed = vec![Event::RunResumed { cause: Cause::Crash, actor: String::new() }];
            self.commit_resumed(&tree, run, claimed.row.epoch, claimed.row.summary.seq, resumed).await?;
        }
        Ok(())
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
        let before = self.store().cancel(run, mark).await?;
        let unfinished: Vec<&Row> = before.iter().filter(|row| row.summary.state != State::Ended).collect();
        if let Some(first) = unfinished.first() {
            let root = first.summary.root.clone();
            if let Some(tree) = self.live_tree(&root) {
                tree.cancel(run);
            }
            // Runs that nobody drives (suspended ones) are driven to their end.
            let tree = self.tree(&root).await?;
            for row in &unfinished {
                // Each of them: a run that was resumed has another token than the one its children were seated under.
                tree.cancel(&row.summary.id);
                let parent = row.summary.parent.as_ref().map(|parent| parent.run.clone());
                self.start_driver(&tree, row.summary.id.clone(), parent.as_ref());
            }
            if wait {
                self.wait_until_left(&tree, &unfinished).await;
            }
            self.forget_if_idle(tree);
        }
        let row = self.get(run).await?;
        if !wait {
            return Ok(Receipt { row, runs: Vec::new(), quiescent_ms: 0 });
        }
        let mut runs = Vec::with_capacity(before.len());
        for row in &before {
            runs.push(self.run_receipt(row, now_us).await?);
        }
        let quiescent_ms = runs.iter().map(|receipt| receipt.quiescent_ms).max().unwrap_or(0);
        Ok(Receipt { row, runs, quiescent_ms })
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

    async fn run_receipt(&self, before: &Row, marked_us: i64) -> Result<RunReceipt, Error> {
        let run = &before.summary.id;
        let after = self.store().get(run).await?;
        let mut receipt = RunReceipt {
            run: run.clone(),
            agent: before.summary.agent.clone(),
            state_at_cancel: before.summary.state,
            outcome: after.summary.outcome,
            calls_cancelled: 0,
            calls_finished: 0,
            calls_in_doubt: 0,
            quiescent_ms: 0,
        };
        if before.summary.state == State::Ended {
            return Ok(receipt);
        }
        let ended_us = after.summary.ended_us.unwrap_or(marked_us);
        receipt.quiescent_ms = (ended_us - marked_us).max(0) / 1000;
        let mut after_seq = before.summary.seq;
        loop {
            let page = self.store().load(run, after_seq, 512).await?;
            let Some(last) = page.last() else { return Ok(receipt) };
            after_seq = last.seq;
            for recorded in &page {
                let Event::CallEnded(call) = &recorded.event else { continue };
                match call.failure {
                    Some(CallFailure::Cancelled) => receipt.calls_cancelled += 1,
                    Some(CallFailure::InDoubt) => receipt.calls_in_doubt += 1,
                    _ => receipt.calls_finished += 1,
                }
            }
        }
    }

    /// Lets a suspended root go on. Durable before this returns.
    ///
    /// # Errors
    /// [`Error::LimitStillExceeded`] if it would stop at once; nothing is changed then.
    pub async fn resume(&self, run: &RunId, limits: LimitsPatch, actor: &str, reason: &str) -> Result<Row, Error> {
        let (runtime, run, actor, reason) = (self.clone(), run.clone(), actor.to_owned(), reason.to_owned());
        self.detached(Box::pin(async move {
            let row = runtime.get(&run).await?;
            runtime.check_resumable(&row)?;
            let tree = runtime.tree(&run).await?;
            let resumed = runtime.resume_now(&tree, &row, limits, &actor, &reason).await;
            runtime.forget_if_idle(tree);
            resumed
        }))
        .await
    }

    async fn resume_now(&self, tree: &Arc<Tree>, row: &Row, limits: LimitsPatch, actor: &str, reason: &str) -> Result<Row, Error> {
        let run = &row.summary.id;
        if self.is_draining() {
            return Err(Error::Draining);
        }
        // The suspension may have been seen before its driver has left, and no second driver is seated beside it.
        self.wait_until_left(tree, &[row]).await;
        let folded = self.load(run).await?;
        let limits = (!limits.is_empty()).then(|| limits.over(folded.summary.limits));
        if let Some(limits) = &limits {
            self.check_ceilings(limits)?;
        }
        self.check_goes_on(&folded, limits.as_ref()).await?;
        let claimed = self.claim(run).await?;
        let mut events = Vec::with_capacity(2);
        if let Some(limits) = limits {
            events.push(Event::LimitsChanged { limits, actor: actor.to_owned(), reason: reason.to_owned() });
        }
        events.push(Event::RunResumed { cause: Cause::User, actor: actor.to_owned() });
        // A second resume at the same moment claims too, and one of the two fences the other out.
        self.commit_resumed(tree, run, claimed.row.epoch, claimed.row.summary.seq, events).await?;
        let mut children: Vec<(RunId, Option<RunId>)> = Vec::new();
        for child in self.store().subtree(run).await?.into_iter().skip(1) {
            if child.summary.state == State::Suspended {
                children.push((child.summary.id.clone(), child.summary.parent.as_ref().map(|parent| parent.run.clone())));
                let child_run = child.summary.id.clone();
                self.wait_until_left(tree, &[&child]).await;
                let claimed = self.claim(&child_run).await?;
                let resumed = vec![Event::RunResumed { cause: Cause::User, actor: actor.to_owned() }];
                self.commit_resumed(tree, &child_run, claimed.row.epoch, claimed.row.summary.seq, resumed).await?;
            }
        }
        // The root must not find its children still suspended: it would stop again for their sake.
        for (child, _) in &children {
            tree.note_resumed(child);
        }
        self.start_driver(tree, run.clone(), None);
        for (child, parent) in children {
            self.start_driver(tree, child, parent.as_ref());
        }
        self.get(run).await
    }

    async fn commit_resumed(&self, tree: &Tree, run: &RunId, epoch: u64, seq: u64, events: Vec<Event>) -> Result<(), Error> {
        let fence = Fence { run: run.clone(), epoch, seq };
        let batch = Batch { events, time_us: self.clock().now_us(), ..Batch::default() };
        let appended = self.store().append(fence, batch).await?;
        tree.feed.publish(appended.recorded);
        Ok(())
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
    async fn check_goes_on(&self, run: &Run, limits: Option<&Limits>) -> Result<(), Error> {
        let mut resumed = run.clone();
        let mut path = self.store().path(run.id()).await?;
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
            cancelled: false,
            draining: false,
            children_suspended: None,
            output: None,
        };
        match next(&resumed, &around) {
            Next::End(ending) => match ending.outcome {
                Outcome::MaxTurns | Outcome::Budget | Outcome::MaxTokens | Outcome::Timeout => {
                    Err(Error::LimitStillExceeded { run: run.id().clone(), why: ending.message })
                }
                Outcome::Completed
                | Outcome::Failed
                | Outcome::Blocked
                | Outcome::Cancelled
                | Outcome::InDoubt
                | Outcome::ProviderError
                | Outcome::Drained => Ok(()),
            },
            Next::Start | Next::Ask(_) | Next::Answer(_) | Next::Call(_) | Next::Spawn(_) | Next::Tell(_) | Next::Park(_) => Ok(()),
        }
    }
}
