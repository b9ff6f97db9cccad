//! GETATTR, SETATTR, VERIFY, NVERIFY and ACCESS.

use millrace_nfs::v4::*;
use millrace_xdr::Encode;

use crate::{
    compound::{Call, Op, getattr, lookup, op, putfh, putrootfh},
    group::{Group, OTHERS, not_a_file},
    operations::{RawAttribute, access, setattr, size},
};

/// Kinds of objects.
fn kinds() -> impl Iterator<Item = &'static str> {
    OTHERS.into_iter().chain(["dir", "file"])
}

fn verify(attributes: impl Encode + 'static) -> Op {
    op(Operation::Verify, attributes)
}

fn nverify(attributes: impl Encode + 'static) -> Op {
    op(Operation::Nverify, attributes)
}

pub(super) async fn run(g: &mut Group<'_, impl Call>) {
    let file = g.populate().await;
    read(g).await;
    set(g, &file).await;
    sizes(g).await;
    compared(g).await;
    rights(g).await;
}

async fn read(g: &mut Group<'_, impl Call>) {
    let alone = g.s.status(g.c, [getattr(&[Attribute::Size])]).await;
    g.record("GETATTR without file handle", Status::NoFileHandle, alone);
    for kind in kinds() {
        let case = format!("GETATTR of a {kind}");
        g.check(&format!("{case}: nothing"), Status::Ok, [lookup(kind), getattr(&[])]).await;
        for attribute in [Attribute::TimeModifySet, Attribute::TimeAccessSet] {
            let on = [lookup(kind), getattr(&[attribute])];
            g.check(&format!("{case}: {attribute:?}"), Status::Inval, on).await;
        }
        let unknown: Op = Box::new(|e| {
            e.put(&Operation::Getattr);
            e.put_u32(3);
            [0, 0, 1 << 31].into_iter().for_each(|word| e.put_u32(word));
        });
        g.check(&format!("{case}: an undefined attribute"), Status::Ok, [lookup(kind), unknown]).await;
        let mandatory = op(Operation::Getattr, GetattrArgs { requested: Attributes::MANDATORY });
        let results = g.send([lookup(kind), mandatory]).await;
        let set = results.skip(&[Operation::Lookup]).take::<Fattr<'_>>(Operation::Getattr).set;
        g.record(
            &format!("{case}: mandatory attributes"),
            true,
            set.intersection(Attributes::MANDATORY) == Attributes::MANDATORY,
        );
    }
    let supported = op(
        Operation::Getattr,
        GetattrArgs { requested: Bitmap::of(&[Attribute::SupportedAttrs, Attribute::SuppattrExclcreat]) },
    );
    let results = g.s.send(g.c, [putrootfh(), supported]).await;
    let fattr: Fattr<'_> = results.skip(&[Operation::Putrootfh]).take(Operation::Getattr);
    let values = fattr.decode_values().unwrap();
    let (all, exclusive) = (values.supported_attrs.unwrap(), values.suppattr_exclcreat.unwrap());
    g.record("suppattr_exclcreat is a part of supported_attrs", true, exclusive.difference(all).is_empty());
    let named = all.contains(Attribute::SuppattrExclcreat);
    g.record("suppattr_exclcreat is in supported_attrs", true, named);
}

async fn set(g: &mut Group<'_, impl Call>, file: &[u8]) {
    let (none, anonymous) = (Attributes::default(), Stateid::ANONYMOUS);
    let alone = g.s.status(g.c, [setattr(anonymous, none)]).await;
    g.record("SETATTR without file handle", Status::NoFileHandle, alone);
    for (number, words) in [
        (0, &[0_u32][..]),
        (1, &[1]),
        (3, &[0, 1]),
        (8, &[0, 0, 0, 0]),
        (20, &[0, 1]),
        (35, &[1]),
        (52, &[0, 0, 0]),
        (53, &[0, 0, 0]),
    ] {
        let args = SetattrArgs { stateid: anonymous, attributes: RawAttribute { number, words } };
        let on = [putfh(file), op(Operation::Setattr, args)];
        g.check(&format!("SETATTR of the read-only attribute {number}"), Status::Inval, on).await;
    }
    for (number, words) in
        [(14, &[1_u32][..]), (25, &[1]), (32, &[0]), (46, &[1]), (49, &[0, 0, 0]), (200, &[0])]
    {
        let args = SetattrArgs { stateid: anonymous, attributes: RawAttribute { number, words } };
        let on = [putfh(file), op(Operation::Setattr, args)];
        g.check(&format!("SETATTR of the unsupported attribute {number}"), Status::AttrNotSupp, on).await;
    }
    for number in [84, 85] {
        let args = SetattrArgs { stateid: anonymous, attributes: RawAttribute { number, words: &[0, 0, 0] } };
        let on = [putfh(file), op(Operation::Setattr, args)];
        let case = format!("SETATTR of the delegated time {number} without a delegation");
        g.check(&case, Status::BadStateid, on).await;
    }
    let late = NfsTime { seconds: 1, nanoseconds: 1_000_000_000 };
    let time = NfsTime { seconds: 1, nanoseconds: 999_999_999 };
    for (case, expected, attributes) in [
        ("nothing", Status::Ok, none),
        ("a mode", Status::Ok, Attributes { mode: Some(0o640), ..none }),
        ("a mode with the bits of a type", Status::Inval, Attributes { mode: Some(0o100_644), ..none }),
        (
            "a time of the server",
            Status::Ok,
            Attributes { time_modify_set: Some(SetTime::ServerTime), ..none },
        ),
        ("a time", Status::Ok, Attributes { time_access_set: Some(SetTime::ClientTime(time)), ..none }),
        (
            "a time of 10^9 ns",
            Status::Inval,
            Attributes { time_access_set: Some(SetTime::ClientTime(late)), ..none },
        ),
        ("an owner", Status::Ok, Attributes { owner: Some(Owner::Id(7)), ..none }),
        (
            "an owner that is unknown",
            Status::BadOwner,
            Attributes { owner: Some(Owner::Name(b"no@body")), ..none },
        ),
        ("an empty owner", Status::Inval, Attributes { owner: Some(Owner::Name(b"")), ..none }),
        (
            "a group that is unknown",
            Status::BadOwner,
            Attributes { owner_group: Some(Owner::Name(b"no@body")), ..none },
        ),
        ("a size beyond 2^63", Status::FBig, size(1 << 63)),
        ("the largest size", Status::FBig, size(u64::MAX)),
    ] {
        g.check(&format!("SETATTR of {case}"), expected, [putfh(file), setattr(anonymous, attributes)]).await;
    }
}

