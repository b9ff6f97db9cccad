//! The durable list of NFSv4 clients: a file in the state directory.
//!
//! The file is text. Each line ends with its tag, the SipHash-2-4 of what precedes the tag, which detects damage:
//!
//! ```text
//! millrace NFSv4 clients 2 TAG
//! epoch 1767225600 clients 2 TAG
//! 4c696e7578204e465376342e322061 TAG
//! 4c696e7578204e465376342e322062 TAG
//! +4c696e7578204e465376342e322063 -4c696e7578204e465376342e322061 TAG
//! ```
//!
//! The third and later lines are `co_ownerid`s in hexadecimal digits: those of the list when the file was written, and
//! then in each line the changes that were made together. Changes are appended, until they are longer than the list; then
//! the file is replaced as a whole. After a crash, the last line may be incomplete, and its changes are not made; any other
//! file is the old one or the new one. A client whose record is damaged cannot reclaim its state after a restart: it gets
//! NO_GRACE or RECLAIM_BAD. A damaged line of changes may have removed any client, so that the earlier ones are lost.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use millrace_nfs::v4::OPAQUE_LIMIT;
use millrace_nfs4_state::ClientList;
use millrace_runtime::sync::Mutex;
use rustix::fs::FlockOperation;

use crate::siphash::siphash;

const NAME: &str = "nfs4-clients";
/// The file that is locked while a server uses the list.
const LOCK_NAME: &str = "nfs4-clients.lock";
const HEADER: &str = "millrace NFSv4 clients 2";
/// That of a file without changes, which servers wrote before there were any.
const OLD_HEADER: &str = "millrace NFSv4 clients 1";
/// The key of the tags: they detect damage only.
const TAG_KEY: [u64; 2] = [0x6e66_7376_3420_636c, 0x6965_6e74_7300_0001];
/// Characters of a tag.
const TAG: usize = 16;
/// Maximum bytes of a line with one client.
const LINE: u64 = (2 * OPAQUE_LIMIT + 1 + TAG + 1) as u64;
/// Bytes of changes that a file may have, however short its list is.
const CHANGES: u64 = 1 << 16;

type Owners = BTreeSet<Box<[u8]>>;

/// The list in a file. Concurrent changes are written together.
#[derive(Debug)]
pub(crate) struct StoredList {
    directory: PathBuf,
    epoch: u32,
    /// Maximum number of clients.
    capacity: usize,
    content: Mutex<Content>,
    /// Locked during a write.
    durable: Mutex<Durable>,
    /// The last write failed.
    failing: AtomicBool,
    /// Locked while it is open.
    _lock: File,
}

#[derive(Debug, Default)]
struct Content {
    owners: Owners,
    /// Number of changes.
    version: u64,
    /// The changes that are not written yet, as a line without its tag.
    changes: String,
}

impl Content {
    fn change(&mut self, sign: char, owner: &[u8]) {
        if !self.changes.is_empty() {
            self.changes.push(' ');
        }
        self.changes.push(sign);
        put_digits(&mut self.changes, owner);
        self.version += 1;
    }
}

/// What is written.
#[derive(Debug, Default)]
struct Durable {
    /// The version of the content that is durable.
    version: u64,
    /// The file to which changes can be appended; `None` after a failure, which may have written a part.
    file: Option<File>,
    /// Bytes of changes that can be appended.
    left: u64,
}

impl Durable {
    /// Appends changes. They are durable when this returns.
    fn append(&mut self, changes: &str) -> io::Result<()> {
        let mut line = String::new();
        put_line(&mut line, changes);
        let Some(mut file) = self.file.take() else { return Err(io::ErrorKind::NotFound.into()) };
        file.write_all(line.as_bytes())?;
        file.sync_data()?;
        self.left = self.left.saturating_sub(line.len() as u64);
        self.file = Some(file);
        Ok(())
    }

    /// Replaces the file in `directory`.
    fn replace(&mut self, directory: &Path, text: &str) -> io::Result<()> {
        self.file = None;
        self.file = Some(replace_file(directory, text.as_bytes())?);
        self.left = CHANGES.max(text.len() as u64);
        Ok(())
    }
}

