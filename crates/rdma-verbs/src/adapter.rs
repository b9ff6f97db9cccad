//! A device in use by connections: its limits, and its protection domains with their registered memory.

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

/// The properties of a device that the provider uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceProperties {
    pub(super) iwarp: bool,
    /// Type 2 memory windows; memory is exposed by a work request.
    pub(super) windows: bool,
    pub(super) send_with_invalidate: bool,
    pub(super) max_wr: u32,
    pub(super) max_cqe: u32,
    pub(super) max_sge: u32,
    /// Maximum number of pieces of an RDMA Read's sink.
    pub(super) max_sge_rd: u32,
    /// Maximum number of concurrent RDMA Reads by a peer, and to a peer.
    pub(super) max_ird: u8,
    pub(super) max_ord: u8,
    /// Maximum number of receives in a shared queue; 0 if shared queues are not supported.
    pub(super) max_srq_wr: u32,
    /// Maximum length of a message in bytes.
    pub(super) max_message: u32,
    /// The completion flags that report a tag invalidated by the peer.
    pub(super) invalidated: u32,
}

/// The vendor id of Linux's rxe.
const RXE: u32 = 0xff_ffff;

/// Whether windows of rxe are used. For tests only: no other software device has windows.
static TRUST_RXE_WINDOWS: AtomicBool = AtomicBool::new(false);

/// Uses windows on Linux's rxe too, from the next connection on. For tests: **unsafe against hostile peers**,
/// because rxe does not check the bounds of windows.
#[doc(hidden)]
pub fn trust_rxe_windows() {
    TRUST_RXE_WINDOWS.store(true, Ordering::Relaxed);
}

fn trusts_rxe_windows() -> bool {
    TRUST_RXE_WINDOWS.load(Ordering::Relaxed)
}

impl DeviceProperties {
    /// Queries the properties of the device of `id`.
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
            // rxe does not check the bounds of a window: the peer could access the whole span.
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
            // rxe passes the kernel's value of the flag to user space, where it has another meaning (a
            // checksum flag that does not occur on reliable connections).
            invalidated: IBV_WC_WITH_INV | if a.vendor_id == RXE { IBV_WC_IP_CSUM_OK } else { 0 },
        })
    }

    /// Whether connections may share a protection domain: only if peers can access it only through windows,
    /// which are bound to one queue pair. On iWARP, peers can also access the sinks of Reads.
    pub(super) const fn may_share(&self) -> bool {
        self.windows && !self.iwarp
    }
}

/// Keeps the devices open that librdmacm has opened.
struct Opened {
    libraries: &'static Libraries,
    list: NonNull<*mut ibv_context>,
}

// SAFETY: librdmacm may be called from any thread.
unsafe impl Send for Opened {}
// SAFETY: the type has no methods.
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
        // SAFETY: the list comes from the library and is freed once.
        unsafe { (self.libraries.cm.rdma_free_devices)(self.list.as_ptr()) };
    }
}

/// A memory registration. Deregistered on drop, after which no adapter can access the memory through it.
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
        // SAFETY: the region is valid until dropped.
        unsafe { self.mr.as_ref() }.lkey
    }

    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.mr.as_ref() }.rkey
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: owned by this value. Work that uses it has completed: work requests keep the registration
        // until then.
        unsafe { (self.pd.libraries.verbs.ibv_dereg_mr)(self.mr.as_ptr()) };
    }
}

/// A memory window of type 2. Freed on drop.
pub(super) struct Window {
    /// Its `rkey` field contains the tag that the adapter uses; posting a bind request updates it.
    mw: NonNull<ibv_mw>,
    /// The tag of the latest binding.
    rkey: u32,
    _pd: Arc<Pd>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Window {}

impl Window {
    pub(super) fn as_ptr(&self) -> *mut ibv_mw {
        self.mw.as_ptr()
    }

    /// The tag for the next binding: the same index and the next key (`ibv_inc_rkey`) that differs from the
    /// current one.
    pub(super) fn next_rkey(&mut self) -> u32 {
        let next = |rkey: u32| (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff);
        self.rkey = next(self.rkey);
        // SAFETY: the window is valid until dropped.
        if self.rkey == unsafe { self.mw.as_ref() }.rkey {
            self.rkey = next(self.rkey);
        }
        self.rkey
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: owned by this value; it is unbound, or its queue pair is destroyed.
        unsafe { inline::ibv_dealloc_mw(self.mw.as_ptr()) };
    }
}

/// An arena's span that is registered for local access (and for binding windows).
struct Span {
    registration: Registration,
    mapped: SpanRef,
}

/// A protection domain and the spans registered in it: one per device if sharing is safe, otherwise one per
/// connection.
pub(super) struct Protection {
    spans: Mutex<HashMap<u64, Span>>,
    /// Spans that connections registered with [`Self::keep`].
    kept: Mutex<HashMap<u64, Weak<Registration>>>,
    pd: Arc<Pd>,
    windows: bool,
}

/// The `ibv_pd`. Objects created in it keep a reference.
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
        // SAFETY: owned by this value; all objects created in it are destroyed.
        unsafe { (self.libraries.verbs.ibv_dealloc_pd)(self.pd.as_ptr()) };
    }
}

