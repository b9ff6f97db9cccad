//! NFS version 4, minor versions 1 and 2: the session with a server and COMPOUND calls in it. The protocol layer
//! ([`crate::nfs3`]) expresses its procedures as COMPOUNDs.

mod back_channel;
mod calls;
mod change_proof;
pub(crate) mod compound;
mod delegations;
mod held_delegation;
mod lock_calls;
mod locks;
mod ranges;
mod session;
mod slots;

pub(crate) use change_proof::ChangeProof;
pub use held_delegation::{Delegation, Recalled};
pub use lock_calls::Conflict;
pub(crate) use locks::{FileLocks, LockEpoch};
pub use ranges::LockKind;
pub(crate) use session::{OVERHEAD, Session, is_unsupported, spec};
