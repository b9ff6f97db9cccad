//! PDUs that an initiator sends.

use super::{
    Bhs, Invalid, Isid, LogoutReason, RESERVED_TAG, RequestNumbers, Stage, TaskAttribute, TaskFunction,
    fields::{CONTINUE, FINAL, IMMEDIATE, Reader, Writer, bit, stage_byte},
    opcode,
};

const READ: u8 = 0x40;
const WRITE: u8 = 0x20;

/// A PDU of an initiator, without its data segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// NOP-Out.
    NopOut(NopOut),
    /// SCSI Command.
    ScsiCommand(ScsiCommand),
    /// Task Management Function Request.
    Task(TaskRequest),
    /// Login Request.
    Login(LoginRequest),
    /// Text Request.
    Text(TextRequest),
    /// SCSI Data-Out.
    DataOut(DataOut),
    /// Logout Request.
    Logout(LogoutRequest),
}

/// NOP-Out (RFC 7143 section 11.18): a ping, or the answer to one. Its data is echoed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NopOut {
    /// Whether the request is outside of the order of commands.
    pub immediate: bool,
    /// The logical unit of the NOP-In that this PDU answers; otherwise 0.
    pub lun: u64,
    /// Tag of the ping; [`RESERVED_TAG`] if no answer is requested.
    pub itt: u32,
    /// Tag of the NOP-In that this PDU answers; otherwise [`RESERVED_TAG`].
    pub ttt: u32,
    /// Numbers.
    pub numbers: RequestNumbers,
}

/// SCSI Command (RFC 7143 section 11.3). Its data is immediate data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScsiCommand {
    /// Whether the command is outside of the order of commands.
    pub immediate: bool,
    /// F: no unsolicited Data-Out PDU follows.
    pub last: bool,
    /// R: the command reads.
    pub read: bool,
    /// W: the command writes.
    pub write: bool,
    /// Ordering.
    pub attribute: TaskAttribute,
    /// Logical unit (SAM-5 section 4.7), as one big-endian number.
    pub lun: u64,
    /// Tag of the task.
    pub itt: u32,
    /// Expected data transfer length in bytes.
    pub expected: u32,
    /// Numbers.
    pub numbers: RequestNumbers,
    /// Command descriptor block.
    pub cdb: [u8; 16],
}

/// Task Management Function Request (RFC 7143 section 11.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskRequest {
    /// Whether the request is outside of the order of commands.
    pub immediate: bool,
    /// Function.
    pub function: TaskFunction,
    /// Logical unit, for functions that address one.
    pub lun: u64,
    /// Tag of this request.
    pub itt: u32,
    /// Tag of the task to which the function applies; otherwise [`RESERVED_TAG`].
    pub referenced: u32,
    /// Numbers.
    pub numbers: RequestNumbers,
    /// Command number of the referenced task.
    pub ref_cmd_sn: u32,
    /// For TASK REASSIGN.
    pub exp_data_sn: u32,
}

/// Login Request (RFC 7143 section 11.12). Its data is text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginRequest {
    /// CSG: the current stage.
    pub stage: Stage,
    /// NSG, if T is set: the initiator is ready for this stage.
    pub next: Option<Stage>,
    /// C: the text continues in the next request.
    pub continued: bool,
    /// Highest version that the initiator supports.
    pub version_max: u8,
    /// Lowest version that the initiator supports.
    pub version_min: u8,
    /// The initiator's part of the session identifier.
    pub isid: Isid,
    /// The target's part; 0 for a new session.
    pub tsih: u16,
    /// Tag; all requests of a login have the same.
    pub itt: u32,
    /// Connection identifier.
    pub cid: u16,
    /// Numbers.
    pub numbers: RequestNumbers,
}

/// Text Request (RFC 7143 section 11.10). Its data is text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextRequest {
    /// Whether the request is outside of the order of commands.
    pub immediate: bool,
    /// F: the initiator has no more to negotiate.
    pub last: bool,
    /// C: the text continues in the next request.
    pub continued: bool,
    /// Logical unit of the response that this request continues; otherwise 0.
    pub lun: u64,
    /// Tag of the request.
    pub itt: u32,
    /// Tag of the response that this request continues; otherwise [`RESERVED_TAG`].
    pub ttt: u32,
    /// Numbers.
    pub numbers: RequestNumbers,
}

