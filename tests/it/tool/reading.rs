//! `list_files` and `read_file`, and the cap on what they may say.

use std::fs::File;
use std::io::{BufWriter, Write};

use serde_json::json;

use super::{Bench, ctx, operation_spec};

const CAP: usize = 24_000;

#[tokio::test]
async fn a_listing_shows_sizes_as_deep_as_asked() {
    let bench = Bench::new();
    bench.write("b.log", "12345");
    bench.write("a/c.txt", "1");
    bench.write("a/d/e.txt", "");
    bench.write("a/d/f/g.txt", "");
    assert_eq!(bench.ok("list_files", json!({})).await, "a/\na/c.txt  1 bytes\na/d/\nb.log  5 bytes");
    assert_eq!(bench.ok("list_files", json!({"depth": 1})).await, "a/\nb.log  5 bytes");
    assert_eq!(bench.ok("list_files", json!({"path": "a/d", "depth": 1.0})).await, "a/d/e.txt  0 bytes\na/d/f/");
    std::fs::create_dir(bench.path("empty")).unwrap();
    assert_eq!(bench.ok("list_files", json!({"path": "empty"})).await, "empty is empty.");
    let output = bench.refused("list_files", json!({"path": "b.log"})).await;
    assert!(output.contains("b.log is a file. Call read_file"), "{output}");
    let output = bench.refused("list_files", json!({"path": "none"})).await;
    assert!(output.contains("no such file or directory: none. Call list_files"), "{output}");
}

#[tokio::test]
async fn a_large_directory_is_cut_at_a_bound_and_hides_no_sibling() {
    let bench = Bench::new();
    for index in 0..700 {
        bench.write(&format!("big/{index:04}"), "");
    }
    bench.write("small/file", "");
    let output = bench.ok("list_files", json!({})).await;
    assert!(output.contains("\nsmall/\n") && output.contains("only 500 entries are shown"), "{output}");
    assert_eq!(output.lines().count(), 501);
    assert_eq!(output, bench.ok("list_files", json!({})).await);
}

#[tokio::test]
async fn a_file_is_read_whole_or_by_lines() {
    let bench = Bench::new();
    bench.write("f.txt", "one\r\ntwo\nthree\n");
    bench.write("unended.txt", "one\ntwo");
    bench.write("empty.txt", "");
    assert_eq!(bench.ok("read_file", json!({"path": "f.txt"})).await, "one\r\ntwo\nthree\n");
    assert_eq!(bench.ok("read_file", json!({"path": "f.txt", "start_line": 2})).await, "two\nthree");
    assert_eq!(bench.ok("read_file", json!({"path": "f.txt", "end_line": 2})).await, "one\ntwo");
    assert_eq!(bench.ok("read_file", json!({"path": "f.txt", "start_line": 3, "end_line": 99})).await, "three");
    assert_eq!(bench.ok("read_file", json!({"path": "unended.txt", "start_line": 2, "end_line": 2})).await, "two");
    assert_eq!(bench.ok("read_file", json!({"path": "empty.txt"})).await, "empty.txt is empty.");
    for (args, words) in [
        (json!({"path": "f.txt", "start_line": 4}), "f.txt has 3 lines; start_line 4 is past its end."),
        (json!({"path": "f.txt", "start_line": 900}), "f.txt has 3 lines; start_line 900 is past its end."),
        (json!({"path": "unended.txt", "start_line": 3}), "unended.txt has 2 lines; start_line 3 is past its end."),
        (json!({"path": "f.txt", "start_line": 3, "end_line": 2}), "end_line 2 is before start_line 3."),
        (json!({"path": "timeout.log"}), "no such file: timeout.log. Call list_files to see what exists."),
        (json!({"path": "f.txt/x"}), "no such file: f.txt/x. Call list_files to see what exists."),
        (json!({"path": "."}), ". is a directory. Call list_files with this path to see what is in it."),
        (json!({"path": ""}), " is a directory. Call list_files with this path to see what is in it."),
    ] {
        assert_eq!(bench.refused("read_file", args).await, format!("Tool \"read_file\" failed: {words}"));
    }
}

#[tokio::test]
async fn bytes_that_are_no_text_are_replaced_or_named_binary() {
    let bench = Bench::new();
    bench.write("stray.txt", b"a\xf0b\xff\nlast");
    bench.write("binary", b"\x7fELF\0\0\0");
    assert_eq!(bench.ok("read_file", json!({"path": "stray.txt"})).await, "a\u{fffd}b\u{fffd}\nlast");
    assert_eq!(bench.ok("read_file", json!({"path": "stray.txt", "end_line": 1})).await, "a\u{fffd}b\u{fffd}");
    let output = bench.refused("read_file", json!({"path": "binary"})).await;
    assert!(output.contains("is a binary file of 7 bytes"), "{output}");
}