/// The contents of a file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Decoded {
    /// Number of the server's last start; 0 if it is damaged.
    epoch: u32,
    owners: Owners,
    /// Number of records that are damaged or missing, or beyond the maximum. At least 1 if their number is damaged.
    lost: u64,
}

impl StoredList {
    /// Opens the list in `directory`, and counts a start of the server: `epoch` becomes the number of this start, or the
    /// next larger one that no earlier start had.
    ///
    /// # Errors
    /// I/O errors, and another server that uses the directory. Damage of the file is logged.
    pub(crate) fn open(directory: &Path, epoch: u32, capacity: usize) -> io::Result<Self> {
        let lock = lock(directory)?;
        let path = directory.join(NAME);
        let stored = match File::open(&path) {
            Ok(file) => {
                let mut text = Vec::new();
                // Lists of this length and their changes.
                file.take(2 * LINE * (capacity as u64 + 3) + CHANGES).read_to_end(&mut text)?;
                decode(&text, capacity)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Decoded::default(),
            Err(e) => return Err(io::Error::new(e.kind(), format!("cannot read {}: {e}", path.display()))),
        };
        if stored.lost > 0 {
            tracing::error!(
                file = %path.display(),
                clients = stored.lost,
                "the list of NFSv4 clients is damaged; these clients lose their locks and open files"
            );
        }
        let list = Self {
            directory: directory.to_owned(),
            epoch: epoch.max(stored.epoch.wrapping_add(1)),
            capacity,
            content: Mutex::new(Content { owners: stored.owners, version: 1, changes: String::new() }),
            durable: Mutex::new(Durable::default()),
            failing: AtomicBool::new(false),
            _lock: lock,
        };
        list.flush(1)?;
        Ok(list)
    }

    /// Number of this start of the server.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The clients on the list.
    pub(crate) fn owners(&self) -> Vec<Box<[u8]>> {
        self.content.lock().owners.iter().cloned().collect()
    }

    /// Returns when `version` of the content, or a later one, is durable.
    fn flush(&self, version: u64) -> io::Result<()> {
        let mut durable = self.durable.lock();
        if durable.version >= version {
            return Ok(());
        }
        let (changes, list, current) = {
            let mut content = self.content.lock();
            let changes = std::mem::take(&mut content.changes);
            let appends = durable.file.is_some() && (changes.len() + TAG + 2) as u64 <= durable.left;
            let list = (!appends).then(|| encode(self.epoch, &content.owners));
            (changes, list, content.version)
        };
        let written = match list {
            None => durable.append(&changes),
            Some(list) => durable.replace(&self.directory, &list),
        };
        let failing = written.is_err();
        if failing != self.failing.swap(failing, Ordering::Relaxed) {
            let file = self.directory.join(NAME);
            match &written {
                Ok(()) => {
                    tracing::info!(file = %file.display(), "the list of NFSv4 clients is written again")
                }
                Err(error) => tracing::error!(
                    file = %file.display(), %error,
                    "cannot write the list of NFSv4 clients; until then new clients wait"
                ),
            }
        }
        written?;
        durable.version = current;
        Ok(())
    }
}

impl ClientList for StoredList {
    fn add(&self, owner: &[u8]) -> io::Result<()> {
        let version = {
            let mut content = self.content.lock();
            if !content.owners.contains(owner) {
                if content.owners.len() >= self.capacity {
                    return Err(io::Error::new(io::ErrorKind::StorageFull, "there are too many clients"));
                }
                content.owners.insert(owner.into());
                content.change('+', owner);
            }
            content.version
        };
        self.flush(version)
    }

    fn remove(&self, owners: &[Box<[u8]>]) -> io::Result<()> {
        let version = {
            let mut content = self.content.lock();
            for owner in owners {
                if content.owners.remove(owner) {
                    content.change('-', owner);
                }
            }
            content.version
        };
        self.flush(version)
    }
}

/// Locks the list against other servers, until the returned file is closed.
fn lock(directory: &Path) -> io::Result<File> {
    let path = directory.join(LOCK_NAME);
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let what = "another server uses it; give each server its own state_dir";
            Err(io::Error::new(io::ErrorKind::ResourceBusy, what))
        }
        Err(e) => Err(e.into()),
        Ok(()) => Ok(file),
    }
}

