//! COMPOUNDs of raw operations, and sessions.

use std::cell::Cell;

use millrace_nfs::v4::*;
use millrace_oncrpc::{Reply, RpcError};
use millrace_xdr::{Decode, Decoder, Encode, Encoder};

use crate::common::Caller;

/// Encodes one operation.
pub(crate) type Op = Box<dyn Fn(&mut Encoder)>;

/// An operation with arguments.
pub(crate) fn op(operation: Operation, args: impl Encode + 'static) -> Op {
    Box::new(move |e| {
        e.put(&operation);
        e.put(&args);
    })
}

/// An operation as raw words.
pub(crate) fn raw(words: &'static [u32]) -> Op {
    Box::new(move |e| words.iter().for_each(|w| e.put_u32(*w)))
}

pub(crate) fn putrootfh() -> Op {
    op(Operation::Putrootfh, ())
}

pub(crate) fn putfh(handle: &[u8]) -> Op {
    let handle = handle.to_vec();
    Box::new(move |e| {
        e.put(&Operation::Putfh);
        e.put_opaque(&handle);
    })
}

pub(crate) fn getfh() -> Op {
    op(Operation::Getfh, ())
}

/// An operation whose only argument is a name.
pub(crate) fn named(operation: Operation, name: &str) -> Op {
    let name = name.to_owned();
    Box::new(move |e| {
        e.put(&operation);
        e.put_opaque(name.as_bytes());
    })
}

pub(crate) fn lookup(name: &str) -> Op {
    named(Operation::Lookup, name)
}

pub(crate) fn getattr(attributes: &[Attribute]) -> Op {
    op(Operation::Getattr, GetattrArgs { requested: Bitmap::of(attributes) })
}

pub(crate) fn read(stateid: Stateid, offset: u64, count: u32) -> Op {
    op(Operation::Read, ReadArgs { stateid, offset, count })
}

/// OPEN of `name` in the current directory; `size` 0 or more creates it unless it exists.
pub(crate) fn open(owner: &'static [u8], name: &str, access: u32, deny: u32, create: bool) -> Op {
    let name = name.to_owned();
    Box::new(move |e| {
        e.put(&Operation::Open);
        e.put(&OpenArgs {
            seqid: 0,
            share_access: access,
            share_deny: deny,
            owner: StateOwner { client_id: ClientId { number: 0 }, owner: Opaque(owner) },
            create: create.then_some(CreateHow::Unchecked(Attributes::default())),
            claim: Claim::Null(Opaque(name.as_bytes())),
        });
    })
}

pub(crate) struct Compound<'o> {
    pub(crate) tag: &'o [u8],
    pub(crate) minor_version: u32,
    pub(crate) ops: &'o [Op],
}

impl Encode for Compound<'_> {
    fn encode(&self, e: &mut Encoder) {
        e.put_opaque(self.tag);
        e.put_u32(self.minor_version);
        e.put_u32(self.ops.len() as u32);
        self.ops.iter().for_each(|op| op(e));
    }
}

/// The results of a COMPOUND.
pub(crate) struct Results {
    reply: Reply,
    pub(crate) status: Status,
    /// Number of results.
    pub(crate) count: u32,
    at: Cell<usize>,
}

impl Results {
    fn new(reply: Reply) -> Self {
        let mut d = reply.results();
        let frame: CompoundRes<'_> = d.get().unwrap();
        let (status, count, at) = (frame.status, frame.results, Cell::new(d.position()));
        Self { reply, status, count, at }
    }

    /// The bytes of the results after the RPC header.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.reply.results().rest().collect::<Vec<_>>().concat()
    }

    fn decoder(&self) -> Decoder<'_> {
        let mut d = Decoder::new(&self.reply.message);
        d.raw(self.at.get()).unwrap();
        d
    }

    /// The number and status of the next result.
    pub(crate) fn next(&self) -> (u32, Status) {
        let mut d = self.decoder();
        let next = (d.u32().unwrap(), d.get().unwrap());
        self.at.set(d.position());
        next
    }

    /// Skips results without data.
    pub(crate) fn skip(&self, operations: &[Operation]) -> &Self {
        for operation in operations {
            assert_eq!(self.next(), (operation.number(), Status::Ok));
        }
        self
    }

    /// The data of the next result, which is successful.
    pub(crate) fn take<'a, T: Decode<'a>>(&'a self, operation: Operation) -> T {
        assert_eq!(self.next(), (operation.number(), Status::Ok), "{:?}", self.status);
        let mut d = self.decoder();
        let data = d.get().unwrap();
        self.at.set(d.position());
        data
    }

    /// The data of READ, which may follow directly.
    pub(crate) fn read(&self) -> (Vec<u8>, bool) {
        let ok: ReadOk = self.take(Operation::Read);
        (ok.data.to_vec(), ok.eof)
    }
}

/// Sends a COMPOUND.
pub(crate) async fn send(c: &Caller, minor_version: u32, ops: &[Op]) -> Results {
    try_send(c, &Compound { tag: b"tag", minor_version, ops }).await.unwrap()
}

pub(crate) async fn try_send(c: &Caller, compound: &Compound<'_>) -> Result<Results, RpcError> {
    let message = c.message(PROGRAM, VERSION, 1, compound);
    c.send(message, 64 << 10, None).await.map(Results::new)
}

