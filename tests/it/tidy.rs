//! The walls between the rooms and the manners of the repository, read off its files. Every rule is shown to bite.

use std::path::Path;

/// Which rooms each room may use besides itself. `bin` is the programs, `lib` declares and does nothing else.
const WALLS: [(&str, &[&str]); 14] = [
    ("kernel", &[]),
    ("workflow", &["kernel"]),
    ("provider", &["kernel"]),
    ("tool", &["kernel"]),
    ("store", &["kernel"]),
    ("telemetry", &["kernel"]),
    ("runtime", &["kernel", "workflow", "provider", "tool", "store", "telemetry"]),
    ("wire", &["kernel"]),
    ("rpc", &["runtime", "workflow", "wire", "kernel"]),
    ("cli", &["wire", "kernel"]),
    ("config", &["kernel", "workflow", "provider", "tool", "store", "telemetry", "runtime", "wire", "rpc", "cli", "daemon"]),
    ("daemon", &["kernel", "workflow", "provider", "tool", "store", "telemetry", "runtime", "wire", "rpc", "cli", "config"]),
    ("bin", &["daemon", "cli"]),
    ("lib", &[]),
];

/// What is tolerated for now: file, fault, and why. An entry that is needed no more is itself a fault.
const TOLERATED: [(&str, &str, &str); 3] = [
    ("src/bin/wrend.rs", "bin uses config", "it reads the config file to set up its log before the daemon starts"),
    ("src/store/sqlite/writer.rs", "super::super", "a test module reaches a sibling of its own module"),
    ("tests/it/cli/words.rs", "a home directory", "an invented home, to show where the socket is looked for"),
];

/// What the kernel may name besides its own modules: no clock, no files, no network, no other crates.
const KERNEL_ROOTS: [&str; 8] = ["std", "fmt", "serde", "serde_json", "clippy", "crate", "super", "self"];
const KERNEL_STD: [&str; 13] =
    ["fmt", "sync", "collections", "mem", "cmp", "error", "iter", "ops", "borrow", "str", "num", "hash", "convert"];
const PRIMITIVES: [&str; 14] = ["i8", "i16", "i32", "i64", "i128", "u8", "u16", "u32", "u64", "u128", "usize", "isize", "str", "char"];

const SPAWNERS: [&str; 5] = ["tokio::spawn", "task::spawn(", "task::spawn_local", "JoinSet", "TaskTracker"];
const SPAWNING_FILE: &str = "src/runtime/supervisor.rs";

/// Lines beyond which a file is named in the test's output: a place to pause and look, not a law.
const LINES_TO_LOOK_AT: usize = 500;
const ARCHITECTURE_LINES_MAX: usize = 200;

/// Returns the room of a file under `src/`.
fn room(path: &str) -> Option<&str> {
    let inside = path.strip_prefix("src/")?;
    Some(inside.split_once('/').map_or_else(|| inside.trim_end_matches(".rs"), |(room, _)| room))
}

/// Returns the code without its comments.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Returns what follows each `prefix` that begins a path, up to the end of the identifier.
fn named<'a>(code: &'a str, prefix: &str) -> Vec<&'a str> {
    let begins = |at: usize| !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':');
    let found = code.match_indices(prefix).filter(|(at, _)| begins(*at));
    found.map(|(at, _)| &code[at + prefix.len()..]).map(identifier).collect()
}

fn identifier(text: &str) -> &str {
    let end = text.find(|character: char| !character.is_alphanumeric() && character != '_').unwrap_or(text.len());
    &text[..end]
}

/// Returns the first segments of the paths that `code` names.
fn roots(code: &str) -> Vec<&str> {
    let mut roots = Vec::new();
    for (at, _) in code.match_indices("::") {
        let before = &code[..at];
        let start = before.rfind(|character: char| !character.is_alphanumeric() && character != '_').map_or(0, |at| at + 1);
        let is_turbofish = code[at + 2..].starts_with('<');
        if !is_turbofish && !before[..start].ends_with(':') && before[start..].starts_with(|first: char| first.is_lowercase()) {
            roots.push(&before[start..]);
        }
    }
    roots
}

