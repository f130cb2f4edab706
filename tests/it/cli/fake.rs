//! A daemon that answers from a script, over a real unix socket, and the command line run against it in this process.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Mutex};

use futures_util::stream::{self, BoxStream, StreamExt};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status};
use wren::cli::{self, Interrupts, LocalDaemon, Size, Surroundings};
use wren::wire::v1;
use wren::wire::v1::run_service_server::{RunService, RunServiceServer};
use wren::wire::v1::system_service_server::{SystemService, SystemServiceServer};
use wren::wire::v1::workflow_service_server::{WorkflowService, WorkflowServiceServer};

/// What becomes of a stream after its events.
#[derive(Clone)]
pub enum After {
    /// It ends in good order.
    End,
    /// It breaks.
    Break,
    /// It stays open.
    Open,
    /// It stays open, and the user presses Ctrl-C.
    Interrupt,
}

/// What the daemon answers, and what it was asked.
pub struct Script {
    /// GetRun, SubmitRun, ResumeRun, and the root of GetRunTree.
    pub run: v1::Run,
    /// What GetRun answers once CancelRun was asked for.
    pub cancelled: Option<v1::Run>,
    /// The answers to WatchRun, one for each time.
    pub watches: VecDeque<(Vec<v1::Event>, After)>,
    /// The answer to SubmitRun and ValidateWorkflow if it is an error.
    pub refusal: Option<Status>,
    /// What ValidateWorkflow answers.
    pub validated: v1::ValidateWorkflowResponse,
    /// Whether a CancelRun that waits never answers, while the user presses Ctrl-C once more.
    pub cancel_hangs: bool,
    /// The answer to a CancelRun that does not wait if it is an error.
    pub cancel_refusal: Option<Status>,
    /// Whether there are more runs than ListRuns answers.
    pub has_more_runs: bool,
    /// The transcript, page by page.
    pub pages: Vec<Vec<v1::Message>>,
    /// What was asked, as debug text.
    pub asked: Vec<String>,
    /// The requests of WatchRun.
    pub watched: Vec<v1::WatchRunRequest>,
    /// The requests of SubmitRun.
    pub submitted: Vec<v1::SubmitRunRequest>,
}

/// The daemon.
#[derive(Clone)]
pub struct Fake {
    pub script: Arc<Mutex<Script>>,
    interrupt: mpsc::Sender<()>,
}

/// What a command line did.
#[derive(Debug)]
pub struct Seen {
    pub code: u8,
    pub stdout: String,
    pub stderr: String,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A reader that has gone, as behind `| head`.
pub struct Gone;

impl Write for Gone {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// How a command line is run.
pub struct Setting {
    pub stdin: &'static str,
    pub variables: Vec<(&'static str, String)>,
    pub size: Option<Size>,
    pub is_stdout_gone: bool,
    pub directory: std::path::PathBuf,
}

impl Default for Setting {
    fn default() -> Self {
        Self { stdin: "wren: v1\n", variables: Vec::new(), size: None, is_stdout_gone: false, directory: std::env::temp_dir() }
    }
}

/// Runs a command line without a daemon.
pub async fn alone(args: &[&str], setting: Setting) -> Seen {
    execute(args, setting, Box::pin(stream::pending())).await
}

async fn execute(args: &[&str], setting: Setting, interrupts: Interrupts) -> Seen {
    let (stdout, stderr) = (Shared::default(), Shared::default());
    let Setting { stdin, variables, size, is_stdout_gone, directory } = setting;
    let surroundings = Surroundings {
        variable: Box::new(move |name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone())),
        directory,
        stdin: Box::new(stdin.as_bytes()),
        stdout: if is_stdout_gone { Box::new(Gone) } else { Box::new(stdout.clone()) },
        stderr: Box::new(stderr.clone()),
        stdout_is_terminal: false,
        terminal: Box::new(move || size),
        interrupts,
        now_us: || 1_796_083_260_000_000,
        start_local: Box::new(|| Box::pin(async { Err::<LocalDaemon, _>("the local store is locked".to_owned()) })),
        schema_json: "{\"type\": \"object\"}".to_owned(),
    };
    let args = std::iter::once("wrenctl").chain(args.iter().copied()).map(Into::into).collect();
    let code = cli::run(args, surroundings).await;
    Seen { code, stdout: stdout.text(), stderr: stderr.text() }
}

impl Script {
    pub fn new(run: v1::Run) -> Self {
        Self {
            run,
            cancelled: None,
            watches: VecDeque::new(),
            refusal: None,
            validated: v1::ValidateWorkflowResponse::default(),
            cancel_hangs: false,
            cancel_refusal: None,
            has_more_runs: false,
            pages: Vec::new(),
            asked: Vec::new(),
            watched: Vec::new(),
            submitted: Vec::new(),
        }
    }

