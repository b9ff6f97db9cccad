//! Devices opened through libibverbs.

#![allow(unsafe_code)] // Foreign functions.

use std::{
    ffi::{c_char, c_int},
    io, mem,
    ptr::NonNull,
};

use super::ffi::{Libraries, inline, verbs::*};

/// Converts the text in a C character array.
pub(super) fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|c| *c as u8).take_while(|b| *b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The RDMA devices present at the time of the call.
pub(super) struct DeviceList {
    libraries: &'static Libraries,
    list: NonNull<*mut ibv_device>,
    len: usize,
}

impl DeviceList {
    /// Queries the kernel.
    pub(super) fn new(libraries: &'static Libraries) -> io::Result<Self> {
        let mut len: c_int = 0;
        // SAFETY: `len` is valid for writing.
        let list = unsafe { (libraries.verbs.ibv_get_device_list)(&mut len) };
        let list = NonNull::new(list).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { libraries, list, len: usize::try_from(len).unwrap_or(0) })
    }

    /// The devices of the list.
    pub(super) fn iter(&self) -> impl Iterator<Item = ListedDevice<'_>> {
        // SAFETY: the library returned an array of `len` pointers to devices, which are valid as long as the
        // list.
        let devices = unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.len) };
        devices.iter().filter_map(|d| {
            // SAFETY: as above; devices are not written to.
            let device = unsafe { d.as_ref() }?;
            Some(ListedDevice { libraries: self.libraries, device })
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list comes from the library, and is not in use: `ListedDevice` borrows it.
        unsafe { (self.libraries.verbs.ibv_free_device_list)(self.list.as_ptr()) };
    }
}

/// A device that is not open.
pub(super) struct ListedDevice<'a> {
    libraries: &'static Libraries,
    device: &'a ibv_device,
}

impl ListedDevice<'_> {
    pub(super) fn name(&self) -> String {
        text(&self.device.name)
    }

    pub(super) fn node_type(&self) -> c_int {
        self.device.node_type
    }

    pub(super) fn transport_type(&self) -> c_int {
        self.device.transport_type
    }

    /// Opens the device.
    pub(super) fn open(&self) -> io::Result<OpenDevice> {
        // SAFETY: a device of a valid list. The library does not write through this pointer.
        let context =
            unsafe { (self.libraries.verbs.ibv_open_device)(std::ptr::from_ref(self.device).cast_mut()) };
        let context = NonNull::new(context).ok_or_else(io::Error::last_os_error)?;
        Ok(OpenDevice { libraries: self.libraries, context })
    }
}

/// An open device, for queries.
pub(super) struct OpenDevice {
    libraries: &'static Libraries,
    context: NonNull<ibv_context>,
}

impl OpenDevice {
    pub(super) fn attributes(&self) -> io::Result<ibv_device_attr_ex> {
        // SAFETY: the context is open until `self` is dropped.
        unsafe { device_attributes(self.libraries, self.context) }
    }

    pub(super) fn port(&self, port: u8) -> io::Result<ibv_port_attr> {
        // SAFETY: as above.
        unsafe { port_attributes(self.libraries, self.context, port) }
    }

    /// The valid entries of the GID tables of all ports, at most `limit`.
    pub(super) fn gids(&self, limit: usize) -> io::Result<Vec<ibv_gid_entry>> {
        // SAFETY: the structure contains only numbers, for which zero is valid.
        let mut entries = vec![unsafe { mem::zeroed::<ibv_gid_entry>() }; limit];
        // SAFETY: the context is open; `entries` has space for `limit` entries of this size.
        let n = unsafe {
            (self.libraries.verbs._ibv_query_gid_table)(
                self.context.as_ptr(),
                entries.as_mut_ptr(),
                limit,
                0,
                size_of::<ibv_gid_entry>(),
            )
        };
        let n = usize::try_from(n).map_err(|_| io::Error::from_raw_os_error(-n as i32))?;
        entries.truncate(n);
        Ok(entries)
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        // SAFETY: opened by `ListedDevice::open`; no object created from it exists.
        unsafe { (self.libraries.verbs.ibv_close_device)(self.context.as_ptr()) };
    }
}

/// Queries the attributes of a device.
///
/// # Safety
/// `context` must be open.
pub(super) unsafe fn device_attributes(
    libraries: &Libraries,
    context: NonNull<ibv_context>,
) -> io::Result<ibv_device_attr_ex> {
    // SAFETY: the structure contains only numbers, for which zero is valid; the caller ensures the rest.
    let (attr, rc) = unsafe {
        let mut attr: ibv_device_attr_ex = mem::zeroed();
        let rc = inline::ibv_query_device_ex(&libraries.verbs, context.as_ptr(), &mut attr);
        (attr, rc)
    };
    if rc == 0 { Ok(attr) } else { Err(io::Error::from_raw_os_error(rc)) }
}

/// Queries the state and limits of a port (the first is 1).
///
/// # Safety
/// `context` must be open.
pub(super) unsafe fn port_attributes(
    libraries: &Libraries,
    context: NonNull<ibv_context>,
    port: u8,
) -> io::Result<ibv_port_attr> {
    // SAFETY: as in `device_attributes`.
    let (attr, rc) = unsafe {
        let mut attr: ibv_port_attr = mem::zeroed();
        let rc = inline::ibv_query_port(&libraries.verbs, context.as_ptr(), port, &mut attr);
        (attr, rc)
    };
    if rc == 0 { Ok(attr) } else { Err(io::Error::from_raw_os_error(rc)) }
}

/// The name of the device of an open context.
///
/// # Safety
/// `context` must be open.
pub(super) unsafe fn device_name(context: NonNull<ibv_context>) -> String {
    // SAFETY: an open context points to its device.
    unsafe { (*context.as_ptr()).device.as_ref() }.map_or_else(String::new, |d| text(&d.name))
}
