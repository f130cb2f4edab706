//! What to do about a conversation that does not fit the model: make room, or stop.

use super::{Around, Ending, Next, limit_reached, priced, provider};
use crate::kernel::agent::OnFull;
use crate::kernel::event::{Abort, Purpose};
use crate::kernel::run::Run;
use crate::kernel::summary::Outcome;

/// The part of the window that a reply must have room for, unless the model's `max_output` is less.
const OUTPUT_PART: i64 = 8;
/// Bytes that a token of plain English has at the least.
const QUESTION_BYTES_PER_TOKEN: i64 = 3;
/// Leaving old results out costs nothing; it is worth it if a fourth of what is read goes.
const CLEARED_PART: i64 = 4;

/// Returns how many tokens of output the window leaves; `Err` where that is too few to ask for.
pub(super) fn room(run: &Run, around: &Around<'_>) -> Result<i64, Next> {
    let Some(window) = run.model.window_tokens else { return Ok(i64::MAX) };
    let left = window.saturating_sub(around.context_tokens);
    if left >= needed(run, window) {
        return Ok(left);
    }
    let words = format!(
        "the conversation has about {} tokens and {} holds {window}, the reply included",
        around.context_tokens,
        run.model.full_name()
    );
    match run.created.agent.context.on_full {
        OnFull::Fail => Err(full(&words, "raise window_tokens, or resume the run with another model (--set-model)")),
        OnFull::Compact => Err(compact(run, around, window).unwrap_or_else(|| {
            full(&words, "nothing more of it can be left out; resume the run with a model that holds more (--set-model)")
        })),
    }
}

/// Output that must fit beside what is read.
fn needed(run: &Run, window: i64) -> i64 {
    run.model.max_output.min((window / OUTPUT_PART).max(run.model.output_floor()))
}

fn full(words: &str, advice: &str) -> Next {
    Next::End(Ending::new(Outcome::ProviderError, "CONTEXT_LENGTH", format!("{words}; {advice}")))
}

/// Decides on a turn that the provider called too long, as where its window is not known or its tokens are not counted as
/// expected: room is made. `None`: it was not, or there is nothing to leave out.
pub(super) fn too_long(run: &Run, around: &Around<'_>) -> Option<Next> {
    let may = run.overlong && run.fallback.is_empty() && run.created.agent.context.on_full == OnFull::Compact && !around.draining;
    if !may {
        return None;
    }
    let is_answer =
        run.failed_purpose == Purpose::Task && run.last_abort.as_ref().is_some_and(|abort| abort.reason == Abort::ContextLength);
    // A request for notes can fail like any other.
    if !is_answer && let Some(failed) = provider::failed(run) {
        return Some(failed);
    }
    if let Some(ending) = limit_reached(run, around) {
        return Some(Next::End(ending));
    }
    compact(run, around, run.model.window_tokens.unwrap_or(i64::MAX))
}

fn compact(run: &Run, around: &Around<'_>, window: i64) -> Option<Next> {
    let cut = run.cut()?;
    let all = run.read_bytes();
    if run.clearable_bytes(cut).saturating_mul(CLEARED_PART) >= all {
        return Some(Next::Clear(cut));
    }
    let input = around.input_tokens_max.saturating_add(run.summary_question_tokens_max());
    // The question takes the place of some of the answer, so that both fit where the conversation just did.
    let output = needed(run, window).saturating_sub(run.summary_question_tokens_max() / QUESTION_BYTES_PER_TOKEN);
    // A model that holds less than the one before it may not even hold the question.
    let asked = i128::from(around.context_tokens) * i128::from(run.summary_bytes(cut)) / i128::from(all.max(1));
    let is_too_long = window < i64::MAX && asked + i128::from(output) > i128::from(window);
    (!is_too_long).then(|| priced(run, around, Purpose::Compact, input, output.max(1)))
}
