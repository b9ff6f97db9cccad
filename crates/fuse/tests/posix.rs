//! POSIX file semantics, checked on a local directory (the oracle) and through mounts of memory and local
//! exports over RDMA and TCP. Checks state where NFS differs.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod common;

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
    path::Path,
};

use common::{Export, cases_of_versions, for_each, fuse_is_available, io_uring_is_available, random_bytes};
use rustix::{
    fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_NOW},
    io::Errno,
};

/// A check in an empty directory.
type Check = fn(&Path);

const CHECKS: &[(&str, Check)] = &[
    ("content comes back, whole and in parts", content),
    ("writes of all sizes and orders end up where they belong", random_writes),
    ("writers and readers of one file see each other", writers_and_readers),
    ("append goes to the end, also after a write by another client", append),
    ("an exclusive create is for one", exclusive),
    ("truncation cuts and extends", truncation),
    ("holes read as zeros", holes),
    ("directories are made, listed and removed", directories),
    ("names may be of any bytes up to 255", names),
    ("renames replace, and refuse what they must", renames),
    ("hard links share everything", hard_links),
    ("symbolic links keep their text", symbolic_links),
    ("special files are made", special_files),
    ("modes, owners and set-id bits", modes),
    ("times keep their nanoseconds", times),
    ("removed files live until they are closed", removed_while_open),
    ("replaced files live until they are closed", replaced_while_open),
    ("listings survive changes, and can be rewound and continued", listings),
    ("errors have the right numbers", errors),
    ("locks exclude each other", locks),
    ("extended attributes are refused or kept", extended_attributes),
    ("statfs returns the size of the file system", statfs),
];

fn content(dir: &Path) {
    for (i, len) in [0, 1, 4095, 4096, 4097, 131_072, 1 << 20, (3 << 20) + 17].into_iter().enumerate() {
        let path = dir.join(format!("file{i}"));
        let data = random_bytes(len, i as u64);
        fs::write(&path, &data).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), len as u64);
        assert_eq!(fs::read(&path).unwrap(), data);
        let f = File::open(&path).unwrap();
        let mut part = vec![0; len / 3];
        f.read_exact_at(&mut part, (len / 2) as u64).unwrap();
        assert_eq!(part, data[len / 2..len / 2 + len / 3]);
        assert_eq!(f.read_at(&mut [0; 10], len as u64 + 5).unwrap(), 0);
    }
}

fn random_writes(dir: &Path) {
    let seed = 4242;
    println!("seed {seed}");
    let path = dir.join("file");
    let f = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    let mut model = Vec::new();
    let mut state: u64 = seed;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for i in 0..400_u64 {
        let (at, len) = (random(2 << 20), 1 + random(if i % 10 == 0 { 1 << 20 } else { 9000 }));
        match random(12) {
            0 => {
                let mut got = vec![0; len];
                let n = f.read_at(&mut got, at as u64).unwrap();
                let expected = model.get(at..(at + len).min(model.len())).unwrap_or_default();
                assert_eq!(&got[..n], expected, "read {i} of {len} at {at}");
            }
            1 => {
                f.set_len(at as u64).unwrap();
                model.resize(at, 0);
            }
            2 => assert_eq!(f.metadata().unwrap().len(), model.len() as u64),
            3 => f.sync_data().unwrap(),
            _ => {
                let data = random_bytes(len, i + 1);
                f.write_all_at(&data, at as u64).unwrap();
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].copy_from_slice(&data);
            }
        }
    }
    drop(f);
    assert!(fs::read(&path).unwrap() == model, "the final content differs");
}

