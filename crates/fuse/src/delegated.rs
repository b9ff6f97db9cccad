//! The delegation of one file.

use millrace_client::Delegation;
use millrace_runtime::Instant;

use crate::clock::Epoch;

/// The state of a file's names at some time. It changes with each grant of the delegation, and with each name that must be
/// looked up under the delegation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NamesVersion(u64);

/// The delegation of a file, and when the mount may request it.
#[derive(Debug, Default)]
pub(crate) struct DelegationState {
    held: Option<Delegation>,
    /// When it was granted. The server may have executed earlier requests without the delegation.
    granted: Epoch,
    /// All names of the file were looked up under the delegation.
    has_names: bool,
    names_version: NamesVersion,
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

    /// The version for lookups that begin now.
    pub(crate) fn names_version(&self) -> NamesVersion {
        self.names_version
    }

    /// Records that all names still refer to the file, according to lookups that began at this version.
    pub(crate) fn include_names(&mut self, looked_up: NamesVersion) {
        self.has_names |= self.held.is_some() && looked_up == self.names_version;
    }

    /// Records a name of the file that was requested at `issued`. Before the grant, another client may have renamed the file
    /// after the reply was sent: no delegation was recalled then.
    pub(crate) fn add_name(&mut self, issued: Epoch) {
        if issued <= self.granted {
            self.forget_names();
        }
    }

    /// Records that a name of the file must be looked up again.
    pub(crate) fn forget_names(&mut self) {
        self.has_names = false;
        self.names_version.0 += 1;
    }

    /// Whether the mount may request the delegation now. If so, it may again at `next`.
    pub(crate) fn may_ask(&mut self, now: Instant, next: Instant) -> bool {
        let may = self.held.is_none() && now >= self.next_request;
        if may {
            self.next_request = next;
        }
        may
    }

    /// Stores a delegation that was granted until `granted`. Returns the one before.
    pub(crate) fn hold(&mut self, delegation: Delegation, granted: Epoch) -> Option<Delegation> {
        self.granted = granted;
        self.forget_names();
        self.held.replace(delegation)
    }

    /// Takes the delegation.
    pub(crate) fn take(&mut self) -> Option<Delegation> {
        self.held.take()
    }
}
