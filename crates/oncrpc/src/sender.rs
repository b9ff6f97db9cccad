//! The sender of a call: the peer of the connection, and its credential.

use std::{net::SocketAddr, sync::Arc};

use millrace_tls::{PeerCertificate, TransportSecurity};
use millrace_xdr::XdrError;

use crate::{Credential, MAX_AUTH_BODY};

/// The transport of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransportKind {
    /// TCP with record marking.
    Tcp,
    /// RPC-over-RDMA.
    Rdma,
}

/// The peer of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Address of the peer.
    pub addr: SocketAddr,
    /// Local address.
    pub local: SocketAddr,
    /// Transport.
    pub transport: TransportKind,
    /// Its protection.
    pub security: TransportSecurity,
    /// Number of the connection, unique in this process.
    pub connection: u64,
}

/// The sender of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sender {
    /// The peer of the connection.
    pub peer: Peer,
    /// The credential of the call.
    pub credential: Credential,
    /// The certificate that the client has proved for this connection.
    pub certificate: Option<Arc<PeerCertificate>>,
}

impl Sender {
    /// A sender without a certificate.
    pub fn new(peer: Peer, credential: Credential) -> Self {
        Self { peer, credential, certificate: None }
    }
}

/// The sender of the last call of a connection.
///
/// Most connections have one credential. The next call's encoded credential is compared with the last one, and
/// decoded only if it differs. The memory is bounded by the size of a credential.
pub struct LastSender {
    flavor: u32,
    body: Vec<u8>,
    sender: Arc<Sender>,
}

impl LastSender {
    /// The sender of the first call from `peer`, until it is decoded: AUTH_NONE.
    pub fn new(peer: Peer) -> Self {
        Self { flavor: 0, body: Vec::new(), sender: Arc::new(Sender::new(peer, Credential::None)) }
    }

    /// The same after the client has proved a certificate.
    pub(crate) fn with_certificate(mut self, certificate: Option<Arc<PeerCertificate>>) -> Self {
        self.sender = Arc::new(Sender { certificate, ..Sender::clone(&self.sender) });
        self
    }

    /// The peer of the connection.
    pub fn peer(&self) -> &Peer {
        &self.sender.peer
    }

    /// The sender of a call whose credential has this flavor and body. `at` is the position of the body, for
    /// errors.
    pub(crate) fn of_call(&mut self, flavor: u32, body: &[u8], at: usize) -> Result<Arc<Sender>, XdrError> {
        if flavor != self.flavor || body != self.body {
            let credential = Credential::from_body(flavor, body, at)?;
            debug_assert!(body.len() <= MAX_AUTH_BODY);
            self.flavor = flavor;
            self.body.clear();
            self.body.extend_from_slice(body);
            // Without a call in progress, the memory is reused.
            match Arc::get_mut(&mut self.sender) {
                Some(sender) => sender.credential = credential,
                None => {
                    let Sender { peer, certificate, .. } = &*self.sender;
                    let (peer, certificate) = (*peer, certificate.clone());
                    self.sender = Arc::new(Sender { peer, credential, certificate });
                }
            }
        }
        Ok(Arc::clone(&self.sender))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Credentials that differ in flavor, body, or nothing, valid or not.
    fn credentials() -> impl Strategy<Value = Vec<(u32, Vec<u8>)>> {
        let sys = (0..2u32, 0..2u32, 0..2usize).prop_map(|(uid, gid, groups)| {
            let words = [&[0, 0, uid, gid, groups as u32][..], &[7, 8][..groups]].concat();
            (1, words.into_iter().flat_map(u32::to_be_bytes).collect())
        });
        let other = (0..4u32, proptest::collection::vec(0..2u8, 0..2));
        let body = prop_oneof![3 => sys, 1 => other];
        proptest::collection::vec(body, 1..20)
    }

    proptest! {
        /// With earlier senders in use or not, each call has the sender that a new connection would decode, and
        /// the senders of earlier calls do not change.
        #[test]
        fn each_call_has_the_sender_of_its_credential(calls in credentials(), held in any::<u32>()) {
            let addr = "127.0.0.1:1".parse().unwrap();
            let (transport, security) = (TransportKind::Tcp, TransportSecurity::None);
            let peer = Peer { addr, local: addr, transport, security, connection: 3 };
            let mut last = LastSender::new(peer);
            let mut in_progress = Vec::new();
            for (i, (flavor, body)) in calls.iter().enumerate() {
                let expected = Credential::from_body(*flavor, body, 0);
                let found = last.of_call(*flavor, body, 0);
                prop_assert_eq!(&found.as_ref().map(|s| s.credential.clone()), &expected.as_ref().cloned());
                if let (Ok(found), Ok(expected), true) = (found, expected, held >> i & 1 == 1) {
                    prop_assert_eq!(found.peer, peer);
                    in_progress.push((found, expected));
                }
            }
            for (found, expected) in in_progress {
                prop_assert_eq!(&found.credential, &expected);
            }
        }
    }
}
