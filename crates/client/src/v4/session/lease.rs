//! Renews the lease while no calls do (RFC 8881 section 8.3).

use std::{
    sync::{Weak, atomic::Ordering},
    time::Duration,
};

use millrace_oncrpc::CallClass;
use millrace_runtime::{RuntimeExt, RuntimeRef};

use super::{STATE_REPLY, Session, spec};
use crate::v4::compound::Nothing;

impl Session {
    /// Duration of a lease.
    pub(in crate::v4) fn lease(&self) -> Duration {
        Duration::from_secs(self.lease.load(Ordering::Relaxed).clamp(1, 3600).into())
    }
}

/// Renews the lease while the client exists and makes no other calls.
pub(super) async fn renew(rt: RuntimeRef, session: Weak<Session>) {
    loop {
        let Some(lease) = session.upgrade().map(|s| s.lease()) else { return };
        // At most two thirds of a lease pass between the last call and the renewal.
        rt.sleep(lease / 3).await;
        let Some(session) = session.upgrade().filter(|s| !s.pool.is_closed()) else { return };
        if session.renewed.swap(false, Ordering::Relaxed) {
            continue;
        }
        let spec = spec("SEQUENCE", STATE_REPLY, CallClass::Other);
        if let Err(e) = session.call(&session.credential, spec, false, &mut Nothing, None).await {
            tracing::debug!(server = session.pool.server(), "cannot renew the lease: {e}");
        }
    }
}
