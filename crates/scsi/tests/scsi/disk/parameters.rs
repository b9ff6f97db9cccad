//! Parameter data, byte by byte.

use millrace_scsi::BlockSize;

use super::common::Bench;

fn vital(bench: &Bench, page: u8) -> Vec<u8> {
    bench.good(&[0x12, 1, page, 1, 0, 0], &[])
}

#[test]
fn inquiry_is_byte_exact() {
    let bench = Bench::new(BlockSize::B512, 2048);
    let data = bench.good(&[0x12, 0, 0, 0, 255, 0], &[]);
    assert_eq!(data.len(), 96);
    assert_eq!(data[..8], [0, 0, 6, 0x12, 91, 0x10, 0, 2]);
    assert_eq!(&data[8..36], b"MILLRACEDisk            0001");
    assert_eq!(data[58..66], [0x00, 0xa0, 0x04, 0x60, 0x04, 0xc0, 0x09, 0x60]);
    assert_eq!(bench.good(&[0x12, 0, 0, 0, 5, 0], &[]), data[..5]);
    bench.fails(&[0x12, 0, 0x80, 0, 5, 0], &[], 5, (0x24, 0));
    bench.fails(&[0x12, 1, 0x81, 0, 5, 0], &[], 5, (0x24, 0));
}

#[test]
fn vital_product_data_is_byte_exact() {
    let bench = Bench::new(BlockSize::B512, 2048);
    assert_eq!(vital(&bench, 0), [0, 0, 0, 7, 0, 0x80, 0x83, 0x86, 0xb0, 0xb1, 0xb2]);
    assert_eq!(vital(&bench, 0x80), [&[0, 0x80, 0, 16][..], b"0123456789abcdef"].concat());
    let ids = vital(&bench, 0x83);
    assert_eq!(ids.len(), usize::from(u16::from_be_bytes([ids[2], ids[3]])) + 4);
    assert_eq!(ids[4..16], [1, 3, 0, 8, 0x31, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
    assert_eq!(ids[16..20], [2, 1, 0, 24]);
    assert_eq!(ids[44..60], [0x51, 0x94, 0, 4, 0, 0, 0, 1, 0x51, 0x95, 0, 4, 0, 0, 0, 1]);
    assert_eq!(ids[60..63], [0x53, 0x98, 0]);
    let name = b"iqn.2026-01.example:target,t,0x0001\0";
    assert_eq!(&ids[64..64 + name.len()], name);
    let limits = vital(&bench, 0xb0);
    assert_eq!(limits.len(), 64);
    assert_eq!(limits[..16], [0, 0xb0, 0, 60, 1, 255, 0, 8, 0, 0, 0x40, 0, 0, 0, 8, 0]);
    assert_eq!(limits[20..36], [0xff, 0xff, 0xff, 0xff, 0, 0, 1, 0, 0, 0, 0, 8, 0x80, 0, 0, 0]);
    assert_eq!(limits[36..44], [0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    assert_eq!(vital(&bench, 0xb1).len(), 64);
    assert_eq!(vital(&bench, 0xb2), [0, 0xb2, 0, 4, 0, 0xe6, 2, 0]);
    assert_eq!(vital(&bench, 0x86)[4..6], [0, 7]);
}

#[test]
fn capacity_is_byte_exact() {
    let bench = Bench::new(BlockSize::B512, 2048);
    assert_eq!(bench.good(&[0x25], &[]), [0, 0, 7, 0xff, 0, 0, 2, 0]);
    let data = bench.good(&[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], &[]);
    assert_eq!(data[..16], [0, 0, 0, 0, 0, 0, 7, 0xff, 0, 0, 2, 0, 0, 3, 0xc0, 0]);
    assert_eq!(data.len(), 32);
}

#[test]
fn mode_pages_are_byte_exact() {
    let bench = Bench::new(BlockSize::B4096, 16);
    let six = bench.good(&[0x1a, 0, 0x3f, 0, 255, 0], &[]);
    assert_eq!(six[..16], [55, 0, 0x10, 8, 0, 0, 0, 16, 0, 0, 0x10, 0, 0x08, 18, 4, 0]);
    assert_eq!(six[32..44], [0x0a, 10, 0, 0x10, 0, 0x40, 0, 0, 0xff, 0xff, 0, 0]);
    assert_eq!(six[44..46], [0x1c, 10]);
    let ten = bench.good(&[0x5a, 0x10, 0x48, 0, 0, 0, 0, 0, 255, 0], &[]);
    assert_eq!(ten[..8], [0, 42, 0, 0x10, 1, 0, 0, 16]);
    assert_eq!(ten[8..24], [0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0x10, 0]);
    assert_eq!(ten[24..28], [0x08, 18, 4, 0]);
    bench.fails(&[0x1a, 0, 0xff, 0, 255, 0], &[], 5, (0x39, 0));
    bench.fails(&[0x1a, 0, 0x02, 0, 255, 0], &[], 5, (0x24, 0));
    bench.fails(&[0x1a, 0, 0x08, 1, 255, 0], &[], 5, (0x24, 0));
}

#[test]
fn reports_are_byte_exact() {
    let bench = Bench::new(BlockSize::B512, 16);
    let opcodes = |options, opcode, action| [0xa3, 0x0c, options, opcode, 0, action, 0, 0, 0xff, 0xff, 0, 0];
    let all = bench.good(&opcodes(0, 0, 0), &[]);
    assert_eq!(all.len() % 8, 4);
    assert_eq!(all[4..12], [0, 0, 0, 0, 0, 0, 0, 6]);
    let timed = bench.good(&opcodes(0x80, 0, 0), &[]);
    assert_eq!(timed[4..24], [0, 0, 0, 0, 0, 2, 0, 6, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for descriptor in all[4..].chunks(8) {
        let (opcode, action, actions) = (descriptor[0], descriptor[3], descriptor[5] & 1);
        let one = bench.good(&opcodes(1 + actions, opcode, action), &[]);
        assert_eq!(one[..5], [0, 3, 0, descriptor[7], opcode]);
        bench.fails(&opcodes(2 - actions, opcode, action), &[], 5, (0x24, 0));
        assert_eq!(bench.good(&opcodes(3, opcode, action), &[]), one);
    }
    assert_eq!(bench.good(&opcodes(1, 0xff, 0), &[]), [0, 1, 0, 0]);
    assert_eq!(bench.good(&[0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0], &[]), [0xda, 0, 0, 0]);
    let groups = [0, 0, 0, 12, 0x80, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1];
    assert_eq!(bench.good(&[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0], &[]), groups);
    assert_eq!(bench.good(&[3, 0, 0, 0, 252, 0], &[])[..3], [0x70, 0, 0]);
}
