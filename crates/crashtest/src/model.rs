//! Which bytes a read may return.
//!
//! Every write has a number, and its data is a function of number and offset ([`pattern`]), so a byte shows whose it is.
//! The model keeps, for each range of a file, the writes whose data may be there. A write replaces those that were
//! acknowledged before it began, as soon as it is acknowledged itself; writes that overlap in time may take effect in
//! either order, and one that failed may have taken effect or not.
//!
//! That holds for what a program reads through its own client at any time, and for what the server has in stable storage
//! when a commit ends: there, of the writes that were acknowledged before the commit began.

use std::{collections::BTreeMap, fmt, ops::Range};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::random::mix;

/// The number of a write or truncation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteId(u64);

/// A read or a commit that is in progress: when it began.
#[derive(Debug)]
pub struct Begun(u64);

/// The byte that write `id` puts at `offset`; never 0, which is the byte of a hole.
pub const fn pattern(id: WriteId, offset: u64) -> u8 {
    // One value for each aligned group of 16 bytes: a misplaced piece differs, and data is quick to make.
    1 + (mix(id.0 ^ (offset / 16).wrapping_mul(0x9E37_79B9_7F4A_7C15)) % 255) as u8
}

/// Data of `write` for `range`.
fn data_of(id: WriteId, range: Range<u64>) -> Vec<u8> {
    range.map(|at| pattern(id, at)).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Data,
    /// Truncation: a hole from its offset on.
    Hole,
}

#[derive(Debug, Clone, Copy)]
struct Write {
    id: WriteId,
    kind: Kind,
    begun: u64,
    /// When it was acknowledged or cancelled; `None` while it is in progress, and for good when it failed.
    ended: Option<u64>,
    /// It has certainly taken effect.
    acknowledged: bool,
}

impl Write {
    const fn byte(&self, offset: u64) -> u8 {
        match self.kind {
            Kind::Data => pattern(self.id, offset),
            Kind::Hole => 0,
        }
    }

    /// Whether this one began after `other` had ended.
    fn follows(&self, other: &Self) -> bool {
        other.ended.is_some_and(|ended| self.begun > ended)
    }
}

type Writes = SmallVec<[Write; 4]>;

/// A file: what may be in each range. The ranges follow each other from 0 to the end of the file's largest offset.
#[derive(Debug)]
struct File {
    ranges: BTreeMap<u64, Writes>,
    end: u64,
}

impl File {
    fn new(end: u64) -> Self {
        let hole = Write { id: WriteId(0), kind: Kind::Hole, begun: 0, ended: Some(0), acknowledged: true };
        Self { ranges: BTreeMap::from([(0, SmallVec::from_slice(&[hole]))]), end }
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

    /// Drops writes that one which was acknowledged at `seen` or before has replaced.
    fn prune(&mut self, seen: u64) {
        for writes in self.ranges.values_mut() {
            if let Some(last) = last(writes, seen) {
                writes.retain(|w| !last.follows(w));
            }
        }
    }
}

/// The write that began last of those that were acknowledged at `seen` or before.
fn last(writes: &[Write], seen: u64) -> Option<Write> {
    let acknowledged = writes.iter().filter(|w| w.acknowledged && w.ended.is_some_and(|e| e <= seen));
    acknowledged.max_by_key(|w| w.begun).copied()
}

/// What a read returned and should not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The file's number.
    pub file: usize,
    /// The first wrong byte.
    pub offset: u64,
    /// What it is.
    pub found: u8,
    /// Wrong bytes in the whole read.
    pub wrong: usize,
    /// The writes whose data might be there.
    pub allowed: Vec<WriteId>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, offset, found, wrong, allowed } = self;
        write!(
            f,
            "file {file}: byte {offset} is {found:#04x}, which none of {allowed:?} wrote; {wrong} bytes are wrong"
        )
    }
}

impl std::error::Error for Mismatch {}

#[derive(Debug, Default)]
struct State {
    /// Counts beginnings and ends.
    clock: u64,
    next: u64,
    /// When the reads and commits in progress began, in order.
    begun: Vec<u64>,
    files: Vec<File>,
}

impl State {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn begin(&mut self, file: usize, range: Range<u64>, kind: Kind) -> WriteId {
        self.next += 1;
        let id = WriteId(self.next);
        let write = Write { id, kind, begun: self.tick(), ended: None, acknowledged: false };
        self.files[file].add(range, write);
        id
    }
}

/// Which bytes a read may return, from when calls began and ended. Several threads may share it.
#[derive(Debug, Default)]
pub struct Model(Mutex<State>);

