//! Copies that make a target equal to its source, against a model: what the source has.

use std::{
    collections::HashSet,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use proptest::prelude::*;

use super::*;

/// An object of a random tree.
#[derive(Debug, Clone)]
enum Object {
    /// The content of files with one size and time is the same: a copy cannot distinguish others.
    File {
        len: usize,
        time: usize,
        mode: u32,
    },
    Directory {
        mode: u32,
    },
    Link {
        to: &'static str,
    },
}

/// Objects by paths of up to three names.
type Tree = Vec<(Vec<&'static str>, Object)>;

fn object() -> impl Strategy<Value = Object> {
    let file_mode = prop::sample::select(vec![0o600, 0o640, 0o755]);
    let file = (prop::sample::select(vec![0_usize, 1, 5000, 9000]), 0..4_usize, file_mode)
        .prop_map(|(len, time, mode)| Object::File { len, time, mode });
    let directory = prop::sample::select(vec![0o700, 0o755]).prop_map(|mode| Object::Directory { mode });
    let link = prop::sample::select(vec!["a", "../b", "/nowhere"]).prop_map(|to| Object::Link { to });
    prop_oneof![4 => file, 2 => directory, 1 => link]
}

fn trees() -> impl Strategy<Value = Tree> {
    let path = prop::collection::vec(prop::sample::select(vec!["a", "b", "c", "d"]), 1..=3);
    prop::collection::vec((path, object()), 0..16)
}

/// Patterns of excluded objects.
fn patterns() -> impl Strategy<Value = Vec<&'static str>> {
    prop::collection::vec(prop::sample::select(vec!["a/", "b/", "/c/", "a/b/", "*/d/", "d", "b/c"]), 0..3)
}

/// The objects below `root` that are excluded, themselves or with a directory above them.
fn excluded(exclude: &Exclude, root: &Path) -> HashSet<PathBuf> {
    let matches = |path: &Path| {
        let is_directory = fs::symlink_metadata(root.join(path)).unwrap().is_dir();
        path != Path::new("") && exclude.matches(path.as_os_str().as_encoded_bytes(), is_directory)
    };
    picture(root).into_keys().filter(|path| path.ancestors().any(matches)).collect()
}

fn time(index: usize) -> SystemTime {
    let seconds = Duration::from_secs(1_000_000_000);
    [
        UNIX_EPOCH + seconds,
        UNIX_EPOCH + seconds + Duration::from_nanos(123_456_789),
        UNIX_EPOCH - Duration::new(312_508_800, 1),
        UNIX_EPOCH + seconds * 5,
    ][index]
}

/// Creates the objects whose parents are directories or can be made, and whose names are free.
fn build(root: &Path, tree: &Tree) {
    fs::create_dir_all(root).unwrap();
    for (path, object) in tree {
        let at = root.join(path.iter().collect::<PathBuf>());
        if fs::create_dir_all(at.parent().unwrap()).is_err() || fs::symlink_metadata(&at).is_ok() {
            continue;
        }
        match object {
            Object::File { len, time: of, mode } => {
                fs::write(&at, pattern(*len, *of as u8)).unwrap();
                fs::set_permissions(&at, fs::Permissions::from_mode(*mode)).unwrap();
                fs::File::open(&at).unwrap().set_modified(time(*of)).unwrap();
            }
            Object::Directory { mode } => {
                fs::create_dir(&at).unwrap();
                fs::set_permissions(&at, fs::Permissions::from_mode(*mode)).unwrap();
            }
            Object::Link { to } => symlink(to, &at).unwrap(),
        }
    }
}

/// As `picture`, without the times of symbolic links, which are not compared.
fn compared(dir: &Path) -> HashMap<PathBuf, (u32, i64, i64, Vec<u8>)> {
    let mut all = picture(dir);
    for (path, (_, seconds, nanos, _)) in &mut all {
        if dir.join(path).is_symlink() {
            (*seconds, *nanos) = (0, 0);
        }
    }
    all
}

fn sync_options() -> Options {
    Options { replace: Replace::Different, delete: true, atomic: true, ..options() }
}

/// As [`sync_to`], to a local tree.
fn sync<S: Source<Node = PathBuf>>(
    from: (&S, &Path),
    to: &Path,
    options: &Options,
    limit: Option<usize>,
) -> (Report, HashSet<String>) {
    sync_to(from, (&tree(), to), options, limit)
}

/// Copies the contents of `from` into `to`. The copy is interrupted after `limit` events. Returns the report and the paths
/// that were copied.
fn sync_to<S: Source<Node = PathBuf>, T: Target<Node = PathBuf>>(
    (source, from): (&S, &Path),
    (target, to): (&T, &Path),
    options: &Options,
    limit: Option<usize>,
) -> (Report, HashSet<String>) {
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let id = Some(Metadata::from(&fs::metadata(to).unwrap()).id);
    let into = Directory { id, ..to.to_owned().into() };
    let (count, copied) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(HashSet::new())));
    let (counted, seen, reached) =
        (Arc::clone(&count), Arc::clone(&copied), Arc::new(tokio::sync::Notify::new()));
    let reach = Arc::clone(&reached);
    let copy = TreeCopy::new(source, target, options.clone())
        .on_event(move |event| {
            if let Event::Copied { path } = event {
                assert!(seen.lock().unwrap().insert(path.to_owned()), "{path} was copied twice");
            }
            if limit.is_some_and(|limit| counted.fetch_add(1, Ordering::SeqCst) >= limit) {
                reach.notify_one();
            }
        })
        .interrupted_by(async move { reached.notified().await });
    let item = Item { name: Vec::new(), ..Item::local(from, "").unwrap() };
    let report = rt.block_on(copy.run(vec![item], into));
    let copied = std::mem::take(&mut *copied.lock().unwrap());
    (report, copied)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_target_gets_equal_to_its_source(
        before in trees(),
        wanted in trees(),
        patterns in patterns(),
        limit in prop::option::of(0..12_usize),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        build(&from, &wanted);
        build(&to, &before);
        let source = tree();
        let exclude = Exclude::new(patterns).unwrap();
        let (omitted, kept) = (excluded(&exclude, &from), excluded(&exclude, &to));
        // What is excluded stays, also if it is in the place of a file or link.
        let is_directory = |path: PathBuf| fs::symlink_metadata(path).is_ok_and(|m| m.is_dir());
        let is_prevented = picture(&from).into_keys().any(|path| {
            !omitted.contains(&path)
                && !is_directory(from.join(&path))
                && is_directory(to.join(&path))
                && kept.iter().any(|kept| kept.starts_with(&path))
        });
        let options = Options { exclude, ..sync_options() };
        let run = |options: &Options, limit| sync((&source, &from), &to, options, limit);

        let untouched = compared(&to);
        let (planned, would_copy) = run(&Options { dry_run: true, ..options.clone() }, None);
        prop_assert_eq!(&compared(&to), &untouched);

        let (first, copied) = run(&options, limit);
        if limit.is_none() {
            let counts = |r: &Report| (r.files, r.symlinks, r.bytes, r.skipped, r.deleted, r.failed.len());
            prop_assert_eq!(counts(&first), counts(&planned));
            prop_assert_eq!(&copied, &would_copy);
        }
        let (second, again) = run(&options, None);
        prop_assert!(copied.is_disjoint(&again), "copied again: {copied:?}, {again:?}");
        prop_assert_eq!(complete(&second), !is_prevented, "{:?}", second);
        let now = compared(&to);
        for path in &kept {
            prop_assert_eq!(now.get(path), untouched.get(path), "{:?}", path);
        }
        if complete(&second) {
            let mut wanted = compared(&from);
            wanted.retain(|path, _| !omitted.contains(path));
            for (path, of) in &wanted {
                prop_assert_eq!(now.get(path), Some(of), "{:?}", path);
            }
            for path in now.keys().filter(|path| !wanted.contains_key(*path) && !omitted.contains(*path)) {
                prop_assert!(kept.iter().any(|kept| kept.starts_with(path)), "{path:?} was not removed");
            }
        }

        let changed: HashMap<_, _> = picture(&to)
            .into_keys()
            .map(|path| (fs::symlink_metadata(to.join(&path)).unwrap().ctime_nsec(), path))
            .collect();
        let (third, none) = run(&options, None);
        prop_assert!(third.failed.len() == second.failed.len() && none.is_empty(), "{third:?}");
        prop_assert_eq!((third.files, third.symlinks, third.bytes, third.deleted), (0, 0, 0, 0));
        for (ctime, path) in changed {
            // Only the directory given to the copy gets its times again.
            let now = fs::symlink_metadata(to.join(&path)).unwrap().ctime_nsec();
            prop_assert!(path == Path::new("") || now == ctime, "{path:?} was changed");
        }
    }
}

