//! LOOKUP, and the procedures that change names.

use millrace_nfs::v4::{
    self, Attributes, Bitmap, ChangeInfo, Claim, ClientId, CloseArgs, CreateArgs, CreateOk, CreateType,
    FileType, GetfhOk, Opaque, OpenArgs, OpenOk, Operation, RemoveArgs, SpecData, StateOwner, Stateid,
    StateidOk, Status, share_access, share_deny,
};

use super::{
    attributes::{after, get, handle, settable, verified},
    changes::{directory, has_directory, put_directory},
};
use crate::{
    ops::{self, Create, CreateHow, FileHandle, MknodWhat, Wcc},
    v4::compound::{Compound, Failure, Operations, Results},
};

impl Compound for ops::Lookup<'_> {
    type Ok = ops::LookupOk;

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.putfh(self.what.dir.as_bytes()).lookup(self.what.name);
        ops.put(Operation::Getfh, &()).attributes();
    }

    fn results(&self, r: &mut Results<'_>) -> Result<ops::LookupOk, Failure> {
        r.done(Operation::Putfh)?;
        r.lookup(self.what.name)?;
        let object = handle(&r.next::<GetfhOk<'_>>(Operation::Getfh)?.handle)?;
        Ok(ops::LookupOk { object, attributes: Some(get(r)?), dir: None })
    }
}

/// The beginning of an operation that creates an object in `dir`.
fn put_creating(ops: &mut Operations<'_>, dir: FileHandle) {
    ops.putfh(dir.as_bytes());
    if has_directory(ops.proof) {
        ops.put(Operation::Savefh, &());
    }
}

/// The results of [`put_creating`].
fn creating(r: &mut Results<'_>) -> Result<(), Failure> {
    r.done(Operation::Putfh)?;
    if has_directory(r.proof) { r.done(Operation::Savefh) } else { Ok(()) }
}

/// The end of an operation that has created the current object: its handle and attributes, and those of the directory, if
/// [`directory`] needs them.
fn put_created(ops: &mut Operations<'_>) {
    ops.put(Operation::Getfh, &()).attributes();
    if has_directory(ops.proof) {
        ops.put(Operation::RestoreFh, &()).attributes();
    }
}

/// The results of [`put_created`]. `info` is the change of the directory. The object exists even if results are missing.
fn created(r: &mut Results<'_>, info: ChangeInfo) -> Result<ops::CreateOk, Failure> {
    let object = r.optional::<GetfhOk<'_>>(Operation::Getfh)?;
    let object = object.map(|ok| handle(&ok.handle)).transpose()?;
    let attributes = after(r)?;
    if has_directory(r.proof) {
        r.optional::<()>(Operation::RestoreFh)?;
    }
    Ok(ops::CreateOk { object, attributes, dir: directory(info, r)? })
}

impl Create<'_> {
    /// How to create the file, and the access that the open needs: to write, if the file is truncated.
    fn how(&self) -> (v4::CreateHow<Attributes<'static>>, u32) {
        let access = |set: &ops::SetAttributes| match set.size {
            Some(_) => share_access::WRITE,
            None => share_access::READ,
        };
        match &self.how {
            CreateHow::Unchecked(set) => (v4::CreateHow::Unchecked(settable(set)), access(set)),
            CreateHow::Guarded(set) => (v4::CreateHow::Guarded(settable(set)), access(set)),
            CreateHow::Exclusive(verifier) => {
                (v4::CreateHow::Exclusive41(*verifier, Attributes::default()), share_access::WRITE)
            }
        }
    }
}

/// OPEN that creates, and CLOSE, in one COMPOUND: the layer above keeps no open files.
impl Compound for Create<'_> {
    type Ok = ops::CreateOk;

    fn operations(&self, ops: &mut Operations<'_>) {
        let (how, access) = self.how();
        put_open(ops, self.at, self.owner, how, access);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<ops::CreateOk, Failure> {
        Ok(opened(r)?.0)
    }
}

/// Appends OPEN of the name `at` that creates, and CLOSE. `owner`: see [`Create::owner`].
pub(super) fn put_open(
    ops: &mut Operations<'_>,
    at: ops::NameIn<'_>,
    owner: u64,
    how: v4::CreateHow<Attributes<'static>>,
    access: u32,
) {
    let owner = owner.to_be_bytes();
    put_creating(ops, at.dir);
    ops.put(
        Operation::Open,
        &OpenArgs {
            seqid: 0,
            share_access: access | share_access::WANT_NO_DELEG,
            share_deny: share_deny::NONE,
            owner: StateOwner { client_id: ClientId { number: 0 }, owner: Opaque(&owner) },
            create: Some(how),
            claim: Claim::Null(Opaque(at.name)),
        },
    );
    ops.put(Operation::Close, &CloseArgs { seqid: 0, stateid: Stateid::CURRENT });
    put_created(ops);
}

/// The results of [`put_open`], and the attributes that OPEN names in its result.
pub(super) fn opened(r: &mut Results<'_>) -> Result<(ops::CreateOk, Bitmap), Failure> {
    creating(r)?;
    let OpenOk { dir, set, .. } = r.next::<OpenOk<'_>>(Operation::Open)?;
    r.optional::<StateidOk>(Operation::Close)?;
    Ok((created(r, dir)?, set))
}

/// Appends CREATE of `what` with `name` in `dir`.
fn put_create(ops: &mut Operations<'_>, at: &ops::NameIn<'_>, what: CreateType, set: &ops::SetAttributes) {
    put_creating(ops, at.dir);
    let args = CreateArgs { what, name: Opaque(at.name), attributes: settable(set) };
    ops.put(Operation::Create, &args);
    put_created(ops);
}

