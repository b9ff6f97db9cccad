//! Connecting to a portal and logging in.

use std::{io, net::SocketAddr};

use millrace_buffer::{Arena, ArenaConfig};
use millrace_iscsi::stream::{Input, Output, Segment};
use millrace_iscsi::{
    chap::Mutual,
    login::{
        Established, InitiatorConfig as LoginConfig, InitiatorLogin, InitiatorStep, LoginError,
        MAX_LOGIN_DATA, Status,
    },
    name::{IscsiName, TargetAddress},
    negotiation::DigestPolicy,
    pdu::{Isid, PduReader},
    session::{InitiatorConfig, InitiatorSession},
};
use millrace_rdma::{ConnectParams, ConnectionError, QueuePair};
use millrace_rdma_providers::{ProviderChoice, connect_iwarp};
use millrace_runtime::{BoxFuture, ByteStream, LocalPort, RuntimeRef, resolve, tokio_rt::TcpByteStream};
use millrace_tls::{Protocol, Tls, TlsError, TlsStream};

use crate::iser::{LoggedIn, connect_params, log_in};
use crate::{
    Error, Options, Transport, Url,
    connection::{Connection, IserConnection, TcpConnection},
    remedy::Wanted,
};

/// The connection identifier: sessions have one connection.
const CID: u16 = 1;
/// The first command number of a session.
const CMD_SN: u32 = 1;

/// The parameters of all connections of a device or of a discovery.
pub(crate) struct Dialer {
    pub(crate) rt: RuntimeRef,
    options: Options,
    address: TargetAddress,
    transport: Transport,
    tls: Tls,
    target: Option<IscsiName>,
    chap: Option<Mutual>,
    /// Memory of connections with iSER.
    arena: Arena,
    /// A login with the same ISID ends the previous session with its tasks (RFC 7143 section 6.3.5).
    isid: Isid,
}

/// The result of one login.
enum Step {
    Established(Connection),
    Redirect(TargetAddress),
}

/// The stream of a connection with its buffers.
struct Link {
    stream: Box<dyn ByteStream>,
    input: Input,
    output: Output,
}

impl Dialer {
    /// A dialer for `target` at the portal of `url`; for a discovery session if `target` is `None`.
    ///
    /// # Errors
    /// The URL has a user without a secret, and the options have no credentials.
    pub(crate) fn new(url: &Url, target: Option<IscsiName>, options: &Options) -> Result<Self, Error> {
        let of_url = || url.credentials().map(|c| Mutual::new(c, None)).transpose();
        let chap = match &options.chap {
            Some(chap) => Some(chap.clone()),
            None => of_url().map_err(|e| Error::InvalidInput(e.to_string()))?,
        };
        if let (None, Some(user)) = (&chap, &url.user) {
            return Err(Error::InvalidInput(format!("the CHAP user {user} has no secret; give one")));
        }
        if url.transport == Transport::Iser && options.digests == DigestPolicy::Require {
            let what = "iSER has no digests; connect without them, or with iscsi://";
            return Err(Error::InvalidInput(what.into()));
        }
        let rt = options.runtime();
        let mut random = [0; 5];
        rt.fill_random(&mut random);
        let [a, b, c, d, e] = random;
        // The type "random" (RFC 7143 section 11.12.5).
        let isid = Isid([0x80, a, b, c, d, e]);
        let arena = Arena::new(ArenaConfig { limit: options.memory, huge_pages: false });
        Ok(Self {
            rt,
            options: options.clone(),
            address: url.address.clone(),
            transport: url.transport,
            tls: url.tls.clone(),
            target,
            chap,
            isid,
            arena,
        })
    }

    /// The portal as text.
    pub(crate) fn portal(&self) -> String {
        TargetAddress { tag: None, ..self.address.clone() }.to_string()
    }

