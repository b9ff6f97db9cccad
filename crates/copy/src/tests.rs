//! Copies between local trees, with a target that fails on demand.

mod sync;

use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use millrace_buffer::{Arena, ArenaConfig, Views};

use crate::{
    Directory, Entries, Error, Event, Exclude, Existing, FailedFile, FileKind, Item, LocalReader, LocalTree,
    LocalWriter, Metadata, Options, Preserve, Replace, Report, Source, Target, TreeCopy, WriteOutcome,
    Xattrs,
};

fn tree() -> LocalTree {
    LocalTree::new(Arena::new(ArenaConfig { limit: 256 << 20, huge_pages: false }))
}

/// Runs a copy of `from` to the name `copy` in `to`.
fn run<T: Target<Node = PathBuf>>(from: &Path, to: &Path, target: &T, options: &Options) -> Report {
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let items = vec![Item::local(from, "copy").unwrap()];
    rt.block_on(TreeCopy::new(&tree(), target, options.clone()).run(items, to.to_owned()))
}

/// Whether all objects were copied.
fn complete(report: &Report) -> bool {
    report.failed.is_empty() && !report.interrupted && !report.stopped
}

/// Whether no file was copied because of an error.
fn nothing_copied(report: &Report) -> bool {
    !report.failed.is_empty() && report.files + report.symlinks + report.hard_links == 0
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed).collect()
}

/// Creates a tree with files, links and directories of various sizes and modes.
fn make_tree(dir: &Path) {
    fs::create_dir_all(dir.join("sub/deep")).unwrap();
    fs::write(dir.join("empty"), b"").unwrap();
    fs::write(dir.join("small"), b"hello").unwrap();
    fs::write(dir.join("sub/records"), pattern(100_000, 1)).unwrap();
    fs::write(dir.join("sub/deep/whole"), pattern(65_536, 2)).unwrap();
    fs::hard_link(dir.join("small"), dir.join("sub/same")).unwrap();
    symlink("../small", dir.join("sub/link")).unwrap();
    symlink("/nowhere", dir.join("dangling")).unwrap();
    fs::set_permissions(dir.join("small"), fs::Permissions::from_mode(0o640)).unwrap();
    let old = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    fs::File::open(dir.join("small")).unwrap().set_modified(old).unwrap();
    fs::set_permissions(dir.join("sub"), fs::Permissions::from_mode(0o555)).unwrap();
    fs::File::open(dir.join("sub")).unwrap().set_modified(old).unwrap();
}

/// Attributes that a copy preserves, by path: mode, mtime, content or link target.
fn picture(dir: &Path) -> HashMap<PathBuf, (u32, i64, i64, Vec<u8>)> {
    let mut out = HashMap::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(p) = todo.pop() {
        let m = fs::symlink_metadata(&p).unwrap();
        let content = if m.is_dir() {
            todo.extend(fs::read_dir(&p).unwrap().map(|e| e.unwrap().path()));
            Vec::new()
        } else if m.is_symlink() {
            fs::read_link(&p).unwrap().into_os_string().into_encoded_bytes()
        } else {
            fs::read(&p).unwrap()
        };
        let name = p.strip_prefix(dir).unwrap().to_owned();
        out.insert(name, (m.mode(), m.mtime(), m.mtime_nsec(), content));
    }
    out
}

fn names(dir: &Path) -> Vec<String> {
    let mut out: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    out.sort();
    out
}

/// Small records, so that small files have many.
fn options() -> Options {
    Options { record: Some(4096), ..Options::default() }
}

#[test]
fn a_copied_tree_has_the_same_content_modes_times_and_links() {
    let dir = tempfile::tempdir().unwrap();
    make_tree(&dir.path().join("from"));
    let with = Options { hard_links: true, verify: true, ..options() };
    let report = run(&dir.path().join("from"), dir.path(), &tree(), &with);
    assert!(complete(&report), "{report:?}");
    assert_eq!((report.files, report.symlinks, report.hard_links, report.directories), (4, 2, 1, 3));
    assert_eq!((report.bytes, report.verified), (165_541, 4));
    assert_eq!(picture(&dir.path().join("copy")), picture(&dir.path().join("from")));
    let ino = |p: &str| fs::metadata(dir.path().join(p)).unwrap().ino();
    assert_eq!(ino("copy/small"), ino("copy/sub/same"));
}

