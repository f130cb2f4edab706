//! What no peer is measured at: a large tree, many runs at rest, restarts, kills and a soak.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use serde_json::{Value, json};
use wren::wire::v1;

use crate::Result;
use crate::daemon::{Daemon, Plan, ms};
use crate::door::Door;
use crate::stub::Stub;

/// Three levels of ten: 1,111 runs, of which 1,000 ask a provider that takes ten seconds.
const LARGE: &str = "wren: v1
name: large
models:
  s:
    scripted:
      price: {input_usd_per_mtok: 0.1, output_usd_per_mtok: 0.2}
      replies:
        - {agent: lead, calls: [{tool: one}, {tool: one}, {tool: one}, {tool: one}, {tool: one}, {tool: one}, {tool: one}, {tool: one}, {tool: one}, {tool: one}]}
        - {agent: high, calls: [{tool: two}, {tool: two}, {tool: two}, {tool: two}, {tool: two}, {tool: two}, {tool: two}, {tool: two}, {tool: two}, {tool: two}]}
        - {agent: low, calls: [{tool: three}, {tool: three}, {tool: three}, {tool: three}, {tool: three}, {tool: three}, {tool: three}, {tool: three}, {tool: three}, {tool: three}]}
  w: {use: openai/slow-10000, max_output: 64, price: {input_usd_per_mtok: 0.1, output_usd_per_mtok: 0.2}}
tools:
  one: {description: Asks., subagent: high, prompt: Go., limits: {max_turns: 3}}
  two: {description: Asks., subagent: low, prompt: Go., limits: {max_turns: 3}}
  three: {description: Asks., subagent: worker, prompt: Go., limits: {max_turns: 3}}
agents:
  lead: {model: s, instructions: Ask., tools: [one]}
  high: {model: s, instructions: Ask., tools: [two]}
  low: {model: s, instructions: Ask., tools: [three]}
  worker: {model: w, instructions: Answer.}
agent: lead
prompt: Go.
limits: {max_turns: 10, budget_usd: 100, max_tokens: 100000000, timeout: 1h, max_depth: 3, max_runs: 2000}
";
const LARGE_RUNS: usize = 1_111;
/// Model calls that a daemon has under way at once, unless its config says otherwise.
const IN_FLIGHT: i64 = 256;

fn plan(model: &str) -> Plan<'_> {
    Plan { model, child_model: "", tool_takes: "" }
}

