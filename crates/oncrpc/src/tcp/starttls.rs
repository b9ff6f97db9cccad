//! The transition of a connection to TLS (RFC 9289), at both ends.
//!
//! A client asks with a NULL call that has the credential AUTH_TLS. If the server's answer has the verifier `STARTTLS`, the
//! handshake follows on the same connection, and then records as without TLS.

use std::{
    collections::HashMap,
    fmt,
    future::poll_fn,
    io::{self, IoSlice, IoSliceMut},
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker, ready},
};

use futures::task::AtomicWaker;
use millrace_admission::ClientAddr;
use millrace_runtime::{ByteStream, Sleep, sync::Mutex};
use millrace_tls::{
    ClientConfig, HANDSHAKE_BYTES, Handshaken, PeerCertificate, PeerName, SESSION_BYTES, ServerConfig,
    Session, TlsError, TlsStream,
};
use millrace_xdr::{Decoder, Encoder};
use slab::Slab;

use super::channel::Channel;
use crate::{
    MSG_CALL, RPC_VERSION, Stages,
    message::{AUTH_TLS, offers_tls, starttls},
    serving::ServerConnection,
};

/// Handshakes in progress of one client, and of all clients. They cost processor time and memory before the client is known;
/// further ones wait.
const MAX_OF_CLIENT: usize = 8;
const MAX_OF_ALL: usize = 64;

/// TLS for the connections of a server: its certificate, which may be replaced, the handshakes in progress, and the sessions
/// whose clients have proved a certificate.
#[derive(Default)]
pub struct Upgrades(Mutex<Table>);

#[derive(Default)]
struct Table {
    config: Option<ServerConfig>,
    in_progress: HashMap<ClientAddr, usize>,
    waiting: Vec<Waker>,
    proved: Slab<Arc<Proved>>,
}

/// A session whose client has proved a certificate.
struct Proved {
    certificate: Arc<PeerCertificate>,
    /// Why the certificate is not trusted any more.
    refused: OnceLock<TlsError>,
    /// That of the connection.
    waker: AtomicWaker,
}

impl Proved {
    /// Ends the session if the certificate is not trusted with `config`.
    fn verify(&self, config: Option<&ServerConfig>) {
        let verified = config.map_or(Err(TlsError::UnknownIssuer), |config| config.verify(&self.certificate));
        if let Err(why) = verified
            && self.refused.set(why).is_ok()
        {
            self.waker.wake();
        }
    }
}

impl fmt::Debug for Upgrades {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Upgrades").field(&self.0.lock().config).finish()
    }
}

impl Upgrades {
    /// Replaces the configuration for later handshakes; `None` disables TLS for them. Sessions end whose client has proved a
    /// certificate that is not trusted any more (RFC 9289 section 5.2.1). Returns whether the configuration differs.
    pub fn set(&self, config: Option<ServerConfig>) -> bool {
        let (differs, proved): (_, Vec<_>) = {
            let mut table = self.0.lock();
            let differs = table.config != config;
            table.config.clone_from(&config);
            (differs, table.proved.iter().map(|(_, proved)| Arc::clone(proved)).collect())
        };
        if differs {
            // Without the lock, which handshakes need.
            proved.iter().for_each(|proved| proved.verify(config.as_ref()));
        }
        differs
    }

    /// Adds a session whose client has proved a certificate in a handshake with `config`.
    fn prove(self: &Arc<Self>, certificate: Arc<PeerCertificate>, config: &ServerConfig) -> Trust {
        let session = Proved { certificate, refused: OnceLock::new(), waker: AtomicWaker::new() };
        let session = Arc::new(session);
        let (key, present) = {
            let mut table = self.0.lock();
            (table.proved.insert(Arc::clone(&session)), table.config.clone())
        };
        if present.as_ref() != Some(config) {
            session.verify(present.as_ref()); // Replaced in the handshake.
        }
        Trust { upgrades: Arc::clone(self), key, session }
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.0.lock().config.is_some()
    }

    /// Admits another handshake of `client`, when there are less than the limits.
    fn poll_admit(self: &Arc<Self>, cx: &mut Context<'_>, client: ClientAddr) -> Poll<Admitted> {
        let mut table = self.0.lock();
        let all: usize = table.in_progress.values().sum();
        let of_client = table.in_progress.get(&client).copied().unwrap_or_default();
        if all >= MAX_OF_ALL || of_client >= MAX_OF_CLIENT {
            if !table.waiting.iter().any(|waiting| waiting.will_wake(cx.waker())) {
                table.waiting.push(cx.waker().clone());
            }
            return Poll::Pending;
        }
        table.in_progress.insert(client, of_client + 1);
        Poll::Ready(Admitted { upgrades: Arc::clone(self), client })
    }
}

