//! Delegations: their grant by OPEN, DELEGRETURN, and the conflicts of other operations with them.

use millrace_nfs::v4::{
    Ace, Claim, Delegation, DelegationType, DelegreturnArgs, Fattr, NoDelegation, OpenArgs, ReadDelegation,
    SpaceLimit, Stateid, Status, WriteDelegation, share_access,
};
use millrace_nfs4_state::{Changing, DelegatedTimes, DelegationKind, DelegationRequest, NotDelegated};
use millrace_vfs::{Access, Attr};

use super::{compound::Compound, convert, object::File, stateids::key};
use crate::{config::Delegations, delegations::Used, nfs4_clients::now};

/// The delegation that an OPEN requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wanted {
    kind: DelegationKind,
    reclaim: bool,
    /// The export does not permit the delegation any more.
    recall: bool,
    /// The delegation is to include the times. A read delegation does not: each GETATTR would wait for a CB_GETATTR of
    /// each reader.
    times: bool,
}

/// The delegation that an OPEN in an export with this setting can get, or the reason why it gets none.
fn wanted(args: &OpenArgs<'_, Fattr<'_>>, permitted: Delegations) -> Result<Wanted, NoDelegation> {
    let unavailable = NoDelegation::Resource { will_signal: false };
    if let Claim::Previous(delegation) = args.claim {
        let (kind, needed) = match delegation {
            DelegationType::Read | DelegationType::ReadAttrs => (DelegationKind::Read, Delegations::Read),
            DelegationType::Write | DelegationType::WriteAttrs => (DelegationKind::Write, Delegations::Write),
            DelegationType::None | DelegationType::NoneExt => return Err(NoDelegation::NotWanted),
        };
        let times = delegation == DelegationType::WriteAttrs;
        return Ok(Wanted { kind, reclaim: true, recall: permitted < needed, times });
    }
    let (read, write) = match args.share_access & share_access::WANT_MASK {
        share_access::WANT_NO_PREFERENCE | share_access::WANT_ANY_DELEG => (true, true),
        share_access::WANT_READ_DELEG => (true, false),
        share_access::WANT_WRITE_DELEG => (false, true),
        share_access::WANT_CANCEL => return Err(NoDelegation::Cancelled),
        _ => return Err(NoDelegation::NotWanted),
    };
    let writes = args.share_access & share_access::WRITE != 0;
    let kind = match args.share_access & share_access::BOTH {
        share_access::READ if read && permitted >= Delegations::Read => DelegationKind::Read,
        _ if writes && write && permitted == Delegations::Write => DelegationKind::Write,
        _ => return Err(unavailable),
    };
    let times = kind == DelegationKind::Write && args.share_access & share_access::WANT_DELEG_TIMESTAMPS != 0;
    Ok(Wanted { kind, reclaim: false, recall: false, times })
}

/// The reason for a client that has a delegation already, or gets none.
fn reason(why: NotDelegated, kind: DelegationKind) -> NoDelegation {
    match why {
        NotDelegated::Contention => NoDelegation::Contention { will_push: false },
        NotDelegated::Held(DelegationKind::Read) if kind == DelegationKind::Write => {
            NoDelegation::NotSuppUpgrade
        }
        NotDelegated::Held(DelegationKind::Write) if kind == DelegationKind::Read => {
            NoDelegation::NotSuppDowngrade
        }
        NotDelegated::Held(_) | NotDelegated::Resource => NoDelegation::Resource { will_signal: false },
    }
}

impl Compound<'_> {
    /// The delegation for the reply of a successful OPEN.
    pub(super) async fn delegate(
        &self,
        args: &OpenArgs<'_, Fattr<'_>>,
        file: &File,
    ) -> Result<Delegation<'static>, Status> {
        // Only a client that sends a flag OPEN4_SHARE_ACCESS_WANT decodes a reason (RFC 8881 section
        // 18.16.3).
        let none = |why| match args.share_access & share_access::WANT_MASK {
            share_access::WANT_NO_PREFERENCE => Delegation::None,
            _ => Delegation::NoneExt(why),
        };
        let wanted = match wanted(args, file.export.policy().delegations) {
            Ok(wanted) => wanted,
            Err(why) => return Ok(none(why)),
        };
        let (env, client) = (self.scope.env, self.client()?);
        let Some(attr) = self.delegable(args, file, wanted).await? else {
            return Ok(none(NoDelegation::Resource { will_signal: false }));
        };
        let with_times = wanted.times && self.scope.minor_version > 1;
        let times = DelegatedTimes { access: convert::time(attr.atime), modify: convert::time(attr.mtime) };
        let request = DelegationRequest {
            file: &key(file),
            kind: wanted.kind,
            reclaim: wanted.reclaim,
            change: attr.change,
            times: with_times.then_some(times),
        };
        let stateid = match env.clients.state.delegate(client, &request, now(&env.rt)) {
            Ok(stateid) => stateid,
            Err(why) => return Ok(none(reason(why, wanted.kind))),
        };
        env.sender.recall_any(client);
        let (recall, permissions) = (wanted.recall, Ace::NOTHING);
        Ok(match wanted.kind {
            DelegationKind::Read => Delegation::Read(ReadDelegation { stateid, recall, permissions }),
            DelegationKind::Write => {
                let limit = SpaceLimit::Size(u64::MAX);
                let write = WriteDelegation { stateid, recall, limit, permissions };
                if with_times { Delegation::WriteAttrs(write) } else { Delegation::Write(write) }
            }
        })
    }

    /// The attributes of a file that may be delegated. With a write delegation the client reads, too: an open for writing
    /// gets one if its caller may read.
    async fn delegable(
        &self,
        args: &OpenArgs<'_, Fattr<'_>>,
        file: &File,
        wanted: Wanted,
    ) -> Result<Option<Attr>, Status> {
        let reads = args.share_access & share_access::READ != 0;
        if reads || wanted.reclaim {
            return Ok(file.fs().getattr(&file.handle).await.ok());
        }
        let access = file.fs().access(file.caller()?, &file.handle, Access(Access::READ)).await;
        Ok(access.ok().filter(|(rights, _)| rights.0 & Access::READ != 0).map(|(_, attr)| attr))
    }

    /// Checks the delegation under which a file is opened.
    pub(super) fn check_delegation(&self, file: &File, stateid: &Stateid, access: u32) -> Result<(), Status> {
        let (state, stateid) = (&self.scope.env.clients.state, self.stateid(stateid)?);
        state.check_delegation(self.client()?, &stateid, &key(file), access)
    }

    pub(super) fn delegreturn(&self, args: DelegreturnArgs) -> Result<(), Status> {
        let file = self.current()?.file(Status::BadStateid)?;
        let (env, stateid) = (self.scope.env, self.stateid(&args.stateid)?);
        env.clients.state.return_delegation(self.client()?, &stateid, &key(file), now(&env.rt))
    }

    /// A file that the client uses without an open.
    pub(super) fn used<'u>(&self, file: &'u File) -> Result<Used<'u>, Status> {
        Ok(Used { export: &file.export, client: Some(self.client()?.id()) })
    }

    /// Begins a change of a file without an open.
    pub(super) fn change(&self, file: &File) -> Result<Changing, Status> {
        self.scope.env.sender.change(self.used(file)?, &file.handle)
    }

    /// Begins a change of the file `name` in a directory, if there is one.
    pub(super) async fn change_child(&self, dir: &File, name: &[u8]) -> Result<Changing, Status> {
        self.scope.env.sender.change_child(self.used(dir)?, dir.caller()?, &dir.handle, name).await
    }
}
