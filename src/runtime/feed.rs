//! One tree's feed: puts what many drivers commit into the tree's own order, once, and hands it to spans and watchers.
//!
//! The feed is a hint, never the truth: a watcher that falls behind reads the journal instead, so it misses nothing and
//! slows nobody.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{broadcast, watch};

use super::Live;
use crate::kernel::Recorded;
use crate::telemetry::{Telemetry, TreeSpans};

/// How many live items a slow watcher may lag before it must read the journal.
const LIVE_ITEMS_MAX: usize = 256;

/// The feed of one tree.
pub struct Feed {
    order: Mutex<Order>,
    /// Made for the first watcher: most trees of a busy daemon have none.
    live: OnceLock<broadcast::Sender<Live>>,
    /// Counts what watchers must know that is in no journal: a run of the tree was set aside.
    asides: watch::Sender<u64>,
    telemetry: Telemetry,
}

/// Commits of different drivers come back in any order; what is early waits here.
struct Order {
    /// The tree_seq that is due; 0 until the tree is first opened.
    due: u64,
    early: BTreeMap<u64, Arc<Recorded>>,
    spans: Option<TreeSpans>,
}

impl Feed {
    /// Returns a feed that nothing was published on.
    pub fn new(telemetry: Telemetry) -> Self {
        let order = Mutex::new(Order { due: 0, early: BTreeMap::new(), spans: None });
        Self { order, live: OnceLock::new(), asides: watch::Sender::new(0), telemetry }
    }

    /// Prepares for events after `journal`, which is the tree's whole journal so far. Its spans were exported when it
    /// was written, so they are rebuilt and let go; the open ones stay, to be closed by what follows.
    /// Of two that open one feed the second comes too late: its journal may lack what was published meanwhile.
    pub fn open(&self, journal: &[Arc<Recorded>]) {
        let mut order = self.lock();
        if order.due > 0 {
            return;
        }
        let mut spans = TreeSpans::new();
        for recorded in journal {
            spans.on(recorded);
            self.telemetry.prime(recorded);
        }
        order.due = journal.last().map_or(0, |last| last.tree_seq) + 1;
        order.spans = Some(spans);
    }

    /// Returns whether [`Feed::open`] was called.
    pub fn is_open(&self) -> bool {
        self.lock().due > 0
    }

    /// Takes what one transaction committed.
    pub fn publish(&self, recorded: impl IntoIterator<Item = Recorded>) {
        let mut order = self.lock();
        for recorded in recorded {
            if recorded.tree_seq >= order.due {
                order.early.insert(recorded.tree_seq, Arc::new(recorded));
            }
        }
        // The lock is held while handing on, so that no two publishers interleave. Nothing in here waits.
        let order = &mut *order;
        while let Some(recorded) = order.early.remove(&order.due) {
            order.due += 1;
            self.telemetry.observe(&recorded);
            if let Some(spans) = &mut order.spans {
                self.telemetry.export(spans.on(&recorded));
            }
            self.show(Live::Recorded(recorded));
        }
    }

    /// Hands something on to whoever watches now. No receiver is no fault.
    pub fn show(&self, live: Live) {
        if let Some(watched) = self.live.get() {
            let _ = watched.send(live);
        }
    }

    /// Begins to listen. What was published before is to be read from the journal.
    pub fn listen(&self) -> broadcast::Receiver<Live> {
        self.live.get_or_init(|| broadcast::channel(LIVE_ITEMS_MAX).0).subscribe()
    }

    /// Makes watchers look at their run again.
    pub fn look_again(&self) {
        self.asides.send_modify(|count| *count += 1);
    }

    /// Returns what fires when a watcher must look at its run again.
    pub fn asides(&self) -> watch::Receiver<u64> {
        self.asides.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Order> {
        // A panic in a span builder must not silence the tree: its state is still a valid order.
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
