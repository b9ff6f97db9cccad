//! The adapter's queues of one connection.

#![allow(unsafe_code)] // Foreign functions.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    sync::Arc,
};

use super::{
    adapter::{DeviceProperties, Protection},
    cm::CmId,
    ffi::{Libraries, inline, verbs::*},
    shared_receive::SharedReceives,
};

/// Maximum number of work requests in each queue, within the device's limit. More work waits in software.
const DEPTH: u32 = 256;
/// Maximum number of receives on iWARP devices, which end a connection on which a message finds no receive:
/// as many as credits may require.
const IWARP_RECEIVES: u32 = 4096;
/// Maximum number of pieces of a work request, within the device's limit.
const PIECES: u32 = 16;
/// Maximum inline data in bytes: the first value that the device supports is used. A typical NFS call or
/// reply without data is shorter than 256 bytes.
const INLINE: [u32; 3] = [256, 64, 0];
/// Delay before a peer repeats a message that found no receive in a shared queue: 0.64 ms (IBA volume 1,
/// table of RNR NAK timers). The connection manager's default is 655 ms.
const RETRY_AFTER: u8 = 12;
/// Number of completion events to acknowledge together, because each acknowledgement takes a lock.
const ACK_BATCH: u32 = 64;

/// A completion channel: the descriptor that reports completion events.
struct Channel {
    libraries: &'static Libraries,
    channel: NonNull<ibv_comp_channel>,
}

impl Channel {
    /// Creates a channel. The context must be open and stay open.
    fn new(libraries: &'static Libraries, context: NonNull<ibv_context>) -> io::Result<Self> {
        // SAFETY: an open context.
        let channel = unsafe { (libraries.verbs.ibv_create_comp_channel)(context.as_ptr()) };
        Ok(Self { libraries, channel: NonNull::new(channel).ok_or_else(io::Error::last_os_error)? })
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: owned by this value; its completion queues are destroyed.
        unsafe { (self.libraries.verbs.ibv_destroy_comp_channel)(self.channel.as_ptr()) };
    }
}

/// A completion queue.
struct CompletionQueue {
    libraries: &'static Libraries,
    cq: NonNull<ibv_cq>,
    armed: bool,
    unacknowledged: u32,
}

impl CompletionQueue {
    fn new(channel: &Channel, context: NonNull<ibv_context>, entries: u32) -> io::Result<Self> {
        let libraries = channel.libraries;
        // SAFETY: context and channel are valid; vector 0 always exists.
        let cq = unsafe {
            let channel = channel.channel.as_ptr();
            (libraries.verbs.ibv_create_cq)(context.as_ptr(), entries as i32, ptr::null_mut(), channel, 0)
        };
        let cq = NonNull::new(cq).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { libraries, cq, armed: false, unacknowledged: 0 })
    }

    fn poll(&self, into: &mut [ibv_wc]) -> io::Result<usize> {
        // SAFETY: the queue is valid.
        let n = unsafe { inline::ibv_poll_cq(self.cq.as_ptr(), into) };
        usize::try_from(n).map_err(|_| io::Error::other("cannot poll the completion queue"))
    }

    /// Requests an event at the next completion; false if it was already requested.
    fn arm(&mut self) -> io::Result<bool> {
        if self.armed {
            return Ok(false);
        }
        // SAFETY: the queue is valid.
        match unsafe { inline::ibv_req_notify_cq(self.cq.as_ptr()) } {
            0 => self.armed = true,
            rc => return Err(io::Error::from_raw_os_error(rc)),
        }
        Ok(true)
    }

    /// Records an event of this queue that was taken from the channel.
    fn fired(&mut self) {
        self.armed = false;
        self.unacknowledged += 1;
        if self.unacknowledged == ACK_BATCH {
            self.acknowledge();
        }
    }

    fn acknowledge(&mut self) {
        // SAFETY: the queue is valid, and this number of its events was taken.
        unsafe { (self.libraries.verbs.ibv_ack_cq_events)(self.cq.as_ptr(), self.unacknowledged) };
        self.unacknowledged = 0;
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.acknowledge();
        // SAFETY: owned by this value; the queue pair is destroyed, and all events are acknowledged.
        unsafe { (self.libraries.verbs.ibv_destroy_cq)(self.cq.as_ptr()) };
    }
}

