//! A client that another language generates from the proto, against the real daemon.

use std::process::Command;

use serde_json::Value;

use crate::support::{Daemon, root};

#[test]
fn a_generated_python_client_watches_without_gap_or_repeat() {
    let Some(python) = std::env::var_os("WREN_TEST_PYTHON") else {
        println!("skipped: WREN_TEST_PYTHON does not name a Python with grpcio-tools, grpcio-health-checking and grpcio-reflection");
        return;
    };
    let generated = tempfile::tempdir().unwrap();
    let compiled = Command::new(&python)
        .args(["-m", "grpc_tools.protoc", "-Iproto", "wren/v1/wren.proto"])
        .arg(format!("--python_out={}", generated.path().display()))
        .arg(format!("--grpc_python_out={}", generated.path().display()))
        .current_dir(root())
        .status()
        .unwrap();
    assert!(compiled.success());
    let daemon = Daemon::start();
    let output = Command::new(&python)
        .arg("tests/it/python/client.py")
        .arg(generated.path())
        .args([&daemon.address(), "workflows/deep-research-offline.yaml"])
        .arg(root())
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let seen: Vec<u64> = said["seen"].as_array().unwrap().iter().map(|seq| seq.as_u64().unwrap()).collect();
    let expected: Vec<u64> = (1..=seen.len() as u64).collect();
    assert_eq!(seen, expected, "a gap or a repeat");
    assert!(seen.len() > 20);
    assert_eq!(said["outcome"], "OUTCOME_COMPLETED");
    assert_eq!(said["serving"], true);
    assert_eq!(said["deduplicated"], true);
    let services = said["services"].to_string();
    for service in ["wren.v1.RunService", "wren.v1.WorkflowService", "wren.v1.SystemService", "grpc.health.v1.Health"] {
        assert!(services.contains(service), "{services}");
    }
}
