//! Models that change in the middle of a run: by a list, by what other runs have found, and by somebody's choice.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use tokio_util::sync::CancellationToken;
use wren::kernel::event::ModelCause;
use wren::kernel::{Event, Outcome, Request, RunId, State, Stop, Usage};
use wren::provider::price::{Book, Written};
use wren::provider::{Delta, DeltaStream, Error as ProviderError, Provider, Providers};
use wren::runtime::{Change, Error, Live};
use wren::store::memory::Memory;

use super::Bench;

/// Answers with the name of the model that was asked.
struct Echo;

impl Provider for Echo {
    fn ready(&self) -> Result<(), ProviderError> {
        Ok(())
    }

    fn send(&self, request: Arc<Request>, _: CancellationToken) -> DeltaStream {
        let text = format!("{} of {}", request.model.model, request.agent);
        let items = [Delta::Text(text), Delta::Stop { stop: Stop::EndTurn, raw: None, paused: false }];
        stream::iter(items.into_iter().map(Ok)).boxed()
    }
}

async fn bench() -> Bench {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    std::fs::create_dir_all(dir.path().join("work")).unwrap();
    let mut providers = Providers::scripted_only();
    providers.insert("echo", Arc::new(Echo));
    let price = Written { input: "1".to_owned(), output: "2".to_owned(), ..Written::default() };
    let prices = BTreeMap::from([("echo".to_owned(), BTreeMap::from([("big".to_owned(), price)]))]);
    let book = Book::default().with_overrides(&prices).unwrap();
    Bench::with(Bench::config(&dir), Arc::new(Memory::new()), dir, providers, book).await
}

fn changes(seen: &[Live]) -> Vec<(RunId, String, ModelCause)> {
    let changed = seen.iter().filter_map(|live| match live {
        Live::Recorded(recorded) => match &recorded.event {
            Event::ModelChanged(changed) => Some((recorded.run.clone(), changed.model.full_name(), changed.cause)),
            _ => None,
        },
        _ => None,
    });
    changed.collect()
}

const FALLBACK: &str = r#"
wren: v1
name: w
models:
  first:
    fallback: [echo/big, second]
    scripted: {replies: [{error: {status: 503}}]}
  second: {scripted: {replies: [{text: second}]}}
agents: {lead: {model: first, instructions: Answer.}}
agent: lead
prompt: Go.
"#;

