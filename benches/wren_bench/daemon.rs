//! A `wrend` of its own: started, asked over gRPC, measured from /proc, stopped.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tonic::transport::{Channel, Endpoint};
use wren::wire::v1;
use wren::wire::v1::event::Payload;
use wren::wire::v1::run_service_client::RunServiceClient;

use crate::stub::Stub;
use crate::{Result, collector};

/// A run is longer than any of these.
const PATIENCE: Duration = Duration::from_secs(600);

pub struct Daemon {
    pub dir: tempfile::TempDir,
    child: Option<Child>,
    environment: Vec<(String, String)>,
    pub runs: RunServiceClient<Channel>,
    /// Connections of their own for many watchers at once: one connection carries a bounded number of streams.
    lines: Vec<RunServiceClient<Channel>>,
}

/// Watches that share a connection.
const WATCHES_A_LINE: usize = 32;

/// One agent with a trivial tool, or one that has `research` children of its own.
pub struct Plan<'a> {
    pub model: &'a str,
    /// The model of the children; empty for a plan without any.
    pub child_model: &'a str,
    /// How long the trivial tool takes.
    pub tool_takes: &'a str,
}

impl Plan<'_> {
    pub fn yaml(&self) -> String {
        let price = "max_output: 4096, price: {input_usd_per_mtok: 0.1, output_usd_per_mtok: 0.2}";
        let takes = if self.tool_takes.is_empty() { String::new() } else { format!("takes: {}, ", self.tool_takes) };
        let noop = format!("noop: {{description: Does nothing., scripted: {{{takes}effect: read_only, result: ok}}}}");
        let limits = "limits: {max_turns: 1000, budget_usd: 100, max_tokens: 100000000, timeout: 1h, max_runs: 5000}";
        if self.child_model.is_empty() {
            return format!(
                "wren: v1\nname: plan\nmodels: {{m: {{use: openai/{}, {price}}}}}\ntools: {{{noop}}}\n\
                 agents: {{lead: {{model: m, instructions: You are a careful agent., tools: [noop]}}}}\nagent: lead\nprompt: Do the plan.\n{limits}\n",
                self.model
            );
        }
        format!(
            "wren: v1\nname: fan\nmodels:\n  m: {{use: openai/{}, {price}}}\n  c: {{use: openai/{}, {price}}}\ntools:\n  {noop}\n  \
             research: {{description: Looks into it., subagent: worker, parameters: {{topic: {{type: string}}}}, prompt: 'Look into {{{{ args.topic }}}}.', \
             max_parallel: 2000, max_calls: 2000, limits: {{max_turns: 100, budget_usd: 1}}}}\n\
             agents:\n  lead: {{model: m, instructions: You are a careful agent., tools: [research]}}\n  \
             worker: {{model: c, instructions: You are a careful agent., tools: [noop]}}\nagent: lead\nprompt: Do the plan.\n{limits}\n",
            self.model, self.child_model
        )
    }
}

/// What must be the same however often the daemon died.
#[derive(Debug)]
pub struct Told {
    pub runs: usize,
    pub settled_usd_nanos: i64,
    pub text: String,
    /// Every message of the root, and of its children by their calls.
    transcripts: Vec<(String, String)>,
    pub written_off_usd_nanos: i64,
    pub crashes: usize,
}

impl Told {
    /// Whether all but the write-offs and the crashes themselves are equal.
    pub fn equals(&self, other: &Self) -> bool {
        (self.runs, self.settled_usd_nanos, &self.text, &self.transcripts)
            == (other.runs, other.settled_usd_nanos, &other.text, &other.transcripts)
    }
}

/// What came of a run.
pub struct Finished {
    pub outcome: v1::Outcome,
    pub text: String,
    /// When each turn of the root ended, in seconds since the Unix epoch.
    pub turns_at: Vec<f64>,
    /// What each of its requests read, and wrote at most, in tokens; those for notes as well.
    pub asked: Vec<Asked>,
}

/// One request, as the provider counted it.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub input_tokens: i64,
    pub max_output: i64,
    pub is_for_notes: bool,
}