    /// Runs a command line against a daemon with this script; returns also what the daemon was asked.
    pub async fn play(self, args: &[&str], mut setting: Setting) -> (Seen, Self) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s.sock");
        let listener = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
        let (interrupt, interrupts) = mpsc::channel(4);
        let fake = Fake { script: Arc::new(Mutex::new(self)), interrupt };
        let server = tonic::transport::Server::builder()
            .add_service(RunServiceServer::new(fake.clone()))
            .add_service(WorkflowServiceServer::new(fake.clone()))
            .add_service(SystemServiceServer::new(fake.clone()))
            .serve_with_incoming(listener);
        setting.variables.push(("WREN_ADDRESS", format!("unix:{}", socket.display())));
        let seen = tokio::select! {
            seen = execute(args, setting, Box::pin(ReceiverStream::new(interrupts))) => seen,
            served = server => panic!("the server stopped: {served:?}"),
        };
        let script = std::mem::replace(&mut *fake.script.lock().unwrap(), Self::new(v1::Run::default()));
        (seen, script)
    }
}

impl Fake {
    fn asked<T: std::fmt::Debug>(&self, name: &str, request: &T) {
        self.script.lock().unwrap().asked.push(format!("{name} {request:?}"));
    }

    fn run(&self) -> v1::Run {
        self.script.lock().unwrap().run.clone()
    }
}

#[tonic::async_trait]
impl RunService for Fake {
    async fn submit_run(&self, request: Request<v1::SubmitRunRequest>) -> Result<Response<v1::SubmitRunResponse>, Status> {
        let mut script = self.script.lock().unwrap();
        script.submitted.push(request.into_inner());
        match script.refusal.clone() {
            Some(status) => Err(status),
            None => Ok(Response::new(v1::SubmitRunResponse { run: Some(script.run.clone()), ..v1::SubmitRunResponse::default() })),
        }
    }

    async fn get_run(&self, _: Request<v1::GetRunRequest>) -> Result<Response<v1::GetRunResponse>, Status> {
        Ok(Response::new(v1::GetRunResponse { run: Some(self.run()) }))
    }

    async fn list_runs(&self, request: Request<v1::ListRunsRequest>) -> Result<Response<v1::ListRunsResponse>, Status> {
        self.asked("ListRuns", request.get_ref());
        let runs = if request.get_ref().filter.contains("SUSPENDED") { vec![self.run()] } else { Vec::new() };
        let has_more = self.script.lock().unwrap().has_more_runs && !runs.is_empty();
        Ok(Response::new(v1::ListRunsResponse { runs, next_page_token: if has_more { "next".to_owned() } else { String::new() } }))
    }

    type WatchRunStream = BoxStream<'static, Result<v1::WatchRunResponse, Status>>;

    async fn watch_run(&self, request: Request<v1::WatchRunRequest>) -> Result<Response<Self::WatchRunStream>, Status> {
        let mut script = self.script.lock().unwrap();
        script.watched.push(request.into_inner());
        let (events, after) = script.watches.pop_front().ok_or_else(|| Status::unavailable("no more of the script"))?;
        let events = stream::iter(events.into_iter().map(|event| Ok(v1::WatchRunResponse { event: Some(event) })));
        let interrupt = self.interrupt.clone();
        Ok(Response::new(match after {
            After::End => events.boxed(),
            After::Break => events.chain(stream::iter([Err(Status::unavailable("cut"))])).boxed(),
            After::Open => events.chain(stream::pending()).boxed(),
            After::Interrupt => {
                let press = async move {
                    interrupt.send(()).await.unwrap();
                    std::future::pending().await
                };
                events.chain(stream::once(press)).boxed()
            }
        }))
    }

