//! Reads, writes and comparisons of blocks.

use millrace_scsi::{BlockSize, MAX_TRANSFER_BYTES, Status, Transfer};

use super::common::{Bench, LUN, cdb};

#[test]
fn all_lengths_of_read_and_write_address_the_same_blocks() {
    let bench = Bench::new(BlockSize::B512, 1024);
    let writes: [(&[u8], &[u8]); 4] = [
        (&[0x0a, 0, 0, 8, 1, 0], &[0x08, 0, 0, 8, 1, 0]),
        (&[0x2a, 0, 0, 0, 0, 9, 0, 0, 1, 0], &[0x28, 0, 0, 0, 0, 9, 0, 0, 1, 0]),
        (&[0xaa, 8, 0, 0, 0, 10, 0, 0, 0, 1, 0, 0], &[0xa8, 0x10, 0, 0, 0, 10, 0, 0, 0, 1, 0, 0]),
        (
            &[0x8a, 0, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 0, 1, 0, 0],
            &[0x88, 8, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 0, 1, 0, 0],
        ),
    ];
    for (n, (write, read)) in writes.into_iter().enumerate() {
        let data = vec![n as u8 + 1; 512];
        assert!(bench.good(write, &data).is_empty());
        assert_eq!(bench.good(read, &[]), data);
    }
    let all = bench.good(&[0x28, 0, 0, 0, 0, 7, 0, 0, 6, 0], &[]);
    let firsts: Vec<u8> = all.chunks(512).map(|block| block[0]).collect();
    assert_eq!(firsts, [0, 1, 2, 3, 4, 0]);
}

#[test]
fn ranges_beyond_the_end_are_refused_without_overflow() {
    let bench = Bench::new(BlockSize::B4096, 16);
    let out_of_range = (0x21, 0);
    bench.fails(&[0x28, 0, 0, 0, 0, 16, 0, 0, 1, 0], &[], 5, out_of_range);
    bench.fails(&[0x28, 0, 0, 0, 0, 17, 0, 0, 0, 0], &[], 5, out_of_range);
    bench.good(&[0x28, 0, 0, 0, 0, 16, 0, 0, 0, 0], &[]);
    let mut read = [0xff; 16];
    (read[0], read[1], read[14], read[15]) = (0x88, 0, 0, 0);
    read[10..14].copy_from_slice(&1u32.to_be_bytes());
    bench.fails(&read, &[], 5, out_of_range);
    // Longer than the maximum transfer length.
    let blocks = MAX_TRANSFER_BYTES / 4096 + 1;
    read[2..10].fill(0);
    read[10..14].copy_from_slice(&blocks.to_be_bytes());
    bench.fails(&read, &[], 5, (0x24, 0));
    assert_eq!(bench.target.transfer(LUN, &read), Transfer::default());
}

#[test]
fn a_transfer_is_known_from_the_cdb() {
    let bench = Bench::new(BlockSize::B512, 1024);
    let of = |bytes: &[u8]| {
        let transfer = bench.target.transfer(LUN, &cdb(bytes));
        (transfer.data_out, transfer.data_in)
    };
    assert_eq!(of(&[0x28, 0, 0, 0, 0, 0, 0, 0, 3, 0]), (0, 1536));
    assert_eq!(of(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 3, 0]), (1536, 0));
    assert_eq!(of(&[0x0a, 0, 0, 0, 0, 0]), (256 * 512, 0));
    assert_eq!(of(&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0]), (2048, 0));
    assert_eq!(of(&[0x2f, 2, 0, 0, 0, 0, 0, 0, 2, 0]), (1024, 0));
    assert_eq!(of(&[0x2f, 6, 0, 0, 0, 0, 0, 0, 2, 0]), (512, 0));
    assert_eq!(of(&[0x2f, 0, 0, 0, 0, 0, 0, 0, 2, 0]), (0, 0));
    assert_eq!(of(&[0x41, 0, 0, 0, 0, 0, 0, 0, 9, 0]), (512, 0));
    assert_eq!(of(&[0x93, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0]), (0, 0));
    assert_eq!(of(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0]), (24, 0));
    assert_eq!(of(&[0x12, 0, 0, 0, 36, 0]), (0, 36));
    assert_eq!(of(&[0x25]), (0, 8));
    assert_eq!(of(&[0xff]), (0, 0));
}