/// Replaces the file in `directory`, and returns the new one. Its content is durable when this returns.
fn replace_file(directory: &Path, content: &[u8]) -> io::Result<File> {
    let temporary = directory.join(format!("{NAME}.new"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&temporary, directory.join(NAME))?;
    File::open(directory)?.sync_all()?;
    Ok(file)
}

fn put_line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push_str(&format!(" {:016x}\n", siphash(TAG_KEY, line.as_bytes())));
}

fn encode(epoch: u32, owners: &Owners) -> String {
    let mut text = String::new();
    put_line(&mut text, HEADER);
    put_line(&mut text, &format!("epoch {epoch} clients {}", owners.len()));
    let mut digits = String::new();
    for owner in owners {
        digits.clear();
        put_digits(&mut digits, owner);
        put_line(&mut text, &digits);
    }
    text
}

fn put_digits(text: &mut String, owner: &[u8]) {
    for byte in owner {
        let _ = write!(text, "{byte:02x}"); // A string takes what is written.
    }
}

/// A line without its tag, if the tag is right.
fn untagged(line: &[u8]) -> Option<&str> {
    let (line, tag) = line.split_at_checked(line.len().checked_sub(TAG + 1)?)?;
    let tag = tag.strip_prefix(b" ")?;
    let expected = format!("{:016x}", siphash(TAG_KEY, line));
    str::from_utf8(line).ok().filter(|_| expected.as_bytes() == tag)
}

/// The bytes of hexadecimal digits, at most as many as an owner may have.
fn bytes(digits: &str) -> Option<Box<[u8]>> {
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok().filter(|p| p.len() == 2)?, 16).ok();
    let bytes = pairs.map(byte).collect::<Option<Box<[u8]>>>()?;
    (bytes.len() <= OPAQUE_LIMIT).then_some(bytes)
}

/// Epoch and number of clients in the second line.
fn numbers(line: &str) -> Option<(u32, u64)> {
    let (epoch, clients) = line.strip_prefix("epoch ")?.split_once(" clients ")?;
    Some((epoch.parse().ok()?, clients.parse().ok()?))
}