impl Daemon {
    pub async fn start(stub: &Stub) -> Result<Self> {
        Self::start_in(tempfile::tempdir()?, stub).await
    }

    pub async fn start_in(dir: tempfile::TempDir, stub: &Stub) -> Result<Self> {
        let environment = vec![
            ("OPENAI_BASE_URL".to_owned(), stub.base_url()),
            ("OPENAI_API_KEY".to_owned(), "none".to_owned()),
            ("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), collector::start()?),
            ("OTEL_EXPORTER_OTLP_PROTOCOL".to_owned(), "http/protobuf".to_owned()),
            ("OTEL_METRICS_EXPORTER".to_owned(), "none".to_owned()),
        ];
        let (child, runs) = serve(dir.path(), &environment).await?;
        Ok(Self { dir, child: Some(child), environment, runs, lines: Vec::new() })
    }

    /// Starts it again over the same data.
    pub async fn again(&mut self) -> Result<()> {
        let (child, runs) = serve(self.dir.path(), &self.environment).await?;
        self.child = Some(child);
        self.runs = runs;
        Ok(())
    }

    /// Kills it at once, as a crash would.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Asks it to end and waits for that.
    pub fn stop(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            let pid = rustix::process::Pid::from_raw(i32::try_from(child.id())?).ok_or("no pid")?;
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
            child.wait()?;
        }
        Ok(())
    }

    pub fn request(&self, plan: &Plan<'_>) -> v1::SubmitRunRequest {
        let file = v1::SourceFile { path: "plan.yaml".to_owned(), content: plan.yaml().into_bytes() };
        v1::SubmitRunRequest {
            bundle: Some(v1::Bundle { entry_path: "plan.yaml".to_owned(), files: vec![file] }),
            inputs_json: "{}".to_owned(),
            workspace: self.dir.path().to_string_lossy().into_owned(),
            ..v1::SubmitRunRequest::default()
        }
    }

    pub async fn submit(&self, request: v1::SubmitRunRequest) -> Result<String> {
        submit(&self.runs, request).await
    }

    /// Opens connections for so many runs beside each other.
    pub async fn open_lines(&mut self, runs: usize) -> Result<()> {
        for _ in 0..runs.div_ceil(WATCHES_A_LINE) {
            self.lines.push(connect(self.dir.path()).await?);
        }
        Ok(())
    }

    /// Watches a run until it stops.
    pub async fn finish(&self, run_id: &str) -> Result<Finished> {
        finish(&self.runs, run_id).await
    }

    /// Runs a plan to its end over the `which`-th of many connections.
    pub async fn complete_on(&self, which: usize, plan: &Plan<'_>) -> Result<Finished> {
        let line = &self.lines[which % self.lines.len()];
        let run = submit(line, self.request(plan)).await?;
        checked(&run, plan, finish(line, &run).await?)
    }

    /// Returns how many runs a tree has.
    pub async fn runs_of(&self, run_id: &str) -> Result<usize> {
        Ok(flat(self.tree(run_id).await?).len())
    }

    async fn tree(&self, run_id: &str) -> Result<v1::RunNode> {
        let request = v1::GetRunTreeRequest { run_id: run_id.to_owned(), max_depth: 0 };
        Ok(self.runs.clone().get_run_tree(request).await?.into_inner().root.ok_or("a tree without a root")?)
    }

    /// Returns what a finished tree has to tell.
    pub async fn told(&self, run_id: &str) -> Result<Told> {
        let runs = flat(self.tree(run_id).await?);
        let root = runs.first().ok_or("no root")?;
        let usage = root.subtree_usage.ok_or("no usage")?;
        let mut transcripts = Vec::new();
        for run in &runs {
            let request = v1::GetTranscriptRequest { run_id: run.run_id.clone(), page_size: 1000, page_token: String::new() };
            let messages = self.runs.clone().get_transcript(request).await?.into_inner().messages;
            transcripts.push((run.tool_call_id.clone(), format!("{messages:?}")));
        }
        transcripts.sort();
        let request = v1::WatchRunRequest { run_id: run_id.to_owned(), include_descendants: true, ..v1::WatchRunRequest::default() };
        let mut events = self.runs.clone().watch_run(request).await?.into_inner();
        let (mut crashes, mut text) = (0, String::new());
        while let Some(answer) = events.message().await? {
            let Some(event) = answer.event else { continue };
            match event.payload {
                Some(Payload::RunResumed(_)) => crashes += 1,
                Some(Payload::RunEnded(ended)) if event.run_id == run_id => text = ended.output_text,
                _ => {}
            }
        }
        Ok(Told {
            runs: runs.len(),
            settled_usd_nanos: usage.cost_usd_nanos - usage.written_off_usd_nanos,
            text,
            transcripts,
            written_off_usd_nanos: usage.written_off_usd_nanos,
            crashes,
        })
    }

