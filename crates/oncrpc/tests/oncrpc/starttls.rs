//! The transition to TLS: both ends together, and a server with hostile clients.

use std::{
    io::{IoSlice, IoSliceMut},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::future::poll_fn;
use millrace_admission::Budget;
use millrace_oncrpc::{
    Credential, Dispatcher, Program, ReplySpec, Request, Transport, call_header,
    serving::ConnectionConfig,
    tcp::{StartTlsError, TcpClientConfig, TcpServer, TcpServerConfig, TcpStats, TcpTransport, start_tls},
};
use millrace_runtime::{
    ByteStream, MemoryStream, RuntimeExt, RuntimeRef, memory_stream, tokio_rt::TokioRuntime,
};
use millrace_tls::{
    ClientConfig, ClientFiles, PeerName, ServerConfig, ServerFiles, TlsAcceptor, TlsError, TlsStats,
};
use millrace_xdr::{Arena, Encoder};
use rcgen::{CertificateParams, DnType, KeyPair};

use crate::common::{Doubler, arena, peer};

/// A certificate that is its own authority, for `nfs.test`.
fn configs() -> (ClientConfig, ServerConfig) {
    let dir = tempfile::tempdir().unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["nfs.test".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "test");
    let (certificate, secret) = (dir.path().join("c.pem"), dir.path().join("c.key"));
    std::fs::write(&certificate, params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(&secret, key.serialize_pem()).unwrap();
    let client = ClientFiles { ca: Some(certificate.clone()), certificate: None };
    let server = ServerFiles { certificate, key: secret, client_ca: None, client_crl: None };
    (ClientConfig::load(&client).unwrap(), ServerConfig::load(&server).unwrap())
}

struct Bench {
    rt: RuntimeRef,
    arena: Arena,
    stats: Arc<TcpStats>,
    budget: Budget,
    config: TcpServerConfig,
    client: ClientConfig,
}

fn run<F: Future<Output = ()>>(test: impl FnOnce(Bench) -> F) {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt.block_on(async {
        let (client, server) = configs();
        let tls = Arc::new(TlsAcceptor::default());
        tls.set(Some(server));
        test(Bench {
            rt: TokioRuntime::current(),
            arena: arena(),
            stats: Arc::default(),
            budget: Budget::unlimited(),
            config: TcpServerConfig { tls, ..TcpServerConfig::default() },
            client,
        })
        .await;
    });
}

impl Bench {
    /// Serves the other end of the returned stream.
    fn serve(&self) -> MemoryStream {
        self.serve_over(memory_stream(1 << 20, 1000))
    }

    /// As [`Self::serve`], after the probe: the server awaits a handshake.
    async fn probed(&self) -> MemoryStream {
        let mut stream = self.serve();
        write(&mut stream, &probe()).await;
        assert_eq!(read(&mut stream, ANSWER.len()).await, ANSWER);
        stream
    }

    /// Serves the second of the ends.
    fn serve_over(&self, (ours, theirs): (MemoryStream, MemoryStream)) -> MemoryStream {
        let program = Doubler { rt: Some(Arc::clone(&self.rt)), ..Doubler::default() };
        let server = TcpServer {
            service: Arc::new(Dispatcher::new([Arc::new(program) as Arc<dyn Program>])),
            rt: Arc::clone(&self.rt),
            arena: self.arena.clone(),
            config: self.config.clone(),
            stats: Arc::clone(&self.stats),
        };
        let account = self.budget.open(peer().addr.ip().into()).unwrap();
        let served = server.serve(Box::new(theirs), peer(), account, std::future::pending());
        self.rt.spawn("server", Box::pin(served));
        ours
    }

    async fn start(&self, name: &str) -> Result<Box<dyn ByteStream>, StartTlsError> {
        self.start_over(self.serve(), name).await
    }

    async fn start_over(
        &self,
        stream: MemoryStream,
        name: &str,
    ) -> Result<Box<dyn ByteStream>, StartTlsError> {
        start_tls(Box::new(stream), (100_003, 4), &self.client, &PeerName::parse(name).unwrap()).await
    }

    async fn settle(&self, what: impl Fn() -> bool) {
        for _ in 0..2000 {
            if what() {
                return;
            }
            self.rt.sleep(Duration::from_millis(1)).await;
        }
        panic!("the condition was not met");
    }

    fn counts(&self) -> (u64, u64, u64, u64) {
        let TlsStats { open_tls, open_mtls, failed } = self.config.tls.stats();
        (open_tls, open_mtls, failed, self.stats.malformed.load(Ordering::Relaxed))
    }
}

/// A call with its record mark.
fn call(proc: u32, cred: &[u32], verifier: &[u32], args: &[u32]) -> Vec<u8> {
    let words = [&[9, 0, 2, 100_003, 4, proc][..], cred, verifier, args].concat();
    let mark = (1 << 31) | (4 * words.len()) as u32;
    [&[mark][..], &words].concat().into_iter().flat_map(u32::to_be_bytes).collect()
}

/// The worked bytes of a Linux client and server.
fn probe() -> Vec<u8> {
    call(0, &[7, 0], &[0, 0], &[])
}

const ANSWER: &[u8] = b"\x80\0\0\x20\0\0\0\x09\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\x08STARTTLS\0\0\0\0";

async fn write(stream: &mut dyn ByteStream, bytes: &[u8]) {
    let n = poll_fn(|cx| stream.poll_write(cx, &[IoSlice::new(bytes)])).await.unwrap();
    assert_eq!(n, bytes.len());
    poll_fn(|cx| stream.poll_flush(cx)).await.unwrap();
}

/// What arrives until nothing does, or the end.
async fn read(stream: &mut dyn ByteStream, len: usize) -> Vec<u8> {
    let (mut out, mut buf) = (Vec::new(), [0; 4096]);
    while out.len() < len {
        match poll_fn(|cx| stream.poll_read(cx, &mut [IoSliceMut::new(&mut buf)])).await {
            Ok(0) | Err(_) => break,
            Ok(n) => out.extend_from_slice(&buf[..n]),
        }
    }
    out
}

#[test]
fn calls_of_all_sizes_pass_after_the_transition() {
    run(|b| async move {
        let stream = b.start("nfs.test").await.unwrap();
        let config = TcpClientConfig::default();
        let t: Arc<dyn Transport> = TcpTransport::start(stream, &b.rt, &b.arena, config).unwrap();
        b.settle(|| b.counts() == (1, 0, 0, 0)).await;
        assert!(b.budget.stats().in_use >= millrace_tls::SESSION_BYTES);
        for bytes in [1u32, 100, 16_384, 300_000, 1_000_000] {
            let mut e = Encoder::new(&b.arena, 128);
            call_header(&mut e, 100_003, 3, 9, &Credential::None);
            e.put_u32(bytes);
            let reply = t.submit(Request::new(e.finish().unwrap(), ReplySpec::default())).await.unwrap();
            assert!(reply.results().remaining() >= bytes as usize);
        }
        t.close();
        drop(t);
        b.settle(|| b.counts() == (0, 0, 0, 0)).await;
        b.settle(|| b.budget.stats().in_use == 0).await;
    });
}

#[test]
fn probe_handshake_and_calls_may_arrive_byte_by_byte() {
    run(|b| async move {
        // The other end has read each byte before the next one is there.
        let stream = b.serve_over(memory_stream(1, 1));
        let mut stream = b.start_over(stream, "nfs.test").await.unwrap();
        let call = call(1, &[0, 0], &[0, 0], &[8]);
        let mut sent = 0;
        while sent < call.len() {
            sent += poll_fn(|cx| stream.poll_write(cx, &[IoSlice::new(&call[sent..])])).await.unwrap();
        }
        poll_fn(|cx| stream.poll_flush(cx)).await.unwrap();
        assert_eq!(read(&mut *stream, 32).await[28..], [0, 0, 0, 16]);
        assert_eq!(b.counts(), (1, 0, 0, 0));
    });
}

#[test]
fn the_answer_to_a_probe_is_that_of_linux() {
    run(|b| async move {
        let mut s = b.serve();
        write(&mut s, &probe()).await;
        assert_eq!(read(&mut s, ANSWER.len()).await, ANSWER);
    });
}

#[test]
fn without_a_certificate_the_answer_is_that_of_a_server_without_tls() {
    run(|b| async move {
        b.config.tls.set(None);
        let e = b.start("nfs.test").await.err().unwrap();
        assert!(matches!(e, StartTlsError::NotOffered), "{e}");
    });
}

#[test]
fn a_wrong_name_ends_the_transition_at_both_ends() {
    run(|b| async move {
        let e = b.start("other.test").await.err().unwrap();
        let StartTlsError::Handshake(TlsError::Name { .. }) = e else { panic!("{e}") };
        b.settle(|| b.counts() == (0, 0, 1, 0)).await;
    });
}

#[test]
fn wrong_probes_are_rejected_and_change_nothing() {
    run(|b| async move {
        let denied = |stat: u32| [9, 1, 1, 1, stat];
        let mut s = b.serve();
        for bytes in [
            call(1, &[7, 0], &[0, 0], &[5]),   // Another procedure.
            call(0, &[7, 4, 1], &[0, 0], &[]), // A credential with a body.
            call(0, &[7, 0], &[0, 4, 1], &[]), // A verifier with a body.
            call(0, &[7, 0], &[0, 0], &[1]),   // Arguments.
        ] {
            write(&mut s, &bytes).await;
            let expected: Vec<u8> =
                [(1 << 31) | 20].into_iter().chain(denied(1)).flat_map(u32::to_be_bytes).collect();
            assert_eq!(read(&mut s, 24).await, expected);
        }
        write(&mut s, &probe()).await;
        assert_eq!(read(&mut s, ANSWER.len()).await, ANSWER);
    });
}

#[test]
fn a_probe_within_tls_is_rejected() {
    run(|b| async move {
        let mut s = b.start("nfs.test").await.unwrap();
        write(&mut *s, &probe()).await;
        assert_eq!(read(&mut *s, 24).await[16..], [0, 0, 0, 1, 0, 0, 0, 1]);
    });
}

#[test]
fn bytes_behind_a_probe_close_the_connection_unexecuted() {
    run(|b| async move {
        for (n, behind) in
            [call(1, &[0, 0], &[0, 0], &[5]), vec![22, 3, 1], vec![0x80]].into_iter().enumerate()
        {
            let mut s = b.serve();
            write(&mut s, &[probe(), behind].concat()).await;
            assert_eq!(read(&mut s, 1).await, b"");
            b.settle(|| b.counts() == (0, 0, 0, n as u64 + 1)).await;
        }
        assert_eq!(b.stats.replies.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_probe_with_calls_in_progress_closes_the_connection() {
    run(|b| async move {
        let mut s = b.serve();
        write(&mut s, &call(8, &[0, 0], &[0, 0], &[200])).await;
        b.settle(|| b.stats.calls.load(Ordering::Relaxed) == 1).await;
        write(&mut s, &probe()).await;
        assert_eq!(read(&mut s, 1).await, b"");
    });
}

#[test]
fn calls_in_the_clear_after_the_answer_are_not_executed() {
    run(|b| async move {
        let mut s = b.probed().await;
        write(&mut s, &call(1, &[0, 0], &[0, 0], &[5])).await;
        let rest = read(&mut s, 1000).await;
        assert!(rest.len() < 20, "an alert at most: {rest:?}");
        b.settle(|| b.counts().2 == 1).await;
        assert_eq!(b.stats.calls.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_silent_client_is_disconnected_and_its_memory_released() {
    run(|mut b| async move {
        b.config.connection =
            ConnectionConfig { first_call_timeout: Duration::from_millis(50), ..ConnectionConfig::default() };
        let mut s = b.probed().await;
        assert!(b.budget.stats().in_use >= millrace_tls::HANDSHAKE_BYTES);
        assert!(read(&mut s, 1000).await.len() < 20);
        b.settle(|| b.counts().2 == 1).await;
        b.settle(|| b.budget.stats().in_use == 0).await;
    });
}

#[test]
fn a_handshake_that_trickles_has_the_time_of_a_silent_one() {
    run(|mut b| async move {
        b.config.connection =
            ConnectionConfig { first_call_timeout: Duration::from_millis(50), ..ConnectionConfig::default() };
        let mut s = b.probed().await;
        write(&mut s, &[22, 3, 1, 0x40, 0]).await;
        let mut sent = 0;
        while sent < 0x4000 && b.counts().2 == 0 {
            drop(poll_fn(|cx| s.poll_write(cx, &[IoSlice::new(&[1])])).await);
            b.rt.sleep(Duration::from_millis(1)).await;
            sent += 1;
        }
        assert!(sent < 0x4000, "the whole record was awaited");
        b.settle(|| b.budget.stats().in_use == 0).await;
    });
}

#[test]
fn handshakes_of_one_client_wait_for_each_other() {
    run(|b| async move {
        let mut open = Vec::new();
        for _ in 0..8 {
            open.push(b.probed().await);
        }
        let mut ninth = b.serve();
        write(&mut ninth, &probe()).await;
        let waits = millrace_runtime::timeout(&*b.rt, Duration::from_millis(50), read(&mut ninth, 1)).await;
        assert!(waits.is_none(), "admitted: {waits:?}");
        drop(open.pop());
        assert_eq!(read(&mut ninth, ANSWER.len()).await, ANSWER);
    });
}
