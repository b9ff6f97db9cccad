//! NFS version 4, minor versions 1 and 2: the session with a server, and the procedures as COMPOUNDs in it.

mod back_channel;
mod calls;
mod change_proof;
pub(crate) mod compound;
pub(crate) mod compounds;
mod delegations;
mod held_delegation;
mod lock_calls;
mod locks;
mod owners;
pub(crate) mod place;
mod procedures;
mod ranges;
mod session;
mod slots;
mod status;

pub(crate) use change_proof::ChangeProof;
pub use held_delegation::{Delegation, Recalled};
pub use lock_calls::Conflict;
pub(crate) use locks::FileLocks;
pub(crate) use procedures::call;
pub use ranges::LockKind;
pub(crate) use session::{OVERHEAD, Session, is_unsupported, spec};
pub(crate) use status::status_of;
