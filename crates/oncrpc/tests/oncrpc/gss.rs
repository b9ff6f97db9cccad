//! RPCSEC_GSS at a server, with a client that makes each message by hand: protections, errors, hostile clients.

use std::{
    io::{IoSlice, IoSliceMut},
    sync::Arc,
    time::Duration,
};

use futures::future::poll_fn;
use millrace_admission::Account;
use millrace_kerberos_testing::{self as kerberos, Client, Target, Words, credential, opaque};
use millrace_krb5::{Context, Enctype, Parameters, Role};
use millrace_oncrpc::{
    Dispatcher, GssCaller, Program,
    gss::{Accepted, Acceptor, GssServer, Refused},
    serving::ConnectionConfig,
    tcp::{TcpServer, TcpServerConfig},
};
use millrace_runtime::{
    ByteStream, MemoryStream, RuntimeRef, memory_stream, tokio_rt::TokioRuntime, virtual_time::VirtualTime,
};
use millrace_xdr::Arena;

use crate::common::{Doubler, arena, peer, words};

/// `auth_stat` of denied calls.
const BADCRED: u32 = 1;
const REJECTEDCRED: u32 = 2;
const BADVERF: u32 = 3;
const CREDPROBLEM: u32 = 13;
const CTXPROBLEM: u32 = 14;
/// `accept_stat`.
const GARBAGE_ARGS: u32 = 4;
const SYSTEM_ERR: u32 = 5;

pub(crate) fn keys(enctype: Enctype, role: Role, end: Duration) -> Box<Context> {
    let key = vec![7; enctype.key_len()];
    let parameters = Parameters { role, enctype, key: &key, acceptor_subkey: true, sequence: 5, end };
    Box::new(Context::new(&parameters).unwrap())
}

/// Accepts the name of a user as a token, with keys that both ends have.
pub(crate) struct Names {
    pub(crate) enctype: Enctype,
    pub(crate) end: Duration,
}

impl Acceptor for Names {
    fn accept(&self, token: &[u8]) -> Result<Accepted, Refused> {
        if token == b"stranger" {
            let reason = "a stranger".into();
            return Err(Refused { token: b"no".to_vec(), major: 0xd0000, minor: 7, reason });
        }
        let principal = String::from_utf8(token.to_vec()).unwrap();
        let context = keys(self.enctype, Role::Acceptor, self.end);
        Ok(Accepted { token: b"hello".to_vec(), context, caller: GssCaller { principal, user: None } })
    }
}

pub(crate) struct Bench {
    pub(crate) rt: RuntimeRef,
    pub(crate) arena: Arena,
    pub(crate) gss: Arc<GssServer>,
    pub(crate) enctype: Enctype,
}

pub(crate) fn run<F: Future<Output = ()>>(enctype: Enctype, test: impl FnOnce(Bench) -> F) {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt.block_on(async { test(Bench::new(TokioRuntime::current(), enctype)).await });
}

impl Bench {
    pub(crate) fn new(rt: RuntimeRef, enctype: Enctype) -> Self {
        let gss = Arc::new(GssServer::default());
        gss.set(Some(Arc::new(Names { enctype, end: rt.wall_clock() + Duration::from_secs(3600) })));
        Self { rt, arena: arena(), gss, enctype }
    }

    /// A connection to the server.
    pub(crate) fn connect(&self) -> Connection {
        let (ours, theirs) = memory_stream(1 << 20, 100_000);
        let program = Doubler { rt: Some(Arc::clone(&self.rt)), ..Doubler::default() };
        let connection = ConnectionConfig { gss: Arc::clone(&self.gss), ..ConnectionConfig::default() };
        let server = TcpServer {
            service: Arc::new(Dispatcher::new([Arc::new(program) as Arc<dyn Program>])),
            rt: Arc::clone(&self.rt),
            arena: self.arena.clone(),
            config: TcpServerConfig { connection, max_record: 4 << 20, ..TcpServerConfig::default() },
            stats: Arc::default(),
        };
        let served = server.serve(Box::new(theirs), peer(), Account::unlimited(), std::future::pending());
        self.rt.spawn("server", Box::pin(served));
        Connection(ours)
    }

    /// The client's side of a context that `connection` establishes.
    async fn context(&self, connection: &mut Connection, user: &str) -> Client {
        let reply = connection.call(&init(user.as_bytes())).await.unwrap();
        Client::established(&reply, XID, |token| {
            assert_eq!(token, b"hello");
            keys(self.enctype, Role::Initiator, Duration::MAX)
        })
    }
}

