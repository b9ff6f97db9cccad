//! Call and reply headers byte for byte, through the dispatcher, in the order of checks of RFC 5531.

use std::sync::Arc;

use futures::FutureExt;
use millrace_buffer::ArenaConfig;

use millrace_oncrpc::{
    AcceptError, AuthStat, AuthSys, Credential, Dispatcher, LastSender, Message, Program, REPLY_HEAD,
    ReceivedCall, RpcError, RpcMismatch, call_header, parse_reply,
};
use millrace_xdr::{Arena, Encoder};
use proptest::prelude::*;

use crate::common::{Doubler, arena, peer, words};

fn answer(call: &[u8]) -> Option<Vec<u8>> {
    let arena = arena();
    let d = Dispatcher::new([Arc::new(Doubler::default()) as Arc<dyn Program>]);
    let message = Message::from_view(arena.copy_from(call).unwrap());
    let reply = Encoder::new(&arena, REPLY_HEAD);
    let reply = ReceivedCall::parse(message, &mut LastSender::new(peer()), &d).execute(&d, reply);
    reply.into_future().now_or_never().unwrap().map(|m| m.head.to_vec())
}

const XID: u32 = 0x1234_5678;

/// A call with AUTH_NONE.
fn call(vers: u32, proc: u32, args: &[u32]) -> Vec<u8> {
    let mut c = words(&[XID, 0, 2, 100_003, vers, proc, 0, 0, 0, 0]);
    c.extend(words(args));
    c
}

/// A call of procedure 6 with an AUTH_SYS credential of this body and stated length.
fn sys_call(len: u32, body: &[u8]) -> Vec<u8> {
    let mut c = words(&[XID, 0, 2, 100_003, 3, 6, 1, len]);
    c.extend(body);
    c.extend(words(&[0, 0]));
    c
}

fn sys_body(name: &[u8], gids: u32) -> Vec<u8> {
    let mut b = words(&[7, name.len() as u32]);
    b.extend(name);
    b.resize(b.len().next_multiple_of(4), 0);
    b.extend(words(&[1000, 100, gids]));
    (0..gids).for_each(|g| b.extend(g.to_be_bytes()));
    b
}

#[test]
fn null_is_answered_with_a_24_byte_success_header() {
    assert_eq!(answer(&call(3, 0, &[])).unwrap(), words(&[XID, 1, 0, 0, 0, 0]));
}

#[test]
fn null_is_executed_with_any_credential() {
    for flavor in [2, 3, 6, 7, 390_003] {
        let c = words(&[XID, 0, 2, 100_003, 3, 0, flavor, 4, 0xdead_beef, 0, 0]);
        assert_eq!(answer(&c).unwrap(), words(&[XID, 1, 0, 0, 0, 0]), "flavor {flavor}");
    }
}

#[test]
fn results_follow_the_header_at_once_or_later() {
    for proc in [1, 2] {
        assert_eq!(answer(&call(4, proc, &[21])).unwrap(), words(&[XID, 1, 0, 0, 0, 0, 42]));
    }
}

#[test]
fn error_replies_are_encoded_byte_for_byte() {
    let unknown_flavor = words(&[XID, 0, 2, 100_003, 3, 1, 6, 0, 0, 0, 21]);
    let short_token = words(&[XID, 0, 2, 100_003, 3, 1, 2, 4, 9, 0, 0, 21]);
    let cases: [(Vec<u8>, &[u32]); 10] = [
        (words(&[XID, 0, 3, 100_003, 3, 0]), &[XID, 1, 1, 0, 2, 2]),
        (unknown_flavor, &[XID, 1, 1, 1, 1]),
        (short_token, &[XID, 1, 1, 1, 2]),
        (words(&[XID, 0, 2, 100_227, 3, 0, 0, 0, 0, 0]), &[XID, 1, 0, 0, 0, 1]),
        (call(2, 0, &[]), &[XID, 1, 0, 0, 0, 2, 3, 4]),
        (call(5, 99, &[]), &[XID, 1, 0, 0, 0, 2, 3, 4]),
        (call(3, 22, &[]), &[XID, 1, 0, 0, 0, 3]),
        (call(3, 1, &[]), &[XID, 1, 0, 0, 0, 4]),
        (call(3, 5, &[]), &[XID, 1, 0, 0, 0, 5]),
        (call(3, 3, &[]), &[XID, 1, 1, 1, 5]),
    ];
    for (call, reply) in cases {
        assert_eq!(answer(&call).unwrap(), words(reply), "call {call:02x?}");
    }
}

