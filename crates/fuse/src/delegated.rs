//! The delegation of one file.

use millrace_client::Delegation;
use millrace_runtime::Instant;

/// The delegation of a file, and when the mount may request it.
#[derive(Debug, Default)]
pub(crate) struct DelegationState {
    held: Option<Delegation>,
    /// The names of the file were looked up under the delegation.
    has_names: bool,
    next_request: Instant,
}

impl DelegationState {
    /// Whether the file is delegated, so that no other client has changed it.
    pub(crate) fn is_valid(&self) -> bool {
        self.held.as_ref().is_some_and(Delegation::is_valid)
    }

    /// Whether no other client has changed the file's names either, which the kernel has cached.
    pub(crate) fn includes_names(&self) -> bool {
        self.has_names && self.is_valid()
    }

    /// Records that the names were looked up under the delegation.
    pub(crate) fn include_names(&mut self) {
        self.has_names = self.held.is_some();
    }

    /// Whether the mount may request the delegation now. If so, it may again at `next`.
    pub(crate) fn may_ask(&mut self, now: Instant, next: Instant) -> bool {
        let may = self.held.is_none() && now >= self.next_request;
        if may {
            self.next_request = next;
        }
        may
    }

    /// Stores a delegation. Returns the one before.
    pub(crate) fn hold(&mut self, delegation: Delegation) -> Option<Delegation> {
        self.has_names = false;
        self.held.replace(delegation)
    }

    /// Takes the delegation.
    pub(crate) fn take(&mut self) -> Option<Delegation> {
        self.held.take()
    }
}
