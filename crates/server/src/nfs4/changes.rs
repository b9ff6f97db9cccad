//! Changes of attributes and names: SETATTR, CREATE, REMOVE, RENAME, LINK.

use std::sync::Arc;

use millrace_nfs::v4::{
    Attribute, ChangeInfo, CreateArgs, CreateOk, CreateType, Fattr, LinkArgs, RemoveArgs, RenameArgs,
    RenameOk, SetattrArgs, SetattrRes, Status,
};
use millrace_vfs::{FileKind, FsError, NewNode};

use super::{
    compound::Compound,
    convert,
    kind::data_error,
    names::check_name,
    object::{File, Object},
    settable::set_attr,
};

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
        let set = set_attr(&args.attributes)?;
        if args.attributes.set.contains(Attribute::ModeUmask) {
            return Err(Status::Inval); // It is for creations (RFC 8275 section 4.2).
        }
        let caller = file.writer()?;
        let _access =
            if set.size.is_some() { Some(self.check_access(&file, &args.stateid, true)?) } else { None };
        let _changing = self.change(&file)?;
        let done = file.fs().setattr(caller, &file.handle, &set, None).await;
        if let Err(error) = done {
            return Err(if set.size.is_some() {
                data_error(&file, error).await
            } else {
                convert::status(error)
            });
        }
        self.reply.put(&SetattrRes { set: args.attributes.set });
        Ok(())
    }

    pub(super) async fn create(&mut self, args: CreateArgs<'_, Fattr<'_>>) -> Result<(), Status> {
        let dir = self.current()?.file(Status::RoFs)?.clone();
        let name = check_name(&args.name)?;
        let set = set_attr(&args.attributes)?;
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
        let from = self.saved.as_ref().ok_or(Status::NoFileHandle)?.file(Status::RoFs)?;
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
        let file = self.saved.as_ref().ok_or(Status::NoFileHandle)?.file(Status::IsDir)?;
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
