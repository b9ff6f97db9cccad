//! Arbitrary CDBs and parameter lists.

use millrace_scsi::{BlockSize, MAX_TRANSFER_BYTES, Request, Status, TaskAttribute};
use proptest::prelude::*;

use super::common::{Bench, LUN, now};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_operation_code_with_arbitrary_bytes_ends_with_a_bounded_response(
        bytes in any::<[u8; 16]>(), sparse in any::<u16>(), data in prop::collection::vec(any::<u8>(), 0..1200),
        expected in any::<u32>(),
    ) {
        let bench = Bench::new(BlockSize::B512, 64);
        for opcode in 0..=255 {
            let mut cdb = bytes;
            for (at, byte) in cdb.iter_mut().enumerate() {
                if sparse >> at & 1 == 0 {
                    *byte = 0;
                }
            }
            cdb[0] = opcode;
            let transfer = bench.target.transfer(LUN, &cdb);
            prop_assert!(transfer.data_out <= MAX_TRANSFER_BYTES && (transfer.data_out == 0 || transfer.data_in == 0));
            let request = Request {
                task: bench.target.task(&bench.nexus, LUN),
                cdb,
                attribute: TaskAttribute::Simple,
                data_out: bench.views(&data),
                data_out_length: expected,
            };
            let response = now(bench.target.execute(request));
            let response = response.unwrap();
            prop_assert!(response.data_in.len() as u64 <= u64::from(transfer.data_in));
            prop_assert_eq!(response.status == Status::CheckCondition, response.sense.is_some());
        }
    }
}
