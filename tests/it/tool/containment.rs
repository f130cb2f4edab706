//! Nothing outside the workspace is ever read, and nothing inside it can hold a call for ever.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::fs::{CWD, FileType, Mode, RenameFlags};
use serde_json::{Value, json};

use super::Bench;

const SECRET: &str = "the secret outside";

fn bench_with_a_secret() -> Bench {
    let bench = Bench::new();
    fs::create_dir(bench.outside("out")).unwrap();
    fs::write(bench.outside("out/secret.txt"), SECRET).unwrap();
    bench.write("a/inside.txt", "inside");
    bench
}

/// The same path, given to every operation that takes one.
fn every_operation(path: &str) -> [(&'static str, Value); 3] {
    [("read_file", json!({"path": path})), ("list_files", json!({"path": path})), ("search_files", json!({"path": path, "pattern": "."}))]
}

#[tokio::test]
async fn paths_that_lead_outside_are_refused_in_words_and_the_next_call_goes_on() {
    let bench = bench_with_a_secret();
    let absolute = bench.outside("out/secret.txt").to_str().unwrap().to_owned();
    for path in
        ["..", "../out/secret.txt", "a/../../out/secret.txt", "a/..", "/etc/passwd", &absolute, "/", "/proc/self/environ", "/dev/zero"]
    {
        for (operation, args) in every_operation(path) {
            let output = bench.refused(operation, args).await;
            assert!(output.starts_with(&format!("Tool {operation:?} failed: ")), "{output}");
            assert!(output.contains("leads outside the workspace") && output.contains("list_files"), "{path}: {output}");
        }
    }
    assert_eq!(bench.ok("read_file", json!({"path": "./a//inside.txt"})).await, "inside");
}

#[tokio::test]
async fn malformed_paths_are_refused_in_words() {
    let bench = bench_with_a_secret();
    let (long, deep) = ("x".repeat(5_000), ["d"; 65].join("/"));
    for path in ["a\0b", long.as_str(), deep.as_str()] {
        for (operation, args) in every_operation(path) {
            let output = bench.refused(operation, args).await;
            assert!(output.contains("bad path: at most 4096 bytes"), "{output}");
        }
    }
    // Nothing decodes a path: an escape is a part of a name like any other.
    let output = bench.refused("read_file", json!({"path": "..%2fout%2fsecret.txt"})).await;
    assert!(output.contains("no such file: ..%2fout%2fsecret.txt. Call list_files"), "{output}");
    // A part that the file system itself finds too long.
    bench.refused("read_file", json!({"path": "y".repeat(300)})).await;
}

#[tokio::test]
async fn links_to_outside_are_refused_and_links_inside_are_followed() {
    let bench = bench_with_a_secret();
    let out = bench.outside("out");
    symlink(&out, bench.path("absolute")).unwrap();
    symlink("../out", bench.path("relative")).unwrap();
    symlink(out.join("secret.txt"), bench.path("file")).unwrap();
    symlink("/proc/self/root", bench.path("magic")).unwrap();
    symlink("/proc/self/cwd", bench.path("cwd")).unwrap();
    symlink("/dev/zero", bench.path("zero")).unwrap();
    symlink("loop", bench.path("loop")).unwrap();
    symlink("a/inside.txt", bench.path("fine")).unwrap();
    for path in ["absolute/secret.txt", "relative/secret.txt", "file", "magic/etc/passwd", "cwd/Cargo.toml", "zero"] {
        let output = bench.refused("read_file", json!({"path": path})).await;
        assert!(output.contains("leads outside the workspace"), "{path}: {output}");
    }
    for path in ["absolute", "relative", "magic", "cwd"] {
        let output = bench.refused("list_files", json!({"path": path})).await;
        assert!(output.contains("leads outside the workspace"), "{path}: {output}");
    }
    bench.refused("read_file", json!({"path": "loop"})).await;
    assert_eq!(bench.ok("read_file", json!({"path": "fine"})).await, "inside");
    assert_eq!(bench.ok("list_files", json!({})).await, "a/\na/inside.txt  6 bytes");
    assert_eq!(bench.ok("search_files", json!({"pattern": "secret|inside"})).await, "a/inside.txt:1: inside");
}

#[tokio::test]
async fn a_hard_link_is_refused() {
    let bench = bench_with_a_secret();
    fs::hard_link(bench.outside("out/secret.txt"), bench.path("hard.txt")).unwrap();
    let output = bench.refused("read_file", json!({"path": "hard.txt"})).await;
    assert!(output.contains("hard link") && !output.contains(SECRET), "{output}");
    let output = bench.ok("search_files", json!({"pattern": "secret"})).await;
    assert!(output.contains("hard.txt has more than one name") && !output.contains(SECRET), "{output}");
}

#[tokio::test]
async fn special_files_hold_no_call() {
    let bench = bench_with_a_secret();
    rustix::fs::mknodat(CWD, bench.path("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(bench.path("socket")).unwrap();
    for path in ["pipe", "socket"] {
        for (operation, args) in every_operation(path) {
            let output = bench.refused(operation, args).await;
            assert!(output.contains(path), "{output}");
        }
    }
    let output = bench.refused("read_file", json!({"path": "pipe"})).await;
    assert!(output.contains("is not a regular file"), "{output}");
    assert_eq!(bench.ok("search_files", json!({"pattern": "inside"})).await, "a/inside.txt:1: inside");
}

/// A directory is swapped for a link to outside, over and over, while every operation goes through it: two thousand calls
/// at least, and two thousand swaps at least.
#[tokio::test]
async fn a_link_that_is_swapped_in_during_a_call_leads_nowhere() {
    let bench = bench_with_a_secret();
    bench.write("swap/secret.txt", "harmless");
    symlink(bench.outside("out"), bench.path("evil")).unwrap();
    let (swap, evil) = (bench.path("swap"), bench.path("evil"));
    let (enough, swaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let swapper = std::thread::spawn({
        let (enough, swaps) = (enough.clone(), swaps.clone());
        move || {
            let exchange = || rustix::fs::renameat_with(CWD, &swap, CWD, &evil, RenameFlags::EXCHANGE).unwrap();
            while !enough.load(Ordering::Acquire) {
                // In pairs, so that the directory is back at the end.
                exchange();
                exchange();
                swaps.fetch_add(2, Ordering::AcqRel);
            }
        }
    });
    let (mut calls, mut inside, mut refused) = (0, 0, 0);
    while calls < 2_000 || swaps.load(Ordering::Acquire) < 2_000 {
        let read = || ("read_file", json!({"path": "swap/secret.txt"}));
        let others = every_operation("swap").into_iter().chain([("search_files", json!({"pattern": "."}))]);
        // Mostly the reads, whose window is the shortest.
        for (operation, args) in others.chain((0..16).map(|_| read())) {
            let output = bench.call(operation, args).await.output;
            assert!(!output.contains(SECRET), "{operation}: {output}");
            assert!(!output.contains(&format!("{} bytes", SECRET.len())), "{operation}: {output}");
            inside += u32::from(output.contains("harmless"));
            refused += u32::from(output.contains("leads outside the workspace"));
            calls += 1;
        }
    }
    enough.store(true, Ordering::Release);
    swapper.join().unwrap();
    println!("{calls} calls, {} swaps: {inside} read what is inside, {refused} were refused", swaps.load(Ordering::Acquire));
    assert_eq!(bench.ok("read_file", json!({"path": "swap/secret.txt"})).await, "harmless");
}