#[tokio::test]
async fn output_over_the_cap_keeps_head_and_tail_and_says_what_is_missing() {
    let bench = Bench::new();
    bench.write("fits.txt", "é".repeat(CAP));
    let finished = bench.call("read_file", json!({"path": "fits.txt"})).await;
    assert_eq!((finished.output.chars().count(), finished.omitted_chars), (CAP, 0));
    bench.write("over.txt", format!("START{}END", "é".repeat(CAP)));
    let finished = bench.call("read_file", json!({"path": "over.txt"})).await;
    assert!(finished.ok && finished.output.chars().count() <= CAP);
    assert!(finished.output.starts_with("STARTé") && finished.output.ends_with("éEND"));
    let note = format!("{} characters left out here. Ask for a range with start_line and end_line.", finished.omitted_chars);
    assert!(finished.output.contains(&note), "{note}");
    let kept = finished.output.chars().filter(|char| *char == 'é').count();
    assert_eq!(kept + usize::try_from(finished.omitted_chars).unwrap(), CAP);
}

#[tokio::test]
async fn a_file_larger_than_is_held_is_read_in_parts() {
    let bench = Bench::new();
    let mut file = BufWriter::new(File::create(bench.path("big.log")).unwrap());
    for line in 1..=500_000 {
        writeln!(file, "line {line:07} {}", "x".repeat(86)).unwrap();
    }
    file.into_inner().unwrap();
    let finished = bench.call("read_file", json!({"path": "big.log"})).await;
    assert!(finished.ok && finished.output.chars().count() <= CAP && finished.omitted_chars > 8_000_000, "{}", finished.omitted_chars);
    assert!(finished.output.contains("the file has 50000000 bytes") && finished.output.contains("give start_line"));
    let output = bench.ok("read_file", json!({"path": "big.log", "start_line": 499_999})).await;
    assert!(output.starts_with("line 0499999 ") && output.lines().count() == 2, "{output}");
    let output = bench.refused("read_file", json!({"path": "big.log", "start_line": 500_001})).await;
    assert!(output.contains("has 500000 lines"), "{output}");
    let output = bench.ok("search_files", json!({"pattern": "line 0400000 "})).await;
    assert!(output.starts_with("big.log:400000: line 0400000 "), "{output}");
}

#[tokio::test]
async fn one_huge_line_is_bounded_and_three_at_once_too() {
    let bench = Bench::new();
    bench.write("line.json", vec![b'x'; 50_000_000]);
    let calls = (0..3).map(|_| bench.call("read_file", json!({"path": "line.json", "end_line": 1})));
    for finished in futures_util::future::join_all(calls).await {
        assert!(finished.ok && finished.output.chars().count() <= CAP && finished.omitted_chars > 8_000_000);
        assert!(finished.output.contains("ask for fewer lines"));
    }
    let output = bench.ok("search_files", json!({"pattern": "x"})).await;
    assert!(output.contains("line.json was not searched to its end: it has a line of more than"), "{output}");
}

#[tokio::test]
async fn a_sparse_file_of_twenty_gigabytes_is_no_work() {
    let bench = Bench::new();
    File::create(bench.path("sparse")).unwrap().set_len(20 << 30).unwrap();
    let output = bench.refused("read_file", json!({"path": "sparse"})).await;
    assert!(output.contains("is a binary file of 21474836480 bytes"), "{output}");
    bench.refused("read_file", json!({"path": "sparse", "start_line": 1_000_000})).await;
    assert_eq!(bench.ok("list_files", json!({})).await, "sparse  21474836480 bytes");
    assert!(bench.ok("search_files", json!({"pattern": "x"})).await.starts_with("no line of 1 files matches"));
}

#[tokio::test]
async fn a_cancelled_call_answers_that_it_was_cancelled() {
    let bench = Bench::new();
    bench.write("f.txt", "text");
    for (operation, args) in
        [("list_files", json!({})), ("read_file", json!({"path": "f.txt"})), ("search_files", json!({"pattern": "text"}))]
    {
        let ctx = ctx();
        ctx.token.cancel();
        let finished = bench.registry.run(&operation_spec(operation), args, ctx).await;
        assert_eq!((finished.ok, finished.output), (false, format!("Tool {operation:?} failed: cancelled")));
    }
}
