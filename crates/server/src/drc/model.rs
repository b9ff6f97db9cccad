//! Model test: well-behaved clients beside others, with the invariant that no call is executed twice.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
    pin::Pin,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use futures::channel::oneshot;
use millrace_buffer::{Arena, ArenaConfig};
use millrace_nfs::v3::Status;
use millrace_oncrpc::{
    AuthStat, CallContext, Credential, Fault, MaybeReady, Message, Peer, TransportKind, TransportSecurity,
    call_header,
};
use millrace_runtime::{BoxFuture, RuntimeExt, sync::Mutex, virtual_time::VirtualTime};
use millrace_xdr::Encoder;
use proptest::prelude::*;

use super::{
    DuplicateRequestCache,
    harness::{Procedures, Refusal, TestServer},
};

/// Number of well-behaved clients.
const CLIENTS: usize = 3;
/// Maximum number of outstanding calls per client.
const OUTSTANDING: usize = 6;
/// Number of addresses of other clients.
const OTHERS: u32 = 30;
/// With 16 parts and growth by a factor of 16, every client has a share of 7 entries in each part.
const REPLIES: usize = 256;
/// Time during which a client retransmits a call.
const PATIENCE: Duration = Duration::from_secs(55);

/// Counts executions. The first argument of a call selects its treatment: 0: executed immediately; 1:
/// executed later; 2 and 4: the caller is not admitted; 3: the file system rejects it.
#[derive(Clone, Default)]
struct Files(Arc<Mutex<Executed>>);

#[derive(Default)]
struct Executed {
    times: HashMap<(IpAddr, u32), u32>,
    open: HashMap<(IpAddr, u32), oneshot::Sender<()>>,
}

fn treatment(call: &CallContext) -> u32 {
    call.args().u32().unwrap()
}

impl Procedures for Files {
    fn admit(&self, call: &CallContext) -> Result<(), Refusal> {
        match treatment(call) {
            2 => Err(Refusal::Nfs(Status::Stale)),
            4 => Err(Refusal::Rpc(Fault::Auth(AuthStat::TooWeak))),
            _ => Ok(()),
        }
    }

    fn execute(&self, call: &CallContext, mut reply: Encoder) -> MaybeReady<'static, Result<Encoder, Fault>> {
        if treatment(call) == 3 {
            return MaybeReady::Ready(Refusal::Nfs(Status::Access).answer(reply));
        }
        reply.put(&Status::Ok);
        let id = (call.sender.peer.addr.ip(), call.header.xid);
        let mut executed = self.0.lock();
        *executed.times.entry(id).or_default() += 1;
        if treatment(call) == 0 {
            return MaybeReady::Ready(Ok(reply));
        }
        let (tx, rx) = oneshot::channel();
        executed.open.insert(id, tx);
        MaybeReady::wait(async move {
            let _ = rx.await;
            Ok(reply)
        })
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// A client makes a new call; executed immediately or later.
    Call(usize, bool),
    /// A client retransmits an outstanding call on the same or another connection.
    Again(usize, usize, bool),
    /// A call that is executed later completes.
    Done(usize, usize),
    /// The client receives the reply.
    Acknowledge(usize, usize),
    /// Other clients make calls: first address, number of addresses, calls per address, and treatment.
    Others(u32, u32, u32, u32),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (client, which) = (0..CLIENTS, 0..OUTSTANDING);
    let step = prop_oneof![
        4 => (client.clone(), any::<bool>()).prop_map(|(c, later)| Step::Call(c, later)),
        4 => (client.clone(), which.clone(), any::<bool>()).prop_map(|(c, n, same)| Step::Again(c, n, same)),
        2 => (client.clone(), which.clone()).prop_map(|(c, n)| Step::Done(c, n)),
        2 => (client, which).prop_map(|(c, n)| Step::Acknowledge(c, n)),
        3 => (0..OTHERS, 1..OTHERS, 1..200_u32, 0..5_u32).prop_map(|(a, n, k, f)| Step::Others(a, n, k, f)),
        1 => (1..30_u64).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..60)
}

/// An outstanding call.
struct Waiting {
    xid: u32,
    later: bool,
    /// Time of the last transmission or completion, from which retention is guaranteed.
    since: Duration,
    /// Futures that the server's connections poll.
    answers: Vec<BoxFuture<'static, Option<Message>>>,
    done: bool,
}

