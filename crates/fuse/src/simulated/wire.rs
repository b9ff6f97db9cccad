//! FUSE messages as the kernel writes and reads them (linux/fuse.h), over a socket in place of /dev/fuse.

use std::{
    collections::HashMap,
    io,
    os::fd::OwnedFd,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures::channel::oneshot;
use parking_lot::Mutex;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
    sockopt::{Timeout, set_socket_recv_buffer_size, set_socket_send_buffer_size, set_socket_timeout},
};

/// Operations (`enum fuse_opcode`).
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub(crate) enum Op {
    Lookup = 1,
    Forget = 2,
    Getattr = 3,
    Setattr = 4,
    Open = 14,
    Read = 15,
    Write = 16,
    Release = 18,
    Fsync = 20,
    Flush = 25,
    Init = 26,
    Create = 35,
    Destroy = 38,
    Lseek = 46,
}

/// The size of `fuse_out_header`.
const HEADER: usize = 16;
/// More than any message here.
const MOST: usize = 256 << 10;
/// A session that does not answer for so long, of the machine's time, has ended.
const ANSWERS: Duration = Duration::from_secs(60);
/// The user and the group of all requests.
const ROOT: u32 = 0;
/// The number of the request that is answered at once.
const BARRIER: u64 = u64::MAX - 1;

/// The fields of a message, in the byte order of the machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Body(Vec<u8>);

impl Body {
    pub(crate) fn u32(mut self, n: u32) -> Self {
        self.0.extend(n.to_ne_bytes());
        self
    }

    pub(crate) fn u64(mut self, n: u64) -> Self {
        self.0.extend(n.to_ne_bytes());
        self
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub(crate) fn name(self, name: &str) -> Self {
        self.bytes(name.as_bytes()).bytes(&[0])
    }
}

/// Reads a 64-bit field.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Reads a 32-bit field.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// What answers a request: the body, or the number of an error.
pub(crate) type Answer = Result<Vec<u8>, i32>;

/// A message that answers no request: its code (`enum fuse_notify_code`) and body.
pub(crate) type Notification = (i32, Vec<u8>);

/// The kernel's end of the channel.
pub(crate) struct Channel {
    socket: OwnedFd,
    last: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    notifications: Mutex<Vec<Notification>>,
    /// The last message that was read.
    message: Mutex<Vec<u8>>,
}

impl Channel {
    /// The kernel's end, which has sent the first request (`capabilities`: flags of FUSE_INIT), and the session's.
    pub(crate) fn new(capabilities: u32) -> (Self, OwnedFd) {
        let (socket, session) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        for end in [&socket, &session] {
            set_socket_send_buffer_size(end, 4 * MOST).unwrap();
            set_socket_recv_buffer_size(end, 4 * MOST).unwrap();
        }
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWERS)).unwrap();
        let channel = Self {
            socket,
            last: AtomicU64::new(0),
            waiting: Mutex::default(),
            notifications: Mutex::default(),
            message: Mutex::new(vec![0; MOST]),
        };
        // FUSE 7.36: names cannot be expired, so that all notifications come from fuser.
        let init = Body::default().u32(7).u32(36).u32(128 << 10).u32(capabilities).bytes(&[0; 48]);
        channel.send(Op::Init, (BARRIER, 0, 0), init);
        (channel, session)
    }

    fn send(&self, op: Op, (unique, node, pid): (u64, u64, u32), body: Body) {
        let len = (40 + body.0.len()) as u32;
        let header = Body::default().u32(len).u32(op as u32).u64(unique).u64(node);
        let header = header.u32(ROOT).u32(ROOT).u32(pid).u32(0);
        let message = header.bytes(&body.0).0;
        send(&self.socket, &message, SendFlags::NOSIGNAL).expect("the session reads requests");
    }

    /// Sends a request of the thread `pid`, and waits, in the machine's time, until the session has begun to answer it, or has
    /// answered it: so that the session's thread never runs together with the tasks of virtual time.
    pub(crate) fn request(&self, op: Op, node: u64, pid: u32, body: Body) -> oneshot::Receiver<Answer> {
        let unique = self.last.fetch_add(2, Ordering::Relaxed) + 2;
        let (say, said) = oneshot::channel();
        if !matches!(op, Op::Forget) {
            self.waiting.lock().insert(unique, say);
        }
        self.send(op, (unique, node, pid), body);
        // The thread that takes requests takes this one next, and answers it itself.
        self.send(Op::Lseek, (BARRIER, 1, 0), Body::default().u64(0).u64(0).u64(0));
        self.wait_for_barrier();
        said
    }

    /// Reads answers until that to the barrier, which is also the number of the first request.
    pub(crate) fn wait_for_barrier(&self) {
        while self.take(RecvFlags::empty()).expect("the session answers") != BARRIER {}
    }

    /// Reads what has been sent, and gives the notifications.
    pub(crate) fn drain(&self) -> Vec<Notification> {
        while self.take(RecvFlags::DONTWAIT).is_ok() {}
        std::mem::take(&mut self.notifications.lock())
    }

    /// Ends the session.
    pub(crate) fn end(&self) {
        let destroy = Body::default().u32(40).u32(Op::Destroy as u32).u64(BARRIER).bytes(&[0; 24]);
        let _ = send(&self.socket, &destroy.0, SendFlags::NOSIGNAL);
    }

    /// Reads one message, and gives the number of the request that it answers.
    fn take(&self, flags: RecvFlags) -> io::Result<u64> {
        let mut message = self.message.lock();
        let (n, _) = recv(&self.socket, &mut message[..], flags)?;
        if n < HEADER {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (error, unique) = (u32_at(&message, 4) as i32, u64_at(&message, 8));
        let body = message[HEADER..n].to_vec();
        if unique == 0 {
            self.notifications.lock().push((error, body));
        } else if let Some(say) = self.waiting.lock().remove(&unique) {
            let _ = say.send(if error == 0 { Ok(body) } else { Err(-error) });
        }
        Ok(unique)
    }
}
