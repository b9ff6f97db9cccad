//! A conformance suite for implementations of [`FileSystem`](crate::FileSystem).
//!
//! [`run`] opens a new file system for each case, calls it as the server does, and returns a [`Report`]. What
//! the file system does not support ([`Capability`]) is skipped and reported. The cases of the module
//! `existing` inspect the tree that the file system contains when it is opened; all others start with an empty
//! directory and need [`Capability::Changes`].
//!
//! ```
//! use millrace_vfs::{
//!     conformance::{self, Capability, Subject},
//!     memory::{MemoryConfig, MemoryFs},
//! };
//!
//! let report = conformance::run(|resources| {
//!     let config = MemoryConfig::new(resources.arena.clone(), resources.runtime.clone());
//!     Subject::new(MemoryFs::new(config)).stress_calls(100)
//! });
//! println!("{report}");
//! report.assert_passed();
//! assert!(!report.skipped().contains(&Capability::HardLinks));
//! ```
//!
//! A case is a function of a `Fixture`. To add a case, write it in the module of its subject and add it to
//! `CASES`.

// Cases fail by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod attributes;
mod change;
mod clone;
mod copy;
mod data;
mod directory;
mod existing;
mod fixture;
mod holds;
mod namespace;
mod ranges;
mod report;
mod subject;
mod tree;
mod xattr;

use std::panic::{AssertUnwindSafe, catch_unwind};

use fixture::Fixture;
pub use report::{CaseReport, Outcome, Report};
pub use subject::{Capability, Resources, Subject};

/// A case of the suite.
struct Case {
    /// Module and function.
    name: &'static str,
    /// The case is skipped without these.
    needs: &'static [Capability],
    run: fn(&Fixture),
}

/// `module [capabilities of all cases]: case [further capabilities], ...;`
macro_rules! cases {
    ($($module:ident $all:tt: $($case:ident $need:tt),+;)+) => {
        const CASES: &[Case] = &[$($(
            Case {
                name: concat!(stringify!($module), "::", stringify!($case)),
                needs: cases!(@needs $all $need),
                run: $module::$case,
            },
        )+)+];
    };
    (@needs [$($all:ident)*] [$($need:ident)*]) => { &[$(Capability::$all,)* $(Capability::$need,)*] };
}

cases! {
    existing []:
        root_is_its_own_parent [],
        properties_are_consistent [],
        lookups_find_the_listed_entries [],
        pages_of_any_size_form_the_same_listing [],
        files_are_read_to_their_end [],
        objects_of_the_wrong_type_are_rejected [],
        unknown_and_invalid_names_are_rejected [],
        invalid_handles_are_rejected [],
        access_grants_only_wanted_rights [],
        changes_of_a_read_only_file_system_are_rejected [];
    namespace [Changes]:
        lookup_finds_created_objects [],
        invalid_names_are_rejected [],
        dot_and_dot_dot_stay_in_the_tree [],
        create_modes_follow_rfc_1813 [],
        exclusive_create_is_idempotent_for_its_verifier [],
        all_object_types_can_be_created [],
        remove_of_the_last_link_removes_the_file [],
        rmdir_requires_an_empty_directory [],
        rename_moves_and_replaces [],
        invalid_renames_are_rejected [],
        links_share_one_file [HardLinks];
    attributes [Changes]:
        new_objects_have_the_requested_attributes [],
        setattr_changes_only_given_attributes [],
        setattr_with_mismatched_guard_changes_nothing [],
        wcc_data_is_contiguous [],
        every_change_updates_ctime [],
        the_mode_of_a_symlink_is_accepted [Symlinks],
        mode_bits_control_read_and_write [Permissions],
        directory_changes_need_search_and_write_permission [Permissions],
        chown_follows_posix [Permissions],
        changes_by_others_clear_set_id_bits [Permissions],
        setting_times_requires_permission [Permissions],
        sticky_directories_protect_entries [Permissions],
        set_gid_directories_pass_on_their_group [Permissions];
    data [Changes]:
        reads_return_written_data [],
        reads_stop_at_end_of_file [],
        holes_are_zero [],
        extension_after_truncation_reads_zeros [],
        writes_to_non_files_are_rejected [],
        read_data_is_not_changed_by_later_writes [],
        random_writes_match_a_model [],
        commit_returns_the_same_verifier [],
        commit_requires_write_permission [Permissions];
    ranges [Changes SparseFiles]:
        deallocated_ranges_are_freed_and_read_as_zeros [],
        zeroed_ranges_read_as_zeros_and_extend_the_file [],
        allocated_ranges_keep_data_and_extend_the_file [],
        ranges_of_length_0_change_nothing [],
        invalid_ranges_are_rejected [],
        ranges_of_non_files_are_rejected [],
        seek_finds_data_and_holes [],
        read_data_is_not_changed_by_deallocation [],
        changes_of_ranges_update_times [],
        changes_of_ranges_are_committed [],
        random_changes_of_ranges_match_a_model [],
        changes_of_ranges_require_write_permission [Permissions],
        changes_of_ranges_by_others_clear_set_id_bits [Permissions];
    holds [Changes Holds]:
        a_held_file_stays_usable_when_it_is_removed [],
        a_held_file_stays_usable_when_it_is_replaced [],
        a_held_file_with_another_link_exists_after_the_hold [HardLinks],
        only_existing_files_are_held [],
        space_of_a_held_file_is_freed_at_the_end [];
    xattr [Changes Xattrs]:
        xattrs_match_a_model [],
        create_and_replace_ask_whether_the_xattr_exists [],
        changes_of_xattrs_update_ctime [],
        invalid_xattrs_are_rejected [],
        xattrs_end_with_their_file [],
        xattrs_require_permissions [Permissions];
    copy [Changes SparseFiles]:
        copies_match_a_model [],
        copies_do_not_share_later_writes [],
        invalid_copies_are_rejected [],
        copies_require_permissions [Permissions];
    change [Changes ChangeCounter]:
        every_change_of_a_file_is_counted [],
        every_change_of_a_directory_is_counted [];
    clone [Changes Clones]:
        clones_match_a_model [],
        clones_do_not_share_later_writes [],
        invalid_clones_are_rejected [],
        clones_require_permissions [Permissions];
    directory [Changes]:
        listing_contains_each_entry_once [],
        small_pages_form_the_whole_listing [],
        plus_returns_handles_and_attributes [],
        bad_cookies_are_rejected [],
        unchanged_entries_are_listed_once_during_changes [];
    tree [Changes]:
        random_calls_match_a_model [],
        concurrent_calls_keep_the_tree_consistent [];
}

