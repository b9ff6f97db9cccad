//! Users and groups as names, `user@domain` (RFC 8881 section 5.9): NFSv4 clients with Kerberos set owners in this form, and get
//! them in it if the configuration states the domain: a client with another one would show no owner. Others use
//! numbers, as with Linux's server (`nfs4_disable_idmapping`).

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use arc_swap::ArcSwapOption;
use millrace_oncrpc::MaybeReady;
use millrace_runtime::RuntimeRef;
pub(crate) use millrace_user_database::Kind;
use millrace_user_database::{Lookups, split};

use crate::LocalUser;

/// The names of owners, shared by all shards.
pub(crate) struct Owners {
    rules: ArcSwapOption<Rules>,
    names: Lookups<(Kind, u32), Arc<str>>,
    ids: Lookups<(Kind, String), u32>,
}

/// What decides about names besides the database of the host.
pub(crate) struct Rules {
    domain: String,
    /// Whether clients get names.
    shown: bool,
    /// Users with numbers in the table of principals, by owner with its domain in lower case, and by number.
    ids: HashMap<String, u32>,
    names: HashMap<u32, String>,
}

impl Rules {
    /// For the principals of `users`. The `domain` is that of the principals in `realm`; without one, clients get no
    /// names, and set them with `realm` in any case.
    pub(crate) fn new(domain: Option<&str>, realm: &str, users: &BTreeMap<String, LocalUser>) -> Self {
        let shown = domain.is_some();
        let domain = domain.map_or_else(|| realm.to_ascii_lowercase(), str::to_owned);
        let mut rules = Self { domain, shown, ids: HashMap::new(), names: HashMap::new() };
        for (principal, user) in users {
            let (LocalUser::Ids(ids), Some((name, of))) = (user, principal.rsplit_once('@')) else {
                continue;
            };
            // Services and hosts own no files.
            if name.contains(['/', '\\']) {
                continue;
            }
            let owner = match of == realm {
                true => rules.qualified(name),
                false => format!("{name}@{}", of.to_ascii_lowercase()),
            };
            rules.names.entry(ids.uid).or_insert_with(|| owner.clone());
            rules.ids.insert(comparable(&owner), ids.uid);
        }
        rules
    }

    /// The owner with a name of the database, which may state a domain itself.
    fn qualified(&self, name: &str) -> String {
        if name.contains('@') { name.to_owned() } else { format!("{name}@{}", self.domain) }
    }

    /// The name in the database of an owner; `None` if it is no owner.
    fn local<'o>(&self, owner: &'o str) -> Option<&'o str> {
        let (name, domain) = split(owner)?;
        Some(if domain.eq_ignore_ascii_case(&self.domain) { name } else { owner })
    }
}

/// An owner with its domain in lower case: domains are names of DNS (RFC 8881 section 5.9).
fn comparable(owner: &str) -> String {
    match owner.rsplit_once('@') {
        Some((name, domain)) => format!("{name}@{}", domain.to_ascii_lowercase()),
        None => owner.to_owned(),
    }
}

impl Owners {
    pub(crate) fn new(rt: &RuntimeRef, rules: Option<Rules>) -> Self {
        let names = Lookups::new(rt, |&(kind, id): &(Kind, u32)| Ok(kind.name(id)?.map(Arc::from)));
        let ids = Lookups::new(rt, |(kind, name): &(Kind, String)| kind.id(name));
        Self { rules: ArcSwapOption::from_pointee(rules), names, ids }
    }

    /// Replaces the rules, and looks up everything again.
    pub(crate) fn set(&self, rules: Option<Rules>) {
        self.rules.store(rules.map(Arc::new));
        self.names.clear();
        self.ids.clear();
    }

