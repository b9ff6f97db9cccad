//! Record marking, byte for byte.

use millrace_oncrpc::{
    Message,
    tcp::record::{Next, RecordError, RecordReader, RecordWriter, START_BYTES},
};
use millrace_xdr::{Arena, Buffer, Encoder, Views};
use proptest::prelude::*;

use crate::common::{arena, words};

/// Passes `bytes` to a reader in pieces of the given sizes (the last one repeats) and collects the records.
fn read(reader: &mut RecordReader, bytes: &[u8], pieces: &[usize]) -> Result<Vec<Vec<u8>>, RecordError> {
    let records = receive(reader, bytes, pieces, |_, _| {})?;
    Ok(records.iter().map(|m| m.head.to_vec()).collect())
}

/// As [`read`], where `large` decides on the memory of large records, from their lengths.
fn receive(
    reader: &mut RecordReader,
    mut bytes: &[u8],
    pieces: &[usize],
    mut large: impl FnMut(&mut RecordReader, usize),
) -> Result<Vec<Message>, RecordError> {
    let mut out = Vec::new();
    let mut piece = pieces.iter().chain(std::iter::repeat(pieces.last().unwrap()));
    loop {
        match reader.next_record()? {
            Next::Record(m) => out.push(m),
            Next::NoMemory(_) => panic!("no memory"),
            Next::NeedAdmission(bytes) => reader.admit(bytes),
            Next::Large(len) => large(reader, len),
            Next::NeedBytes if bytes.is_empty() => return Ok(out),
            Next::NeedBytes => {
                let mut want = (*piece.next().unwrap()).clamp(1, bytes.len());
                let mut got = 0;
                for room in &mut reader.space() {
                    let n = want.min(room.len());
                    room[..n].copy_from_slice(&bytes[..n]);
                    bytes = &bytes[n..];
                    (want, got) = (want - n, got + n);
                }
                assert!(got > 0, "the reader always accepts bytes");
                reader.advance(got);
            }
        }
    }
}

fn reader(max: usize) -> (Arena, RecordReader) {
    let arena = arena();
    let reader = RecordReader::new(&arena, max);
    (arena, reader)
}

fn one(bytes: &[u8], max: usize) -> Result<Vec<Vec<u8>>, RecordError> {
    read(&mut reader(max).1, bytes, &[usize::MAX])
}

#[test]
fn a_null_call_is_encoded_as_one_record() {
    let call = words(&[7, 0, 2, 0x0001_86a3, 3, 0, 0, 0, 0, 0]);
    let mut stream = words(&[0x8000_0028]);
    stream.extend(&call);
    assert_eq!(one(&stream, 1000).unwrap()[0], call);
    let a = arena();
    let mut w = RecordWriter::new(a.copy_from(&[0; 4]).unwrap());
    let mut other_xid = call.clone();
    other_xid[..4].fill(0);
    w.push(&Message::from_view(a.copy_from(&other_xid).unwrap()), Some(7)).unwrap();
    assert_eq!(w.slices().iter().flat_map(|s| s.to_vec()).collect::<Vec<_>>(), stream);
    assert_eq!(w.queued(), stream.len());
}

#[test]
fn the_length_limit_is_checked_before_allocation() {
    assert_eq!(one(&words(&[0xffff_ffff]), 1000), Err(RecordError::TooLong { len: 0x7fff_ffff, max: 1000 }));
    assert_eq!(one(b"HTTP/1.1 400", 1000), Err(RecordError::Text { text: *b"HTTP" }));
    assert_eq!(one(&words(&[0x7fff_ffff]), 1000), Err(RecordError::TooLong { len: 0x7fff_ffff, max: 1000 }));
    let mut sum = words(&[600]);
    sum.extend([0; 600]);
    sum.extend(words(&[0x8000_0000 + 401]));
    assert_eq!(one(&sum, 1000), Err(RecordError::TooLong { len: 1001, max: 1000 }));
    let (arena, mut r) = reader(8 << 20);
    assert!(read(&mut r, &words(&[0x8080_0001]), &[4]).is_err());
    assert_eq!(arena.stats().in_use, 0);
}

