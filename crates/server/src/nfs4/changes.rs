//! Changes of attributes and names: SETATTR, CREATE, REMOVE, RENAME, LINK.

use std::sync::Arc;

use millrace_nfs::v4::{
    Attribute, Attributes, ChangeInfo, CreateArgs, CreateOk, CreateType, Fattr, LinkArgs, RemoveArgs,
    RenameArgs, RenameOk, SetattrArgs, SetattrRes, Status,
};
use millrace_vfs::{Access, FileKind, FsError, Identity, NewNode, SetAttr, SetTime};

use super::{
    compound::Compound,
    convert,
    kind::data_error,
    names::check_name,
    object::{File, Object},
    stateids::key,
};
use crate::delegations::Times;

fn node(what: CreateType) -> Result<NewNode, Status> {
    Ok(match what {
        CreateType::Directory => NewNode::Directory,
        CreateType::Symlink(target) => {
            // The copy is not counted, because the text becomes metadata of an inode.
            let target: Vec<u8> = target.iter().flat_map(|v| v.iter().copied()).collect();
            if target.is_empty() || target.contains(&0) {
                return Err(Status::Inval);
            }
            NewNode::Symlink(target)
        }
        CreateType::Block(device) => NewNode::Block(device.major, device.minor),
        CreateType::Character(device) => NewNode::Character(device.major, device.minor),
        CreateType::Socket => NewNode::Socket,
        CreateType::Fifo => NewNode::Fifo,
        CreateType::Other(_) => return Err(Status::BadType),
    })
}

/// Checks that two objects are in one export.
fn check_same_export(a: &File, b: &File) -> Result<(), Status> {
    if Arc::ptr_eq(&a.export, &b.export) { Ok(()) } else { Err(Status::XDev) }
}

/// The status of a LINK of `file` that failed: NFSv4 has one for directories (RFC 8881 section 18.9).
async fn link_error(file: &File, error: FsError) -> Status {
    let status = convert::status(error);
    match status {
        Status::Inval | Status::Perm => match file.fs().getattr(&file.handle).await {
            Ok(attr) if attr.kind == FileKind::Directory => Status::IsDir,
            _ => status,
        },
        _ => status,
    }
}