/// SCSI Data-Out (RFC 7143 section 11.7): data of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataOut {
    /// F: the last PDU of its sequence.
    pub last: bool,
    /// Logical unit of the R2T; 0 for unsolicited data.
    pub lun: u64,
    /// Tag of the task.
    pub itt: u32,
    /// Tag of the R2T; [`RESERVED_TAG`] for unsolicited data.
    pub ttt: u32,
    /// Acknowledges statuses.
    pub exp_stat_sn: u32,
    /// Number of the PDU in its sequence, from 0.
    pub data_sn: u32,
    /// Offset of the data in the task's data, in bytes.
    pub offset: u32,
}

/// Logout Request (RFC 7143 section 11.14).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogoutRequest {
    /// Whether the request is outside of the order of commands.
    pub immediate: bool,
    /// Whether the session or the connection ends.
    pub reason: LogoutReason,
    /// Tag of the request.
    pub itt: u32,
    /// The connection, unless the reason is [`LogoutReason::SESSION`].
    pub cid: u16,
    /// Numbers.
    pub numbers: RequestNumbers,
}

impl Request {
    /// Decodes the header of a PDU that a target received. Additional header segments are not covered
    /// ([`check_ahs`](super::check_ahs)), nor is the length of the data ([`PduReader`](super::PduReader)).
    ///
    /// # Errors
    ///
    /// The opcode is not one of an initiator, or a field has a forbidden value.
    pub fn decode(bhs: &Bhs) -> Result<Self, Invalid> {
        let r = Reader(bhs);
        Ok(match r.u8(0) & 0x3f {
            opcode::NOP_OUT => Self::NopOut(NopOut::decode(r)?),
            opcode::SCSI_COMMAND => Self::ScsiCommand(ScsiCommand::decode(r)?),
            opcode::TASK_REQUEST => Self::Task(TaskRequest::decode(r)?),
            opcode::LOGIN_REQUEST => Self::Login(LoginRequest::decode(r)?),
            opcode::TEXT_REQUEST => Self::Text(TextRequest::decode(r)?),
            opcode::DATA_OUT => Self::DataOut(DataOut::decode(r)?),
            opcode::LOGOUT_REQUEST => Self::Logout(LogoutRequest::decode(r)?),
            opcode::SNACK => return Err(Invalid::Snack),
            other => return Err(Invalid::Opcode(other)),
        })
    }

    /// Encodes the header of a PDU with `data` bytes in its data segment.
    ///
    /// `data` is at most [`MAX_DATA_BYTES`](super::MAX_DATA_BYTES): the field has 24 bits.
    pub fn encode(&self, data: u32) -> Bhs {
        match self {
            Self::NopOut(p) => p.encode(data),
            Self::ScsiCommand(p) => p.encode(data),
            Self::Task(p) => p.encode(data),
            Self::Login(p) => p.encode(data),
            Self::Text(p) => p.encode(data),
            Self::DataOut(p) => p.encode(data),
            Self::Logout(p) => p.encode(data),
        }
    }
}

impl NopOut {
    fn decode(r: Reader<'_>) -> Result<Self, Invalid> {
        let p = Self {
            immediate: r.immediate(),
            lun: r.u64(8),
            itt: r.itt(),
            ttt: r.u32(20),
            numbers: r.request_numbers(),
        };
        // Without an answer, the PDU only acknowledges statuses, and it must not use a command number.
        if p.itt == RESERVED_TAG && !p.immediate {
            return Err(Invalid::Field("NOP-Out: no tag, but not immediate"));
        }
        Ok(p)
    }

    fn encode(&self, data: u32) -> Bhs {
        Writer::new(bit(self.immediate, IMMEDIATE) | opcode::NOP_OUT, FINAL, self.itt, data)
            .u64(8, self.lun)
            .u32(20, self.ttt)
            .request_numbers(self.numbers)
            .finish()
    }
}

impl ScsiCommand {
    fn decode(r: Reader<'_>) -> Result<Self, Invalid> {
        let p = Self {
            immediate: r.immediate(),
            last: r.flag(FINAL),
            read: r.flag(READ),
            write: r.flag(WRITE),
            attribute: TaskAttribute(r.u8(1) & 7),
            lun: r.u64(8),
            itt: r.task_tag()?,
            expected: r.u32(20),
            numbers: r.request_numbers(),
            cdb: r.bytes(32),
        };
        if !p.last && !p.write {
            return Err(Invalid::Field("SCSI Command: unsolicited data without a write"));
        }
        Ok(p)
    }

