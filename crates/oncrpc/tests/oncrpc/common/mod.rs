//! Helpers of the tests: `Doubler`, an RPC program with procedures that return, fail or wait, an arena, and
//! XDR words.

#![allow(unreachable_pub, clippy::unwrap_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use millrace_buffer::ArenaConfig;
use millrace_oncrpc::{
    AuthStat, CallContext, CallHeader, Credential, Fault, MaybeReady, Outcome, Peer, Plan, Program,
    SMALL_CALL, SMALL_REPLY, TransportKind, TransportSecurity,
};
use millrace_runtime::{RuntimeExt, RuntimeRef};
use millrace_xdr::{Arena, Decoder, Encoder};

pub fn arena() -> Arena {
    Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false })
}

pub fn peer() -> Peer {
    let addr = |port| std::net::SocketAddr::from(([127, 0, 0, 1], port));
    Peer {
        addr: addr(900),
        local: addr(2049),
        transport: TransportKind::Tcp,
        security: TransportSecurity::None,
        connection: 1,
    }
}

/// Program 100003 in versions 3 and 4. Procedures: 0 NULL; 1 doubles a number; 2 doubles it in a task; 3 to 5
/// return the faults; 6 returns the caller's machine name; 7 returns a payload; 8 doubles after the given
/// number of milliseconds; 9 returns the given number of bytes in the reply's head, and 10 as its payload.
#[derive(Default)]
pub struct Doubler {
    /// Runtime for the delay of procedure 8.
    pub rt: Option<RuntimeRef>,
    /// Completed calls of procedure 8.
    pub done: Arc<AtomicUsize>,
    /// Started calls of procedures 9 and 10.
    pub started: Arc<AtomicUsize>,
}

impl Program for Doubler {
    fn number(&self) -> u32 {
        100_003
    }
    fn versions(&self) -> std::ops::RangeInclusive<u32> {
        3..=4
    }
    fn plan(&self, header: &CallHeader, args: &mut Decoder<'_>, length: usize) -> Plan {
        let mut plan = Plan::default();
        if matches!(header.proc, 9 | 10) {
            plan.reply_bytes = (length < SMALL_CALL).then(|| args.u32().unwrap_or(0) + SMALL_REPLY as u32);
        }
        plan
    }
    fn call(&self, call: CallContext, mut reply: Encoder) -> MaybeReady<'static, Outcome> {
        fn double(call: &CallContext, mut reply: Encoder) -> Outcome {
            let n = call.args().u32().map_err(|_| Fault::GarbageArgs)?;
            reply.put_u32(n.wrapping_mul(2));
            Ok(reply.into())
        }
        match call.header.proc {
            0 => MaybeReady::Ready(Ok(reply.into())),
            1 => MaybeReady::Ready(double(&call, reply)),
            2 => MaybeReady::wait(async move { double(&call, reply) }),
            3 => MaybeReady::Ready(Err(Fault::Auth(AuthStat::TooWeak))),
            4 => MaybeReady::Ready(Err(Fault::Drop)),
            5 => MaybeReady::Ready(Err(Fault::SystemErr)),
            6 => {
                let machine = match &call.sender.credential {
                    Credential::Sys(sys) => sys.machine.to_vec(),
                    _ => Vec::new(),
                };
                reply.put_opaque(&machine);
                MaybeReady::Ready(Ok(reply.into()))
            }
            7 => {
                MaybeReady::Ready(call.args().payload(8 << 20).map_err(|_| Fault::GarbageArgs).map(|data| {
                    reply.put_payload(data);
                    reply.into()
                }))
            }
            8 => {
                let (rt, done) = (self.rt.clone().unwrap(), Arc::clone(&self.done));
                MaybeReady::wait(async move {
                    let ms = call.args().u32().map_err(|_| Fault::GarbageArgs)?;
                    rt.sleep(Duration::from_millis(ms.into())).await;
                    done.fetch_add(1, Ordering::Relaxed);
                    double(&call, reply)
                })
            }
            9 | 10 => {
                self.started.fetch_add(1, Ordering::Relaxed);
                let Ok(n) = call.args().u32() else { return MaybeReady::Ready(Err(Fault::GarbageArgs)) };
                let bytes = vec![7; n as usize];
                if call.header.proc == 9 {
                    reply.put_opaque(&bytes);
                } else {
                    let pieces = bytes.chunks(64 << 10).map(|piece| reply.arena().copy_from(piece).unwrap());
                    let payload = pieces.collect();
                    reply.put_payload(payload);
                }
                MaybeReady::Ready(Ok(reply.into()))
            }
            _ => MaybeReady::Ready(Err(Fault::ProcUnavail)),
        }
    }
}

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_be_bytes()).collect()
}
