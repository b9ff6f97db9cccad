//! Busy polling: an executor's thread polls for input for a while before it sleeps.
//!
//! To wake a sleeping thread takes from a few to a hundred microseconds, depending on the idle states of the processor. A
//! thread that expects input soon calls `epoll_wait` without a timeout again and again instead.

use std::{
    cell::RefCell,
    future::poll_fn,
    task::{Poll, Waker},
    time::{Duration, Instant},
};

/// Inputs for which the thread sleeps after it has polled in vain: at first, and at most.
const FIRST_PAUSE: u32 = 16;
const LONGEST_PAUSE: u32 = 1024;

/// The inputs of a thread, and the tasks that wait for some.
#[derive(Default)]
struct Inputs {
    received: u64,
    /// The least number for which a task waits.
    due: u64,
    /// Tasks that wait until this number has been received.
    waiting: Vec<(u64, Waker)>,
}

impl Inputs {
    /// Wakes the tasks that have waited for this number of inputs.
    fn wake(&mut self) {
        let received = self.received;
        self.waiting.extract_if(.., |(number, _)| *number <= received).for_each(|(_, waker)| waker.wake());
        self.due = self.waiting.iter().map(|(number, _)| *number).min().unwrap_or(u64::MAX);
    }

    /// Wakes `waker` after input `number`.
    fn wait(&mut self, number: u64, waker: &Waker) {
        if !self.waiting.iter().any(|(of, other)| *of == number && other.will_wake(waker)) {
            self.waiting.push((number, waker.clone()));
            self.wake();
        }
    }
}

thread_local! {
    static INPUTS: RefCell<Inputs> = RefCell::default();
}

/// Counts an input of this thread.
pub(super) fn count_input() {
    INPUTS.with_borrow_mut(|inputs| {
        inputs.received += 1;
        if inputs.received >= inputs.due {
            inputs.wake();
        }
    });
}

/// Number of inputs of this thread so far.
fn received() -> u64 {
    INPUTS.with_borrow(|inputs| inputs.received)
}

/// Waits for `pause` inputs, during which the thread may sleep.
async fn wait_for_inputs(pause: u32) {
    let number = received() + u64::from(pause);
    poll_fn(|cx| {
        INPUTS.with_borrow_mut(|inputs| {
            if inputs.received >= number {
                return Poll::Ready(());
            }
            inputs.wait(number, cx.waker());
            Poll::Pending
        })
    })
    .await;
}

/// Keeps the executor's thread awake for `limit` after each read of a TCP connection or event of a watched descriptor
/// ([`Readiness`](crate::Readiness)). It never ends: spawn it as a separate task, on an executor with one thread. On an
/// executor with several, it sees only the inputs of the thread that happens to run it.
///
/// It adapts to the load: at the start, and when no input has come for `limit`, the thread sleeps for the next 16 inputs,
/// and for twice as many each time, up to 1,024, until an input comes within `limit` again. The price is processor time,
/// because a thread that waits for input uses its processor. Other tasks run as before; only the executor's own sleep
/// is replaced.
pub async fn busy_poll(limit: Duration) {
    let mut pause = FIRST_PAUSE;
    loop {
        wait_for_inputs(pause).await;
        let found_input = poll_for_inputs(limit).await;
        pause = if found_input { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
    }
}

/// Keeps the thread awake until no input has come for `limit`. Returns whether any has come.
async fn poll_for_inputs(limit: Duration) -> bool {
    let (mut seen, mut last, mut found) = (received(), Instant::now(), false);
    loop {
        // When only tasks that have yielded are left to run, Tokio polls its driver, without waiting, and then runs
        // them.
        tokio::task::yield_now().await;
        let now = Instant::now();
        let inputs = received();
        if inputs > seen {
            (seen, last, found) = (inputs, now, true);
        } else if now.duration_since(last) >= limit {
            return found;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpListener,
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering::Relaxed},
        },
    };

    use super::*;
    use crate::{
        ByteStream,
        tokio_rt::{TcpByteStream, connect_tcp},
    };

    /// Reads `number` bytes, each of which another thread sends for a byte of the caller. Returns how often the
    /// executor's thread slept meanwhile.
    fn sleeps(number: u32, limit: Option<Duration>) -> u32 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let peer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut byte = [0];
            while stream.read(&mut byte).unwrap() > 0 {
                stream.write_all(&byte).unwrap();
            }
        });
        let parked = Arc::<AtomicU32>::default();
        let counter = Arc::clone(&parked);
        let rt = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .on_thread_park(move || _ = counter.fetch_add(1, Relaxed))
            .build()
            .unwrap();
        let slept = rt.block_on(async {
            if let Some(limit) = limit {
                tokio::spawn(busy_poll(limit));
            }
            let stream = connect_tcp(addr, crate::LocalPort::Any).await.unwrap();
            let mut stream = TcpByteStream::new(stream).unwrap();
            for _ in 0..FIRST_PAUSE {
                exchange(&mut stream).await;
            }
            let before = parked.load(Relaxed);
            for _ in 0..number {
                exchange(&mut stream).await;
            }
            parked.load(Relaxed) - before
        });
        drop(rt);
        peer.join().unwrap();
        slept
    }

    async fn exchange(stream: &mut TcpByteStream) {
        let mut byte = [0];
        poll_fn(|cx| stream.poll_write(cx, &[std::io::IoSlice::new(&[1])])).await.unwrap();
        poll_fn(|cx| stream.poll_read(cx, &mut [std::io::IoSliceMut::new(&mut byte)])).await.unwrap();
    }

    #[test]
    fn a_thread_that_expects_input_does_not_sleep() {
        assert!(sleeps(200, None) > 0);
        assert_eq!(sleeps(200, Some(Duration::from_secs(3600))), 0);
    }

    #[test]
    fn polling_in_vain_ends_for_more_inputs_each_time() {
        let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
        rt.block_on(async {
            tokio::spawn(busy_poll(Duration::ZERO));
            for expected in [16, 32, 64, 128, 256, 512, 1024, 1024, 1024] {
                tokio::task::yield_now().await;
                assert_eq!(INPUTS.with_borrow(|inputs| inputs.due - inputs.received), expected);
                for _ in 0..expected {
                    assert_eq!(INPUTS.with_borrow(|inputs| inputs.waiting.len()), 1);
                    count_input();
                }
                tokio::task::yield_now().await;
            }
        });
    }

    #[test]
    fn tasks_of_one_thread_wait_independently() {
        let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
        rt.block_on(async {
            let short = tokio::spawn(wait_for_inputs(2));
            let dropped = tokio::spawn(wait_for_inputs(3));
            let long = tokio::spawn(wait_for_inputs(4));
            tokio::task::yield_now().await;
            dropped.abort();
            for ended in [(false, false), (true, false), (true, false), (true, true)] {
                count_input();
                tokio::task::yield_now().await;
                assert_eq!((short.is_finished(), long.is_finished()), ended);
            }
        });
    }
}