    async fn get_run_tree(&self, _: Request<v1::GetRunTreeRequest>) -> Result<Response<v1::GetRunTreeResponse>, Status> {
        let root = v1::RunNode { run: Some(self.run()), ..v1::RunNode::default() };
        Ok(Response::new(v1::GetRunTreeResponse { root: Some(root), as_of_tree_seq: 9 }))
    }

    async fn get_transcript(&self, request: Request<v1::GetTranscriptRequest>) -> Result<Response<v1::GetTranscriptResponse>, Status> {
        let page: usize = request.get_ref().page_token.parse().unwrap_or(0);
        let script = self.script.lock().unwrap();
        let next_page_token = if page + 1 < script.pages.len() { (page + 1).to_string() } else { String::new() };
        Ok(Response::new(v1::GetTranscriptResponse { messages: script.pages.get(page).cloned().unwrap_or_default(), next_page_token }))
    }

    async fn cancel_run(&self, request: Request<v1::CancelRunRequest>) -> Result<Response<v1::CancelRunResponse>, Status> {
        self.asked("CancelRun", request.get_ref());
        let hangs = self.script.lock().unwrap().cancel_hangs;
        if hangs && request.get_ref().wait {
            self.interrupt.send(()).await.unwrap();
            std::future::pending::<()>().await;
        }
        let mut script = self.script.lock().unwrap();
        if let Some(status) = script.cancel_refusal.clone().filter(|_| !request.get_ref().wait) {
            return Err(status);
        }
        let state_at_cancel = script.run.state;
        if let Some(run) = script.cancelled.take() {
            script.run = run;
        }
        if !request.get_ref().wait {
            return Ok(Response::new(v1::CancelRunResponse { run: Some(script.run.clone()), ..Default::default() }));
        }
        let run_id = script.run.run_id.clone();
        let receipt = v1::CancelReceipt { run_id, state_at_cancel, calls_cancelled: 1, quiescent_ms: 7, ..Default::default() };
        Ok(Response::new(v1::CancelRunResponse { run: Some(script.run.clone()), receipts: vec![receipt], quiescent_ms: 7 }))
    }

    async fn resume_run(&self, request: Request<v1::ResumeRunRequest>) -> Result<Response<v1::ResumeRunResponse>, Status> {
        self.asked("ResumeRun", request.get_ref());
        Ok(Response::new(v1::ResumeRunResponse { run: Some(self.run()) }))
    }

    async fn get_trace(&self, request: Request<v1::GetTraceRequest>) -> Result<Response<v1::GetTraceResponse>, Status> {
        let content = format!("{}\n", request.get_ref().format().as_str_name());
        Ok(Response::new(v1::GetTraceResponse { content, trace_id: "abc".to_owned(), span_count: 3 }))
    }
}

#[tonic::async_trait]
impl WorkflowService for Fake {
    async fn validate_workflow(&self, _: Request<v1::ValidateWorkflowRequest>) -> Result<Response<v1::ValidateWorkflowResponse>, Status> {
        Ok(Response::new(self.script.lock().unwrap().validated.clone()))
    }
}

#[tonic::async_trait]
impl SystemService for Fake {
    async fn get_server_info(&self, request: Request<v1::GetServerInfoRequest>) -> Result<Response<v1::GetServerInfoResponse>, Status> {
        let token = request.metadata().get("authorization").map(|value| value.to_str().unwrap().to_owned());
        let default_limits = Some(v1::Limits { max_turns: Some(50), ..v1::Limits::default() });
        Ok(Response::new(v1::GetServerInfoResponse { store: token.unwrap_or_default(), default_limits, ..Default::default() }))
    }

    async fn list_models(&self, _: Request<v1::ListModelsRequest>) -> Result<Response<v1::ListModelsResponse>, Status> {
        Err(Status::unimplemented("list_models"))
    }
}
