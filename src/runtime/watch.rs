//! Watching a tree: the journal after a cursor, then live, without a gap or a repeat, however slow the watcher is.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tokio::sync::broadcast::{self, error::RecvError};

use super::feed::Feed;
use super::supervisor::Runtime;
use super::{Error, Live, RenderedTrace, TraceFormat, Watch};
use crate::kernel::{Event, Recorded, RunId, State};
use crate::telemetry::{TreeSpans, render};

/// One watcher. It listens before it reads, so nothing falls between the two; what it hears twice it drops by tree_seq.
struct Watcher {
    runtime: Runtime,
    watch: Watch,
    root: RunId,
    /// The runs that are watched; grows with their children.
    members: HashSet<RunId>,
    cursor: u64,
    read: VecDeque<Arc<Recorded>>,
    live: broadcast::Receiver<Live>,
    asides: tokio::sync::watch::Receiver<u64>,
    /// Keeps the feed alive while somebody watches.
    _feed: Arc<Feed>,
    /// Whether the journal is to be read before listening goes on.
    behind: bool,
    over: bool,
}

impl Runtime {
    /// Watches a run. The stream ends after the run's end, or after its suspension if so asked.
    ///
    /// # Errors
    /// [`Error::SeqAhead`] if the cursor is past the tree's end.
    pub async fn watch(&self, watch: Watch) -> Result<BoxStream<'static, Result<Live, Error>>, Error> {
        let row = self.get(&watch.run).await?;
        let root = row.summary.root.clone();
        let feed = self.feed(&root);
        let live = feed.listen();
        let row = self.get(&watch.run).await?;
        if watch.after_tree_seq > row.tree_seq {
            return Err(Error::SeqAhead { after: watch.after_tree_seq, last: row.tree_seq });
        }
        let members = if watch.include_descendants {
            self.subtree(&watch.run).await?.into_iter().map(|row| row.summary.id).collect()
        } else {
            HashSet::from([watch.run.clone()])
        };
        let watcher = Watcher {
            runtime: self.clone(),
            cursor: watch.after_tree_seq,
            watch,
            root,
            members,
            read: VecDeque::new(),
            live,
            asides: feed.asides(),
            _feed: feed,
            behind: true,
            over: false,
        };
        let items = stream::unfold(watcher, |mut watcher| async move { watcher.next().await.map(|item| (item, watcher)) });
        Ok(items.boxed())
    }

    /// Renders the spans of a run's tree from its journal.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn render_trace(&self, run: &RunId, format: TraceFormat) -> Result<RenderedTrace, Error> {
        let root = self.get(run).await?.summary.root;
        let journal = self.read_tree(&root, 0).await?;
        let spans = TreeSpans::replay(journal.iter().map(|recorded| &**recorded), self.clock().now_us());
        let content = match format {
            TraceFormat::Text => render::text(&spans),
            TraceFormat::OtlpJson => render::otlp_json(&spans),
            TraceFormat::JaegerJson => render::jaeger_json(&spans),
        };
        let trace_id = spans.first().map(|span| span.trace_id.clone()).unwrap_or_default();
        Ok(RenderedTrace { content, trace_id, span_count: spans.len() })
    }
}

impl Watcher {
    async fn next(&mut self) -> Option<Result<Live, Error>> {
        loop {
            while let Some(recorded) = self.read.pop_front() {
                self.cursor = recorded.tree_seq;
                if let Some(live) = self.take(recorded) {
                    return Some(Ok(live));
                }
            }
            if self.over {
                return None;
            }
            if self.behind {
                // Boxed: it is done seldom, and every watcher would hold the room for it.
                match Box::pin(self.read_page()).await {
                    Ok(()) => continue,
                    Err(error) => {
                        self.over = true;
                        return Some(Err(error));
                    }
                }
            }
            let heard = tokio::select! {
                heard = self.live.recv() => heard,
                Ok(()) = self.asides.changed() => {
                    self.behind = true;
                    continue;
                }
            };
            match heard {
                Ok(Live::Recorded(recorded)) if recorded.tree_seq <= self.cursor => {}
                Ok(Live::Recorded(recorded)) if recorded.tree_seq == self.cursor + 1 => self.read.push_back(recorded),
                Ok(Live::Recorded(_)) | Err(RecvError::Lagged(_)) => self.behind = true,
                Ok(live @ (Live::Text(_) | Live::Progress(_))) => {
                    if self.watch.include_deltas && self.members.contains(live_run(&live)) {
                        return Some(Ok(live));
                    }
                }
                // The watcher holds the feed, so this does not come; if it did, the journal would still be read.
                Err(RecvError::Closed) => self.over = true,
            }
        }
    }

    /// Reads the next page of the journal; an empty one means that the watcher is abreast.
    async fn read_page(&mut self) -> Result<(), Error> {
        /// How many events are read at once.
        const PAGE_EVENTS: usize = 256;
        let page = self.runtime.store().load_tree(&self.root, self.cursor, PAGE_EVENTS).await?;
        if page.is_empty() {
            self.behind = false;
            let summary = self.runtime.get(&self.watch.run).await?.summary;
            let stopped = summary.state == State::Ended || (summary.state == State::Suspended && self.watch.stop_when_suspended);
            // The row is read after the page: an end that came in between has its event still unread.
            if stopped {
                let news = self.runtime.store().load_tree(&self.root, self.cursor, 1).await?;
                self.behind = !news.is_empty();
                self.over = news.is_empty();
            }
        }
        self.read.extend(page.into_iter().map(Arc::new));
        Ok(())
    }

    fn take(&mut self, recorded: Arc<Recorded>) -> Option<Live> {
        if let Event::RunCreated(created) = &recorded.event
            && self.watch.include_descendants
            && created.parent.as_ref().is_some_and(|parent| self.members.contains(&parent.run))
        {
            self.members.insert(recorded.run.clone());
        }
        if !self.members.contains(&recorded.run) {
            return None;
        }
        if recorded.run == self.watch.run {
            let suspended = matches!(recorded.event, Event::RunSuspended { .. }) && self.watch.stop_when_suspended;
            // A suspension in the past may have been followed by a resume: only the present one ends the stream.
            if suspended && self.read.is_empty() {
                self.behind = true;
            }
            self.over |= matches!(recorded.event, Event::RunEnded(_));
        }
        Some(Live::Recorded(recorded))
    }
}

fn live_run(live: &Live) -> &RunId {
    match live {
        Live::Recorded(recorded) => &recorded.run,
        Live::Text(text) => &text.run,
        Live::Progress(progress) => &progress.run,
    }
}
