//! The facts themselves: their JSON, and what the fold says to facts that cannot be.

use wren::kernel::event::{Abort, Cause, Event};
use wren::kernel::{LimitsPatch, Outcome, Recorded, Run, State, Stop};

use super::world::{World, id, reply, spawn_spec, tool};
use wren::kernel::Effect;

/// A tree in which every kind of fact happens.
fn eventful() -> World {
    let mut world = World::new();
    let mut tools = world.agent.tools.to_vec();
    tools.push(tool("send", Effect::External, None));
    tools.push(tool("research", Effect::Spawn, Some(spawn_spec())));
    world.agent.tools = tools.into();
    world.agent.output_schema = Some(serde_json::json!({"type": "object"}));
    let root = id("root");
    world.submit();
    world.drive();
    world.abort(&root, Abort::RateLimited, true, None);
    world.drive();
    world.answer(&root, reply("", &[("send", "{}"), ("research", "{}"), ("read", "{")], Stop::ToolCalls, None));
    world.drive();
    world.crash();
    world.drive();
    world.answer(&id("root/t0001c001"), reply("found", &[], Stop::EndTurn, None));
    world.drive();
    assert_eq!(world.node(&root).run.summary.state, State::Suspended);
    world.resume(LimitsPatch { max_turns: Some(9), ..LimitsPatch::default() });
    world.drive();
    world.answer(&root, reply("no object", &[], Stop::EndTurn, None));
    world.drive();
    world.cancel(&root, "enough");
    world.cut();
    world.drive();
    world
}

#[test]
fn every_fact_goes_through_json_and_back() {
    let world = eventful();
    let mut kinds = std::collections::BTreeSet::new();
    for recorded in world.nodes.values().flat_map(|node| &node.journal) {
        let json = serde_json::to_string(recorded).unwrap();
        let back: Recorded = serde_json::from_str(&json).unwrap();
        assert_eq!(back, *recorded);
        assert_eq!(serde_json::to_string(&back).unwrap(), json);
        kinds.insert(recorded.event.kind());
    }
    assert_eq!(kinds.len(), 16, "some kind of fact is not shown: {kinds:?}");
}

#[test]
fn an_unknown_field_is_read_past_and_an_unknown_kind_is_not() {
    let world = eventful();
    for recorded in world.nodes.values().flat_map(|node| &node.journal) {
        let mut json = serde_json::to_value(&recorded.event).unwrap();
        json["from_a_later_build"] = serde_json::json!({"deep": [1, 2]});
        assert_eq!(serde_json::from_value::<Event>(json.clone()).unwrap(), recorded.event);
        json["kind"] = "from_a_later_build".into();
        assert!(serde_json::from_value::<Event>(json).is_err());
    }
}

/// Every fact after every prefix: the fold takes it or says why not, and never panics.
#[test]
fn any_fact_after_any_prefix_is_taken_or_illegal() {
    let world = eventful();
    let all: Vec<&Recorded> = world.nodes.values().flat_map(|node| &node.journal).collect();
    for node in world.nodes.values() {
        for length in 1..=node.journal.len() {
            let run = Run::fold(&node.journal[..length]).unwrap().unwrap();
            for other in &all {
                for time_us in [i64::MIN, other.time_us, i64::MAX] {
                    let mut odd = Recorded { run: run.id().clone(), seq: length as u64 + 1, epoch: u64::MAX, time_us, ..(*other).clone() };
                    let taken = run.clone().apply(&odd);
                    if run.summary.state == State::Ended || matches!(odd.event, Event::RunCreated(_)) {
                        assert!(taken.is_err());
                    }
                    odd.seq += 1;
                    assert!(run.clone().apply(&odd).is_err(), "a gap in seq");
                    odd.seq -= 1;
                    odd.run = id("another");
                    assert!(run.clone().apply(&odd).is_err(), "a fact of another run");
                }
            }
        }
    }
}

/// Applies `event` after the journal of `world`'s root and returns what is wrong with it.
fn fault(world: &World, event: Event) -> String {
    let node = world.node(&id("root"));
    let seq = node.run.summary.seq + 1;
    let recorded = Recorded { run: id("root"), seq, tree_seq: 99, epoch: node.epoch, time_us: world.now_us, event };
    node.run.clone().apply(&recorded).unwrap_err().why
}

#[test]
fn facts_in_a_wrong_state_are_illegal() {
    let mut world = World::new();
    let root = id("root");
    world.submit();
    let resumed = |cause| Event::RunResumed { cause, actor: String::new() };
    let suspended = |outcome| Event::RunSuspended { outcome, reason: String::new(), message: String::new(), text: String::new() };
    assert!(fault(&world, resumed(Cause::Crash)).contains("pending"));
    assert!(fault(&world, suspended(Outcome::Budget)).contains("pending"));
    world.drive();
    assert!(fault(&world, Event::RunStarted {}).contains("started already"));
    assert!(fault(&world, suspended(Outcome::Budget)).contains("a turn is under way"));
    assert!(fault(&world, resumed(Cause::User)).contains("only a suspended run"));
    let started = world.node(&root).journal.last().unwrap().event.clone();
    assert!(fault(&world, started.clone()).contains("a turn is under way"));
    let mut twins =
        reply("", &[("read", "{}"), ("read", "{}")], Stop::ToolCalls, None).into_message(1, &world.node(&root).run.created.agent.model);
    twins.calls[1].id = twins.calls[0].id.clone();
    world.answer(&root, reply("", &[("read", "{}"), ("read", "{}")], Stop::ToolCalls, None));
    let Event::TurnEnded(mut ended) = world.node(&root).journal.last().unwrap().event.clone() else { panic!("the turn ended") };
    ended.message = twins;
    let mut open = World::new();
    open.submit();
    open.drive();
    assert!(fault(&open, Event::TurnEnded(ended.clone())).contains("same id"));
    ended.turn = 7;
    assert!(fault(&open, Event::TurnEnded(ended)).contains("another turn"));
    world.drive();
    assert!(fault(&world, started).contains("no result yet"));
    let begun = world.node(&root).journal.last().unwrap().event.clone();
    assert!(fault(&world, begun).contains("expected attempt 2"));
    assert!(fault(&world, suspended(Outcome::Completed)).contains("ends this run"));
}