#[test]
fn nothing_is_removed_after_a_read_error_in_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir_all(from.join("unreadable")).unwrap();
    fs::write(from.join("new"), b"x").unwrap();
    fs::write(from.join("kind"), b"x").unwrap();
    fs::create_dir_all(to.join("extra/below")).unwrap();
    fs::create_dir_all(to.join("kind/below")).unwrap();
    fs::create_dir_all(to.join("unreadable/below")).unwrap();
    let source = Faulty::new(Fault::Unreadable);
    let (report, _) = sync((&source, &from), &to, &sync_options(), None);
    assert_eq!((report.files, report.deleted, report.not_deleted), (1, 0, 2), "{report:?}");
    let mut failed: Vec<_> = report.failed.iter().map(|f| f.path.rsplit('/').next().unwrap()).collect();
    failed.sort_unstable();
    assert_eq!(failed, ["kind", "unreadable"]);
    assert_eq!(names(&to), ["extra", "kind", "new", "unreadable"]);
    assert!(to.join("kind/below").is_dir() && to.join("unreadable/below").is_dir());
    // A special file, which is never copied, is no read error; its name at the target stays.
    fs::remove_dir(from.join("unreadable")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap());
    fs::write(to.join("socket"), b"x").unwrap();
    let (report, _) = sync((&tree(), &from), &to, &sync_options(), None);
    assert!(matches!(&report.failed[..], [FailedFile { error: Error::Special, .. }]), "{report:?}");
    assert_eq!(names(&to), ["kind", "new", "socket"]);
}

