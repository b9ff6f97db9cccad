//! Callers with Kerberos: the keytab, and the users of this host that principals are.

use std::{collections::BTreeMap, ffi::CString, io, path::PathBuf, str::FromStr};

use millrace_gssapi::{Acceptor as Negotiation, Credential, Error, Progress, Refusal};
use millrace_oncrpc::{
    GssCaller, UserIds,
    gss::{Accepted, Acceptor, Refused},
};
use nix::unistd::{User, getgrouplist};

use crate::{ServerError, error::InvalidSetting};

/// `GSS_S_FAILURE` (RFC 2744 section 3.9.1).
const FAILURE: u32 = 13 << 16;
/// Maximum length of a name of DNS in its text form (RFC 1035 section 2.3.4).
const MAX_DOMAIN: usize = 253;
/// Services whose principals are those of machines, for root.
const MACHINE_SERVICES: [&str; 3] = ["nfs", "host", "root"];

/// Kerberos 5 for callers with RPCSEC_GSS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KerberosSettings {
    /// The keytab with the keys of the service, `nfs/HOST@REALM`. Contexts are accepted for each of its keys; it is read again
    /// for each context. `None`: the default keytab, usually `/etc/krb5.keytab`.
    pub keytab: Option<PathBuf>,
    /// Users of principals. Others are those that krb5.conf says (`auth_to_local`; by default, `alice@REALM` of the default
    /// realm is the user `alice`). The principals of machines in the realm of the server are root, to which `squash`
    /// applies; a principal without a user has the anonymous identity.
    pub users: BTreeMap<String, LocalUser>,
    /// The domain in the names of owners that NFSv4 clients with Kerberos get and set, `alice@example.org` (RFC 8881 section
    /// 5.9): that of `Domain` in their idmapd.conf. `None`: they get numbers, and may set names in the realm of the server.
    pub domain: Option<String>,
}

impl KerberosSettings {
    /// The domain, if it cannot be that of owners.
    pub(crate) fn invalid(&self) -> Option<InvalidSetting> {
        let domain = self.domain.as_deref()?;
        let is_label = |label: &str| {
            !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
        };
        if domain.len() <= MAX_DOMAIN && domain.split('.').all(is_label) {
            return None;
        }
        let what = format!(
            "[kerberos] has the domain {domain:?}, which is no name of DNS; write that of `Domain` in the idmapd.conf of clients, \
             such as `example.org`"
        );
        Some(InvalidSetting::new("kerberos.domain", what))
    }
}

/// A user of this host. The text form is a name, or `UID:GID` with further groups after commas, `1000:1000,27`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalUser {
    /// A name in the user database of the host.
    Name(String),
    /// Numbers.
    Ids(UserIds),
}

impl FromStr for LocalUser {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let Some((uid, gids)) = s.split_once(':') else {
            return match s.is_empty() || s.contains(|c: char| c.is_control()) {
                true => Err(format!("{s:?} is not a user: write a name, or UID:GID[,GID]...")),
                false => Ok(Self::Name(s.to_owned())),
            };
        };
        let number = |id: &str| id.parse::<u32>().map_err(|_| format!("`{id}` is not an id in {s:?}"));
        let mut gids = gids.split(',').map(number);
        let gid = gids.next().unwrap_or_else(|| Err(format!("{s:?} has no group")))?;
        Ok(Self::Ids(UserIds { uid: number(uid)?, gid, gids: gids.collect::<Result<_, _>>()? }))
    }
}

/// Accepts contexts, and finds their users. Both may wait for the disk or the network.
pub(crate) struct KerberosAcceptor {
    credential: Credential,
    users: BTreeMap<String, LocalUser>,
}

impl KerberosAcceptor {
    /// Opens the keytab.
    ///
    /// # Errors
    /// The library of Kerberos or the keytab is missing.
    pub(crate) fn new(settings: &KerberosSettings) -> Result<Self, ServerError> {
        let credential = Credential::of_keytab(settings.keytab.as_deref()).map_err(ServerError::Kerberos)?;
        Ok(Self { credential, users: settings.users.clone() })
    }

    /// The realm of the first key in the keytab.
    ///
    /// # Errors
    /// [`ServerError::Kerberos`]
    pub(crate) fn realm(&self) -> Result<String, ServerError> {
        let (principal, _) = self.credential.inquire().map_err(ServerError::Kerberos)?;
        Ok(principal.rsplit_once('@').map_or("", |(_, realm)| realm).to_owned())
    }
}

/// The user of a principal. `acceptor` is the principal of the server, `local` the user that krb5.conf says.
fn user(
    users: &BTreeMap<String, LocalUser>,
    principal: &str,
    acceptor: &str,
    local: Option<&str>,
) -> Option<UserIds> {
    let found = match users.get(principal) {
        Some(LocalUser::Ids(ids)) => return Some(ids.clone()),
        Some(LocalUser::Name(name)) => look_up(name),
        None if is_machine(principal, acceptor) => return Some(UserIds::default()),
        // A user of the realm with this name is not the administrator of this host.
        None => look_up(local?).map(|ids| ids.filter(|ids| ids.uid != 0)),
    };
    found.unwrap_or_else(|e| {
        tracing::warn!(principal, "cannot look up the user of a principal, which is anonymous: {e}");
        None
    })
}

