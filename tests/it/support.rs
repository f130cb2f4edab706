//! The two real programs, as a test starts them: a daemon in a directory of its own, and a command line that talks to
//! it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// The repository's root, where the shipped workflows are.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A command with nothing of the caller's own settings in its environment.
fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).current_dir(root());
    command
}

/// Compiles a library that is put between a daemon and the system. The checks have a C compiler: SQLite needs one.
pub fn preloaded(source: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let name = Path::new(source).file_stem().unwrap().to_str().unwrap();
    let built = dir.join(format!("{name}-{}-{:?}.so", std::process::id(), std::thread::current().id()));
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&built).arg(root().join(source)).arg("-ldl").status();
    assert!(compiled.expect("cc runs: SQLite was compiled with it").success(), "{source} does not compile");
    built
}

/// A directory with a daemon in it, which can be killed and started again.
pub struct Daemon {
    dir: tempfile::TempDir,
    child: Option<Child>,
    environment: Vec<(String, String)>,
}

impl Daemon {
    /// Starts a daemon in a fresh directory.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a daemon with these variables in its environment.
    pub fn start_with(environment: &[(&str, &str)]) -> Self {
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut daemon = Self { dir: tempfile::tempdir().unwrap(), child: None, environment };
        daemon.serve();
        daemon
    }

    /// Sets a variable for the daemon's next start.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        self.environment.push((name.to_owned(), value.into()));
    }

    /// Starts the daemon of this directory and waits until it says that it serves.
    pub fn serve(&mut self) {
        let mut child = command(env!("CARGO_BIN_EXE_wrend"))
            .args(["--data-dir", self.data_dir().to_str().unwrap(), "--listen", &self.address()])
            .envs(self.environment.iter().cloned())
            .stdout(Stdio::piped())
            .stderr(Stdio::from(std::fs::File::options().create(true).append(true).open(self.log()).unwrap()))
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("serving"), "wrend did not serve: {line:?}\n{}", std::fs::read_to_string(self.log()).unwrap_or_default());
        self.child = Some(child);
    }

    /// Takes a variable away for the daemon's next start.
    pub fn unset(&mut self, name: &str) {
        self.environment.retain(|(known, _)| known != name);
    }

    /// Returns whether the daemon has died by itself.
    pub fn is_dead(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| child.try_wait().unwrap().is_some())
    }

    /// Kills the daemon at once, as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Lets the daemon open no file more, or as many as the system allows.
    pub fn forbid_files(&self, none: bool) {
        use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
        let id = self.child.as_ref().unwrap().id();
        let maximum = getrlimit(Resource::Nofile).maximum;
        // None at all: a count of what is open now would let in whatever is closed a moment later.
        let current = if none { Some(0) } else { maximum };
        prlimit(Pid::from_raw(i32::try_from(id).unwrap()), Resource::Nofile, Rlimit { current, maximum }).unwrap();
    }

    /// Lets the kernel measure the daemon's peak memory anew, and returns what it holds now, in KB.
    pub fn forget_peak(&self) -> u64 {
        let id = self.child.as_ref().unwrap().id();
        std::fs::write(format!("/proc/{id}/clear_refs"), "5").unwrap();
        self.memory_kb("VmRSS:")
    }

    /// The most memory that the daemon held since then, in KB.
    pub fn peak_kb(&self) -> u64 {
        self.memory_kb("VmHWM:")
    }

    fn memory_kb(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.as_ref().unwrap().id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Asks the daemon to drain and waits for its end.
    pub fn terminate(&mut self) -> std::process::ExitStatus {
        let mut child = self.child.take().unwrap();
        let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        child.wait().unwrap()
    }

    /// Where the daemon listens.
    pub fn address(&self) -> String {
        format!("unix:{}", self.dir.path().join("wrend.sock").display())
    }

    /// The daemon's data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("wrend.log")
    }

    /// Everything that the daemon has logged.
    pub fn logged(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// A `wrenctl` command against this daemon.
    pub fn ctl(&self, args: &[&str]) -> Command {
        let mut command = command(env!("CARGO_BIN_EXE_wrenctl"));
        command.env("WREN_ADDRESS", self.address()).args(args);
        command
    }

    /// Runs `wrenctl` and returns what it did.
    pub fn run(&self, args: &[&str]) -> Output {
        self.ctl(args).output().unwrap()
    }

    /// Runs `wrenctl`, which must succeed with `code`, and returns its standard output.
    pub fn expect(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "wrenctl {args:?}\nstdout: {stdout}\nstderr: {stderr}\nwrend: {}", self.logged());
        stdout
    }

    /// Runs `wrenctl … -o json` and returns the document.
    pub fn json(&self, code: i32, args: &[&str]) -> Value {
        let stdout = self.expect(code, &[args, &["-o", "json"]].concat());
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {stdout}"))
    }

    /// The events of a run and everything below it, as `wrenctl events` prints them.
    pub fn events(&self, run: &str) -> Vec<Value> {
        let stdout = self.expect(0, &["events", run, "-o", "jsonl"]);
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Submits a workflow without waiting and returns the run's id.
    pub fn submit(&self, args: &[&str]) -> String {
        self.expect(0, &[&["run", "-d"], args].concat()).trim().to_owned()
    }

    /// Writes a workflow into the daemon's directory and returns its path.
    pub fn workflow(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Reads an int64 of proto JSON, which is a string.
pub fn int(value: &Value) -> i64 {
    match value {
        Value::String(text) => text.parse().unwrap(),
        other => other.as_i64().unwrap_or_else(|| panic!("not an integer: {other}")),
    }
}

/// Every run of a `wrenctl tree -o json` document, parents first.
pub fn runs(node: &Value) -> Vec<&Value> {
    let mut all = vec![&node["run"]];
    for child in node["children"].as_array().into_iter().flatten() {
        all.extend(runs(child));
    }
    all
}
