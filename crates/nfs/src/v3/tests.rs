//! Encoded bytes, round trips, and truncation at every byte.

use millrace_xdr::{Arena, Decode, Decoder, Encode, Encoder, Message, Views, XdrError};
use proptest::prelude::*;

use super::*;

fn arena() -> Arena {
    Arena::new(millrace_buffer::ArenaConfig { limit: 64 << 20, huge_pages: false })
}

/// Encodes a value; payloads are separate.
fn message(v: &impl Encode) -> Message {
    let mut e = Encoder::new(&arena(), 64);
    e.put(v);
    e.finish().unwrap()
}

fn hex(v: &impl Encode) -> String {
    let m = message(v);
    assert!(m.payloads.is_empty());
    m.head
        .to_vec()
        .chunks(4)
        .map(|w| w.iter().map(|b| format!("{b:02x}")).collect::<String>())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The whole stream in one view, with payloads in place, as TCP delivers it.
fn flat(m: &Message) -> Message {
    let a = arena();
    let zeros = a.copy_from(&[0; 4]).unwrap();
    let mut all = Vec::new();
    for v in m.gather(&zeros).iter() {
        all.extend_from_slice(v);
    }
    Message::from_view(a.copy_from(&all).unwrap())
}

/// Decodes both forms; both must consume all bytes and have the same `Debug` output as the original. All
/// truncations must fail.
fn check<T>(v: &T)
where
    T: Encode + for<'a> Decode<'a> + std::fmt::Debug,
{
    let parts = message(v);
    let whole = flat(&parts);
    for m in [&parts, &whole] {
        let mut d = Decoder::new(m);
        let back: T = d.get().unwrap();
        assert_eq!(d.remaining(), 0);
        assert_eq!(message(&back).stream_len(), parts.stream_len());
        assert_eq!(flat(&message(&back)).head.to_vec(), whole.head.to_vec());
    }
    let bytes = whole.head.to_vec();
    for cut in 0..bytes.len() {
        let short = Message::from_view(arena_cut(&bytes[..cut]));
        assert!(Decoder::new(&short).get::<T>().is_err(), "cut at {cut} of {}", bytes.len());
    }
}

fn arena_cut(bytes: &[u8]) -> millrace_xdr::View {
    thread_local!(static A: Arena = arena());
    A.with(|a| a.copy_from(bytes).unwrap())
}

fn views(bytes: &[u8]) -> Views {
    arena_cut(bytes).into()
}

const ATTR: Fattr = Fattr {
    file_type: FileType::Regular,
    mode: 0o644,
    nlink: 2,
    uid: 1000,
    gid: 100,
    size: 0x1_0000_0002,
    used: 4096,
    rdev: SpecData { major: 8, minor: 1 },
    fsid: 0x1122_3344_5566_7788,
    fileid: 42,
    atime: NfsTime { seconds: 1, nanoseconds: 2 },
    mtime: NfsTime { seconds: 3, nanoseconds: 4 },
    ctime: NfsTime { seconds: 5, nanoseconds: 6 },
};

#[test]
fn fattr3_is_84_bytes_in_rfc_1813_order() {
    assert_eq!(
        hex(&ATTR),
        "00000001 000001a4 00000002 000003e8 00000064 00000001 00000002 00000000 00001000 00000008 00000001 \
         11223344 55667788 00000000 0000002a 00000001 00000002 00000003 00000004 00000005 00000006"
    );
    assert_eq!(message(&ATTR).stream_len(), FATTR_BYTES);
}

#[test]
fn getattr_arguments_are_a_handle_with_length() {
    let args = GetattrArgs { object: FileHandle::new(&[1, 2, 3, 4, 5, 6, 7, 8]).unwrap() };
    assert_eq!(hex(&args), "00000008 01020304 05060708");
}

#[test]
fn fsinfo_reply_has_the_expected_bytes() {
    let ok = FsinfoOk {
        attributes: None,
        read_max: 1 << 20,
        read_preferred: 1 << 20,
        read_multiple: 4096,
        write_max: 1 << 20,
        write_preferred: 1 << 20,
        write_multiple: 4096,
        readdir_preferred: 128 << 10,
        max_file_size: i64::MAX as u64,
        time_delta: NfsTime { seconds: 0, nanoseconds: 1 },
        properties: 0x1b,
    };
    assert_eq!(
        hex(&Res::<_, FsinfoFail>::Ok(ok)),
        "00000000 00000000 00100000 00100000 00001000 00100000 00100000 00001000 00020000 7fffffff ffffffff \
         00000000 00000001 0000001b"
    );
}

#[test]
fn sattr_fields_are_in_rfc_order() {
    assert_eq!(message(&Sattr::default()).head.to_vec(), [0; 24]);
    let full = Sattr {
        mode: Some(0o755),
        uid: Some(1),
        gid: Some(2),
        size: Some(3),
        atime: SetTime::ServerTime,
        mtime: SetTime::ClientTime(NfsTime { seconds: 7, nanoseconds: 8 }),
    };
    assert_eq!(
        hex(&full),
        "00000001 000001ed 00000001 00000001 00000001 00000002 00000001 00000000 00000003 00000001 00000002 \
         00000007 00000008"
    );
}

#[test]
fn read_data_is_a_payload_after_its_length() {
    let ok: Res<ReadOk, ReadFail> =
        Res::Ok(ReadOk { attributes: None, count: 5, eof: true, data: views(b"hello") });
    let m = message(&ok);
    assert_eq!(m.head.to_vec(), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 5]);
    assert_eq!((m.payloads.len(), m.payloads[0].position), (1, 20));
    assert_eq!(flat(&m).head.len(), 28);
}

