//! Commands that meet: two resumes, a resume of what could not be driven, a drain of several trees.

use std::sync::Arc;

use futures_util::future::join;
use wren::kernel::event::Event;
use wren::kernel::{LimitsPatch, Outcome, RunId, State};
use wren::runtime::{Error, Live};
use wren::store::Store;
use wren::store::memory::Memory;

use super::{Bench, TWO_CHILDREN, paused};

async fn outcome(bench: &Bench, run: &RunId) -> (State, Option<Outcome>) {
    let summary = bench.runtime.get(run).await.unwrap().summary;
    (summary.state, summary.outcome)
}

/// Submits, and drops the daemon in the middle of the first model call, as a crash would.
fn killed_in_a_turn(store: &Arc<Memory>, dir: &Arc<tempfile::TempDir>) -> RunId {
    let first = paused();
    first.block_on(async {
        let bench = Bench::on(store.clone(), dir.clone()).await;
        let run = bench.submit(TWO_CHILDREN).await;
        while Store::get(&**store, &run).await.unwrap().summary.seq < 3 {
            tokio::task::yield_now().await;
        }
        run
    })
}

#[tokio::test(start_paused = true)]
async fn of_two_resumes_one_is_told_that_the_run_goes_on() {
    let bench = Bench::start().await;
    let run = bench.submit(&TWO_CHILDREN.replace("prompt: Go.", "prompt: Go.\nlimits: {max_turns: 1}")).await;
    bench.follow(&run).await;
    let more = LimitsPatch { max_turns: Some(5), ..LimitsPatch::default() };
    let (one, other) = join(bench.runtime.resume(&run, more, "ada", ""), bench.runtime.resume(&run, more, "bob", "")).await;
    assert_eq!(u8::from(one.is_ok()) + u8::from(other.is_ok()), 1, "{one:?} {other:?}");
    assert!([&one, &other].into_iter().any(|result| matches!(result, Err(Error::NotSuspended(_)))));
    let seen = bench.follow(&run).await;
    assert_eq!(outcome(&bench, &run).await, (State::Ended, Some(Outcome::Completed)));
    let resumed = seen.iter().filter(|live| matches!(live, Live::Recorded(fact) if matches!(fact.event, Event::RunResumed { .. })));
    assert_eq!(resumed.count(), 1);
}

#[test]
fn what_could_not_be_driven_goes_on_once_it_can() {
    let (store, dir) = (Arc::new(Memory::new()), Arc::new(tempfile::tempdir().unwrap()));
    let run = killed_in_a_turn(&store, &dir);
    paused().block_on(async {
        let (work, away) = (dir.path().join("work"), dir.path().join("away"));
        std::fs::rename(&work, &away).unwrap();
        let bench = Bench::on_bare(store.clone(), dir.clone()).await;
        assert_eq!(outcome(&bench, &run).await, (State::Suspended, Some(Outcome::InDoubt)));
        // Its watchers are not left waiting for a fact that never comes.
        bench.follow(&run).await;
        let refused = bench.runtime.resume(&run, LimitsPatch::default(), "ada", "").await;
        assert!(matches!(refused, Err(Error::Workspace(_))), "{refused:?}");
        std::fs::rename(&away, &work).unwrap();
        let more = LimitsPatch { max_turns: Some(9), ..LimitsPatch::default() };
        let refused = bench.runtime.resume(&run, more, "ada", "").await;
        assert!(matches!(refused, Err(Error::SetAside(_))), "{refused:?}");
        bench.runtime.resume(&run, LimitsPatch::default(), "ada", "").await.unwrap();
        bench.follow(&run).await;
        assert_eq!(outcome(&bench, &run).await, (State::Ended, Some(Outcome::Completed)));
    });
}

#[test]
fn every_crash_is_written_once_however_often_the_daemon_dies() {
    let (store, dir) = (Arc::new(Memory::new()), Arc::new(tempfile::tempdir().unwrap()));
    let run = killed_in_a_turn(&store, &dir);
    for _ in 0..3 {
        // It dies again before the model has answered.
        paused().block_on(async { drop(Bench::on(store.clone(), dir.clone()).await) });
    }
    paused().block_on(async {
        let bench = Bench::on(store.clone(), dir.clone()).await;
        let seen = bench.follow(&run).await;
        assert_eq!(outcome(&bench, &run).await, (State::Ended, Some(Outcome::Completed)));
        let crashes = seen.iter().filter(|live| matches!(live, Live::Recorded(fact) if matches!(fact.event, Event::RunResumed { .. })));
        assert_eq!(crashes.count(), 4);
    });
}
