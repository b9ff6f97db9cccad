//! RPCSEC_GSS at a client: every protection, lost and renewed contexts, and servers that violate the rules.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use millrace_kerberos_testing::{opaque, words};
use millrace_krb5::{Context, Enctype, PLAIN_AT, Role};
use millrace_oncrpc::{
    AcceptError, AuthStat, Credential, Protection, Reply, ReplySpec, Request, RpcError, Transport,
    call_header,
    gss::{Begun, CallSeal, GssClient, GssError, Initiator, NoContext},
    tcp::{TcpClientConfig, TcpTransport},
};
use millrace_runtime::{MemoryStream, RuntimeExt, RuntimeRef, memory_stream, virtual_time::VirtualTime};
use millrace_xdr::{Arena, Encoder};

use crate::gss::{Bench, Connection, Names, keys, run};

const PROGRAM: (u32, u32) = (100_003, 4);

/// Sends the name of a user as a token, and has the keys of [`Names`].
struct Name {
    enctype: Enctype,
    end: Duration,
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
            end,
            begun: AtomicUsize::new(0),
            fails: AtomicBool::new(false),
            user: "alice",
        })
    }
}

impl Initiator for Name {
    fn begin(&self) -> Result<Begun, NoContext> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        if self.fails.load(Ordering::Relaxed) {
            return Err(NoContext { reason: "no ticket".into(), expired: true });
        }
        let (enctype, end) = (self.enctype, self.end);
        let finish = Box::new(move |answer: &[u8]| match answer {
            b"hello" => Ok((keys(enctype, Role::Initiator, end), "alice".to_owned())),
            other => {
                let reason = format!("the server answers {:?}", String::from_utf8_lossy(other));
                Err(NoContext { reason, expired: false })
            }
        });
        Ok(Begun { token: self.user.into(), finish })
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
    client: &GssClient,
    to: &Arc<dyn Transport>,
    procedure: u32,
    put: impl FnOnce(&mut Encoder),
) -> Result<Reply, RpcError> {
    let seal = client.seal(to, PROGRAM).await.unwrap();
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
                let client = GssClient::new(
                    Arc::<Name>::clone(&user),
                    protection,
                    Arc::clone(&bench.rt),
                    bench.arena.clone(),
                );
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
                            request(&bench.arena, client.seal(to, PROGRAM).await.unwrap(), 7, |e| {
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
                assert_eq!((bench.gss.stats().contexts, user.begun.load(Ordering::Relaxed)), (1, 1));
                // The end of the context at the server.
                ends[0].submit(client.end(PROGRAM).unwrap()).await.unwrap();
                assert_eq!(bench.gss.stats().contexts, 0);
                assert!(client.end(PROGRAM).is_none() && client.ready().is_none());
            });
        }
    }
}

#[test]
fn statuses_of_calls_are_those_of_the_server() {
    for protection in Protection::ALL {
        run(Enctype::Aes256Sha1, async |bench| {
            let user = Name::new(bench.enctype, far());
            let client = GssClient::new(user, protection, Arc::clone(&bench.rt), bench.arena.clone());
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
        let client = GssClient::new(
            Arc::<Name>::clone(&user),
            Protection::Integrity,
            Arc::clone(&bench.rt),
            bench.arena.clone(),
        );
        let to = transport(&bench.rt, &bench.arena, bench.connect().0);
        let seal = client.seal(&to, PROGRAM).await.unwrap();
        bench.gss.set(Some(Arc::new(Names { enctype: bench.enctype, end: far() })));
        let e = to.submit(request(&bench.arena, seal.clone(), 0, |_| {})).await.err();
        assert_eq!(e, Some(RpcError::Auth(AuthStat::GssCredProblem)));
        client.reject(&seal);
        assert!(client.ready().is_none());
        let (one, two) = futures::join!(client.seal(&to, PROGRAM), client.seal(&to, PROGRAM));
        for new in [one.unwrap(), two.unwrap()] {
            // A late failure of the old context does not end the new one.
            client.reject(&seal);
            to.submit(request(&bench.arena, new, 0, |_| {})).await.unwrap();
        }
        assert_eq!(user.begun.load(Ordering::Relaxed), 2);
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
        let arena = bench.arena.clone();
        let client = GssClient::new(Arc::<Name>::clone(&user), Protection::Privacy, Arc::clone(&rt), arena);
        let to = transport(&rt, &bench.arena, bench.connect().0);
        let begun = || user.begun.load(Ordering::Relaxed);
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
        let (one, two) = futures::join!(client.seal(&to, PROGRAM), client.seal(&to, PROGRAM));
        assert_eq!([one.err(), two.err()], [(); 2].map(|()| Some(GssError::Initiate(expected.clone()))));
        assert_eq!(begun(), 4, "calls that wait have the failure for which they waited");
    })
    .unwrap();
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
        let client = GssClient::new(user, protection, Arc::clone(&bench.rt), bench.arena.clone());
        let keys = keys(bench.enctype, Role::Acceptor, far());
        Self { to, connection: Connection(theirs), client, arena: bench.arena.clone(), keys }
    }

    /// Answers the call that establishes a context. Returns what the client makes of it.
    async fn establish(&mut self, answer: &[u8]) -> Result<CallSeal, GssError> {
        let (client, to) = (Arc::clone(&self.client), Arc::clone(&self.to));
        let seal = async move { client.seal(&to, PROGRAM).await };
        let serve = async {
            let call = self.connection.receive().await.unwrap();
            assert_eq!(call[4..40], words(&[0, 2, PROGRAM.0, PROGRAM.1, 0, 6, 20, 1, 1])[..]);
            self.connection.send(&[&call[..4], answer].concat()).await;
        };
        futures::join!(seal, serve).0
    }

    /// A good answer, and one with another verifier.
    fn established(&self) -> Vec<u8> {
        let mic = self.keys.mic([&words(&[128])[..]]);
        [accepted(6, &mic, 0), opaque(b"handle"), words(&[0, 0, 128]), opaque(b"hello")].concat()
    }

    /// Answers the next call.
    async fn answer(&mut self, answer: &Answer<'_>) -> Result<Reply, RpcError> {
        let seal = self.client.ready().unwrap();
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
