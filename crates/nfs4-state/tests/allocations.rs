//! Heap allocations in the steady state.

#![allow(clippy::unwrap_used)] // Helpers of tests, which are to fail.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use millrace_counting_allocator::{allocations, held_bytes};
use millrace_nfs::v4::Stateid;
use millrace_nfs4_state::{
    ByteRange, ChannelAttributes, Client, CreateSession, ExchangeId, Identity, Limits, LockKind, LockRequest,
    Locker, OpenRequest, Sequence, SequenceRequest, State,
};

#[test]
fn sequence_does_not_allocate() {
    let state = State::<Arc<[u8]>>::new(Limits::default(), Identity { epoch: 1, secret: [0; 16] });
    let address = Ipv4Addr::LOCALHOST.into();
    let owner = ExchangeId {
        owner: b"a",
        verifier: [1; 8],
        update: false,
        principal: b"root",
        is_protected: false,
        machine: None,
        address,
    };
    let id = state.exchange_id(&owner, Duration::ZERO).unwrap();
    let channel = ChannelAttributes {
        header_pad: 0,
        request_bytes: 1 << 20,
        response_bytes: 1 << 20,
        cached_bytes: 4096,
        operations: 8,
        slots: 64,
    };
    let (fore, back) = (channel, channel);
    let args =
        CreateSession { client: id.client, sequence: 1, back_channel: false, fore, back, principal: b"root" };
    let session = state.session(state.create_session(&args, Duration::ZERO).unwrap().session).unwrap();
    let reply: Arc<[u8]> = Arc::from(&b"reply"[..]);

    let before = allocations();
    for n in 0..1000_u32 {
        let request = SequenceRequest { sequence: n / 64 + 1, slot: n % 64, highest_slot: 63 };
        let now = Duration::from_millis(n.into());
        match session.sequence(&request, n.into(), now) {
            Ok(Sequence::Execute(execution, _)) => execution.finish(Some(reply.clone())),
            other => panic!("{other:?}"),
        }
        assert!(matches!(session.sequence(&request, n.into(), now), Ok(Sequence::Replay(_))));
    }
    assert_eq!(allocations() - before, 0);
}

fn client(state: &State<()>) -> Arc<Client> {
    let address = Ipv4Addr::LOCALHOST.into();
    let owner = ExchangeId {
        owner: b"a",
        verifier: [1; 8],
        update: false,
        principal: b"root",
        is_protected: false,
        machine: None,
        address,
    };
    let id = state.exchange_id(&owner, Duration::ZERO).unwrap().client;
    let channel = ChannelAttributes {
        header_pad: 0,
        request_bytes: 4096,
        response_bytes: 4096,
        cached_bytes: 0,
        operations: 8,
        slots: 1,
    };
    let (fore, back) = (channel, channel);
    let args = CreateSession { client: id, sequence: 1, back_channel: false, fore, back, principal: b"root" };
    let session = state.session(state.create_session(&args, Duration::ZERO).unwrap().session).unwrap();
    state.reclaim_complete(session.client()).unwrap();
    Arc::clone(session.client())
}

/// What is charged to the address of a client. Each stateid has its own file and owner.
#[test]
fn stateids_occupy_at_most_what_is_charged() {
    const OPENS: u32 = 50_000;
    let limit = 1 << 30;
    let limits = Limits { heap: limit, ..Limits::default() };
    let state = State::<()>::new(limits, Identity { epoch: 1, secret: [0; 16] });
    let client = client(&state);
    for bytes in [4, 1024] {
        let (before, charged) = (held_bytes(), state.heap_bytes());
        let opens: Vec<_> = (0..OPENS / bytes)
            .map(|n| {
                let mut owner = vec![0; bytes as usize];
                owner[..4].copy_from_slice(&n.to_be_bytes());
                let file = [&[0; 28][..], &n.to_be_bytes()].concat();
                let (owner, file) = (&*owner, &*file);
                let request = OpenRequest { owner, file, access: 3, deny: 0, reclaim: false, reserved: None };
                (state.open(&client, &request, Duration::ZERO).unwrap(), file.to_vec())
            })
            .collect();
        let own = opens.iter().map(|(_, file)| size_of::<(Stateid, Vec<u8>)>() + file.len()).sum::<usize>();
        let held = held_bytes() - before - own as i64;
        let charged = state.heap_bytes() - charged;
        println!("{held} bytes are held and {charged} charged for {} opens", opens.len());
        assert!(held <= charged as i64, "{held} > {charged}");
        opens.iter().for_each(|(id, file)| assert!(state.close(&client, id, file).is_ok()));
        assert_eq!(state.heap_bytes(), 0);
    }
}

/// The memory that the limits of locked ranges permit.
#[test]
fn a_locked_range_occupies_at_most_256_bytes() {
    const LOCKS: u64 = 100_000;
    let limits = Limits { ranges_per_open: usize::MAX, ..Limits::default() };
    let state = State::<()>::new(limits, Identity { epoch: 1, secret: [0; 16] });
    let client = &client(&state);
    let file = OpenRequest { owner: b"o", file: b"f", access: 3, deny: 0, reclaim: false, reserved: None };
    let open = state.open(client, &file, Duration::ZERO).unwrap();

    let before = held_bytes();
    for n in 0..LOCKS {
        let locker = Locker::Open { open: &open, owner: b"p" };
        let (offset, length) = (n * 2, 1);
        let (kind, blocking, reclaim) = (LockKind::Write, false, false);
        let request = LockRequest { locker, file: b"f", kind, blocking, reclaim, offset, length };
        state.lock(client, &request, Duration::ZERO).unwrap();
    }
    let bytes = (held_bytes() - before) / LOCKS as i64;
    println!("{bytes} bytes per locked range");
    assert!(bytes <= 256, "{bytes} bytes");
    let all = ByteRange::new(0, u64::MAX).unwrap();
    let found =
        state.test_lock(client, b"q", b"f", LockKind::Read, (all.start, all.length()), Duration::ZERO);
    assert!(found.is_err());
}
