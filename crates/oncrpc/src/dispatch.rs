//! Dispatch of calls to programs, and replies for their outcomes.

use std::sync::Arc;

use millrace_runtime::MaybeReady;
use millrace_xdr::{Arena, Decoder, Encoder, Message};

use crate::{
    AcceptError, AuthStat, CallContext, CallHeader, Credential, Fault, Outcome, Plan, Program, ReplyHeader,
    ReplyStatus, Results, Service,
    callbacks::Callbacks,
    gss::GssCredential,
    message::{RPCSEC_GSS, bare_reply},
};

/// AUTH_SHORT (RFC 5531 section 8.2): a token that a server issues; this server issues none.
const AUTH_SHORT: u32 = 2;

/// The programs of a server, as one [`Service`] for every transport.
///
/// It checks credential, program and version, in the order of RFC 5531. Message type and RPC version are
/// checked when the header is decoded ([`crate::ReceivedCall`]); programs check procedure and arguments. A
/// call that the program answers immediately allocates no heap memory.
pub struct Dispatcher {
    programs: Box<[Arc<dyn Program>]>,
    callbacks: Option<Callbacks>,
}

impl Dispatcher {
    /// Creates a dispatcher for `programs`. Versions of an RPC program may be separate [`Program`]s with the
    /// same number; of those with a called version, the first is used.
    pub fn new(programs: impl IntoIterator<Item = Arc<dyn Program>>) -> Self {
        Self { programs: programs.into_iter().collect(), callbacks: None }
    }

    /// Sets the calls that the programs make to the client of the only connection of this dispatcher.
    pub fn with_callbacks(self, callbacks: Callbacks) -> Self {
        Self { callbacks: Some(callbacks), ..self }
    }

    /// Index of the program that `header` calls.
    fn position(&self, header: &CallHeader) -> Option<usize> {
        #[cfg(feature = "call-counts")]
        crate::call_counts::PROGRAM_LOOKUPS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let serves = |p: &Arc<dyn Program>| p.number() == header.prog && p.versions().contains(&header.vers);
        self.programs.iter().position(serves)
    }

    fn find(&self, call: &CallContext) -> Result<usize, ReplyStatus> {
        let header = call.header;
        if let Credential::Other(flavor) = call.sender.credential
            && header.proc != 0
        {
            // A client sends its full credential after RejectedCred.
            let stat = if flavor == AUTH_SHORT { AuthStat::RejectedCred } else { AuthStat::BadCred };
            return Err(ReplyStatus::Auth(stat));
        }
        self.position(&header).ok_or_else(|| ReplyStatus::Accept(self.unavailable(header.prog)))
    }

    /// The plan of the program at `index`, which executes the call.
    fn plan_of(&self, index: usize, header: &CallHeader, args: &mut Decoder<'_>, length: usize) -> Plan {
        let mut plan = self.programs[index].plan(header, args, length);
        plan.program = u8::try_from(index).ok();
        plan
    }

    /// The error for a program of which the called version is unavailable.
    #[cold]
    fn unavailable(&self, number: u32) -> AcceptError {
        let versions = || self.programs.iter().filter(|p| p.number() == number).map(|p| p.versions());
        let low = versions().map(|v| *v.start()).min();
        let high = versions().map(|v| *v.end()).max();
        match low.zip(high) {
            Some((low, high)) => AcceptError::ProgMismatch { low, high },
            None => AcceptError::ProgUnavail,
        }
    }
}

impl Service for Dispatcher {
    fn callbacks(&self) -> Option<&Callbacks> {
        self.callbacks.as_ref()
    }

    fn plan(&self, call: &CallContext) -> Plan {
        let Ok(index) = self.find(call) else { return Plan::default() };
        self.plan_of(index, &call.header, &mut call.args(), call.message().stream_len())
    }

    fn plan_of_prefix(&self, start: &[u8], length: usize) -> Plan {
        let mut d = Decoder::from_bytes(start);
        // Bytes between the header and the arguments.
        let protected = |flavor, body: &[u8], _| {
            Ok(if flavor == RPCSEC_GSS { GssCredential::distance_of_arguments(body) } else { Some(0) })
        };
        let found = CallHeader::decode_with(&mut d, protected).ok().and_then(|(header, distance)| {
            d.raw(distance?).ok()?;
            Some((self.position(&header)?, header))
        });
        found.map_or_else(Plan::default, |(index, header)| self.plan_of(index, &header, &mut d, length))
    }

    fn call(&self, call: CallContext, mut reply: Encoder) -> MaybeReady<'static, Option<Message>> {
        let xid = call.header.xid;
        // A call without program is rejected, for which the reason is found again.
        let found = call.plan.program.map_or_else(|| self.find(&call), |index| Ok(index.into()));
        let program = match found {
            Ok(index) => &self.programs[index],
            Err(status) => return MaybeReady::Ready(bare_reply(xid, status, reply)),
        };
        reply.put(&ReplyHeader { xid, status: ReplyStatus::Success });
        let arena = reply.arena().clone();
        match program.call(call, reply) {
            MaybeReady::Ready(outcome) => MaybeReady::Ready(finish(xid, outcome, &arena)),
            MaybeReady::Pending(outcome) => {
                MaybeReady::wait(async move { finish(xid, outcome.await, &arena) })
            }
        }
    }
}

fn finish(xid: u32, outcome: Outcome, arena: &Arena) -> Option<Message> {
    let status = match outcome {
        Ok(Results::Finished(reply)) => return Some(reply),
        Ok(Results::Encoded(reply)) if reply.has_failed() => {
            tracing::warn!("no memory for a reply of more than {} bytes", reply.len());
            return bare_reply(xid, ReplyStatus::Accept(AcceptError::SystemErr), reply);
        }
        Ok(Results::Encoded(reply)) => return reply.finish().ok(),
        Err(Fault::ProcUnavail) => ReplyStatus::Accept(AcceptError::ProcUnavail),
        Err(Fault::GarbageArgs) => ReplyStatus::Accept(AcceptError::GarbageArgs),
        Err(Fault::SystemErr) => ReplyStatus::Accept(AcceptError::SystemErr),
        Err(Fault::Auth(stat)) => ReplyStatus::Auth(stat),
        Err(Fault::Drop) => return None,
    };
    bare_reply(xid, status, Encoder::new(arena, 0))
}
