//! The initiator's encoders and decoders with the disk.

use millrace_scsi::{BlockSize, Lun, initiator};
use proptest::prelude::*;

use super::common::Bench;

#[test]
fn an_initiator_understands_the_disk() {
    let bench = Bench::new(BlockSize::B4096, 64);
    let send = |cdb: [u8; 16], data: &[u8]| bench.good(&cdb, data);
    let inquiry = initiator::inquiry(&send(initiator::inquiry_cdb(96), &[])).unwrap();
    assert_eq!((inquiry.device_type, inquiry.version, &inquiry.product[..]), (0, 6, "Disk"));
    let page = |code| send(initiator::vital_page(code, 512), &[]);
    assert_eq!(initiator::serial_number(&page(0x80)).unwrap(), "0123456789abcdef");
    let designators = initiator::designators(&page(0x83)).unwrap();
    let kinds: Vec<_> = designators.iter().map(|d| (d.association, d.kind)).collect();
    assert_eq!(kinds, [(0, 3), (0, 1), (1, 4), (1, 5), (1, 8), (2, 8)]);
    let limits = initiator::block_limits(&page(0xb0)).unwrap();
    assert_eq!(
        (limits.max_transfer, limits.max_compare_and_write, limits.max_write_same),
        (2048, 255, 65535)
    );
    let provisioning = initiator::provisioning(&page(0xb2)).unwrap();
    assert!(provisioning.unmap && provisioning.write_same_16 && provisioning.reads_zeros);
    let capacity = initiator::capacity(&send(initiator::read_capacity_16(), &[])).unwrap();
    assert_eq!((capacity.blocks, capacity.block_bytes, capacity.thin), (64, 4096, true));
    let modes = initiator::mode_parameters(&send(initiator::mode_sense_10(0x3f, 255), &[])).unwrap();
    assert_eq!((modes.write_protected, modes.fua, modes.write_cache), (false, true, Some(true)));
    let luns = initiator::report_luns(&send(initiator::report_luns_cdb(16), &[])).unwrap();
    assert_eq!(luns, (vec![Lun::new(0).unwrap()], 16));
    send(initiator::test_unit_ready(), &[]);
    send(initiator::write_16(3, 2, true), &[7; 8192]);
    send(initiator::synchronize_cache_16(0, 0), &[]);
    send(initiator::write_same_16(5, 2, true), &[8; 4096]);
    let list = initiator::unmap_list(&[(3, 1)]).unwrap();
    send(initiator::unmap(list.len() as u16), &list);
    let read = send(initiator::read_16(3, 4, false), &[]);
    let firsts: Vec<u8> = read.chunks(4096).map(|b| b[0]).collect();
    assert_eq!(firsts, [0, 7, 8, 8]);
}

proptest! {
    #[test]
    fn decoders_accept_arbitrary_data(mut data in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = initiator::inquiry(&data);
        let _ = initiator::capacity(&data);
        let _ = initiator::mode_parameters(&data);
        let _ = initiator::report_luns(&data);
        let _ = millrace_scsi::Sense::decode(&data).map(|s| s.to_string());
        for page in [0x80, 0x83, 0xb0, 0xb2] {
            if let Some(code) = data.get_mut(1) {
                *code = page;
            }
            let _ = initiator::serial_number(&data);
            let _ = initiator::designators(&data);
            let _ = initiator::block_limits(&data);
            let _ = initiator::provisioning(&data);
        }
    }
}