fn writers_and_readers(dir: &Path) {
    let path = dir.join("file");
    let mut w = File::create(&path).unwrap();
    let r = File::open(&path).unwrap();
    for i in 0..50_u8 {
        w.write_all(&[i; 1000]).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), (u64::from(i) + 1) * 1000);
        let mut got = [0; 1000];
        r.read_exact_at(&mut got, u64::from(i) * 1000).unwrap();
        assert_eq!(got, [i; 1000]);
    }
    let mut threads = Vec::new();
    for t in 0..4_u64 {
        let path = path.clone();
        threads.push(std::thread::spawn(move || {
            let f = OpenOptions::new().write(true).open(&path).unwrap();
            for i in 0..64 {
                f.write_all_at(&[t as u8 + 100; 4096], (i * 4 + t) * 4096).unwrap();
            }
        }));
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
    let all = fs::read(&path).unwrap();
    assert_eq!(all.len(), 64 * 4 * 4096);
    assert!(all.chunks(4096).enumerate().all(|(i, c)| c.iter().all(|b| *b == (i % 4) as u8 + 100)));
}

fn append(dir: &Path) {
    let path = dir.join("log");
    let mut a = OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let mut b = OpenOptions::new().append(true).open(&path).unwrap();
    for i in 0..20 {
        writeln!(a, "a{i}").unwrap();
        writeln!(b, "b{i}").unwrap();
    }
    a.seek(SeekFrom::Start(0)).unwrap();
    writeln!(a, "end").unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 41);
    assert!(text.starts_with("a0\nb0\na1\n") && text.ends_with("a19\nb19\nend\n"), "{text}");
}

fn exclusive(dir: &Path) {
    let path = dir.join("file");
    let mut made = OpenOptions::new().write(true).create_new(true).mode(0o640).open(&path).unwrap();
    made.write_all(b"mine").unwrap();
    drop(made);
    let refused = OpenOptions::new().write(true).create_new(true).open(&path).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path).unwrap(), b"mine");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
    // Created for writing, although its mode forbids writing.
    let mut f = OpenOptions::new().write(true).create_new(true).mode(0o444).open(dir.join("locked")).unwrap();
    f.write_all(b"once").unwrap();
    drop(f);
    assert_eq!(fs::read(dir.join("locked")).unwrap(), b"once");
    let wins = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                if OpenOptions::new().write(true).create_new(true).open(dir.join("race")).is_ok() {
                    wins.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(wins.into_inner(), 1);
}

fn truncation(dir: &Path) {
    let path = dir.join("file");
    fs::write(&path, random_bytes(100_000, 1)).unwrap();
    let f = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    f.set_len(50_001).unwrap();
    assert_eq!((f.metadata().unwrap().len(), fs::metadata(&path).unwrap().len()), (50_001, 50_001));
    f.set_len(60_000).unwrap();
    let all = fs::read(&path).unwrap();
    assert_eq!(all[..50_001], random_bytes(100_000, 1)[..50_001]);
    assert!(all[50_001..].iter().all(|b| *b == 0) && all.len() == 60_000);
    // Through another descriptor, and by open(2) with O_TRUNC.
    OpenOptions::new().write(true).open(&path).unwrap().set_len(10).unwrap();
    assert_eq!(f.metadata().unwrap().len(), 10);
    drop(File::create(&path).unwrap());
    assert_eq!(f.metadata().unwrap().len(), 0);
    // Writing continues at the descriptor's offset and creates a hole.
    let mut w = OpenOptions::new().write(true).open(&path).unwrap();
    w.write_all(&[7; 5000]).unwrap();
    w.set_len(0).unwrap();
    w.write_all(&[8; 10]).unwrap();
    drop(w);
    let all = fs::read(&path).unwrap();
    assert!(all.len() == 5010 && all[..5000].iter().all(|b| *b == 0) && all[5000..] == [8; 10]);
}

