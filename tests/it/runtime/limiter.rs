//! A provider that takes less than it is asked: no run fails for it, little is refused, no tree starves.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::{StreamExt, stream};
use tokio::time::{Duration, Instant, sleep};
use tokio_util::sync::CancellationToken;
use wren::kernel::event::Abort;
use wren::kernel::{Outcome, ReplyCall, Request, RunId, Stop};
use wren::provider::price::Book;
use wren::provider::{Delta, DeltaStream, Error, Provider, Providers, registry};
use wren::store::memory::Memory;

use super::Bench;

/// Turns of a run that has a tool to call.
const TURNS: u32 = 5;
/// How long it takes to answer.
const LATENCY: Duration = Duration::from_millis(50);

/// One request, as the provider saw it.
struct Asked {
    at: Instant,
    agent: String,
    refused: bool,
}

/// A provider that answers so many at once and refuses the others.
struct Narrow {
    at_once: usize,
    retry_after_ms: Option<u64>,
    under_way: Arc<AtomicUsize>,
    asked: Mutex<Vec<Asked>>,
}

impl Narrow {
    fn new(at_once: usize, retry_after_ms: Option<u64>) -> Arc<Self> {
        Arc::new(Self { at_once, retry_after_ms, under_way: Arc::default(), asked: Mutex::default() })
    }

    /// How many requests were refused, of how many, from then on.
    fn refused_since(&self, start: Instant) -> (usize, usize) {
        let asked = self.asked.lock().unwrap();
        let late = asked.iter().filter(|asked| asked.at >= start);
        (late.clone().filter(|asked| asked.refused).count(), late.count())
    }

    fn agents(&self) -> Vec<String> {
        self.asked.lock().unwrap().iter().map(|asked| asked.agent.clone()).collect()
    }
}

/// A place at the provider, until the answer is whole or dropped.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Provider for Narrow {
    fn ready(&self) -> Result<(), Error> {
        Ok(())
    }

    fn send(&self, request: Arc<Request>, _: CancellationToken) -> DeltaStream {
        let refused = self.under_way.load(Ordering::SeqCst) >= self.at_once;
        self.asked.lock().unwrap().push(Asked { at: Instant::now(), agent: request.agent.clone(), refused });
        if refused {
            let error = Error {
                kind: Abort::RateLimited,
                message: "too many requests".to_owned(),
                code: None,
                http_status: Some(429),
                retryable: true,
                retry_after_ms: self.retry_after_ms,
                reply_begun: false,
                unanswered: false,
            };
            return stream::iter([Err(error)]).boxed();
        }
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let place = Place(self.under_way.clone());
        let tool = request.tools.first().filter(|_| request.turn < TURNS).map(|tool| tool.name.clone());
        let is_spawn = tool.as_deref().is_some_and(|tool| tool != "list_files");
        let calls = if is_spawn && request.turn > 1 { 0 } else { usize::from(tool.is_some()) * if is_spawn { 2 } else { 1 } };
        let call = |tool: &str| Delta::Call(ReplyCall { provider_id: None, tool: tool.to_owned(), args_raw: "{}".to_owned() });
        let mut deltas: Vec<Delta> = tool.iter().flat_map(|tool| vec![call(tool); calls]).collect();
        let stop = if calls > 0 { Stop::ToolCalls } else { Stop::EndTurn };
        deltas.push(Delta::Text("answered".to_owned()));
        deltas.push(Delta::Stop { stop, raw: None, paused: false });
        let later = stream::once(async move {
            sleep(LATENCY).await;
            drop(place);
        });
        later.flat_map(move |()| stream::iter(deltas.clone()).map(Ok)).boxed()
    }
}

async fn bench(narrow: &Arc<Narrow>, config: &str) -> Bench {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    std::fs::create_dir_all(dir.path().join("work")).unwrap();
    let config = wren::config::Config::parse("config.yaml", config).unwrap();
    let mut providers = Providers::from_env_and_config(&|_| None, &config.providers).unwrap();
    providers.insert("narrow", narrow.clone());
    Bench::with(Bench::config(&dir), Arc::new(Memory::new()), dir, providers, Book::default()).await
}

