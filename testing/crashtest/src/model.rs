//! The bytes that a read may return.
//!
//! Every write has a number, and its data is a function of number and offset ([`pattern`]), so each byte
//! identifies its write. For each range of a file, the model keeps the writes whose data may be there. An
//! acknowledged write replaces those that were acknowledged before it started. Writes that overlap in time
//! may take effect in either order, and a failed write may or may not have taken effect.
//!
//! This holds for reads through a client at any time, and for the server's stable storage at the end of a
//! commit with respect to the writes that were acknowledged before the commit started.

use std::{collections::BTreeMap, fmt, ops::Range};

use parking_lot::Mutex;
use smallvec::SmallVec;

/// Number of a write or truncation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteId(u64);

/// Start time of a read or a commit in progress.
#[derive(Debug)]
pub struct Operation(u64);

/// The byte of write `id` at `offset`; never 0, which is the byte of a hole.
pub const fn pattern(id: WriteId, offset: u64) -> u8 {
    // One value for each aligned group of 16 bytes: displaced data differs, and data is generated quickly.
    1 + (mix(id.0 ^ (offset / 16).wrapping_mul(0x9E37_79B9_7F4A_7C15)) % 255) as u8
}

/// The output function of SplitMix64, as a hash: a bijection in which every input bit affects the whole output.
const fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ (n >> 31)
}

/// Data of the write `id` for `range`.
fn data_of(id: WriteId, range: Range<u64>) -> Vec<u8> {
    range.map(|at| pattern(id, at)).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Data,
    /// A truncation, which leaves a hole from its offset on.
    Hole,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Write {
    id: WriteId,
    kind: Kind,
    started: u64,
    /// Time of the acknowledgement or cancellation; `None` while it is in progress or after a failure.
    ended: Option<u64>,
    /// Whether it has certainly taken effect.
    acknowledged: bool,
}

impl Write {
    const fn byte(&self, offset: u64) -> u8 {
        match self.kind {
            Kind::Data => pattern(self.id, offset),
            Kind::Hole => 0,
        }
    }

    /// Whether it started after the end of `other`.
    fn follows(&self, other: &Self) -> bool {
        other.ended.is_some_and(|ended| self.started > ended)
    }
}

/// The initial content of a file.
const EMPTY: Write =
    Write { id: WriteId(0), kind: Kind::Hole, started: 0, ended: Some(0), acknowledged: true };

type Writes = SmallVec<[Write; 4]>;

/// For each range of a file, the writes whose data may be there. The ranges are consecutive from 0 to the
/// maximum size.
#[derive(Debug)]
struct File {
    ranges: BTreeMap<u64, Writes>,
    end: u64,
}

impl File {
    fn new(end: u64) -> Self {
        Self { ranges: BTreeMap::from([(0, SmallVec::from_slice(&[EMPTY]))]), end }
    }

    /// Makes `at` the start of a range.
    fn split(&mut self, at: u64) {
        if at < self.end
            && let Some((start, writes)) = self.ranges.range(..=at).next_back()
            && *start != at
        {
            let writes = writes.clone();
            self.ranges.insert(at, writes);
        }
    }

    fn add(&mut self, range: Range<u64>, write: Write) {
        self.split(range.start);
        self.split(range.end);
        self.ranges.range_mut(range).for_each(|(_, writes)| writes.push(write));
    }

    /// Removes writes in `range` that were replaced by a write acknowledged at `seen` or before, and merges
    /// ranges.
    fn prune(&mut self, range: Range<u64>, seen: u64) {
        for (_, writes) in self.ranges.range_mut(range.clone()) {
            if let Some(last) = last(writes, seen) {
                writes.retain(|w| !last.follows(w));
            }
        }
        let first = self.ranges.range(..range.start).next_back().map_or(0, |(start, _)| *start);
        let mut before = None;
        let mut joined = Vec::new();
        for (start, writes) in self.ranges.range(first..=range.end) {
            let ids: SmallVec<[WriteId; 4]> = writes.iter().map(|w| w.id).collect();
            if before.as_ref() == Some(&ids) {
                joined.push(*start);
            }
            before = Some(ids);
        }
        for start in joined {
            self.ranges.remove(&start);
        }
    }
}

/// The write that started last, of those acknowledged at `seen` or before.
fn last(writes: &[Write], seen: u64) -> Option<Write> {
    let acknowledged = writes.iter().filter(|w| w.acknowledged && w.ended.is_some_and(|e| e <= seen));
    acknowledged.max_by_key(|w| w.started).copied()
}

/// A write or truncation, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    file: usize,
    range: Range<u64>,
    write: Write,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Write { id, kind, started, ended, acknowledged } = self.write;
        match kind {
            _ if self.write == EMPTY => return f.write_str("the hole of a new file"),
            Kind::Data => write!(f, "write {} of {:?}", id.0, self.range)?,
            Kind::Hole => write!(f, "truncation {} to {}", id.0, self.range.start)?,
        }
        write!(f, ", started at {started}, ")?;
        match ended {
            None => write!(f, "not ended"),
            Some(at) if acknowledged => write!(f, "ended at {at}"),
            Some(at) => write!(f, "was cancelled at {at}"),
        }
    }
}