fn holes(dir: &Path) {
    let path = dir.join("sparse");
    let mut f = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    f.write_all_at(b"end", (1 << 30) + 5).unwrap();
    assert_eq!(f.metadata().unwrap().len(), (1 << 30) + 8);
    let mut got = vec![1; 10_000];
    f.read_exact_at(&mut got, 1 << 29).unwrap();
    assert!(got.iter().all(|b| *b == 0));
    f.read_exact_at(&mut got[..8], 1 << 30).unwrap();
    assert_eq!(&got[..8], b"\0\0\0\0\0end");
    assert_eq!(f.seek(SeekFrom::End(-3)).unwrap(), (1 << 30) + 5);
    // A file system without holes reports only data; POSIX allows both.
    let data = rustix::fs::seek(&f, rustix::fs::SeekFrom::Data(0)).unwrap();
    assert!(data <= (1 << 30) + 5);
    assert_eq!(rustix::fs::seek(&f, rustix::fs::SeekFrom::Hole((1 << 30) + 6)).unwrap(), (1 << 30) + 8);
    assert_eq!(rustix::fs::seek(&f, rustix::fs::SeekFrom::Data(1 << 31)), Err(Errno::NXIO));
}

fn listed(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

fn directories(dir: &Path) {
    fs::create_dir_all(dir.join("a/b/c")).unwrap();
    assert_eq!(fs::create_dir(dir.join("a")).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(fs::metadata(dir.join("a")).unwrap().nlink(), 3);
    assert_eq!(fs::remove_dir(dir.join("a")).unwrap_err().kind(), std::io::ErrorKind::DirectoryNotEmpty);
    for i in 0..300 {
        fs::write(dir.join(format!("a/b/file{i}")), i.to_string()).unwrap();
    }
    assert_eq!(listed(&dir.join("a/b")).len(), 301);
    for e in fs::read_dir(dir.join("a/b")).unwrap() {
        let e = e.unwrap();
        let inside = fs::symlink_metadata(e.path()).unwrap();
        let seen = (e.file_type().unwrap(), std::os::unix::fs::DirEntryExt::ino(&e));
        assert_eq!(seen, (inside.file_type(), inside.ino()));
    }
    fs::remove_dir(dir.join("a/b/c")).unwrap();
    fs::remove_dir_all(dir.join("a")).unwrap();
    assert!(listed(dir).is_empty());
}

fn names(dir: &Path) {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let longest = "n".repeat(255);
    for name in [b"a b".as_slice(), b"\xff\xfe\x01", "ümläut".as_bytes(), b"-rf", b"..x", longest.as_bytes()]
    {
        let path = dir.join(OsStr::from_bytes(name));
        fs::write(&path, name).unwrap();
        assert_eq!(fs::read(&path).unwrap(), name);
        assert!(fs::read_dir(dir).unwrap().any(|e| e.unwrap().file_name().as_bytes() == name));
    }
    let too_long = fs::write(dir.join("n".repeat(256)), "").unwrap_err();
    assert_eq!(too_long.raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()));
    let missing = fs::metadata(dir.join("n".repeat(256))).unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()));
    // A path of more than PATH_MAX bytes, and a link with more text than that.
    let path = dir.join("d/".repeat(2100));
    assert_eq!(fs::metadata(&path).unwrap_err().raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()));
    assert_eq!(
        symlink(&path, dir.join("link")).unwrap_err().raw_os_error(),
        Some(Errno::NAMETOOLONG.raw_os_error())
    );
}

