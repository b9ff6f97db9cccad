//! Record marking (RFC 5531 section 11).

use millrace_buffer::Arena;
use millrace_oncrpc::tcp::record::{Next, RecordReader, RecordWriter};

use super::xdr::{arena, received, view};
use crate::{bytes::Input, mutate::Random};

const LAST: u32 = 1 << 31;
/// As in [`RecordReader`]: maximum number of consecutive empty fragments.
const MAX_EMPTY: u32 = 16;

/// A constructor of a reader with a limit of the record length.
type Make = fn(&Arena, usize) -> RecordReader;

/// The records of a stream, whether the reader refused the rest, and whether the stream ended between
/// records.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    records: Vec<Vec<u8>>,
    refused: bool,
    at_start: bool,
}

/// Input: a limit of the record length, a seed of the split, and the stream. For any split, the records are
/// those of a direct implementation of RFC 5531.
pub(super) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let max = [16, 300, 5000, 70_000][usize::from(input.u8() % 4)];
    let split = u64::from(input.u8());
    let stream = input.rest();
    let expected = reference(stream, max);
    for make in [RecordReader::new, RecordReader::placing, RecordReader::growing] {
        let whole = read(stream, max, make, None);
        assert_eq!(whole, expected);
        assert_eq!(read(stream, max, make, Some(Random::new(split))), expected, "split by seed {split}");
        let written = write(&whole.records);
        assert_eq!(read(&written, max, make, Some(Random::new(split))).records, whole.records);
    }
}

/// The stream of these records.
fn write(records: &[Vec<u8>]) -> Vec<u8> {
    let mut writer = RecordWriter::new(view(&[0; 4]));
    for record in records {
        writer.push(&received(record), None).expect("a record");
    }
    let mut out = Vec::new();
    while writer.queued() > 0 {
        let some: Vec<u8> = writer.slices().iter().flat_map(|s| s.to_vec()).collect();
        writer.advance(some.len());
        out.extend(some);
    }
    out
}

/// The length of a piece, with a random order of magnitude.
fn piece(random: &mut Random) -> usize {
    let most = 1 << random.below(12);
    random.below(most) + 1
}

fn read(mut stream: &[u8], max: usize, make: Make, mut split: Option<Random>) -> Outcome {
    let mut reader = make(&arena(), max);
    let mut records: Vec<Vec<u8>> = Vec::new();
    loop {
        match reader.next_record() {
            Ok(Next::Record(record)) => {
                assert!(record.head.len() <= max, "a record exceeds the limit");
                records.push(record.head.to_vec());
            }
            Ok(Next::Large(len)) => {
                // A position and length that depend on the input.
                let offset = usize::from(reader.start()[0]);
                if reader.start()[2] % 2 == 1 {
                    reader.align(offset);
                    continue;
                }
                let mut part = arena().alloc(len - offset).expect("memory");
                part.set_len(len - offset - usize::from(reader.start()[1]));
                reader.place(offset, part);
            }
            Ok(Next::NeedBytes) => {
                if stream.is_empty() {
                    return Outcome { records, refused: false, at_start: reader.at_record_start() };
                }
                let limit = split.as_mut().map_or(usize::MAX, piece);
                let mut taken = 0;
                for room in &mut reader.space() {
                    let n = room.len().min(stream.len()).min(limit - taken);
                    room[..n].copy_from_slice(&stream[..n]);
                    stream = &stream[n..];
                    taken += n;
                }
                assert!(taken > 0, "a reader that needs bytes has no space for them");
                reader.advance(taken);
            }
            Ok(Next::NeedAdmission(bytes)) => {
                // Buffers have the sizes of the arena.
                let most = max + max / 4 + 4096;
                assert!(bytes <= most, "{bytes} bytes are requested for records of at most {max} bytes");
                reader.admit(bytes);
            }
            Ok(Next::NoMemory(_)) => panic!("the arena has no space for a record of {max} bytes"),
            Err(_) => return Outcome { records, refused: true, at_start: false },
        }
    }
}

/// A direct implementation of the specification.
fn reference(mut stream: &[u8], max: usize) -> Outcome {
    let (mut records, mut record, mut empty, mut begun) = (Vec::new(), Vec::new(), 0, false);
    while let Some((word, rest)) = stream.split_first_chunk() {
        let word = u32::from_be_bytes(*word);
        let (len, last) = ((word & !LAST) as usize, word & LAST != 0);
        empty = if len == 0 && !last { empty + 1 } else { 0 };
        if record.len() + len > max || empty > MAX_EMPTY {
            return Outcome { records, refused: true, at_start: false };
        }
        begun = true;
        let Some((fragment, rest)) = rest.split_at_checked(len) else {
            return Outcome { records, refused: false, at_start: false };
        };
        record.extend(fragment);
        stream = rest;
        if last {
            records.push(std::mem::take(&mut record));
            begun = false;
        }
    }
    Outcome { records, refused: false, at_start: stream.is_empty() && !begun }
}

/// One record, fragments, empty fragments, an excessive length, and a record that ends early.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let streams: [&[&[u8]]; 7] = [
        &[&[0x80, 0, 0, 4], b"abcd", &[0x80, 0, 0, 0]],
        &[&[0, 0, 0, 3], b"abc", &[0x80, 0, 0, 2], b"de", &[0x80, 0, 0, 1], b"f"],
        &[&[0; 60], &[0x80, 0, 0, 1], b"x"],
        &[&[0; 72]],
        &[&[0xff, 0xff, 0xff, 0xff]],
        &[&[0x80, 0, 0x40, 0], &[7; 0x4000], &[0x80, 0, 0, 9], b"part"],
        // A record that begins with an empty fragment was once taken for none.
        &[&[0; 4]],
    ];
    (0..).zip(streams).map(|(n, s)| [&[n, n * 3][..], &s.concat()].concat()).collect()
}
