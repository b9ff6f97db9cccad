//! The transition of a connection to TLS (RFC 9289), at both ends.
//!
//! A client asks with a NULL call that has the credential AUTH_TLS. If the server's answer has the verifier `STARTTLS`, the
//! handshake follows on the same connection, and then records as without TLS.

use std::{
    future::poll_fn,
    io::{self, IoSlice, IoSliceMut},
    sync::Arc,
    task::{Context, Poll, ready},
};

use millrace_runtime::{ByteStream, Sleep};
use millrace_tls::{
    Accepted, Accepting, Admitted, ClientConfig, PeerName, Protocol, ServerSession, TlsAcceptor, TlsError,
    TlsStream,
};
use millrace_xdr::{Decoder, Encoder};

use super::channel::Channel;
use crate::{
    MSG_CALL, RPC_VERSION, Stages,
    message::{AUTH_TLS, offers_tls, starttls},
    serving::ServerConnection,
};

/// The transition of a server's connection, from the probe to the end of the handshake.
pub(super) struct Upgrade {
    /// Transaction id of the probe.
    xid: u32,
    /// Ends it.
    deadline: Sleep,
    state: State,
}

enum State {
    /// The answer waits for admission.
    Admission,
    /// The answer waits for the stream.
    Answer(Option<Admitted>),
    Handshake(Box<Accepting>),
}

impl Upgrade {
    pub(super) fn new(xid: u32, deadline: Sleep) -> Self {
        Self { xid, deadline, state: State::Admission }
    }

    /// Proceeds. Ready at the end of the handshake, with the session of the stream.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        channel: &mut Channel,
        core: &mut ServerConnection<Stages>,
        tls: &Arc<TlsAcceptor>,
    ) -> Poll<io::Result<ServerSession>> {
        if self.deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long")));
        }
        loop {
            match &mut self.state {
                State::Admission => {
                    let admitted = ready!(tls.poll_admit(cx, &mut core.account));
                    let mut answer =
                        Encoder::try_new(&core.arena, 64).map_err(|e| io::Error::other(e.to_string()))?;
                    starttls(&mut answer, self.xid);
                    let answer = answer.finish().map_err(|e| io::Error::other(e.to_string()))?;
                    channel.writer.push(&answer, None).map_err(io::Error::other)?;
                    self.state = State::Answer(Some(admitted));
                }
                State::Answer(admitted) => {
                    ready!(channel.poll_flush(cx))?;
                    let Some(admitted) = admitted.take() else {
                        return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
                    };
                    let accepting = admitted.begin(channel.take_stream(), &[Protocol::Rpc])?;
                    self.state = State::Handshake(Box::new(accepting));
                }
                State::Handshake(accepting) => {
                    let Accepted { stream, session, .. } = ready!(accepting.poll(cx, &mut core.account))?;
                    channel.set_stream(stream);
                    return Poll::Ready(Ok(session));
                }
            }
        }
    }
}

/// The reason why a client's connection has no TLS.
#[derive(Debug, thiserror::Error)]
pub enum StartTlsError {
    /// The connection was lost before the answer to the probe.
    #[error("the connection was lost before the handshake of TLS: {0}")]
    Lost(io::Error),
    /// The server does not offer TLS, or a host in between has removed the offer.
    #[error("the server does not offer TLS")]
    NotOffered,
    /// The handshake failed.
    #[error("the handshake of TLS failed: {0}")]
    Handshake(TlsError),
    /// The connection was lost in the handshake.
    #[error("the connection was lost in the handshake of TLS: {0}")]
    Interrupted(io::Error),
}

impl From<io::Error> for StartTlsError {
    /// The reason why [`TlsStream::connect`] failed.
    fn from(e: io::Error) -> Self {
        match TlsError::of(&e) {
            Some(why) => Self::Handshake(why.clone()),
            None => Self::Interrupted(e),
        }
    }
}

/// Longest answer to a probe: a header with the largest verifier.
const MAX_ANSWER: usize = 512;

/// Asks the server at the other end of `stream` for TLS with a NULL call of `program`, a number and a version, and performs the
/// handshake. Nothing may have been sent on `stream`. The server's certificate must be for `name`.
///
/// # Errors
/// [`StartTlsError`]; the stream is closed, since it must not be used without TLS.
pub async fn start_tls(
    mut stream: Box<dyn ByteStream>,
    program: (u32, u32),
    config: &ClientConfig,
    name: &PeerName,
) -> Result<Box<dyn ByteStream>, StartTlsError> {
    // Of the only call on this connection so far.
    const XID: u32 = 1;
    let words = [(1 << 31) | 40, XID, MSG_CALL, RPC_VERSION, program.0, program.1, 0, AUTH_TLS, 0, 0, 0];
    let probe = words.map(u32::to_be_bytes);
    let mut unsent = probe.as_flattened();
    let lost = StartTlsError::Lost;
    while !unsent.is_empty() {
        let n = poll_fn(|cx| stream.poll_write(cx, &[IoSlice::new(unsent)])).await.map_err(lost)?;
        unsent = unsent.get(n.max(1)..).unwrap_or_default();
    }
    let mut answer = [0; 4 + MAX_ANSWER];
    // A server sends nothing between its answer and the client's first message of the handshake.
    let (mut have, mut want) = (0, 4);
    while have < want {
        let mut space = [IoSliceMut::new(&mut answer[have..want])];
        let n = poll_fn(|cx| stream.poll_read(cx, &mut space)).await.map_err(lost)?;
        if n == 0 {
            return Err(lost(io::ErrorKind::UnexpectedEof.into()));
        }
        have += n;
        if have == 4 {
            let mark = u32::from_be_bytes([answer[0], answer[1], answer[2], answer[3]]);
            let len = (mark & !(1 << 31)) as usize;
            if mark >> 31 == 0 || len > MAX_ANSWER {
                return Err(StartTlsError::NotOffered);
            }
            want += len;
        }
    }
    if !offers_tls(&mut Decoder::from_bytes(&answer[4..want]), XID) {
        return Err(StartTlsError::NotOffered);
    }
    Ok(Box::new(TlsStream::connect(stream, config, name).await?))
}
