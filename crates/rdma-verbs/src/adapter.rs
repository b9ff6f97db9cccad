//! A device that connections use: its limits, and its protection domains with what is registered in them.

#![allow(unsafe_code)] // Foreign functions.

use std::{
    collections::HashMap,
    io,
    ptr::NonNull,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use millrace_buffer::SpanRef;
use parking_lot::Mutex;

use super::{
    cm::CmId,
    context,
    ffi::{Libraries, inline, verbs::*},
};

/// What the provider needs to know of a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Abilities {
    pub(super) iwarp: bool,
    /// Type 2 windows: exposure is a work request.
    pub(super) windows: bool,
    pub(super) send_with_invalidate: bool,
    pub(super) max_wr: u32,
    pub(super) max_cqe: u32,
    pub(super) max_sge: u32,
    /// Pieces of an RDMA Read's sink.
    pub(super) max_sge_rd: u32,
    /// The most RDMA Reads of a peer, and of ours, at once.
    pub(super) max_ird: u8,
    pub(super) max_ord: u8,
    /// Receives of a shared queue; 0 if there are none.
    pub(super) max_srq_wr: u32,
    /// Bytes of a message.
    pub(super) max_message: u32,
    /// The flags of a completion that tell of a tag that the peer has invalidated.
    pub(super) invalidated: u32,
}

/// The vendor of Linux's rxe.
const RXE: u32 = 0xff_ffff;

/// Whether the windows of rxe shall be used: never but to test windows, which no other software device has.
static TRUST_RXE_WINDOWS: AtomicBool = AtomicBool::new(false);

/// Uses windows on Linux's rxe too, from the next connection on. **Unsafe against hostile peers**: rxe does not check
/// their bounds. For tests.
#[doc(hidden)]
pub fn trust_rxe_windows() {
    TRUST_RXE_WINDOWS.store(true, Ordering::Relaxed);
}

fn trusts_rxe_windows() -> bool {
    TRUST_RXE_WINDOWS.load(Ordering::Relaxed)
}

impl Abilities {
    /// What the device behind `id` says of itself.
    pub(super) fn of(id: &CmId, context: NonNull<ibv_context>) -> io::Result<Self> {
        // SAFETY: the identifier keeps the context open.
        let (attr, port, iwarp) = unsafe {
            let attr = context::device_attributes(id.libraries(), context)?;
            let port = context::port_attributes(id.libraries(), context, id.port().max(1))?;
            (attr, port, (*context.as_ref().device).transport_type == IBV_TRANSPORT_IWARP)
        };
        let a = &attr.orig_attr;
        let limit = |n: i32| u32::try_from(n).unwrap_or(0);
        let depth = |n: i32| u8::try_from(n.max(0)).unwrap_or(u8::MAX);
        let windows = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
        Ok(Self {
            iwarp,
            // rxe does not hold a peer to the bounds of a window: it would reach the whole span.
            windows: a.device_cap_flags & windows != 0
                && a.max_mw > 0
                && (a.vendor_id != RXE || trusts_rxe_windows()),
            send_with_invalidate: a.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS != 0,
            max_wr: limit(a.max_qp_wr).max(1),
            max_cqe: limit(a.max_cqe).max(1),
            max_sge: limit(a.max_sge).max(1),
            max_sge_rd: if iwarp { 1 } else { limit(a.max_sge_rd).clamp(1, limit(a.max_sge).max(1)) },
            max_ird: depth(a.max_qp_rd_atom),
            max_ord: depth(a.max_qp_init_rd_atom),
            max_srq_wr: if a.max_srq > 0 { limit(a.max_srq_wr) } else { 0 },
            max_message: port.max_msg_sz,
            // rxe gives programs the kernel's number of the flag, which is another flag's here (one for checksums, that
            // connections like ours never have).
            invalidated: IBV_WC_WITH_INV | if a.vendor_id == RXE { IBV_WC_IP_CSUM_OK } else { 0 },
        })
    }

    /// Whether connections may share a protection domain: only if nothing in it is reachable by a peer but windows,
    /// which are bound to one queue pair. On iWARP the sinks of Reads are reachable too.
    pub(super) const fn may_share(&self) -> bool {
        self.windows && !self.iwarp
    }
}

