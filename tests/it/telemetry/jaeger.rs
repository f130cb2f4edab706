//! A real Jaeger, where `WREN_TEST_JAEGER` names its binary: it takes the spans over both protocols and is asked for them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Daemon, int};

struct Jaeger {
    child: Child,
    grpc: u16,
    http: u16,
    query: u16,
    _dir: tempfile::TempDir,
}

impl Drop for Jaeger {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Jaeger {
    fn start() -> Option<Self> {
        let Some(binary) = std::env::var_os("WREN_TEST_JAEGER") else {
            println!("skipped: WREN_TEST_JAEGER does not name a Jaeger; see tests/jaeger/README.md");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let (grpc, http, query, query_grpc) = (free_port(), free_port(), free_port(), free_port());
        let config = format!(
            "service:\n  extensions: [jaeger_storage, jaeger_query]\n  pipelines:\n    traces:\n      receivers: [otlp]\n      processors: []\n      exporters: [jaeger_storage_exporter]\n  telemetry:\n    metrics:\n      level: none\nextensions:\n  jaeger_query:\n    storage:\n      traces: some\n    http:\n      endpoint: 127.0.0.1:{query}\n    grpc:\n      endpoint: 127.0.0.1:{query_grpc}\n  jaeger_storage:\n    backends:\n      some:\n        memory:\n          max_traces: 1000\nreceivers:\n  otlp:\n    protocols:\n      grpc:\n        endpoint: 127.0.0.1:{grpc}\n      http:\n        endpoint: 127.0.0.1:{http}\nexporters:\n  jaeger_storage_exporter:\n    trace_storage: some\n"
        );
        let file = dir.path().join("jaeger.yaml");
        std::fs::write(&file, config).unwrap();
        let child = Command::new(binary).arg("--config").arg(&file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let jaeger = Self { child, grpc, http, query, _dir: dir };
        jaeger.until("/api/v3/services", |_| true);
        Some(jaeger)
    }

    /// Asks until the answer is as wanted.
    fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let patience = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(answer) = self.ask(path)
                && wanted(&answer)
            {
                return answer;
            }
            assert!(Instant::now() < patience, "Jaeger did not answer {path} as wanted");
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }

    fn ask(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.query)).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        if !head.contains(" 200 ") {
            return None;
        }
        serde_json::from_str(body).ok()
    }
}

fn spans_v3(answer: &Value) -> Vec<Value> {
    let resources = answer["result"]["resourceSpans"].as_array().cloned().unwrap_or_default();
    let scopes = resources.iter().flat_map(|resource| resource["scopeSpans"].as_array().cloned().unwrap_or_default());
    scopes.flat_map(|scope| scope["spans"].as_array().cloned().unwrap_or_default()).collect()
}

/// The money on a chat span of OTLP JSON.
fn cost_of(span: &Value) -> i64 {
    let of = |key: &str| {
        let found = span["attributes"].as_array().unwrap().iter().find(|attribute| attribute["key"] == key);
        found.map_or(0, |attribute| int(&attribute["value"]["intValue"]))
    };
    of("wren.cost.usd_nanos") + of("wren.cost.written_off_usd_nanos")
}

/// A number is the same however it is written: 0 and 0.0.
fn same(value: &Value) -> Value {
    value.as_f64().map_or_else(|| value.clone(), Value::from)
}

fn over(protocol: &str) {
    let Some(jaeger) = Jaeger::start() else { return };
    let port = if protocol == "grpc" { jaeger.grpc } else { jaeger.http };
    let endpoint = format!("http://127.0.0.1:{port}");
    let daemon = Daemon::start_with(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_METRICS_EXPORTER", "none"),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
    ]);
    let run = daemon.json(0, &["run", "-f", "workflows/deep-research-offline.yaml"]);
    let id = run["run_id"].as_str().unwrap();
    let trace = run["trace_id"].as_str().unwrap();
    let ours: Value = serde_json::from_str(&daemon.expect(0, &["trace", id, "--format", "jaeger-json"])).unwrap();
    let ours = ours["data"][0]["spans"].as_array().unwrap().clone();

    let answer = jaeger.until(&format!("/api/v3/traces/{trace}"), |answer| spans_v3(answer).len() >= ours.len());
    let found = spans_v3(&answer);
    let ids: BTreeSet<String> = found.iter().map(|span| span["spanId"].to_string()).collect();
    assert_eq!((found.len(), ids.len()), (ours.len(), ours.len()), "every span is there once");
    let cost: i64 = found.iter().filter(|span| span["name"].as_str().unwrap().starts_with("chat ")).map(cost_of).sum();
    assert_eq!(cost, int(&run["subtree_usage"]["cost_usd_nanos"]));

    let theirs = jaeger.until(&format!("/api/traces/{trace}"), |answer| !answer["data"].is_null());
    let theirs = theirs["data"][0]["spans"].as_array().unwrap().clone();
    for span in &theirs {
        let warnings = span["warnings"].as_array().cloned().unwrap_or_default();
        assert!(warnings.is_empty(), "{}: {warnings:?}", span["operationName"]);
    }
    let by_id = |spans: &[Value]| -> BTreeMap<String, Value> {
        spans.iter().map(|span| (span["spanID"].as_str().unwrap().to_owned(), span.clone())).collect()
    };
    let (ours, theirs) = (by_id(&ours), by_id(&theirs));
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    for (id, mine) in &ours {
        let other = &theirs[id];
        for field in ["traceID", "operationName", "references", "startTime", "duration"] {
            assert_eq!(mine[field], other[field], "{field} of {}", mine["operationName"]);
        }
        let tags = |span: &Value| -> BTreeMap<String, (Value, Value)> {
            let list = span["tags"].as_array().unwrap();
            list.iter().map(|tag| (tag["key"].as_str().unwrap().to_owned(), (tag["type"].clone(), same(&tag["value"])))).collect()
        };
        let (mine_tags, other_tags) = (tags(mine), tags(other));
        for (key, value) in &mine_tags {
            assert_eq!(Some(value), other_tags.get(key), "{key} of {}", mine["operationName"]);
        }
        // What Jaeger adds of itself.
        let added: Vec<&String> = other_tags.keys().filter(|key| !mine_tags.contains_key(*key) && !key.starts_with("internal.")).collect();
        assert!(added.is_empty(), "{added:?}");
        assert_eq!(mine["logs"].as_array().unwrap().len(), other["logs"].as_array().unwrap().len());
    }
}

#[test]
fn jaeger_shows_the_whole_tree_over_grpc() {
    over("grpc");
}

#[test]
fn jaeger_shows_the_whole_tree_over_http() {
    over("http/protobuf");
}