/// As [`send`], with memory for data that the transport places.
pub(crate) async fn send_for_data(c: &Caller, ops: &[Op]) -> Results {
    let message = c.message(PROGRAM, VERSION, 1, &Compound { tag: b"", minor_version: 2, ops });
    let payload = Some(c.arena.alloc(2 << 20).unwrap());
    let reply = millrace_oncrpc::ReplySpec { max_head: 4096, payload };
    Results::new(c.transport.call(millrace_oncrpc::Request::new(message, reply)).await.unwrap())
}

pub(crate) fn exchange_id(owner: &'static [u8], verifier: Verifier) -> Op {
    op(
        Operation::ExchangeId,
        ExchangeIdArgs {
            owner: ClientOwner { verifier, id: Opaque(owner) },
            flags: 0,
            state_protect: StateProtect::None,
            implementation: None,
        },
    )
}

/// The channel that the Linux client asks for.
pub(crate) const CHANNEL: ChannelAttrs = ChannelAttrs {
    header_pad_size: 0,
    max_request_size: 1_049_620,
    max_response_size: 1_049_480,
    max_response_size_cached: 7584,
    max_operations: 8,
    max_requests: 64,
    rdma_ird: None,
};

pub(crate) fn create_session(client_id: ClientId, sequence: u32, fore: ChannelAttrs) -> Op {
    op(
        Operation::CreateSession,
        CreateSessionArgs {
            client_id,
            sequence,
            flags: 3,
            fore,
            back: ChannelAttrs { max_operations: 2, ..CHANNEL },
            callback_program: 0x4000_0000,
            callback_security: List(vec![CallbackSecurity::None]),
        },
    )
}

pub(crate) fn sequence(args: SequenceArgs) -> Op {
    op(Operation::Sequence, args)
}

/// A session of which slot 0 is used.
pub(crate) struct Session {
    pub(crate) ok: CreateSessionOk,
    pub(crate) client: ClientId,
    next: Cell<u32>,
}

impl Session {
    /// A session of a client that has sent RECLAIM_COMPLETE.
    pub(crate) async fn new(c: &Caller, owner: &'static [u8]) -> Self {
        let session = Self::start(c, owner).await;
        let complete = session.reclaim_complete(c).await;
        assert!(matches!(complete, Status::Ok | Status::CompleteAlready), "{complete:?}");
        session
    }

    /// A session of a client that has not sent RECLAIM_COMPLETE.
    pub(crate) async fn start(c: &Caller, owner: &'static [u8]) -> Self {
        let identified = send(c, 1, &[exchange_id(owner, [1; 8])]).await;
        let ok: ExchangeIdOk<'_> = identified.take(Operation::ExchangeId);
        let (client, first) = (ok.client_id, ok.sequence);
        let created = send(c, 1, &[create_session(client, first, CHANNEL)]).await;
        Self { ok: created.take(Operation::CreateSession), client, next: Cell::new(1) }
    }

    pub(crate) async fn reclaim_complete(&self, c: &Caller) -> Status {
        self.status(c, [op(Operation::ReclaimComplete, ReclaimCompleteArgs { one_fs: false })]).await
    }

    /// Arguments of the next SEQUENCE.
    pub(crate) fn sequence(&self, cache_this: bool) -> SequenceArgs {
        let sequence = self.next.replace(self.next.get() + 1);
        SequenceArgs { session: self.ok.session, sequence, slot: 0, highest_slot: 0, cache_this }
    }

    fn with_sequence(&self, ops: impl IntoIterator<Item = Op>) -> Vec<Op> {
        std::iter::once(sequence(self.sequence(false))).chain(ops).collect()
    }

    /// Sends the operations after SEQUENCE, whose result is skipped.
    pub(crate) async fn send(&self, c: &Caller, ops: impl IntoIterator<Item = Op>) -> Results {
        let results = send(c, 2, &self.with_sequence(ops)).await;
        let _: SequenceOk = results.take(Operation::Sequence);
        results
    }

    /// As [`Self::send`], with memory for data that the transport places.
    pub(crate) async fn send_for_data(&self, c: &Caller, ops: impl IntoIterator<Item = Op>) -> Results {
        let results = send_for_data(c, &self.with_sequence(ops)).await;
        let _: SequenceOk = results.take(Operation::Sequence);
        results
    }

    /// The status of the operations after SEQUENCE.
    pub(crate) async fn status(&self, c: &Caller, ops: impl IntoIterator<Item = Op>) -> Status {
        self.send(c, ops).await.status
    }

    /// The operation and status of the result of `on` with the file handle `file`, in a minor version.
    pub(crate) async fn last(&self, c: &Caller, minor_version: u32, file: &[u8], on: Op) -> (u32, Status) {
        let ops = [sequence(self.sequence(false)), putfh(file), on];
        let results = send(c, minor_version, &ops).await;
        let _: SequenceOk = results.take(Operation::Sequence);
        results.skip(&[Operation::Putfh]).next()
    }

    /// The handle at a path below the root of all exports.
    pub(crate) async fn path(&self, c: &Caller, path: &str) -> Result<Vec<u8>, Status> {
        let names: Vec<_> = path.split('/').filter(|n| !n.is_empty()).collect();
        let ops = std::iter::once(putrootfh()).chain(names.iter().map(|n| lookup(n))).chain([getfh()]);
        let results = self.send(c, ops).await;
        if results.status != Status::Ok {
            return Err(results.status);
        }
        results.skip(&[Operation::Putrootfh]).skip(&vec![Operation::Lookup; names.len()]);
        let ok: GetfhOk<'_> = results.take(Operation::Getfh);
        Ok(ok.handle.to_vec())
    }
}
