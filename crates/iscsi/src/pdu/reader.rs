//! Division of a byte stream into PDUs.

use super::{BHS_BYTES, Bhs, Digest, Invalid, Lengths, MAX_AHS_BYTES, padding};

/// A part of a PDU, in the order of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The basic header segment.
    Header,
    /// The additional header segments.
    Ahs,
    /// The digest of both.
    HeaderDigest,
    /// The data segment.
    Data,
    /// The zero bytes after the data.
    Pad,
    /// The digest of data and padding.
    DataDigest,
    /// The PDU is complete: [`PduReader::finish`].
    End,
}

/// Returns what the owner of a byte stream has to receive next, and checks lengths and digests.
///
/// ```text
/// loop { let (part, n) = reader.next(); match part {
///     Part::End => { .. the PDU reader.header(), reader.ahs() and the data; reader.finish() }
///     Part::Data => .. receive up to n bytes into their final memory, which reader.header() determines
///     _ => .. receive up to n bytes anywhere
/// } reader.supply(the received bytes)?; }
/// ```
///
/// The reader stores headers and digests; the caller stores data. Parts of length 0 do not occur.
#[derive(Debug)]
pub struct PduReader {
    max_data: u32,
    header_digest: bool,
    data_digest: bool,
    part: Part,
    missing: usize,
    bhs: Bhs,
    ahs: Vec<u8>,
    received_digest: [u8; 4],
    digest: Digest,
}

impl PduReader {
    /// A reader without digests, as login requires, for data segments of at most `max_data` bytes: this side's
    /// `MaxRecvDataSegmentLength` (8192 during login).
    pub fn new(max_data: u32) -> Self {
        Self {
            max_data,
            header_digest: false,
            data_digest: false,
            part: Part::Header,
            missing: BHS_BYTES,
            bhs: [0; BHS_BYTES],
            ahs: Vec::new(),
            received_digest: [0; 4],
            digest: Digest::new(),
        }
    }

    /// Sets what the login has negotiated, between two PDUs.
    pub fn set(&mut self, max_data: u32, header_digest: bool, data_digest: bool) {
        (self.max_data, self.header_digest, self.data_digest) = (max_data, header_digest, data_digest);
    }

    /// The part that comes next, and how many bytes of it are missing: 0 only with [`Part::End`].
    pub const fn next(&self) -> (Part, usize) {
        (self.part, self.missing)
    }

    /// The header, when it is complete and its digest is correct.
    pub const fn header(&self) -> Option<&Bhs> {
        match self.part {
            Part::Header | Part::Ahs | Part::HeaderDigest => None,
            Part::Data | Part::Pad | Part::DataDigest | Part::End => Some(&self.bhs),
        }
    }

    /// The additional header segments, valid with [`PduReader::header`]; [`check_ahs`](super::check_ahs).
    pub fn ahs(&self) -> &[u8] {
        &self.ahs
    }

    /// Takes the next bytes of the current part. Bytes beyond its end are ignored.
    ///
    /// # Errors
    ///
    /// The data segment is too long, or a digest differs. The stream has no boundary of a PDU after an error
    /// other than [`Invalid::DataDigest`]; at error recovery level 0 any of them ends the connection.
    pub fn supply(&mut self, bytes: &[u8]) -> Result<(), Invalid> {
        let bytes = &bytes[..bytes.len().min(self.missing)];
        let done = match self.part {
            Part::Header => BHS_BYTES - self.missing,
            _ => 4usize.saturating_sub(self.missing), // A digest has 4 bytes.
        };
        match self.part {
            Part::Header => self.bhs[done..done + bytes.len()].copy_from_slice(bytes),
            Part::Ahs => self.ahs.extend_from_slice(bytes),
            Part::HeaderDigest | Part::DataDigest => {
                self.received_digest[done..done + bytes.len()].copy_from_slice(bytes);
            }
            Part::Data | Part::Pad if self.data_digest => self.digest.update(bytes),
            Part::Data | Part::Pad | Part::End => {}
        }
        self.missing -= bytes.len();
        if self.missing == 0 { self.advance() } else { Ok(()) }
    }

    /// Ends the current PDU, whose part is [`Part::End`]; the next part is a header.
    pub fn finish(&mut self) {
        debug_assert_eq!(self.part, Part::End);
        self.ahs.clear();
        self.enter(Part::Header, BHS_BYTES);
    }

    /// Checks the complete part and selects the next one that is not empty.
    fn advance(&mut self) -> Result<(), Invalid> {
        let lengths = Lengths::of(&self.bhs);
        match self.part {
            Part::Header => {
                if lengths.data > self.max_data {
                    return Err(Invalid::DataLength { length: lengths.data, maximum: self.max_data });
                }
                debug_assert!(lengths.ahs <= MAX_AHS_BYTES);
            }
            Part::HeaderDigest => {
                let expected = super::digest(&[&self.bhs, &self.ahs]);
                if self.received_digest != expected {
                    return Err(Invalid::HeaderDigest);
                }
            }
            Part::DataDigest if self.received_digest != self.digest.wire() => {
                return Err(Invalid::DataDigest);
            }
            _ => {}
        }
        let digest = |on: bool| if on { 4 } else { 0 };
        let parts = [
            (Part::Header, BHS_BYTES),
            (Part::Ahs, lengths.ahs),
            (Part::HeaderDigest, digest(self.header_digest)),
            (Part::Data, lengths.data as usize),
            (Part::Pad, padding(lengths.data)),
            (Part::DataDigest, digest(self.data_digest && lengths.data > 0)),
        ];
        let later = parts.iter().skip_while(|(part, _)| *part != self.part).skip(1);
        let (part, length) = later.copied().find(|(_, length)| *length > 0).unwrap_or((Part::End, 0));
        self.enter(part, length);
        Ok(())
    }

    fn enter(&mut self, part: Part, length: usize) {
        if part == Part::Data {
            self.digest = Digest::new();
        }
        (self.part, self.missing) = (part, length);
    }
}
