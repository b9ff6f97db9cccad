//! PDUs that a target sends.

use super::{
    AsyncEvent, Bhs, Invalid, Isid, LogoutResult, Numbers, RESERVED_TAG, RejectReason, Residual, Stage,
    TaskResult,
    fields::{CONTINUE, FINAL, Reader, Writer, bit, stage_byte},
    opcode,
};

const STATUS: u8 = 0x01;

/// A PDU of a target, without its data segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response {
    /// NOP-In.
    NopIn(NopIn),
    /// SCSI Response.
    Scsi(ScsiResponse),
    /// Task Management Function Response.
    Task(TaskResponse),
    /// Login Response.
    Login(LoginResponse),
    /// Text Response.
    Text(TextResponse),
    /// SCSI Data-In.
    DataIn(DataIn),
    /// Logout Response.
    Logout(LogoutResponse),
    /// Ready To Transfer.
    R2t(R2t),
    /// Asynchronous Message.
    Async(AsyncMessage),
    /// Reject.
    Reject(Reject),
}

/// NOP-In (RFC 7143 section 11.19): a ping, or the answer to one with its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NopIn {
    /// The logical unit that a NOP-Out in answer repeats.
    pub lun: u64,
    /// Tag of the NOP-Out that this PDU answers; otherwise [`RESERVED_TAG`].
    pub itt: u32,
    /// Tag for the answer; [`RESERVED_TAG`] if none is requested.
    pub ttt: u32,
    /// Numbers. Without a tag of a NOP-Out, `stat_sn` is that of the next status.
    pub numbers: Numbers,
}

/// SCSI Response (RFC 7143 section 11.4). Its data is the length of the sense data (16 bits) and the sense data.
/// The residual count of bidirectional commands is absent, because such commands are not supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScsiResponse {
    /// iSCSI response: 0, the command is completed, 1, the target failed; `status` is valid only with 0.
    pub response: u8,
    /// SCSI status.
    pub status: u8,
    /// Tag of the task.
    pub itt: u32,
    /// Numbers.
    pub numbers: Numbers,
    /// Number of Data-In and R2T PDUs that the target sent for the task.
    pub exp_data_sn: u32,
    /// Difference of lengths.
    pub residual: Residual,
}

/// Task Management Function Response (RFC 7143 section 11.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskResponse {
    /// Result.
    pub result: TaskResult,
    /// Tag of the request.
    pub itt: u32,
    /// Numbers.
    pub numbers: Numbers,
}

/// Login Response (RFC 7143 section 11.13). Its data is text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginResponse {
    /// CSG: the current stage.
    pub stage: Stage,
    /// NSG, if T is set: the next stage begins.
    pub next: Option<Stage>,
    /// C: the text continues in the next response.
    pub continued: bool,
    /// Highest version that the target supports.
    pub version_max: u8,
    /// Version of the connection.
    pub version_active: u8,
    /// The initiator's part of the session identifier.
    pub isid: Isid,
    /// The target's part; not 0 in the last response of a successful login.
    pub tsih: u16,
    /// Tag of the request.
    pub itt: u32,
    /// Numbers; `stat_sn` is valid only if the status class is 0.
    pub numbers: Numbers,
    /// Status-Class.
    pub status_class: u8,
    /// Status-Detail.
    pub status_detail: u8,
}

/// Text Response (RFC 7143 section 11.11). Its data is text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextResponse {
    /// F: the negotiation is complete.
    pub last: bool,
    /// C: the text continues in the next response.
    pub continued: bool,
    /// The logical unit that a request with this tag repeats.
    pub lun: u64,
    /// Tag of the request.
    pub itt: u32,
    /// Tag for the next request; [`RESERVED_TAG`] if the negotiation is complete.
    pub ttt: u32,
    /// Numbers.
    pub numbers: Numbers,
}

/// The status in a Data-In PDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataInStatus {
    /// SCSI status: GOOD or another without sense data.
    pub status: u8,
    /// Difference of lengths.
    pub residual: Residual,
}

