//! Decoding of requests: the layouts of `include/uapi/linux/fuse.h` byte by byte, and input that is not a request.

use millrace_fuse_session::protocol::{
    CopyFileRange, DecodeError, FileRange, Header, InitFlags, InitRequest, LockRequest, Operation,
    ReadDirectory, ReadRequest, SetAttributes, SetTime, Time, WriteRequest,
};
use proptest::prelude::*;

/// The fields of a message.
#[derive(Debug, Clone, Default)]
struct Body(Vec<u8>);

impl Body {
    fn u32(mut self, field: u32) -> Self {
        self.0.extend(field.to_ne_bytes());
        self
    }

    fn u64(mut self, field: u64) -> Self {
        self.0.extend(field.to_ne_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
}

fn body() -> Body {
    Body::default()
}

const UNIQUE: u64 = 0x1122_3344_5566_7788;
const NODE: u64 = 0x99aa_bbcc_ddee_ff00;

/// A message of the user 1000, the group 100 and the thread 4321.
fn message(opcode: u32, body: &Body) -> Vec<u8> {
    let header = Body::default().u32(40 + body.0.len() as u32).u32(opcode).u64(UNIQUE).u64(NODE);
    header.u32(1000).u32(100).u32(4321).u32(0).bytes(&body.0).0
}

fn decode(message: &[u8]) -> Result<Operation<'_>, DecodeError> {
    let (header, rest) = Header::decode(message)?;
    Operation::decode(&header, rest)
}

/// Each operation with its message.
fn examples() -> Vec<(u32, Body, Operation<'static>)> {
    use Operation as O;
    let range = FileRange { handle: 7, offset: 1 << 40, length: 3 };
    let lock = LockRequest { handle: 7, owner: 8, start: 9, last: u64::MAX >> 1, kind: 1, is_flock: false };
    let flock = LockRequest { is_flock: true, ..lock };
    let lock_body =
        |lk_flags| body().u64(7).u64(8).u64(9).u64(u64::MAX >> 1).u32(1).u32(4321).u32(lk_flags).u32(0);
    let read_body = body().u64(7).u64(4096).u32(512).u32(0).u64(0).u32(0o40000).u32(0);
    let list = ReadDirectory { handle: 7, offset: 4096, size: 512 };
    let copy = |has_long_reply| CopyFileRange { source: range, handle: 9, offset: 10, has_long_reply };
    let copy_body = body().u64(7).u64(1 << 40).u64(8).u64(9).u64(10).u64(3).u64(0);
    vec![
        (1, body().bytes(b"name\0"), O::Lookup { name: b"name" }),
        (2, body().u64(3), O::Forget { lookups: 3 }),
        (3, body().u32(1).u32(0).u64(7), O::GetAttributes),
        (5, body(), O::ReadLink),
        (6, body().bytes(b"name\0to/there\0"), O::Symlink { name: b"name", target: b"to/there" }),
        (6, body().bytes(b"name\0\0"), O::Symlink { name: b"name", target: b"" }),
        (
            8,
            body().u32(0o100_644).u32(0x1234).u32(0o22).u32(0).bytes(b"name\0"),
            O::MakeNode { name: b"name", mode: 0o100_644, device: 0x1234 },
        ),
        (
            21,
            body().u32(3).u32(1).bytes(b"user.k\0a\0b"),
            O::SetXattr { name: b"user.k", value: b"a\0b", flags: 1 },
        ),
        (21, body().u32(0).u32(0).bytes(b"user.k\0"), O::SetXattr { name: b"user.k", value: b"", flags: 0 }),
        (22, body().u32(64).u32(0).bytes(b"user.k\0"), O::GetXattr { name: b"user.k", size: 64 }),
        (23, body().u32(64).u32(0), O::ListXattrs { size: 64 }),
        (24, body().bytes(b"user.k\0"), O::RemoveXattr { name: b"user.k" }),
        (9, body().u32(0o755).u32(0o22).bytes(b"name\0"), O::MakeDirectory { name: b"name", mode: 0o755 }),
        (10, body().bytes(b"name\0"), O::Unlink { name: b"name" }),
        (11, body().bytes(b"name\0"), O::RemoveDirectory { name: b"name" }),
        (
            12,
            body().u64(5).bytes(b"name\0new\0"),
            O::Rename { name: b"name", new_directory: 5, new_name: b"new", flags: 0 },
        ),
        (
            45,
            body().u64(5).u32(1).u32(0).bytes(b"name\0new\0"),
            O::Rename { name: b"name", new_directory: 5, new_name: b"new", flags: 1 },
        ),
        (13, body().u64(5).bytes(b"name\0"), O::Link { node: 5, name: b"name" }),
        (14, body().u32(0o2).u32(1), O::Open { flags: 2 }),
        (
            35,
            body().u32(0o102).u32(0o100_600).u32(0o22).u32(0).bytes(b"name\0"),
            O::Create { name: b"name", mode: 0o100_600, flags: 0o102 },
        ),
        (
            15,
            read_body.clone(),
            O::Read(ReadRequest { handle: 7, offset: 4096, size: 512, flags: 0o40000, lock_owner: None }),
        ),
        (17, body(), O::Statistics),
        (18, body().u64(7).u32(2).u32(3).u64(8), O::Release { handle: 7 }),
        (20, body().u64(7).u32(1).u32(0), O::Fsync { handle: 7 }),
        (25, body().u64(7).u32(0).u32(0).u64(8), O::Flush { handle: 7, lock_owner: 8 }),
        (27, body().u32(0).u32(0), O::OpenDirectory),
        (28, read_body.clone(), O::ReadDirectory(list)),
        (44, read_body, O::ReadDirectoryPlus(list)),
        (29, body().u64(7).u32(0).u32(0).u64(0), O::ReleaseDirectory { handle: 7 }),
        (30, body().u64(7).u32(0).u32(0), O::FsyncDirectory),
        (31, lock_body(0), O::GetLock(lock)),
        (32, lock_body(1), O::SetLock { lock: flock, waits: false }),
        (33, lock_body(0), O::SetLock { lock, waits: true }),
        (34, body().u32(5).u32(0), O::Access { mask: 5 }),
        (36, body().u64(12), O::Interrupt { unique: 12 }),
        (38, body(), O::Destroy),
        (39, body().u64(7).u32(0).u32(0x5401).u64(0).u32(0).u32(0), O::Ioctl),
        (43, body().u64(7).u64(1 << 40).u64(3).u32(0x13).u32(0), O::Fallocate { range, mode: 0x13 }),
        (46, body().u64(7).u64(9).u32(4).u32(0), O::Seek { handle: 7, offset: 9, whence: 4 }),
        (47, copy_body.clone(), O::CopyFileRange(copy(false))),
        (53, copy_body, O::CopyFileRange(copy(true))),
        (u32::MAX, body(), O::Other),
    ]
}

#[test]
fn operations_have_the_layout_of_the_kernel() {
    for (opcode, body, expected) in examples() {
        let message = message(opcode, &body);
        let (header, _) = Header::decode(&message).unwrap();
        let expected_header = Header { opcode, unique: UNIQUE, node: NODE, uid: 1000, gid: 100, pid: 4321 };
        assert_eq!(header, expected_header);
        assert_eq!(decode(&message), Ok(expected));
    }
}

#[test]
fn attributes_are_set_as_their_flags_say() {
    let body = |valid| {
        let body = body().u32(valid).u32(0).u64(7).u64(1 << 33).u64(8);
        let body = body.u64(-1_i64 as u64).u64(200).u64(300).u32(1).u32(2).u32(3);
        body.u32(0o640).u32(0).u32(10).u32(20).u32(0)
    };
    let set = |valid| match decode(&message(4, &body(valid))).unwrap() {
        Operation::SetAttributes(set) => set,
        other => unreachable!("{other:?}"),
    };
    let nothing = SetAttributes::default();
    let time = |seconds, nanoseconds| Some(SetTime::At(Time { seconds, nanoseconds }));
    for (valid, expected) in [
        (0, nothing),
        (1 << 0, SetAttributes { mode: Some(0o640), ..nothing }),
        (1 << 1, SetAttributes { uid: Some(10), ..nothing }),
        (1 << 2, SetAttributes { gid: Some(20), ..nothing }),
        (1 << 3, SetAttributes { size: Some(1 << 33), ..nothing }),
        (1 << 4, SetAttributes { atime: time(-1, 1), ..nothing }),
        (1 << 5, SetAttributes { mtime: time(200, 2), ..nothing }),
        (1 << 6, SetAttributes { handle: Some(7), ..nothing }),
        (1 << 4 | 1 << 7, SetAttributes { atime: Some(SetTime::Now), ..nothing }),
        (1 << 5 | 1 << 8, SetAttributes { mtime: Some(SetTime::Now), ..nothing }),
        (1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11, nothing),
    ] {
        assert_eq!(set(valid), expected, "{valid:#x}");
    }
}

#[test]
fn lock_owners_are_valid_only_with_their_flag() {
    let body = |flags| body().u64(7).u64(4096).u32(4).u32(flags).u64(8).u32(0o40001).u32(0).bytes(b"data");
    for (flags, lock_owner, is_from_cache) in [(0, None, false), (1, None, true), (2, Some(8), false)] {
        let write =
            WriteRequest { handle: 7, offset: 4096, size: 4, flags: 0o40001, lock_owner, is_from_cache };
        assert_eq!(decode(&message(16, &body(flags))), Ok(Operation::Write(write)));
        let read = ReadRequest { handle: 7, offset: 4096, size: 4, flags: 0o40001, lock_owner };
        assert_eq!(decode(&message(15, &body(flags))), Ok(Operation::Read(read)));
    }
}

#[test]
fn nodes_are_forgotten_together() {
    let message = message(42, &body().u32(2).u32(0).u64(5).u64(1).u64(6).u64(u64::MAX));
    let Ok(Operation::BatchForget(forgets)) = decode(&message) else { unreachable!() };
    assert_eq!(forgets.collect::<Vec<_>>(), [(5, 1), (6, u64::MAX)]);
}

#[test]
fn a_batch_that_is_longer_than_its_message_is_an_error() {
    for count in [3, u32::MAX] {
        let message = message(42, &body().u32(count).u32(0).u64(5).u64(1).u64(6).u64(1));
        assert_eq!(decode(&message), Err(DecodeError::Short));
    }
}

#[test]
fn init_has_upper_capabilities_only_with_their_flag() {
    let init = |flags: u32| body().u32(7).u32(45).u32(1 << 20).u32(flags).u32(1 << 4).bytes(&[0; 44]);
    let expected = |flags| {
        Ok(Operation::Init(InitRequest {
            major: 7,
            minor: 45,
            max_readahead: 1 << 20,
            flags: InitFlags::from_bits_retain(flags),
        }))
    };
    assert_eq!(decode(&message(26, &init(1))), expected(1));
    let both = InitFlags::ASYNC_READ | InitFlags::INIT_EXT | InitFlags::DIRECT_IO_ALLOW_MMAP;
    assert_eq!(decode(&message(26, &init(1 | 1 << 30))), expected(both.bits()));
    // Before 7.36 the request ends here.
    let short = body().u32(7).u32(45).u32(1 << 20).u32(1);
    assert_eq!(decode(&message(26, &short)), expected(1));
    for (major, minor, is_supported) in
        [(7, 30, false), (7, 31, true), (7, 99, true), (6, 40, false), (8, 31, false)]
    {
        let request = InitRequest { major, minor, max_readahead: 0, flags: InitFlags::empty() };
        assert_eq!(request.is_supported(), is_supported, "{major}.{minor}");
    }
}

#[test]
fn extensions_are_not_part_of_the_body() {
    let mut with_extension = message(1, &body().bytes(b"name\0\0\0\0").u64(u64::MAX));
    with_extension[36..38].copy_from_slice(&1_u16.to_ne_bytes());
    let (header, rest) = Header::decode(&with_extension).unwrap();
    assert_eq!(rest, b"name\0\0\0\0");
    assert_eq!(Operation::decode(&header, rest), Ok(Operation::Lookup { name: b"name" }));
    with_extension[36..38].copy_from_slice(&u16::MAX.to_ne_bytes());
    assert_eq!(decode(&with_extension), Err(DecodeError::Short));
}

#[test]
fn names_end_and_are_not_empty() {
    for (opcode, fixed) in [(1, 0), (6, 0), (8, 16), (9, 8), (10, 0), (11, 0), (13, 8), (35, 16)] {
        let body = || body().bytes(&vec![0; fixed]);
        assert_eq!(decode(&message(opcode, &body().bytes(b"name"))), Err(DecodeError::NoNul));
        assert_eq!(decode(&message(opcode, &body())), Err(DecodeError::NoNul));
        assert_eq!(decode(&message(opcode, &body().bytes(b"\0\0"))), Err(DecodeError::NoName));
    }
    for (opcode, fixed) in [(12, 8), (45, 16)] {
        let body = || body().bytes(&vec![0; fixed]);
        assert_eq!(decode(&message(opcode, &body().bytes(b"name\0"))), Err(DecodeError::NoNul));
        assert_eq!(decode(&message(opcode, &body().bytes(b"name\0\0"))), Err(DecodeError::NoName));
    }
}

#[test]
fn the_length_must_be_that_of_the_message() {
    let message = message(1, &body().bytes(b"name\0"));
    let longer = [&message[..], &[0]].concat();
    assert_eq!(Header::decode(&longer), Err(DecodeError::Length { stated: 45, received: 46 }));
    for length in 0..message.len() {
        assert!(Header::decode(&message[..length]).is_err());
    }
}

/// A shorter body is an error or another valid operation, never one with fields from beyond its end.
#[test]
fn shortened_operations_do_not_decode_to_the_same() {
    for (opcode, body, expected) in examples() {
        for length in 0..body.0.len() {
            let message = message(opcode, &Body(body.0[..length].to_vec()));
            let decoded = decode(&message);
            if decoded == Ok(expected) {
                let longer = [&message[..], &[0xff; 64]].concat();
                let (header, _) = Header::decode(&message).unwrap();
                assert_eq!(Operation::decode(&header, &longer[40..]), decoded, "{opcode}: unused fields");
            }
        }
    }
}

proptest! {
    #[test]
    fn any_input_is_decoded_or_refused(
        opcode in prop_oneof![0..60_u32, any::<u32>()],
        random in prop::collection::vec(any::<u8>(), 0..200),
        extensions in prop_oneof![Just(0), any::<u16>()],
    ) {
        let _ = decode(&random);
        let mut message = message(opcode, &Body(random));
        message[36..38].copy_from_slice(&extensions.to_ne_bytes());
        if let Ok(Operation::BatchForget(forgets)) = decode(&message) {
            prop_assert!(forgets.count() <= message.len() / 16);
        }
    }

    #[test]
    fn names_and_data_are_those_of_the_message(
        name in "[^/\0]{1,255}",
        new in "[^/\0]{1,255}",
        numbers in any::<(u64, u64, u32)>(),
        data in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let (name, new_name, (first, second, flags)) = (name.as_bytes(), new.as_bytes(), numbers);
        let rename = body().u64(first).u32(flags).u32(0).bytes(name).bytes(b"\0").bytes(new_name).bytes(b"\0");
        let rename = message(45, &rename);
        prop_assert_eq!(decode(&rename), Ok(Operation::Rename { name, new_directory: first, new_name, flags }));
        let write = body().u64(first).u64(second).u32(data.len() as u32).u32(0).u64(0).u32(flags).u32(0).bytes(&data);
        let write = message(16, &write);
        let expected = WriteRequest {
            handle: first,
            offset: second,
            size: data.len() as u32,
            flags,
            lock_owner: None,
            is_from_cache: false,
        };
        prop_assert_eq!(decode(&write), Ok(Operation::Write(expected)));
        prop_assert_eq!(&write[WriteRequest::DATA..], &data);
        let (header, parameters) = Header::decode_start(&write[..WriteRequest::DATA], write.len()).unwrap();
        prop_assert!(WriteRequest::follows(&header));
        prop_assert_eq!(Operation::decode(&header, parameters), Ok(Operation::Write(expected)));
    }
}