#[test]
fn read_count_must_match_the_data() {
    let ok = ReadOk { attributes: None, count: 6, eof: true, data: views(b"hello") };
    let m = flat(&message(&ok));
    assert_eq!(Decoder::new(&m).get::<ReadOk>().unwrap_err(), XdrError::Invalid { at: 4, value: 6 });
}

#[test]
fn write_count_is_not_checked_against_the_data() {
    let args = WriteArgs {
        file: FileHandle::new(b"f").unwrap(),
        offset: 0,
        count: 9,
        stable: StableHow::Unstable,
        data: views(b"12345"),
    };
    let m = flat(&message(&args));
    let back: WriteArgs = Decoder::new(&m).get().unwrap();
    assert_eq!((back.count, back.data.to_vec()), (9, b"12345".to_vec()));
}

#[test]
fn invalid_enum_values_are_rejected() {
    fn is_rejected<T: for<'a> Decode<'a> + std::fmt::Debug>(words: &[u32]) -> bool {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
        matches!(Decoder::from_bytes(&bytes).get::<T>(), Err(XdrError::Invalid { .. }))
    }
    assert!(is_rejected::<FileType>(&[0]) && is_rejected::<FileType>(&[8]));
    assert!(is_rejected::<StableHow>(&[3]) && is_rejected::<SetTime>(&[3]) && is_rejected::<Status>(&[3]));
    assert!(is_rejected::<CreateHow>(&[3]) && is_rejected::<MknodWhat>(&[9]));
    assert!(is_rejected::<PostOpAttr>(&[2]), "a boolean of 2");
    assert_eq!(Procedure::try_from(21), Ok(Procedure::Commit));
    assert_eq!(Procedure::try_from(22), Err(22));
}

#[test]
fn decoded_handles_are_at_most_64_bytes() {
    assert!(FileHandle::new(&[1; 129]).is_none() && FileHandle::new(&[1; 300]).is_none());
    for len in [65_u32, 1000, u32::MAX] {
        let mut b = len.to_be_bytes().to_vec();
        b.resize(80, 0);
        let err = Decoder::from_bytes(&b).get::<FileHandle>().unwrap_err();
        assert!(matches!(err, XdrError::TooLong { max: 64, .. }), "{err}");
    }
    let h = FileHandle::new(&[0xab, 0x01]).unwrap();
    assert_eq!(format!("{h:?}"), "FileHandle(ab01)");
}

#[test]
fn overlong_names_are_rejected() {
    let mut b = vec![0, 0, 0, 0];
    b.extend_from_slice(&(MAX_NAME as u32 + 1).to_be_bytes());
    b.resize(b.len() + MAX_NAME + 4, b'x');
    let err = Decoder::from_bytes(&b).get::<DirOpArgs<'_>>().unwrap_err();
    assert!(matches!(err, XdrError::TooLong { .. }));
}

