//! A session with the kernel: negotiation, the threads or the task that read requests, the end.

use std::{
    future::{Future, poll_fn},
    io,
    os::fd::OwnedFd,
    sync::{Arc, atomic::AtomicBool},
    task::{Context, Poll, ready},
    thread,
};

use crate::protocol::{
    DecodeError, Header, InitFlags, InitReply, InitRequest, MINOR_VERSIONS, Notification, Operation, Reply,
};
use millrace_buffer::Arena;
use millrace_runtime::{Readiness, RuntimeRef};
use rustix::io::Errno;

use super::{
    BATCH, BATCH_BYTES,
    call::{Call, Channel, Handler},
    interrupts::Interrupts,
    receive::{self, ReceiveBuffer, Received, own_arena},
    ring::{Next, Ring, Slot},
};

/// Maximum number of background requests (read-ahead, write-back) of the kernel.
const BACKGROUND: u16 = 64;
/// Capabilities of all file systems, if the kernel has them.
const COMMON: InitFlags = InitFlags::ASYNC_READ
    .union(InitFlags::BIG_WRITES)
    .union(InitFlags::ASYNC_DIO)
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::INIT_EXT);

/// Settings of a session.
#[derive(Debug, Clone, Copy)]
pub struct SessionOptions {
    /// Largest write, in bytes.
    pub max_write: u32,
    /// Largest read-ahead, in bytes.
    pub max_readahead: u32,
    /// Number of threads that read requests.
    pub threads: usize,
    /// The user whose requests are permitted; `None` permits all users.
    pub owner: Option<u32>,
    /// Requests over io_uring, if the kernel offers it; only for [`Session::run_on`].
    pub io_uring: bool,
}

/// A session that the kernel has begun.
pub struct Session<H> {
    handler: Arc<H>,
    channel: Arc<Channel>,
    /// Clones of the channel for the other threads.
    clones: Vec<Arc<Channel>>,
    /// With [`SessionOptions::io_uring`].
    ring: Option<Ring>,
    options: SessionOptions,
    /// Memory of the buffers for requests.
    arena: Arena,
    /// Minor version of the protocol.
    minor: u32,
}

/// Sends notifications to the kernel.
#[derive(Clone)]
pub struct Notifier {
    channel: Arc<Channel>,
    minor: u32,
}

impl Notifier {
    /// Whether the kernel has [`Notification::ExpireName`].
    pub fn can_expire_names(&self) -> bool {
        self.minor >= Notification::EXPIRE_NAME_VERSION
    }

    /// Sends a notification. It fails only if the kernel has no such node or name, or the mount has ended: then nothing
    /// is cached.
    pub fn send(&self, notification: &Notification<'_>) {
        let _ = self.channel.send(&notification.encode());
    }
}

impl<H: Handler> Session<H> {
    /// Negotiates a session on `device`, which is mounted already.
    ///
    /// # Errors
    /// Those of the device; [`io::ErrorKind::Unsupported`] for a kernel with another version of the protocol.
    pub fn start(handler: H, device: OwnedFd, options: SessionOptions) -> io::Result<Self> {
        let channel = Arc::new(Channel { device, interrupts: Arc::new(Interrupts::default()) });
        let arena = handler.arena().cloned();
        let arena = arena.unwrap_or_else(|| own_arena(options.max_write, options.threads));
        let mut buffer = ReceiveBuffer::new(arena.clone(), options.max_write)?;
        buffer.receive(&channel.device)?.ok_or(io::ErrorKind::NotConnected)?;
        let (header, body, _) = buffer.request().map_err(invalid)?;
        let Operation::Init(kernel) = Operation::decode(&header, body).map_err(invalid)? else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the first request is not FUSE_INIT"));
        };
        let call = Call::new(header, Arc::clone(&channel), None);
        if !kernel.is_supported() {
            call.error(Errno::PROTO);
            let InitRequest { major, minor, .. } = kernel;
            let message =
                format!("the kernel has version {major}.{minor} of FUSE; version 7.31 (Linux 5.4) is needed");
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        let minor = kernel.minor.min(*MINOR_VERSIONS.end());
        let ring = options.io_uring.then(|| Ring::new(kernel.flags, options.max_write)).flatten();
        let mut reply = negotiate(&kernel, minor, handler.capabilities(kernel.flags), &options);
        if ring.is_some() {
            reply.flags |= InitFlags::OVER_IO_URING;
            reply.max_pages = pages(options.max_write); // An entry has space for one request.
        }
        call.reply(&Reply::Init(reply));
        let clones = (1..options.threads).map(|_| channel.clone_device()).collect::<io::Result<_>>()?;
        Ok(Self { handler: Arc::new(handler), channel, clones, ring, options, arena, minor })
    }