#[test]
fn without_delete_everything_else_stays_and_another_type_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir_all(from.join("directory")).unwrap();
    fs::write(from.join("file"), b"x").unwrap();
    fs::create_dir_all(to.join("file/below")).unwrap();
    fs::write(to.join("directory"), b"x").unwrap();
    fs::write(to.join("extra"), b"x").unwrap();
    let (report, _) = sync((&tree(), &from), &to, &Options { delete: false, ..sync_options() }, None);
    assert_eq!((report.failed.len(), report.deleted, report.not_deleted), (2, 0, 0), "{report:?}");
    assert_eq!(names(&to), ["directory", "extra", "file"]);
    assert!(to.join("file/below").is_dir());
    let (report, _) = sync((&tree(), &from), &to, &sync_options(), None);
    assert!(complete(&report) && report.deleted == 4, "{report:?}");
    assert_eq!(compared(&to), compared(&from));
}

#[test]
fn symbolic_links_are_removed_and_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["from", "outside", "to/extra"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    fs::write(at("outside/file"), b"x").unwrap();
    symlink(at("outside"), at("to/link")).unwrap();
    symlink(at("outside"), at("to/extra/link")).unwrap();
    symlink(at("outside/file"), at("to/extra/to-file")).unwrap();
    let (report, _) = sync((&tree(), &at("from")), &at("to"), &sync_options(), None);
    assert!(complete(&report) && report.deleted == 4, "{report:?}");
    assert_eq!((names(&at("to")), names(&at("outside"))), (vec![], vec!["file".to_owned()]));
}

/// Two links that were made within one tick of the kernel's clock have the same time.
#[test]
fn symbolic_links_of_the_same_time_differ_in_their_targets() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for (name, text) in [("from", "new"), ("to", "old")] {
        fs::create_dir(at(name)).unwrap();
        let link = at(name).join("link");
        symlink(text, &link).unwrap();
        let time = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        let nofollow = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(rustix::fs::CWD, &link, &times, nofollow).unwrap();
    }
    let (report, _) = sync((&tree(), &at("from")), &at("to"), &sync_options(), None);
    assert!(complete(&report) && report.symlinks == 1, "{report:?}");
    assert_eq!(fs::read_link(at("to/link")).unwrap(), Path::new("new"));
    let (report, _) = sync((&tree(), &at("from")), &at("to"), &sync_options(), None);
    assert!(complete(&report) && report.symlinks == 0 && report.skipped == 1, "{report:?}");
}

