//! Memory management for network buffers and stored data.
//!
//! An [`Arena`] provides large, aligned memory, mapped once (and registered once by a provider, for local
//! access). It allocates [`Buffer`]s with one owner each. A filled buffer can be turned into a [`View`]
//! (read-only, cheap to clone); [`Views`] is a gather list of views, so that data is passed by reference from
//! a file system to the wire. Memory returns to its arena when the last buffer or view of it is dropped. In
//! steady state nothing here allocates from the heap. [`copy`] counts all bytes copied by code above the
//! providers.

mod arena;
mod block_spans;
mod buffer_lengths;
mod byte_size;
#[cfg(feature = "call-counts")]
pub mod call_counts;
mod class_spans;
pub mod copied;
mod mapping;
mod quota;
pub mod scratch;
mod slot;
mod slot_cache;
mod span;
mod stash;
mod sync;
mod system;
#[cfg(all(test, not(loom)))]
mod tests;
mod views;
mod waiters;
mod waiting;

pub use arena::{Arena, ArenaConfig, ArenaStats, OutOfMemory, SpanCount, TRIM_INTERVAL};
pub use buffer_lengths::BufferLengths;
pub use byte_size::{ByteSize, HumanSize, InvalidByteSize, grouped};
pub use copied::copy;
pub use mapping::{SPAN_BYTES, SpanRef};
pub use quota::{OverQuota, Quota};
pub use slot::{Buffer, View};
pub use span::{BLOCK_BYTES, PAGE_BYTES, slot_bytes};
pub use stash::Stash;
pub use views::Views;
pub use waiting::MemoryWait;
