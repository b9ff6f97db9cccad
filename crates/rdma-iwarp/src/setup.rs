//! MPA start-up (RFC 5044 section 7, RFC 6581): one frame each way, then FPDUs only.

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

/// Private data of the upper layer that we send at most: what every implementation takes beside its own.
const MAX_UPPER_PRIVATE: usize = 196;
/// The deepest read queue that we keep, whatever a peer asks.
pub(crate) const MAX_DEPTH: u16 = 128;

/// How long a connection that begins with an improper request is left open. A Linux client that mounts over TCP at
/// the RDMA port comes back as soon as it is closed: some thousand times a second, if that is at once.
const IMPROPER_PAUSE: Duration = Duration::from_secs(5);

/// What was agreed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// Our inbound read depth.
    pub(crate) ird: u16,
    /// Our outbound read depth.
    pub(crate) ord: u16,
    /// The peer's private data.
    pub(crate) private: Vec<u8>,
    /// Whether CRCs are used.
    pub(crate) crc: bool,
    /// Whether we are the responder, which may not send first.
    pub(crate) responder: bool,
    /// The peer's first message is an empty Send that is not for the upper layer.
    pub(crate) rtr_send: bool,
}

/// What can be known of the parameters before anything is sent.
fn check_params(params: &ConnectParams) -> Result<(), ConnectionError> {
    if params.private_data.len() > MAX_UPPER_PRIVATE {
        return Err(ConnectionError::Local(format!(
            "{} bytes of private data; at most {MAX_UPPER_PRIVATE} fit",
            params.private_data.len()
        )));
    }
    if params.max_frame == Some(0) {
        return Err(ConnectionError::Local("frames of 0 bytes cannot carry anything".into()));
    }
    Ok(())
}

/// The initiator's part. `stream` is left at the first FPDU.
pub(crate) async fn initiate(
    rt: &RuntimeRef,
    stream: &mut dyn ByteStream,
    params: &ConnectParams,
) -> Result<Agreed, ConnectionError> {
    check_params(params)?;
    setup_timeout(&**rt, params.timeout, initiate_inner(stream, params)).await
}

/// The responder's part. `stream` is left at the first FPDU.
pub(crate) async fn respond(
    rt: &RuntimeRef,
    stream: &mut dyn ByteStream,
    params: &ConnectParams,
) -> Result<Agreed, ConnectionError> {
    check_params(params)?;
    let result = setup_timeout(&**rt, params.timeout, respond_inner(stream, params)).await;
    if let Err(ConnectionError::PeerMisbehaved(_)) = result {
        millrace_runtime::timeout(&**rt, IMPROPER_PAUSE, until_closed(stream)).await;
    }
    result
}

/// Waits for the initiator's request and refuses it.
pub(crate) async fn refuse(stream: &mut dyn ByteStream) -> Result<(), ConnectionError> {
    let (fixed, _) = read_frame(stream, Kind::Request).await?;
    send_reject(stream, &fixed).await
}

async fn initiate_inner(
    stream: &mut dyn ByteStream,
    params: &ConnectParams,
) -> Result<Agreed, ConnectionError> {
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
        return Err(ConnectionError::Incompatible("it wants MPA markers".into()));
    }
    if fixed.revision != 2 || !fixed.enhanced {
        return Err(ConnectionError::Incompatible(format!(
            "its MPA reply has revision {} without the read depths of RFC 6581",
            fixed.revision
        )));
    }
    let crc = params.crc || fixed.crc;
    let control = Control::decode(&private).unwrap_or_default(); // Present: `enhanced` was checked.
    let (ird, ord) = match adopt(ird, ord, control) {
        Ok(depths) => depths,
        Err(e) => {
            write_all(stream, &bare_terminate(ErrorCode::IRD, crc)).await?;
            stream.shutdown();
            return Err(e);
        }
    };
    Ok(Agreed { ird, ord, private: upper.to_vec(), crc, responder: false, rtr_send: false })
}

