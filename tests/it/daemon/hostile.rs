//! Hostile input at the real daemon's two doors, with bounds: its memory grows by little, whoever else is there is served.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use wren::wire::v1;
use wren::wire::v1::run_service_client::RunServiceClient;

use crate::support::{Daemon, int};

/// What a hostile document may take, and what a hostile stream may.
const DOCUMENT_KB: u64 = 50 * 1024;
const STREAM_KB: u64 = 20 * 1024;

const HEAD: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\r\n";
const DONE: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n";

/// One way in which a provider misbehaves, by the model's name.
fn misbehave(socket: &mut TcpStream, model: &str) -> std::io::Result<()> {
    let megabyte = vec![b'x'; 1 << 20];
    let repeat = |socket: &mut TcpStream, piece: &[u8], times: usize| (0..times).try_for_each(|_| socket.write_all(piece));
    match model {
        // One line of 200 MB.
        "line" => {
            socket.write_all(HEAD.as_bytes())?;
            socket.write_all(b"data: {\"choices\":[{\"delta\":{\"content\":\"")?;
            repeat(socket, &megabyte, 200)
        }
        // One event of 200 MB in many lines.
        "event" => {
            socket.write_all(HEAD.as_bytes())?;
            repeat(socket, &[&b"data: "[..], &megabyte[..64 * 1024], b"\n"].concat(), 3200)
        }
        // Text without an end.
        "text" => {
            socket.write_all(HEAD.as_bytes())?;
            let piece = format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n", "x".repeat(16 * 1024));
            repeat(socket, piece.as_bytes(), 12_800)
        }
        // Comments without an end.
        "comments" => {
            socket.write_all(HEAD.as_bytes())?;
            repeat(socket, &b": nothing\n\n".repeat(64 * 1024), 30)?;
            socket.write_all(DONE.as_bytes())
        }
        // Ten thousand calls at once.
        "calls" => {
            socket.write_all(HEAD.as_bytes())?;
            for index in 0..10_000 {
                let call =
                    format!("{{\"index\":{index},\"id\":\"call_{index}\",\"function\":{{\"name\":\"noop\",\"arguments\":\"{{}}\"}}}}");
                write!(socket, "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"tool_calls\":[{call}]}}}}]}}\n\n")?;
            }
            socket.write_all(DONE.as_bytes())
        }
        // A little that unpacks to 2 GB.
        "gzip" => {
            let head = HEAD.replace("\r\n\r\n", "\r\ncontent-encoding: gzip\r\n\r\n");
            socket.write_all(head.as_bytes())?;
            let mut packed = flate2::write::GzEncoder::new(&mut *socket, flate2::Compression::best());
            (0..2048).try_for_each(|_| packed.write_all(&megabyte))?;
            packed.finish().map(|_| ())
        }
        // A body of 200 MB that is no stream at all.
        "body" => {
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\n\r\n{\"choices\": [{\"message\": {\"content\": \"";
            socket.write_all(head.as_bytes())?;
            repeat(socket, &megabyte, 200)
        }
        // An error as long.
        "error" => {
            socket.write_all(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: application/json\r\n\r\n{\"error\": \"")?;
            repeat(socket, &megabyte, 200)
        }
        // Usage below nothing and beyond everything.
        "usage" => {
            socket.write_all(HEAD.as_bytes())?;
            let usage = "{\"prompt_tokens\":-5,\"completion_tokens\":9223372036854775808,\"total_tokens\":1}";
            write!(socket, "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"Fine.\"}},\"finish_reason\":\"stop\"}}]}}\n\n")?;
            write!(socket, "data: {{\"choices\":[],\"usage\":{usage}}}\n\ndata: [DONE]\n\n")
        }
        _ => {
            socket.write_all(HEAD.as_bytes())?;
            write!(socket, "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"Fine.\"}},\"finish_reason\":\"stop\"}}]}}\n\n")?;
            socket.write_all(b"data: [DONE]\n\n")
        }
    }
}

/// Reads a request and returns the model that it asks for.
fn asked(socket: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut block = [0; 4096];
    loop {
        let read = socket.read(&mut block).unwrap_or(0);
        bytes.extend_from_slice(&block[..read]);
        let text = String::from_utf8_lossy(&bytes);
        let rest = text.split_once("\"model\":\"").and_then(|(_, rest)| rest.split_once('"'));
        if let Some((model, _)) = rest {
            return model.to_owned();
        }
        if read == 0 {
            return String::new();
        }
    }
}

fn hostile_provider() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    // The threads end with the test process: a blocked accept has no other end.
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let mut socket = socket;
            std::thread::spawn(move || {
                let model = asked(&mut socket);
                // The client may hang up in the middle: that is what is wanted of it.
                let _ = misbehave(&mut socket, &model);
            });
        }
    });
    url
}

