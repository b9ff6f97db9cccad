//! Correct messages.

use ::millrace_xdr::{Encode, Encoder};
use millrace_nfs::v4::*;

use crate::targets::xdr::{encoded, view};

pub(in crate::targets) const STATEID: Stateid = Stateid { seqid: 1, other: [7; 12] };
pub(in crate::targets) const SESSION: SessionId = SessionId([3; 16]);
/// The client ID of the messages.
pub(in crate::targets) const CLIENT: ClientId = ClientId { number: 0x0505_0505_0505_0505 };
const OWNER: StateOwner<'_> = StateOwner { client_id: CLIENT, owner: Opaque(b"owner") };
pub(in crate::targets) const HANDLE: FileHandle<'_> = Opaque(&[9; 12]);
const NAME: Name<'_> = Opaque(b"name");
const CHANGE: ChangeInfo = ChangeInfo { atomic: true, before: 1, after: 2 };
const CHANNEL: ChannelAttrs = ChannelAttrs {
    header_pad_size: 0,
    max_request_size: 1 << 20,
    max_response_size: 1 << 20,
    max_response_size_cached: 4096,
    max_operations: 8,
    max_requests: 64,
    rdma_ird: Some(1),
};

/// A COMPOUND that is encoded operation by operation.
#[derive(Default)]
struct Call(Vec<Vec<u8>>);

impl Call {
    fn with(mut self, operation: Operation, arguments: &impl Encode) -> Self {
        self.0.push(encoded(|e| {
            e.put(&operation);
            e.put(arguments);
        }));
        self
    }

    fn finish(self) -> Vec<u8> {
        let operations = self.0.len() as u32;
        let frame = CompoundArgs { tag: Opaque(b""), minor_version: 2, operations };
        [encoded(|e| e.put(&frame)), self.0.concat()].concat()
    }
}

fn to_set() -> Attributes<'static> {
    Attributes {
        size: Some(7),
        mode: Some(0o600),
        owner: Some(Owner::Id(1000)),
        owner_group: Some(Owner::Name(b"users@example")),
        time_access_set: Some(SetTime::ServerTime),
        time_modify_set: Some(SetTime::ClientTime(NfsTime { seconds: 8, nanoseconds: 9 })),
        ..Attributes::default()
    }
}

fn credentials() -> List<CallbackSecurity<'static>, 64> {
    let gids = List(vec![1, 2]);
    let sys = AuthSys { stamp: 1, machine_name: Opaque(b"host"), uid: 0, gid: 0, gids };
    let gss = GssHandles { service: 1, from_server: Opaque(b"s"), from_client: Opaque(b"c") };
    List(vec![CallbackSecurity::None, CallbackSecurity::Sys(sys), CallbackSecurity::Gss(gss)])
}

fn session_calls() -> Vec<Call> {
    let implementation = ImplementationId {
        domain: Opaque(b"kernel.org"),
        name: Opaque(b"Linux"),
        date: NfsTime { seconds: 0, nanoseconds: 0 },
    };
    let protected =
        ProtectedOperations { must_enforce: Bitmap::from([0, 1 << 10, 0]), must_allow: Bitmap::EMPTY };
    let exchange_id = |state_protect| {
        let owner = ClientOwner { verifier: [1; 8], id: Opaque(b"client") };
        let args =
            ExchangeIdArgs { owner, flags: 0x101, state_protect, implementation: Some(implementation) };
        Call::default().with(Operation::ExchangeId, &args)
    };
    let (client_id, session) = (CLIENT, SESSION);
    let create_session = CreateSessionArgs {
        client_id,
        sequence: 1,
        flags: 3,
        fore: CHANNEL,
        back: CHANNEL,
        callback_program: 1 << 30,
        callback_security: credentials(),
    };
    let bind = BindConnToSessionArgs { session, direction: RequestedDirection::ForeOrBoth, use_rdma: false };
    vec![
        exchange_id(StateProtect::None),
        exchange_id(StateProtect::MachineCredential(protected)),
        exchange_id(StateProtect::Ssv),
        Call::default().with(Operation::CreateSession, &create_session),
        Call::default().with(Operation::BindConnToSession, &bind),
        Call::default().with(Operation::DestroySession, &DestroySessionArgs { session }),
        Call::default().with(Operation::DestroyClientid, &DestroyClientidArgs { client_id }),
    ]
}

