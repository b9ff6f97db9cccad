//! Configuration of a target.

use millrace_buffer::Arena;

/// Configuration of a [`Target`](crate::Target).
#[derive(Clone)]
pub struct TargetConfig {
    /// SCSI name of the target device: the iSCSI name, at most 223 bytes.
    pub name: String,
    /// Memory for parameter data and for computed blocks.
    pub arena: Arena,
}
