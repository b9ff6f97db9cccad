//! Copies between local trees, with a target that fails on demand.

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
    Entry, Error, Event, FailedFile, Item, LocalReader, LocalTree, LocalWriter, Metadata, Options, Preserve,
    Report, Source, Target, TreeCopy, WriteOutcome,
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
        let with = Options { preserve: Preserve { owner }, ..options() };
        assert!(complete(&run(&from, dir.path(), &tree(), &with)));
        assert_eq!(fs::metadata(&to).unwrap().mode() & 0o7777, mode);
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
    assert_eq!(picture(&dir.path().join("copy")), picture(&dir.path().join("from")));
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
}

fn failure(kind: io::ErrorKind) -> Error {
    Error::Local { action: "write", path: "copy".into(), source: kind.into() }
}

#[derive(Clone)]
struct Faulty {
    inner: LocalTree,
    fault: Fault,
    writes: Arc<AtomicUsize>,
    /// Unstable ranges since the last restart.
    unstable: Arc<Mutex<Vec<(LocalWriter, u64, usize)>>>,
}

impl Faulty {
    fn new(fault: Fault) -> Self {
        Self { inner: tree(), fault, writes: Arc::default(), unstable: Arc::default() }
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
    async fn list(&self, dir: &PathBuf) -> Result<Vec<Entry<PathBuf>>, Error> {
        self.inner.list(dir).await
    }
    async fn read_link(&self, link: &PathBuf) -> Result<Vec<u8>, Error> {
        self.inner.read_link(link).await
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
    async fn make_dir(&self, dir: &PathBuf, name: &[u8]) -> Result<PathBuf, Error> {
        self.inner.make_dir(dir, name).await
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
    });
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let report = rt.block_on(copy.run(vec![Item::local(&from, "copy").unwrap()], dir.path().to_owned()));
    assert_eq!((started.load(Ordering::SeqCst), written.load(Ordering::SeqCst)), (15_000, 15_000));
    let [FailedFile { path, error: Error::Special }] = &report.failed[..] else { panic!("{report:?}") };
    assert_eq!(*failed.lock().unwrap(), std::slice::from_ref(path));
}
