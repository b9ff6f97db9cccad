//! Callbacks.

use millrace_xdr::{Decoder, XdrError};

use super::{bytes, decode, encoded, exact, flat, hex};
use crate::v4::*;

const SESSION: SessionId = SessionId([0xab; 16]);
const SESSION_WORDS: &str = "abababab abababab abababab abababab";
const STATEID: Stateid = Stateid { seqid: 1, other: [0x5a; 12] };

#[test]
fn a_recall() {
    let m = encoded(|e| {
        e.put(&CallbackArgs { tag: Opaque(b""), minor_version: 2, callback_ident: 0, operations: 2 });
        e.put(&CallbackOperation::Sequence);
        e.put(&CbSequenceArgs {
            session: SESSION,
            sequence: 1,
            slot: 0,
            highest_slot: 0,
            cache_this: false,
            referring_calls: List::default(),
        });
        e.put(&CallbackOperation::Recall);
        e.put(&CbRecallArgs { stateid: STATEID, truncate: true, handle: Opaque(&[7; 6]) });
    });
    let words = format!(
        "00000000 00000002 00000000 00000002
         0000000b {SESSION_WORDS} 00000001 00000000 00000000 00000000 00000000
         00000004 00000001 5a5a5a5a 5a5a5a5a 5a5a5a5a 00000001 00000006 07070707 07070000"
    );
    assert_eq!(hex(&flat(&m)), hex(&bytes(&words)));
    let mut d = Decoder::new(&m);
    assert_eq!(d.get::<CallbackArgs<'_>>().unwrap().operations, 2);
    assert_eq!(d.get(), Ok(CallbackOperation::Sequence));
    assert_eq!(d.get::<CbSequenceArgs>().unwrap().session, SESSION);
    assert_eq!(d.get(), Ok(CallbackOperation::Recall));
    assert_eq!(d.get::<CbRecallArgs<'_>>().unwrap().stateid, STATEID);
    assert_eq!(d.remaining(), 0);
}

#[test]
fn the_answer_to_a_recall() {
    let ok =
        CbSequenceOk { session: SESSION, sequence: 1, slot: 0, highest_slot: 15, target_highest_slot: 14 };
    let m = encoded(|e| {
        let mut c = CompoundEncoder::begin(e, b"");
        c.operation(e, CallbackOperation::Sequence);
        e.put(&ok);
        c.operation(e, CallbackOperation::Recall);
        c.fail(e, Status::BadStateid);
        c.finish(e);
    });
    let words = format!(
        "00002729 00000000 00000002
         0000000b 00000000 {SESSION_WORDS} 00000001 00000000 0000000f 0000000e
         00000004 00002729"
    );
    assert_eq!(hex(&flat(&m)), hex(&bytes(&words)));
    let mut d = Decoder::new(&m);
    assert_eq!(d.get::<CompoundRes<'_>>().unwrap().results, 2);
    assert_eq!(decode_result(&mut d, CallbackOperation::Sequence), Ok(Ok(ok)));
    assert_eq!(decode_result::<()>(&mut d, CallbackOperation::Recall), Ok(Err(Status::BadStateid)));
}

#[test]
fn callback_operations() {
    let calls = List(vec![ReferringCall { sequence: 5, slot: 1 }, ReferringCall { sequence: 6, slot: 2 }]);
    let args = CbSequenceArgs {
        session: SESSION,
        sequence: 2,
        slot: 1,
        highest_slot: 3,
        cache_this: true,
        referring_calls: List(vec![ReferringCalls { session: SESSION, calls }]),
    };
    exact!(
        CbSequenceArgs,
        args,
        &format!(
            "{SESSION_WORDS} 00000002 00000001 00000003 00000001
             00000001 {SESSION_WORDS} 00000002 00000005 00000001 00000006 00000002"
        )
    );
    exact!(
        CbGetattrArgs<'_>,
        CbGetattrArgs {
            handle: Opaque(&[1, 2, 3, 4]),
            requested: Bitmap::of(&[Attribute::Change, Attribute::Size])
        },
        "00000004 01020304 00000001 00000018"
    );
    exact!(
        CbRecallAnyArgs,
        CbRecallAnyArgs { keep: 10, types: Bitmap::from([recall_any::WRITE_DELEGATIONS, 0, 0]) },
        "0000000a 00000001 00000002"
    );
    exact!(
        CbNotifyLockArgs<'_>,
        CbNotifyLockArgs {
            handle: Opaque(&[9]),
            owner: StateOwner { client_id: ClientId { number: 1 }, owner: Opaque(b"lock") }
        },
        "00000001 09000000 00000000 00000001 00000004 6c6f636b"
    );
}

#[test]
fn hostile_callbacks_are_rejected() {
    let b = bytes("00000000 00000001 00000000 ffffffff 0000000b");
    assert!(matches!(decode::<CallbackArgs<'_>>(&b), Err(XdrError::Short { .. })));
    for count in ["00000041", "ffffffff"] {
        let b = bytes(&format!("{SESSION_WORDS} 00000002 00000001 00000003 00000001 {count} 00000000"));
        assert!(decode::<CbSequenceArgs>(&b).is_err(), "{count} lists of requests");
        let b = bytes(&format!("{SESSION_WORDS} {count} 00000000"));
        assert!(decode::<ReferringCalls>(&b).is_err(), "{count} requests");
    }
}
