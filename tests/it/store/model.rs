//! Any sequence of operations leaves every store with the same answers, rows and journals, to the byte; and what the
//! rows say is what the journals add up to.

use std::collections::BTreeMap;

use proptest::prelude::*;
use wren::kernel::{Account, Event, Limits, Outcome, Recorded, Reservation, RunId, State, Summary};
use wren::store::memory::Memory;
use wren::store::{Batch, CancelMark, Error, Fence, Query, Store};

use super::make::{
    LIMITS, batch, call_ended, call_started, child, child_ended, child_started, dump, ended, id, requested, suspended, tree, turn_aborted,
    turn_ended, turn_started,
};
use super::sqlite_in;

/// One operation. Runs are numbered in the order of their creation.
#[derive(Clone, Debug)]
enum Op {
    Create { budget: i64, runs: u32 },
    Request { request: u8, content: u8 },
    Claim { run: usize },
    Append { run: usize, stale: bool, what: u8, amount: i64 },
    Spawn { run: usize, call: u8, budget: i64, runs: u32 },
    End { run: usize, outcome: u8 },
    Cancel { run: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let run = || 0..12_usize;
    prop_oneof![
        2 => (1..400_i64, 1..6_u32).prop_map(|(budget, runs)| Op::Create { budget, runs }),
        1 => (0..2_u8, 0..2_u8).prop_map(|(request, content)| Op::Request { request, content }),
        3 => run().prop_map(|run| Op::Claim { run }),
        12 => (run(), prop::bool::weighted(0.1), 0..9_u8, 0..150_i64)
            .prop_map(|(run, stale, what, amount)| Op::Append { run, stale, what, amount }),
        4 => (run(), 0..3_u8, 1..400_i64, 1..6_u32).prop_map(|(run, call, budget, runs)| Op::Spawn { run, call, budget, runs }),
        2 => (run(), 0..2_u8).prop_map(|(run, outcome)| Op::End { run, outcome }),
        1 => run().prop_map(|run| Op::Cancel { run }),
    ]
}

fn limits(budget_usd_nanos: i64, max_runs: u32) -> Limits {
    Limits { budget_usd_nanos, max_runs, ..LIMITS }
}

fn happening(what: u8, amount: i64) -> Vec<Event> {
    let lost = Reservation { usd_nanos: amount, tokens: 3 };
    match what {
        0 => vec![Event::RunStarted {}],
        1 => vec![turn_started(1, amount, amount)],
        2 => vec![turn_ended(1, amount, amount)],
        3 => vec![turn_aborted(1, 0, lost)],
        4 => vec![turn_ended(1, amount, 2), call_started("c9")],
        5 => vec![call_ended("c9"), turn_started(2, amount, 1)],
        6 => vec![suspended(Outcome::Budget)],
        7 => vec![Event::CancelRequested { actor: "ada".to_owned(), reason: "enough".to_owned() }],
        _ => vec![Event::LimitsChanged { limits: limits(amount * 5, 4), actor: "ada".to_owned(), reason: String::new() }],
    }
}

/// What a driver would know of the runs, kept from the answers of the first store.
#[derive(Default)]
struct World {
    runs: Vec<RunId>,
    made: usize,
}

impl World {
    fn run(&self, number: usize) -> RunId {
        self.runs.get(number % self.runs.len().max(1)).cloned().unwrap_or_else(|| id("nobody"))
    }

