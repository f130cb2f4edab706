//! The trees of runs: submit, watch, cancel, resume, recover, drain. The only place that spawns tasks.

use std::sync::Arc;

use futures_util::stream::BoxStream;

use super::{Checked, Config, Error, Live, Receipt, RenderedTrace, Submission, Submitted, TraceFormat, Watch};
use crate::kernel::agent::LimitsPatch;
use crate::kernel::{Run, RunId};
use crate::provider::Providers;
use crate::store::{Page, Query, Row, Store};
use crate::telemetry::Telemetry;
use crate::telemetry::span::Span;

/// A running daemon's trees. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Runtime {}

impl Runtime {
    /// Starts: takes over every unfinished run of the store, then accepts submissions.
    pub async fn start(config: Config, store: Arc<dyn Store>, providers: Providers, telemetry: Telemetry) -> Result<Self, Error> {
        unimplemented!()
    }
    /// Accepts a workflow, durable before it returns. With `validate_only` nothing is stored.
    pub async fn submit(&self, submission: Submission, validate_only: bool) -> Result<Submitted, Error> {
        unimplemented!()
    }
    /// Checks a workflow (and the inputs, if not empty) and says all that is wrong.
    pub async fn check(&self, submission: Submission) -> Checked {
        unimplemented!()
    }
    /// Resolves an id, a unique prefix or `@latest`.
    pub async fn resolve(&self, name: &str) -> Result<RunId, Error> {
        unimplemented!()
    }
    pub async fn get(&self, run: &RunId) -> Result<Row, Error> {
        unimplemented!()
    }
    pub async fn list(&self, query: Query) -> Result<Page, Error> {
        unimplemented!()
    }
    /// The run and everything below it, parents before children.
    pub async fn subtree(&self, run: &RunId) -> Result<Vec<Row>, Error> {
        unimplemented!()
    }
    /// The fold of the run's journal, for its transcript.
    pub async fn load(&self, run: &RunId) -> Result<Run, Error> {
        unimplemented!()
    }
    /// Journal replay after the cursor, then live; ends after the run has ended (or is suspended, if so asked).
    pub async fn watch(&self, watch: Watch) -> Result<BoxStream<'static, Result<Live, Error>>, Error> {
        unimplemented!()
    }
    pub async fn cancel(&self, run: &RunId, actor: &str, reason: &str, wait: bool) -> Result<Receipt, Error> {
        unimplemented!()
    }
    pub async fn resume(&self, run: &RunId, limits: LimitsPatch, actor: &str, reason: &str) -> Result<Row, Error> {
        unimplemented!()
    }
    /// The spans of the run's tree, from its journal.
    pub async fn trace(&self, run: &RunId) -> Result<Vec<Span>, Error> {
        unimplemented!()
    }
    /// The spans of the run's tree, written out.
    pub async fn render_trace(&self, run: &RunId, format: TraceFormat) -> Result<RenderedTrace, Error> {
        unimplemented!()
    }
    /// Stops at turn boundaries within the drain timeout, flushes telemetry. Submissions are refused from here on.
    pub async fn drain(&self) {
        unimplemented!()
    }
    /// How many runs have a driver now.
    pub fn running(&self) -> usize {
        unimplemented!()
    }
    pub fn config(&self) -> &Config {
        unimplemented!()
    }
    pub fn store_name(&self) -> String {
        unimplemented!()
    }
    pub fn providers(&self) -> &Providers {
        unimplemented!()
    }
    pub fn telemetry(&self) -> &Telemetry {
        unimplemented!()
    }
}
