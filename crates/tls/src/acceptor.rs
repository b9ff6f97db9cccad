//! TLS for the connections of a server.

use std::{
    collections::HashMap,
    fmt,
    future::poll_fn,
    io,
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker, ready},
};

use futures::task::AtomicWaker;
use millrace_admission::{Account, ClientAddr};
use millrace_runtime::{ByteStream, sync::Mutex};
use slab::Slab;

use crate::{
    ConfigError, HANDSHAKE_BYTES, PeerCertificate, Protocol, SESSION_BYTES, ServerConfig, Session, TlsError,
    TlsStream, TransportSecurity,
};

/// Handshakes in progress of one client, and of all clients. They cost processor time and memory before the client is known;
/// further ones wait.
const MAX_OF_CLIENT: usize = 8;
const MAX_OF_ALL: usize = 64;

/// TLS for the connections of a server: its certificate, which may be replaced, the handshakes in progress, and the open
/// sessions. All protocols of a server share it.
#[derive(Default)]
pub struct TlsAcceptor(Mutex<Table>);

#[derive(Default)]
struct Table {
    config: Option<ServerConfig>,
    in_progress: HashMap<ClientAddr, usize>,
    waiting: Vec<Waker>,
    proved: Slab<Arc<Proved>>,
    stats: TlsStats,
}

/// Counts of a server's sessions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TlsStats {
    /// Open sessions whose client has no certificate.
    pub open_tls: u64,
    /// Open sessions whose client has proved a certificate.
    pub open_mtls: u64,
    /// Handshakes that failed.
    pub failed: u64,
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

impl fmt::Debug for TlsAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TlsAcceptor").field(&self.0.lock().config).finish()
    }
}

impl TlsAcceptor {
    /// Replaces the configuration for later handshakes; `None` disables TLS for them. Sessions end whose client has proved a
    /// certificate that is not trusted any more (RFC 9289 section 5.2.1). Returns whether the configuration differs.
    pub fn set(&self, config: Option<ServerConfig>) -> bool {
        self.replace(config, |_| true)
    }

    /// Reads the files of the configuration again if they have changed, as [`Self::set`] of them. Blocks. Returns whether they
    /// have.
    ///
    /// # Errors
    /// [`ConfigError`]; the configuration stays as it was.
    pub fn renew(&self) -> Result<bool, ConfigError> {
        let old = self.0.lock().config.clone();
        let Some(new) = old.as_ref().map(ServerConfig::renewed).transpose()?.flatten() else {
            return Ok(false);
        };
        // Not over a configuration that was set meanwhile, perhaps with other files.
        Ok(self.replace(Some(new), |current| *current == old))
    }

    /// Replaces the configuration if `permits` the replacement of the current one. Returns whether their content differs.
    fn replace(
        &self,
        new: Option<ServerConfig>,
        permits: impl FnOnce(&Option<ServerConfig>) -> bool,
    ) -> bool {
        let proved: Vec<_> = {
            let mut table = self.0.lock();
            if !permits(&table.config) {
                return false;
            }
            let differs = table.config != new;
            // Also with the same content: the files may be others.
            table.config.clone_from(&new);
            if !differs {
                return false;
            }
            table.proved.iter().map(|(_, proved)| Arc::clone(proved)).collect()
        };
        // Without the lock, which handshakes need.
        proved.iter().for_each(|proved| proved.verify(new.as_ref()));
        true
    }

    /// Whether there is a configuration.
    pub fn is_enabled(&self) -> bool {
        self.0.lock().config.is_some()
    }

    /// The counts.
    pub fn stats(&self) -> TlsStats {
        self.0.lock().stats
    }

    /// Admits another handshake of the client of `account` when there are fewer than the limits, and charges its memory
    /// ([`HANDSHAKE_BYTES`]).
    pub fn poll_admit(self: &Arc<Self>, cx: &mut Context<'_>, account: &mut Account) -> Poll<Admitted> {
        let admitted = ready!(self.poll_turn(cx, account.client()));
        // Another handshake may take the turn while this one waits for memory.
        ready!(account.poll_take(cx, HANDSHAKE_BYTES));
        Poll::Ready(admitted)
    }

    fn poll_turn(self: &Arc<Self>, cx: &mut Context<'_>, client: ClientAddr) -> Poll<Admitted> {
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
        Poll::Ready(Admitted { acceptor: Arc::clone(self), client })
    }

    /// Accepts a session on `stream`, whose first bytes are those of a handshake, for one of `protocols`. The charge for its
    /// memory remains in `account`, whose eviction ends the handshake.
    ///
    /// # Errors
    /// Those of the stream, and [`TlsError`].
    pub async fn accept(
        self: &Arc<Self>,
        stream: Box<dyn ByteStream>,
        protocols: &[Protocol],
        account: &mut Account,
    ) -> io::Result<Accepted> {
        let evicted = || Err(io::Error::new(io::ErrorKind::ConnectionAborted, "too many connections"));
        let admitted = poll_fn(|cx| match account.poll_evicted(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => self.poll_admit(cx, account).map(Some),
        });
        let Some(admitted) = admitted.await else { return evicted() };
        let mut accepting = admitted.begin(stream, protocols)?;
        poll_fn(|cx| match account.poll_evicted(cx) {
            Poll::Ready(()) => Poll::Ready(evicted()),
            Poll::Pending => accepting.poll(cx, account),
        })
        .await
    }
}

