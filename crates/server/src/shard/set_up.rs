//! The set-up of connections whose peers may begin with TLS.

use std::{future::poll_fn, io, pin::pin, sync::Arc, time::Duration};

use futures::future::{Either, select};
use millrace_admission::Account;
use millrace_buffer::Arena;
use millrace_rdma::{ConnectParams, ConnectionError, Incoming, QueuePair};
use millrace_rdma_providers::accept_iwarp;
use millrace_runtime::{ByteStream, Instant, RuntimeRef, timeout};
use millrace_tls::{Accepted, Protocol, ServerSession, TlsAcceptor};
use tokio::sync::watch;

use super::{StopSignal, stop_requested};

/// An RDMA connection, with the session of its stream if it has TLS.
pub(super) type AcceptedRdma = Result<(Box<dyn QueuePair>, Option<ServerSession>), ConnectionError>;

/// What sets up one connection of a shard.
#[derive(Clone)]
pub(super) struct SetUp {
    pub(super) tls: Arc<TlsAcceptor>,
    pub(super) rt: RuntimeRef,
    pub(super) arena: Arena,
    pub(super) stopped: watch::Receiver<StopSignal>,
    /// Time limit for all steps together.
    pub(super) limit: Duration,
    pub(super) deadline: Instant,
}

impl SetUp {
    /// What the steps before have left of the time limit.
    pub(super) fn left(&self) -> Duration {
        self.deadline.duration_since(self.rt.now())
    }

    /// Runs `step`. `None` if the server is requested to stop, or the account is evicted.
    pub(super) async fn unless_cancelled<T>(
        &self,
        account: &Account,
        step: impl Future<Output = T>,
    ) -> Option<T> {
        let evicted = poll_fn(|cx| account.poll_evicted(cx));
        let cancelled = select(Box::pin(stop_requested(self.stopped.clone())), evicted);
        match select(pin!(step), cancelled).await {
            Either::Left((result, _)) => Some(result),
            Either::Right(_) => None,
        }
    }

    /// Accepts a session for one of `protocols` on `stream`. `None` if the server is requested to stop.
    pub(super) async fn accept_tls(
        &self,
        stream: Box<dyn ByteStream>,
        protocols: &[Protocol],
        account: &mut Account,
    ) -> Option<io::Result<Accepted>> {
        let accept = timeout(&*self.rt, self.left(), self.tls.accept(stream, protocols, account));
        let late = || Err(io::Error::new(io::ErrorKind::TimedOut, format!("no end within {:?}", self.limit)));
        match select(pin!(accept), Box::pin(stop_requested(self.stopped.clone()))).await {
            Either::Left((accepted, _)) => Some(accepted.unwrap_or_else(late)),
            Either::Right(_) => None,
        }
    }

    /// Accepts an RDMA connection, with iWARP within TLS if its peer begins so. `None` if it is cancelled.
    pub(super) async fn accept_rdma(
        &self,
        mut incoming: Box<dyn Incoming>,
        params: ConnectParams,
        account: &mut Account,
    ) -> Option<AcceptedRdma> {
        let begun = timeout(&*self.rt, self.left(), incoming.tls_stream());
        let begun = self.unless_cancelled(account, begun).await?;
        let stream = match begun {
            Some(Ok(Some(stream))) => stream,
            Some(Ok(None)) => {
                let params = ConnectParams { timeout: self.left(), ..params };
                let accept = incoming.accept(Arc::clone(&self.rt), self.arena.clone(), params);
                let accepted = self.unless_cancelled(account, accept).await?;
                return Some(accepted.map(|qp| (qp, None)));
            }
            Some(Err(e)) => return Some(Err(ConnectionError::Io(e.to_string()))),
            None => return Some(Err(ConnectionError::TimedOut(self.limit))),
        };
        match self.accept_tls(stream, &[Protocol::Iwarp], account).await? {
            Ok(Accepted { stream, session, .. }) => {
                let qp = self.unless_cancelled(account, self.accept_iwarp(stream, params)).await?;
                Some(qp.map(|qp| (qp, Some(session))))
            }
            Err(e) => Some(Err(ConnectionError::Io(format!("TLS: {e}")))),
        }
    }

