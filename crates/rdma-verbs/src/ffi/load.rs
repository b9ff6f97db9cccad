//! Loading of the libraries at run time.

use std::{
    ffi::{c_int, c_uint, c_void},
    sync::OnceLock,
};

use libloading::Library;

use super::{cm::*, verbs::*};

/// Why rdma-core cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A library is missing or cannot be loaded.
    #[error(
        "cannot load {library} ({reason}); install rdma-core (Debian and Ubuntu: apt install ibverbs-providers \
         librdmacm1; Fedora and RHEL: dnf install libibverbs librdmacm)"
    )]
    Library {
        /// File name of the library.
        library: &'static str,
        /// Error of the dynamic loader.
        reason: String,
    },
    /// A library is too old.
    #[error("{library} has no function {symbol}: install rdma-core 32 or newer")]
    Symbol {
        /// File name of the library.
        library: &'static str,
        /// Name of the missing function.
        symbol: &'static str,
    },
}

/// Declares a table of a library's functions, and the function that loads it.
macro_rules! library {
    ($(#[$doc:meta])* $name:ident = $file:literal { $(fn $f:ident($($a:ty),*) $(-> $r:ty)?;)* }) => {
        $(#[$doc])*
        pub(crate) struct $name {
            $(pub(crate) $f: unsafe extern "C" fn($($a),*) $(-> $r)?,)*
            /// Keeps the code in memory.
            _library: Library,
        }

        impl $name {
            fn load(file: &'static str) -> Result<Self, LoadError> {
                // SAFETY: the constructors of rdma-core's libraries have no special requirements.
                let library = unsafe { Library::new(file) }
                    .map_err(|e| LoadError::Library { library: file, reason: e.to_string() })?;
                Ok(Self {
                    $($f: {
                        const SYMBOL: &str = stringify!($f);
                        // SAFETY: the type is that of the function in rdma-core's header; the table keeps the
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
    /// The exported symbols of libibverbs. (The inline functions of its header are in [`super::inline`].)
    Verbs = "libibverbs.so.1" {
        fn ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
        fn ibv_free_device_list(*mut *mut ibv_device);
        fn ibv_open_device(*mut ibv_device) -> *mut ibv_context;
        fn ibv_close_device(*mut ibv_context) -> c_int;
        fn ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        // The exported function, which the header hides behind an inline one.
        fn ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        fn ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
        fn ibv_dealloc_pd(*mut ibv_pd) -> c_int;
        // Sufficient for mandatory access flags; optional ones would require `ibv_reg_mr_iova2`.
        fn ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        fn ibv_dereg_mr(*mut ibv_mr) -> c_int;
        fn ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
        fn ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
        fn ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        fn ibv_destroy_cq(*mut ibv_cq) -> c_int;
        fn ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        fn ibv_destroy_srq(*mut ibv_srq) -> c_int;
        fn ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        fn ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(*mut ibv_cq, c_uint);
        fn _ibv_query_gid_table(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
    }
}

library! {
    /// librdmacm.
    Cm = "librdmacm.so.1" {
        fn rdma_create_event_channel() -> *mut rdma_event_channel;
        fn rdma_destroy_event_channel(*mut rdma_event_channel);
        fn rdma_create_id(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_uint) -> c_int;
        fn rdma_destroy_id(*mut rdma_cm_id) -> c_int;
        fn rdma_bind_addr(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
        fn rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
        fn rdma_resolve_addr(*mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        fn rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
        fn rdma_create_qp(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        fn rdma_destroy_qp(*mut rdma_cm_id);
        fn rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        fn rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        fn rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        fn rdma_disconnect(*mut rdma_cm_id) -> c_int;
        fn rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        fn rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
        fn rdma_migrate_id(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
        fn rdma_get_devices(*mut c_int) -> *mut *mut ibv_context;
        fn rdma_free_devices(*mut *mut ibv_context);
    }
}

/// rdma-core.
pub(crate) struct Libraries {
    pub(crate) verbs: Verbs,
    pub(crate) cm: Cm,
}

/// The libraries. Loaded at the first call and never unloaded.
pub(crate) fn libraries() -> Result<&'static Libraries, LoadError> {
    static LOADED: OnceLock<Result<Libraries, LoadError>> = OnceLock::new();
    let load = || Ok(Libraries { verbs: Verbs::load("libibverbs.so.1")?, cm: Cm::load("librdmacm.so.1")? });
    LOADED.get_or_init(load).as_ref().map_err(LoadError::clone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_a_missing_library_names_the_package() {
        let error = Verbs::load("libibverbs-not-there.so.1").err().expect("the library exists");
        let text = error.to_string();
        assert!(text.contains("libibverbs-not-there.so.1") && text.contains("apt install"), "{text}");
    }

    #[test]
    fn the_error_for_a_missing_function_names_it() {
        // libc is always present and contains no verbs.
        let error = Verbs::load("libc.so.6").err().expect("libc contains verbs");
        let want = LoadError::Symbol { library: "libc.so.6", symbol: "ibv_get_device_list" };
        assert_eq!(error, want);
        assert!(error.to_string().contains("ibv_get_device_list"));
    }
}
