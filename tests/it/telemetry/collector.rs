//! A collector in the test's own process: OTLP over gRPC and over HTTP.

use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

#[derive(Clone)]
struct Received {
    spans: Arc<(Mutex<Vec<Span>>, Condvar)>,
    /// Whether it takes anything now.
    open: tokio::sync::watch::Receiver<bool>,
}

impl Received {
    fn take(&self, request: ExportTraceServiceRequest) {
        let spans = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans);
        self.spans.0.lock().unwrap().extend(spans);
        self.spans.1.notify_all();
    }
}

#[tonic::async_trait]
impl TraceService for Received {
    async fn export(&self, request: Request<ExportTraceServiceRequest>) -> Result<Response<ExportTraceServiceResponse>, Status> {
        // Nobody is there to close it any more when the test is over.
        let _ = self.open.clone().wait_for(|open| *open).await;
        self.take(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// The collector, on a thread of its own. Over gRPC it takes requests of at most 4 MiB, as collectors do.
pub struct Collector {
    received: Received,
    open: tokio::sync::watch::Sender<bool>,
    grpc: u16,
    http: u16,
    _runtime: tokio::runtime::Runtime,
}

impl Collector {
    pub fn start() -> Self {
        Self::start_with(true)
    }

    /// Starts one that answers nobody, over gRPC, before [`Collector::open`].
    pub fn slow() -> Self {
        Self::start_with(false)
    }

    fn start_with(is_open: bool) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (open, is_open) = tokio::sync::watch::channel(is_open);
        let received = Received { spans: Arc::default(), open: is_open };
        let (ports, port) = mpsc::channel();
        let service = received.clone();
        runtime.spawn(async move {
            let grpc = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
            ports.send((grpc.local_addr().unwrap().port(), http.local_addr().unwrap().port())).unwrap();
            let spans = service.clone();
            let serve_http = async move {
                let mut open = futures_util::stream::FuturesUnordered::new();
                loop {
                    tokio::select! {
                        accepted = http.accept() => open.push(answer(accepted.unwrap().0, spans.clone())),
                        Some(()) = futures_util::StreamExt::next(&mut open), if !open.is_empty() => {}
                    }
                }
            };
            let serve_grpc = tonic::transport::Server::builder()
                .add_service(TraceServiceServer::new(service).max_decoding_message_size(4 * 1024 * 1024))
                .serve_with_incoming(TcpListenerStream::new(grpc));
            tokio::select! {
                served = serve_grpc => served.unwrap(),
                () = serve_http => {}
            }
        });
        let (grpc, http) = port.recv().unwrap();
        Self { received, open, grpc, http, _runtime: runtime }
    }

    /// Answers everybody from now on.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    pub fn grpc(&self) -> String {
        format!("http://127.0.0.1:{}", self.grpc)
    }

    pub fn http(&self) -> String {
        format!("http://127.0.0.1:{}", self.http)
    }

    /// Everything that has arrived.
    pub fn spans(&self) -> Vec<Span> {
        self.received.spans.0.lock().unwrap().clone()
    }

    /// Waits until so many spans are here.
    pub fn wait_for(&self, count: usize) -> Vec<Span> {
        let (spans, changed) = &*self.received.spans;
        let guard = spans.lock().unwrap();
        let (guard, waited) = changed.wait_timeout_while(guard, Duration::from_secs(20), |spans| spans.len() < count).unwrap();
        assert!(!waited.timed_out(), "{} of {count} spans arrived", guard.len());
        guard.clone()
    }
}

/// Answers the POST requests of one HTTP connection.
async fn answer(mut stream: TcpStream, spans: Received) {
    let mut held = Vec::new();
    loop {
        let head_end = loop {
            if let Some(end) = held.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut held).await.unwrap_or(0) == 0 {
                return;
            }
        };
        let head = String::from_utf8_lossy(&held[..head_end]).to_ascii_lowercase();
        assert!(head.starts_with("post /v1/traces"), "{head}");
        let length: usize = head.lines().find_map(|line| line.strip_prefix("content-length:")).unwrap().trim().parse().unwrap();
        while held.len() < head_end + length {
            if stream.read_buf(&mut held).await.unwrap_or(0) == 0 {
                return;
            }
        }
        spans.take(ExportTraceServiceRequest::decode(&held[head_end..head_end + length]).unwrap());
        held.drain(..head_end + length);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    }
}