    /// Connects and logs in; follows a limited number of redirections.
    pub(crate) async fn connect(&self) -> Result<Connection, Error> {
        let mut address = self.address.clone();
        for redirects in 0.. {
            let step = match self.attempt(&address, redirects, self.chap.clone()).await {
                // Targets such as tgt have another algorithm with the number of SHA-256.
                Err(Error::Login {
                    error: LoginError::Status(Status::AUTHENTICATION | Status::INITIATOR_ERROR),
                    ..
                }) if self.chap.is_some() => {
                    let chap = self.chap.clone().map(Mutual::with_md5_only);
                    self.attempt(&address, redirects, chap).await
                }
                step => step,
            };
            match step? {
                Step::Established(connection) => return Ok(connection),
                Step::Redirect(to) => {
                    tracing::debug!("{} redirects to {to}", self.portal());
                    address = to;
                }
            }
        }
        Err(Error::Closed) // The login fails after the maximum of redirections.
    }

    async fn attempt(
        &self,
        address: &TargetAddress,
        redirects: u32,
        chap: Option<Mutual>,
    ) -> Result<Step, Error> {
        let portal = TargetAddress { tag: None, ..address.clone() }.to_string();
        let mut random = [0; 33];
        self.rt.fill_random(&mut random);
        let config = LoginConfig {
            initiator: self.options.initiator.clone(),
            target: self.target.clone(),
            isid: self.isid,
            cid: CID,
            cmd_sn: CMD_SN,
            settings: self.options.settings(),
            chap,
            random,
            redirects,
        };
        match self.transport {
            Transport::Tcp => self.log_in(address, portal, config).await,
            Transport::Iser => self.log_in_rdma(address, portal, config).await,
        }
    }

    /// Logs in over TCP.
    async fn log_in(
        &self,
        address: &TargetAddress,
        portal: String,
        config: LoginConfig,
    ) -> Result<Step, Error> {
        let connect = |to| -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
            let (streams, tls, host) = (self.options.streams.clone(), self.tls.clone(), address.host.clone());
            Box::pin(async move {
                let stream = match streams {
                    Some(streams) => streams.connect(LocalPort::Any, to).await?,
                    None => Box::new(TcpByteStream::connect(to).await?),
                };
                if tls.is_used() { protect(&tls, stream, &host, Protocol::Iscsi).await } else { Ok(stream) }
            })
        };
        let stream = self.dial(address, &portal, connect).await?;
        let input = Input::new(PduReader::new(MAX_LOGIN_DATA));
        let mut link = Link { stream, input, output: Output::default() };
        let (mut login, mut pdu) = InitiatorLogin::new(config);
        loop {
            let lost = |reason: String| Error::LoginLost { portal: portal.clone(), reason };
            link.output.push(&pdu.bhs, Segment::Bytes(pdu.data), 0);
            let flushed = std::future::poll_fn(|cx| link.output.poll_flush(cx, &mut *link.stream)).await;
            flushed.map_err(|e| lost(e.to_string()))?;
            let received = link.input.receive(&mut *link.stream).await;
            let (bhs, data) = received.map_err(|e| lost(e.to_string()))?;
            let step = login.receive(&bhs, &data);
            match step.map_err(|error| self.refused(portal.clone(), error))? {
                InitiatorStep::Send(next) => pdu = next,
                InitiatorStep::Established(established) => {
                    return Ok(Step::Established(establish(link, *established)));
                }
                InitiatorStep::Redirect { address, .. } => return Ok(Step::Redirect(address)),
            }
        }
    }

    /// Logs in over RDMA.
    async fn log_in_rdma(
        &self,
        address: &TargetAddress,
        portal: String,
        config: LoginConfig,
    ) -> Result<Step, Error> {
        let (rt, arena, options) = (self.rt.clone(), self.arena.clone(), self.options.clone());
        let connect = |to: SocketAddr| -> BoxFuture<'static, io::Result<Box<dyn QueuePair>>> {
            let (rt, arena, options) = (rt.clone(), arena.clone(), options.clone());
            let (tls, host) = (self.tls.clone(), address.host.clone());
            Box::pin(async move {
                if tls.is_used() {
                    if options.rdma.is_some() || options.provider == ProviderChoice::Verbs {
                        let what =
                            "TLS is not possible on RDMA adapters; use the provider iwarp, or iscsi://";
                        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
                    }
                    let params = connect_params(ConnectParams::default(), true);
                    let secure = async |stream| {
                        protect(&tls, stream, &host, Protocol::Iwarp).await.map_err(Unconnected)
                    };
                    return connect_iwarp(rt, to, params, secure).await.map_err(|Unconnected(e)| e);
                }
                let provider = match options.rdma {
                    Some(provider) => provider,
                    None => options.provider.to_connect(to).map_err(io::Error::other)?.provider,
                };
                let params = connect_params(ConnectParams::default(), provider.can_be_invalidated(to));
                provider.connect(rt, arena, to, params).await.map_err(io::Error::other)
            })
        };
        let qp = self.dial(address, &portal, connect).await?;
        match log_in(qp, self.arena.clone(), config).await {
            Ok(LoggedIn::Established(connection)) => {
                let connection = IserConnection::new(connection, self.arena.clone());
                Ok(Step::Established(Connection::Iser(Box::new(connection))))
            }
            Ok(LoggedIn::Redirect { address, .. }) => Ok(Step::Redirect(address)),
            Err(crate::iser::Error::Login(error)) => Err(self.refused(portal, error)),
            Err(e) => Err(Error::LoginLost { portal, reason: e.to_string() }),
        }
    }

    fn refused(&self, portal: String, error: LoginError) -> Error {
        let Options { initiator, digests, .. } = &self.options;
        let (chap, tls) = (self.chap.as_ref(), self.tls.security());
        let remedy = Wanted { initiator, chap, digests: *digests, tls }.remedy(&error);
        Error::Login { portal, error, remedy }
    }

    /// Connects to the first address of the portal that accepts it.
    async fn dial<T>(
        &self,
        address: &TargetAddress,
        portal: &str,
        connect: impl Fn(SocketAddr) -> BoxFuture<'static, io::Result<T>>,
    ) -> Result<T, Error> {
        let failed = |reason: String, source| Error::Connect { portal: portal.to_owned(), reason, source };
        let addresses = resolve(&*self.rt, &address.host, address.port).await;
        let addresses =
            addresses.map_err(|e| failed(format!("the name cannot be resolved: {e}"), Some(e)))?;
        let (mut reasons, mut last) = (Vec::new(), None);
        for to in addresses {
            match connect(to).await {
                Ok(connected) => return Ok(connected),
                Err(e) => {
                    reasons.push(format!("{to}: {e}"));
                    last = Some(e);
                }
            }
        }
        Err(failed(reasons.join("; "), last))
    }
}

