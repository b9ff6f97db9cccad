//! RPCSEC_GSS at a client: every protection, lost and renewed contexts, and servers that violate the rules.

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use millrace_kerberos_testing::{opaque, words};
use millrace_krb5::{Context, Enctype, PLAIN_AT, Role};
use millrace_oncrpc::{
    AcceptError, AuthStat, Credential, Protection, Reply, ReplySpec, Request, RpcError, Transport,
    call_header,
    gss::{Begun, CallSeal, GssClient, GssError, Initiator, InitiatorThreads, NoContext},
    tcp::{TcpClientConfig, TcpTransport},
};
use millrace_runtime::{
    MemoryStream, RuntimeExt, RuntimeRef, memory_stream, timeout, virtual_time::VirtualTime,
};
use millrace_xdr::{Arena, Encoder};

use crate::gss::{Bench, Connection, Names, keys, run};

const PROGRAM: (u32, u32) = (100_003, 4);
/// The time for which calls wait for a context.
const LIMIT: Duration = Duration::from_secs(30);

/// Sends the name of a user as a token, and has the keys of [`Names`].
struct Name {
    enctype: Enctype,
    /// The end of the ticket.
    end: Mutex<Duration>,
    /// Number of contexts that were begun.
    begun: AtomicUsize,
    /// Whether there is no ticket.
    fails: AtomicBool,
    user: &'static str,
}

impl Name {
    fn new(enctype: Enctype, end: Duration) -> Arc<Self> {
        Arc::new(Self {
            enctype,
            end: Mutex::new(end),
            begun: AtomicUsize::new(0),
            fails: AtomicBool::new(false),
            user: "alice",
        })
    }

    fn client(self: &Arc<Self>, bench: &Bench, protection: Protection) -> Arc<GssClient> {
        let (rt, arena) = (Arc::clone(&bench.rt), bench.arena.clone());
        GssClient::new(Arc::<Self>::clone(self), InitiatorThreads::new(4), protection, rt, arena)
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }
}

impl Initiator for Name {
    fn begin(&self) -> Result<Begun, NoContext> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        if self.fails.load(Ordering::Relaxed) {
            return Err(NoContext { reason: "no ticket".into(), expired: true });
        }
        let (enctype, end) = (self.enctype, *self.end.lock().unwrap());
        let finish = Box::new(move |answer: &[u8]| match answer {
            b"hello" => Ok((keys(enctype, Role::Initiator, end), "alice".to_owned())),
            other => {
                let reason = format!("the server answers {:?}", String::from_utf8_lossy(other));
                Err(NoContext { reason, expired: false })
            }
        });
        Ok(Begun { token: self.user.into(), finish })
    }

    fn late(&self, _: Duration) -> NoContext {
        NoContext { reason: "no ticket yet".into(), expired: false }
    }
}

fn transport(rt: &RuntimeRef, arena: &Arena, stream: MemoryStream) -> Arc<dyn Transport> {
    let config = TcpClientConfig { max_record: 4 << 20, ..TcpClientConfig::default() };
    TcpTransport::start(Box::new(stream), rt, arena, config).unwrap()
}

fn request(arena: &Arena, seal: CallSeal, procedure: u32, put: impl FnOnce(&mut Encoder)) -> Request {
    let mut e = Encoder::new(arena, 128);
    call_header(&mut e, PROGRAM.0, PROGRAM.1, procedure, &Credential::None);
    put(&mut e);
    Request { seal: Some(seal), ..Request::new(e.finish().unwrap(), ReplySpec::default()) }
}

/// Calls a procedure.
async fn call(
    bench: &Bench,
    client: &Arc<GssClient>,
    to: &Arc<dyn Transport>,
    procedure: u32,
    put: impl FnOnce(&mut Encoder),
) -> Result<Reply, RpcError> {
    let seal = client.seal(to, PROGRAM, LIMIT).await.unwrap();
    to.submit(request(&bench.arena, seal, procedure, put)).await
}

