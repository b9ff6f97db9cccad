//! The procedures of NFSv3 (RFC 1813 section 3.3).

use millrace_buffer::Views;
use millrace_nfs::v3;
use millrace_xdr::{Decoder, Encoder, XdrError};

use super::convert::{
    attributes, get_attributes, get_handle, get_wcc, how, node, optional, put_name, settable, stable,
    stable3, time, time3,
};
use crate::ops::{
    self, Access, AccessOk, Attributes, Call, Commit, CommitOk, Create, CreateExclusive, CreateOk,
    CreatedExclusive, DirEntry, DirPage, FileHandle, FsInfo, FsStat, Fsinfo, Fsstat, Getattr, LeftToSet,
    LinkOk, Lookup, LookupOk, Mkdir, Mknod, PathConf, Pathconf, Read, ReadOk, Readdir, Readdirplus, Readlink,
    Remove, Rename, RenameOk, Rmdir, Setattr, Symlink, Wcc, Write, WriteOk,
};

/// The arguments of a call, and its results after a status of success, as NFSv3 encodes them.
pub(crate) trait Procedure: Call {
    /// Encodes the arguments.
    fn encode(&self, e: &mut Encoder);

    /// Decodes the results.
    fn decode(d: &mut Decoder<'_>) -> Result<Self::Ok, XdrError>;
}

impl Procedure for Getattr {
    fn encode(&self, e: &mut Encoder) {
        e.put_opaque(self.object.as_bytes());
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Attributes, XdrError> {
        d.get().map(attributes)
    }
}

impl Procedure for Setattr {
    fn encode(&self, e: &mut Encoder) {
        e.put_opaque(self.object.as_bytes());
        e.put(&settable(&self.attributes));
        e.put(&self.guard.map(time3));
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Wcc, XdrError> {
        get_wcc(d)
    }
}

impl Procedure for Lookup<'_> {
    fn encode(&self, e: &mut Encoder) {
        put_name(e, &self.what);
    }

    fn decode(d: &mut Decoder<'_>) -> Result<LookupOk, XdrError> {
        Ok(LookupOk { object: get_handle(d)?, attributes: get_attributes(d)?, dir: get_attributes(d)? })
    }
}

impl Procedure for Access {
    fn encode(&self, e: &mut Encoder) {
        e.put_opaque(self.object.as_bytes());
        e.put_u32(self.access);
    }

    fn decode(d: &mut Decoder<'_>) -> Result<AccessOk, XdrError> {
        Ok(AccessOk { attributes: get_attributes(d)?, access: d.u32()? })
    }
}

impl Procedure for Readlink {
    fn encode(&self, e: &mut Encoder) {
        e.put_opaque(self.symlink.as_bytes());
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Views, XdrError> {
        d.get().map(|ok: v3::ReadlinkOk| ok.target)
    }
}

impl Procedure for Read {
    fn encode(&self, e: &mut Encoder) {
        e.put_opaque(self.file.as_bytes());
        e.put_u64(self.offset);
        e.put_u32(self.count);
    }

    fn decode(d: &mut Decoder<'_>) -> Result<ReadOk, XdrError> {
        d.get().map(|ok: v3::ReadOk| ReadOk { eof: ok.eof, data: ok.data })
    }
}

impl Procedure for Write {
    fn encode(&self, e: &mut Encoder) {
        e.put_opaque(self.file.as_bytes());
        e.put_u64(self.offset);
        e.put_u32(self.data.len() as u32);
        e.put(&stable3(self.stable));
        e.put_payload(self.data.clone());
    }

    fn decode(d: &mut Decoder<'_>) -> Result<WriteOk, XdrError> {
        let (file, count) = (get_wcc(d)?, d.u32()?);
        Ok(WriteOk { file, count, committed: stable(d.get()?), verifier: d.get()? })
    }
}

fn created(d: &mut Decoder<'_>) -> Result<CreateOk, XdrError> {
    Ok(CreateOk { object: optional(d, get_handle)?, attributes: get_attributes(d)?, dir: get_wcc(d)? })
}

impl Procedure for Create<'_> {
    fn encode(&self, e: &mut Encoder) {
        put_name(e, &self.at);
        e.put(&how(&self.how));
    }

    fn decode(d: &mut Decoder<'_>) -> Result<CreateOk, XdrError> {
        created(d)
    }
}

impl Procedure for CreateExclusive<'_> {
    fn encode(&self, e: &mut Encoder) {
        put_name(e, &self.at);
        e.put(&v3::CreateHow::Exclusive(self.verifier));
    }

    /// The server may have stored the verifier in any attribute (RFC 1813 section 3.3.8).
    fn decode(d: &mut Decoder<'_>) -> Result<CreatedExclusive, XdrError> {
        Ok(CreatedExclusive { created: created(d)?, left: LeftToSet { mode: true, times: true } })
    }
}

impl Procedure for Mkdir<'_> {
    fn encode(&self, e: &mut Encoder) {
        put_name(e, &self.at);
        e.put(&settable(&self.attributes));
    }

    fn decode(d: &mut Decoder<'_>) -> Result<CreateOk, XdrError> {
        created(d)
    }
}

impl Procedure for Symlink<'_> {
    fn encode(&self, e: &mut Encoder) {
        put_name(e, &self.at);
        e.put(&settable(&self.attributes));
        e.put_payload(self.target.clone());
    }

    fn decode(d: &mut Decoder<'_>) -> Result<CreateOk, XdrError> {
        created(d)
    }
}

