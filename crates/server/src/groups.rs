//! Groups of callers from the user database of the server's host (`manage_groups`), as by `rpc.mountd --manage-gids` of
//! Linux: AUTH_SYS carries at most 16.

use std::{io, ops::RangeInclusive, sync::Arc};

use millrace_oncrpc::{CallContext, CallHeader, Credential, MaybeReady, Outcome, Plan, Program, Sender};
use millrace_user_database::Lookups;
use millrace_xdr::{Decoder, Encoder};
use nix::unistd::{Uid, User, getgrouplist};

/// The groups of users, by user id.
pub(crate) type Groups = Lookups<u32, Arc<[u32]>>;

/// Looks up the groups of a user in the databases of nsswitch.conf(5).
pub(crate) fn look_up(uid: &u32) -> io::Result<Option<Arc<[u32]>>> {
    let Some(user) = User::from_uid(Uid::from_raw(*uid))? else { return Ok(None) };
    let name = std::ffi::CString::new(user.name)?;
    Ok(Some(getgrouplist(&name, user.gid)?.into_iter().map(|gid| gid.as_raw()).collect()))
}

/// A program whose callers have the groups of the database. Users that it does not have keep those of their calls.
pub(crate) struct Managed<P> {
    pub(crate) program: Arc<P>,
    pub(crate) groups: Arc<Groups>,
}

/// `call` with `groups` of its caller.
fn with_groups(mut call: CallContext, groups: &[u32]) -> CallContext {
    let Credential::Sys(sys) = &call.sender.credential else { return call };
    if sys.gids[..] != *groups {
        let mut sys = sys.clone();
        sys.gids = groups.into();
        let certificate = call.sender.certificate.clone();
        call.sender =
            Arc::new(Sender { peer: call.sender.peer, credential: Credential::Sys(sys), certificate });
    }
    call
}

impl<P: Program> Program for Managed<P> {
    fn number(&self) -> u32 {
        self.program.number()
    }

    fn versions(&self) -> RangeInclusive<u32> {
        self.program.versions()
    }

    fn plan(&self, header: &CallHeader, args: &mut Decoder<'_>, length: usize) -> Plan {
        self.program.plan(header, args, length)
    }

    fn call(&self, call: CallContext, reply: Encoder) -> MaybeReady<'static, Outcome> {
        let Credential::Sys(sys) = &call.sender.credential else { return self.program.call(call, reply) };
        match self.groups.of(sys.uid) {
            MaybeReady::Ready(None) => self.program.call(call, reply),
            MaybeReady::Ready(Some(groups)) => self.program.call(with_groups(call, &groups), reply),
            MaybeReady::Pending(groups) => {
                let program = Arc::clone(&self.program);
                MaybeReady::wait(async move {
                    let call = match groups.await {
                        Some(groups) => with_groups(call, &groups),
                        None => call,
                    };
                    program.call(call, reply).await
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_of_the_host_has_root() {
        assert_eq!(look_up(&0).unwrap().map(|groups| groups.contains(&0)), Some(true));
        assert_eq!(look_up(&4_000_000_000).unwrap(), None);
    }
}
