//! Tools: what a model is told, what it can never reach, and what a call can never do to its run.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use wren::kernel::{CallId, RunId, ToolSource, ToolSpec};
use wren::tool::{Ctx, Finished, Progress, Registry, files_operations};

mod arguments;
mod containment;
mod reading;
mod scripted;
mod searching;

/// A workspace with a data directory beside it, and the file operations open on the workspace itself.
struct Bench {
    dir: tempfile::TempDir,
    registry: Registry,
}

impl Bench {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(more: &[(&str, ToolSource)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("workspace")).unwrap();
        let mut sources = vec![("docs".to_owned(), ToolSource::Files { root: ".".to_owned() })];
        sources.extend(more.iter().map(|(key, source)| ((*key).to_owned(), source.clone())));
        let registry = Registry::open(&sources, &dir.path().join("workspace"), &dir.path().join("data")).unwrap();
        Self { dir, registry }
    }

    /// A path in the workspace.
    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("workspace").join(name)
    }

    /// A path that no tool may reach.
    fn outside(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Checks and runs one file operation.
    async fn call(&self, operation: &str, args: Value) -> Finished {
        let spec = operation_spec(operation);
        self.registry.check(&spec, &args).unwrap();
        self.registry.run(&spec, args, ctx()).await
    }

    /// The output of an operation that must succeed.
    async fn ok(&self, operation: &str, args: Value) -> String {
        let finished = self.call(operation, args).await;
        assert!(finished.ok, "{}", finished.output);
        finished.output
    }

    /// The output of an operation that must fail.
    async fn refused(&self, operation: &str, args: Value) -> String {
        let finished = self.call(operation, args).await;
        assert!(!finished.ok, "{}", finished.output);
        finished.output
    }
}

fn operation_spec(name: &str) -> ToolSpec {
    let spec = files_operations().into_iter().find(|spec| spec.name == name).unwrap();
    ToolSpec { source: "docs".to_owned(), ..spec }
}

fn ctx() -> Ctx {
    Ctx {
        run: RunId::new("run-1"),
        call_id: CallId::of(1, 0),
        idempotency_key: "key-1".to_owned(),
        token: CancellationToken::new(),
        progress: Arc::new(|_| {}),
    }
}

/// A context that keeps the progress it is given.
fn watched_ctx() -> (Ctx, Arc<Mutex<Vec<Progress>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = seen.clone();
    (Ctx { progress: Arc::new(move |progress| kept.lock().unwrap().push(progress)), ..ctx() }, seen)
}

fn scanned(done: u64, total: u64) -> Progress {
    Progress { label: "scanned".to_owned(), done, total, unit: "files".to_owned() }
}

#[tokio::test]
async fn parallel_calls_each_get_their_own_result() {
    let bench = Bench::new();
    for index in 0..32 {
        bench.write(&format!("{index}.txt"), format!("this is {index}"));
    }
    let calls = (0..32).map(|index| bench.ok("read_file", json!({"path": format!("{index}.txt")})));
    for (index, output) in futures_util::future::join_all(calls).await.into_iter().enumerate() {
        assert_eq!(output, format!("this is {index}"));
    }
}

#[test]
fn a_root_that_cannot_be_held_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("plain"), "").unwrap();
    fs::create_dir(dir.path().join("inside")).unwrap();
    std::os::unix::fs::symlink("/etc", dir.path().join("link")).unwrap();
    let open = |workspace: &Path, root: &str| {
        let sources = [("docs".to_owned(), ToolSource::Files { root: root.to_owned() })];
        Registry::open(&sources, workspace, dir.path()).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(open(dir.path(), "inside"), Ok(()));
    assert_eq!(open(dir.path(), "./inside/."), Ok(()));
    for (root, why) in [
        ("missing", "does not exist"),
        ("plain", "is not a directory"),
        ("..", "leads outside the workspace"),
        ("../missing", "leads outside the workspace"),
        ("inside/../..", "leads outside the workspace"),
        ("/etc", "leads outside the workspace"),
        ("link", "leads outside the workspace"),
        ("a\0b", "is not a path"),
    ] {
        let error = open(dir.path(), root).unwrap_err();
        assert!(error.starts_with("tool \"docs\": ") && error.contains(why), "{root:?}: {error}");
    }
    let error = open(&dir.path().join("nowhere"), ".").unwrap_err();
    assert!(error.contains("nowhere") && error.contains("is not a directory"), "{error}");
    assert!(open(&dir.path().join("plain"), ".").is_err());
}