    fn name(&mut self) -> String {
        self.made += 1;
        format!("r{:03}", self.made)
    }
}

/// What a store answered, in words that can be compared.
async fn perform(store: &dyn Store, op: &Op, run: &RunId, name: &str) -> (String, Vec<RunId>) {
    let fence = async |stale: bool| {
        let row = store.get(run).await.ok();
        let (epoch, seq) = row.map_or((0, 0), |row| (row.epoch, row.summary.seq));
        Fence { run: run.clone(), epoch, seq: seq.saturating_sub(u64::from(stale)) }
    };
    let answer = match op {
        Op::Create { budget, runs } => format!("{:?}", store.create(tree(name, limits(*budget, *runs))).await),
        Op::Request { request, content } => {
            format!("{:?}", store.create(requested(name, &format!("q{request}"), &content.to_string())).await)
        }
        Op::Claim { .. } => format!("{:?}", store.claim(run).await),
        Op::Append { stale, what, amount, .. } => {
            // A driver starts no turn while one is under way.
            let is_asking = store.get(run).await.is_ok_and(|row| !row.summary.open.is_zero());
            let what = if is_asking && matches!(what, 1 | 5) { &2 } else { what };
            format!("{:?}", store.append(fence(*stale).await, batch(happening(*what, *amount))).await)
        }
        Op::Spawn { call, budget, runs, .. } => match store.get(run).await {
            Ok(row) => {
                let call = format!("c{call}");
                let children = vec![child(&row, &call, name, limits(*budget, *runs))];
                let spawn = Batch { children, ..batch(vec![child_started(&call, name)]) };
                format!("{:?}", store.append(fence(false).await, spawn).await)
            }
            Err(error) => format!("{error:?}"),
        },
        Op::End { outcome, .. } => {
            let outcome = if *outcome == 0 { Outcome::Completed } else { Outcome::Failed };
            let parent = store.get(run).await.ok().and_then(|row| row.summary.parent);
            let told = parent.map(|call| child_ended(call.call_id.as_str(), run.as_str(), outcome));
            format!("{:?}", store.append(fence(false).await, Batch { child_ended: told, ..batch(vec![ended(outcome)]) }).await)
        }
        Op::Cancel { .. } => {
            let mark = CancelMark { actor: "ada".to_owned(), reason: "enough".to_owned(), time_us: 9_000 };
            format!("{:?}", store.cancel(run, mark).await)
        }
    };
    let all = Query { include_descendants: true, limit: 1_000, ..Query::default() };
    let mut rows = store.list(all).await.unwrap().rows;
    rows.reverse();
    (answer, rows.into_iter().map(|row| row.summary.id).collect())
}

/// Everything that a store can be asked, in words.
async fn everything(store: &dyn Store, runs: &[RunId]) -> Vec<String> {
    let mut told = vec![format!("{:?}", store.unfinished().await), format!("{:?}", store.find("r0", 5).await)];
    for states in [vec![State::Pending], vec![State::Cancelling, State::Suspended], vec![State::Ended]] {
        let query = Query { states, include_descendants: true, limit: 3, ..Query::default() };
        told.push(format!("{:?}", store.list(query).await));
    }
    told.push(format!("{:?}", store.list(Query { outcomes: vec![Outcome::Failed], limit: 2, ..Query::default() }).await));
    for run in runs {
        told.push(format!("{:?}", store.get(run).await));
        told.push(format!("{:?}", store.path(run).await));
        told.push(format!("{:?}", store.subtree(run).await));
        told.push(format!("{:?}", store.load(run, 1, 3).await));
        let journal = store.load(run, 0, 10_000).await.unwrap();
        told.extend(journal.iter().map(|recorded| serde_json::to_string(recorded).unwrap()));
        told.push(format!("{:?}", store.load_tree(run, 2, 4).await));
    }
    told
}

/// What must hold of any tree, whatever was done to it.
async fn check_tree(store: &dyn Store, root: &RunId) {
    let (rows, _) = dump(store, root).await;
    let events: Vec<Recorded> = store.load_tree(root, 0, 10_000).await.unwrap();
    assert!(events.iter().enumerate().all(|(at, recorded)| recorded.tree_seq == at as u64 + 1), "tree_seq has a gap");
    let mut journals: BTreeMap<RunId, Vec<&Recorded>> = BTreeMap::new();
    for recorded in &events {
        journals.entry(recorded.run.clone()).or_default().push(recorded);
    }
    assert_eq!(journals.len(), rows.len());
    for row in &rows {
        let journal = &journals[&row.summary.id];
        assert_eq!(row.tree_seq, events.len() as u64);
        assert!(journal.iter().enumerate().all(|(at, recorded)| recorded.seq == at as u64 + 1), "seq has a gap");
        assert!(journal.windows(2).all(|pair| pair[0].epoch <= pair[1].epoch && pair[0].time_us <= pair[1].time_us));
        let Event::RunCreated(created) = &journal[0].event else { panic!("a journal begins with run_created") };
        let mut folded = Summary::create(row.summary.id.clone(), created, 1, journal[0].time_us);
        journal[1..].iter().for_each(|recorded| folded.apply(recorded));
        assert_eq!(row.summary, folded, "a row is its journal's fold");
        let below = store.subtree(&row.summary.id).await.unwrap();
        let sum = |of: fn(&Summary) -> i64| below.iter().map(|row| of(&row.summary)).sum::<i64>();
        let Account { limits, reserved, totals, runs } = row.account;
        assert_eq!((reserved.usd_nanos, reserved.tokens), (sum(|run| run.open.usd_nanos), sum(|run| run.open.tokens)));
        assert_eq!((totals.cost_usd_nanos, totals.calls), (sum(|run| run.own.cost_usd_nanos), sum(|run| run.own.calls)));
        assert_eq!((runs as usize, limits), (below.len(), row.summary.limits));
    }
}

async fn both_agree(ops: Vec<Op>) {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::new();
    let sqlite = sqlite_in(dir.path());
    let mut world = World::default();
    for op in &ops {
        let run = match op {
            Op::Create { .. } | Op::Request { .. } => id("nobody"),
            Op::Claim { run } | Op::Append { run, .. } | Op::Spawn { run, .. } | Op::End { run, .. } | Op::Cancel { run } => {
                world.run(*run)
            }
        };
        let name = world.name();
        let (by_memory, runs) = perform(&memory, op, &run, &name).await;
        let (by_sqlite, _) = perform(&*sqlite, op, &run, &name).await;
        assert_eq!(by_memory, by_sqlite, "{op:?} on {run}");
        world.runs = runs;
    }
    let told = everything(&memory, &world.runs).await;
    assert_eq!(everything(&*sqlite, &world.runs).await, told);
    drop(sqlite);
    let reopened = sqlite_in(dir.path());
    assert_eq!(everything(&*reopened, &world.runs).await, told, "after a restart");
    for run in &world.runs {
        if reopened.get(run).await.unwrap().summary.parent.is_none() {
            check_tree(&*reopened, run).await;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn stores_answer_alike(ops in prop::collection::vec(op(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(both_agree(ops));
    }
}

/// Children are spawned and a cancel comes in any order that the writers' turns allow: whoever is first, no run is left
/// that bears no mark.
#[derive(Clone, Debug)]
enum Step {
    Spawn { parent: usize },
    Cancel { run: usize },
}

async fn no_run_escapes(store: &dyn Store, steps: &[Step]) {
    let wide = Limits { max_runs: 1_000, ..LIMITS };
    store.create(tree("r", wide)).await.unwrap();
    store.claim(&id("r")).await.unwrap();
    let mut runs = vec![id("r")];
    let mut under_cancel: Vec<RunId> = Vec::new();
    for (n, step) in steps.iter().enumerate() {
        match step {
            Step::Spawn { parent } => {
                let row = store.get(&runs[parent % runs.len()]).await.unwrap();
                let name = format!("k{n}");
                let fence = Fence { run: row.summary.id.clone(), epoch: row.epoch, seq: row.summary.seq };
                let children = vec![child(&row, &name, &name, wide)];
                let made = store.append(fence, Batch { children, ..batch(vec![child_started(&name, &name)]) }).await;
                if under_cancel.contains(&row.summary.id) {
                    assert!(matches!(made, Err(Error::Cancelled)), "{made:?}");
                } else {
                    made.unwrap();
                    store.claim(&id(&name)).await.unwrap();
                    runs.push(id(&name));
                }
            }
            Step::Cancel { run } => {
                let mark = CancelMark { actor: n.to_string(), reason: String::new(), time_us: 1 };
                let rows = store.cancel(&runs[run % runs.len()], mark).await.unwrap();
                under_cancel.extend(rows.into_iter().map(|row| row.summary.id));
            }
        }
    }
    for row in store.subtree(&id("r")).await.unwrap() {
        assert_eq!(row.cancel.is_some(), under_cancel.contains(&row.summary.id));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_cancel_reaches_every_run_of_its_subtree(
        steps in prop::collection::vec(
            prop_oneof![4 => (0..20_usize).prop_map(|parent| Step::Spawn { parent }), 1 => (0..20_usize).prop_map(|run| Step::Cancel { run })],
            1..25,
        )
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            no_run_escapes(&Memory::new(), &steps).await;
            let dir = tempfile::tempdir().unwrap();
            no_run_escapes(&*sqlite_in(dir.path()), &steps).await;
        });
    }
}
