//! Callbacks of the server for a session.

use std::sync::{Arc, Weak};

use millrace_nfs::v4::{CbRecallAnyArgs, CbRecallArgs, Operation, Status};
use millrace_oncrpc::{CallClass, CallbackHandler, Message};

use super::{STATE_REPLY, Session, spec};
use crate::{
    Error,
    pool::Retry,
    v4::{back_channel::Callbacks, calls::Bind, compound::Request},
};

/// Answers the callbacks for a session.
struct SessionCallbacks(Weak<Session>);

impl CallbackHandler for SessionCallbacks {
    fn answer(&self, call: &Message) -> Option<Message> {
        let session = self.0.upgrade()?;
        session.back_channel.answer(call, &session.pool.arena, session.minor_version, &*session)
    }
}

impl Callbacks for Session {
    fn notify_lock(&self, file: &[u8], owner: &[u8]) {
        self.locked.notify(file, owner);
    }

    fn recall(&self, args: &CbRecallArgs<'_>) -> Result<(), Status> {
        self.delegations.recall(args)
    }

    fn recall_any(&self, args: &CbRecallAnyArgs) {
        self.delegations.recall_any(args);
    }
}

impl Session {
    /// Accepts callbacks on the connections.
    pub(super) fn accept_callbacks(self: &Arc<Self>) {
        self.pool.handle_callbacks(Arc::new(SessionCallbacks(Arc::downgrade(self))));
    }

    /// Binds a connection for callbacks if the server has lost the last one. If the server refuses, the client does without
    /// callbacks.
    pub(crate) async fn bind_back_channel(&self) -> Result<(), Error> {
        let needed = self.back_channel.take_down();
        let Some(session) = self.slots.session().filter(|_| needed) else { return Ok(()) };
        let compound = &Bind { session, back_channel: true };
        let request = Request::without_session(self.minor_version, compound);
        let spec = spec(Operation::BindConnToSession.name(), STATE_REPLY, CallClass::Other);
        let mut retry = Retry::new(&self.pool, spec.name);
        self.pool.call_without_slot(spec, &self.credential, &request, &mut retry).await.map(drop)
    }
}
