//! A watched run: one stream of events that survives dropped connections. The cursor is the last tree_seq received.

use std::time::Duration;

use tonic::{Status, Streaming};

use super::client::Client;
use super::error::{self, Error};
use crate::wire::v1::event::Payload;
use crate::wire::v1::{Event, GetRunRequest, Run, RunState, WatchRunRequest, WatchRunResponse};

/// How often in a row a connection is made again before giving up.
const RECONNECTS_MAX: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Receives the events of a run, and reconnects where it left off.
pub struct Follow {
    client: Client,
    request: WatchRunRequest,
    stream: Option<Streaming<WatchRunResponse>>,
    failures: u32,
    stopped: bool,
}

impl Follow {
    /// Prepares to watch; the connection is made with the first event.
    pub fn new(client: Client, request: WatchRunRequest) -> Self {
        Self { client, request, stream: None, failures: 0, stopped: false }
    }

    /// Returns the next event, or `None` once the run has stopped and all is told.
    ///
    /// # Errors
    /// The daemon refuses, or does not come back.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        loop {
            match self.receive().await {
                Ok(Some(event)) => {
                    self.failures = 0;
                    self.note(&event);
                    return Ok(Some(event));
                }
                Ok(None) if self.stopped || self.has_stopped().await? => return Ok(None),
                // A daemon that shuts down closes its streams in good order; the run goes on when it is back.
                Ok(None) => self.pause(&Status::unavailable("the stream ended before the run did")).await?,
                Err(status) if error::is_dropped(&status) => self.pause(&status).await?,
                Err(status) => return Err(self.client.error(&status)),
            }
        }
    }

    async fn receive(&mut self) -> Result<Option<Event>, Status> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => self.stream.insert(self.client.runs.watch_run(self.request.clone()).await?.into_inner()),
        };
        loop {
            match stream.message().await? {
                Some(WatchRunResponse { event: Some(event) }) => return Ok(Some(event)),
                Some(WatchRunResponse { event: None }) => {}
                None => return Ok(None),
            }
        }
    }

    fn note(&mut self, event: &Event) {
        self.request.after_tree_seq = self.request.after_tree_seq.max(event.tree_seq);
        if event.run_id != self.request.run_id {
            return;
        }
        match &event.payload {
            Some(Payload::RunEnded(_)) => self.stopped = true,
            Some(Payload::RunSuspended(_)) => self.stopped = self.request.stop_when_suspended,
            Some(Payload::RunResumed(_)) => self.stopped = false,
            _ => {}
        }
    }

    async fn pause(&mut self, status: &Status) -> Result<(), Error> {
        self.stream = None;
        self.failures += 1;
        if self.failures > RECONNECTS_MAX {
            let run = &self.request.run_id;
            return Err(self
                .client
                .error(status)
                .hint(format!("the run goes on without wrenctl; when the daemon is back: `wrenctl watch {run}`")));
        }
        tokio::time::sleep(FIRST_PAUSE * 2_u32.saturating_pow(self.failures - 1)).await;
        Ok(())
    }

    async fn has_stopped(&mut self) -> Result<bool, Error> {
        let request = GetRunRequest { run_id: self.request.run_id.clone() };
        match self.client.runs.get_run(request).await {
            Ok(answer) => Ok(answer.into_inner().run.is_some_and(|run| has_stopped(&run, self.request.stop_when_suspended))),
            Err(status) if error::is_dropped(&status) => Ok(false),
            Err(status) => Err(self.client.error(&status)),
        }
    }
}

/// Returns whether nothing more will happen to a run by itself.
pub fn has_stopped(run: &Run, suspended_counts: bool) -> bool {
    match run.state() {
        RunState::Ended => true,
        RunState::Suspended => suspended_counts,
        RunState::Unspecified | RunState::Pending | RunState::Running | RunState::Cancelling => false,
    }
}