async fn sizes(g: &mut Group<'_, impl Call>) {
    for kind in OTHERS.into_iter().chain(["dir"]) {
        let on = [lookup(kind), setattr(Stateid::ANONYMOUS, size(0))];
        g.check(&format!("SETATTR of the size of a {kind}"), not_a_file(kind), on).await;
        let mode = Attributes { mode: Some(0o700), ..Attributes::default() };
        let on = [lookup(kind), setattr(Stateid::ANONYMOUS, mode)];
        g.check(&format!("SETATTR of the mode of a {kind}"), Status::Ok, on).await;
    }
}

async fn compared(g: &mut Group<'_, impl Call>) {
    for (name, on) in [("VERIFY", verify(size(0))), ("NVERIFY", nverify(size(0)))] {
        let alone = g.s.status(g.c, [on]).await;
        g.record(&format!("{name} without file handle"), Status::NoFileHandle, alone);
    }
    for kind in kinds() {
        let requested = Attributes::MANDATORY.difference(Bitmap::of(&[Attribute::RdattrError]));
        let results = g.send([lookup(kind), op(Operation::Getattr, GetattrArgs { requested })]).await;
        let fattr: Fattr<'_> = results.skip(&[Operation::Lookup]).take(Operation::Getattr);
        let (set, values) = (fattr.set, fattr.values.to_vec());
        let all = |operation: Operation| -> Op {
            let values = values.clone();
            Box::new(move |e| {
                e.put(&operation);
                e.put(&set);
                e.put_opaque(&values);
            })
        };
        g.check(&format!("VERIFY of a {kind}"), Status::Ok, [lookup(kind), all(Operation::Verify)]).await;
        g.check(&format!("NVERIFY of a {kind}"), Status::Same, [lookup(kind), all(Operation::Nverify)]).await;
        let other = [lookup(kind), verify(size(123_456))];
        g.check(&format!("VERIFY of another size of a {kind}"), Status::NotSame, other).await;
        let other = [lookup(kind), nverify(size(123_456))];
        g.check(&format!("NVERIFY of another size of a {kind}"), Status::Ok, other).await;
    }
    type Raw = (&'static str, Status, RawAttribute);
    let cases: [Raw; 6] = [
        ("the write-only attribute 48", Status::Inval, RawAttribute { number: 48, words: &[0] }),
        ("the write-only attribute 54", Status::Inval, RawAttribute { number: 54, words: &[0] }),
        ("rdattr_error", Status::Inval, RawAttribute { number: 11, words: &[0] }),
        ("the unsupported attribute 25", Status::AttrNotSupp, RawAttribute { number: 25, words: &[1] }),
        ("the undefined attribute 200", Status::AttrNotSupp, RawAttribute { number: 200, words: &[1] }),
        ("a value that is too short", Status::BadXdr, RawAttribute { number: 4, words: &[0] }),
    ];
    for (case, expected, attribute) in cases {
        g.check(&format!("VERIFY of {case}"), expected, [verify(attribute)]).await;
        g.check(&format!("NVERIFY of {case}"), expected, [nverify(attribute)]).await;
    }
}

async fn rights(g: &mut Group<'_, impl Call>) {
    let alone = g.s.status(g.c, [access(1)]).await;
    g.record("ACCESS without file handle", Status::NoFileHandle, alone);
    for kind in kinds() {
        for wanted in [0, 1, 0x3f] {
            let on = [lookup(kind), access(wanted)];
            g.check(&format!("ACCESS {wanted:#x} of a {kind}"), Status::Ok, on).await;
        }
        for wanted in [0x200, 1 << 31, u32::MAX] {
            let on = [lookup(kind), access(wanted)];
            g.check(&format!("ACCESS {wanted:#x} of a {kind}"), Status::Inval, on).await;
        }
    }
    g.check_minor_1("ACCESS 0x40 in minor version 1", Status::Inval, access(0x40)).await;
}
