//! iSCSI PDUs on byte streams (RFC 7143 section 4.2.8.1), the same for initiators and targets: [`Input`] receives data
//! into its final memory, [`Output`] sends headers and views of data with vectored writes.

mod input;
mod output;

pub use input::{Broken, Input};
pub use output::{Output, Segment};