/// SCSI Data-In (RFC 7143 section 11.7). Acknowledgement of data is absent: it belongs to error recovery level 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataIn {
    /// F: the last PDU of its sequence.
    pub last: bool,
    /// S: the PDU completes the task, and no SCSI Response follows. Only in the last PDU.
    pub status: Option<DataInStatus>,
    /// Tag of the task.
    pub itt: u32,
    /// Numbers; `stat_sn` is valid only with a status.
    pub numbers: Numbers,
    /// Number of the PDU among the task's Data-In PDUs, from 0.
    pub data_sn: u32,
    /// Offset of the data in the task's data, in bytes.
    pub offset: u32,
}

/// Logout Response (RFC 7143 section 11.15).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogoutResponse {
    /// Result.
    pub result: LogoutResult,
    /// Tag of the request.
    pub itt: u32,
    /// Numbers.
    pub numbers: Numbers,
    /// Minimum time before a reconnect, in seconds.
    pub time2wait: u16,
    /// Time after it during which tasks are retained, in seconds.
    pub time2retain: u16,
}

/// Ready To Transfer (RFC 7143 section 11.8): requests data of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct R2t {
    /// Logical unit, which the Data-Out PDUs repeat.
    pub lun: u64,
    /// Tag of the task.
    pub itt: u32,
    /// Tag, which the Data-Out PDUs repeat.
    pub ttt: u32,
    /// Numbers; `stat_sn` is that of the next status.
    pub numbers: Numbers,
    /// Number of the R2T in the task, from 0.
    pub r2t_sn: u32,
    /// Offset of the requested data in the task's data, in bytes.
    pub offset: u32,
    /// Length of the requested data in bytes, not 0.
    pub length: u32,
}

/// Asynchronous Message (RFC 7143 section 11.9). Its data is sense data or vendor data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsyncMessage {
    /// Logical unit of a SCSI event.
    pub lun: u64,
    /// Numbers.
    pub numbers: Numbers,
    /// Event.
    pub event: AsyncEvent,
    /// Code of a vendor event.
    pub vendor_code: u8,
    /// Parameters 1 to 3.
    pub parameters: [u16; 3],
}

/// Reject (RFC 7143 section 11.17). Its data is the header of the rejected PDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reject {
    /// Reason.
    pub reason: RejectReason,
    /// Numbers.
    pub numbers: Numbers,
    /// Number of a rejected data acknowledgement.
    pub data_sn: u32,
}

impl Response {
    /// Decodes the header of a PDU that an initiator received. Additional header segments are not covered
    /// ([`check_ahs`](super::check_ahs)), nor is the length of the data ([`PduReader`](super::PduReader)).
    ///
    /// # Errors
    ///
    /// The opcode is not one of a target, or a field has a forbidden value. An initiator has no Reject PDU: it
    /// ends the connection.
    pub fn decode(bhs: &Bhs) -> Result<Self, Invalid> {
        let r = Reader(bhs);
        Ok(match r.u8(0) & 0x3f {
            opcode::NOP_IN => Self::NopIn(NopIn::decode(r)?),
            opcode::SCSI_RESPONSE => Self::Scsi(ScsiResponse::decode(r)?),
            opcode::TASK_RESPONSE => Self::Task(TaskResponse::decode(r)?),
            opcode::LOGIN_RESPONSE => Self::Login(LoginResponse::decode(r)?),
            opcode::TEXT_RESPONSE => Self::Text(TextResponse::decode(r)?),
            opcode::DATA_IN => Self::DataIn(DataIn::decode(r)?),
            opcode::LOGOUT_RESPONSE => Self::Logout(LogoutResponse::decode(r)?),
            opcode::R2T => Self::R2t(R2t::decode(r)?),
            opcode::ASYNC => Self::Async(AsyncMessage::decode(r)),
            opcode::REJECT => Self::Reject(Reject::decode(r)),
            other => return Err(Invalid::Opcode(other)),
        })
    }

