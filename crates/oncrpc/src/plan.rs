//! What a program finds in a call before memory for it is reserved.

/// Bytes of memory for a reply without bulk data.
pub const SMALL_REPLY: usize = 512;
/// Maximum size in bytes of a call whose reply has bulk data, and of one whose memory is counted in addition to that of its
/// reply. Longer calls that hold memory while they wait for that of their replies could deadlock; their own memory is free
/// when the reply is built.
pub const SMALL_CALL: usize = 4096;
/// Maximum number of operations of a COMPOUND whose positions are kept: those of usual ones. They are kept within the
/// plan, because no memory is charged for a call that waits.
const MAX_KEPT: usize = 8;

/// What a program has found in the arguments of a call, in one pass before memory for the call is reserved. The call
/// keeps it ([`crate::CallContext::plan`]), so that its execution looks for nothing again.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Maximum size in bytes of the reply, for which memory is reserved before the call is executed. `None`: the arguments
    /// are invalid, and the call is not executed.
    pub reply_bytes: Option<usize>,
    /// Bytes of bulk data in the reply, for which `reply_bytes` has room.
    pub bulk: usize,
    /// Position in the call of its data, if it has some.
    pub data_offset: Option<usize>,
    /// The operations of a COMPOUND.
    pub operations: Operations,
    /// Index of the program at the [`crate::Dispatcher`], which sets it.
    pub program: Option<usize>,
}

impl Default for Plan {
    /// A call with a small reply.
    fn default() -> Self {
        Self {
            reply_bytes: Some(SMALL_REPLY),
            bulk: 0,
            data_offset: None,
            operations: Operations::default(),
            program: None,
        }
    }
}

/// The frame of a COMPOUND (RFC 8881 section 16.2), and its first operations. A call of another procedure has none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Operations {
    /// Minor version.
    pub minor_version: u32,
    /// Number of operations according to the frame.
    pub count: u32,
    /// Position of the first one in the call.
    pub first_at: usize,
    /// Number of each of the first operations, and position of its arguments in the call.
    kept: [(u16, u16); MAX_KEPT],
    len: usize,
}

impl Operations {
    /// The frame of a COMPOUND of `count` operations, of which the first one is at the position `first_at` of the call.
    pub fn new(minor_version: u32, count: u32, first_at: usize) -> Self {
        Self { minor_version, count, first_at, ..Self::default() }
    }

    /// Keeps the next operation and the position of its arguments. Without room, it is found again when the call is
    /// executed, as are those after it.
    pub fn keep(&mut self, number: u32, arguments_at: usize) {
        if let Some(kept) = self.kept.get_mut(self.len)
            && let (Ok(number), Ok(at)) = (u16::try_from(number), u16::try_from(arguments_at))
        {
            *kept = (number, at);
            self.len += 1;
        }
    }

    /// Forgets the kept operations, whose positions are not those in the call any more.
    pub fn forget(&mut self) {
        self.len = 0;
    }

    /// The operation at `index`, if it is kept: its number, and the position of its arguments.
    pub fn get(&self, index: usize) -> Option<(u32, usize)> {
        let (number, at) = self.kept[..self.len].get(index)?;
        Some((u32::from(*number), usize::from(*at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compound_of_many_operations_takes_no_more_memory() {
        let mut operations = Operations::new(2, u32::MAX, 100);
        for n in 0..10_000 {
            operations.keep(n + 3, 104 + 4 * n as usize);
        }
        let kept = |operations: &Operations| (0..10_000).map_while(|n| operations.get(n)).collect::<Vec<_>>();
        let first: Vec<_> = (0..MAX_KEPT).map(|n| (n as u32 + 3, 104 + 4 * n)).collect();
        assert_eq!(kept(&operations), first);
        operations.forget();
        assert_eq!(kept(&operations), []);
        assert_eq!((operations.count, operations.first_at), (u32::MAX, 100));
    }

    #[test]
    fn only_positions_that_fit_are_kept() {
        let mut operations = Operations::new(1, 3, 8);
        for at in [12, usize::from(u16::MAX), usize::from(u16::MAX) + 1] {
            operations.keep(53, at);
        }
        assert_eq!([0, 1, 2].map(|n| operations.get(n)), [Some((53, 12)), Some((53, 65535)), None]);
    }
}
