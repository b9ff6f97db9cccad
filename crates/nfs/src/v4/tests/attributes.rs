//! Bitmaps and attributes.

use millrace_xdr::XdrError;

use super::{bytes, decode, encoded, exact, flat, hex};
use crate::v4::*;

#[test]
fn bitmaps_omit_trailing_zero_words() {
    exact!(Bitmap, Bitmap::EMPTY, "00000000");
    exact!(Bitmap, Bitmap::of(&[Attribute::SupportedAttrs]), "00000001 00000001");
    exact!(Bitmap, Bitmap::of(&[Attribute::XattrSupport]), "00000003 00000000 00000000 00040000");
    let zeros = bytes("00000003 00000002 00000000 00000000");
    assert_eq!(decode(&zeros), Ok(Bitmap::of(&[Attribute::FileType])));
}

#[test]
fn higher_words_of_bitmaps_are_skipped() {
    let b = bytes("00000005 00000002 00000000 00000000 00000000 00000001 00001234");
    let mut d = millrace_xdr::Decoder::from_bytes(&b);
    assert_eq!(Bitmap::decode_any(&mut d), Ok((Bitmap::of(&[Attribute::FileType]), true)));
    assert_eq!(d.u32(), Ok(0x1234));
    let zeros = bytes("00000004 00000002 00000000 00000000 00000000");
    let mut d = millrace_xdr::Decoder::from_bytes(&zeros);
    assert_eq!(Bitmap::decode_any(&mut d), Ok((Bitmap::of(&[Attribute::FileType]), false)));
    for count in ["00000041", "40000000", "ffffffff"] {
        let b = bytes(&format!("{count} 00000002 00000000"));
        assert!(matches!(decode::<Bitmap>(&b), Err(XdrError::TooLong { .. })), "{count} words");
    }
    assert!(matches!(decode::<Bitmap>(&bytes("00000040 00000002")), Err(XdrError::Short { .. })));
}

#[test]
fn bitmaps_are_sets() {
    let a = Bitmap::of(&[Attribute::FileType, Attribute::Mode, Attribute::CloneBlksize]);
    let b = Bitmap::of(&[Attribute::Mode, Attribute::Owner]);
    assert_eq!(a.iter().collect::<Vec<_>>(), [1, 33, 77]);
    assert_eq!(a.union(b).iter().collect::<Vec<_>>(), [1, 33, 36, 77]);
    assert_eq!(a.intersection(b), Bitmap::of(&[Attribute::Mode]));
    assert_eq!(a.difference(b), Bitmap::of(&[Attribute::FileType, Attribute::CloneBlksize]));
    assert!(a.intersects(b) && !a.difference(b).intersects(b) && !a.is_empty() && Bitmap::EMPTY.is_empty());
    assert_eq!(format!("{:?}", Bitmap::from([1 << 3, 0, 1 << 31])), "{change, 95}");
}

/// A value for each attribute.
fn all() -> Attributes<'static> {
    let time = |seconds| Some(NfsTime { seconds, nanoseconds: 0x99 });
    Attributes {
        supported_attrs: Some(Bitmap::of(&[Attribute::FileType, Attribute::Mode])),
        file_type: Some(FileType::Directory),
        fh_expire_type: Some(0),
        change: Some(0x0303_0303_0303_0303),
        size: Some(4),
        link_support: Some(true),
        symlink_support: Some(true),
        named_attr: Some(false),
        fsid: Some(Fsid { major: 8, minor: 9 }),
        unique_handles: Some(true),
        lease_time: Some(90),
        rdattr_error: Some(Status::Ok),
        aclsupport: Some(0),
        cansettime: Some(true),
        case_insensitive: Some(false),
        case_preserving: Some(true),
        chown_restricted: Some(true),
        filehandle: Some(Opaque(&[0xfe; 6])),
        fileid: Some(20),
        files_avail: Some(21),
        files_free: Some(22),
        files_total: Some(23),
        homogeneous: Some(true),
        maxfilesize: Some(27),
        maxlink: Some(28),
        maxname: Some(29),
        maxread: Some(30),
        maxwrite: Some(31),
        mode: Some(0o644),
        no_trunc: Some(true),
        numlinks: Some(35),
        owner: Some(Owner::Id(1000)),
        owner_group: Some(Owner::Name(b"users@x")),
        rawdev: Some(SpecData { major: 41, minor: 42 }),
        space_avail: Some(42),
        space_free: Some(43),
        space_total: Some(44),
        space_used: Some(45),
        time_access: time(47),
        time_access_set: Some(SetTime::ServerTime),
        time_create: time(50),
        time_delta: time(51),
        time_metadata: time(52),
        time_modify: time(53),
        time_modify_set: Some(SetTime::ClientTime(NfsTime { seconds: 54, nanoseconds: 1 })),
        mounted_on_fileid: Some(55),
        suppattr_exclcreat: Some(Bitmap::EMPTY),
        clone_blksize: Some(77),
        space_freed: Some(78),
        change_attr_type: Some(ChangeAttrType::TimeMetadata),
        mode_umask: Some(ModeUmask { mode: 0o666, umask: 0o22 }),
        xattr_support: Some(true),
        time_deleg_access: time(84),
        time_deleg_modify: time(85),
        open_arguments: Some(OpenArguments {
            share_access: Bitmap::from([0xe, 0, 0]),
            share_deny: Bitmap::from([0xf, 0, 0]),
            share_access_want: Bitmap::from([0x10_0038, 0, 0]),
            claim: Bitmap::EMPTY,
            create_mode: Bitmap::from([0xb, 0, 0]),
        }),
    }
}

