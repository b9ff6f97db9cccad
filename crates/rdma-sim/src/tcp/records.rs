//! Counts RPC records in a stream.

/// The position of a stream relative to its record marks (RFC 5531 section 11).
#[derive(Default)]
pub(super) struct Records {
    /// Bytes of the current mark so far.
    mark: Vec<u8>,
    /// Remaining bytes of the current fragment.
    left: usize,
    /// Whether the fragment is the last of its record.
    last: bool,
}

impl Records {
    /// Processes the next bytes, and returns the number of records that they complete.
    pub(super) fn pass(&mut self, mut bytes: &[u8]) -> u64 {
        let mut ended = 0;
        while !bytes.is_empty() {
            if self.left == 0 {
                let n = bytes.len().min(4 - self.mark.len());
                self.mark.extend(&bytes[..n]);
                bytes = &bytes[n..];
                let Some(mark) = self.mark.first_chunk().map(|m| u32::from_be_bytes(*m)) else { continue };
                self.mark.clear();
                (self.left, self.last) = ((mark & 0x7fff_ffff) as usize, mark >> 31 == 1);
            } else {
                let n = bytes.len().min(self.left);
                self.left -= n;
                bytes = &bytes[n..];
            }
            if self.left == 0 && self.mark.is_empty() && self.last {
                ended += 1;
                self.last = false;
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_counted_with_any_segmentation() {
        // A record of two fragments, an empty one, and one of five bytes.
        let mut stream = vec![0, 0, 0, 3, 1, 2, 3, 0x80, 0, 0, 1, 4, 0x80, 0, 0, 0, 0x80, 0, 0, 5];
        stream.extend([0x80; 5]);
        for cut in 0..=stream.len() {
            let mut records = Records::default();
            let (a, b) = stream.split_at(cut);
            let whole = [12, 16, 25].iter().filter(|end| cut >= **end).count() as u64;
            assert_eq!((records.pass(a), records.pass(b)), (whole, 3 - whole), "cut at {cut}");
        }
        let mut records = Records::default();
        assert_eq!(stream.chunks(1).map(|b| records.pass(b)).sum::<u64>(), 3);
    }
}
