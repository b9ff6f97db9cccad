//! Changes of files and directories, and the operations of minor version 2.

use millrace_xdr::{Decoder, Encoder};
use smallvec::smallvec;

use super::{arena, bytes, decode, encoded, exact, flat, hex, views};
use crate::v4::*;

const STATEID: Stateid = Stateid { seqid: 1, other: [0x5a; 12] };
const WORDS: &str = "00000001 5a5a5a5a 5a5a5a5a 5a5a5a5a";

#[test]
fn setattr() {
    let size = Attributes { size: Some(9), ..Attributes::default() };
    exact!(
        SetattrArgs<Attributes<'_>>,
        SetattrArgs { stateid: STATEID, attributes: size },
        &format!("{WORDS} 00000001 00000010 00000008 00000000 00000009")
    );
    exact!(SetattrRes, SetattrRes { set: Bitmap::of(&[Attribute::Size]) }, "00000001 00000010");
    let b = bytes(&format!("{WORDS} 00000001 00000010 00000008 00000000 00000009"));
    let args: SetattrArgs<Fattr<'_>> = decode(&b).unwrap();
    assert_eq!(args.attributes.to_set(Attributes::KNOWN), Ok(size));
}

#[test]
fn write_and_commit() {
    exact!(
        WriteArgs,
        WriteArgs { stateid: STATEID, offset: 4096, stable: StableHow::FileSync, data: views(b"hello") },
        &format!("{WORDS} 00000000 00001000 00000002 00000005 68656c6c 6f000000")
    );
    exact!(
        WriteOk,
        WriteOk { count: 5, committed: StableHow::Unstable, verifier: [3; 8] },
        "00000005 00000000 03030303 03030303"
    );
    exact!(CommitArgs, CommitArgs { offset: 1 << 32, count: 7 }, "00000001 00000000 00000007");
    exact!(CommitOk, CommitOk { verifier: [3; 8] }, "03030303 03030303");
    for length in ["00000005", "40000001", "ffffffff"] {
        let b = bytes(&format!("{WORDS} 00000000 00000000 00000000 {length} 61616161"));
        assert!(decode::<WriteArgs>(&b).is_err(), "data of length {length}");
    }
}

#[test]
fn create() {
    let mode = Attributes { mode: Some(0o755), ..Attributes::default() };
    let rest = "00000001 64000000 00000002 00000000 00000002 00000004 000001ed";
    let device = SpecData { major: 8, minor: 1 };
    let what = [
        (CreateType::Directory, "00000002".to_owned()),
        (CreateType::Block(device), "00000003 00000008 00000001".to_owned()),
        (CreateType::Character(device), "00000004 00000008 00000001".to_owned()),
        (CreateType::Symlink(views(b"../a")), "00000005 00000004 2e2e2f61".to_owned()),
        (CreateType::Socket, "00000006".to_owned()),
        (CreateType::Fifo, "00000007".to_owned()),
        (CreateType::Other(FileType::Regular), "00000001".to_owned()),
    ];
    for (what, words) in what {
        let args = CreateArgs { what, name: Opaque(b"d"), attributes: mode };
        exact!(CreateArgs<'_, Attributes<'_>>, args, &format!("{words} {rest}"));
    }
    exact!(
        CreateOk,
        CreateOk { dir: ChangeInfo { atomic: false, before: 1, after: 2 }, set: Bitmap::EMPTY },
        "00000000 00000000 00000001 00000000 00000002 00000000"
    );
    assert!(decode::<CreateArgs<'_, Fattr<'_>>>(&bytes("0000000a 00000000 00000000 00000000")).is_err());
}