#[test]
fn a_limited_number_of_empty_fragments_is_accepted() {
    let with = |empty: usize| {
        let mut stream = vec![0; 4 * empty];
        stream.extend(words(&[4, 1, 0, 0, 0x8000_0004, 2]));
        one(&stream, 100)
    };
    assert_eq!(with(16).unwrap(), [words(&[1, 2])]);
    assert_eq!(with(17), Err(RecordError::EmptyFragments));
    assert_eq!(one(&words(&[4, 1, 0x8000_0000]), 100).unwrap(), [words(&[1])], "an empty last fragment");
    assert_eq!(one(&words(&[0x8000_0000]), 100).unwrap(), [vec![]], "an empty record");
}

/// Decodes a stream with reads that fill all available memory. Returns the records, the number of reads, and
/// the number of bytes that were read to the stash.
fn read_greedily(
    mut r: RecordReader,
    mut stream: &[u8],
    mut large: impl FnMut(&mut RecordReader, usize),
) -> (Vec<Message>, usize, usize) {
    let (mut records, mut reads, mut early) = (Vec::new(), 0, 0);
    loop {
        match r.next_record().unwrap() {
            Next::Record(m) => records.push(m),
            Next::NoMemory(_) => panic!("no memory"),
            Next::NeedAdmission(bytes) => r.admit(bytes),
            Next::Large(len) => large(&mut r, len),
            Next::NeedBytes if stream.is_empty() => return (records, reads, early),
            Next::NeedBytes => {
                let before = stream.len();
                let mut space = r.space();
                for room in &mut space {
                    let n = room.len().min(stream.len());
                    room[..n].copy_from_slice(&stream[..n]);
                    stream = &stream[n..];
                    // The stash: buffers of large records are larger.
                    early += if room.len() <= 16384 { n } else { 0 };
                }
                drop(space);
                r.advance(before - stream.len());
                reads += 1;
            }
        }
    }
}

#[test]
fn large_records_use_one_buffer_and_copy_only_stashed_bytes() {
    let body: Vec<u8> = (0..1_000_000u32).map(|i| i as u8).collect();
    let record = [words(&[0x8000_0000 + body.len() as u32]), body.clone()].concat();
    let (records, _, early) = read_greedily(reader(4 << 20).1, &record.repeat(3), |_, _| {});
    assert!(early <= 16384 + 512 + 512, "{early} bytes were read elsewhere and copied");
    assert_eq!(records.len(), 3);
    for message in records {
        assert_eq!(message.head.iter().count(), 1);
        assert_eq!(message.head.to_vec(), body);
    }
}

fn buffer(len: usize) -> Buffer {
    let mut buffer = arena().alloc(len).unwrap();
    buffer.set_len(len);
    buffer
}

#[test]
fn a_part_of_a_large_record_is_received_in_the_memory_of_the_caller() {
    let body: Vec<u8> = (0..1_000_000u32).map(|i| i as u8).collect();
    let record = [words(&[0x8000_0000 + body.len() as u32]), body.clone()].concat();
    let r = RecordReader::placing(&arena(), 4 << 20);
    let (records, reads, early) =
        read_greedily(r, &record.repeat(3), |r, len| r.place(128, buffer(len - 128)));
    assert!(early <= 16384 + 512 + 512, "{early} bytes were read elsewhere and copied");
    assert_eq!(reads, 4, "no read for the start of a record that follows another one");
    for message in records {
        assert_eq!(message.head.iter().map(|v| v.len()).collect::<Vec<_>>(), [128, body.len() - 128]);
        assert_eq!(message.head.to_vec(), body);
    }
}

#[test]
fn memory_outside_of_the_record_is_ignored() {
    let body = vec![7; 20_000];
    let record = [words(&[0x8000_0000 + 20_000]), body.clone()].concat();
    for (offset, len) in [(1, 20_000), (20_000, 1), (usize::MAX, 20_000)] {
        let mut r = RecordReader::placing(&arena(), 4 << 20);
        let received = receive(&mut r, &record, &[usize::MAX], |r, _| r.place(offset, buffer(len))).unwrap();
        assert_eq!(received.len(), 1);
        assert_eq!(received[0].head.to_vec(), body);
    }
}

