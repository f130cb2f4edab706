//! What every store must do with trees: money over the path, children, cancels. Each check gets an empty store.

use std::sync::Arc;

use futures_util::future::join_all;
use wren::kernel::ledger::Refused;
use wren::kernel::{Event, Limits, Outcome, Reservation, State};
use wren::store::{Batch, CancelMark, Error, Row, Store};

use super::make::{
    LIMITS, Pen, batch, call_ended, call_started, child, child_ended, child_started, dump, ended, events, id, turn_aborted, turn_ended,
    turn_started,
};

type Shared = Arc<dyn Store>;

const NOTHING: Reservation = Reservation { usd_nanos: 0, tokens: 0 };

fn mark(actor: &str) -> CancelMark {
    CancelMark { actor: actor.to_owned(), reason: "enough".to_owned(), time_us: 5_000 }
}

/// Runs a future on a thread of its own, so that it is truly beside the others.
fn on_a_thread<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> tokio::task::JoinHandle<T> {
    let runtime = tokio::runtime::Handle::current();
    tokio::task::spawn_blocking(move || runtime.block_on(work))
}

fn ids(rows: &[Row]) -> Vec<&str> {
    rows.iter().map(|row| row.summary.id.as_str()).collect()
}

pub async fn money_is_bounded_by_every_run_above(store: Shared) {
    let mut root = Pen::of_new(&*store, "r1", Limits { budget_usd_nanos: 100, ..LIMITS }).await;
    root.spawn("c1", "k1", Limits { budget_usd_nanos: 1_000, ..LIMITS }).await.unwrap();
    let mut kid = Pen::of(&*store, "k1").await;
    kid.spawn("c1", "g1", Limits { budget_usd_nanos: 1_000, ..LIMITS }).await.unwrap();
    let mut grandkid = Pen::of(&*store, "g1").await;
    assert!(matches!(grandkid.add(vec![turn_started(1, 101, 1)]).await, Err(Error::Refused(Refused::OverBudget))));
    let added = grandkid.add(vec![turn_started(1, 90, 8)]).await.unwrap();
    let reserved = Reservation { usd_nanos: 90, tokens: 8 };
    assert_eq!(added.path.iter().map(|account| account.reserved).collect::<Vec<_>>(), [reserved; 3]);
    assert_eq!(store.path(&id("g1")).await.unwrap(), added.path);
    assert_eq!(grandkid.row().await.summary.open, reserved);
    assert!(matches!(root.add(vec![turn_started(1, 11, 1)]).await, Err(Error::Refused(Refused::OverBudget))));
    root.add(vec![turn_started(1, 10, 1)]).await.unwrap();
    root.add(vec![turn_ended(1, 10, 1)]).await.unwrap();
    let added = grandkid.add(vec![turn_ended(1, 40, 3)]).await.unwrap();
    assert_eq!(added.path.iter().map(|account| account.totals.cost_usd_nanos).collect::<Vec<_>>(), [40, 40, 50]);
    assert!(added.path.iter().all(|account| account.reserved == NOTHING));
    assert_eq!(store.get(&id("k1")).await.unwrap().summary.own.cost_usd_nanos, 0);
    // A raised limit of the run itself counts at once; its child's larger one never did.
    let more = Event::LimitsChanged { limits: Limits { budget_usd_nanos: 200, ..LIMITS }, actor: "me".to_owned(), reason: String::new() };
    assert!(kid.add(vec![turn_started(1, 51, 1)]).await.is_err());
    root.add(vec![more]).await.unwrap();
    kid.add(vec![turn_started(1, 150, 1)]).await.unwrap();
}