fn workflow(model: &str) -> String {
    let models = format!("m: {{use: openai/{model}, price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 1}}}}");
    let noop = "noop: {description: Does nothing., scripted: {effect: read_only, result: ok}}";
    format!(
        "wren: v1\nname: hostile\nmodels: {{{models}}}\ntools: {{{noop}}}\nagents: {{a: {{model: m, instructions: Go., tools: [noop]}}}}\n\
         agent: a\nprompt: Go.\nlimits: {{budget_usd: 1, max_turns: 3}}\n"
    )
}

/// Each hostile stream ends in a reason, within bounds, while another run beside it is answered.
#[test]
fn a_hostile_provider_takes_little_memory_and_nobody_elses_turn() {
    let daemon = Daemon::start_with(&[("OPENAI_BASE_URL", &hostile_provider())]);
    let fine = daemon.workflow("fine.yaml", &workflow("fine"));
    daemon.expect(0, &["run", "-f", &fine]);
    for (model, outcome, words) in [
        ("line", "PROVIDER_ERROR", "line"),
        ("event", "PROVIDER_ERROR", "event"),
        ("text", "PROVIDER_ERROR", "longer than 4194304 bytes"),
        ("comments", "COMPLETED", ""),
        ("calls", "PROVIDER_ERROR", "more than 4096 calls"),
        ("gzip", "PROVIDER_ERROR", "line of the stream"),
        ("body", "PROVIDER_ERROR", "longer than 4194304 bytes"),
        ("error", "PROVIDER_ERROR", "400"),
        ("usage", "COMPLETED", ""),
    ] {
        let file = daemon.workflow("hostile.yaml", &workflow(model));
        let before_kb = daemon.forget_peak();
        let run = daemon.submit(&["-f", &file]);
        daemon.expect(0, &["run", "-f", &fine]);
        daemon.run(&["wait", &run]);
        let ended = daemon.json(0, &["get", &run]);
        let grown_kb = daemon.peak_kb().saturating_sub(before_kb);
        println!("{model}: {} {}, +{grown_kb} KB", ended["outcome"], ended["failure"]);
        assert_eq!(ended["outcome"], format!("OUTCOME_{outcome}"), "{ended}");
        assert!(ended["failure"]["message"].as_str().unwrap_or_default().contains(words), "{model}: {}", ended["failure"]);
        assert!(grown_kb < STREAM_KB, "{model}: {grown_kb} KB");
        let usage = &ended["subtree_usage"];
        let (cost, overrun) = (int(&usage["cost_usd_nanos"]), int(&usage["overrun_usd_nanos"]));
        assert!(cost >= 0 && cost - overrun <= 1_000_000_000, "{model} cost {cost}, of that {overrun} beyond what was set aside");
        assert_eq!(int(&ended["reserved_usd_nanos"]), 0);
    }
}

/// Documents that grow, nest, or are simply too many: the rows of hostile YAML.
fn documents() -> Vec<(&'static str, Vec<u8>)> {
    use std::fmt::Write as _;
    let mut bomb = String::from("wren: v1\nl0: &l0 [x,x,x,x,x,x,x,x,x]\n");
    for level in 1..10 {
        let above = vec![format!("*l{}", level - 1); 9].join(",");
        writeln!(bomb, "l{level}: &l{level} [{above}]").unwrap();
    }
    let quadratic = |kilobytes: usize| format!("a: &a [{}]\nb: [{}]\n", "x,".repeat(kilobytes * 250), "*a,".repeat(kilobytes * 170));
    let fields: String = (0..9_000).map(|number| format!("field_{number}: {{a: b}}\n")).collect();
    let agents: String = (0..4_000).map(|number| format!("agent_{number}: {{model: nobody}}, ")).collect();
    let loops = "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}";
    vec![
        ("an alias bomb", bomb.into_bytes()),
        ("quadratic aliases, 25 KB", quadratic(25).into_bytes()),
        ("quadratic aliases, 200 KB", quadratic(200).into_bytes()),
        ("200 KB of [", "[".repeat(200_000).into_bytes()),
        ("60,000 maps deep", "{a: ".repeat(60_000).into_bytes()),
        ("10 MB", vec![b'x'; 10_000_000]),
        ("9,000 unknown fields", workflow("m").into_bytes().into_iter().chain(fields.into_bytes()).collect()),
        ("4,000 agents without a model", workflow("m").replace("agents: {", &format!("agents: {{{agents}")).into_bytes()),
        ("a template that loops", workflow("m").replace("prompt: Go.", &format!("prompt: '{loops}'")).into_bytes()),
        ("not UTF-8", vec![0xff; 200_000]),
    ]
}