/// Maximum reply sizes, as computed in the protocol notes with a 24-byte RPC header.
#[test]
fn reply_sizes_cover_the_largest_reply_of_each_procedure() {
    use Procedure::*;
    let known = [
        (Getattr, 112),
        (Setattr, 144),
        (Lookup, 272),
        (Access, 120),
        (Readlink, 120),
        (Read, 128),
        (Write, 160),
        (Create, 304),
        (Mkdir, 304),
        (Symlink, 304),
        (Mknod, 304),
        (Remove, 144),
        (Rmdir, 144),
        (Rename, 260),
        (Link, 232),
        (Fsstat, 168),
        (Fsinfo, 164),
        (Pathconf, 140),
        (Commit, 152),
    ];
    for (p, bytes) in known {
        let slack = p.max_reply_head() - bytes;
        // The sizes there are exact; the reserve for a verifier is added.
        assert_eq!(slack, RPC_REPLY_HEAD - 24, "{p}");
    }
}

fn full_attr_sizes() -> (CreateOk, LookupOk) {
    let h = FileHandle::new(&[9; 64]).unwrap();
    let wcc = WccData { before: Some((&ATTR).into()), after: Some(ATTR) };
    (
        CreateOk { object: Some(h), attributes: Some(ATTR), dir: wcc },
        LookupOk { object: h, attributes: Some(ATTR), dir: Some(ATTR) },
    )
}

#[test]
fn largest_encoded_replies_match_the_stated_sizes() {
    let (create, lookup) = full_attr_sizes();
    let status = 4;
    assert_eq!(RPC_REPLY_HEAD + status + message(&create).stream_len(), Procedure::Create.max_reply_head());
    assert_eq!(RPC_REPLY_HEAD + status + message(&lookup).stream_len(), Procedure::Lookup.max_reply_head());
}

#[test]
fn readdir_fills_count_exactly() {
    // Fixed part without attributes: 4 + 8 + 4 + 4 = 20. Each entry with a 3-byte name: 24 + 4 = 28.
    for (count, entries) in [(20 + 28, 1), (20 + 2 * 28 - 1, 1), (20 + 2 * 28, 2), (20 + 10 * 28, 4)] {
        let mut e = Encoder::new(&arena(), 64);
        let mut r = ReaddirEncoder::begin(&mut e, &None, [7; 8], count);
        let mut offered = 0;
        while offered < 4 && r.push(offered, b"abc", offered + 1) {
            offered += 1;
        }
        let all = offered == 4;
        assert_eq!(r.finish(all).unwrap(), entries);
        let m = e.finish().unwrap();
        assert!(m.stream_len() - 4 <= count as usize);
        assert_eq!(m.stream_len() - 4, 20 + entries * 28);
        let Res::Ok(ok) = Decoder::new(&m).get::<Res<ReaddirOk<'_>, ReaddirFail>>().unwrap() else {
            panic!("not OK")
        };
        assert_eq!((ok.entries.len(), ok.eof, ok.verifier), (entries, all, [7; 8]));
    }
}

#[test]
fn readdir_without_space_for_an_entry_is_toosmall() {
    for count in [0, 19, 20, 47] {
        let mut e = Encoder::new(&arena(), 64);
        e.put_u32(0xfeed);
        let mut r = ReaddirEncoder::begin(&mut e, &None, [0; 8], count);
        assert!(!r.push(1, b"abc", 1));
        assert_eq!(r.finish(false), Err(TooSmall));
        assert_eq!(e.len(), 4);
    }
}

#[test]
fn empty_directory_needs_only_the_fixed_part() {
    let mut e = Encoder::new(&arena(), 64);
    let r = ReaddirEncoder::begin(&mut e, &Some(ATTR), [0; 8], 104);
    assert_eq!(r.finish(true), Ok(0));
    assert_eq!(e.len(), 4 + 104);
    let r = ReaddirEncoder::begin(&mut e, &Some(ATTR), [0; 8], 103);
    assert_eq!(r.finish(true), Err(TooSmall));
}