/// The ids of a user in the databases of nsswitch.conf(5).
fn look_up(name: &str) -> io::Result<Option<UserIds>> {
    let Some(user) = User::from_name(name)? else { return Ok(None) };
    let groups = getgrouplist(&CString::new(user.name)?, user.gid)?;
    let gids = groups.into_iter().map(|gid| gid.as_raw()).collect();
    Ok(Some(UserIds { uid: user.uid.as_raw(), gid: user.gid.as_raw(), gids }))
}

/// Whether a principal is that of a machine in the realm of `acceptor`: `host/HOST@REALM`, or `HOST$@REALM` as in Active
/// Directory.
fn is_machine(principal: &str, acceptor: &str) -> bool {
    let (Some((name, realm)), Some((_, own))) = (principal.rsplit_once('@'), acceptor.rsplit_once('@'))
    else {
        return false;
    };
    // A backslash precedes characters that do not separate components.
    if realm != own || name.contains('\\') {
        return false;
    }
    match name.split_once('/') {
        Some((service, host)) => {
            MACHINE_SERVICES.contains(&service) && !host.is_empty() && !host.contains('/')
        }
        None => name.strip_suffix('$').is_some_and(|host| !host.is_empty()),
    }
}

impl Acceptor for KerberosAcceptor {
    fn accept(&self, token: &[u8]) -> Result<Accepted, Refused> {
        let refused = |error: &Error, token| {
            let (major, minor) = match error {
                Error::Status(status) => (status.major, status.minor),
                _ => (FAILURE, 0),
            };
            Refused { token, major, minor, reason: error.to_string() }
        };
        let negotiation = Negotiation::new().map_err(|e| refused(&e, Vec::new()))?;
        let progress = negotiation
            .step(&self.credential, token)
            .map_err(|Refusal { error, token }| refused(&error, token))?;
        let Progress::Established { token, initiator, acceptor, local_user, context } = progress else {
            let reason = "the client wants more than one exchange of tokens".into();
            return Err(Refused { token: Vec::new(), major: FAILURE, minor: 0, reason });
        };
        let user = user(&self.users, &initiator, &acceptor, local_user.as_deref());
        if user.is_none() {
            tracing::info!(principal = initiator, "a principal without a user of this host is anonymous");
        }
        Ok(Accepted { token, context, caller: GssCaller { principal: initiator, user } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_names_or_numbers() {
        let ids = |gids: &[u32]| LocalUser::Ids(UserIds { uid: 1000, gid: 100, gids: gids.into() });
        assert_eq!("alice".parse(), Ok(LocalUser::Name("alice".into())));
        assert_eq!("1000:100".parse(), Ok(ids(&[])));
        assert_eq!("1000:100,27,30".parse(), Ok(ids(&[27, 30])));
        for text in ["", "1000:", "alice:1", "1000:100,", "a\0b"] {
            text.parse::<LocalUser>().unwrap_err();
        }
    }

    #[test]
    fn the_domain_of_owners_is_a_name_of_dns() {
        let invalid = |domain: &str| {
            KerberosSettings { domain: Some(domain.into()), ..KerberosSettings::default() }.invalid()
        };
        let long = "a.".repeat(126) + "a";
        for domain in ["example.org", "EXAMPLE.ORG", "localdomain", "a-b_1.c", &long] {
            assert_eq!(invalid(domain), None, "{domain}");
        }
        for domain in [
            "",
            ".",
            "example.org.",
            "a..b",
            "alice@example.org",
            "a b",
            "a\0",
            "\u{e9}.org",
            &format!("{long}.a"),
        ] {
            assert_eq!(invalid(domain).unwrap().field, "kerberos.domain", "{domain}");
        }
        assert_eq!(KerberosSettings::default().invalid(), None);
    }

    #[test]
    fn machines_are_those_of_the_realm_of_the_server() {
        for (principal, expected) in [
            ("host/a.example.org@R", true),
            ("nfs/a@R", true),
            ("root/a@R", true),
            ("A$@R", true),
            ("host/a@OTHER", false),
            ("host/@R", false),
            ("host@R", false),
            ("http/a@R", false),
            ("host/a/b@R", false),
            ("host/a\\/b@R", false),
            ("alice@R", false),
            ("root@R", false),
            ("$@R", false),
            ("host/a", false),
        ] {
            assert_eq!(is_machine(principal, "nfs/server@R"), expected, "{principal}");
        }
    }

    #[test]
    fn a_user_comes_from_the_table_or_the_database_and_root_from_the_table_only() {
        let users = BTreeMap::from([
            ("a@R".to_owned(), "1000:100".parse().unwrap()),
            ("b@R".to_owned(), "root".parse().unwrap()),
            ("c@R".to_owned(), "no-such-user".parse().unwrap()),
        ]);
        let uid = |principal: &str, local: Option<&str>| {
            user(&users, principal, "nfs/server@R", local).map(|ids| ids.uid)
        };
        assert_eq!(uid("a@R", None), Some(1000));
        assert_eq!(uid("b@R", None), Some(0));
        assert_eq!(uid("c@R", Some("daemon")), None);
        assert_eq!(uid("host/h@R", None), Some(0));
        assert_eq!(uid("daemon@R", Some("daemon")), Some(1));
        assert_eq!(uid("root@R", Some("root")), None);
        assert_eq!(uid("d@R", Some("no-such-user")), None);
        assert_eq!(uid("d@OTHER", None), None);
        // Names that are hostile.
        let long = "a".repeat(1024);
        for name in ["", "a\0b", "daemon@R", "daemon\n", "../daemon", &long] {
            assert_eq!(uid(&format!("{name}@R"), Some(name)), None, "{name:?}");
        }
        assert_eq!(uid("host\\/h@R", None), None);
    }
}