    /// A sender of notifications.
    pub fn notifier(&self) -> Notifier {
        Notifier { channel: Arc::clone(&self.channel), minor: self.minor }
    }

    /// Becomes true when a request has arrived over io_uring.
    pub fn io_uring_is_used(&self) -> Arc<AtomicBool> {
        self.ring.as_ref().map(Ring::is_used).unwrap_or_default()
    }

    /// Serves requests until the file system is unmounted, on the calling thread and others.
    ///
    /// # Errors
    /// Those of the device and of starting threads.
    pub fn run(self) -> io::Result<()> {
        let mut readers = Vec::new();
        for (channel, i) in self.clones.iter().zip(1..) {
            let reader = self.reader(channel);
            let name = format!("millrace-fuse{i}");
            let buffer = self.buffer()?;
            readers.push(thread::Builder::new().name(name).spawn(move || reader.run(buffer))?);
        }
        let first = self.reader(&self.channel).run(self.buffer()?);
        readers.into_iter().fold(first, |result, reader| {
            let other = reader.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
            result.and(other)
        })
    }

    /// Serves requests until the file system is unmounted, in a future that reads them without blocking. The handler runs
    /// in it and must not block.
    ///
    /// # Errors
    /// The runtime cannot watch the device. The future returns the errors of the device.
    pub fn run_on(
        mut self,
        rt: &RuntimeRef,
    ) -> io::Result<impl Future<Output = io::Result<()>> + Send + use<H>> {
        let mut device = rt.watch(self.channel.device.try_clone()?)?;
        let reader = self.reader(&self.channel);
        let mut buffer = self.buffer()?;
        let ring = self.ring.take().map(|ring| ring.driver(rt, self.channel.device.try_clone()?));
        let mut ring = ring.transpose()?;
        Ok(poll_fn(move |cx| {
            if let Some(ring) = &mut ring {
                let handle = &mut |message: &[u8], slot: &Arc<Slot>| {
                    reader.handle(receive::whole(message).map_err(invalid)?, Some(slot))
                };
                if let Poll::Ready(Next::End) = ring.poll(cx, handle)? {
                    return Poll::Ready(Ok(()));
                }
            }
            reader.poll(cx, &mut *device, &mut buffer)
        }))
    }

    fn buffer(&self) -> io::Result<ReceiveBuffer> {
        ReceiveBuffer::new(self.arena.clone(), self.options.max_write)
    }

    fn reader(&self, channel: &Arc<Channel>) -> Reader<H> {
        let Self { handler, options, .. } = self;
        Reader { handler: Arc::clone(handler), channel: Arc::clone(channel), options: *options }
    }
}

fn invalid(e: DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}

/// The parameters of a session.
fn negotiate(kernel: &InitRequest, minor: u32, wanted: InitFlags, options: &SessionOptions) -> InitReply {
    let flags = COMMON.union(wanted);
    let missing = flags.difference(kernel.flags);
    if !missing.is_empty() {
        tracing::info!("the kernel does not support {missing:?}");
    }
    let max_readahead = options.max_readahead.min(kernel.max_readahead);
    InitReply {
        minor,
        max_readahead,
        flags: flags.intersection(kernel.flags),
        max_background: BACKGROUND,
        congestion_threshold: BACKGROUND / 4 * 3,
        max_write: options.max_write,
        max_pages: pages(options.max_write.max(max_readahead)),
    }
}

