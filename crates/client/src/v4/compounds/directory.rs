//! READDIR and READDIRPLUS.

use millrace_nfs::v4::{self, Attribute, Bitmap, Operation, ReaddirOk, Status};

use super::attributes::{attributes, get, requested};
use crate::{
    ops::{DirEntry, DirPage, FileHandle, Readdir, Readdirplus},
    v4::compound::{Compound, Failure, Operations, Results},
};

/// The attributes of the entries beside those of objects. The server reports in `rdattr_error` why it has no others for an entry.
const ENTRY: Bitmap = Bitmap::of(&[Attribute::Filehandle, Attribute::RdattrError]);

fn put(ops: &mut Operations<'_>, dir: FileHandle, args: &v4::ReaddirArgs) {
    ops.putfh(dir.as_bytes()).attributes().put(Operation::Readdir, args);
}

fn page(r: &mut Results<'_>) -> Result<DirPage, Failure> {
    r.done(Operation::Putfh)?;
    let dir = Some(get(r)?);
    let ok: ReaddirOk<'_> = match r.next(Operation::Readdir) {
        // READDIR returns NOT_SAME for an outdated cookie verifier.
        Err(Failure::Status(operation, Status::NotSame)) => {
            return Err(Failure::Status(operation, Status::BadCookie));
        }
        other => other?,
    };
    let entries = ok.entries.iter().map(|e| entry(e, r)).collect::<Result<_, _>>()?;
    Ok(DirPage { entries, verifier: ok.verifier, eof: ok.eof, dir })
}

fn entry(e: &v4::Entry<'_>, r: &mut Results<'_>) -> Result<DirEntry, Failure> {
    let a = e.attributes.decode_values()?;

    Ok(DirEntry {
        fileid: a.fileid.unwrap_or_default(),
        name: e.name.to_vec(),
        cookie: e.cookie,
        attributes: attributes(&a, r).ok(),
        handle: a.filehandle.and_then(|h| FileHandle::new(&h)),
    })
}

impl Compound for Readdirplus {
    type Ok = DirPage;

    fn operations(&self, ops: &mut Operations<'_>) {
        let Readdir { dir, cookie, verifier, count } = self.0;
        let requested = requested(ops.proof).union(ENTRY);
        put(ops, dir, &v4::ReaddirArgs { cookie, verifier, dircount: count, maxcount: count, requested });
    }

    fn results(&self, r: &mut Results<'_>) -> Result<DirPage, Failure> {
        page(r)
    }
}

impl Compound for Readdir {
    type Ok = DirPage;

    fn operations(&self, ops: &mut Operations<'_>) {
        let (cookie, verifier, maxcount) = (self.cookie, self.verifier, self.count);
        let requested = Bitmap::of(&[Attribute::Fileid, Attribute::RdattrError]);
        put(ops, self.dir, &v4::ReaddirArgs { cookie, verifier, dircount: 0, maxcount, requested });
    }

    fn results(&self, r: &mut Results<'_>) -> Result<DirPage, Failure> {
        page(r)
    }
}