/// The encoding of [`all`], by attribute number.
const ALL: [(u32, &str); 55] = [
    (0, "00000002 00000002 00000002"),
    (1, "00000002"),
    (2, "00000000"),
    (3, "03030303 03030303"),
    (4, "00000000 00000004"),
    (5, "00000001"),
    (6, "00000001"),
    (7, "00000000"),
    (8, "00000000 00000008 00000000 00000009"),
    (9, "00000001"),
    (10, "0000005a"),
    (11, "00000000"),
    (13, "00000000"),
    (15, "00000001"),
    (16, "00000000"),
    (17, "00000001"),
    (18, "00000001"),
    (19, "00000006 fefefefe fefe0000"),
    (20, "00000000 00000014"),
    (21, "00000000 00000015"),
    (22, "00000000 00000016"),
    (23, "00000000 00000017"),
    (26, "00000001"),
    (27, "00000000 0000001b"),
    (28, "0000001c"),
    (29, "0000001d"),
    (30, "00000000 0000001e"),
    (31, "00000000 0000001f"),
    (33, "000001a4"),
    (34, "00000001"),
    (35, "00000023"),
    (36, "00000004 31303030"),
    (37, "00000007 75736572 73407800"),
    (41, "00000029 0000002a"),
    (42, "00000000 0000002a"),
    (43, "00000000 0000002b"),
    (44, "00000000 0000002c"),
    (45, "00000000 0000002d"),
    (47, "00000000 0000002f 00000099"),
    (48, "00000000"),
    (50, "00000000 00000032 00000099"),
    (51, "00000000 00000033 00000099"),
    (52, "00000000 00000034 00000099"),
    (53, "00000000 00000035 00000099"),
    (54, "00000001 00000000 00000036 00000001"),
    (55, "00000000 00000037"),
    (75, "00000000"),
    (77, "0000004d"),
    (78, "00000000 0000004e"),
    (79, "00000003"),
    (81, "000001b6 00000012"),
    (82, "00000001"),
    (84, "00000000 00000054 00000099"),
    (85, "00000000 00000055 00000099"),
    (86, "00000001 0000000e 00000001 0000000f 00000001 00100038 00000000 00000001 0000000b"),
];

#[test]
fn values_of_all_attributes_are_in_ascending_order() {
    let numbers: Vec<u32> = ALL.iter().map(|(n, _)| *n).collect();
    assert!(numbers.is_sorted());
    assert_eq!(Attributes::KNOWN.iter().collect::<Vec<_>>(), numbers);
    assert_eq!(all().present(), Attributes::KNOWN);
    let values: Vec<u8> = ALL.iter().flat_map(|(_, words)| bytes(words)).collect();
    let mut expected = 3_u32.to_be_bytes().to_vec();
    Attributes::KNOWN.words().iter().for_each(|w| expected.extend(w.to_be_bytes()));
    expected.extend((values.len() as u32).to_be_bytes());
    expected.extend(&values);
    let m = encoded(|e| e.put(&all()));
    assert_eq!(hex(&flat(&m)), hex(&expected));
    let fattr: Fattr<'_> = decode(&expected).unwrap();
    assert_eq!(fattr.decode_values(), Ok(all()));
}

