//! Memory of Python objects, which operations fill and read without the GIL.
#![allow(unsafe_code)]

use std::{
    ffi::{c_char, c_int, c_void},
    mem::MaybeUninit,
    ptr, slice,
};

use millrace_buffer::Views;
use pyo3::{
    exceptions::{PyMemoryError, PyTypeError},
    ffi,
    prelude::*,
    types::PyBytes,
};

/// Memory into which an operation reads.
pub(crate) trait Destination: Send + 'static {
    /// The memory. Only the operation that owns `self` accesses it.
    fn memory(&mut self) -> &mut [MaybeUninit<u8>];
}

/// Copies `data` to `memory` from offset `at`; what does not fit is dropped.
fn put(memory: &mut [MaybeUninit<u8>], mut at: usize, data: &Views) {
    for view in data.iter() {
        let Some(rest) = memory.get_mut(at..) else { return };
        let len = view.len().min(rest.len());
        rest[..len].write_copy_of_slice(&view[..len]);
        millrace_buffer::copied::count(len);
        at += len;
    }
}

/// Objects of at least this size get huge pages, because each has an aligned one. The allocator has written its header
/// for the next object into every huge page that smaller objects would share, and a small page excludes a huge one.
const HUGE: usize = 4 << 20;

/// Gives advice on all pages of the memory, whose content does not change. Without support in the kernel nothing happens.
fn advise(start: *mut u8, len: usize, advice: c_int) {
    const PAGE: usize = 4096;
    let before = start.addr() % PAGE;
    let first = start.wrapping_sub(before).cast();
    // SAFETY: the advice that callers give changes no content, also where the pages belong to other objects. An address
    // that is not mapped is an error.
    unsafe { libc::madvise(first, (before + len).next_multiple_of(PAGE), advice) };
}

/// Before objects with `len` bytes together are allocated: makes the C library keep the memory of freed objects for the next
/// ones, unless the environment has its settings. The kernel sets the pages of new memory to zero, which can take longer
/// than the reads.
pub(crate) fn keep_freed_memory(_: Python<'_>, len: usize) {
    /// What the C library returns to the kernel by default: larger objects (`M_MMAP_THRESHOLD`), and more free memory at the
    /// end of the heap (`M_TRIM_THRESHOLD`).
    const LARGE: usize = 128 << 10;
    if len < LARGE {
        return;
    }
    #[cfg(target_env = "gnu")]
    {
        /// Maximum free memory at the end of the heap in bytes.
        const KEPT: c_int = 256 << 20;
        /// Size from which an object has its own mapping: the largest that the C library chooses itself.
        const MAPPED: c_int = 32 << 20;
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            let settings = ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"];
            if settings.iter().all(|name| std::env::var_os(name).is_none()) {
                // SAFETY: mallopt(3) is not thread-safe by its contract: other threads may allocate meanwhile. In glibc, which
                // this is compiled for, it stores two aligned words, as free(3) does when it adjusts the same thresholds
                // without a lock, and each thread may see either value.
                unsafe {
                    libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED);
                    libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
                }
            }
        });
    }
}

/// A bytes object that no Python code has seen yet, with memory that is not initialised: to set a gigabyte to zero takes
/// a tenth of the time in which it is read.
pub(crate) struct NewBytes {
    object: Py<PyBytes>,
    start: *mut u8,
    len: usize,
}

// SAFETY: the memory is not bound to a thread. It is accessed through `&mut self` only: `object` is new, is not shared (only
// empty objects are, and those of one byte with a source), and is not tracked by the garbage collector, so that no Python
// code has a reference to it before `finish`. The object itself is used with the GIL only.
unsafe impl Send for NewBytes {}

