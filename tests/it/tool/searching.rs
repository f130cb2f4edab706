//! `search_files`.

use std::sync::Arc;

use serde_json::json;

use super::{Bench, ctx, operation_spec, scanned, watched_ctx};

#[tokio::test]
async fn matches_are_given_as_path_line_and_text() {
    let bench = Bench::new();
    bench.write("errors.log", "ok\nERROR one\r\nok\nERROR two");
    bench.write("deep/er/access.log", "GET /error\n");
    bench.write("notes.txt", "ERROR is a word\n");
    let search = async |args| bench.ok("search_files", args).await;
    assert_eq!(
        search(json!({"pattern": "ERROR \\w+"})).await,
        "errors.log:2: ERROR one\nerrors.log:4: ERROR two\nnotes.txt:1: ERROR is a word"
    );
    assert_eq!(search(json!({"pattern": "(?i)error$", "glob": "*.log"})).await, "deep/er/access.log:1: GET /error");
    assert_eq!(search(json!({"pattern": "GET", "path": "deep"})).await, "deep/er/access.log:1: GET /error");
    assert_eq!(search(json!({"pattern": "two", "path": "errors.log"})).await, "errors.log:4: ERROR two");
    assert_eq!(search(json!({"pattern": "absent"})).await, "no line of 3 files matches \"absent\".");
    let output = search(json!({"pattern": "ERROR", "max_results": 2})).await;
    assert!(output.starts_with("errors.log:2: ERROR one\nerrors.log:4: ERROR two\n[stopped at 2 results"), "{output}");
}

#[tokio::test]
async fn what_is_wrong_with_a_search_is_said() {
    let bench = Bench::new();
    bench.write("a.txt", "text");
    for (args, words) in [
        (json!({"pattern": "("}), "not a valid regular expression"),
        (json!({"pattern": "(\\w{500}){500}"}), "not a valid regular expression"),
        (json!({"pattern": "x", "glob": "{a"}), "the glob is not valid"),
        (json!({"pattern": "x", "path": "none"}), "no such file or directory: none"),
    ] {
        let output = bench.refused("search_files", args).await;
        assert!(output.contains(words), "{output}");
    }
}

#[tokio::test]
async fn long_lines_are_cut_visibly_and_stray_bytes_replaced() {
    let bench = Bench::new();
    bench.write("long.txt", format!("hit {}\n", "x".repeat(10_000)));
    bench.write("stray.txt", b"hit \xff end\n");
    let output = bench.ok("search_files", json!({"pattern": "hit"})).await;
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines[0].ends_with("x…") && lines[0].chars().count() < 420, "{output}");
    assert_eq!(lines[1], "stray.txt:1: hit \u{fffd} end");
}

#[tokio::test]
async fn ten_thousand_long_matches_stay_under_the_cap() {
    let bench = Bench::new();
    bench.write("many.txt", format!("hit {}\n", "x".repeat(600)).repeat(10_000));
    let finished = bench.call("search_files", json!({"pattern": "hit", "max_results": 1_000})).await;
    assert!(finished.ok && finished.output.chars().count() <= 24_000 && finished.omitted_chars > 0);
    assert!(finished.output.contains("Use a narrower pattern, a glob"));
}

#[tokio::test]
async fn progress_is_told_every_two_hundred_files_and_stops_where_the_search_stops() {
    let bench = Bench::new();
    for index in 0..450 {
        bench.write(&format!("{index:03}.txt"), "text");
    }
    let (ctx, seen) = watched_ctx();
    bench.registry.run(&operation_spec("search_files"), json!({"pattern": "absent"}), ctx).await;
    assert_eq!(*seen.lock().unwrap(), [scanned(200, 450), scanned(400, 450), scanned(450, 450)]);
    let (ctx, seen) = watched_ctx();
    bench.registry.run(&operation_spec("search_files"), json!({"pattern": "text", "max_results": 3}), ctx).await;
    assert_eq!(*seen.lock().unwrap(), [scanned(3, 450)]);
}

#[tokio::test]
async fn a_cancel_in_the_middle_ends_the_search_there() {
    let bench = Bench::new();
    for index in 0..450 {
        bench.write(&format!("{index:03}.txt"), "text");
    }
    let (mut ctx, seen) = (ctx(), Arc::new(std::sync::atomic::AtomicU64::new(0)));
    let (token, last) = (ctx.token.clone(), seen.clone());
    // The first progress is the moment of the cancel: no sleep, and the search is surely under way.
    ctx.progress = Arc::new(move |progress| {
        last.store(progress.done, std::sync::atomic::Ordering::Relaxed);
        token.cancel();
    });
    let finished = bench.registry.run(&operation_spec("search_files"), json!({"pattern": "absent"}), ctx).await;
    assert_eq!((finished.ok, finished.output.as_str()), (false, "Tool \"search_files\" failed: cancelled"));
    assert_eq!(seen.load(std::sync::atomic::Ordering::Relaxed), 200);
}
