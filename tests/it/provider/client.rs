//! The adapter against servers that misbehave: on a real socket, with small timeouts.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use futures_util::StreamExt;
use secrecy::SecretString;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use wren::kernel::Stop;
use wren::kernel::event::Abort;
use wren::provider::allowance::{Allowance, Left};
use wren::provider::exchange::Client;
use wren::provider::http::{Auth, Config, Timeouts};
use wren::provider::openai::Chat;
use wren::provider::{Delta, Error, Provider, ReplyBuilder, fail};

use super::{gather, model, request, user};

const KEY: &str = "sk-very-secret-0123456789";
const EVENT: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"half\"}}]}\n\n";
const CLOSED: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";

/// What the server does with a connection, once it has read the request.
enum Act {
    /// Answers and closes.
    Answer(Vec<u8>),
    /// Answers and then waits for the client to close.
    Hold(Vec<u8>),
    /// Answers and then sends the second part until the client closes.
    Flood(Vec<u8>, Vec<u8>),
}

/// A server that does one thing.
struct Server {
    url: String,
    /// One entry for each request's head.
    heads: Arc<Mutex<Vec<String>>>,
    /// One entry for each request that was read.
    asked: mpsc::Receiver<()>,
    /// One entry for each connection that the client closed.
    closed: mpsc::Receiver<()>,
}

impl Server {
    fn start(act: Act) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let (arrival, asked) = mpsc::channel(16);
        let (departure, closed) = mpsc::channel(16);
        let heads = Arc::new(Mutex::new(Vec::new()));
        let noted = heads.clone();
        // The thread ends with the test process: a blocked accept has no other end.
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let mut socket = socket.unwrap();
                noted.lock().unwrap().push(head(&mut socket));
                arrival.blocking_send(()).unwrap_or_default();
                match &act {
                    Act::Answer(bytes) => socket.write_all(bytes).unwrap_or_default(),
                    Act::Hold(bytes) => {
                        socket.write_all(bytes).unwrap_or_default();
                        while socket.read(&mut [0; 1024]).is_ok_and(|read| read > 0) {}
                        departure.blocking_send(()).unwrap_or_default();
                    }
                    Act::Flood(bytes, more) => {
                        socket.write_all(bytes).unwrap_or_default();
                        while socket.write_all(more).is_ok() {}
                        departure.blocking_send(()).unwrap_or_default();
                    }
                }
            }
        });
        Self { url, heads, asked, closed }
    }

    async fn saw_its_client_leave(&mut self) {
        self.closed.recv().await.unwrap();
    }
}

/// Reads a request whole, so that closing the socket resets nothing, and returns its head.
fn head(socket: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut block = [0; 4096];
    loop {
        let read = socket.read(&mut block).unwrap_or(0);
        bytes.extend_from_slice(&block[..read]);
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            assert!(read > 0, "half a request");
            continue;
        };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |length| length.parse().unwrap());
        if body.len() >= length || read == 0 {
            return head.to_owned();
        }
    }
}

fn answer(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len()).into_bytes()
}

fn open_ended(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\r\n{body}").into_bytes()
}

fn provider(url: &str) -> Client<Chat> {
    let timeouts = Timeouts { connect_ms: 5000, first_byte_ms: 20_000, idle_ms: 20_000 };
    with_timeouts(url, timeouts)
}

fn with_timeouts(url: &str, timeouts: Timeouts) -> Client<Chat> {
    let key = Some(SecretString::from(KEY.to_owned()));
    let config = Config {
        name: "openai".to_owned(),
        base_url: url.to_owned(),
        key,
        auth: Auth::Bearer,
        headers: &[],
        key_advice: "set OPENAI_API_KEY".to_owned(),
        timeouts,
    };
    Client::new(config, Chat::of).unwrap()
}

async fn ask(provider: &Client<Chat>) -> (ReplyBuilder, Vec<Delta>, Option<Error>) {
    let request = Arc::new(request(model("gpt-x"), "", vec![user("Hi.")], Vec::new()));
    gather(provider.send(request, CancellationToken::new()).collect::<Vec<_>>().await)
}

async fn fails(provider: &Client<Chat>) -> Error {
    let (builder, _, error) = ask(provider).await;
    assert!(builder.finish().is_none());
    let error = error.unwrap();
    assert!(!error.message.contains(KEY) && !format!("{error:?}").contains(KEY), "the key stands in {error:?}");
    error
}

#[tokio::test]
async fn a_refused_key_is_named_by_its_variable_and_never_shown() {
    let body = format!("{{\"error\":{{\"message\":\"Incorrect API key provided: {KEY}.\",\"code\":\"bad_{KEY}\"}}}}");
    let server = Server::start(Act::Answer(answer("401 Unauthorized", "", &body)));
    let error = fails(&provider(&server.url)).await;
    assert_eq!((error.kind, error.retryable, error.http_status), (Abort::Auth, false, Some(401)));
    assert!(error.message.contains("Incorrect API key provided: [key].") && error.message.contains("set OPENAI_API_KEY"), "{error}");
    let heads = server.heads.lock().unwrap();
    assert!(heads[0].starts_with("post /v1/chat/completions http/1.1"), "{}", heads[0]);
    assert!(heads[0].contains(&format!("authorization: bearer {KEY}")));
}