fn renames(dir: &Path) {
    let p = |n: &str| dir.join(n);
    fs::write(p("a"), "a").unwrap();
    fs::write(p("b"), "b").unwrap();
    fs::rename(p("a"), p("b")).unwrap();
    assert_eq!((fs::read_to_string(p("b")).unwrap(), listed(dir).len()), ("a".into(), 1));
    fs::create_dir_all(p("d1/sub")).unwrap();
    fs::create_dir(p("d2")).unwrap();
    fs::rename(p("d1"), p("d2")).unwrap(); // An empty directory may be replaced.
    assert!(p("d2/sub").is_dir() && !p("d1").exists());
    fs::create_dir(p("d3")).unwrap();
    let number = |r: std::io::Result<()>| Errno::from_raw_os_error(r.unwrap_err().raw_os_error().unwrap());
    assert!(matches!(number(fs::rename(p("d3"), p("d2"))), Errno::NOTEMPTY | Errno::EXIST));
    assert_eq!(number(fs::rename(p("b"), p("d3"))), Errno::ISDIR);
    assert_eq!(number(fs::rename(p("d3"), p("b"))), Errno::NOTDIR);
    assert_eq!(number(fs::rename(p("nothing"), p("b"))), Errno::NOENT);
    assert_eq!(number(fs::rename(p("d2"), p("d2/sub/x"))), Errno::INVAL);
    fs::rename(p("b"), p("d2/sub/moved")).unwrap();
    fs::rename(p("d2/sub"), p("sub")).unwrap();
    assert_eq!(fs::read_to_string(p("sub/moved")).unwrap(), "a");
    // Both names refer to the same file: rename does nothing.
    fs::hard_link(p("sub/moved"), p("same")).unwrap();
    fs::rename(p("sub/moved"), p("same")).unwrap();
    assert!(p("sub/moved").exists() && p("same").exists());
    // An open file is accessible under its new name.
    let mut f = OpenOptions::new().append(true).open(p("same")).unwrap();
    fs::rename(p("same"), p("newer")).unwrap();
    f.write_all(b"b").unwrap();
    drop(f);
    assert_eq!(fs::read_to_string(p("newer")).unwrap(), "ab");
}

