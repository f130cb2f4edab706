//! One model call: sends the request, hands on the text, and closes the attempt with what it came to and cost.

use std::sync::Arc;

use futures_util::StreamExt;
use tokio::time::{Instant, sleep_until};

use super::driver::Driver;
use super::{Live, LiveText};
use crate::kernel::event::{Abort, Event, Purpose, TurnAborted, TurnEnded, TurnStarted};
use crate::kernel::ledger::Reservation;
use crate::kernel::{Reply, Request, Usage};
use crate::provider::{Delta, Error, ReplyBuilder};

/// Bytes a token has on average. Only for usage that nobody stated, which is marked as estimated.
const BYTES_PER_TOKEN: i64 = 4;

/// How a model call ended.
enum Heard {
    /// Whole.
    Reply(Box<Reply>),
    /// Failed.
    Failed(Error),
    /// Cut by us.
    Cut(Abort),
}

impl Driver {
    /// Asks the model once. The attempt is durable as begun; what is returned closes it.
    pub(super) async fn turn(&mut self, started: &TurnStarted) -> Event {
        let request = Arc::new(self.journal.run.request(started));
        let name = &request.model.provider;
        let Some(provider) = self.runtime.provider(name) else {
            let message = format!("no provider named {name:?} is configured in this daemon; add it to the config and resume the run");
            return Event::TurnAborted(aborted(started, Abort::Auth, message));
        };
        let asked_at = Instant::now();
        let mut first_chunk_us = None;
        // A run whose token has fired before asks nobody: the cut comes first below.
        let is_sent = !self.seat.token.is_cancelled();
        let mut builder = ReplyBuilder::default();
        crash_point!("request/before");
        let heard = {
            let mut stream = provider.send(request.clone(), self.seat.token.child_token());
            let deadline = self.runtime.clock().instant(self.seat.deadline_us);
            loop {
                // A cut comes first: a reply that arrives in the same instant is dropped, unless its stop was read.
                let delta = tokio::select! {
                    biased;
                    () = self.seat.token.cancelled() => break Heard::Cut(self.cut_reason()),
                    () = sleep_until(deadline) => break Heard::Cut(Abort::Timeout),
                    delta = stream.next() => delta,
                };
                match delta {
                    Some(Ok(Delta::Allowance(allowance))) => {
                        if let Some(permit) = &mut self.permit {
                            permit.said(&allowance);
                        }
                    }
                    Some(Ok(delta)) => {
                        crash_point!("reply/within");
                        first_chunk_us.get_or_insert_with(|| i64::try_from(asked_at.elapsed().as_micros()).unwrap_or(i64::MAX));
                        self.show(started, &delta);
                        let whole = matches!(delta, Delta::Stop { .. });
                        builder.push(delta);
                        if whole {
                            break finish(std::mem::take(&mut builder));
                        }
                    }
                    Some(Err(error)) => break Heard::Failed(error),
                    None if self.seat.token.is_cancelled() => break Heard::Cut(self.cut_reason()),
                    None => break Heard::Failed(cut_stream(first_chunk_us.is_some())),
                }
            }
            // The stream is dropped here, which closes its connection.
        };
        crash_point!("reply/after");
        match heard {
            Heard::Reply(reply) => {
                let ended = self.ended(started, &request, *reply, first_chunk_us);
                self.warn_of_price(&ended);
                Event::TurnEnded(Box::new(ended))
            }
            Heard::Failed(error) => Event::TurnAborted(self.failed(started, &request, &builder, error)),
            Heard::Cut(reason) => {
                let message = match reason {
                    Abort::Timeout => "the run's time was up",
                    _ => "the run was cancelled",
                };
                let closed = aborted(started, reason, message.to_owned());
                Event::TurnAborted(self.charged(closed, &request, &builder, is_sent))
            }
        }
    }

    fn show(&self, started: &TurnStarted, delta: &Delta) {
        // Notes that make room are for the model alone.
        let (Purpose::Task, Delta::Text(text) | Delta::Refusal(text)) = (started.purpose, delta) else { return };
        let piece = LiveText { run: self.run_id(), turn: started.turn, attempt: started.attempt, text: text.clone() };
        self.tree.feed.show(Live::Text(Arc::new(piece)));
    }

