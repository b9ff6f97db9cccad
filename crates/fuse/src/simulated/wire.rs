//! FUSE messages in the kernel's format (linux/fuse.h), over a socket instead of /dev/fuse.

use std::{
    collections::HashMap,
    io,
    os::fd::OwnedFd,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures::channel::oneshot;
use parking_lot::Mutex;
use rustix::{
    io::retry_on_intr,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
        sockopt::{Timeout, set_socket_recv_buffer_size, set_socket_send_buffer_size, set_socket_timeout},
    },
};

/// Operations (`enum fuse_opcode`).
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub(crate) enum Op {
    Lookup = 1,
    Forget = 2,
    Getattr = 3,
    Setattr = 4,
    Link = 13,
    Open = 14,
    Read = 15,
    Write = 16,
    Release = 18,
    Fsync = 20,
    Setxattr = 21,
    Getxattr = 22,
    Listxattr = 23,
    Removexattr = 24,
    Flush = 25,
    Init = 26,
    Opendir = 27,
    Setlk = 32,
    Setlkw = 33,
    Create = 35,
    Destroy = 38,
    Readdirplus = 44,
    Lseek = 46,
}

/// Size of `fuse_out_header`.
const HEADER: usize = 16;
/// Larger than any message in this model.
const MAX_MESSAGE: usize = 256 << 10;
/// Time limit, in real time, for a session to reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// User and group of all requests.
const ROOT: u32 = 0;
/// Request number of the barrier, which is answered at once.
const BARRIER: u64 = u64::MAX - 1;

/// The fields of a message in native byte order.
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

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// A reply: the body, or an errno.
pub(crate) type Reply = Result<Vec<u8>, i32>;

/// An unsolicited message: its code (`enum fuse_notify_code`) and body.
pub(crate) type Notification = (i32, Vec<u8>);

/// The kernel's end of the channel.
pub(crate) struct Channel {
    socket: OwnedFd,
    last: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Reply>>>,
    notifications: Mutex<Vec<Notification>>,
    /// The last message read.
    message: Mutex<Vec<u8>>,
}

impl Channel {
    /// Returns the kernel's end, which has sent FUSE_INIT with `capabilities`, and the session's end.
    pub(crate) fn new(capabilities: u32) -> (Self, OwnedFd) {
        let (socket, session) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        for end in [&socket, &session] {
            set_socket_send_buffer_size(end, 4 * MAX_MESSAGE).unwrap();
            set_socket_recv_buffer_size(end, 4 * MAX_MESSAGE).unwrap();
        }
        set_socket_timeout(&socket, Timeout::Recv, Some(REPLY_TIMEOUT)).unwrap();
        let channel = Self {
            socket,
            last: AtomicU64::new(0),
            waiting: Mutex::default(),
            notifications: Mutex::default(),
            message: Mutex::new(vec![0; MAX_MESSAGE]),
        };
        // The model has no names that expire (FUSE 7.38).
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

    /// Sends a request whose reply is ignored.
    pub(crate) fn post(&self, op: Op, node: u64, body: Body) {
        let unique = self.last.fetch_add(2, Ordering::Relaxed) + 2;
        self.send(op, (unique, node, 0), body);
    }

    /// Sends a request of the thread `pid`, and waits in real time until the session has started or completed
    /// it, so that the session's thread never runs concurrently with the tasks in virtual time.
    pub(crate) fn request(&self, op: Op, node: u64, pid: u32, body: Body) -> oneshot::Receiver<Reply> {
        let unique = self.last.fetch_add(2, Ordering::Relaxed) + 2;
        let (tx, rx) = oneshot::channel();
        if !matches!(op, Op::Forget) {
            self.waiting.lock().insert(unique, tx);
        }
        self.send(op, (unique, node, pid), body);
        // The session thread reads this request next and answers it itself.
        self.send(Op::Lseek, (BARRIER, 1, 0), Body::default().u64(0).u64(0).u64(0));
        self.wait_for_barrier();
        rx
    }

    /// Reads replies up to that of the barrier; FUSE_INIT uses the same number.
    pub(crate) fn wait_for_barrier(&self) {
        while self.read_message(RecvFlags::empty()).expect("the session replies") != BARRIER {}
    }

    /// Reads all available messages and returns the notifications.
    pub(crate) fn drain(&self) -> Vec<Notification> {
        while self.read_message(RecvFlags::DONTWAIT).is_ok() {}
        std::mem::take(&mut self.notifications.lock())
    }

    /// Ends the session.
    pub(crate) fn end(&self) {
        let destroy = Body::default().u32(40).u32(Op::Destroy as u32).u64(BARRIER).bytes(&[0; 24]);
        let _ = send(&self.socket, &destroy.0, SendFlags::NOSIGNAL);
    }

    /// Reads one message and returns the number of its request.
    fn read_message(&self, flags: RecvFlags) -> io::Result<u64> {
        let mut message = self.message.lock();
        let (n, _) = retry_on_intr(|| recv(&self.socket, &mut message[..], flags))?;
        if n < HEADER {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (error, unique) = (u32_at(&message, 4) as i32, u64_at(&message, 8));
        let body = message[HEADER..n].to_vec();
        if unique == 0 {
            self.notifications.lock().push((error, body));
        } else if let Some(tx) = self.waiting.lock().remove(&unique) {
            let _ = tx.send(if error == 0 { Ok(body) } else { Err(-error) });
        }
        Ok(unique)
    }
}