#[test]
fn a_credential_is_checked_before_the_program_and_the_version_before_the_procedure() {
    let bad_cred_and_program = words(&[XID, 0, 2, 1, 9, 9, 1, 401, 0, 0]);
    assert_eq!(answer(&bad_cred_and_program).unwrap(), words(&[XID, 1, 1, 1, 1]));
    let bad_version_and_cred = words(&[XID, 0, 1, 1, 9, 9, 1, 401, 0, 0]);
    assert_eq!(answer(&bad_version_and_cred).unwrap(), words(&[XID, 1, 1, 0, 2, 2]));
}

#[test]
fn messages_other_than_calls_get_no_reply() {
    let whole = call(3, 0, &[]);
    for len in 0..24 {
        assert_eq!(answer(&whole[..len]), None, "{len} bytes");
    }
    assert_eq!(answer(&words(&[XID, 1, 0, 0, 0, 0])), None, "a reply");
    assert_eq!(answer(&words(&[XID, 2, 2, 100_003, 3, 0, 0, 0, 0, 0])), None, "message type 2");
    assert_eq!(answer(&call(3, 4, &[])), None, "a dropped call");
}

#[test]
fn invalid_credentials_and_verifiers_are_rejected_separately() {
    let (cred, verf) = (words(&[XID, 1, 1, 1, 1]), words(&[XID, 1, 1, 1, 3]));
    let whole = call(3, 0, &[]);
    for len in 24..32 {
        assert_eq!(answer(&whole[..len]).unwrap(), cred, "{len} bytes");
    }
    for len in 32..40 {
        assert_eq!(answer(&whole[..len]).unwrap(), verf, "{len} bytes");
    }
    for len in [401, u32::MAX] {
        let mut c = words(&[XID, 0, 2, 100_003, 3, 0, 0, len]);
        c.resize(1000, 0);
        assert_eq!(answer(&c).unwrap(), cred);
        let mut c = words(&[XID, 0, 2, 100_003, 3, 0, 0, 0, 0, len]);
        c.resize(1000, 0);
        assert_eq!(answer(&c).unwrap(), verf);
    }
}

#[test]
fn auth_sys_limits_are_enforced() {
    let refused = words(&[XID, 1, 1, 1, 1]);
    let ok = |body: &[u8]| answer(&sys_call(body.len() as u32, body)).unwrap();
    let most = sys_body(&[b'm'; 255], 16);
    assert_eq!(most.len(), 340);
    assert_eq!(ok(&most)[24..32], words(&[255, u32::from_be_bytes(*b"mmmm")]));
    assert_eq!(ok(&sys_body(b"", 0)), words(&[XID, 1, 0, 0, 0, 0, 0]));
    assert_eq!(ok(&sys_body(b"host", 17)), refused, "17 groups");
    assert_eq!(ok(&sys_body(&[b'm'; 256], 0)), refused, "a name of 256 bytes");
    let mut longer = sys_body(b"host", 1);
    longer.extend([0; 4]);
    assert_eq!(ok(&longer), refused, "bytes left over");
    let body = sys_body(b"host", 1);
    assert_eq!(ok(&body[..body.len() - 4]), refused, "a group missing");
}

#[test]
fn a_call_is_encoded_byte_for_byte() {
    let build = |cred: &Credential| {
        let mut e = Encoder::new(&arena(), 64);
        call_header(&mut e, 100_003, 3, 0, cred);
        e.finish().unwrap()
    };
    let mut m = build(&Credential::None);
    assert!(m.set_xid(XID));
    assert_eq!(m.head.to_vec(), words(&[XID, 0, 2, 0x0001_86a3, 3, 0, 0, 0, 0, 0]));
    let kept = m.clone();
    assert!(!m.set_xid(1), "the head is shared");
    assert_eq!(kept.xid(), Some(XID));
    let sys = AuthSys {
        stamp: 7,
        machine: smallvec::SmallVec::from_slice(b"host1"),
        uid: 1000,
        gid: 100,
        gids: smallvec::SmallVec::from_slice(&[4, 5]),
    };
    let tail = [1, 36, 7, 5, 0x686f_7374, 0x3100_0000, 1000, 100, 2, 4, 5, 0, 0];
    assert_eq!(build(&Credential::Sys(sys)).head.to_vec()[24..], words(&tail));
}

