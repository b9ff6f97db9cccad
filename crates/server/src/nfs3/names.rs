//! Procedures about names in directories: LOOKUP, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK.

use std::sync::Arc;

use millrace_nfs::v3::{
    CreateArgs, CreateOk, DirOpArgs, LinkArgs, LinkFail, LinkOk, LookupArgs, LookupFail, LookupOk, MkdirArgs,
    MknodArgs, MknodWhat, RemoveArgs, RenameArgs, RenameFail, RenameOk, RmdirArgs, Sattr, SymlinkArgs,
    WccData,
};
use millrace_oncrpc::{CallContext, Outcome};
use millrace_vfs::{Created, FsError, NewNode, Wcc};
use millrace_xdr::Encoder;

use super::{
    Env, convert, done,
    target::{Refused, Target},
};

pub(super) async fn lookup(env: Arc<Env>, call: CallContext, reply: Encoder) -> Outcome {
    let args: LookupArgs<'_> = call.arguments()?;
    let dir = match env.target(&call, &args.what.dir) {
        Ok(t) => t,
        Err(r) => return env.refused::<LookupFail>(reply, r),
    };
    let found = dir.fs().lookup(&dir.who, &dir.file, args.what.name).await;
    let dir_attr = dir.attr().await;
    match found.and_then(|(file, attr)| Ok((dir.handle(&file)?, attr))) {
        Ok((object, attr)) => {
            done(reply, &LookupOk { object, attributes: Some(convert::fattr(&attr)), dir: dir_attr })
        }
        Err(e) => env.failed(reply, convert::status(e), &dir_attr),
    }
}

pub(super) async fn create(env: Arc<Env>, call: CallContext, reply: Encoder) -> Outcome {
    let args: CreateArgs<'_> = call.arguments()?;
    let dir = match env.target(&call, &args.where_.dir) {
        Ok(t) => t,
        Err(r) => return env.refused::<WccData>(reply, r),
    };
    let created = async {
        dir.writable()?;
        let how = convert::create_how(&args.how)?;
        dir.fs().create(&dir.who, &dir.file, args.where_.name, &how).await
    };
    env.created(&dir, created.await, reply).await
}

pub(super) async fn mkdir(env: Arc<Env>, call: CallContext, reply: Encoder) -> Outcome {
    let args: MkdirArgs<'_> = call.arguments()?;
    env.make(&call, &args.where_, Ok(NewNode::Directory), &args.attributes, reply).await
}

pub(super) async fn symlink(env: Arc<Env>, call: CallContext, reply: Encoder) -> Outcome {
    let args: SymlinkArgs<'_> = call.arguments()?;
    // The text becomes part of an inode: no payload that a copy would be counted for.
    let target: Vec<u8> = args.target.iter().flat_map(|v| v.iter().copied()).collect();
    let node = if target.is_empty() || target.contains(&0) {
        Err(FsError::Inval)
    } else {
        Ok(NewNode::Symlink(target))
    };
    env.make(&call, &args.where_, node, &args.attributes, reply).await
}

pub(super) async fn mknod(env: Arc<Env>, call: CallContext, reply: Encoder) -> Outcome {
    let args: MknodArgs<'_> = call.arguments()?;
    let (node, attributes) = match args.what {
        MknodWhat::Character(a, s) => (Ok(NewNode::Character(s.major, s.minor)), a),
        MknodWhat::Block(a, s) => (Ok(NewNode::Block(s.major, s.minor)), a),
        MknodWhat::Socket(a) => (Ok(NewNode::Socket), a),
        MknodWhat::Fifo(a) => (Ok(NewNode::Fifo), a),
        MknodWhat::Other(_) => (Err(FsError::BadType), Sattr::default()),
    };
    env.make(&call, &args.where_, node, &attributes, reply).await
}

impl Env {
    async fn make(
        &self,
        call: &CallContext,
        place: &DirOpArgs<'_>,
        node: Result<NewNode, FsError>,
        attributes: &Sattr,
        reply: Encoder,
    ) -> Outcome {
        let dir = match self.target(call, &place.dir) {
            Ok(t) => t,
            Err(r) => return self.refused::<WccData>(reply, r),
        };
        let created = async {
            dir.writable()?;
            let node = node?;
            let set = convert::set_attr(attributes)?;
            dir.fs().create_node(&dir.who, &dir.file, place.name, &node, &set).await
        };
        let created = created.await;
        self.created(&dir, created, reply).await
    }