pub async fn losses_and_overruns_are_kept_apart(store: Shared) {
    let mut pen = Pen::of_new(&*store, "r1", Limits { budget_usd_nanos: 100, ..LIMITS }).await;
    let reservation = Reservation { usd_nanos: 30, tokens: 9 };
    pen.add(vec![turn_started(1, 30, 9), turn_aborted(1, 0, NOTHING)]).await.unwrap();
    assert_eq!(pen.row().await.account.totals.cost_usd_nanos, 0);
    pen.add(vec![turn_started(1, 30, 9), turn_aborted(1, 0, reservation)]).await.unwrap();
    let totals = pen.row().await.account.totals;
    assert_eq!((totals.cost_usd_nanos, totals.written_off_usd_nanos, totals.written_off_tokens), (30, 30, 9));
    pen.add(vec![turn_started(1, 30, 9), turn_ended(1, 95, 1)]).await.unwrap();
    let row = pen.row().await;
    assert_eq!((row.account.totals.cost_usd_nanos, row.account.totals.overrun_usd_nanos), (125, 65));
    assert_eq!(row.account.totals, row.summary.own);
    assert!(matches!(pen.add(vec![turn_started(2, 1, 1)]).await, Err(Error::Refused(Refused::OverBudget))));
}

pub async fn parallel_children_never_pass_the_ceiling(store: Shared) {
    const LIMIT: i64 = 2_000;
    let mut root = Pen::of_new(&*store, "r1", Limits { budget_usd_nanos: LIMIT, ..LIMITS }).await;
    for kid in 0..8 {
        root.spawn(&format!("c{kid}"), &format!("k{kid}"), LIMITS).await.unwrap();
    }
    let spend = |kid: u32| {
        let store = store.clone();
        async move {
            let mut pen = Pen::of(&*store, &format!("k{kid}")).await;
            for turn in 1.. {
                match pen.add(vec![turn_started(turn, 70, 1)]).await {
                    Ok(added) => {
                        let root = added.path.last().unwrap();
                        assert!(root.totals.cost_usd_nanos + root.reserved.usd_nanos <= LIMIT);
                    }
                    Err(Error::Refused(Refused::OverBudget)) => return,
                    Err(error) => panic!("{error}"),
                }
                pen.add(vec![turn_ended(turn, 63, 1)]).await.unwrap();
            }
        }
    };
    join_all((0..8).map(|kid| on_a_thread(spend(kid)))).await.into_iter().for_each(Result::unwrap);
    let rows = store.subtree(&id("r1")).await.unwrap();
    let (spent, reserved) = (rows[0].account.totals.cost_usd_nanos, rows[0].account.reserved);
    assert_eq!(spent, rows.iter().map(|row| row.summary.own.cost_usd_nanos).sum::<i64>());
    assert_eq!(reserved, NOTHING);
    assert!(spent <= LIMIT && spent + 8 * 70 > LIMIT, "{spent}");
}

pub async fn five_children_at_once_do_not_pass_the_ceiling(store: Shared) {
    const USD: i64 = 1_000_000_000;
    let mut root = Pen::of_new(&*store, "r1", Limits { budget_usd_nanos: 10 * USD, ..LIMITS }).await;
    let spent = USD / 100 * 990;
    root.add(vec![turn_started(1, spent, 1), turn_ended(1, spent, 1)]).await.unwrap();
    for kid in 0..5 {
        root.spawn(&format!("c{kid}"), &format!("k{kid}"), LIMITS).await.unwrap();
    }
    let ask = |kid: u32| {
        let store = store.clone();
        async move { Pen::of(&*store, &format!("k{kid}")).await.add(vec![turn_started(1, USD, 1)]).await }
    };
    for asked in join_all((0..5).map(ask)).await {
        assert!(matches!(asked, Err(Error::Refused(Refused::OverBudget))));
    }
    assert_eq!(root.row().await.account.totals.cost_usd_nanos, spent);
}

pub async fn a_call_has_one_child(store: Shared) {
    let mut pen = Pen::of_new(&*store, "r1", LIMITS).await;
    pen.spawn("c1", "k1", LIMITS).await.unwrap();
    let before = dump(&*store, &id("r1")).await;
    assert!(pen.spawn("c1", "k2", LIMITS).await.is_err());
    assert_eq!(dump(&*store, &id("r1")).await, before);
    // The same call id in another run is another call.
    let mut kid = Pen::of(&*store, "k1").await;
    kid.spawn("c1", "g1", LIMITS).await.unwrap();
}