#[test]
fn a_write_of_too_little_data_writes_whole_blocks() {
    let bench = Bench::new(BlockSize::B512, 16);
    let write = [0x2a, 0, 0, 0, 0, 0, 0, 0, 2, 0];
    bench.good(&write, &[7; 512]);
    let read = bench.good(&[0x28, 0, 0, 0, 0, 0, 0, 0, 2, 0], &[]);
    assert_eq!(read, [[7; 512], [0; 512]].concat());
    bench.good(&write, &[]);
    bench.fails(&write, &[1; 200], 5, (0x0e, 0x03));
    // More data than the command writes.
    bench.good(&[0x2a, 0, 0, 0, 0, 4, 0, 0, 1, 0], &[9; 1024]);
    assert_eq!(bench.good(&[0x28, 0, 0, 0, 0, 5, 0, 0, 1, 0], &[]), [0; 512]);
}

#[test]
fn compare_and_write_changes_equal_blocks_only() {
    let bench = Bench::new(BlockSize::B512, 16);
    let command = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0];
    let mut data = [[0; 1024], [5; 1024]].concat();
    bench.good(&command, &data);
    assert_eq!(bench.good(&[0x28, 0, 0, 0, 0, 2, 0, 0, 2, 0], &[]), [5; 1024]);
    data[..1024].fill(5);
    data[700] = 6;
    let sense = bench.check(&command, &data);
    assert_eq!((sense.key as u8, sense.additional.0, sense.information), (0xe, 0x1d, Some(700)));
    // Data of another length than that of the command.
    bench.fails(&command, &[5; 1024], 5, (0x0e, 0x03));
    bench.fails(&command, &[5; 4096], 5, (0x0e, 0x03));
    bench.good(&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]);
}

#[test]
fn verify_compares_data_or_one_block() {
    let bench = Bench::new(BlockSize::B512, 16);
    bench.good(&[0x2e, 2, 0, 0, 0, 0, 0, 0, 2, 0], &[3; 1024]);
    let verify = |check: u8, count: u8| [0x2f, check << 1, 0, 0, 0, 0, 0, 0, count, 0];
    bench.good(&verify(0, 16), &[]);
    bench.good(&verify(1, 2), &[3; 1024]);
    bench.good(&verify(3, 2), &[3; 512]);
    assert_eq!(bench.check(&verify(3, 3), &[3; 512]).information, Some(1024));
    let mut data = [3; 1024];
    data[1023] = 0;
    assert_eq!(bench.check(&verify(1, 2), &data).information, Some(1023));
    bench.fails(&verify(2, 2), &data, 5, (0x24, 0));
}

#[test]
fn or_write_sets_bits() {
    let bench = Bench::new(BlockSize::B512, 1024);
    bench.good(&[0x2a, 0, 0, 0, 0, 0, 0, 2, 0, 0], &vec![0x50; 512 * 512]);
    let mut command = cdb(&[0x8b]);
    command[12] = 2;
    bench.good(&command, &vec![0x0f; 512 * 512]);
    assert_eq!(bench.good(&[0x28, 0, 0, 0, 0, 0, 0, 2, 0, 0], &[]), vec![0x5f; 512 * 512]);
}

