//! COMPOUND, and the operations that find and read files.

use millrace_xdr::{Decoder, Encoder, Message, XdrError};

use super::{arena, bytes, decode, encoded, exact, flat, hex, view, views};
use crate::v4::*;

#[test]
fn compound_arguments() {
    let m = encoded(|e| {
        e.put(&CompoundArgs { tag: Opaque(b"t"), minor_version: 2, operations: 2 });
        e.put(&Operation::Putrootfh);
        e.put(&Operation::Getfh);
    });
    let expected = bytes("00000001 74000000 00000002 00000002 00000018 0000000a");
    assert_eq!(hex(&flat(&m)), hex(&expected));
    let mut d = Decoder::new(&m);
    let args: CompoundArgs<'_> = d.get().unwrap();
    assert_eq!((args.tag.0, args.minor_version, args.operations), (&b"t"[..], 2, 2));
    assert_eq!((d.get(), d.get()), (Ok(Operation::Putrootfh), Ok(Operation::Getfh)));
}

#[test]
fn hostile_compounds_are_rejected() {
    let mut tag = bytes("00100000");
    tag.resize(4 + (1 << 20) + 8, b'x');
    assert!(matches!(decode::<CompoundArgs<'_>>(&tag), Err(XdrError::TooLong { max: MAX_TAG, .. })));
    for count in ["00000002", "00002710", "ffffffff"] {
        let b = bytes(&format!("00000000 00000001 {count} 00000018"));
        assert!(matches!(decode::<CompoundArgs<'_>>(&b), Err(XdrError::Short { .. })), "{count} operations");
    }
}

#[test]
fn compound_results() {
    let m = encoded(|e| {
        let mut c = CompoundEncoder::begin(e, b"tag");
        c.operation(e, Operation::Putrootfh);
        c.operation(e, Operation::Getfh);
        e.put(&GetfhOk { handle: Opaque(&[9; 5]) });
        assert_eq!(c.results(), 2);
        assert_eq!(c.finish(e), Status::Ok);
    });
    assert_eq!(
        hex(&flat(&m)),
        hex(&bytes(
            "00000000 00000003 74616700 00000002
             00000018 00000000
             0000000a 00000000 00000005 09090909 09000000"
        ))
    );
    let res: CompoundRes<'_> = Decoder::new(&m).get().unwrap();
    assert_eq!((res.status, res.tag.0, res.results), (Status::Ok, &b"tag"[..], 2));
}

#[test]
fn failure_replaces_the_data_of_the_last_operation() {
    let m = encoded(|e| {
        let mut c = CompoundEncoder::begin(e, b"");
        c.operation(e, Operation::Read);
        e.put(&ReadOk { eof: false, data: views(b"kept") });
        c.operation(e, Operation::Read);
        e.put(&ReadOk { eof: true, data: views(b"data") });
        c.fail(e, Status::Io);
        assert_eq!(c.finish(e), Status::Io);
    });
    assert_eq!(
        hex(&flat(&m)),
        hex(&bytes(
            "00000005 00000000 00000002
             00000019 00000000 00000000 00000004 6b657074
             00000019 00000005"
        ))
    );
}

#[test]
fn unknown_operations_and_minor_versions() {
    let m = encoded(|e| {
        let mut c = CompoundEncoder::begin(e, b"");
        c.illegal(e);
        c.finish(e);
    });
    assert_eq!(hex(&flat(&m)), hex(&bytes("0000273c 00000000 00000001 0000273c 0000273c")));
    let m = encoded(|e| CompoundEncoder::begin(e, b"x").reject(e, Status::MinorVersMismatch));
    assert_eq!(hex(&flat(&m)), hex(&bytes("00002725 00000001 78000000 00000000")));
}

#[test]
fn failure_after_exhaustion_of_memory_keeps_the_earlier_results() {
    let arena = millrace_xdr::Arena::new(millrace_buffer::ArenaConfig { limit: 4096, huge_pages: false });
    let mut e = Encoder::new(&arena, 64);
    let mut c = CompoundEncoder::begin(&mut e, b"");
    c.operation(&mut e, Operation::Putfh);
    c.operation(&mut e, Operation::Getfh);
    e.put_opaque(&[1; 100_000]);
    assert!(e.has_failed());
    c.fail(&mut e, Status::Delay);
    assert_eq!(c.finish(&mut e), Status::Delay);
    let m = e.finish().unwrap();
    assert_eq!(hex(&flat(&m)), hex(&bytes("00002718 00000000 00000002 00000016 00000000 0000000a 00002718")));
}

#[test]
fn failure_does_not_hide_exhaustion_in_an_earlier_result() {
    let arena = millrace_xdr::Arena::new(millrace_buffer::ArenaConfig { limit: 4096, huge_pages: false });
    let mut e = Encoder::new(&arena, 64);
    let mut c = CompoundEncoder::begin(&mut e, b"");
    c.operation(&mut e, Operation::Getfh);
    e.put_opaque(&[1; 100_000]);
    c.operation(&mut e, Operation::Putfh);
    c.fail(&mut e, Status::Stale);
    c.finish(&mut e);
    assert!(e.finish().is_err());
}

#[test]
fn file_handles_and_names() {
    exact!(PutfhArgs<'_>, PutfhArgs { handle: Opaque(&[1, 2, 3]) }, "00000003 01020300");
    exact!(GetfhOk<'_>, GetfhOk { handle: Opaque(&[1, 2, 3, 4]) }, "00000004 01020304");
    exact!(LookupArgs<'_>, LookupArgs { name: Opaque(b"a b") }, "00000003 61206200");
    let mut handle = bytes("00000081");
    handle.resize(4 + 132, 7);
    assert!(matches!(decode::<PutfhArgs<'_>>(&handle), Err(XdrError::TooLong { len: 129, max: 128, .. })));
    let mut name = bytes("00001001");
    name.resize(4 + 4100, b'n');
    assert!(decode::<LookupArgs<'_>>(&name).is_err());
    assert!(decode::<LookupArgs<'_>>(&bytes("ffffffff 61616161")).is_err());
}

#[test]
fn access() {
    exact!(AccessArgs, AccessArgs { access: access::READ | access::XATTR_LIST }, "00000101");
    exact!(AccessOk, AccessOk { supported: 0x1f, access: 3 }, "0000001f 00000003");
}

#[test]
fn read_and_readlink() {
    exact!(
        ReadArgs,
        ReadArgs { stateid: Stateid::READ_BYPASS, offset: 1 << 33, count: 0x10_0000 },
        "ffffffff ffffffff ffffffff ffffffff 00000002 00000000 00100000"
    );
    exact!(ReadOk, ReadOk { eof: true, data: views(b"hello") }, "00000001 00000005 68656c6c 6f000000");
    exact!(ReadOk, ReadOk { eof: true, data: views(b"") }, "00000001 00000000");
    exact!(ReadlinkOk, ReadlinkOk { target: views(b"/etc") }, "00000004 2f657463");
    let m = super::message(&ReadOk { eof: false, data: views(b"12345") });
    assert_eq!((m.head.len(), m.payloads.len(), m.payloads[0].position), (8, 1, 8));
}

fn readdir_args(dircount: u32, maxcount: u32, requested: Bitmap) -> ReaddirArgs {
    ReaddirArgs { cookie: 3, verifier: [8; 8], dircount, maxcount, requested }
}

#[test]
fn readdir_arguments() {
    exact!(
        ReaddirArgs,
        readdir_args(0x2000, 0x8000, Bitmap::of(&[Attribute::FileType, Attribute::MountedOnFileid])),
        "00000000 00000003 08080808 08080808 00002000 00008000 00000002 00000002 00800000"
    );
}

#[test]
fn readdir_result() {
    let requested = Bitmap::of(&[Attribute::FileType, Attribute::Fileid, Attribute::RdattrError]);
    let file = Attributes {
        file_type: Some(FileType::Regular),
        fileid: Some(77),
        size: Some(1),
        rdattr_error: Some(Status::Ok),
        ..Attributes::default()
    };
    let bad = Attributes { rdattr_error: Some(Status::Stale), ..Attributes::default() };
    let m = encoded(|e| {
        let mut r = ReaddirEncoder::begin(e, &readdir_args(0, 4096, requested), [1; 8], usize::MAX);
        assert!(r.push(5, b"abcde", &file) && r.push(6, b"x", &bad));
        assert_eq!(r.finish(true), Ok(2));
    });
    let expected = bytes(
        "01010101 01010101
         00000001 00000000 00000005 00000005 61626364 65000000
         00000001 00100802 00000010 00000001 00000000 00000000 0000004d
         00000001 00000000 00000006 00000001 78000000
         00000001 00000800 00000004 00000046
         00000000 00000001",
    );
    assert_eq!(hex(&flat(&m)), hex(&expected));
    let ok: ReaddirOk<'_> = Decoder::new(&m).get().unwrap();
    assert_eq!((ok.verifier, ok.entries.len(), ok.eof), ([1; 8], 2, true));
    assert_eq!((ok.entries[0].cookie, ok.entries[0].name.0), (5, &b"abcde"[..]));
    assert_eq!(ok.entries[1].attributes.decode_values(), Ok(bad));
    for cut in 0..expected.len() {
        let short = Message::from_view(view(&expected[..cut]));
        assert!(Decoder::new(&short).get::<ReaddirOk<'_>>().is_err());
    }
}

/// Number of entries, of at most 4 with names of 3 bytes and no attributes, that fit into the limits.
fn readdir_fits(dircount: u32, maxcount: u32, session: usize) -> Result<usize, TooSmall> {
    let mut e = Encoder::new(&arena(), 64);
    e.put_u32(0xfeed);
    let args = readdir_args(dircount, maxcount, Bitmap::EMPTY);
    let mut r = ReaddirEncoder::begin(&mut e, &args, [0; 8], session);
    let mut offered = 0;
    while offered < 4 && r.push(offered, b"abc", &Attributes::default()) {
        offered += 1;
    }
    let entries = r.finish(true)?;
    assert!(e.len() - 4 <= session.min(maxcount as usize));
    let m = e.finish().unwrap();
    let mut d = Decoder::new(&m);
    d.u32().unwrap();
    let ok: ReaddirOk<'_> = d.get().unwrap();
    assert_eq!((ok.entries.len(), ok.eof), (entries, entries == 4));
    Ok(entries)
}

#[test]
fn readdir_stops_at_each_limit() {
    // 16 bytes, and for each entry: link 4, cookie 8, name 4 + 4, bitmap 4, length of the values 4.
    for (maxcount, entries) in [(16 + 28, 1), (16 + 2 * 28 - 1, 1), (16 + 2 * 28, 2), (16 + 10 * 28, 4)] {
        assert_eq!(readdir_fits(0, maxcount, usize::MAX), Ok(entries), "maxcount {maxcount}");
        assert_eq!(readdir_fits(0, u32::MAX, maxcount as usize), Ok(entries), "session's limit {maxcount}");
    }
    for (dircount, entries) in [(1, 1), (31, 1), (32, 2), (47, 2), (48, 3), (1000, 4)] {
        assert_eq!(readdir_fits(dircount, 4096, usize::MAX), Ok(entries), "dircount {dircount}");
    }
    for maxcount in [0, 15, 16, 43] {
        assert_eq!(readdir_fits(0, maxcount, usize::MAX), Err(TooSmall));
    }
}

#[test]
fn empty_directory_needs_16_bytes() {
    for (maxcount, result) in [(15, Err(TooSmall)), (16, Ok(0))] {
        let mut e = Encoder::new(&arena(), 64);
        let r = ReaddirEncoder::begin(&mut e, &readdir_args(0, maxcount, Bitmap::EMPTY), [0; 8], usize::MAX);
        assert_eq!(r.finish(true), result);
    }
}
