//! What every store must do with runs: creation, fences, journals, lists. Each check gets an empty store.

use std::sync::Arc;

use futures_util::future::join_all;
use wren::kernel::ledger::Refused;
use wren::kernel::{Account, Event, Limits, Outcome, RunId, State};
use wren::store::{Batch, CancelMark, Error, Fence, Query, Row, Store};

use super::make::{
    LIMITS, Pen, batch, call_ended, child_ended, created, dump, ended, events, id, requested, suspended, tree, turn_ended, turn_started,
};

type Shared = Arc<dyn Store>;

fn mark(actor: &str) -> CancelMark {
    CancelMark { actor: actor.to_owned(), reason: "enough".to_owned(), time_us: 5_000 }
}

fn ids(rows: &[Row]) -> Vec<&str> {
    rows.iter().map(|row| row.summary.id.as_str()).collect()
}

pub async fn a_tree_begins_with_its_root(store: Shared) {
    let made = store.create(tree("r1", LIMITS)).await.unwrap();
    let first = made.recorded.unwrap();
    assert_eq!((first.seq, first.tree_seq, first.epoch, first.time_us), (1, 1, 0, 1_000));
    assert_eq!(first.event, Event::RunCreated(Arc::new(created("r1", LIMITS))));
    assert_eq!((made.row.epoch, made.row.tree_seq, made.row.summary.state), (0, 1, State::Pending));
    assert_eq!(store.get(&id("r1")).await.unwrap(), made.row);
    assert_eq!(store.load(&id("r1"), 0, 10).await.unwrap(), std::slice::from_ref(&first));
    assert_eq!(store.load_tree(&id("r1"), 0, 10).await.unwrap(), [first]);
    assert_eq!(store.path(&id("r1")).await.unwrap(), [Account::open(LIMITS)]);
    assert_eq!(store.bundle("b1").await.unwrap(), b"the bundle");
}

pub async fn one_request_makes_one_run(store: Shared) {
    let first = store.create(requested("r1", "q1", "same")).await.unwrap();
    let again = store.create(requested("r2", "q1", "same")).await.unwrap();
    assert!(again.recorded.is_none());
    assert_eq!(again.row, first.row);
    let other = store.create(requested("r3", "q1", "other")).await;
    assert!(matches!(other, Err(Error::RequestIdReused(run)) if run == id("r1")));
    // Nothing of the refused ones is left.
    let all = store.list(Query { limit: 10, ..Query::default() }).await.unwrap();
    assert_eq!(ids(&all.rows), ["r1"]);
    // The request still leads to the run once the run has moved on.
    let mut pen = Pen::of(&*store, "r1").await;
    pen.add(vec![Event::RunStarted {}]).await.unwrap();
    assert_eq!(store.create(requested("r4", "q1", "same")).await.unwrap().row, pen.row().await);
}

pub async fn a_request_that_is_sent_many_times_at_once_makes_one_run(store: Shared) {
    let sent = (0..16).map(|n| store.create(requested(&format!("r{n:02}"), "q1", "same")));
    let made: Vec<_> = join_all(sent).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(made.iter().filter(|made| made.recorded.is_some()).count(), 1);
    let runs: std::collections::HashSet<&RunId> = made.iter().map(|made| &made.row.summary.id).collect();
    assert_eq!(runs.len(), 1);
}

pub async fn an_id_is_never_given_twice(store: Shared) {
    let mut pen = Pen::of_new(&*store, "r1", LIMITS).await;
    pen.spawn("c1", "k1", LIMITS).await.unwrap();
    let before = dump(&*store, &id("r1")).await;
    assert!(store.create(tree("r1", LIMITS)).await.is_err());
    assert!(store.create(tree("k1", LIMITS)).await.is_err());
    assert!(pen.spawn("c2", "k1", LIMITS).await.is_err());
    assert!(pen.spawn("c2", "r1", LIMITS).await.is_err());
    assert_eq!(dump(&*store, &id("r1")).await, before);
}

pub async fn trees_share_a_submission(store: Shared) {
    store.create(tree("r1", LIMITS)).await.unwrap();
    store.create(tree("r2", LIMITS)).await.unwrap();
    let mut pen = Pen::of(&*store, "r2").await;
    pen.spawn("c1", "k1", LIMITS).await.unwrap();
    assert_eq!(store.get(&id("k1")).await.unwrap().bundle_digest, "b1");
    assert_eq!(store.bundle("b1").await.unwrap(), b"the bundle");
    assert!(store.bundle("b2").await.is_err());
}