#[tokio::test]
async fn the_key_is_not_shown_by_an_error_inside_a_stream_either() {
    let body = format!("data: {{\"error\":{{\"message\":\"bad key {KEY}\",\"code\":401}}}}\n\n");
    let server = Server::start(Act::Answer(open_ended(&body)));
    let error = fails(&provider(&server.url)).await;
    assert_eq!((error.kind, error.reply_begun), (Abort::Auth, false));
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Server::start(Act::Answer(answer("200 OK", "", "{}")));
    let location = format!("location: {}/chat/completions\r\n", elsewhere.url);
    for status in ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let server = Server::start(Act::Answer(answer(status, &location, "")));
        let error = fails(&provider(&server.url)).await;
        assert_eq!((error.kind, error.retryable), (Abort::InvalidRequest, false));
        assert!(error.message.contains("redirect to 127.0.0.1"), "{error}");
    }
    assert!(elsewhere.heads.lock().unwrap().is_empty(), "nothing was sent there, least of all the key");
}

#[tokio::test]
async fn a_model_that_is_not_there_is_named_with_the_base_url() {
    let server = Server::start(Act::Answer(answer("404 Not Found", "", "<html>nothing here</html>")));
    let error = fails(&provider(&server.url)).await;
    assert_eq!((error.kind, error.retryable), (Abort::NotFound, false));
    assert!(error.message.contains("\"gpt-x\"") && error.message.contains(&server.url) && !error.message.contains("<html>"), "{error}");
}

#[tokio::test]
async fn a_wait_of_ten_years_is_clamped() {
    let body = "{\"error\":{\"message\":\"slow down\"}}";
    let server = Server::start(Act::Answer(answer("429 Too Many Requests", "retry-after: 315360000\r\n", body)));
    let error = fails(&provider(&server.url)).await;
    assert_eq!((error.kind, error.retryable), (Abort::RateLimited, true));
    assert_eq!(error.retry_after_ms, Some(fail::RETRY_AFTER_MS_MAX));
    let server = Server::start(Act::Answer(answer("200 OK", "retry-after: 9\r\n", &format!("{EVENT}{CLOSED}data: [DONE]\n\n"))));
    let (builder, _, error) = ask(&provider(&server.url)).await;
    assert_eq!((builder.finish().unwrap().text.as_str(), error), ("half", None), "on success it means nothing");
}

#[tokio::test]
async fn what_is_left_is_told_before_an_answer_and_before_a_refusal() {
    let said = "x-ratelimit-limit-requests: 60\r\nx-ratelimit-remaining-requests: 7\r\nx-ratelimit-reset-requests: 53s\r\n";
    let whole = answer("200 OK", said, &format!("{EVENT}{CLOSED}data: [DONE]\n\n"));
    let refused = answer("429 Too Many Requests", said, "{\"error\":{\"message\":\"slow down\"}}");
    for (answer, is_whole) in [(whole, true), (refused, false)] {
        let server = Server::start(Act::Answer(answer));
        let request = Arc::new(request(model("gpt-x"), "", vec![user("Hi.")], Vec::new()));
        let items: Vec<_> = provider(&server.url).send(request, CancellationToken::new()).collect().await;
        let left = Left { limit: 60, remaining: 7, full_in_ms: 53_000 };
        assert_eq!(items[0], Ok(Delta::Allowance(Allowance { requests: Some(left), tokens: None })));
        assert_eq!(matches!(items.last(), Some(Ok(Delta::Stop { .. }))), is_whole, "{items:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let url = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}/v1", listener.local_addr().unwrap())
    };
    let error = fails(&provider(&url)).await;
    assert_eq!((error.kind, error.retryable, error.reply_begun, error.unanswered), (Abort::Network, true, false, false));
    assert!(error.message.contains(&url) && error.message.contains("is a server listening there?"), "{error}");
}

#[tokio::test]
async fn silence_before_the_answer_and_within_it_has_an_end() {
    let short = Timeouts { connect_ms: 5000, first_byte_ms: 50, idle_ms: 20_000 };
    let mut mute = Server::start(Act::Hold(Vec::new()));
    let error = fails(&with_timeouts(&mute.url, short)).await;
    assert_eq!((error.kind, error.retryable, error.reply_begun, error.unanswered), (Abort::NoAnswer, true, false, true));
    mute.saw_its_client_leave().await;
    let head_only = Server::start(Act::Hold(open_ended("")));
    assert_eq!(fails(&with_timeouts(&head_only.url, short)).await.kind, Abort::NoAnswer);

    let short = Timeouts { connect_ms: 5000, first_byte_ms: 20_000, idle_ms: 50 };
    let mut stalled = Server::start(Act::Hold(open_ended(EVENT)));
    let error = fails(&with_timeouts(&stalled.url, short)).await;
    assert_eq!((error.kind, error.retryable, error.reply_begun), (Abort::NoAnswer, true, true));
    stalled.saw_its_client_leave().await;

    // Nothing of this reply is missing, though its connection stays open.
    let closed = Server::start(Act::Hold(open_ended(&format!("{EVENT}{CLOSED}"))));
    let (builder, _, error) = ask(&with_timeouts(&closed.url, short)).await;
    assert_eq!((builder.finish().unwrap().stop, error), (Stop::EndTurn, None));
}