/// Decodes what is undamaged of a file, and at most `capacity` clients.
fn decode(text: &[u8], capacity: usize) -> Decoded {
    let mut lines = text.strip_suffix(b"\n").unwrap_or(text).split(|byte| *byte == b'\n');
    let header = lines.next().and_then(untagged);
    let numbers = lines.next().and_then(untagged).and_then(numbers);
    let is_known = matches!(header, Some(HEADER | OLD_HEADER));
    let (mut owners, mut records, mut kept, mut lost) = (Owners::new(), 0, 0, 0);
    // Whether lines that may be changes are damaged. At the end of the file these are changes that were not completed.
    let mut skipped = false;
    for line in lines {
        let Some(line) = untagged(line).filter(|_| is_known) else {
            // The end of the last listed client may be damaged, and the next line a part of it.
            let is_change = numbers.is_none_or(|(_, clients)| records + 1 >= clients);
            skipped |= is_change;
            records += u64::from(!is_change);
            continue;
        };
        if std::mem::take(&mut skipped) {
            lost += owners.len() as u64;
            owners.clear();
        }
        if !line.starts_with(['+', '-']) {
            records += 1;
            if let Some(owner) = bytes(line).filter(|_| owners.len() < capacity) {
                owners.insert(owner);
                kept += 1;
            }
            continue;
        }
        for change in line.split(' ') {
            match (change.strip_prefix('-').and_then(bytes), change.strip_prefix('+').and_then(bytes)) {
                (Some(removed), _) => {
                    owners.remove(&removed);
                }
                (_, Some(added)) if owners.len() < capacity => {
                    owners.insert(added);
                }
                _ => lost += 1,
            }
        }
    }
    // Without the number, something is lost: the end of that line may be damaged, and the next line a part of it.
    let (epoch, expected) = numbers.unwrap_or((0, records + 1));
    lost += expected.max(records).saturating_sub(kept);
    Decoded { epoch, owners, lost }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, sync::Arc};

    use proptest::prelude::*;

    use super::*;

    fn owner(name: &str) -> Box<[u8]> {
        name.as_bytes().into()
    }

    fn owners(names: &[&str]) -> Owners {
        names.iter().map(|name| owner(name)).collect()
    }

    fn open(dir: &tempfile::TempDir) -> StoredList {
        StoredList::open(dir.path(), 100, 4).unwrap()
    }

    #[test]
    fn the_list_survives_and_each_start_has_a_larger_epoch() {
        let dir = tempfile::tempdir().unwrap();
        let list = open(&dir);
        assert_eq!((list.epoch(), list.owners().len()), (100, 0));
        for name in ["a", "b", "b", "c"] {
            list.add(name.as_bytes()).unwrap();
        }
        list.remove(&[owner("a"), owner("z")]).unwrap();
        drop(list); // As does the end of the process, this writes nothing.
        let list = open(&dir);
        assert_eq!((list.epoch(), list.owners()), (101, vec![owner("b"), owner("c")]));
        drop(list);
        let list = StoredList::open(dir.path(), 500, 4).unwrap();
        assert_eq!((list.epoch(), list.owners().len()), (500, 2));
        let mode = fs::metadata(dir.path().join(NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "names of clients");
    }

    #[test]
    fn the_file_has_the_documented_layout() {
        let mut text = encode(7, &owners(&["Linux", ""]));
        let mut changes = Content::default();
        changes.change('+', b"b");
        changes.change('-', b"");
        put_line(&mut text, &changes.changes);
        let lines: Vec<_> = text.lines().map(|line| line.rsplit_once(' ').unwrap().0).collect();
        assert_eq!(lines, [HEADER, "epoch 7 clients 2", "", "4c696e7578", "+62 -"]);
        assert_eq!(
            decode(text.as_bytes(), 3),
            Decoded { epoch: 7, owners: owners(&["Linux", "b"]), lost: 0 }
        );
    }

    #[test]
    fn a_file_of_an_earlier_version_is_read() {
        let mut text = String::new();
        put_line(&mut text, OLD_HEADER);
        put_line(&mut text, "epoch 7 clients 1");
        put_line(&mut text, "61");
        assert_eq!(decode(text.as_bytes(), 2), Decoded { epoch: 7, owners: owners(&["a"]), lost: 0 });
    }

    #[test]
    fn clients_that_a_damaged_line_may_have_removed_are_lost() {
        let mut text = encode(7, &owners(&["a", "b"]));
        for line in ["-61", "+63", "+64"] {
            put_line(&mut text, line);
        }
        let decoded = |damage: &str| decode(text.replace(damage, "x").as_bytes(), 4);
        assert_eq!(decoded("-61 "), Decoded { epoch: 7, owners: owners(&["c", "d"]), lost: 2 });
        assert_eq!(decoded("+63 "), Decoded { epoch: 7, owners: owners(&["d"]), lost: 1 });
        let torn = Decoded { epoch: 7, owners: owners(&["b", "c"]), lost: 0 };
        assert_eq!(decoded("+64 "), torn, "the last line was not completed");
    }

    #[test]
    fn a_change_costs_bytes_of_one_client() {
        let dir = tempfile::tempdir().unwrap();
        let list = StoredList::open(dir.path(), 100, 1000).unwrap();
        let (mut written, mut largest) = (0, 0);
        let file = || fs::read(dir.path().join(NAME)).unwrap();
        let names: Vec<_> = (0..100_u8).map(|n| vec![n; OPAQUE_LIMIT]).collect();
        let mut before = file();
        for round in 0..20 {
            for name in &names {
                match round % 2 {
                    0 => list.add(name).unwrap(),
                    _ => list.remove(&[name.as_slice().into()]).unwrap(),
                }
                let after = file();
                let common = if after.starts_with(&before) { before.len() } else { 0 };
                written += after.len() - common;
                largest = largest.max(after.len());
                before = after;
            }
        }
        let line = LINE as usize;
        assert!(written < 6 * 2000 * line, "{} clients for each change", written / line / 2000);
        assert!(largest < 2 * 101 * line + CHANGES as usize, "{largest} bytes");
    }

    #[test]
    fn a_list_has_a_maximum_number_of_clients() {
        let dir = tempfile::tempdir().unwrap();
        let list = open(&dir);
        for name in ["a", "b", "c", "d"] {
            list.add(name.as_bytes()).unwrap();
        }
        assert_eq!(list.add(b"e").unwrap_err().kind(), io::ErrorKind::StorageFull);
        list.add(b"d").unwrap();
        drop(list);
        let list = StoredList::open(dir.path(), 100, 2).unwrap();
        assert_eq!(list.owners(), [owner("a"), owner("b")]);
        let all = encode(1, &owners(&["a", "b", "c"]));
        assert_eq!(decode(all.as_bytes(), 2).lost, 1);
    }

    #[test]
    fn a_damaged_file_does_not_prevent_the_start() {
        let whole = encode(7, &owners(&["a", "b", "c"]));
        let cases: [(Vec<u8>, &[&str], u64); 7] = [
            (Vec::new(), &[], 1),
            (b"\0".repeat(100), &[], 1),
            (whole.replace("clients 2", "clients 3").into_bytes(), &[], 3),
            (whole.replace("epoch 7", "epoch 9").into_bytes(), &["a", "b", "c"], 1),
            (whole.replace("62 ", "64 ").into_bytes(), &["a", "c"], 1),
            (whole.as_bytes()[..whole.len() - 5].to_vec(), &["a", "b"], 1),
            (whole.lines().take(3).collect::<Vec<_>>().join("\n").into_bytes(), &["a"], 2),
        ];
        for (i, (text, kept, lost)) in cases.into_iter().enumerate() {
            let decoded = decode(&text, 4);
            assert_eq!((&decoded.owners, decoded.lost), (&owners(kept), lost), "{i}");
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(NAME), &text).unwrap();
            let list = open(&dir);
            assert_eq!(list.owners().len(), kept.len(), "{i}");
            list.add(b"new").unwrap();
            drop(list);
            assert_eq!(open(&dir).owners().len(), kept.len() + 1, "{i}");
        }
    }

    #[test]
    fn a_huge_file_is_read_in_part() {
        let dir = tempfile::tempdir().unwrap();
        let mut text = encode(7, &owners(&["a"]));
        text.push_str(&"x".repeat(1 << 20));
        fs::write(dir.path().join(NAME), text).unwrap();
        assert_eq!(open(&dir).owners(), [owner("a")]);
    }

    #[test]
    fn two_servers_do_not_share_a_list() {
        let dir = tempfile::tempdir().unwrap();
        let first = open(&dir);
        let error = StoredList::open(dir.path(), 100, 4).unwrap_err();
        assert!(error.to_string().contains("another server"), "{error}");
        drop(first);
        open(&dir);
    }

    #[test]
    fn what_cannot_be_written_is_an_error_until_it_can() {
        let dir = tempfile::tempdir().unwrap();
        let list = open(&dir);
        let blocker = dir.path().join(format!("{NAME}.new"));
        fs::create_dir(&blocker).unwrap();
        list.durable.lock().file = None;
        list.add(b"a").unwrap_err();
        list.add(b"a").unwrap_err();
        list.remove(&[owner("z")]).unwrap_err();
        let stored = || decode(&fs::read(dir.path().join(NAME)).unwrap(), 4).owners;
        assert_eq!(stored(), owners(&[]));
        fs::remove_dir(&blocker).unwrap();
        list.add(b"b").unwrap();
        assert_eq!(stored(), owners(&["a", "b"]));
    }

    #[test]
    fn a_failed_append_is_repeated_with_the_whole_list() {
        let dir = tempfile::tempdir().unwrap();
        let list = open(&dir);
        list.add(b"a").unwrap();
        // A file that cannot be written.
        list.durable.lock().file = Some(File::open(dir.path().join(NAME)).unwrap());
        list.add(b"b").unwrap_err();
        let stored = || decode(&fs::read(dir.path().join(NAME)).unwrap(), 4);
        assert_eq!(stored().owners, owners(&["a"]));
        list.remove(&[owner("a")]).unwrap();
        list.add(b"c").unwrap();
        assert_eq!(stored(), Decoded { epoch: 100, owners: owners(&["b", "c"]), lost: 0 });
    }

    #[test]
    fn concurrent_changes_are_durable_when_they_return() {
        let dir = tempfile::tempdir().unwrap();
        let list = Arc::new(StoredList::open(dir.path(), 100, 100).unwrap());
        std::thread::scope(|scope| {
            for n in 0..8_u8 {
                let (list, file) = (&list, dir.path().join(NAME));
                scope.spawn(move || {
                    for k in 0..4 {
                        let name: Box<[u8]> = Box::new([n, k]);
                        let stored = || decode(&fs::read(&file).unwrap(), 100).owners.contains(&name);
                        list.add(&name).unwrap();
                        assert!(stored());
                        if k % 2 == 0 {
                            list.remove(std::slice::from_ref(&name)).unwrap();
                            assert!(!stored());
                        }
                    }
                });
            }
        });
        assert_eq!(list.owners().len(), 16);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// After a crash in a change, the list is that of before or after it: at each number of bytes that were written.
        #[test]
        fn a_crash_leaves_the_list_of_before_or_after(
            changes in proptest::collection::vec((0..8_u8, proptest::collection::vec(0..12_u8, 1..4)), 1..24),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(NAME);
            let list = StoredList::open(dir.path(), 100, 9).unwrap();
            let name = |n: u8| -> Box<[u8]> { vec![n; usize::from(n) * 3].into() };
            let (mut model, mut before) = (Owners::new(), fs::read(&path).unwrap());
            for (kind, names) in changes {
                if kind == 0 {
                    list.durable.lock().file = None; // As after a failure, the file is replaced.
                }
                let names: Vec<_> = names.into_iter().map(name).collect();
                let earlier = model.clone();
                if kind % 2 == 0 && (model.len() < 9 || model.contains(&names[0])) {
                    list.add(&names[0]).unwrap();
                    model.insert(names[0].clone());
                } else {
                    list.remove(&names).unwrap();
                    model.retain(|name| !names.contains(name));
                }
                let after = fs::read(&path).unwrap();
                prop_assert_eq!(&decode(&after, 9).owners, &model);
                // A file that is replaced is the old one or the new one.
                if after.starts_with(&before) {
                    for end in before.len()..after.len() {
                        let torn = decode(&after[..end], 9);
                        let is_whole = end + 1 == after.len(); // Without the end of its line.
                        prop_assert_eq!(&torn.owners, if is_whole { &model } else { &earlier }, "{} bytes", end);
                        let zeros = [&after[..end], &vec![0; after.len() - end]].concat();
                        let torn_too = decode(&zeros, 9);
                        prop_assert!(torn_too.owners == earlier || is_whole, "{} bytes and zeros", end);
                        prop_assert_eq!((torn.lost, torn_too.lost), (0, 0));
                    }
                }
                before = after;
            }
            drop(list);
            fs::write(dir.path().join(format!("{NAME}.new")), b"a crash").unwrap();
            let list = StoredList::open(dir.path(), 100, 9).unwrap();
            prop_assert_eq!(list.epoch(), 101);
            prop_assert_eq!(list.owners(), model.into_iter().collect::<Vec<_>>());
        }
    }

    proptest! {
        #[test]
        fn lists_round_trip(epoch: u32, owners in proptest::collection::btree_set(any::<Vec<u8>>(), 0..9)) {
            let owners: Owners = owners.into_iter().map(Vec::into_boxed_slice).collect();
            let text = encode(epoch, &owners);
            prop_assert_eq!(decode(text.as_bytes(), 9), Decoded { epoch, owners, lost: 0 });
        }

        /// Damage adds no client.
        #[test]
        fn damage_of_a_byte_loses_at_most_what_it_hits(at: proptest::sample::Index, byte: u8) {
            let all = owners(&["host a", "host b", "host c"]);
            let mut text = encode(7, &owners(&["host a", "gone", "host b"]));
            // A damaged end is that of a crash; damage of the end of a line makes two lines one.
            for line in ["-676f6e65", "+686f73742063", "+686f73742063", "+686f73742063"] {
                put_line(&mut text, line);
            }
            let mut text = text.into_bytes();
            let at = at.index(text.len());
            prop_assume!(text[at] != byte);
            text[at] = byte;
            let decoded = decode(&text, 4);
            prop_assert!(decoded.owners.is_subset(&all), "{:?}", decoded);
            let lost = decoded.owners.len() < 3;
            prop_assert!(!lost || decoded.lost > 0);
            prop_assert!(matches!(decoded.epoch, 0 | 7));
        }

        #[test]
        fn arbitrary_text_does_not_panic(text: Vec<u8>) {
            decode(&text, 4);
        }
    }
}