impl Compound<'_> {
    pub(super) async fn setattr(&mut self, args: SetattrArgs<Fattr<'_>>) -> Result<(), Status> {
        let file = self.current()?.file(Status::RoFs)?.clone();
        let set = self.scope.set_attr(&args.attributes).await?;
        if self.scope.caller.is_machine && set != SetAttr::default() {
            return Err(Status::Access); // It has only the rights of a delegation.
        }
        if args.attributes.set.contains(Attribute::ModeUmask) {
            return Err(Status::Inval); // It is for creations (RFC 8275 section 4.2).
        }
        let caller = file.writer()?;
        let delegated = self.delegated_times(&file, &args).await?;
        let _access =
            if set.size.is_some() { Some(self.check_access(&file, &args.stateid, true)?) } else { None };
        let _changing = self.change(&file)?;
        if delegated.is_none() || set != SetAttr::default() {
            let done = file.fs().setattr(caller, &file.handle, &set, None).await;
            if let Err(error) = done {
                return Err(if set.size.is_some() {
                    data_error(&file, error).await
                } else {
                    convert::status(error)
                });
            }
        }
        if let Some(set) = delegated.filter(|set| *set != SetAttr::default()) {
            // The stateid permits it to callers other than the owner.
            let done = file.fs().setattr(&Identity::root(), &file.handle, &set, None).await;
            done.map_err(convert::status)?;
        }
        self.reply.put(&SetattrRes { set: args.attributes.set });
        Ok(())
    }

    /// The change of the times that the holder of a delegation with times requests (RFC 9754 section 5); `None` if it
    /// requests none. The time of access is set only together with a modification: file systems set it with the time of
    /// change, which an access must not advance.
    ///
    /// # Errors
    /// BAD_STATEID without such a delegation; ACCESS for a caller who may not write.
    async fn delegated_times(
        &self,
        file: &File,
        args: &SetattrArgs<Fattr<'_>>,
    ) -> Result<Option<SetAttr>, Status> {
        if !args.attributes.set.intersects(Attributes::DELEGATED_TIMES) {
            return Ok(None);
        }
        let values = args.attributes.decode_values().map_err(|_| Status::BadXdr)?;
        let (env, stateid, caller) = (self.scope.env, self.stateid(&args.stateid)?, file.writer()?);
        let granted = env.clients.state.delegated_times(self.client()?, &stateid, &key(file))?;
        let access = file.fs().access(caller, &file.handle, Access(Access::MODIFY)).await;
        let (rights, attr) = access.map_err(convert::status)?;
        if !self.scope.caller.is_machine && rights.0 & Access::MODIFY == 0 && attr.uid != caller.uid {
            return Err(Status::Access);
        }
        let now = env.rt.wall_clock();
        let times = Times::later(&granted, values.time_deleg_access, values.time_deleg_modify, now);
        let Some(mtime) = times.modify.filter(|mtime| *mtime != attr.mtime) else {
            return Ok(Some(SetAttr::default()));
        };
        let atime = times.access.map_or(SetTime::Keep, SetTime::To);
        Ok(Some(SetAttr { atime, mtime: SetTime::To(mtime), ..SetAttr::default() }))
    }

    pub(super) async fn create(&mut self, args: CreateArgs<'_, Fattr<'_>>) -> Result<(), Status> {
        let dir = self.current()?.file(Status::RoFs)?.clone();
        let name = check_name(&args.name)?;
        let set = self.scope.new_attr(&args.attributes).await?;
        let node = node(args.what)?;
        let created = dir.fs().create_node(dir.writer()?, &dir.handle, name, &node, &set).await;
        let created = created.map_err(convert::status)?;
        self.reply.put(&CreateOk { dir: convert::change_info(&created.dir), set: args.attributes.set });
        self.set_current(Object::File(dir.sibling(created.handle)));
        Ok(())
    }

    pub(super) async fn remove(&mut self, args: RemoveArgs<'_>) -> Result<(), Status> {
        let dir = self.current()?.file(Status::RoFs)?;
        let (name, caller) = (check_name(&args.name)?, dir.writer()?);
        let _changing = self.change_child(dir, name).await?;
        let removed = match dir.fs().remove(caller, &dir.handle, name).await {
            Err(FsError::IsDir) => dir.fs().rmdir(caller, &dir.handle, name).await,
            removed => removed,
        };
        let wcc = removed.map_err(convert::status)?;
        self.reply.put(&convert::change_info(&wcc));
        Ok(())
    }

    pub(super) async fn rename(&mut self, args: RenameArgs<'_>) -> Result<(), Status> {
        let from = self.saved_file(Status::RoFs)?;
        let to = self.current()?.file(Status::XDev)?;
        check_same_export(from, to)?;
        let (old, new) = (check_name(&args.from)?, check_name(&args.to)?);
        from.writer()?;
        let _changing = (self.change_child(from, old).await?, self.change_child(to, new).await?);
        let renamed = from.fs().rename(from.writer()?, &from.handle, old, &to.handle, new).await;
        let (from, to) = renamed.map_err(convert::status)?;
        let (from, to) = (convert::change_info(&from), convert::change_info(&to));
        self.reply.put(&RenameOk { from, to });
        Ok(())
    }

    pub(super) async fn link(&mut self, args: LinkArgs<'_>) -> Result<(), Status> {
        let file = self.saved_file(Status::IsDir)?;
        let dir = self.current()?.file(Status::XDev)?;
        check_same_export(file, dir)?;
        let name = check_name(&args.name)?;
        let caller = file.writer()?;
        let _changing = self.change(file)?;
        let (_, wcc) = match file.fs().link(caller, &file.handle, &dir.handle, name).await {
            Ok(linked) => linked,
            Err(error) => return Err(link_error(file, error).await),
        };
        let change: ChangeInfo = convert::change_info(&wcc);
        self.reply.put(&change);
        Ok(())
    }
}
