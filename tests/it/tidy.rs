//! The house's rules as a test: which room may name which, who may spawn, how a file begins, what no file says. It reads
//! text, not meaning: good against drift, not against malice.

use std::path::{Path, PathBuf};

use crate::support::root;

/// Who may name whom; the design's table of rooms. `config`, `daemon` and the programs may name all.
const WALLS: [(&str, &[&str]); 9] = [
    ("kernel", &[]),
    ("workflow", &["kernel"]),
    ("provider", &["kernel"]),
    ("tool", &["kernel"]),
    ("store", &["kernel"]),
    ("telemetry", &["kernel"]),
    ("runtime", &["kernel", "workflow", "provider", "tool", "store", "telemetry"]),
    ("wire", &["kernel"]),
    ("rpc", &["runtime", "workflow", "wire", "kernel"]),
];
/// The command line is beside them: it knows the API and the kernel's words.
const CLI: (&str, &[&str]) = ("cli", &["wire", "kernel"]);

/// Lines of a source file at most.
const FILE_LINES_MAX: usize = 600;

/// Returns what is wrong with a source file of a room.
fn faults(room: &str, path: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if !text.starts_with("//!") {
        faults.push(format!("{path}: does not begin with what it owns (//!)"));
    }
    if text.lines().count() > FILE_LINES_MAX {
        faults.push(format!("{path}: over {FILE_LINES_MAX} lines"));
    }
    let allowed = WALLS.iter().chain([&CLI]).find(|(name, _)| *name == room).map(|(_, allowed)| *allowed);
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        if line.contains("crate::{") {
            faults.push(format!("{path}: `crate::{{` hides a room: {line}"));
        }
        if line.contains("super::super::super") {
            faults.push(format!("{path}: climbs out of its room: {line}"));
        }
        if line.contains("tokio::spawn(") || (line.contains(".spawn(") && line.contains("drivers") && path != "runtime/supervisor.rs") {
            faults.push(format!("{path}: only the supervisor spawns: {line}"));
        }
        if room == "kernel" {
            for outside in ["tokio", "tracing", "rand", "chrono", "uuid", "ulid", "sha2", "thiserror", "SystemTime", "Instant::now"] {
                if line.contains(&format!("{outside}::")) || line == format!("use {outside};") {
                    faults.push(format!("{path}: the kernel may not name {outside}"));
                }
            }
        }
        if let Some(allowed) = allowed {
            for named in line.split("crate::").skip(1) {
                let named: String = named.chars().take_while(|char| char.is_ascii_lowercase() || *char == '_').collect();
                if named != room && !named.is_empty() && !allowed.contains(&named.as_str()) {
                    faults.push(format!("{path}: {room} may not name crate::{named}"));
                }
            }
        }
    }
    faults
}

/// Returns what no tracked file may say.
fn words(path: &str, text: &str) -> Vec<String> {
    let lower = text.to_ascii_lowercase();
    let banned = [
        ["to", "do:"].concat(),
        ["/ro", "ot/"].concat(),
        ["crates", ".io/"].concat(),
        ["pypi", ".org"].concat(),
        ["npmjs", ".org"].concat(),
        ["proxy.golang", ".org"].concat(),
    ];
    banned.iter().filter(|word| lower.contains(*word)).map(|word| format!("{path}: says {word:?}")).collect()
}

fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found
}

#[test]
fn the_walls_stand() {
    let source = root().join("src");
    let mut found = Vec::new();
    for path in files(&source, "rs") {
        let relative = path.strip_prefix(&source).unwrap().to_string_lossy().into_owned();
        let room = relative.split(['/', '.']).next().unwrap();
        found.extend(faults(room, &relative, &std::fs::read_to_string(&path).unwrap()));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn no_file_says_what_is_not_its_own() {
    let mut found = Vec::new();
    for (dir, extension) in [("src", "rs"), ("tests", "rs"), ("workflows", "yaml"), ("proto", "proto")] {
        for path in files(&root().join(dir), extension) {
            found.extend(words(&path.to_string_lossy().replace(&*root().to_string_lossy(), ""), &std::fs::read_to_string(&path).unwrap()));
        }
    }
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "Cargo.toml", "build.rs", ".ci/run"] {
        found.extend(words(name, &std::fs::read_to_string(root().join(name)).unwrap()));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_architecture_fits_a_reader() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    assert!(text.lines().count() < 200);
    for (room, _) in WALLS.iter().chain([&CLI]) {
        assert!(text.contains(&format!("src/{room}")), "ARCHITECTURE.md does not name src/{room}");
    }
}

#[test]
fn every_rule_can_fail() {
    let is_fault = |room: &str, text: &str| !faults(room, "x.rs", text).is_empty();
    assert!(!is_fault("kernel", "//! Owns.\nuse std::fmt;\nuse crate::kernel::run;\n"));
    assert!(is_fault("kernel", "use std::fmt;\n"));
    assert!(is_fault("kernel", "//! Owns.\nuse crate::runtime::Runtime;\n"));
    assert!(is_fault("kernel", "//! Owns.\nuse tokio::time::sleep;\n"));
    assert!(is_fault("store", "//! Owns.\nuse crate::{kernel, runtime};\n"));
    assert!(is_fault("tool", "//! Owns.\nfn f() { tokio::spawn(async {}); }\n"));
    assert!(is_fault("cli", "//! Owns.\nuse crate::daemon;\n"));
    assert!(is_fault("tool", &format!("//! Owns.\n{}", "fn f() {}\n".repeat(700))));
    assert!(!words("x", &["a TO", "DO: b"].concat()).is_empty());
    assert!(words("x", "nothing of the kind").is_empty());
}
