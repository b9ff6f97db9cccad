//! Callbacks that are sent or wait for a slot.

use std::sync::Arc;

use millrace_nfs::v4::ClientId;

use crate::{back_channel::CallbackSlot, client::Client, state::State};

/// A callback in progress: it is sent or repeated, or waits for a slot. Their number is limited for each
/// client.
#[derive(Debug)]
pub struct PendingCallback(Arc<Client>);

impl<R: Clone> State<R> {
    /// Admits a callback. `None` if the client is removed, or has too many.
    pub fn callback(&self, client: ClientId) -> Option<PendingCallback> {
        let client = Arc::clone(&self.records.lock().get_mut(client)?.client);
        client.admit_callback().then(|| PendingCallback(client))
    }
}

impl PendingCallback {
    /// A free slot of any back channel of the client that has a connection.
    pub fn slot(&self) -> Option<CallbackSlot> {
        self.0.back_channels.lock().iter().find_map(|back| back.begin())
    }
}

impl Drop for PendingCallback {
    fn drop(&mut self) {
        self.0.end_callback();
    }
}