    /// Encodes the header of a PDU with `data` bytes in its data segment.
    ///
    /// `data` is at most [`MAX_DATA_BYTES`](super::MAX_DATA_BYTES): the field has 24 bits.
    pub fn encode(&self, data: u32) -> Bhs {
        match self {
            Self::NopIn(p) => p.encode(data),
            Self::Scsi(p) => p.encode(data),
            Self::Task(p) => p.encode(data),
            Self::Login(p) => p.encode(data),
            Self::Text(p) => p.encode(data),
            Self::DataIn(p) => p.encode(data),
            Self::Logout(p) => p.encode(data),
            Self::R2t(p) => p.encode(data),
            Self::Async(p) => p.encode(data),
            Self::Reject(p) => p.encode(data),
        }
    }
}

impl NopIn {
    fn decode(r: Reader<'_>) -> Result<Self, Invalid> {
        Ok(Self { lun: r.u64(8), itt: r.itt(), ttt: r.u32(20), numbers: r.numbers() })
    }

    fn encode(&self, data: u32) -> Bhs {
        Writer::new(opcode::NOP_IN, FINAL, self.itt, data)
            .u64(8, self.lun)
            .u32(20, self.ttt)
            .numbers(self.numbers)
            .finish()
    }
}

impl ScsiResponse {
    fn decode(r: Reader<'_>) -> Result<Self, Invalid> {
        Ok(Self {
            response: r.u8(2),
            status: r.u8(3),
            itt: r.task_tag()?,
            numbers: r.numbers(),
            exp_data_sn: r.u32(36),
            residual: r.residual()?,
        })
    }

    fn encode(&self, data: u32) -> Bhs {
        Writer::new(opcode::SCSI_RESPONSE, FINAL, self.itt, data)
            .u8(2, self.response)
            .u8(3, self.status)
            .numbers(self.numbers)
            .u32(36, self.exp_data_sn)
            .residual(self.residual)
            .finish()
    }
}

impl TaskResponse {
    fn decode(r: Reader<'_>) -> Result<Self, Invalid> {
        Ok(Self { result: TaskResult(r.u8(2)), itt: r.task_tag()?, numbers: r.numbers() })
    }

    fn encode(&self, data: u32) -> Bhs {
        Writer::new(opcode::TASK_RESPONSE, FINAL, self.itt, data)
            .u8(2, self.result.0)
            .numbers(self.numbers)
            .finish()
    }
}

impl LoginResponse {
    fn decode(r: Reader<'_>) -> Result<Self, Invalid> {
        let (status_class, status_detail) = (r.u8(36), r.u8(37));
        // With an error status the stages are not valid (RFC 7143 section 11.13.5).
        let (stage, next, continued) =
            if status_class == 0 { r.stages()? } else { (Stage::Security, None, false) };
        Ok(Self {
            stage,
            next,
            continued,
            version_max: r.u8(2),
            version_active: r.u8(3),
            isid: Isid(r.bytes(8)),
            tsih: r.u16(14),
            itt: r.itt(),
            numbers: r.numbers(),
            status_class,
            status_detail,
        })
    }

    fn encode(&self, data: u32) -> Bhs {
        let flags = stage_byte(self.stage, self.next, self.continued);
        Writer::new(opcode::LOGIN_RESPONSE, flags, self.itt, data)
            .u8(2, self.version_max)
            .u8(3, self.version_active)
            .bytes(8, &self.isid.0)
            .u16(14, self.tsih)
            .numbers(self.numbers)
            .u8(36, self.status_class)
            .u8(37, self.status_detail)
            .finish()
    }
}

impl TextResponse {
    fn decode(r: Reader<'_>) -> Result<Self, Invalid> {
        let (last, continued) = r.text_flags()?;
        let (lun, ttt) = (r.u64(8), r.u32(20));
        if last != (ttt == RESERVED_TAG) {
            return Err(Invalid::Field("target transfer tag of a Text Response"));
        }
        Ok(Self { last, continued, lun, itt: r.task_tag()?, ttt, numbers: r.numbers() })
    }

    fn encode(&self, data: u32) -> Bhs {
        let flags = bit(self.last, FINAL) | bit(self.continued, CONTINUE);
        Writer::new(opcode::TEXT_RESPONSE, flags, self.itt, data)
            .u64(8, self.lun)
            .u32(20, self.ttt)
            .numbers(self.numbers)
            .finish()
    }
}

