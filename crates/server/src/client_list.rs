//! The durable list of NFSv4 clients: a file in the state directory.
//!
//! The file is text. Each line ends with its tag, the SipHash-2-4 of what precedes the tag, which detects damage:
//!
//! ```text
//! millrace NFSv4 clients 3 TAG
//! epoch 1767225600 clients 2 TAG
//! 4c696e7578204e465376342e322061@192.0.2.1 TAG
//! 4c696e7578204e465376342e322062@2001:db8:0:1:: TAG
//! +4c696e7578204e465376342e322063@192.0.2.3 -4c696e7578204e465376342e322061 TAG
//! ```
//!
//! The third and later lines are `co_ownerid`s in hexadecimal digits with the IPv4 address or the IPv6 prefix of 64 bits
//! that each is charged to: those of the list when the file was written, and then in each line the changes that were made
//! together. Versions 1 and 2 have no addresses, and version 1 no changes. Changes are appended, until they are longer
//! than the list; then the file is replaced as a whole. After a crash, the last line may be incomplete, and its changes
//! are not made; any other file is the old one or the new one. A client whose record is damaged cannot reclaim its
//! state after a restart: it gets NO_GRACE or RECLAIM_BAD. A damaged line of changes may have removed any client, so
//! that the earlier ones are lost.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use millrace_admission::{ClientAddr, ClientQuota};
use millrace_nfs::v4::OPAQUE_LIMIT;
use millrace_nfs4_state::ClientList;
use millrace_runtime::sync::Mutex;
use rustix::fs::FlockOperation;

use crate::siphash::siphash;

const NAME: &str = "nfs4-clients";
/// The file that is locked while a server uses the list.
const LOCK_NAME: &str = "nfs4-clients.lock";
const HEADER: &str = "millrace NFSv4 clients 3";
/// Those of files that earlier releases wrote.
const OLD_HEADERS: [&str; 2] = ["millrace NFSv4 clients 1", "millrace NFSv4 clients 2"];
/// The address of a client in a file of an earlier release: no client has it.
const UNKNOWN: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
/// The key of the tags: they detect damage only.
const TAG_KEY: [u64; 2] = [0x6e66_7376_3420_636c, 0x6965_6e74_7300_0001];
/// Characters of a tag.
const TAG: usize = 16;
/// Maximum characters of an address: four groups of an IPv6 address and `::`.
const ADDRESS: usize = 21;
/// Maximum bytes of a line with one client.
const LINE: u64 = (2 * OPAQUE_LIMIT + 1 + ADDRESS + 1 + TAG + 1) as u64;
/// Bytes of changes that a file may have, however short its list is.
const CHANGES: u64 = 1 << 16;

/// The clients with the addresses that they are charged to.
type Owners = BTreeMap<Box<[u8]>, ClientAddr>;

/// The list in a file. Concurrent changes are written together.
#[derive(Debug)]
pub(crate) struct StoredList {
    directory: PathBuf,
    epoch: u32,
    /// The clients on the list: their number is limited, and divided among addresses. Those of earlier instances cannot be
    /// removed to make room, because they may reclaim state.
    places: ClientQuota,
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
    /// Adds a client, or changes its address.
    fn add(&mut self, owner: &[u8], address: ClientAddr) {
        self.owners.insert(owner.into(), address);
        self.begin_change('+');
        put_client(&mut self.changes, owner, address);
    }

    /// Removes a client, and returns its address.
    fn remove(&mut self, owner: &[u8]) -> Option<ClientAddr> {
        let address = self.owners.remove(owner)?;
        self.begin_change('-');
        put_digits(&mut self.changes, owner);
        Some(address)
    }