    fn ended(&self, started: &TurnStarted, request: &Request, reply: Reply, first_chunk_us: Option<i64>) -> TurnEnded {
        let model = &request.model;
        let estimated = reply.usage.is_none();
        let output_bytes = reply_bytes(&reply);
        let usage = reply.usage.unwrap_or_else(|| estimate(request, output_bytes)).sane();
        TurnEnded {
            turn: started.turn,
            attempt: started.attempt,
            purpose: started.purpose,
            stop: reply.stop,
            stop_raw: reply.stop_raw.clone(),
            usage,
            estimated,
            cost_usd_nanos: model.price.map_or(0, |price| price.cost_usd_nanos(&usage)),
            cost_unknown: model.price.is_none(),
            provider: model.provider.clone(),
            response_id: reply.response_id.clone(),
            response_model: reply.response_model.clone(),
            first_chunk_us,
            price_version: model.price_version.clone(),
            stated_cost_usd_nanos: reply.stated_cost_usd_nanos,
            message: reply.into_message(started.turn, model),
        }
    }

    /// A price that is off is the operator's to mend: the ledger goes on with its own.
    fn warn_of_price(&self, ended: &TurnEnded) {
        if let Some(stated_usd_nanos) = ended.stated_cost_usd_nanos.filter(|_| ended.is_disputed()) {
            let (run_id, model, cost_usd_nanos) = (self.run_id(), &self.journal.run.model, ended.cost_usd_nanos);
            tracing::warn!(
                %run_id, turn = ended.turn, model = %model.full_name(), cost_usd_nanos, stated_usd_nanos,
                "the provider says that it charged something else; set its price under `prices` in the config"
            );
        }
    }

    fn failed(&self, started: &TurnStarted, request: &Request, builder: &ReplyBuilder, error: Error) -> TurnAborted {
        let may_cost = error.reply_begun || error.unanswered;
        let closed = TurnAborted {
            retryable: error.retryable,
            http_status: error.http_status,
            retry_after_ms: error.retry_after_ms,
            ..aborted(started, error.kind, error.message)
        };
        self.charged(closed, request, builder, may_cost)
    }

    /// Settles an attempt that came to nothing: at what was stated, else, if the provider may charge for it, at an estimate
    /// of what it read and had said. A refused request costs nothing.
    fn charged(&self, mut closed: TurnAborted, request: &Request, builder: &ReplyBuilder, may_cost: bool) -> TurnAborted {
        let stated = builder.usage();
        if stated.is_none() && !may_cost {
            return closed;
        }
        let usage = stated.unwrap_or_else(|| estimate(request, builder.output_bytes())).sane();
        closed.estimated = stated.is_none();
        closed.cost_usd_nanos = request.model.price.map_or(0, |price| price.cost_usd_nanos(&usage));
        closed.usage = Some(usage);
        closed
    }
}

fn finish(builder: ReplyBuilder) -> Heard {
    builder.finish().map_or_else(|| Heard::Failed(cut_stream(true)), |reply| Heard::Reply(Box::new(reply)))
}

fn cut_stream(reply_begun: bool) -> Error {
    Error {
        kind: Abort::CutStream,
        message: "the provider's stream ended before its end".to_owned(),
        code: None,
        http_status: None,
        retryable: true,
        retry_after_ms: None,
        reply_begun,
        unanswered: !reply_begun,
    }
}

pub(super) fn aborted(started: &TurnStarted, reason: Abort, message: String) -> TurnAborted {
    TurnAborted {
        turn: started.turn,
        attempt: started.attempt,
        reason,
        message,
        retryable: false,
        http_status: None,
        retry_after_ms: None,
        usage: None,
        estimated: false,
        cost_usd_nanos: 0,
        written_off: Reservation::default(),
    }
}

fn reply_bytes(reply: &Reply) -> usize {
    let calls: usize = reply.calls.iter().map(|call| call.tool.len() + call.args_raw.len()).sum();
    reply.text.len() + reply.refusal.as_ref().map_or(0, String::len) + reply.reasoning.as_ref().map_or(0, String::len) + calls
}

fn estimate(request: &Request, output_bytes: usize) -> Usage {
    let input_bytes = serde_json::to_vec(&(&request.instructions, &request.messages, &request.tools)).map_or(0, |bytes| bytes.len());
    let tokens = |bytes: usize| i64::try_from(bytes).unwrap_or(i64::MAX / 2).saturating_add(BYTES_PER_TOKEN - 1) / BYTES_PER_TOKEN;
    // No provider gives more than it was asked for.
    let output_tokens = tokens(output_bytes).min(request.max_output);
    Usage { input_tokens: tokens(input_bytes), output_tokens, ..Usage::default() }
}