#[test]
fn readdirplus_respects_both_limits() {
    let h = FileHandle::new(&[1; 16]).unwrap();
    let entry =
        |n: u64| EntryPlus { fileid: n, name: b"abcd", cookie: n, attributes: Some(ATTR), handle: Some(h) };
    let one = plus_entry_bytes(4, true, Some(16));
    assert_eq!(one, 28 + 88 + 24);
    // dircount counts 24 bytes per entry (8 + 4 + 4 + 8); the first entry is added regardless.
    for (dircount, maxcount, entries) in
        [(0, 20 + 3 * one, 3), (1, 9999, 1), (48, 9999, 2), (71, 9999, 2), (9999, 20 + 2 * one + 27, 2)]
    {
        let mut e = Encoder::new(&arena(), 64);
        let mut r = ReaddirplusEncoder::begin(&mut e, &None, [0; 8], dircount, maxcount as u32);
        for n in 1..=3 {
            if !r.push(&entry(n)) {
                break;
            }
        }
        assert_eq!(r.finish(true).unwrap(), entries, "dircount {dircount}, maxcount {maxcount}");
        let m = e.finish().unwrap();
        assert!(m.stream_len() - 4 <= maxcount);
        let Res::Ok(ok) = Decoder::new(&m).get::<Res<ReaddirplusOk<'_>, ReaddirplusFail>>().unwrap() else {
            panic!("not OK")
        };
        assert_eq!(ok.eof, entries == 3);
        assert_eq!(ok.entries[0], entry(1));
        let bytes = m.head.to_vec();
        for cut in 0..bytes.len() {
            let mut d = Decoder::from_bytes(&bytes[..cut]);
            assert!(d.get::<Res<ReaddirplusOk<'_>, ReaddirplusFail>>().is_err());
        }
    }
}

fn handle() -> impl Strategy<Value = FileHandle> {
    prop::collection::vec(any::<u8>(), 0..=64).prop_map(|b| FileHandle::new(&b).unwrap())
}

fn time() -> impl Strategy<Value = NfsTime> {
    (any::<u32>(), any::<u32>())
        .prop_map(|(seconds, nanoseconds)| NfsTime { seconds: seconds.into(), nanoseconds })
}

prop_compose! {
    fn fattr()(
        file_type in prop::sample::select(FileType::ALL),
        (mode, nlink, uid, gid) in any::<(u32, u32, u32, u32)>(),
        (size, used, fsid, fileid) in any::<(u64, u64, u64, u64)>(),
        (major, minor) in any::<(u32, u32)>(),
        (atime, mtime, ctime) in (time(), time(), time()),
    ) -> Fattr {
        let rdev = SpecData { major, minor };
        Fattr { file_type, mode, nlink, uid, gid, size, used, rdev, fsid, fileid, atime, mtime, ctime }
    }
}

fn wcc() -> impl Strategy<Value = WccData> {
    (prop::option::of(fattr()), prop::option::of(fattr()))
        .prop_map(|(b, after)| WccData { before: b.as_ref().map(WccAttr::from), after })
}

fn set_time() -> impl Strategy<Value = SetTime> {
    prop_oneof![Just(SetTime::DontChange), Just(SetTime::ServerTime), time().prop_map(SetTime::ClientTime)]
}

prop_compose! {
    fn sattr()(
        (mode, uid, gid, size) in any::<(Option<u32>, Option<u32>, Option<u32>, Option<u64>)>(),
        (atime, mtime) in (set_time(), set_time()),
    ) -> Sattr {
        Sattr { mode, uid, gid, size, atime, mtime }
    }
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..40)
}

fn status() -> impl Strategy<Value = Status> {
    prop::sample::select(&Status::ALL[1..])
}

