//! Counts the messages of a stream.

use std::ops::Range;

/// How a TCP stream is divided into messages. Each costs its reader the processing of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// RPC records with record marks (RFC 5531 section 11).
    #[default]
    Rpc,
    /// iSCSI PDUs without digests (RFC 7143 section 11.2).
    Iscsi,
}

impl Framing {
    /// Bytes of a header, which has the length of what follows it.
    const fn header_bytes(self) -> usize {
        match self {
            Self::Rpc => 4,
            Self::Iscsi => 48,
        }
    }

    /// The number of bytes after this header, and whether they end the message.
    fn rest(self, header: &[u8]) -> (usize, bool) {
        let number = |range: Range<usize>| {
            header.get(range).unwrap_or_default().iter().fold(0, |n, byte| n << 8 | usize::from(*byte))
        };
        match self {
            Self::Rpc => (number(0..4) & 0x7fff_ffff, number(0..4) >> 31 == 1),
            Self::Iscsi => (4 * number(4..5) + number(5..8).next_multiple_of(4), true),
        }
    }
}

/// The position of a stream relative to its messages.
#[derive(Default)]
pub(super) struct Messages {
    framing: Framing,
    /// Bytes of the current header so far.
    header: Vec<u8>,
    /// Remaining bytes after the current header.
    left: usize,
    /// Whether these bytes end the message.
    last: bool,
}

impl Messages {
    pub(super) fn new(framing: Framing) -> Self {
        Self { framing, ..Self::default() }
    }

    /// Processes the next bytes, and returns the number of messages that they complete.
    pub(super) fn pass(&mut self, mut bytes: &[u8]) -> u64 {
        let mut ended = 0;
        while !bytes.is_empty() {
            if self.left == 0 {
                let n = bytes.len().min(self.framing.header_bytes() - self.header.len());
                self.header.extend(&bytes[..n]);
                bytes = &bytes[n..];
                if self.header.len() < self.framing.header_bytes() {
                    continue;
                }
                (self.left, self.last) = self.framing.rest(&self.header);
                self.header.clear();
            } else {
                let n = bytes.len().min(self.left);
                self.left -= n;
                bytes = &bytes[n..];
            }
            if self.left == 0 && self.last {
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

    /// Checks that a stream whose messages end at `ends` is counted correctly with any segmentation.
    fn check(framing: Framing, stream: &[u8], ends: [usize; 3]) {
        for cut in 0..=stream.len() {
            let mut messages = Messages::new(framing);
            let (a, b) = stream.split_at(cut);
            let whole = ends.iter().filter(|end| cut >= **end).count() as u64;
            assert_eq!((messages.pass(a), messages.pass(b)), (whole, 3 - whole), "cut at {cut}");
        }
        let mut messages = Messages::new(framing);
        assert_eq!(stream.chunks(1).map(|b| messages.pass(b)).sum::<u64>(), 3);
    }

    #[test]
    fn rpc_records_are_counted_with_any_segmentation() {
        // A record of two fragments, an empty one, and one of five bytes.
        let mut stream = vec![0, 0, 0, 3, 1, 2, 3, 0x80, 0, 0, 1, 4, 0x80, 0, 0, 0, 0x80, 0, 0, 5];
        stream.extend([0x80; 5]);
        check(Framing::Rpc, &stream, [12, 16, 25]);
    }

    #[test]
    fn iscsi_pdus_are_counted_with_any_segmentation() {
        let pdu = |ahs: u8, length: u8| {
            let mut pdu = vec![0xff; 48];
            pdu[4..8].copy_from_slice(&[ahs, 0, 0, length]);
            pdu.resize(48 + 4 * usize::from(ahs) + usize::from(length).next_multiple_of(4), 0xff);
            pdu
        };
        let stream = [pdu(0, 0), pdu(2, 5), pdu(0, 4)].concat();
        check(Framing::Iscsi, &stream, [48, 112, 164]);
    }
}
