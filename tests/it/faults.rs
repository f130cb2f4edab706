//! A disk that is full, read-only or failing under the real daemon, and a clock that jumps: new work is refused in clear
//! words, work under way is neither lost nor done twice, and all goes on once the fault is gone.
//!
//! A small library between `wrend` and the system plays the faults while the test says so.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use opentelemetry_proto::tonic::trace::v1::{Span, TracesData};
use serde_json::Value;

use crate::daemon::{settled, transcripts, wait_for};
use crate::support::{Daemon, int, preloaded};

const OFFLINE: &str = "workflows/deep-research-offline.yaml";

/// A daemon whose disk and clock do what the test says.
struct Unsteady {
    daemon: Daemon,
    faults: tempfile::TempDir,
}

impl Unsteady {
    fn start() -> Self {
        let library = preloaded("tests/it/faults/faulty.c");
        let faults = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::start();
        daemon.kill();
        daemon.set("LD_PRELOAD", library.to_str().unwrap());
        daemon.set("FAULTS", faults.path().to_str().unwrap());
        let data_dir = daemon.data_dir();
        daemon.set("FAULTY", data_dir.to_str().unwrap());
        daemon.serve();
        Self { daemon, faults }
    }

    fn fault(&self, name: &str) -> PathBuf {
        self.faults.path().join(name)
    }

    fn begin(&self, name: &str, content: &str) {
        // Renamed into place, so that nobody reads half of it.
        let written = self.fault("written");
        std::fs::write(&written, content).unwrap();
        std::fs::rename(written, self.fault(name)).unwrap();
    }

    fn end(&self, name: &str) {
        std::fs::remove_file(self.fault(name)).unwrap();
    }

    fn until_logged(&self, words: &str) {
        while !self.daemon.logged().contains(words) {
            std::thread::yield_now();
        }
    }
}

/// What one undisturbed run of the research came to.
struct Quiet {
    run: Value,
    transcripts: Vec<(String, Value)>,
}

fn quiet(daemon: &Daemon) -> Quiet {
    let run = daemon.json(0, &["run", "-f", OFFLINE, "-i", "pace=100ms"]);
    let transcripts = transcripts(daemon, run["run_id"].as_str().unwrap());
    Quiet { run, transcripts }
}

/// Checks that a run ended as the undisturbed one, with every turn asked for and paid once.
fn check_undisturbed(daemon: &Daemon, run: &str, quiet: &Quiet) {
    daemon.expect(0, &["wait", run]);
    let ended = daemon.json(0, &["get", run]);
    assert_eq!(settled(&ended), settled(&quiet.run));
    assert_eq!(int(&ended["subtree_usage"]["written_off_usd_nanos"]), 0, "a call was lost");
    assert_eq!(int(&ended["reserved_usd_nanos"]), 0);
    assert_eq!(transcripts(daemon, run), quiet.transcripts);
}

/// Plays one fault of the disk over a run under way.
fn check_disk(fault: &str, words: &str) {
    let mut unsteady = Unsteady::start();
    let quiet = quiet(&unsteady.daemon);
    let run = unsteady.daemon.submit(&["-f", OFFLINE, "-i", "pace=100ms"]);
    wait_for(&unsteady.daemon, &run, |event| event["child_started"].is_object());
    unsteady.begin(fault, "");
    unsteady.until_logged("the store does not answer; the run waits");
    let daemon = &unsteady.daemon;
    let refused = daemon.run(&["run", "-d", "-f", OFFLINE]);
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(words), "{stderr}");
    let refused = daemon.run(&["cancel", &run]);
    assert_eq!(refused.status.code(), Some(1), "a cancel that cannot be kept is not promised");
    assert_eq!(daemon.json(0, &["get", &run])["state"], "RUN_STATE_RUNNING", "what is there can be read");
    unsteady.end(fault);
    check_undisturbed(daemon, &run, &quiet);
    let listed = daemon.json(0, &["ps", "--all"]);
    assert_eq!(listed["runs"].as_array().unwrap().len(), 2, "the refused submission left something");
    check_undisturbed(daemon, &daemon.submit(&["-f", OFFLINE, "-i", "pace=100ms"]), &quiet);
    // And all of it is in the file, not only in the daemon.
    unsteady.daemon.kill();
    unsteady.daemon.serve();
    check_undisturbed(&unsteady.daemon, &run, &quiet);
}

#[test]
fn a_full_disk_is_waited_out() {
    check_disk("full", "full");
}

#[test]
fn a_read_only_disk_is_waited_out() {
    check_disk("read_only", "cannot be written; make it and its disk writable");
}