fn far() -> Duration {
    Duration::from_secs(1 << 40)
}

#[test]
fn calls_are_executed_with_every_protection_and_encryption_type_with_one_context() {
    for enctype in Enctype::ALL {
        for protection in Protection::ALL {
            run(enctype, async |bench| {
                let user = Name::new(enctype, far());
                let client = user.client(&bench, protection);
                let ends = [(); 2].map(|()| transport(&bench.rt, &bench.arena, bench.connect().0));
                for to in &ends {
                    call(&bench, &client, to, 0, |_| {}).await.unwrap();
                    let doubled = call(&bench, &client, to, 1, |e| e.put_u32(21)).await.unwrap();
                    let mut d = doubled.results();
                    assert_eq!((d.u32().unwrap(), d.remaining()), (42, 0));
                    for len in [0, 1, 5, 300, 5001, 70_001, 1 << 20] {
                        let data: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
                        let view = bench.arena.copy_from(&data).unwrap();
                        // The caller's data, which must not be encrypted where it is.
                        let kept = view.clone();
                        let mut seal =
                            request(&bench.arena, client.seal(to, PROGRAM, LIMIT).await.unwrap(), 7, |e| {
                                e.put_payload(view.into())
                            });
                        let memory = bench.arena.alloc(1 << 20).unwrap();
                        let at = memory.address();
                        // The length of the data is the first result.
                        seal.reply = ReplySpec { payload: Some(memory), payload_offset: 28, max_head: 0 };
                        let reply = to.submit(seal).await.unwrap();
                        let mut d = reply.results();
                        let read = d.payload(1 << 20).unwrap();
                        assert!(read.to_vec() == data && d.remaining() == 0, "{len} bytes");
                        assert!(*kept == data);
                        let placed = read.iter().any(|view| view.address() == at);
                        let expected = len > 16_384 && protection != Protection::Privacy;
                        assert_eq!(placed, expected, "{len} bytes with {protection}");
                    }
                }
                assert_eq!((bench.gss.stats().contexts, user.begun()), (1, 1));
                // The end of the context at the server.
                ends[0].submit(client.end(PROGRAM).unwrap()).await.unwrap();
                assert_eq!(bench.gss.stats().contexts, 0);
                assert!(client.end(PROGRAM).is_none() && client.seal_last().is_none());
            });
        }
    }
}

#[test]
fn statuses_of_calls_are_those_of_the_server() {
    for protection in Protection::ALL {
        run(Enctype::Aes256Sha1, async |bench| {
            let user = Name::new(bench.enctype, far());
            let client = user.client(&bench, protection);
            let to = transport(&bench.rt, &bench.arena, bench.connect().0);
            for (procedure, expected) in [
                (1, RpcError::Accept(AcceptError::GarbageArgs)),
                (3, RpcError::Auth(AuthStat::TooWeak)),
                (5, RpcError::Accept(AcceptError::SystemErr)),
                (99, RpcError::Accept(AcceptError::ProcUnavail)),
            ] {
                let e = call(&bench, &client, &to, procedure, |_| {}).await.err();
                assert_eq!(e, Some(expected), "{procedure}");
            }
        });
    }
}

#[test]
fn a_lost_context_is_replaced_once_for_all_calls() {
    run(Enctype::Aes256Sha1, async |bench| {
        let user = Name::new(bench.enctype, far());
        let client = user.client(&bench, Protection::Integrity);
        let to = transport(&bench.rt, &bench.arena, bench.connect().0);
        let seal = client.seal(&to, PROGRAM, LIMIT).await.unwrap();
        let context = seal.context();
        bench.gss.set(Some(Arc::new(Names { enctype: bench.enctype, end: far() })));
        let e = to.submit(request(&bench.arena, seal, 0, |_| {})).await.err();
        assert_eq!(e, Some(RpcError::Auth(AuthStat::GssCredProblem)));
        context.reject();
        assert!(client.seal_last().is_none());
        let (one, two) = futures::join!(client.seal(&to, PROGRAM, LIMIT), client.seal(&to, PROGRAM, LIMIT));
        for new in [one.unwrap(), two.unwrap()] {
            // A late failure of the old context does not end the new one.
            context.reject();
            to.submit(request(&bench.arena, new, 0, |_| {})).await.unwrap();
        }
        assert_eq!(user.begun(), 2);
    });
}

