//! Requests for the state of NFSv4 clients on the control socket, and their answers as JSON.

use std::{fmt, path::PathBuf};

use millrace_server::{
    ClientReport, DelegationKind, FileState, Nfs4State, StateFilter, StateidKind, StateidPosition,
};
use serde::{Deserialize, Serialize};

/// Number of entries of one answer.
pub(crate) const PAGE: usize = 256;

/// A client ID: `0x` and hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct Id(pub(crate) u64);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.to_string()
    }
}

impl std::str::FromStr for Id {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let number = u64::from_str_radix(digits, 16);
        number.map(Self).map_err(|_| format!("{text} is not a client ID, such as 0x6925c1f700000001"))
    }
}

impl TryFrom<String> for Id {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Which state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Filter {
    Client(Id),
    Export(String),
    File(#[serde(with = "encoded")] PathBuf),
}

/// Paths in JSON, which is UTF-8.
mod encoded {
    use std::{
        ffi::OsString,
        os::unix::ffi::{OsStrExt, OsStringExt},
        path::{Path, PathBuf},
    };

    use millrace_runtime::{percent_decode, percent_encode};
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(path: &Path, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&percent_encode(path.as_os_str().as_bytes()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<PathBuf, D::Error> {
        let bytes = percent_decode(&String::deserialize(d)?).map_err(de::Error::custom)?;
        Ok(OsString::from_vec(bytes).into())
    }
}

/// A request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StateRequest {
    /// One page of clients. The answer is a list of [`ClientState`].
    Clients { after: Option<Id> },
    /// The clients that the grace period waits for. The answer is a list of names.
    Awaited,
    /// One page of opens and locks. The answer is a list of [`OpenState`].
    Opens { filter: Filter, after: Option<(Id, u32)> },
    /// A revocation. The answer is the number of stateids.
    Revoke { filter: Filter },
}

/// A client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientState {
    pub(crate) client: Id,
    /// Invalid UTF-8 is replaced.
    pub(crate) owner: String,
    pub(crate) address: String,
    /// As in nfs(5): `none`, `tls` or `mtls`; of a client without a connection `None`.
    pub(crate) xprtsec: Option<String>,
    /// Of the client's certificate (RFC 4514).
    pub(crate) subject: Option<String>,
    pub(crate) lease_age_seconds: u64,
    pub(crate) lease_expired: bool,
    pub(crate) sessions: usize,
    pub(crate) opens: usize,
    pub(crate) locks: usize,
    pub(crate) revoked: usize,
}

/// An open, the locks of a lock owner, or a delegation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OpenState {
    pub(crate) client: Id,
    pub(crate) number: u32,
    pub(crate) export: Option<String>,
    pub(crate) inode: Option<u64>,
    /// `open`, `locks` or `delegation`.
    pub(crate) kind: String,
    /// Of an open: `r`, `w` or `rw`; of a delegation: `r` or `rw`.
    pub(crate) access: Option<String>,
    /// Of an open: `-`, `r`, `w` or `rw`.
    pub(crate) deny: Option<String>,
    /// Number of locked byte ranges.
    pub(crate) ranges: Option<usize>,
    /// The open owner or lock owner; invalid UTF-8 is replaced.
    pub(crate) owner: String,
    pub(crate) revoked: bool,
}

/// The answer to a request, as JSON.
///
/// # Errors
/// One sentence.
pub(crate) async fn answer(state: &Nfs4State, request: &StateRequest) -> Result<String, String> {
    let text = match request {
        StateRequest::Clients { after } => {
            let clients = state.clients(after.map(|id| id.0), PAGE);
            let clients: Vec<_> = clients.iter().map(|client| client_state(client, state)).collect();
            serde_json::to_string(&clients)
        }
        StateRequest::Awaited => {
            let names = state.awaited();
            let names: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name)).collect();
            serde_json::to_string(&names)
        }
        StateRequest::Opens { filter, after } => {
            let after = after.map(|(client, number)| StateidPosition::new(client.0, number));
            let opens = state.stateids(&filter.into(), after, PAGE).await.map_err(|e| e.to_string())?;
            serde_json::to_string(&opens.iter().map(open_state).collect::<Vec<_>>())
        }
        StateRequest::Revoke { filter } => {
            serde_json::to_string(&state.revoke(&filter.into()).await.map_err(|e| e.to_string())?)
        }
    };
    text.map_err(|e| e.to_string())
}

impl From<&Filter> for StateFilter {
    fn from(filter: &Filter) -> Self {
        match filter {
            Filter::Client(id) => Self::Client(id.0),
            Filter::Export(name) => Self::Export(name.clone()),
            Filter::File(path) => Self::File(path.clone()),
        }
    }
}

fn client_state(report: &ClientReport, state: &Nfs4State) -> ClientState {
    let protection = state.protection(report.id.number);
    ClientState {
        xprtsec: protection.as_ref().map(|p| p.security.to_string()),
        subject: protection.and_then(|p| Some(p.subject?.to_string())),
        client: Id(report.id.number),
        owner: String::from_utf8_lossy(&report.owner).into_owned(),
        address: report.address.to_string(),
        lease_age_seconds: report.lease_age.as_secs(),
        lease_expired: report.lease_age > state.lease(),
        sessions: report.sessions,
        opens: report.opens,
        locks: report.locks,
        revoked: report.revoked,
    }
}

fn open_state(state: &FileState) -> OpenState {
    let (kind, access, deny, ranges) = match state.kind {
        StateidKind::Open { access, deny } => ("open", Some(bits(access)), Some(bits(deny)), None),
        StateidKind::Locks { ranges } => ("locks", None, None, Some(ranges)),
        StateidKind::Delegation(DelegationKind::Read) => ("delegation", Some("r".into()), None, None),
        StateidKind::Delegation(DelegationKind::Write) => ("delegation", Some("rw".into()), None, None),
    };
    OpenState {
        client: Id(state.at.client.number),
        number: state.at.number,
        export: state.export.clone(),
        inode: state.fileid,
        kind: kind.into(),
        access,
        deny,
        ranges,
        owner: String::from_utf8_lossy(&state.owner).into_owned(),
        revoked: state.revoked,
    }
}

/// Share access or denial as text.
fn bits(bits: u32) -> String {
    ["-", "r", "w", "rw"].get(bits as usize).copied().unwrap_or("?").into()
}
