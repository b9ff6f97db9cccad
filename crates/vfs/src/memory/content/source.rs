//! Cursor over the data of a write.

use std::slice;

use millrace_buffer::{View, Views};

/// Reads the bytes of a gather list in order.
pub(super) struct DataCursor<'a> {
    views: slice::Iter<'a, View>,
    /// The current view; `at` is the position in it.
    view: Option<&'a View>,
    at: usize,
}

impl<'a> DataCursor<'a> {
    pub(super) fn new(data: &'a Views) -> Self {
        let mut views = data.iter();
        let view = views.next();
        Self { views, view, at: 0 }
    }

    /// Passes the next `len` bytes to `each`, view by view.
    fn take(&mut self, mut len: usize, mut each: impl FnMut(&[u8])) {
        while let Some(view) = self.view.filter(|_| len > 0) {
            let n = len.min(view.len() - self.at);
            each(&view[self.at..self.at + n]);
            self.at += n;
            len -= n;
            if self.at == view.len() {
                self.view = self.views.next();
                self.at = 0;
            }
        }
    }

    pub(super) fn skip(&mut self, len: usize) {
        self.take(len, |_| ());
    }

    /// Fills `dst` with the next bytes (counted as a copy).
    pub(super) fn copy_to(&mut self, dst: &mut [u8]) {
        let mut at = 0;
        self.take(dst.len(), |bytes| {
            millrace_buffer::copy(&mut dst[at..], bytes);
            at += bytes.len();
        });
    }

    /// Skips `len` bytes and returns the view that contains exactly these, if any.
    pub(super) fn whole_view(&mut self, len: usize) -> Option<&'a View> {
        let whole = self.view.filter(|v| self.at == 0 && v.len() == len);
        self.skip(len);
        whole
    }
}
