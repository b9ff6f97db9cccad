//! Credentials.

use std::{ffi::CString, os::unix::ffi::OsStrExt, path::Path, time::Duration};

use crate::{
    calls::{Cred, Usage},
    error::Error,
};

/// Credentials of one side. They can be used for several contexts at a time.
#[derive(Debug)]
pub struct Credential {
    cred: Cred,
    /// Where they are, for errors.
    source: String,
}

impl Credential {
    /// The keys of all services in a keytab, with which this side accepts contexts; `None`: the default keytab, as
    /// krb5.conf or `KRB5_KTNAME` name it. The keytab is read again for each context, so that new keys need no restart.
    ///
    /// The library keeps no cache of replayed tokens: a replayed token yields a context whose key its sender does not
    /// have, so that it cannot sign a call. (Such a cache is one file for all services of the host.)
    ///
    /// # Errors
    /// [`Error`]: the library or the keytab is missing, or it has no key.
    pub fn of_keytab(keytab: Option<&Path>) -> Result<Self, Error> {
        let source =
            keytab.map_or_else(|| "the default keytab".into(), |path| format!("keytab {}", path.display()));
        let name =
            keytab.map(|path| nul_terminated("the keytab", path.as_os_str().as_bytes())).transpose()?;
        let mut store = vec![(c"rcache", c"none:")];
        store.extend(name.as_deref().map(|name| (c"keytab", name)));
        let cred = Cred::acquire(Usage::Accept, &store, &format!("accept security contexts with {source}"))?;
        Ok(Self { cred, source })
    }

    /// The tickets in a credential cache, with which this side initiates contexts: its name, such as
    /// `FILE:/tmp/krb5cc_1000` or `KCM:`; `None`: the default cache, as krb5.conf or `KRB5CCNAME` name it.
    ///
    /// # Errors
    /// [`Error`]: the library or the cache is missing.
    pub fn of_cache(cache: Option<&str>) -> Result<Self, Error> {
        let source = cache
            .map_or_else(|| "the default credential cache".into(), |name| format!("credential cache {name}"));
        let name = cache.map(|name| nul_terminated("the credential cache", name.as_bytes())).transpose()?;
        let store: Vec<_> = name.as_deref().map(|name| (c"ccache", name)).into_iter().collect();
        let cred = Cred::acquire(Usage::Initiate, &store, &format!("use the tickets of {source}"))?;
        Ok(Self { cred, source })
    }

    /// The keys of this host in a keytab, with which it initiates contexts itself: its first principal gets tickets when they
    /// are needed. They are kept in the memory of the process.
    ///
    /// # Errors
    /// [`Error`]: the library or the keytab is missing, or it has no key.
    pub fn of_machine(keytab: &Path) -> Result<Self, Error> {
        let source = format!("the tickets of this host (keytab {})", keytab.display());
        let name = nul_terminated("the keytab", keytab.as_os_str().as_bytes())?;
        let store = [(c"client_keytab", &*name), (c"ccache", c"MEMORY:millrace")];
        let cred = Cred::acquire(Usage::Initiate, &store, &format!("use {source}"))?;
        Ok(Self { cred, source })
    }

    /// The principal, and the time until the end of validity (none: without end). A keytab has the keys of several
    /// principals: the first of them.
    ///
    /// # Errors
    /// [`Error`]: the tickets have expired, or the keytab cannot be read.
    pub fn inquire(&self) -> Result<(String, Option<Duration>), Error> {
        let (name, lifetime) = self.cred.inquire(&format!("use the tickets of {}", self.source))?;
        Ok((name.principal()?, lifetime))
    }

    pub(crate) fn cred(&self) -> &Cred {
        &self.cred
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }
}

fn nul_terminated(what: &'static str, bytes: &[u8]) -> Result<CString, Error> {
    CString::new(bytes).map_err(|_| Error::Nul { what, text: String::from_utf8_lossy(bytes).into_owned() })
}