#[test]
fn a_hostile_document_takes_little_memory_of_the_daemon() {
    let daemon = Daemon::start();
    let fine = daemon.submit(&["-f", "workflows/plan.yaml"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut runs = runtime.block_on(async {
        let channel = tonic::transport::Endpoint::try_from(daemon.address()).unwrap().connect().await.unwrap();
        RunServiceClient::new(channel)
    });
    for (what, content) in documents() {
        let before_kb = daemon.forget_peak();
        let file = v1::SourceFile { path: "w.yaml".to_owned(), content };
        let bundle = v1::Bundle { entry_path: "w.yaml".to_owned(), files: vec![file] };
        let request = v1::SubmitRunRequest { bundle: Some(bundle), inputs_json: "{}".to_owned(), ..v1::SubmitRunRequest::default() };
        let refused = runtime.block_on(runs.submit_run(request)).expect_err(what);
        let grown_kb = daemon.peak_kb().saturating_sub(before_kb);
        println!("{what}: {:?}, +{grown_kb} KB", refused.code());
        assert!(matches!(refused.code(), tonic::Code::InvalidArgument | tonic::Code::OutOfRange), "{what}: {refused:?}");
        assert!(grown_kb < DOCUMENT_KB, "{what}: {grown_kb} KB");
        daemon.json(0, &["get", &fine]);
    }
    assert_eq!(daemon.json(0, &["ps", "--all"])["runs"].as_array().unwrap().len(), 1);
}

const HEADERS: u8 = 1;
const DATA: u8 = 0;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// One HTTP/2 frame (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The headers of a gRPC request, with none of them in a table (RFC 7541, section 6.2.2).
fn call(method: &str) -> Vec<u8> {
    let path = format!("/wren.v1.RunService/{method}");
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    // POST, http, and by their places in the static table: path, authority, content-type.
    [
        vec![0x83, 0x86, 0x04],
        text(&path),
        vec![0x01],
        text("localhost"),
        vec![0x0f, 0x10],
        text("application/grpc"),
        vec![0x00],
        text("te"),
        text("trailers"),
    ]
    .concat()
}

/// A client that writes frames by hand, and goes on until it is done or hung up on.
struct Raw(UnixStream);

impl Raw {
    fn connect(daemon: &Daemon) -> Self {
        let mut socket = UnixStream::connect(daemon.address().trim_start_matches("unix:")).unwrap();
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        socket.write_all(&frame(4, 0, 0, &[])).unwrap();
        // What is answered is read away, so that the daemon is never blocked by us.
        let mut answers = socket.try_clone().unwrap();
        std::thread::spawn(move || while answers.read(&mut [0; 65536]).is_ok_and(|read| read > 0) {});
        Self(socket)
    }

    /// Returns whether the daemon still takes what is sent.
    fn send(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).is_ok()
    }
}

fn flood(daemon: &Daemon, what: &str) -> Vec<Raw> {
    let submit = call("SubmitRun");
    let mut raw = Raw::connect(daemon);
    match what {
        "a message of 4 GB" | "a message of 100 MB" | "a gzip flag" => {
            raw.send(&frame(HEADERS, END_HEADERS, 1, &submit));
            let (flag, length) = match what {
                "a message of 4 GB" => (0, u32::MAX),
                "a message of 100 MB" => (0, 100 << 20),
                _ => (1, 1000),
            };
            raw.send(&frame(DATA, 0, 1, &[&[flag][..], &length.to_be_bytes(), &[0x1f; 1000]].concat()));
        }
        "10,000 streams" => {
            for stream in 0..10_000 {
                if !raw.send(&frame(HEADERS, END_HEADERS, 2 * stream + 1, &submit)) {
                    break;
                }
            }
        }
        "a rapid reset" => {
            for stream in 0..100_000 {
                let both = [frame(HEADERS, END_HEADERS, 2 * stream + 1, &submit), frame(RST_STREAM, 0, 2 * stream + 1, &[0, 0, 0, 8])];
                if !raw.send(&both.concat()) {
                    break;
                }
            }
        }
        "headers without an end" => {
            raw.send(&frame(HEADERS, 0, 1, &submit));
            let header = [&[0x00, 1, b'x', 0x7f, 0x81, 0x7c][..], &[b'y'; 16_000]].concat();
            for _ in 0..20_000 {
                if !raw.send(&frame(CONTINUATION, 0, 1, &header)) {
                    break;
                }
            }
        }
        "a header of 1 MB" => {
            // 1 MB as an HPACK integer after a 7-bit prefix: 127 + 1,048,449.
            raw.send(&frame(HEADERS, 0, 1, &[&submit[..], &[0x00, 1, b'x', 0x7f, 0x81, 0xff, 0x3f]].concat()));
            for part in 0..64 {
                let flags = if part == 63 { END_HEADERS } else { 0 };
                if !raw.send(&frame(CONTINUATION, flags, 1, &[b'y'; 16_384])) {
                    break;
                }
            }
        }
        "connections that say nothing" => return (0..200).map(|_| Raw::connect(daemon)).collect(),
        "requests that never end" => {
            for stream in 0..100 {
                raw.send(&frame(HEADERS, END_HEADERS, 2 * stream + 1, &submit));
                raw.send(&frame(DATA, 0, 2 * stream + 1, &[0, 0, 0, 4, 0, 1]));
            }
        }
        "a request without a message" => {
            raw.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &submit));
        }
        other => panic!("{other}"),
    }
    vec![raw]
}

