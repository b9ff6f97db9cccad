//! Extended attributes: GETXATTR, SETXATTR, LISTXATTRS and REMOVEXATTR (RFC 8276).

use millrace_nfs::v4::*;

use crate::{
    compound::{Call, Op, lookup, op, putfh, putrootfh},
    group::Group,
};

fn get(name: &'static str) -> Op {
    op(Operation::Getxattr, GetxattrArgs { name: Opaque(name.as_bytes()) })
}

fn set(option: SetxattrOption, name: &'static str, value: &'static [u8]) -> Op {
    op(Operation::Setxattr, SetxattrArgs { option, name: Opaque(name.as_bytes()), value: Opaque(value) })
}

fn remove(name: &'static str) -> Op {
    op(Operation::Removexattr, RemovexattrArgs { name: Opaque(name.as_bytes()) })
}

fn list(cookie: u64, maxcount: u32) -> Op {
    op(Operation::Listxattrs, ListxattrsArgs { cookie, maxcount })
}

pub(super) async fn run(g: &mut Group<'_, impl Call>) {
    use SetxattrOption::{Create, Either, Replace};
    let file = g.populate().await;
    for (case, expected, on) in [
        ("GETXATTR of a name that does not exist", Status::NoXattr, get("user.a")),
        ("REMOVEXATTR of a name that does not exist", Status::NoXattr, remove("user.a")),
        ("SETXATTR replaces a name that does not exist", Status::NoXattr, set(Replace, "user.a", b"1")),
        ("SETXATTR creates", Status::Ok, set(Create, "user.a", b"1")),
        ("SETXATTR creates again", Status::Exist, set(Create, "user.a", b"2")),
        ("SETXATTR replaces", Status::Ok, set(Replace, "user.a", b"3")),
        ("SETXATTR creates or replaces", Status::Ok, set(Either, "user.a", b"4")),
        ("SETXATTR of an empty value", Status::Ok, set(Either, "user.b", b"")),
        ("GETXATTR", Status::Ok, get("user.a")),
        ("GETXATTR of an empty value", Status::Ok, get("user.b")),
        ("LISTXATTRS", Status::Ok, list(0, 8192)),
        ("LISTXATTRS with maxcount 1", Status::TooSmall, list(0, 1)),
        ("REMOVEXATTR", Status::Ok, remove("user.a")),
        ("REMOVEXATTR twice", Status::NoXattr, remove("user.a")),
        ("GETXATTR after REMOVEXATTR", Status::NoXattr, get("user.a")),
    ] {
        g.check_data(case, expected, [putfh(&file), on]).await;
    }
    let names = async |g: &Group<'_, _>| {
        let results = g.send([putfh(&file), list(0, 8192)]).await;
        let ok: ListxattrsOk<'_> = results.skip(&[Operation::Putfh]).take(Operation::Listxattrs);
        let mut names: Vec<_> = ok.names.0.iter().map(|n| String::from_utf8_lossy(n).into_owned()).collect();
        names.sort();
        (names, ok.eof)
    };
    let got = names(g).await;
    g.record("LISTXATTRS lists the names", (vec!["user.b".to_owned()], true), got);
    g.check_data("REMOVEXATTR of the last one", Status::Ok, [putfh(&file), remove("user.b")]).await;
    let got = names(g).await;
    g.record("LISTXATTRS without attributes", (Vec::<String>::new(), true), got);
    let root = op(
        Operation::Getattr,
        GetattrArgs { requested: Bitmap::of(&[Attribute::SupportedAttrs, Attribute::XattrSupport]) },
    );
    let results = g.s.send(g.c, [putrootfh(), root]).await;
    let fattr: Fattr<'_> = results.skip(&[Operation::Putrootfh]).take(Operation::Getattr);
    let values = fattr.decode_values().unwrap();
    let supported = values.supported_attrs.unwrap().contains(Attribute::XattrSupport);
    g.record("xattr_support of the root", (true, true), (supported, values.xattr_support.is_some()));
    let long: &'static str = Box::leak("n".repeat(300).into_boxed_str());
    let undefined: Op = Box::new(|e| {
        e.put(&Operation::Setxattr);
        [7, 1, 0x6100_0000, 0].into_iter().for_each(|word| e.put_u32(word));
    });
    for (case, expected, on) in [
        ("GETXATTR of an empty name", Status::Inval, get("")),
        ("SETXATTR of an empty name", Status::Inval, set(Either, "", b"1")),
        ("REMOVEXATTR of an empty name", Status::Inval, remove("")),
        ("SETXATTR of a name of 300 bytes", Status::NameTooLong, set(Either, long, b"1")),
        ("SETXATTR with an undefined option", Status::BadXdr, undefined),
    ] {
        g.check_data(case, expected, [putfh(&file), on]).await;
    }
    g.check_data("SETXATTR of a directory", Status::Ok, [lookup("dir"), set(Create, "user.a", b"1")]).await;
    g.check_data("LISTXATTRS of a directory", Status::Ok, [lookup("dir"), list(0, 8192)]).await;
    for (name, on) in [
        ("GETXATTR", get("a")),
        ("SETXATTR", set(Either, "a", b"1")),
        ("REMOVEXATTR", remove("a")),
        ("LISTXATTRS", list(0, 100)),
    ] {
        let alone = g.s.status(g.c, [on]).await;
        g.record(&format!("{name} without file handle"), Status::NoFileHandle, alone);
    }
}