impl NewBytes {
    /// Allocates `len` bytes.
    ///
    /// # Errors
    /// MemoryError.
    pub(crate) fn new(py: Python<'_>, len: usize) -> PyResult<Self> {
        let size = isize::try_from(len).map_err(|_| PyMemoryError::new_err(()))?;
        // SAFETY: without a source, the function allocates `size` bytes, or returns NULL with an exception.
        let object =
            unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(ptr::null(), size))? };
        let object = object.cast_into::<PyBytes>()?;
        // SAFETY: it is a bytes object, whose memory neither moves nor ends before it.
        let start = unsafe { ffi::PyBytes_AsString(object.as_ptr()) };
        if len >= HUGE {
            // The kernel makes huge pages on request only (`transparent_hugepage/enabled` is `madvise` by default).
            advise(start.cast(), len, libc::MADV_HUGEPAGE);
        }
        Ok(Self { object: object.unbind(), start: start.cast(), len })
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the object with its first `filled` bytes, which the operation has written: the object itself if these are
    /// all, otherwise a copy.
    pub(crate) fn finish(mut self, py: Python<'_>, filled: usize) -> Py<PyBytes> {
        if filled >= self.len {
            return self.object;
        }
        let memory = &self.memory()[..filled];
        // SAFETY: `filled` is what `ReadBuf` has counted, or the end of the first piece that was short after all before it
        // were put (`ranges::read`): these bytes are initialised.
        let written = unsafe { slice::from_raw_parts(memory.as_ptr().cast::<u8>(), memory.len()) };
        PyBytes::new(py, written).unbind()
    }
}

/// Makes huge pages for objects that share them, before they are filled: objects of 1 MiB, which the allocator places side
/// by side, take a quarter of the time of `MADV_POPULATE_WRITE`. Larger ones get them when they are filled, and the rest
/// of the memory has small pages.
pub(crate) fn make_huge_pages<'o>(objects: impl Iterator<Item = &'o NewBytes>) {
    /// Size of a huge page (x86-64, and arm64 with small pages of 4 KiB); with another one the kernel refuses.
    const PAGE: usize = 2 << 20;
    /// Maximum size of the memory between neighbours: the headers of the allocator and of the objects.
    const GAP: usize = 4096;
    let small = objects.filter(|object| object.len < HUGE);
    let mut parts: Vec<_> = small.map(|object| (object.start.addr(), object.start, object.len)).collect();
    parts.sort_unstable();
    let neighbours = |a: &(usize, _, usize), b: &(usize, _, usize)| b.0 - a.0 <= a.2 + GAP;
    for group in parts.chunk_by(neighbours) {
        let (Some((from, start, _)), Some((last, _, len))) = (group.first(), group.last()) else { continue };
        let first = from.next_multiple_of(PAGE);
        let end = (last + len) / PAGE * PAGE;
        if end > first {
            let start = start.wrapping_add(first - from);
            advise(start, end - first, libc::MADV_HUGEPAGE);
            advise(start, end - first, libc::MADV_COLLAPSE);
        }
    }
}

impl NewBytes {
    /// Copies `data` into the object from offset `at`; what does not fit is dropped. All pages of a large part are made
    /// by one system call, which takes two thirds of the time of a fault for each.
    pub(crate) fn put(&mut self, at: usize, data: &Views) {
        const PAGES: usize = 16;
        if let Some(part) = self.memory().get_mut(at..) {
            let len = data.len().min(part.len());
            if len >= PAGES * 4096 {
                advise(part.as_mut_ptr().cast(), len, libc::MADV_POPULATE_WRITE);
            }
        }
        put(self.memory(), at, data);
    }
}

impl Destination for NewBytes {
    fn memory(&mut self) -> &mut [MaybeUninit<u8>] {
        if self.len == 0 {
            return &mut []; // The empty bytes object is shared.
        }
        // SAFETY: `object` keeps the memory, which has `len` bytes, and nothing else refers to it until `finish`
        // (`Send` above). `MaybeUninit` permits that it is not initialised.
        unsafe { slice::from_raw_parts_mut(self.start.cast(), self.len) }
    }
}