    /// Runs a plan over the `which`-th connection until its turn cap suspends it.
    pub async fn suspend_on(&self, which: usize) -> Result<()> {
        let line = &self.lines[which % self.lines.len()];
        let mut request = self.request(&Plan { model: "plan-2", child_model: "", tool_takes: "" });
        request.limits = Some(v1::Limits { max_turns: Some(1), ..v1::Limits::default() });
        let run = submit(line, request).await?;
        match finish(line, &run).await?.outcome {
            v1::Outcome::MaxTurns => Ok(()),
            other => Err(format!("run {run} ended {other:?}").into()),
        }
    }

    /// Bytes of the store's write-ahead log.
    pub fn log_bytes(&self) -> u64 {
        std::fs::metadata(self.dir.path().join("data/wren.db-wal")).map_or(0, |log| log.len())
    }

    /// Waits until a tool of a run has begun.
    pub async fn until_in_tool(&self, run_id: &str) -> Result<()> {
        let request = v1::WatchRunRequest { run_id: run_id.to_owned(), ..v1::WatchRunRequest::default() };
        let mut events = self.runs.clone().watch_run(request).await?.into_inner();
        while let Some(answer) = events.message().await? {
            if matches!(answer.event.and_then(|event| event.payload), Some(Payload::CallStarted(_))) {
                return Ok(());
            }
        }
        Err("the run ended without a tool".into())
    }

    /// Runs a plan to its end, which must be the script's last words.
    pub async fn complete(&self, plan: &Plan<'_>) -> Result<Finished> {
        let run = self.submit(self.request(plan)).await?;
        checked(&run, plan, self.finish(&run).await?)
    }

    fn proc(&self, file: &str) -> Result<String> {
        let child = self.child.as_ref().ok_or("the daemon does not run")?;
        Ok(std::fs::read_to_string(format!("/proc/{}/{file}", child.id()))?)
    }

    /// Processor time so far, in seconds, of all its threads: those that are gone are in the process's own figure only.
    pub fn cpu_s(&self) -> Result<f64> {
        let child = self.child.as_ref().ok_or("the daemon does not run")?;
        let mut nanos = 0_u64;
        for task in std::fs::read_dir(format!("/proc/{}/task", child.id()))? {
            let stat = std::fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
            nanos += stat.split(' ').next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        }
        let stat = self.proc("stat")?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
        let exact = nanos as f64 / 1e9;
        Ok(if ticks / 100.0 > exact + 0.02 { ticks / 100.0 } else { exact })
    }

    fn field(&self, file: &str, name: &str) -> Result<f64> {
        let text = self.proc(file)?;
        let line = text.lines().find(|line| line.starts_with(name)).ok_or("no such field")?;
        Ok(line.split_whitespace().nth(1).ok_or("no value")?.parse()?)
    }

    /// Memory, in MB: `VmHWM` at its peak, `VmRSS` now.
    pub fn memory_mb(&self, name: &str) -> Result<f64> {
        Ok(self.field("status", name)? / 1024.0)
    }

    /// Bytes that it has caused to be written.
    pub fn written(&self) -> Result<f64> {
        self.field("io", "write_bytes")
    }

