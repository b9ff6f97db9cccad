//! MPA startup (RFC 5044 section 7, RFC 6581): one frame in each direction, then FPDUs only.

use std::{
    future::poll_fn,
    io::{IoSlice, IoSliceMut},
    task::Poll,
    time::Duration,
};

use millrace_rdma::{ConnectParams, ConnectionError, provider::setup_timeout};
use millrace_runtime::{ByteStream, RuntimeRef};

use super::wire::{
    crc::Crc,
    ddp::Untagged,
    fpdu,
    mpa::{self, Control, Fixed, Frame, Kind},
    rdmap::Opcode,
    terminate::{ErrorCode, Terminate},
};

/// Maximum private data of the upper layer, in bytes, which every implementation accepts besides its own.
const MAX_UPPER_PRIVATE: usize = 196;
/// Maximum IRD and ORD of a connection, regardless of the request of the peer.
pub(crate) const MAX_DEPTH: u16 = 128;

/// Time for which a connection with an invalid request is kept open. A Linux client that mounts over TCP at
/// the RDMA port reconnects as soon as the connection is closed, thousands of times a second without this
/// delay.
const INVALID_REQUEST_DELAY: Duration = Duration::from_secs(5);

/// Result of the negotiation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Negotiated {
    /// Inbound read depth of this end.
    pub(crate) ird: u16,
    /// Outbound read depth of this end.
    pub(crate) ord: u16,
    /// The peer's private data.
    pub(crate) private: Vec<u8>,
    /// Whether CRCs are used.
    pub(crate) crc: bool,
    /// Whether this end is the responder, which may not send first.
    pub(crate) responder: bool,
    /// The peer's first message is an empty Send that is not delivered to the upper layer.
    pub(crate) rtr_send: bool,
}

/// Validates the parameters.
fn check_params(params: &ConnectParams) -> Result<(), ConnectionError> {
    if params.private_data.len() > MAX_UPPER_PRIVATE {
        return Err(ConnectionError::Local(format!(
            "{} bytes of private data exceed the maximum of {MAX_UPPER_PRIVATE}",
            params.private_data.len()
        )));
    }
    if params.max_frame == Some(0) {
        return Err(ConnectionError::Local("invalid maximum frame payload: 0 bytes".into()));
    }
    Ok(())
}

/// Runs startup as the initiator. Leaves `stream` at the first FPDU.
pub(crate) async fn initiate(
    rt: &RuntimeRef,
    stream: &mut dyn ByteStream,
    params: &ConnectParams,
) -> Result<Negotiated, ConnectionError> {
    check_params(params)?;
    setup_timeout(&**rt, params.timeout, initiate_inner(stream, params)).await
}

/// Runs startup as the responder. Leaves `stream` at the first FPDU.
pub(crate) async fn respond(
    rt: &RuntimeRef,
    stream: &mut dyn ByteStream,
    params: &ConnectParams,
) -> Result<Negotiated, ConnectionError> {
    check_params(params)?;
    let result = setup_timeout(&**rt, params.timeout, respond_inner(stream, params)).await;
    if let Err(ConnectionError::PeerMisbehaved(_)) = result {
        millrace_runtime::timeout(&**rt, INVALID_REQUEST_DELAY, wait_for_close(stream)).await;
    }
    result
}

/// Waits for the initiator's request and rejects it.
pub(crate) async fn reject(stream: &mut dyn ByteStream) -> Result<(), ConnectionError> {
    let (fixed, _) = read_frame(stream, Kind::Request).await?;
    send_reject(stream, &fixed).await
}

