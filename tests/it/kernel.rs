//! Tests of the kernel: golden scripts of every guarantee, a table of every stop, and laws that hold of any tree.

mod facts;
mod laws;
mod money;
mod script;
mod words;
mod world;

use wren::kernel::event::Event;
use wren::kernel::run::Progress;
use wren::kernel::{Run, State, Stop};

use world::{World, id, reply};

/// What holds of every tree at every moment when nothing is being decided.
fn check(world: &World) {
    for (run, node) in &world.nodes {
        let summary = &node.run.summary;
        let below: Vec<_> = world.subtree(run).iter().map(|below| world.node(below)).collect();
        let sum = |of: fn(&world::Node) -> i64| below.iter().map(|node| of(node)).sum::<i64>();
        let totals = &node.account.totals;
        assert_eq!(totals.cost_usd_nanos, sum(|node| node.run.summary.own.cost_usd_nanos), "{run}: own costs add up to the subtree's");
        assert_eq!(totals.turns, sum(|node| node.run.summary.own.turns));
        assert_eq!(totals.calls, sum(|node| node.run.summary.own.calls));
        assert_eq!(node.account.reserved.usd_nanos, sum(|node| node.open.usd_nanos), "{run}: what is set aside is what turns hold");
        assert!(node.run.turns() <= summary.limits.max_turns.max(1), "{run}: more turns than max_turns");
        let ends = node.journal.iter().filter(|recorded| matches!(recorded.event, Event::RunEnded(_))).count();
        assert_eq!(ends, usize::from(summary.state == State::Ended), "{run}: exactly one end");
        if matches!(summary.state, State::Ended | State::Suspended) {
            assert!(node.open.is_zero(), "{run}: a reservation is left open");
        }
        check_results(node);
        let folded = Run::fold(&node.journal).unwrap().unwrap();
        assert_eq!(folded.summary, *summary, "{run}: the journal folds to the same row");
        for (seq, request) in &node.requests {
            let prefix = Run::fold(node.journal.iter().take_while(|recorded| recorded.seq <= *seq)).unwrap().unwrap();
            let again = prefix.request(prefix.open_turn.as_ref().unwrap());
            assert_eq!(serde_json::to_string(&again).unwrap(), *request, "{run}: the request of seq {seq} is rebuilt byte for byte");
        }
    }
    let journal = world.journal();
    let cost_usd_nanos = world.nodes.get(&id("root")).map_or(0, |root| root.account.totals.cost_usd_nanos);
    crate::telemetry::laws::check(&journal, world.now_us, cost_usd_nanos);
}

/// Every call that was ever asked for has one result, unless it is still at work.
fn check_results(node: &world::Node) {
    let mut results = std::collections::BTreeMap::new();
    let mut asked = Vec::new();
    for recorded in &node.journal {
        match &recorded.event {
            Event::TurnEnded(turn) => asked.extend(turn.message.calls.iter().map(|call| call.id.clone())),
            Event::CallEnded(call) => *results.entry(call.call_id.clone()).or_insert(0) += 1,
            _ => {}
        }
    }
    for call in asked {
        let open = node.run.call(&call).is_some_and(|pending| !matches!(pending.progress, Progress::Ended(_)));
        assert_eq!(results.get(&call).copied().unwrap_or(0), i32::from(!open), "results of call {call}");
    }
}

#[test]
fn scripts() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/scripts");
    let update = std::env::var_os("WREN_UPDATE_SCRIPTS").is_some();
    let mut paths: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    let mut wrong = Vec::new();
    for path in paths {
        println!("{}", path.display());
        let script = std::fs::read_to_string(&path).unwrap();
        // A script that cannot be played to its end must not hide the others.
        let played = std::panic::catch_unwind(|| script::play(&script)).unwrap_or_else(|_| "it panicked\n".to_owned());
        if played != script {
            wrong.push(format!("{}:\n{played}", path.display()));
            if update && played != "it panicked\n" {
                std::fs::write(&path, played).unwrap();
            }
        }
    }
    assert!(wrong.is_empty() || update, "these scripts went otherwise:\n{}", wrong.join("\n"));
}

/// What every stop comes to, with calls and without: outcome, whether it is marked as cut off, and whether tools ran.
#[test]
fn every_stop_with_and_without_calls() {
    let table = [
        (Stop::EndTurn, false, "completed", false, false),
        (Stop::EndTurn, true, "asked again", false, true),
        (Stop::ToolCalls, false, "completed", false, false),
        (Stop::ToolCalls, true, "asked again", false, true),
        (Stop::Length, false, "completed", true, false),
        (Stop::Length, true, "blocked", false, false),
        (Stop::Refusal, false, "blocked", false, false),
        (Stop::Refusal, true, "blocked", false, false),
        (Stop::Error, false, "provider_error", false, false),
        (Stop::Error, true, "provider_error", false, false),
    ];
    for (stop, with_calls, outcome, truncated, runs) in table {
        let mut world = World::new();
        world.submit();
        world.drive();
        let calls: &[(&str, &str)] = if with_calls { &[("read", "{}")] } else { &[] };
        world.answer(&id("root"), reply("words", calls, stop, None));
        world.drive();
        let under_way = world.under_way(&id("root"));
        let ran = !under_way.is_empty();
        for call in under_way {
            world.finish(&id("root"), &call, None, "done");
        }
        world.drive();
        let summary = &world.node(&id("root")).run.summary;
        let became = summary.outcome.map_or("asked again", wren::kernel::Outcome::name);
        assert_eq!((became, summary.truncated, ran), (outcome, truncated, runs), "{stop:?} with calls: {with_calls}");
        check(&world);
    }
}
