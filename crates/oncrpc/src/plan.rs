//! What a program finds in a call before memory for it is reserved.

use crate::CallClass;

/// Bytes of memory for a reply without bulk data.
pub const SMALL_REPLY: usize = 512;
/// Maximum size in bytes of a call whose reply has bulk data, and of one whose memory is counted in addition to that of its
/// reply. Longer calls that hold memory while they wait for that of their replies could deadlock; their own memory is free
/// when the reply is built.
pub const SMALL_CALL: usize = 4096;
/// Maximum number of operations of a COMPOUND that are kept: those of usual ones. They take no memory from the heap,
/// because none is charged for a call that waits.
const MAX_KEPT: usize = 11;

/// What a program has found in the arguments of a call, in one pass before memory for the call is reserved. The call
/// keeps it ([`crate::CallContext::plan`]), so that its execution looks for nothing again. It is small, because a call
/// is moved several times.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Maximum size in bytes of the reply, for which memory is reserved before the call is executed. `None`: the arguments
    /// are invalid, and the call is not executed.
    pub reply_bytes: Option<u32>,
    /// Bytes of bulk data in the reply, for which `reply_bytes` has room.
    pub bulk: u32,
    /// Position in the call of its data, if it has some.
    pub data_offset: Option<u32>,
    /// The operations of a COMPOUND.
    pub operations: Operations,
    /// Index of the program at the [`crate::Dispatcher`], which sets it.
    pub program: Option<u8>,
    /// The class by which the times of the call are summed up.
    pub class: CallClass,
}

impl Default for Plan {
    /// A call with a small reply.
    fn default() -> Self {
        Self {
            reply_bytes: Some(SMALL_REPLY as u32),
            bulk: 0,
            data_offset: None,
            operations: Operations::default(),
            program: None,
            class: CallClass::Other,
        }
    }
}

/// The frame of a COMPOUND (RFC 8881 section 16.2), and the numbers of its first operations. A call of another procedure
/// has none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Operations {
    /// Minor version.
    pub minor_version: u32,
    /// Number of operations according to the frame.
    pub count: u32,
    /// Position of the first one in the call.
    first_at: u32,
    len: u8,
    kept: [u8; MAX_KEPT],
}

impl Operations {
    /// The frame of a COMPOUND of `count` operations, of which the first one is at the position `first_at` of the call.
    pub fn new(minor_version: u32, count: u32, first_at: usize) -> Self {
        Self { minor_version, count, first_at: first_at as u32, len: 0, kept: [0; MAX_KEPT] }
    }

    /// Position of the first operation in the call.
    pub fn first_at(&self) -> usize {
        self.first_at as usize
    }

    /// Keeps the number of the next operation. Without room, it is decoded again when the call is executed, as are those
    /// after it.
    pub fn keep(&mut self, number: u32) {
        if let (Some(kept), Ok(number)) = (self.kept.get_mut(usize::from(self.len)), u8::try_from(number)) {
            *kept = number;
            self.len += 1;
        }
    }

    /// Number of the operation at `index`, if it is kept.
    pub fn get(&self, index: usize) -> Option<u32> {
        let kept = *self.kept.get(index)?;
        (index < usize::from(self.len)).then_some(u32::from(kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compound_of_many_operations_takes_no_more_memory() {
        let mut operations = Operations::new(2, u32::MAX, 100);
        (0..10_000).for_each(|n| operations.keep(n % 70 + 3));
        let kept: Vec<_> = (0..10_000).map_while(|n| operations.get(n)).collect();
        assert_eq!(kept, (3..3 + MAX_KEPT as u32).collect::<Vec<_>>());
        assert_eq!((operations.count, operations.first_at()), (u32::MAX, 100));
        assert!(size_of::<Plan>() <= 48, "calls with their plan are moved often");
    }
}