#[test]
fn each_attribute_alone() {
    for (n, words) in ALL {
        let attribute = Attribute::try_from(n).unwrap();
        let m = encoded(|e| all().encode_requested(e, Bitmap::of(&[attribute])));
        let mut expected: Vec<u8> = ((n / 32) + 1).to_be_bytes().to_vec();
        expected.resize(4 + n as usize / 32 * 4, 0);
        expected.extend((1_u32 << (n % 32)).to_be_bytes());
        expected.extend((bytes(words).len() as u32).to_be_bytes());
        expected.extend(bytes(words));
        assert_eq!(hex(&flat(&m)), hex(&expected), "{attribute}");
        let fattr: Fattr<'_> = decode(&expected).unwrap();
        for cut in 0..fattr.values.len() {
            let short = Fattr { values: &fattr.values[..cut], ..fattr };
            assert!(short.decode_values().is_err(), "{attribute} of {cut} bytes");
        }
        let long = [fattr.values, &[0; 4]].concat();
        assert!(Fattr { values: &long, ..fattr }.decode_values().is_err(), "{attribute} and 4 bytes");
    }
}

/// The request of Linux for the attributes of a file.
#[test]
fn getattr_of_a_file_as_linux_requests_it() {
    exact!(
        GetattrArgs,
        GetattrArgs {
            requested: Bitmap::of(&[
                Attribute::FileType,
                Attribute::Change,
                Attribute::Size,
                Attribute::Fsid,
                Attribute::Fileid,
                Attribute::Mode,
                Attribute::Numlinks,
                Attribute::Owner,
                Attribute::OwnerGroup,
                Attribute::Rawdev,
                Attribute::SpaceUsed,
                Attribute::TimeAccess,
                Attribute::TimeMetadata,
                Attribute::TimeModify,
                Attribute::MountedOnFileid,
            ])
        },
        "00000002 0010011a 00b0a23a"
    );
}

#[test]
fn attributes_without_value_are_omitted() {
    let values = Attributes { size: Some(1), mode: Some(7), ..Attributes::default() };
    let requested = Bitmap::of(&[Attribute::Size, Attribute::Acl, Attribute::TimeCreate]);
    let m = encoded(|e| values.encode_requested(e, requested));
    assert_eq!(hex(&flat(&m)), hex(&bytes("00000001 00000010 00000008 00000000 00000001")));
}

