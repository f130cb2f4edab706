//! A door before the scripted provider that lets so many requests through at once and refuses the others, as a provider
//! with a rate limit does. It runs beside the measured daemon, on a thread of its own.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Result;
use crate::stub::Stub;

/// What a request met.
#[derive(Clone, Copy, Debug)]
pub struct Knock {
    pub at: Instant,
    pub refused: bool,
}

#[derive(Clone)]
pub struct Door {
    pub stub: Stub,
    knocks: Arc<Mutex<Vec<Knock>>>,
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

impl Door {
    /// Opens it before `behind`. It lives as long as the process.
    pub fn open(behind: &Stub, at_once: usize) -> Result<Self> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let door = Self { stub: Stub::at(&listener.local_addr()?.to_string()), knocks: Arc::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (knocks, base, room) = (door.knocks.clone(), behind.url(), Arc::new(Semaphore::new(at_once)));
        // The client wants one, though nothing here is encrypted.
        let _already_there = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().build()?;
        std::thread::spawn(move || {
            runtime.block_on(async move {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                let mut open = FuturesUnordered::new();
                loop {
                    tokio::select! {
                        Ok((stream, _)) = listener.accept() => {
                            let (knocks, base, room, client) = (knocks.clone(), base.clone(), room.clone(), client.clone());
                            let serve = service_fn(move |request| pass(request, client.clone(), base.clone(), room.clone(), knocks.clone()));
                            open.push(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), serve));
                        }
                        Some(_) = open.next() => {}
                    }
                }
            });
        });
        Ok(door)
    }

    pub fn knocks(&self) -> Vec<Knock> {
        self.knocks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn pass(
    request: Request<Incoming>,
    client: reqwest::Client,
    base: String,
    room: Arc<Semaphore>,
    knocks: Arc<Mutex<Vec<Knock>>>,
) -> std::result::Result<Response<Body>, Infallible> {
    let place = room.try_acquire_owned().ok();
    knocks.lock().unwrap_or_else(PoisonError::into_inner).push(Knock { at: Instant::now(), refused: place.is_none() });
    let url = format!("{base}{}", request.uri().path());
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let Some(place) = place else {
        return Ok(answer(429, r#"{"error":{"message":"too many requests","code":"rate_limit_exceeded"}}"#));
    };
    match client.post(url).header("content-type", "application/json").body(body).send().await {
        Ok(response) => Ok(handed_on(response, place)),
        Err(_) => Ok(answer(502, r#"{"error":{"message":"nobody is behind the door"}}"#)),
    }
}

/// The answer as it comes; the place is free once it is whole or dropped.
fn handed_on(response: reqwest::Response, place: OwnedSemaphorePermit) -> Response<Body> {
    let kind = response.headers().get("content-type").cloned();
    let pieces = stream::unfold((response, place), |(mut response, place)| async move {
        let bytes = response.chunk().await.ok().flatten()?;
        Some((Ok::<_, Infallible>(Frame::data(bytes)), (response, place)))
    });
    let mut answer = Response::new(BodyExt::boxed_unsync(StreamBody::new(pieces)));
    if let Some(kind) = kind {
        answer.headers_mut().insert("content-type", kind);
    }
    answer
}

fn answer(status: u16, body: &'static str) -> Response<Body> {
    let mut answer = Response::new(Full::new(Bytes::from_static(body.as_bytes())).boxed_unsync());
    *answer.status_mut() = hyper::StatusCode::from_u16(status).unwrap_or_default();
    answer
}