    /// Accepts iWARP within TLS, which detects what a CRC would.
    pub(super) async fn accept_iwarp(
        &self,
        stream: Box<dyn ByteStream>,
        params: ConnectParams,
    ) -> Result<Box<dyn QueuePair>, ConnectionError> {
        let params = ConnectParams { crc: false, timeout: self.left(), ..params };
        accept_iwarp(Arc::clone(&self.rt), self.arena.clone(), stream, params).await
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use millrace_admission::{Budget, BudgetConfig};
    use millrace_rdma::RejectReason;
    use millrace_runtime::{BoxFuture, RuntimeExt, memory_stream, virtual_time::VirtualTime};
    use millrace_tls::{ClientConfig, ClientFiles, PeerName, ServerConfig, ServerFiles, TlsStream};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// A peer that begins TLS late.
    struct Late(RuntimeRef, Option<Box<dyn ByteStream>>);

    impl Incoming for Late {
        fn peer(&self) -> SocketAddr {
            ([192, 0, 2, 1], 1).into()
        }

        fn accept(
            self: Box<Self>,
            _rt: RuntimeRef,
            _arena: Arena,
            _params: ConnectParams,
        ) -> BoxFuture<'static, Result<Box<dyn QueuePair>, ConnectionError>> {
            panic!("in the clear")
        }

        fn tls_stream(&mut self) -> BoxFuture<'_, io::Result<Option<Box<dyn ByteStream>>>> {
            Box::pin(async {
                self.0.sleep(LIMIT * 6 / 10).await;
                Ok(self.1.take())
            })
        }

        fn reject(self: Box<Self>, _reason: RejectReason) {}
    }

    fn files(dir: &std::path::Path) -> ServerFiles {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(["nfs.test".to_owned()]).unwrap();
        let (certificate, key_file) = (dir.join("server.pem"), dir.join("server.key"));
        std::fs::write(&certificate, params.self_signed(&key).unwrap().pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        ServerFiles { certificate, key: key_file, client_ca: None, client_crl: None }
    }

    #[test]
    fn all_steps_have_one_time_limit() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let client = ClientFiles { ca: Some(files.certificate.clone()), certificate: None };
        let client = ClientConfig::load(&client).unwrap().for_protocol(Protocol::Iwarp);
        // What the client does after its handshake, which begins late: nothing, or not even the handshake.
        for handshake in [true, false] {
            let tls = Arc::new(TlsAcceptor::default());
            tls.set(Some(ServerConfig::load(&files).unwrap()));
            let time = VirtualTime::new(1);
            let rt = time.runtime();
            let (client, name) = (client.clone(), PeerName::parse("nfs.test").unwrap());
            let ended = time.block_on(async {
                let began = rt.now();
                let (ours, theirs) = memory_stream(1 << 16, usize::MAX);
                let late = Arc::clone(&rt);
                let peer = async move {
                    late.sleep(LIMIT * 9 / 10).await;
                    let opened = match handshake {
                        true => Some(
                            TlsStream::connect(Box::new(ours) as Box<dyn ByteStream>, &client, &name)
                                .await
                                .unwrap(),
                        ),
                        false => None,
                    };
                    late.sleep(LIMIT * 10).await;
                    drop(opened);
                };
                rt.spawn("peer", Box::pin(peer));
                let (_stop, stopped) = watch::channel(None);
                let arena = Arena::new(millrace_buffer::ArenaConfig { limit: 1 << 22, huge_pages: false });
                let set_up =
                    SetUp { tls, rt: Arc::clone(&rt), arena, stopped, limit: LIMIT, deadline: began + LIMIT };
                let incoming = Late(Arc::clone(&rt), Some(Box::new(theirs)));
                let budget = Budget::new(
                    BudgetConfig {
                        memory: 16 << 20,
                        own: 64 << 10,
                        largest: 1 << 20,
                        connections: 8,
                        per_client: 8,
                    },
                    Arc::clone(&rt),
                );
                let mut account = budget.open(std::net::IpAddr::from([192, 0, 2, 1]).into()).unwrap();
                let accepted =
                    set_up.accept_rdma(Box::new(incoming), ConnectParams::default(), &mut account).await;
                assert!(accepted.unwrap().is_err());
                rt.now().duration_since(began)
            });
            assert_eq!(ended.unwrap(), LIMIT);
        }
    }
}
