//! The tickets of a client's callers, where rpc.gssd(8) looks for them.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use millrace_gssapi::{Credential, Error, Initiator as Negotiation, Progress};
use millrace_oncrpc::gss::{Begun, Initiator, NoContext};
use millrace_runtime::sync::Mutex;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};

/// The keytab of the host.
const KEYTAB: &str = "/etc/krb5.keytab";

/// The tickets of a user for the NFS service of a host. They are looked up for each context, so that renewed ones are used:
///
/// - of the user of this process: the default cache, as `KRB5CCNAME` or krb5.conf name it; of root without one, the
///   keytab of the host;
/// - of another user: a cache in `/tmp` or `/run/user/UID` that the user owns.
#[derive(Clone)]
pub(crate) struct Tickets {
    service: String,
    uid: u32,
    /// The principal of the last context, for errors: the library has none of expired tickets.
    last: Arc<Mutex<Option<String>>>,
}

/// The credential of a user.
struct Found {
    credential: Credential,
    /// The cache of another user, and its name in the library. The library gets the open file, of which the owner was
    /// checked: another user could replace it meanwhile.
    file: Option<(OwnedFd, PathBuf)>,
}

impl Found {
    fn no_context(&self, error: &Error) -> NoContext {
        no_context(error, self.file.as_ref().map(|(fd, path)| (fd, &**path)))
    }
}

/// The name by which the library opens a file again.
fn cache_of(fd: &OwnedFd) -> String {
    format!("FILE:/proc/self/fd/{}", fd.as_raw_fd())
}

fn no_context(error: &Error, file: Option<(&OwnedFd, &Path)>) -> NoContext {
    let mut reason = error.to_string();
    if let Some((fd, path)) = file {
        reason = reason.replace(&cache_of(fd), &format!("FILE:{}", path.display()));
    }
    NoContext { reason, expired: error.is_expired() }
}

/// Opens a cache of a user; `None`: there is none, or it is not the user's.
fn open_cache(path: &Path, uid: u32) -> Option<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = open(path, flags, Mode::empty()).ok()?;
    let stat = fstat(&fd).ok()?;
    (stat.st_uid == uid && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then_some(fd)
}

impl Tickets {
    pub(crate) fn new(host: &str, uid: u32) -> Self {
        Self { service: format!("nfs@{host}"), uid, last: Arc::default() }
    }

    /// The error with service and principal.
    fn named(&self, error: NoContext) -> NoContext {
        let mut reason = error.reason;
        if !reason.contains(&self.service) {
            reason = format!("cannot authenticate to {}: {reason}", self.service);
        }
        if let Some(last) = &*self.last.lock()
            && !reason.contains(last)
        {
            reason = format!("{last}: {reason}");
        }
        NoContext { reason, ..error }
    }

    fn find(&self) -> Result<Found, NoContext> {
        let own = rustix::process::geteuid().as_raw();
        if self.uid == own {
            let of_process = Credential::of_cache(None);
            let credential = match of_process {
                Err(e) if own == 0 && e.is_no_cache() && Path::new(KEYTAB).exists() => {
                    Credential::of_machine(Path::new(KEYTAB))
                }
                other => other,
            };
            return credential
                .map(|credential| Found { credential, file: None })
                .map_err(|e| no_context(&e, None));
        }
        let uid = self.uid;
        let paths = [
            format!("/tmp/krb5cc_{uid}"),
            format!("/run/user/{uid}/krb5cc_{uid}"),
            format!("/run/user/{uid}/krb5cc"),
        ];
        for path in paths.iter().map(Path::new) {
            let Some(fd) = open_cache(path, uid) else { continue };
            return match Credential::of_cache(Some(&cache_of(&fd))) {
                Ok(credential) => Ok(Found { credential, file: Some((fd, path.to_owned())) }),
                Err(e) => Err(no_context(&e, Some((&fd, path)))),
            };
        }
        let reason = format!(
            "there are no tickets, because none of {} is a file of the user (get a ticket: kinit -c FILE:/tmp/krb5cc_{uid})",
            paths.join(", "),
        );
        Err(NoContext { reason, expired: false })
    }
}

impl Initiator for Tickets {
    fn begin(&self) -> Result<Begun, NoContext> {
        let found = self.find().map_err(|e| self.named(e))?;
        let first = Negotiation::new(&self.service).and_then(|first| first.step(&found.credential, &[]));
        let Progress::Continue { token, next } = first.map_err(|e| self.named(found.no_context(&e)))? else {
            let reason = "the server is not asked to prove its identity".into();
            return Err(NoContext { reason, expired: false });
        };
        let this = self.clone();
        let finish = Box::new(move |token: &[u8]| match next.step(&found.credential, token) {
            Ok(Progress::Established { context, initiator, .. }) => {
                *this.last.lock() = Some(initiator.clone());
                Ok((context, initiator))
            }
            Ok(Progress::Continue { .. }) => {
                let reason = "the server wants more than one exchange of tokens".into();
                Err(NoContext { reason, expired: false })
            }
            Err(e) => Err(this.named(found.no_context(&e))),
        });
        Ok(Begun { token, finish })
    }

    fn late(&self, after: Duration) -> NoContext {
        let reason = format!(
            "no ticket of {} within {after:?}: the key distribution center does not answer, or a program holds the lock of \
             the credential cache (check that a kdc of [realms] in krb5.conf is reachable; lslocks lists locks)",
            self.service,
        );
        self.named(NoContext { reason, expired: false })
    }
}