/// Another process exchanges a directory for a link after it was listed.
#[test]
fn nothing_is_removed_from_a_directory_that_was_not_listed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["listed", "outside"] {
        fs::create_dir(at(name)).unwrap();
        fs::write(at(name).join("file"), b"x").unwrap();
    }
    let id = Some(Metadata::from(&fs::metadata(at("listed")).unwrap()).id);
    fs::rename(at("listed"), at("moved")).unwrap();
    symlink(at("outside"), at("listed")).unwrap();
    let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let listed = Directory { node: at("listed"), created: false, id };
    let tree = tree();
    assert!(rt.block_on(tree.remove(&listed, b"file", FileKind::File)).is_err());
    assert_eq!(names(&at("outside")), ["file"]);
    let moved = Directory { node: at("moved"), ..listed };
    rt.block_on(tree.remove(&moved, b"file", FileKind::File)).unwrap();
    rt.block_on(tree.remove(&moved, b"file", FileKind::File)).unwrap();
    assert!(rt.block_on(tree.remove(&moved, b"../outside/file", FileKind::File)).is_err());
    assert_eq!((names(&at("moved")), names(&at("outside"))), (vec![], vec!["file".to_owned()]));
}

#[test]
fn excluded_objects_are_neither_copied_nor_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    for (root, files) in [
        (&from, &["a", "a.o", "target/b", "sub/target/c", "sub/d"][..]),
        (&to, &["old", "old.o", "extra/e", "extra/e.o", "sub/target/f", "target/g"]),
    ] {
        for file in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, b"x").unwrap();
        }
    }
    let exclude = Exclude::new(["*.o", "/target/"]).unwrap();
    let (report, _) = sync((&tree(), &from), &to, &Options { exclude, ..sync_options() }, None);
    assert!(complete(&report), "{report:?}");
    let mut found: Vec<_> = picture(&to).into_keys().filter(|path| to.join(path).is_file()).collect();
    found.sort();
    let expected = ["a", "extra/e.o", "old.o", "sub/d", "sub/target/c", "target/g"];
    assert_eq!(found, expected.map(PathBuf::from));
}

#[test]
fn an_excluded_directory_is_not_replaced() {
    for what in ["file", "link", "other name"] {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir(&from).unwrap();
        fs::create_dir_all(to.join("cache/below")).unwrap();
        fs::write(from.join("a"), b"x").unwrap();
        match what {
            "file" => fs::write(from.join("cache"), b"x").unwrap(),
            "link" => symlink("a", from.join("cache")).unwrap(),
            _ => fs::hard_link(from.join("a"), from.join("cache")).unwrap(),
        }
        let exclude = Exclude::new(["cache/"]).unwrap();
        let options = Options { exclude, hard_links: true, ..sync_options() };
        let (report, _) = sync((&tree(), &from), &to, &options, None);
        let [FailedFile { path, error: Error::TargetIsDirectory }] = &report.failed[..] else {
            panic!("{report:?}")
        };
        assert!(path.ends_with("from/cache"), "{report:?}");
        assert!(to.join("cache/below").is_dir() && report.deleted == 0, "{what}: {report:?}");
    }
}

/// A directory with an excluded entry stays; what it prevents is not copied, also according to a dry run.
#[test]
fn a_directory_with_an_excluded_entry_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    fs::create_dir_all(to.join("a/cache")).unwrap();
    fs::write(to.join("a/other"), b"x").unwrap();
    fs::write(from.join("a"), b"x").unwrap();
    let options = Options { exclude: Exclude::new(["cache/"]).unwrap(), ..sync_options() };
    for dry_run in [true, false] {
        let options = Options { dry_run, ..options.clone() };
        let (report, copied) = sync((&tree(), &from), &to, &options, None);
        assert!(
            matches!(&report.failed[..], [FailedFile { error: Error::TargetIsDirectory, .. }]),
            "{report:?}"
        );
        assert!(copied.is_empty() && report.deleted == 1 && report.not_deleted == 1, "{report:?}");
    }
    assert_eq!((names(&to), names(&to.join("a"))), (vec!["a".to_owned()], vec!["cache".to_owned()]));
}

