//! Operations that several groups of cases use.

use millrace_nfs::v4::*;
use millrace_xdr::{Encode, Encoder};

use crate::compound::{Call, Op, Session, getfh, named, op, putfh};

/// SAVEFH.
pub fn savefh() -> Op {
    op(Operation::Savefh, ())
}

/// RESTOREFH.
pub fn restorefh() -> Op {
    op(Operation::RestoreFh, ())
}

/// LOOKUPP.
pub fn lookupp() -> Op {
    op(Operation::Lookupp, ())
}

/// REMOVE.
pub fn remove(name: &str) -> Op {
    named(Operation::Remove, name)
}

/// LINK of the saved file.
pub fn link(name: &str) -> Op {
    named(Operation::Link, name)
}

/// RENAME from the saved directory to the current one.
pub fn rename(from: &str, to: &str) -> Op {
    let (from, to) = (from.to_owned(), to.to_owned());
    Box::new(move |e| {
        e.put(&Operation::Rename);
        e.put(&RenameArgs { from: Opaque(from.as_bytes()), to: Opaque(to.as_bytes()) });
    })
}

/// CREATE with a mode.
pub fn create(name: &str, what: CreateType) -> Op {
    let name = name.to_owned();
    Box::new(move |e| {
        e.put(&Operation::Create);
        let attributes = Attributes { mode: Some(0o755), ..Attributes::default() };
        e.put(&CreateArgs { what: what.clone(), name: Opaque(name.as_bytes()), attributes });
    })
}

/// CREATE of a directory.
pub fn mkdir(name: &str) -> Op {
    create(name, CreateType::Directory)
}

/// CREATE of a symbolic link to `nowhere`.
pub fn symlink(c: &impl Call, name: &str) -> Op {
    create(name, CreateType::Symlink(c.arena().copy_from(b"nowhere").unwrap().into()))
}

/// OPEN.
pub fn open_with(
    owner: &'static [u8],
    (access, deny): (u32, u32),
    create: Option<CreateHow<Attributes<'static>>>,
    claim: Claim<'static>,
) -> Op {
    let owner = state_owner(owner);
    op(Operation::Open, OpenArgs { seqid: 0, share_access: access, share_deny: deny, owner, create, claim })
}

/// CLOSE.
pub fn close(stateid: Stateid) -> Op {
    op(Operation::Close, CloseArgs { seqid: 0, stateid })
}

/// SETATTR.
pub fn setattr(stateid: Stateid, attributes: Attributes<'static>) -> Op {
    op(Operation::Setattr, SetattrArgs { stateid, attributes })
}

/// Attributes with a size.
pub fn size(size: u64) -> Attributes<'static> {
    Attributes { size: Some(size), ..Attributes::default() }
}

/// WRITE.
pub fn write(c: &impl Call, stateid: Stateid, offset: u64, data: &[u8]) -> Op {
    let mut buffer = c.arena().alloc(data.len()).unwrap();
    buffer.copy_from_slice(data);
    let data = millrace_xdr::Views::from(buffer.freeze());
    op(Operation::Write, WriteArgs { stateid, offset, stable: StableHow::Unstable, data })
}

/// A `fattr4` with one attribute, which need not be one that the library encodes.
#[derive(Debug, Clone, Copy)]
pub struct RawAttribute {
    /// Number of the attribute.
    pub number: u32,
    /// Its value.
    pub words: &'static [u32],
}

impl Encode for RawAttribute {
    fn encode(&self, e: &mut Encoder) {
        e.put_u32(self.number / 32 + 1);
        (0..self.number / 32).for_each(|_| e.put_u32(0));
        e.put_u32(1 << (self.number % 32));
        e.put_u32(self.words.len() as u32 * 4);
        self.words.iter().for_each(|word| e.put_u32(*word));
    }
}

/// READLINK.
pub fn readlink() -> Op {
    op(Operation::Readlink, ())
}

/// COMMIT.
pub fn commit(offset: u64, count: u32) -> Op {
    op(Operation::Commit, CommitArgs { offset, count })
}

/// ACCESS.
pub fn access(access: u32) -> Op {
    op(Operation::Access, AccessArgs { access })
}

/// OPEN_DOWNGRADE.
pub fn downgrade(stateid: Stateid, access: u32, deny: u32) -> Op {
    let args = OpenDowngradeArgs { stateid, seqid: 0, share_access: access, share_deny: deny };
    op(Operation::OpenDowngrade, args)
}

/// A lock owner or an open owner of the session's client.
fn state_owner(owner: &'static [u8]) -> StateOwner<'static> {
    StateOwner { client_id: ClientId { number: 0 }, owner: Opaque(owner) }
}

/// LOCK of a range by an owner without a stateid for it.
pub fn lock(open: Stateid, owner: &'static [u8], lock_type: LockType, (offset, length): (u64, u64)) -> Op {
    let owner = state_owner(owner);
    let locker = Locker::New { open_seqid: 0, open_stateid: open, lock_seqid: 0, owner };
    op(Operation::Lock, LockArgs { lock_type, reclaim: false, offset, length, locker })
}

/// LOCK of a range with the stateid of earlier locks.
pub fn lock_more(lock_stateid: Stateid, lock_type: LockType, (offset, length): (u64, u64)) -> Op {
    let locker = Locker::Existing { lock_stateid, lock_seqid: 0 };
    op(Operation::Lock, LockArgs { lock_type, reclaim: false, offset, length, locker })
}

/// LOCKT.
pub fn lockt(owner: &'static [u8], lock_type: LockType, (offset, length): (u64, u64)) -> Op {
    op(Operation::Lockt, LocktArgs { lock_type, offset, length, owner: state_owner(owner) })
}

/// LOCKU.
pub fn locku(stateid: Stateid, (offset, length): (u64, u64)) -> Op {
    op(Operation::Locku, LockuArgs { lock_type: LockType::Write, seqid: 0, stateid, offset, length })
}

/// FREE_STATEID.
pub fn free(stateid: Stateid) -> Op {
    op(Operation::FreeStateid, FreeStateidArgs { stateid })
}

/// The kinds of objects other than regular files and directories, with the name of each.
pub(crate) fn special(c: &impl Call) -> [(&'static str, CreateType); 5] {
    let device = SpecData { major: 1, minor: 2 };
    [
        ("link", CreateType::Symlink(c.arena().copy_from(b"nowhere").unwrap().into())),
        ("block", CreateType::Block(device)),
        ("character", CreateType::Character(device)),
        ("socket", CreateType::Socket),
        ("fifo", CreateType::Fifo),
    ]
}

/// Opens a file in a directory. Returns the stateid and the file handle.
///
/// # Errors
/// The status of the COMPOUND.
pub async fn opened(c: &impl Call, s: &Session, dir: &[u8], open: Op) -> Result<(Stateid, Vec<u8>), Status> {
    let results = s.send(c, [putfh(dir), open, getfh()]).await;
    if results.status != Status::Ok {
        return Err(results.status);
    }
    results.skip(&[Operation::Putfh]);
    let stateid = results.take::<OpenOk<'_>>(Operation::Open).stateid;
    Ok((stateid, results.take::<GetfhOk<'_>>(Operation::Getfh).handle.to_vec()))
}