/// The initiator's depths after the reply `c` (RFC 6581 section 4): its ORD is at most the responder's IRD, its IRD at
/// least the responder's ORD.
fn adopt(ird: u16, ord: u16, c: Control) -> Result<(u16, u16), ConnectionError> {
    let ord = if c.ird == mpa::NO_NEGOTIATION { ord } else { ord.min(c.ird) };
    let ird = if c.ord == mpa::NO_NEGOTIATION { ird } else { ird.max(c.ord) };
    if ird > MAX_DEPTH {
        return Err(ConnectionError::Incompatible(format!(
            "it wants to have {ird} RDMA Reads in flight; we serve {MAX_DEPTH}"
        )));
    }
    Ok((ird, ord))
}

async fn respond_inner(
    stream: &mut dyn ByteStream,
    params: &ConnectParams,
) -> Result<Agreed, ConnectionError> {
    let (fixed, private) = read_frame(stream, Kind::Request).await?;
    if fixed.reject {
        return Err(ConnectionError::PeerMisbehaved("an MPA request with the reject bit".into()));
    }
    if !(1..=2).contains(&fixed.revision) {
        return Err(ConnectionError::Incompatible(format!("MPA revision {}", fixed.revision)));
    }
    if fixed.markers {
        send_reject(stream, &fixed).await?;
        stream.shutdown();
        return Err(ConnectionError::Incompatible("it wants MPA markers".into()));
    }
    let control = if fixed.enhanced { Control::decode(&private) } else { None };
    let upper = private.get(if control.is_some() { mpa::CONTROL_BYTES } else { 0 }..).unwrap_or_default();
    let crc = params.crc || fixed.crc;
    let (ird, ord, answer) = match control {
        Some(c) => answer(params, c),
        None => (params.ird.min(MAX_DEPTH), params.ord.min(MAX_DEPTH), None),
    };
    nothing_more(stream).await?;
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
    Ok(Agreed { ird, ord, private: upper.to_vec(), crc, responder: true, rtr_send })
}

/// The responder's depths and control words for a request with the control words `c` (RFC 6581 sections 4 and 9).
fn answer(params: &ConnectParams, c: Control) -> (u16, u16, Option<Control>) {
    let mut ird = params.ird.min(MAX_DEPTH);
    let mut ord = params.ord.min(MAX_DEPTH);
    let mut reply = Control { peer_to_peer: c.peer_to_peer, ..Control::default() };
    if c.peer_to_peer {
        // An empty Write costs the least here, an empty Send the most; with no offer we propose the Write.
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

/// A Terminate in an FPDU of its own, for an error that start-up finds.
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

/// Reads a frame, and not a byte more.
async fn read_frame(stream: &mut dyn ByteStream, kind: Kind) -> Result<(Fixed, Vec<u8>), ConnectionError> {
    let mut fixed = [0; mpa::FIXED_BYTES];
    read_exact(stream, &mut fixed).await?;
    let fixed = Fixed::decode(&fixed, kind).map_err(|e| ConnectionError::PeerMisbehaved(e.to_string()))?;
    let mut private = vec![0; fixed.private_len];
    read_exact(stream, &mut private).await?;
    Ok((fixed, private))
}

/// Checks that the initiator has sent nothing behind its request: it must wait for the reply, and bytes that are here
/// already would be taken for FPDUs it sent after it.
async fn nothing_more(stream: &mut dyn ByteStream) -> Result<(), ConnectionError> {
    let mut byte = [0];
    poll_fn(|cx| {
        Poll::Ready(match stream.poll_read(cx, &mut [IoSliceMut::new(&mut byte)]) {
            Poll::Pending => Ok(()),
            Poll::Ready(Ok(0)) => Err(ConnectionError::Closed),
            Poll::Ready(Ok(_)) => {
                Err(ConnectionError::PeerMisbehaved("bytes behind its MPA request before our reply".into()))
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
            return Err(ConnectionError::Io("the peer closed the connection during MPA start-up".into()));
        }
        buf = &mut buf[n..];
    }
    Ok(())
}

/// Waits for the peer to close the connection; what it sends is dropped.
async fn until_closed(stream: &mut dyn ByteStream) {
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
    Ok(())
}