#[test]
fn placing_waits_for_the_memory_of_the_other_parts() {
    let a = Arena::new(millrace_buffer::ArenaConfig { limit: 1, huge_pages: false });
    let mut held = Vec::new();
    while let Ok(b) = a.alloc(512) {
        held.push(b);
    }
    let mut r = RecordReader::placing(&a, 1 << 20);
    feed(&mut r, &[words(&[0x8000_0000 + 20_000]), vec![1; 300]].concat());
    assert!(matches!(r.next_record(), Ok(Next::Large(20_000))));
    r.place(100, buffer(19_500));
    assert!(matches!(r.next_record(), Ok(Next::NoMemory(_))));
    assert!(matches!(r.next_record(), Ok(Next::NoMemory(_))));
    held.clear();
    feed(&mut r, &vec![1; 19_700]);
    let Ok(Next::Record(m)) = r.next_record() else { panic!("no record") };
    assert_eq!(m.head.iter().map(|v| v.len()).collect::<Vec<_>>(), [100, 19_500, 400]);
    assert_eq!(m.head.to_vec(), vec![1; 20_000]);
}

#[test]
fn one_read_returns_many_small_records() {
    let record = [words(&[0x8000_1064]), vec![7; 0x1064]].concat();
    let (records, reads, _) = read_greedily(reader(4 << 20).1, &record.repeat(16), |_, _| {});
    assert_eq!(records.len(), 16);
    assert!(reads <= 5, "{reads} reads for 16 replies with 4 KiB each");
}

#[test]
fn a_record_longer_than_a_buffer_uses_several() {
    let (arena, mut r) =
        (Arena::new(millrace_buffer::ArenaConfig { limit: 32 << 20, huge_pages: false }), 5 << 20);
    let data: Vec<u8> = (0..(4u32 << 20) + 1).map(|i| (i / 251) as u8).collect();
    let mut e = Encoder::new(&arena, 64);
    e.put_u32(77);
    e.put_opaque(&data[..4000]);
    let head = e.finish().unwrap().head.to_vec();
    let mut stream = words(&[0x8000_000f + data.len() as u32, 77, 0, data.len() as u32]);
    stream.extend(&data);
    stream.extend([0; 3]);
    let mut reader = RecordReader::new(&arena, std::mem::take(&mut r));
    assert_eq!(head.len(), 4008);
    let mut rest = &stream[..];
    let message = loop {
        match reader.next_record().unwrap() {
            Next::Record(m) => break m,
            Next::NoMemory(_) => panic!("no memory"),
            Next::NeedAdmission(_) | Next::Large(_) => panic!("this reader asks for nothing"),
            Next::NeedBytes => {
                let mut got = 0;
                for room in &mut reader.space() {
                    let n = room.len().min(rest.len());
                    room[..n].copy_from_slice(&rest[..n]);
                    rest = &rest[n..];
                    got += n;
                }
                reader.advance(got);
            }
        }
    };
    assert_eq!(message.head.len(), stream.len() - 4);
    let mut d = millrace_xdr::Decoder::new(&message);
    assert_eq!((d.u32(), d.u32()), (Ok(77), Ok(0)));
    assert_eq!(d.payload(5 << 20).unwrap().to_vec(), data);
}

#[test]
fn the_reader_waits_for_memory_and_continues() {
    let a = Arena::new(millrace_buffer::ArenaConfig { limit: 1, huge_pages: false });
    let mut held = Vec::new();
    while let Ok(b) = a.alloc(1) {
        held.push(b);
    }
    let mut r = RecordReader::new(&a, 1000);
    r.space()[0][..8].copy_from_slice(&words(&[0x8000_0004, 9]));
    r.advance(8);
    assert!(matches!(r.next_record(), Ok(Next::NoMemory(_))));
    assert!(matches!(r.next_record(), Ok(Next::NoMemory(_))));
    drop(held);
    assert!(matches!(r.next_record(), Ok(Next::Record(m)) if m.xid() == Some(9)));
}

fn growing(max: usize) -> (Arena, RecordReader) {
    let arena = arena();
    let reader = RecordReader::growing(&arena, max);
    (arena, reader)
}

