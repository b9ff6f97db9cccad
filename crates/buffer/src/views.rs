//! Gather lists.

use std::cell::RefCell;

use crate::{View, copied};

/// Maximum number of empty lists that a thread keeps for reuse, and maximum capacity of each.
const MAX_SPARE_LISTS: usize = 64;
const MAX_SPARE_CAPACITY: usize = 1024;

thread_local! {
    static SPARE: RefCell<Vec<Vec<View>>> = const { RefCell::new(Vec::new()) };
}

/// A list of [`View`]s that form one item of data, in order. The storage is reused, so creating and dropping
/// a list does not allocate in steady state.
#[derive(Default)]
pub struct Views {
    list: Vec<View>,
    len: usize,
}

impl Views {
    /// Creates an empty list.
    pub fn new() -> Self {
        let list = SPARE.try_with(|s| s.borrow_mut().pop()).ok().flatten().unwrap_or_default();
        Self { list, len: 0 }
    }

    /// Appends `view`. Empty views are dropped; a view that is contiguous with the last one is merged with
    /// it.
    pub fn push(&mut self, view: View) {
        if view.is_empty() {
            return;
        }
        self.len += view.len();
        match self.list.last_mut() {
            Some(last) => {
                if let Err(view) = last.try_extend(view) {
                    self.list.push(view);
                }
            }
            None => self.list.push(view),
        }
    }

    /// Total length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the total length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The views in order.
    pub fn iter(&self) -> std::slice::Iter<'_, View> {
        self.list.iter()
    }

    /// Groups the views by contiguous memory: in each slice, each view starts where the previous one ends.
    pub fn pieces(&self) -> impl Iterator<Item = &[View]> {
        self.list.chunk_by(|a, b| a.address() + a.len() == b.address() && a.span().id() == b.span().id())
    }

    /// The first view, for patching bytes in place through [`View::try_mut`].
    pub fn first_mut(&mut self) -> Option<&mut View> {
        self.list.first_mut()
    }

    /// Returns the range `start..start + len` of the data by reference.
    ///
    /// # Panics
    /// If the range is outside the data: a bug of the caller, who must check ranges.
    pub fn slice(&self, start: usize, len: usize) -> Self {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len), "slice outside the data");
        let mut out = Self::new();
        let (mut skip, mut want) = (start, len);
        for v in &self.list {
            if want == 0 {
                break;
            }
            if skip >= v.len() {
                skip -= v.len();
                continue;
            }
            let n = want.min(v.len() - skip);
            out.push(v.slice(skip, n));
            skip = 0;
            want -= n;
        }
        out
    }

    /// Truncates the data to `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len {
            *self = self.slice(0, len);
        }
    }

    /// Copies all bytes to the start of `dst` (counted).
    ///
    /// # Panics
    /// If `dst` is shorter than the data.
    pub fn copy_to(&self, dst: &mut [u8]) {
        let mut at = 0;
        for v in &self.list {
            copied::copy(&mut dst[at..], v);
            at += v.len();
        }
    }

    /// Copies all bytes into a `Vec` (counted).
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len);
        for v in &self.list {
            out.extend_from_slice(v);
        }
        copied::count(self.len);
        out
    }
}

impl Clone for Views {
    fn clone(&self) -> Self {
        let mut out = Self::new();
        out.list.extend(self.list.iter().cloned());
        out.len = self.len;
        out
    }
}

impl Drop for Views {
    fn drop(&mut self) {
        let mut list = std::mem::take(&mut self.list);
        list.clear();
        if list.capacity() == 0 || list.capacity() > MAX_SPARE_CAPACITY {
            return;
        }
        // Fails on a thread that is exiting; the storage is freed then.
        let _ = SPARE.try_with(|s| {
            let mut s = s.borrow_mut();
            if s.len() < MAX_SPARE_LISTS {
                s.push(list);
            }
        });
    }
}

impl From<View> for Views {
    fn from(v: View) -> Self {
        let mut out = Self::new();
        out.push(v);
        out
    }
}

impl Extend<View> for Views {
    fn extend<I: IntoIterator<Item = View>>(&mut self, iter: I) {
        iter.into_iter().for_each(|v| self.push(v));
    }
}

impl FromIterator<View> for Views {
    fn from_iter<I: IntoIterator<Item = View>>(iter: I) -> Self {
        let mut out = Self::new();
        out.extend(iter);
        out
    }
}

impl<'a> IntoIterator for &'a Views {
    type Item = &'a View;
    type IntoIter = std::slice::Iter<'a, View>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl std::fmt::Debug for Views {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Views({} bytes in {} pieces)", self.len, self.list.len())
    }
}
