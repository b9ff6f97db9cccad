//! The users and groups of this host that the owners of files are, as idmapd(8) maps them with its method nsswitch: a server
//! names them by numbers or as `user@domain` (RFC 8881 section 5.9).

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::future::join_all;
use millrace_nfs::v4::{Attributes, Owner};
use millrace_runtime::{MaybeReady, RuntimeRef, timeout};
use millrace_user_database::{Kind, Lookups, default_domain, split};

/// The number of an owner that is no user or group of this host.
pub(super) const UNMAPPED: u32 = 65534;
/// Time for which a call waits for the database. Later owners are [`UNMAPPED`] until it has answered.
const LIMIT: Duration = Duration::from_secs(5);

/// What the database says about an owner, when it has answered.
pub(super) type Unknown = MaybeReady<'static, Option<u32>>;

/// The mapping, with kept lookups.
pub(crate) struct Owners {
    rt: RuntimeRef,
    ids: Lookups<(Kind, String), u32>,
    names: Lookups<(Kind, u32), Arc<str>>,
}

impl Owners {
    /// Owners in `domain`; `None`: that of the host.
    pub(super) fn new(rt: &RuntimeRef, domain: Option<String>) -> Self {
        // Lookups may block, as the default does.
        let known = Arc::new(domain.map_or_else(OnceLock::new, OnceLock::from));
        let domain = Arc::clone(&known);
        let id = move |(kind, owner): &(Kind, String)| match split(owner) {
            Some((name, of)) if of.eq_ignore_ascii_case(domain.get_or_init(default_domain)) => kind.id(name),
            _ => Ok(None),
        };
        let name = move |&(kind, id): &(Kind, u32)| {
            let qualified = |name| format!("{name}@{}", known.get_or_init(default_domain)).into();
            Ok(kind.name(id)?.map(qualified))
        };
        Self { rt: Arc::clone(rt), ids: Lookups::new(rt, id), names: Lookups::new(rt, name) }
    }

    /// The number of the user or group with a name.
    pub(super) fn id(&self, kind: Kind, name: &[u8]) -> Unknown {
        match std::str::from_utf8(name) {
            Ok(name) if split(name).is_some() => self.ids.of((kind, name.to_owned())),
            _ => MaybeReady::Ready(None),
        }
    }

    /// Waits until the database has answered.
    pub(super) async fn wait(&self, unknown: Vec<Unknown>) {
        let all = join_all(unknown.into_iter().map(IntoFuture::into_future));
        let _ = timeout(&*self.rt, LIMIT, all).await;
    }

    /// The names of a user and a group.
    pub(super) async fn names(&self, [uid, gid]: [Option<u32>; 2]) -> OwnerNames {
        let name = async |kind, id: Option<u32>| match id {
            Some(id) => timeout(&*self.rt, LIMIT, self.names.of((kind, id)).into_future()).await.flatten(),
            None => None,
        };
        OwnerNames([name(Kind::User, uid).await, name(Kind::Group, gid).await])
    }
}

/// The names of a user and a group that are set, for a server that has not accepted their numbers.
#[derive(Default)]
pub(crate) struct OwnerNames([Option<Arc<str>>; 2]);

impl OwnerNames {
    /// Whether neither has one.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Replaces the numbers.
    pub(super) fn set<'n>(&'n self, attributes: &mut Attributes<'n>) {
        let [owner, group] =
            self.0.each_ref().map(|name| name.as_ref().map(|name| Owner::Name(name.as_bytes())));
        attributes.owner = owner.or(attributes.owner);
        attributes.owner_group = group.or(attributes.owner_group);
    }
}

#[cfg(test)]
mod tests {
    use millrace_runtime::tokio_rt::{TokioRuntime, run_shard};

    use super::*;

    #[test]
    fn names_in_the_domain_are_users_and_groups_of_the_host() {
        run_shard(async {
            let owners = Owners::new(&TokioRuntime::current(), Some("Example.org".into()));
            for (kind, name, expected) in [
                (Kind::User, &b"root@example.org"[..], Some(0)),
                (Kind::User, b"daemon@EXAMPLE.ORG", Some(1)),
                (Kind::Group, b"root@example.org", Some(0)),
                (Kind::User, b"root@other.net", None),
                (Kind::User, b"root@sub.example.org", None),
                (Kind::User, b"no-such-user@example.org", None),
                (Kind::User, b"root", None),
                (Kind::User, b"@example.org", None),
                (Kind::User, b"root\0@example.org", None),
                (Kind::User, b"\xff@example.org", None),
                (Kind::User, b"", None),
            ] {
                assert_eq!(owners.id(kind, name).await, expected, "{kind:?} {}", name.escape_ascii());
            }
            let of = async |ids| owners.names(ids).await.0.map(|name| name.as_deref().map(str::to_owned));
            let root = Some("root@Example.org".to_owned());
            assert_eq!(of([Some(0), Some(0)]).await, [root.clone(), root]);
            assert_eq!(of([None, Some(3_999_999_999)]).await, [None, None]);
        })
        .unwrap();
    }
}