#[test]
fn set_id_bits_are_cleared_unless_the_owner_is_preserved() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("copy"));
    fs::write(&from, b"#!/bin/sh").unwrap();
    fs::set_permissions(&from, fs::Permissions::from_mode(0o6755)).unwrap();
    for (owner, mode) in [(false, 0o755), (true, 0o6755)] {
        let with = Options { preserve: Preserve { owner, ..Preserve::default() }, ..options() };
        assert!(complete(&run(&from, dir.path(), &tree(), &with)));
        assert_eq!(fs::metadata(&to).unwrap().mode() & 0o7777, mode);
        fs::remove_file(&to).unwrap();
    }
}

#[test]
fn a_second_copy_replaces_the_first() {
    let dir = tempfile::tempdir().unwrap();
    make_tree(&dir.path().join("from"));
    let with = Options { hard_links: true, ..options() };
    run(&dir.path().join("from"), dir.path(), &tree(), &with);
    fs::write(dir.path().join("from/small"), b"changed").unwrap();
    fs::set_permissions(dir.path().join("copy/sub"), fs::Permissions::from_mode(0o755)).unwrap();
    let report = run(&dir.path().join("from"), dir.path(), &tree(), &with);
    assert!(complete(&report), "{report:?}");
    // The existing directories keep their attributes.
    let files = |of: &str| {
        let mut files = picture(&dir.path().join(of));
        files.retain(|path, _| !dir.path().join(of).join(path).is_dir());
        files
    };
    assert!(files("copy") == files("from"));
}

#[test]
fn a_directory_requires_a_recursive_copy() {
    let dir = tempfile::tempdir().unwrap();
    make_tree(&dir.path().join("from"));
    let report =
        run(&dir.path().join("from"), dir.path(), &tree(), &Options { recursive: false, ..options() });
    assert!(nothing_copied(&report), "{report:?}");
    assert!(matches!(report.failed[0].error, Error::IsDirectory));
    assert_eq!(names(dir.path()), ["from"]);
}

/// Faults of the target.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// Writes fail after this number.
    WriteFails { after: usize, fatal: bool },
    /// Writes are unstable; after this number, uncommitted data is lost and the verifier changes.
    Restarts { after: usize },
    /// One byte of the first write is changed.
    Corrupts,
    /// Renaming to the final name fails.
    PublishFails,
    /// The object `stays` cannot be removed.
    RemoveFails,
    /// As a source: the extended attributes of directories cannot be read.
    NoXattrs,
    /// As a source: the directory `unreadable` cannot be read.
    Unreadable,
}

fn failure(kind: io::ErrorKind) -> Error {
    Error::Local { action: "write", path: "copy".into(), source: kind.into() }
}

#[derive(Clone)]
struct Faulty {
    inner: LocalTree,
    fault: Fault,
    writes: Arc<AtomicUsize>,
    /// The number of names that were looked up.
    lookups: Arc<AtomicUsize>,
    /// Unstable ranges since the last restart.
    unstable: Arc<Mutex<Vec<(LocalWriter, u64, usize)>>>,
}

impl Faulty {
    fn new(fault: Fault) -> Self {
        Self {
            inner: tree(),
            fault,
            writes: Arc::default(),
            lookups: Arc::default(),
            unstable: Arc::default(),
        }
    }

    /// Returns the number of a write. The restart happens before that write starts, so that no later one is
    /// lost.
    fn count(&self) -> usize {
        let mut unstable = self.unstable.lock().unwrap();
        let nth = self.writes.fetch_add(1, Ordering::SeqCst);
        if self.fault == (Fault::Restarts { after: nth }) {
            for (f, at, len) in unstable.drain(..) {
                f.file().write_all_at(&vec![0; len], at).unwrap();
            }
        }
        nth
    }

    fn verifier(&self) -> [u8; 8] {
        match self.fault {
            Fault::Restarts { after } if self.writes.load(Ordering::SeqCst) > after => [2; 8],
            _ => [1; 8],
        }
    }
}

