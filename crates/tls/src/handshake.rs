//! The handshake, by rustls.

use std::sync::Arc;

use millrace_buffer::Stash;
use rustls::{
    ExtractedSecrets, HandshakeKind,
    client::ClientConnectionData,
    client::UnbufferedClientConnection,
    kernel::KernelConnection,
    server::ServerConnectionData,
    server::UnbufferedServerConnection,
    unbuffered::{ConnectionState, EncodeError, InsufficientSizeError, UnbufferedStatus},
};

use crate::{
    ClientConfig, PeerCertificate, PeerName, Protocol, ServerConfig, TlsError, record::Key,
    record::record_len,
};

/// Bytes that a peer may send until the end of the handshake: the longest certificate message, 64 KiB, and the others.
pub(crate) const MAX_RECEIVED: usize = 128 << 10;

/// Records that a peer may send until the end of the handshake, each of which costs memory: a message of 64 KiB in
/// fragments of 512 bytes, the smallest that can be negotiated (RFC 6066 section 4), and as many others.
const MAX_RECORDS: usize = 256;

/// A handshake in progress.
pub(crate) struct Handshake {
    role: Role,
    /// Whether the peer must name the protocol.
    must_name: bool,
    /// Bytes at the start of the received ones that are processed and must remain, because a message is incomplete.
    fed: usize,
    /// Bytes and records that are processed.
    bytes: usize,
    records: usize,
}

enum Role {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// The secrets of a session, from which its next keys follow.
pub(crate) enum Secrets {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

/// The result of a handshake.
pub(crate) struct Established {
    pub(crate) seal: Key,
    pub(crate) open: Key,
    pub(crate) secrets: Secrets,
    /// What the client has proved to this server.
    pub(crate) client_certificate: Option<Arc<PeerCertificate>>,
    /// The protocol on which the ends have agreed.
    pub(crate) protocol: Option<Protocol>,
}

enum Step {
    /// There may be more to do with the same bytes.
    Again,
    /// More bytes are needed, or the handshake is complete.
    Wait,
}

impl Handshake {
    pub(crate) fn client(config: &ClientConfig, name: &PeerName) -> Result<Self, TlsError> {
        let client = UnbufferedClientConnection::new(Arc::clone(&config.0), name.0.clone())?;
        let must_name = Protocol::must_be_named(&config.0.alpn_protocols);
        Ok(Self { role: Role::Client(client), must_name, fed: 0, bytes: 0, records: 0 })
    }

    pub(crate) fn server(config: &ServerConfig) -> Result<Self, TlsError> {
        let server = UnbufferedServerConnection::new(Arc::clone(&config.config))?;
        let must_name = Protocol::must_be_named(&config.config.alpn_protocols);
        Ok(Self { role: Role::Server(server), must_name, fed: 0, bytes: 0, records: 0 })
    }

    pub(crate) fn is_client(&self) -> bool {
        matches!(self.role, Role::Client(_))
    }

    /// Whether a step will encode a message.
    fn wants_write(&self) -> bool {
        match &self.role {
            Role::Client(c) => c.wants_write(),
            Role::Server(s) => s.wants_write(),
        }
    }

    fn is_complete(&self) -> bool {
        let (handshaking, kind) = match &self.role {
            Role::Client(c) => (c.is_handshaking(), c.handshake_kind()),
            Role::Server(s) => (s.is_handshaking(), s.handshake_kind()),
        };
        !handshaking && kind.is_some_and(|kind| kind != HandshakeKind::Resumed)
    }

