//! The verbs provider, in a guest over the kernel's software devices, with itself, with the kernel's client, and
//! across the wire with a server on the host over the iWARP provider.

mod crossing;
mod inside;
mod place;
mod suites;

use super::Case;

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = inside::cases();
    cases.extend(suites::cases());
    cases.extend(crossing::cases());
    cases
}
