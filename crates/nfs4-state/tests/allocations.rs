//! Heap allocations in the steady state.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use millrace_counting_allocator::allocations;
use millrace_nfs4_state::{
    ChannelAttributes, CreateSession, ExchangeId, Identity, Limits, Sequence, SequenceRequest, State,
};

#[test]
fn sequence_does_not_allocate() {
    let state = State::<Arc<[u8]>>::new(Limits::default(), Identity { epoch: 1, secret: [0; 16] });
    let address = Ipv4Addr::LOCALHOST.into();
    let owner = ExchangeId { owner: b"a", verifier: [1; 8], update: false, principal: b"root", address };
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
