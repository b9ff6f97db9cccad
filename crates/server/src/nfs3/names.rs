//! Procedures on names in directories: LOOKUP, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK.

use std::sync::Arc;

use millrace_nfs::v3::{
    CreateArgs, CreateOk, LinkArgs, LinkFail, LinkOk, LookupArgs, LookupOk, MkdirArgs, MknodArgs, MknodWhat,
    Procedure, RemoveArgs, RenameArgs, RenameFail, RenameOk, RmdirArgs, Sattr, SymlinkArgs,
};
use millrace_vfs::{Created, FsError, NewNode, Wcc};
use millrace_xdr::Encoder;

use super::{Env, convert, done, outcome::Executed, target::Target};

pub(super) async fn lookup(env: &Env, dir: &Target, args: LookupArgs<'_>, reply: Encoder) -> Executed {
    let found = dir.fs().lookup(&dir.caller, &dir.file, args.what.name).await;
    let dir_attr = dir.attr().await;
    match found.and_then(|(file, attr)| Ok((dir.handle(&file)?, attr))) {
        Ok((object, attr)) => {
            done(reply, &LookupOk { object, attributes: Some(convert::fattr(&attr)), dir: dir_attr })
        }
        Err(e) => env.failed(Procedure::Lookup, reply, convert::status(e), &dir_attr),
    }
}

pub(super) async fn create(env: &Env, dir: &Target, args: CreateArgs<'_>, reply: Encoder) -> Executed {
    let created = async {
        dir.writable()?;
        let how = convert::create_how(&args.how)?;
        env.create(dir, args.where_.name, how).await
    };
    env.created(Procedure::Create, dir, created.await, reply).await
}

pub(super) async fn mkdir(env: &Env, dir: &Target, args: MkdirArgs<'_>, reply: Encoder) -> Executed {
    env.make(Procedure::Mkdir, dir, args.where_.name, Ok(NewNode::Directory), &args.attributes, reply).await
}

pub(super) async fn symlink(env: &Env, dir: &Target, args: SymlinkArgs<'_>, reply: Encoder) -> Executed {
    // The copy is not counted, because the text becomes metadata of an inode.
    let target: Vec<u8> = args.target.iter().flat_map(|v| v.iter().copied()).collect();
    let node = if target.is_empty() || target.contains(&0) {
        Err(FsError::Inval)
    } else {
        Ok(NewNode::Symlink(target))
    };
    env.make(Procedure::Symlink, dir, args.where_.name, node, &args.attributes, reply).await
}

pub(super) async fn mknod(env: &Env, dir: &Target, args: MknodArgs<'_>, reply: Encoder) -> Executed {
    let (node, attributes) = match args.what {
        MknodWhat::Character(a, s) => (Ok(NewNode::Character(s.major, s.minor)), a),
        MknodWhat::Block(a, s) => (Ok(NewNode::Block(s.major, s.minor)), a),
        MknodWhat::Socket(a) => (Ok(NewNode::Socket), a),
        MknodWhat::Fifo(a) => (Ok(NewNode::Fifo), a),
        MknodWhat::Other(_) => (Err(FsError::BadType), Sattr::default()),
    };
    env.make(Procedure::Mknod, dir, args.where_.name, node, &attributes, reply).await
}

impl Env {
    async fn make(
        &self,
        procedure: Procedure,
        dir: &Target,
        name: &[u8],
        node: Result<NewNode, FsError>,
        attributes: &Sattr,
        reply: Encoder,
    ) -> Executed {
        let created = async {
            dir.writable()?;
            let node = node?;
            let set = convert::set_attr(attributes)?;
            dir.fs().create_node(&dir.caller, &dir.file, name, &node, &set).await
        };
        let created = created.await;
        self.created(procedure, dir, created, reply).await
    }

    async fn created(
        &self,
        procedure: Procedure,
        dir: &Target,
        created: Result<Created, FsError>,
        reply: Encoder,
    ) -> Executed {
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
            Err(e) => self.failed(procedure, reply, convert::status(e), &dir.wcc().await),
        }
    }

    /// Encodes the result of REMOVE or RMDIR.
    async fn removed(
        &self,
        procedure: Procedure,
        dir: &Target,
        removed: Result<Wcc, FsError>,
        reply: Encoder,
    ) -> Executed {
        match removed {
            Ok(wcc) => done(reply, &convert::wcc(&wcc)),
            Err(e) => self.failed(procedure, reply, convert::status(e), &dir.wcc().await),
        }
    }
}

pub(super) async fn remove(env: &Env, dir: &Target, args: RemoveArgs<'_>, reply: Encoder) -> Executed {
    let removed = async {
        dir.writable()?;
        let _changing = env.change_child(dir, args.object.name).await?;
        dir.fs().remove(&dir.caller, &dir.file, args.object.name).await
    };
    env.removed(Procedure::Remove, dir, removed.await, reply).await
}

pub(super) async fn rmdir(env: &Env, dir: &Target, args: RmdirArgs<'_>, reply: Encoder) -> Executed {
    let removed = match dir.writable() {
        Ok(()) => dir.fs().rmdir(&dir.caller, &dir.file, args.object.name).await,
        Err(e) => Err(e),
    };
    env.removed(Procedure::Rmdir, dir, removed, reply).await
}

/// Checks that two objects are in one writable export.
fn check_same_export(a: &Target, b: &Target) -> Result<(), FsError> {
    if !Arc::ptr_eq(&a.export, &b.export) {
        return Err(FsError::XDev);
    }
    a.writable()
}

pub(super) async fn rename(
    env: &Env,
    (from, to): &(Target, Target),
    args: RenameArgs<'_>,
    reply: Encoder,
) -> Executed {
    let renamed = async {
        check_same_export(from, to)?;
        let _from = env.change_child(from, args.from.name).await?;
        let _to = env.change_child(to, args.to.name).await?;
        from.fs().rename(&from.caller, &from.file, args.from.name, &to.file, args.to.name).await
    };
    match renamed.await {
        Ok((f, t)) => done(reply, &RenameOk { from: convert::wcc(&f), to: convert::wcc(&t) }),
        Err(e) => {
            let after = RenameFail { from: from.wcc().await, to: to.wcc().await };
            env.failed(Procedure::Rename, reply, convert::status(e), &after)
        }
    }
}

pub(super) async fn link(
    env: &Env,
    (file, dir): &(Target, Target),
    args: LinkArgs<'_>,
    reply: Encoder,
) -> Executed {
    let linked = async {
        check_same_export(file, dir)?;
        let _changing = env.change(file)?;
        file.fs().link(&file.caller, &file.file, &dir.file, args.link.name).await
    };
    match linked.await {
        Ok((attr, wcc)) => {
            done(reply, &LinkOk { file: Some(convert::fattr(&attr)), dir: convert::wcc(&wcc) })
        }
        Err(e) => {
            let after = LinkFail { file: file.attr().await, dir: dir.wcc().await };
            env.failed(Procedure::Link, reply, convert::status(e), &after)
        }
    }
}