fn source_faults(path: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if !text.starts_with("//! ") {
        faults.push("does not open with `//!`".to_owned());
    }
    let Some(room) = room(path) else { return faults };
    let Some((_, may)) = WALLS.iter().find(|(known, _)| *known == room) else {
        faults.push(format!("the room {room} is not in the table"));
        return faults;
    };
    let code = code(text);
    if code.contains("crate::{") || code.contains("wren::{") {
        faults.push("a group of rooms: name each room in a line of its own".to_owned());
    }
    if code.contains("super::super::") {
        faults.push("super::super::: name the room".to_owned());
    }
    let mut used = named(&code, "crate::");
    used.extend(named(&code, "wren::"));
    if path == format!("src/{room}.rs") || path == format!("src/{room}/mod.rs") {
        // There `super` is the crate.
        used.extend(named(&code, "super::"));
    }
    for other in used {
        let is_room = WALLS.iter().any(|(known, _)| *known == other);
        if is_room && other != room && !may.contains(&other) {
            faults.push(format!("{room} uses {other}"));
        }
    }
    if path != SPAWNING_FILE {
        faults.extend(SPAWNERS.iter().filter(|spawner| code.contains(**spawner)).map(|spawner| format!("spawns tasks: {spawner}")));
    }
    if room == "kernel" {
        faults.extend(kernel_faults(&code));
    }
    faults.sort();
    faults.dedup();
    faults
}

fn kernel_faults(code: &str) -> Vec<String> {
    let own = ["agent", "event", "ledger", "message", "next", "run", "summary"];
    let mut faults = Vec::new();
    for root in roots(code) {
        let known = own.contains(&root) || KERNEL_ROOTS.contains(&root) || PRIMITIVES.contains(&root);
        if !known {
            faults.push(format!("the kernel names {root}"));
        }
    }
    for part in named(code, "std::") {
        if !KERNEL_STD.contains(&part) {
            faults.push(format!("the kernel names std::{part}"));
        }
    }
    faults
}

/// Faults of any text file of the repository.
fn text_faults(path: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    // Pieces, so that this file does not hold what it forbids.
    let hosts = [["crates", ".io"], ["pypi", ".org"], ["pythonhosted", ".org"], ["proxy.golang", ".org"], ["npmjs", ".org"]]
        .map(|host| host.concat());
    if hosts.iter().any(|host| text.contains(host.as_str())) {
        faults.push("names the host of a registry".to_owned());
    }
    if [["/ro", "ot/"], ["/ho", "me/"]].iter().any(|home| text.contains(&home.concat())) {
        faults.push("names a home directory".to_owned());
    }
    if [["TO", "DO"], ["FIX", "ME"]].iter().any(|mark| named(text, &mark.concat()).contains(&"")) {
        faults.push("puts something off".to_owned());
    }
    if !path.ends_with(".svg") && names_an_issue(text) {
        faults.push("names an issue by its number".to_owned());
    }
    faults
}

/// Returns whether a `#` with a number stands alone as a word.
fn names_an_issue(text: &str) -> bool {
    text.match_indices('#').any(|(at, _)| {
        let digits = identifier(&text[at + 1..]);
        let alone = text[..at].chars().next_back().is_none_or(|before| before.is_whitespace() || "([".contains(before));
        alone && !digits.is_empty() && digits.len() < 6 && !digits.starts_with('0') && digits.chars().all(|digit| digit.is_ascii_digit())
    })
}

/// Every text file that is not ignored, by its path from the repository's root.
fn files() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let listed = std::fs::read_to_string(root.join(".gitignore")).unwrap();
    let mut ignored: Vec<&str> = listed.lines().map(|line| line.trim_matches('/')).filter(|line| !line.is_empty()).collect();
    // Lock files name registries by nature.
    ignored.extend([".git", "Cargo.lock", "tests/jaeger/go.sum"]);
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if ignored.contains(&name.as_str()) || path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                files.push((name, text));
            }
        }
    }
    assert!(files.len() > 50, "the repository was not found");
    files
}

#[test]
fn the_repository_is_tidy() {
    let mut faults: Vec<(String, String)> = Vec::new();
    for (path, text) in files() {
        let mut here = text_faults(&path, &text);
        if path.starts_with("src/") && path.ends_with(".rs") {
            here.extend(source_faults(&path, &text));
            let lines = text.lines().count();
            if lines > LINES_TO_LOOK_AT {
                println!("{path} has {lines} lines");
            }
        }
        if path == "ARCHITECTURE.md" && text.lines().count() >= ARCHITECTURE_LINES_MAX {
            here.push(format!("has {ARCHITECTURE_LINES_MAX} lines or more"));
        }
        faults.extend(here.into_iter().map(|fault| (path.clone(), fault)));
    }
    for (path, fault, why) in TOLERATED {
        let before = faults.len();
        faults.retain(|(at, what)| !(at == path && what.contains(fault)));
        if faults.len() == before {
            faults.push((path.to_owned(), format!("{fault:?} is tolerated ({why}) and not there any more: strike it from the list")));
        }
    }
    let told: Vec<String> = faults.iter().map(|(path, fault)| format!("{path}: {fault}")).collect();
    assert!(told.is_empty(), "\n{}", told.join("\n"));
}

