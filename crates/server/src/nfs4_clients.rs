//! The state of NFSv4 clients, shared by all shards, and the identity of the server.

use std::{sync::Arc, time::Duration};

use millrace_nfs4_state::{Identity, Limits, State};
use millrace_oncrpc::Credential;
use millrace_runtime::RuntimeRef;
use millrace_xdr::View;
use smallvec::SmallVec;

use crate::{Limits as ServerLimits, siphash::siphash};

/// A session whose slots keep the results of COMPOUNDs, without RPC header.
pub(crate) type Session = millrace_nfs4_state::Session<View>;
/// A request in progress.
pub(crate) type Execution = millrace_nfs4_state::Execution<View>;

/// Bytes of a call or reply besides the data of READ or WRITE.
const OVERHEAD: u32 = 4096;
/// Maximum bytes of a reply that a slot keeps: more than the results of the operations that change something.
const CACHED_REPLY: u32 = 2048;

/// The clients of a server, with the parameters of the server that clients see.
pub(crate) struct Clients {
    pub(crate) state: State<View>,
    /// Major ID of the server owner and server scope: equal after a restart if there is a secret. State of clients
    /// does not outlive a server without one.
    pub(crate) owner: String,
}

impl Clients {
    /// The clients of a server that starts now. `secret` survives restarts.
    pub(crate) fn new(rt: &RuntimeRef, limits: &ServerLimits, secret: Option<[u64; 2]>) -> Arc<Self> {
        let mut random = [0; 32];
        rt.fill_random(&mut random);
        let (session_secret, instance) = random.split_at(16);
        let mut owner = String::from("millrace ");
        let name = secret.map_or_else(
            || instance.to_vec(),
            |secret| siphash(secret, b"NFSv4 server owner").to_be_bytes().to_vec(),
        );
        owner.extend(name.iter().take(8).map(|byte| format!("{byte:02x}")));
        let mut identity = Identity { epoch: rt.wall_clock().as_secs() as u32, secret: [0; 16] };
        identity.secret.copy_from_slice(session_secret);
        // Validation limits it to 4 MiB.
        let transfer = u32::try_from(limits.max_transfer()).unwrap_or(u32::MAX - OVERHEAD);
        let limits = Limits {
            request_bytes: transfer + OVERHEAD,
            response_bytes: transfer + OVERHEAD,
            cached_bytes: CACHED_REPLY,
            // A kept reply occupies memory for twice its size, because it is a part of a larger buffer.
            total_cached_bytes: limits.session_replies() / 2,
            back_channel: true,
            ..Limits::default()
        };
        Arc::new(Self { state: State::new(limits, identity), owner })
    }

    /// Duration of a lease in seconds.
    pub(crate) fn lease_seconds(&self) -> u32 {
        u32::try_from(self.state.limits().lease.as_secs()).unwrap_or(u32::MAX)
    }
}

/// The time of leases.
pub(crate) fn now(rt: &RuntimeRef) -> Duration {
    Duration::from_nanos(rt.now().as_nanos())
}

/// What identifies a caller to the state of clients: the flavor and the user of its credential.
pub(crate) fn principal(credential: &Credential) -> SmallVec<[u8; 8]> {
    let (flavor, user) = match credential {
        Credential::None => (0, 0),
        Credential::Sys(sys) => (1, sys.uid),
        Credential::Other(flavor) => (*flavor, 0),
    };
    let mut out = SmallVec::new();
    out.extend_from_slice(&u32::to_be_bytes(flavor));
    out.extend_from_slice(&u32::to_be_bytes(user));
    out
}