fn hard_links(dir: &Path) {
    let (a, b) = (dir.join("a"), dir.join("b"));
    fs::write(&a, "one").unwrap();
    fs::hard_link(&a, &b).unwrap();
    let (ma, mb) = (fs::metadata(&a).unwrap(), fs::metadata(&b).unwrap());
    assert_eq!((ma.ino(), ma.nlink(), mb.nlink()), (mb.ino(), 2, 2));
    fs::write(&b, "two!").unwrap();
    assert_eq!((fs::read_to_string(&a).unwrap().as_str(), fs::metadata(&a).unwrap().len()), ("two!", 4));
    fs::remove_file(&a).unwrap();
    assert_eq!((fs::metadata(&b).unwrap().nlink(), fs::read_to_string(&b).unwrap().as_str()), (1, "two!"));
    assert_eq!(fs::hard_link(&b, &b).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    assert!(fs::hard_link(dir, dir.join("dir")).is_err());
}

fn symbolic_links(dir: &Path) {
    let long = "x/".repeat(400);
    for (i, text) in ["target", "../no/where", long.as_str(), "/"].into_iter().enumerate() {
        let path = dir.join(format!("link{i}"));
        symlink(text, &path).unwrap();
        assert_eq!(fs::read_link(&path).unwrap().to_str(), Some(text));
        let meta = fs::symlink_metadata(&path).unwrap();
        assert!(meta.is_symlink() && meta.len() == text.len() as u64);
    }
    fs::write(dir.join("target"), "there").unwrap();
    assert_eq!(fs::read_to_string(dir.join("link0")).unwrap(), "there");
    symlink("loop", dir.join("loop")).unwrap();
    assert_eq!(fs::read(dir.join("loop")).unwrap_err().raw_os_error(), Some(Errno::LOOP.raw_os_error()));
    fs::remove_file(dir.join("link0")).unwrap();
    assert!(dir.join("target").exists());
}

fn special_files(dir: &Path) {
    let fifo = dir.join("fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo());
    let (reader, path) = (fifo.clone(), fifo.clone());
    let reader = std::thread::spawn(move || fs::read_to_string(reader).unwrap());
    fs::write(path, "through").unwrap();
    assert_eq!(reader.join().unwrap(), "through");
    let socket = dir.join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert!(fs::metadata(&socket).unwrap().file_type().is_socket());
    drop((std::os::unix::net::UnixStream::connect(&socket).unwrap(), listener));
    if rustix::process::geteuid().is_root() {
        let dev = rustix::fs::makedev(7, 300);
        let path = dir.join("device");
        rustix::fs::mknodat(CWD, &path, FileType::CharacterDevice, Mode::from_raw_mode(0o600), dev).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert!(meta.file_type().is_char_device());
        assert_eq!(meta.rdev(), dev);
    }
}

fn modes(dir: &Path) {
    let path = dir.join("file");
    fs::write(&path, "x").unwrap();
    let mode = |p: &Path| fs::metadata(p).unwrap().mode() & 0o7777;
    for m in [0o000, 0o640, 0o1777, 0o4755, 0o2755, 0o644] {
        fs::set_permissions(&path, fs::Permissions::from_mode(m)).unwrap();
        assert_eq!(mode(&path), m);
    }
    fs::create_dir(dir.join("d")).unwrap();
    fs::set_permissions(dir.join("d"), fs::Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(mode(&dir.join("d")), 0o1777);
    if rustix::process::geteuid().is_root() {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
        std::os::unix::fs::chown(&path, Some(1234), Some(4321)).unwrap();
        let meta = fs::metadata(&path).unwrap();
        // After chown to another owner the caller may no longer act as the owner.
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (1234, 4321, 0o755));
        std::os::unix::fs::chown(&path, None, Some(1)).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (1234, 1));
    }
}

fn times(dir: &Path) {
    let path = dir.join("file");
    fs::write(&path, "x").unwrap();
    let at = |s, n| Timespec { tv_sec: s, tv_nsec: n };
    let set = |a, m| {
        let t = Timestamps { last_access: a, last_modification: m };
        rustix::fs::utimensat(CWD, &path, &t, AtFlags::empty()).unwrap();
        fs::metadata(&path).unwrap()
    };
    let meta = set(at(1_000_000_000, 123_456_789), at(1_500_000_000, 987_654_321));
    assert_eq!((meta.atime(), meta.atime_nsec()), (1_000_000_000, 123_456_789));
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_500_000_000, 987_654_321));
    let omit = rustix::fs::UTIME_OMIT;
    let meta = set(at(0, omit), at(0, UTIME_NOW));
    assert_eq!(meta.atime(), 1_000_000_000);
    assert!(meta.mtime() > 1_700_000_000);
    // Closing must not change times set before: cp -a and tar rely on it.
    let f = File::create(&path).unwrap();
    f.write_all_at(b"some data", 0).unwrap();
    let t = Timestamps { last_access: at(5, 5), last_modification: at(7, 7) };
    rustix::fs::futimens(&f, &t).unwrap();
    drop(f);
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.mtime(), meta.mtime_nsec(), meta.len()), (7, 7, 9));
    // Writing changes them.
    fs::write(&path, "y").unwrap();
    assert!(fs::metadata(&path).unwrap().mtime() > 1_700_000_000);
}

fn removed_while_open(dir: &Path) {
    let path = dir.join("file");
    let mut f = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    f.write_all(b"before").unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!path.exists());
    assert!(listed(dir).is_empty(), "{:?}", listed(dir));
    f.write_all(b" and after").unwrap();
    f.sync_all().unwrap();
    let mut all = String::new();
    f.seek(SeekFrom::Start(0)).unwrap();
    f.read_to_string(&mut all).unwrap();
    assert_eq!((all.as_str(), f.metadata().unwrap().nlink()), ("before and after", 0));
    // The name can be used for another file.
    fs::write(&path, "new").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    assert_ne!(fs::metadata(&path).unwrap().ino(), f.metadata().unwrap().ino());
    drop(f);
    assert_eq!(listed(dir), ["file".to_owned()].into());
}

fn replaced_while_open(dir: &Path) {
    let path = dir.join("file");
    fs::write(&path, "old").unwrap();
    let old = File::open(&path).unwrap();
    fs::write(dir.join("next"), "new").unwrap();
    fs::rename(dir.join("next"), &path).unwrap();
    let mut got = [0; 3];
    old.read_exact_at(&mut got, 0).unwrap();
    assert_eq!((&got, fs::read_to_string(&path).unwrap().as_str()), (b"old", "new"));
    assert_eq!(listed(dir), ["file".to_owned()].into());
    drop(old);
    fs::remove_file(&path).unwrap();
    assert!(listed(dir).is_empty());
}

