//! A path in one COMPOUND: the lookups of its components, and a READ of the object at its end.

use millrace_nfs::v4::{self, GetfhOk, Operation, Stateid};

use super::attributes::{get, handle};
use crate::{
    ops::{self, FileHandle},
    v4::compound::{Compound, Failure, Operations, Results},
};

/// Maximum number of components of one COMPOUND: LOOKUP, GETFH and GETATTR for each, beside SEQUENCE, PUTFH and READ.
pub(crate) const MAX_COMPONENTS: usize = 4;

/// The lookups of names, each in the object of the previous one.
pub(crate) struct Walk<'n> {
    pub(crate) dir: FileHandle,
    /// At most [`MAX_COMPONENTS`].
    pub(crate) names: &'n [&'n [u8]],
    /// Number of bytes to read from the beginning of the last object.
    pub(crate) read: Option<u32>,
}

/// The results of [`Walk`].
pub(crate) struct Walked {
    /// The objects of the first names, at least one. The lookup of the next name failed.
    pub(crate) found: Vec<(FileHandle, ops::Attributes)>,
    /// The data, if all names were found and the last object could be read.
    pub(crate) data: Option<ops::ReadOk>,
}

impl Walk<'_> {
    fn next(name: &[u8], r: &mut Results<'_>) -> Result<(FileHandle, ops::Attributes), Failure> {
        r.lookup(name)?;
        let handle = handle(&r.next::<GetfhOk<'_>>(Operation::Getfh)?.handle)?;
        Ok((handle, get(r)?))
    }
}

impl Compound for Walk<'_> {
    type Ok = Walked;

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.putfh(self.dir.as_bytes());
        for name in self.names {
            ops.lookup(name).put(Operation::Getfh, &()).attributes();
        }
        if let Some(count) = self.read {
            let args = v4::ReadArgs { stateid: Stateid::ANONYMOUS, offset: 0, count };
            ops.put(Operation::Read, &args);
        }
    }

    fn results(&self, r: &mut Results<'_>) -> Result<Walked, Failure> {
        r.done(Operation::Putfh)?;
        let mut walked = Walked { found: Vec::with_capacity(self.names.len()), data: None };
        for name in self.names {
            match Self::next(name, r) {
                Ok(object) => walked.found.push(object),
                Err(failure) if walked.found.is_empty() => return Err(failure),
                Err(failure) => return r.accept(failure).map(|()| walked),
            }
        }
        if self.read.is_some() {
            match r.next(Operation::Read) {
                Ok(v4::ReadOk { eof, data }) => walked.data = Some(ops::ReadOk { eof, data }),
                Err(failure) => r.accept(failure)?,
            }
        }
        Ok(walked)
    }
}
