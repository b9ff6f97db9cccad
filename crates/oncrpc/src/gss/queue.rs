//! The order in which contexts are established.

use std::{collections::VecDeque, sync::Arc};

use futures::channel::oneshot;
use millrace_runtime::sync::Mutex;

/// What waits until it may occupy a thread to establish a context, with the clients `C` in rotation: one that asks for many
/// delays others by one. At a server, what waits is charged to the connections of the calls.
pub(crate) struct Queue<C: Eq> {
    most: usize,
    state: Mutex<State<C>>,
}

struct State<C: Eq> {
    running: usize,
    waiting: VecDeque<(C, VecDeque<oneshot::Sender<Admitted<C>>>)>,
}

/// A context that is being established.
pub(crate) struct Admitted<C: Eq>(Arc<Queue<C>>);

impl<C: Eq> Queue<C> {
    /// Admits at most `most` at a time.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, state: Mutex::new(State { running: 0, waiting: VecDeque::new() }) }
    }

    /// Waits for admission.
    pub(crate) async fn admit(self: &Arc<Self>, client: C) -> Option<Admitted<C>> {
        let admitted = {
            let mut state = self.state.lock();
            if state.running < self.most {
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

impl<C: Eq> State<C> {
    /// The next call that still waits.
    fn next(&mut self) -> Option<oneshot::Sender<Admitted<C>>> {
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

impl<C: Eq> Drop for Admitted<C> {
    fn drop(&mut self) {
        let next = {
            let mut state = self.0.state.lock();
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
    use millrace_admission::ClientAddr;

    use super::*;

    const MOST: usize = 4;

    fn client(n: u8) -> ClientAddr {
        IpAddr::from([10, 0, 0, n]).into()
    }

    #[test]
    fn clients_take_turns_and_calls_that_end_leave_theirs_to_others() {
        let queue = Arc::new(Queue::new(MOST));
        let mut running: Vec<_> =
            (0..MOST).map(|_| queue.admit(client(1)).now_or_never().flatten().unwrap()).collect();
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
        assert_eq!(queue.state.lock().running, 0);
    }
}
