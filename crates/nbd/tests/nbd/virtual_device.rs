//! A device in virtual time.

use std::{
    future::{pending, poll_fn},
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use millrace_admission::Budget;
use millrace_iscsi_initiator::{BlockDevice, Options, Url};
use millrace_iscsi_target::tcp::TcpTarget;
use millrace_runtime::{
    BoxFuture, ByteStream, LocalPort, MemoryStream, RuntimeRef, StreamListener, StreamProvider,
    memory_stream, timeout,
};
use millrace_scsi::BlockSize;

use crate::lab::{TARGET, budget, file_system, target};

/// The network between the device and its target.
struct Network {
    target: TcpTarget,
    budget: Budget,
}

impl StreamProvider for Network {
    fn connect(&self, _: LocalPort, _: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        let (ours, theirs) = memory_stream(1 << 16, usize::MAX);
        let account = self.budget.open(IpAddr::V4(Ipv4Addr::LOCALHOST).into()).unwrap();
        let served = self.target.clone().serve(Box::new(theirs), None, account, pending());
        self.target.rt.spawn("target", Box::pin(served));
        Box::pin(async { Ok(Box::new(ours) as Box<dyn ByteStream>) })
    }

    fn listen(&self, _: SocketAddr) -> io::Result<Box<dyn StreamListener>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A device of `size` bytes with `memory` bytes for buffers.
pub(crate) async fn device(rt: &RuntimeRef, size: u64, memory: usize) -> BlockDevice {
    let fs = file_system(rt, size).await;
    let target = target(&fs, rt, BlockSize::B512, false).await;
    let mut options = Options::default();
    options.memory = memory;
    options.runtime = Some(Arc::clone(rt));
    options.streams = Some(Arc::new(Network { target, budget: budget(rt) }));
    let url: Url = format!("iscsi://192.0.2.1/{TARGET}/0").parse().unwrap();
    BlockDevice::connect(&url, &options).await.unwrap()
}

/// Writes all of `bytes`.
pub(crate) async fn write_all(stream: &mut MemoryStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let n = poll_fn(|cx| stream.poll_write(cx, &[IoSlice::new(bytes)])).await.unwrap();
        bytes = &bytes[n..];
    }
}

/// Reads `length` bytes; `None` if they do not arrive within a second.
pub(crate) async fn read_exact(rt: &RuntimeRef, stream: &mut MemoryStream, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    let mut at = 0;
    while at < length {
        let read = poll_fn(|cx| stream.poll_read(cx, &mut [IoSliceMut::new(&mut bytes[at..])]));
        match timeout(&**rt, Duration::from_secs(1), read).await {
            Some(Ok(n @ 1..)) => at += n,
            _ => return None,
        }
    }
    Some(bytes)
}
