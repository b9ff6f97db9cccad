//! A server of RPC on streams in memory, in virtual time, for the targets of its security.

use std::{
    io::{IoSlice, IoSliceMut},
    net::{Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use millrace_admission::{Budget, BudgetConfig};
use millrace_buffer::{Arena, ArenaConfig};
use millrace_oncrpc::{
    CallContext, CallHeader, Credential, Dispatcher, Fault, MaybeReady, Outcome, Peer, Plan, Program,
    Protection, SMALL_REPLY, TransportKind, TransportSecurity,
    tcp::{TcpServer, TcpServerConfig, TcpStats},
};
use millrace_runtime::{ByteStream, RuntimeExt, RuntimeRef, memory_stream, virtual_time::VirtualTime};
use millrace_xdr::{Decoder, Encoder};

/// The program, its version, and the procedure that returns its argument of one word.
pub(super) const PROGRAM: u32 = 100_003;
pub(super) const VERSION: u32 = 4;
pub(super) const ECHO: u32 = 1;
/// The largest record.
const RECORD: usize = 64 << 10;
/// A client without progress is disconnected after this time.
const STALL: Duration = Duration::from_secs(5);
/// Time within which the server has processed what has arrived.
const STEP: Duration = Duration::from_millis(1);

/// Returns the words of even value. An odd one is that of calls that must not be executed.
struct Echo;

impl Program for Echo {
    fn number(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn plan(&self, _header: &CallHeader, _args: &mut Decoder<'_>, _length: usize) -> Plan {
        Plan { reply_bytes: Some(SMALL_REPLY as u32), ..Plan::default() }
    }

    fn call(&self, call: CallContext, mut reply: Encoder) -> MaybeReady<'static, Outcome> {
        let result = match call.header.proc {
            0 => Ok(()),
            ECHO => call.args().u32().map(|word| {
                if let Credential::Gss(gss) = &call.sender.credential
                    && gss.protection >= Protection::Integrity
                {
                    assert_eq!(word % 2, 0, "changed arguments are executed");
                }
                reply.put_u32(word);
            }),
            _ => return MaybeReady::Ready(Err(Fault::ProcUnavail)),
        };
        MaybeReady::Ready(result.map(|()| reply.into()).map_err(|_| Fault::GarbageArgs))
    }
}

/// The server of an execution.
pub(super) struct Server {
    pub(super) time: VirtualTime,
    pub(super) rt: RuntimeRef,
    arena: Arena,
    budget: Budget,
    stats: Arc<TcpStats>,
    config: TcpServerConfig,
}

impl Server {
    pub(super) fn new(change: impl FnOnce(&mut TcpServerConfig, &RuntimeRef)) -> Self {
        let time = VirtualTime::new(7);
        let rt = time.runtime();
        let mut config = TcpServerConfig { max_record: RECORD, ..TcpServerConfig::default() };
        (config.connection.stall_timeout, config.connection.first_call_timeout) = (STALL, STALL);
        change(&mut config, &rt);
        let limits = BudgetConfig {
            memory: 32 << 20,
            own: 64 << 10,
            largest: 1 << 20,
            connections: 128,
            per_client: 64,
        };
        Self {
            budget: Budget::new(limits, Arc::clone(&rt)),
            arena: Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false }),
            stats: Arc::default(),
            time,
            rt,
            config,
        }
    }

    /// A connection of a host. It has ended if there are too many.
    pub(super) fn connect(&self, host: u8) -> Connection {
        let addr = SocketAddr::from((Ipv4Addr::new(10, 0, 0, host), 1000));
        let (ours, theirs) = memory_stream(1 << 16, usize::MAX);
        let peer = Peer {
            addr,
            local: addr,
            transport: TransportKind::Tcp,
            security: TransportSecurity::None,
            connection: 1,
        };
        if let Ok(account) = self.budget.open(addr.ip().into()) {
            let server = TcpServer {
                service: Arc::new(Dispatcher::new([Arc::new(Echo) as Arc<dyn Program>])),
                rt: Arc::clone(&self.rt),
                arena: self.arena.clone(),
                config: self.config.clone(),
                stats: Arc::clone(&self.stats),
            };
            let served = server.serve(Box::new(theirs), peer, account, std::future::pending());
            self.rt.spawn("server", Box::pin(served));
        }
        self.over(Box::new(ours))
    }

    /// A client's end of a connection.
    pub(super) fn over(&self, stream: Box<dyn ByteStream>) -> Connection {
        Connection { stream, rt: Arc::clone(&self.rt) }
    }

    /// Runs `attack`. Then the server has ended the remaining connections, and released their memory.
    pub(super) fn run(&self, attack: impl Future<Output = ()>) {
        let done = self.time.block_on(async {
            attack.await;
            self.rt.sleep(STALL * 4).await;
        });
        if let Err(stuck) = done {
            panic!("{stuck}");
        }
        let stats = self.budget.stats();
        assert_eq!((stats.connections, stats.in_use), (0, 0), "connections, and bytes in use");
        assert_eq!(self.arena.stats().in_use, 0, "bytes of the arena in use");
    }
}

/// A client's end.
pub(super) struct Connection {
    pub(super) stream: Box<dyn ByteStream>,
    rt: RuntimeRef,
}

impl Connection {
    /// Sends as much as the server takes, and returns what it sends.
    pub(super) async fn exchange(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let mut answer = Vec::new();
        // The server takes 64 KiB at once, if it takes any.
        for _ in 0..16 {
            let mut cx = Context::from_waker(Waker::noop());
            while !bytes.is_empty()
                && let Poll::Ready(Ok(n @ 1..)) = self.stream.poll_write(&mut cx, &[IoSlice::new(bytes)])
            {
                bytes = &bytes[n..];
            }
            let _ = self.stream.poll_flush(&mut cx);
            self.rt.sleep(STEP).await;
            let (mut buf, before) = ([0; 4096], answer.len());
            let mut cx = Context::from_waker(Waker::noop());
            while let Poll::Ready(Ok(n @ 1..)) =
                self.stream.poll_read(&mut cx, &mut [IoSliceMut::new(&mut buf)])
            {
                answer.extend_from_slice(&buf[..n]);
            }
            if bytes.is_empty() && answer.len() == before {
                break;
            }
        }
        answer
    }

    /// Sends a record, and returns the reply, if there is one.
    pub(super) async fn call(&mut self, record: &[u8]) -> Option<Vec<u8>> {
        let answer = self.exchange(&marked(record)).await;
        let (mark, reply) = answer.split_first_chunk()?;
        let len = (u32::from_be_bytes(*mark) & !LAST) as usize;
        assert_eq!(reply.len(), len, "one whole reply");
        Some(reply.to_vec())
    }
}

const LAST: u32 = 1 << 31;

/// A record with its mark.
pub(super) fn marked(record: &[u8]) -> Vec<u8> {
    [&(LAST | record.len() as u32).to_be_bytes(), record].concat()
}