/// cancel1000: a cancel of 1,111 runs, from its request to its receipt.
pub async fn cancel(stub: &Stub) -> Result<Value> {
    let daemon = Daemon::start(stub).await?;
    stub.reset()?;
    let mut request = daemon.request(&plan("plan-1"));
    request.bundle = Some(v1::Bundle {
        entry_path: "large.yaml".to_owned(),
        files: vec![v1::SourceFile { path: "large.yaml".to_owned(), content: LARGE.as_bytes().to_vec() }],
    });
    let began = Instant::now();
    let run = daemon.submit(request).await?;
    stub.until_in_flight(IN_FLIGHT)?;
    while daemon.runs_of(&run).await? < LARGE_RUNS {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let spawned_ms = ms(began);
    let began = Instant::now();
    let request = v1::CancelRunRequest { run_id: run, reason: "bench".to_owned(), wait: true };
    let receipt = daemon.runs.clone().cancel_run(request).await?.into_inner();
    let stop_ms = ms(began);
    let requests = stub.stats()?["requests"].clone();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let later = stub.stats()?;
    let cancelled = receipt.receipts.iter().filter(|run| run.outcome() == v1::Outcome::Cancelled).count();
    Ok(json!({
        "spawned_ms": spawned_ms, "stop_ms": stop_ms, "quiescent_ms": receipt.quiescent_ms, "receipts": receipt.receipts.len(), "cancelled": cancelled,
        "requests_after_reply": later["requests"].as_i64().unwrap_or(-1) - requests.as_i64().unwrap_or(0), "in_flight_after": later["in_flight"],
        "after": daemon.holdings()?
    }))
}

/// start10000: from the start to serving, with 10,000 ended and 1,000 unfinished runs in the store.
pub async fn start(stub: &Stub) -> Result<Value> {
    let mut daemon = Daemon::start(stub).await?;
    daemon.open_lines(100).await?;
    let one = plan("plan-1");
    for _ in 0..100 {
        try_join_all((0..100).map(|which| daemon.complete_on(which, &one))).await?;
    }
    for _ in 0..1_000 {
        daemon.submit(daemon.request(&plan("slow-60000"))).await?;
    }
    daemon.kill()?;
    let began = Instant::now();
    daemon.again().await?;
    let serving_ms = ms(began);
    let cpu_s = daemon.cpu_s()?;
    Ok(json!({"serving_ms": serving_ms, "cpu_s": cpu_s, "after": daemon.holdings()?}))
}

/// suspended10000: what 10,000 suspended runs hold in memory.
pub async fn suspended(stub: &Stub) -> Result<Value> {
    let mut daemon = Daemon::start(stub).await?;
    daemon.open_lines(100).await?;
    daemon.complete(&plan("plan-2")).await?;
    let before = daemon.holdings()?;
    for _ in 0..100 {
        try_join_all((0..100).map(|which| daemon.suspend_on(which))).await?;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after = daemon.holdings()?;
    let grown_mb = after["rss_mb"].as_f64().unwrap_or(0.0) - before["rss_mb"].as_f64().unwrap_or(0.0);
    Ok(json!({"before": before, "after": after, "kib_a_run": grown_mb * 1024.0 / 10_000.0}))
}

/// soak: 300,000 turns, fifty runs at once; what is held before, in the middle and after.
pub async fn soak(stub: &Stub) -> Result<Value> {
    let mut daemon = Daemon::start(stub).await?;
    daemon.open_lines(50).await?;
    let fifty = plan("plan-50");
    try_join_all((0..50).map(|which| daemon.complete_on(which, &fifty))).await?;
    tokio::time::sleep(Duration::from_secs(12)).await;
    let (before, began, mut held) = (daemon.holdings()?, Instant::now(), Vec::new());
    for round in 0..119 {
        try_join_all((0..50).map(|which| daemon.complete_on(which, &fifty))).await?;
        if round % 20 == 19 {
            held.push(json!({"holdings": daemon.holdings()?, "log_bytes": daemon.log_bytes()}));
        }
    }
    let wall_s = began.elapsed().as_secs_f64();
    // Threads of the blocking pool go after ten seconds without work.
    tokio::time::sleep(Duration::from_secs(12)).await;
    Ok(
        json!({"turns": 300_000, "wall_s": wall_s, "before": before, "within": held, "after": daemon.holdings()?, "log_bytes": daemon.log_bytes()}),
    )
}

/// kills: 200 times kill -9 at a random moment over a parent with 20 children, each compared with the quiet run.
pub async fn kills(stub: &Stub) -> Result<Value> {
    let mut daemon = Daemon::start(stub).await?;
    let fan = Plan { model: "fan-20-3+lat-5", child_model: "plan-3+lat-5", tool_takes: "" };
    let began = Instant::now();
    let run = daemon.submit(daemon.request(&fan)).await?;
    daemon.finish(&run).await?;
    let quiet_ms = ms(began);
    let quiet = daemon.told(&run).await?;
    let (mut killed_running, mut written_off, mut different) = (0, 0, Vec::new());
    for round in 0..200 {
        let run = daemon.submit(daemon.request(&fan)).await?;
        // A moment from just after the submission to just past the end.
        let share = (RandomState::new().hash_one(round) % 1_000) as f64 / 1_000.0;
        tokio::time::sleep(Duration::from_secs_f64(quiet_ms * 1.1 * share / 1e3)).await;
        daemon.kill()?;
        daemon.again().await?;
        daemon.finish(&run).await?;
        let told = daemon.told(&run).await?;
        killed_running += i32::from(told.crashes > 0);
        written_off += i32::from(told.written_off_usd_nanos > 0);
        if !told.equals(&quiet) {
            different.push(run);
        }
    }
    Ok(
        json!({"kills": 200, "in_the_middle": killed_running, "with_write_off": written_off, "different": different, "quiet": format!("{quiet:?}")}),
    )
}

/// limiter: 200 runs of 5 turns before a provider that takes ten requests at once, 50 ms each, and refuses the others.
pub async fn limiter(stub: &Stub) -> Result<Value> {
    const RUNS: usize = 200;
    const AT_ONCE: usize = 10;
    let door = Door::open(stub, AT_ONCE)?;
    let mut daemon = Daemon::start(&door.stub).await?;
    daemon.open_lines(RUNS).await?;
    let began = Instant::now();
    let each = plan("plan-5+lat-50");
    let finished = try_join_all((0..RUNS).map(|which| daemon.complete_on(which, &each))).await?;
    let wall_ms = ms(began);
    let knocks = door.knocks();
    let first = knocks.first().ok_or("nobody knocked")?.at;
    let (early, late): (Vec<_>, Vec<_>) = knocks.iter().partition(|knock| knock.at.duration_since(first) < Duration::from_secs(1));
    let refused = |knocks: &[&crate::door::Knock]| knocks.iter().filter(|knock| knock.refused).count();
    let gaps = finished.iter().flat_map(|run| run.turns_at.windows(2).map(|pair| (pair[1] - pair[0]) * 1e3));
    Ok(json!({
        "runs": RUNS, "failed": 0, "wall_ms": wall_ms, "ideal_ms": RUNS * 5 * 50 / AT_ONCE,
        "requests_first_second": early.len(), "refused_first_second": refused(&early),
        "requests_later": late.len(), "refused_later": refused(&late),
        "longest_between_turns_ms": gaps.fold(0.0, f64::max), "round_ms": RUNS * 50 / AT_ONCE,
    }))
}

/// context: a 300-turn run whose conversation is kept within 16,000 tokens, and the same one without a window.
pub async fn context(stub: &Stub) -> Result<Value> {
    const WINDOW: i64 = 16_000;
    const TURNS: usize = 300;
    let daemon = Daemon::start(stub).await?;
    let mut line = json!({"window_tokens": WINDOW, "turns": TURNS});
    for (key, window) in [("compacted", format!("window_tokens: {WINDOW}")), ("whole", String::new())] {
        let mut request = daemon.request(&plan("plan-1"));
        let content = reading(TURNS, &window).into_bytes();
        request.bundle =
            Some(v1::Bundle { entry_path: "read.yaml".to_owned(), files: vec![v1::SourceFile { path: "read.yaml".to_owned(), content }] });
        let began = Instant::now();
        let run = daemon.submit(request).await?;
        let finished = daemon.finish(&run).await?;
        if finished.outcome != v1::Outcome::Completed || finished.turns_at.len() != TURNS {
            return Err(format!("{key}: {:?} after {} turns", finished.outcome, finished.turns_at.len()).into());
        }
        let turns: Vec<i64> = finished.asked.iter().filter(|asked| !asked.is_for_notes).map(|asked| asked.input_tokens).collect();
        let curve: Vec<Value> = [1, 25, 50, 75, 100, 150, 200, 250, 300].map(|turn| json!([turn, turns[turn - 1]])).into();
        let most = finished.asked.iter().map(|asked| asked.input_tokens + asked.max_output).max();
        line[key] = json!({
            "input_tokens_at_turn": curve, "input_tokens": finished.asked.iter().map(|asked| asked.input_tokens).sum::<i64>(),
            "most_input_and_output": most, "over_the_window": finished.asked.iter().filter(|asked| asked.input_tokens + asked.max_output > WINDOW).count(),
            "notes": finished.asked.len() - turns.len(), "wall_ms": ms(began),
        });
    }
    Ok(line)
}

/// An agent that says something and reads some 400 tokens in every turn.
fn reading(turns: usize, window: &str) -> String {
    let result = "The heron stands in the reeds at the edge of the water and waits for a fish to come by. ".repeat(18);
    let said = "I go on with the next page, for the answer must be somewhere in this book. ".repeat(4);
    format!(
        "wren: v1
name: reading
models:
  m:
    {window}
    max_output: 1000
    scripted:
      price: {{input_usd_per_mtok: 0.1, output_usd_per_mtok: 0.2}}
      replies:
        - {{agent: lead, turn: {turns}, text: All is read.}}
        - {{agent: lead, text: '{said}', calls: [{{tool: page}}]}}
tools:
  page: {{description: Reads the next page., scripted: {{effect: read_only, result: '{result}'}}}}
agents:
  lead: {{model: m, instructions: Read the book., tools: [page]}}
agent: lead
prompt: Find the heron.
limits: {{max_turns: 1000, budget_usd: 100, max_tokens: 100000000, timeout: 1h}}
"
    )
}