pub async fn a_child_that_is_not_the_writers_own_is_refused(store: Shared) {
    let mut pen = Pen::of_new(&*store, "r1", LIMITS).await;
    let other = Pen::of_new(&*store, "r2", LIMITS).await;
    let before = dump(&*store, &id("r1")).await;
    let stray = child(&other.row().await, "c1", "k1", LIMITS);
    assert!(pen.write(Batch { children: vec![stray], ..batch(vec![child_started("c1", "k1")]) }).await.is_err());
    assert_eq!(dump(&*store, &id("r1")).await, before);
    assert!(matches!(store.get(&id("k1")).await, Err(Error::NotFound(_))));
}

pub async fn runs_are_bounded_by_every_run_above(store: Shared) {
    let mut root = Pen::of_new(&*store, "r1", Limits { max_runs: 4, ..LIMITS }).await;
    root.spawn("c1", "k1", Limits { max_runs: 2, ..LIMITS }).await.unwrap();
    let mut kid = Pen::of(&*store, "k1").await;
    let added = kid.spawn("c1", "g1", LIMITS).await.unwrap();
    assert_eq!(added.path.iter().map(|account| account.runs).collect::<Vec<_>>(), [2, 3]);
    let before = dump(&*store, &id("r1")).await;
    assert!(matches!(kid.spawn("c2", "g2", LIMITS).await, Err(Error::Refused(Refused::OverRuns))), "by its own limit");
    // Two at once where one has room: neither is made.
    let row = root.row().await;
    let two = vec![child(&row, "c2", "k2", LIMITS), child(&row, "c3", "k3", LIMITS)];
    let both = Batch { children: two, ..batch(vec![child_started("c2", "k2"), child_started("c3", "k3")]) };
    assert!(matches!(root.write(both).await, Err(Error::Refused(Refused::OverRuns))));
    assert_eq!(dump(&*store, &id("r1")).await, before);
    root.spawn("c2", "k2", LIMITS).await.unwrap();
    let mut grandkid = Pen::of(&*store, "g1").await;
    assert!(matches!(grandkid.spawn("c1", "x1", LIMITS).await, Err(Error::Refused(Refused::OverRuns))), "by the root's");
}

pub async fn a_transaction_has_one_order(store: Shared) {
    let mut root = Pen::of_new(&*store, "r1", LIMITS).await;
    let row = root.row().await;
    let children = vec![child(&row, "c1", "k1", LIMITS), child(&row, "c2", "k2", LIMITS)];
    let spawn = Batch { children, ..batch(vec![child_started("c1", "k1"), child_started("c2", "k2"), call_ended("c3")]) };
    let added = root.write(spawn).await.unwrap();
    let order: Vec<_> =
        added.recorded.iter().map(|recorded| (recorded.run.as_str(), recorded.seq, recorded.tree_seq, recorded.event.kind())).collect();
    let wanted = [
        ("r1", 2, 2, "child_started"),
        ("r1", 3, 3, "child_started"),
        ("r1", 4, 4, "call_ended"),
        ("k1", 1, 5, "run_created"),
        ("k2", 1, 6, "run_created"),
    ];
    assert_eq!(order, wanted);
    assert_eq!(events(&*store, &id("r1")).await[1..], added.recorded);
    assert_eq!(ids(&store.subtree(&id("r1")).await.unwrap()), ["r1", "k1", "k2"]);
    assert_eq!(store.get(&id("k1")).await.unwrap().epoch, 0);
}

pub async fn a_subtree_is_listed_level_by_level(store: Shared) {
    let mut root = Pen::of_new(&*store, "r1", LIMITS).await;
    root.spawn("c1", "k1", LIMITS).await.unwrap();
    root.spawn("c2", "k2", LIMITS).await.unwrap();
    // Cousins stand in the order of their making, not of their parents'.
    Pen::of(&*store, "k2").await.spawn("c1", "g2", LIMITS).await.unwrap();
    Pen::of(&*store, "k1").await.spawn("c1", "g1", LIMITS).await.unwrap();
    assert_eq!(ids(&store.subtree(&id("r1")).await.unwrap()), ["r1", "k1", "k2", "g2", "g1"]);
}