#[test]
fn names() {
    exact!(RemoveArgs<'_>, RemoveArgs { name: Opaque(b"a") }, "00000001 61000000");
    exact!(LinkArgs<'_>, LinkArgs { name: Opaque(b"ab") }, "00000002 61620000");
    exact!(
        RenameArgs<'_>,
        RenameArgs { from: Opaque(b"a"), to: Opaque(b"b") },
        "00000001 61000000 00000001 62000000"
    );
    let change = |before| ChangeInfo { atomic: true, before, after: before + 1 };
    exact!(
        RenameOk,
        RenameOk { from: change(1), to: change(5) },
        "00000001 00000000 00000001 00000000 00000002 00000001 00000000 00000005 00000000 00000006"
    );
}

#[test]
fn allocate_seek_and_advise() {
    exact!(
        AllocateArgs,
        AllocateArgs { stateid: STATEID, offset: 1, length: 2 },
        &format!("{WORDS} 00000000 00000001 00000000 00000002")
    );
    exact!(
        SeekArgs,
        SeekArgs { stateid: STATEID, offset: 1, what: ContentType::Hole },
        &format!("{WORDS} 00000000 00000001 00000001")
    );
    exact!(SeekOk, SeekOk { eof: true, offset: 3 }, "00000001 00000000 00000003");
    exact!(
        IoAdviseArgs,
        IoAdviseArgs { stateid: STATEID, offset: 1, length: 2, hints: Bitmap::from([4, 0, 0]) },
        &format!("{WORDS} 00000000 00000001 00000000 00000002 00000001 00000004")
    );
    exact!(IoAdviseOk, IoAdviseOk { hints: Bitmap::EMPTY }, "00000000");
}

#[test]
fn read_plus() {
    let ok = ReadPlusOk {
        eof: true,
        contents: smallvec![
            Content::Hole { offset: 0, length: 4096 },
            Content::Data { offset: 4096, data: views(b"abc") },
            Content::Hole { offset: 4099, length: 1 },
        ],
    };
    exact!(
        ReadPlusOk,
        ok,
        "00000001 00000003
         00000001 00000000 00000000 00000000 00001000
         00000000 00000000 00001000 00000003 61626300
         00000001 00000000 00001003 00000000 00000001"
    );
    for words in ["00000000 ffffffff", "00000000 00000002 00000001 00000000 00000000 00000000 00000001"] {
        assert!(decode::<ReadPlusOk>(&bytes(words)).is_err(), "{words}");
    }
}

#[test]
fn copy_and_clone() {
    let requirements = CopyRequirements { consecutive: true, synchronous: false };
    let servers = vec![
        Netloc::Name(Opaque(b"host")),
        Netloc::Url(Opaque(b"nfs:")),
        Netloc::Address(Opaque(b"tcp"), Opaque(b"::1.8.1")),
    ];
    let args = CopyArgs {
        source: STATEID,
        destination: Stateid::ANONYMOUS,
        source_offset: 1,
        destination_offset: 2,
        count: 3,
        requirements,
        source_servers: List(servers),
    };
    let zero = "00000000 00000000 00000000 00000000";
    let offsets = "00000000 00000001 00000000 00000002 00000000 00000003";
    exact!(
        CopyArgs<'_>,
        args,
        &format!(
            "{WORDS} {zero} {offsets} 00000001 00000000 00000003
             00000001 00000004 686f7374
             00000002 00000004 6e66733a
             00000003 00000003 74637000 00000007 3a3a312e 382e3100"
        )
    );
    let ok = CopyOk {
        callback_id: None,
        count: 3,
        committed: StableHow::FileSync,
        verifier: [1; 8],
        requirements,
    };
    let tail = "00000000 00000003 00000002 01010101 01010101 00000001 00000000";
    exact!(CopyOk, ok, &format!("00000000 {tail}"));
    exact!(CopyOk, CopyOk { callback_id: Some(STATEID), ..ok }, &format!("00000001 {WORDS} {tail}"));
    exact!(
        CloneArgs,
        CloneArgs {
            source: STATEID,
            destination: Stateid::ANONYMOUS,
            source_offset: 1,
            destination_offset: 2,
            count: 3
        },
        &format!("{WORDS} {zero} {offsets}")
    );
    assert!(decode::<Netloc<'_>>(&bytes("00000004 00000000")).is_err());
}

#[test]
fn extended_attributes() {
    exact!(GetxattrArgs<'_>, GetxattrArgs { name: Opaque(b"k") }, "00000001 6b000000");
    exact!(GetxattrOk<'_>, GetxattrOk { value: Opaque(b"value") }, "00000005 76616c75 65000000");
    exact!(
        SetxattrArgs<'_>,
        SetxattrArgs { option: SetxattrOption::Replace, name: Opaque(b"k"), value: Opaque(b"v") },
        "00000002 00000001 6b000000 00000001 76000000"
    );
    exact!(RemovexattrArgs<'_>, RemovexattrArgs { name: Opaque(b"k") }, "00000001 6b000000");
    exact!(ListxattrsArgs, ListxattrsArgs { cookie: 5, maxcount: 256 }, "00000000 00000005 00000100");
    exact!(
        ListxattrsOk<'_>,
        ListxattrsOk { cookie: 2, names: List(vec![Opaque(b"a"), Opaque(b"bc")]), eof: true },
        "00000000 00000002 00000002 00000001 61000000 00000002 62630000 00000001"
    );
    for length in ["00000005", "00100001", "ffffffff"] {
        let b = bytes(&format!("00000000 00000001 6b000000 {length} 76000000"));
        assert!(decode::<SetxattrArgs<'_>>(&b).is_err(), "value of length {length}");
    }
}

#[test]
fn listxattrs_stops_at_each_limit() {
    // 16 bytes, and 8 for each name.
    for (bytes, fits) in [(16 + 8, 1), (16 + 15, 1), (16 + 16, 2), (16 + 24, 3), (4096, 3)] {
        for (maxcount, session) in [(bytes, usize::MAX), (u32::MAX, bytes as usize)] {
            let mut e = Encoder::new(&arena(), 64);
            let mut list = ListxattrsEncoder::begin(&mut e, maxcount, session);
            let pushed = ["a", "b", "c"].iter().filter(|n| list.push(n.as_bytes())).count();
            assert_eq!(list.finish(1 << 33, true), Ok(()));
            let m = e.finish().unwrap();
            assert!(m.stream_len() <= bytes as usize);
            let ok: ListxattrsOk<'_> = Decoder::new(&m).get().unwrap();
            assert_eq!((pushed, ok.names.len(), ok.cookie, ok.eof), (fits, fits, 1 << 33, fits == 3));
        }
    }
    for maxcount in [0, 15, 16, 23] {
        let mut e = Encoder::new(&arena(), 64);
        let mut list = ListxattrsEncoder::begin(&mut e, maxcount, usize::MAX);
        assert!(!list.push(b"a"));
        assert_eq!(list.finish(0, false), Err(TooSmall));
    }
    let empty = encoded(|e| ListxattrsEncoder::begin(e, 16, usize::MAX).finish(0, true).unwrap());
    assert_eq!(hex(&flat(&empty)), "00000000 00000000 00000000 00000001");
}

#[test]
fn results_for_a_client() {
    let m = encoded(|e| {
        let mut c = CompoundEncoder::begin(e, b"");
        c.operation(e, Operation::Commit);
        e.put(&CommitOk { verifier: [4; 8] });
        c.operation(e, Operation::Lockt);
        c.fail(e, Status::Denied);
        e.put_u64(77);
        c.finish(e);
    });
    let mut d = Decoder::new(&m);
    let res: CompoundRes<'_> = d.get().unwrap();
    assert_eq!((res.status, res.results), (Status::Denied, 2));
    assert_eq!(decode_result(&mut d.clone(), Operation::Commit), Ok(Ok(CommitOk { verifier: [4; 8] })));
    assert!(decode_result::<CommitOk>(&mut d.clone(), Operation::Close).is_err());
    decode_result::<CommitOk>(&mut d, Operation::Commit).unwrap().unwrap();
    assert_eq!(decode_result::<()>(&mut d, Operation::Lockt), Ok(Err(Status::Denied)));
    assert_eq!(d.u64(), Ok(77));
    let illegal = bytes("0000273c 0000273c");
    let mut d = Decoder::from_bytes(&illegal);
    assert_eq!(decode_result::<()>(&mut d, Operation::Clone), Ok(Err(Status::OpIllegal)));
    let illegal = bytes("0000273c 00000000");
    assert!(decode_result::<()>(&mut Decoder::from_bytes(&illegal), Operation::Clone).is_err());
}
