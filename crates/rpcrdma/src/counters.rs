//! Counters that several connections may share.

use std::sync::atomic::{AtomicU64, Ordering};

/// Defines a struct of counters and its snapshot. Both include the exposure of this end's memory.
macro_rules! counters {
    (
        $(#[doc = $live_doc:literal])+ $live:ident, $snapshot:ident:
        $($(#[doc = $doc:literal])+ $name:ident,)*
    ) => {
        $(#[doc = $live_doc])+
        #[derive(Debug, Default)]
        pub struct $live {
            $(pub(crate) $name: std::sync::atomic::AtomicU64,)*
            pub(crate) exposure: std::sync::Arc<millrace_rdma::ExposureMeter>,
        }

        #[doc = concat!("A snapshot of [`", stringify!($live), "`].")]
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $snapshot {
            $($(#[doc = $doc])+ pub $name: u64,)*
            /// Exposure of this end's memory to peers.
            pub exposure: millrace_rdma::ExposureStats,
        }

        impl $live {
            /// Returns the current values.
            pub fn snapshot(&self) -> $snapshot {
                $snapshot {
                    $($name: self.$name.load(std::sync::atomic::Ordering::Relaxed),)*
                    exposure: self.exposure.snapshot(),
                }
            }
        }
    };
}
pub(crate) use counters;

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

pub(crate) fn sub(counter: &AtomicU64, n: usize) {
    counter.fetch_sub(n as u64, Ordering::Relaxed);
}

pub(crate) fn set(counter: &AtomicU64, n: usize) {
    counter.store(n as u64, Ordering::Relaxed);
}
