//! Extended attributes: on NFSv4.2 those of the server, on earlier versions none.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod common;

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::{MetadataExt, symlink},
    path::Path,
};

use common::{Export, fuse_is_available};
use millrace_nfs::v4::Operation;
use rustix::{
    fs::{
        XattrFlags, getxattr, getxattr_query, lgetxattr, listxattr, listxattr_query, llistxattr, lsetxattr,
        removexattr, setxattr,
    },
    io::Errno,
};

const SET: XattrFlags = XattrFlags::empty();

/// The value of an attribute, read as programs do: first its size.
fn get(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let size = getxattr_query(path, name)?;
    let mut value = vec![0; size];
    let read = getxattr(path, name, &mut value[..])?;
    assert_eq!(read, size);
    Ok(value)
}

fn list(path: &Path) -> Vec<String> {
    let mut names = vec![0; listxattr_query(path).unwrap()];
    let size = listxattr(path, &mut names[..]).unwrap();
    let names = names[..size].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut names: Vec<_> = names.map(|name| String::from_utf8(name.to_vec()).unwrap()).collect();
    names.sort();
    names
}

/// Calls of operations on extended attributes so far.
fn calls(export: &Export) -> u64 {
    use Operation as O;
    let operations = export.server.stats().nfs4_operations;
    let of_xattrs = |o| matches!(o, O::Getxattr | O::Setxattr | O::Listxattrs | O::Removexattr);
    operations.iter().filter(|(o, _)| of_xattrs(*o)).map(|(_, s)| s.calls).sum()
}

#[test]
fn attributes_equal_a_model_and_those_of_another_mount() {
    if !fuse_is_available() {
        return;
    }
    for local in [false, true] {
        let export = Export::start(local);
        let (mount, other) = (export.mount("tcp", "vers=4.2"), export.mount("rdma", "vers=4.2"));
        fs::write(mount.at.join("file"), "content").unwrap();
        fs::create_dir(mount.at.join("dir")).unwrap();
        for object in ["file", "dir", ""] {
            let (path, seen) = (mount.at.join(object), other.at.join(object));
            let mut model = BTreeMap::new();
            for n in 0..20_u8 {
                let (name, value) = (format!("user.name {n}"), vec![n; usize::from(n) * 11]);
                setxattr(&path, &name, &value, SET).unwrap();
                model.insert(name, value);
            }
            setxattr(&path, "user.name 3", b"replaced", XattrFlags::REPLACE).unwrap();
            model.insert("user.name 3".into(), b"replaced".to_vec());
            assert_eq!(setxattr(&path, "user.name 3", b"no", XattrFlags::CREATE), Err(Errno::EXIST));
            setxattr(&path, "user.new", b"new", XattrFlags::CREATE).unwrap();
            model.insert("user.new".into(), b"new".to_vec());
            removexattr(&path, "user.name 4").unwrap();
            model.remove("user.name 4");
            assert_eq!(removexattr(&path, "user.name 4"), Err(Errno::NODATA));
            assert_eq!(setxattr(&path, "user.name 4", b"no", XattrFlags::REPLACE), Err(Errno::NODATA));
            assert_eq!(get(&path, "user.name 4"), Err(Errno::NODATA));
            for path in [&path, &seen] {
                assert_eq!(list(path), model.keys().cloned().collect::<Vec<_>>(), "{object}");
                for (name, value) in &model {
                    assert_eq!(get(path, name).as_ref(), Ok(value), "{object}: {name}");
                }
            }
        }
        assert_eq!(fs::read(mount.at.join("file")).unwrap(), b"content");
        mount.unmount();
        other.unmount();
    }
}