async fn initiate_inner(
    stream: &mut dyn ByteStream,
    params: &ConnectParams,
) -> Result<Negotiated, ConnectionError> {
    let (ird, ord) = (params.ird.min(MAX_DEPTH), params.ord.min(MAX_DEPTH));
    let request = Frame {
        kind: Kind::Request,
        revision: 2,
        crc: params.crc,
        reject: false,
        control: Some(Control { ird, ord, ..Control::default() }),
        private: &params.private_data,
    };
    tracing::trace!(%request, "sending");
    write_all(stream, &request.encode()).await?;
    let (fixed, private) = read_frame(stream, Kind::Reply).await?;
    let upper = private.get(if fixed.enhanced { mpa::CONTROL_BYTES } else { 0 }..).unwrap_or_default();
    if fixed.reject {
        return Err(ConnectionError::Rejected(upper.to_vec()));
    }
    if fixed.markers {
        return Err(ConnectionError::Incompatible("the peer requires MPA markers".into()));
    }
    if fixed.revision != 2 || !fixed.enhanced {
        return Err(ConnectionError::Incompatible(format!(
            "the peer's MPA reply has revision {} without the read depths of RFC 6581",
            fixed.revision
        )));
    }
    let crc = params.crc || fixed.crc;
    let control = Control::decode(&private).unwrap_or_default(); // `enhanced` was checked.
    let (ird, ord) = match initiator_depths(ird, ord, control) {
        Ok(depths) => depths,
        Err(e) => {
            write_all(stream, &bare_terminate(ErrorCode::IRD, crc)).await?;
            stream.shutdown();
            return Err(e);
        }
    };
    Ok(Negotiated { ird, ord, private: upper.to_vec(), crc, responder: false, rtr_send: false })
}

/// The initiator's depths after the reply `c` (RFC 6581 section 4): its ORD is at most the responder's IRD,
/// its IRD at least the responder's ORD.
fn initiator_depths(ird: u16, ord: u16, c: Control) -> Result<(u16, u16), ConnectionError> {
    let ord = if c.ird == mpa::NO_NEGOTIATION { ord } else { ord.min(c.ird) };
    let ird = if c.ord == mpa::NO_NEGOTIATION { ird } else { ird.max(c.ord) };
    if ird > MAX_DEPTH {
        return Err(ConnectionError::Incompatible(format!(
            "the peer requires an IRD of {ird}; the maximum is {MAX_DEPTH}"
        )));
    }
    Ok((ird, ord))
}

async fn respond_inner(
    stream: &mut dyn ByteStream,
    params: &ConnectParams,
) -> Result<Negotiated, ConnectionError> {
    let (fixed, private) = read_frame(stream, Kind::Request).await?;
    if fixed.reject {
        return Err(ConnectionError::PeerMisbehaved("MPA request with the reject bit".into()));
    }
    if !(1..=2).contains(&fixed.revision) {
        return Err(ConnectionError::Incompatible(format!("MPA revision {}", fixed.revision)));
    }
    if fixed.markers {
        send_reject(stream, &fixed).await?;
        stream.shutdown();
        return Err(ConnectionError::Incompatible("the peer requires MPA markers".into()));
    }
    let control = if fixed.enhanced { Control::decode(&private) } else { None };
    let upper = private.get(if control.is_some() { mpa::CONTROL_BYTES } else { 0 }..).unwrap_or_default();
    let crc = params.crc || fixed.crc;
    let (ird, ord, answer) = match control {
        Some(c) => responder_depths(params, c),
        None => (params.ird.min(MAX_DEPTH), params.ord.min(MAX_DEPTH), None),
    };
    check_no_early_data(stream).await?;
    let reply = Frame {
        kind: Kind::Reply,
        revision: fixed.revision,
        crc,
        reject: false,
        control: answer,
        private: &params.private_data,
    };
    tracing::trace!(%reply, "sending");
    write_all(stream, &reply.encode()).await?;
    let rtr_send = answer.is_some_and(|a| a.rtr_send);
    Ok(Negotiated { ird, ord, private: upper.to_vec(), crc, responder: true, rtr_send })
}

/// The responder's depths and control words for a request with the control words `c` (RFC 6581 sections 4 and
/// 9).
fn responder_depths(params: &ConnectParams, c: Control) -> (u16, u16, Option<Control>) {
    let mut ird = params.ird.min(MAX_DEPTH);
    let mut ord = params.ord.min(MAX_DEPTH);
    let mut reply = Control { peer_to_peer: c.peer_to_peer, ..Control::default() };
    if c.peer_to_peer {
        // For this implementation an empty Write is the cheapest RTR and an empty Send the most expensive;
        // without an offer, propose the Write.
        reply.rtr_write = c.rtr_write || !(c.rtr_read || c.rtr_send);
        reply.rtr_read = !reply.rtr_write && c.rtr_read;
        reply.rtr_send = !reply.rtr_write && !reply.rtr_read;
        ird = ird.max(u16::from(reply.rtr_read));
    }
    if c.ord == mpa::NO_NEGOTIATION {
        reply.ird = mpa::NO_NEGOTIATION;
    } else {
        ird = ird.max(c.ord.min(MAX_DEPTH));
        reply.ird = ird;
    }
    if c.ird == mpa::NO_NEGOTIATION {
        reply.ord = mpa::NO_NEGOTIATION;
    } else {
        ord = ord.min(c.ird);
        reply.ord = ord;
    }
    (ird, ord, Some(reply))
}