    fn encode(&self, data: u32) -> Bhs {
        let flags =
            bit(self.last, FINAL) | bit(self.read, READ) | bit(self.write, WRITE) | self.attribute.0 & 7;
        Writer::new(bit(self.immediate, IMMEDIATE) | opcode::SCSI_COMMAND, flags, self.itt, data)
            .u64(8, self.lun)
            .u32(20, self.expected)
            .request_numbers(self.numbers)
            .bytes(32, &self.cdb)
            .finish()
    }
}

impl TaskRequest {
    fn decode(r: Reader<'_>) -> Result<Self, Invalid> {
        Ok(Self {
            immediate: r.immediate(),
            function: TaskFunction(r.u8(1) & 0x7f),
            lun: r.u64(8),
            itt: r.task_tag()?,
            referenced: r.u32(20),
            numbers: r.request_numbers(),
            ref_cmd_sn: r.u32(32),
            exp_data_sn: r.u32(36),
        })
    }

    fn encode(&self, data: u32) -> Bhs {
        let byte0 = bit(self.immediate, IMMEDIATE) | opcode::TASK_REQUEST;
        Writer::new(byte0, FINAL | self.function.0 & 0x7f, self.itt, data)
            .u64(8, self.lun)
            .u32(20, self.referenced)
            .request_numbers(self.numbers)
            .u32(32, self.ref_cmd_sn)
            .u32(36, self.exp_data_sn)
            .finish()
    }
}

impl LoginRequest {
    fn decode(r: Reader<'_>) -> Result<Self, Invalid> {
        let (stage, next, continued) = r.stages()?;
        Ok(Self {
            stage,
            next,
            continued,
            version_max: r.u8(2),
            version_min: r.u8(3),
            isid: Isid(r.bytes(8)),
            tsih: r.u16(14),
            itt: r.itt(),
            cid: r.u16(20),
            numbers: r.request_numbers(),
        })
    }

    fn encode(&self, data: u32) -> Bhs {
        let flags = stage_byte(self.stage, self.next, self.continued);
        Writer::new(IMMEDIATE | opcode::LOGIN_REQUEST, flags, self.itt, data)
            .u8(2, self.version_max)
            .u8(3, self.version_min)
            .bytes(8, &self.isid.0)
            .u16(14, self.tsih)
            .u16(20, self.cid)
            .request_numbers(self.numbers)
            .finish()
    }
}

impl TextRequest {
    fn decode(r: Reader<'_>) -> Result<Self, Invalid> {
        let (last, continued) = r.text_flags()?;
        Ok(Self {
            immediate: r.immediate(),
            last,
            continued,
            lun: r.u64(8),
            itt: r.task_tag()?,
            ttt: r.u32(20),
            numbers: r.request_numbers(),
        })
    }

    fn encode(&self, data: u32) -> Bhs {
        let flags = bit(self.last, FINAL) | bit(self.continued, CONTINUE);
        Writer::new(bit(self.immediate, IMMEDIATE) | opcode::TEXT_REQUEST, flags, self.itt, data)
            .u64(8, self.lun)
            .u32(20, self.ttt)
            .request_numbers(self.numbers)
            .finish()
    }
}

impl DataOut {
    fn decode(r: Reader<'_>) -> Result<Self, Invalid> {
        Ok(Self {
            last: r.flag(FINAL),
            lun: r.u64(8),
            itt: r.task_tag()?,
            ttt: r.u32(20),
            exp_stat_sn: r.u32(28),
            data_sn: r.u32(36),
            offset: r.u32(40),
        })
    }

    fn encode(&self, data: u32) -> Bhs {
        Writer::new(opcode::DATA_OUT, bit(self.last, FINAL), self.itt, data)
            .u64(8, self.lun)
            .u32(20, self.ttt)
            .u32(28, self.exp_stat_sn)
            .u32(36, self.data_sn)
            .u32(40, self.offset)
            .finish()
    }
}

impl LogoutRequest {
    fn decode(r: Reader<'_>) -> Result<Self, Invalid> {
        Ok(Self {
            immediate: r.immediate(),
            reason: LogoutReason(r.u8(1) & 0x7f),
            itt: r.task_tag()?,
            cid: r.u16(20),
            numbers: r.request_numbers(),
        })
    }

    fn encode(&self, data: u32) -> Bhs {
        let byte0 = bit(self.immediate, IMMEDIATE) | opcode::LOGOUT_REQUEST;
        Writer::new(byte0, FINAL | self.reason.0 & 0x7f, self.itt, data)
            .u16(20, self.cid)
            .request_numbers(self.numbers)
            .finish()
    }
}
