//! Call and reply headers and credentials (RFC 5531 sections 8 to 10).

use smallvec::SmallVec;

/// AUTH_SYS (RFC 5531 appendix A).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuthSys {
    /// An arbitrary number of the caller's.
    pub stamp: u32,
    /// The caller's machine name, at most 255 bytes.
    pub machine: SmallVec<[u8; 32]>,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Further groups, at most 16.
    pub gids: SmallVec<[u32; 16]>,
}

/// A call's credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS.
    Sys(AuthSys),
    /// A flavor that this implementation does not know; its body is dropped.
    Other(u32),
}

/// A decoded call header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallHeader {
    /// Transaction id.
    pub xid: u32,
    /// Program.
    pub prog: u32,
    /// Version of the program.
    pub vers: u32,
    /// Procedure.
    pub proc: u32,
    /// Who calls.
    pub cred: Credential,
}

/// `auth_stat` (RFC 5531 section 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum AuthStat {
    /// Bad credential.
    BadCred = 1,
    /// The client must begin a new session.
    RejectedCred = 2,
    /// Bad verifier.
    BadVerf = 3,
    /// Verifier expired or replayed.
    RejectedVerf = 4,
    /// Rejected for security reasons.
    TooWeak = 5,
    /// Bogus response verifier.
    InvalidResp = 6,
    /// Unknown reason.
    Failed = 7,
}

/// Why an accepted call was not executed (`accept_stat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptError {
    /// The program is not here.
    ProgUnavail,
    /// The program is here, in these versions only.
    ProgMismatch {
        /// Lowest version.
        low: u32,
        /// Highest version.
        high: u32,
    },
    /// No such procedure.
    ProcUnavail,
    /// The arguments cannot be decoded.
    GarbageArgs,
    /// The server failed.
    SystemErr,
}

/// The RPC versions that a peer supports (RPC_MISMATCH).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RpcMismatch {
    /// Lowest.
    pub low: u32,
    /// Highest.
    pub high: u32,
}
