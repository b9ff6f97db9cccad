//! The queue pair of one end, for its owner.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use millrace_buffer::Buffer;
use millrace_rdma::{
    Capabilities, Completion, ConnectionError, ConnectionInfo, Counters, DomainRef, PostError, QueuePair,
    ReadRequest, SendRequest, WriteRequest,
};

use super::{
    domain::SimDomain,
    event::EndId,
    world::{Inner, software::Posted},
};

/// A simulated queue pair.
pub(super) struct SimQp {
    pub(super) world: Arc<Inner>,
    pub(super) end: EndId,
    pub(super) info: ConnectionInfo,
    pub(super) capabilities: Capabilities,
    pub(super) domain: Arc<SimDomain>,
}

impl QueuePair for SimQp {
    fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn domain(&self) -> DomainRef {
        Arc::clone(&self.domain) as DomainRef
    }

    fn post_receive(&mut self, buffer: Buffer) -> Result<(), PostError> {
        self.world.post(self.end, Posted::Receive(buffer))
    }

    fn post_send(&mut self, request: SendRequest) -> Result<(), PostError> {
        request.check()?;
        self.world.post(self.end, Posted::Send(request))
    }

    fn post_write(&mut self, request: WriteRequest) -> Result<(), PostError> {
        request.check()?;
        self.world.post(self.end, Posted::Write(request))
    }

    fn post_read(&mut self, request: ReadRequest) -> Result<(), PostError> {
        request.check(self.info.ord)?;
        self.world.post(self.end, Posted::Read(request))
    }

    fn poll(&mut self, cx: &mut Context<'_>, out: &mut Vec<Completion>) -> Poll<Result<(), ConnectionError>> {
        self.world.poll(self.end, cx, out)
    }

    /// Posted work is sent without flush.
    fn flush(&mut self, _cx: &mut Context<'_>) {}

    fn disconnect(&mut self) {
        self.world.disconnect(self.end);
    }

    fn counters(&self) -> Counters {
        self.world.counters(self.end)
    }
}

impl Drop for SimQp {
    fn drop(&mut self) {
        self.world.dropped(self.end);
    }
}