#[test]
fn what_was_removed_for_its_type_is_copied_after_another_removal_failed() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(from.join(name), b"x").unwrap();
        fs::create_dir_all(to.join(name)).unwrap();
    }
    fs::write(to.join("b/stays"), b"x").unwrap();
    fs::write(to.join("extra"), b"x").unwrap();
    let target = Faulty::new(Fault::RemoveFails);
    let (report, _) = sync_to((&tree(), &from), (&target, &to), &sync_options(), None);
    assert_eq!((report.files, report.deleted, report.not_deleted), (2, 2, 2), "{report:?}");
    assert!(to.join("a").is_file() && to.join("b/stays").is_file() && to.join("c").is_file());
    assert_eq!(names(&to), ["a", "b", "c", "extra"]);
    let failed: Vec<_> = report.failed.iter().map(|f| f.path.rsplit('/').next().unwrap()).collect();
    assert_eq!(failed, ["stays", "b"]);
}

/// That a directory is not empty follows from the error of its entry.
#[test]
fn a_failed_removal_is_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    fs::create_dir_all(to.join("extra/sub")).unwrap();
    fs::write(to.join("extra/sub/stays"), b"x").unwrap();
    fs::write(to.join("extra/sub/other"), b"x").unwrap();
    let target = Faulty::new(Fault::RemoveFails);
    let (report, _) = sync_to((&tree(), &from), (&target, &to), &sync_options(), None);
    assert_eq!((report.failed.len(), report.deleted), (1, 1), "{report:?}");
    assert!(report.failed[0].path.ends_with("extra/sub/stays"), "{report:?}");
}

/// A bind mount, until it is dropped.
struct BindMount(PathBuf);

impl BindMount {
    /// `None`, which is printed, without the privilege to mount.
    fn new(from: &Path, at: PathBuf) -> Option<Self> {
        match rustix::mount::mount_bind(from, &at) {
            Ok(()) => Some(Self(at)),
            Err(e) => {
                println!("skipped: this user may not mount: {e}");
                None
            }
        }
    }
}