/// A call in the session.
fn sequence() -> Call {
    let args = SequenceArgs { session: SESSION, sequence: 1, slot: 0, highest_slot: 1, cache_this: true };
    Call::default().with(Operation::Sequence, &args)
}

fn file() -> Call {
    sequence().with(Operation::Putfh, &PutfhArgs { handle: HANDLE })
}

fn open_calls() -> Vec<Call> {
    let open = |create, claim| {
        let (share_access, share_deny) = (share_access::BOTH, share_deny::NONE);
        let args: OpenArgs<'_, Attributes<'_>> =
            OpenArgs { seqid: 0, share_access, share_deny, owner: OWNER, create, claim };
        file().with(Operation::Open, &args).with(Operation::Getfh, &())
    };
    let attributes = to_set();
    vec![
        open(None, Claim::Null(NAME)),
        open(Some(CreateHow::Unchecked(attributes)), Claim::Previous(DelegationType::Read)),
        open(Some(CreateHow::Guarded(attributes)), Claim::DelegateCur(STATEID, NAME)),
        open(Some(CreateHow::Exclusive([4; 8])), Claim::DelegatePrev(NAME)),
        open(Some(CreateHow::Exclusive41([4; 8], attributes)), Claim::Fh),
        open(None, Claim::DelegCurFh(STATEID)),
        open(None, Claim::DelegPrevFh),
    ]
}

fn state_calls() -> Vec<Call> {
    let (stateid, offset, length) = (STATEID, 0, u64::MAX);
    let lock = |locker| LockArgs { lock_type: LockType::Write, reclaim: false, offset, length, locker };
    let new = Locker::New { open_seqid: 0, open_stateid: STATEID, lock_seqid: 0, owner: OWNER };
    let downgrade = OpenDowngradeArgs { stateid, seqid: 0, share_access: 1, share_deny: 0 };
    let unlock = LockuArgs { lock_type: LockType::Read, seqid: 0, stateid, offset, length };
    let security = BackchannelCtlArgs { callback_program: 1, callback_security: credentials() };
    vec![
        file()
            .with(Operation::Lock, &lock(new))
            .with(Operation::Lock, &lock(Locker::Existing { lock_stateid: STATEID, lock_seqid: 0 }))
            .with(Operation::Lockt, &LocktArgs { lock_type: LockType::Read, offset, length, owner: OWNER })
            .with(Operation::Locku, &unlock),
        file()
            .with(Operation::OpenDowngrade, &downgrade)
            .with(Operation::Close, &CloseArgs { seqid: 0, stateid })
            .with(Operation::Delegreturn, &DelegreturnArgs { stateid }),
        sequence()
            .with(
                Operation::TestStateid,
                &TestStateidArgs { stateids: List(vec![STATEID, Stateid::ANONYMOUS]) },
            )
            .with(Operation::FreeStateid, &FreeStateidArgs { stateid })
            .with(Operation::ReclaimComplete, &ReclaimCompleteArgs { one_fs: false })
            .with(Operation::Delegpurge, &DelegpurgeArgs { client_id: CLIENT })
            .with(Operation::BackchannelCtl, &security),
    ]
}