fn feed(r: &mut RecordReader, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match r.next_record().unwrap() {
            Next::NeedBytes => {}
            other => panic!("{other:?}"),
        }
        let mut got = 0;
        for room in &mut r.space() {
            let n = room.len().min(bytes.len());
            room[..n].copy_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            got += n;
        }
        r.advance(got);
    }
}

#[test]
fn an_announced_record_is_admitted_as_a_whole_and_allocated_piecewise() {
    const RECORD: usize = (1 << 20) + 100;
    let (arena, mut r) = growing(2 << 20);
    feed(&mut r, &words(&[0x8000_0000 + RECORD as u32])[..]);
    feed(&mut r, &[1; START_BYTES]);
    assert!(matches!(r.next_record(), Ok(Next::Large(RECORD))));
    assert!(matches!(r.next_record(), Ok(Next::NeedAdmission(room)) if room == (1 << 20) + 512));
    assert!(matches!(r.next_record(), Ok(Next::NeedAdmission(_))));
    assert_eq!(arena.stats().in_use, 0);
    r.admit((1 << 20) + 512);
    feed(&mut r, &[1]);
    assert_eq!(arena.stats().in_use, 64 << 10);
    let mut come = START_BYTES + 1;
    while come < RECORD - 1 {
        let n = 5000.min(RECORD - 1 - come);
        feed(&mut r, &vec![1; n]);
        come += n;
        let taken = arena.stats().in_use;
        let most = if come <= 64 << 10 { 64 << 10 } else { (1 << 20) + 512 };
        assert!(taken <= most, "{taken} bytes for {come}");
    }
    feed(&mut r, &[1]);
    let Ok(Next::Record(message)) = r.next_record() else { panic!("the record is complete") };
    assert_eq!(message.head.len(), RECORD);
    assert!(
        message.head.iter().next().unwrap().len() >= 64 << 10,
        "the head of a call is in the first piece"
    );
    assert_eq!(arena.stats().in_use, r.take_admitted());
    // The next record is admitted again; its length is unknown before its last fragment.
    feed(&mut r, &words(&[4]));
    assert!(matches!(r.next_record(), Ok(Next::NeedAdmission(room)) if room == 2 << 20));
    r.admit(2 << 20);
    feed(&mut r, &words(&[7, 0x8000_0004, 8]));
    assert!(matches!(r.next_record(), Ok(Next::Record(m)) if m.head.to_vec() == words(&[7, 8])));
    assert_eq!(r.take_admitted(), 2 << 20);
    // A dropped record is freed immediately.
    let (arena, mut r) = growing(2 << 20);
    feed(&mut r, &words(&[0x8010_0000]));
    feed(&mut r, &[1; START_BYTES]);
    assert!(matches!(r.next_record(), Ok(Next::Large(_))));
    assert!(matches!(r.next_record(), Ok(Next::NeedAdmission(_))));
    r.admit(1 << 20);
    feed(&mut r, &[1; 100_000]);
    r.clear();
    assert_eq!((arena.stats().in_use, r.take_admitted()), (0, 1 << 20));
}

#[test]
fn clients_receive_many_small_replies_with_one_read() {
    let body: Vec<u8> = (0..4224u32).map(|i| i as u8).collect();
    let small = [words(&[0x8000_0000 + 4224]), body.clone()].concat();
    let large = [words(&[0x8000_0000 + 1_000_000]), vec![7; 1_000_000]].concat();
    // A read is short until one was full, and after a large record.
    let stream = [small.repeat(4 + 16), large, small.repeat(4 + 16)].concat();
    let placing = || RecordReader::placing(&arena(), 4 << 20);
    let (records, reads, _) = read_greedily(placing(), &stream, |r, len| r.place(128, buffer(len - 128)));
    assert_eq!(records.len(), 41);
    assert!(records.iter().filter(|m| m.head.len() == 4224).all(|m| m.head.to_vec() == body));
    assert!(reads <= 6, "{reads} reads");
    // A server reads less, because a peer that needs memory keeps what was read.
    let mut r = growing(4 << 20).1;
    for piece in stream.chunks(500) {
        let most = r.space().iter().map(|room| room.len()).max().unwrap();
        assert!(most <= 64 << 10, "{most} bytes");
        feed(&mut r, piece);
        while let Ok(Next::Record(_) | Next::Large(_) | Next::NeedAdmission(_)) = r.next_record() {
            r.admit(1 << 20);
        }
    }
}