struct Model {
    time: VirtualTime,
    arena: Arena,
    files: Files,
    front: TestServer,
    waiting: Vec<Vec<Waiting>>,
    next: u32,
    connections: u64,
}

fn address(client: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, client as u8).into()
}

impl Model {
    fn new() -> Self {
        let (time, files) = (VirtualTime::new(1), Files::default());
        let cache = DuplicateRequestCache::new(REPLIES, time.runtime());
        Self {
            arena: Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false }),
            front: TestServer::new(files.clone(), cache),
            waiting: (0..CLIENTS).map(|_| Vec::new()).collect(),
            time,
            files,
            next: 0,
            connections: 1000,
        }
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.time.runtime().now().as_nanos())
    }

    /// Sends a call; returns the future that its connection polls.
    fn send(
        &self,
        addr: IpAddr,
        connection: u64,
        xid: u32,
        treatment: u32,
    ) -> MaybeReady<'static, Option<Message>> {
        let mut e = Encoder::new(&self.arena, 64);
        call_header(&mut e, millrace_nfs::v3::PROGRAM, 3, 12, &Credential::None);
        e.put_u32(treatment);
        e.put_u32(xid);
        let mut message = e.finish().unwrap();
        assert!(message.set_xid(xid));
        let addr = (addr, 900).into();
        let peer = Peer {
            addr,
            local: addr,
            transport: TransportKind::Tcp,
            security: TransportSecurity::None,
            connection,
        };
        self.front.call(&peer, message, &self.arena)
    }

    fn take(waiting: &mut Waiting, answer: MaybeReady<'static, Option<Message>>) {
        if let MaybeReady::Pending(answer) = answer {
            waiting.answers.push(answer);
        }
    }

    fn poll(waiting: &mut Waiting) {
        let mut cx = Context::from_waker(Waker::noop());
        waiting.answers.retain_mut(|a| Pin::new(a).poll(&mut cx).is_pending());
    }

    fn run(&mut self, step: Step) {
        let now = self.now();
        match step {
            Step::Call(client, later) if self.waiting[client].len() < OUTSTANDING => {
                self.next += 1;
                let xid = self.next;
                let answer = self.send(address(client), client as u64, xid, later.into());
                let mut waiting = Waiting { xid, later, since: now, answers: Vec::new(), done: !later };
                Self::take(&mut waiting, answer);
                self.waiting[client].push(waiting);
            }
            Step::Again(client, which, same) if which < self.waiting[client].len() => {
                let Waiting { xid, later, since, done, .. } = self.waiting[client][which];
                if done && now - since > PATIENCE {
                    return;
                }
                self.connections += 1;
                let connection = if same { client as u64 } else { self.connections };
                let answer = self.send(address(client), connection, xid, later.into());
                Self::take(&mut self.waiting[client][which], answer);
            }
            Step::Done(client, which) if which < self.waiting[client].len() => {
                let waiting = &mut self.waiting[client][which];
                let open = self.files.0.lock().open.remove(&(address(client), waiting.xid));
                if let Some(open) = open {
                    let _ = open.send(());
                    (waiting.since, waiting.done) = (now, true);
                    Self::poll(waiting);
                }
            }
            Step::Acknowledge(client, which) if self.waiting[client].get(which).is_some_and(|w| w.done) => {
                self.waiting[client].swap_remove(which);
            }
            Step::Others(first, addresses, calls, treatment) => {
                for n in 0..addresses {
                    let addr = Ipv4Addr::new(11, 0, 0, ((first + n) % OTHERS) as u8).into();
                    for _ in 0..calls {
                        self.next += 1;
                        // A call that would be executed later is dropped immediately.
                        drop(self.send(addr, 500, self.next, treatment));
                    }
                }
            }
            Step::Wait(seconds) => {
                let sleep = self.time.runtime().sleep(Duration::from_secs(seconds));
                self.time.block_on(sleep).unwrap();
            }
            _ => {}
        }
    }

    fn check(&self) {
        let executed = self.files.0.lock();
        for (client, waiting) in self.waiting.iter().enumerate() {
            for call in waiting {
                let times = executed.times.get(&(address(client), call.xid)).copied().unwrap_or(0);
                assert_eq!(times, 1, "client {client}, call {}", call.xid);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_call_of_a_well_behaved_client_is_executed_twice(steps in steps()) {
        let mut model = Model::new();
        for step in steps {
            model.run(step);
            model.check();
        }
    }
}
