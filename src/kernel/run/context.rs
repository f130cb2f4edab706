//! What of the conversation the model still reads, once not all of it fits. The transcript itself stays whole.
//!
//! Messages are left out from the front, at the beginning of a reply, so that every call keeps its result; a summary
//! stands in for them behind the prompt. When to make room is not decided here.

use std::sync::Arc;

use super::{Illegal, Run, illegal};
use crate::kernel::event::{Abort, ContextCompacted, Recorded};
use crate::kernel::message::{Message, ToolResult};
use crate::kernel::size;
use crate::kernel::summary::State;

/// A result below this, in bytes, is not worth leaving out: the words in its place are not much shorter.
const CLEARED_BYTES_MIN: usize = 256;
/// What the model is asked when room must be made.
const SUMMARISE: &str = "The conversation has become too long. Write down everything that you need to go on with the task from here: \
    what was asked, what you did and found (with names, numbers and paths), what you decided and why, and what is still open. Do not \
    call tools. Answer with these notes alone; the conversation above will be replaced by them.";

/// What the model reads of a transcript.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// What stands in for the messages that are left out.
    summary: Option<Arc<str>>,
    /// The first message behind the prompt that is read; 0 while all are.
    kept_from: usize,
    /// Results before this message are left out.
    cleared_to: usize,
}

impl Window {
    /// Returns the messages before `end` as the model reads them.
    fn messages(&self, transcript: &[Arc<Message>], end: usize) -> Vec<Arc<Message>> {
        let first = self.kept_from.max(1);
        let prompt = transcript.first().map(|prompt| self.prompt(prompt));
        let rest = transcript.iter().enumerate().take(end).skip(first);
        prompt.into_iter().chain(rest.map(|(at, message)| self.shown(at, message))).collect()
    }

    fn prompt(&self, prompt: &Arc<Message>) -> Arc<Message> {
        match (&**prompt, &self.summary) {
            (Message::User { text }, Some(summary)) => {
                let notes = "Your notes of the work so far, which was left out to make room:";
                Arc::new(Message::User { text: format!("{text}\n\n{notes}\n\n{summary}") })
            }
            (Message::User { .. } | Message::Assistant(_) | Message::Tool(_), _) => prompt.clone(),
        }
    }

    fn shown(&self, at: usize, message: &Arc<Message>) -> Arc<Message> {
        match &**message {
            Message::Tool(result) if at < self.cleared_to && is_long(result) => Arc::new(Message::Tool(ToolResult {
                output: format!(
                    "(The {} bytes of this result were left out to make room. Call again if you need them.)",
                    result.output.len()
                ),
                ..result.clone()
            })),
            Message::Tool(_) | Message::User { .. } | Message::Assistant(_) => message.clone(),
        }
    }
}

fn is_long(result: &ToolResult) -> bool {
    result.output.len() >= CLEARED_BYTES_MIN
}

impl Run {
    /// Returns the messages that the model reads next.
    pub fn read_messages(&self) -> Vec<Arc<Message>> {
        self.window.messages(&self.transcript, self.transcript.len())
    }

    /// Returns the messages of a request for notes about everything before `kept_from`.
    pub(super) fn summary_messages(&self, kept_from: usize) -> Vec<Arc<Message>> {
        let mut messages = self.window.messages(&self.transcript, kept_from);
        messages.push(Arc::new(Message::User { text: SUMMARISE.to_owned() }));
        messages
    }

    /// Returns an upper bound on what a request for notes adds to the conversation, in tokens.
    pub fn summary_question_tokens_max(&self) -> i64 {
        size::of_text(SUMMARISE) + size::FRAME_TOKENS_MAX
    }

    /// Returns where the conversation can be cut so that the last `keep_turns` replies stay: fewer where they are more than
    /// half of what is read, or room would have to be made again at once; at least the last one. `None` if nothing is left
    /// that could go.
    pub fn cut(&self) -> Option<usize> {
        let keep = usize::try_from(self.created.agent.context.keep_turns).unwrap_or(usize::MAX).max(1);
        let after = self.window.kept_from.max(1);
        let begins = |at: &usize| {
            let is_reply = matches!(&*self.transcript[*at], Message::Assistant(_));
            // A reply that was paused goes on in the next one.
            let goes_on = matches!(&*self.transcript[*at - 1], Message::Assistant(reply) if reply.paused);
            is_reply && !goes_on
        };
        let places: Vec<usize> = (after + 1..self.transcript.len()).filter(begins).collect();
        let half = self.read_bytes() / 2;
        let mut kept_bytes = 0;
        let mut cut = None;
        for (behind, at) in places.iter().rev().take(keep).enumerate() {
            let end = places.get(places.len() - behind).copied().unwrap_or(self.transcript.len());
            kept_bytes += self.transcript[*at..end].iter().map(|message| size::of_message(message)).sum::<i64>();
            if cut.is_some() && kept_bytes > half {
                break;
            }
            cut = Some(*at);
        }
        cut
    }

