//! Both roles with random parameters: every task has exactly one outcome, and the data of every task is right.

use proptest::prelude::*;

use super::{model::Pair, *};

fn limits() -> impl Strategy<Value = Parameters> {
    let size = || prop_oneof![Just(512_u32), 512_u32..3000, Just(8192)];
    (any::<bool>(), any::<bool>(), size(), size(), 1..4_u16, size()).prop_map(
        |(initial_r2t, immediate_data, first, max_burst, max_outstanding_r2t, max_send_data)| Parameters {
            initial_r2t,
            immediate_data,
            first_burst: first.min(max_burst),
            max_burst,
            max_outstanding_r2t,
            max_send_data,
            max_receive_data: 0,
            ..LIMITS
        },
    )
}

fn transport() -> impl Strategy<Value = Transport> {
    prop_oneof![
        3 => Just(Transport::Tcp),
        2 => (any::<bool>(), prop_oneof![Just(0_u32), 2..5_u32])
            .prop_map(|(remote_invalidate, max_unexpected)| Transport::Iser { remote_invalidate, max_unexpected }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_task_has_one_outcome_and_the_right_data(
        seed in any::<u64>(),
        limits in limits(),
        initiator_receives in prop_oneof![Just(512_u32), 512..3000_u32, Just(8192)],
        transport in transport(),
        max_tasks in 1..8_u32,
        disturbances in prop_oneof![Just(0_usize), 1..30_usize],
    ) {
        Pair::new(seed, limits, initiator_receives, transport, max_tasks).run(30, disturbances);
    }
}