/// Sizes of the queues.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) send: usize,
    pub(super) receive: usize,
    /// Maximum number of pieces of a Send or Write, and of a Read's sink.
    pub(super) pieces: usize,
    pub(super) read_pieces: usize,
    /// Maximum inline data in bytes.
    pub(super) inline: usize,
}

/// A queue pair with its completion queues and its identifier. After it is dropped, the adapter uses no
/// memory for it.
pub(super) struct Hardware {
    // Dropped in this order, after the queue pair is destroyed.
    send_cq: CompletionQueue,
    receive_cq: CompletionQueue,
    channel: Channel,
    pub(super) id: CmId,
    protection: Arc<Protection>,
    shared: Option<Arc<SharedReceives>>,
    qp: NonNull<ibv_qp>,
    sizes: Sizes,
}

// SAFETY: rdma-core may be called from any thread; only the owner of this value calls it.
unsafe impl Send for Hardware {}

impl Hardware {
    /// Creates a queue pair for `id`, which must be bound to the device of `protection`. If `shared` is
    /// given, the queue pair takes its receives from it and must have joined it.
    pub(super) fn new(
        id: CmId,
        protection: Arc<Protection>,
        properties: &DeviceProperties,
        shared: Option<Arc<SharedReceives>>,
    ) -> io::Result<Self> {
        let context = id.context().ok_or(io::ErrorKind::NotConnected)?;
        let most = properties.max_wr.min(properties.max_cqe);
        let depth = DEPTH.min(most);
        let receives = if properties.iwarp { IWARP_RECEIVES.min(most) } else { depth };
        let channel = Channel::new(id.libraries(), context)?;
        let send_cq = CompletionQueue::new(&channel, context, depth)?;
        // With a shared queue, one connection may complete all its receives between two polls.
        let entries = shared.as_ref().map_or(receives, |s| s.completions());
        let receive_cq = CompletionQueue::new(&channel, context, entries)?;
        let pieces = PIECES.min(properties.max_sge);
        let attr = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: send_cq.cq.as_ptr(),
            recv_cq: receive_cq.cq.as_ptr(),
            srq: shared.as_ref().map_or(ptr::null_mut(), |s| s.as_ptr()),
            cap: ibv_qp_cap {
                max_send_wr: depth,
                max_recv_wr: if shared.is_some() { 0 } else { receives },
                max_send_sge: pieces,
                max_recv_sge: u32::from(shared.is_none()),
                max_inline_data: 0,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        let (qp, inline) = create_qp(&id, &protection, &attr)?;
        let sizes = Sizes {
            send: depth as usize,
            receive: receives as usize,
            pieces: pieces as usize,
            read_pieces: pieces.min(properties.max_sge_rd) as usize,
            inline,
        };
        Ok(Self { send_cq, receive_cq, channel, id, protection, shared, qp, sizes })
    }

    pub(super) fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// For an established connection: shortens the delay before the peer repeats a message that found a
    /// shared queue empty.
    pub(super) fn shorten_retries(&mut self) -> io::Result<()> {
        if self.shared.is_none() {
            return Ok(());
        }
        let mut attr = ibv_qp_attr { before: [0; 128], min_rnr_timer: RETRY_AFTER, after: [0; 15] };
        let (modify, what) = (self.id.libraries().verbs.ibv_modify_qp, IBV_QP_MIN_RNR_TIMER as i32);
        // SAFETY: the queue pair is valid; the structure is complete, and the library reads only the named
        // field.
        match unsafe { modify(self.qp.as_ptr(), &mut attr, what) } {
            0 => Ok(()),
            rc => Err(io::Error::from_raw_os_error(rc.abs())),
        }
    }

    pub(super) fn shared_receives(&self) -> Option<&Arc<SharedReceives>> {
        self.shared.as_ref()
    }

    pub(super) fn protection(&self) -> &Arc<Protection> {
        &self.protection
    }

    /// A duplicate of the completion channel's descriptor, for polling.
    pub(super) fn fd(&self) -> io::Result<OwnedFd> {
        // SAFETY: the descriptor is open as long as the channel exists.
        unsafe { BorrowedFd::borrow_raw(self.channel.channel.as_ref().fd) }.try_clone_to_owned()
    }

    /// Takes completions of the send queue, and returns their number.
    pub(super) fn poll_send(&self, into: &mut [ibv_wc]) -> io::Result<usize> {
        self.send_cq.poll(into)
    }

    /// Takes completions of the receive queue, and returns their number.
    pub(super) fn poll_receive(&self, into: &mut [ibv_wc]) -> io::Result<usize> {
        self.receive_cq.poll(into)
    }

    /// Requests an event at the next receive and, if `sends`, at the next completion of the send queue.
    /// Returns true if a request is new; then the queues must be polled once more, for earlier completions.
    pub(super) fn arm(&mut self, sends: bool) -> io::Result<bool> {
        let receive = self.receive_cq.arm()?;
        Ok((sends && self.send_cq.arm()?) || receive)
    }

    /// Takes one event from the completion channel, if any (the descriptor must be non-blocking).
    pub(super) fn take_event(&mut self) -> io::Result<()> {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        let channel = self.channel.channel.as_ptr();
        // SAFETY: the channel is valid; both pointers are valid for writing.
        let rc = unsafe { (self.channel.libraries.verbs.ibv_get_cq_event)(channel, &mut cq, &mut context) };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        match self.send_cq.cq.as_ptr() == cq {
            true => self.send_cq.fired(),
            false => self.receive_cq.fired(),
        }
        Ok(())
    }

    /// Posts a linked list of work requests to the send queue.
    ///
    /// # Safety
    /// The requests must be valid, and their memory must not be used otherwise until their completion, or
    /// until `self` is dropped.
    pub(super) unsafe fn post_send(&mut self, first: *mut ibv_send_wr) -> io::Result<()> {
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is valid; the caller ensures the rest.
        match unsafe { inline::ibv_post_send(self.qp.as_ptr(), first, &mut bad) } {
            0 => Ok(()),
            rc => Err(io::Error::from_raw_os_error(rc.abs())),
        }
    }

    /// Posts a linked list of receives.
    ///
    /// # Safety
    /// Those of [`Self::post_send`].
    pub(super) unsafe fn post_receive(&mut self, first: *mut ibv_recv_wr) -> io::Result<()> {
        let mut bad = ptr::null_mut();
        // SAFETY: as above.
        match unsafe { inline::ibv_post_recv(self.qp.as_ptr(), first, &mut bad) } {
            0 => Ok(()),
            rc => Err(io::Error::from_raw_os_error(rc.abs())),
        }
    }
}

/// Creates the queue pair, with the largest inline size that the device supports.
fn create_qp(
    id: &CmId,
    protection: &Protection,
    attr: &ibv_qp_init_attr,
) -> io::Result<(NonNull<ibv_qp>, usize)> {
    let mut result = Err(io::ErrorKind::InvalidInput.into());
    for inline in INLINE {
        let mut attr = *attr;
        attr.cap.max_inline_data = inline;
        // SAFETY: the identifier is bound to the device of the protection domain; both are valid, and so are
        // the completion queues. The library attaches the queue pair to the identifier.
        let (rc, qp) = unsafe {
            let rc = (id.libraries().cm.rdma_create_qp)(id.as_ptr(), protection.as_ptr(), &mut attr);
            (rc, (*id.as_ptr()).qp)
        };
        match NonNull::new(qp) {
            Some(qp) if rc == 0 => return Ok((qp, attr.cap.max_inline_data.min(INLINE[0]) as usize)),
            _ => result = Err(io::Error::last_os_error()),
        }
    }
    result
}

impl Hardware {
    /// Drops unprocessed messages whose receives belong to a shared queue.
    fn discard_completions(&self, shared: &SharedReceives) {
        let mut completed = [NO_COMPLETION; 32];
        while let Ok(n) = self.receive_cq.poll(&mut completed)
            && n > 0
        {
            completed[..n].iter().for_each(|wc| drop(shared.take(wc.wr_id)));
        }
    }
}

impl Drop for Hardware {
    fn drop(&mut self) {
        // Some adapters drop the completions of a queue pair that is destroyed.
        let shared = self.shared.take();
        shared.iter().for_each(|s| self.discard_completions(s));
        // SAFETY: the identifier's own queue pair, which is no longer in use. The adapter has stopped when
        // the function returns.
        unsafe { (self.id.libraries().cm.rdma_destroy_qp)(self.id.as_ptr()) };
        if let Some(s) = shared {
            self.discard_completions(&s);
            s.leave();
        }
    }
}
