//! The exchange of tokens that establishes a context.

use millrace_krb5::Context;

use crate::{
    calls::{Name, SecurityContext},
    credential::Credential,
    error::Error,
};

/// What follows a step of a negotiation.
#[derive(Debug)]
pub enum Progress<Side> {
    /// The peer must receive the token and answer.
    Continue {
        /// For the peer.
        token: Vec<u8>,
        /// Takes the answer.
        next: Side,
    },
    /// The context is established.
    Established {
        /// For the peer. Empty if it needs none.
        token: Vec<u8>,
        /// The principal of the initiator, such as `alice@EXAMPLE.ORG`. A character `@` or `/` inside a component is
        /// preceded by a backslash, and a NUL is `\0`.
        initiator: String,
        /// The principal of the acceptor.
        acceptor: String,
        /// At the acceptor: the user of this host that the initiator is according to krb5.conf (`auth_to_local`).
        local_user: Option<String>,
        /// The context.
        context: Box<Context>,
    },
}

/// An acceptor has refused a context.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refusal {
    /// Why.
    pub error: Error,
    /// For the peer, to which it states the reason (KRB-ERROR). Empty if there is none.
    pub token: Vec<u8>,
}

/// A server's side of a negotiation.
#[derive(Debug)]
pub struct Acceptor(SecurityContext);

impl Acceptor {
    /// Before the first token.
    ///
    /// # Errors
    /// [`Error::Load`].
    pub fn new() -> Result<Self, Error> {
        Ok(Self(SecurityContext::new()?))
    }

    /// Takes a token of the initiator. (Kerberos 5 needs one.)
    ///
    /// # Errors
    /// [`Refusal`]: the token is none of Kerberos 5, was made for another service or with an old key of it, has expired,
    /// or the clocks differ.
    pub fn step(mut self, credential: &Credential, token: &[u8]) -> Result<Progress<Self>, Refusal> {
        let step = self.0.accept(credential.cred(), token);
        let initiator = match step.result {
            Ok(Some(initiator)) => initiator,
            Ok(None) => return Ok(Progress::Continue { token: step.token, next: self }),
            Err(error) => return Err(Refusal { error, token: step.token }),
        };
        let local_user = initiator.local_user();
        let established = || {
            let acceptor = self.0.names()?.1.principal()?;
            Ok((initiator.principal()?, acceptor, Box::new(self.0.export()?)))
        };
        match established() {
            Ok((initiator, acceptor, context)) => {
                Ok(Progress::Established { token: step.token, initiator, acceptor, local_user, context })
            }
            Err(error) => Err(Refusal { error, token: Vec::new() }),
        }
    }
}

/// A client's side of a negotiation, with mutual authentication.
#[derive(Debug)]
pub struct Initiator {
    context: SecurityContext,
    target: Name,
    service: String,
}

impl Initiator {
    /// Before the first step. `service` is the name of a service on a host, `nfs@HOST`. krb5.conf decides which
    /// principal that is: with `dns_canonicalize_hostname = false` the host verbatim.
    ///
    /// # Errors
    /// [`Error`]: the library is missing, or the name is not valid.
    pub fn new(service: &str) -> Result<Self, Error> {
        let target = Name::of_service(service)?;
        Ok(Self { context: SecurityContext::new()?, target, service: service.to_owned() })
    }

    /// Takes a token of the acceptor; an empty one at first. The first step gets a ticket for the service from a key
    /// distribution center, if the credential cache has none.
    ///
    /// # Errors
    /// [`Error`]: the ticket has expired, the realm does not have the service, no center answers, or the acceptor
    /// refused.
    pub fn step(mut self, credential: &Credential, token: &[u8]) -> Result<Progress<Self>, Error> {
        let step = self.context.init(credential.cred(), &self.target, token);
        let result = step.result.map_err(|mut e| {
            if let Error::Status(status) = &mut e {
                let who = credential.inquire().map_or(String::new(), |(name, _)| format!("{name} "));
                status.action = format!("authenticate {who}to {} with {}", self.service, credential.source());
            }
            e
        });
        match result? {
            None => Ok(Progress::Continue { token: step.token, next: self }),
            Some(()) => {
                // Not by `inquire`: the library uses a ticket for as long after its end as clocks may differ.
                let (initiator, acceptor) = self.context.names()?;
                let (initiator, acceptor) = (initiator.principal()?, acceptor.principal()?);
                let context = Box::new(self.context.export()?);
                Ok(Progress::Established {
                    token: step.token,
                    initiator,
                    acceptor,
                    local_user: None,
                    context,
                })
            }
        }
    }
}