fn file_calls() -> Vec<Call> {
    let attributes = to_set();
    let readdir = ReaddirArgs {
        cookie: 0,
        verifier: [0; 8],
        dircount: 512,
        maxcount: 4096,
        requested: Attributes::KNOWN,
    };
    let create = |what| CreateArgs { what, name: NAME, attributes };
    let (link, device) = (CreateType::Symlink(view(b"to").into()), SpecData { major: 1, minor: 2 });
    vec![
        sequence().with(Operation::Putrootfh, &()).with(Operation::Secinfo, &SecinfoArgs { name: NAME }),
        file()
            .with(Operation::Lookup, &LookupArgs { name: NAME })
            .with(Operation::Access, &AccessArgs { access: 0x3f })
            .with(Operation::Getattr, &GetattrArgs { requested: Attributes::MANDATORY })
            .with(Operation::SecinfoNoName, &SecinfoNoNameArgs { style: SecinfoStyle::CurrentFh }),
        file().with(Operation::Readdir, &readdir).with(Operation::Readlink, &()),
        file()
            .with(Operation::Setattr, &SetattrArgs { stateid: STATEID, attributes })
            .with(Operation::Verify, &attributes)
            .with(Operation::Nverify, &Attributes { change: Some(1), ..Attributes::default() }),
        file()
            .with(Operation::Create, &create(link))
            .with(Operation::Create, &create(CreateType::Block(device)))
            .with(Operation::Create, &create(CreateType::Directory)),
        file()
            .with(Operation::Savefh, &())
            .with(Operation::Rename, &RenameArgs { from: NAME, to: NAME })
            .with(Operation::Link, &LinkArgs { name: NAME })
            .with(Operation::RestoreFh, &())
            .with(Operation::Remove, &RemoveArgs { name: NAME })
            .with(Operation::Lookupp, &())
            .with(Operation::Openattr, &OpenattrArgs { create: true }),
        file()
            .with(Operation::Read, &ReadArgs { stateid: STATEID, offset: 0, count: 4096 })
            .with(Operation::Commit, &CommitArgs { offset: 0, count: 0 }),
    ]
}

fn later_calls() -> Vec<Call> {
    let stateid = STATEID;
    let (source, destination, count) = (STATEID, Stateid::ANONYMOUS, 4096);
    let servers = vec![Netloc::Name(Opaque(b"h")), Netloc::Address(Opaque(b"tcp"), Opaque(b"127.0.0.1.8.1"))];
    let copy = CopyArgs {
        source,
        destination,
        source_offset: 0,
        destination_offset: 8192,
        count,
        requirements: CopyRequirements { consecutive: true, synchronous: true },
        source_servers: List(servers),
    };
    let clone = CloneArgs { source, destination, source_offset: 0, destination_offset: 8192, count };
    let setxattr = SetxattrArgs { option: SetxattrOption::Either, name: NAME, value: Opaque(b"value") };
    vec![
        file()
            .with(Operation::Allocate, &AllocateArgs { stateid, offset: 0, length: 1 })
            .with(Operation::Deallocate, &DeallocateArgs { stateid, offset: 0, length: 1 })
            .with(Operation::Seek, &SeekArgs { stateid, offset: 0, what: ContentType::Hole })
            .with(Operation::ReadPlus, &ReadPlusArgs { stateid, offset: 0, count: 1 })
            .with(Operation::IoAdvise, &IoAdviseArgs { stateid, offset: 0, length: 0, hints: Bitmap::EMPTY }),
        file().with(Operation::Copy, &copy).with(Operation::Clone, &clone),
        file()
            .with(Operation::Getxattr, &GetxattrArgs { name: NAME })
            .with(Operation::Setxattr, &setxattr)
            .with(Operation::Listxattrs, &ListxattrsArgs { cookie: 0, maxcount: 256 })
            .with(Operation::Removexattr, &RemovexattrArgs { name: NAME }),
    ]
}

fn write_call() -> Call {
    let data = view(b"hello, world").into();
    let args = WriteArgs { stateid: STATEID, offset: 0, stable: StableHow::FileSync, data };
    Call::default().with(Operation::Write, &args)
}

/// WRITE of 12 bytes alone.
pub(super) fn write() -> Vec<u8> {
    write_call().finish()
}

fn every_call() -> impl Iterator<Item = Call> {
    let calls = [session_calls(), open_calls(), state_calls(), file_calls(), later_calls()];
    calls.into_iter().flatten().chain([write_call()])
}

/// Calls with every operation.
pub(super) fn calls() -> Vec<Vec<u8>> {
    every_call().map(Call::finish).collect()
}

/// The operations of each of the calls, without those that begin a call on a file.
pub(in crate::targets) fn operations() -> Vec<Vec<Vec<u8>>> {
    let begins = [Operation::Sequence, Operation::Putfh].map(|o| o.number().to_be_bytes());
    let rest = |call: Call| {
        let is_rest = |operation: &Vec<u8>| !begins.iter().any(|b| operation.starts_with(b));
        call.0.into_iter().filter(is_rest).collect()
    };
    every_call().map(rest).collect()
}

/// The results of a COMPOUND, which `put` appends.
fn reply(put: impl FnOnce(&mut CompoundEncoder, &mut Encoder)) -> Vec<u8> {
    encoded(|e| {
        let mut results = CompoundEncoder::begin(e, b"");
        put(&mut results, e);
        results.finish(e);
    })
}

