//! The end of a client: it destroys its session and client ID at the server (RFC 8881 sections 18.37 and 18.50).

use std::{sync::Arc, time::Duration};

use millrace_nfs::v4::{ClientId, SessionId};
use millrace_oncrpc::{CallClass, Transport};
use millrace_runtime::Runtime;
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
        let requests = self.last_requests(session, client_id);
        let rt = Arc::clone(&self.pool.rt);
        let task = async move {
            let _closed = connections;
            submit_all(&*rt, &*transport, requests).await;
        };
        self.pool.rt.spawn("end session", Box::pin(task));
    }

    /// Ends the client at the server, and keeps the connections open, which another client can use.
    pub(crate) async fn destroy(&self) {
        let client = self.record.lock().await.client;
        if let (Some(session), Some((client_id, _)), Some(transport)) =
            (self.slots.session(), client, self.pool.any_transport())
        {
            submit_all(&*self.pool.rt, &*transport, self.last_requests(session, client_id)).await;
        }
    }

    /// DESTROY_SESSION and DESTROY_CLIENTID, as far as they can be encoded.
    fn last_requests(&self, session: SessionId, client_id: ClientId) -> Vec<millrace_oncrpc::Request> {
        let minor_version = self.minor_version;
        let destroy = Request { minor_version, sequence: None, compound: &DestroySession(session) };
        let forget = Request { minor_version, sequence: None, compound: &DestroyClientid(client_id) };
        let requests = [
            self.state_request("DESTROY_SESSION", &destroy),
            self.state_request("DESTROY_CLIENTID", &forget),
        ];
        requests.into_iter().flatten().collect()
    }

    /// A request outside of sessions, or `None` if it cannot be encoded.
    fn state_request(&self, name: &'static str, args: &impl Encode) -> Option<millrace_oncrpc::Request> {
        self.pool.request(spec(name, STATE_REPLY, CallClass::Other), &self.credential, args).ok()
    }
}

/// Sends requests one after another. Without them, the server ends the client when its lease expires.
async fn submit_all(rt: &dyn Runtime, transport: &dyn Transport, requests: Vec<millrace_oncrpc::Request>) {
    for request in requests {
        drop(millrace_runtime::timeout(rt, END_TIMEOUT, transport.submit(request)).await);
    }
}

/// Connections that are closed when the value is dropped.
struct ClosedOnDrop(Vec<Connection>);

impl Drop for ClosedOnDrop {
    fn drop(&mut self) {
        self.0.iter().for_each(|c| c.transport.close());
    }
}
