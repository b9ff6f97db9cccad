//! The end of a client: it destroys its session and client ID at the server (RFC 8881 sections 18.37 and 18.50).

use std::{future::Future, sync::Arc};

use millrace_nfs::v4::{self, ClientId, SessionId};
use millrace_oncrpc::CallClass;
use millrace_xdr::Encode;

use super::{STATE_REPLY, Session, spec};
use crate::{
    pool::{END_TIMEOUT, submit_all},
    v4::{
        calls::{DestroyClientid, DestroySession},
        compound::Request,
    },
};

impl Session {
    /// Makes calls in progress and later ones fail. The future ends the client at the server and closes the connections,
    /// within [`END_TIMEOUT`].
    pub(crate) fn end(&self) -> impl Future<Output = ()> + Send + use<> {
        let connections = self.pool.take();
        let client = self.record.try_lock().and_then(|record| record.client);
        let mut requests = match (self.slots.session(), client) {
            (Some(session), Some((client_id, _))) => self.last_requests(session, client_id),
            _ => Vec::new(),
        };
        requests.extend(self.pool.callers.end((v4::PROGRAM, v4::VERSION)));
        self.pool.finish(connections, requests)
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

    /// A request outside of sessions, or `None` if it cannot be encoded or protected.
    fn state_request(&self, name: &'static str, args: &impl Encode) -> Option<millrace_oncrpc::Request> {
        let (spec, seal) = (spec(name, STATE_REPLY, CallClass::Other), self.credential.seal_last()?);
        self.pool.request(spec, &self.credential, args, seal).ok()
    }
}