fn listings(dir: &Path) {
    let all: BTreeSet<String> = (0..2000).map(|i| format!("file-with-a-longer-name-{i:05}")).collect();
    for name in &all {
        fs::write(dir.join(name), "").unwrap();
    }
    assert_eq!(listed(dir), all);
    // While half of the files are removed and others created, each of the remaining ones is listed once.
    let mut seen = Vec::new();
    for (i, e) in fs::read_dir(dir).unwrap().enumerate() {
        seen.push(e.unwrap().file_name().into_string().unwrap());
        if i == 100 {
            for name in all.iter().filter(|n| n.ends_with(['1', '3', '5', '7', '9'])) {
                fs::remove_file(dir.join(name)).unwrap();
            }
            fs::write(dir.join("another"), "").unwrap();
        }
    }
    let stay: Vec<_> = all.iter().filter(|n| n.ends_with(['0', '2', '4', '6', '8'])).collect();
    // Removed files may be listed, but do not exist.
    for name in all.iter().filter(|n| !stay.contains(n)) {
        assert!(fs::symlink_metadata(dir.join(name)).is_err(), "{name}");
    }
    for name in &stay {
        assert_eq!(seen.iter().filter(|s| s == name).count(), 1, "{name}");
    }
    // Rewinding shows the current content.
    let mut stream = rustix::fs::Dir::read_from(File::open(dir).unwrap()).unwrap();
    let count = |stream: &mut rustix::fs::Dir| {
        let names = std::iter::from_fn(|| stream.read()).map(|e| e.unwrap().file_name().to_owned());
        names.filter(|n| !matches!(n.to_bytes(), b"." | b"..")).count()
    };
    let first = count(&mut stream);
    assert_eq!(first, stay.len() + 1);
    fs::remove_file(dir.join("another")).unwrap();
    stream.rewind();
    assert_eq!(count(&mut stream), first - 1);
}

fn errors(dir: &Path) {
    let p = |n: &str| dir.join(n);
    let number = |e: std::io::Error| Errno::from_raw_os_error(e.raw_os_error().unwrap());
    fs::write(p("file"), "").unwrap();
    fs::create_dir(p("dir")).unwrap();
    assert_eq!(number(fs::read(p("missing")).unwrap_err()), Errno::NOENT);
    assert_eq!(number(fs::read(p("file/below")).unwrap_err()), Errno::NOTDIR);
    assert_eq!(number(fs::write(p("dir"), "").unwrap_err()), Errno::ISDIR);
    assert_eq!(number(fs::remove_file(p("missing")).unwrap_err()), Errno::NOENT);
    assert_eq!(number(fs::remove_file(p("dir")).unwrap_err()), Errno::ISDIR);
    assert_eq!(number(fs::remove_dir(p("file")).unwrap_err()), Errno::NOTDIR);
    assert_eq!(number(fs::create_dir(p("file")).unwrap_err()), Errno::EXIST);
    assert_eq!(number(fs::create_dir(p("missing/below")).unwrap_err()), Errno::NOENT);
    let f = File::open(p("file")).unwrap();
    assert_eq!(number((&f).write_all(b"x").unwrap_err()), Errno::BADF);
    assert_eq!(number(f.set_len(1).unwrap_err()), Errno::INVAL);
    assert_eq!(number(fs::read_link(p("file")).unwrap_err()), Errno::INVAL);
    let not_dir = rustix::fs::openat(CWD, p("file"), OFlags::DIRECTORY, Mode::empty());
    assert_eq!(not_dir.unwrap_err(), Errno::NOTDIR);
}