    /// The owner with a number; `None` if it has no name, or names are not shown.
    pub(crate) fn name(&self, kind: Kind, id: u32) -> MaybeReady<'static, Option<String>> {
        let Some(rules) = self.rules.load_full().filter(|rules| rules.shown) else {
            return MaybeReady::Ready(None);
        };
        if let (Kind::User, Some(name)) = (kind, rules.names.get(&id)) {
            return MaybeReady::Ready(Some(name.clone()));
        }
        self.names.of((kind, id)).map(move |name| name.map(|name| rules.qualified(&name)))
    }

    /// The number of an owner; `None` if there is no such user or group.
    pub(crate) fn id(&self, kind: Kind, owner: &[u8]) -> MaybeReady<'static, Option<u32>> {
        let (Some(rules), Ok(owner)) = (self.rules.load_full(), std::str::from_utf8(owner)) else {
            return MaybeReady::Ready(None);
        };
        let Some(name) = rules.local(owner) else { return MaybeReady::Ready(None) };
        match rules.ids.get(&comparable(owner)) {
            Some(id) if kind == Kind::User => MaybeReady::Ready(Some(*id)),
            _ => self.ids.of((kind, name.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_runtime::tokio_rt::{TokioRuntime, run_shard};

    use super::*;

    fn rules(domain: Option<&str>) -> Rules {
        let users = [
            ("robot@EXAMPLE.ORG", "1000:1000"),
            ("zombie@EXAMPLE.ORG", "1000:1000"),
            ("robot@OTHER.NET", "2000:1000"),
            ("backup/admin@EXAMPLE.ORG", "3000:1"),
            ("alice@EXAMPLE.ORG", "daemon"),
        ];
        let users = users.into_iter().map(|(name, user)| (name.to_owned(), user.parse().unwrap())).collect();
        Rules::new(domain, "EXAMPLE.ORG", &users)
    }

    #[test]
    fn owners_have_the_names_of_the_table_or_the_database_in_the_domain() {
        run_shard(async {
            let owners = Owners::new(&TokioRuntime::current(), Some(rules(Some("example.org"))));
            for (kind, id, expected) in [
                (Kind::User, 0, Some("root@example.org")),
                (Kind::User, 1, Some("daemon@example.org")),
                (Kind::Group, 0, Some("root@example.org")),
                (Kind::User, 1000, Some("robot@example.org")),
                (Kind::User, 2000, Some("robot@other.net")),
                (Kind::User, 3_999_999_999, None),
                (Kind::Group, 3_999_999_999, None),
            ] {
                assert_eq!(owners.name(kind, id).await.as_deref(), expected, "{kind:?} {id}");
            }
            for (kind, owner, expected) in [
                (Kind::User, &b"root@example.org"[..], Some(0)),
                (Kind::User, b"daemon@Example.ORG", Some(1)),
                (Kind::Group, b"root@example.org", Some(0)),
                (Kind::User, b"robot@example.org", Some(1000)),
                (Kind::User, b"zombie@example.org", Some(1000)),
                (Kind::User, b"robot@EXAMPLE.org", Some(1000)),
                (Kind::User, b"robot@Other.Net", Some(2000)),
                (Kind::User, b"Robot@example.org", None),
                (Kind::User, b"robot@other.net", Some(2000)),
                (Kind::Group, b"robot@example.org", None),
                (Kind::User, b"root@other.net", None),
                (Kind::User, b"root", None),
                (Kind::User, b"@example.org", None),
                (Kind::User, b"root\0x@example.org", None),
                (Kind::User, b"\xff@example.org", None),
                (Kind::User, b"backup/admin@example.org", None),
            ] {
                let text = owner.escape_ascii();
                assert_eq!(owners.id(kind, owner).await, expected, "{kind:?} {text}");
            }
            let long = format!("{}@example.org", "a".repeat(256));
            assert_eq!(owners.id(Kind::User, long.as_bytes()).await, None);

            owners.set(Some(rules(Some("Cell.Example"))));
            assert_eq!(owners.name(Kind::User, 0).await.as_deref(), Some("root@Cell.Example"));
            assert_eq!(owners.id(Kind::User, b"root@example.org").await, None);
            assert_eq!(owners.id(Kind::User, b"robot@cell.example").await, Some(1000));
            assert_eq!(owners.id(Kind::User, b"robot@Cell.Example").await, Some(1000));
            owners.set(Some(rules(None)));
            assert_eq!(owners.name(Kind::User, 0).await, None);
            assert_eq!(owners.id(Kind::User, b"root@Example.ORG").await, Some(0));
            owners.set(None);
            assert_eq!(owners.name(Kind::User, 0).await, None);
            assert_eq!(owners.id(Kind::User, b"root@example.org").await, None);
        })
        .unwrap();
    }
}
