//! `millrace-lab security`, as a user meets it.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod common;

#[test]
fn no_attack_gets_through_but_on_what_is_weak_on_purpose() {
    let said = common::ok(&["security", "--tries", "20"]);
    for words in ["RDMA Read of guessed tags", "WEAK ON PURPOSE", "No attack read or changed a byte"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}
