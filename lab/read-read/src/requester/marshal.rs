//! Encoding of calls: as in RFC 8166, without chunks for results, or as RDMA_MSGP.

use std::sync::Arc;

use millrace_buffer::{Buffer, View};
use millrace_oncrpc::{ReplySpec, Request, RpcError};
use millrace_rdma::ConnectionError;
use millrace_rpcrdma::{MIN_CALL, Marshaller, Outgoing, counters::add};

use crate::{
    Counts, ReadRead,
    padding::{HEADER, Padding},
};

/// Memory of a call for its results.
pub(super) struct ReplyMemory {
    /// Maximum bytes of the reply's head.
    pub(super) head: usize,
    /// Memory for the reply's payload.
    pub(super) payload: Option<Buffer>,
}

/// Encodes the calls of one connection.
pub(super) struct Outbox {
    pub(super) marshaller: Marshaller,
    padding: Option<Padding>,
    zeros: View,
    counts: Arc<Counts>,
}

impl Outbox {
    pub(super) fn new(marshaller: Marshaller, protocol: ReadRead) -> Result<Self, ConnectionError> {
        let padding = protocol.padding.map(Padding::clamped);
        let most = padding.map_or(4, |p| p.align as usize);
        let zeros =
            marshaller.arena.copy_from(&vec![0; most]).map_err(|e| ConnectionError::Local(e.to_string()))?;
        Ok(Self { marshaller, padding, zeros, counts: protocol.counts })
    }

    /// Exposes the arguments of a call and builds its Send. The memory for the results is not exposed.
    pub(super) fn marshal(
        &self,
        xid: u32,
        mut request: Request,
    ) -> Result<(Outgoing, ReplyMemory), RpcError> {
        if request.seal.is_some() {
            return Err(RpcError::Unsupported("the Read-Read design has no security contexts".into()));
        }
        let ReplySpec { max_head, payload, .. } = std::mem::take(&mut request.reply);
        let reply = ReplyMemory { head: max_head, payload };
        let outgoing = match self.padded(xid, &mut request)? {
            Some(outgoing) => outgoing,
            None => self.marshaller.marshal(xid, request)?,
        };
        Ok((outgoing, reply))
    }

    /// Encodes an inline call as RDMA_MSGP, if padding is configured and the call has an item to align.
    fn padded(&self, xid: u32, request: &mut Request) -> Result<Option<Outgoing>, RpcError> {
        let marshaller = &self.marshaller;
        let (message, most) = (&request.message, marshaller.thresholds().send);
        let Some(padding) = self.padding.filter(|_| MIN_CALL + message.stream_len() <= most) else {
            return Ok(None);
        };
        let padded = padding.pad(message, &self.zeros);
        let Some(stream) = padded.filter(|stream| HEADER + stream.len() <= most) else { return Ok(None) };
        self.counts.padded_calls.add(1);
        add(&marshaller.stats.inline_bytes_out, stream.len());
        let data = padding.send(xid, marshaller.credits, &stream, &marshaller.arena);
        let data = data.map_err(|e| RpcError::Local(e.to_string()))?;
        Ok(Some(Outgoing { data, exposed: marshaller.memory(std::mem::take(&mut request.stages)) }))
    }
}