    /// Processes the complete records of `incoming` up to the end of the handshake. Returns whether it is complete. After an
    /// error, `out` has the alert.
    pub(crate) fn process(&mut self, incoming: &mut Stash, out: &mut Stash) -> Result<bool, TlsError> {
        loop {
            match self.step(incoming, out) {
                Ok(Step::Again) => {}
                Ok(Step::Wait) if self.is_complete() && self.fed > 0 => {
                    return Err(TlsError::misbehaved("an incomplete message after the handshake"));
                }
                Ok(Step::Wait) if self.is_complete() => return Ok(true),
                Ok(Step::Wait) => {
                    // One record at a time: those after the handshake are not for rustls.
                    match record_len(&incoming.bytes()[self.fed..])? {
                        Some(len) if self.fed + len <= incoming.len() => {
                            self.fed += len;
                            self.bytes += len;
                            self.records += 1;
                        }
                        _ => return Ok(false),
                    }
                    if self.records > MAX_RECORDS || self.bytes > MAX_RECEIVED {
                        return Err(TlsError::misbehaved("more messages than a handshake has"));
                    }
                }
                Err(e) => {
                    // What waits before the alert, and the alert. A further step would process the same bytes again.
                    while self.wants_write() && matches!(self.step(incoming, out), Ok(Step::Again)) {}
                    return Err(e);
                }
            }
        }
    }

    fn step(&mut self, incoming: &mut Stash, out: &mut Stash) -> Result<Step, TlsError> {
        let bytes = &mut incoming.bytes_mut()[..self.fed];
        let (discard, step) = match &mut self.role {
            Role::Client(c) => one_step(c.process_tls_records(bytes), out),
            Role::Server(s) => one_step(s.process_tls_records(bytes), out),
        };
        let discard = discard.min(self.fed);
        incoming.consume(discard);
        self.fed -= discard;
        step
    }

    /// The keys, after the handshake is complete.
    pub(crate) fn finish(self) -> Result<Established, TlsError> {
        let (client_chain, protocol) = match &self.role {
            Role::Client(c) => (None, c.alpn_protocol()),
            Role::Server(s) => (s.peer_certificates(), s.alpn_protocol()),
        };
        let protocol = protocol.and_then(Protocol::named);
        if self.must_name && protocol.is_none() {
            return Err(TlsError::Protocol);
        }
        let client_certificate = client_chain.map(PeerCertificate::new).transpose()?.map(Arc::new);
        let (ExtractedSecrets { tx, rx }, secrets) = match self.role {
            Role::Client(c) => {
                let (keys, secrets) = c.dangerous_into_kernel_connection()?;
                (keys, Secrets::Client(secrets))
            }
            Role::Server(s) => {
                let (keys, secrets) = s.dangerous_into_kernel_connection()?;
                (keys, Secrets::Server(secrets))
            }
        };
        Ok(Established { seal: Key::new(tx)?, open: Key::new(rx)?, secrets, client_certificate, protocol })
    }
}

impl Secrets {
    /// The next key for sending.
    pub(crate) fn next_seal(&mut self) -> Result<Key, TlsError> {
        Key::new(match self {
            Self::Client(s) => s.update_tx_secret(),
            Self::Server(s) => s.update_tx_secret(),
        }?)
    }

    /// The next key for receiving.
    pub(crate) fn next_open(&mut self) -> Result<Key, TlsError> {
        Key::new(match self {
            Self::Client(s) => s.update_rx_secret(),
            Self::Server(s) => s.update_rx_secret(),
        }?)
    }
}

/// Performs one step, which may append to `out`. Returns the number of processed bytes.
fn one_step<D>(status: UnbufferedStatus<'_, '_, D>, out: &mut Stash) -> (usize, Result<Step, TlsError>) {
    let UnbufferedStatus { discard, state } = status;
    let step = match state {
        Err(e) => Err(e.into()),
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            let mut room = 0;
            loop {
                match data.encode(out.room(room)) {
                    Ok(n) => {
                        out.commit(n);
                        break Ok(Step::Again);
                    }
                    Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size }))
                        if required_size > room =>
                    {
                        room = required_size;
                    }
                    Err(e) => break Err(TlsError::Local(e.to_string())),
                }
            }
        }
        // What was encoded is in `out`, which the session sends.
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Ok(Step::Again)
        }
        Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => Ok(Step::Wait),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
            Err(TlsError::misbehaved("the end of the session in the handshake"))
        }
        Ok(_) => Err(TlsError::misbehaved("data before the end of the handshake")),
    };
    (discard, step)
}
