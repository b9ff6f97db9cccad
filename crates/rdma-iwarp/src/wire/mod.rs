//! Wire formats: one file per header, each with its layout, a checked decoder, an encoder and a `Display` in
//! the manner of a packet dump. Stateless, without I/O.

pub(crate) mod crc;
pub(crate) mod ddp;
pub(crate) mod fpdu;
pub(crate) mod mpa;
pub(crate) mod rdmap;
pub(crate) mod terminate;

/// Big-endian integers at an offset of a slice; `None` beyond its end.
pub(crate) mod be {
    pub(crate) fn u16(b: &[u8], at: usize) -> Option<u16> {
        Some(u16::from_be_bytes(*b.get(at..)?.first_chunk()?))
    }

    pub(crate) fn u32(b: &[u8], at: usize) -> Option<u32> {
        Some(u32::from_be_bytes(*b.get(at..)?.first_chunk()?))
    }

    pub(crate) fn u64(b: &[u8], at: usize) -> Option<u64> {
        Some(u64::from_be_bytes(*b.get(at..)?.first_chunk()?))
    }
}
