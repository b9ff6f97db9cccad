//! One pass over the arguments of a COMPOUND: its operations, and the memory that its reply may need.

use millrace_buffer::slot_bytes;
use millrace_nfs::v4::{CompoundArgs, Operation, ResultBytes, WRITE_DATA_OFFSET, next_operation};
use millrace_oncrpc::{Operations, Plan, SMALL_CALL, SMALL_REPLY};
use millrace_xdr::Decoder;

use crate::bulk::{self, MAX_PAGE};

/// Bytes that a reply needs.
struct ReplyBytes {
    /// The RPC header and results without bulk data.
    head: usize,
    bulk: usize,
    /// Memory for the bulk data.
    bulk_memory: usize,
}

impl ReplyBytes {
    /// Adds bulk data, in total not more than that of one READ or READDIR.
    fn add_bulk(&mut self, bytes: usize, rtmax: u32) {
        let most = slot_bytes(rtmax.max(MAX_PAGE) as usize);
        let memory = slot_bytes(bytes);
        if self.bulk_memory + memory <= most {
            self.bulk += bytes;
            self.bulk_memory += memory;
        }
    }
}

/// Finds the operations at `args` as far as they can be decoded. `length` is the size of the whole call; `rtmax` is the
/// maximum size of READ.
pub(super) fn plan(args: &mut Decoder<'_>, length: usize, rtmax: u32) -> Plan {
    let mut plan = Plan::default();
    let Ok(CompoundArgs { tag, minor_version, operations: count }) = args.get() else {
        return Plan { reply_bytes: None, ..plan };
    };
    plan.operations = Operations::new(minor_version, count, args.position());
    let mut size = ReplyBytes { head: SMALL_REPLY / 2 + tag.len(), bulk: 0, bulk_memory: 0 };
    for _ in 0..count {
        let Ok(operation) = next_operation(args) else { break };
        let at = args.position();
        plan.operations.keep(operation.number(), at);
        if operation == Operation::Write && args.remaining() >= WRITE_DATA_OFFSET {
            plan.data_offset = Some(at + WRITE_DATA_OFFSET);
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
    (plan.reply_bytes, plan.bulk) = (Some(size.bulk_memory + head), size.bulk);
    plan
}