impl Source for Faulty {
    type Node = PathBuf;
    type Reader = LocalReader;
    async fn list(&self, dir: &PathBuf) -> Result<Entries<PathBuf>, Error> {
        match self.fault {
            Fault::Unreadable if dir.ends_with("unreadable") => Err(failure(io::ErrorKind::PermissionDenied)),
            _ => self.inner.list(dir).await,
        }
    }
    async fn read_link(&self, link: &PathBuf) -> Result<Vec<u8>, Error> {
        self.inner.read_link(link).await
    }
    async fn xattrs(&self, object: &PathBuf, _keep: bool) -> Result<Xattrs, Error> {
        match self.fault {
            Fault::NoXattrs if object.is_dir() => Err(Error::LargeXattrs),
            _ => Ok(Xattrs::default()),
        }
    }
    async fn open(&self, file: &PathBuf) -> Result<LocalReader, Error> {
        self.inner.open(file).await
    }
    async fn read(&self, file: &LocalReader, offset: u64, len: usize) -> Result<Views, Error> {
        self.inner.read(file, offset, len).await
    }
    fn preferred_record(&self) -> usize {
        4096
    }
}

impl Target for Faulty {
    type Writer = LocalWriter;
    async fn make_dir(&self, dir: &PathBuf, name: &[u8], mode: u32) -> Result<Directory<PathBuf>, Error> {
        self.inner.make_dir(dir, name, mode).await
    }
    async fn find(&self, dir: &PathBuf, name: &[u8]) -> Result<Option<Existing<PathBuf>>, Error> {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        self.inner.find(dir, name).await
    }
    async fn open_existing(&self, existing: &Existing<PathBuf>) -> Result<LocalWriter, Error> {
        self.inner.open_existing(existing).await
    }
    async fn set_size(&self, file: &LocalWriter, size: u64) -> Result<(), Error> {
        self.inner.set_size(file, size).await
    }
    async fn create(&self, dir: &PathBuf, name: &[u8]) -> Result<LocalWriter, Error> {
        self.inner.create(dir, name).await
    }
    async fn write(
        &self,
        file: &LocalWriter,
        at: u64,
        data: Views,
        stable: bool,
    ) -> Result<WriteOutcome, Error> {
        let nth = self.count();
        let len = data.len();
        self.inner.write(file, at, data, stable).await?;
        match self.fault {
            Fault::WriteFails { after, fatal: true } if nth >= after => {
                Err(failure(io::ErrorKind::StorageFull))
            }
            Fault::WriteFails { after, .. } if nth >= after => Err(failure(io::ErrorKind::Other)),
            Fault::Corrupts if nth == 0 => {
                file.file().write_all_at(b"\x00", at).unwrap();
                Ok(WriteOutcome { stable: true, verifier: [0; 8] })
            }
            Fault::Restarts { after } if !stable => {
                self.unstable.lock().unwrap().push((file.clone(), at, len));
                let verifier = if nth < after { [1; 8] } else { [2; 8] };
                Ok(WriteOutcome { stable: false, verifier })
            }
            _ => Ok(WriteOutcome { stable: true, verifier: [0; 8] }),
        }
    }
    async fn commit(&self, _file: &LocalWriter) -> Result<[u8; 8], Error> {
        Ok(self.verifier())
    }
    async fn read_back(&self, file: &LocalWriter) -> Result<LocalReader, Error> {
        self.inner.read_back(file).await
    }
    async fn publish(
        &self,
        file: &LocalWriter,
        meta: &Metadata,
        preserve: Preserve,
    ) -> Result<PathBuf, Error> {
        match self.fault {
            Fault::PublishFails => Err(failure(io::ErrorKind::PermissionDenied)),
            _ => self.inner.publish(file, meta, preserve).await,
        }
    }
    async fn discard(&self, file: &LocalWriter) {
        self.inner.discard(file).await;
    }
    async fn symlink(&self, d: &PathBuf, n: &[u8], t: &[u8], m: &Metadata, k: Preserve) -> Result<(), Error> {
        self.inner.symlink(d, n, t, m, k).await
    }
    async fn link(&self, file: &PathBuf, dir: &PathBuf, name: &[u8]) -> Result<(), Error> {
        self.inner.link(file, dir, name).await
    }
    async fn remove(&self, dir: &Directory<PathBuf>, name: &[u8], kind: FileKind) -> Result<(), Error> {
        match self.fault {
            Fault::RemoveFails if name == b"stays" => Err(failure(io::ErrorKind::PermissionDenied)),
            _ => self.inner.remove(dir, name, kind).await,
        }
    }
    async fn set_meta(&self, node: &PathBuf, meta: &Metadata, preserve: Preserve) -> Result<(), Error> {
        self.inner.set_meta(node, meta, preserve).await
    }
}

