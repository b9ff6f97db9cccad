//! Connecting to a portal and logging in.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
};

use futures::channel::oneshot;
use millrace_iscsi::{
    chap::Mutual,
    login::{
        Established, InitiatorConfig as LoginConfig, InitiatorLogin, InitiatorStep, LoginError,
        MAX_LOGIN_DATA, Status,
    },
    name::{IscsiName, TargetAddress},
    pdu::{Isid, PduReader},
    session::{InitiatorConfig, InitiatorSession},
};
use millrace_iscsi_tcp::{Input, Output, Segment};
use millrace_runtime::{ByteStream, LocalPort, RuntimeRef, tokio_rt::TcpByteStream};

use crate::{Error, Options, Url, connection::Connection};

/// The connection identifier: sessions have one connection.
const CID: u16 = 1;
/// The first command number of a session.
const CMD_SN: u32 = 1;

/// What all connections of a device or of a discovery have in common.
pub(crate) struct Dialer {
    pub(crate) rt: RuntimeRef,
    options: Options,
    address: TargetAddress,
    target: Option<IscsiName>,
    chap: Option<Mutual>,
    /// A login with the same ISID ends the previous session with its tasks (RFC 7143 section 6.3.5).
    isid: Isid,
}

/// The result of one login.
enum Step {
    Established(Box<Connection>),
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
        let rt = options.runtime();
        let mut random = [0; 5];
        rt.fill_random(&mut random);
        let [a, b, c, d, e] = random;
        // The type "random" (RFC 7143 section 11.12.5).
        let isid = Isid([0x80, a, b, c, d, e]);
        Ok(Self { rt, options: options.clone(), address: url.address.clone(), target, chap, isid })
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
                Step::Established(connection) => return Ok(*connection),
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
        let stream = self.dial(address, &portal).await?;
        let input = Input::new(PduReader::new(MAX_LOGIN_DATA));
        let mut link = Link { stream, input, output: Output::default() };
        let mut random = [0; 33];
        self.rt.fill_random(&mut random);
        let (mut login, mut pdu) = InitiatorLogin::new(LoginConfig {
            initiator: self.options.initiator.clone(),
            target: self.target.clone(),
            isid: self.isid,
            cid: CID,
            cmd_sn: CMD_SN,
            settings: self.options.settings(),
            chap,
            random,
            redirects,
        });
        loop {
            let lost = |reason: String| Error::Lost { portal: portal.clone(), reason };
            link.output.push(&pdu.bhs, Segment::Bytes(pdu.data), 0);
            let flushed = std::future::poll_fn(|cx| link.output.poll_flush(cx, &mut *link.stream)).await;
            flushed.map_err(|e| lost(e.to_string()))?;
            let received = link.input.receive(&mut *link.stream).await;
            let (bhs, data) = received.map_err(|e| lost(e.to_string()))?;
            let step = login.receive(&bhs, &data);
            match step.map_err(|error| Error::Login { portal: portal.clone(), error })? {
                InitiatorStep::Send(next) => pdu = next,
                InitiatorStep::Established(established) => {
                    return Ok(Step::Established(Box::new(establish(link, *established))));
                }
                InitiatorStep::Redirect { address, .. } => return Ok(Step::Redirect(address)),
            }
        }
    }

    /// Connects to the first address of the portal that accepts it.
    async fn dial(&self, address: &TargetAddress, portal: &str) -> Result<Box<dyn ByteStream>, Error> {
        let failed = |reason: String, source| Error::Connect { portal: portal.to_owned(), reason, source };
        let addresses = resolve(&self.rt, &address.host, address.port).await;
        let addresses = addresses.map_err(|e| failed(format!("the name has no address: {e}"), Some(e)))?;
        let (mut reasons, mut last) = (Vec::new(), None);
        for to in addresses {
            let connected: io::Result<Box<dyn ByteStream>> = match &self.options.streams {
                Some(streams) => streams.connect(LocalPort::Any, to).await,
                None => TcpByteStream::connect(to).await.map(|stream| Box::new(stream) as _),
            };
            match connected {
                Ok(stream) => return Ok(stream),
                Err(e) => {
                    reasons.push(format!("{to}: {e}"));
                    last = Some(e);
                }
            }
        }
        Err(failed(reasons.join("; "), last))
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
    Connection::new(link.stream, link.input, link.output, session)
}

/// The addresses of `host`, at least one, in the system's order.
async fn resolve(rt: &RuntimeRef, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (done, found) = oneshot::channel();
    let name = host.to_owned();
    rt.spawn_blocking(Box::new(move || {
        let addresses = (name.as_str(), port).to_socket_addrs().map(|a| a.collect::<Vec<_>>());
        drop(done.send(addresses));
    }));
    match found.await {
        Ok(Ok(addresses)) if addresses.is_empty() => Err(io::ErrorKind::NotFound.into()),
        Ok(result) => result,
        Err(_) => Err(io::Error::other("the runtime has shut down")),
    }
}
