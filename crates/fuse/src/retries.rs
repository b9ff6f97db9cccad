//! System calls that the kernel retries after ESTALE, and the LOOKUPs by which the retries are recognized.
//! `verify.rs` explains the retries.

use std::{collections::HashMap, time::Duration};

use millrace_client::ops::NfsTime;
use millrace_runtime::Instant;
use parking_lot::Mutex;

/// Time within which the kernel retries a request.
const RETRY_WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of threads recorded in [`StaleRetries`].
const MAX_RETRYING: usize = 1024;

/// A LOOKUP that returned an inode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastLookup {
    /// The thread that sent it; 0 if it is unknown, or if the inode has been opened since.
    pub(crate) tid: u32,
    pub(crate) at: Instant,
    pub(crate) ctime: NfsTime,
}

/// A system call in which a request failed with ESTALE.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StaleCall {
    /// Inode of that request.
    number: u64,
    at: Instant,
    /// A LOOKUP returned ENOENT since. This ends open(2), but not link(2), which looks up the new name.
    pub(crate) not_found: bool,
}

/// Threads whose system call the kernel retries after ESTALE.
#[derive(Default)]
pub(crate) struct StaleRetries(Mutex<HashMap<u32, StaleCall>>);

impl StaleRetries {
    /// Records that a request of `tid` for the inode `number` fails with ESTALE. `false`: the retry will not
    /// be recognized, because the thread is unknown or too many threads are recorded.
    pub(crate) fn insert(&self, tid: u32, number: u64, now: Instant) -> bool {
        if tid == 0 {
            return false;
        }
        let mut threads = self.0.lock();
        if threads.len() >= MAX_RETRYING && !threads.contains_key(&tid) {
            threads.retain(|_, call| now.duration_since(call.at) < RETRY_WINDOW);
            if threads.len() >= MAX_RETRYING {
                return false;
            }
        }
        threads.insert(tid, StaleCall { number, at: now, not_found: false });
        true
    }

    /// Records that a LOOKUP of `tid` returned ENOENT.
    pub(crate) fn note_not_found(&self, tid: u32) {
        if let Some(call) = self.0.lock().get_mut(&tid) {
            call.not_found = true;
        }
    }

    /// Returns the recorded system call of `tid` if a request for the inode `number` belongs to its
    /// retry: it is the same inode, or was looked up since (`last` is its last LOOKUP).
    pub(crate) fn take(
        &self,
        tid: u32,
        number: u64,
        last: Option<LastLookup>,
        now: Instant,
    ) -> Option<StaleCall> {
        let call = self.0.lock().remove(&tid)?;
        let is_found = call.number == number || last.is_some_and(|lookup| lookup.at >= call.at);
        (is_found && now.duration_since(call.at) < RETRY_WINDOW).then_some(call)
    }
}
