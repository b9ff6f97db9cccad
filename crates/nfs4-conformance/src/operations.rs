//! Operations that several groups of cases use.

use millrace_nfs::v4::*;

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
    let owner = StateOwner { client_id: ClientId { number: 0 }, owner: Opaque(owner) };
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
