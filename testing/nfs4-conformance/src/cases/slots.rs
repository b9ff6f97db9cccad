//! SEQUENCE: slots, sequence numbers, retries and the limits of the channel.

use std::cell::Cell;

use millrace_nfs::v4::*;

use crate::{
    compound::{
        CHANNEL, Call, Op, Results, create_session, exchange_id, getattr, getfh, lookup, op, putfh,
        putrootfh, raw, send, sequence,
    },
    group::Group,
    operations::{mkdir, rename, savefh},
};

/// A session with small limits.
struct Small {
    session: SessionId,
    fore: ChannelAttrs,
    next: Cell<u32>,
}

async fn session(c: &impl Call, owner: &'static [u8], fore: ChannelAttrs) -> Small {
    let results = send(c, 1, &[exchange_id(owner, [1; 8])]).await;
    let ok: ExchangeIdOk<'_> = results.take(Operation::ExchangeId);
    let results = send(c, 1, &[create_session(ok.client_id, ok.sequence, fore)]).await;
    let ok: CreateSessionOk = results.take(Operation::CreateSession);
    Small { session: ok.session, fore: ok.fore, next: Cell::new(1) }
}

impl Small {
    fn at(&self, slot: u32, number: u32, highest_slot: u32, cache_this: bool) -> Op {
        sequence(SequenceArgs { session: self.session, sequence: number, slot, highest_slot, cache_this })
    }

    /// The next request of slot 0, or the same number again.
    async fn send(&self, c: &impl Call, again: bool, cache: bool, ops: Vec<Op>) -> Results {
        let number = if again { self.next.get() - 1 } else { self.next.replace(self.next.get() + 1) };
        let ops: Vec<Op> = std::iter::once(self.at(0, number, 0, cache)).chain(ops).collect();
        send(c, 1, &ops).await
    }
}

pub(super) async fn run(g: &mut Group<'_, impl Call>) {
    slots(g).await;
    retries(g).await;
    limits(g).await;
    replies(g).await;
}

async fn slots(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let s = session(c, b"slots 8", ChannelAttrs { max_requests: 8, ..CHANNEL }).await;
    let unknown =
        SequenceArgs { session: SessionId([9; 16]), sequence: 1, slot: 0, highest_slot: 0, cache_this: true };
    g.check_alone("an unknown session", Status::BadSession, &[sequence(unknown)]).await;
    let last = s.fore.max_requests;
    g.check_alone("a slot that does not exist", Status::BadSlot, &[s.at(last, 1, last, true)]).await;
    g.check_alone("the highest slot number", Status::BadSlot, &[s.at(u32::MAX, 1, u32::MAX, true)]).await;
    let results = send(c, 1, &[s.at(2, 1, 3, true)]).await;
    let got = match results.status {
        Status::Ok => {
            let ok: SequenceOk = results.take(Operation::Sequence);
            Ok((ok.session == s.session, ok.sequence, ok.slot))
        }
        status => Err(status),
    };
    g.record("SEQUENCE returns its arguments", Ok::<_, Status>((true, 1, 2)), got);
    for (case, number) in [("two ahead", 3), ("behind", 0), ("far ahead", 1 << 31)] {
        g.check_alone(&format!("a number {case}"), Status::SeqMisordered, &[s.at(2, number, 3, true)]).await;
    }
    g.check_alone("number 0 in a new slot", Status::SeqMisordered, &[s.at(4, 0, 4, true)]).await;
    g.check_alone("the next number", Status::Ok, &[s.at(2, 2, 3, true)]).await;
    g.check_alone("SEQUENCE without arguments", Status::BadXdr, &[raw(&[53, 1])]).await;
}

async fn retries(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let s = session(c, b"slots retries", CHANNEL).await;
    assert_eq!(g.send([mkdir("old")]).await.status, Status::Ok);
    let dir = g.dir.clone();
    type Ops<'a> = (&'a str, Status, Box<dyn Fn() -> Vec<Op> + 'a>);
    let cases: [Ops<'_>; 6] = [
        ("idempotent", Status::Ok, Box::new(|| vec![putrootfh()])),
        ("not idempotent", Status::Ok, Box::new(|| vec![putfh(&dir), savefh(), rename("old", "new")])),
        ("idempotent, failed", Status::Inval, Box::new(|| vec![putrootfh(), lookup("")])),
        ("not idempotent, failed", Status::Inval, Box::new(|| vec![putfh(&dir), savefh(), rename("", "x")])),
        ("undefined", Status::OpIllegal, Box::new(|| vec![raw(&[OP_ILLEGAL])])),
        ("SEQUENCE alone", Status::Ok, Box::new(Vec::new)),
    ];
    for (case, expected, ops) in &cases {
        let first = s.send(c, false, true, ops()).await;
        g.record(case, expected, first.status);
        let second = s.send(c, true, true, ops()).await;
        g.record(&format!("the same reply: {case}"), true, first.bytes() == second.bytes());
    }
    let back = || vec![putfh(&dir), savefh(), rename("new", "old")];
    assert_eq!(s.send(c, false, false, back()).await.status, Status::Ok);
    let again = s.send(c, true, false, back()).await;
    g.record("a retry of a request whose reply is not kept", Status::RetryUncachedRep, again.status);
    assert_eq!(s.send(c, false, true, vec![putrootfh(), getfh()]).await.status, Status::Ok);
    let other = s.send(c, true, true, vec![putrootfh(), getfh(), getfh()]).await;
    g.record("a retry with another request", Status::SeqFalseRetry, other.status);
}

async fn limits(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let s = session(c, b"slots 512", ChannelAttrs { max_request_size: 512, ..CHANNEL }).await;
    let long = s.send(c, false, false, vec![putrootfh(), lookup(&"12345".repeat(100))]).await;
    g.record("a request of more than 512 bytes", Status::ReqTooBig, long.status);
    let s = session(c, b"slots 4", ChannelAttrs { max_operations: 4, ..CHANNEL }).await;
    let many = |n| std::iter::once(putrootfh()).chain((0..n).map(|_| getattr(&[]))).collect();
    let most = s.fore.max_operations - 2;
    g.record(
        "the largest number of operations",
        Status::Ok,
        s.send(c, false, false, many(most)).await.status,
    );
    let more = s.send(c, false, false, many(most + 1)).await.status;
    g.record("one operation more", Status::TooManyOps, more);
}

async fn replies(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let all = || op(Operation::Getattr, GetattrArgs { requested: Attributes::MANDATORY });
    let many = || vec![putrootfh(), all(), all(), all(), all()];
    let small = ChannelAttrs { max_response_size: 400, max_response_size_cached: 400, ..CHANNEL };
    let s = session(c, b"slots 400", small).await;
    g.record(
        "a reply of more than 400 bytes",
        Status::RepTooBig,
        s.send(c, false, false, many()).await.status,
    );
    let s = session(c, b"slots 300", ChannelAttrs { max_response_size_cached: 300, ..CHANNEL }).await;
    let kept = s.send(c, false, true, many()).await.status;
    g.record("a reply of more than 300 bytes to keep", Status::RepTooBigToCache, kept);
    g.record("the same, not to keep", Status::Ok, s.send(c, false, false, many()).await.status);
    let s = session(c, b"slots 10", ChannelAttrs { max_response_size_cached: 10, ..CHANNEL }).await;
    let alone = s.send(c, false, true, vec![]).await.status;
    g.record("SEQUENCE whose reply is too big to keep", Status::RepTooBigToCache, alone);
    s.next.set(1);
    g.record("the same number again", Status::Ok, s.send(c, false, false, vec![]).await.status);
}
