//! The owners that wait for locks of a file, and the notifications of the server that their lock may be available
//! (CB_NOTIFY_LOCK, RFC 8881 section 20.11). A notification is a hint, and may be lost: the owners also try from time to
//! time.

use futures::channel::oneshot;
use millrace_runtime::sync::Mutex;

use super::LockedFiles;

/// The owners that wait.
#[derive(Default)]
pub(super) struct Waiting(Mutex<Vec<(u64, oneshot::Sender<()>)>>);

impl Waiting {
    /// Notes that `owner` waits. To be called before LOCK is sent: the notification may arrive before the reply.
    pub(super) fn begin(&self, owner: u64) -> Waits<'_> {
        let (sender, notified) = oneshot::channel();
        self.0.lock().push((owner, sender));
        Waits { waiting: self, notified }
    }

    /// Whether no owner waits.
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Wakes the attempts of `owner`.
    fn notify(&self, owner: u64) {
        let woken: Vec<_> = self.0.lock().extract_if(.., |(waits, _)| *waits == owner).collect();
        for (_, sender) in woken {
            let _ = sender.send(());
        }
    }
}

/// An owner that waits, until this is dropped.
pub(super) struct Waits<'w> {
    waiting: &'w Waiting,
    /// Completes with the notification.
    pub(super) notified: oneshot::Receiver<()>,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.notified.close();
        self.waiting.0.lock().retain(|(_, sender)| !sender.is_canceled());
    }
}

impl LockedFiles {
    /// Handles a notification that a lock of `owner` in `file` may be available. The server may send any.
    pub(crate) fn notify(&self, file: &[u8], owner: &[u8]) {
        let locks = self.get(file);
        let owner = owner.try_into().map(u64::from_be_bytes);
        if let (Some(locks), Ok(owner)) = (locks, owner) {
            locks.waiting.notify(owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_wakes_the_attempts_of_its_owner_once() {
        let waiting = Waiting::default();
        waiting.notify(1);
        let (mut first, mut second, mut other) = (waiting.begin(1), waiting.begin(1), waiting.begin(2));
        for _ in 0..1000 {
            waiting.notify(1);
            waiting.notify(3);
        }
        assert_eq!(first.notified.try_recv(), Ok(Some(())));
        assert_eq!(second.notified.try_recv(), Ok(Some(())));
        assert_eq!(other.notified.try_recv(), Ok(None));
        assert_eq!(waiting.0.lock().len(), 1);
        drop((first, second));
        assert_eq!(waiting.0.lock().len(), 1, "the other owner still waits");
        drop(other);
        assert!(waiting.0.lock().is_empty());
    }
}
