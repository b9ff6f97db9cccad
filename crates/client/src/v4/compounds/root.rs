//! The steps from the root of an NFSv4 server to an export.

use millrace_nfs::v4::{
    Attributes, Fsid, GetfhOk, Opaque, Operation, SecinfoArgs, SecinfoNoNameArgs, SecinfoOk, SecinfoStyle,
};
use millrace_oncrpc::SecurityFlavor;

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
    Ok(Place { handle, file_type: attributes(&a, r)?.file_type, fsid: a.fsid.unwrap_or_default() })
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

/// The security flavors that the server accepts for a name in a directory, or for the root of its name space.
pub(crate) struct Accepted<'n> {
    pub(crate) at: Option<(FileHandle, &'n [u8])>,
}

impl Compound for Accepted<'_> {
    type Ok = Vec<SecurityFlavor>;

    fn operations(&self, ops: &mut Operations<'_>) {
        match self.at {
            Some((dir, name)) => {
                ops.putfh(dir.as_bytes()).put(Operation::Secinfo, &SecinfoArgs { name: Opaque(name) })
            }
            None => {
                let args = SecinfoNoNameArgs { style: SecinfoStyle::CurrentFh };
                ops.put(Operation::Putrootfh, &()).put(Operation::SecinfoNoName, &args)
            }
        };
    }

    fn results(&self, r: &mut Results<'_>) -> Result<Vec<SecurityFlavor>, Failure> {
        let (put, operation) = match self.at {
            Some(_) => (Operation::Putfh, Operation::Secinfo),
            None => (Operation::Putrootfh, Operation::SecinfoNoName),
        };
        r.done(put)?;
        let ok: SecinfoOk<'_> = r.next(operation)?;
        Ok(ok.flavors.0.iter().filter_map(|flavor| SecurityFlavor::from_number(flavor.number()?)).collect())
    }
}