    /// Memory, handles and threads now.
    pub fn holdings(&self) -> Result<Value> {
        let child = self.child.as_ref().ok_or("the daemon does not run")?;
        let handles = std::fs::read_dir(format!("/proc/{}/fd", child.id()))?.count();
        Ok(json!({"rss_mb": self.memory_mb("VmRSS")?, "handles": handles, "threads": self.field("status", "Threads")?}))
    }

    /// Bytes of the store's files.
    pub fn disk_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        for file in std::fs::read_dir(self.dir.path().join("data"))? {
            bytes += file?.metadata()?.len();
        }
        Ok(bytes)
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

async fn submit(line: &RunServiceClient<Channel>, request: v1::SubmitRunRequest) -> Result<String> {
    let answer = line.clone().submit_run(request).await?.into_inner();
    Ok(answer.run.ok_or("a submission without a run")?.run_id)
}

fn checked(run: &str, plan: &Plan<'_>, finished: Finished) -> Result<Finished> {
    let wanted = if plan.child_model.is_empty() { "Done: the plan" } else { "Summary of what" };
    if finished.outcome != v1::Outcome::Completed || !finished.text.starts_with(wanted) {
        return Err(format!("run {run} ended {:?}: {:?}", finished.outcome, finished.text).into());
    }
    Ok(finished)
}

async fn finish(line: &RunServiceClient<Channel>, run_id: &str) -> Result<Finished> {
    let request = v1::WatchRunRequest {
        run_id: run_id.to_owned(),
        include_descendants: false,
        stop_when_suspended: true,
        ..v1::WatchRunRequest::default()
    };
    let mut events = line.clone().watch_run(request).await?.into_inner();
    let (mut turns_at, mut asked, mut max_output) = (Vec::new(), Vec::new(), 0);
    while let Some(answer) = tokio::time::timeout(PATIENCE, events.message()).await?? {
        let Some(event) = answer.event else { continue };
        let at = event.time.map_or(0.0, |time| time.seconds as f64 + f64::from(time.nanos) / 1e9);
        match event.payload {
            Some(Payload::TurnStarted(turn)) => max_output = turn.max_output,
            Some(Payload::TurnEnded(turn)) => {
                let is_for_notes = turn.purpose == "compact";
                asked.push(Asked { input_tokens: turn.input_tokens, max_output, is_for_notes });
                if !is_for_notes {
                    turns_at.push(at);
                }
            }
            Some(Payload::RunEnded(ended)) => return Ok(Finished { outcome: ended.outcome(), text: ended.output_text, turns_at, asked }),
            Some(Payload::RunSuspended(stop)) => return Ok(Finished { outcome: stop.outcome(), text: stop.output_text, turns_at, asked }),
            _ => {}
        }
    }
    Err("the stream ended before the run did".into())
}

async fn connect(dir: &Path) -> Result<RunServiceClient<Channel>> {
    let channel = Endpoint::try_from(format!("unix:{}", dir.join("wrend.sock").display()))?.connect().await?;
    Ok(RunServiceClient::new(channel).max_decoding_message_size(64 * 1024 * 1024))
}

async fn serve(dir: &Path, environment: &[(String, String)]) -> Result<(Child, RunServiceClient<Channel>)> {
    let socket = dir.join("wrend.sock");
    let mut child = Command::new(env!("CARGO_BIN_EXE_wrend"))
        .arg("--data-dir")
        .arg(dir.join("data"))
        .arg("--listen")
        .arg(format!("unix:{}", socket.display()))
        .env_clear()
        .envs(environment.iter().cloned())
        .stdout(Stdio::piped())
        .stderr(Stdio::from(std::fs::File::options().create(true).append(true).open(dir.join("wrend.log"))?))
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    if !line.contains("serving") {
        return Err(format!("wrend did not serve: {line:?} {}", std::fs::read_to_string(dir.join("wrend.log"))?).into());
    }
    Ok((child, connect(dir).await?))
}

fn flat(root: v1::RunNode) -> Vec<v1::Run> {
    let mut runs = Vec::new();
    let mut open = vec![root];
    while let Some(node) = open.pop() {
        runs.extend(node.run);
        open.extend(node.children);
    }
    runs
}

/// Milliseconds since `began`.
pub fn ms(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}
