//! Laws that hold whatever happens: random replies, failures, results, cancels, crashes, drains and resumes on a tree,
//! and many children at one small budget with usage that no honest provider would state.

use proptest::prelude::*;
use wren::kernel::event::{Abort, CallFailure};
use wren::kernel::{Effect, Limits, LimitsPatch, OnFailure, RunId, SpawnSpec, State, Stop, Usage};

use super::world::{World, id, reply, spawn_spec, tool};

const TOOLS: [&str; 7] = ["read", "put", "send", "research", "must", "no_such", "read"];
const STOPS: [Stop; 7] = [Stop::EndTurn, Stop::ToolCalls, Stop::ToolCalls, Stop::ToolCalls, Stop::Length, Stop::Refusal, Stop::Error];
const ABORTS: [Abort; 6] = [Abort::Auth, Abort::RateLimited, Abort::CutStream, Abort::ContextLength, Abort::Timeout, Abort::Malformed];

#[derive(Clone, Debug)]
enum Op {
    Reply { which: usize, calls: Vec<usize>, stop: usize, usage: Usage, estimated: bool },
    Fail { which: usize, why: usize, retryable: bool, usage: Option<Usage> },
    Finish { which: usize, broken: bool },
    Cancel { which: usize },
    Cut,
    Crash,
    Drain,
    Restart,
    Resume,
    Wait { ms: i64 },
}

fn usage() -> impl Strategy<Value = Usage> {
    let tokens =
        prop_oneof![8 => 0..2_000_i64, 1 => Just(0), 1 => Just(-5), 1 => Just(i64::MAX), 1 => Just(i64::MIN), 1 => 0..9_000_000_i64];
    (tokens.clone(), tokens.clone(), tokens.clone(), tokens.clone(), tokens).prop_map(|(input, output, read, write, reasoning)| Usage {
        input_tokens: input,
        output_tokens: output,
        cache_read_tokens: read,
        cache_write_tokens: write,
        reasoning_tokens: reasoning,
    })
}

fn op() -> impl Strategy<Value = Op> {
    let calls = prop::collection::vec(0..TOOLS.len(), 0..5);
    let replied = (0..64_usize, calls, 0..STOPS.len(), usage(), any::<bool>());
    let failed = (0..64_usize, 0..ABORTS.len(), any::<bool>(), prop::option::of(usage()));
    prop_oneof![
        12 => replied.prop_map(|(which, calls, stop, usage, estimated)| Op::Reply { which, calls, stop, usage, estimated }),
        3 => failed.prop_map(|(which, why, retryable, usage)| Op::Fail { which, why, retryable, usage }),
        8 => (0..64_usize, any::<bool>()).prop_map(|(which, broken)| Op::Finish { which, broken }),
        1 => (0..64_usize).prop_map(|which| Op::Cancel { which }),
        1 => Just(Op::Cut),
        2 => Just(Op::Crash),
        1 => Just(Op::Drain),
        1 => Just(Op::Restart),
        2 => Just(Op::Resume),
        1 => (0..40_000_i64).prop_map(|ms| Op::Wait { ms }),
    ]
}

fn tree(limits: Limits, spawn: SpawnSpec) -> World {
    let mut world = World::new();
    let failing = SpawnSpec { on_failure: OnFailure::Fail, max_parallel: 1, ..spawn.clone() };
    world.limits = limits;
    world.agent.tools = vec![
        tool("read", Effect::ReadOnly, None),
        tool("put", Effect::Idempotent, None),
        tool("send", Effect::External, None),
        tool("research", Effect::Spawn, Some(spawn)),
        tool("must", Effect::Spawn, Some(failing)),
    ]
    .into();
    world.submit();
    world.drive();
    world
}

/// One of the runs that are asking the model.
fn asking(world: &World, which: usize) -> Option<RunId> {
    let asking: Vec<&RunId> = world.nodes.iter().filter(|(_, node)| node.run.open_turn.is_some()).map(|(run, _)| run).collect();
    (!asking.is_empty()).then(|| asking[which % asking.len()].clone())
}