    async fn created(&self, dir: &Target, created: Result<Created, FsError>, reply: Encoder) -> Outcome {
        match created {
            Ok(c) => {
                let attributes = Some(convert::fattr(&c.attr));
                done(
                    reply,
                    &CreateOk {
                        object: dir.post_op_handle(&c.handle),
                        attributes,
                        dir: convert::wcc(&c.dir),
                    },
                )
            }
            Err(e) => self.failed(reply, convert::status(e), &dir.wcc().await),
        }
    }

    /// Ends REMOVE and RMDIR.
    async fn removed(&self, dir: &Target, removed: Result<Wcc, FsError>, reply: Encoder) -> Outcome {
        match removed {
            Ok(wcc) => done(reply, &convert::wcc(&wcc)),
            Err(e) => self.failed(reply, convert::status(e), &dir.wcc().await),
        }
    }
}

pub(super) async fn remove(env: Arc<Env>, call: CallContext, reply: Encoder) -> Outcome {
    let args: RemoveArgs<'_> = call.arguments()?;
    let dir = match env.target(&call, &args.object.dir) {
        Ok(t) => t,
        Err(r) => return env.refused::<WccData>(reply, r),
    };
    let removed = match dir.writable() {
        Ok(()) => dir.fs().remove(&dir.who, &dir.file, args.object.name).await,
        Err(e) => Err(e),
    };
    env.removed(&dir, removed, reply).await
}

pub(super) async fn rmdir(env: Arc<Env>, call: CallContext, reply: Encoder) -> Outcome {
    let args: RmdirArgs<'_> = call.arguments()?;
    let dir = match env.target(&call, &args.object.dir) {
        Ok(t) => t,
        Err(r) => return env.refused::<WccData>(reply, r),
    };
    let removed = match dir.writable() {
        Ok(()) => dir.fs().rmdir(&dir.who, &dir.file, args.object.name).await,
        Err(e) => Err(e),
    };
    env.removed(&dir, removed, reply).await
}

impl Env {
    /// Two objects of one call; with the first one even if the second cannot be had.
    fn two_targets(
        &self,
        call: &CallContext,
        a: &millrace_nfs::v3::FileHandle,
        b: &millrace_nfs::v3::FileHandle,
    ) -> Result<(Target, Result<Target, Refused>), Refused> {
        let first = self.target(call, a)?;
        let second = self.target(call, b);
        Ok((first, second))
    }
}

/// Whether two objects can take part in one operation that changes them.
fn together(a: &Target, b: &Target) -> Result<(), FsError> {
    if !Arc::ptr_eq(&a.export, &b.export) {
        return Err(FsError::XDev);
    }
    a.writable()
}

pub(super) async fn rename(env: Arc<Env>, call: CallContext, reply: Encoder) -> Outcome {
    let args: RenameArgs<'_> = call.arguments()?;
    let (from, to) = match env.two_targets(&call, &args.from.dir, &args.to.dir) {
        Ok((from, Ok(to))) => (from, to),
        Ok((_, Err(r))) | Err(r) => return env.refused::<RenameFail>(reply, r),
    };
    let renamed = match together(&from, &to) {
        Ok(()) => from.fs().rename(&from.who, &from.file, args.from.name, &to.file, args.to.name).await,
        Err(e) => Err(e),
    };
    match renamed {
        Ok((f, t)) => done(reply, &RenameOk { from: convert::wcc(&f), to: convert::wcc(&t) }),
        Err(e) => {
            let after = RenameFail { from: from.wcc().await, to: to.wcc().await };
            env.failed(reply, convert::status(e), &after)
        }
    }
}

pub(super) async fn link(env: Arc<Env>, call: CallContext, reply: Encoder) -> Outcome {
    let args: LinkArgs<'_> = call.arguments()?;
    let (file, dir) = match env.two_targets(&call, &args.file, &args.link.dir) {
        Ok((file, Ok(dir))) => (file, dir),
        Ok((_, Err(r))) | Err(r) => return env.refused::<LinkFail>(reply, r),
    };
    let linked = match together(&file, &dir) {
        Ok(()) => file.fs().link(&file.who, &file.file, &dir.file, args.link.name).await,
        Err(e) => Err(e),
    };
    match linked {
        Ok((attr, wcc)) => {
            done(reply, &LinkOk { file: Some(convert::fattr(&attr)), dir: convert::wcc(&wcc) })
        }
        Err(e) => {
            let after = LinkFail { file: file.attr().await, dir: dir.wcc().await };
            env.failed(reply, convert::status(e), &after)
        }
    }
}
