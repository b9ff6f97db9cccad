//! Posted receives. Those without memory get it when a message arrives.

use std::{
    collections::VecDeque,
    task::{Context, Poll},
};

use millrace_buffer::{Arena, Buffer, MemoryWait};
use millrace_rdma::PostError;

/// The reason why a message has no receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoReceive {
    /// No receive is posted.
    Posted,
    /// The arena has no memory for the receive ([`Receives::poll_memory`]).
    Memory,
}

/// The posted receives of a queue pair.
#[derive(Default)]
pub(crate) struct Receives {
    /// Those with memory, in order; the first one may contain a part of a message.
    buffers: VecDeque<Buffer>,
    /// Those without memory, which are used after the others.
    empty: Option<Empty>,
}

/// Receives without memory.
struct Empty {
    arena: Arena,
    /// Size of each in bytes.
    bytes: usize,
    count: usize,
    memory: MemoryWait,
}

impl Empty {
    fn new(arena: &Arena, bytes: usize) -> Self {
        Self { arena: arena.clone(), bytes, count: 1, memory: MemoryWait::new(arena) }
    }
}

impl Receives {
    /// Adds a receive with memory.
    pub(crate) fn push(&mut self, buffer: Buffer) {
        self.buffers.push_back(buffer);
    }

    /// Adds a receive of `bytes` bytes whose memory is allocated later. The memory of a receive of another size than earlier
    /// ones is allocated now.
    pub(crate) fn push_empty(&mut self, arena: &Arena, bytes: usize) -> Result<(), PostError> {
        match &mut self.empty {
            Some(empty) if empty.bytes == bytes => empty.count += 1,
            Some(_) => self.buffers.push_back(alloc(arena, bytes).map_err(PostError::NoMemory)?),
            None => self.empty = Some(Empty::new(arena, bytes)),
        }
        Ok(())
    }

    /// The memory of the first receive.
    pub(crate) fn first(&mut self) -> Result<&mut Buffer, NoReceive> {
        if self.buffers.is_empty() {
            let empty = self.empty.as_mut().filter(|empty| empty.count > 0).ok_or(NoReceive::Posted)?;
            let buffer = alloc(&empty.arena, empty.bytes).map_err(|e| {
                empty.memory.begin(&e);
                NoReceive::Memory
            })?;
            empty.memory.end();
            empty.count -= 1;
            self.buffers.push_back(buffer);
        }
        self.buffers.front_mut().ok_or(NoReceive::Posted)
    }

    /// After [`NoReceive::Memory`]: ready when the memory is to be allocated again.
    pub(crate) fn poll_memory(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.empty.as_mut().map_or(Poll::Ready(()), |empty| empty.memory.poll(cx))
    }

    /// Removes the first receive, whose message is complete.
    pub(crate) fn take_first(&mut self) -> Option<Buffer> {
        self.buffers.pop_front()
    }

    /// Removes all receives.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn alloc(arena: &Arena, bytes: usize) -> Result<Buffer, millrace_buffer::OutOfMemory> {
    let mut buffer = arena.alloc(bytes)?;
    buffer.set_len(bytes);
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use millrace_buffer::ArenaConfig;

    use super::*;

    #[test]
    fn receives_with_memory_are_used_first_and_each_once() {
        let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
        let mut receives = Receives::default();
        assert_eq!(receives.first().err(), Some(NoReceive::Posted));
        receives.push_empty(&arena, 600).unwrap();
        receives.push_empty(&arena, 600).unwrap();
        receives.push(arena.alloc(100).unwrap());
        receives.push_empty(&arena, 700).unwrap();
        for len in [100, 700, 600, 600] {
            assert_eq!(receives.first().unwrap().len(), len);
            assert_eq!(receives.first().unwrap().len(), len, "until it is taken");
            assert_eq!(receives.take_first().unwrap().len(), len);
        }
        assert_eq!(receives.first().err(), Some(NoReceive::Posted));
        receives.push_empty(&arena, 600).unwrap();
        receives.clear();
        assert_eq!(receives.first().err(), Some(NoReceive::Posted));
        assert_eq!(arena.stats().in_use, 0);
    }

    #[test]
    fn a_receive_whose_memory_is_missing_remains() {
        let arena = Arena::new(ArenaConfig { limit: 4 << 20, huge_pages: false });
        let mut receives = Receives::default();
        receives.push_empty(&arena, 4 << 20).unwrap();
        let rest = arena.alloc(4 << 20).unwrap();
        assert_eq!(receives.first().err(), Some(NoReceive::Memory));
        drop(rest);
        assert_eq!(receives.first().unwrap().len(), 4 << 20);
    }
}
