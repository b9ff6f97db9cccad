//! Encoding of replies and notifications: the layouts of `include/uapi/linux/fuse.h` byte by byte.

use std::time::Duration;

use millrace_fuse_session::protocol::{
    Attributes, DirectoryEntries, DirectoryEntry, Entry, InitFlags, InitReply, Lock, Message, Notification,
    OpenFlags, Opened, Reply, Statistics, Time,
};
use proptest::prelude::*;

/// Fields in the order of a structure; `W` has 4 bytes, `L` 8.
enum Field {
    W(u32),
    L(u64),
}
use Field::{L, W};

fn bytes(fields: &[Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in fields {
        match field {
            W(field) => bytes.extend(field.to_ne_bytes()),
            L(field) => bytes.extend(field.to_ne_bytes()),
        }
    }
    bytes
}

fn joined(message: &Message<'_>) -> Vec<u8> {
    message.slices().iter().flat_map(|slice| slice.iter().copied()).collect()
}

/// Checks that a reply has this body.
fn check(reply: &Reply<'_>, body: &[u8]) {
    let header = bytes(&[W(16 + body.len() as u32), W(0), L(77)]);
    assert_eq!(joined(&reply.encode(77)), [&header, body].concat(), "{reply:?}");
}

const ATTRIBUTES: Attributes = Attributes {
    inode: 1 << 50,
    size: 2 << 40,
    blocks: 3 << 40,
    atime: Time { seconds: -1, nanoseconds: 1 },
    mtime: Time { seconds: 2 << 33, nanoseconds: 2 },
    ctime: Time { seconds: 3, nanoseconds: 999_999_999 },
    mode: 0o100_644,
    links: 4,
    uid: 5,
    gid: 6,
    device: 7,
    block_size: 4096,
};

fn attributes() -> Vec<u8> {
    let times = [L(u64::MAX), L(2 << 33), L(3), W(1), W(2), W(999_999_999)];
    let rest = [W(0o100_644), W(4), W(5), W(6), W(7), W(4096), W(0)];
    [bytes(&[L(1 << 50), L(2 << 40), L(3 << 40)]), bytes(&times), bytes(&rest)].concat()
}

const ENTRY: Entry = Entry {
    node: 8,
    generation: 9,
    name_ttl: Duration::new(10, 11),
    attributes_ttl: Duration::new(12, 13),
    attributes: ATTRIBUTES,
};

fn entry() -> Vec<u8> {
    [bytes(&[L(8), L(9), L(10), L(12), W(11), W(13)]), attributes()].concat()
}

#[test]
fn replies_have_the_layout_of_the_kernel() {
    let opened = Opened { handle: 14, flags: OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES };
    let opened_bytes = bytes(&[L(14), W(0x41), W(0)]);
    assert_eq!((attributes().len(), entry().len()), (88, 128));
    check(&Reply::Empty, &[]);
    check(&Reply::Data(b"data"), b"data");
    check(&Reply::Entry(ENTRY), &entry());
    let timed = [bytes(&[L(1), W(2), W(0)]), attributes()].concat();
    check(&Reply::Attributes(ATTRIBUTES, Duration::new(1, 2)), &timed);
    check(&Reply::Opened(opened), &opened_bytes);
    check(&Reply::Created(ENTRY, opened), &[entry(), opened_bytes].concat());
    check(&Reply::Written(4096), &bytes(&[W(4096), W(0)]));
    check(&Reply::XattrSize(17), &bytes(&[W(17), W(0)]));
    check(&Reply::Copied(1 << 33), &bytes(&[L(1 << 33)]));
    check(&Reply::Offset(1 << 33), &bytes(&[L(1 << 33)]));
    check(&Reply::Lock(Lock { start: 1, last: 2, kind: 3 }), &bytes(&[L(1), L(2), W(3), W(0)]));
    let statistics = Statistics {
        block_size: 4096,
        blocks: 1,
        free_blocks: 2,
        available_blocks: 3,
        files: 4,
        free_files: 5,
        name_max: 255,
    };
    let numbers = bytes(&[L(1), L(2), L(3), L(4), L(5), W(4096), W(255), W(4096), W(0)]);
    check(&Reply::Statistics(statistics), &[numbers, vec![0; 24]].concat());
}

#[test]
fn errors_have_a_negative_number_and_no_body() {
    let error = bytes(&[W(16), W(-5_i32 as u32), L(77)]);
    assert_eq!(joined(&Reply::Error(5).encode(77)), error);
}

#[test]
fn init_has_the_layout_of_the_kernel() {
    let init = InitReply {
        minor: 45,
        max_readahead: 1 << 23,
        flags: InitFlags::MAX_PAGES | InitFlags::INIT_EXT | InitFlags::DIRECT_IO_ALLOW_MMAP,
        max_background: 64,
        congestion_threshold: 48,
        max_write: 1 << 20,
        max_pages: 256,
    };
    let mut expected = bytes(&[W(7), W(45), W(1 << 23), W(1 << 22 | 1 << 30)]);
    expected.extend([64_u16, 48].map(u16::to_ne_bytes).as_flattened());
    expected.extend(bytes(&[W(1 << 20), W(1)]));
    expected.extend([256_u16, 0].map(u16::to_ne_bytes).as_flattened());
    expected.extend(bytes(&[W(1 << 4)]));
    expected.extend([0; 28]);
    assert_eq!(expected.len(), 64);
    check(&Reply::Init(init), &expected);
}

#[test]
fn notifications_have_the_layout_of_the_kernel() {
    let message = Notification::InvalidateNode { node: 5, offset: -1, length: 6 }.encode();
    assert_eq!(joined(&message), bytes(&[W(40), W(2), L(0), L(5), L(u64::MAX), L(6)]));
    let message = Notification::ExpireName { directory: 5, name: b"abc" }.encode();
    let head = bytes(&[W(36), W(3), L(0), L(5), W(3), W(1)]);
    assert_eq!(joined(&message), [&head[..], b"abc\0"].concat());
    let message = Notification::Store { node: 5, offset: 6, data: b"abc" }.encode();
    let head = bytes(&[W(43), W(4), L(0), L(5), L(6), W(3), W(0)]);
    assert_eq!(joined(&message), [&head[..], b"abc"].concat());
    let message = Notification::Retrieve { unique: 7, node: 5 }.encode();
    assert_eq!(joined(&message), bytes(&[W(48), W(5), L(0), L(7), L(5), L(0), L(0)]));
}

#[test]
fn entries_of_directories_are_aligned() {
    let mut entries = DirectoryEntries::new(1000);
    assert_eq!(entries.reply(), Reply::Data(&[]));
    let file = DirectoryEntry { inode: 5, offset: 6, mode: 0o100_644, name: b"abc" };
    let dir = DirectoryEntry { inode: 7, offset: u64::MAX, mode: 0o40_755, name: b"12345678" };
    assert!(entries.push(&file) && entries.push_plus(&ENTRY, &dir));
    let file = [&bytes(&[L(5), L(6), W(3), W(8)])[..], b"abc\0\0\0\0\0"].concat();
    let dir = [&entry()[..], &bytes(&[L(7), L(u64::MAX), W(8), W(4)]), b"12345678"].concat();
    check(&entries.reply(), &[file, dir].concat());
}

proptest! {
    /// Entries are added in order as long as they fit, and are found again.
    #[test]
    fn directories_hold_what_fits(
        size in 0..3000_u32,
        names in prop::collection::vec("[^/\0]{1,80}", 0..40),
        plus in any::<bool>(),
    ) {
        let mut entries = DirectoryEntries::new(size);
        let before = if plus { 128 } else { 0 };
        let mut expected = 0;
        let mut added = 0;
        for (name, offset) in names.iter().zip(1..) {
            let entry = DirectoryEntry { inode: 9, offset, mode: 0o100_000, name: name.as_bytes() };
            let length = (before + 24 + name.len()).next_multiple_of(8);
            let fits = expected + length <= size as usize;
            let pushed = if plus { entries.push_plus(&ENTRY, &entry) } else { entries.push(&entry) };
            prop_assert_eq!(pushed, fits);
            if !fits {
                break;
            }
            (expected, added) = (expected + length, added + 1);
        }
        let Reply::Data(mut rest) = entries.reply() else { unreachable!() };
        prop_assert_eq!(rest.len(), expected);
        for (name, offset) in names.iter().take(added).zip(1_u64..) {
            let dirent = &rest[before..];
            prop_assert_eq!(&dirent[8..16], &offset.to_ne_bytes());
            prop_assert_eq!(&dirent[16..20], &(name.len() as u32).to_ne_bytes());
            prop_assert_eq!(&dirent[24..24 + name.len()], name.as_bytes());
            rest = &rest[(before + 24 + name.len()).next_multiple_of(8)..];
        }
        prop_assert!(rest.is_empty());
    }
}
