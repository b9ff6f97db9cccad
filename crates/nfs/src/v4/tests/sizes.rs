//! Sizes and positions.

use millrace_xdr::{Decoder, Encoder};

use super::{encoded, flat, message, views};
use crate::{Bulk, v4::*};

const SESSION: SessionId = SessionId([5; 16]);
const STATEID: Stateid = Stateid { seqid: 1, other: [2; 12] };

/// Operations with arguments and the bulk data that they request.
fn operations() -> Vec<(Operation, Vec<u8>, Option<Bulk>)> {
    let sequence = SequenceArgs { session: SESSION, sequence: 1, slot: 2, highest_slot: 3, cache_this: true };
    let read = ReadArgs { stateid: STATEID, offset: 7, count: 1000 };
    let requested = Bitmap::of(&[Attribute::FileType, Attribute::Mode]);
    let readdir = ReaddirArgs { cookie: 3, verifier: [0; 8], dircount: 100, maxcount: 2000, requested };
    let open = OpenArgs {
        seqid: 0,
        share_access: share_access::READ,
        share_deny: share_deny::NONE,
        owner: StateOwner { client_id: ClientId { number: 1 }, owner: Opaque(b"owner") },
        create: Some(CreateHow::Exclusive41([3; 8], Attributes { mode: Some(1), ..Attributes::default() })),
        claim: Claim::Null(Opaque(b"name")),
    };
    let attributes = Attributes { mode: Some(1), ..Attributes::default() };
    let setattr = SetattrArgs { stateid: STATEID, attributes };
    let put = |args: &dyn Fn(&mut Encoder)| flat(&encoded(args));
    let name = put(&|e| e.put_opaque(b"name5"));
    vec![
        (Operation::Sequence, put(&|e| e.put(&sequence)), None),
        (Operation::Putfh, put(&|e| e.put(&PutfhArgs { handle: Opaque(&[7; 33]) })), None),
        (Operation::Getfh, vec![], None),
        (Operation::Savefh, vec![], None),
        (Operation::RestoreFh, vec![], None),
        (Operation::Putrootfh, vec![], None),
        (Operation::Putpubfh, vec![], None),
        (Operation::Lookupp, vec![], None),
        (Operation::Lookup, name.clone(), None),
        (Operation::Secinfo, name.clone(), None),
        (
            Operation::SecinfoNoName,
            put(&|e| e.put(&SecinfoNoNameArgs { style: SecinfoStyle::CurrentFh })),
            None,
        ),
        (Operation::Access, put(&|e| e.put(&AccessArgs { access: 1 })), None),
        (Operation::Getattr, put(&|e| e.put(&GetattrArgs { requested })), None),
        (Operation::Open, put(&|e| e.put(&open)), None),
        (Operation::Setattr, put(&|e| e.put(&setattr)), None),
        (Operation::Close, put(&|e| e.put(&CloseArgs { seqid: 0, stateid: STATEID })), None),
        (Operation::Read, put(&|e| e.put(&read)), Some(Bulk::Data(1000))),
        (Operation::ReadPlus, put(&|e| e.put(&read)), Some(Bulk::Data(1000))),
        (Operation::Readdir, put(&|e| e.put(&readdir)), Some(Bulk::List(2000))),
        (Operation::Getxattr, name, Some(Bulk::Value)),
        (
            Operation::Listxattrs,
            put(&|e| e.put(&ListxattrsArgs { cookie: 9, maxcount: 3000 })),
            Some(Bulk::List(3000)),
        ),
        (Operation::Readlink, vec![], Some(Bulk::Target)),
    ]
}

#[test]
fn the_arguments_of_sized_operations_are_skipped_exactly() {
    for (operation, arguments, bulk) in operations() {
        let mut d = Decoder::from_bytes(&arguments);
        let found = operation.result_bytes(&mut d);
        assert_eq!((found.bulk, found.is_skipped, d.remaining()), (bulk, true, 0), "{operation}");
        for cut in 0..arguments.len() {
            let found = operation.result_bytes(&mut Decoder::from_bytes(&arguments[..cut]));
            assert_eq!((found.bulk, found.is_skipped), (None, false), "{operation} cut at {cut}");
        }
    }
    let sized: Vec<Operation> = operations().into_iter().map(|(operation, ..)| operation).collect();
    for operation in Operation::ALL.iter().filter(|operation| !sized.contains(operation)) {
        let found = operation.result_bytes(&mut Decoder::from_bytes(&[0; 64]));
        assert_eq!((found.bulk, found.is_skipped), (None, false), "{operation}");
    }
}

#[test]
fn the_data_of_read_and_write_is_at_the_stated_positions() {
    let reply = encoded(|e| {
        let mut results = CompoundEncoder::begin(e, b"");
        results.operation(e, Operation::Sequence);
        let before = e.len();
        e.put(&SequenceOk {
            session: SESSION,
            sequence: 1,
            slot: 0,
            highest_slot: 1,
            target_highest_slot: 1,
            status_flags: 0,
        });
        assert_eq!(e.len() - before, SEQUENCE_OK_BYTES);
        results.operation(e, Operation::Putfh);
        results.operation(e, Operation::Read);
        ReadOk { eof: true, data: views(b"data") }.encode_into(e);
        results.finish(e);
    });
    assert_eq!(reply.payloads[0].position, READ_DATA_OFFSET);
    let write = WriteArgs { stateid: STATEID, offset: 1, stable: StableHow::FileSync, data: views(b"data") };
    assert_eq!(message(&write).payloads[0].position, WRITE_DATA_OFFSET);
}
