//! A conversation that outgrows its model: no request is over the window, what is read stays bounded, nothing of the
//! transcript is lost, and a restart goes on with what was left out.

use std::sync::{Arc, Mutex};

use futures_util::{StreamExt, stream};
use tokio_util::sync::CancellationToken;
use wren::kernel::event::{Abort, Purpose};
use wren::kernel::{Event, Message, Outcome, ReplyCall, Request, Stop, Usage};
use wren::provider::price::Book;
use wren::provider::{Delta, DeltaStream, Error, Provider, Providers, tokens};
use wren::runtime::Live;
use wren::store::memory::Memory;

use super::Bench;

const WINDOW: i64 = 8_000;
const TURNS: u32 = 60;

/// A model that reads one file after the other, whose tokenizer makes `percent` of o200k's tokens, and that refuses what does
/// not fit its window.
struct Reader {
    percent: i64,
    /// Input tokens of each request, and what it was for.
    asked: Mutex<Vec<(i64, Purpose)>>,
    over: Mutex<Vec<String>>,
}

impl Provider for Reader {
    fn ready(&self) -> Result<(), Error> {
        Ok(())
    }

    fn send(&self, request: Arc<Request>, _: CancellationToken) -> DeltaStream {
        let input_tokens = tokens::input_tokens(&request) * self.percent / 100;
        self.asked.lock().unwrap().push((input_tokens, request.purpose));
        if input_tokens + request.max_output > WINDOW {
            let message = format!("{input_tokens} + {} tokens at turn {}", request.max_output, request.turn);
            self.over.lock().unwrap().push(message.clone());
            let error = Error {
                kind: Abort::ContextLength,
                message,
                code: None,
                http_status: Some(400),
                retryable: false,
                retry_after_ms: None,
                reply_begun: false,
                unanswered: false,
            };
            return stream::iter([Err(error)]).boxed();
        }
        check_results(&request);
        let usage = |text: &str, calls: &[ReplyCall]| {
            let output_tokens = tokens::output_tokens(text, calls) * self.percent / 100;
            Delta::Usage(Usage { input_tokens, output_tokens, ..Usage::default() })
        };
        let stop = |stop| Delta::Stop { stop, raw: None, paused: false };
        let deltas = match request.purpose {
            Purpose::Compact => {
                let text = format!("Notes at turn {}.", request.turn);
                vec![usage(&text, &[]), Delta::Text(text), stop(Stop::EndTurn)]
            }
            Purpose::Task if request.turn >= TURNS => {
                vec![usage("All read.", &[]), Delta::Text("All read.".to_owned()), stop(Stop::EndTurn)]
            }
            Purpose::Task => {
                let args_raw = format!(r#"{{"path": "{}.txt"}}"#, request.turn % 3);
                let call = ReplyCall { provider_id: None, tool: "read_file".to_owned(), args_raw };
                let text = format!("I go on with turn {}. ", request.turn).repeat(16);
                let usage = usage(&text, std::slice::from_ref(&call));
                vec![Delta::Text(text), Delta::Call(call), usage, stop(Stop::ToolCalls)]
            }
        };
        stream::iter(deltas).map(Ok).boxed()
    }
}

/// Every call has its result right behind it, as every provider asks.
fn check_results(request: &Request) {
    let mut open: Vec<String> = Vec::new();
    for message in &request.messages {
        match &**message {
            Message::Tool(result) => {
                assert_eq!(Some(result.call_id.to_string()), open.pop(), "a result without its call");
            }
            Message::Assistant(reply) => {
                assert!(open.is_empty(), "a call without its result");
                open = reply.calls.iter().rev().map(|call| call.id.to_string()).collect();
            }
            Message::User { .. } => assert!(open.is_empty(), "a call without its result"),
        }
    }
}

fn workflow(more: &str) -> String {
    format!(
        "
wren: v1
name: reading
models: {{main: {{use: reader/m, max_output: 600, window_tokens: {WINDOW}, price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 1}}}}}}
tools: {{docs: {{files: {{root: .}}}}}}
agents: {{lead: {{model: main, instructions: Read all files., tools: [docs]{more}}}}}
agent: lead
prompt: 'Read everything, and keep in mind: the word is heron.'
limits: {{max_turns: 100, budget_usd: 10, max_tokens: 100000000}}
"
    )
}