#[test]
fn every_wall_bites() {
    let bad = [
        ("src/kernel/run.rs", "use crate::store::Row;", "kernel uses store"),
        ("src/kernel/run.rs", "fn f() { tokio::time::sleep(d); }", "the kernel names tokio"),
        ("src/kernel/run.rs", "use tracing::info;", "the kernel names tracing"),
        ("src/kernel/run.rs", "use std::time::Instant;", "the kernel names std::time"),
        ("src/workflow/plan.rs", "use crate::provider::Delta;", "workflow uses provider"),
        ("src/provider/mod.rs", "use super::tool::Ctx;", "provider uses tool"),
        ("src/tool/read.rs", "fn f() -> crate::runtime::Error {}", "tool uses runtime"),
        ("src/store/sqlite/row.rs", "use crate::wire;", "store uses wire"),
        ("src/telemetry/span.rs", "use crate::store::Row;", "telemetry uses store"),
        ("src/runtime/turn.rs", "use crate::rpc::auth;", "runtime uses rpc"),
        ("src/wire/run.rs", "use crate::runtime::Live;", "wire uses runtime"),
        ("src/rpc/runs.rs", "use crate::store::Store;", "rpc uses store"),
        ("src/cli/follow.rs", "use crate::runtime::Live;", "cli uses runtime"),
        ("src/bin/wrenctl.rs", "use wren::store::memory;", "bin uses store"),
        ("src/lib.rs", "use crate::kernel::Run;", "lib uses kernel"),
        ("src/cellar/mod.rs", "", "the room cellar is not in the table"),
        ("src/rpc/runs.rs", "use crate::{kernel, runtime};", "a group of rooms"),
        ("src/store/sqlite/row.rs", "use super::super::memory;", "super::super"),
        ("src/runtime/driver.rs", "fn f() { tokio::spawn(g()); }", "spawns tasks"),
        ("src/rpc/server.rs", "use tokio::task::JoinSet;", "spawns tasks"),
    ];
    for (path, line, fault) in bad {
        let found = source_faults(path, &format!("//! A room.\n\n{line}\n"));
        assert!(found.iter().any(|found| found.contains(fault)), "{path}: {line}: {found:?}");
    }
    assert_eq!(source_faults("src/tool/read.rs", "use std::fs;\n"), ["does not open with `//!`"]);
}

#[test]
fn what_is_allowed_is_no_fault() {
    let good = [
        (
            "src/kernel/run.rs",
            "use std::fmt;\nuse serde::Serialize;\nuse super::event::Event;\nfn f() { i64::try_from(1); run::go(); Self::new(); }",
        ),
        ("src/rpc/runs.rs", "use crate::runtime::Runtime;\nuse tokio::sync::Notify;\n// See crate::store."),
        ("src/runtime/supervisor.rs", "fn f() { tokio::spawn(g()); }"),
        ("src/provider/openai/mod.rs", "use super::sse;\nuse crate::provider::Delta;"),
        ("src/daemon.rs", "use crate::rpc::server;"),
    ];
    for (path, lines) in good {
        assert_eq!(source_faults(path, &format!("//! A room.\n\n{lines}\n")), Vec::<String>::new(), "{path}");
    }
    for line in ["let raw = r#\"x\"#;", "# 1. Heading", "{:#010b}", "color: #a1b2c3", "rather than a to-do", "method"] {
        assert_eq!(text_faults("README.md", line), Vec::<String>::new(), "{line}");
    }
}

#[test]
fn every_banned_word_bites() {
    let bad = [
        (["see ", "#", "123 for why"].concat(), "an issue"),
        (["(#", "7)"].concat(), "an issue"),
        (["// TO", "DO: later"].concat(), "off"),
        (["FIX", "ME"].concat(), "off"),
        (["https://static.crates", ".io/x"].concat(), "registry"),
        (["https://pypi", ".org/simple"].concat(), "registry"),
        (["/ro", "ot/.cargo"].concat(), "home"),
        (["/ho", "me/somebody/x"].concat(), "home"),
    ];
    for (text, fault) in bad {
        let found = text_faults("README.md", &text);
        assert!(found.iter().any(|found| found.contains(fault)), "{text}: {found:?}");
    }
}
