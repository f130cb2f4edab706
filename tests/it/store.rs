//! Tests of the store: one set of checks on every store, a model test that compares them, and what only a file has.

mod checks;
mod file;
mod make;
mod model;
mod trees;

use std::sync::Arc;

use wren::store::Store;
use wren::store::memory::Memory;
use wren::store::sqlite::Sqlite;

macro_rules! conformance {
    ($($group:ident::$check:ident),+ $(,)?) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                super::$group::$check(std::sync::Arc::new(super::Memory::new())).await;
            })+
        }
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                let dir = tempfile::tempdir().unwrap();
                super::$group::$check(super::sqlite_in(dir.path())).await;
            })+
        }
    };
}

fn sqlite_in(dir: &std::path::Path) -> Arc<dyn Store> {
    Arc::new(Sqlite::open(dir).unwrap())
}

conformance! {
    checks::a_tree_begins_with_its_root,
    checks::one_request_makes_one_run,
    checks::a_request_that_is_sent_many_times_at_once_makes_one_run,
    checks::an_id_is_never_given_twice,
    checks::trees_share_a_submission,
    checks::a_claim_fences_the_one_before,
    checks::a_journal_is_gapless_and_read_in_pages,
    checks::a_writer_that_lags_is_told_so,
    checks::an_ended_run_takes_nothing_more,
    checks::a_refused_batch_leaves_no_trace,
    trees::money_is_bounded_by_every_run_above,
    trees::losses_and_overruns_are_kept_apart,
    trees::parallel_children_never_pass_the_ceiling,
    trees::five_children_at_once_do_not_pass_the_ceiling,
    trees::a_call_has_one_child,
    trees::a_child_that_is_not_the_writers_own_is_refused,
    trees::runs_are_bounded_by_every_run_above,
    trees::a_transaction_has_one_order,
    trees::a_subtree_is_listed_level_by_level,
    trees::a_parent_hears_of_its_childs_end,
    trees::a_parent_that_has_ended_hears_nothing_more,
    trees::a_cancel_marks_the_subtree_alone,
    trees::a_marked_run_starts_nothing,
    trees::a_child_never_slips_through_a_cancel,
    checks::a_list_has_pages_and_filters,
    checks::an_id_is_found_by_its_beginning,
    checks::a_starting_daemon_finds_what_is_unfinished,
    checks::a_write_goes_on_without_its_caller,
    checks::what_is_not_there_is_said_to_be_missing,
}