/// Files whose bytes make many tokens, and few.
fn write_files(bench: &Bench) {
    let noise: String = (0..1_500_u32).map(|n| char::from(b'!' + u8::try_from(n.wrapping_mul(2_654_435_761) >> 26).unwrap())).collect();
    let texts = ["The heron stands in the reeds and waits for fish. ".repeat(60), noise, "鹭站在芦苇丛中等鱼。".repeat(40)];
    for (at, text) in texts.iter().enumerate() {
        std::fs::write(bench.dir.path().join(format!("work/{at}.txt")), text).unwrap();
    }
}

async fn bench(percent: i64) -> (Arc<Reader>, Bench) {
    let reader = Arc::new(Reader { percent, asked: Mutex::default(), over: Mutex::default() });
    let dir = Arc::new(tempfile::tempdir().unwrap());
    std::fs::create_dir_all(dir.path().join("work")).unwrap();
    let mut providers = Providers::scripted_only();
    providers.insert("reader", reader.clone());
    let bench = Bench::with(Bench::config(&dir), Arc::new(Memory::new()), dir, providers, Book::default()).await;
    write_files(&bench);
    (reader, bench)
}

#[tokio::test(start_paused = true)]
async fn no_request_is_over_the_window_and_nothing_of_the_transcript_is_lost() {
    // A tokenizer like o200k, and one that makes many more tokens, as others do.
    for percent in [90, 100, 140, 200] {
        let (reader, bench) = bench(percent).await;
        let run = bench.submit(&workflow("")).await;
        let seen = bench.follow(&run).await;
        let row = bench.runtime.get(&run).await.unwrap();
        assert_eq!((row.summary.outcome, row.summary.own.turns), (Some(Outcome::Completed), i64::from(TURNS)), "{:?}", row.summary.message);
        assert_eq!(*reader.over.lock().unwrap(), Vec::<String>::new(), "{percent} %");
        let kept = bench.runtime.load(&run).await.unwrap().transcript;
        assert_eq!(kept.len(), 1 + 2 * (TURNS as usize - 1) + 1, "the whole transcript can be read");
        let asked = reader.asked.lock().unwrap();
        let notes = asked.iter().filter(|(_, purpose)| *purpose == Purpose::Compact).count();
        let made_room = seen.iter().filter(|live| matches!(live, Live::Recorded(fact) if matches!(fact.event, Event::ContextCompacted(_))));
        println!("{percent} %: {} requests, {notes} for notes, room made {} times", asked.len(), made_room.clone().count());
        assert!(notes > 0 && made_room.clone().count() > notes, "old results go first");
        // Nobody but the model reads the notes as they are written.
        assert!(!seen.iter().any(|live| matches!(live, Live::Text(piece) if piece.text.contains("Notes"))));
        let used = asked.iter().filter(|(_, purpose)| *purpose == Purpose::Task).map(|(tokens, _)| *tokens);
        assert!(used.max().unwrap() > WINDOW / 2, "room is made when it is needed, and not before");
    }
}

#[tokio::test(start_paused = true)]
async fn the_prompt_and_the_last_turns_stay_as_they_are() {
    let (_, bench) = bench(100).await;
    let run = bench.submit(&workflow(", context: {keep_turns: 2}")).await;
    bench.follow(&run).await;
    let whole = bench.runtime.load(&run).await.unwrap();
    let read = whole.read_messages();
    let Message::User { text } = &*read[0] else { panic!("{:?}", read[0]) };
    assert!(text.contains("the word is heron") && text.contains("Notes at turn"), "{text}");
    assert!(read.len() < whole.transcript.len());
    assert_eq!(read[read.len() - 4..], whole.transcript[whole.transcript.len() - 4..], "the last turns");
}

#[tokio::test(start_paused = true)]
async fn with_fail_the_run_stops_before_a_request_that_does_not_fit() {
    let (reader, bench) = bench(100).await;
    let run = bench.submit(&workflow(", context: {on_full: fail}")).await;
    bench.follow(&run).await;
    let row = bench.runtime.get(&run).await.unwrap().summary;
    assert_eq!((row.outcome, row.reason.as_str()), (Some(Outcome::ProviderError), "CONTEXT_LENGTH"));
    assert!(row.message.contains("reader/m holds 8000") && row.message.contains("--set-model"), "{}", row.message);
    assert!(reader.over.lock().unwrap().is_empty());
    assert!(reader.asked.lock().unwrap().iter().all(|(_, purpose)| *purpose == Purpose::Task));
}