/// A handshake in progress.
struct Admitted {
    upgrades: Arc<Upgrades>,
    client: ClientAddr,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let waiting = {
            let mut table = self.upgrades.0.lock();
            match table.in_progress.get_mut(&self.client) {
                Some(n) if *n > 1 => *n -= 1,
                _ => drop(table.in_progress.remove(&self.client)),
            }
            std::mem::take(&mut table.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// The trust in the certificate of a session's client.
pub(super) struct Trust {
    upgrades: Arc<Upgrades>,
    /// Key of the session.
    key: usize,
    session: Arc<Proved>,
}

impl Trust {
    pub(super) fn certificate(&self) -> &Arc<PeerCertificate> {
        &self.session.certificate
    }

    /// Ready when the session must end, with the reason.
    pub(super) fn poll_refused(&self, cx: &mut Context<'_>) -> Poll<&TlsError> {
        self.session.waker.register(cx.waker());
        self.session.refused.get().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Trust {
    fn drop(&mut self) {
        self.upgrades.0.lock().proved.remove(self.key);
    }
}

/// The transition of a server's connection, from the probe to the end of the handshake.
pub(super) struct Upgrade {
    /// Transaction id of the probe.
    xid: u32,
    /// Ends it.
    deadline: Sleep,
    admitted: Option<Admitted>,
    state: State,
}

enum State {
    /// The answer waits for admission.
    Admission,
    /// The answer waits for the stream.
    Answer,
    Handshake(Handshaken, ServerConfig),
}

impl Upgrade {
    pub(super) fn new(xid: u32, deadline: Sleep) -> Self {
        Self { xid, deadline, admitted: None, state: State::Admission }
    }

    /// Proceeds. Ready at the end of the handshake, with the trust in the client's certificate if it has proved one.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        channel: &mut Channel,
        core: &mut ServerConnection<Stages>,
        upgrades: &Arc<Upgrades>,
    ) -> Poll<io::Result<Option<Trust>>> {
        if self.deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long")));
        }
        loop {
            match &self.state {
                State::Admission => {
                    if self.admitted.is_none() {
                        self.admitted = Some(ready!(upgrades.poll_admit(cx, core.account.client())));
                    }
                    ready!(core.account.poll_take(cx, HANDSHAKE_BYTES));
                    let mut answer =
                        Encoder::try_new(&core.arena, 64).map_err(|e| io::Error::other(e.to_string()))?;
                    starttls(&mut answer, self.xid);
                    let answer = answer.finish().map_err(|e| io::Error::other(e.to_string()))?;
                    channel.writer.push(&answer, None).map_err(io::Error::other)?;
                    self.state = State::Answer;
                }
                State::Answer => {
                    ready!(channel.poll_flush(cx))?;
                    let Some(config) = upgrades.0.lock().config.clone() else {
                        return Poll::Ready(Err(io::Error::other("the configuration has no TLS any more")));
                    };
                    let session = Session::server(&config)?;
                    let mut handshaken = Handshaken::default();
                    channel.upgrade(|stream| {
                        let stream = TlsStream::new(stream, session);
                        handshaken = stream.handshaken();
                        Box::new(stream)
                    });
                    self.state = State::Handshake(handshaken, config);
                }
                State::Handshake(handshaken, config) => {
                    ready!(channel.poll_handshake(cx))?;
                    let certificate = handshaken.client_certificate().cloned();
                    // The rest is for the session: the peer decides how much of it is used, until the connection ends.
                    let kept = SESSION_BYTES + certificate.as_ref().map_or(0, |c| c.bytes());
                    core.account.replace(HANDSHAKE_BYTES, kept);
                    let trust = certificate.map(|certificate| upgrades.prove(certificate, config));
                    return Poll::Ready(Ok(trust));
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
    let session = Session::client(config, name).map_err(StartTlsError::Handshake)?;
    let mut stream = TlsStream::new(stream, session);
    let failed = |e: io::Error| match TlsError::of(&e) {
        Some(why) => StartTlsError::Handshake(why.clone()),
        None => StartTlsError::Interrupted(e),
    };
    poll_fn(|cx| stream.poll_handshake(cx)).await.map_err(failed)?;
    poll_fn(|cx| stream.poll_flush(cx)).await.map_err(failed)?;
    Ok(Box::new(stream))
}
