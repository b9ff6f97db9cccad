//! Types and constants.

use std::{
    ffi::{c_char, c_void},
    mem::{offset_of, size_of},
    ptr,
};

pub(crate) type OM_uint32 = u32;
/// A pointer to a structure of the library.
pub(crate) type Handle = *mut c_void;

pub(crate) const GSS_C_INITIATE: i32 = 1;
pub(crate) const GSS_C_ACCEPT: i32 = 2;
pub(crate) const GSS_C_INDEFINITE: OM_uint32 = 0xffff_ffff;

pub(crate) const GSS_C_MUTUAL_FLAG: OM_uint32 = 2;
pub(crate) const GSS_C_CONF_FLAG: OM_uint32 = 16;
pub(crate) const GSS_C_INTEG_FLAG: OM_uint32 = 32;

pub(crate) const GSS_C_GSS_CODE: i32 = 1;
pub(crate) const GSS_C_MECH_CODE: i32 = 2;

pub(crate) const GSS_S_COMPLETE: OM_uint32 = 0;
pub(crate) const GSS_S_CONTINUE_NEEDED: OM_uint32 = 1;

#[repr(C)]
pub(crate) struct gss_buffer_desc {
    pub(crate) length: usize,
    pub(crate) value: *mut c_void,
}

impl gss_buffer_desc {
    pub(crate) const EMPTY: Self = Self { length: 0, value: ptr::null_mut() };

    /// A buffer that the library reads. It must not be used after `bytes`.
    pub(crate) fn borrow(bytes: &[u8]) -> Self {
        Self { length: bytes.len(), value: bytes.as_ptr().cast_mut().cast() }
    }
}

#[repr(C)]
pub(crate) struct gss_OID_desc {
    pub(crate) length: OM_uint32,
    pub(crate) elements: *mut c_void,
}

#[repr(C)]
pub(crate) struct gss_OID_set_desc {
    pub(crate) count: usize,
    pub(crate) elements: *mut gss_OID_desc,
}

#[repr(C)]
pub(crate) struct gss_key_value_element_desc {
    pub(crate) key: *const c_char,
    pub(crate) value: *const c_char,
}

#[repr(C)]
pub(crate) struct gss_key_value_set_desc {
    pub(crate) count: OM_uint32,
    pub(crate) elements: *mut gss_key_value_element_desc,
}

#[repr(C)]
pub(crate) struct gss_krb5_lucid_key_t {
    pub(crate) r#type: OM_uint32,
    pub(crate) length: OM_uint32,
    pub(crate) data: *mut c_void,
}

/// Keys of a context with DES, triple DES or RC4, which is refused.
#[repr(C)]
pub(crate) struct gss_krb5_rfc1964_keydata_t {
    pub(crate) sign_alg: OM_uint32,
    pub(crate) seal_alg: OM_uint32,
    pub(crate) ctx_key: gss_krb5_lucid_key_t,
}

#[repr(C)]
pub(crate) struct gss_krb5_cfx_keydata_t {
    pub(crate) have_acceptor_subkey: OM_uint32,
    pub(crate) ctx_key: gss_krb5_lucid_key_t,
    pub(crate) acceptor_subkey: gss_krb5_lucid_key_t,
}

#[repr(C)]
pub(crate) struct gss_krb5_lucid_context_v1_t {
    pub(crate) version: OM_uint32,
    pub(crate) initiate: OM_uint32,
    pub(crate) endtime: OM_uint32,
    pub(crate) send_seq: u64,
    pub(crate) recv_seq: u64,
    pub(crate) protocol: OM_uint32,
    pub(crate) rfc1964_kd: gss_krb5_rfc1964_keydata_t,
    pub(crate) cfx_kd: gss_krb5_cfx_keydata_t,
}

/// An object identifier that lives as long as the program.
pub(crate) const fn oid(contents: &'static [u8]) -> gss_OID_desc {
    gss_OID_desc { length: contents.len() as OM_uint32, elements: contents.as_ptr().cast_mut().cast() }
}

/// The mechanism Kerberos 5, 1.2.840.113554.1.2.2 (RFC 1964 section 1).
pub(crate) const KRB5: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 1, 2, 2];
/// GSS_C_NT_HOSTBASED_SERVICE, 1.2.840.113554.1.2.1.4 (RFC 2743 section 4.1).
pub(crate) const HOST_BASED_SERVICE: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 1, 2, 1, 4];

// As a C compiler computed them for the headers of MIT krb5 1.20 on x86-64; they are those of all 64-bit systems.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<gss_buffer_desc>() == 16 && offset_of!(gss_buffer_desc, value) == 8);
    assert!(size_of::<gss_OID_desc>() == 16 && offset_of!(gss_OID_desc, elements) == 8);
    assert!(size_of::<gss_OID_set_desc>() == 16 && offset_of!(gss_OID_set_desc, elements) == 8);
    assert!(size_of::<gss_key_value_element_desc>() == 16);
    assert!(size_of::<gss_key_value_set_desc>() == 16 && offset_of!(gss_key_value_set_desc, elements) == 8);
    assert!(size_of::<gss_krb5_lucid_key_t>() == 16 && offset_of!(gss_krb5_lucid_key_t, data) == 8);
    assert!(offset_of!(gss_krb5_cfx_keydata_t, ctx_key) == 8);
    assert!(offset_of!(gss_krb5_cfx_keydata_t, acceptor_subkey) == 24);
    assert!(size_of::<gss_krb5_lucid_context_v1_t>() == 104);
    assert!(offset_of!(gss_krb5_lucid_context_v1_t, endtime) == 8);
    assert!(offset_of!(gss_krb5_lucid_context_v1_t, send_seq) == 16);
    assert!(offset_of!(gss_krb5_lucid_context_v1_t, protocol) == 32);
    assert!(offset_of!(gss_krb5_lucid_context_v1_t, rfc1964_kd) == 40);
    assert!(offset_of!(gss_krb5_lucid_context_v1_t, cfx_kd) == 64);
};