const PLAIN: &str = "
wren: v1
name: plain
models: {main: {use: narrow/m, max_output: 64, price: {input_usd_per_mtok: 1, output_usd_per_mtok: 1}}}
tools: {docs: {files: {root: .}}}
agents: {lead: {model: main, instructions: Answer., tools: [docs]}}
agent: lead
prompt: Go.
";

/// Two workers below the lead, two scouts below each of them.
const DEEP: &str = "
wren: v1
name: deep
models: {main: {use: narrow/m, max_output: 64, price: {input_usd_per_mtok: 1, output_usd_per_mtok: 1}}}
tools:
  ask: {description: Asks., subagent: worker, prompt: Go.}
  look: {description: Looks., subagent: scout, prompt: Go.}
agents:
  lead: {model: main, instructions: Answer., tools: [ask]}
  worker: {model: main, instructions: Answer., tools: [look]}
  scout: {model: main, instructions: Answer.}
agent: lead
prompt: Go.
";

async fn outcome(bench: &Bench, run: &RunId) -> Option<Outcome> {
    bench.follow(run).await;
    bench.runtime.get(run).await.unwrap().summary.outcome
}

#[tokio::test(start_paused = true)]
async fn two_hundred_runs_share_what_a_provider_takes() {
    let narrow = Narrow::new(10, None);
    let bench = bench(&narrow, "{}").await;
    let start = Instant::now();
    let mut runs = Vec::new();
    for _ in 0..200 {
        runs.push(bench.submit(PLAIN).await);
    }
    let mut ends = Vec::new();
    for run in &runs {
        assert_eq!(outcome(&bench, run).await, Some(Outcome::Completed));
        ends.push(bench.runtime.get(run).await.unwrap().summary.updated_us);
    }
    let took = start.elapsed();
    let (refused, asked) = narrow.refused_since(start + Duration::from_secs(1));
    println!("{asked} requests after the first second, {refused} of them refused; {took:?}");
    assert!(asked > 500 && refused * 50 <= asked, "{refused} of {asked} were refused");
    // 1,000 calls of 50 ms, ten at once, are five seconds.
    assert!(took < Duration::from_secs(8), "the provider was left idle: {took:?}");
    // Trees take turns: nobody is done before the others have come to their last turns.
    let (first, last) = (ends.iter().min().unwrap(), ends.iter().max().unwrap());
    println!("the first run is done {} ms before the last", (last - first) / 1_000);
    assert!((last - first) / 1_000 < 3_000, "some were served before others");
}

#[tokio::test(start_paused = true)]
async fn a_small_tree_does_not_wait_for_a_large_one() {
    let narrow = Narrow::new(100, None);
    let bench = bench(&narrow, "providers: {narrow: {base_url: 'http://127.0.0.1:1', limits: {concurrency: 1}}}").await;
    let large = bench.submit(DEEP).await;
    while narrow.agents().len() < 2 {
        sleep(LATENCY / 4).await;
    }
    let before = narrow.agents().len();
    let small = bench.submit(&PLAIN.replace("lead", "small")).await;
    assert_eq!(outcome(&bench, &small).await, Some(Outcome::Completed));
    assert_eq!(outcome(&bench, &large).await, Some(Outcome::Completed));
    let after = &narrow.agents()[before..];
    let turns: Vec<usize> = after.iter().enumerate().filter(|(_, agent)| *agent == "small").map(|(at, _)| at).collect();
    assert_eq!(turns.len(), TURNS as usize);
    assert!(turns.windows(2).all(|pair| pair[1] - pair[0] <= 3), "the small tree has a turn as soon as it asks for one: {after:?}");
}

