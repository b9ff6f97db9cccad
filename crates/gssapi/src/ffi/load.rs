//! Loading of the library at run time.

use std::{
    ffi::{c_int, c_void},
    sync::OnceLock,
};

use libloading::Library;

use super::types::*;
use crate::error::LoadError;

/// The file of the library. Heimdal's has another name and other structures.
const FILE: &str = "libgssapi_krb5.so.2";

/// Declares a table of the library's functions, and the function that loads it.
macro_rules! library {
    ($(#[$doc:meta])* $name:ident { $(fn $f:ident($($a:ty),* $(,)?) -> OM_uint32;)* }) => {
        $(#[$doc])*
        pub(crate) struct $name {
            $(pub(crate) $f: unsafe extern "C" fn($($a),*) -> OM_uint32,)*
            /// Keeps the code in memory.
            _library: Library,
        }

        impl $name {
            pub(crate) fn load(file: &'static str) -> Result<Self, LoadError> {
                // SAFETY: the constructors of the library have no special requirements.
                let library = unsafe { Library::new(file) }
                    .map_err(|e| LoadError::Library { library: file, reason: e.to_string() })?;
                Ok(Self {
                    $($f: {
                        const SYMBOL: &str = stringify!($f);
                        // SAFETY: the type is that of the function in the library's header; the table keeps the
                        // library loaded.
                        unsafe { library.get(SYMBOL.as_bytes()).map(|s| *s) }
                            .map_err(|_| LoadError::Symbol { library: file, symbol: SYMBOL })?
                    },)*
                    _library: library,
                })
            }
        }
    };
}

library! {
    /// The functions. Each writes a status of the mechanism to its first argument, and returns one of GSS-API.
    Gssapi {
        fn gss_acquire_cred_from(
            *mut OM_uint32, Handle, OM_uint32, *mut gss_OID_set_desc, c_int, *const gss_key_value_set_desc,
            *mut Handle, *mut *mut gss_OID_set_desc, *mut OM_uint32,
        ) -> OM_uint32;
        fn gss_inquire_cred(
            *mut OM_uint32, Handle, *mut Handle, *mut OM_uint32, *mut c_int, *mut *mut gss_OID_set_desc,
        ) -> OM_uint32;
        fn gss_release_cred(*mut OM_uint32, *mut Handle) -> OM_uint32;
        fn gss_import_name(*mut OM_uint32, *mut gss_buffer_desc, *mut gss_OID_desc, *mut Handle) -> OM_uint32;
        fn gss_display_name(
            *mut OM_uint32, Handle, *mut gss_buffer_desc, *mut *mut gss_OID_desc,
        ) -> OM_uint32;
        fn gss_release_name(*mut OM_uint32, *mut Handle) -> OM_uint32;
        fn gss_accept_sec_context(
            *mut OM_uint32, *mut Handle, Handle, *mut gss_buffer_desc, *mut c_void, *mut Handle,
            *mut *mut gss_OID_desc, *mut gss_buffer_desc, *mut OM_uint32, *mut OM_uint32, *mut Handle,
        ) -> OM_uint32;
        fn gss_init_sec_context(
            *mut OM_uint32, Handle, *mut Handle, Handle, *mut gss_OID_desc, OM_uint32, OM_uint32, *mut c_void,
            *mut gss_buffer_desc, *mut *mut gss_OID_desc, *mut gss_buffer_desc, *mut OM_uint32, *mut OM_uint32,
        ) -> OM_uint32;
        fn gss_inquire_context(
            *mut OM_uint32, Handle, *mut Handle, *mut Handle, *mut OM_uint32, *mut *mut gss_OID_desc,
            *mut OM_uint32, *mut c_int, *mut c_int,
        ) -> OM_uint32;
        fn gss_localname(*mut OM_uint32, Handle, *mut gss_OID_desc, *mut gss_buffer_desc) -> OM_uint32;
        fn gss_delete_sec_context(*mut OM_uint32, *mut Handle, *mut gss_buffer_desc) -> OM_uint32;
        fn gss_krb5_export_lucid_sec_context(
            *mut OM_uint32, *mut Handle, OM_uint32, *mut *mut c_void,
        ) -> OM_uint32;
        fn gss_krb5_free_lucid_sec_context(*mut OM_uint32, *mut c_void) -> OM_uint32;
        fn gss_display_status(
            *mut OM_uint32, OM_uint32, c_int, *mut gss_OID_desc, *mut OM_uint32, *mut gss_buffer_desc,
        ) -> OM_uint32;
        fn gss_release_buffer(*mut OM_uint32, *mut gss_buffer_desc) -> OM_uint32;
    }
}

#[cfg(test)]
library! {
    /// The per-message functions, with which the tests compare `millrace_krb5`.
    PerMessage {
        fn gss_get_mic(
            *mut OM_uint32, Handle, OM_uint32, *mut gss_buffer_desc, *mut gss_buffer_desc,
        ) -> OM_uint32;
        fn gss_verify_mic(
            *mut OM_uint32, Handle, *mut gss_buffer_desc, *mut gss_buffer_desc, *mut OM_uint32,
        ) -> OM_uint32;
        fn gss_wrap(
            *mut OM_uint32, Handle, c_int, OM_uint32, *mut gss_buffer_desc, *mut c_int, *mut gss_buffer_desc,
        ) -> OM_uint32;
        fn gss_unwrap(
            *mut OM_uint32, Handle, *mut gss_buffer_desc, *mut gss_buffer_desc, *mut c_int, *mut OM_uint32,
        ) -> OM_uint32;
    }
}

#[cfg(test)]
impl PerMessage {
    pub(crate) const FILE: &str = FILE;
}

/// The library. Loaded at the first call and never unloaded.
pub(crate) fn gssapi() -> Result<&'static Gssapi, LoadError> {
    static LOADED: OnceLock<Result<Gssapi, LoadError>> = OnceLock::new();
    LOADED.get_or_init(|| Gssapi::load(FILE)).as_ref().map_err(LoadError::clone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_a_missing_library_names_the_package() {
        let error = Gssapi::load("libgssapi-not-there.so.2").err().expect("the library exists");
        let text = error.to_string();
        assert!(
            text.contains("libgssapi-not-there.so.2") && text.contains("apt install libgssapi-krb5-2"),
            "{text}"
        );
    }

    #[test]
    fn the_error_for_a_missing_function_names_it() {
        let error = Gssapi::load("libc.so.6").err().expect("libc contains GSS-API");
        let want = LoadError::Symbol { library: "libc.so.6", symbol: "gss_acquire_cred_from" };
        assert_eq!(error, want);
    }
}