pub async fn a_claim_fences_the_one_before(store: Shared) {
    let mut old = Pen::of_new(&*store, "r1", LIMITS).await;
    old.add(vec![Event::RunStarted {}]).await.unwrap();
    let claimed = store.claim(&id("r1")).await.unwrap();
    assert_eq!(claimed.row.epoch, 2);
    assert_eq!(claimed.path, store.path(&id("r1")).await.unwrap());
    let before = dump(&*store, &id("r1")).await;
    assert!(matches!(old.add(vec![call_ended("c1")]).await, Err(Error::Fenced)));
    // An epoch that nobody was given is no better.
    let future = Fence { epoch: 9, ..old.fence.clone() };
    assert!(matches!(store.append(future, batch(vec![call_ended("c1")])).await, Err(Error::Fenced)));
    assert_eq!(dump(&*store, &id("r1")).await, before);
    let mut new = Pen { store: &*store, fence: Fence { epoch: 2, ..old.fence.clone() } };
    let added = new.add(vec![call_ended("c1")]).await.unwrap();
    assert_eq!((added.recorded[0].seq, added.recorded[0].epoch), (3, 2));
}

pub async fn a_journal_is_gapless_and_read_in_pages(store: Shared) {
    let mut pen = Pen::of_new(&*store, "r1", LIMITS).await;
    Pen::of_new(&*store, "other", LIMITS).await.add(vec![Event::RunStarted {}]).await.unwrap();
    pen.spawn("c0", "k1", LIMITS).await.unwrap();
    let mut kid = Pen::of(&*store, "k1").await;
    for turn in 1..=10 {
        pen.add(vec![turn_started(turn, 10, 10), turn_ended(turn, 5, 5)]).await.unwrap();
        kid.add(vec![turn_started(turn, 10, 10)]).await.unwrap();
        kid.add(vec![turn_ended(turn, 5, 5)]).await.unwrap();
    }
    let whole = events(&*store, &id("r1")).await;
    assert_eq!(whole.iter().map(|recorded| recorded.tree_seq).collect::<Vec<_>>(), (1..=43).collect::<Vec<_>>());
    assert_eq!(pen.row().await.tree_seq, 43);
    assert_eq!(store.get(&id("k1")).await.unwrap().tree_seq, 43);
    for run in ["r1", "k1"] {
        let own: Vec<_> = whole.iter().filter(|recorded| recorded.run == id(run)).cloned().collect();
        assert_eq!(own.iter().map(|recorded| recorded.seq).collect::<Vec<_>>(), (1..=own.len() as u64).collect::<Vec<_>>());
        let mut paged = Vec::new();
        while let page = store.load(&id(run), paged.len() as u64, 4).await.unwrap()
            && !page.is_empty()
        {
            assert!(page.len() <= 4);
            paged.extend(page);
        }
        assert_eq!(paged, own);
        assert!(store.load(&id(run), 1_000, 4).await.unwrap().is_empty());
    }
    let mut paged = Vec::new();
    while let page = store.load_tree(&id("r1"), paged.len() as u64, 7).await.unwrap()
        && !page.is_empty()
    {
        assert!(page.len() <= 7);
        paged.extend(page);
    }
    assert_eq!(paged, whole);
}

pub async fn a_writer_that_lags_is_told_so(store: Shared) {
    let mut pen = Pen::of_new(&*store, "r1", LIMITS).await;
    pen.add(vec![Event::RunStarted {}]).await.unwrap();
    let before = dump(&*store, &id("r1")).await;
    for seq in [0, 1, 3] {
        let fence = Fence { seq, ..pen.fence.clone() };
        assert!(matches!(store.append(fence, batch(vec![call_ended("c1")])).await, Err(Error::Behind { head: 2 })), "at {seq}");
    }
    assert_eq!(dump(&*store, &id("r1")).await, before);
}

pub async fn an_ended_run_takes_nothing_more(store: Shared) {
    let mut pen = Pen::of_new(&*store, "r1", LIMITS).await;
    let fence = pen.fence.clone();
    pen.add(vec![ended(Outcome::Completed)]).await.unwrap();
    let before = dump(&*store, &id("r1")).await;
    assert!(matches!(pen.add(vec![call_ended("c1")]).await, Err(Error::Ended)));
    assert!(matches!(store.claim(&id("r1")).await, Err(Error::Ended)));
    // A writer that repeats the very append that ended the run must be able to find that it took place.
    assert!(matches!(store.append(fence, batch(vec![ended(Outcome::Completed)])).await, Err(Error::Behind { head: 2 })));
    assert_eq!(dump(&*store, &id("r1")).await, before);
    let row = pen.row().await;
    assert_eq!((row.summary.state, row.summary.outcome, row.summary.ended_us), (State::Ended, Some(Outcome::Completed), Some(2_000)));
}