#[test]
fn a_failed_file_is_removed_and_the_others_are_copied() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("a"), b"fine").unwrap();
    fs::write(from.join("b"), pattern(50_000, 0)).unwrap();
    let target = Faulty::new(Fault::WriteFails { after: 5, fatal: false });
    let report = run(&from, dir.path(), &target, &Options { parallel: 1, ..options() });
    assert_eq!((report.files, report.failed.len()), (1, 1));
    assert_eq!(names(&dir.path().join("copy")), ["a"]);
    assert!(report.failed[0].path.ends_with("from/b"));
}

#[test]
fn the_entries_of_a_directory_whose_attributes_fail_are_copied() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    make_tree(&from);
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (source, target) = (Faulty::new(Fault::NoXattrs), tree());
    let options = Options { preserve: Preserve { xattrs: true, ..Preserve::default() }, ..options() };
    let items = vec![Item::local(&from, "copy").unwrap()];
    let report = rt.block_on(TreeCopy::new(&source, &target, options).run(items, dir.path().to_owned()));
    let mut failed: Vec<_> = report.failed.iter().map(|f| f.path.as_str()).collect();
    failed.sort_unstable();
    let at = from.display();
    assert_eq!(failed, [format!("{at}"), format!("{at}/sub"), format!("{at}/sub/deep")]);
    assert!(picture(&dir.path().join("copy")) == picture(&from));
}

#[test]
fn an_unfinished_directory_is_listed_by_those_who_may_list_the_source_and_written_by_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("copy"));
    let of_source = [("fixed", 0o550), ("private", 0o700), ("public", 0o1777), ("team", 0o2770)];
    for (name, mode) in of_source {
        fs::create_dir_all(from.join(name)).unwrap();
        fs::write(from.join(name).join("file"), b"x").unwrap();
        fs::set_permissions(from.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let mode = |dir: &Path| fs::metadata(dir).unwrap().mode() & 0o7777;
    let (source, target) = (tree(), tree());
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for (owner, unfinished) in [(false, [0o750, 0o700, 0o755, 0o750]), (true, [0o700; 4])] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (modes, below, at) = (Arc::clone(&seen), from.clone(), to.clone());
        let preserve = Preserve { owner, ..Preserve::default() };
        let copy = TreeCopy::new(&source, &target, Options { preserve, ..options() });
        let copy = copy.on_event(move |event| {
            if let Event::Started { path, .. } = event {
                let copy = at.join(Path::new(path).strip_prefix(&below).unwrap());
                let dir = copy.parent().unwrap();
                modes.lock().unwrap().push((dir.to_owned(), mode(dir)));
            }
        });
        let report = rt.block_on(copy.run(vec![Item::local(&from, "copy").unwrap()], dir.path().to_owned()));
        assert!(complete(&report), "{report:?}");
        let mut seen = std::mem::take(&mut *seen.lock().unwrap());
        seen.sort();
        for ((dir, seen), ((name, last), unfinished)) in
            seen.iter().zip(of_source.into_iter().zip(unfinished))
        {
            assert_eq!((dir, *seen), (&to.join(name), unfinished));
            assert_eq!(mode(dir), last);
        }
        assert_eq!(seen.len(), of_source.len());
        fs::remove_dir_all(&to).unwrap();
    }
}