#[test]
fn growing_records_are_copied_no_more_than_others() {
    let body: Vec<u8> = (0..1_000_000u32).map(|i| i as u8).collect();
    let record = [words(&[0x8000_0000 + body.len() as u32]), body.clone()].concat();
    let (_arena, r) = growing(4 << 20);
    let (records, reads, early) = read_greedily(r, &record.repeat(3), |r, _| r.align(128));
    assert!(early <= 16384 + 512 + 512, "{early} bytes were read elsewhere and copied");
    assert!(reads <= 3 * 3, "{reads} reads");
    for message in records {
        assert_eq!(message.head.iter().count(), 17);
        assert!(message.head.iter().skip(1).take(15).all(|piece| piece.len() == 64 << 10));
        assert_eq!(message.head.to_vec(), body);
    }
}

/// Records by the lengths of their fragments, with bytes that count up.
fn stream_of(records: &[Vec<usize>]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (mut stream, mut out, mut byte) = (Vec::new(), Vec::new(), 0u8);
    for fragments in records {
        let mut record = Vec::new();
        for (i, len) in fragments.iter().enumerate() {
            let last = if i + 1 == fragments.len() { 1u32 << 31 } else { 0 };
            stream.extend((*len as u32 | last).to_be_bytes());
            for _ in 0..*len {
                byte = byte.wrapping_mul(5).wrapping_add(3);
                stream.push(byte);
                record.push(byte);
            }
        }
        out.push(record);
    }
    (stream, out)
}