#[test]
fn a_disk_whose_syncs_fail_is_waited_out() {
    check_disk("failing", "disk");
}

/// A daemon that is killed while its disk is faulty finds everything it had acknowledged.
#[test]
fn a_daemon_that_dies_on_a_faulty_disk_goes_on_where_it_was() {
    for fault in ["full", "read_only", "failing"] {
        let mut unsteady = Unsteady::start();
        let quiet = quiet(&unsteady.daemon);
        let run = unsteady.daemon.submit(&["-f", OFFLINE, "-i", "pace=100ms"]);
        wait_for(&unsteady.daemon, &run, |event| event["child_started"].is_object());
        unsteady.begin(fault, "");
        unsteady.until_logged("the store does not answer; the run waits");
        unsteady.daemon.kill();
        unsteady.end(fault);
        unsteady.daemon.serve();
        let daemon = &unsteady.daemon;
        daemon.expect(0, &["wait", &run]);
        let ended = daemon.json(0, &["get", &run]);
        assert_eq!(settled(&ended), settled(&quiet.run), "{fault}");
        assert_eq!(transcripts(daemon, &run), quiet.transcripts, "{fault}");
    }
}

const DAY_S: i64 = 86_400;

fn time(event: &Value) -> pbjson_types::Timestamp {
    serde_json::from_value(event["time"].clone()).unwrap()
}

/// No fact is older than the one before it in its run, and no span sticks out of its parent.
fn check_times(daemon: &Daemon, run: &str) {
    let mut last = HashMap::new();
    for event in daemon.events(run) {
        let now = time(&event);
        let before = last.insert(event["run_id"].to_string(), (now.seconds, now.nanos));
        assert!(before.is_none_or(|before| before <= (now.seconds, now.nanos)), "{event}");
    }
    let file = daemon.expect(0, &["trace", run, "--format", "otlp-json"]);
    let rendered: TracesData = serde_json::from_str(&file).unwrap();
    let spans = &rendered.resource_spans[0].scope_spans[0].spans;
    let by_id: HashMap<&[u8], &Span> = spans.iter().map(|span| (&span.span_id[..], span)).collect();
    for span in spans {
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{}", span.name);
        if let Some(parent) = by_id.get(&span.parent_span_id[..]) {
            let is_inside =
                parent.start_time_unix_nano <= span.start_time_unix_nano && span.end_time_unix_nano <= parent.end_time_unix_nano;
            assert!(is_inside, "{} sticks out of {}", span.name, parent.name);
        }
    }
    // What followed the restart stands behind what was.
    let segments: Vec<&Span> = spans.iter().filter(|span| span.name.starts_with("invoke_workflow")).collect();
    assert_eq!(segments.len(), 2);
    assert!(segments[0].end_time_unix_nano <= segments[1].start_time_unix_nano || segments[0].trace_id != segments[1].trace_id);
}

/// Neither a jump while a run is under way nor one while no daemon is there ends it early or lets it live for longer.
#[test]
fn a_clock_that_jumps_neither_ends_a_run_nor_turns_its_times_around() {
    for jumps in [[DAY_S, -2 * DAY_S, DAY_S], [-DAY_S, 2 * DAY_S, -2 * DAY_S]] {
        let mut unsteady = Unsteady::start();
        let quiet = quiet(&unsteady.daemon);
        let run = unsteady.daemon.submit(&["-f", OFFLINE, "-i", "pace=100ms", "--timeout", "10m"]);
        let mut off_s = 0;
        for (jump, moment) in jumps.into_iter().zip(["turn_started", "child_started", "call_ended"]) {
            wait_for(&unsteady.daemon, &run, |event| event[moment].is_object());
            off_s += jump;
            unsteady.begin("clock", &off_s.to_string());
            // The second jump falls into the time without a daemon.
            if moment == "child_started" {
                assert!(unsteady.daemon.terminate().success());
                unsteady.daemon.serve();
            }
        }
        check_undisturbed(&unsteady.daemon, &run, &quiet);
        check_times(&unsteady.daemon, &run);
        // A run's limit of time still counts what it should: this one would take an hour.
        let slow = unsteady.daemon.json(13, &["run", "-f", "workflows/slow-scan.yaml", "-i", "pace=1h", "--timeout", "300ms"]);
        assert_eq!(slow["outcome"], "OUTCOME_TIMEOUT");
        let created: pbjson_types::Timestamp = serde_json::from_value(slow["create_time"].clone()).unwrap();
        let now_s = i64::try_from(UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
        assert!((created.seconds - now_s).abs() > DAY_S / 2, "the daemon's clock did not jump");
    }
}
