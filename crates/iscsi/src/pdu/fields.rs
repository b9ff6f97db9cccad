//! Access to the fields of a basic header segment.

use super::{
    BHS_BYTES, Bhs, Invalid, MAX_DATA_BYTES, Numbers, RESERVED_TAG, RequestNumbers, Residual, Stage,
};

/// The bits of byte 1.
pub(super) const FINAL: u8 = 0x80;
pub(super) const CONTINUE: u8 = 0x40;
pub(super) const OVERFLOW: u8 = 0x04;
pub(super) const UNDERFLOW: u8 = 0x02;
/// The bit of byte 0.
pub(super) const IMMEDIATE: u8 = 0x40;

/// A header that is being encoded.
pub(super) struct Writer(Bhs);

impl Writer {
    /// A header with byte 0, byte 1, the length of the data and the initiator task tag; the rest is zero.
    pub(super) fn new(byte0: u8, byte1: u8, itt: u32, data: u32) -> Self {
        debug_assert!(data <= MAX_DATA_BYTES, "a data segment of {data} bytes");
        let mut w = Self([0; BHS_BYTES]);
        w.0[0] = byte0;
        w.0[1] = byte1;
        w.0[5..8].copy_from_slice(&data.to_be_bytes()[1..]);
        w.u32(16, itt)
    }

    pub(super) fn u8(mut self, at: usize, value: u8) -> Self {
        self.0[at] = value;
        self
    }

    pub(super) fn bytes(mut self, at: usize, value: &[u8]) -> Self {
        self.0[at..at + value.len()].copy_from_slice(value);
        self
    }

    pub(super) fn u16(self, at: usize, value: u16) -> Self {
        self.bytes(at, &value.to_be_bytes())
    }

    pub(super) fn u32(self, at: usize, value: u32) -> Self {
        self.bytes(at, &value.to_be_bytes())
    }

    pub(super) fn u64(self, at: usize, value: u64) -> Self {
        self.bytes(at, &value.to_be_bytes())
    }

    pub(super) fn request_numbers(self, n: RequestNumbers) -> Self {
        self.u32(24, n.cmd_sn).u32(28, n.exp_stat_sn)
    }

    pub(super) fn numbers(self, n: Numbers) -> Self {
        self.u32(24, n.stat_sn).u32(28, n.exp_cmd_sn).u32(32, n.max_cmd_sn)
    }

    /// Sets the flags and the count of `residual`.
    pub(super) fn residual(mut self, residual: Residual) -> Self {
        let (flag, count) = match residual {
            Residual::None => (0, 0),
            Residual::Underflow(n) => (UNDERFLOW, n),
            Residual::Overflow(n) => (OVERFLOW, n),
        };
        self.0[1] |= flag;
        self.u32(44, count)
    }

    pub(super) fn finish(self) -> Bhs {
        self.0
    }
}

/// `mask` if `on`, otherwise 0.
pub(super) const fn bit(on: bool, mask: u8) -> u8 {
    if on { mask } else { 0 }
}

/// A header that is being decoded.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a Bhs);

impl Reader<'_> {
    pub(super) const fn u8(self, at: usize) -> u8 {
        self.0[at]
    }

    pub(super) const fn flag(self, mask: u8) -> bool {
        self.0[1] & mask != 0
    }

    pub(super) const fn immediate(self) -> bool {
        self.0[0] & IMMEDIATE != 0
    }

    pub(super) const fn u16(self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }

    pub(super) const fn u32(self, at: usize) -> u32 {
        u32::from_be_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    pub(super) const fn u64(self, at: usize) -> u64 {
        (self.u32(at) as u64) << 32 | self.u32(at + 4) as u64
    }

    pub(super) fn bytes<const N: usize>(self, at: usize) -> [u8; N] {
        std::array::from_fn(|i| self.0[at + i])
    }

    pub(super) const fn itt(self) -> u32 {
        self.u32(16)
    }

    /// The initiator task tag of a PDU that names a task.
    pub(super) const fn task_tag(self) -> Result<u32, Invalid> {
        match self.itt() {
            RESERVED_TAG => Err(Invalid::Field("initiator task tag")),
            tag => Ok(tag),
        }
    }

    pub(super) const fn request_numbers(self) -> RequestNumbers {
        RequestNumbers { cmd_sn: self.u32(24), exp_stat_sn: self.u32(28) }
    }

    pub(super) const fn numbers(self) -> Numbers {
        Numbers { stat_sn: self.u32(24), exp_cmd_sn: self.u32(28), max_cmd_sn: self.u32(32) }
    }

    pub(super) const fn residual(self) -> Result<Residual, Invalid> {
        match (self.flag(OVERFLOW), self.flag(UNDERFLOW)) {
            (false, false) => Ok(Residual::None),
            (false, true) => Ok(Residual::Underflow(self.u32(44))),
            (true, false) => Ok(Residual::Overflow(self.u32(44))),
            (true, true) => Err(Invalid::Field("residual: both overflow and underflow")),
        }
    }

    /// The flags F and C of a text PDU: at most one of them is set.
    pub(super) const fn text_flags(self) -> Result<(bool, bool), Invalid> {
        match (self.flag(FINAL), self.flag(CONTINUE)) {
            (true, true) => Err(Invalid::Field("text flags: both final and continued")),
            flags => Ok(flags),
        }
    }

    /// The current stage, the next stage if the T bit is set, and the C bit of a login PDU.
    pub(super) fn stages(self) -> Result<(Stage, Option<Stage>, bool), Invalid> {
        let stage = Stage::decode(self.0[1] >> 2)?;
        if stage == Stage::FullFeature {
            return Err(Invalid::Field("login stage"));
        }
        let next = if self.flag(FINAL) { Some(Stage::decode(self.0[1])?) } else { None };
        if next.is_some_and(|next| next <= stage) {
            return Err(Invalid::Field("next login stage"));
        }
        let continued = self.flag(CONTINUE);
        if continued && next.is_some() {
            return Err(Invalid::Field("login flags: both transit and continued"));
        }
        Ok((stage, next, continued))
    }
}

/// Byte 1 of a login PDU.
pub(super) const fn stage_byte(stage: Stage, next: Option<Stage>, continued: bool) -> u8 {
    let next = match next {
        Some(next) => FINAL | next.bits(),
        None => 0,
    };
    next | bit(continued, CONTINUE) | stage.bits() << 2
}
