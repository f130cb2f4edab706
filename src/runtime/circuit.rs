//! Which models are down, as all runs of the daemon have found together: a run that can ask another one does not have to
//! find it out again. It refuses no request; a run without another model goes on trying by its own backoff.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::time::{Duration, Instant};

use crate::kernel::ModelSpec;
use crate::kernel::event::Abort;

/// Failures in a row, of all runs together, after which a model counts as down.
const FAILURES_MAX: u32 = 5;
/// How long it counts as down after its last failure. Then the next run tries it again.
const DOWN_FOR: Duration = Duration::from_secs(30);

/// The models that failed lately.
#[derive(Debug, Default)]
pub struct Circuits {
    failing: Mutex<HashMap<String, Failing>>,
}

#[derive(Debug)]
struct Failing {
    in_a_row: u32,
    last: Instant,
}

impl Circuits {
    /// Notes how an attempt came out: `None` for a reply.
    pub fn note(&self, model: &ModelSpec, failure: Option<Abort>) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        match failure {
            None => {
                failing.remove(&model.full_name());
            }
            Some(reason) if is_down(reason) => {
                let now = Instant::now();
                let entry = failing.entry(model.full_name()).or_insert(Failing { in_a_row: 0, last: now });
                entry.in_a_row = entry.in_a_row.saturating_add(1);
                entry.last = now;
            }
            Some(_) => {}
        }
    }

    /// Returns why a model is not worth asking now.
    pub fn down(&self, model: &ModelSpec) -> Option<String> {
        let failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let found = failing.get(&model.full_name()).filter(|found| found.in_a_row >= FAILURES_MAX && found.last.elapsed() < DOWN_FOR)?;
        Some(format!("{} failed {} times in a row", model.full_name(), found.in_a_row))
    }
}

/// Returns whether a failure says that the model, rather than the request or the key, is in trouble.
fn is_down(reason: Abort) -> bool {
    match reason {
        Abort::Overloaded | Abort::Provider | Abort::Network | Abort::CutStream | Abort::NoAnswer => true,
        Abort::Auth
        | Abort::RateLimited
        | Abort::Quota
        | Abort::ContextLength
        | Abort::NotFound
        | Abort::ContentRefused
        | Abort::InvalidRequest
        | Abort::Malformed
        | Abort::Cancelled
        | Abort::Timeout
        | Abort::Crash => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str) -> ModelSpec {
        ModelSpec {
            alias: "main".to_owned(),
            provider: "p".to_owned(),
            model: name.to_owned(),
            max_output: 1,
            temperature: None,
            top_p: None,
            price: None,
            price_version: String::new(),
            window_tokens: None,
            scripted: None,
            fallback: Vec::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_model_is_down_after_some_failures_in_a_row_and_worth_a_try_again_after_a_while() {
        let (circuits, one, other) = (Circuits::default(), model("one"), model("other"));
        for _ in 1..FAILURES_MAX {
            circuits.note(&one, Some(Abort::Overloaded));
            circuits.note(&other, Some(Abort::Quota));
        }
        assert_eq!(circuits.down(&one), None);
        circuits.note(&one, Some(Abort::Network));
        circuits.note(&other, Some(Abort::Quota));
        assert_eq!(circuits.down(&one).as_deref(), Some("p/one failed 5 times in a row"));
        assert_eq!(circuits.down(&other), None, "no credit is no outage");
        tokio::time::advance(DOWN_FOR).await;
        assert_eq!(circuits.down(&one), None);
        circuits.note(&one, Some(Abort::Network));
        assert!(circuits.down(&one).is_some(), "the try that failed closes it again");
        circuits.note(&one, None);
        circuits.note(&one, Some(Abort::Network));
        assert_eq!(circuits.down(&one), None, "a reply clears it");
    }
}