impl Model {
    /// A model of so many empty files of at most `max_size` bytes.
    pub fn new(files: usize, max_size: u64) -> Self {
        let files = (0..files).map(|_| File::new(max_size)).collect();
        Self(Mutex::new(State { files, ..State::default() }))
    }

    /// A write to `range` of a file begins. Gives its number, and its data.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn begin_write(&self, file: usize, range: Range<u64>) -> (WriteId, Vec<u8>) {
        let id = self.0.lock().begin(file, range.clone(), Kind::Data);
        (id, data_of(id, range))
    }

    /// A truncation to `size` begins.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn begin_truncate(&self, file: usize, size: u64) -> WriteId {
        let mut st = self.0.lock();
        let end = st.files[file].end;
        st.begin(file, size..end, Kind::Hole)
    }

    /// A write or truncation of a file was acknowledged. (One that failed never ends: it may take effect at any time.)
    ///
    /// # Panics
    /// When there is no such file.
    pub fn end(&self, file: usize, id: WriteId) {
        self.ended(file, id, true);
    }

    /// A write of a file was cancelled: it has taken effect or not, but takes none after a later write to the same range.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn cancel(&self, file: usize, id: WriteId) {
        self.ended(file, id, false);
    }

    fn ended(&self, file: usize, id: WriteId, acknowledged: bool) {
        let mut st = self.0.lock();
        let now = st.tick();
        let seen = st.begun.first().map_or(now, |first| *first);
        let file = &mut st.files[file];
        for w in file.ranges.values_mut().flatten().filter(|w| w.id == id) {
            (w.ended, w.acknowledged) = (Some(now), acknowledged);
        }
        file.prune(seen);
    }

    /// A read or a commit begins.
    pub fn begin(&self) -> Begun {
        let mut st = self.0.lock();
        let now = st.tick();
        st.begun.push(now);
        Begun(now)
    }

    /// It has ended.
    pub fn finish(&self, begun: Begun) {
        let mut st = self.0.lock();
        st.tick();
        st.begun.retain(|b| *b != begun.0);
    }

    /// Checks what a read that is ending returned, or what is stable when a commit is ending: `data` at `offset`. Bytes
    /// beyond the end of the file are 0.
    ///
    /// # Errors
    /// [`Mismatch`]: a byte that no write can have left there.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn check(&self, file: usize, begun: &Begun, offset: u64, data: &[u8]) -> Result<(), Mismatch> {
        let mut st = self.0.lock();
        let end = offset + data.len() as u64;
        let f = &mut st.files[file];
        f.split(offset);
        f.split(end);
        let mut mismatch = None::<Mismatch>;
        let mut ranges = f.ranges.range(offset..end).peekable();
        while let Some((start, writes)) = ranges.next() {
            let until = ranges.peek().map_or(end, |(next, _)| **next);
            let last = last(writes, begun.0);
            let allowed: Writes =
                writes.iter().filter(|w| !last.is_some_and(|l| l.follows(w))).copied().collect();
            for at in *start..until {
                let found = data[(at - offset) as usize];
                if allowed.iter().any(|w| w.byte(at) == found) {
                    continue;
                }
                let m = mismatch.get_or_insert_with(|| Mismatch {
                    file,
                    offset: at,
                    found,
                    wrong: 0,
                    allowed: allowed.iter().map(|w| w.id).collect(),
                });
                m.wrong += 1;
            }
        }
        mismatch.map_or(Ok(()), Err)
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

    /// Checks what a read gives that begins and ends now.
    fn read(m: &Model, offset: u64, data: &[u8]) -> Result<(), Mismatch> {
        let begun = m.begin();
        let checked = m.check(0, &begun, offset, data);
        m.finish(begun);
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
        let begun = m.begin();
        let new = write(&m, 0..10);
        for id in [old, new] {
            assert_eq!(m.check(0, &begun, 0, &data_of(id, 0..10)), Ok(()));
        }
        assert!(m.check(0, &begun, 0, &[0; 10]).is_err());
        m.finish(begun);
        assert!(read(&m, 0, &data_of(old, 0..10)).is_err());
    }

    #[test]
    fn writes_at_one_time_may_take_effect_in_either_order() {
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
    fn a_cancelled_write_may_have_happened_but_not_after_a_later_one() {
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
    fn a_write_that_failed_may_have_happened() {
        let m = Model::new(1, 100);
        let old = write(&m, 0..10);
        let (failed, _) = m.begin_write(0, 0..10);
        for id in [old, failed] {
            assert_eq!(read(&m, 0, &data_of(id, 0..10)), Ok(()));
        }
    }
}