pub async fn a_parent_hears_of_its_childs_end(store: Shared) {
    let mut root = Pen::of_new(&*store, "r1", LIMITS).await;
    root.spawn("c1", "k1", LIMITS).await.unwrap();
    let mut late = root.add(vec![call_ended("c9")]).await.unwrap().recorded;
    let mut kid = Pen::of(&*store, "k1").await;
    // The child's clock is behind; its parent's journal does not go back in time.
    let end = Batch {
        events: [turn_started(1, 9, 9), turn_ended(1, 7, 2), ended(Outcome::Completed)].map(|event| (1_500, event)).to_vec(),
        child_ended: Some(child_ended("c1", "k1", Outcome::Completed)),
        time_us: 1_500,
        ..Batch::default()
    };
    let added = kid.write(end).await.unwrap();
    let told = added.recorded.last().unwrap().clone();
    let last = late.pop().unwrap();
    assert_eq!((told.run.clone(), told.seq, told.epoch, told.time_us), (id("r1"), last.seq + 1, 1, last.time_us));
    assert_eq!(told.event, Event::ChildEnded(Box::new(child_ended("c1", "k1", Outcome::Completed))));
    assert_eq!(told.tree_seq, last.tree_seq + 4);
    let row = root.row().await;
    assert_eq!((row.summary.seq, row.tree_seq, row.account.totals.cost_usd_nanos), (told.seq, told.tree_seq, 7));
    // The parent's driver finds out at its next append, whatever that is.
    assert!(matches!(root.add(vec![call_ended("c2")]).await, Err(Error::Behind { head }) if head == told.seq));
    assert_eq!(store.load(&id("r1"), root.fence.seq, 10).await.unwrap(), std::slice::from_ref(&told));
    root.fence.seq = told.seq;
    root.add(vec![call_ended("c1")]).await.unwrap();
}

pub async fn a_parent_that_has_ended_hears_nothing_more(store: Shared) {
    let mut root = Pen::of_new(&*store, "r1", LIMITS).await;
    root.spawn("c1", "k1", LIMITS).await.unwrap();
    root.add(vec![ended(Outcome::Failed)]).await.unwrap();
    let before = root.row().await.summary;
    let end = Batch { child_ended: Some(child_ended("c1", "k1", Outcome::Completed)), ..batch(vec![ended(Outcome::Completed)]) };
    let added = Pen::of(&*store, "k1").await.write(end).await.unwrap();
    assert_eq!(added.recorded.iter().map(|recorded| recorded.event.kind()).collect::<Vec<_>>(), ["run_ended"]);
    assert_eq!(root.row().await.summary, before);
    assert_eq!(store.get(&id("k1")).await.unwrap().summary.state, State::Ended);
}