#[test]
fn a_context_is_renewed_before_its_end_and_used_until_then() {
    let virt = VirtualTime::new(7);
    let rt = virt.runtime();
    virt.block_on(async move {
        let hundred = Duration::from_secs(100);
        let bench = Bench::new(Arc::clone(&rt), Enctype::Aes128Sha1);
        let user = Name::new(bench.enctype, rt.wall_clock() + hundred);
        let client = user.client(&bench, Protection::Privacy);
        let to = transport(&rt, &bench.arena, bench.connect().0);
        let begun = || user.begun();
        let works = async || call(&bench, &client, &to, 1, |e| e.put_u32(1)).await.unwrap();
        works().await;
        rt.sleep(Duration::from_secs(89)).await;
        works().await;
        assert_eq!(begun(), 1);
        // There is no new ticket yet.
        user.fails.store(true, Ordering::Relaxed);
        rt.sleep(Duration::from_secs(2)).await;
        works().await;
        works().await;
        assert_eq!(begun(), 2, "it is not tried for every call");
        rt.sleep(Duration::from_secs(8)).await;
        works().await;
        assert_eq!(begun(), 3);
        rt.sleep(Duration::from_secs(2)).await;
        let expected = NoContext { reason: "no ticket".into(), expired: true };
        let (one, two) = futures::join!(client.seal(&to, PROGRAM, LIMIT), client.seal(&to, PROGRAM, LIMIT));
        assert_eq!([one.err(), two.err()], [(); 2].map(|()| Some(GssError::Initiate(expected.clone()))));
        assert_eq!(begun(), 4, "calls that wait have the failure for which they waited");
    })
    .unwrap();
}

#[test]
fn a_context_is_replaced_while_calls_use_it_and_ends_at_the_server_after_the_last_one() {
    let virt = VirtualTime::new(8);
    let rt = virt.runtime();
    virt.block_on(async move {
        let seconds = Duration::from_secs;
        let bench = Bench::new(Arc::clone(&rt), Enctype::Aes128Sha1);
        let user = Name::new(bench.enctype, rt.wall_clock() + seconds(100));
        let client = user.client(&bench, Protection::Integrity);
        let [old, new] = [(); 2].map(|()| transport(&rt, &bench.arena, bench.connect().0));
        let contexts = || bench.gss.stats().contexts;
        for to in [&old, &new] {
            call(&bench, &client, to, 0, |_| {}).await.unwrap();
        }
        rt.sleep(seconds(91)).await;
        *user.end.lock().unwrap() = rt.wall_clock() + seconds(100);
        // The renewal does not delay the calls that begin it, or begin during it.
        let [in_flight, unsent] = [(); 2].map(|()| client.ready(&new, PROGRAM).unwrap());
        let in_flight = old.submit(request(&bench.arena, in_flight, 8, |e| e.put_u32(5000)));
        rt.sleep(seconds(1)).await;
        assert_eq!((user.begun(), contexts()), (2, 2), "it still has a call");
        call(&bench, &client, &old, 0, |_| {}).await.unwrap();
        in_flight.await.unwrap();
        assert_eq!(contexts(), 2, "a call has yet to be sent");
        // The connection on which it was established does not exist any more.
        old.close();
        new.submit(request(&bench.arena, unsent, 0, |_| {})).await.unwrap();
        rt.sleep(seconds(1)).await;
        assert_eq!(contexts(), 1);
        // The first one would have ended.
        rt.sleep(seconds(10)).await;
        call(&bench, &client, &new, 0, |_| {}).await.unwrap();
        assert_eq!((user.begun(), contexts()), (2, 1));
        drop(client);
        rt.sleep(seconds(1)).await;
        assert_eq!(contexts(), 0, "that of a user without calls");
    })
    .unwrap();
}