/// A reply with one result.
fn one(operation: Operation, data: &impl Encode) -> Vec<u8> {
    reply(|results, e| {
        results.operation(e, operation);
        e.put(data);
    })
}

/// A reply with one failure.
fn failure(operation: Operation, status: Status, data: &impl Encode) -> Vec<u8> {
    reply(|results, e| {
        results.operation(e, operation);
        results.fail(e, status);
        e.put(data);
    })
}

fn session_replies() -> Vec<Vec<u8>> {
    let session = SESSION;
    let exchange_id = ExchangeIdOk {
        client_id: CLIENT,
        sequence: 1,
        flags: exchange_id_flags::USE_NON_PNFS,
        state_protect: None,
        server_owner: ServerOwner { minor_id: 0, major_id: Opaque(b"server") },
        server_scope: Opaque(b"scope"),
        implementation: None,
    };
    let sequence = SequenceOk {
        session,
        sequence: 1,
        slot: 0,
        highest_slot: 63,
        target_highest_slot: 63,
        status_flags: 0,
    };
    let gss = Secinfo::Gss { oid: Opaque(b"oid"), qop: 0, service: 1 };
    vec![
        one(Operation::ExchangeId, &exchange_id),
        one(
            Operation::CreateSession,
            &CreateSessionOk { session, sequence: 1, flags: 2, fore: CHANNEL, back: CHANNEL },
        ),
        one(Operation::Sequence, &sequence),
        one(
            Operation::BindConnToSession,
            &BindConnToSessionOk { session, direction: Direction::Both, use_rdma: false },
        ),
        one(Operation::TestStateid, &TestStateidOk { statuses: List(vec![Status::Ok, Status::BadStateid]) }),
        one(Operation::Secinfo, &SecinfoOk { flavors: List(vec![Secinfo::SYS, gss]) }),
        failure(Operation::Sequence, Status::BadSession, &()),
    ]
}

fn state_replies() -> Vec<Vec<u8>> {
    let permissions = Ace::NOTHING;
    let read = ReadDelegation { stateid: STATEID, recall: false, permissions };
    let write = |limit| WriteDelegation { stateid: STATEID, recall: true, limit, permissions };
    let delegations = [
        Delegation::None,
        Delegation::Read(read),
        Delegation::Write(write(SpaceLimit::Size(1))),
        Delegation::WriteAttrs(write(SpaceLimit::Blocks { blocks: 1, block_size: 4096 })),
        Delegation::NoneExt(NoDelegation::Contention { will_push: false }),
        Delegation::NoneExt(NoDelegation::NotWanted),
    ];
    let set = Bitmap::of(&[Attribute::Size]);
    let open = |delegation| OpenOk { stateid: STATEID, dir: CHANGE, flags: 4, set, delegation };
    let denied = LockDenied { offset: 0, length: 1, lock_type: LockType::Read, owner: OWNER };
    let opens = delegations.map(|delegation| one(Operation::Open, &open(delegation)));
    let locks = [
        one(Operation::Lock, &StateidOk { stateid: STATEID }),
        failure(Operation::Lock, Status::Denied, &denied),
        failure(Operation::Lockt, Status::Denied, &denied),
    ];
    opens.into_iter().chain(locks).collect()
}

