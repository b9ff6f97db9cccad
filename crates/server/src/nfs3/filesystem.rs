//! FSSTAT, FSINFO, PATHCONF.

use millrace_nfs::v3::{
    FsinfoArgs, FsinfoOk, FsstatArgs, FsstatOk, NfsTime, PathconfArgs, PathconfOk, PostOpAttr, Procedure,
    properties,
};
use millrace_vfs::FsInfo;
use millrace_xdr::Encoder;

use super::{Env, convert, done, outcome::Executed, target::Target};
use crate::bulk::MAX_PAGE;

/// Preferred multiple of READ and WRITE sizes: a page.
const MULTIPLE: u32 = 4096;
/// Preferred size of READDIR: a power of two, to which Linux rounds it down, not below the maximum of a page.
const READDIR_PREFERRED: u32 = MAX_PAGE.next_power_of_two();
const NANOS_PER_SECOND: u32 = 1_000_000_000;

pub(super) async fn fsstat(env: &Env, t: &Target, _: FsstatArgs, reply: Encoder) -> Executed {
    let attributes = match t.fs().getattr(&t.file).await {
        Ok(a) => Some(convert::fattr(&a)),
        Err(e) => return env.failed(Procedure::Fsstat, reply, convert::status(e), &PostOpAttr::None),
    };
    match t.fs().stat().await {
        Ok(s) => done(
            reply,
            &FsstatOk {
                attributes,
                total_bytes: s.total_bytes,
                free_bytes: s.free_bytes,
                available_bytes: s.available_bytes,
                total_files: s.total_files,
                free_files: s.free_files,
                available_files: s.available_files,
                invariant_seconds: 0,
            },
        ),
        Err(e) => env.failed(Procedure::Fsstat, reply, convert::status(e), &attributes),
    }
}

pub(super) async fn fsinfo(env: &Env, t: &Target, _: FsinfoArgs, reply: Encoder) -> Executed {
    let attributes = match t.fs().getattr(&t.file).await {
        Ok(a) => Some(convert::fattr(&a)),
        Err(e) => return env.failed(Procedure::Fsinfo, reply, convert::status(e), &PostOpAttr::None),
    };
    let info = t.export.info();
    let delta = info.time_delta_nanos;
    done(
        reply,
        &FsinfoOk {
            attributes,
            read_max: env.rtmax,
            read_preferred: env.rtmax,
            read_multiple: MULTIPLE,
            write_max: env.wtmax,
            write_preferred: env.wtmax,
            write_multiple: MULTIPLE,
            readdir_preferred: READDIR_PREFERRED,
            max_file_size: info.max_file_size,
            time_delta: NfsTime {
                seconds: (delta / NANOS_PER_SECOND).into(),
                nanoseconds: delta % NANOS_PER_SECOND,
            },
            properties: properties_of(info),
        },
    )
}

fn properties_of(info: &FsInfo) -> u32 {
    let optional = [
        (info.hard_links, properties::LINK),
        (info.symlinks, properties::SYMLINK),
        (info.writable, properties::CAN_SET_TIME),
    ];
    optional
        .into_iter()
        .filter(|(supported, _)| *supported)
        .fold(properties::HOMOGENEOUS, |all, (_, bit)| all | bit)
}

pub(super) async fn pathconf(env: &Env, t: &Target, _: PathconfArgs, reply: Encoder) -> Executed {
    let attributes = match t.fs().getattr(&t.file).await {
        Ok(a) => Some(convert::fattr(&a)),
        Err(e) => return env.failed(Procedure::Pathconf, reply, convert::status(e), &PostOpAttr::None),
    };
    let info = t.export.info();
    done(
        reply,
        &PathconfOk {
            attributes,
            link_max: info.link_max,
            name_max: info.name_max,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        },
    )
}
