//! Client IDs, sessions and security.

use super::{bytes, decode, exact};
use crate::v4::*;

const SESSION: SessionId = SessionId([0xab; 16]);

#[test]
fn exchange_id_arguments() {
    let args = ExchangeIdArgs {
        owner: ClientOwner { verifier: [1, 2, 3, 4, 5, 6, 7, 8], id: Opaque(b"Linux") },
        flags: exchange_id_flags::SUPP_MOVED_REFER | exchange_id_flags::BIND_PRINC_STATEID,
        state_protect: StateProtect::None,
        implementation: Some(ImplementationId {
            domain: Opaque(b"kernel.org"),
            name: Opaque(b"v6"),
            date: NfsTime { seconds: -1, nanoseconds: 5 },
        }),
    };
    exact!(
        ExchangeIdArgs<'_>,
        args,
        "01020304 05060708      # co_verifier
         00000005 4c696e75 78000000
         00000101               # eia_flags
         00000000               # SP4_NONE
         00000001               # one implementation
         0000000a 6b65726e 656c2e6f 72670000
         00000002 76360000
         ffffffff ffffffff 00000005"
    );
}

#[test]
fn state_protection() {
    let operations = ProtectedOperations {
        must_enforce: Bitmap::from([0, 1 << 10, 0]), // EXCHANGE_ID
        must_allow: Bitmap::EMPTY,
    };
    exact!(
        StateProtect,
        StateProtect::MachineCredential(operations),
        "00000001 00000002 00000000 00000400 00000000"
    );
    let ssv = bytes(
        "00000002
         00000001 00000001 00000000             # spo_must_enforce, spo_must_allow
         00000002 00000003 61626300 00000000    # hash algorithms: abc and an empty one
         00000001 00000004 64656667             # encryption algorithm
         00000008 00000002                      # window, handles",
    );
    assert_eq!(decode::<StateProtect>(&ssv), Ok(StateProtect::Ssv));
    for cut in 0..ssv.len() {
        assert!(decode::<StateProtect>(&ssv[..cut]).is_err());
    }
    let many = bytes("00000002 00000000 00000000 ffffffff");
    assert!(decode::<StateProtect>(&many).is_err());
}

