//! A stream with time limits.

use std::{
    future::poll_fn,
    io::{IoSlice, IoSliceMut},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use millrace_runtime::{ByteStream, LocalPort, RuntimeRef, StreamProvider, timeout};

/// Time limit for the other end to accept a connection or bytes.
const PATIENCE: Duration = Duration::from_secs(2);

/// A stream to a peer that may have stopped or closed it.
pub(super) struct Wire {
    rt: RuntimeRef,
    stream: Option<Box<dyn ByteStream>>,
}

impl Wire {
    pub(super) fn over(rt: &RuntimeRef, stream: Box<dyn ByteStream>) -> Self {
        Self { rt: rt.clone(), stream: Some(stream) }
    }

    pub(super) async fn connect(rt: &RuntimeRef, from: &Arc<dyn StreamProvider>, to: SocketAddr) -> Self {
        let stream = timeout(&**rt, PATIENCE, from.connect(LocalPort::Any, to)).await;
        Self { rt: rt.clone(), stream: stream.and_then(Result::ok) }
    }

    /// Writes as much as the other end accepts. Returns `false` if that is not all.
    pub(super) async fn write(&mut self, mut bytes: &[u8]) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        while !bytes.is_empty() {
            let write = poll_fn(|cx| stream.poll_write(cx, &[IoSlice::new(bytes)]));
            match timeout(&*self.rt, PATIENCE, write).await {
                Some(Ok(n @ 1..)) => bytes = &bytes[n..],
                _ => return false,
            }
        }
        true
    }

    /// The next bytes: empty if none arrive within `limit`, `None` at the end of the stream.
    pub(super) async fn read(&mut self, limit: Duration) -> Option<Vec<u8>> {
        let stream = self.stream.as_mut()?;
        let mut some = [0; 8192];
        let read = poll_fn(|cx| stream.poll_read(cx, &mut [IoSliceMut::new(&mut some)]));
        match timeout(&*self.rt, limit, read).await {
            Some(Ok(0) | Err(_)) => None,
            Some(Ok(n)) => Some(some[..n].to_vec()),
            None => Some(Vec::new()),
        }
    }

    pub(super) fn shut_down(&mut self) {
        if let Some(stream) = &mut self.stream {
            stream.shutdown();
        }
    }

    pub(super) fn reset(&mut self) {
        if let Some(mut stream) = self.stream.take() {
            stream.abort();
        }
    }
}

/// A record of one fragment.
pub(super) fn record(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u32 | 1 << 31).to_be_bytes()[..], message].concat()
}

/// Removes and returns the first record of `bytes`, if it is complete.
pub(super) fn take_record(bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    let len = (u32::from_be_bytes(*bytes.first_chunk()?) & !(1 << 31)) as usize;
    let record = bytes.get(4..4 + len)?.to_vec();
    bytes.drain(..4 + len);
    Some(record)
}