fn apply(world: &mut World, op: &Op) {
    match op {
        Op::Reply { which, calls, stop, usage, estimated } => {
            let Some(run) = asking(world, *which) else { return };
            world.estimates = *estimated;
            let calls: Vec<(&str, &str)> = calls.iter().map(|call| (TOOLS[*call], if *call == 6 { "{" } else { "{}" })).collect();
            world.answer(&run, reply("some words", &calls, STOPS[*stop], Some(*usage)));
        }
        Op::Fail { which, why, retryable, usage } => {
            let Some(run) = asking(world, *which) else { return };
            world.abort(&run, ABORTS[*why], *retryable, *usage);
        }
        Op::Finish { which, broken } => {
            let busy: Vec<_> =
                world.nodes.keys().flat_map(|run| world.under_way(run).into_iter().map(|call| (run.clone(), call))).collect();
            let Some((run, call)) = busy.get(which % busy.len().max(1)) else { return };
            world.finish(run, call, broken.then_some(CallFailure::Failed), "what came of it");
        }
        Op::Cancel { which } => {
            let all: Vec<RunId> = world.nodes.keys().cloned().collect();
            world.cancel(&all[which % all.len()], "enough");
        }
        Op::Cut => world.cut(),
        Op::Crash => world.crash(),
        Op::Drain => world.draining = true,
        Op::Restart => world.restart(),
        Op::Resume => resume(world),
        Op::Wait { ms } => world.now_us += ms * 1000,
    }
    world.drive();
}

/// Resumes a suspended root with more of everything.
fn resume(world: &mut World) {
    let summary = &world.node(&id("root")).run.summary;
    if summary.state != State::Suspended || world.node(&id("root")).cancel.is_some() {
        return;
    }
    let spent = world.node(&id("root")).account.totals;
    let more = LimitsPatch {
        max_turns: Some(summary.limits.max_turns + 3),
        budget_usd_nanos: Some(summary.limits.budget_usd_nanos.max(spent.cost_usd_nanos) + 20_000_000),
        max_tokens: Some(summary.limits.max_tokens.max(spent.tokens()) + 50_000),
        timeout_ms: Some(summary.limits.timeout_ms + 60_000),
        ..LimitsPatch::default()
    };
    world.resume(more);
}

/// Lets all that is under way come to its end, and says what must be then.
fn finish(world: &mut World) {
    world.restart();
    world.drive();
    for _ in 0..2_000 {
        world.cut();
        world.drive();
        if let Some(run) = asking(world, 0) {
            world.answer(&run, reply("the end", &[], Stop::EndTurn, None));
        } else if let Some((run, call)) = world.nodes.keys().find_map(|run| Some((run.clone(), world.under_way(run).first()?.clone()))) {
            world.finish(&run, &call, None, "done");
        } else {
            break;
        }
        world.drive();
    }
    for (run, node) in &world.nodes {
        let state = node.run.summary.state;
        assert!(matches!(state, State::Suspended | State::Ended), "{run} is left {state:?}\n{}", world.log.join("\n"));
    }
    super::check(world);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_tree_keeps_the_laws(ops in prop::collection::vec(op(), 1..60), turns in 1..8_u32, budget in 1..40_000_000_i64) {
        let limits = Limits { max_turns: turns, budget_usd_nanos: budget, max_tokens: 60_000, timeout_ms: 100_000, max_depth: 2, max_runs: 9 };
        let mut world = tree(limits, SpawnSpec { max_calls: 4, max_parallel: 2, ..spawn_spec() });
        for op in &ops {
            apply(&mut world, op);
        }
        super::check(&world);
        finish(&mut world);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// The promise of the ledger is asserted at every append.
    #[test]
    fn sixty_four_children_share_one_budget(ops in prop::collection::vec(op(), 100..250), budget in 5_000_000..200_000_000_i64) {
        let limits = Limits { max_turns: 9, budget_usd_nanos: budget, max_runs: 65, max_depth: 1, ..Limits::DEFAULT };
        let spawn = SpawnSpec { max_calls: 64, max_parallel: 64, ..spawn_spec() };
        let mut world = tree(limits, SpawnSpec { limits: LimitsPatch { budget_usd_nanos: Some(budget / 2), ..LimitsPatch::default() }, ..spawn });
        let small = Usage { input_tokens: 10, output_tokens: 10, ..Usage::default() };
        world.answer(&id("root"), reply("", &[("research", "{}"); 64], Stop::ToolCalls, Some(small)));
        world.drive();
        prop_assert_eq!(world.nodes.len(), 65);
        // Children are cancelled, the root (the first of the 65) is not: the others go on with what is left.
        for op in ops.iter().filter(|op| !matches!(op, Op::Cancel { which } if which % 65 == 0) && !matches!(op, Op::Drain)) {
            apply(&mut world, op);
        }
        super::check(&world);
        finish(&mut world);
    }
}