#[test]
fn owners_are_numbers_only_without_leading_zeros() {
    for (id, words) in [
        (0, "00000001 30000000"),
        (7, "00000001 37000000"),
        (u32::MAX, "0000000a 34323934 39363732 39350000"),
    ] {
        exact!(Owner<'_>, Owner::Id(id), words);
    }
    for name in ["", "00", "007", "+1", "-1", "4294967296", "12a", "root@localdomain", " 1"] {
        let m = flat(&encoded(|e| e.put_opaque(name.as_bytes())));
        assert_eq!(decode::<Owner<'_>>(&m), Ok(Owner::Name(name.as_bytes())));
    }
    let long = flat(&encoded(|e| e.put_opaque(&[b'1'; MAX_OWNER + 1])));
    assert!(decode::<Owner<'_>>(&long).is_err());
}

const SUPPORTED: Bitmap = Attributes::KNOWN;

fn fattr(words: &str) -> Result<Attributes<'static>, Status> {
    let bytes = bytes(words).leak();
    decode::<Fattr<'_>>(bytes).unwrap().to_set(SUPPORTED)
}

#[test]
fn attributes_to_set() {
    let set = fattr("00000002 00000010 00400002 00000010 00000000 00000005 000001ff 00000000").unwrap();
    assert_eq!(
        set,
        Attributes {
            size: Some(5),
            mode: Some(0o777),
            time_modify_set: Some(SetTime::ServerTime),
            ..Attributes::default()
        }
    );
    assert_eq!(fattr("00000000 00000000"), Ok(Attributes::default()));
    // SETATTR of Linux in front of DELEGRETURN.
    let delegated =
        "00000003 00000000 00000000 00300000 00000018 00000000 00000005 00000006 00000000 00000007 00000008";
    let time = |seconds, nanoseconds| Some(NfsTime { seconds, nanoseconds });
    let (time_deleg_access, time_deleg_modify) = (time(5, 6), time(7, 8));
    let expected = Attributes { time_deleg_access, time_deleg_modify, ..Attributes::default() };
    assert_eq!(fattr(delegated), Ok(expected));
    let access = "00000003 00000000 00400000 00100000 00000010 00000000 00000000 00000005 00000006";
    let mixed =
        Attributes { time_modify_set: Some(SetTime::ServerTime), time_deleg_access, ..Attributes::default() };
    assert_eq!(fattr(access), Ok(mixed));
}

#[test]
fn attributes_that_cannot_be_set() {
    let cases = [
        ("00000001 00000008 00000008 00000000 00000005", Status::Inval), // change
        ("00000002 00000000 00000008 00000004 00000005", Status::Inval), // numlinks
        ("00000001 00001000 00000004 00000000", Status::AttrNotSupp),    // acl
        ("00000003 00000000 00000000 00080000 00000004 00000000", Status::AttrNotSupp), // offline
        (
            "00000003 00000000 00000000 00400000 00000014 00000000 00000000 00000000 00000000 00000000",
            Status::Inval,
        ), // 86
        // A delegated time with 10^9 nanoseconds, and both together with the times that SETATTR sets otherwise.
        ("00000003 00000000 00000000 00100000 0000000c 00000000 00000000 3b9aca00", Status::Inval),
        ("00000003 00000000 00000000 00200000 0000000c 00000000 00000000 3b9aca00", Status::Inval),
        ("00000003 00000000 00010000 00100000 00000010 00000000 00000000 00000000 00000000", Status::Inval),
        ("00000003 00000000 00400000 00200000 00000010 00000000 00000000 00000000 00000000", Status::Inval),
        ("00000003 00000000 00000000 00200000 00000008 00000000 00000000", Status::BadXdr),
        ("00000003 00000000 00000000 80000000 00000000", Status::AttrNotSupp), // 95
        ("00000004 00000000 00000000 00000000 00000001 00000000", Status::AttrNotSupp), // 96
        ("00000001 00000018 00000010 00000000 00000005 00000000 00000005", Status::Inval), // change and size
        ("00000001 00000010 00000004 00000005", Status::BadXdr),               // shorter
        ("00000001 00000010 00000000", Status::BadXdr),
        ("00000001 00000010 0000000c 00000000 00000005 00000000", Status::BadXdr), // longer
        ("00000000 00000004 00000000", Status::BadXdr),
        ("00000002 00000000 00400000 00000004 00000002", Status::BadXdr), // settime4 of 2
        ("00000002 00000000 00400000 00000010 00000001 00000000 00000001 3b9aca00", Status::Inval),
        ("00000002 00000000 00010000 00000010 00000001 00000000 00000001 ffffffff", Status::Inval),
        ("00000003 00000000 00000002 00020000 0000000c 00000001 00000001 00000000", Status::Inval), // mode, mode_umask
        ("00000002 00000000 00000010 00000008 ffffffff 31000000", Status::BadXdr), // length of the owner
    ];
    for (words, status) in cases {
        assert_eq!(fattr(words), Err(status), "{words}");
    }
    let mode = bytes("00000002 00000000 00000002 00000004 000001ff");
    let mode: Fattr<'_> = decode(&mode).unwrap();
    assert_eq!(mode.to_set(Bitmap::of(&[Attribute::Size])), Err(Status::AttrNotSupp));
}

#[test]
fn verify_compares_all_values() {
    let current = Attributes { size: Some(5), mode: Some(0o777), rdattr_error: Some(Status::Ok), ..all() };
    let same = |words| decode::<Fattr<'_>>(&bytes(words)).unwrap().is_same(&current, SUPPORTED);
    assert_eq!(same("00000002 00000010 00000002 0000000c 00000000 00000005 000001ff"), Ok(true));
    assert_eq!(same("00000002 00000010 00000002 0000000c 00000000 00000006 000001ff"), Ok(false));
    assert_eq!(same("00000002 00000010 00000002 0000000c 00000000 00000005 000001fe"), Ok(false));
    assert_eq!(same("00000000 00000000"), Ok(true));
    assert_eq!(same("00000001 00001000 00000004 00000000"), Err(Status::AttrNotSupp));
    assert_eq!(same("00000001 00000800 00000004 00000000"), Err(Status::Inval), "rdattr_error");
    assert_eq!(same("00000002 00000000 00010000 00000004 00000000"), Err(Status::Inval), "time_access_set");
    assert_eq!(same("00000001 00000010 00000004 00000005"), Err(Status::BadXdr));
    let without = Attributes { time_create: None, ..current };
    let created = bytes("00000002 00000000 00040000 0000000c 00000000 00000032 00000099");
    let created: Fattr<'_> = decode(&created).unwrap();
    assert_eq!(
        (created.is_same(&current, SUPPORTED), created.is_same(&without, SUPPORTED)),
        (Ok(true), Ok(false))
    );
}

#[test]
fn hostile_attribute_lengths_are_rejected() {
    for words in
        ["00000001 00000010 ffffffff 00000000", "00000001 00000010 00010001", "40000000 00000010 00000000"]
    {
        assert!(decode::<Fattr<'_>>(&bytes(words)).is_err(), "{words}");
    }
}