/// The client's end of a connection.
pub(crate) struct Connection(pub(crate) MemoryStream);

impl Connection {
    pub(crate) async fn send(&mut self, message: &[u8]) {
        let mark = ((1 << 31) | message.len() as u32).to_be_bytes();
        let bytes = [&mark[..], message].concat();
        let mut unsent = &bytes[..];
        while !unsent.is_empty() {
            let n = poll_fn(|cx| self.0.poll_write(cx, &[IoSlice::new(unsent)])).await.unwrap();
            unsent = &unsent[n..];
        }
    }

    /// The next reply; `None` at the end of the connection.
    pub(crate) async fn receive(&mut self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 4];
        let (mut have, mut is_mark) = (0, true);
        loop {
            while have < bytes.len() {
                let mut space = [IoSliceMut::new(&mut bytes[have..])];
                match poll_fn(|cx| self.0.poll_read(cx, &mut space)).await {
                    Ok(n) if n > 0 => have += n,
                    _ => return None,
                }
            }
            if !is_mark {
                return Some(bytes);
            }
            let len = Words(&bytes).word() & !(1 << 31);
            (bytes, have, is_mark) = (vec![0; len as usize], 0, false);
        }
    }

    async fn call(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        self.send(message).await;
        self.receive().await
    }
}

/// Of all calls: replies are awaited one after another.
const XID: u32 = 77;
/// Services: `krb5`, `krb5i`, `krb5p`.
const PLAIN: u32 = 1;
const INTEGRITY: u32 = 2;
const PRIVACY: u32 = 3;

fn at(procedure: u32) -> Target {
    Target { xid: XID, program: 100_003, version: 4, procedure }
}

fn header(procedure: u32, body: &[u8]) -> Vec<u8> {
    kerberos::header(at(procedure), body)
}

fn init(token: &[u8]) -> Vec<u8> {
    kerberos::init(at(0), token)
}

fn denied(reply: &[u8]) -> u32 {
    kerberos::denied(reply, XID)
}

/// Calls a procedure, and returns status and results.
async fn run_call(
    client: &Client,
    to: &mut Connection,
    procedure: u32,
    service: u32,
    args: &[u8],
) -> (u32, Vec<u8>) {
    let sequence = client.next();
    let reply = to.call(&client.call(at(procedure), sequence, service, args)).await.unwrap();
    client.results(&reply, at(procedure), sequence, service)
}

#[test]
fn calls_are_executed_with_every_protection_and_encryption_type() {
    for enctype in Enctype::ALL {
        run(enctype, async |bench| {
            let mut connection = bench.connect();
            let client = bench.context(&mut connection, "alice").await;
            let mut other = bench.connect();
            for protection in [PLAIN, INTEGRITY, PRIVACY] {
                // On another connection than the one that has established the context, too.
                for to in [&mut connection, &mut other] {
                    assert_eq!(run_call(&client, to, 0, protection, &[]).await, (0, Vec::new()));
                    assert_eq!(run_call(&client, to, 1, protection, &words(&[21])).await, (0, words(&[42])));
                    assert_eq!(run_call(&client, to, 2, protection, &words(&[4])).await, (0, words(&[8])));
                    for len in [0, 1, 2, 5, 4096, 5001, 65_300, 70_001, 1 << 20] {
                        let data = opaque(&vec![len as u8; len]);
                        assert_eq!(
                            run_call(&client, to, 7, protection, &data).await,
                            (0, data),
                            "{len} bytes"
                        );
                    }
                    // A head instead of a payload, of several lengths.
                    for len in [0, 90, 300, 5000] {
                        let (status, results) = run_call(&client, to, 9, protection, &words(&[len])).await;
                        assert_eq!((status, results), (0, opaque(&vec![7; len as usize])));
                    }
                }
            }
            assert_eq!(bench.gss.stats().contexts, 1);
        });
    }
}

