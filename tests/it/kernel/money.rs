//! The ledger by itself: whatever is posted, by writers that decided on old figures too, its promise holds.

use proptest::prelude::*;
use wren::kernel::event::{Abort, Event, Purpose, TurnAborted, TurnStarted};
use wren::kernel::ledger::{Account, Limits, Long, Rates, Refused, Reservation, post, post_child};
use wren::kernel::{Price, Usage};

use super::world::price;

fn started(reservation: Reservation) -> Event {
    let model = "m".to_owned();
    Event::TurnStarted(TurnStarted { turn: 1, attempt: 1, purpose: Purpose::Task, model, max_output: 1, reservation })
}

fn settled(cost_usd_nanos: i64, usage: Usage, written_off: Reservation) -> Event {
    Event::TurnAborted(TurnAborted {
        turn: 1,
        attempt: 1,
        reason: Abort::CutStream,
        message: String::new(),
        retryable: true,
        http_status: None,
        retry_after_ms: None,
        usage: Some(usage),
        estimated: false,
        cost_usd_nanos,
        written_off,
    })
}

fn account(budget_usd_nanos: i64) -> Account {
    Account::open(Limits { budget_usd_nanos, max_runs: 70, ..Limits::DEFAULT })
}

/// The ceiling is 10 USD, 9.90 are spent, and five children ask for 1 USD each at once: none is let through.
#[test]
fn many_spenders_cannot_pass_one_ceiling() {
    let mut root = account(10_000_000_000);
    let mut open = Reservation::default();
    let spent = Reservation { usd_nanos: 9_900_000_000, tokens: 10 };
    post(std::slice::from_mut(&mut root), &mut open, &started(spent)).unwrap();
    post(std::slice::from_mut(&mut root), &mut open, &settled(spent.usd_nanos, Usage::default(), Reservation::default())).unwrap();
    for _ in 0..5 {
        let mut path = [account(10_000_000_000), root];
        let mut open = Reservation::default();
        let before = path;
        let dollar = Reservation { usd_nanos: 1_000_000_000, tokens: 10 };
        assert_eq!(post(&mut path, &mut open, &started(dollar)), Err(Refused::OverBudget));
        assert_eq!((path, open), (before, Reservation::default()), "a refusal changes nothing");
    }
}

#[test]
fn a_tree_holds_no_more_runs_than_its_least_limit() {
    let mut path = [account(1), account(1)];
    path[1].limits.max_runs = 3;
    assert_eq!((post_child(&mut path), post_child(&mut path)), (Ok(()), Ok(())));
    let before = path;
    assert_eq!((post_child(&mut path), path), (Err(Refused::OverRuns), before));
}

#[test]
fn a_cost_is_rounded_half_up_once() {
    let rates = Rates { input_pico: 1, output_pico: 499, cache_read_pico: 0, cache_write_pico: 0, reasoning_pico: 499 };
    let price = Price { rates, long: None };
    let of = |input_tokens, output_tokens| price.cost_usd_nanos(&Usage { input_tokens, output_tokens, ..Usage::default() });
    assert_eq!((of(0, 1), of(1, 1), of(499, 0), of(500, 0), of(501, 1)), (0, 1, 0, 1, 1));
}

#[test]
fn a_long_call_costs_more_for_all_of_its_tokens_and_is_set_aside_as_such() {
    let dear = Rates { input_pico: 2_000_000, cache_read_pico: 200_000, output_pico: 6_000_000, ..price().rates };
    let price = Price { long: Some(Long { above_tokens: 1000, rates: dear }), ..price() };
    let cost = |input_tokens, cache_read_tokens| {
        price.cost_usd_nanos(&Usage { input_tokens, cache_read_tokens, output_tokens: 10, ..Usage::default() })
    };
    assert_eq!(cost(1000, 0), 1000 * 1000 + 10 * 4000);
    assert_eq!(cost(1001, 0), 1001 * 2000 + 10 * 6000);
    assert_eq!(cost(1001, 1001), 1001 * 200 + 10 * 6000, "cached input counts towards the bound");
    // An upper bound above the bound covers both sides of it, also where a long call is the cheaper one in part.
    let worst = price.worst_case_usd_nanos(1001, 10);
    for input in [0, 1, 999, 1000, 1001] {
        for cached in [0, input] {
            assert!(cost(input, cached) <= worst);
            let written = Usage { input_tokens: input, cache_write_tokens: input, output_tokens: 10, ..Usage::default() };
            assert!(price.cost_usd_nanos(&written) <= worst);
        }
    }
}