#[test]
fn the_last_calls_are_protected_until_the_context_ends() {
    let virt = VirtualTime::new(9);
    let rt = virt.runtime();
    virt.block_on(async move {
        let bench = Bench::new(Arc::clone(&rt), Enctype::Aes128Sha1);
        let user = Name::new(bench.enctype, rt.wall_clock() + Duration::from_secs(100));
        let [client, other] = [(); 2].map(|()| user.client(&bench, Protection::Privacy));
        let to = transport(&rt, &bench.arena, bench.connect().0);
        assert!(client.seal_last().is_none());
        for client in [&client, &other] {
            call(&bench, client, &to, 0, |_| {}).await.unwrap();
        }
        user.fails.store(true, Ordering::Relaxed);
        rt.sleep(Duration::from_secs(99)).await;
        let last = client.seal_last().unwrap();
        to.submit(request(&bench.arena, last, 1, |e| e.put_u32(1))).await.unwrap();
        to.submit(client.end(PROGRAM).unwrap()).await.unwrap();
        assert_eq!((user.begun(), bench.gss.stats().contexts), (2, 1));
        rt.sleep(Duration::from_secs(1)).await;
        assert!(other.seal_last().is_none() && other.end(PROGRAM).is_none());
    })
    .unwrap();
}

#[test]
fn a_failed_connection_fails_no_calls_on_others() {
    let virt = VirtualTime::new(10);
    let rt = virt.runtime();
    virt.block_on(async move {
        let bench = Bench::new(Arc::clone(&rt), Enctype::Aes128Sha1);
        let user = Name::new(bench.enctype, far());
        let client = user.client(&bench, Protection::Privacy);
        let (ours, theirs) = memory_stream(1 << 20, 100_000);
        let [broken, works] = [ours, bench.connect().0].map(|stream| transport(&rt, &bench.arena, stream));
        let break_it = async {
            rt.sleep(Duration::from_secs(1)).await;
            drop(theirs);
        };
        let (first, same, other, ()) = futures::join!(
            client.seal(&broken, PROGRAM, LIMIT),
            client.seal(&broken, PROGRAM, LIMIT),
            client.seal(&works, PROGRAM, LIMIT),
            break_it
        );
        for e in [first, same].map(Result::unwrap_err) {
            assert!(matches!(&e, GssError::Call(RpcError::Disconnected { .. })), "{e}");
        }
        works.submit(request(&bench.arena, other.unwrap(), 0, |_| {})).await.unwrap();
        assert_eq!(user.begun(), 2);
    })
    .unwrap();
}

#[test]
fn calls_wait_for_a_server_that_does_not_answer_as_long_as_they_may() {
    let virt = VirtualTime::new(11);
    let rt = virt.runtime();
    virt.block_on(async move {
        let bench = Bench::new(Arc::clone(&rt), Enctype::Aes128Sha1);
        let user = Name::new(bench.enctype, far());
        let client = user.client(&bench, Protection::Privacy);
        let (ours, _theirs) = memory_stream(1 << 20, 100_000);
        let silent = transport(&rt, &bench.arena, ours);
        let calls = "the call that establishes a security context";
        for seconds in [3, 5] {
            let after = Duration::from_secs(seconds);
            let e = client.seal(&silent, PROGRAM, after).await.unwrap_err();
            assert_eq!(e, GssError::NoAnswer { calls, after });
        }
        assert_eq!(user.begun(), 1);
    })
    .unwrap();
}

/// An initiator that waits, as for the lock of a credential cache.
struct Stuck {
    user: Arc<Name>,
    released: Arc<OnceLock<()>>,
}

impl Initiator for Stuck {
    fn begin(&self) -> Result<Begun, NoContext> {
        let begun = self.user.begin();
        self.released.wait();
        begun
    }