#[test]
fn an_empty_fragment_starts_a_record() {
    let (_arena, mut r) = reader(100);
    assert!(r.at_record_start());
    assert_eq!(read(&mut r, &[0; 4], &[4]).unwrap(), Vec::<Vec<u8>>::new());
    assert!(!r.at_record_start(), "a stream that ends here ends inside a record");
    assert_eq!(read(&mut r, &[0x80, 0, 0, 0], &[4]).unwrap(), [b""]);
    assert!(r.at_record_start());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn records_are_decoded_from_any_fragments_and_pieces(
        records in prop::collection::vec(prop::collection::vec(0usize..6000, 1..5), 1..6),
        pieces in prop::collection::vec(1usize..9000, 1..20),
    ) {
        let (stream, expected) = stream_of(&records);
        let (arena, mut r) = reader(30_000);
        let got = read(&mut r, &stream, &pieces).unwrap();
        prop_assert_eq!(got, expected);
        prop_assert!(r.at_record_start());
        prop_assert_eq!(arena.stats().in_use, 0);
    }

    #[test]
    fn placed_records_are_decoded_from_any_pieces(
        records in prop::collection::vec(prop::collection::vec(0usize..60_000, 1..3), 1..6),
        pieces in prop::collection::vec(1usize..90_000, 1..20),
        places in prop::collection::vec((0usize..400, 0usize..30_000, any::<bool>()), 6),
    ) {
        let (stream, expected) = stream_of(&records);
        let arena = arena();
        let mut r = RecordReader::placing(&arena, 300_000);
        let mut places = places.into_iter();
        let place = |r: &mut RecordReader, len: usize| {
            let start = r.start();
            assert!(start.len() >= START_BYTES && start.len() <= len && expected.iter().any(|r| r.starts_with(start)));
            let (offset, rest, placed) = places.next().unwrap();
            let part = len.saturating_sub(offset + rest).max(1);
            if placed {
                let mut buffer = arena.alloc(part).unwrap();
                buffer.set_len(part);
                r.place(offset, buffer);
            }
        };
        let got = receive(&mut r, &stream, &pieces, place).unwrap();
        prop_assert!(got.iter().map(|m| m.head.to_vec()).eq(expected.iter().cloned()));
        prop_assert!(r.at_record_start());
        drop(got);
        prop_assert_eq!(arena.stats().in_use, 0);
    }

    #[test]
    fn growing_records_are_decoded_from_any_fragments_and_pieces(
        records in prop::collection::vec(prop::collection::vec(0usize..100_000, 1..5), 1..4),
        pieces in prop::collection::vec(1usize..150_000, 1..20),
    ) {
        let (stream, expected) = stream_of(&records);
        let (arena, mut r) = growing(400_000);
        let got = read(&mut r, &stream, &pieces).unwrap();
        prop_assert!(got == expected);
        prop_assert!(r.at_record_start());
        prop_assert_eq!(arena.stats().in_use, 0);
    }

    #[test]
    fn aligned_records_are_decoded_from_any_pieces(
        records in prop::collection::vec(prop::collection::vec(0usize..200_000, 1..3), 1..6),
        pieces in prop::collection::vec(1usize..150_000, 1..20),
        offsets in prop::collection::vec(0usize..70_000, 6),
    ) {
        let (stream, expected) = stream_of(&records);
        let (arena, mut r) = growing(500_000);
        let mut aligned = expected.iter().zip(&records).zip(&offsets).filter(|((_, fragments), _)| {
            fragments.len() == 1 && fragments[0] > 64 << 10
        });
        let mut choose = |start: &[u8]| {
            let ((record, _), offset) = aligned.next().unwrap();
            assert!(record.starts_with(start));
            *offset
        };
        let got = receive(&mut r, &stream, &pieces, |r, _| r.align(choose(r.start()))).unwrap();
        for (((message, record), fragments), offset) in got.iter().zip(&expected).zip(&records).zip(&offsets) {
            prop_assert_eq!(&message.head.to_vec(), record);
            let large = fragments.len() == 1 && fragments[0] > 64 << 10;
            if large && (1..=64 << 10).contains(offset) && *offset < record.len() {
                let second = message.head.iter().nth(1).unwrap();
                prop_assert_eq!(message.head.iter().next().unwrap().len(), *offset);
                prop_assert_eq!(second.len(), (record.len() - offset).min(64 << 10));
            }
        }
        prop_assert!(r.at_record_start());
        drop(got);
        prop_assert_eq!(arena.stats().in_use, 0);
    }

    #[test]
    fn a_writer_resumes_after_a_partial_write(
        messages in prop::collection::vec((0usize..100, prop::collection::vec(0usize..50, 0..5), any::<bool>()), 1..40),
        writes in prop::collection::vec(1usize..300, 1..20),
    ) {
        let a = arena();
        let mut w = RecordWriter::new(a.copy_from(&[0; 4]).unwrap());
        let mut expected = Vec::new();
        for (i, (tail, payload, own_xid)) in messages.iter().enumerate() {
            let mut e = Encoder::new(&a, 64);
            e.put_u32(i as u32);
            e.put_payload(payload.iter().map(|n| a.copy_from(&vec![*n as u8; *n]).unwrap()).collect::<Views>());
            e.put_opaque(&vec![b't'; *tail]);
            let m = e.finish().unwrap();
            let xid = own_xid.then_some(0xaabb_ccdd);
            w.push(&m, xid).unwrap();
            let data: Vec<u8> = payload.iter().flat_map(|n| vec![*n as u8; *n]).collect();
            let mut flat = Encoder::new(&a, 64);
            flat.put_u32(xid.unwrap_or(i as u32));
            flat.put_opaque(&data);
            flat.put_opaque(&vec![b't'; *tail]);
            let flat = flat.finish().unwrap().head.to_vec();
            expected.extend((flat.len() as u32 | 1 << 31).to_be_bytes());
            expected.extend(flat);
        }
        prop_assert_eq!(w.queued(), expected.len());
        let mut got: Vec<u8> = Vec::new();
        let mut sizes = writes.iter().cycle();
        while w.queued() > 0 {
            let bytes: Vec<u8> = w.slices().iter().flat_map(|s| s.to_vec()).collect();
            prop_assert!(!bytes.is_empty());
            let n = bytes.len().min(*sizes.next().unwrap());
            got.extend(&bytes[..n]);
            w.advance(n);
        }
        prop_assert_eq!(got, expected);
        prop_assert!(w.slices().is_empty());
    }

    #[test]
    fn invalid_input_uses_at_most_the_memory_of_one_record(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let (arena, mut r) = reader(1000);
        let _ = read(&mut r, &bytes, &[7]);
        prop_assert!(arena.stats().in_use <= 2048);
    }
}