#[tokio::test(start_paused = true)]
async fn whom_others_wait_for_goes_first() {
    let narrow = Narrow::new(100, None);
    let bench = bench(&narrow, "providers: {narrow: {base_url: 'http://127.0.0.1:1', limits: {concurrency: 1}}}").await;
    let run = bench.submit(DEEP).await;
    assert_eq!(outcome(&bench, &run).await, Some(Outcome::Completed));
    // The first worker's scouts overtake the second worker, who asked before them.
    assert_eq!(narrow.agents(), ["lead", "worker", "worker", "scout", "scout", "scout", "scout", "worker", "worker", "lead"],);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_the_provider_asks_for_holds_for_every_run() {
    let narrow = Narrow::new(1, Some(3_000));
    let bench = bench(&narrow, "{}").await;
    let runs = [bench.submit(PLAIN).await, bench.submit(PLAIN).await, bench.submit(PLAIN).await];
    for run in &runs {
        assert_eq!(outcome(&bench, run).await, Some(Outcome::Completed));
    }
    let asked = narrow.asked.lock().unwrap();
    let first = asked.iter().find(|asked| asked.refused).unwrap().at;
    let until = first + Duration::from_secs(3);
    assert!(asked.iter().all(|asked| asked.at == first || asked.at >= until || asked.at < first));
}

#[tokio::test(start_paused = true)]
async fn no_minute_sees_more_requests_than_the_config_says() {
    let narrow = Narrow::new(1_000, None);
    let bench = bench(&narrow, "providers: {narrow: {base_url: 'http://127.0.0.1:1', limits: {requests_per_minute: 60}}}").await;
    let mut runs = Vec::new();
    for _ in 0..30 {
        runs.push(bench.submit(PLAIN).await);
    }
    for run in &runs {
        assert_eq!(outcome(&bench, run).await, Some(Outcome::Completed));
    }
    let asked = narrow.asked.lock().unwrap();
    assert_eq!(asked.len(), 150);
    for from in asked.iter() {
        let within = asked.iter().filter(|asked| asked.at >= from.at && asked.at - from.at < Duration::from_secs(60)).count();
        assert!(within <= 60, "{within} requests in a minute");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_waits_can_be_cancelled_and_keeps_nobody_back() {
    let narrow = Narrow::new(100, None);
    let bench = bench(&narrow, "providers: {narrow: {base_url: 'http://127.0.0.1:1', limits: {requests_per_minute: 1}}}").await;
    let first = bench.submit(PLAIN).await;
    let waits = bench.submit(PLAIN).await;
    while narrow.agents().is_empty() {
        sleep(LATENCY).await;
    }
    let start = Instant::now();
    bench.runtime.cancel(&waits, "test", "not needed", true).await.unwrap();
    assert_eq!(outcome(&bench, &waits).await, Some(Outcome::Cancelled));
    assert!(start.elapsed() < Duration::from_secs(1), "a cancel waits for nobody's minute");
    assert_eq!(outcome(&bench, &first).await, Some(Outcome::Completed));
}

#[test]
fn limits_in_the_config_have_a_place() {
    for (limits, place) in
        [("concurrency: 0", "providers.x.limits.concurrency"), ("requests_per_minute: 0", "providers.x.limits.requests_per_minute")]
    {
        let text = format!("providers: {{x: {{base_url: 'http://127.0.0.1:1', limits: {{{limits}}}}}}}");
        let config = wren::config::Config::parse("config.yaml", &text).unwrap();
        let Err(registry::Error { place: found, .. }) = Providers::from_env_and_config(&|_| None, &config.providers) else {
            panic!("{limits} was taken")
        };
        assert_eq!(found, place);
    }
}

/// A gate that was full when the others came opens with time alone once it is not: nobody may sleep through that.
#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_full_gate_is_woken_when_time_opens_it() {
    let narrow = Narrow::new(100, None);
    let limits = "limits: {concurrency: 1, requests_per_minute: 60}";
    let bench = bench(&narrow, &format!("providers: {{narrow: {{base_url: 'http://127.0.0.1:1', {limits}}}}}")).await;
    let start = Instant::now();
    let mut runs = Vec::new();
    for _ in 0..12 {
        runs.push(bench.submit(PLAIN).await);
    }
    for run in &runs {
        assert_eq!(outcome(&bench, run).await, Some(Outcome::Completed));
    }
    // Sixty calls, six at once and then one in 1.1 s.
    assert!(start.elapsed() < Duration::from_secs(70), "{:?}", start.elapsed());
}