/// Wrong data of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Number of the file.
    pub file: usize,
    /// Offset of the first wrong byte.
    pub offset: u64,
    /// Number of wrong bytes in the whole read.
    pub wrong: u64,
    /// Description of the wrong data.
    found: String,
    /// The writes whose data would be correct.
    allowed: Vec<Record>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, offset, wrong, found, allowed } = self;
        write!(f, "file {file} contains {found} at {offset} ({wrong} wrong bytes) instead of ")?;
        allowed.iter().enumerate().try_for_each(|(n, w)| write!(f, "{}{w}", if n > 0 { " or " } else { "" }))
    }
}

impl std::error::Error for Mismatch {}

#[derive(Debug, Default)]
struct State {
    /// Logical time: counts starts and ends.
    clock: u64,
    /// All writes and truncations by number; the first is [`EMPTY`].
    records: Vec<Record>,
    /// Start times of the reads and commits in progress, in order.
    started: Vec<u64>,
    files: Vec<File>,
}

impl State {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn begin(&mut self, file: usize, range: Range<u64>, kind: Kind) -> WriteId {
        let id = WriteId(self.records.len() as u64);
        let write = Write { id, kind, started: self.tick(), ended: None, acknowledged: false };
        self.files[file].add(range.clone(), write);
        self.records.push(Record { file, range, write });
        id
    }

    /// Describes the write that `data` belongs to, the first wrong bytes at `offset` of a file.
    fn describe(&self, file: usize, offset: u64, data: &[u8]) -> String {
        if data.iter().all(|b| *b == 0) {
            return "a hole".into();
        }
        let holds = |r: &&Record| {
            r.file == file
                && (offset..).zip(data).all(|(at, b)| r.range.contains(&at) && r.write.byte(at) == *b)
        };
        match self.records.iter().rfind(holds) {
            Some(record) => format!("the data of {record}"),
            None => format!("{data:02x?} (data of no write)"),
        }
    }
}

/// The bytes that a read may return, derived from the times of calls. Can be shared between threads.
#[derive(Debug)]
pub struct Model(Mutex<State>);

impl Model {
    /// Creates a model of `files` empty files of at most `max_size` bytes.
    pub fn new(files: usize, max_size: u64) -> Self {
        let files = (0..files).map(|_| File::new(max_size)).collect();
        let empty = Record { file: 0, range: 0..max_size, write: EMPTY };
        Self(Mutex::new(State { files, records: vec![empty], ..State::default() }))
    }

    /// Starts a write to `range` of a file. Returns its number and data.
    ///
    /// # Panics
    /// If the file does not exist.
    pub fn begin_write(&self, file: usize, range: Range<u64>) -> (WriteId, Vec<u8>) {
        let id = self.0.lock().begin(file, range.clone(), Kind::Data);
        (id, data_of(id, range))
    }

    /// Starts a truncation to `size`.
    ///
    /// # Panics
    /// If the file does not exist.
    pub fn begin_truncate(&self, file: usize, size: u64) -> WriteId {
        let mut st = self.0.lock();
        let end = st.files[file].end;
        st.begin(file, size..end, Kind::Hole)
    }

    /// Records the acknowledgement of a write or truncation. (A failed one has no end: it may take effect at
    /// any time.)
    ///
    /// # Panics
    /// If the file does not exist.
    pub fn end(&self, file: usize, id: WriteId) {
        self.ended(file, id, true);
    }

    /// Records the cancellation of a write: it may or may not have taken effect, but not after a later write
    /// to the same range.
    ///
    /// # Panics
    /// If the file does not exist.
    pub fn cancel(&self, file: usize, id: WriteId) {
        self.ended(file, id, false);
    }

    fn ended(&self, file: usize, id: WriteId, acknowledged: bool) {
        let mut st = self.0.lock();
        let now = st.tick();
        let seen = st.started.first().map_or(now, |first| *first);
        let record = &mut st.records[id.0 as usize];
        (record.write.ended, record.write.acknowledged) = (Some(now), acknowledged);
        let range = record.range.clone();
        let file = &mut st.files[file];
        let writes = file.ranges.range_mut(range.clone()).flat_map(|(_, writes)| writes);
        for w in writes.filter(|w| w.id == id) {
            (w.ended, w.acknowledged) = (Some(now), acknowledged);
        }
        file.prune(range, seen);
    }

    /// Starts a read or a commit.
    pub fn begin(&self) -> Operation {
        let mut st = self.0.lock();
        let now = st.tick();
        st.started.push(now);
        Operation(now)
    }

    /// Ends a read or a commit.
    pub fn finish(&self, started: Operation) {
        let mut st = self.0.lock();
        st.tick();
        st.started.retain(|b| *b != started.0);
    }

