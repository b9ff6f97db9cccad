//! COMPOUNDs on the connections of these tests.

use std::sync::Arc;

use millrace_nfs4_conformance::compound::Call;
use millrace_oncrpc::{CallbackHandler, Credential, Reply, Request, RpcError};
use millrace_runtime::BoxFuture;
use millrace_xdr::Arena;

use crate::common::Caller;

impl Call for Caller {
    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn credential(&self) -> &Credential {
        &self.cred
    }

    fn with(&self, credential: Credential) -> Self {
        Self::with(self, credential)
    }

    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, RpcError>> {
        self.transport.call(request)
    }

    fn handle_callbacks(&self, handler: &Arc<dyn CallbackHandler>) {
        self.transport.handle_callbacks(handler);
    }
}
