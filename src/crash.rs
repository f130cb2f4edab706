//! Named points at which a daemon can be made to die, for tests: `WREN_CRASH_POINT=name#n` kills the process with
//! SIGKILL when the point is reached for the n-th time. Debug builds alone have them; in a release build a point is
//! nothing. This is a tool of every room and knows none.

/// Marks a place where a crash must change nothing. The names are collected from these lines by the test that dies there.
macro_rules! crash_point {
    ($name:literal) => {
        #[cfg(debug_assertions)]
        $crate::crash::reached($name);
    };
}

/// Dies here, if that is wanted.
#[cfg(debug_assertions)]
pub fn reached(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static WANTED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static TIMES: AtomicU64 = AtomicU64::new(0);

    let wanted = WANTED.get_or_init(|| {
        let text = std::env::var("WREN_CRASH_POINT").ok()?;
        let (name, nth) = text.split_once('#')?;
        Some((name.to_owned(), nth.parse().ok()?))
    });
    if let Some((at, nth)) = wanted
        && at == name
        && TIMES.fetch_add(1, Ordering::SeqCst) + 1 == *nth
    {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        loop {
            std::thread::park();
        }
    }
}