#[test]
fn a_full_disk_stops_the_copy_and_is_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    for i in 0..50 {
        fs::write(from.join(format!("{i}")), pattern(20_000, i)).unwrap();
    }
    let target = Faulty::new(Fault::WriteFails { after: 3, fatal: true });
    let report = run(&from, dir.path(), &target, &options());
    assert!(nothing_copied(&report), "{report:?}");
    assert_eq!(report.failed.len(), 1, "{report:?}");
    assert_eq!(names(&dir.path().join("copy")), Vec::<String>::new());
}

#[test]
fn data_lost_by_a_restarted_server_is_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::write(&from, pattern(200_000, 3)).unwrap();
    let target = Faulty::new(Fault::Restarts { after: 20 });
    let report = run(&from, dir.path(), &target, &options());
    assert!(complete(&report), "{report:?}");
    assert!(target.writes.load(Ordering::SeqCst) > 49, "no record was rewritten");
    assert!(fs::read(dir.path().join("copy")).unwrap() == fs::read(&from).unwrap());
}

#[test]
fn verify_detects_a_different_byte() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::write(&from, vec![0xff; 20_000]).unwrap();
    let with = Options { verify: true, ..options() };
    let report = run(&from, dir.path(), &Faulty::new(Fault::Corrupts), &with);
    assert!(nothing_copied(&report), "{report:?}");
    assert!(matches!(report.failed[0].error, Error::Mismatch), "{report:?}");
    assert_eq!(names(dir.path()), ["from"]);
}

#[test]
fn each_name_is_looked_up_once() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir_all(&from).unwrap();
    fs::write(from.join("a"), b"x").unwrap();
    fs::hard_link(from.join("a"), from.join("b")).unwrap();
    symlink("a", from.join("c")).unwrap();
    fs::create_dir(dir.path().join("copy")).unwrap();
    let target = Faulty::new(Fault::Restarts { after: usize::MAX });
    let report = run(&from, dir.path(), &target, &Options { hard_links: true, ..options() });
    assert!(complete(&report) && report.hard_links == 1, "{report:?}");
    assert_eq!(target.lookups.load(Ordering::SeqCst), 3);
}

#[test]
fn a_failed_rename_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::write(&from, b"x").unwrap();
    let report = run(&from, dir.path(), &Faulty::new(Fault::PublishFails), &options());
    assert!(nothing_copied(&report), "{report:?}");
    assert_eq!(names(dir.path()), ["from"]);
}

#[test]
fn an_interrupted_copy_leaves_complete_files_only() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    for i in 0..20 {
        fs::write(from.join(format!("{i}")), pattern(400_000, i)).unwrap();
    }
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let target = Faulty::new(Fault::Restarts { after: usize::MAX });
    let writes = Arc::clone(&target.writes);
    let interrupt = async move {
        while writes.load(Ordering::SeqCst) < 300 {
            tokio::task::yield_now().await;
        }
    };
    let items = vec![Item::local(&from, "copy").unwrap()];
    let source = tree();
    let copy = TreeCopy::new(&source, &target, options()).interrupted_by(interrupt);
    let report = rt.block_on(copy.run(items, dir.path().to_owned()));
    assert!(report.interrupted && report.failed.is_empty(), "{report:?}");
    for name in names(&dir.path().join("copy")) {
        assert!(
            fs::read(dir.path().join("copy").join(&name)).unwrap() == fs::read(from.join(&name)).unwrap()
        );
    }
}

#[test]
fn a_symbolic_link_at_the_name_of_a_directory_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (from, elsewhere) = (dir.path().join("from"), dir.path().join("elsewhere"));
    fs::create_dir(&from).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    fs::write(from.join("file"), b"x").unwrap();
    symlink(&elsewhere, dir.path().join("copy")).unwrap();
    let report = run(&from, dir.path(), &tree(), &options());
    assert!(nothing_copied(&report), "{report:?}");
    assert_eq!(names(&elsewhere), Vec::<String>::new());
}

