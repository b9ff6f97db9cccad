//! Releases the locks of a file that is dropped.

use std::sync::Arc;

use millrace_oncrpc::CallClass;

use super::{FileLocks, REPLY};
use crate::v4::{
    lock_calls::{Close, Unlock},
    session::spec,
};

impl Drop for FileLocks {
    fn drop(&mut self) {
        self.session.locked.remove_dropped(&self.file);
        let state = std::mem::take(self.state.get_mut());
        let Some((open, _)) = state.open else { return };
        let (session, file, credential) =
            (Arc::clone(&self.session), std::mem::take(&mut self.file), Arc::clone(&self.credential));
        let release = async move {
            let spec = |name| spec(name, REPLY, CallClass::Other);
            for locks in state.owners.values().filter_map(|o| o.stateid) {
                let mut unlock = Unlock { file: &file, locks, range: 0..u64::MAX };
                drop(session.call(&credential, spec("LOCKU"), true, &mut unlock, None).await);
            }
            let mut close = Close { file: &file, open };
            drop(session.call(&credential, spec("CLOSE"), true, &mut close, None).await);
        };
        self.session.pool.rt.spawn("release locks", Box::pin(release));
    }
}
