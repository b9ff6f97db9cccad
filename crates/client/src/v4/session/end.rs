//! The end of a client: it destroys its session and client ID at the server (RFC 8881 sections 18.37 and 18.50).

use std::{future::Future, sync::Arc, time::Duration};

use millrace_nfs::v4::{ClientId, SessionId};
use millrace_oncrpc::{CallClass, Transport};
use millrace_runtime::Runtime;
use millrace_xdr::Encode;

use super::{STATE_REPLY, Session, spec};
use crate::{
    Connection,
    v4::{
        calls::{DestroyClientid, DestroySession},
        compound::Request,
    },
};

/// Maximum duration of the last calls of a client, so that an unresponsive server does not delay the end of a program.
const END_TIMEOUT: Duration = Duration::from_secs(1);

impl Session {
    /// Makes calls in progress and later ones fail. The future ends the client at the server and closes the connections,
    /// within [`END_TIMEOUT`].
    pub(crate) fn end(&self) -> impl Future<Output = ()> + Send + use<> {
        let connections = ClosedOnDrop(self.pool.take());
        let client = self.record.try_lock().and_then(|record| record.client);
        let transport = connections.0.first().map(|c| Arc::clone(&c.transport));
        let requests = match (self.slots.session(), client) {
            (Some(session), Some((client_id, _))) => self.last_requests(session, client_id),
            _ => Vec::new(),
        };
        let rt = Arc::clone(&self.pool.rt);
        async move {
            let _closed = connections;
            if let Some(transport) = transport {
                submit_all(&*rt, &*transport, requests).await;
            }
        }
    }

    /// Returns the delegations, within [`END_TIMEOUT`], and then as [`Self::end`].
    pub(crate) async fn shutdown(self: &Arc<Self>) {
        let _ = millrace_runtime::timeout(&*self.pool.rt, END_TIMEOUT, self.return_delegations()).await;
        self.end().await;
    }

    /// As [`Self::end`], without waiting for the server.
    pub(crate) fn end_in_background(&self) {
        let end = self.end();
        self.pool.rt.spawn("end session", Box::pin(end));
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
        let (destroy, forget) = (&DestroySession(session), &DestroyClientid(client_id));
        let destroy = Request::without_session(minor_version, destroy);
        let forget = Request::without_session(minor_version, forget);
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

/// Sends requests one after another, for at most [`END_TIMEOUT`]. Without them, the server ends the client when its lease
/// expires.
async fn submit_all(rt: &dyn Runtime, transport: &dyn Transport, requests: Vec<millrace_oncrpc::Request>) {
    let submit = async {
        for request in requests {
            drop(transport.submit(request).await);
        }
    };
    let _ = millrace_runtime::timeout(rt, END_TIMEOUT, submit).await;
}

/// Connections that are closed when the value is dropped.
struct ClosedOnDrop(Vec<Connection>);

impl Drop for ClosedOnDrop {
    fn drop(&mut self) {
        self.0.iter().for_each(|c| c.transport.close());
    }
}