    /// Checks `data` at `offset`: the result of a read that is ending, or the stable data when a commit is
    /// ending. Bytes beyond the end of the file must be 0.
    ///
    /// # Errors
    /// [`Mismatch`]: a byte that no permitted write has written.
    ///
    /// # Panics
    /// If the file does not exist.
    pub fn check(&self, file: usize, started: &Operation, offset: u64, data: &[u8]) -> Result<(), Mismatch> {
        let mut st = self.0.lock();
        let end = offset + data.len() as u64;
        let f = &mut st.files[file];
        f.split(offset);
        f.split(end);
        let mut wrong = 0;
        let mut first = None::<(u64, Writes)>;
        let mut ranges = f.ranges.range(offset..end).peekable();
        while let Some((start, writes)) = ranges.next() {
            let until = ranges.peek().map_or(end, |(next, _)| **next);
            let last = last(writes, started.0);
            let allowed: Writes =
                writes.iter().filter(|w| !last.is_some_and(|l| l.follows(w))).copied().collect();
            for at in *start..until {
                if !allowed.iter().any(|w| w.byte(at) == data[(at - offset) as usize]) {
                    wrong += 1;
                    first.get_or_insert_with(|| (at, allowed.clone()));
                }
            }
        }
        let Some((at, allowed)) = first else { return Ok(()) };
        let from = (at - offset) as usize;
        let found = st.describe(file, at, &data[from..data.len().min(from + 64.min(wrong as usize))]);
        let allowed = allowed.iter().map(|w| st.records[w.id.0 as usize].clone()).collect();
        Err(Mismatch { file, offset: at, wrong, found, allowed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(m: &Model, range: Range<u64>) -> WriteId {
        let (id, _) = m.begin_write(0, range);
        m.end(0, id);
        id
    }

    /// Checks a read that starts and ends now.
    fn read(m: &Model, offset: u64, data: &[u8]) -> Result<(), Mismatch> {
        let started = m.begin();
        let checked = m.check(0, &started, offset, data);
        m.finish(started);
        checked
    }

    #[test]
    fn a_read_returns_the_last_write() {
        let m = Model::new(1, 100);
        let old = write(&m, 0..60);
        let new = write(&m, 20..40);
        let mut data = data_of(old, 0..60);
        assert!(read(&m, 0, &data).is_err_and(|e| (e.offset, e.wrong) == (20, 20)));
        data[20..40].copy_from_slice(&data_of(new, 20..40));
        assert_eq!(read(&m, 0, &data), Ok(()));
        assert_eq!(read(&m, 10, &data[10..30]), Ok(()));
        data.extend([0; 20]);
        assert_eq!(read(&m, 0, &data), Ok(()));
    }

    #[test]
    fn a_write_that_ends_during_a_read_or_commit_may_be_missing() {
        let m = Model::new(1, 100);
        let old = write(&m, 0..10);
        let started = m.begin();
        let new = write(&m, 0..10);
        for id in [old, new] {
            assert_eq!(m.check(0, &started, 0, &data_of(id, 0..10)), Ok(()));
        }
        assert!(m.check(0, &started, 0, &[0; 10]).is_err());
        m.finish(started);
        assert!(read(&m, 0, &data_of(old, 0..10)).is_err());
    }

    #[test]
    fn concurrent_writes_may_take_effect_in_either_order() {
        let m = Model::new(1, 100);
        let (a, b) = (m.begin_write(0, 0..10).0, m.begin_write(0, 0..10).0);
        m.end(0, b);
        m.end(0, a);
        for id in [a, b] {
            assert_eq!(read(&m, 0, &data_of(id, 0..10)), Ok(()));
        }
        write(&m, 0..10);
        assert!(read(&m, 0, &data_of(a, 0..10)).is_err());
    }

    #[test]
    fn a_cancelled_write_takes_effect_before_later_ones_or_not_at_all() {
        let m = Model::new(1, 100);
        let old = write(&m, 0..10);
        let (cancelled, _) = m.begin_write(0, 0..10);
        m.cancel(0, cancelled);
        for id in [old, cancelled] {
            assert_eq!(read(&m, 0, &data_of(id, 0..10)), Ok(()));
        }
        write(&m, 0..10);
        assert!(read(&m, 0, &data_of(cancelled, 0..10)).is_err());
    }

    #[test]
    fn a_truncation_leaves_a_hole() {
        let m = Model::new(1, 100);
        let old = write(&m, 0..10);
        let cut = m.begin_truncate(0, 5);
        m.end(0, cut);
        assert!(read(&m, 0, &data_of(old, 0..10)).is_err_and(|e| e.offset == 5));
        assert_eq!(read(&m, 0, &[&data_of(old, 0..5)[..], &[0; 5]].concat()), Ok(()));
    }

    #[test]
    fn a_failed_write_may_have_taken_effect() {
        let m = Model::new(1, 100);
        let old = write(&m, 0..10);
        let (failed, _) = m.begin_write(0, 0..10);
        for id in [old, failed] {
            assert_eq!(read(&m, 0, &data_of(id, 0..10)), Ok(()));
        }
    }
}
