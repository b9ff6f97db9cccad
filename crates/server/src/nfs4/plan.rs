//! One pass over the arguments of a COMPOUND: its operations, and the memory that its reply may need.

use millrace_buffer::slot_bytes;
use millrace_nfs::v4::{CompoundArgs, Operation, ResultBytes, WRITE_DATA_OFFSET, next_operation};
use millrace_oncrpc::{CallClass, Operations, Plan, SMALL_CALL, SMALL_REPLY};
use millrace_xdr::Decoder;

use crate::bulk::{self, MAX_PAGE};

/// Bytes that a reply needs.
struct ReplyBytes {
    /// The RPC header and results without bulk data.
    head: usize,
    bulk: u32,
    /// Memory for the bulk data.
    bulk_memory: usize,
}

impl ReplyBytes {
    /// Adds bulk data, in total not more than that of one READ or READDIR.
    fn add_bulk(&mut self, bytes: u32, rtmax: u32) {
        let most = slot_bytes(rtmax.max(MAX_PAGE) as usize);
        let memory = slot_bytes(bytes as usize);
        if self.bulk_memory + memory <= most {
            self.bulk += bytes;
            self.bulk_memory += memory;
        }
    }
}

/// Finds the operations at `args` as far as they can be decoded. `length` is the size of the whole call; `rtmax` is the
/// maximum size of READ, and `most` the number of operations of a COMPOUND in a session. Of more than these only the first
/// has a result, so that it does not matter what the others need.
pub(super) fn plan(args: &mut Decoder<'_>, length: usize, rtmax: u32, most: u32) -> Plan {
    let mut plan = Plan::default();
    let Ok(CompoundArgs { tag, minor_version, operations: count }) = args.get() else {
        return Plan { reply_bytes: None, ..plan };
    };
    plan.operations = Operations::new(minor_version, count, args.position());
    let mut size = ReplyBytes { head: SMALL_REPLY / 2 + tag.len(), bulk: 0, bulk_memory: 0 };
    for _ in 0..if count > most { 1 } else { count } {
        let Ok(operation) = next_operation(args) else { break };
        plan.operations.keep(operation.number());
        match operation {
            Operation::Read | Operation::ReadPlus => plan.class = CallClass::Read,
            Operation::Write => plan.class = CallClass::Write,
            _ => {}
        }
        if operation == Operation::Write && args.remaining() >= WRITE_DATA_OFFSET {
            plan.data_offset = Some((args.position() + WRITE_DATA_OFFSET) as u32);
        }
        let ResultBytes { head, bulk, is_skipped } = operation.result_bytes(args);
        size.head += head;
        if let Some(bulk) = bulk {
            size.add_bulk(bulk::bytes(bulk, rtmax), rtmax);
        }
        if !is_skipped {
            break;
        }
    }
    if length > SMALL_CALL {
        (size.bulk, size.bulk_memory) = (0, 0);
    }
    let head = if size.head <= SMALL_REPLY { SMALL_REPLY } else { slot_bytes(size.head) };
    (plan.reply_bytes, plan.bulk) = (Some((size.bulk_memory + head) as u32), size.bulk);
    plan
}

#[cfg(test)]
mod tests {
    use millrace_buffer::{Arena, ArenaConfig};
    use millrace_xdr::Encoder;

    use super::*;

    /// The plan of a COMPOUND of `count` operations that request all attributes, in a server that permits 64.
    fn of_getattrs(count: u32) -> Plan {
        let arena = Arena::new(ArenaConfig { limit: 16 << 20, huge_pages: false });
        let mut e = Encoder::new(&arena, 1 << 20);
        e.put_words([0, 2, count]);
        for _ in 0..count {
            e.put_words([Operation::Getattr.number(), 1, u32::MAX]);
        }
        let message = e.finish().unwrap();
        plan(&mut Decoder::new(&message), message.stream_len(), 1 << 20, 64)
    }

    #[test]
    fn operations_that_no_session_permits_reserve_no_memory() {
        assert!(of_getattrs(64).reply_bytes >= Some(64 * 560));
        for count in [65, 80_000] {
            let plan = of_getattrs(count);
            assert!(plan.reply_bytes <= Some(1024), "{count} operations: {plan:?}");
            assert_eq!(plan.operations.count, count);
        }
    }
}