#[test]
fn write_same_and_unmap_fill_ranges() {
    let bench = Bench::new(BlockSize::B512, 4096);
    let block: Vec<u8> = (0..512).map(|n| n as u8).collect();
    bench.good(&[0x41, 0, 0, 0, 0, 3, 0x00, 0x0c, 0x00, 0], &block);
    let read = bench.good(&[0x28, 0, 0, 0, 0, 3, 0, 0x0c, 0x00, 0], &[]);
    assert!(read.chunks(512).all(|b| b == block));
    // NDOB with UNMAP; then the list of UNMAP with an incomplete descriptor.
    bench.good(&[0x93, 9, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0], &[]);
    let mut list = vec![0, 38, 0, 32, 0, 0, 0, 0];
    list.extend([0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0, 0, 0]);
    list.extend([0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0]);
    list.extend([0; 6]);
    bench.good(&[0x42, 0, 0, 0, 0, 0, 0, 0, 46, 0], &list);
    let read = bench.good(&[0x28, 0, 0, 0, 0, 3, 0, 0, 6, 0], &[]);
    let zeros: Vec<bool> = read.chunks(512).map(|b| b.iter().all(|x| *x == 0)).collect();
    assert_eq!(zeros, [false, true, false, true, true, false]);
    bench.fails(&[0x42, 0, 0, 0, 0, 0, 0, 0, 4, 0], &[0; 4], 5, (0x1a, 0));
    list[8..16].fill(0xff);
    bench.fails(&[0x42, 0, 0, 0, 0, 0, 0, 0, 46, 0], &list, 5, (0x21, 0));
    // No blocks, and ANCHOR without UNMAP.
    bench.fails(&[0x41, 0, 0, 0, 0, 3, 0, 0, 0, 0], &block, 5, (0x24, 0));
    bench.fails(&[0x41, 0x10, 0, 0, 0, 3, 0, 0, 1, 0], &block, 5, (0x24, 0));
    // More data than a block.
    bench.fails(&[0x41, 0, 0, 0, 0, 3, 0, 0, 1, 0], &block.repeat(2), 5, (0x0e, 3));
}

#[test]
fn compare_and_write_of_no_blocks_has_no_data() {
    let bench = Bench::new(BlockSize::B512, 16);
    let command = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    bench.good(&command, &[]);
    bench.fails(&command, &[0; 1024], 5, (0x24, 0));
}

#[test]
fn prefetch_accepts_a_group() {
    let bench = Bench::new(BlockSize::B512, 16);
    bench.good(&[0x34, 2, 0, 0, 0, 0, 3, 0, 1, 0], &[]);
    bench.fails(&[0x28, 0, 0, 0, 0, 0, 3, 0, 1, 0], &[], 5, (0x24, 0));
}

#[test]
fn lba_status_shows_unmapped_blocks() {
    let bench = Bench::new(BlockSize::B4096, 64);
    bench.good(&[0x2a, 0, 0, 0, 0, 16, 0, 0, 16, 0], &vec![1; 16 * 4096]);
    let status =
        |lba: u8, length: u8| bench.good(&[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, lba, 0, 0, 0, length, 0, 0], &[]);
    let data = status(0, 200);
    assert_eq!(data[..8], [0, 0, 0, 52, 0, 0, 0, 0]);
    assert_eq!(data[8..24], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 1, 0, 0, 0]);
    assert_eq!(data[24..40], [0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 16, 0, 0, 0, 0]);
    assert_eq!(data[40..56], [0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 32, 1, 0, 0, 0]);
    assert_eq!(status(20, 24)[8..], [0, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0, 12, 0, 0, 0, 0]);
    bench.fails(&[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 24, 0, 0], &[], 5, (0x21, 0));
}

#[test]
fn a_read_only_disk_refuses_writes_only() {
    let bench = Bench::new(BlockSize::B512, 16);
    let read_only = millrace_scsi::DiskConfig { read_only: true, ..bench.config.clone() };
    let bench = Bench::open(bench.fs.clone(), bench.arena.clone(), bench.file, read_only);
    for command in [&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0][..], &[0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[0x8b]] {
        bench.fails(command, &[], 7, (0x27, 0));
    }
    bench.good(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[]);
    assert_eq!(bench.good(&[0x1a, 8, 0x3f, 0, 4, 0], &[])[2], 0x90);
    assert_eq!(bench.execute(&bench.nexus, &[0x42], &[]).status, Status::CheckCondition);
}
