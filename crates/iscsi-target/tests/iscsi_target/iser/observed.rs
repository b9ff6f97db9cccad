//! A queue pair whose exposures are metered.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use millrace_buffer::Buffer;
use millrace_rdma::{
    Capabilities, Completion, ConnectionError, ConnectionInfo, Counters, DomainRef, ExposureMeter, PostError,
    QueuePair, ReadRequest, SendRequest, WriteRequest,
};
use millrace_runtime::RuntimeRef;

/// Meters what the owner of `qp` exposes.
pub(crate) struct Observed {
    pub(crate) qp: Box<dyn QueuePair>,
    pub(crate) meter: Arc<ExposureMeter>,
    pub(crate) rt: RuntimeRef,
}

impl QueuePair for Observed {
    fn info(&self) -> &ConnectionInfo {
        self.qp.info()
    }

    fn capabilities(&self) -> &Capabilities {
        self.qp.capabilities()
    }

    fn domain(&self) -> DomainRef {
        self.meter.meter(self.qp.domain(), &self.rt)
    }

    fn post_receive(&mut self, buffer: Buffer) -> Result<(), PostError> {
        self.qp.post_receive(buffer)
    }

    fn post_send(&mut self, request: SendRequest) -> Result<(), PostError> {
        self.qp.post_send(request)
    }

    fn post_write(&mut self, request: WriteRequest) -> Result<(), PostError> {
        self.qp.post_write(request)
    }

    fn post_read(&mut self, request: ReadRequest) -> Result<(), PostError> {
        self.qp.post_read(request)
    }

    fn poll(&mut self, cx: &mut Context<'_>, out: &mut Vec<Completion>) -> Poll<Result<(), ConnectionError>> {
        self.qp.poll(cx, out)
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        self.qp.flush(cx);
    }

    fn disconnect(&mut self) {
        self.qp.disconnect();
    }

    fn abort(&mut self) {
        self.qp.abort();
    }

    fn counters(&self) -> Counters {
        self.qp.counters()
    }
}
