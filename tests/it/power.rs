//! The power goes: whatever was not synced is forgotten. What was answered must be there all the same.
//!
//! A small library between `wrend` and the disk keeps what each sync made certain; after a kill the data directory is
//! put back to that. With `PRAGMA synchronous=NORMAL` each of these tests fails: its run is gone.

use crate::support::{Daemon, int, preloaded};

/// A run that waits for its model for longer than any test lasts.
const WAITING: &str = r#"
wren: v1
name: waiting
models:
  script: {scripted: {latency: 1h, price: {input_usd_per_mtok: 1.00, output_usd_per_mtok: 2.00}, replies: [{text: Too late.}]}}
agents:
  lead: {model: script, instructions: Wait.}
agent: lead
prompt: Go.
"#;

/// A daemon on a disk that loses what was not synced.
struct Fragile {
    daemon: Daemon,
    kept: tempfile::TempDir,
}

impl Fragile {
    fn start() -> Self {
        let library = preloaded("tests/it/power/synced.c");
        let kept = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::start();
        daemon.kill();
        std::fs::remove_dir_all(daemon.data_dir()).unwrap();
        daemon.set("LD_PRELOAD", library.to_str().unwrap());
        let data_dir = daemon.data_dir();
        daemon.set("SYNCED_FROM", data_dir.to_str().unwrap());
        daemon.set("SYNCED_TO", kept.path().to_str().unwrap());
        daemon.serve();
        Self { daemon, kept }
    }

    /// The power goes and comes back.
    fn cut(&mut self) {
        self.daemon.kill();
        let data = self.daemon.data_dir();
        for entry in std::fs::read_dir(&data).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
        for entry in std::fs::read_dir(self.kept.path()).unwrap().map(Result::unwrap) {
            std::fs::copy(entry.path(), data.join(entry.file_name())).unwrap();
        }
        self.daemon.serve();
    }
}

#[test]
fn a_submission_that_was_answered_outlives_the_power() {
    let mut fragile = Fragile::start();
    let waiting = fragile.daemon.workflow("waiting.yaml", WAITING);
    for _ in 0..3 {
        let run = fragile.daemon.submit(&["-f", &waiting]);
        fragile.cut();
        let found = fragile.daemon.json(0, &["get", &run]);
        assert!(matches!(found["state"].as_str(), Some("RUN_STATE_RUNNING" | "RUN_STATE_PENDING")), "{found}");
    }
}

#[test]
fn a_cancel_that_was_answered_outlives_the_power() {
    let mut fragile = Fragile::start();
    let waiting = fragile.daemon.workflow("waiting.yaml", WAITING);
    let run = fragile.daemon.submit(&["-f", &waiting]);
    fragile.daemon.expect(0, &["cancel", &run]);
    let before = fragile.daemon.json(0, &["get", &run]);
    assert_eq!(before["outcome"], "OUTCOME_CANCELLED");
    fragile.cut();
    assert_eq!(fragile.daemon.json(0, &["get", &run]), before);
}

#[test]
fn a_result_that_was_seen_outlives_the_power() {
    let mut fragile = Fragile::start();
    let before = fragile.daemon.json(0, &["run", "-f", "workflows/deep-research-offline.yaml"]);
    let run = before["run_id"].as_str().unwrap();
    assert!(int(&before["subtree_usage"]["cost_usd_nanos"]) > 0);
    let tree = fragile.daemon.json(0, &["tree", run]);
    fragile.cut();
    assert_eq!(fragile.daemon.json(0, &["get", run]), before);
    assert_eq!(fragile.daemon.json(0, &["tree", run]), tree);
}
