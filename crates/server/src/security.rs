//! The security flavors with which the files of an export can be used (`sec` of exports(5)).

use std::{fmt, str::FromStr};

use millrace_nfs::v4::Secinfo;
use millrace_oncrpc::{Credential, SecurityFlavor};

/// The form of a flavor in the results of SECINFO.
pub(crate) fn secinfo(flavor: SecurityFlavor) -> Secinfo<'static> {
    match flavor {
        SecurityFlavor::Sys => Secinfo::SYS,
        SecurityFlavor::Kerberos(protection) => Secinfo::kerberos(protection as u32),
    }
}

/// Position of a flavor in a set.
fn bit(flavor: SecurityFlavor) -> u8 {
    match flavor {
        SecurityFlavor::Sys => 1,
        SecurityFlavor::Kerberos(protection) => 1 << protection as u8,
    }
}

/// The security flavors of an export, in the order in which clients are to prefer them. The default is `sys`; the text form is
/// `krb5p:krb5i:sys`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SecurityFlavors {
    /// Filled up with the first one.
    list: [SecurityFlavor; 4],
    len: u8,
    set: u8,
}

impl Default for SecurityFlavors {
    fn default() -> Self {
        Self { list: [SecurityFlavor::Sys; 4], len: 1, set: bit(SecurityFlavor::Sys) }
    }
}

impl SecurityFlavors {
    /// A list of text forms.
    ///
    /// # Errors
    /// A flavor that does not exist or occurs twice, or none at all.
    pub fn parse<'l>(flavors: impl IntoIterator<Item = &'l str>) -> Result<Self, String> {
        let mut found: Option<Self> = None;
        for text in flavors {
            let flavor: SecurityFlavor = text.parse()?;
            let mut all = found.unwrap_or(Self { list: [flavor; 4], len: 0, set: 0 });
            if all.set & bit(flavor) != 0 {
                return Err(format!("sec has {flavor} twice"));
            }
            all.list[usize::from(all.len)] = flavor;
            all.len += 1;
            all.set |= bit(flavor);
            found = Some(all);
        }
        found.ok_or_else(|| "sec is empty: write sys, krb5, krb5i or krb5p".into())
    }

    /// In order of preference.
    pub fn iter(&self) -> impl Iterator<Item = SecurityFlavor> {
        self.list.into_iter().take(usize::from(self.len))
    }

    /// Whether one of them uses Kerberos.
    pub(crate) fn has_kerberos(&self) -> bool {
        self.set & !bit(SecurityFlavor::Sys) != 0
    }

    /// Whether the flavor of a call is one of them.
    #[inline]
    pub(crate) fn permit(&self, credential: &Credential) -> bool {
        let flavor = match credential {
            Credential::Sys(_) => SecurityFlavor::Sys,
            Credential::Gss(gss) => SecurityFlavor::Kerberos(gss.protection),
            Credential::None | Credential::Other(_) => return false,
        };
        self.set & bit(flavor) != 0
    }

    /// These, and those of `other` that are missing.
    pub(crate) fn union(mut self, other: &Self) -> Self {
        for flavor in other.iter().filter(|flavor| self.set & bit(*flavor) == 0).collect::<Vec<_>>() {
            self.list[usize::from(self.len)] = flavor;
            self.len += 1;
            self.set |= bit(flavor);
        }
        self
    }
}

impl FromStr for SecurityFlavors {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        Self::parse(s.split(':'))
    }
}

impl fmt::Display for SecurityFlavors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(|flavor| flavor.to_string()).collect();
        f.write_str(&names.join(":"))
    }
}

impl fmt::Debug for SecurityFlavors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flavors_are_in_order_and_each_is_there_once() {
        let flavors: SecurityFlavors = "krb5p:sys:krb5".parse().unwrap();
        assert_eq!(flavors.iter().map(SecurityFlavor::number).collect::<Vec<_>>(), [390_005, 1, 390_003]);
        assert_eq!(flavors.to_string(), "krb5p:sys:krb5");
        let more = flavors.union(&"krb5i:krb5".parse().unwrap());
        assert_eq!(more.to_string(), "krb5p:sys:krb5:krb5i");
        assert!(more.has_kerberos() && !SecurityFlavors::default().has_kerberos());
        for (text, expected) in [("krb5:krb5", "twice"), ("", "not a security flavor"), ("dh", "`dh` is not")]
        {
            let e = text.parse::<SecurityFlavors>().unwrap_err();
            assert!(e.contains(expected), "{text}: {e}");
        }
        assert!(SecurityFlavors::parse([]).unwrap_err().contains("empty"));
    }
}
