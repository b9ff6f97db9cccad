//! READDIR, READDIRPLUS.

use millrace_nfs::v3::{
    EntryPlus, PostOpAttr, Procedure, ReaddirArgs, ReaddirEncoder, ReaddirplusArgs, ReaddirplusEncoder,
    Status, entry_bytes, plus_entry_bytes,
};
use millrace_vfs::{DirPage, ReadDirLimits};
use millrace_xdr::Encoder;

use super::{Env, convert, outcome::Executed, target::Target};
use crate::bulk::MAX_PAGE;

pub(super) async fn readdir(env: &Env, dir: &Target, args: ReaddirArgs, mut reply: Encoder) -> Executed {
    let (count, header) = (args.count.min(MAX_PAGE), reply.len());
    let limits = ReadDirLimits {
        max_entries: (count as usize / entry_bytes(1)).max(1),
        max_name_bytes: (count as usize).max(1),
        plus: false,
    };
    match dir.fs().readdir(&dir.caller, &dir.file, args.cookie, args.verifier, limits).await {
        Ok(page) => {
            let attr = Some(convert::fattr(&page.attr));
            let mut list = ReaddirEncoder::begin(&mut reply, &attr, page.verifier, count);
            let _ = page.entries.iter().all(|e| list.push(e.fileid, &e.name, e.cookie));
            let done = list.finish(page.eof);
            finish(env, Procedure::Readdir, reply, header, done.is_ok(), &attr)
        }
        Err(e) => env.failed(Procedure::Readdir, reply, convert::status(e), &dir.attr().await),
    }
}

pub(super) async fn readdirplus(
    env: &Env,
    dir: &Target,
    args: ReaddirplusArgs,
    mut reply: Encoder,
) -> Executed {
    let (limits, header) = (plus_limits(dir, &args), reply.len());
    match dir.fs().readdir(&dir.caller, &dir.file, args.cookie, args.verifier, limits).await {
        Ok(page) => {
            let attr = Some(convert::fattr(&page.attr));
            let done = put_plus(dir, &page, &args, &attr, &mut reply);
            finish(env, Procedure::Readdirplus, reply, header, done.is_ok(), &attr)
        }
        Err(e) => env.failed(Procedure::Readdirplus, reply, convert::status(e), &dir.attr().await),
    }
}

/// Ends a listing with at least one entry (`fits`). If there is no memory for the page, the client is to
/// retry.
fn finish(
    env: &Env,
    procedure: Procedure,
    mut reply: Encoder,
    header: usize,
    fits: bool,
    attr: &PostOpAttr,
) -> Executed {
    if reply.has_failed() {
        reply.truncate(header);
        return env.failed(procedure, reply, Status::Jukebox, attr);
    }
    if fits { Ok(reply) } else { env.failed(procedure, reply, Status::TooSmall, attr) }
}

/// Limits for the file system: the number of entries that fit, because attributes and handles of further
/// entries would be wasted.
fn plus_limits(dir: &Target, args: &ReaddirplusArgs) -> ReadDirLimits {
    let max = args.maxcount.min(MAX_PAGE) as usize;
    let handle = dir.export.seal(&dir.file).len();
    let names = if args.dircount == 0 { max } else { max.min(args.dircount as usize) };
    ReadDirLimits {
        max_entries: (max / plus_entry_bytes(1, true, Some(handle))).max(1),
        max_name_bytes: names.max(1),
        plus: true,
    }
}

fn put_plus(
    dir: &Target,
    page: &DirPage,
    args: &ReaddirplusArgs,
    attr: &PostOpAttr,
    reply: &mut Encoder,
) -> Result<usize, millrace_nfs::v3::TooSmall> {
    let max = args.maxcount.min(MAX_PAGE);
    let mut list = ReaddirplusEncoder::begin(reply, attr, page.verifier, args.dircount, max);
    for e in &page.entries {
        let entry = EntryPlus {
            fileid: e.fileid,
            name: &e.name,
            cookie: e.cookie,
            attributes: e.plus.as_ref().map(|(_, a)| convert::fattr(a)),
            handle: e.plus.as_ref().and_then(|(h, _)| dir.post_op_handle(h)),
        };
        if !list.push(&entry) {
            break;
        }
    }
    list.finish(page.eof)
}