#[test]
fn results_that_are_errors_are_signed_and_not_protected_further() {
    run(Enctype::Aes256Sha1, async |bench| {
        let mut to = bench.connect();
        let client = bench.context(&mut to, "alice").await;
        for protection in [PLAIN, INTEGRITY, PRIVACY] {
            let status = async |to: &mut Connection, proc| run_call(&client, to, proc, protection, &[]).await;
            assert_eq!(status(&mut to, 1).await, (GARBAGE_ARGS, vec![]), "arguments that are missing");
            assert_eq!(status(&mut to, 5).await, (SYSTEM_ERR, vec![]));
            assert_eq!(status(&mut to, 99).await, (3, vec![]), "an unknown procedure");
            let sequence = client.next();
            let reply = to.call(&client.call(at(3), sequence, protection, &[])).await.unwrap();
            assert_eq!(denied(&reply), 5, "the program has denied the call");
        }
    });
}

#[test]
fn wrong_credentials_and_verifiers_are_denied_with_the_status_of_the_rfc() {
    run(Enctype::Aes256Sha1, async |bench| {
        let mut to = bench.connect();
        let client = bench.context(&mut to, "alice").await;
        let handle = &client.handle;
        let none = words(&[0, 0]);
        let data = |body: &[u8]| client.signed(header(1, body));
        let versioned = |version| [words(&[version, 0, 1, 1]), opaque(handle)].concat();
        let tail = [credential(0, 1, 1, handle), words(&[0])].concat();
        let mut short = credential(0, 1, 1, handle);
        short.truncate(short.len() - 4);
        let mic =
            |len| [header(1, &credential(0, 1, 1, handle)), words(&[6]), opaque(&vec![4; len])].concat();
        let reflected = {
            // A token of the server's own.
            let header = header(1, &credential(0, 1, 1, handle));
            let mic = keys(bench.enctype, Role::Acceptor, Duration::MAX).mic([&header[..]]);
            [header, words(&[6]), opaque(&mic)].concat()
        };
        let mut wrong_xid = client.call(at(1), 1, PLAIN, &words(&[1]));
        wrong_xid[23] ^= 1; // The procedure, which the client has signed.
        let cases = [
            ("version 0", data(&versioned(0)), REJECTEDCRED),
            ("version 2", data(&versioned(2)), REJECTEDCRED),
            ("purpose 4", data(&credential(4, 1, 1, handle)), REJECTEDCRED),
            ("service 0", data(&credential(0, 1, 0, handle)), BADCRED),
            ("service 4", data(&credential(0, 1, 4, handle)), BADCRED),
            ("bytes after the handle", data(&tail), BADCRED),
            ("a truncated credential", data(&short), BADCRED),
            ("an empty credential", data(&[]), BADCRED),
            (
                "INIT of another procedure",
                [header(1, &credential(1, 0, 1, &[])), none.clone()].concat(),
                BADCRED,
            ),
            ("INIT with a handle", [header(0, &credential(1, 0, 1, handle)), none.clone()].concat(), BADCRED),
            ("INIT with a verifier", client.signed(header(0, &credential(1, 0, 1, &[]))), BADVERF),
            ("CONTINUE_INIT", [header(0, &credential(2, 0, 1, handle)), none.clone()].concat(), CREDPROBLEM),
            (
                "CONTINUE_INIT of an unknown context",
                [header(0, &credential(2, 0, 1, &[0; 8])), none.clone()].concat(),
                CREDPROBLEM,
            ),
            ("DESTROY of another procedure", data(&credential(3, 1, 1, handle)), BADCRED),
            ("no verifier", [header(1, &credential(0, 1, 1, handle)), none].concat(), BADVERF),
            ("no handle", data(&credential(0, 1, 1, &[])), CREDPROBLEM),
            ("a short handle", data(&credential(0, 1, 1, &handle[1..])), CREDPROBLEM),
            ("an unknown handle", data(&credential(0, 1, 1, &[0; 8])), CREDPROBLEM),
            ("a long handle", data(&credential(0, 1, 1, &[0; 380])), CREDPROBLEM),
            ("a credential of 404 bytes", data(&credential(0, 1, 1, &[0; 384])), BADCRED),
            ("a MIC of 0 bytes", mic(0), CREDPROBLEM),
            ("a MIC of 27 bytes", mic(27), CREDPROBLEM),
            ("a MIC of 28 bytes", mic(28), CREDPROBLEM),
            ("a MIC of 29 bytes", mic(29), CREDPROBLEM),
            ("a MIC of 400 bytes", mic(400), CREDPROBLEM),
            ("a MIC of 401 bytes", mic(401), BADVERF),
            ("the server's own token", reflected, CREDPROBLEM),
            ("another header", wrong_xid, CREDPROBLEM),
            ("sequence number MAXSEQ + 1", data(&credential(0, 0x8000_0001, 1, handle)), CTXPROBLEM),
            ("sequence number 2^32 - 1", data(&credential(0, u32::MAX, 1, handle)), CTXPROBLEM),
        ];
        for (what, call, expected) in cases {
            println!("{what}");
            assert_eq!(denied(&to.call(&call).await.unwrap()), expected, "{what}");
        }
        let first = client.call(at(1), 0, PLAIN, &words(&[1]));
        assert_eq!(
            client.results(&to.call(&first).await.unwrap(), at(0), 0, PLAIN),
            (0, words(&[2])),
            "number 0"
        );
        // None of them has moved the window.
        assert_eq!(run_call(&client, &mut to, 1, PLAIN, &words(&[2])).await, (0, words(&[4])));
        let last = client.call(at(1), 0x8000_0000, PLAIN, &words(&[3]));
        let reply = to.call(&last).await.unwrap();
        assert_eq!(client.results(&reply, at(0), 0x8000_0000, PLAIN), (0, words(&[6])), "MAXSEQ");
    });
}

