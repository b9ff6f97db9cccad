//! Where the time of a call goes: stamps at the borders of its stages, of one call in so many (TR06 figure 10).
//!
//! A [`Sampler`] chooses calls; a chosen one carries [`Stages`] wherever it goes at its end of the connection, and
//! whoever ends a stage says so. A stage lasts from the end of the one before it, so nothing is counted twice and
//! nothing is left out: the stages of a call add up to its time. A call that was not chosen costs one branch at each
//! border; a chosen one costs a look at the clock, and nothing from the heap in steady state.

mod sampler;
mod sums;

use std::fmt;

pub use self::{
    sampler::{Sampler, Stages},
    sums::{StageStats, StageSums, StageTimes},
};

/// One call in so many is sampled where nothing else is said. A prime, so that of calls that come in a pattern none is
/// always passed over.
pub const DEFAULT_SAMPLE: u32 = 61;

/// A stage of a call, at the one end or the other. What does not happen to a call takes no time: only RDMA has memory to
/// register, and only where the peer is to reach it, or an adapter must be told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Client: the call and its arguments are encoded.
    Encode,
    /// Client: the call waits for a credit, and for the connection's driver to take it.
    Queue,
    /// Server: the message waits for its turn, from the poll that brought it on.
    Receive,
    /// Server: headers and arguments are decoded, the caller and the file handle checked. Client: the reply's chunks
    /// and headers are checked, and the message put together.
    Decode,
    /// Memory is taken: the sinks of RDMA Reads, the client's Reply chunk.
    Buffer,
    /// Memory is made reachable, by what the registration strategy does, its copies included. Client: the call's
    /// chunks. Server: in the Read-Read design results; with strategies and adapters that ask for it, also the memory
    /// of its own RDMA Reads and Writes.
    Registration,
    /// Client: the call's header is built and its Send posted (TCP: the record queued for the socket).
    Send,
    /// Client: until the reply is taken and matched to its call. The wire and the server are in this stage.
    Wait,
    /// From the posting of the call's RDMA Reads until the last is taken: at the server of arguments, at the client of
    /// results in the Read-Read design.
    ReadWait,
    /// Server: READ and WRITE are in the file system. Of other procedures, all that they do.
    FileSystem,
    /// Server: RDMA Writes of results are posted.
    WritePost,
    /// Server: results and headers are encoded, receives posted again, the Send posted (TCP: the record queued).
    Reply,
    /// Server: from the Send's posting until the lower layer has taken all of the reply; in the Read-Read design, until
    /// RDMA_DONE if results are exposed. Software providers hand the data to the socket in this stage.
    Completion,
    /// Memory is taken out of reach again, by what the registration strategy does, its copies included.
    Deregistration,
    /// Client: the caller is woken, has its turn, and decodes the results.
    Delivery,
}

impl Stage {
    /// How many there are.
    pub const COUNT: usize = 15;

    /// All of them.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Encode,
        Self::Queue,
        Self::Receive,
        Self::Decode,
        Self::Buffer,
        Self::Registration,
        Self::Send,
        Self::Wait,
        Self::ReadWait,
        Self::FileSystem,
        Self::WritePost,
        Self::Reply,
        Self::Completion,
        Self::Deregistration,
        Self::Delivery,
    ];

    /// Those of a client, in the order of a call.
    pub const CLIENT: [Self; 10] = [
        Self::Encode,
        Self::Queue,
        Self::Buffer,
        Self::Registration,
        Self::Send,
        Self::Wait,
        Self::ReadWait,
        Self::Deregistration,
        Self::Decode,
        Self::Delivery,
    ];

    /// Those of a server, in the order of a call.
    pub const SERVER: [Self; 10] = [
        Self::Receive,
        Self::Decode,
        Self::Buffer,
        Self::Registration,
        Self::ReadWait,
        Self::FileSystem,
        Self::WritePost,
        Self::Reply,
        Self::Completion,
        Self::Deregistration,
    ];

    /// Its name: `encode`, `rdma-read-wait`, `file-system`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Encode => "encode",
            Self::Queue => "queue",
            Self::Receive => "receive",
            Self::Decode => "decode",
            Self::Buffer => "buffer",
            Self::Registration => "registration",
            Self::Send => "send",
            Self::Wait => "wait",
            Self::ReadWait => "rdma-read-wait",
            Self::FileSystem => "file-system",
            Self::WritePost => "rdma-write-post",
            Self::Reply => "reply",
            Self::Completion => "completion",
            Self::Deregistration => "deregistration",
            Self::Delivery => "delivery",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a call is for, as far as times are kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CallClass {
    /// Neither of these.
    #[default]
    Other,
    /// Its results carry data (NFS READ).
    Read,
    /// Its arguments carry data (NFS WRITE).
    Write,
}

impl CallClass {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Other, Self::Read, Self::Write];

    /// Its name: `other`, `read`, `write`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Other => "other",
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}
