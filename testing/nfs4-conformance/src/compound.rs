//! COMPOUNDs of raw operations, and sessions.

use std::{cell::Cell, sync::Arc};

use millrace_nfs::v4::*;
use millrace_oncrpc::{CallbackHandler, Credential, Reply, ReplySpec, Request, RpcError, call_header};
use millrace_runtime::BoxFuture;
use millrace_xdr::{Arena, Decode, Decoder, Encode, Encoder, Message};

/// A connection to a server, and the caller's credential.
pub trait Call: Sized {
    /// The memory of calls and replies.
    fn arena(&self) -> &Arena;

    /// The credential of calls.
    fn credential(&self) -> &Credential;

    /// The same connection with another credential.
    #[must_use]
    fn with(&self, credential: Credential) -> Self;

    /// Makes a call.
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, RpcError>>;

    /// Has `handler` answer the callbacks on the connection from now on.
    fn handle_callbacks(&self, handler: &Arc<dyn CallbackHandler>);
}

/// Room for a reply in bytes, without data that the transport places.
const REPLY: usize = 65 << 10;

fn message(c: &impl Call, compound: &Compound<'_>) -> Message {
    let mut e = Encoder::new(c.arena(), 512);
    call_header(&mut e, PROGRAM, VERSION, 1, c.credential());
    e.put(compound);
    e.finish().unwrap()
}

/// Encodes one operation.
pub type Op = Box<dyn Fn(&mut Encoder)>;

/// An operation with arguments.
pub fn op(operation: Operation, args: impl Encode + 'static) -> Op {
    Box::new(move |e| {
        e.put(&operation);
        e.put(&args);
    })
}

/// An operation as raw words.
pub fn raw(words: &'static [u32]) -> Op {
    Box::new(move |e| words.iter().for_each(|w| e.put_u32(*w)))
}

/// PUTROOTFH.
pub fn putrootfh() -> Op {
    op(Operation::Putrootfh, ())
}

/// PUTFH.
pub fn putfh(handle: &[u8]) -> Op {
    let handle = handle.to_vec();
    Box::new(move |e| {
        e.put(&Operation::Putfh);
        e.put_opaque(&handle);
    })
}

/// GETFH.
pub fn getfh() -> Op {
    op(Operation::Getfh, ())
}

/// An operation whose only argument is a name.
pub fn named(operation: Operation, name: &str) -> Op {
    let name = name.to_owned();
    Box::new(move |e| {
        e.put(&operation);
        e.put_opaque(name.as_bytes());
    })
}

/// LOOKUP.
pub fn lookup(name: &str) -> Op {
    named(Operation::Lookup, name)
}

/// GETATTR.
pub fn getattr(attributes: &[Attribute]) -> Op {
    op(Operation::Getattr, GetattrArgs { requested: Bitmap::of(attributes) })
}

/// READ.
pub fn read(stateid: Stateid, offset: u64, count: u32) -> Op {
    op(Operation::Read, ReadArgs { stateid, offset, count })
}

/// OPEN of `name` in the current directory; `size` 0 or more creates it unless it exists.
pub fn open(owner: &'static [u8], name: &str, access: u32, deny: u32, create: bool) -> Op {
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

/// Arguments of COMPOUND with any operations.
pub struct Compound<'o> {
    /// The tag.
    pub tag: &'o [u8],
    /// The minor version.
    pub minor_version: u32,
    /// The operations.
    pub ops: &'o [Op],
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
pub struct Results {
    reply: Reply,
    /// Status of the COMPOUND.
    pub status: Status,
    /// Number of results.
    pub count: u32,
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
    pub fn bytes(&self) -> Vec<u8> {
        self.reply.results().rest().collect::<Vec<_>>().concat()
    }

    fn decoder(&self) -> Decoder<'_> {
        let mut d = Decoder::new(&self.reply.message);
        d.raw(self.at.get()).unwrap();
        d
    }

    /// The number and status of the next result.
    pub fn next(&self) -> (u32, Status) {
        let mut d = self.decoder();
        let next = (d.u32().unwrap(), d.get().unwrap());
        self.at.set(d.position());
        next
    }

    /// Skips results without data.
    pub fn skip(&self, operations: &[Operation]) -> &Self {
        for operation in operations {
            assert_eq!(self.next(), (operation.number(), Status::Ok));
        }
        self
    }

    /// The data of the next result, which is successful.
    pub fn take<'a, T: Decode<'a>>(&'a self, operation: Operation) -> T {
        assert_eq!(self.next(), (operation.number(), Status::Ok), "{:?}", self.status);
        let mut d = self.decoder();
        let data = d.get().unwrap();
        self.at.set(d.position());
        data
    }

    /// The data of READ, which may follow directly.
    pub fn read(&self) -> (Vec<u8>, bool) {
        let ok: ReadOk = self.take(Operation::Read);
        (ok.data.to_vec(), ok.eof)
    }
}

/// Sends a COMPOUND.
pub async fn send(c: &impl Call, minor_version: u32, ops: &[Op]) -> Results {
    try_send(c, &Compound { tag: b"tag", minor_version, ops }).await.unwrap()
}

