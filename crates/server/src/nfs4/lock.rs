//! Byte-range locks: LOCK, LOCKT and LOCKU.

use millrace_nfs::v4::{
    LockArgs, LockDenied, LockType, Locker, LocktArgs, LockuArgs, Opaque, StateOwner, StateidOk, Status,
};
use millrace_nfs4_state::{LockError, LockKind, LockRequest};

use super::{compound::Compound, kind::check_file, stateids::key};
use crate::nfs4_clients::now;

fn kind(lock_type: LockType) -> LockKind {
    match lock_type {
        LockType::Read | LockType::ReadWaiting => LockKind::Read,
        LockType::Write | LockType::WriteWaiting => LockKind::Write,
    }
}

impl Compound<'_> {
    pub(super) fn lock(&mut self, args: &LockArgs<'_>) -> Result<(), Status> {
        let file = self.current()?.file(Status::IsDir)?;
        file.caller()?;
        let (key, env) = (key(file), self.scope.env);
        let (stateid, owner) = match &args.locker {
            Locker::New { open_stateid, owner, .. } => (self.stateid(open_stateid)?, Some(&*owner.owner)),
            Locker::Existing { lock_stateid, .. } => (self.stateid(lock_stateid)?, None),
        };
        let locker = match owner {
            Some(owner) => millrace_nfs4_state::Locker::Open { open: &stateid, owner },
            None => millrace_nfs4_state::Locker::Existing(&stateid),
        };
        let (offset, length) = (args.offset, args.length);
        let request = LockRequest {
            locker,
            file: &key,
            kind: kind(args.lock_type),
            blocking: matches!(args.lock_type, LockType::ReadWaiting | LockType::WriteWaiting)
                && self.has_callbacks(),
            reclaim: args.reclaim,
            offset,
            length,
        };
        let locked = env.clients.state.lock(self.client()?, &request, now(&env.rt));
        let stateid = locked.map_err(|error| self.conflict(error))?;
        self.reply.put(&StateidOk { stateid });
        self.current_stateid = Some(stateid);
        Ok(())
    }

    /// The status of a failed lock; the result of DENIED has the conflicting lock.
    fn conflict(&mut self, error: LockError) -> Status {
        match error {
            LockError::Status(status) => status,
            LockError::Denied(denied) => {
                self.denied = Some(denied);
                Status::Denied
            }
        }
    }

    /// Appends the data of a result DENIED.
    pub(super) fn put_denied(&mut self) {
        let Some(denied) = self.denied.take() else { return };
        self.reply.put(&LockDenied {
            offset: denied.range.start,
            length: denied.range.length(),
            lock_type: match denied.kind {
                LockKind::Read => LockType::Read,
                LockKind::Write => LockType::Write,
            },
            owner: StateOwner { client_id: denied.client, owner: Opaque(&denied.owner) },
        });
    }

    pub(super) async fn lockt(&mut self, args: &LocktArgs<'_>) -> Result<(), Status> {
        let file = self.current()?.file(Status::IsDir)?;
        file.caller()?;
        check_file(file).await?; // LOCKT has no stateid, which would prove that the object is a file.
        let (key, env, range) = (key(file), self.scope.env, (args.offset, args.length));
        let state = &env.clients.state;
        let kind = kind(args.lock_type);
        let tested = state.test_lock(self.client()?, &args.owner.owner, &key, kind, range, now(&env.rt));
        tested.map_err(|error| self.conflict(error))
    }

    pub(super) fn locku(&mut self, args: LockuArgs) -> Result<(), Status> {
        let file = self.current()?.file(Status::BadStateid)?;
        let stateid = self.stateid(&args.stateid)?;
        let (state, now) = (&self.scope.env.clients.state, now(&self.scope.env.rt));
        let stateid = state.unlock(self.client()?, &stateid, &key(file), (args.offset, args.length), now)?;
        self.reply.put(&StateidOk { stateid });
        self.current_stateid = Some(stateid);
        Ok(())
    }
}