fn file_replies() -> Vec<Vec<u8>> {
    let all = Attributes {
        supported_attrs: Some(Attributes::KNOWN),
        file_type: Some(FileType::Regular),
        rdattr_error: Some(Status::Ok),
        filehandle: Some(HANDLE),
        change_attr_type: Some(ChangeAttrType::TimeMetadata),
        ..to_set()
    };
    let entries = reply(|results, e| {
        results.operation(e, Operation::Readdir);
        let args = ReaddirArgs {
            cookie: 0,
            verifier: [0; 8],
            dircount: 0,
            maxcount: 4096,
            requested: Attributes::KNOWN,
        };
        let mut list = ReaddirEncoder::begin(e, &args, [1; 8], usize::MAX);
        assert!(list.push(1, b"a", &all) && list.push(2, b"bc", &Attributes::default()));
        list.finish(true).expect("room");
    });
    let (verifier, committed, set) = ([2; 8], StableHow::Unstable, Bitmap::of(&[Attribute::Mode]));
    vec![
        entries,
        one(Operation::Getattr, &all),
        one(Operation::Getfh, &GetfhOk { handle: HANDLE }),
        one(Operation::Access, &AccessOk { supported: 0x3f, access: 1 }),
        one(Operation::Read, &ReadOk { eof: true, data: view(b"hello").into() }),
        one(Operation::Readlink, &ReadlinkOk { target: view(b"to/there").into() }),
        one(Operation::Write, &WriteOk { count: 5, committed, verifier }),
        one(Operation::Commit, &CommitOk { verifier }),
        one(Operation::Create, &CreateOk { dir: CHANGE, set }),
        one(Operation::Remove, &CHANGE),
        one(Operation::Rename, &RenameOk { from: CHANGE, to: CHANGE }),
        one(Operation::Setattr, &SetattrRes { set }),
        failure(Operation::Setattr, Status::Perm, &SetattrRes { set: Bitmap::EMPTY }),
    ]
}

fn later_replies() -> Vec<Vec<u8>> {
    let requirements = CopyRequirements { consecutive: true, synchronous: true };
    let copy = CopyOk {
        callback_id: Some(STATEID),
        count: 1,
        committed: StableHow::FileSync,
        verifier: [2; 8],
        requirements,
    };
    let data = Content::Data { offset: 0, data: view(b"data!").into() };
    let contents = [data, Content::Hole { offset: 5, length: 9 }].into_iter().collect();
    vec![
        one(Operation::Copy, &copy),
        failure(Operation::Copy, Status::OffloadNoReqs, &requirements),
        one(Operation::Seek, &SeekOk { eof: false, offset: 9 }),
        one(Operation::ReadPlus, &ReadPlusOk { eof: true, contents }),
        one(Operation::IoAdvise, &IoAdviseOk { hints: Bitmap::EMPTY }),
        one(Operation::Getxattr, &GetxattrOk { value: Opaque(b"value") }),
        one(Operation::Listxattrs, &ListxattrsOk { cookie: 1, names: List(vec![NAME]), eof: true }),
    ]
}

/// Replies with every result.
pub(super) fn replies() -> Vec<Vec<u8>> {
    [session_replies(), state_replies(), file_replies(), later_replies()].concat()
}

/// A callback with every operation.
pub(super) fn callback() -> Vec<u8> {
    let calls = List(vec![ReferringCall { sequence: 1, slot: 2 }]);
    let sequence = CbSequenceArgs {
        session: SESSION,
        sequence: 1,
        slot: 0,
        highest_slot: 0,
        cache_this: false,
        referring_calls: List(vec![ReferringCalls { session: SESSION, calls }]),
    };
    let requested = Bitmap::of(&[Attribute::Change, Attribute::Size]);
    encoded(|e| {
        e.put(&CallbackArgs { tag: Opaque(b"cb"), minor_version: 1, callback_ident: 0, operations: 5 });
        e.put(&CallbackOperation::Sequence);
        e.put(&sequence);
        e.put(&CallbackOperation::Recall);
        e.put(&CbRecallArgs { stateid: STATEID, truncate: false, handle: HANDLE });
        e.put(&CallbackOperation::Getattr);
        e.put(&CbGetattrArgs { handle: HANDLE, requested });
        e.put(&CallbackOperation::RecallAny);
        e.put(&CbRecallAnyArgs { keep: 1, types: Bitmap::from([recall_any::READ_DELEGATIONS, 0, 0]) });
        e.put(&CallbackOperation::NotifyLock);
        e.put(&CbNotifyLockArgs { handle: HANDLE, owner: OWNER });
    })
}

/// The results of a callback.
pub(super) fn callback_reply() -> Vec<u8> {
    let sequence =
        CbSequenceOk { session: SESSION, sequence: 1, slot: 0, highest_slot: 0, target_highest_slot: 0 };
    reply(|results, e| {
        results.operation(e, CallbackOperation::Sequence);
        e.put(&sequence);
        results.operation(e, CallbackOperation::Getattr);
        e.put(&Attributes { change: Some(1), size: Some(2), ..Attributes::default() });
        results.operation(e, CallbackOperation::Recall);
        results.fail(e, Status::BadStateid);
    })
}