/// Each token is charged once, at its own rate.
#[test]
fn cached_and_reasoning_tokens_are_charged_once() {
    let usage = Usage { input_tokens: 1000, output_tokens: 100, cache_read_tokens: 600, cache_write_tokens: 100, reasoning_tokens: 40 };
    // 300 at 1, 600 at 0.1, 100 at 1.25 and 100 at 4 millionths of a USD.
    assert_eq!(price().cost_usd_nanos(&usage), 300_000 + 60_000 + 125_000 + 400_000);
}

#[derive(Clone, Debug)]
enum Post {
    Reserve { child: usize, usd_nanos: i64, tokens: i64 },
    Settle { child: usize, cost: i64, tokens: i64, lost: bool },
}

fn amount() -> impl Strategy<Value = i64> {
    prop_oneof![8 => 0..3_000_i64, 1 => Just(0), 1 => Just(-1_000), 1 => Just(i64::MAX), 1 => Just(i64::MIN)]
}

fn one() -> impl Strategy<Value = Post> {
    prop_oneof![
        (0..64_usize, amount(), amount()).prop_map(|(child, usd_nanos, tokens)| Post::Reserve { child, usd_nanos, tokens }),
        (0..64_usize, amount(), amount(), any::<bool>()).prop_map(|(child, cost, tokens, lost)| Post::Settle { child, cost, tokens, lost }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_account_grants_more_than_its_limit(posts in prop::collection::vec(one(), 1..400), budget in 1..20_000_i64, own in 1..20_000_i64) {
        let mut root = account(budget);
        let mut children = vec![(account(own), Reservation::default()); 64];
        for one in &posts {
            let (child, event) = match one {
                Post::Reserve { child, usd_nanos, tokens } => (*child, started(Reservation { usd_nanos: *usd_nanos, tokens: *tokens })),
                Post::Settle { child, cost, tokens, lost } => {
                    let usage = Usage { input_tokens: *tokens, output_tokens: *tokens, ..Usage::default() };
                    let lost = if *lost { children[*child].1 } else { Reservation::default() };
                    (*child, settled(*cost, usage, lost))
                }
            };
            // A run has one turn at a time; settling nothing is no event of its journal.
            if matches!(event, Event::TurnStarted(_)) != children[child].1.is_zero() {
                continue;
            }
            let mut path = [children[child].0, root];
            let mut open = children[child].1;
            if post(&mut path, &mut open, &event).is_ok() {
                children[child] = (path[0], open);
                root = path[1];
            }
            for account in [&root, &children[child].0] {
                let spent = account.totals.cost_usd_nanos.checked_sub(account.totals.overrun_usd_nanos).unwrap();
                prop_assert!(account.reserved.usd_nanos >= 0 && account.reserved.tokens >= 0);
                // A cost that fills the whole integer hides what it overran by; nothing is granted after it anyway.
                if account.totals.cost_usd_nanos < i64::MAX {
                    prop_assert!(spent + account.reserved.usd_nanos <= account.limits.budget_usd_nanos);
                }
            }
            let reserved: i64 = children.iter().map(|(_, open)| open.usd_nanos).sum();
            prop_assert_eq!(root.reserved.usd_nanos, reserved);
        }
    }
}
