//! The files that the arguments of each procedure refer to, their resolution, and the failure result of each
//! procedure.

use std::sync::Arc;

use millrace_nfs::v3::{
    AccessArgs, AccessFail, CommitArgs, CommitFail, CreateArgs, CreateFail, FsinfoArgs, FsinfoFail,
    FsstatArgs, FsstatFail, GetattrArgs, GetattrFail, LinkArgs, LinkFail, LookupArgs, LookupFail, MkdirArgs,
    MkdirFail, MknodArgs, MknodFail, PathconfArgs, PathconfFail, Procedure, ReadArgs, ReadFail, ReaddirArgs,
    ReaddirFail, ReaddirplusArgs, ReaddirplusFail, ReadlinkArgs, ReadlinkFail, RemoveArgs, RemoveFail,
    RenameArgs, RenameFail, RmdirArgs, RmdirFail, SetattrArgs, SetattrFail, SymlinkArgs, SymlinkFail,
    WriteArgs, WriteFail,
};
use millrace_oncrpc::CallContext;
use millrace_xdr::{Decode, Encode};

use super::{
    Env,
    target::{Rejection, Resolver, Target},
};
use crate::export::Export;

/// The arguments of a procedure.
pub(super) trait Arguments<'a>: Decode<'a> {
    /// The result that follows a failing status. Its default has no attributes.
    type Failure: Encode + Default;
    /// The files that the arguments refer to.
    type Object: Object;
    /// The procedure.
    const PROCEDURE: Procedure;

    /// Resolves the file handles.
    fn resolve(&self, resolver: &Resolver<'_>) -> Result<Self::Object, Rejection>;
}

impl Env {
    /// Loads the export table, resolves the files of `call` and admits the caller to their exports.
    pub(super) fn resolve<'a, A: Arguments<'a>>(
        &self,
        call: &CallContext,
        args: &A,
    ) -> Result<A::Object, Rejection> {
        let exports = self.exports.load();
        args.resolve(&Resolver { exports: &exports, call, counters: &self.counters })
    }
}

/// The files that a call refers to.
pub(super) trait Object {
    /// The export to which the call is accounted.
    fn into_export(self) -> Arc<Export>;
}

impl Object for Target {
    fn into_export(self) -> Arc<Export> {
        self.export
    }
}

impl Object for (Target, Target) {
    fn into_export(self) -> Arc<Export> {
        self.0.export
    }
}

macro_rules! one_object {
    ($($args:ty: $($field:ident).+, $failure:ty, $procedure:ident;)*) => {$(
        impl<'a> Arguments<'a> for $args {
            type Failure = $failure;
            type Object = Target;
            const PROCEDURE: Procedure = Procedure::$procedure;

            fn resolve(&self, resolver: &Resolver<'_>) -> Result<Target, Rejection> {
                resolver.target(&self.$($field).+)
            }
        }
    )*};
}

one_object! {
    GetattrArgs: object, GetattrFail, Getattr;
    SetattrArgs: object, SetattrFail, Setattr;
    LookupArgs<'a>: what.dir, LookupFail, Lookup;
    AccessArgs: object, AccessFail, Access;
    ReadlinkArgs: symlink, ReadlinkFail, Readlink;
    ReadArgs: file, ReadFail, Read;
    WriteArgs: file, WriteFail, Write;
    CreateArgs<'a>: where_.dir, CreateFail, Create;
    MkdirArgs<'a>: where_.dir, MkdirFail, Mkdir;
    SymlinkArgs<'a>: where_.dir, SymlinkFail, Symlink;
    MknodArgs<'a>: where_.dir, MknodFail, Mknod;
    RemoveArgs<'a>: object.dir, RemoveFail, Remove;
    RmdirArgs<'a>: object.dir, RmdirFail, Rmdir;
    ReaddirArgs: dir, ReaddirFail, Readdir;
    ReaddirplusArgs: dir, ReaddirplusFail, Readdirplus;
    FsstatArgs: root, FsstatFail, Fsstat;
    FsinfoArgs: root, FsinfoFail, Fsinfo;
    PathconfArgs: object, PathconfFail, Pathconf;
    CommitArgs: file, CommitFail, Commit;
}

macro_rules! two_objects {
    ($($args:ty: $($first:ident).+, $($second:ident).+, $failure:ty, $procedure:ident;)*) => {$(
        impl<'a> Arguments<'a> for $args {
            type Failure = $failure;
            type Object = (Target, Target);
            const PROCEDURE: Procedure = Procedure::$procedure;

            fn resolve(&self, resolver: &Resolver<'_>) -> Result<(Target, Target), Rejection> {
                resolver.targets(&self.$($first).+, &self.$($second).+)
            }
        }
    )*};
}

two_objects! {
    RenameArgs<'a>: from.dir, to.dir, RenameFail, Rename;
    LinkArgs<'a>: file, link.dir, LinkFail, Link;
}