fn locks(dir: &Path) {
    let path = dir.join("lock");
    let a = File::create(&path).unwrap();
    let b = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    rustix::fs::flock(&a, FlockOperation::LockExclusive).unwrap();
    assert_eq!(rustix::fs::flock(&b, FlockOperation::NonBlockingLockExclusive), Err(Errno::AGAIN));
    rustix::fs::flock(&a, FlockOperation::Unlock).unwrap();
    rustix::fs::flock(&b, FlockOperation::NonBlockingLockExclusive).unwrap();
    rustix::fs::flock(&b, FlockOperation::Unlock).unwrap();
    // fcntl locks belong to a process, so another process is denied.
    let other_may = || {
        let script = "import fcntl; fcntl.lockf(open('lock', 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)";
        let mut python = std::process::Command::new("python3");
        python.args(["-c", script]).current_dir(dir).stderr(std::process::Stdio::null());
        python.status().map(|s| s.success())
    };
    rustix::fs::fcntl_lock(&a, FlockOperation::NonBlockingLockExclusive).unwrap();
    match other_may() {
        Ok(may) => assert!(!may, "two processes hold the same lock"),
        Err(e) => {
            eprintln!("SKIPPED: python3 cannot be run ({e}), so locks between processes were not tested")
        }
    }
    rustix::fs::fcntl_lock(&a, FlockOperation::Unlock).unwrap();
    assert!(other_may().unwrap_or(true));
}

fn extended_attributes(dir: &Path) {
    let path = dir.join("file");
    fs::write(&path, "").unwrap();
    // The oracle may support them; NFSv3 does not. Listing must not fail with either.
    let set = rustix::fs::setxattr(&path, "user.test", b"v", rustix::fs::XattrFlags::empty());
    assert!(matches!(set, Ok(()) | Err(Errno::OPNOTSUPP)), "{set:?}");
    let mut none = [0_u8; 0];
    let listed = rustix::fs::listxattr(&path, &mut none);
    assert!(matches!(listed, Ok(_) | Err(Errno::OPNOTSUPP)), "{listed:?}");
}

fn statfs(dir: &Path) {
    let s = rustix::fs::statvfs(dir).unwrap();
    assert!(s.f_blocks > 0 && s.f_bfree <= s.f_blocks && s.f_frsize >= 512);
    assert_eq!(s.f_namemax, 255);
}

/// Runs all checks in `dir`, and returns the failed ones.
fn run(dir: &Path, place: &str) -> Vec<String> {
    let mut failed = Vec::new();
    for (i, (name, check)) in CHECKS.iter().enumerate() {
        let own = dir.join(format!("check{i}"));
        fs::create_dir(&own).unwrap();
        if std::panic::catch_unwind(|| check(&own)).is_err() {
            failed.push(format!("{place}: {name}"));
        }
    }
    failed
}

#[test]
fn checks_pass_on_a_local_directory() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run(dir.path(), "oracle"), Vec::<String>::new());
}

#[test]
fn checks_pass_on_mounts() {
    if !fuse_is_available() {
        return;
    }
    let failed = for_each(cases_of_versions(), |(case, version)| {
        let export = Export::start(case.local);
        let mounted = export.mount(case.proto, &format!("dev,{version}"));
        let failed = run(&mounted.at, &format!("{case:?} {version}"));
        mounted.unmount();
        failed
    });
    assert_eq!(failed.concat(), Vec::<String>::new());
}

#[test]
fn checks_pass_with_other_options() {
    if !fuse_is_available() {
        return;
    }
    let mut all = vec![
        "noac",
        "writeback",
        "rsize=4096,wsize=8192,nconnect=2",
        "default_permissions,lookupcache=none",
        "vers=4.2,noac",
        "vers=4.2,writeback",
    ];
    if io_uring_is_available() {
        all.push("io_uring");
    }
    let failed = for_each(all, |options| {
        let export = Export::start(false);
        let mounted = export.mount("tcp", &format!("dev,{options}"));
        let failed = run(&mounted.at, options);
        mounted.unmount();
        failed
    });
    assert_eq!(failed.concat(), Vec::<String>::new());
}