/// The results of [`put_create`].
fn create_result(r: &mut Results<'_>) -> Result<ops::CreateOk, Failure> {
    creating(r)?;
    let info = r.next::<CreateOk>(Operation::Create)?.dir;
    created(r, info)
}

impl Compound for ops::Mkdir<'_> {
    type Ok = ops::CreateOk;

    fn operations(&self, ops: &mut Operations<'_>) {
        put_create(ops, &self.at, CreateType::Directory, &self.attributes);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<ops::CreateOk, Failure> {
        create_result(r)
    }
}

impl Compound for ops::Symlink<'_> {
    type Ok = ops::CreateOk;

    fn operations(&self, ops: &mut Operations<'_>) {
        put_create(ops, &self.at, CreateType::Symlink(self.target.clone()), &self.attributes);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<ops::CreateOk, Failure> {
        create_result(r)
    }
}

impl Compound for ops::Mknod<'_> {
    type Ok = ops::CreateOk;

    fn operations(&self, ops: &mut Operations<'_>) {
        let device = |d: ops::SpecData| SpecData { major: d.major, minor: d.minor };
        let (what, set) = match &self.what {
            MknodWhat::Character(set, at) => (CreateType::Character(device(*at)), *set),
            MknodWhat::Block(set, at) => (CreateType::Block(device(*at)), *set),
            MknodWhat::Socket(set) => (CreateType::Socket, *set),
            MknodWhat::Fifo(set) => (CreateType::Fifo, *set),
        };
        put_create(ops, &self.at, what, &set);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<ops::CreateOk, Failure> {
        create_result(r)
    }
}

/// Appends REMOVE of a name, after a check whether it is a directory: REMOVE of NFSv4 removes both. `check` is VERIFY or
/// NVERIFY of the type of a directory.
fn put_remove(ops: &mut Operations<'_>, object: &ops::NameIn<'_>, check: Operation) {
    ops.putfh(object.dir.as_bytes()).put(Operation::Savefh, &());
    ops.put(Operation::Lookup, &v4::LookupArgs { name: Opaque(object.name) });
    let directory = Attributes { file_type: Some(FileType::Directory), ..Attributes::default() };
    ops.put(check, &directory).put(Operation::RestoreFh, &());
    ops.put(Operation::Remove, &RemoveArgs { name: Opaque(object.name) });
    put_directory(ops);
}

/// The results of [`put_remove`]; `otherwise` is the status if the check fails.
fn removed(r: &mut Results<'_>, check: Operation, otherwise: Status) -> Result<Wcc, Failure> {
    r.done(Operation::Putfh)?;
    r.done(Operation::Savefh)?;
    r.done(Operation::Lookup)?;
    verified(r.done(check), otherwise)?;
    r.done(Operation::RestoreFh)?;
    let info = r.next::<ChangeInfo>(Operation::Remove)?;
    directory(info, r)
}

impl Compound for ops::Remove<'_> {
    type Ok = Wcc;

    fn operations(&self, ops: &mut Operations<'_>) {
        put_remove(ops, &self.object, Operation::Nverify);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<Wcc, Failure> {
        removed(r, Operation::Nverify, Status::IsDir)
    }
}

impl Compound for ops::Rmdir<'_> {
    type Ok = Wcc;

    fn operations(&self, ops: &mut Operations<'_>) {
        put_remove(ops, &self.object, Operation::Verify);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<Wcc, Failure> {
        removed(r, Operation::Verify, Status::NotDir)
    }
}

impl Compound for ops::Rename<'_> {
    type Ok = ops::RenameOk;

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.putfh(self.from.dir.as_bytes()).put(Operation::Savefh, &()).putfh(self.to.dir.as_bytes());
        let args = v4::RenameArgs { from: Opaque(self.from.name), to: Opaque(self.to.name) };
        ops.put(Operation::Rename, &args);
        if has_directory(ops.proof) {
            ops.attributes().put(Operation::RestoreFh, &()).attributes();
        }
    }

    fn results(&self, r: &mut Results<'_>) -> Result<ops::RenameOk, Failure> {
        r.done(Operation::Putfh)?;
        r.done(Operation::Savefh)?;
        r.done(Operation::Putfh)?;
        let info = r.next::<v4::RenameOk>(Operation::Rename)?;
        let to = directory(info.to, r)?;
        if has_directory(r.proof) {
            r.optional::<()>(Operation::RestoreFh)?;
        }
        Ok(ops::RenameOk { from: directory(info.from, r)?, to })
    }
}

impl Compound for ops::Link<'_> {
    type Ok = ops::LinkOk;

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.putfh(self.file.as_bytes()).put(Operation::Savefh, &()).putfh(self.link.dir.as_bytes());
        ops.put(Operation::Link, &v4::LinkArgs { name: Opaque(self.link.name) });
        put_directory(ops);
        ops.put(Operation::RestoreFh, &()).attributes();
    }

    fn results(&self, r: &mut Results<'_>) -> Result<ops::LinkOk, Failure> {
        r.done(Operation::Putfh)?;
        r.done(Operation::Savefh)?;
        r.done(Operation::Putfh)?;
        let info = r.next::<ChangeInfo>(Operation::Link)?;
        let dir = directory(info, r)?;
        r.optional::<()>(Operation::RestoreFh)?;
        Ok(ops::LinkOk { file: after(r)?, dir })
    }
}