impl Procedure for Mknod<'_> {
    fn encode(&self, e: &mut Encoder) {
        put_name(e, &self.at);
        e.put(&node(&self.what));
    }

    fn decode(d: &mut Decoder<'_>) -> Result<CreateOk, XdrError> {
        created(d)
    }
}

impl Procedure for Remove<'_> {
    fn encode(&self, e: &mut Encoder) {
        put_name(e, &self.object);
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Wcc, XdrError> {
        get_wcc(d)
    }
}

impl Procedure for Rmdir<'_> {
    fn encode(&self, e: &mut Encoder) {
        put_name(e, &self.object);
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Wcc, XdrError> {
        get_wcc(d)
    }
}

impl Procedure for Rename<'_> {
    fn encode(&self, e: &mut Encoder) {
        put_name(e, &self.from);
        put_name(e, &self.to);
    }

    fn decode(d: &mut Decoder<'_>) -> Result<RenameOk, XdrError> {
        Ok(RenameOk { from: get_wcc(d)?, to: get_wcc(d)? })
    }
}

impl Procedure for ops::Link<'_> {
    fn encode(&self, e: &mut Encoder) {
        e.put_opaque(self.file.as_bytes());
        put_name(e, &self.link);
    }

    fn decode(d: &mut Decoder<'_>) -> Result<LinkOk, XdrError> {
        Ok(LinkOk { file: get_attributes(d)?, dir: get_wcc(d)? })
    }
}

impl Procedure for Readdir {
    fn encode(&self, e: &mut Encoder) {
        e.put_opaque(self.dir.as_bytes());
        e.put_u64(self.cookie);
        e.put(&self.verifier);
        e.put_u32(self.count);
    }

    fn decode(d: &mut Decoder<'_>) -> Result<DirPage, XdrError> {
        let ok: v3::ReaddirOk<'_> = d.get()?;
        let own = |e: v3::Entry<'_>| DirEntry {
            fileid: e.fileid,
            name: e.name.to_vec(),
            cookie: e.cookie,
            attributes: None,
            handle: None,
        };
        let entries = ok.entries.into_iter().map(own).collect();
        Ok(DirPage { entries, verifier: ok.verifier, eof: ok.eof, dir: ok.attributes.map(attributes) })
    }
}

impl Procedure for Readdirplus {
    fn encode(&self, e: &mut Encoder) {
        let Readdir { dir, cookie, verifier, count } = &self.0;
        e.put_opaque(dir.as_bytes());
        e.put_u64(*cookie);
        e.put(verifier);
        e.put_u32(*count); // dircount
        e.put_u32(*count); // maxcount
    }

    fn decode(d: &mut Decoder<'_>) -> Result<DirPage, XdrError> {
        let ok: v3::ReaddirplusOk<'_> = d.get()?;
        let own = |e: v3::EntryPlus<'_>| DirEntry {
            fileid: e.fileid,
            name: e.name.to_vec(),
            cookie: e.cookie,
            attributes: e.attributes.map(attributes),
            handle: e.handle.and_then(|handle| FileHandle::new(handle.as_bytes())),
        };
        let entries = ok.entries.into_iter().map(own).collect();
        Ok(DirPage { entries, verifier: ok.verifier, eof: ok.eof, dir: ok.attributes.map(attributes) })
    }
}

impl Procedure for Fsstat {
    fn encode(&self, e: &mut Encoder) {
        e.put_opaque(self.root.as_bytes());
    }

    fn decode(d: &mut Decoder<'_>) -> Result<FsStat, XdrError> {
        let ok: v3::FsstatOk = d.get()?;
        Ok(FsStat {
            total_bytes: ok.total_bytes,
            free_bytes: ok.free_bytes,
            available_bytes: ok.available_bytes,
            total_files: ok.total_files,
            free_files: ok.free_files,
            available_files: ok.available_files,
        })
    }
}

impl Procedure for Fsinfo {
    fn encode(&self, e: &mut Encoder) {
        e.put_opaque(self.root.as_bytes());
    }

    fn decode(d: &mut Decoder<'_>) -> Result<FsInfo, XdrError> {
        use v3::properties as bits;
        let ok: v3::FsinfoOk = d.get()?;
        let has = |bit| ok.properties & bit != 0;
        Ok(FsInfo {
            read_max: ok.read_max,
            read_preferred: ok.read_preferred,
            write_max: ok.write_max,
            write_preferred: ok.write_preferred,
            readdir_preferred: ok.readdir_preferred,
            max_file_size: ok.max_file_size,
            time_delta: time(ok.time_delta),
            hard_links: has(bits::LINK),
            symlinks: has(bits::SYMLINK),
            homogeneous: has(bits::HOMOGENEOUS),
            can_set_time: has(bits::CAN_SET_TIME),
        })
    }
}

impl Procedure for Pathconf {
    fn encode(&self, e: &mut Encoder) {
        e.put_opaque(self.object.as_bytes());
    }

    fn decode(d: &mut Decoder<'_>) -> Result<PathConf, XdrError> {
        let ok: v3::PathconfOk = d.get()?;
        Ok(PathConf {
            link_max: ok.link_max,
            name_max: ok.name_max,
            no_trunc: ok.no_trunc,
            chown_restricted: ok.chown_restricted,
            case_insensitive: ok.case_insensitive,
            case_preserving: ok.case_preserving,
        })
    }
}

impl Procedure for Commit {
    fn encode(&self, e: &mut Encoder) {
        e.put_opaque(self.file.as_bytes());
        e.put_u64(self.offset);
        e.put_u32(self.count);
    }

    fn decode(d: &mut Decoder<'_>) -> Result<CommitOk, XdrError> {
        Ok(CommitOk { file: get_wcc(d)?, verifier: d.get()? })
    }
}
