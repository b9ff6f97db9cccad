//! Stateids: their use in other operations, TEST_STATEID and FREE_STATEID.

use std::sync::Arc;

use millrace_nfs::v4::{FreeStateidArgs, List, Stateid, Status, TestStateidArgs, TestStateidOk};
use millrace_nfs4_state::{Changing, Client};

use super::{compound::Compound, object::File};
use crate::{
    file_key::{FileKey, file_key},
    nfs4_clients::now,
};

/// The key of `file`.
pub(super) fn key(file: &File) -> FileKey {
    file_key(&file.export, &file.handle)
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

    /// Checks the stateid of an access to the data of `file`, which lasts until the result is dropped.
    pub(super) fn check_access(
        &self,
        file: &File,
        stateid: &Stateid,
        write: bool,
    ) -> Result<Changing, Status> {
        let stateid = self.stateid(stateid)?;
        let (env, client) = (self.scope.env, self.client()?);
        let state = &env.clients.state;
        if state.permits_access_to_all(&stateid, write) {
            return Ok(Changing::default());
        }
        state.check_access(client, &stateid, &key(file), write, now(&env.rt))
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
