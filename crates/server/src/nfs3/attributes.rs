//! GETATTR, SETATTR, ACCESS.

use millrace_nfs::v3::{AccessArgs, AccessOk, GetattrArgs, GetattrOk, Procedure, SetattrArgs};
use millrace_vfs::{Access, FsError};
use millrace_xdr::Encoder;

use super::{Env, convert, done, outcome::Executed, target::Target};

/// Rights that a read-only export never grants.
const WRITE_RIGHTS: u32 = Access::MODIFY | Access::EXTEND | Access::DELETE;
const ALL: u32 = millrace_nfs::v3::access::ALL;

pub(super) async fn getattr(env: &Env, t: &Target, _: GetattrArgs, reply: Encoder) -> Executed {
    match env.attributes(t).await {
        Ok(a) => done(reply, &GetattrOk { attributes: convert::fattr(&a) }),
        Err(e) => env.failed(Procedure::Getattr, reply, convert::status(e), &()),
    }
}

pub(super) async fn setattr(env: &Env, t: &Target, args: SetattrArgs, reply: Encoder) -> Executed {
    match set(env, t, &args).await {
        Ok(wcc) => done(reply, &convert::wcc(&wcc)),
        Err(e) => env.failed(Procedure::Setattr, reply, convert::status(e), &t.wcc().await),
    }
}

async fn set(env: &Env, t: &Target, args: &SetattrArgs) -> Result<millrace_vfs::Wcc, FsError> {
    t.writable()?;
    let set = convert::set_attr(&args.attributes)?;
    let guard = args.guard.map(convert::time).transpose()?;
    let _changing = env.change(t)?;
    t.fs().setattr(&t.caller, &t.file, &set, guard).await
}

pub(super) async fn access(env: &Env, t: &Target, args: AccessArgs, reply: Encoder) -> Executed {
    let wanted = args.access & if t.read_only { ALL & !WRITE_RIGHTS } else { ALL };
    match t.fs().access(&t.caller, &t.file, Access(wanted)).await {
        Ok((granted, a)) => {
            let attributes = Some(convert::fattr(&a));
            done(reply, &AccessOk { attributes, access: granted.0 & wanted })
        }
        Err(e) => env.failed(Procedure::Access, reply, convert::status(e), &t.attr().await),
    }
}
