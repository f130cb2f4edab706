//! Nothing outside the workspace is ever read, and nothing inside it can hold a call for ever.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode};
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

/// A directory is swapped for a link to outside, over and over, while every operation goes through it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_is_swapped_in_during_a_call_leads_nowhere() {
    let bench = bench_with_a_secret();
    bench.write("swap/secret.txt", "harmless");
    symlink(bench.outside("out"), bench.path("evil")).unwrap();
    let (swap, evil) = (bench.path("swap"), bench.path("evil"));
    let done = AtomicBool::new(false);
    let (mut read, mut calls) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2_000 {
                rustix::fs::renameat_with(CWD, &swap, CWD, &evil, rustix::fs::RenameFlags::EXCHANGE).unwrap();
            }
            done.store(true, Ordering::Release);
        });
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                while !done.load(Ordering::Acquire) || calls == 0 {
                    for (operation, args) in every_operation("swap")
                        .into_iter()
                        .chain([("read_file", json!({"path": "swap/secret.txt"})), ("search_files", json!({"pattern": "."}))])
                    {
                        let finished = bench.call(operation, args).await;
                        assert!(!finished.output.contains(SECRET), "{operation}: {}", finished.output);
                        assert!(!finished.output.contains(&format!("{} bytes", SECRET.len())), "{operation}: {}", finished.output);
                        read += u32::from(finished.output.contains("harmless"));
                        calls += 1;
                    }
                }
            });
        });
    });
    println!("{calls} calls in 2000 swaps, {read} of them read what is inside");
    // An even number of swaps: the directory is back, and nothing was broken for good.
    assert_eq!(bench.ok("read_file", json!({"path": "swap/secret.txt"})).await, "harmless");
}
