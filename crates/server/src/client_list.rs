//! The durable list of NFSv4 clients: a file in the state directory.
//!
//! The file is text. Each line ends with its tag, the SipHash-2-4 of what precedes the tag, which detects damage:
//!
//! ```text
//! millrace NFSv4 clients 1 TAG
//! epoch 1767225600 clients 2 TAG
//! 4c696e7578204e465376342e322061 TAG
//! 4c696e7578204e465376342e322062 TAG
//! ```
//!
//! The third and later lines are `co_ownerid`s in hexadecimal digits. The file is always replaced as a whole: after a
//! crash it is the old one or the new one. A client whose record is damaged cannot reclaim its state after a restart: it
//! gets NO_GRACE or RECLAIM_BAD.

use std::{
    collections::BTreeSet,
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
const HEADER: &str = "millrace NFSv4 clients 1";
/// The key of the tags: they detect damage only.
const TAG_KEY: [u64; 2] = [0x6e66_7376_3420_636c, 0x6965_6e74_7300_0001];
/// Characters of a tag.
const TAG: usize = 16;
/// Maximum bytes of a line.
const LINE: u64 = (2 * OPAQUE_LIMIT + 1 + TAG + 1) as u64;

type Owners = BTreeSet<Box<[u8]>>;

/// The list in a file. Concurrent changes are written together.
#[derive(Debug)]
pub(crate) struct StoredList {
    directory: PathBuf,
    epoch: u32,
    /// Maximum number of clients.
    capacity: usize,
    content: Mutex<Content>,
    /// The version of the content that is durable. Locked during a write.
    durable: Mutex<u64>,
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
                file.take(LINE * (capacity as u64 + 3)).read_to_end(&mut text)?;
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
            content: Mutex::new(Content { owners: stored.owners, version: 1 }),
            durable: Mutex::new(0),
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
        if *durable >= version {
            return Ok(());
        }
        let (text, current) = {
            let content = self.content.lock();
            (encode(self.epoch, &content.owners), content.version)
        };
        let written = replace_file(&self.directory, text.as_bytes());
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
        *durable = current;
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
                content.version += 1;
            }
            content.version
        };
        self.flush(version)
    }

    fn remove(&self, owners: &[Box<[u8]>]) -> io::Result<()> {
        let version = {
            let mut content = self.content.lock();
            let before = content.owners.len();
            for owner in owners {
                content.owners.remove(owner);
            }
            if content.owners.len() != before {
                content.version += 1;
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

/// Replaces the file in `directory`. The new content is durable when this returns.
fn replace_file(directory: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = directory.join(format!("{NAME}.new"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&temporary, directory.join(NAME))?;
    File::open(directory)?.sync_all()
}

fn put_line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push_str(&format!(" {:016x}\n", siphash(TAG_KEY, line.as_bytes())));
}

fn encode(epoch: u32, owners: &Owners) -> String {
    let mut text = String::new();
    put_line(&mut text, HEADER);
    put_line(&mut text, &format!("epoch {epoch} clients {}", owners.len()));
    for owner in owners {
        let digits: String = owner.iter().map(|byte| format!("{byte:02x}")).collect();
        put_line(&mut text, &digits);
    }
    text
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
    let (mut owners, mut records) = (Owners::new(), 0);
    for line in lines {
        records += 1;
        if owners.len() < capacity
            && header == Some(HEADER)
            && let Some(owner) = untagged(line).and_then(bytes)
        {
            owners.insert(owner);
        }
    }
    // Without the number, something is lost: the end of that line may be damaged, and the next line a part of it.
    let (epoch, expected) = numbers.unwrap_or((0, records + 1));
    let lost = expected.max(records).saturating_sub(owners.len() as u64);
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
        let text = encode(7, &owners(&["Linux", ""]));
        let lines: Vec<_> = text.lines().map(|line| line.rsplit_once(' ').unwrap().0).collect();
        assert_eq!(lines, [HEADER, "epoch 7 clients 2", "", "4c696e7578"]);
        assert_eq!(decode(text.as_bytes(), 2), Decoded { epoch: 7, owners: owners(&["Linux", ""]), lost: 0 });
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
            (whole.replace("clients 1", "clients 2").into_bytes(), &[], 3),
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
            let mut text = encode(7, &all).into_bytes();
            let at = at.index(text.len());
            prop_assume!(text[at] != byte);
            text[at] = byte;
            let decoded = decode(&text, 4);
            prop_assert!(decoded.owners.is_subset(&all));
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
