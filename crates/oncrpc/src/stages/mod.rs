//! Latency breakdown of calls: time stamps at the stage boundaries of sampled calls (TR06 figure 10).
//!
//! A [`Sampler`] selects calls. A selected call carries [`Stages`] through its end of the connection, and
//! each component records the end of its stage. A stage starts at the end of the previous one, so the times
//! of all stages add up to the time of the call. Per stage, a call that is not sampled costs one branch, and
//! a sampled one a clock read without heap allocation in steady state.

mod sampler;
mod sums;

use std::fmt;

pub use self::{
    sampler::{Sampler, Stages},
    sums::{StageStats, StageSums, StageTimes},
};

/// Default sampling interval: one call in 61. A prime avoids aliasing with periodic call patterns.
pub const DEFAULT_SAMPLE: u32 = 61;

/// A stage of a call at either end. A stage that does not occur takes no time: only RDMA registers memory,
/// and only if the peer accesses the memory or the adapter requires it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Client: encodes the call and its arguments.
    Encode,
    /// Client: the call waits for a credit and for the connection's driver.
    Queue,
    /// Server: the received message waits for processing, from the poll that returned it.
    Receive,
    /// Server: decodes headers, and waits for memory for the reply. Client: validates the reply's chunks and
    /// headers, and assembles the message.
    Decode,
    /// Allocates memory: the sinks of RDMA Reads, the client's Reply chunk.
    Buffer,
    /// Registers memory according to the strategy, including copies. Client: the call's chunks. Either end: with
    /// strategies and adapters that require it, the local memory of RDMA Reads and Writes.
    Registration,
    /// Client: builds the call's header and posts its Send (TCP: queues the record for the socket).
    Send,
    /// Client: waits for the reply. Includes the network and the server.
    Wait,
    /// From posting the call's RDMA Reads to the last completion: arguments at the server.
    ReadWait,
    /// Server: executes the call: decodes its arguments, checks caller and file handle, and waits for the file
    /// system; encodes the results.
    Execution,
    /// Server: posts RDMA Writes of results.
    WritePost,
    /// Server: encodes headers, posts receives and the Send (TCP: queues the record).
    Reply,
    /// Server: from posting the Send until the lower layer has accepted the whole reply. Software
    /// providers pass the data to the socket in this stage.
    Completion,
    /// Deregisters or invalidates memory according to the strategy, including copies.
    Deregistration,
    /// Client: wakes the caller, which decodes the results.
    Delivery,
}

impl Stage {
    /// Number of stages.
    pub const COUNT: usize = 15;

    /// All stages.
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
        Self::Execution,
        Self::WritePost,
        Self::Reply,
        Self::Completion,
        Self::Deregistration,
        Self::Delivery,
    ];

    /// Stages of a client, in the order of a call.
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

    /// Stages of a server, in the order of a call.
    pub const SERVER: [Self; 10] = [
        Self::Receive,
        Self::Decode,
        Self::Buffer,
        Self::Registration,
        Self::ReadWait,
        Self::Execution,
        Self::WritePost,
        Self::Reply,
        Self::Completion,
        Self::Deregistration,
    ];

    /// Name, such as `encode`, `rdma-read-wait` or `execution`.
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
            Self::Execution => "execution",
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

/// Class of a call, by which times are aggregated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CallClass {
    /// All other calls.
    #[default]
    Other,
    /// Calls with data in the results (NFS READ).
    Read,
    /// Calls with data in the arguments (NFS WRITE).
    Write,
}

impl CallClass {
    /// All classes.
    pub const ALL: [Self; 3] = [Self::Other, Self::Read, Self::Write];

    /// Name: `other`, `read` or `write`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Other => "other",
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}