/// Keeps the devices that librdmacm has opened open.
struct Opened {
    libraries: &'static Libraries,
    list: NonNull<*mut ibv_context>,
}

// SAFETY: librdmacm may be called from any thread.
unsafe impl Send for Opened {}
// SAFETY: it has no methods.
unsafe impl Sync for Opened {}

impl Opened {
    fn new(libraries: &'static Libraries) -> io::Result<Self> {
        // SAFETY: the count may be null.
        let list = unsafe { (libraries.cm.rdma_get_devices)(std::ptr::null_mut()) };
        Ok(Self { libraries, list: NonNull::new(list).ok_or_else(io::Error::last_os_error)? })
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: the library's list, given back once.
        unsafe { (self.libraries.cm.rdma_free_devices)(self.list.as_ptr()) };
    }
}

/// A registration of memory. Deregistered on drop: then no adapter reaches the memory through it.
pub(super) struct Registration {
    mr: NonNull<ibv_mr>,
    pd: Arc<Pd>,
}

// SAFETY: libibverbs may be called from any thread; the structure is only read.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: lives until dropped.
        unsafe { self.mr.as_ref() }.lkey
    }

    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.mr.as_ref() }.rkey
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: ours. Work that uses it is over: whoever posts work keeps the registration until then.
        unsafe { (self.pd.libraries.verbs.ibv_dereg_mr)(self.mr.as_ptr()) };
    }
}

/// A memory window of type 2. Freed on drop.
pub(super) struct Window {
    /// Its own `rkey` is the tag that the adapter knows; whoever posts a binding keeps it so.
    mw: NonNull<ibv_mw>,
    /// The last tag that was given out for it.
    rkey: u32,
    _pd: Arc<Pd>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Window {}

impl Window {
    pub(super) fn as_ptr(&self) -> *mut ibv_mw {
        self.mw.as_ptr()
    }

    /// The tag for the next binding: the same index, the next key (`ibv_inc_rkey`) that is not the present one.
    pub(super) fn next_rkey(&mut self) -> u32 {
        let next = |rkey: u32| (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff);
        self.rkey = next(self.rkey);
        // SAFETY: lives until dropped.
        if self.rkey == unsafe { self.mw.as_ref() }.rkey {
            self.rkey = next(self.rkey);
        }
        self.rkey
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: ours; it is not bound, or its queue pair is gone.
        unsafe { inline::ibv_dealloc_mw(self.mw.as_ptr()) };
    }
}

/// An arena's span as the adapter knows it, for local access (and for windows to be bound upon).
struct Span {
    registration: Registration,
    mapped: SpanRef,
}

/// A protection domain, and the spans that are registered in it. One per device where that is safe, else one per
/// connection.
pub(super) struct Protection {
    spans: Mutex<HashMap<u64, Span>>,
    /// Spans that connections keep registered until they let them go.
    kept: Mutex<HashMap<u64, Weak<Registration>>>,
    pd: Arc<Pd>,
    windows: bool,
}

/// The bare protection domain. What is made in it keeps it.
struct Pd {
    libraries: &'static Libraries,
    pd: NonNull<ibv_pd>,
    _opened: Opened,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: ours; everything that was made in it is gone.
        unsafe { (self.libraries.verbs.ibv_dealloc_pd)(self.pd.as_ptr()) };
    }
}

/// The shared protection domains, by the address of their device's context.
static SHARED: Mutex<Vec<(usize, Weak<Protection>)>> = Mutex::new(Vec::new());

impl Protection {
    /// The protection domain for a connection of `id`.
    pub(super) fn of(
        id: &CmId,
        context: NonNull<ibv_context>,
        abilities: &Abilities,
    ) -> io::Result<Arc<Self>> {
        if !abilities.may_share() {
            return Ok(Arc::new(Self::new(id, context, abilities)?));
        }
        let mut shared = SHARED.lock();
        shared.retain(|(_, p)| p.strong_count() > 0);
        let key = context.as_ptr().addr();
        if let Some(p) = shared.iter().find(|(k, _)| *k == key).and_then(|(_, p)| p.upgrade()) {
            return Ok(p);
        }
        let made = Arc::new(Self::new(id, context, abilities)?);
        shared.push((key, Arc::downgrade(&made)));
        Ok(made)
    }