impl DataIn {
    fn decode(r: Reader<'_>) -> Result<Self, Invalid> {
        let last = r.flag(FINAL);
        let status = if r.flag(STATUS) {
            Some(DataInStatus { status: r.u8(3), residual: r.residual()? })
        } else {
            None
        };
        if status.is_some() && !last {
            return Err(Invalid::Field("Data-In: status before the last PDU"));
        }
        Ok(Self {
            last,
            status,
            itt: r.task_tag()?,
            numbers: r.numbers(),
            data_sn: r.u32(36),
            offset: r.u32(40),
        })
    }

    fn encode(&self, data: u32) -> Bhs {
        let flags = bit(self.last, FINAL) | bit(self.status.is_some(), STATUS);
        let w = Writer::new(opcode::DATA_IN, flags, self.itt, data)
            .u32(20, RESERVED_TAG)
            .numbers(self.numbers)
            .u32(36, self.data_sn)
            .u32(40, self.offset);
        match self.status {
            Some(s) => w.u8(3, s.status).residual(s.residual).finish(),
            None => w.finish(),
        }
    }
}

impl LogoutResponse {
    fn decode(r: Reader<'_>) -> Result<Self, Invalid> {
        Ok(Self {
            result: LogoutResult(r.u8(2)),
            itt: r.task_tag()?,
            numbers: r.numbers(),
            time2wait: r.u16(40),
            time2retain: r.u16(42),
        })
    }

    fn encode(&self, data: u32) -> Bhs {
        Writer::new(opcode::LOGOUT_RESPONSE, FINAL, self.itt, data)
            .u8(2, self.result.0)
            .numbers(self.numbers)
            .u16(40, self.time2wait)
            .u16(42, self.time2retain)
            .finish()
    }
}

impl R2t {
    fn decode(r: Reader<'_>) -> Result<Self, Invalid> {
        let (ttt, length) = (r.u32(20), r.u32(44));
        if ttt == RESERVED_TAG {
            return Err(Invalid::Field("target transfer tag of an R2T"));
        }
        if length == 0 {
            return Err(Invalid::Field("length of an R2T: 0"));
        }
        Ok(Self {
            lun: r.u64(8),
            itt: r.task_tag()?,
            ttt,
            numbers: r.numbers(),
            r2t_sn: r.u32(36),
            offset: r.u32(40),
            length,
        })
    }

    fn encode(&self, data: u32) -> Bhs {
        Writer::new(opcode::R2T, FINAL, self.itt, data)
            .u64(8, self.lun)
            .u32(20, self.ttt)
            .numbers(self.numbers)
            .u32(36, self.r2t_sn)
            .u32(40, self.offset)
            .u32(44, self.length)
            .finish()
    }
}

impl AsyncMessage {
    fn decode(r: Reader<'_>) -> Self {
        Self {
            lun: r.u64(8),
            numbers: r.numbers(),
            event: AsyncEvent(r.u8(36)),
            vendor_code: r.u8(37),
            parameters: [r.u16(38), r.u16(40), r.u16(42)],
        }
    }

    fn encode(&self, data: u32) -> Bhs {
        let [p1, p2, p3] = self.parameters;
        Writer::new(opcode::ASYNC, FINAL, RESERVED_TAG, data)
            .u64(8, self.lun)
            .numbers(self.numbers)
            .u8(36, self.event.0)
            .u8(37, self.vendor_code)
            .u16(38, p1)
            .u16(40, p2)
            .u16(42, p3)
            .finish()
    }
}

impl Reject {
    fn decode(r: Reader<'_>) -> Self {
        Self { reason: RejectReason(r.u8(2)), numbers: r.numbers(), data_sn: r.u32(36) }
    }

    fn encode(&self, data: u32) -> Bhs {
        Writer::new(opcode::REJECT, FINAL, RESERVED_TAG, data)
            .u8(2, self.reason.0)
            .numbers(self.numbers)
            .u32(36, self.data_sn)
            .finish()
    }
}