/// Runs all cases, each on a new file system from `open`. The file system is called in the context of a Tokio
/// runtime, as on a server.
///
/// # Panics
/// If no Tokio runtime can be created.
pub fn run(open: impl Fn(&Resources) -> Subject) -> Report {
    Report { cases: CASES.iter().map(|case| case.run(&open)).collect() }
}

impl Case {
    fn run(&self, open: &impl Fn(&Resources) -> Subject) -> CaseReport {
        let mut skipped = Vec::new();
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let fixture = Fixture::new(open);
            skipped = self.needs.iter().copied().filter(|c| !fixture.has(*c)).collect();
            if !skipped.is_empty() {
                return false;
            }
            (self.run)(&fixture);
            skipped = fixture.skipped();
            true
        }));
        let outcome = match ran {
            Ok(true) => Outcome::Passed,
            Ok(false) => Outcome::Skipped,
            Err(panic) => Outcome::Failed(message(&*panic)),
        };
        CaseReport { name: self.name, outcome, skipped }
    }
}

/// The message of a panic.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panicked").to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        FsInfo,
        defaults::tests::Minimal,
        memory::{MemoryConfig, MemoryFs},
    };

    #[test]
    fn unsupported_capabilities_are_skipped_and_reported() {
        let missing = [
            Capability::HardLinks,
            Capability::Symlinks,
            Capability::SpecialFiles,
            Capability::Devices,
            Capability::Permissions,
            Capability::FineTimes,
            Capability::SparseFiles,
        ];
        let report = run(|resources| {
            let config = MemoryConfig::new(resources.arena.clone(), Arc::clone(&resources.runtime));
            let subject = Subject::new(MemoryFs::new(config)).stress_calls(100);
            missing.into_iter().fold(subject, Subject::without)
        });
        report.assert_passed();
        assert_eq!(report.skipped(), missing.into_iter().collect());
        let links = report.cases.iter().find(|c| c.name == "namespace::links_share_one_file").unwrap();
        assert_eq!(links.to_string(), "skipped namespace::links_share_one_file (needs hard links)");
    }

    #[test]
    fn a_file_system_without_listings_does_not_conform() {
        let report = run(|_| Subject::new(Arc::new(Minimal { info: FsInfo::default() })));
        let failed = |c: &&CaseReport| matches!(c.outcome, Outcome::Failed(_));
        let failed: Vec<_> = report.cases.iter().filter(failed).map(|c| c.name).collect();
        assert!(failed.contains(&"existing::lookups_find_the_listed_entries"), "{failed:?}");
        assert_eq!(report.skipped().first(), Some(&Capability::Changes));
    }
}
