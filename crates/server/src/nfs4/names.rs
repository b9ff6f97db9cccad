//! File handles and names: PUTFH, PUTROOTFH, GETFH, SAVEFH, RESTOREFH, LOOKUP, LOOKUPP, SECINFO.

use millrace_nfs::v4::{
    GetfhOk, List, LookupArgs, Opaque, PutfhArgs, Secinfo, SecinfoArgs, SecinfoNoNameArgs, SecinfoOk,
    SecinfoStyle, Status,
};
use millrace_vfs::{FileKind, FsError};

use super::{compound::Compound, convert, kind::directory_error, object::Object};
use crate::{namespace::Namespace, security::secinfo};

/// Checks a name of a directory entry (RFC 8881 sections 1.8 and 14.3).
pub(super) fn check_name(name: &[u8]) -> Result<&[u8], Status> {
    match name {
        b"" => Err(Status::Inval),
        b"." | b".." => Err(Status::BadName),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Status::BadChar),
        _ => Ok(name),
    }
}

impl Compound<'_> {
    pub(super) fn putfh(&mut self, args: PutfhArgs<'_>) -> Result<(), Status> {
        let object = Object::open(&args.handle, &self.scope.exports, &self.scope.caller)?;
        // The handles of pseudo directories can be guessed.
        if let Object::Pseudo(dir) = object
            && dir != Namespace::ROOT
            && !self.scope.paths().sees(dir)
        {
            return Err(Status::Stale);
        }
        self.set_current(object);
        Ok(())
    }

    pub(super) fn putrootfh(&mut self) {
        let root = self.scope.paths().root();
        self.set_current(root);
    }

    pub(super) fn getfh(&mut self) -> Result<(), Status> {
        let handle = self.current()?.seal(&self.scope.exports);
        self.reply.put(&GetfhOk { handle: Opaque(&handle) });
        Ok(())
    }

    pub(super) fn savefh(&mut self) -> Result<(), Status> {
        self.saved = Some(self.current()?.clone());
        self.saved_stateid = self.current_stateid;
        Ok(())
    }

    pub(super) fn restorefh(&mut self) -> Result<(), Status> {
        self.current = Some(self.saved.clone().ok_or(Status::NoFileHandle)?);
        self.current_stateid = self.saved_stateid;
        Ok(())
    }

    /// The object `name` in the current directory.
    async fn child(&self, name: &[u8]) -> Result<Object, Status> {
        match self.current()? {
            Object::Pseudo(dir) => self.scope.paths().pseudo_child(*dir, check_name(name)?),
            Object::File(dir) => {
                // The status for an object that is no directory precedes that for an invalid name.
                let found = match check_name(name) {
                    Ok(name) => self.scope.paths().child(dir, name).await.map(|(object, _)| object),
                    Err(status) => Err(status),
                };
                match found {
                    Err(status) => Err(directory_error(dir, status).await),
                    found => found,
                }
            }
        }
    }

    pub(super) async fn lookup(&mut self, args: LookupArgs<'_>) -> Result<(), Status> {
        let object = self.child(&args.name).await?;
        self.set_current(object);
        Ok(())
    }

    pub(super) async fn lookupp(&mut self) -> Result<(), Status> {
        let dir = self.current()?;
        if let Object::File(file) = dir {
            let attr = file.fs().getattr(&file.handle).await.map_err(convert::status)?;
            match attr.kind {
                FileKind::Directory => {}
                FileKind::Symlink => return Err(Status::Symlink),
                _ => return Err(convert::status(FsError::NotDir)),
            }
        }
        let parent = self.scope.paths().parent(dir).await?;
        self.set_current(parent);
        Ok(())
    }

    /// Encodes the accepted flavors, and consumes the current file handle (RFC 8881 section 2.6.3.1.1.8).
    fn put_flavors(&mut self, object: &Object) {
        let Self { scope, .. } = self;
        let sender = &scope.caller.sender;
        let (permitted, without) = match object {
            Object::File(file) => file.export.flavors(&sender.peer).unwrap_or_default(),
            // Clients walk to any export.
            Object::Pseudo(_) => {
                let visible = scope.exports.iter().filter(|export| export.admit_peer(sender).is_ok());
                let all =
                    visible.filter_map(|export| export.flavors(&sender.peer)).map(|(flavors, _)| flavors);
                (all.reduce(|all, more| all.union(&more)).unwrap_or_default(), true)
            }
        };
        let mut flavors: Vec<_> = permitted.iter().map(secinfo).collect();
        if without {
            flavors.push(Secinfo::NONE);
        }
        self.reply.put(&SecinfoOk { flavors: List(flavors) });
        self.current = None;
        self.current_stateid = None;
    }

    pub(super) async fn secinfo(&mut self, args: SecinfoArgs<'_>) -> Result<(), Status> {
        let object = match self.child(&args.name).await {
            // SECINFO returns ACCESS for what the caller cannot look up, and never WRONGSEC (RFC 8881 section 18.29.3).
            Err(Status::WrongSec) => return Err(Status::Access),
            object => object?,
        };
        self.put_flavors(&object);
        Ok(())
    }

    pub(super) async fn secinfo_no_name(&mut self, args: SecinfoNoNameArgs) -> Result<(), Status> {
        let object = match args.style {
            SecinfoStyle::CurrentFh => self.current()?.clone(),
            SecinfoStyle::Parent => match self.scope.paths().parent(self.current()?).await {
                // The parent is in the same export, and accepts the same flavors.
                Err(Status::WrongSec) => self.current()?.clone(),
                parent => parent?,
            },
        };
        self.put_flavors(&object);
        Ok(())
    }
}
