//! Conformance suite for all file system implementations.
//!
//! A case is a function of a [`Fixture`], which contains a new, empty file system. To add a case, write it in
//! the module of its subject and add it to `cases!`. To test an implementation, include this file as a module
//! and name a function that creates a fixture in `implementations!`.

pub(crate) mod attributes;
pub(crate) mod data;
pub(crate) mod directory;
pub(crate) mod fixture;
pub(crate) mod namespace;
pub(crate) mod tree;

use fixture::Fixture;

/// All cases, as `module: names`.
macro_rules! cases {
    ($make:path) => {
        crate::suite::cases! { @all $make;
            namespace:
                lookup_finds_created_objects,
                invalid_names_are_rejected,
                dot_and_dot_dot_stay_in_the_tree,
                create_modes_follow_rfc_1813,
                exclusive_create_is_idempotent_for_its_verifier,
                all_object_types_can_be_created,
                remove_of_the_last_link_removes_the_file,
                rmdir_requires_an_empty_directory,
                rename_moves_and_replaces,
                invalid_renames_are_rejected,
                links_share_one_file,
                invalid_handles_are_rejected;
            attributes:
                new_objects_have_the_requested_attributes,
                setattr_changes_only_given_attributes,
                setattr_with_mismatched_guard_changes_nothing,
                wcc_data_is_contiguous,
                every_change_updates_ctime,
                mode_bits_control_read_and_write,
                directory_changes_need_search_and_write_permission,
                chown_follows_posix,
                changes_by_others_clear_set_id_bits,
                setting_times_requires_permission,
                sticky_directories_protect_entries,
                set_gid_directories_pass_on_their_group;
            data:
                reads_return_written_data,
                reads_stop_at_end_of_file,
                holes_are_zero,
                extension_after_truncation_reads_zeros,
                writes_to_non_files_are_rejected,
                read_data_is_not_changed_by_later_writes,
                random_writes_match_a_model,
                commit_returns_the_same_verifier,
                commit_requires_write_permission;
            directory:
                listing_contains_each_entry_once,
                small_pages_form_the_whole_listing,
                plus_returns_handles_and_attributes,
                bad_cookies_are_rejected,
                unchanged_entries_are_listed_once_during_changes;
            tree:
                random_calls_match_a_model,
                concurrent_calls_keep_the_tree_consistent;
        }
    };
    (@all $make:path; $($module:ident: $($case:ident),+;)+) => {$(
        mod $module {
            $(
                #[test]
                fn $case() {
                    crate::suite::run($make, crate::suite::$module::$case);
                }
            )+
        }
    )+};
}

macro_rules! implementations {
    ($($name:ident: $make:path;)+) => {$(
        mod $name {
            crate::suite::cases!($make);
        }
    )+};
}

/// Runs one case on a new file system.
pub(crate) fn run(make: fn() -> Fixture, case: fn(&Fixture)) {
    case(&make());
}

pub(crate) use {cases, implementations};
