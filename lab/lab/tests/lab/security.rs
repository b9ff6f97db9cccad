//! Tests of the command `millrace-lab security`.

use crate::common;

#[test]
fn attacks_succeed_only_on_deliberately_weakened_ends() {
    let said = common::ok(&["security", "--tries", "20"]);
    for words in ["RDMA Read of guessed tags", "WEAKENED ON PURPOSE", "No attack read or changed a byte"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}