/// Shared protection domains, by the address of their device's context.
static SHARED: Mutex<Vec<(usize, Weak<Protection>)>> = Mutex::new(Vec::new());

impl Protection {
    /// Returns the protection domain for a connection of `id`.
    pub(super) fn of(
        id: &CmId,
        context: NonNull<ibv_context>,
        properties: &DeviceProperties,
    ) -> io::Result<Arc<Self>> {
        if !properties.may_share() {
            return Ok(Arc::new(Self::new(id, context, properties)?));
        }
        let mut shared = SHARED.lock();
        shared.retain(|(_, p)| p.strong_count() > 0);
        let key = context.as_ptr().addr();
        if let Some(p) = shared.iter().find(|(k, _)| *k == key).and_then(|(_, p)| p.upgrade()) {
            return Ok(p);
        }
        let created = Arc::new(Self::new(id, context, properties)?);
        shared.push((key, Arc::downgrade(&created)));
        Ok(created)
    }

    fn new(id: &CmId, context: NonNull<ibv_context>, properties: &DeviceProperties) -> io::Result<Self> {
        let libraries = id.libraries();
        let opened = Opened::new(libraries)?;
        // SAFETY: the context is open, and `opened` keeps it open.
        let pd = unsafe { (libraries.verbs.ibv_alloc_pd)(context.as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(io::Error::last_os_error)?;
        let pd = Arc::new(Pd { libraries, pd, _opened: opened });
        Ok(Self { spans: Mutex::default(), kept: Mutex::default(), pd, windows: properties.windows })
    }

    /// Pointer for the modules with unsafe code. Valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut ibv_pd {
        self.pd.pd.as_ptr()
    }

    pub(super) fn libraries(&self) -> &'static Libraries {
        self.pd.libraries
    }

    /// Returns the key for local access to `span`, and the region for binding windows. Registers the span at
    /// the first call.
    pub(super) fn span(&self, span: &SpanRef) -> io::Result<(u32, *mut ibv_mr)> {
        let mut spans = self.spans.lock();
        if let Some(s) = spans.get(&span.id()) {
            return Ok((s.registration.lkey(), s.registration.mr.as_ptr()));
        }
        // Remove spans whose arenas no longer exist.
        spans.retain(|_, s| !s.mapped.is_last());
        let access = IBV_ACCESS_LOCAL_WRITE | if self.windows { IBV_ACCESS_MW_BIND } else { 0 };
        // SAFETY: the whole span stays mapped while `mapped` exists, which is dropped after the registration;
        // with these rights only local work accesses it, and work keeps its buffers.
        let registration = unsafe { self.register(span.address(), span.len(), access) }?;
        let keys = (registration.lkey(), registration.mr.as_ptr());
        spans.insert(span.id(), Span { registration, mapped: span.clone() });
        Ok(keys)
    }

    /// Registers memory for local use only.
    pub(super) fn register_local(&self, addr: usize, len: usize) -> io::Result<Registration> {
        // SAFETY: no peer has access. Only local work accesses it, and that keeps its buffers; pinned pages
        // stay until deregistration even if the mapping is removed.
        unsafe { self.register(addr, len, IBV_ACCESS_LOCAL_WRITE) }
    }

    /// Registers a whole span for local use only, once for all connections that share the domain.
    pub(super) fn keep(&self, span: &SpanRef) -> io::Result<Arc<Registration>> {
        let mut kept = self.kept.lock();
        if let Some(existing) = kept.get(&span.id()).and_then(Weak::upgrade) {
            return Ok(existing);
        }
        kept.retain(|_, r| r.strong_count() > 0);
        let registration = Arc::new(self.register_local(span.address(), span.len())?);
        kept.insert(span.id(), Arc::downgrade(&registration));
        Ok(registration)
    }

    /// Registers memory with the rights `access`.
    ///
    /// # Safety
    /// The memory must stay mapped, and no other code may rely on its content, until the result is dropped.
    pub(super) unsafe fn register(&self, addr: usize, len: usize, access: u32) -> io::Result<Registration> {
        let at = std::ptr::with_exposed_provenance_mut(addr);
        // SAFETY: ensured by the caller.
        let mr = unsafe { (self.pd.libraries.verbs.ibv_reg_mr)(self.as_ptr(), at, len, access as i32) };
        let mr = NonNull::new(mr).ok_or_else(io::Error::last_os_error)?;
        Ok(Registration { mr, pd: Arc::clone(&self.pd) })
    }

    /// Allocates a window.
    pub(super) fn window(&self) -> io::Result<Window> {
        // SAFETY: the domain is valid.
        let mw = NonNull::new(unsafe { inline::ibv_alloc_mw(self.as_ptr(), IBV_MW_TYPE_2) })
            .ok_or_else(io::Error::last_os_error)?;
        // SAFETY: just allocated.
        let rkey = unsafe { mw.as_ref() }.rkey;
        Ok(Window { mw, rkey, _pd: Arc::clone(&self.pd) })
    }
}