async fn send_reject(stream: &mut dyn ByteStream, request: &Fixed) -> Result<(), ConnectionError> {
    let reply = Frame {
        kind: Kind::Reply,
        revision: request.revision.clamp(1, 2),
        crc: request.crc,
        reject: true,
        control: request.enhanced.then(Control::default),
        private: &[],
    };
    write_all(stream, &reply.encode()).await
}

/// An FPDU with only a Terminate, for an error during startup.
fn bare_terminate(error: ErrorCode, crc: bool) -> Vec<u8> {
    let payload = Terminate::bare(error).encode();
    let header = Untagged {
        opcode: Opcode::Terminate,
        last: true,
        invalidate: 0,
        queue: Opcode::Terminate.queue(),
        msn: 1,
        offset: 0,
    };
    let ulpdu = Untagged::BYTES + payload.len();
    let mut out = (ulpdu as u16).to_be_bytes().to_vec();
    out.extend(header.encode());
    out.extend(payload);
    out.resize(out.len() + fpdu::pad_bytes(ulpdu), 0);
    let mut sum = Crc::new();
    sum.update(&out);
    out.extend(if crc { sum.wire() } else { [0; 4] });
    out
}

/// Reads exactly one frame.
async fn read_frame(stream: &mut dyn ByteStream, kind: Kind) -> Result<(Fixed, Vec<u8>), ConnectionError> {
    let mut fixed = [0; mpa::FIXED_BYTES];
    read_exact(stream, &mut fixed).await?;
    let fixed = Fixed::decode(&fixed, kind).map_err(|e| ConnectionError::PeerMisbehaved(e.to_string()))?;
    let mut private = vec![0; fixed.private_len];
    read_exact(stream, &mut private).await?;
    Ok((fixed, private))
}

/// Checks that the initiator has sent nothing after its request. It must wait for the reply; earlier bytes
/// would be misinterpreted as FPDUs.
async fn check_no_early_data(stream: &mut dyn ByteStream) -> Result<(), ConnectionError> {
    let mut byte = [0];
    poll_fn(|cx| {
        Poll::Ready(match stream.poll_read(cx, &mut [IoSliceMut::new(&mut byte)]) {
            Poll::Pending => Ok(()),
            Poll::Ready(Ok(0)) => Err(ConnectionError::Closed),
            Poll::Ready(Ok(_)) => {
                Err(ConnectionError::PeerMisbehaved("data after the MPA request, before the reply".into()))
            }
            Poll::Ready(Err(e)) => Err(ConnectionError::Io(e.to_string())),
        })
    })
    .await
}

async fn read_exact(stream: &mut dyn ByteStream, mut buf: &mut [u8]) -> Result<(), ConnectionError> {
    while !buf.is_empty() {
        let n = poll_fn(|cx| stream.poll_read(cx, &mut [IoSliceMut::new(buf)]))
            .await
            .map_err(|e| ConnectionError::Io(e.to_string()))?;
        if n == 0 {
            return Err(ConnectionError::Io("the peer closed the connection during MPA startup".into()));
        }
        buf = &mut buf[n..];
    }
    Ok(())
}

/// Waits for the peer to close the connection. Input is discarded.
async fn wait_for_close(stream: &mut dyn ByteStream) {
    let mut unwanted = [0; 4096];
    while read_exact(stream, &mut unwanted).await.is_ok() {}
}

async fn write_all(stream: &mut dyn ByteStream, mut buf: &[u8]) -> Result<(), ConnectionError> {
    while !buf.is_empty() {
        let n = poll_fn(|cx| stream.poll_write(cx, &[IoSlice::new(buf)]))
            .await
            .map_err(|e| ConnectionError::Io(e.to_string()))?;
        if n == 0 {
            return Err(ConnectionError::Closed);
        }
        buf = &buf[n..];
    }
    poll_fn(|cx| stream.poll_flush(cx)).await.map_err(|e| ConnectionError::Io(e.to_string()))
}