#[test]
fn events_report_starts_writes_and_failures() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("a"), pattern(10_000, 1)).unwrap();
    fs::write(from.join("b"), pattern(5_000, 2)).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(from.join("c")).unwrap();
    let (started, written, failed) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (s, w, f) = (Arc::clone(&started), Arc::clone(&written), Arc::clone(&failed));
    let (source, target) = (tree(), tree());
    let copy = TreeCopy::new(&source, &target, options()).on_event(move |event| match event {
        Event::Started { bytes, .. } => drop(s.fetch_add(bytes as usize, Ordering::SeqCst)),
        Event::Written { bytes } => drop(w.fetch_add(bytes, Ordering::SeqCst)),
        Event::Failed { path, .. } => f.lock().unwrap().push(path.to_owned()),
        Event::Copied { .. } | Event::Deleted { .. } => {}
    });
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let report = rt.block_on(copy.run(vec![Item::local(&from, "copy").unwrap()], dir.path().to_owned()));
    assert_eq!((started.load(Ordering::SeqCst), written.load(Ordering::SeqCst)), (15_000, 15_000));
    let [FailedFile { path, error: Error::Special }] = &report.failed[..] else { panic!("{report:?}") };
    assert_eq!(*failed.lock().unwrap(), std::slice::from_ref(path));
}

/// Runs a copy of the file `item` to the name `copy` in `to`, over `existing`.
fn run_over(item: Item<PathBuf>, to: &Path, existing: &Path, options: &Options) -> Report {
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let meta = Metadata::from(&fs::metadata(existing).unwrap());
    let existing = Existing { node: existing.to_owned(), meta, through_link: true };
    let (source, target) = (tree(), tree());
    let copy = TreeCopy::new(&source, &target, options.clone()).over(Some(existing));
    rt.block_on(copy.run(vec![item], to.to_owned()))
}

fn make_fifo(path: &Path) {
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, rustix::fs::Mode::from_raw_mode(0o600), 0).unwrap();
}

fn used(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn an_existing_file_is_written_in_place_unless_the_copy_is_atomic() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("from"), pattern(20_000, 1)).unwrap();
    for (atomic, verify) in [(false, false), (false, true), (true, false)] {
        fs::write(at("copy"), vec![7; 50_000]).unwrap();
        fs::set_permissions(at("copy"), fs::Permissions::from_mode(0o664)).unwrap();
        fs::hard_link(at("copy"), at("other")).unwrap();
        let before = fs::metadata(at("copy")).unwrap();
        let with = Options { atomic, verify, ..options() };
        let report = run(&at("from"), dir.path(), &tree(), &with);
        assert!(complete(&report), "{report:?}");
        assert!(fs::read(at("copy")).unwrap() == pattern(20_000, 1));
        let (from, after) = (fs::metadata(at("from")).unwrap(), fs::metadata(at("copy")).unwrap());
        assert_eq!((after.mtime(), after.mtime_nsec()), (from.mtime(), from.mtime_nsec()));
        assert_eq!(fs::read(at("other")).unwrap().len(), if atomic { 50_000 } else { 20_000 });
        if !atomic {
            assert_eq!((after.ino(), after.mode()), (before.ino(), before.mode()));
        }
        fs::remove_file(at("other")).unwrap();
        assert_eq!(names(dir.path()), ["copy", "from"]);
    }
}

#[test]
fn an_existing_directory_keeps_its_mode() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("copy"));
    fs::create_dir_all(from.join("new")).unwrap();
    fs::create_dir(&to).unwrap();
    for (path, mode) in [(&from, 0o700), (&from.join("new"), 0o750), (&to, 0o2775)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    assert!(complete(&run(&from, dir.path(), &tree(), &options())));
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!((mode(&to), mode(&to.join("new")) & 0o777), (0o2775, 0o750));
}

#[test]
fn a_named_pipe_is_written_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("copy"));
    let content = pattern(300_000, 1);
    fs::write(&from, &content).unwrap();
    for atomic in [false, true] {
        make_fifo(&to);
        let pipe = to.clone();
        let reader = std::thread::spawn(move || fs::read(pipe).unwrap());
        let report = run(&from, dir.path(), &tree(), &Options { atomic, ..options() });
        assert!(complete(&report), "{report:?}");
        assert!(reader.join().unwrap() == content);
        assert_eq!(names(dir.path()), ["copy", "from"]);
        fs::remove_file(&to).unwrap();
    }
}