    fn late(&self, after: Duration) -> NoContext {
        self.user.late(after)
    }
}

#[test]
fn initiators_that_do_not_return_occupy_few_threads_and_delay_calls_as_long_as_they_may_wait() {
    run(Enctype::Aes128Sha1, async |bench| {
        let (threads, released) = (InitiatorThreads::new(2), Arc::new(OnceLock::new()));
        let users = [(); 4].map(|()| {
            let user = Name::new(bench.enctype, far());
            let stuck = Arc::new(Stuck { user: Arc::clone(&user), released: Arc::clone(&released) });
            let (rt, arena) = (Arc::clone(&bench.rt), bench.arena.clone());
            (user, GssClient::new(stuck, threads.clone(), Protection::Integrity, rt, arena))
        });
        let to = transport(&bench.rt, &bench.arena, bench.connect().0);
        let late = GssError::Initiate(NoContext { reason: "no ticket yet".into(), expired: false });
        for _ in 0..2 {
            for (_, client) in &users {
                let e = client.seal(&to, PROGRAM, Duration::from_millis(20)).await.err();
                assert_eq!(e, Some(late.clone()));
            }
        }
        let begun = || users.iter().map(|(user, _)| user.begun()).collect::<Vec<_>>();
        while begun()[..2] != [1, 1] {
            bench.rt.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(begun(), [1, 1, 0, 0]);
        released.set(()).unwrap();
        for (_, client) in &users {
            let seal = client.seal(&to, PROGRAM, LIMIT).await.unwrap();
            to.submit(request(&bench.arena, seal, 0, |_| {})).await.unwrap();
        }
        assert_eq!(begun(), [1; 4]);
    });
}

#[test]
fn calls_stay_within_the_window_of_the_server_on_all_connections() {
    const CALLS: usize = 40;
    for (window, seed) in [1, 4, 128].into_iter().flat_map(|window| (0..8).map(move |seed| (window, seed))) {
        println!("window {window}, seed {seed}");
        let virt = VirtualTime::new(seed);
        let rt = virt.runtime();
        virt.block_on(async move {
            let bench = Bench::new(Arc::clone(&rt), Enctype::Aes128Sha1);
            let mut server = Server::new(&bench, Protection::Authentication);
            let established = server.established_with(window);
            server.establish(&established).await.unwrap();
            let (ours, theirs) = memory_stream(1 << 20, 100_000);
            let ends = [Arc::clone(&server.to), transport(&rt, &bench.arena, ours)];
            let Server { connection, client, keys, .. } = server;
            let mut connections = [connection, Connection(theirs)];
            let calls = async {
                let calls = (0..CALLS).map(|i| {
                    let (client, to, arena) = (&client, &ends[i % 2], &bench.arena);
                    async move {
                        let seal = client.seal(to, PROGRAM, LIMIT).await.unwrap();
                        // Some calls are given up, before they are sent or later.
                        if i % 7 == 3 {
                            return drop(seal);
                        }
                        to.submit(request(arena, seal, 1, |e| e.put_u32(21))).await.unwrap();
                    }
                });
                futures::future::join_all(calls).await;
            };
            let (mut seen, mut last) = (0, 0);
            let mut most = 0;
            let serve = async {
                let mut received: Vec<(usize, Vec<u8>)> = Vec::new();
                while seen < CALLS - CALLS.div_ceil(7) {
                    // One connection is much slower than the other.
                    for (at, turns) in [(0, 3), (1, 1)] {
                        for _ in 0..turns {
                            let next = connections[at].receive();
                            let next = timeout(&*rt, Duration::from_millis(1), next).await.flatten();
                            let Some(call) = next else { continue };
                            let number = u32::from_be_bytes(*call[40..].first_chunk().unwrap());
                            assert!(number + window > last, "{number} after {last}");
                            last = last.max(number);
                            received.push((at, call));
                        }
                    }
                    most = most.max(received.len());
                    if received.is_empty() {
                        continue;
                    }
                    let (at, call) = received.swap_remove(rt.random_u64() as usize % received.len());
                    let mic = keys.mic([&call[40..44]]);
                    let reply = [&call[..4], &accepted(6, &mic, 0), &words(&[42])].concat();
                    connections[at].send(&reply).await;
                    seen += 1;
                }
            };
            futures::join!(calls, serve);
            assert!(most > 1 || window == 1, "no calls at a time");
        })
        .unwrap();
    }
}

/// What a server says to a call, of which it is given the sequence number.
type Answer<'a> = Box<dyn Fn(u32) -> Vec<u8> + 'a>;

/// A server whose replies are made by hand.
struct Server {
    to: Arc<dyn Transport>,
    connection: Connection,
    client: Arc<GssClient>,
    arena: Arena,
    keys: Box<Context>,
}

/// The header of an accepted reply after the transaction id, with a verifier.
fn accepted(flavor: u32, verifier: &[u8], status: u32) -> Vec<u8> {
    [words(&[1, 0, flavor]), opaque(verifier), words(&[status])].concat()
}

impl Server {
    fn new(bench: &Bench, protection: Protection) -> Self {
        let (ours, theirs) = memory_stream(1 << 20, 100_000);
        let to = transport(&bench.rt, &bench.arena, ours);
        let user = Name::new(bench.enctype, far());
        let client = user.client(bench, protection);
        let keys = keys(bench.enctype, Role::Acceptor, far());
        Self { to, connection: Connection(theirs), client, arena: bench.arena.clone(), keys }
    }

    /// Answers the call that establishes a context. Returns what the client makes of it.
    async fn establish(&mut self, answer: &[u8]) -> Result<CallSeal, GssError> {
        let (client, to) = (Arc::clone(&self.client), Arc::clone(&self.to));
        let seal = async move { client.seal(&to, PROGRAM, LIMIT).await };
        let serve = async {
            let call = self.connection.receive().await.unwrap();
            assert_eq!(call[4..40], words(&[0, 2, PROGRAM.0, PROGRAM.1, 0, 6, 20, 1, 1])[..]);
            self.connection.send(&[&call[..4], answer].concat()).await;
        };
        futures::join!(seal, serve).0
    }

    /// A good answer.
    fn established(&self) -> Vec<u8> {
        self.established_with(128)
    }

    /// A good answer with this window.
    fn established_with(&self, window: u32) -> Vec<u8> {
        let mic = self.keys.mic([&words(&[window])[..]]);
        [accepted(6, &mic, 0), opaque(b"handle"), words(&[0, 0, window]), opaque(b"hello")].concat()
    }

    /// Answers the next call.
    async fn answer(&mut self, answer: &Answer<'_>) -> Result<Reply, RpcError> {
        let seal = self.client.ready(&self.to, PROGRAM).unwrap();
        let call = self.to.submit(request(&self.arena, seal, 1, |e| e.put_u32(21)));
        let serve = async {
            let call = self.connection.receive().await.unwrap();
            let sequence = u32::from_be_bytes(*call[40..].first_chunk().unwrap());
            self.connection.send(&[&call[..4], &answer(sequence)].concat()).await;
        };
        futures::join!(call, serve).0
    }

    fn mic(&self, bytes: &[u8]) -> Vec<u8> {
        self.keys.mic([bytes]).to_vec()
    }

    /// A header with the right verifier.
    fn header(&self, sequence: u32, status: u32) -> Vec<u8> {
        accepted(6, &self.mic(&words(&[sequence])), status)
    }

    fn sealed(&self, plain: &[u8]) -> Vec<u8> {
        let mut token = [&[0; PLAIN_AT], plain, &vec![0; self.keys.wrap_tail()]].concat();
        self.keys.wrap(&mut [&mut token], [9; 16]).unwrap();
        token
    }

    /// Results, protected.
    fn body(&self, protection: Protection, sequence: u32, results: &[u8]) -> Vec<u8> {
        let plain = [&words(&[sequence]), results].concat();
        match protection {
            Protection::Authentication => results.to_vec(),
            Protection::Integrity => [opaque(&plain), opaque(&self.mic(&plain))].concat(),
            Protection::Privacy => opaque(&self.sealed(&plain)),
        }
    }
}

#[test]
fn a_reply_that_the_server_has_not_protected_as_the_call_is_refused() {
    use Protection::{Authentication, Integrity, Privacy};
    for protection in Protection::ALL {
        run(Enctype::Aes256Sha1, async |bench| {
            let mut server = Server::new(&bench, protection);
            let established = server.established();
            server.establish(&established).await.unwrap();
            let own = Server::new(&bench, protection);
            let of = &own;
            let good = words(&[42]);
            let results = &good;
            let body = move |n| of.body(protection, n, results);
            let changed = |mut bytes: Vec<u8>, at: usize| {
                bytes[at] ^= 1;
                bytes
            };
            let of_client = keys(bench.enctype, Role::Initiator, far());
            // The sequence number, so that a sealed body may be tried at any place.
            let mut cases: Vec<(&str, Answer<'_>)> = vec![
                ("no verifier", Box::new(move |n| [accepted(0, &[], 0), body(n)].concat())),
                (
                    "no verifier, in the clear",
                    Box::new(move |_| [accepted(0, &[], 0), good_of(results)].concat()),
                ),
                ("an empty verifier", Box::new(move |n| [accepted(6, &[], 0), body(n)].concat())),
                ("zeros as verifier", Box::new(move |n| [accepted(6, &[0; 28], 0), body(n)].concat())),
                ("400 bytes as verifier", Box::new(move |n| [accepted(6, &[4; 400], 0), body(n)].concat())),
                ("401 bytes as verifier", Box::new(move |n| [accepted(6, &[4; 401], 0), body(n)].concat())),
                (
                    "the verifier of another flavor",
                    Box::new(move |n| [accepted(1, &of.mic(&words(&[n])), 0), body(n)].concat()),
                ),
                ("the verifier of another call", Box::new(move |n| [of.header(n + 1, 0), body(n)].concat())),
                ("a changed verifier", Box::new(move |n| [changed(of.header(n, 0), 40), body(n)].concat())),
                (
                    "the client's own key",
                    Box::new(|n| [accepted(6, &of_client.mic([&words(&[n])[..]]), 0), body(n)].concat()),
                ),
                ("a truncated header", Box::new(move |n| of.header(n, 0)[..40].to_vec())),
                // Statuses are signed too.
                ("a status without verifier", Box::new(|_| accepted(0, &[], 5))),
                ("the status with another verifier", Box::new(move |n| of.header(n + 1, 5))),
                ("an unknown status", Box::new(move |n| of.header(n, 77))),
                ("neither accepted nor denied", Box::new(move |_| words(&[1, 2, 0, 0, 0]))),
            ];
            if protection != Authentication {
                let other = if protection == Integrity { Privacy } else { Integrity };
                let long = |mut bytes: Vec<u8>, length: u32| {
                    bytes[..4].copy_from_slice(&length.to_be_bytes());
                    bytes
                };
                let with = move |n, body: Vec<u8>| [of.header(n, 0), body].concat();
                cases.extend::<Vec<(&str, Answer<'_>)>>(vec![
                    ("results in the clear", Box::new(move |n| with(n, good_of(results)))),
                    ("no results", Box::new(move |n| with(n, vec![]))),
                    (
                        "another number in the body",
                        Box::new(move |n| with(n, of.body(protection, n + 1, results))),
                    ),
                    ("the other protection", Box::new(move |n| with(n, of.body(other, n, results)))),
                    ("a length beyond the reply", Box::new(move |n| with(n, long(body(n), u32::MAX)))),
                    ("a changed byte", Box::new(move |n| with(n, changed(body(n), 11)))),
                    ("bytes after the body", Box::new(move |n| with(n, [body(n), words(&[0])].concat()))),
                    ("an empty token", Box::new(move |n| with(n, opaque(&of.sealed(&[]))))),
                    ("half a number", Box::new(move |n| with(n, opaque(&of.sealed(&[0, 0]))))),
                    ("a short token", Box::new(move |n| with(n, opaque(&[5; 59])))),
                    (
                        "stripped privacy",
                        Box::new(move |n| {
                            let mut token = of.sealed(&[words(&[n]), good_of(results)].concat());
                            token[2] &= !2;
                            with(n, opaque(&token))
                        }),
                    ),
                    (
                        "no checksum",
                        Box::new(move |n| with(n, opaque(&[words(&[n]), good_of(results)].concat()))),
                    ),
                ]);
            }
            for (what, answer) in &cases {
                let e = server.answer(answer).await.err();
                println!("{protection}, {what}: {e:?}");
                assert!(matches!(e, Some(RpcError::BadReply { .. })), "{protection}, {what}: {e:?}");
            }
            let denied: Answer<'_> = Box::new(|_| words(&[1, 1, 1, 13]));
            let e = server.answer(&denied).await.err();
            assert_eq!(e, Some(RpcError::Auth(AuthStat::GssCredProblem)));
            // The connection and the context are as before.
            let right: Answer<'_> = Box::new(move |n| [of.header(n, 0), body(n)].concat());
            let reply = server.answer(&right).await.unwrap();
            assert_eq!(reply.results().u32().unwrap(), 42);
        });
    }
}