/// The number of pages of a request with this number of bytes.
fn pages(bytes: u32) -> u16 {
    u16::try_from(bytes.div_ceil(rustix::param::page_size() as u32)).unwrap_or(u16::MAX)
}

/// A thread or task that reads requests.
struct Reader<H> {
    handler: Arc<H>,
    channel: Arc<Channel>,
    options: SessionOptions,
}

impl<H: Handler> Reader<H> {
    /// Reads requests without blocking, until there is none. It yields to other tasks after a limited number.
    fn poll(
        &self,
        cx: &mut Context<'_>,
        device: &mut dyn Readiness,
        buffer: &mut ReceiveBuffer,
    ) -> Poll<io::Result<()>> {
        let (mut requests, mut bytes) = (0, 0);
        while requests < BATCH && bytes < BATCH_BYTES {
            let mut received = None;
            ready!(device.poll_io(cx, &mut || {
                received = buffer.receive(&self.channel.device)?;
                Ok(())
            }))?;
            let Some(length) = received else { return Poll::Ready(Ok(())) };
            if self.handle(buffer.request().map_err(invalid)?, None)? == Next::End {
                return Poll::Ready(Ok(()));
            }
            requests += 1;
            bytes += length;
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn run(&self, mut buffer: ReceiveBuffer) -> io::Result<()> {
        while buffer.receive(&self.channel.device)?.is_some() {
            if self.handle(buffer.request().map_err(invalid)?, None)? == Next::End {
                break;
            }
        }
        Ok(())
    }

    /// Handles a request, which is in `slot` if it has arrived over io_uring.
    fn handle(&self, request: Received<'_>, slot: Option<&Arc<Slot>>) -> io::Result<Next> {
        let (header, body, data) = request;
        let call = Call::new(header, Arc::clone(&self.channel), slot.map(Arc::clone));
        let operation = match Operation::decode(&header, body) {
            Ok(operation) => operation,
            Err(e) => {
                refuse(call, &header, e);
                return Ok(Next::Request);
            }
        };
        match operation {
            Operation::Forget { lookups } => {
                call.dismiss();
                self.handler.forget(header.node, lookups);
            }
            Operation::BatchForget(forgets) => {
                call.dismiss();
                forgets.for_each(|(node, lookups)| self.handler.forget(node, lookups));
            }
            Operation::Interrupt { unique } => {
                call.dismiss();
                self.channel.interrupts.interrupt(unique);
            }
            Operation::Destroy => {
                call.reply(&Reply::Empty);
                return Ok(Next::End);
            }
            operation if !self.permits(header.uid, &operation) => call.error(Errno::ACCESS),
            Operation::Write(write) => match data.first(write.size) {
                Some(data) => self.handler.write(call, write, data),
                None => refuse(call, &header, DecodeError::Short),
            },
            operation => self.handler.handle(call, operation),
        }
        Ok(Next::Request)
    }

    /// Whether the user may send the request. The kernel checks this too, but some of its requests have no user.
    fn permits(&self, uid: u32, operation: &Operation<'_>) -> bool {
        use Operation as O;
        self.options.owner.is_none_or(|owner| owner == uid)
            || matches!(
                operation,
                O::Read(_)
                    | O::Write(_)
                    | O::Fsync { .. }
                    | O::Release { .. }
                    | O::ReadDirectory(_)
                    | O::ReadDirectoryPlus(_)
                    | O::FsyncDirectory
                    | O::ReleaseDirectory { .. }
            )
    }
}

/// Fails a request that cannot be decoded.
fn refuse(call: Call, header: &Header, e: DecodeError) {
    tracing::warn!(opcode = header.opcode, "cannot decode a request: {e}");
    call.error(Errno::IO);
}