/// NFSv4 and FUSE have 64 bits for the seconds. With NFSv3, the nearest time of 1970 to 2106 is set, as by Linux.
#[test]
fn times_before_1970_and_after_2106_are_kept_with_nfsv4() {
    if !fuse_is_available() {
        return;
    }
    let early = Timespec { tv_sec: -312_508_800, tv_nsec: 123_456_789 };
    let late = Timespec { tv_sec: 7_258_118_400, tv_nsec: 5 };
    for (options, is_kept) in [("vers=3", false), ("vers=4.1", true), ("vers=4.2", true)] {
        let export = Export::start(true);
        let mount = export.mount("tcp", options);
        fs::write(mount.at.join("file"), "x").unwrap();
        let times = Timestamps { last_access: early, last_modification: late };
        rustix::fs::utimensat(CWD, mount.at.join("file"), &times, AtFlags::empty()).unwrap();
        let of = |m: fs::Metadata| [(m.atime(), m.atime_nsec()), (m.mtime(), m.mtime_nsec())];
        let expected = match is_kept {
            true => [(early.tv_sec, early.tv_nsec), (late.tv_sec, late.tv_nsec)],
            false => [(0, 0), (u32::MAX.into(), 0)],
        };
        assert_eq!(of(fs::metadata(export.dir.path().join("file")).unwrap()), expected, "server, {options}");
        mount.unmount();
        // Times that the server has.
        let times = Timestamps { last_access: late, last_modification: early };
        rustix::fs::utimensat(CWD, export.dir.path().join("file"), &times, AtFlags::empty()).unwrap();
        let mount = export.mount("tcp", options);
        let shown = of(fs::metadata(mount.at.join("file")).unwrap()).map(|(seconds, _)| seconds);
        assert_eq!(shown, [expected[1].0, expected[0].0], "mount, {options}");
        mount.unmount();
    }
}

/// `.` and `..` are listed first, and the offsets of entries lead to the entries after them.
#[test]
fn directories_list_themselves_and_their_parents() {
    if !fuse_is_available() {
        return;
    }
    for options in ["vers=3", "vers=4.1", "vers=4.2", "vers=4.2,acdirmin=0"] {
        let export = Export::start(true);
        let mount = export.mount("tcp", options);
        fs::create_dir_all(mount.at.join("outer/empty")).unwrap();
        fs::create_dir(mount.at.join("outer/full")).unwrap();
        for i in 0..300 {
            File::create(mount.at.join(format!("outer/full/file-{i}"))).unwrap();
        }
        for (dir, entries) in [("", 1), ("outer", 2), ("outer/empty", 0), ("outer/full", 300)] {
            let path = mount.at.join(dir);
            let open =
                || rustix::fs::openat(CWD, &path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
            let list = |offset: Option<i64>| -> Vec<_> {
                let mut stream = rustix::fs::Dir::new(open()).unwrap();
                if let Some(offset) = offset {
                    stream.seek(offset).unwrap();
                }
                let entry = |e: rustix::fs::DirEntry| (e.file_name().to_owned(), e.ino(), e.offset());
                stream.map(|e| entry(e.unwrap())).collect()
            };
            let all = list(None);
            assert_eq!(all.len(), entries + 2, "{dir:?}, {options}");
            let number = |name: &std::ffi::CStr| all.iter().find(|(n, ..)| n.as_c_str() == name).unwrap().1;
            let parent = if dir.is_empty() { path.clone() } else { path.join("..") };
            assert_eq!(number(c"."), fs::metadata(&path).unwrap().ino(), "{dir:?}, {options}");
            assert_eq!(number(c".."), fs::metadata(parent).unwrap().ino(), "{dir:?}, {options}");
            for (at, (_, _, offset)) in all.iter().enumerate().take(5) {
                assert_eq!(list(Some(*offset)), all[at + 1..], "{dir:?} after entry {at}, {options}");
            }
        }
        mount.unmount();
    }
}