#[test]
fn replayed_calls_and_those_below_the_window_get_no_reply_on_any_connection() {
    run(Enctype::Aes256Sha1, async |bench| {
        let mut to = bench.connect();
        let client = bench.context(&mut to, "alice").await;
        let plain = PLAIN;
        let call = |sequence| client.call(at(1), sequence, plain, &words(&[5]));
        let first = call(600);
        to.call(&first).await.unwrap();
        // Out of order, as on several connections, and far beyond what was announced.
        for sequence in [599, 1, 300] {
            to.call(&call(sequence)).await.unwrap();
        }
        to.call(&call(1 << 30)).await.unwrap();
        for (what, replayed) in [("a replay", first), ("below the window", call((1 << 30) - 1024))] {
            let mut other = bench.connect();
            assert_eq!(other.call(&replayed).await, None, "{what} on another connection");
            let mut same = bench.connect();
            same.call(&call(client.next() + (1 << 30))).await.unwrap();
            assert_eq!(same.call(&replayed).await, None, "{what} on the same connection");
        }
        assert_eq!(bench.gss.stats().discarded, 4);
        let reply = to.call(&call((1 << 30) + 100)).await.unwrap();
        assert_eq!(
            client.results(&reply, at(0), (1 << 30) + 100, plain),
            (0, words(&[10])),
            "another connection stays"
        );
    });
}

#[test]
fn arguments_that_are_not_the_clients_are_garbage() {
    run(Enctype::Aes256Sha1, async |bench| {
        let mut to = bench.connect();
        let client = bench.context(&mut to, "alice").await;
        let (integrity, privacy) = (INTEGRITY, PRIVACY);
        let good = words(&[5]);
        let changed = |mut body: Vec<u8>, at: usize| {
            body[at] ^= 1;
            body
        };
        let long = |mut body: Vec<u8>, length: u32| {
            body[..4].copy_from_slice(&length.to_be_bytes());
            body
        };
        let unsealed = |plain: &[u8], flags: u8| {
            // Integrity without confidentiality (RFC 4121 section 4.2.4), as a token.
            let mut token = client.sealed(plain);
            token[2] &= !flags;
            token
        };
        for (what, protection, body) in [
            ("no body", integrity, Box::new(|_| vec![]) as Box<dyn Fn(u32) -> Vec<u8>>),
            ("no body", privacy, Box::new(|_| vec![])),
            ("arguments in the clear", integrity, Box::new(|_| good.clone())),
            ("arguments in the clear", privacy, Box::new(|_| good.clone())),
            ("another number", integrity, Box::new(|n| client.body(n + 1, integrity, &good))),
            ("another number", privacy, Box::new(|n| client.body(n + 1, privacy, &good))),
            ("a changed argument", integrity, Box::new(|n| changed(client.body(n, integrity, &good), 11))),
            ("a changed token", privacy, Box::new(|n| changed(client.body(n, privacy, &good), 50))),
            ("a changed checksum", integrity, Box::new(|n| changed(client.body(n, integrity, &good), 35))),
            (
                "a length beyond the call",
                integrity,
                Box::new(|n| long(client.body(n, integrity, &good), u32::MAX)),
            ),
            (
                "a length beyond the call",
                privacy,
                Box::new(|n| long(client.body(n, privacy, &good), u32::MAX)),
            ),
            ("an odd length", integrity, Box::new(|n| long(client.body(n, integrity, &good), 7))),
            (
                "an empty body",
                integrity,
                Box::new(|_| [opaque(&[]), opaque(&client.keys.mic([&[][..]]))].concat()),
            ),
            ("an empty body", privacy, Box::new(|_| opaque(&client.sealed(&[])))),
            ("half a number", privacy, Box::new(|_| opaque(&client.sealed(&[0, 0])))),
            ("a token of 59 bytes", privacy, Box::new(|_| opaque(&[5; 59]))),
            ("no confidentiality", privacy, Box::new(|n| opaque(&unsealed(&words(&[n, 5]), 2)))),
            (
                "data after the checksum",
                integrity,
                Box::new(|n| [client.body(n, integrity, &good), words(&[0])].concat()),
            ),
            (
                "data after the token",
                privacy,
                Box::new(|n| [client.body(n, privacy, &good), words(&[0])].concat()),
            ),
            ("no checksum", integrity, Box::new(|n| opaque(&words(&[n, 5])))),
            (
                "a long checksum",
                integrity,
                Box::new(|n| [opaque(&words(&[n, 5])), opaque(&[4; 400])].concat()),
            ),
            ("the body of the other protection", privacy, Box::new(|n| client.body(n, integrity, &good))),
            ("the body of the other protection", integrity, Box::new(|n| client.body(n, privacy, &good))),
        ] {
            println!("{what} with {protection}");
            let sequence = client.next();
            let call = [client.header(at(1), sequence, protection), body(sequence)].concat();
            let reply = to.call(&call).await.unwrap();
            assert_eq!(client.results(&reply, at(0), sequence, protection), (GARBAGE_ARGS, vec![]), "{what}");
        }
        assert_eq!(run_call(&client, &mut to, 1, privacy, &good).await, (0, words(&[10])));
    });
}

