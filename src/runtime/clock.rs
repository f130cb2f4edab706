//! The only clock. Wall time is read once; after that time goes on monotonically, so a jump of the machine's clock
//! neither ends runs nor lets them live for ever.

use std::time::SystemTime;

use tokio::time::{Duration, Instant};

/// Microseconds since the Unix epoch that never go back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    wall_us: i64,
    from: Instant,
}

impl Clock {
    /// Reads the wall clock.
    pub fn start() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { wall_us: i64::try_from(since.as_micros()).unwrap_or(i64::MAX), from: Instant::now() }
    }

    /// Returns the time now.
    pub fn now_us(&self) -> i64 {
        self.wall_us.saturating_add(i64::try_from(self.from.elapsed().as_micros()).unwrap_or(i64::MAX))
    }

    /// Returns the instant of a time.
    pub fn instant(&self, time_us: i64) -> Instant {
        let ahead = u64::try_from(time_us.saturating_sub(self.now_us())).unwrap_or(0);
        // A century is as good as never, and an Instant cannot hold much more.
        Instant::now() + Duration::from_micros(ahead.min(100 * 365 * 86_400 * 1_000_000))
    }
}