fn good_of(results: &[u8]) -> Vec<u8> {
    results.to_vec()
}

#[test]
fn an_answer_that_does_not_prove_the_service_establishes_no_context() {
    run(Enctype::Aes256Sha1, async |bench| {
        let other = Server::new(&bench, Protection::Integrity);
        let mic = other.mic(&words(&[128]));
        let with = |verifier: Vec<u8>, handle: &[u8], status: [u32; 3], token: &[u8]| {
            [verifier, opaque(handle), words(&status), opaque(token)].concat()
        };
        let ok = [0, 0, 128];
        for (what, answer, expected) in [
            ("no verifier", with(accepted(0, &[], 0), b"h", ok, b"hello"), "verifier"),
            ("another window", with(accepted(6, &mic, 0), b"h", [0, 0, 129], b"hello"), "verifier"),
            ("zeros", with(accepted(6, &[0; 28], 0), b"h", ok, b"hello"), "verifier"),
            ("an empty handle", with(accepted(6, &mic, 0), b"", ok, b"hello"), "handle"),
            ("a long handle", with(accepted(6, &mic, 0), &[1; 381], ok, b"hello"), "handle"),
            ("a handle beyond the limit", with(accepted(6, &mic, 0), &[1; 401], ok, b"hello"), "malformed"),
            ("no results", accepted(6, &mic, 0), "malformed"),
            ("another token", with(accepted(6, &mic, 0), b"h", ok, b"other"), "the server answers \"other\""),
            ("a refusal", with(accepted(0, &[], 0), b"", [0xd0000, 7, 0], b""), "0xd0000, minor 7"),
            (
                "a refusal with a token",
                with(accepted(0, &[], 0), b"", [0xd0000, 7, 0], b"no"),
                "answers \"no\"",
            ),
            ("a further token", with(accepted(0, &[], 0), b"h", [1, 0, 128], b"hello"), "major status 0x1"),
            ("a denied call", words(&[1, 1, 1, 1]), "not set up for Kerberos"),
            ("a failed call", accepted(0, &[], 5), "SystemErr"),
        ] {
            let mut server = Server::new(&bench, Protection::Integrity);
            let e = server.establish(&answer).await.unwrap_err().to_string();
            println!("{what}: {e}");
            assert!(e.contains(expected), "{what}: {e}");
            let right = server.established();
            server.establish(&right).await.unwrap();
        }
    });
}
