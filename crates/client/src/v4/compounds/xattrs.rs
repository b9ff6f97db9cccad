//! Extended attributes, which NFSv3 has not (RFC 8276 section 8.4).

use millrace_nfs::v4::{
    ChangeInfo, GetxattrArgs, GetxattrOk, ListxattrsArgs, ListxattrsOk, Opaque, Operation, RemovexattrArgs,
    SetxattrArgs, SetxattrOption,
};

use super::changes::attributes_changed;
use crate::{
    ops::{FileHandle, Wcc},
    v4::{
        ChangeProof,
        compound::{Compound, Failure, Operations, Results},
    },
};

/// GETXATTR.
pub(crate) struct Getxattr<'a> {
    pub(crate) object: FileHandle,
    pub(crate) name: &'a [u8],
}

impl Compound for Getxattr<'_> {
    type Ok = Vec<u8>;

    fn operations(&self, ops: &mut Operations<'_>) {
        let args = GetxattrArgs { name: Opaque(self.name) };
        ops.putfh(self.object.as_bytes()).put(Operation::Getxattr, &args);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<Vec<u8>, Failure> {
        r.done(Operation::Putfh)?;
        Ok(r.next::<GetxattrOk<'_>>(Operation::Getxattr)?.value.to_vec())
    }
}

/// LISTXATTRS: one page of names.
pub(crate) struct Listxattrs {
    pub(crate) object: FileHandle,
    pub(crate) cookie: u64,
    pub(crate) maxcount: u32,
}

/// The result of [`Listxattrs`].
pub(crate) struct XattrPage {
    pub(crate) names: Vec<Vec<u8>>,
    pub(crate) cookie: u64,
    pub(crate) eof: bool,
}

impl Compound for Listxattrs {
    type Ok = XattrPage;

    fn operations(&self, ops: &mut Operations<'_>) {
        let args = ListxattrsArgs { cookie: self.cookie, maxcount: self.maxcount };
        ops.putfh(self.object.as_bytes()).put(Operation::Listxattrs, &args);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<XattrPage, Failure> {
        r.done(Operation::Putfh)?;
        let ok: ListxattrsOk<'_> = r.next(Operation::Listxattrs)?;
        // They are parts of lists that end with NUL bytes (listxattr(2)).
        if ok.names.0.iter().any(|name| name.is_empty() || name.contains(&0)) {
            return Err(Failure::Invalid("an invalid name of an extended attribute".into()));
        }
        let names = ok.names.0.iter().map(|name| name.to_vec()).collect();
        Ok(XattrPage { names, cookie: ok.cookie, eof: ok.eof })
    }
}

/// SETXATTR and REMOVEXATTR.
pub(crate) struct ChangeXattr<'a> {
    pub(crate) object: FileHandle,
    pub(crate) name: &'a [u8],
    /// The value; `None` removes the attribute.
    pub(crate) new: Option<(&'a [u8], SetxattrOption)>,
}

impl ChangeXattr<'_> {
    pub(crate) fn operation(&self) -> Operation {
        if self.new.is_some() { Operation::Setxattr } else { Operation::Removexattr }
    }
}

impl Compound for ChangeXattr<'_> {
    type Ok = Wcc;

    fn operations(&self, ops: &mut Operations<'_>) {
        let name = Opaque(self.name);
        ops.putfh(self.object.as_bytes());
        match self.new {
            Some((value, option)) => {
                ops.put(Operation::Setxattr, &SetxattrArgs { option, name, value: Opaque(value) })
            }
            None => ops.put(Operation::Removexattr, &RemovexattrArgs { name }),
        };
        ops.attributes();
    }

    fn results(&self, r: &mut Results<'_>) -> Result<Wcc, Failure> {
        r.done(Operation::Putfh)?;
        let info: ChangeInfo = r.next(self.operation())?;
        let counts = r.proof == ChangeProof::OfObjects;
        attributes_changed(counts.then_some(info.before), true, r)
    }
}
