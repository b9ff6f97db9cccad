//! Why something failed, and what to do about it.

use millrace_krb5::Enctype;

/// Why the library cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// It is missing or cannot be loaded.
    #[error(
        "cannot load {library} ({reason}); install MIT Kerberos (Debian and Ubuntu: apt install libgssapi-krb5-2; Fedora \
         and RHEL: dnf install krb5-libs)"
    )]
    Library {
        /// File name of the library.
        library: &'static str,
        /// Error of the dynamic loader.
        reason: String,
    },
    /// It is too old.
    #[error("{library} has no function {symbol}: install MIT Kerberos 1.11 or newer")]
    Symbol {
        /// File name of the library.
        library: &'static str,
        /// Name of the missing function.
        symbol: &'static str,
    },
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The library cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The library refused.
    #[error(transparent)]
    Status(#[from] Status),
    /// The context has an encryption type that Millrace does not support: DES, triple DES, RC4 or Camellia.
    #[error(
        "the security context has the encryption type {0}, which is not supported: allow one of {types} in krb5.conf \
         (permitted_enctypes), or give the service such a key (ktadd -e)",
        types = Enctype::ALL.map(Enctype::name).join(", ")
    )]
    Enctype(u32),
    /// A name or path cannot be given to the library.
    #[error("{what} {text:?} contains a NUL character")]
    Nul {
        /// What it is.
        what: &'static str,
        /// The name or path.
        text: String,
    },
    /// The library returned a principal that is not text.
    #[error("the principal {0:?} is not UTF-8; principals that are not text are not supported")]
    Principal(String),
    /// The library violated its interface.
    #[error("libgssapi_krb5 returned {0}, which is a fault of the library")]
    Library(&'static str),
}

impl Error {
    /// Whether a ticket has expired.
    pub fn is_expired(&self) -> bool {
        let Self::Status(status) = self else { return false };
        status.minor.cast_signed() == krb5::AP_ERR_TKT_EXPIRED
            || matches!(status.major & 0xffff_0000, GSS_S_CREDENTIALS_EXPIRED | GSS_S_CONTEXT_EXPIRED)
    }

    /// Whether there is no credential cache.
    pub fn is_no_cache(&self) -> bool {
        let Self::Status(status) = self else { return false };
        matches!(status.minor.cast_signed(), krb5::CC_NOTFOUND | krb5::FCC_NOFILE)
    }
}

/// A status of the library.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot {action}: {text}{}", remedy(*.major, *.minor))]
pub struct Status {
    /// What failed, with the object's name.
    pub action: String,
    /// `major_status` (RFC 2744 section 3.9.1).
    pub major: u32,
    /// `minor_status`, the mechanism's.
    pub minor: u32,
    /// The text of the library.
    pub text: String,
}

/// Routine errors of `major_status` (RFC 2744 section 3.9.1).
const GSS_S_DEFECTIVE_TOKEN: u32 = 9 << 16;
const GSS_S_CREDENTIALS_EXPIRED: u32 = 11 << 16;
const GSS_S_CONTEXT_EXPIRED: u32 = 12 << 16;

/// Errors of libkrb5 (`krb5.h`), as far as a user can act on them.
mod krb5 {
    pub(super) const KDC_ERR_C_PRINCIPAL_UNKNOWN: i32 = -1_765_328_378;
    pub(super) const KDC_ERR_S_PRINCIPAL_UNKNOWN: i32 = -1_765_328_377;
    pub(super) const KDC_ERR_ETYPE_NOSUPP: i32 = -1_765_328_370;
    pub(super) const AP_ERR_BAD_INTEGRITY: i32 = -1_765_328_353;
    pub(super) const AP_ERR_TKT_EXPIRED: i32 = -1_765_328_352;
    pub(super) const AP_ERR_NOT_US: i32 = -1_765_328_349;
    pub(super) const AP_ERR_SKEW: i32 = -1_765_328_347;
    pub(super) const AP_ERR_MODIFIED: i32 = -1_765_328_343;
    pub(super) const AP_ERR_BADKEYVER: i32 = -1_765_328_340;
    pub(super) const CC_NOTFOUND: i32 = -1_765_328_243;
    pub(super) const AP_WRONG_PRINC: i32 = -1_765_328_240;
    pub(super) const REALM_UNKNOWN: i32 = -1_765_328_230;
    pub(super) const KDC_UNREACH: i32 = -1_765_328_228;
    pub(super) const KT_NOTFOUND: i32 = -1_765_328_203;
    pub(super) const FCC_NOFILE: i32 = -1_765_328_189;
    pub(super) const KT_KVNONOTFOUND: i32 = -1_765_328_154;
    pub(super) const CONFIG_NODEFREALM: i32 = -1_765_328_160;
}

/// What to do, in parentheses after a space, or nothing.
fn remedy(major: u32, minor: u32) -> &'static str {
    match minor.cast_signed() {
        krb5::CC_NOTFOUND | krb5::FCC_NOFILE => " (get a ticket: kinit)",
        krb5::AP_ERR_TKT_EXPIRED => " (get a new ticket: kinit)",
        krb5::KDC_ERR_C_PRINCIPAL_UNKNOWN => {
            " (the realm has no such user: compare klist with the realm's principals)"
        }
        krb5::KDC_ERR_S_PRINCIPAL_UNKNOWN => {
            " (the realm has no such service: compare the host name with the service's principal, or add it: kadmin \
             addprinc -randkey nfs/HOST)"
        }
        krb5::KDC_ERR_ETYPE_NOSUPP => {
            " (client, service and realm have no encryption type in common: permitted_enctypes)"
        }
        krb5::AP_ERR_SKEW => " (the clocks differ by more than 5 minutes: set them by NTP)",
        krb5::REALM_UNKNOWN | krb5::KDC_UNREACH => {
            " (name the key distribution center in [realms] of krb5.conf, and check that it is reachable)"
        }
        krb5::CONFIG_NODEFREALM => " (set default_realm in krb5.conf)",
        krb5::KT_NOTFOUND | krb5::AP_ERR_NOT_US | krb5::AP_WRONG_PRINC => {
            " (add the key of the service to the keytab: kadmin ktadd -k KEYTAB nfs/HOST; klist -k KEYTAB lists it)"
        }
        krb5::KT_KVNONOTFOUND
        | krb5::AP_ERR_BADKEYVER
        | krb5::AP_ERR_MODIFIED
        | krb5::AP_ERR_BAD_INTEGRITY => {
            " (the keytab has another version of the service's key than the ticket: write it again with kadmin ktadd, and \
             let clients get new tickets)"
        }
        _ => match major & 0xffff_0000 {
            GSS_S_CREDENTIALS_EXPIRED | GSS_S_CONTEXT_EXPIRED => " (get a new ticket: kinit)",
            GSS_S_DEFECTIVE_TOKEN => " (the peer did not send a token of Kerberos 5)",
            _ => "",
        },
    }
}