#[test]
fn a_device_is_written_through_links_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("copy"));
    fs::write(&from, pattern(20_000, 1)).unwrap();
    symlink("/dev/null", &to).unwrap();
    for atomic in [false, true] {
        let item = Item::local(&from, "copy").unwrap();
        let report = run_over(item, dir.path(), &to, &Options { atomic, ..options() });
        assert!(complete(&report) && report.bytes == 20_000, "{report:?}");
        assert_eq!(fs::read_link(&to).unwrap(), Path::new("/dev/null"));
    }
    let report = run_over(
        Item::local(&from, "copy").unwrap(),
        dir.path(),
        &to,
        &Options { verify: true, ..options() },
    );
    assert!(matches!(report.failed[0].error, Error::SpecialTarget(_)), "{report:?}");
}

#[test]
fn a_link_or_socket_does_not_replace_a_special_file_and_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("from"), b"x").unwrap();
    let socket = std::os::unix::net::UnixListener::bind(at("copy")).unwrap();
    let report = run(&at("from"), dir.path(), &tree(), &options());
    assert!(nothing_copied(&report) && at("copy").exists(), "{report:?}");
    drop(socket);
    fs::remove_file(at("copy")).unwrap();
    make_fifo(&at("copy"));
    symlink("from", at("link")).unwrap();
    let report = run(&at("link"), dir.path(), &tree(), &options());
    assert!(matches!(report.failed[0].error, Error::SpecialTarget(_)), "{report:?}");
    fs::remove_file(at("copy")).unwrap();
    fs::create_dir(at("copy")).unwrap();
    for name in ["from", "link"] {
        let report = run(&at(name), dir.path(), &tree(), &options());
        assert!(matches!(report.failed[0].error, Error::TargetIsDirectory), "{report:?}");
    }
    assert_eq!(names(dir.path()), ["copy", "from", "link"]);
}

#[test]
fn a_link_is_followed_only_if_the_caller_names_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("from")).unwrap();
    fs::write(at("from/file"), b"new").unwrap();
    fs::create_dir(at("copy")).unwrap();
    fs::write(at("elsewhere"), b"old").unwrap();
    symlink("../elsewhere", at("copy/file")).unwrap();
    let item = || Item::local(&at("from/file"), "file").unwrap();
    let report = run_over(item(), &at("copy"), &at("copy/file"), &Options { atomic: true, ..options() });
    assert!(matches!(report.failed[0].error, Error::SpecialTarget(_)), "{report:?}");
    assert!(complete(&run(&at("from"), dir.path(), &tree(), &options())));
    assert_eq!(
        (fs::read(at("elsewhere")).unwrap(), fs::read(at("copy/file")).unwrap()),
        (b"old".into(), b"new".into())
    );
    fs::remove_file(at("copy/file")).unwrap();
    symlink("../elsewhere", at("copy/file")).unwrap();
    assert!(complete(&run_over(item(), &at("copy"), &at("copy/file"), &options())));
    assert_eq!(fs::read(at("elsewhere")).unwrap(), b"new");
    assert!(at("copy/file").is_symlink());
}

#[test]
fn a_file_is_not_copied_to_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("copy"));
    fs::write(&from, b"content").unwrap();
    fs::hard_link(&from, &to).unwrap();
    let report = run(&from, dir.path(), &tree(), &options());
    assert!(matches!(report.failed[0].error, Error::SameFile), "{report:?}");
    assert_eq!(fs::read(&from).unwrap(), b"content");
    assert!(complete(&run(&from, dir.path(), &tree(), &Options { atomic: true, ..options() })));
    assert_eq!(fs::read(&to).unwrap(), b"content");
}

#[test]
fn holes_stay_holes() {
    const SIZE: u64 = 8 << 30;
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("copy"));
    let file = fs::File::create(&from).unwrap();
    file.write_all_at(&pattern(100_000, 1), 1 << 20).unwrap();
    file.write_all_at(&pattern(70_000, 2), 5 << 30).unwrap();
    file.set_len(SIZE).unwrap();
    for verify in [false, true, true] {
        // The last copy replaces the content of the previous one.
        let report = run(&from, dir.path(), &tree(), &Options { verify, ..Options::default() });
        assert!(complete(&report) && report.bytes == SIZE, "{report:?}");
        let copy = fs::File::open(&to).unwrap();
        assert_eq!(copy.metadata().unwrap().len(), SIZE);
        assert!(used(&to) <= 1 << 20, "{} bytes", used(&to));
        for (offset, content) in [(1 << 20, pattern(100_000, 1)), (5 << 30, pattern(70_000, 2))] {
            let mut there = vec![0; content.len()];
            copy.read_exact_at(&mut there, offset).unwrap();
            assert!(there == content);
        }
        if !verify {
            fs::write(&to, b"other").unwrap();
        }
    }
}