#[test]
fn a_hostile_client_takes_little_memory_and_nobody_elses_answer() {
    let daemon = Daemon::start();
    let fine = daemon.submit(&["-f", "workflows/plan.yaml"]);
    daemon.run(&["wait", &fine]);
    for what in [
        "a message of 4 GB",
        "a message of 100 MB",
        "a gzip flag",
        "10,000 streams",
        "a rapid reset",
        "headers without an end",
        "a header of 1 MB",
        "connections that say nothing",
        "requests that never end",
        "a request without a message",
    ] {
        let before_kb = daemon.forget_peak();
        let held = flood(&daemon, what);
        daemon.json(0, &["get", &fine]);
        let grown_kb = daemon.peak_kb().saturating_sub(before_kb);
        println!("{what}: +{grown_kb} KB");
        assert!(grown_kb < STREAM_KB, "{what}: {grown_kb} KB");
        drop(held);
    }
    assert_eq!(daemon.json(0, &["ps", "--all"])["runs"].as_array().unwrap().len(), 1);
}

/// A watcher that reads nothing holds up neither the run that it watches nor the daemon's memory.
#[test]
fn a_client_that_reads_nothing_takes_little_memory() {
    let daemon = Daemon::start();
    let run = daemon.submit(&["-f", "workflows/runaway.yaml", "--max-turns", "1"]);
    daemon.run(&["wait", &run]);
    let before_kb = daemon.forget_peak();
    let mut watchers: Vec<UnixStream> = Vec::new();
    let request = [&[0x0a, u8::try_from(run.len()).unwrap()][..], run.as_bytes()].concat();
    let message = [&[0, 0, 0, 0, u8::try_from(request.len()).unwrap()][..], &request].concat();
    for _ in 0..100 {
        // Nobody reads this socket.
        let mut socket = UnixStream::connect(daemon.address().trim_start_matches("unix:")).unwrap();
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        socket.write_all(&frame(4, 0, 0, &[])).unwrap();
        socket.write_all(&frame(HEADERS, END_HEADERS, 1, &call("WatchRun"))).unwrap();
        socket.write_all(&frame(DATA, END_STREAM, 1, &message)).unwrap();
        watchers.push(socket);
    }
    daemon.expect(0, &["resume", &run, "--max-turns", "200"]);
    daemon.run(&["wait", &run]);
    assert_eq!(int(&daemon.json(0, &["get", &run])["own_usage"]["turn_count"]), 200);
    let grown_kb = daemon.peak_kb().saturating_sub(before_kb);
    println!("100 watchers that read nothing: +{grown_kb} KB");
    assert!(grown_kb < STREAM_KB, "{grown_kb} KB");
}
