//! Random headers: no panic, and no data outside of its task.

use proptest::prelude::*;

use super::*;
use crate::pdu::TaskResult;

/// A header with plausible numbers: random fields elsewhere.
fn headers() -> impl Strategy<Value = (Bhs, Vec<u8>)> {
    let small = || prop_oneof![4 => 0..8_u32, 1 => any::<u32>()];
    let fields =
        (small(), small(), 0..6_u32, 0..4_u32, small(), (0..6_u32).prop_map(|n| n * 512), any::<[u8; 4]>());
    let opcode = prop_oneof![0..7_u8, 0x20..0x27_u8, Just(0x31), Just(0x32), Just(0x3f), any::<u8>()];
    (opcode, any::<bool>(), any::<u8>(), 0..1100_u32, fields).prop_map(
        |(opcode, immediate, flags, length, f)| {
            let mut bhs = [0; 48];
            bhs[0] = opcode | if immediate { 0x40 } else { 0 };
            bhs[1] = flags;
            bhs[5..8].copy_from_slice(&length.to_be_bytes()[1..]);
            let (itt, ttt, cmd_sn, stat_sn, data_sn, offset, rest) = f;
            let words = [
                (16, itt),
                (20, ttt),
                (24, 0x10 + cmd_sn),
                (28, 0x20 + stat_sn),
                (36, data_sn),
                (40, offset),
            ];
            for (at, word) in words {
                bhs[at..at + 4].copy_from_slice(&word.to_be_bytes());
            }
            bhs[32..36].copy_from_slice(&0x18_u32.to_be_bytes());
            bhs[44..48].copy_from_slice(&rest);
            (bhs, vec![rest[0]; length as usize])
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_request_panics_or_is_placed_outside_of_its_task(
        requests in proptest::collection::vec(headers(), 1..40),
        rdma in any::<bool>(),
    ) {
        let mut t = target(UNSOLICITED, if rdma { ISER } else { Transport::Tcp });
        for (bhs, data) in requests {
            let placement = t.begin(&bhs, &[], Advertised::default());
            if let Ok(Placement::Task { itt, offset, length, excess }) = placement {
                prop_assert_eq!((length + excess) as usize, data.len());
                prop_assert!(offset + length <= t.command(itt).unwrap().expected);
            }
            let control = matches!(placement, Ok(Placement::Control { .. }));
            if placement.is_err() || t.finish(if control { &data } else { &[] }).is_err() {
                break;
            }
            for event in events(&mut t) {
                match event {
                    TargetEvent::Execute { itt, command } => t.fetch(itt, command.expected),
                    TargetEvent::DataReady { itt } | TargetEvent::Abort { itt } => t.complete(itt, Completion::default()),
                    TargetEvent::Manage { itt, .. } => t.managed(itt, TaskResult::COMPLETE),
                    TargetEvent::Text { itt, text } => t.answer_text(itt, text, false),
                    TargetEvent::RdmaRead { .. } | TargetEvent::MoreText { .. } => {}
                }
            }
            transmits(&mut t);
            prop_assert!(t.tasks().count() <= 8 + 4);
        }
    }

    #[test]
    fn no_response_panics_or_is_placed_outside_of_its_task(
        responses in proptest::collection::vec(headers(), 1..40),
    ) {
        let mut i = initiator(UNSOLICITED, Transport::Tcp);
        for direction in [Direction::Read, Direction::Write, Direction::Read, Direction::Write] {
            i.submit(command(direction, 2500), None).unwrap();
        }
        i.ping(Vec::new()).unwrap();
        i.send_text(Vec::new()).unwrap();
        for (mut bhs, data) in responses {
            while i.poll_transmit().is_some() {}
            // StatSN and ExpCmdSN are in the places of CmdSN and ExpStatSN.
            bhs.copy_within(28..32, 24);
            bhs[28..32].copy_from_slice(&0x12_u32.to_be_bytes());
            let placement = i.begin(&bhs, &[], None);
            if let Ok(Placement::Task { offset, length, excess, .. }) = placement {
                prop_assert_eq!((length as usize, excess), (data.len(), 0));
                prop_assert!(offset + length <= 2500);
            }
            let control = matches!(placement, Ok(Placement::Control { .. }));
            if placement.is_err() || i.finish(if control { &data } else { &[] }).is_err() {
                prop_assert_eq!(i.poll_transmit(), None);
                break;
            }
        }
    }
}