pub async fn a_refused_batch_leaves_no_trace(store: Shared) {
    let mut pen = Pen::of_new(&*store, "r1", Limits { budget_usd_nanos: 100, ..LIMITS }).await;
    let before = dump(&*store, &id("r1")).await;
    let too_much = vec![call_ended("c1"), turn_started(1, 50, 1), turn_ended(1, 50, 1), turn_started(2, 51, 1)];
    assert!(matches!(pen.add(too_much).await, Err(Error::Refused(Refused::OverBudget))));
    assert_eq!(dump(&*store, &id("r1")).await, before);
    // Tokens bound as money does.
    let tokens = LIMITS.max_tokens;
    assert!(matches!(pen.add(vec![turn_started(1, 1, tokens + 1)]).await, Err(Error::Refused(Refused::OverBudget))));
    // A batch that comes to grief at its last step takes its first ones along.
    let row = pen.row().await;
    let stray = Batch { child_ended: Some(child_ended("c1", "r1", Outcome::Completed)), ..batch(vec![ended(Outcome::Completed)]) };
    assert!(pen.write(stray).await.is_err(), "a root has no parent to tell");
    assert_eq!(pen.row().await, row);
    assert_eq!(dump(&*store, &id("r1")).await, before);
    pen.add(vec![turn_started(1, 100, tokens)]).await.unwrap();
}

