//! READDIR.

use millrace_nfs::v4::{
    Attribute, Attributes, Opaque, ReaddirArgs, ReaddirEncoder, Status, TooSmall, Verifier,
};
use millrace_vfs::{Attr, DirEntry, DirPage, ReadDirLimits};

use super::{
    compound::{Compound, Scope},
    convert,
    object::{File, Object},
};
use crate::bulk::MAX_PAGE;

/// Bytes of an entry with a short name and the attributes that clients request, from which the number of entries
/// of a page is estimated.
const ENTRY_BYTES: usize = 128;
/// Added to the cookies of file systems, because cookies 1 and 2 are reserved (RFC 8881 section 18.23.3).
const COOKIE_OFFSET: u64 = 2;

/// An entry of a directory.
struct Entry {
    cookie: u64,
    name: Vec<u8>,
    /// The object and its attributes if they are available.
    object: Option<(Object, Option<Attr>)>,
    /// File ID in the directory, which an export may cover.
    fileid: u64,
}

struct Page {
    verifier: Verifier,
    entries: Vec<Entry>,
    eof: bool,
}

impl Compound<'_> {
    pub(super) async fn readdir(&mut self, args: ReaddirArgs) -> Result<(), Status> {
        let requested = args.requested.intersection(self.scope.supported());
        if requested.intersects(Attributes::WRITE_ONLY) {
            return Err(Status::Inval);
        }
        let args = ReaddirArgs { requested, ..args };
        let limit = self.take_bulk(args.maxcount.min(MAX_PAGE))?;
        let (limit, too_small) = self.list_room(limit);
        let Self { scope, reply, current, .. } = self;
        let page = match current.as_ref().ok_or(Status::NoFileHandle)? {
            Object::Pseudo(dir) => scope.pseudo_page(*dir, &args),
            Object::File(dir) => scope.page(dir, &args, u32::try_from(limit).unwrap_or(MAX_PAGE)).await?,
        };
        let mut list = ReaddirEncoder::begin(reply, &args, page.verifier, limit);
        for entry in &page.entries {
            let values = match scope.entry_attributes(entry, &args).await {
                Ok(values) => values,
                // The failure concerns this entry only, if the client requests `rdattr_error`.
                Err(status) if args.requested.contains(Attribute::RdattrError) => {
                    Attributes { rdattr_error: Some(status), ..Attributes::default() }
                }
                // READDIR has no WRONGSEC (RFC 8881 section 15.2).
                Err(Status::WrongSec) => return Err(Status::Access),
                Err(status) => return Err(status),
            };
            let handle = entry.object.as_ref().map(|(object, _)| object.seal(&scope.exports));
            let names = scope.owner_names(&values, args.requested).await;
            let mut values = Attributes { filehandle: handle.as_ref().map(|h| Opaque(h)), ..values };
            names.set(&mut values);
            if !list.push(entry.cookie, &entry.name, &values) {
                break;
            }
        }
        list.finish(page.eof).map(drop).map_err(|TooSmall| too_small)
    }
}

impl Scope<'_> {
    async fn entry_attributes(
        &self,
        entry: &Entry,
        args: &ReaddirArgs,
    ) -> Result<Attributes<'static>, Status> {
        let (object, known) = entry.object.as_ref().ok_or(Status::NoEnt)?;
        let values = self.attributes(object, *known, args.requested).await?;
        Ok(Attributes { mounted_on_fileid: Some(entry.fileid), ..values })
    }

    /// The entries of a pseudo directory. Their numbers are the cookies.
    fn pseudo_page(&self, dir: usize, args: &ReaddirArgs) -> Page {
        let paths = self.paths();
        let namespace = self.exports.namespace();
        let after = namespace
            .node(dir)
            .children
            .iter()
            .copied()
            .filter(|child| namespace.node(*child).number > args.cookie && paths.sees(*child));
        let entry = |child| {
            let node = namespace.node(child);
            Entry {
                cookie: node.number,
                name: node.name.clone(),
                object: Some((paths.at(child), None)),
                fileid: node.number,
            }
        };
        Page { verifier: [0; 8], entries: after.map(entry).collect(), eof: true }
    }

    /// The entries of a directory of an export.
    async fn page(&self, dir: &File, args: &ReaddirArgs, limit: u32) -> Result<Page, Status> {
        let cookie = match args.cookie {
            0 => 0,
            n if n <= COOKIE_OFFSET => return Err(Status::BadCookie),
            n => n - COOKIE_OFFSET,
        };
        let names = if args.dircount == 0 { limit } else { limit.min(args.dircount) };
        let limits = ReadDirLimits {
            max_entries: (limit as usize / ENTRY_BYTES).max(1),
            max_name_bytes: (names as usize).max(1),
            plus: true,
        };
        let page = dir.fs().readdir(dir.caller()?, &dir.handle, cookie, args.verifier, limits).await;
        let DirPage { entries, eof, verifier, .. } = page.map_err(convert::status)?;
        let nested = self.paths().nested(dir, None).await;
        let mut listed = Vec::with_capacity(entries.len());
        let mut last = args.cookie;
        for entry in entries {
            last = entry.cookie.wrapping_add(COOKIE_OFFSET);
            if !matches!(&entry.name[..], b"." | b"..") {
                listed.push(self.entry(dir, entry, last, &nested).await);
            }
        }
        if listed.is_empty() && !eof {
            // All entries of the page were `.` and `..`.
            let args = ReaddirArgs { cookie: last, verifier, ..*args };
            return Box::pin(self.page(dir, &args, limit)).await;
        }
        Ok(Page { verifier, entries: listed, eof })
    }

    async fn entry(&self, dir: &File, entry: DirEntry, cookie: u64, nested: &[usize]) -> Entry {
        let namespace = self.exports.namespace();
        let covering = nested.iter().copied().find(|at| namespace.node(*at).name == entry.name);
        let object = match covering.map(|at| self.paths().at(at)) {
            Some(Object::File(root)) => Some((Object::File(root), None)),
            _ => match entry.plus {
                Some((handle, attr)) => Some((Object::File(dir.sibling(handle)), Some(attr))),
                None => self.paths().child(dir, &entry.name).await.ok(),
            },
        };
        Entry { cookie, name: entry.name, object, fileid: entry.fileid }
    }
}