    fn new(id: &CmId, context: NonNull<ibv_context>, abilities: &Abilities) -> io::Result<Self> {
        let libraries = id.libraries();
        let opened = Opened::new(libraries)?;
        // SAFETY: the context is open, and `opened` keeps it so.
        let pd = unsafe { (libraries.verbs.ibv_alloc_pd)(context.as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(io::Error::last_os_error)?;
        let pd = Arc::new(Pd { libraries, pd, _opened: opened });
        Ok(Self { spans: Mutex::default(), kept: Mutex::default(), pd, windows: abilities.windows })
    }

    /// For the modules with unsafe code. Valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut ibv_pd {
        self.pd.pd.as_ptr()
    }

    pub(super) fn libraries(&self) -> &'static Libraries {
        self.pd.libraries
    }

    /// The key for local access to `span`, and the registration for binding windows. Registered when first asked for.
    pub(super) fn span(&self, span: &SpanRef) -> io::Result<(u32, *mut ibv_mr)> {
        let mut spans = self.spans.lock();
        if let Some(s) = spans.get(&span.id()) {
            return Ok((s.registration.lkey(), s.registration.mr.as_ptr()));
        }
        // Spans that only we keep: their arenas are gone.
        spans.retain(|_, s| !s.mapped.is_last());
        let access = IBV_ACCESS_LOCAL_WRITE | if self.windows { IBV_ACCESS_MW_BIND } else { 0 };
        // SAFETY: the whole span is mapped while `mapped` lives, which goes after the registration; with these rights
        // it is reached only by work of ours, which keeps its buffers.
        let registration = unsafe { self.register(span.address(), span.len(), access) }?;
        let keys = (registration.lkey(), registration.mr.as_ptr());
        spans.insert(span.id(), Span { registration, mapped: span.clone() });
        Ok(keys)
    }

    /// Registers memory for work of ours alone.
    pub(super) fn register_for_us(&self, addr: usize, len: usize) -> io::Result<Registration> {
        // SAFETY: no peer has a right to it. Only work of ours reaches it, which keeps the buffers that it names; the
        // pages stay until it is deregistered, also when nothing is mapped there any more.
        unsafe { self.register(addr, len, IBV_ACCESS_LOCAL_WRITE) }
    }

    /// Registers a whole span for work of ours alone, once for all connections that share the domain.
    pub(super) fn keep(&self, span: &SpanRef) -> io::Result<Arc<Registration>> {
        let mut kept = self.kept.lock();
        if let Some(there) = kept.get(&span.id()).and_then(Weak::upgrade) {
            return Ok(there);
        }
        kept.retain(|_, r| r.strong_count() > 0);
        let registration = Arc::new(self.register_for_us(span.address(), span.len())?);
        kept.insert(span.id(), Arc::downgrade(&registration));
        Ok(registration)
    }

    /// Registers memory with the rights `access`.
    ///
    /// # Safety
    /// The memory stays mapped, and nobody else relies on what it holds, until the result is dropped.
    pub(super) unsafe fn register(&self, addr: usize, len: usize, access: u32) -> io::Result<Registration> {
        let at = std::ptr::with_exposed_provenance_mut(addr);
        // SAFETY: as the caller says.
        let mr = unsafe { (self.pd.libraries.verbs.ibv_reg_mr)(self.as_ptr(), at, len, access as i32) };
        let mr = NonNull::new(mr).ok_or_else(io::Error::last_os_error)?;
        Ok(Registration { mr, pd: Arc::clone(&self.pd) })
    }

    /// A fresh window.
    pub(super) fn window(&self) -> io::Result<Window> {
        // SAFETY: the domain lives.
        let mw = NonNull::new(unsafe { inline::ibv_alloc_mw(self.as_ptr(), IBV_MW_TYPE_2) })
            .ok_or_else(io::Error::last_os_error)?;
        // SAFETY: just made.
        let rkey = unsafe { mw.as_ref() }.rkey;
        Ok(Window { mw, rkey, _pd: Arc::clone(&self.pd) })
    }
}