#[tokio::test(start_paused = true)]
async fn a_model_that_fails_is_left_for_the_next_and_later_runs_do_not_wait_for_it_again() {
    let bench = bench().await;
    let run = bench.submit(FALLBACK).await;
    let seen = bench.follow(&run).await;
    let row = bench.runtime.get(&run).await.unwrap().summary;
    assert_eq!((row.outcome, row.text.as_str(), row.model.as_str()), (Some(Outcome::Completed), "big of lead", "echo/big"));
    assert_eq!(changes(&seen), [(run, "echo/big".to_owned(), ModelCause::Fallback)]);
    let failures = |seen: &[Live]| {
        seen.iter().filter(|live| matches!(live, Live::Recorded(recorded) if matches!(recorded.event, Event::TurnAborted(_)))).count()
    };
    assert_eq!(failures(&seen), 2);
    // Five failures in a row, whoever met them, and nobody who has a choice asks it any more.
    let mut tried = Vec::new();
    for _ in 0..4 {
        let run = bench.submit(FALLBACK).await;
        tried.push(failures(&bench.follow(&run).await));
    }
    assert_eq!(tried, [2, 1, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_list_is_checked_when_it_is_read() {
    let bench = bench().await;
    for (list, why) in [
        ("[nosuch]", "there is no model `nosuch`"),
        ("[first]", "`first` was tried already"),
        ("[second, second]", "`second` was tried already"),
        ("[echo/small]", "the price of `echo/small` is not known"),
        ("[nobody/x]", "there is no provider `nobody`"),
    ] {
        let yaml = FALLBACK.replace("[echo/big, second]", list);
        let Err(Error::Invalid(faults)) = bench.runtime.submit(bench.submission(&yaml), true).await else { panic!("{list} was taken") };
        assert!(
            faults.iter().any(|fault| fault.message.contains(why) && fault.pointer.starts_with("/models/first/fallback/")),
            "{faults:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_bound_for_dearer_calls_has_its_place_in_the_workflow() {
    let bench = bench().await;
    let price = "input_usd_per_mtok: 1, output_usd_per_mtok: 1";
    let long = format!("price: {{{price}, long: {{above_tokens: -1, {price}}}}}");
    let yaml = FALLBACK
        .replace("    fallback: [echo/big, second]\n", "")
        .replace("second: {", "third: {use: echo/big, LONG}\n  second: {")
        .replace("LONG", &long);
    let Err(Error::Invalid(faults)) = bench.runtime.submit(bench.submission(&yaml), true).await else { panic!("it was taken") };
    assert!(faults.iter().any(|fault| fault.pointer == "/models/third/price/long/above_tokens"), "{faults:?}");
}

const TREE: &str = r#"
wren: v1
name: w
models:
  script:
    scripted:
      price: {input_usd_per_mtok: 1, output_usd_per_mtok: 2}
      replies:
        - {agent: lead, turn: 1, calls: [{tool: ask, args: {q: one}}]}
        - {agent: lead, error: {status: 401}}
        - {agent: worker, text: scripted}
tools:
  ask: {description: Asks., subagent: worker, parameters: {q: {type: string}}, prompt: "{{ args.q }}"}
agents:
  lead: {model: script, instructions: Lead., tools: [ask]}
  worker: {model: script, instructions: Work.}
agent: lead
prompt: Go.
"#;

fn choose(pairs: &[(&str, &str)]) -> Change {
    Change { models: pairs.iter().map(|(agent, model)| ((*agent).to_owned(), (*model).to_owned())).collect(), ..Change::default() }
}

#[tokio::test(start_paused = true)]
async fn a_resumed_run_asks_the_model_that_somebody_chose() {
    let bench = bench().await;
    let run = bench.submit(TREE).await;
    bench.follow(&run).await;
    assert_eq!(bench.runtime.get(&run).await.unwrap().summary.reason, "PROVIDER_AUTH");
    for (pairs, why) in [
        ([("nobody", "echo/big")], "has no agent \"nobody\"; its agents: lead, worker"),
        ([("lead", "big")], "provider/model"),
        ([("lead", "nobody/big")], "no provider \"nobody\""),
        ([("lead", "scripted/script")], "no provider \"scripted\""),
        ([("lead", "echo/small")], "price is not known"),
    ] {
        let refused = bench.runtime.resume(&run, choose(&pairs), "ada", "").await.unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
        assert_eq!(bench.runtime.get(&run).await.unwrap().summary.state, State::Suspended, "nothing was changed");
    }
    bench.runtime.resume(&run, choose(&[("lead", "echo/big")]), "ada", "").await.unwrap();
    let seen = bench.follow(&run).await;
    let row = bench.runtime.get(&run).await.unwrap().summary;
    assert_eq!((row.outcome, row.text.as_str(), row.model.as_str()), (Some(Outcome::Completed), "big of lead", "echo/big"));
    assert_eq!(changes(&seen), [(run, "echo/big".to_owned(), ModelCause::User)]);
}

const LATER: &str = r#"
wren: v1
name: w
models:
  script:
    scripted:
      price: {input_usd_per_mtok: 1, output_usd_per_mtok: 2}
      replies:
        - {agent: lead, turn: 2, calls: [{tool: ask, args: {q: one}}]}
        - {agent: lead, turn: 1, calls: [{tool: nosuch}]}
        - {agent: lead, turn: 3, text: Done.}
        - {agent: worker, text: scripted}
tools:
  ask: {description: Asks., subagent: worker, parameters: {q: {type: string}}, prompt: "{{ args.q }}"}
agents:
  lead: {model: script, instructions: Lead., tools: [ask], limits: {max_turns: 1}}
  worker: {model: script, instructions: Work.}
agent: lead
prompt: Go.
"#;

#[tokio::test(start_paused = true)]
async fn children_to_come_ask_the_model_that_somebody_chose_for_them() {
    let bench = bench().await;
    let run = bench.submit(LATER).await;
    bench.follow(&run).await;
    let more =
        Change { limits: wren::kernel::LimitsPatch { max_turns: Some(5), ..Default::default() }, ..choose(&[("worker", "echo/big")]) };
    bench.runtime.resume(&run, more, "ada", "").await.unwrap();
    bench.follow(&run).await;
    let rows = bench.runtime.subtree(&run).await.unwrap();
    let told: Vec<(&str, &str, &str)> =
        rows.iter().map(|row| (row.summary.agent.as_str(), row.summary.model.as_str(), row.summary.text.as_str())).collect();
    assert_eq!(told, [("lead", "scripted/script", "Done."), ("worker", "echo/big", "big of worker")]);
}

/// Uses 1,000 + 1,000 tokens, and says by its model's name what it charges for them, in nano-USD.
struct Charges;

impl Provider for Charges {
    fn ready(&self) -> Result<(), ProviderError> {
        Ok(())
    }

    fn send(&self, request: Arc<Request>, _: CancellationToken) -> DeltaStream {
        let mut items = vec![Delta::Text("answered".to_owned())];
        let usage = Usage { input_tokens: 1_000, output_tokens: 1_000, ..Usage::default() };
        items.push(Delta::Usage(usage));
        items.extend(request.model.model.parse().ok().map(Delta::StatedCost));
        items.push(Delta::Stop { stop: Stop::EndTurn, raw: None, paused: false });
        stream::iter(items.into_iter().map(Ok)).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_says_it_charged_something_else_is_contradicted_in_sight() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    std::fs::create_dir_all(dir.path().join("work")).unwrap();
    let mut providers = Providers::scripted_only();
    providers.insert("charges", Arc::new(Charges));
    let bench = Bench::with(Bench::config(&dir), Arc::new(Memory::new()), dir, providers, Book::default()).await;
    // At 1 USD a million, both ways, that is 2,000,000 nano-USD.
    for (model, stated, is_disputed) in [
        ("silent", None, false),
        ("2000000", Some(2_000_000), false),
        ("2020000", Some(2_020_000), false),
        ("2020500", Some(2_020_500), true),
        ("1979000", Some(1_979_000), true),
        ("0", Some(0), true),
    ] {
        let yaml = format!(
            "wren: v1\nname: w\nmodels: {{main: {{use: charges/{model}, price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 1}}}}}}\n\
             agents: {{lead: {{model: main, instructions: Answer.}}}}\nagent: lead\nprompt: Go.\n"
        );
        let run = bench.submit(&yaml).await;
        let seen = bench.follow(&run).await;
        let ended = seen.iter().find_map(|live| match live {
            Live::Recorded(recorded) => match &recorded.event {
                Event::TurnEnded(ended) => Some(ended.clone()),
                _ => None,
            },
            _ => None,
        });
        let ended = ended.unwrap();
        // The ledger keeps to its own count.
        assert_eq!(ended.cost_usd_nanos, 2_000_000);
        assert_eq!((ended.stated_cost_usd_nanos, ended.is_disputed()), (stated, is_disputed), "{model}");
    }
}