/// The view of memory of the buffer protocol (PEP 3118). It belongs to the stable ABI since Python 3.11; 3.9 and 3.10 have
/// it with the same layout, so that one wheel works with all.
#[repr(C)]
struct PyBuffer {
    buf: *mut c_void,
    obj: *mut ffi::PyObject,
    len: isize,
    itemsize: isize,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut isize,
    strides: *mut isize,
    suboffsets: *mut isize,
    internal: *mut c_void,
}

/// Contiguous bytes.
const SIMPLE: c_int = 0;
/// Contiguous bytes that may be changed.
const WRITABLE: c_int = 1;

// SAFETY: the signatures are those of CPython's object.h and abstract.h.
unsafe extern "C" {
    fn PyObject_GetBuffer(exporter: *mut ffi::PyObject, view: *mut PyBuffer, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut PyBuffer);
}

/// The memory of an object with the buffer protocol, such as a bytearray or a NumPy array. While it is borrowed, the
/// object cannot be resized. Python code that changes the content during an operation races with the operation, as with
/// the methods of `io`.
pub(crate) struct UserBuffer(Box<PyBuffer>);

// SAFETY: the memory is not bound to a thread: an exporter keeps it until the view is released, which needs the GIL.
unsafe impl Send for UserBuffer {}
// SAFETY: shared access only reads. Python code that writes meanwhile is the race that the documentation excludes.
unsafe impl Sync for UserBuffer {}

impl UserBuffer {
    fn borrow(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Self> {
        let mut view = Box::new(PyBuffer {
            buf: ptr::null_mut(),
            obj: ptr::null_mut(),
            len: 0,
            itemsize: 0,
            readonly: 1,
            ndim: 0,
            format: ptr::null_mut(),
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            suboffsets: ptr::null_mut(),
            internal: ptr::null_mut(),
        });
        // SAFETY: the function fills the view, or fails with an exception and leaves nothing to release.
        if unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) } == 0 {
            return Ok(Self(view));
        }
        Err(PyErr::fetch(object.py()))
    }

    /// Borrows the memory of `object` for reading.
    ///
    /// # Errors
    /// TypeError if the object has no memory, or its memory is not contiguous.
    pub(crate) fn readable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::borrow(object, SIMPLE).map_err(|e| expected(object, "a contiguous bytes-like object", &e))
    }

    /// Borrows the memory of `object` for writing.
    ///
    /// # Errors
    /// As [`Self::readable`]; TypeError for a read-only object.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::borrow(object, WRITABLE).map_err(|e| {
            expected(object, "a contiguous read-write bytes-like object, such as a bytearray", &e)
        })
    }

    fn len(&self) -> usize {
        usize::try_from(self.0.len).unwrap_or(0)
    }

    /// The memory to be written to the server.
    pub(crate) fn data(&self) -> &[u8] {
        if self.len() == 0 {
            return &[];
        }
        // SAFETY: the view keeps the memory, contiguous, of this length and initialised, until `self` is dropped. That other
        // threads do not write it meanwhile is up to the program. If they do, other bytes are sent: they are copied, once, and no length
        // or offset depends on them.
        unsafe { slice::from_raw_parts(self.0.buf.cast(), self.len()) }
    }
}

/// TypeError, as the methods of `io` raise it.
fn expected(object: &Bound<'_, PyAny>, what: &str, cause: &PyErr) -> PyErr {
    let class = object.get_type();
    PyTypeError::new_err(format!("expected {what}, not {class}: {}", cause.value(object.py())))
}

impl Destination for UserBuffer {
    fn memory(&mut self) -> &mut [MaybeUninit<u8>] {
        if self.len() == 0 || self.0.readonly != 0 {
            return &mut [];
        }
        // SAFETY: as in `data`; the memory is writable, and this is the only reference of the operation to it.
        unsafe { slice::from_raw_parts_mut(self.0.buf.cast(), self.len()) }
    }
}

impl Drop for UserBuffer {
    fn drop(&mut self) {
        // While the interpreter ends, the memory is left to it.
        Python::try_attach(|_| {
            // SAFETY: the view was filled, and is released once, with the GIL.
            unsafe { PyBuffer_Release(&raw mut *self.0) }
        });
    }
}
