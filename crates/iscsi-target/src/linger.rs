//! The orderly end of a stream.
//!
//! A kernel that closes a socket with unread input resets the connection, and the peer then loses what it has not
//! received yet, such as a Reject or the response to a login (RFC 9293, section 3.10.4; RFC 1122, section 4.2.2.13).
//! Therefore the target first ends its own direction, and reads until the initiator ends the other one.

use std::{
    future::poll_fn,
    io::IoSliceMut,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Poll, ready},
    time::Duration,
};

use millrace_runtime::{ByteStream, RuntimeRef, timeout};

/// Time limit for the end of the initiator's direction.
const LINGER: Duration = Duration::from_secs(1);
/// Maximum bytes that are read and discarded.
const MAX_DISCARDED: usize = 16 << 20;
/// Maximum number of streams of a server that end at the same time. They no longer count as connections of a client.
const MAX_ENDING: u32 = 64;

/// Number of streams of a server that are ending.
#[derive(Debug, Default)]
pub(crate) struct EndingStreams(Arc<AtomicU32>);

/// Counts a stream that ends until it is dropped.
pub(crate) struct EndingStream(Arc<AtomicU32>);

impl EndingStreams {
    /// `None` if too many streams end at the moment.
    pub(crate) fn add(&self) -> Option<EndingStream> {
        let below = |n: u32| (n < MAX_ENDING).then_some(n + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below).ok()?;
        Some(EndingStream(Arc::clone(&self.0)))
    }
}

impl Drop for EndingStream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Ends the sending direction, and reads until the peer ends its own, within the limits.
pub(crate) async fn close(mut stream: Box<dyn ByteStream>, rt: &RuntimeRef, ending: &EndingStreams) {
    let Some(_ending) = ending.add() else { return };
    stream.shutdown();
    let mut left = MAX_DISCARDED;
    let discard = poll_fn(|cx| {
        let mut waste = [0; 16 << 10];
        while left > 0 {
            match ready!(stream.poll_read(cx, &mut [IoSliceMut::new(&mut waste)])) {
                Ok(n @ 1..) => left = left.saturating_sub(n),
                Ok(0) | Err(_) => break,
            }
        }
        Poll::Ready(())
    });
    timeout(&**rt, LINGER, discard).await;
}