#[test]
fn a_sealed_body_with_any_rotation_is_opened() {
    run(Enctype::Aes256Sha1, async |bench| {
        let mut to = bench.connect();
        let client = bench.context(&mut to, "alice").await;
        for rotation in [1, 28, 60, 65_535] {
            let sequence = client.next();
            let mut token = client.sealed(&words(&[sequence, 5]));
            token[6..8].copy_from_slice(&u16::to_be_bytes(rotation));
            let len = token.len() - 16;
            token[16..].rotate_right(usize::from(rotation) % len);
            let call = [client.header(at(1), sequence, 3), opaque(&token)].concat();
            let reply = to.call(&call).await.unwrap();
            assert_eq!(client.results(&reply, at(0), sequence, PRIVACY), (0, words(&[10])), "{rotation}");
        }
    });
}

#[test]
fn a_destroyed_context_answers_its_calls_in_progress_and_no_others() {
    run(Enctype::Aes128Sha256, async |bench| {
        let mut to = bench.connect();
        let client = bench.context(&mut to, "alice").await;
        let (slow, last) = (client.next(), client.next());
        to.send(&client.call(at(8), slow, PRIVACY, &words(&[50]))).await;
        let mut other = bench.connect();
        let destroy = client.signed(header(0, &credential(3, last, 1, &client.handle)));
        let reply = other.call(&destroy).await.unwrap();
        assert_eq!(client.results(&reply, at(0), last, PLAIN), (0, vec![]));
        assert_eq!(bench.gss.stats().contexts, 0);
        let reply = to.receive().await.unwrap();
        assert_eq!(client.results(&reply, at(0), slow, PRIVACY), (0, words(&[100])));
        for to in [&mut to, &mut other] {
            let call = client.call(at(1), client.next(), PLAIN, &words(&[1]));
            assert_eq!(denied(&to.call(&call).await.unwrap()), CREDPROBLEM);
        }
    });
}

#[test]
fn a_context_that_expires_during_a_call_answers_it_and_no_other() {
    let time = VirtualTime::new(1);
    let (rt, gss, enctype) = (time.runtime(), Arc::new(GssServer::default()), Enctype::Aes128Sha1);
    gss.set(Some(Arc::new(Names { enctype, end: rt.wall_clock() + Duration::from_secs(5) })));
    let bench = Bench { rt, arena: arena(), gss, enctype };
    time.block_on(async {
        let mut to = bench.connect();
        let client = bench.context(&mut to, "alice").await;
        let slow = client.next();
        let reply = to.call(&client.call(at(8), slow, PRIVACY, &words(&[6000]))).await.unwrap();
        assert_eq!(client.results(&reply, at(0), slow, PRIVACY), (0, words(&[12_000])));
        let call = client.call(at(1), client.next(), PLAIN, &words(&[1]));
        assert_eq!(denied(&to.call(&call).await.unwrap()), CREDPROBLEM);
        assert_eq!(bench.gss.stats().contexts, 0);
    })
    .unwrap();
}