/// Sends a COMPOUND. Fails if the call has no results.
pub async fn try_send(c: &impl Call, compound: &Compound<'_>) -> Result<Results, RpcError> {
    c.call(request(c, compound)).await.map(Results::new)
}

/// The call of a COMPOUND.
pub fn request(c: &impl Call, compound: &Compound<'_>) -> Request {
    Request::new(message(c, compound), ReplySpec { max_head: REPLY, ..ReplySpec::default() })
}

/// As [`send`], with memory for data that the transport places.
pub async fn send_for_data(c: &impl Call, ops: &[Op]) -> Results {
    let message = message(c, &Compound { tag: b"", minor_version: 2, ops });
    let payload = Some(c.arena().alloc(2 << 20).unwrap());
    let reply = ReplySpec { max_head: 4096, payload, ..ReplySpec::default() };
    Results::new(c.call(Request::new(message, reply)).await.unwrap())
}

/// EXCHANGE_ID without flags.
pub fn exchange_id(owner: &'static [u8], verifier: Verifier) -> Op {
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

/// The channel attributes that the Linux client requests.
pub const CHANNEL: ChannelAttrs = ChannelAttrs {
    header_pad_size: 0,
    max_request_size: 1_049_620,
    max_response_size: 1_049_480,
    max_response_size_cached: 7584,
    max_operations: 8,
    max_requests: 64,
    rdma_ird: None,
};

/// CREATE_SESSION with the back channel of the Linux client.
pub fn create_session(client_id: ClientId, sequence: u32, fore: ChannelAttrs) -> Op {
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

/// SEQUENCE.
pub fn sequence(args: SequenceArgs) -> Op {
    op(Operation::Sequence, args)
}

/// A session of which slot 0 is used.
pub struct Session {
    /// Result of CREATE_SESSION.
    pub ok: CreateSessionOk,
    /// The client ID.
    pub client: ClientId,
    next: Cell<u32>,
}

impl Session {
    /// A session of a client that has sent RECLAIM_COMPLETE.
    pub async fn new(c: &impl Call, owner: &'static [u8]) -> Self {
        let session = Self::start(c, owner).await;
        let complete = session.reclaim_complete(c).await;
        assert!(matches!(complete, Status::Ok | Status::CompleteAlready), "{complete:?}");
        session
    }

    /// A session of a client that has not sent RECLAIM_COMPLETE.
    pub async fn start(c: &impl Call, owner: &'static [u8]) -> Self {
        let identified = send(c, 1, &[exchange_id(owner, [1; 8])]).await;
        let ok: ExchangeIdOk<'_> = identified.take(Operation::ExchangeId);
        Self::of(c, ok.client_id, ok.sequence, CHANNEL).await
    }

    /// A session of a client ID that EXCHANGE_ID has returned, with the sequence number of this CREATE_SESSION.
    pub async fn of(c: &impl Call, client: ClientId, sequence: u32, fore: ChannelAttrs) -> Self {
        let created = send(c, 1, &[create_session(client, sequence, fore)]).await;
        Self { ok: created.take(Operation::CreateSession), client, next: Cell::new(1) }
    }

    /// Sends RECLAIM_COMPLETE for all file systems.
    pub async fn reclaim_complete(&self, c: &impl Call) -> Status {
        self.status(c, [op(Operation::ReclaimComplete, ReclaimCompleteArgs { one_fs: false })]).await
    }

    /// Arguments of the next SEQUENCE.
    pub fn sequence(&self, cache_this: bool) -> SequenceArgs {
        let sequence = self.next.replace(self.next.get() + 1);
        SequenceArgs { session: self.ok.session, sequence, slot: 0, highest_slot: 0, cache_this }
    }

    fn with_sequence(&self, ops: impl IntoIterator<Item = Op>) -> Vec<Op> {
        std::iter::once(sequence(self.sequence(false))).chain(ops).collect()
    }

    /// Sends the operations after SEQUENCE, whose result is skipped.
    pub async fn send(&self, c: &impl Call, ops: impl IntoIterator<Item = Op>) -> Results {
        let results = send(c, 2, &self.with_sequence(ops)).await;
        let _: SequenceOk = results.take(Operation::Sequence);
        results
    }

    /// As [`Self::send`], with memory for data that the transport places.
    pub async fn send_for_data(&self, c: &impl Call, ops: impl IntoIterator<Item = Op>) -> Results {
        let results = send_for_data(c, &self.with_sequence(ops)).await;
        let _: SequenceOk = results.take(Operation::Sequence);
        results
    }

    /// The status of the operations after SEQUENCE.
    pub async fn status(&self, c: &impl Call, ops: impl IntoIterator<Item = Op>) -> Status {
        self.send(c, ops).await.status
    }

    /// The operation and status of the result of `on` with the file handle `file`, in a minor version.
    pub async fn last(&self, c: &impl Call, minor_version: u32, file: &[u8], on: Op) -> (u32, Status) {
        let ops = [sequence(self.sequence(false)), putfh(file), on];
        let results = send(c, minor_version, &ops).await;
        let _: SequenceOk = results.take(Operation::Sequence);
        results.skip(&[Operation::Putfh]).next()
    }

    /// The handle at a path below the root of all exports.
    pub async fn path(&self, c: &impl Call, path: &str) -> Result<Vec<u8>, Status> {
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