pub async fn a_list_has_pages_and_filters(store: Shared) {
    for n in 0..7 {
        let mut new = tree(&format!("r{n}"), LIMITS);
        new.created.workflow = if n % 2 == 0 { "even" } else { "odd" }.to_owned();
        new.created.labels = [("team".to_owned(), if n < 3 { "a" } else { "b" }.to_owned()), ("n".to_owned(), n.to_string())].into();
        store.create(new).await.unwrap();
    }
    Pen::of(&*store, "r1").await.spawn("c1", "k1", LIMITS).await.unwrap();
    Pen::of(&*store, "r2").await.add(vec![Event::RunStarted {}]).await.unwrap();
    Pen::of(&*store, "r3").await.add(vec![ended(Outcome::Failed)]).await.unwrap();
    Pen::of(&*store, "r4").await.add(vec![suspended(Outcome::Budget)]).await.unwrap();
    store.cancel(&id("r5"), mark("ada")).await.unwrap();
    let all = Query { limit: 100, ..Query::default() };
    let cases: Vec<(Query, &[&str])> = vec![
        (all.clone(), &["r6", "r5", "r4", "r3", "r2", "r1", "r0"]),
        (Query { include_descendants: true, ..all.clone() }, &["k1", "r6", "r5", "r4", "r3", "r2", "r1", "r0"]),
        (Query { states: vec![State::Pending], ..all.clone() }, &["r6", "r1", "r0"]),
        (Query { states: vec![State::Running, State::Suspended], ..all.clone() }, &["r4", "r2"]),
        // A run that bears a mark shows as being cancelled before its own journal says so.
        (Query { states: vec![State::Cancelling], ..all.clone() }, &["r5"]),
        (Query { outcomes: vec![Outcome::Failed, Outcome::Budget], ..all.clone() }, &["r4", "r3"]),
        (Query { outcomes: vec![Outcome::Failed], states: vec![State::Suspended], ..all.clone() }, &[]),
        (Query { workflow: Some("odd".to_owned()), ..all.clone() }, &["r5", "r3", "r1"]),
        (Query { labels: vec![("team".to_owned(), "a".to_owned())], ..all.clone() }, &["r2", "r1", "r0"]),
        (Query { labels: vec![("team".to_owned(), "a".to_owned()), ("n".to_owned(), "1".to_owned())], ..all.clone() }, &["r1"]),
        (Query { labels: vec![("team".to_owned(), "c".to_owned())], ..all.clone() }, &[]),
    ];
    for (query, wanted) in cases {
        let page = store.list(query.clone()).await.unwrap();
        assert_eq!(ids(&page.rows), wanted, "{query:?}");
        assert_eq!(page.next, None, "{query:?}");
        for limit in 1..=3 {
            let mut paged: Vec<Row> = Vec::new();
            let mut cursor = None;
            loop {
                let page = store.list(Query { cursor, limit, ..query.clone() }).await.unwrap();
                assert!(page.rows.len() <= limit);
                assert!(!page.rows.is_empty() || wanted.is_empty(), "no page is empty but the only one: {query:?}");
                paged.extend(page.rows);
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
            assert_eq!(ids(&paged), wanted, "{query:?}");
        }
    }
    // A run that comes in while somebody pages does not move the pages.
    let first = store.list(Query { limit: 2, ..Query::default() }).await.unwrap();
    store.create(tree("r9", LIMITS)).await.unwrap();
    let second = store.list(Query { limit: 2, cursor: first.next, ..Query::default() }).await.unwrap();
    assert_eq!(ids(&second.rows), ["r4", "r3"]);
}

pub async fn an_id_is_found_by_its_beginning(store: Shared) {
    // Not in the order of their names: newest first means by creation.
    for run in ["ab2", "ab1", "a%", "a_", "b", "ab3"] {
        store.create(tree(run, LIMITS)).await.unwrap();
    }
    let find = async |prefix: &str, limit: usize| {
        let found = store.find(prefix, limit).await.unwrap();
        found.iter().map(RunId::to_string).collect::<Vec<_>>()
    };
    assert_eq!(find("ab", 10).await, ["ab3", "ab1", "ab2"]);
    assert_eq!(find("ab", 2).await, ["ab3", "ab1"]);
    assert_eq!(find("ab1", 10).await, ["ab1"]);
    assert_eq!(find("a%", 10).await, ["a%"]);
    assert_eq!(find("a_", 10).await, ["a_"]);
    assert_eq!(find("AB", 10).await, Vec::<String>::new());
    assert_eq!(find("", 10).await.len(), 6);
    assert_eq!(find("zz", 10).await, Vec::<String>::new());
}

pub async fn a_starting_daemon_finds_what_is_unfinished(store: Shared) {
    let mut running = Pen::of_new(&*store, "running", LIMITS).await;
    running.add(vec![Event::RunStarted {}]).await.unwrap();
    let mut budget = Pen::of_new(&*store, "budget", LIMITS).await;
    budget.add(vec![suspended(Outcome::Budget)]).await.unwrap();
    let mut marked = Pen::of_new(&*store, "marked", LIMITS).await;
    marked.add(vec![suspended(Outcome::Budget)]).await.unwrap();
    store.cancel(&id("marked"), mark("ada")).await.unwrap();
    let mut drained = Pen::of_new(&*store, "drained", LIMITS).await;
    drained.add(vec![suspended(Outcome::Drained)]).await.unwrap();
    let mut cancelling = Pen::of_new(&*store, "cancelling", LIMITS).await;
    cancelling.add(vec![Event::CancelRequested { actor: "ada".to_owned(), reason: String::new() }]).await.unwrap();
    let mut done = Pen::of_new(&*store, "ended", LIMITS).await;
    done.add(vec![ended(Outcome::Completed)]).await.unwrap();
    running.spawn("c1", "kid", LIMITS).await.unwrap();
    store.create(tree("pending", LIMITS)).await.unwrap();
    let rows = store.unfinished().await.unwrap();
    assert_eq!(ids(&rows), ["running", "marked", "drained", "cancelling", "kid", "pending"]);
    for row in rows {
        assert_eq!(store.get(&row.summary.id).await.unwrap(), row);
    }
}

pub async fn a_write_goes_on_without_its_caller(store: Shared) {
    let mut create = store.create(tree("r1", LIMITS));
    let _ = futures_util::poll!(&mut create);
    drop(create);
    // What comes after waits its turn behind what was begun.
    let claimed = store.claim(&id("r1")).await.unwrap();
    let fence = Fence { run: id("r1"), epoch: claimed.row.epoch, seq: 1 };
    let mut append = store.append(fence.clone(), batch(vec![Event::RunStarted {}]));
    let _ = futures_util::poll!(&mut append);
    drop(append);
    assert!(matches!(store.append(fence, batch(vec![call_ended("c1")])).await, Err(Error::Behind { head: 2 })));
}

pub async fn what_is_not_there_is_said_to_be_missing(store: Shared) {
    let nobody = id("nobody");
    assert!(matches!(store.get(&nobody).await, Err(Error::NotFound(run)) if run == nobody));
    assert!(matches!(store.claim(&nobody).await, Err(Error::NotFound(_))));
    assert!(matches!(store.path(&nobody).await, Err(Error::NotFound(_))));
    assert!(matches!(store.subtree(&nobody).await, Err(Error::NotFound(_))));
    assert!(matches!(store.cancel(&nobody, mark("ada")).await, Err(Error::NotFound(_))));
    let fence = Fence { run: nobody.clone(), epoch: 1, seq: 1 };
    assert!(matches!(store.append(fence, batch(vec![])).await, Err(Error::NotFound(_))));
    assert!(store.load(&nobody, 0, 10).await.unwrap().is_empty());
    assert!(store.load_tree(&nobody, 0, 10).await.unwrap().is_empty());
    assert!(store.unfinished().await.unwrap().is_empty());
    let page = store.list(Query { limit: 10, ..Query::default() }).await.unwrap();
    assert!(page.rows.is_empty() && page.next.is_none());
}
