//! How large a run's conversation is for its model, and what is done where it does not fit. Whether it fits is the kernel's
//! to say.
//!
//! Far from the end of the window nothing is counted: the bytes of the conversation are bound enough. Near it, what was said
//! since the provider's own last count is counted with o200k, and scaled by what the counts before came to at this provider.

use std::sync::Arc;

use super::driver::Driver;
use super::journal::Stop;
use super::turn::aborted;
use crate::kernel::event::{Abort, Event, TurnAborted, TurnEnded, TurnStarted};
use crate::kernel::{self, Run};
use crate::provider::tokens;

/// What a count is scaled by before a provider has said anything. Other tokenizers make more tokens than o200k.
const SCALE: f64 = 1.25;
/// A provider's count above what is expected is believed up to here.
const SCALE_MAX: f64 = 4.0;
/// Counts below this, in tokens, are mostly the provider's own framing, and say nothing of its tokenizer.
const TOKENS_TO_LEARN_FROM: i64 = 500;
/// Kept free over what a provider's count came to.
const MARGIN: f64 = 1.05;

/// The size of one run's conversation.
pub struct Measure {
    /// The fact after which it was taken.
    seq: Option<u64>,
    tokens: i64,
    /// What the provider had counted, and what was counted here on top of it.
    counted: (i64, i64),
    scale: f64,
    /// Whether a provider's counts have a part in it.
    is_learned: bool,
}

impl Default for Measure {
    fn default() -> Self {
        Self { seq: None, tokens: 0, counted: (0, 0), scale: SCALE, is_learned: false }
    }
}

impl Measure {
    /// Returns the tokens that the next request has, about.
    pub fn tokens(&self) -> i64 {
        self.tokens
    }

    /// Measures a run, unless nothing was said since.
    pub async fn take(&mut self, run: &Run) {
        let seq = Some(run.summary.seq);
        let Some(window) = run.model.window_tokens.filter(|_| run.calls.is_empty() && self.seq != seq) else { return };
        let bound = run.input_tokens_max();
        self.seq = seq;
        self.counted = (0, 0);
        self.tokens = bound;
        if bound.saturating_add(run.model.max_output) <= window {
            return;
        }
        let (counted, said) = run.uncounted();
        // Once, what the provider counted is counted here too: that is what its tokenizer makes of such text.
        let known = (counted > 0 && !self.is_learned).then(|| run.counted());
        let (instructions, tools) = (run.created.agent.instructions.clone(), Arc::clone(&run.created.agent.tools));
        // Loading the tokenizer takes tens of milliseconds, once: not on the reactor.
        let count = tokio::task::spawn_blocking(move || {
            let said = tokens::messages_tokens(&said);
            let agent = || tokens::agent_tokens(&instructions, &tools);
            let known = known.map(|known| tokens::messages_tokens(&known).saturating_add(agent()));
            (if counted == 0 { said.saturating_add(agent()) } else { said }, known)
        });
        // A count that failed leaves the bound, which no conversation exceeds.
        let Ok((count, known)) = count.await else { return };
        if let Some(known) = known.filter(|known| *known >= TOKENS_TO_LEARN_FROM) {
            self.scale = (ratio(counted, known) * MARGIN).clamp(1.0, SCALE_MAX);
            self.is_learned = true;
        }
        self.counted = (counted, count);
        self.tokens = bound.min(counted.saturating_add(scaled(count, self.scale)));
    }

    /// Learns from what the provider counted of the request that was measured.
    pub fn learn(&mut self, closed: &Event) {
        let (counted, count) = self.counted;
        let Event::TurnEnded(ended) = closed else { return };
        if ended.estimated || count < TOKENS_TO_LEARN_FROM || ended.usage.input_tokens <= counted {
            return;
        }
        let found = ratio(ended.usage.input_tokens - counted, count) * MARGIN;
        // More than expected is believed at once, less little by little.
        let scale = if found > self.scale || !self.is_learned { found } else { self.scale.mul_add(0.8, found * 0.2) };
        self.is_learned = true;
        self.scale = scale.clamp(1.0, SCALE_MAX);
    }
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "an estimate of tokens")]
fn scaled(tokens: i64, scale: f64) -> i64 {
    (tokens as f64 * scale).ceil() as i64
}

#[expect(clippy::cast_precision_loss, reason = "an estimate of tokens")]
fn ratio(of: i64, to: i64) -> f64 {
    of as f64 / to as f64
}

impl Driver {
    /// Leaves long results before a message out of what the model reads.
    pub(super) fn clear(&mut self, before: usize) -> Result<(), Stop> {
        let cleared = self.journal.run.cleared(before, self.measure.tokens());
        self.journal.stage(Event::ContextCompacted(Box::new(cleared)))
    }

    /// Puts the model's notes in the place of what they are about, in the transaction that pays for them.
    pub(super) fn compact(&mut self, started: &TurnStarted, mut ended: TurnEnded) -> Result<(), Stop> {
        let text = Some(ended.message.text.trim()).filter(|text| !text.is_empty());
        let summary = match ended.stop {
            kernel::Stop::EndTurn | kernel::Stop::ToolCalls => text.map(str::to_owned),
            kernel::Stop::Length => text.map(|text| format!("{text}\n(These notes were cut off at their limit.)")),
            kernel::Stop::Refusal | kernel::Stop::Error => None,
        };
        let Some((summary, cut)) = summary.zip(self.journal.run.cut()) else {
            let message = "the model was asked for notes to make room and wrote none that can be used".to_owned();
            return self.journal.stage(Event::TurnAborted(TurnAborted {
                retryable: true,
                usage: Some(ended.usage),
                estimated: ended.estimated,
                cost_usd_nanos: ended.cost_usd_nanos,
                ..aborted(started, Abort::Malformed, message)
            }));
        };
        // It was told to call nothing; what it asked for all the same is not done.
        ended.message.calls.clear();
        let compacted = self.journal.run.summarised(summary, cut, self.measure.tokens());
        self.journal.stage(Event::TurnEnded(Box::new(ended)))?;
        self.journal.stage(Event::ContextCompacted(Box::new(compacted)))
    }
}
