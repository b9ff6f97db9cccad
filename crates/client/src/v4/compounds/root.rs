//! The steps from the root of an NFSv4 server to an export.

use millrace_nfs::v4::{Attributes, Fsid, GetfhOk, Operation};

use super::attributes::{attributes, handle};
use crate::{
    ops::{self, FileHandle},
    v4::compound::{Compound, Failure, Operations, Results},
};

/// An object on the path to an export.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) handle: FileHandle,
    pub(crate) file_type: ops::FileType,
    pub(crate) fsid: Fsid,
}

fn put(ops: &mut Operations<'_>) {
    ops.put(Operation::Getfh, &()).attributes();
}

fn place(r: &mut Results<'_>) -> Result<Place, Failure> {
    let handle = handle(&r.next::<GetfhOk<'_>>(Operation::Getfh)?.handle)?;
    let a: Attributes<'_> = r.next(Operation::Getattr)?;
    Ok(Place { handle, file_type: attributes(&a)?.file_type, fsid: a.fsid.unwrap_or_default() })
}

/// The root of the server's name space.
pub(crate) struct Root;

impl Compound for Root {
    type Ok = Place;

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.put(Operation::Putrootfh, &());
        put(ops);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<Place, Failure> {
        r.done(Operation::Putrootfh)?;
        place(r)
    }
}

/// A name in a directory.
pub(crate) struct Step<'n> {
    pub(crate) dir: FileHandle,
    pub(crate) name: &'n [u8],
}

impl Compound for Step<'_> {
    type Ok = Place;

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.putfh(self.dir.as_bytes()).lookup(self.name);
        put(ops);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<Place, Failure> {
        r.done(Operation::Putfh)?;
        r.lookup(self.name)?;
        place(r)
    }
}
