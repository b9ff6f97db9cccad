//! What to do after a login has failed.

use millrace_iscsi::{
    chap::Mutual,
    login::{LoginError, Status},
    name::IscsiName,
    negotiation::{DigestPolicy, NegotiationError},
};
use millrace_tls::TransportSecurity;

/// What a user checks when a port does not answer as a target.
pub(crate) const CHECK_PORT: &str = "check that the target runs, and that the port is that of the transport (iscsi:// is TCP, iser:// is RDMA)";

/// What this side wanted in the login.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) initiator: &'a IscsiName,
    pub(crate) chap: Option<&'a Mutual>,
    pub(crate) digests: DigestPolicy,
    pub(crate) tls: TransportSecurity,
}

impl Wanted<'_> {
    /// The remedy for `error`.
    pub(crate) fn remedy(self, error: &LoginError) -> String {
        match error {
            LoginError::Status(Status::NOT_FOUND | Status::REMOVED) => {
                "list the targets with `millrace blk ls`".into()
            }
            LoginError::Status(Status::FORBIDDEN) => {
                let stronger = match self.tls {
                    TransportSecurity::None => " or use xprtsec=tls in the URL if the target wants TLS",
                    TransportSecurity::Tls => {
                        " or use xprtsec=mtls in the URL if the target wants a certificate"
                    }
                    TransportSecurity::Mtls => "",
                };
                format!(
                    "permit the initiator {} at the target, or set its name (--initiator){}{stronger}",
                    self.initiator,
                    if stronger.is_empty() { "" } else { "," }
                )
            }
            LoginError::Status(Status::AUTHENTICATION) | LoginError::Authentication(_) => {
                self.authentication().into()
            }
            LoginError::Status(Status::UNAVAILABLE | Status::OUT_OF_RESOURCES) => {
                "try again later, and look for the reason in the log of the target".into()
            }
            LoginError::Status(_) => "look for the reason in the log of the target".into(),
            LoginError::Negotiation(error) => self.negotiation(error).into(),
            LoginError::Redirects => "correct the addresses of redirections at the target".into(),
            _ => CHECK_PORT.into(),
        }
    }

    const fn authentication(self) -> &'static str {
        match self.chap {
            None => {
                "the target requires CHAP: give a name and a secret (--chap-user and --chap-secret-file, or \
                 USER%SECRET@ before the host)"
            }
            Some(mutual) if mutual.target().is_none() => {
                "check the CHAP name and secret of this initiator at both sides"
            }
            Some(_) => {
                "check the CHAP names and secrets of both sides; if the target has no CHAP in both directions, log in \
                 without its name (--target-user)"
            }
        }
    }

    fn negotiation(self, error: &NegotiationError) -> &'static str {
        use NegotiationError as E;
        match error {
            E::Answer("HeaderDigest" | "DataDigest")
            | E::Rejected("HeaderDigest" | "DataDigest")
            | E::Unanswered("HeaderDigest" | "DataDigest")
            | E::Unacceptable("HeaderDigest" | "DataDigest") => match self.digests {
                DigestPolicy::Require => {
                    "permit CRC32C digests at the target, or do not require them (--digests)"
                }
                _ => "permit connections without digests at the target, or digests at this initiator",
            },
            E::Unacceptable("RDMAExtensions") | E::Rejected("RDMAExtensions") => {
                "use a portal with iSER, or iscsi://"
            }
            E::Rejected(_) | E::Unacceptable(_) => "permit another value of the key at the target",
            E::Answer(_) | E::Unanswered(_) | E::Repeated(_) | E::Unsolicited(_) => {
                "report this violation of RFC 7143 section 6.2 to the vendor of the target"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_iscsi::chap::{Credentials, Secret};

    use super::*;
    use crate::Error;

    fn chap(target: bool) -> Mutual {
        let side = |name: &str| Credentials {
            name: name.into(),
            secret: Secret::new(format!("secret of {name}").as_bytes()).unwrap(),
        };
        Mutual::new(side("the host"), target.then(|| side("the target"))).unwrap()
    }

    fn sentence(error: LoginError, chap: Option<&Mutual>, digests: DigestPolicy) -> String {
        let initiator = "iqn.2026-01.example:host".parse().unwrap();
        let tls = TransportSecurity::None;
        let remedy = Wanted { initiator: &initiator, chap, digests, tls }.remedy(&error);
        Error::Login { portal: "192.0.2.1:3260".into(), error, remedy }.to_string()
    }

    #[test]
    fn each_refusal_of_a_login_has_its_remedy() {
        let (one, both) = (chap(false), chap(true));
        let plain = |error| sentence(error, None, DigestPolicy::Accept);
        let key = |error| LoginError::Negotiation(error);
        let refused = LoginError::Status(Status::AUTHENTICATION);
        let with = |chap| sentence(refused.clone(), Some(chap), DigestPolicy::Accept);
        let digests = |error| sentence(key(error), None, DigestPolicy::Require);
        for (text, remedy) in [
            (plain(refused.clone()), "the target requires CHAP: give a name and a secret (--chap-user and"),
            (with(&one), "check the CHAP name and secret of this initiator"),
            (with(&both), "without its name (--target-user)"),
            (plain(LoginError::Status(Status::NOT_FOUND)), "list the targets"),
            (plain(LoginError::Status(Status::FORBIDDEN)), "permit the initiator iqn.2026-01.example:host"),
            (plain(LoginError::Status(Status::OUT_OF_RESOURCES)), "try again later"),
            (plain(LoginError::Status(Status::TARGET_ERROR)), "the log of the target"),
            (plain(LoginError::Redirects), "addresses of redirections"),
            (plain(LoginError::NotLogin), "the port is that of the transport"),
            (digests(NegotiationError::Unacceptable("HeaderDigest")), "do not require them (--digests)"),
            (digests(NegotiationError::Rejected("DataDigest")), "do not require them (--digests)"),
            (digests(NegotiationError::Unanswered("DataDigest")), "do not require them (--digests)"),
            (plain(key(NegotiationError::Unacceptable("DataDigest"))), "or digests at this initiator"),
            (plain(key(NegotiationError::Unacceptable("RDMAExtensions"))), "iscsi://"),
            (plain(key(NegotiationError::Unacceptable("ImmediateData"))), "another value of the key"),
            (plain(key(NegotiationError::Answer("InitialR2T"))), "vendor of the target"),
        ] {
            assert!(text.starts_with("cannot log in at 192.0.2.1:3260: "), "{text}");
            assert!(text.contains(remedy) && !text.contains('\n'), "{text}");
        }
    }
}
