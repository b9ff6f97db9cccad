//! Conflicts of calls with delegations of NFSv4 clients. The caller repeats a call that gets NFS3ERR_JUKEBOX.

use millrace_nfs4_state::Changing;
use millrace_vfs::{Attr, CreateHow, Created, FsError};

use super::{Env, target::Target};
use crate::delegations::Used;

impl Target {
    fn used(&self) -> Used<'_> {
        Used { export: &self.export, client: None }
    }
}

/// While a delegation is recalled, or may be reclaimed.
fn later<E>(_: E) -> FsError {
    FsError::Jukebox
}

impl Env {
    /// Checks that no client has unsaved data of a file that is read.
    pub(super) fn check_read(&self, t: &Target) -> Result<(), FsError> {
        self.sender.read(t.used(), &t.file).map_err(later)
    }

    /// Begins a change of a file.
    pub(super) fn change(&self, t: &Target) -> Result<Changing, FsError> {
        self.sender.change(t.used(), &t.file).map_err(later)
    }

    /// Begins a change of the file `name` in a directory, if there is one.
    pub(super) async fn change_child(&self, dir: &Target, name: &[u8]) -> Result<Changing, FsError> {
        self.sender.change_child(dir.used(), &dir.caller, &dir.file, name).await.map_err(later)
    }

    /// The attributes of a file, which a client with a write delegation may have changed.
    pub(super) async fn attributes(&self, t: &Target) -> Result<Attr, FsError> {
        let attr = t.fs().getattr(&t.file).await?;
        self.sender.attributes(t.used(), &t.file, attr).await.map_err(later)
    }

    /// Creates a file. An unchecked creation may truncate an existing file.
    pub(super) async fn create(&self, dir: &Target, name: &[u8], how: CreateHow) -> Result<Created, FsError> {
        let create = async |how| dir.fs().create(&dir.caller, &dir.file, name, &how).await;
        let CreateHow::Unchecked(set) = how else { return create(how).await };
        if !self.sender.clients.state.may_delegate() {
            return create(how).await;
        }
        match dir.fs().lookup(&dir.caller, &dir.file, name).await {
            Ok(_) => {
                let _changing = self.change_child(dir, name).await?;
                create(how).await
            }
            // A file that is created in the meantime may be delegated.
            Err(_) => match create(CreateHow::Guarded(set)).await {
                Err(FsError::Exist) => Err(FsError::Jukebox),
                created => created,
            },
        }
    }
}
