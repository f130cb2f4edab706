//! How long to wait before another attempt. Pure: the chance comes in as an argument, and the driver does the waiting.

use crate::kernel::event::Abort;

/// The first wait.
const BASE_MS: u64 = 500;
/// The longest wait that nobody asked for.
const BACKOFF_MS_MAX: u64 = 30_000;

/// The longest such wait after a provider said that it is asked too much: how much it is asked is then the limiter's
/// business, and a run that was refused often must not fall behind those that come later.
const REFUSED_MS_MAX: u64 = 4_000;

/// Returns how long to wait after attempt `attempt` (from 1) failed: exponential with jitter, and never less than the
/// provider asked for. `chance` is any number; its low bits decide the jitter.
pub fn delay_ms(attempt: u32, reason: Abort, retry_after_ms: Option<u64>, chance: u64) -> u64 {
    let exponent = attempt.saturating_sub(1).min(16);
    let longest_ms = if reason.is_refusal() { REFUSED_MS_MAX } else { BACKOFF_MS_MAX };
    let backoff = BASE_MS.saturating_mul(1 << exponent).min(longest_ms);
    match retry_after_ms {
        // Jitter on top of what was asked for, so that those who were refused together do not come back together. A server
        // that asks for the same short wait again and again is believed less each time.
        Some(asked) => {
            let grown = asked.saturating_mul(1 << exponent).min(longest_ms).max(asked);
            grown.saturating_add((grown / 10).min(1000) * (chance % 1000) / 1000)
        }
        // Between half and all of it.
        None => backoff / 2 + backoff / 2 * (chance % 1000) / 1000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_never_fall_below_what_was_asked() {
        assert!((250..=500).contains(&delay_ms(1, Abort::Network, None, 77)));
        assert!((500..=1000).contains(&delay_ms(2, Abort::Network, None, 999)));
        assert!((15_000..=30_000).contains(&delay_ms(40, Abort::Network, None, 12)));
        assert!((2_000..=4_000).contains(&delay_ms(40, Abort::RateLimited, None, 12)));
        assert!(delay_ms(1, Abort::RateLimited, Some(2000), 999) >= 2000);
        assert!(delay_ms(1, Abort::RateLimited, Some(10), 999) < 20, "it is believed the first time");
        assert!(delay_ms(9, Abort::RateLimited, Some(10), 999) > 2_000, "and no longer after that");
        assert!(delay_ms(9, Abort::RateLimited, Some(60_000), 0) == 60_000);
    }
}