impl Drop for BindMount {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn a_bind_mount_of_the_same_file_system_is_not_emptied() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["from", "outside", "to/extra/mount", "to/kind"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    fs::write(at("from/kind"), b"x").unwrap();
    fs::write(at("outside/file"), b"x").unwrap();
    let Some(below) = BindMount::new(&at("outside"), at("to/extra/mount")) else { return };
    let Some(kind) = BindMount::new(&at("outside"), at("to/kind")) else { return };
    let removed = |exclude: &[&str]| {
        let options = Options { exclude: Exclude::new(exclude).unwrap(), ..sync_options() };
        let (report, _) = sync((&tree(), &at("from")), &at("to"), &options, None);
        assert_eq!(names(&at("outside")), ["file"]);
        report
    };
    let report = removed(&[]);
    let [FailedFile { error: Error::MountPoint, .. }, FailedFile { error: Error::TargetIsDirectory, .. }] =
        &report.failed[..]
    else {
        panic!("{report:?}")
    };
    let report = removed(&["kind"]);
    assert!(matches!(&report.failed[..], [FailedFile { error: Error::MountPoint, .. }]), "{report:?}");
    drop((below, kind));
    assert!(complete(&removed(&[])));
    assert_eq!(names(&at("to")), ["kind"]);
}

/// As two names that differ in their case only, for a server that ignores it.
#[test]
fn two_directories_that_are_one_for_the_target_are_not_copied_with_delete() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["from/a", "from/b", "one", "to/a", "to/b"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    for name in ["from/a/of a", "from/b/of b", "one/old"] {
        fs::write(at(name), b"x").unwrap();
    }
    let Some(_a) = BindMount::new(&at("one"), at("to/a")) else { return };
    let Some(_b) = BindMount::new(&at("one"), at("to/b")) else { return };
    let (report, _) = sync((&tree(), &at("from")), &at("to"), &sync_options(), None);
    assert!(matches!(&report.failed[..], [FailedFile { error: Error::SharedTarget, .. }]), "{report:?}");
    assert!(report.files == 1 && report.deleted == 0 && at("one/old").is_file(), "{report:?}");
}

/// Each source would remove what the other one has copied.
#[test]
fn sources_that_share_a_directory_of_the_target_are_not_copied_with_delete() {
    for (first, second) in [("x", "x"), ("", ""), ("", "file"), ("file", "")] {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["one", "two", "to/x", "to/file"] {
            fs::create_dir_all(at(name)).unwrap();
            fs::write(at(name).join(format!("of {}", name.replace('/', " "))), b"x").unwrap();
        }
        let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let id = Some(Metadata::from(&fs::metadata(at("to")).unwrap()).id);
        let into = Directory { id, ..at("to").into() };
        let items =
            [("one", first), ("two", second)].map(|(from, name)| Item::local(&at(from), name).unwrap());
        let copy =
            async |options| TreeCopy::new(&tree(), &tree(), options).run(items.to_vec(), into.clone()).await;
        let report = rt.block_on(copy(sync_options()));
        assert!(report.failed.iter().any(|f| matches!(f.error, Error::SharedTarget)), "{report:?}");
        assert_eq!(report.deleted, 0, "{report:?}");
        assert!(at("to/x/of to x").is_file() && at("to/file/of to file").is_file());
        let report = rt.block_on(copy(Options { delete: false, ..sync_options() }));
        assert!(complete(&report), "{report:?}");
    }
}

#[test]
fn hard_links_are_kept_and_not_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    make_tree(&from);
    fs::create_dir_all(to.join("sub")).unwrap();
    fs::copy(from.join("small"), to.join("sub/same")).unwrap();
    let options = Options { hard_links: true, ..sync_options() };
    let (report, _) = sync((&tree(), &from), &to, &options, None);
    assert!(complete(&report) && report.hard_links == 1, "{report:?}");
    let ino = |p: &str| fs::metadata(to.join(p)).unwrap().ino();
    assert_eq!(ino("small"), ino("sub/same"));
    assert_eq!(compared(&to), compared(&from));
    let (report, copied) = sync((&tree(), &from), &to, &options, None);
    assert!(complete(&report) && copied.is_empty() && report.skipped == 7, "{report:?}");
}

#[test]
fn a_source_in_its_target_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("extra/from");
    fs::create_dir_all(&from).unwrap();
    fs::write(from.join("file"), b"x").unwrap();
    let (report, _) = sync((&tree(), &from), dir.path(), &sync_options(), None);
    assert!(matches!(&report.failed[..], [FailedFile { error: Error::IntoItself, .. }]), "{report:?}");
    assert_eq!(names(&from), ["file"]);
}

#[test]
fn existing_files_are_replaced_if_they_are_older_or_never() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    for root in [&from, &to] {
        fs::create_dir(root).unwrap();
    }
    for (name, of_source, of_target) in
        [("newer", 3, Some(0)), ("equal", 0, Some(0)), ("older", 0, Some(3)), ("new", 0, None)]
    {
        for (root, of) in [(&from, Some(of_source)), (&to, of_target)] {
            let Some(of) = of else { continue };
            let path = root.join(name);
            fs::write(&path, root.file_name().unwrap().as_encoded_bytes()).unwrap();
            fs::File::open(path).unwrap().set_modified(time(of)).unwrap();
        }
    }
    let copied = |replace, dry_run| {
        let with = Options { replace, dry_run, ..options() };
        let (report, copied) = sync((&tree(), &from), &to, &with, None);
        assert!(complete(&report) && report.skipped as usize == 4 - copied.len(), "{report:?}");
        let mut copied: Vec<_> = copied.iter().map(|p| p.rsplit('/').next().unwrap().to_owned()).collect();
        copied.sort();
        copied
    };
    assert_eq!(copied(Replace::Never, true), ["new"]);
    assert_eq!(copied(Replace::Older, true), ["new", "newer"]);
    assert_eq!(names(&to), ["equal", "newer", "older"]);
    assert_eq!(copied(Replace::Never, false), ["new"]);
    assert_eq!(copied(Replace::Older, false), ["newer"]);
    let content = |name: &str| fs::read_to_string(to.join(name)).unwrap();
    assert_eq!(["new", "newer", "equal", "older"].map(content), ["from", "from", "to", "to"]);
}