/// The reason why an encrypted connection with iSER was not made.
struct Unconnected(io::Error);

impl From<ConnectionError> for Unconnected {
    fn from(e: ConnectionError) -> Self {
        Self(io::Error::other(e))
    }
}

/// Encrypts the stream of a connection to `host`, before any PDU.
async fn protect(
    tls: &Tls,
    stream: Box<dyn ByteStream>,
    host: &str,
    protocol: Protocol,
) -> io::Result<Box<dyn ByteStream>> {
    let (config, name) = tls.load(host).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
    match TlsStream::connect(stream, &config.for_protocol(protocol), &name).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(e) => {
            let remedy = match TlsError::of(&e) {
                // Of a target that takes the first message for a PDU.
                None | Some(TlsError::Closed | TlsError::Misbehaved(_)) => {
                    "only Millrace with [tls] in its configuration has it for iSCSI; use xprtsec=none with other targets"
                }
                Some(e) => tls.remedy(e),
            };
            let separator = if remedy.is_empty() { "" } else { "; " };
            Err(io::Error::new(e.kind(), format!("the handshake of TLS failed: {e}{separator}{remedy}")))
        }
    }
}

/// The full feature phase of `link`.
fn establish(mut link: Link, established: Established) -> Connection {
    let parameters = established.parameters;
    let (header, data) = (parameters.header_digest, parameters.data_digest);
    link.input.reader.set(parameters.max_receive_data, header, data);
    (link.output.header_digest, link.output.data_digest) = (header, data);
    let session = InitiatorSession::new(InitiatorConfig {
        parameters,
        cid: established.cid,
        cmd_sn: established.cmd_sn,
        max_cmd_sn: established.max_cmd_sn,
        exp_stat_sn: established.stat_sn,
    });
    Connection::Tcp(Box::new(TcpConnection::new(link.stream, link.input, link.output, session)))
}
