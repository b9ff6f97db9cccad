//! The designs that the papers compare.

use std::{fmt, str::FromStr};

use millrace_rpcrdma::{Protocol, ProtocolRef, Rfc8166};

use crate::ReadRead;

/// The end that moves a call's results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Design {
    /// RFC 8166: the responder writes results to memory that the requester exposes, and exposes no memory.
    #[default]
    ReadWrite,
    /// This crate: the responder exposes memory, the requester reads results from it and acknowledges them. A client
    /// can read data of other clients by guessing tags, and can hold the responder's memory by not acknowledging.
    ReadRead,
}

impl Design {
    /// The protocol of a client and a server, with the default settings.
    pub fn protocol(self) -> ProtocolRef {
        match self {
            Self::ReadWrite => ProtocolRef::default(),
            Self::ReadRead => ProtocolRef::new(ReadRead::default()),
        }
    }

    /// The design of a selected protocol.
    pub fn of(protocol: &ProtocolRef) -> Self {
        if protocol.name() == Self::ReadRead.name() { Self::ReadRead } else { Self::ReadWrite }
    }

    /// The name: `read-write` or `read-read`.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadWrite => Rfc8166.name(),
            Self::ReadRead => "read-read",
        }
    }
}

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Design {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let design = [Self::ReadWrite, Self::ReadRead].into_iter().find(|design| design.name() == s);
        design.ok_or_else(|| format!("unknown design {s:?}: use read-write or read-read"))
    }
}