#[test]
fn a_pipe_is_read_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("copy"));
    make_fifo(&from);
    let content = pattern(300_000, 1);
    for verify in [false, true] {
        let (pipe, data) = (from.clone(), content.clone());
        let writer = std::thread::spawn(move || fs::write(pipe, data).unwrap());
        let item = Item::stream(&from, "copy").unwrap();
        let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let with = Options { verify, ..options() };
        let report =
            rt.block_on(TreeCopy::new(&tree(), &tree(), with).run(vec![item], dir.path().to_owned()));
        assert!(complete(&report) && report.bytes == 300_000, "{report:?}");
        writer.join().unwrap();
        assert!(fs::read(&to).unwrap() == content);
    }
}

#[test]
fn an_interrupted_copy_names_the_existing_files_that_are_incomplete() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("from"), pattern(4_000_000, 1)).unwrap();
    fs::write(at("copy"), b"old").unwrap();
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let target = Faulty::new(Fault::Restarts { after: usize::MAX });
    let writes = Arc::clone(&target.writes);
    let interrupt = async move {
        while writes.load(Ordering::SeqCst) < 3 {
            tokio::task::yield_now().await;
        }
    };
    let source = tree();
    let with = Options { outstanding: 1, ..options() };
    let copy = TreeCopy::new(&source, &target, with).interrupted_by(interrupt);
    let items = vec![Item::local(&at("from"), "copy").unwrap()];
    let report = rt.block_on(copy.run(items, dir.path().to_owned()));
    assert!(report.interrupted, "{report:?}");
    let [FailedFile { error: Error::Incomplete, .. }] = &report.failed[..] else { panic!("{report:?}") };
}

#[test]
fn a_directory_is_not_copied_into_itself() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("copy");
    fs::create_dir_all(from.join("sub")).unwrap();
    fs::write(from.join("file"), b"x").unwrap();
    let report = run(&from, &from.join("sub"), &tree(), &options());
    assert!(matches!(&report.failed[..], [FailedFile { error: Error::IntoItself, .. }]), "{report:?}");
    assert_eq!(names(&from.join("sub/copy")), ["file", "sub"]);
    let report = run(&from, dir.path(), &tree(), &options());
    assert!(matches!(&report.failed[..], [FailedFile { error: Error::IntoItself, .. }]), "{report:?}");
    assert_eq!(fs::read(from.join("file")).unwrap(), b"x");
}

#[test]
fn the_entries_of_a_directory_without_a_name_are_copied_into_the_target() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir_all(from.join("sub/below")).unwrap();
    fs::write(from.join("file"), b"x").unwrap();
    fs::create_dir(&to).unwrap();
    fs::set_permissions(&to, fs::Permissions::from_mode(0o700)).unwrap();
    let copy = |from: &Path, to: &Path| {
        let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let id = Some(Metadata::from(&fs::metadata(to).unwrap()).id);
        let into = Directory { id, ..to.to_owned().into() };
        let items = vec![Item::local(from, "").unwrap()];
        rt.block_on(TreeCopy::new(&tree(), &tree(), options()).run(items, into))
    };
    let report = copy(&from, &to);
    assert!(complete(&report) && report.files == 1, "{report:?}");
    assert_eq!(names(&to), ["file", "sub"]);
    assert!(to.join("sub/below").is_dir());
    assert_eq!(fs::metadata(&to).unwrap().mode() & 0o777, 0o700);
    for (from, to) in [(&from, &from), (&from, &from.join("sub"))] {
        let report = copy(from, to);
        assert!(matches!(&report.failed[..], [FailedFile { error: Error::IntoItself, .. }]), "{report:?}");
    }
}
