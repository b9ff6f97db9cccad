//! COMPOUNDs of users with Kerberos.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use millrace_kerberos_testing::{Client, Realm, Target, Words};
use millrace_nfs4_conformance::compound::Call;
use millrace_oncrpc::{CallbackHandler, Credential, Reply, ReplySpec, Request, RpcError};
use millrace_runtime::BoxFuture;
use millrace_server::Running;
use millrace_xdr::{Arena, Message};

use super::Connection;
use crate::common::{Caller, Proto};

/// Bytes of a reply beyond those without protection.
const PROTECTION: usize = 256;

/// The principal of a user in this test, which has a separate process.
pub(super) fn principal(uid: u32) -> String {
    format!("u{uid}-{}", std::process::id())
}

/// Credential caches with the tickets of users, which are new principals.
pub(super) fn tickets(realm: &Realm, users: &[u32]) -> HashMap<u32, String> {
    let ticket = |uid| {
        realm.administer(&format!("addprinc -pw secret {}\n", principal(uid)));
        realm.ticket(&principal(uid), &[])
    };
    users.iter().map(|uid| (*uid, ticket(*uid))).collect()
}

/// A caller whose calls with AUTH_SYS of a user are made with a security context of its [`principal`].
pub(super) struct GssCaller {
    caller: Caller,
    service: u32,
    users: Arc<Users>,
    context: Arc<Client>,
}

/// The contexts of users. They are established on a separate connection, as by Linux's client.
struct Users {
    connection: Mutex<Connection>,
    caches: HashMap<u32, String>,
    contexts: Mutex<HashMap<u32, Arc<Client>>>,
}

impl Users {
    fn context(&self, credential: &Credential) -> Arc<Client> {
        let Credential::Sys(sys) = credential else { panic!("{credential:?}") };
        let mut contexts = self.contexts.lock().unwrap();
        let established = || Arc::new(self.connection.lock().unwrap().context(&self.caches[&sys.uid]));
        Arc::clone(contexts.entry(sys.uid).or_insert_with(established))
    }
}

impl GssCaller {
    /// The user 0 of these tickets, with a service.
    pub(super) async fn connect(
        server: &Running,
        proto: Proto,
        tickets: &HashMap<u32, String>,
        service: u32,
    ) -> Self {
        Self::over(Caller::connect(server, proto).await, server, tickets, service)
    }

    /// The same on the connection of a caller.
    pub(super) fn over(
        caller: Caller,
        server: &Running,
        tickets: &HashMap<u32, String>,
        service: u32,
    ) -> Self {
        let caches = tickets.clone();
        let connection = Mutex::new(Connection::new(server));
        let users = Arc::new(Users { connection, caches, contexts: Mutex::default() });
        Self { context: users.context(&caller.cred), caller, service, users }
    }

    /// The same with another service.
    pub(super) fn with_service(&self, service: u32) -> Self {
        Self { service, ..self.with(self.caller.cred.clone()) }
    }

    /// With AUTH_SYS.
    pub(super) fn sys(&self) -> &Caller {
        &self.caller
    }

    /// Calls as [`Call::call`]. Also returns the bytes of the whole reply.
    pub(super) async fn call_and_size(&self, request: Request) -> Result<(Reply, usize), RpcError> {
        let zeros = self.caller.arena.copy_from(&[0; 4]).unwrap();
        let plain = request.message.gather(&zeros).to_vec();
        let mut d = Words(&plain);
        let [_, _, _, program, version, procedure] = [(); 6].map(|()| d.word());
        let _credential_and_verifier = [(); 2].map(|()| (d.word(), d.opaque()));
        // The transport rejects the transaction id of another call.
        let sequence = self.context.next();
        let to = Target { xid: 0x4000_0000 | sequence, program, version, procedure };
        let call = self.context.call(to, sequence, self.service, d.0);
        let message = Message::from_view(self.caller.arena.copy_from(&call).unwrap());
        let room = request.reply.payload.as_ref().map_or(0, |payload| payload.len());
        let max_head = request.reply.max_head + room + PROTECTION;
        let reply = ReplySpec { max_head, ..ReplySpec::default() };
        let reply =
            self.caller.transport.call(Request { xid: Some(to.xid), ..Request::new(message, reply) }).await?;
        let bytes = reply.message.head.to_vec();
        let (status, results) = self.context.results(&bytes, to, sequence, self.service);
        assert_eq!(status, 0);
        let message = Message::from_view(self.caller.arena.copy_from(&results).unwrap());
        Ok((Reply { message, results_at: 0 }, bytes.len()))
    }
}

impl Call for GssCaller {
    fn arena(&self) -> &Arena {
        &self.caller.arena
    }

    fn credential(&self) -> &Credential {
        &self.caller.cred
    }

    fn with(&self, credential: Credential) -> Self {
        let context = self.users.context(&credential);
        let users = Arc::clone(&self.users);
        Self { caller: self.caller.with(credential), service: self.service, users, context }
    }

    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, RpcError>> {
        Box::pin(async { self.call_and_size(request).await.map(|(reply, _)| reply) })
    }

    fn handle_callbacks(&self, handler: &Arc<dyn CallbackHandler>) {
        self.caller.transport.handle_callbacks(handler);
    }
}