#[test]
fn exchange_id_result() {
    let ok = ExchangeIdOk {
        client_id: ClientId { number: 0x1122_3344_5566_7788 },
        sequence: 1,
        flags: exchange_id_flags::USE_NON_PNFS | exchange_id_flags::CONFIRMED_R,
        state_protect: None,
        server_owner: ServerOwner { minor_id: 7, major_id: Opaque(b"host") },
        server_scope: Opaque(b"s"),
        implementation: None,
    };
    exact!(
        ExchangeIdOk<'_>,
        ok,
        "11223344 55667788
         00000001
         80010000
         00000000               # SP4_NONE
         00000000 00000007 00000004 686f7374
         00000001 73000000
         00000000               # no implementation"
    );
    let ssv = bytes("11223344 55667788 00000001 80010000 00000002");
    assert!(decode::<ExchangeIdOk<'_>>(&ssv).is_err());
}

const FORE: ChannelAttrs = ChannelAttrs {
    header_pad_size: 0,
    max_request_size: 0x10_0400,
    max_response_size: 0x10_0300,
    max_response_size_cached: 0x1000,
    max_operations: 8,
    max_requests: 64,
    rdma_ird: None,
};

const FORE_BYTES: &str = "00000000 00100400 00100300 00001000 00000008 00000040 00000000";

#[test]
fn create_session() {
    let back = ChannelAttrs { rdma_ird: Some(16), ..FORE };
    let back_bytes = "00000000 00100400 00100300 00001000 00000008 00000040 00000001 00000010";
    let args = CreateSessionArgs {
        client_id: ClientId { number: 9 },
        sequence: 3,
        flags: create_session_flags::PERSIST | create_session_flags::CONN_BACK_CHAN,
        fore: FORE,
        back,
        callback_program: 0x4000_0000,
        callback_security: List(vec![
            CallbackSecurity::None,
            CallbackSecurity::Sys(AuthSys {
                stamp: 1,
                machine_name: Opaque(b"pc"),
                uid: 1000,
                gid: 100,
                gids: List(vec![5, 6]),
            }),
            CallbackSecurity::Gss(GssHandles {
                service: 2,
                from_server: Opaque(b"S"),
                from_client: Opaque(b""),
            }),
        ]),
    };
    let words = format!(
        "00000000 00000009 00000003 00000003
         {FORE_BYTES} {back_bytes} 40000000
         00000003
         00000000
         00000001 00000001 00000002 70630000 000003e8 00000064 00000002 00000005 00000006
         00000006 00000002 00000001 53000000 00000000"
    );
    exact!(CreateSessionArgs<'_>, args, &words);
    let ok = CreateSessionOk { session: SESSION, sequence: 3, flags: 2, fore: FORE, back };
    let words = format!("abababab abababab abababab abababab 00000003 00000002 {FORE_BYTES} {back_bytes}");
    exact!(CreateSessionOk, ok, &words);
}

#[test]
fn sequence() {
    exact!(
        SequenceArgs,
        SequenceArgs { session: SESSION, sequence: 4, slot: 1, highest_slot: 2, cache_this: true },
        "abababab abababab abababab abababab 00000004 00000001 00000002 00000001"
    );
    exact!(
        SequenceOk,
        SequenceOk {
            session: SESSION,
            sequence: 4,
            slot: 1,
            highest_slot: 63,
            target_highest_slot: 62,
            status_flags: sequence_flags::RESTART_RECLAIM_NEEDED,
        },
        "abababab abababab abababab abababab 00000004 00000001 0000003f 0000003e 00000100"
    );
}

#[test]
fn other_session_operations() {
    let session = "abababab abababab abababab abababab";
    exact!(DestroySessionArgs, DestroySessionArgs { session: SESSION }, session);
    exact!(
        DestroyClientidArgs,
        DestroyClientidArgs { client_id: ClientId { number: 1 << 32 } },
        "00000001 00000000"
    );
    exact!(
        BindConnToSessionArgs,
        BindConnToSessionArgs {
            session: SESSION,
            direction: RequestedDirection::BackOrBoth,
            use_rdma: false
        },
        &format!("{session} 00000007 00000000")
    );
    exact!(
        BindConnToSessionOk,
        BindConnToSessionOk { session: SESSION, direction: Direction::Both, use_rdma: true },
        &format!("{session} 00000003 00000001")
    );
    exact!(ReclaimCompleteArgs, ReclaimCompleteArgs { one_fs: true }, "00000001");
    exact!(
        BackchannelCtlArgs<'_>,
        BackchannelCtlArgs { callback_program: 1, callback_security: List(vec![CallbackSecurity::None]) },
        "00000001 00000001 00000000"
    );
}

#[test]
fn security_information() {
    exact!(SecinfoArgs<'_>, SecinfoArgs { name: Opaque(b"home") }, "00000004 686f6d65");
    exact!(SecinfoNoNameArgs, SecinfoNoNameArgs { style: SecinfoStyle::Parent }, "00000001");
    let flavors =
        List(vec![Secinfo::SYS, Secinfo::Gss { oid: Opaque(b"*HH"), qop: 0, service: 3 }, Secinfo::NONE]);
    exact!(
        SecinfoOk<'_>,
        SecinfoOk { flavors },
        "00000003 00000001 00000006 00000003 2a484800 00000000 00000003 00000000"
    );
}

#[test]
fn lengths_and_counts_beyond_the_message_are_rejected() {
    let verifier = "01020304 05060708";
    for length in ["00000401", "7fffffff", "ffffffff"] {
        let owner = bytes(&format!("{verifier} {length} 61616161"));
        assert!(decode::<ClientOwner<'_>>(&owner).is_err(), "owner of length {length}");
        let flavors = bytes(&format!("{length} 00000001"));
        assert!(decode::<SecinfoOk<'_>>(&flavors).is_err(), "{length} flavors");
        let ird = bytes(&format!("00000000 00000001 00000001 00000001 00000001 00000001 {length} 00000001"));
        assert!(decode::<ChannelAttrs>(&ird).is_err(), "{length} values of ca_rdma_ird");
        let groups = bytes(&format!("00000001 00000001 00000000 00000000 00000000 {length} 00000001"));
        assert!(decode::<CallbackSecurity<'_>>(&groups).is_err(), "{length} groups");
    }
    let name = bytes(&format!("00000001 00000001 00000100 {} 00000000 00000000 00000000", "00".repeat(256)));
    assert!(decode::<CallbackSecurity<'_>>(&name).is_err(), "machine name of 256 bytes");
}
