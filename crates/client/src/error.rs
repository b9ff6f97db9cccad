//! Errors of the client, with their causes and remedies.

use std::{error::Error as StdError, io, time::Duration};

use millrace_nfs::{mount, v3, v4};
use millrace_oncrpc::{
    AcceptError, RpcError, SecurityFlavor,
    gss::{GssError, NoContext},
};
use millrace_rdma::ConnectionError;
use millrace_tls::ConfigError;
use rustix::io::Errno;

use crate::{Proto, TlsFailure, Version};

/// Error of an operation of the client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL is invalid.
    #[error("invalid URL {url:?}: {reason} (expected nfs://HOST[:PORT]/EXPORT/PATH?proto=rdma|tcp)")]
    Url {
        /// The text.
        url: String,
        /// Reason.
        reason: String,
    },
    /// The server's name has no address.
    #[error("cannot find the address of {host}: {reason}; check the name")]
    Resolve {
        /// The name.
        host: String,
        /// Reason.
        reason: String,
        /// The resolver's error, if any.
        source: Option<io::Error>,
    },
    /// The client could not connect to the server.
    #[error("cannot connect to {server} over {proto}: {reason}{}", connect_hint(*.proto, .source.as_deref()))]
    Connect {
        /// Address and port.
        server: String,
        /// The transport.
        proto: Proto,
        /// Reason, for each address that was tried.
        reason: String,
        /// The error of the last address that was tried; `None` after a timeout.
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
    /// The client could not connect to the server over any of [`transports`](crate::transports).
    #[error(
        "cannot connect to {server}: {}; check that the server runs, or state its port and transport \
         (nfs://HOST:PORT/PATH?proto=tcp)",
        failures.iter().map(over_transport).collect::<Vec<_>>().join("; ")
    )]
    NoTransport {
        /// Name or address, with the port of the URL.
        server: String,
        /// [`Self::Connect`] for each transport.
        failures: Vec<Self>,
    },
    /// The server accepted a connection, but did not answer the first call on it.
    #[error(
        "{server} accepts connections, but has not answered {procedure} within {after:?}; check that the port is that of NFS, and of the transport (proto=rdma or proto=tcp)"
    )]
    NoAnswer {
        /// Address and port.
        server: String,
        /// The procedure.
        procedure: &'static str,
        /// The time limit.
        after: Duration,
    },
    /// The server has no export that contains the path.
    #[error("{server} has no export that contains {path:?}; it exports: {}", list(exports))]
    UnknownExport {
        /// The server.
        server: String,
        /// The path of the URL.
        path: String,
        /// The server's list of exports; empty if the server does not disclose it.
        exports: Vec<String>,
    },
    /// The server rejected the MNT call.
    #[error("cannot mount {path:?} from {server}: {status}{}", mount_hint(*status))]
    Mount {
        /// The server.
        server: String,
        /// The export.
        path: String,
        /// Reason.
        status: mount::Status,
    },
    /// The server returned an NFS error status.
    #[error("{procedure} {object}: {status} ({})", status_name(*status))]
    Nfs {
        /// The procedure.
        procedure: v3::Procedure,
        /// The object: a path, a name or a handle.
        object: String,
        /// Reason.
        status: v3::Status,
    },
    /// The server returned an error status of NFSv4 that NFSv3 does not have.
    #[error("{operation}: {status:?} (NFSv4 error {})", status.number())]
    Nfs4 {
        /// The operation.
        operation: v4::Operation,
        /// Reason.
        status: v4::Status,
    },
    /// An operation on extended attributes failed.
    #[error("{operation}{} of {object}: {}", xattr_name(name), xattr_reason(*status))]
    Xattr {
        /// The operation.
        operation: v4::Operation,
        /// The attribute, without the prefix `user.`; empty for a list.
        name: String,
        /// The object: a path or a handle.
        object: String,
        /// Reason.
        status: v4::Status,
    },
    /// The version of NFS has no byte-range locks.
    #[error("NFSv3 has no byte-range locks in this client; mount with vers=4.2")]
    LocksUnsupported,
    /// The version of NFS lacks the operation.
    #[error("{0} requires NFSv4.2; mount with vers=4.2")]
    RequiresV4_2(&'static str),
    /// The server has revoked locks of the file: it received no request of this client for the duration of a lease, or
    /// an administrator revoked them. Others may have changed the file since. Unlock to use the file again.
    #[error("the server revoked locks of the file; others may have changed it: unlock it, and read it again")]
    LocksLost,
    /// Written data was discarded that was not on stable storage: the server revoked locks of the file, so that other clients
    /// may have changed it since, or the data could not be committed when the file was unlocked.
    #[error(
        "written data of the file was discarded, because its locks were lost or it could not be committed before an unlock: lock the file and write it again"
    )]
    Discarded,
    /// The server does not offer the version of NFS.
    #[error("{server} does not offer NFSv{version}; mount with vers=3")]
    UnsupportedVersion {
        /// The server.
        server: String,
        /// The version.
        version: Version,
    },
    /// The RPC layer failed: the call was not executed, or its reply is invalid.
    #[error("{procedure} at {server}: {error}{}", rpc_hint(error))]
    Rpc {
        /// The server.
        server: String,
        /// The procedure.
        procedure: &'static str,
        /// Reason.
        #[source]
        error: RpcError,
    },
    /// The caller has no security context with the server: no ticket, or an expired one, or the server refuses it.
    #[error("{server}: {error}")]
    Kerberos {
        /// The server.
        server: String,
        /// Reason, and what can be done.
        #[source]
        error: GssError,
    },
    /// The server does not accept the security flavor of the calls.
    #[error(
        "{server} does not accept sec={used} for {path:?}; it accepts: {}{}",
        list(&names(accepted)), accepted.first().map_or(String::new(), |first| format!("; use sec={first}"))
    )]
    SecurityFlavor {
        /// The server.
        server: String,
        /// The export, or the path.
        path: String,
        /// The flavor of the calls.
        used: SecurityFlavor,
        /// Those that the server states, the preferred first.
        accepted: Vec<SecurityFlavor>,
    },
    /// The server did not answer within the retry policy ([`crate::Options::retry`]), on this connection and
    /// its successors. The server may have executed the call.
    #[error(
        "{procedure}: no answer from {server} for {after:?} (last: {last}); check the server and the network"
    )]
    Unreachable {
        /// The server.
        server: String,
        /// The procedure.
        procedure: &'static str,
        /// Time since the first transmission.
        after: Duration,
        /// The error of the last attempt.
        last: String,
    },
    /// The server's reply violates the protocol.
    #[error("{procedure}: {server} sent a malformed reply: {reason}")]
    BadReply {
        /// The server.
        server: String,
        /// The procedure.
        procedure: &'static str,
        /// Reason.
        reason: String,
    },
    /// The path cannot be resolved.
    #[error("{path}: {reason}")]
    Path {
        /// The path.
        path: String,
        /// Reason.
        reason: String,
        /// The kind of failure, as [`Error::kind`] returns it.
        kind: io::ErrorKind,
    },
    /// An argument or a combination of arguments is invalid.
    #[error("{0}")]
    InvalidInput(String),
    /// The server restarted repeatedly while data was written.
    #[error(
        "the write verifier of {server} changed {times} times while data was written: the server restarts repeatedly, and the data is not on stable storage"
    )]
    Unstable {
        /// The server.
        server: String,
        /// Number of changes of the write verifier.
        times: u32,
    },
    /// The caller's source of data failed.
    #[error("the source of the data failed: {0}")]
    Source(#[from] io::Error),
    /// The caller's consumer of data failed.
    #[error("the consumer of the data failed: {0}")]
    Sink(#[source] io::Error),
    /// The arena is exhausted.
    #[error(transparent)]
    OutOfMemory(#[from] millrace_buffer::OutOfMemory),
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
    /// A local resource, such as a runtime or a thread, is not available.
    #[error("{0}")]
    Local(String),
}

impl Error {
    /// The [`io::ErrorKind`] that the same operation on a local file returns ([`std::fs`]). After
    /// [`io::ErrorKind::TimedOut`] and the kinds of lost connections, the server may have executed the call.
    pub fn kind(&self) -> io::ErrorKind {
        use io::ErrorKind as K;
        match self {
            Self::Url { .. } | Self::InvalidInput(_) => K::InvalidInput,
            Self::Resolve { .. } => K::HostUnreachable,
            Self::Connect { source, .. } => source.as_deref().map_or(K::TimedOut, connect_kind),
            Self::NoTransport { failures, .. } => failures.first().map_or(K::Other, Self::kind),
            Self::UnknownExport { .. } => K::NotFound,
            Self::Mount { status, .. } => mount_kind(*status),
            Self::Nfs { status, .. } => status_kind(*status),
            Self::Nfs4 { status, .. } | Self::Xattr { status, .. } => status4_kind(*status),
            Self::UnsupportedVersion { .. } | Self::LocksUnsupported | Self::RequiresV4_2(_) => {
                K::Unsupported
            }
            Self::Rpc { error, .. } => rpc_kind(error),
            Self::Kerberos { .. } | Self::SecurityFlavor { .. } => K::PermissionDenied,
            Self::Unreachable { .. } | Self::NoAnswer { .. } => K::TimedOut,
            Self::BadReply { .. } => K::InvalidData,
            Self::Path { kind, .. } => *kind,
            Self::Source(e) | Self::Sink(e) => e.kind(),
            Self::OutOfMemory(_) => K::OutOfMemory,
            Self::Closed => K::NotConnected,
            Self::Unstable { .. } | Self::LocksLost | Self::Discarded | Self::Local(_) => K::Other,
        }
    }

    /// The text without the object, for messages that name it themselves.
    pub fn reason(&self) -> String {
        match self {
            Self::Path { reason, .. } => reason.clone(),
            Self::Nfs { procedure, status, .. } => format!("{status} ({procedure})"),
            Self::Xattr { operation, name, status, .. } => {
                format!("{operation}{}: {}", xattr_name(name), xattr_reason(*status))
            }
            error => error.to_string(),
        }
    }

    /// The error of an extended attribute that does not exist, for callers of [`crate::Client::xattr`] that need it.
    pub fn missing_xattr(name: impl Into<String>, object: impl Into<String>) -> Self {
        let (operation, status) = (v4::Operation::Getxattr, v4::Status::NoXattr);
        Self::Xattr { operation, name: name.into(), object: object.into(), status }
    }

    /// The NFS status, if the server returned one.
    pub fn status(&self) -> Option<v3::Status> {
        match self {
            Self::Nfs { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// The `errno` with which the same operation on a mount fails, if the server returned a status or the client refused the
    /// operation (RFC 1813 section 2.6, RFC 8881 section 15.1).
    pub fn raw_os_error(&self) -> Option<i32> {
        let errno = match self {
            Self::Nfs { status, .. } => errno(*status),
            Self::Nfs4 { status, .. } | Self::Xattr { status, .. } => errno4(*status),
            Self::RequiresV4_2(_) => Errno::OPNOTSUPP,
            Self::OutOfMemory(_) => Errno::NOMEM,
            Self::Kerberos { error: GssError::Initiate(NoContext { expired: true, .. }), .. } => {
                Errno::KEYEXPIRED
            }
            Self::Kerberos { .. } | Self::SecurityFlavor { .. } => Errno::ACCESS,
            _ => return None,
        };
        Some(errno.raw_os_error())
    }

    /// Whether a retry may succeed: the connection was refused or lost, or the server did not answer. Not if a certificate is
    /// refused or cannot be read, or the server does not offer TLS.
    pub fn is_unreachable(&self) -> bool {
        let is_lost = |e: &RpcError| matches!(e, RpcError::Disconnected { .. } | RpcError::TimedOut { .. });
        match self {
            Self::Connect { source, .. } => !source.as_deref().is_some_and(|e| {
                e.is::<ConfigError>() || e.downcast_ref::<TlsFailure>().is_some_and(TlsFailure::is_final)
            }),
            Self::NoTransport { failures, .. } => failures.iter().all(Self::is_unreachable),
            Self::NoAnswer { .. } | Self::Unreachable { .. } => true,
            Self::Rpc { error, .. } => is_lost(error),
            _ => false,
        }
    }

    /// Whether the server returned NFS3ERR_NOENT.
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(v3::Status::NoEnt)
    }

    /// Returns this error with `path` as the object.
    pub(crate) fn at(self, path: &[u8]) -> Self {
        match self {
            Self::Nfs { procedure, status, .. } => {
                Self::Nfs { procedure, status, object: String::from_utf8_lossy(path).into_owned() }
            }
            Self::Xattr { operation, name, status, .. } => {
                Self::Xattr { operation, name, status, object: String::from_utf8_lossy(path).into_owned() }
            }
            other => other,
        }
    }
}

/// The error becomes the source, which [`io::Error::get_ref`] and `downcast_ref` return.
impl From<Error> for io::Error {
    fn from(e: Error) -> Self {
        Self::new(e.kind(), e)
    }
}

/// The name of a status in all versions, which share these statuses: without the 3 of `NFS3ERR_`, as in Linux.
fn status_name(status: v3::Status) -> String {
    status.name().replacen("NFS3ERR_", "NFSERR_", 1)
}

/// The kind of a status of NFSv4 (RFC 8881 section 15).
fn status4_kind(status: v4::Status) -> io::ErrorKind {
    use io::ErrorKind as K;
    use v4::Status as S;
    match status {
        S::Denied | S::Locked => K::WouldBlock,
        S::ShareDenied | S::FileOpen => K::ResourceBusy,
        S::Deadlock => K::Deadlock,
        S::MinorVersMismatch | S::LockNotsupp | S::OpIllegal => K::Unsupported,
        S::ClidInuse | S::WrongCred => K::PermissionDenied,
        S::Grace | S::Delay => K::TimedOut,
        S::NoXattr => K::NotFound,
        S::Xattr2Big => K::ArgumentListTooLong,
        // Most other statuses have the same number in NFSv3.
        status => v3::Status::try_from(status.number()).map_or(K::Other, status_kind),
    }
}

fn xattr_name(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!(" user.{name}") }
}

/// The reason for a failed operation on extended attributes.
fn xattr_reason(status: v4::Status) -> String {
    use v4::Status as S;
    match status {
        S::NoXattr => "the attribute does not exist".into(),
        S::Exist => "the attribute exists".into(),
        S::Xattr2Big => "the value is too long for the server".into(),
        S::NotSupp | S::OpIllegal => "the server has no extended attributes for it".into(),
        status => match v3::Status::try_from(status.number()) {
            Ok(status) => status.to_string(),
            Err(_) => format!("{status:?} (NFSv4 error {})", status.number()),
        },
    }
}

/// The kind of an NFS status (RFC 1813 section 2.6): as [`std::fs`] reports the corresponding `errno`.
fn status_kind(status: v3::Status) -> io::ErrorKind {
    use io::ErrorKind as K;
    use v3::Status as S;
    match status {
        S::Perm | S::Access => K::PermissionDenied,
        S::NoEnt => K::NotFound,
        S::Exist => K::AlreadyExists,
        S::XDev => K::CrossesDevices,
        S::NotDir => K::NotADirectory,
        S::IsDir => K::IsADirectory,
        S::Inval => K::InvalidInput,
        S::FBig => K::FileTooLarge,
        S::NoSpc => K::StorageFull,
        S::RoFs => K::ReadOnlyFilesystem,
        S::MLink => K::TooManyLinks,
        S::NameTooLong => K::InvalidFilename,
        S::NotEmpty => K::DirectoryNotEmpty,
        S::DQuot => K::QuotaExceeded,
        S::Stale | S::BadHandle => K::StaleNetworkFileHandle,
        S::NotSupp | S::BadType => K::Unsupported,
        S::Jukebox => K::ResourceBusy,
        _ => K::Other,
    }
}

fn mount_kind(status: mount::Status) -> io::ErrorKind {
    use io::ErrorKind as K;
    use mount::Status as S;
    match status {
        S::Perm | S::Access => K::PermissionDenied,
        S::NoEnt => K::NotFound,
        S::NotDir => K::NotADirectory,
        S::Inval => K::InvalidInput,
        S::NameTooLong => K::InvalidFilename,
        S::NotSupp => K::Unsupported,
        _ => K::Other,
    }
}

fn rpc_kind(error: &RpcError) -> io::ErrorKind {
    use io::ErrorKind as K;
    match error {
        RpcError::Disconnected { .. } => K::ConnectionAborted,
        RpcError::TimedOut { .. } => K::TimedOut,
        RpcError::Auth(_) => K::PermissionDenied,
        RpcError::Accept(
            AcceptError::ProgUnavail | AcceptError::ProgMismatch { .. } | AcceptError::ProcUnavail,
        )
        | RpcError::Mismatch(_)
        | RpcError::Unsupported(_) => K::Unsupported,
        RpcError::BadReply { .. } => K::InvalidData,
        RpcError::Accept(_) | RpcError::Local(_) => K::Other,
    }
}

fn connect_kind(source: &(dyn StdError + Send + Sync + 'static)) -> io::ErrorKind {
    if let Some(e) = source.downcast_ref::<io::Error>() {
        return e.kind();
    }
    if source.is::<TlsFailure>() {
        return io::ErrorKind::PermissionDenied;
    }
    match source.downcast_ref::<ConnectionError>() {
        Some(ConnectionError::TimedOut(_)) => io::ErrorKind::TimedOut,
        _ => io::ErrorKind::ConnectionRefused,
    }
}

/// The remedy for a failed connection. A failure of TLS has its own.
fn connect_hint(proto: Proto, source: Option<&(dyn StdError + Send + Sync + 'static)>) -> String {
    match source {
        Some(e) if e.is::<TlsFailure>() || e.is::<ConfigError>() => String::new(),
        _ => format!("; check that the server runs, listens on that port and offers {proto}"),
    }
}

/// The remedy for an RPC error.
fn rpc_hint(error: &RpcError) -> &'static str {
    match error {
        RpcError::Disconnected { .. } => {
            "; check that the server runs, and that the port is that of the transport (proto=rdma or proto=tcp)"
        }
        RpcError::TimedOut { .. } => "; check the server and the network",
        _ => "",
    }
}

fn names(flavors: &[SecurityFlavor]) -> Vec<String> {
    flavors.iter().map(ToString::to_string).collect()
}

fn list(exports: &[String]) -> String {
    if exports.is_empty() { "none".into() } else { exports.join(", ") }
}

fn mount_hint(status: mount::Status) -> &'static str {
    match status {
        mount::Status::Access | mount::Status::Perm => {
            "; check the export's access rules: the client's address, and whether ports above 1023 are allowed (`insecure`), which clients without root use"
        }
        mount::Status::NoEnt => "; check the list of exports",
        _ => "",
    }
}

/// The failure of a transport of [`Error::NoTransport`].
fn over_transport(failure: &Error) -> String {
    match failure {
        Error::Connect { server, proto, reason, .. } => {
            let port = server.rsplit_once(':').map_or("", |(_, port)| port);
            format!("{proto} at port {port}: {reason}")
        }
        other => other.to_string(),
    }
}

/// The error for a status of a call on `object`.
pub(crate) fn nfs_error(procedure: v3::Procedure, object: impl ToString, status: v3::Status) -> Error {
    Error::Nfs { procedure, object: object.to_string(), status }
}

/// As [`nfs_error`], for a name.
pub(crate) fn named_error(procedure: v3::Procedure, name: &[u8], status: v3::Status) -> Error {
    Error::Nfs { procedure, object: format!("{:?}", String::from_utf8_lossy(name)), status }
}

/// The `errno` of a status of an operation that NFSv3 does not have.
fn errno4(status: v4::Status) -> Errno {
    use v4::Status as S;
    match status {
        S::Denied | S::Locked | S::Delay | S::Grace => Errno::AGAIN,
        S::Deadlock => Errno::DEADLK,
        S::LockRange | S::BadRange | S::WrongType | S::Symlink => Errno::INVAL,
        S::LockNotsupp | S::LocksHeld => Errno::NOLCK,
        S::OpenMode => Errno::BADF,
        S::NoXattr => Errno::NODATA,
        S::Xattr2Big => Errno::TOOBIG,
        S::OpIllegal | S::UnionNotsupp => Errno::OPNOTSUPP,
        other => v3::Status::try_from(other.number()).map_or(Errno::IO, errno),
    }
}

fn errno(status: v3::Status) -> Errno {
    use v3::Status as S;
    match status {
        S::Perm => Errno::PERM,
        S::NoEnt => Errno::NOENT,
        S::NxIo => Errno::NXIO,
        S::Access => Errno::ACCESS,
        S::Exist => Errno::EXIST,
        S::XDev => Errno::XDEV,
        S::NoDev => Errno::NODEV,
        S::NotDir => Errno::NOTDIR,
        S::IsDir => Errno::ISDIR,
        S::Inval | S::BadType => Errno::INVAL,
        S::FBig => Errno::FBIG,
        S::NoSpc => Errno::NOSPC,
        S::RoFs => Errno::ROFS,
        S::MLink => Errno::MLINK,
        S::NameTooLong => Errno::NAMETOOLONG,
        S::NotEmpty => Errno::NOTEMPTY,
        S::DQuot => Errno::DQUOT,
        S::Stale | S::BadHandle => Errno::STALE,
        S::Remote => Errno::REMOTE,
        S::NotSupp => Errno::OPNOTSUPP,
        S::Jukebox => Errno::AGAIN,
        _ => Errno::IO,
    }
}