#[test]
fn the_protection_may_change_within_a_context() {
    run(Enctype::Aes256Sha1, async |bench| {
        let mut to = bench.connect();
        let client = bench.context(&mut to, "alice").await;
        for service in [PRIVACY, PLAIN, INTEGRITY, PLAIN, PRIVACY] {
            assert_eq!(run_call(&client, &mut to, 1, service, &words(&[4])).await, (0, words(&[8])));
        }
        assert_eq!(bench.gss.stats().contexts, 1);
    });
}

#[test]
fn many_requests_for_contexts_leave_others_theirs_and_are_bounded() {
    const FLOOD: usize = 500;
    run(Enctype::Aes256Sha1, async |bench| {
        let mut other = bench.connect();
        let bob = bench.context(&mut other, "bob").await;
        let mut flood = bench.connect();
        for _ in 0..FLOOD {
            flood.send(&init(b"mallory")).await;
        }
        // Another user works, and gets a context, in between.
        assert_eq!(run_call(&bob, &mut other, 1, PRIVACY, &words(&[4])).await, (0, words(&[8])));
        let alice = bench.context(&mut bench.connect(), "alice").await;
        assert_eq!(run_call(&alice, &mut other, 1, PLAIN, &words(&[4])).await, (0, words(&[8])));
        for _ in 0..FLOOD {
            flood.receive().await.unwrap();
        }
        assert!(bench.gss.stats().contexts < FLOOD / 4, "{:?}", bench.gss.stats());
        for client in [&alice, &bob] {
            assert_eq!(run_call(client, &mut other, 1, PLAIN, &words(&[4])).await, (0, words(&[8])));
        }
    });
}

#[test]
fn a_context_ends_with_its_ticket_and_with_its_acceptor() {
    run(Enctype::Aes256Sha384, async |bench| {
        let mut to = bench.connect();
        let client = bench.context(&mut to, "alice").await;
        let call = || client.call(at(1), client.next(), PLAIN, &words(&[1]));
        bench.gss.set(Some(Arc::new(Names { enctype: bench.enctype, end: bench.rt.wall_clock() })));
        assert_eq!(denied(&to.call(&call()).await.unwrap()), CREDPROBLEM, "another acceptor");
        let expired = bench.context(&mut to, "alice").await;
        assert_eq!(bench.gss.stats().contexts, 1);
        let call = expired.call(at(1), 1, PLAIN, &words(&[1]));
        assert_eq!(denied(&to.call(&call).await.unwrap()), CREDPROBLEM, "an expired context");
        assert_eq!(bench.gss.stats().contexts, 0);
        bench.gss.set(None);
        assert_eq!(denied(&to.call(&call).await.unwrap()), BADCRED, "an unsupported flavor");
        let null = [header(0, &[]), words(&[0, 0])].concat();
        assert_eq!(
            kerberos::accepted(&to.call(&null).await.unwrap(), XID),
            (vec![], &[][..]),
            "NULL has any flavor"
        );
    });
}

#[test]
fn a_refused_context_has_a_status_and_a_token_and_no_handle() {
    run(Enctype::Aes256Sha1, async |bench| {
        let mut to = bench.connect();
        let reply = to.call(&init(b"stranger")).await.unwrap();
        let (verifier, results) = kerberos::accepted(&reply, XID);
        assert!(verifier.is_empty());
        let expected = [opaque(&[]), words(&[0xd0000, 7, 512]), opaque(b"no")].concat();
        assert_eq!(results, expected);
        for token in [&init(&[0; (64 << 10) + 1])[..], &init(b"x")[..60]] {
            let (_, status, _) = kerberos::answered(&to.call(token).await.unwrap(), XID);
            assert_eq!(status, GARBAGE_ARGS);
        }
        let stats = bench.gss.stats();
        assert_eq!((stats.contexts, stats.refused), (0, 1));
        bench.context(&mut to, "alice").await;
    });
}
