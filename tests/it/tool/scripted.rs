//! The tool that plays a script.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, timeout};
use wren::kernel::{Effect, ScriptedTool, ToolSource, ToolSpec};
use wren::tool::{Finished, Registry};

use super::{Bench, ctx, operation_spec, scanned, watched_ctx};

fn script() -> ScriptedTool {
    ScriptedTool {
        takes_ms: 1_000,
        progress_every_ms: 300,
        total: 1_200,
        unit: "files".to_owned(),
        effect: Effect::Idempotent,
        result: "nothing found".to_owned(),
        fails: None,
        panics: None,
        log: Some("scans.log".to_owned()),
    }
}

fn spec() -> ToolSpec {
    ToolSpec { name: "scan_archive".to_owned(), source: "scan_archive".to_owned(), ..operation_spec("list_files") }
}

fn bench(script: ScriptedTool) -> Bench {
    Bench::with(&[("scan_archive", ToolSource::Scripted(script))])
}

async fn play(script: ScriptedTool) -> (Bench, Finished) {
    let bench = bench(script);
    let finished = bench.registry.run(&spec(), json!({}), ctx()).await;
    (bench, finished)
}

fn log_of(bench: &Bench) -> String {
    fs::read_to_string(bench.outside("data/tool-logs/scans.log")).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn it_takes_its_time_and_tells_its_progress() {
    let bench = bench(script());
    let (ctx, seen) = watched_ctx();
    let start = Instant::now();
    let finished = bench.registry.run(&spec(), json!({}), ctx).await;
    // Paused time: what has passed is what the tool slept, not what the machine needed.
    assert_eq!(start.elapsed().as_millis(), 1_000);
    assert_eq!(finished, Finished { ok: true, output: "nothing found".to_owned(), omitted_chars: 0 });
    assert_eq!(*seen.lock().unwrap(), [scanned(360, 1_200), scanned(720, 1_200), scanned(1_080, 1_200), scanned(1_200, 1_200)]);
}

#[tokio::test(start_paused = true)]
async fn each_execution_is_one_line_of_the_log() {
    let bench = bench(script());
    for _ in 0..2 {
        assert!(bench.registry.run(&spec(), json!({}), ctx()).await.ok);
    }
    assert_eq!(log_of(&bench), "run-1 t0001c000 key-1\n".repeat(2));
}

#[tokio::test(start_paused = true)]
async fn parallel_executions_lose_no_line() {
    let bench = bench(script());
    let calls = (0..20).map(|_| bench.registry.run(&spec(), json!({}), ctx()));
    assert!(futures_util::future::join_all(calls).await.iter().all(|finished| finished.ok));
    assert_eq!(log_of(&bench), "run-1 t0001c000 key-1\n".repeat(20));
}

#[tokio::test(start_paused = true)]
async fn a_cancel_ends_it_at_once_and_leaves_no_line() {
    let bench = bench(ScriptedTool { takes_ms: 3_600_000, progress_every_ms: 0, ..script() });
    let ctx = ctx();
    let token = ctx.token.clone();
    let start = Instant::now();
    let work = bench.registry.run(&spec(), json!({}), ctx);
    tokio::pin!(work);
    assert!(timeout(Duration::from_millis(700), &mut work).await.is_err(), "it ended before its time");
    token.cancel();
    let finished = work.await;
    assert_eq!(start.elapsed().as_millis(), 700);
    assert_eq!((finished.ok, finished.output.as_str()), (false, "Tool \"scan_archive\" failed: cancelled"));
    assert_eq!(log_of(&bench), "");
}

#[tokio::test(start_paused = true)]
async fn one_that_takes_no_time_still_heeds_a_cancel() {
    let bench = bench(ScriptedTool { takes_ms: 0, ..script() });
    let ctx = ctx();
    ctx.token.cancel();
    let finished = bench.registry.run(&spec(), json!({}), ctx).await;
    assert_eq!(finished.output, "Tool \"scan_archive\" failed: cancelled");
    assert_eq!(log_of(&bench), "");
}

#[tokio::test(start_paused = true)]
async fn a_failure_and_a_panic_become_words_and_the_next_call_goes_on() {
    let (bench, finished) = play(ScriptedTool { fails: Some("the archive is locked".to_owned()), ..script() }).await;
    assert_eq!((finished.ok, finished.output.as_str()), (false, "Tool \"scan_archive\" failed: the archive is locked"));
    assert_eq!(log_of(&bench).lines().count(), 1);
    let (bench, finished) = play(ScriptedTool { panics: Some("index out of bounds".to_owned()), ..script() }).await;
    assert_eq!((finished.ok, finished.output.as_str()), (false, "Tool \"scan_archive\" failed: it panicked: index out of bounds"));
    assert_eq!(log_of(&bench).lines().count(), 1);
    assert_eq!(bench.ok("list_files", json!({})).await, ". is empty.");
    let again = bench.registry.run(&spec(), json!({}), ctx()).await;
    assert_eq!(again, finished);
}

#[tokio::test(start_paused = true)]
async fn what_it_says_is_capped_like_any_output() {
    let (_, finished) = play(ScriptedTool { result: "é".repeat(50_000), ..script() }).await;
    assert!(finished.ok && finished.output.chars().count() <= 24_000 && finished.omitted_chars > 26_000);
    let (_, finished) = play(ScriptedTool { fails: Some("é".repeat(50_000)), ..script() }).await;
    assert!(!finished.ok && finished.output.starts_with("Tool \"scan_archive\" failed: é"));
    assert!(finished.output.chars().count() <= 24_000);
}

#[tokio::test(start_paused = true)]
async fn extreme_figures_do_not_overflow() {
    let bench = bench(ScriptedTool { total: u64::MAX, takes_ms: 10_000, progress_every_ms: 5_000, ..script() });
    let (ctx, seen) = watched_ctx();
    assert!(bench.registry.run(&spec(), json!({}), ctx).await.ok);
    assert_eq!(*seen.lock().unwrap(), [scanned(u64::MAX / 2, u64::MAX), scanned(u64::MAX, u64::MAX)]);
}

#[test]
fn a_log_is_a_plain_file_name() {
    for name in ["", ".", "..", "../x", "a/b", "/tmp/x", "x/", "a\0b"] {
        let source = ToolSource::Scripted(ScriptedTool { log: Some(name.to_owned()), ..script() });
        let error = Registry::open(&[("scan_archive".to_owned(), source)], Path::new("."), Path::new(".")).err();
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(error.starts_with("tool \"scan_archive\": ") && error.contains("plain file name"), "{name:?}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_that_cannot_be_written_fails_the_call() {
    let bench = bench(script());
    fs::write(bench.outside("data"), "a file where the directory should be").unwrap();
    let finished = bench.registry.run(&spec(), json!({}), ctx()).await;
    assert!(!finished.ok && finished.output.contains("its log cannot be written"), "{}", finished.output);
}
