//! A provider that says in every answer how much more it may be asked: it is asked no more than that.

use std::sync::{Arc, Mutex};

use futures_util::{StreamExt, stream};
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use wren::kernel::event::Abort;
use wren::kernel::{Outcome, ReplyCall, Request, Stop};
use wren::provider::allowance::{Allowance, Left};
use wren::provider::price::Book;
use wren::provider::{Delta, DeltaStream, Error, Provider, Providers};
use wren::store::memory::Memory;

use super::Bench;

/// Calls that may be made at once.
const LIMIT: f64 = 20.0;
/// Of them, those that come back in a second.
const PER_SECOND: f64 = 2.0;
const TURNS: u32 = 4;

/// A provider with an allowance that fills evenly.
struct Metered {
    speaks: bool,
    level: Mutex<(f64, Instant)>,
    /// When it was asked, and whether it refused.
    asked: Mutex<Vec<(Instant, bool)>>,
}

impl Metered {
    fn new(speaks: bool) -> Arc<Self> {
        Arc::new(Self { speaks, level: Mutex::new((LIMIT, Instant::now())), asked: Mutex::default() })
    }

    /// Takes one call; returns what is left, and whether there was one.
    fn take(&self) -> (f64, bool) {
        let now = Instant::now();
        let mut level = self.level.lock().unwrap();
        let filled = ((now - level.1).as_secs_f64() * PER_SECOND + level.0).min(LIMIT);
        let there = filled >= 1.0;
        *level = (if there { filled - 1.0 } else { filled }, now);
        (level.0, there)
    }
}

impl Provider for Metered {
    fn ready(&self) -> Result<(), Error> {
        Ok(())
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a bucket is never below zero")]
    fn send(&self, request: Arc<Request>, _: CancellationToken) -> DeltaStream {
        let (level, there) = self.take();
        self.asked.lock().unwrap().push((Instant::now(), !there));
        let full_in_ms = ((LIMIT - level) / PER_SECOND * 1000.0).ceil() as u64;
        let left = Left { limit: LIMIT as u64, remaining: level as u64, full_in_ms };
        let mut items: Vec<Result<Delta, Error>> = Vec::new();
        if self.speaks {
            items.push(Ok(Delta::Allowance(Allowance { requests: Some(left), tokens: None })));
        }
        if there {
            let calls = request.turn < TURNS;
            let call = ReplyCall { provider_id: None, tool: "list_files".to_owned(), args_raw: "{}".to_owned() };
            items.extend(calls.then_some(Ok(Delta::Call(call))));
            items.push(Ok(Delta::Text("answered".to_owned())));
            let stop = if calls { Stop::ToolCalls } else { Stop::EndTurn };
            items.push(Ok(Delta::Stop { stop, raw: None, paused: false }));
        } else {
            items.push(Err(Error {
                kind: Abort::RateLimited,
                message: "too many requests".to_owned(),
                code: None,
                http_status: Some(429),
                retryable: true,
                retry_after_ms: None,
                reply_begun: false,
                unanswered: false,
            }));
        }
        stream::iter(items).boxed()
    }
}

const WORKFLOW: &str = "
wren: v1
name: plain
models: {main: {use: metered/m, max_output: 64, price: {input_usd_per_mtok: 1, output_usd_per_mtok: 1}}}
tools: {docs: {files: {root: .}}}
agents: {lead: {model: main, instructions: Answer., tools: [docs]}}
agent: lead
prompt: Go.
";

/// Plays 40 runs; returns how many requests were refused, and how long it took.
async fn play(speaks: bool) -> (usize, Duration) {
    let metered = Metered::new(speaks);
    let dir = Arc::new(tempfile::tempdir().unwrap());
    std::fs::create_dir_all(dir.path().join("work")).unwrap();
    let mut providers = Providers::scripted_only();
    providers.insert("metered", metered.clone());
    let bench = Bench::with(Bench::config(&dir), Arc::new(Memory::new()), dir, providers, Book::default()).await;
    let start = Instant::now();
    let mut runs = Vec::new();
    for _ in 0..40 {
        runs.push(bench.submit(WORKFLOW).await);
    }
    for run in &runs {
        bench.follow(run).await;
        let outcome = bench.runtime.get(run).await.unwrap().summary.outcome;
        // Refused again and again, without a word of when to come back, a run gives up.
        assert!(!speaks || outcome == Some(Outcome::Completed), "{outcome:?}");
    }
    let asked = metered.asked.lock().unwrap();
    let refused = asked.iter().filter(|(_, refused)| *refused).count();
    println!("{} requests, {refused} of them refused, {:?}", asked.len(), start.elapsed());
    (refused, start.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_says_what_is_left_is_asked_no_more() {
    let (refused, took) = play(true).await;
    // The first answer comes when others were asked already.
    assert!(refused <= 3, "{refused} were refused");
    // 160 calls: 20 at once, then two a second.
    let ideal = Duration::from_secs(70);
    assert!(took >= ideal - Duration::from_secs(1) && took < ideal + Duration::from_secs(10), "{took:?}");
}

/// What the test above shows is the words' doing.
#[tokio::test(start_paused = true)]
async fn a_provider_that_says_nothing_refuses_more() {
    let (refused, _) = play(false).await;
    assert!(refused > 10, "{refused} were refused");
}