/// The right to perform a handshake.
pub struct Admitted {
    acceptor: Arc<TlsAcceptor>,
    client: ClientAddr,
}

impl Admitted {
    /// Begins a handshake on `stream` for one of `protocols`.
    ///
    /// # Errors
    /// There is no configuration any more, or [`TlsError::Local`].
    pub fn begin(self, stream: Box<dyn ByteStream>, protocols: &[Protocol]) -> io::Result<Accepting> {
        let Some(config) = self.acceptor.0.lock().config.clone() else {
            return Err(io::Error::other("the configuration has no TLS"));
        };
        let session = Session::server(&config.for_protocols(protocols));
        let mut accepting = Accepting { stream: None, config, admitted: self, failed: true };
        accepting.stream = Some(TlsStream::new(stream, session?));
        Ok(accepting)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let waiting = {
            let mut table = self.acceptor.0.lock();
            match table.in_progress.get_mut(&self.client) {
                Some(n) if *n > 1 => *n -= 1,
                _ => drop(table.in_progress.remove(&self.client)),
            }
            std::mem::take(&mut table.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// A handshake in progress.
pub struct Accepting {
    stream: Option<TlsStream<Box<dyn ByteStream>>>,
    config: ServerConfig,
    admitted: Admitted,
    /// Whether it has failed unless it succeeds.
    failed: bool,
}

/// A stream after the handshake.
pub struct Accepted {
    /// The stream.
    pub stream: Box<dyn ByteStream>,
    /// The session, which is open until it is dropped.
    pub session: ServerSession,
    /// The protocol that the client has asked for, if it has asked for one.
    pub protocol: Option<Protocol>,
}

impl Accepting {
    /// Proceeds. At the end `account` is charged for the session ([`SESSION_BYTES`]) instead of the handshake: the peer decides
    /// how much of it is used, until the connection ends.
    ///
    /// # Errors
    /// Those of the stream, and [`TlsError`].
    pub fn poll(&mut self, cx: &mut Context<'_>, account: &mut Account) -> Poll<io::Result<Accepted>> {
        if let Some(stream) = &mut self.stream {
            ready!(stream.poll_handshake(cx))?;
        }
        let Some(stream) = self.stream.take() else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        self.failed = false;
        let certificate = stream.client_certificate().cloned();
        let kept = SESSION_BYTES + certificate.as_ref().map_or(0, |c| c.bytes());
        account.replace(HANDSHAKE_BYTES, kept);
        let protocol = stream.protocol();
        let session = ServerSession::new(&self.admitted.acceptor, certificate, &self.config);
        Poll::Ready(Ok(Accepted { stream: Box::new(stream), session, protocol }))
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        if self.failed {
            self.admitted.acceptor.0.lock().stats.failed += 1;
        }
    }
}

/// A session of a server until the end of its connection: its client's certificate, and the trust in it.
pub struct ServerSession {
    acceptor: Arc<TlsAcceptor>,
    /// With its key, if the client has proved a certificate.
    proved: Option<(usize, Arc<Proved>)>,
}

impl ServerSession {
    /// A session after a handshake with `config`.
    fn new(
        acceptor: &Arc<TlsAcceptor>,
        certificate: Option<Arc<PeerCertificate>>,
        config: &ServerConfig,
    ) -> Self {
        let proved = certificate.map(|certificate| {
            Arc::new(Proved { certificate, refused: OnceLock::new(), waker: AtomicWaker::new() })
        });
        let mut table = acceptor.0.lock();
        let open = match &proved {
            Some(_) => &mut table.stats.open_mtls,
            None => &mut table.stats.open_tls,
        };
        *open += 1;
        let proved = proved.map(|proved| (table.proved.insert(Arc::clone(&proved)), proved));
        let present = proved.as_ref().map(|_| table.config.clone());
        drop(table);
        if let (Some((_, proved)), Some(present)) = (&proved, present)
            && present.as_ref() != Some(config)
        {
            proved.verify(present.as_ref()); // Replaced in the handshake.
        }
        Self { acceptor: Arc::clone(acceptor), proved }
    }

    /// The protection of the connection.
    pub fn security(&self) -> TransportSecurity {
        self.proved.as_ref().map_or(TransportSecurity::Tls, |_| TransportSecurity::Mtls)
    }

    /// The certificate that the client has proved.
    pub fn certificate(&self) -> Option<&Arc<PeerCertificate>> {
        self.proved.as_ref().map(|(_, proved)| &proved.certificate)
    }

    /// Ready when the session must end because its client's certificate is not trusted any more, with the reason.
    pub fn poll_refused(&self, cx: &mut Context<'_>) -> Poll<&TlsError> {
        let Some((_, proved)) = &self.proved else { return Poll::Pending };
        proved.waker.register(cx.waker());
        proved.refused.get().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for ServerSession {
    fn drop(&mut self) {
        let mut table = self.acceptor.0.lock();
        match &self.proved {
            Some((key, _)) => {
                table.stats.open_mtls -= 1;
                drop(table.proved.remove(*key));
            }
            None => table.stats.open_tls -= 1,
        }
    }
}