#[tokio::test]
async fn a_connection_that_closes_before_an_answer_was_one() {
    let server = Server::start(Act::Answer(Vec::new()));
    let error = fails(&provider(&server.url)).await;
    assert_eq!((error.kind, error.retryable, error.reply_begun, error.unanswered), (Abort::Network, true, false, true));
    assert!(error.message.contains("was lost before an answer"), "{error}");
}

#[tokio::test]
async fn a_connection_that_closes_in_the_middle_is_a_cut_stream() {
    for body in ["", EVENT] {
        let server = Server::start(Act::Answer(open_ended(body)));
        let error = fails(&provider(&server.url)).await;
        assert_eq!((error.kind, error.retryable), (Abort::CutStream, true));
        assert_eq!((error.reply_begun, error.unanswered), (!body.is_empty(), body.is_empty()));
    }
    // Less than the length that was promised.
    let short = format!("HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n{EVENT}");
    let server = Server::start(Act::Answer(short.into_bytes()));
    assert_eq!(fails(&provider(&server.url)).await.kind, Abort::CutStream);
}

#[tokio::test]
async fn cancelling_closes_the_connection() {
    for body in [None, Some(open_ended(EVENT))] {
        let waits_for_head = body.is_none();
        let mut server = Server::start(Act::Hold(body.unwrap_or_default()));
        let token = CancellationToken::new();
        let request = Arc::new(request(model("gpt-x"), "", vec![user("Hi.")], Vec::new()));
        let mut stream = provider(&server.url).send(request, token.clone());
        if waits_for_head {
            let cancel = async {
                server.asked.recv().await.unwrap();
                token.cancel();
            };
            assert!(futures_util::future::join(stream.next(), cancel).await.0.is_none());
        } else {
            assert_eq!(stream.next().await.unwrap().unwrap(), Delta::Text("half".to_owned()));
            token.cancel();
            assert!(stream.next().await.is_none());
        }
        server.saw_its_client_leave().await;
        drop(stream);
    }
}

#[tokio::test]
async fn dropping_the_stream_closes_the_connection() {
    let mut server = Server::start(Act::Hold(open_ended(EVENT)));
    let request = Arc::new(request(model("gpt-x"), "", vec![user("Hi.")], Vec::new()));
    let mut stream = provider(&server.url).send(request, CancellationToken::new());
    assert!(stream.next().await.unwrap().is_ok());
    drop(stream);
    server.saw_its_client_leave().await;
}

#[tokio::test]
async fn endless_bodies_are_left() {
    let block = vec![b'x'; 64 * 1024];
    let error_head = b"HTTP/1.1 500 Oops\r\nconnection: close\r\n\r\n".to_vec();
    let mut server = Server::start(Act::Flood(error_head, block.clone()));
    let error = fails(&provider(&server.url)).await;
    assert_eq!((error.kind, error.retryable), (Abort::Provider, true));
    assert!(error.message.len() < 2000);
    server.saw_its_client_leave().await;

    let mut server = Server::start(Act::Flood(open_ended("data: "), block));
    assert_eq!(fails(&provider(&server.url)).await.kind, Abort::Malformed);
    server.saw_its_client_leave().await;
}

#[tokio::test]
async fn what_was_compressed_is_bounded_by_what_it_becomes() {
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    bomb.write_all(b"data: ").unwrap();
    bomb.write_all(&vec![b'x'; 4 << 20]).unwrap();
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() < 100_000);
    let mut bytes = format!("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", bomb.len()).into_bytes();
    bytes.extend_from_slice(&bomb);
    let server = Server::start(Act::Answer(bytes));
    assert_eq!(fails(&provider(&server.url)).await.kind, Abort::Malformed);
}

#[tokio::test]
async fn a_whole_json_body_is_one_reply() {
    let body = "{\"id\":\"r\",\"model\":\"m\",\"choices\":[{\"message\":{\"content\":\"Hi.\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}";
    let server = Server::start(Act::Answer(answer("200 OK", "content-type: application/json\r\n", body)));
    let (builder, _, error) = ask(&provider(&server.url)).await;
    assert_eq!(error, None);
    let reply = builder.finish().unwrap();
    assert_eq!((reply.text.as_str(), reply.usage.unwrap().total_tokens(), reply.response_id.as_deref()), ("Hi.", 5, Some("r")));
}
