//! The sectors that a read of a device may return, derived from the start and end times of calls and from the losses of
//! unstable data.

use std::{cell::RefCell, ops::Range};

/// Length of a sector in bytes: what a loss tears.
pub(crate) const SECTOR: usize = 512;

/// Whether the data of a write can be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// No flush has made the write durable, and nothing was lost since the write started.
    Volatile,
    /// The target has lost data since the write started, and no flush has succeeded or failed since the loss.
    AtRisk,
    /// A flush made the write durable.
    Durable,
    /// A flush reported that the write may be lost.
    Doubtful,
}

#[derive(Debug, Clone, Copy)]
struct Write {
    /// Zeros instead of the pattern of the write.
    zeros: bool,
    started: u64,
    /// Time after which it does not take effect; `None` while it is in progress, and if it has no outcome.
    ended: Option<u64>,
    acknowledged: bool,
    hold: Hold,
}

impl Write {
    /// Whether the sector that `self` and `other` wrote cannot contain `other`, for a reader that began at `now`.
    fn replaces(&self, other: &Self, now: u64) -> bool {
        let done = self.acknowledged && self.ended.is_some_and(|at| at <= now);
        let kept = matches!(self.hold, Hold::Volatile | Hold::Durable);
        done && kept && other.ended.is_some_and(|at| self.started > at)
    }
}

#[derive(Debug, Default)]
struct State {
    /// Logical time: counts starts and ends.
    clock: u64,
    /// All writes by number; the first is the initial content.
    writes: Vec<Write>,
    /// The writes that a sector may contain.
    sectors: Vec<Vec<usize>>,
    /// Start times of the reads in progress.
    reading: Vec<u64>,
}

/// The data that may be on a device.
#[derive(Debug)]
pub(crate) struct Model(RefCell<State>);

/// Sector `sector` of the data of write `id`: no two have the same bytes.
fn fill(id: usize, sector: u64, to: &mut [u8]) {
    for (word, i) in to.chunks_exact_mut(8).zip(0_u64..) {
        let n = (id as u64) << 40 | sector << 8 | i;
        word.copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    }
}

/// The sectors of a range of bytes.
fn sectors(range: &Range<u64>) -> Range<u64> {
    range.start / SECTOR as u64..range.end / SECTOR as u64
}

impl Model {
    /// A device of `bytes` bytes, which are durable zeros.
    pub(crate) fn new(bytes: u64) -> Self {
        let zeros =
            Write { zeros: true, started: 0, ended: Some(0), acknowledged: true, hold: Hold::Durable };
        let sectors = vec![vec![0]; bytes as usize / SECTOR];
        Self(RefCell::new(State { writes: vec![zeros], sectors, ..State::default() }))
    }

    /// Begins a write; returns its number.
    pub(crate) fn begin_write(&self, range: &Range<u64>, zeros: bool) -> usize {
        let st = &mut *self.0.borrow_mut();
        st.clock += 1;
        let id = st.writes.len();
        let (ended, acknowledged, hold) = (None, false, Hold::Volatile);
        st.writes.push(Write { zeros, started: st.clock, ended, acknowledged, hold });
        for sector in sectors(range) {
            st.sectors[sector as usize].push(id);
        }
        id
    }

    /// The data of write `id` to `range`.
    pub(crate) fn data(id: usize, range: &Range<u64>, to: &mut [u8]) {
        for (to, sector) in to.chunks_exact_mut(SECTOR).zip(sectors(range)) {
            fill(id, sector, to);
        }
    }

    /// A write has ended. It certainly took effect if it is `acknowledged`.
    pub(crate) fn end_write(&self, id: usize, acknowledged: bool) {
        let st = &mut *self.0.borrow_mut();
        st.clock += 1;
        (st.writes[id].ended, st.writes[id].acknowledged) = (Some(st.clock), acknowledged);
    }

    /// No operation is in progress: also those whose callers did not wait for them have ended.
    pub(crate) fn quiet(&self) {
        let st = &mut *self.0.borrow_mut();
        st.clock += 1;
        st.writes.iter_mut().for_each(|w| _ = w.ended.get_or_insert(st.clock));
    }

    /// The target has lost a part of its unstable data.
    pub(crate) fn lost(&self) {
        for w in &mut self.0.borrow_mut().writes {
            if w.hold == Hold::Volatile {
                w.hold = Hold::AtRisk;
            }
        }
    }

    /// Begins a flush or a read; returns the time.
    pub(crate) fn begin(&self) -> u64 {
        let st = &mut *self.0.borrow_mut();
        st.clock += 1;
        st.clock
    }

    /// A flush that began at `started` has succeeded: what was acknowledged before is durable, except for what another
    /// flush has reported as lost.
    pub(crate) fn flushed(&self, started: u64) {
        let st = &mut *self.0.borrow_mut();
        for w in &mut st.writes {
            let covered = w.acknowledged && w.ended.is_some_and(|at| at <= started);
            if covered && w.hold != Hold::Doubtful {
                w.hold = Hold::Durable;
            }
        }
        let State { writes, sectors, reading, .. } = st;
        let now = reading.iter().copied().min().unwrap_or(u64::MAX);
        for ids in sectors {
            let durable: Vec<_> =
                ids.iter().map(|id| writes[*id]).filter(|w| w.hold == Hold::Durable).collect();
            ids.retain(|id| !durable.iter().any(|w| w.replaces(&writes[*id], now)));
        }
    }

    /// A flush has reported that what was written since the last successful one may be lost.
    pub(crate) fn reported(&self) {
        for w in &mut self.0.borrow_mut().writes {
            if w.hold != Hold::Durable {
                w.hold = Hold::Doubtful;
            }
        }
    }

    /// Begins a read; returns the time.
    pub(crate) fn begin_read(&self) -> u64 {
        let now = self.begin();
        self.0.borrow_mut().reading.push(now);
        now
    }

    /// Ends a read, which returned `data` at `offset` unless it failed.
    ///
    /// # Errors
    /// A sector that the device must not contain.
    pub(crate) fn end_read(&self, started: u64, offset: u64, data: Option<&[u8]>) -> Result<(), String> {
        let st = &mut *self.0.borrow_mut();
        st.clock += 1;
        st.reading.retain(|at| *at != started);
        for (i, found) in data.unwrap_or_default().chunks(SECTOR).enumerate() {
            let sector = offset / SECTOR as u64 + i as u64;
            let ids = &st.sectors[sector as usize];
            let mut allowed = ids
                .iter()
                .copied()
                .filter(|id| !ids.iter().any(|other| st.writes[*other].replaces(&st.writes[*id], started)));
            if !allowed.any(|id| st.is(id, sector, found)) {
                return Err(st.mismatch(sector, found, started));
            }
        }
        Ok(())
    }
}

impl State {
    /// Whether `found` is the data of write `id`.
    fn is(&self, id: usize, sector: u64, found: &[u8]) -> bool {
        if self.writes[id].zeros {
            return found.iter().all(|byte| *byte == 0);
        }
        let mut data = [0; SECTOR];
        fill(id, sector, &mut data);
        found == data
    }

    fn mismatch(&self, sector: u64, found: &[u8], started: u64) -> String {
        let ids = &self.sectors[sector as usize];
        let known = (0..self.writes.len()).filter(|id| self.is(*id, sector, found));
        let known: Vec<_> = known.map(|id| (id, self.writes[id])).collect();
        let present: Vec<_> = ids.iter().map(|id| (*id, self.writes[*id])).collect();
        format!(
            "sector {sector} contains {known:?} for a read that began at {started}; possible are {present:?}"
        )
    }
}