    fn begin_change(&mut self, sign: char) {
        if !self.changes.is_empty() {
            self.changes.push(' ');
        }
        self.changes.push(sign);
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
        let places = ClientQuota::new(capacity);
        stored.owners.values().for_each(|address| places.add(*address, 1));
        let list = Self {
            directory: directory.to_owned(),
            epoch: epoch.max(stored.epoch.wrapping_add(1)),
            places,
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
        self.content.lock().owners.keys().cloned().collect()
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
    fn add(&self, owner: &[u8], address: ClientAddr) -> io::Result<()> {
        let version = {
            let mut content = self.content.lock();
            let charged = content.owners.get(owner).copied();
            if charged != Some(address) {
                if self.places.take(address, 1) {
                    content.add(owner, address);
                    charged.into_iter().for_each(|earlier| self.places.give_back(earlier, 1));
                } else if charged.is_none() {
                    let full = format!("{address} has too many NFSv4 clients on the list");
                    return Err(io::Error::new(io::ErrorKind::StorageFull, full));
                }
            }
            content.version
        };
        self.flush(version)
    }

    fn remove(&self, owners: &[Box<[u8]>]) -> io::Result<()> {
        let version = {
            let mut content = self.content.lock();
            for owner in owners {
                if let Some(address) = content.remove(owner) {
                    self.places.give_back(address, 1);
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
    let mut client = String::new();
    for (owner, address) in owners {
        client.clear();
        put_client(&mut client, owner, *address);
        put_line(&mut text, &client);
    }
    text
}

fn put_client(text: &mut String, owner: &[u8], address: ClientAddr) {
    put_digits(text, owner);
    let _ = write!(text, "@{}", address.prefix()); // A string takes what is written.
}

fn put_digits(text: &mut String, owner: &[u8]) {
    for byte in owner {
        let _ = write!(text, "{byte:02x}");
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

/// The owner and the address of a client.
fn client(text: &str) -> Option<(Box<[u8]>, ClientAddr)> {
    let (digits, address) = match text.split_once('@') {
        Some((digits, address)) => (digits, address.parse().ok()?),
        None => (text, UNKNOWN),
    };
    Some((bytes(digits)?, address.into()))
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
    let is_known = header.is_some_and(|header| header == HEADER || OLD_HEADERS.contains(&header));
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
            if let Some((owner, address)) = client(line).filter(|_| owners.len() < capacity) {
                owners.insert(owner, address);
                kept += 1;
            }
            continue;
        }
        for change in line.split(' ') {
            match (change.strip_prefix('-').and_then(bytes), change.strip_prefix('+').and_then(client)) {
                (Some(removed), _) => {
                    owners.remove(&removed);
                }
                (_, Some((added, address))) if owners.len() < capacity || owners.contains_key(&added) => {
                    owners.insert(added, address);
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

    const HOSTILE_LINE: &str =
        "epoch [0-9]{1,25} clients [0-9]{1,25}|[-+]?[0-9a-g]{0,6}[@:. +-]?[0-9a-f:.@/]{0,12}";

    /// Another address for each name, so that a list can be full.
    fn address(owner: &[u8]) -> ClientAddr {
        let n = owner.iter().fold(1_u16, |n, byte| n.wrapping_mul(31).wrapping_add((*byte).into()));
        IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + u32::from(n))).into()
    }

    fn owners(names: &[&str]) -> Owners {
        names.iter().map(|name| (owner(name), address(name.as_bytes()))).collect()
    }

    fn add(list: &StoredList, owner: &[u8]) -> io::Result<()> {
        list.add(owner, address(owner))
    }

    /// The line that adds a client.
    fn change(name: &str) -> String {
        let mut content = Content::default();
        content.add(name.as_bytes(), address(name.as_bytes()));
        content.changes
    }

    fn prefix(text: &str) -> ClientAddr {
        text.parse::<IpAddr>().unwrap().into()
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
            add(&list, name.as_bytes()).unwrap();
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
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(NAME), encode(6, &Owners::from([(owner(""), prefix("192.0.2.1"))])))
            .unwrap();
        let list = StoredList::open(dir.path(), 7, 100).unwrap();
        list.add(b"Linux", prefix("2001:db8:0:1:2:3:4:5")).unwrap();
        list.content.lock().add(b"b", prefix("::ffff:192.0.2.2"));
        list.remove(&[owner("")]).unwrap();
        let text = fs::read_to_string(dir.path().join(NAME)).unwrap();
        let expected = "millrace NFSv4 clients 3 896af73cac98242a
epoch 7 clients 1 7e8ff7c0a359547a
@192.0.2.1 459d1e1d92f9489c
+4c696e7578@2001:db8:0:1:: 7ceaa41ca86ce457
+62@192.0.2.2 - 6449f1039602909a
";
        assert_eq!(text, expected);
        drop(list);
        let list = StoredList::open(dir.path(), 7, 100).unwrap();
        let stored = [(owner("Linux"), prefix("2001:db8:0:1::")), (owner("b"), prefix("192.0.2.2"))];
        assert_eq!(list.content.lock().owners, Owners::from(stored));
    }

    #[test]
    fn files_of_earlier_releases_are_read() {
        for (version, changes) in [(1, None), (2, Some("-61 +63"))] {
            let mut text = String::new();
            put_line(&mut text, &format!("millrace NFSv4 clients {version}"));
            for line in ["epoch 7 clients 2", "61", "62"].into_iter().chain(changes) {
                put_line(&mut text, line);
            }
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(NAME), text).unwrap();
            let list = open(&dir);
            let expected = if version == 1 { ["a", "b"] } else { ["b", "c"] };
            assert_eq!((list.owners(), list.epoch()), (expected.map(owner).into(), 100));
            assert_eq!(list.places.left(), 2);
            // The first address that a client comes back from is charged.
            for _ in 0..2 {
                add(&list, b"b").unwrap();
            }
            assert_eq!((list.places.left(), list.places.of(address(b"b"))), (2, 1));
            let charged = list.content.lock().owners.clone();
            drop(list);
            assert_eq!(open(&dir).content.lock().owners, charged);
        }
    }

    #[test]
    fn an_address_leaves_places_to_others_after_restarts() {
        let dir = tempfile::tempdir().unwrap();
        for address in ["10.0.0.1", "2001:db8::"] {
            fs::write(dir.path().join(NAME), encode(1, &Owners::new())).unwrap();
            let (mut added, greedy) = (0, prefix(address));
            // Each instance of the server has other clients, and waits for those of all earlier ones.
            for instance in 0..3_u8 {
                let list = StoredList::open(dir.path(), 100, 64).unwrap();
                added += (0..40).filter(|n| list.add(&[instance, *n], greedy).is_ok()).count();
            }
            assert_eq!(added, 48, "{address} has at most three quarters");
            let list = StoredList::open(dir.path(), 100, 64).unwrap();
            let of_another = (100..200).filter(|n| list.add(&[*n], prefix("10.0.0.2")).is_ok()).count();
            assert_eq!(of_another, 12);
            list.add(&[0, 0], greedy).unwrap();
            list.add(&[100], greedy).unwrap();
            assert_eq!(
                (list.places.of(greedy), list.places.left()),
                (48, 4),
                "a client that is on the list stays"
            );
            list.remove(&[[0, 0].into(), [0, 1].into()]).unwrap();
            assert_eq!((list.places.of(greedy), list.places.left()), (46, 6));
        }
    }

    #[test]
    fn clients_that_a_damaged_line_may_have_removed_are_lost() {
        let mut text = encode(7, &owners(&["a", "b"]));
        for line in ["-61", &change("c"), &change("d")] {
            put_line(&mut text, line);
        }
        let decoded = |damage: &str| decode(text.replace(damage, "x").as_bytes(), 4);
        assert_eq!(decoded("-61 "), Decoded { epoch: 7, owners: owners(&["c", "d"]), lost: 2 });
        assert_eq!(decoded("+63@"), Decoded { epoch: 7, owners: owners(&["d"]), lost: 1 });
        let torn = Decoded { epoch: 7, owners: owners(&["b", "c"]), lost: 0 };
        assert_eq!(decoded("+64@"), torn, "the last line was not completed");
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
                    0 => add(&list, name).unwrap(),
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
            add(&list, name.as_bytes()).unwrap();
        }
        assert_eq!(add(&list, b"e").unwrap_err().kind(), io::ErrorKind::StorageFull);
        add(&list, b"d").unwrap();
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
            (whole.replace("NFSv4 clients 3", "NFSv4 clients 2").into_bytes(), &[], 3),
            (whole.replace("epoch 7", "epoch 9").into_bytes(), &["a", "b", "c"], 1),
            (whole.replace("62@", "64@").into_bytes(), &["a", "c"], 1),
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
            add(&list, b"new").unwrap();
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
        add(&list, b"a").unwrap_err();
        add(&list, b"a").unwrap_err();
        list.remove(&[owner("z")]).unwrap_err();
        let stored = || decode(&fs::read(dir.path().join(NAME)).unwrap(), 4).owners;
        assert_eq!(stored(), owners(&[]));
        fs::remove_dir(&blocker).unwrap();
        add(&list, b"b").unwrap();
        assert_eq!(stored(), owners(&["a", "b"]));
    }

    #[test]
    fn a_failed_append_is_repeated_with_the_whole_list() {
        let dir = tempfile::tempdir().unwrap();
        let list = open(&dir);
        add(&list, b"a").unwrap();
        // A file that cannot be written.
        list.durable.lock().file = Some(File::open(dir.path().join(NAME)).unwrap());
        add(&list, b"b").unwrap_err();
        let stored = || decode(&fs::read(dir.path().join(NAME)).unwrap(), 4);
        assert_eq!(stored().owners, owners(&["a"]));
        list.remove(&[owner("a")]).unwrap();
        add(&list, b"c").unwrap();
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
                        let stored = || decode(&fs::read(&file).unwrap(), 100).owners.contains_key(&name);
                        add(list, &name).unwrap();
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
                if kind % 2 == 0 && (model.len() < 9 || model.contains_key(&names[0])) {
                    add(&list, &names[0]).unwrap();
                    model.insert(names[0].clone(), address(&names[0]));
                } else {
                    list.remove(&names).unwrap();
                    model.retain(|name, _| !names.contains(name));
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
            prop_assert_eq!(list.owners(), model.into_keys().collect::<Vec<_>>());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// In any order of additions, removals and restarts, an address has at most three times what it leaves free.
        #[test]
        fn the_places_of_addresses_are_those_of_a_model(
            steps in proptest::collection::vec((0..10_u8, 0..24_u8, 1..4_u8), 1..60),
        ) {
            const CAPACITY: usize = 16;
            let dir = tempfile::tempdir().unwrap();
            let open = || StoredList::open(dir.path(), 1, CAPACITY).unwrap();
            let (mut list, mut model) = (Some(open()), Owners::new());
            for (kind, owner, host) in steps {
                let (owner, host): (Box<[u8]>, _) = ([owner].into(), prefix(&format!("10.0.0.{host}")));
                let of = |model: &Owners, host| model.values().filter(|other| **other == host).count();
                match kind {
                    0 => {
                        drop(list.take());
                        list = Some(open());
                    }
                    1 | 2 => {
                        list.as_ref().unwrap().remove(std::slice::from_ref(&owner)).unwrap();
                        model.remove(&owner);
                    }
                    _ => {
                        let left = CAPACITY - model.len();
                        let permitted = left > 0 && of(&model, host) < 3 * left;
                        let added = list.as_ref().unwrap().add(&owner, host).is_ok();
                        prop_assert_eq!(added, permitted || model.contains_key(&owner));
                        if permitted {
                            model.insert(owner, host);
                        }
                    }
                }
                let list = list.as_ref().unwrap();
                prop_assert_eq!(&list.content.lock().owners, &model);
                prop_assert_eq!(list.places.left(), CAPACITY - model.len());
                for host in model.values() {
                    prop_assert_eq!(list.places.of(*host), of(&model, *host));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn lists_round_trip(
            epoch: u32,
            owners in proptest::collection::btree_map(any::<Vec<u8>>(), any::<IpAddr>(), 0..9),
        ) {
            let owners: Owners = owners.into_iter().map(|(owner, ip)| (owner.into(), ip.into())).collect();
            let text = encode(epoch, &owners);
            prop_assert_eq!(decode(text.as_bytes(), 9), Decoded { epoch, owners, lost: 0 });
        }

        /// Damage adds no client.
        #[test]
        fn damage_of_a_byte_loses_at_most_what_it_hits(at: proptest::sample::Index, byte: u8) {
            let all = owners(&["host a", "host b", "host c"]);
            let mut text = encode(7, &owners(&["host a", "gone", "host b"]));
            // A damaged end is that of a crash; damage of the end of a line makes two lines one.
            let added = change("host c");
            for line in ["-676f6e65", &added, &added, &added] {
                put_line(&mut text, line);
            }
            let mut text = text.into_bytes();
            let at = at.index(text.len());
            prop_assume!(text[at] != byte);
            text[at] = byte;
            let decoded = decode(&text, 4);
            prop_assert!(decoded.owners.iter().all(|(name, of)| all.get(name) == Some(of)), "{:?}", decoded);
            let lost = decoded.owners.len() < 3;
            prop_assert!(!lost || decoded.lost > 0);
            prop_assert!(matches!(decoded.epoch, 0 | 7));
        }

        #[test]
        fn arbitrary_text_does_not_panic(text: Vec<u8>) {
            decode(&text, 4);
        }

        /// Lines with the right tags, as another program can write them.
        #[test]
        fn arbitrary_lines_give_a_list_that_can_be_used(
            version in 1..5,
            lines in proptest::collection::vec(HOSTILE_LINE, 0..12),
        ) {
            let mut text = String::new();
            put_line(&mut text, &format!("millrace NFSv4 clients {version}"));
            lines.iter().for_each(|line| put_line(&mut text, line));
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(NAME), text).unwrap();
            let list = open(&dir);
            let owners = list.content.lock().owners.clone();
            prop_assert!(owners.len() <= 4 && list.places.left() == 4 - owners.len());
            list.remove(&list.owners()).unwrap();
            prop_assert_eq!(list.places.left(), 4);
        }
    }
}
