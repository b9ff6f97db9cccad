//! The order in which contexts are established.

use std::{collections::VecDeque, sync::Arc};

use futures::channel::oneshot;
use millrace_admission::ClientAddr;
use millrace_runtime::sync::Mutex;

/// Contexts that are established at a time. Each takes milliseconds of a thread, and may read files.
const MAX_RUNNING: usize = 4;

/// Calls that wait until they may establish a context, with the clients in rotation: one that asks for many delays others
/// by one. What waits is charged to the connections of the calls.
#[derive(Default)]
pub(crate) struct Queue(Mutex<State>);

#[derive(Default)]
struct State {
    running: usize,
    waiting: VecDeque<(ClientAddr, VecDeque<oneshot::Sender<Admitted>>)>,
}

/// A context that is being established.
pub(crate) struct Admitted(Arc<Queue>);

impl Queue {
    /// Waits for admission.
    pub(crate) async fn admit(self: &Arc<Self>, client: ClientAddr) -> Option<Admitted> {
        let admitted = {
            let mut state = self.0.lock();
            if state.running < MAX_RUNNING {
                state.running += 1;
                return Some(Admitted(Arc::clone(self)));
            }
            let (send, admitted) = oneshot::channel();
            match state.waiting.iter_mut().find(|(of, _)| *of == client) {
                Some((_, calls)) => calls.push_back(send),
                None => state.waiting.push_back((client, [send].into())),
            }
            admitted
        };
        admitted.await.ok()
    }
}

impl State {
    /// The next call that still waits.
    fn next(&mut self) -> Option<oneshot::Sender<Admitted>> {
        loop {
            let (client, mut calls) = self.waiting.pop_front()?;
            let next = std::iter::from_fn(|| calls.pop_front()).find(|next| !next.is_canceled());
            if !calls.is_empty() {
                self.waiting.push_back((client, calls));
            }
            if next.is_some() {
                return next;
            }
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let next = {
            let mut state = self.0.0.lock();
            let next = state.next();
            state.running -= usize::from(next.is_none());
            next
        };
        if let Some(next) = next {
            // If the call has just ended, what returns is dropped, and admits the one after it.
            drop(next.send(Self(Arc::clone(&self.0))));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use futures::FutureExt;

    use super::*;

    fn client(n: u8) -> ClientAddr {
        IpAddr::from([10, 0, 0, n]).into()
    }

    #[test]
    fn clients_take_turns_and_calls_that_end_leave_theirs_to_others() {
        let queue = Arc::new(Queue::default());
        let mut running: Vec<_> =
            (0..MAX_RUNNING).map(|_| queue.admit(client(1)).now_or_never().flatten().unwrap()).collect();
        let of = [1, 1, 1, 2, 2, 3];
        let mut waiting: Vec<_> = of.iter().map(|n| Box::pin(queue.admit(client(*n)))).collect();
        for call in &mut waiting {
            assert!(call.now_or_never().is_none());
        }
        let mut waiting: Vec<_> = of.into_iter().zip(waiting).collect();
        drop(waiting.remove(1)); // The second call of the first client ends.
        let mut order = Vec::new();
        while let Some(next) = running.pop() {
            drop(next);
            let mut ready = Vec::new();
            for (i, (n, call)) in waiting.iter_mut().enumerate() {
                if let Some(admitted) = call.as_mut().now_or_never() {
                    ready.push((i, *n, admitted.unwrap()));
                }
            }
            for (i, n, admitted) in ready.into_iter().rev() {
                order.push(n);
                running.push(admitted);
                drop(waiting.remove(i));
            }
        }
        assert_eq!(order, [1, 2, 3, 1, 2]);
        assert_eq!(queue.0.lock().running, 0);
    }
}
