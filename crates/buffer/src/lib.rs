//! Memory, and nothing about networks.
//!
//! An [`Arena`] is large, aligned memory, mapped once (and registered once by a provider, for local access). It gives
//! [`Buffer`]s, each *owned* by whoever holds it. A buffer that is filled and shall be shared becomes a [`View`]
//! (cheap clones, read only); views are gathered in [`Views`], so that data moves by reference from a file system to
//! the wire. A piece of memory goes back to its arena when the last buffer or view of it is dropped. In steady state
//! nothing here allocates from the heap. [`copy`] counts every byte that the code above the providers copies.

mod arena;
mod block_spans;
mod class_spans;
pub mod copied;
mod mapping;
mod quota;
mod slot;
mod span;
mod sync;
mod system;
#[cfg(all(test, not(loom)))]
mod tests;
mod views;

pub use arena::{Arena, ArenaConfig, ArenaStats, OutOfMemory, SpanCount, TRIM_INTERVAL};
pub use copied::copy;
pub use mapping::{SPAN_BYTES, SpanRef};
pub use quota::{OverQuota, Quota};
pub use slot::{Buffer, View};
pub use span::{BLOCK_BYTES, PAGE_BYTES};
pub use views::Views;