#[test]
fn sizes_and_limits_are_those_of_linux() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(false);
    let mount = export.mount("tcp", "vers=4.2");
    let path = mount.at.join("file");
    fs::write(&path, "").unwrap();
    let value = common::random_bytes(64 << 10, 1);
    setxattr(&path, "user.long", &value, SET).unwrap();
    assert!(get(&path, "user.long").unwrap() == value);
    setxattr(&path, "user.empty", b"", SET).unwrap();
    assert_eq!(get(&path, "user.empty"), Ok(vec![]));
    assert_eq!(setxattr(&path, "user.longer", &vec![0; (64 << 10) + 1], SET), Err(Errno::TOOBIG));
    assert_eq!(getxattr(&path, "user.long", &mut [0_u8; 100]), Err(Errno::RANGE));
    assert_eq!(listxattr(&path, &mut [0_u8; 12]), Err(Errno::RANGE));
    assert_eq!(setxattr(&path, "user.", b"v", SET), Err(Errno::INVAL));
    let (longest, longer) = (format!("user.{}", "n".repeat(250)), format!("user.{}", "n".repeat(251)));
    setxattr(&path, &longest, b"v", SET).unwrap();
    assert_eq!(setxattr(&path, &longer, b"v", SET), Err(Errno::RANGE), "as on other file systems");
    assert_eq!(list(&path), ["user.empty", "user.long", &longest]);
    mount.unmount();
}

#[test]
fn symbolic_links_have_none() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(false);
    let mount = export.mount("tcp", "vers=4.2");
    let link = mount.at.join("link");
    symlink("nowhere", &link).unwrap();
    let before = calls(&export);
    assert_eq!(lsetxattr(&link, "user.k", b"v", SET), Err(Errno::PERM));
    assert_eq!(lgetxattr(&link, "user.k", &mut [0_u8; 8]), Err(Errno::NODATA));
    assert_eq!(llistxattr(&link, &mut [0_u8; 8]), Ok(0));
    assert_eq!(calls(&export), before);
    mount.unmount();
}

/// The kernel asks for `security.capability` before it writes, and programs for access control lists.
#[test]
fn other_namespaces_cost_no_calls() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(false);
    let mount = export.mount("tcp", "vers=4.2");
    let path = mount.at.join("file");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&path).unwrap();
    for i in 0..20 {
        file.write_all(&[i; 100]).unwrap();
        fs::metadata(&path).unwrap();
    }
    file.sync_all().unwrap();
    for name in ["security.capability", "system.posix_acl_access", "trusted.k"] {
        assert_eq!(getxattr(&path, name, &mut [0_u8; 8]), Err(Errno::OPNOTSUPP), "{name}");
    }
    for name in ["security.k", "trusted.k"] {
        assert_eq!(setxattr(&path, name, b"v", SET), Err(Errno::OPNOTSUPP), "{name}");
        assert_eq!(removexattr(&path, name), Err(Errno::OPNOTSUPP), "{name}");
    }
    assert_eq!(calls(&export), 0);
    drop(file);
    mount.unmount();
}

#[test]
fn a_change_keeps_written_data_and_changes_the_ctime() {
    if !fuse_is_available() {
        return;
    }
    for (local, options) in [(false, "vers=4.2"), (true, "vers=4.2"), (true, "vers=4.2,writeback")] {
        let export = Export::start(local);
        let mount = export.mount("tcp", options);
        let path = mount.at.join("file");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&path).unwrap();
        file.write_all(b"unstable").unwrap();
        let before = fs::metadata(&path).unwrap();
        setxattr(&path, "user.k", b"v", SET).unwrap();
        let after = fs::metadata(&path).unwrap();
        // The times of local files advance with the kernel's tick.
        let is_later = (after.ctime(), after.ctime_nsec()) > (before.ctime(), before.ctime_nsec());
        assert!(local || is_later, "{options}");
        assert_eq!(after.len(), 8, "{options}");
        file.write_all(b" data").unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"unstable data", "{options}");
        mount.unmount();
    }
}

#[test]
fn earlier_versions_have_none() {
    if !fuse_is_available() {
        return;
    }
    for version in ["3", "4.1"] {
        let export = Export::start(false);
        let mount = export.mount("tcp", &format!("vers={version}"));
        let path = mount.at.join("file");
        fs::write(&path, "").unwrap();
        for _ in 0..2 {
            assert_eq!(setxattr(&path, "user.test", b"v", SET), Err(Errno::OPNOTSUPP));
            assert_eq!(getxattr(&path, "user.test", &mut [0_u8; 8]), Err(Errno::OPNOTSUPP));
            assert_eq!(listxattr(&path, &mut [0_u8; 8]), Err(Errno::OPNOTSUPP));
            assert_eq!(removexattr(&path, "user.test"), Err(Errno::OPNOTSUPP));
        }
        assert_eq!(calls(&export), 0);
        mount.unmount();
    }
}
