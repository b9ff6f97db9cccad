//! The end of a client: it destroys its session and client ID at the server (RFC 8881 sections 18.37 and 18.50).

use std::{sync::Arc, time::Duration};

use millrace_oncrpc::CallClass;
use millrace_xdr::Encode;

use super::{STATE_REPLY, Session, spec};
use crate::{
    Connection,
    nfs4::{
        calls::{DestroyClientid, DestroySession},
        compound::Request,
    },
};

/// Timeout of each of the last calls of a client.
const END_TIMEOUT: Duration = Duration::from_secs(1);

impl Session {
    /// Ends the client at the server without waiting, and closes the connections. Calls in progress fail.
    pub(crate) fn end(&self) {
        let connections = ClosedOnDrop(self.pool.take());
        let client = self.record.try_lock().and_then(|record| record.client);
        let (Some(session), Some((client_id, _)), Some(transport)) =
            (self.slots.session(), client, connections.0.first().map(|c| Arc::clone(&c.transport)))
        else {
            return;
        };
        let minor_version = self.minor_version;
        let destroy = Request { minor_version, sequence: None, compound: &DestroySession(session) };
        let forget = Request { minor_version, sequence: None, compound: &DestroyClientid(client_id) };
        let requests = [self.state_request(&destroy), self.state_request(&forget)];
        let rt = Arc::clone(&self.pool.rt);
        let task = async move {
            let _closed = connections;
            for request in requests.into_iter().flatten() {
                // Without these calls, the server ends the client when its lease expires.
                drop(millrace_runtime::timeout(&*rt, END_TIMEOUT, transport.submit(request)).await);
            }
        };
        self.pool.rt.spawn("end session", Box::pin(task));
    }

    /// A request outside of sessions, or `None` if it cannot be encoded.
    fn state_request(&self, args: &impl Encode) -> Option<millrace_oncrpc::Request> {
        let spec = spec("DESTROY_SESSION", STATE_REPLY, CallClass::Other);
        self.pool.request(spec, &self.credential, args).ok()
    }
}

/// Connections that are closed when the value is dropped.
struct ClosedOnDrop(Vec<Connection>);

impl Drop for ClosedOnDrop {
    fn drop(&mut self) {
        self.0.iter().for_each(|c| c.transport.close());
    }
}