pub async fn a_cancel_marks_the_subtree_alone(store: Shared) {
    let mut root = Pen::of_new(&*store, "r1", LIMITS).await;
    root.spawn("c1", "k1", LIMITS).await.unwrap();
    root.spawn("c2", "k2", LIMITS).await.unwrap();
    let mut kid = Pen::of(&*store, "k1").await;
    kid.spawn("c1", "g1", LIMITS).await.unwrap();
    kid.spawn("c2", "g2", LIMITS).await.unwrap();
    let end = Batch { child_ended: Some(child_ended("c1", "g1", Outcome::Completed)), ..batch(vec![ended(Outcome::Completed)]) };
    Pen::of(&*store, "g1").await.write(end).await.unwrap();
    let before = store.subtree(&id("k1")).await.unwrap();
    let returned = store.cancel(&id("k1"), mark("ada")).await.unwrap();
    assert_eq!(ids(&returned), ["k1", "g1", "g2"]);
    assert_eq!(returned, before);
    let cancelled = |rows: Vec<Row>| rows.into_iter().map(|row| (row.summary.id.to_string(), row.cancel)).collect::<Vec<_>>();
    let whole = cancelled(store.subtree(&id("r1")).await.unwrap());
    let marked: Vec<&str> = whole.iter().filter(|(_, cancel)| cancel.is_some()).map(|(run, _)| run.as_str()).collect();
    assert_eq!(marked, ["k1", "g2"]);
    // A second mark changes nothing where there is one, and a wider one reaches the rest.
    let again = store.cancel(&id("r1"), mark("bob")).await.unwrap();
    assert_eq!(cancelled(again), whole);
    let who: Vec<_> =
        cancelled(store.subtree(&id("r1")).await.unwrap()).into_iter().map(|(run, cancel)| (run, cancel.map(|mark| mark.actor))).collect();
    let wanted = [("r1", Some("bob")), ("k1", Some("ada")), ("k2", Some("bob")), ("g1", None), ("g2", Some("ada"))];
    assert_eq!(who, wanted.map(|(run, actor)| (run.to_owned(), actor.map(str::to_owned))));
}

pub async fn a_marked_run_starts_nothing(store: Shared) {
    let mut root = Pen::of_new(&*store, "r1", LIMITS).await;
    root.add(vec![Event::RunStarted {}, turn_started(1, 5, 5)]).await.unwrap();
    store.cancel(&id("r1"), mark("ada")).await.unwrap();
    for start in [turn_started(2, 1, 1), call_started("c1"), child_started("c1", "k1")] {
        assert!(matches!(root.add(vec![call_ended("c9"), start]).await, Err(Error::Cancelled)));
    }
    assert!(matches!(root.spawn("c1", "k1", LIMITS).await, Err(Error::Cancelled)));
    let row = root.row().await;
    assert!(matches!(root.write(Batch { children: vec![child(&row, "c1", "k1", LIMITS)], ..batch(vec![]) }).await, Err(Error::Cancelled)));
    // What is under way is still settled, and the writer is told.
    let request = Event::CancelRequested { actor: "ada".to_owned(), reason: "enough".to_owned() };
    let added = root.add(vec![turn_ended(1, 4, 4), request]).await.unwrap();
    assert_eq!(added.cancel, Some(mark("ada")));
    assert_eq!(root.row().await.summary.state, State::Cancelling);
    root.add(vec![ended(Outcome::Cancelled)]).await.unwrap();
    assert_eq!(root.row().await.cancel, Some(mark("ada")));
}

pub async fn a_child_never_slips_through_a_cancel(store: Shared) {
    let limits = Limits { max_runs: 10_000, ..LIMITS };
    for round in 0..20 {
        let run = format!("r{round:02}");
        Pen::of_new(&*store, &run, limits).await;
        let begun = Arc::new(tokio::sync::Semaphore::new(0));
        let spawning = {
            let (store, run, begun) = (store.clone(), run.clone(), begun.clone());
            async move {
                let mut pen = Pen::of(&*store, &run).await;
                for n in 0.. {
                    match pen.spawn(&format!("c{n}"), &format!("{run}-k{n}"), limits).await {
                        Ok(_) => begun.add_permits(1),
                        Err(Error::Cancelled) => return n,
                        Err(error) => panic!("{error}"),
                    }
                }
                0
            }
        };
        let spawning = on_a_thread(spawning);
        // At another moment of the spawning in every round.
        begun.acquire_many(round % 5).await.unwrap().forget();
        let before = store.cancel(&id(&run), mark("ada")).await.unwrap();
        let spawned: usize = spawning.await.unwrap();
        let rows = store.subtree(&id(&run)).await.unwrap();
        assert_eq!(ids(&rows), ids(&before), "nothing was made after the mark");
        assert_eq!(rows.len(), spawned + 1);
        assert!(rows.iter().all(|row| row.cancel.is_some()));
    }
}