/// Like [`check`], for types that borrow.
macro_rules! check_borrowed {
    ($v:expr, $t:ty) => {{
        let v = $v;
        let m = flat(&message(&v));
        let mut d = Decoder::new(&m);
        let back: $t = d.get().unwrap();
        assert_eq!((format!("{back:?}"), d.remaining()), (format!("{v:?}"), 0));
        let bytes = m.head.to_vec();
        for cut in 0..bytes.len() {
            let short = Message::from_view(arena_cut(&bytes[..cut]));
            assert!(Decoder::new(&short).get::<$t>().is_err(), "cut at {cut}");
        }
    }};
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn arguments_without_names_round_trip(
        h in handle(), a in sattr(), t in prop::option::of(time()),
        (x, y, z) in any::<(u64, u32, u32)>(), verifier in any::<[u8; 8]>(),
        data in prop::collection::vec(any::<u8>(), 0..50),
        stable in prop::sample::select(StableHow::ALL),
    ) {
        check(&GetattrArgs { object: h });
        check(&SetattrArgs { object: h, attributes: a, guard: t });
        check(&AccessArgs { object: h, access: y });
        check(&ReadArgs { file: h, offset: x, count: y });
        check(&WriteArgs { file: h, offset: x, count: y, stable, data: views(&data) });
        check(&ReaddirArgs { dir: h, cookie: x, verifier, count: y });
        check(&ReaddirplusArgs { dir: h, cookie: x, verifier, dircount: y, maxcount: z });
        check(&CommitArgs { file: h, offset: x, count: y });
    }

    #[test]
    fn arguments_with_names_round_trip(
        (h, g) in (handle(), handle()), (n, m) in (name(), name()), a in sattr(), verifier in any::<[u8; 8]>(),
        (major, minor) in any::<(u32, u32)>(),
    ) {
        let dir_op = DirOpArgs { dir: h, name: &n };
        let to = DirOpArgs { dir: g, name: &m };
        let rdev = SpecData { major, minor };
        check_borrowed!(LookupArgs { what: dir_op }, LookupArgs<'_>);
        for how in [CreateHow::Unchecked(a), CreateHow::Guarded(a), CreateHow::Exclusive(verifier)] {
            check_borrowed!(CreateArgs { where_: dir_op, how }, CreateArgs<'_>);
        }
        check_borrowed!(MkdirArgs { where_: dir_op, attributes: a }, MkdirArgs<'_>);
        check_borrowed!(SymlinkArgs { where_: dir_op, attributes: a, target: views(&m) }, SymlinkArgs<'_>);
        for what in [
            MknodWhat::Character(a, rdev), MknodWhat::Block(a, rdev), MknodWhat::Socket(a), MknodWhat::Fifo(a),
            MknodWhat::Other(FileType::Regular),
        ] {
            check_borrowed!(MknodArgs { where_: dir_op, what }, MknodArgs<'_>);
        }
        check_borrowed!(RemoveArgs { object: dir_op }, RemoveArgs<'_>);
        check_borrowed!(RenameArgs { from: dir_op, to }, RenameArgs<'_>);
        check_borrowed!(LinkArgs { file: h, link: to }, LinkArgs<'_>);
    }

    #[test]
    fn results_round_trip(
        h in handle(), a in fattr(), o in prop::option::of(fattr()), w in wcc(), v in wcc(), s in status(),
        (x, y) in any::<(u64, u32)>(), verifier in any::<[u8; 8]>(), eof in any::<bool>(),
        data in prop::collection::vec(any::<u8>(), 0..50),
        committed in prop::sample::select(StableHow::ALL),
    ) {
        check(&Res::<GetattrOk, GetattrFail>::Ok(GetattrOk { attributes: a }));
        check(&Res::<GetattrOk, GetattrFail>::Err(s, ()));
        check(&Res::<SetattrOk, SetattrFail>::Err(s, w));
        check(&Res::<LookupOk, LookupFail>::Ok(LookupOk { object: h, attributes: o, dir: Some(a) }));
        check(&Res::<LookupOk, LookupFail>::Err(s, o));
        check(&Res::<AccessOk, AccessFail>::Ok(AccessOk { attributes: o, access: y }));
        check(&Res::<ReadlinkOk, ReadlinkFail>::Ok(ReadlinkOk { attributes: o, target: views(&data) }));
        let count = data.len() as u32;
        check(&Res::<ReadOk, ReadFail>::Ok(ReadOk { attributes: o, count, eof, data: views(&data) }));
        check(&Res::<WriteOk, WriteFail>::Ok(WriteOk { file: w, count: y, committed, verifier }));
        check(&Res::<CreateOk, CreateFail>::Ok(CreateOk { object: Some(h), attributes: o, dir: w }));
        check(&Res::<RenameOk, RenameFail>::Err(s, RenameOk { from: w, to: v }));
        check(&Res::<LinkOk, LinkFail>::Ok(LinkOk { file: o, dir: w }));
        check(&FsstatOk {
            attributes: o, total_bytes: x, free_bytes: 1, available_bytes: 2, total_files: 3, free_files: 4,
            available_files: 5, invariant_seconds: y,
        });
        check(&PathconfOk {
            attributes: o, link_max: y, name_max: 255, no_trunc: eof, chown_restricted: true,
            case_insensitive: false, case_preserving: true,
        });
        check(&Res::<CommitOk, CommitFail>::Ok(CommitOk { file: w, verifier }));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let m = Message::from_view(arena_cut(&bytes));
        macro_rules! try_all { ($($t:ty),* $(,)?) => { $(let _ = Decoder::new(&m).get::<$t>();)* } }
        try_all!(
            SetattrArgs, LookupArgs<'_>, WriteArgs, CreateArgs<'_>, SymlinkArgs<'_>, MknodArgs<'_>,
            RenameArgs<'_>, LinkArgs<'_>, ReaddirplusArgs, Res<ReadOk, ReadFail>,
            Res<ReaddirOk<'_>, ReaddirFail>, Res<ReaddirplusOk<'_>, ReaddirplusFail>, Res<CreateOk, CreateFail>,
        );
        drop(crate::mount::decode_mnt(&mut Decoder::new(&m)));
        drop(crate::mount::decode_list::<crate::mount::ExportEntry<'_>>(&mut Decoder::new(&m)));
    }
}

#[test]
fn times_out_of_range_are_replaced_by_the_nearest() {
    let encoded = |seconds, nanoseconds| hex(&NfsTime { seconds, nanoseconds });
    let max = i64::from(u32::MAX);
    assert_eq!(encoded(-1, 999_999_999), "00000000 00000000");
    assert_eq!(encoded(i64::MIN, 5), "00000000 00000000");
    assert_eq!(encoded(0, 5), "00000000 00000005");
    assert_eq!(encoded(max, 5), "ffffffff 00000005");
    assert_eq!(encoded(max + 1, 5), "ffffffff 00000000");
}

#[test]
fn requested_bulk_data_and_the_position_of_data_are_found_in_arguments() {
    use crate::Bulk;
    let encoded = |m: Message| flat(&m).head.to_vec();
    let file = FileHandle::new(&[7; 33]).unwrap();
    let read = encoded(message(&ReadArgs { file, offset: 1, count: 1000 }));
    let readdir = encoded(message(&ReaddirArgs { dir: file, cookie: 1, verifier: [2; 8], count: 2000 }));
    let plus = ReaddirplusArgs { dir: file, cookie: 1, verifier: [2; 8], dircount: 5, maxcount: 3000 };
    for (procedure, arguments, bulk) in [
        (Procedure::Read, read, Bulk::Data(1000)),
        (Procedure::Readdir, readdir, Bulk::List(2000)),
        (Procedure::Readdirplus, encoded(message(&plus)), Bulk::List(3000)),
    ] {
        let found = |bytes: &[u8]| procedure.bulk(&mut Decoder::from_bytes(bytes));
        assert_eq!(found(&arguments), Some(bulk), "{procedure}");
        for cut in 0..arguments.len() {
            assert_eq!(found(&arguments[..cut]), None, "{procedure} cut at {cut}");
        }
    }
    assert_eq!(Procedure::Readlink.bulk(&mut Decoder::from_bytes(&[])), Some(Bulk::Target));
    assert_eq!(Procedure::Getattr.bulk(&mut Decoder::from_bytes(&[0; 64])), None);

    let data = arena().copy_from(b"data").unwrap().into();
    let write = message(&WriteArgs { file, offset: 1, count: 4, stable: StableHow::FileSync, data });
    let (at, bytes) = (write.payloads[0].position, flat(&write).head.to_vec());
    let found = |len: usize| Procedure::Write.data_offset(&mut Decoder::from_bytes(&bytes[..len]));
    assert_eq!((found(at - 1), found(at), found(bytes.len())), (None, Some(at), Some(at)));
    assert_eq!(Procedure::Read.data_offset(&mut Decoder::from_bytes(&bytes)), None);
}