    /// Returns how many bytes of results go if those before a message are left out.
    pub fn clearable_bytes(&self, before: usize) -> i64 {
        let from = self.window.kept_from.max(self.window.cleared_to);
        let results = self.transcript.iter().take(before).skip(from).filter_map(|message| match &**message {
            Message::Tool(result) if is_long(result) => Some(size::of_text(&result.output)),
            Message::Tool(_) | Message::User { .. } | Message::Assistant(_) => None,
        });
        results.sum()
    }

    /// Returns how many bytes a request for notes about everything before `kept_from` has.
    pub fn summary_bytes(&self, kept_from: usize) -> i64 {
        self.bytes_with(&self.summary_messages(kept_from))
    }

    /// Returns what was said since a provider last counted the conversation, and what it counted. Where nobody has, that is
    /// all that the model reads, and its instructions and tools come on top.
    pub fn uncounted(&self) -> (i64, Vec<Arc<Message>>) {
        match self.counted_tokens {
            Some(counted) if counted > 0 => (counted, self.transcript.iter().skip(self.counted_to).cloned().collect()),
            Some(_) | None => (0, self.read_messages()),
        }
    }

    /// Returns the tokens of what the model reads, as the provider last counted them; 0 where nobody has.
    pub fn counted_tokens(&self) -> i64 {
        self.counted_tokens.unwrap_or(0)
    }

    /// Returns what the provider counted: the messages of its last reply's request, that reply, and the agent's own.
    pub fn counted(&self) -> Vec<Arc<Message>> {
        self.window.messages(&self.transcript, self.counted_to)
    }

    /// Returns how many bytes the model reads next.
    pub fn read_bytes(&self) -> i64 {
        self.bytes_with(&self.read_messages())
    }

    /// Returns the bytes of a request with these messages.
    fn bytes_with(&self, messages: &[Arc<Message>]) -> i64 {
        messages.iter().map(|message| size::of_message(message)).sum::<i64>() + size::of_agent(&self.created.agent)
    }

    pub(super) fn compact(&mut self, recorded: &Recorded, compacted: &ContextCompacted) -> Result<(), Illegal> {
        self.check_state(recorded, &[State::Running])?;
        self.check_quiet(recorded)?;
        let place = |at: u64| usize::try_from(at).ok().filter(|at| *at <= self.transcript.len());
        let (Some(kept_from), Some(cleared_to)) = (place(compacted.kept_from), place(compacted.cleared_to)) else {
            return Err(illegal(recorded, "the transcript has no such message"));
        };
        if kept_from < self.window.kept_from || cleared_to < self.window.cleared_to {
            return Err(illegal(recorded, "what was left out does not come back"));
        }
        let summary = compacted.summary.as_deref().map(Arc::from);
        self.window = Window { summary, kept_from, cleared_to };
        if let Some(attempt) = self.last_abort.as_ref().filter(|abort| abort.reason == Abort::ContextLength).map(|abort| abort.attempt) {
            // It was answered; what is asked next is another request.
            self.settle_attempts(attempt);
        }
        self.overlong = false;
        // What the provider counted was another conversation: the bytes of this one stand in for it.
        self.counted_tokens = Some(0);
        self.bytes_since_count = self.read_bytes();
        Ok(())
    }

    /// Returns what is left out as a fact, with results before `cleared_to` left out as well.
    pub fn cleared(&self, cleared_to: usize, tokens_before: i64) -> ContextCompacted {
        ContextCompacted {
            summary: self.window.summary.as_deref().map(str::to_owned),
            kept_from: count(self.window.kept_from),
            cleared_to: count(cleared_to.max(self.window.cleared_to)),
            tokens_before,
        }
    }

    /// Returns the fact that notes stand in for everything before `kept_from`.
    pub fn summarised(&self, summary: String, kept_from: usize, tokens_before: i64) -> ContextCompacted {
        ContextCompacted { summary: Some(summary), kept_from: count(kept_from), cleared_to: count(self.window.cleared_to), tokens_before }
    }
}

fn count(place: usize) -> u64 {
    u64::try_from(place).unwrap_or(u64::MAX)
}