#[test]
fn replies_are_decoded_to_results_or_errors() {
    let parse = |w: &[u32]| {
        parse_reply(Message::from_view(arena().copy_from(&words(w)).unwrap()), &"server")
            .map(|r| r.results().u32().unwrap())
    };
    assert_eq!(parse(&[XID, 1, 0, 0, 0, 0, 42]), Ok(42));
    assert_eq!(parse(&[XID, 1, 0, 2, 4, 77, 0, 42]), Ok(42), "a verifier with a body");
    assert_eq!(parse(&[XID, 1, 0, 0, 0, 1]), Err(RpcError::Accept(AcceptError::ProgUnavail)));
    let mismatch = RpcError::Accept(AcceptError::ProgMismatch { low: 3, high: 4 });
    assert_eq!(parse(&[XID, 1, 0, 0, 0, 2, 3, 4]), Err(mismatch));
    assert_eq!(parse(&[XID, 1, 0, 0, 0, 3]), Err(RpcError::Accept(AcceptError::ProcUnavail)));
    assert_eq!(parse(&[XID, 1, 0, 0, 0, 4]), Err(RpcError::Accept(AcceptError::GarbageArgs)));
    assert_eq!(parse(&[XID, 1, 0, 0, 0, 5]), Err(RpcError::Accept(AcceptError::SystemErr)));
    assert_eq!(parse(&[XID, 1, 1, 0, 2, 2]), Err(RpcError::Mismatch(RpcMismatch { low: 2, high: 2 })));
    assert_eq!(parse(&[XID, 1, 1, 1, 5]), Err(RpcError::Auth(AuthStat::TooWeak)));
    assert_eq!(parse(&[XID, 1, 1, 1, 14]), Err(RpcError::Auth(AuthStat::GssCtxProblem)));
    assert_eq!(parse(&[XID, 1, 1, 1, 15]), Err(RpcError::Auth(AuthStat::Failed)));
    let bad: [&[u32]; 7] = [
        &[],
        &[XID],
        &[XID, 0, 0, 0, 0, 0],
        &[XID, 1, 2],
        &[XID, 1, 0, 0, 401, 0],
        &[XID, 1, 0, 0, 0, 6],
        &[XID, 1, 0, 0, 0, 2, 3],
    ];
    for w in bad {
        assert!(matches!(parse(w), Err(RpcError::BadReply { .. })), "{w:x?}");
    }
}

#[test]
fn a_reply_without_memory_to_grow_becomes_system_err() {
    let full = Arena::new(ArenaConfig { limit: 1, huge_pages: false });
    let mut held = Vec::new();
    let message = Message::from_view(full.copy_from(&call(3, 9, &[4000])).unwrap());
    let reply = Encoder::new(&full, REPLY_HEAD);
    while let Ok(b) = full.alloc(1) {
        held.push(b);
    }
    let d = Dispatcher::new([Arc::new(Doubler::default()) as Arc<dyn Program>]);
    let reply = ReceivedCall::parse(message, &mut LastSender::new(peer()), &d).execute(&d, reply);
    let reply = reply.into_future().now_or_never().unwrap();
    assert_eq!(reply.unwrap().head.to_vec(), words(&[XID, 1, 0, 0, 0, 5]));
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_answered_or_dropped(bytes in prop::collection::vec(any::<u8>(), 0..200), valid in 0usize..40) {
        let mut c = call(3, 6, &[]);
        c.truncate(valid);
        c.extend(bytes);
        if let Some(reply) = answer(&c) {
            prop_assert_eq!(&reply[..4], &c[..4]);
            prop_assert_eq!(&reply[4..8], &[0, 0, 0, 1]);
        }
    }
}
