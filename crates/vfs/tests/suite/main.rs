//! The behaviour that every file system shows, whatever it keeps its files in.
//!
//! A case is a function of a [`Fixture`]: a fresh, empty file system. Each case runs for each implementation in the
//! list at the end of this file. To add a case, write it in the module of its subject and name it in `cases!`; to
//! add an implementation, write a function that makes a fixture and add one line to `implementations!`.

// A test that meets what it does not expect ends; the lints know tests only by their attribute.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod attributes;
mod data;
mod directory;
mod fixture;
mod namespace;
mod tree;

use fixture::Fixture;

/// Every case, as `module: names`.
macro_rules! cases {
    ($make:path) => {
        cases! { @all $make;
            namespace:
                a_name_leads_to_what_was_created,
                names_that_make_no_sense_are_refused,
                dot_and_dot_dot_stay_inside,
                create_honours_its_mode,
                an_exclusive_create_is_idempotent_for_its_verifier,
                everything_can_be_made_and_is_what_it_is,
                removal_takes_the_name_and_the_last_one_the_file,
                only_empty_directories_are_removed,
                rename_moves_and_replaces,
                rename_refuses_what_would_break_the_tree,
                links_share_one_file,
                handles_of_nothing_are_refused;
            attributes:
                fresh_objects_have_the_attributes_asked_for,
                setattr_changes_what_is_asked_and_nothing_else,
                a_guard_that_does_not_match_changes_nothing,
                wcc_joins_one_change_to_the_next,
                ctime_moves_at_every_change,
                modes_decide_who_may_read_and_write,
                directories_need_search_and_write_permission,
                owners_and_groups_change_hands_by_the_rules,
                set_id_bits_fall_with_foreign_hands,
                times_are_set_by_those_who_may,
                sticky_directories_protect_entries,
                set_gid_directories_hand_on_their_group;
            data:
                what_is_written_is_read,
                reads_end_at_the_end,
                holes_are_zero,
                a_file_that_shrank_and_grew_has_zeros,
                writes_refuse_what_cannot_hold_data,
                a_read_keeps_what_it_saw,
                random_writes_match_a_model,
                commit_answers_with_the_same_verifier,
                commit_is_for_those_who_may_write;
            directory:
                a_listing_has_every_entry_once,
                small_pages_join_to_the_whole,
                plus_gives_handles_and_attributes,
                bad_cookies_are_refused,
                entries_that_stay_are_seen_once_while_others_come_and_go;
            tree:
                random_calls_match_a_model,
                many_threads_leave_a_sound_tree;
        }
    };
    (@all $make:path; $($module:ident: $($case:ident),+;)+) => {$(
        mod $module {
            $(
                #[test]
                fn $case() {
                    crate::run($make, crate::$module::$case);
                }
            )+
        }
    )+};
}

macro_rules! implementations {
    ($($name:ident: $make:path;)+) => {$(
        mod $name {
            cases!($make);
        }
    )+};
}

/// Runs one case on a fresh file system.
fn run(make: fn() -> Fixture, case: fn(&Fixture)) {
    case(&make());
}

implementations! {
    memory_fs: crate::fixture::memory;
    local_fs: crate::fixture::local;
    local_fs_plain: crate::fixture::local_plain;
    local_fs_tmpfs: crate::fixture::local_tmpfs;
}
