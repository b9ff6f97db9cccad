//! Stateids: their use in other operations, TEST_STATEID and FREE_STATEID.

use std::sync::Arc;

use millrace_nfs::v4::{FreeStateidArgs, List, Stateid, Status, TestStateidArgs, TestStateidOk};
use millrace_nfs4_state::Client;
use millrace_vfs::Handle;
use smallvec::SmallVec;

use super::{compound::Compound, object::File};
use crate::nfs4_clients::now;

/// The key of a file in the state of clients: the export and the handle of its file system.
pub(super) type FileKey = SmallVec<[u8; 4 + Handle::MAX]>;

/// The key of `file`.
pub(super) fn key(file: &File) -> FileKey {
    key_of(file.export.id(), &file.handle)
}

/// The key of the file with a handle in the export with an ID.
pub(super) fn key_of(export: u32, handle: &Handle) -> FileKey {
    let mut key = FileKey::new();
    key.extend_from_slice(&export.to_be_bytes());
    key.extend_from_slice(handle.as_bytes());
    key
}

/// The export and the handle of a key.
pub(super) fn split_key(key: &[u8]) -> Option<(u32, &[u8])> {
    let (export, handle) = key.split_first_chunk()?;
    Some((u32::from_be_bytes(*export), handle))
}

impl Compound<'_> {
    /// The client of the session.
    pub(super) fn client(&self) -> Result<&Arc<Client>, Status> {
        self.session.as_ref().map(|session| session.client()).ok_or(Status::OpNotInSession)
    }

    /// Replaces the current stateid by the one that it stands for (RFC 8881 section 16.2.3.1.2).
    pub(super) fn stateid(&self, stateid: &Stateid) -> Result<Stateid, Status> {
        match *stateid {
            Stateid::CURRENT => self.current_stateid.ok_or(Status::BadStateid),
            stateid => Ok(stateid),
        }
    }

    /// Checks the stateid of an access to the data of `file`.
    pub(super) fn check_access(&self, file: &File, stateid: &Stateid, write: bool) -> Result<(), Status> {
        let stateid = self.stateid(stateid)?;
        let env = self.scope.env;
        env.clients.state.check_access(self.client()?, &stateid, &key(file), write, now(&env.rt))
    }

    pub(super) fn test_stateids(&mut self, args: &TestStateidArgs) -> Result<(), Status> {
        let (client, state) = (self.client()?, &self.scope.env.clients.state);
        let statuses = args.stateids.iter().map(|stateid| state.test_stateid(client, stateid)).collect();
        self.reply.put(&TestStateidOk { statuses: List(statuses) });
        Ok(())
    }

    pub(super) fn free_stateid(&self, args: FreeStateidArgs) -> Result<(), Status> {
        self.scope.env.clients.state.free_stateid(self.client()?, &self.stateid(&args.stateid)?)
    }
}
