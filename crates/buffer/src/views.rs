//! Gather lists.

use std::cell::RefCell;

use crate::{View, copied};

/// Maximum number of empty lists that a thread keeps for reuse, and maximum capacity of each.
const MAX_SPARE_LISTS: usize = 64;
const MAX_SPARE_CAPACITY: usize = 1024;

thread_local! {
    static SPARE: RefCell<Vec<Vec<View>>> = const { RefCell::new(Vec::new()) };
}

/// A list of [`View`]s that form one item of data, in order. A single view needs no storage. That of longer lists is
/// reused, so creating and dropping a list does not allocate in steady state.
pub struct Views(List);

enum List {
    One(View),
    /// No view, or several.
    Many(Many),
}

/// A list with storage, which returns to the thread when it is dropped.
#[derive(Default)]
struct Many {
    views: Vec<View>,
    /// Total length in bytes.
    len: usize,
}

impl Many {
    /// An empty list with storage, if the thread has some.
    fn new() -> Self {
        let views = SPARE.try_with(|s| s.borrow_mut().pop()).ok().flatten().unwrap_or_default();
        Self { views, len: 0 }
    }

    fn push(&mut self, view: View) {
        self.len += view.len();
        match self.views.last_mut() {
            Some(last) => {
                if let Err(view) = last.try_extend(view) {
                    self.views.push(view);
                }
            }
            None => self.views.push(view),
        }
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        let capacity = self.views.capacity();
        if capacity == 0 || capacity > MAX_SPARE_CAPACITY {
            return;
        }
        let mut views = std::mem::take(&mut self.views);
        views.clear();
        // Fails on a thread that is exiting; the storage is freed then.
        let _ = SPARE.try_with(|s| {
            let mut s = s.borrow_mut();
            if s.len() < MAX_SPARE_LISTS {
                s.push(views);
            }
        });
    }
}

impl Views {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self(List::Many(Many::default()))
    }

    /// Appends `view`. Empty views are dropped; a view that is contiguous with the last one is merged with
    /// it.
    pub fn push(&mut self, view: View) {
        if view.is_empty() {
            return;
        }
        match &mut self.0 {
            List::Many(many) if many.views.is_empty() => self.0 = List::One(view),
            List::Many(many) => many.push(view),
            List::One(one) => {
                if let Err(view) = one.try_extend(view) {
                    self.push_second(view);
                }
            }
        }
    }

    /// Appends `view` to a single one.
    fn push_second(&mut self, view: View) {
        if let List::One(one) = std::mem::replace(&mut self.0, List::Many(Many::new()))
            && let List::Many(many) = &mut self.0
        {
            many.push(one);
            many.push(view);
        }
    }

    /// Total length in bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            List::One(view) => view.len(),
            List::Many(many) => many.len,
        }
    }

    /// Whether the total length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn as_slice(&self) -> &[View] {
        match &self.0 {
            List::One(view) => std::slice::from_ref(view),
            List::Many(many) => &many.views,
        }
    }

    /// The views in order.
    pub fn iter(&self) -> std::slice::Iter<'_, View> {
        self.as_slice().iter()
    }

    /// Groups the views by contiguous memory: in each slice, each view starts where the previous one ends.
    pub fn pieces(&self) -> impl Iterator<Item = &[View]> {
        self.as_slice()
            .chunk_by(|a, b| a.address() + a.len() == b.address() && a.span().id() == b.span().id())
    }

    /// The views in order, for writing through [`View::try_mut`].
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, View> {
        match &mut self.0 {
            List::One(view) => std::slice::from_mut(view).iter_mut(),
            List::Many(many) => many.views.iter_mut(),
        }
    }

    /// The first view, for patching bytes in place through [`View::try_mut`].
    pub fn first_mut(&mut self) -> Option<&mut View> {
        match &mut self.0 {
            List::One(view) => Some(view),
            List::Many(many) => many.views.first_mut(),
        }
    }

    /// As [`View::prepend`], if the data is one view.
    pub fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        match &mut self.0 {
            List::One(view) => view.prepend(n),
            List::Many(_) => None,
        }
    }

    /// The only view.
    ///
    /// # Errors
    /// Returns the data if it has no view or several.
    pub fn into_view(self) -> Result<View, Self> {
        match self.0 {
            List::One(view) => Ok(view),
            List::Many(_) => Err(self),
        }
    }

    /// Returns the range `start..start + len` of the data by reference.
    ///
    /// # Panics
    /// If the range is outside the data: a bug of the caller, who must check ranges.
    pub fn slice(&self, start: usize, len: usize) -> Self {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len()), "slice outside the data");
        let mut out = Self::new();
        let (mut skip, mut want) = (start, len);
        for v in self {
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
        if len >= self.len() {
            return;
        }
        match &mut self.0 {
            List::One(view) if len > 0 => view.truncate(len),
            _ => *self = self.slice(0, len),
        }
    }

    /// Copies all bytes to the start of `dst` (counted).
    ///
    /// # Panics
    /// If `dst` is shorter than the data.
    pub fn copy_to(&self, dst: &mut [u8]) {
        let mut at = 0;
        for v in self {
            copied::copy(&mut dst[at..], v);
            at += v.len();
        }
    }

    /// Copies all bytes into a `Vec` (counted).
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len());
        for v in self {
            out.extend_from_slice(v);
        }
        copied::count(self.len());
        out
    }
}

impl Default for Views {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for Views {
    fn clone(&self) -> Self {
        match &self.0 {
            List::One(view) => Self(List::One(view.clone())),
            List::Many(many) if many.views.is_empty() => Self::new(),
            List::Many(many) => {
                let mut list = Many::new();
                list.views.extend(many.views.iter().cloned());
                list.len = many.len;
                Self(List::Many(list))
            }
        }
    }
}

impl From<View> for Views {
    fn from(v: View) -> Self {
        if v.is_empty() { Self::new() } else { Self(List::One(v)) }
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
        write!(f, "Views({} bytes in {} pieces)", self.len(), self.as_slice().len())
    }
}
