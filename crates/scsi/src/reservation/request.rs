//! Decodes the CDB and the parameter list of PERSISTENT RESERVE OUT (SPC-4 section 6.16).

use super::initiator_port::{MAX_TRANSPORT_ID, TransportId};
use super::kind::ReservationType;
use super::refusal::Refusal;
use super::state::MAX_REGISTRATIONS;

/// Length of the basic parameter list, and of REGISTER AND MOVE's without the TransportID.
const BASIC_LENGTH: usize = 24;

/// Longest parameter list of PERSISTENT RESERVE OUT, in bytes: TransportIDs for all registrations.
pub const MAX_PARAMETER_LIST: usize = BASIC_LENGTH + 4 + MAX_REGISTRATIONS * MAX_TRANSPORT_ID;

/// REGISTER, and REGISTER AND IGNORE EXISTING KEY.
#[derive(Debug)]
pub(super) struct Register {
    /// RESERVATION KEY; `None` for REGISTER AND IGNORE EXISTING KEY.
    pub(super) key: Option<u64>,
    pub(super) new_key: u64,
    pub(super) aptpl: bool,
    pub(super) all_ports: bool,
    /// The TransportIDs, if SPEC_I_PT is one.
    pub(super) initiators: Option<Vec<TransportId>>,
}

/// PREEMPT, and PREEMPT AND ABORT.
#[derive(Debug)]
pub(super) struct Preempt {
    pub(super) key: u64,
    /// SERVICE ACTION RESERVATION KEY.
    pub(super) preempted: u64,
    pub(super) kind: Option<ReservationType>,
    pub(super) abort: bool,
}

/// REGISTER AND MOVE.
#[derive(Debug)]
pub(super) struct Move {
    pub(super) key: u64,
    pub(super) new_key: u64,
    pub(super) unregister: bool,
    pub(super) aptpl: bool,
    pub(super) port: u16,
    pub(super) initiator: TransportId,
}

/// A PERSISTENT RESERVE OUT command. `kind` is `None` if SCOPE or TYPE is invalid: that is an error only after the
/// reservation key has been verified, and only where the fields are not ignored.
#[derive(Debug)]
pub(super) enum Request {
    Register(Register),
    Reserve { key: u64, kind: Option<ReservationType> },
    Release { key: u64, kind: Option<ReservationType> },
    Clear { key: u64 },
    Preempt(Preempt),
    Move(Move),
}

impl Request {
    /// Decodes a command, whose parameter list is the first bytes of `data`.
    ///
    /// # Errors
    /// The service action is unknown, or the parameter list does not have its format.
    pub(super) fn decode(cdb: &[u8; 10], data: &[u8]) -> Result<Self, Refusal> {
        let &[_, action, kind, _, _, l0, l1, l2, l3, _] = cdb;
        let action = action & 0x1f;
        if action > 7 {
            return Err(Refusal::InvalidFieldInCdb);
        }
        let length = usize::try_from(u32::from_be_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX);
        if length > MAX_PARAMETER_LIST {
            return Err(Refusal::ParameterListLength);
        }
        let list = data.get(..length).ok_or(Refusal::ParameterListLength)?;
        let (basic, rest) = list.split_first_chunk::<BASIC_LENGTH>().ok_or(Refusal::ParameterListLength)?;
        // The high half of the byte is SCOPE, and LU_SCOPE is zero.
        let kind = ReservationType::from_code(kind);
        if action == 7 { decode_move(basic, rest) } else { decode_basic(action, kind, basic, rest) }
    }
}

/// RESERVATION KEY and SERVICE ACTION RESERVATION KEY.
fn keys(list: &[u8; BASIC_LENGTH]) -> (u64, u64) {
    let &[a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ..] = list;
    (u64::from_be_bytes([a, b, c, d, e, f, g, h]), u64::from_be_bytes([i, j, k, l, m, n, o, p]))
}

fn decode_basic(
    action: u8,
    kind: Option<ReservationType>,
    list: &[u8; BASIC_LENGTH],
    rest: &[u8],
) -> Result<Request, Refusal> {
    let (key, action_key) = keys(list);
    let specify_initiators = list[20] & 0x08 != 0;
    if specify_initiators && action != 0 {
        return Err(Refusal::InvalidFieldInParameterList);
    }
    if !specify_initiators && !rest.is_empty() {
        return Err(Refusal::ParameterListLength);
    }
    Ok(match action {
        0 | 6 => Request::Register(Register {
            key: (action == 0).then_some(key),
            new_key: action_key,
            aptpl: list[20] & 0x01 != 0,
            all_ports: list[20] & 0x04 != 0,
            initiators: if specify_initiators { Some(decode_initiators(rest)?) } else { None },
        }),
        1 => Request::Reserve { key, kind },
        2 => Request::Release { key, kind },
        3 => Request::Clear { key },
        _ => Request::Preempt(Preempt { key, preempted: action_key, kind, abort: action == 5 }),
    })
}

/// The list of TransportIDs and its length (SPC-4 section 6.16.3).
fn decode_initiators(bytes: &[u8]) -> Result<Vec<TransportId>, Refusal> {
    let (&length, bytes) = bytes.split_first_chunk().ok_or(Refusal::ParameterListLength)?;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    let mut bytes = bytes.get(..length).ok_or(Refusal::ParameterListLength)?;
    let mut initiators = Vec::new();
    while !bytes.is_empty() {
        let (id, rest) = TransportId::decode(bytes).ok_or(Refusal::InvalidFieldInParameterList)?;
        initiators.push(id);
        bytes = rest;
    }
    Ok(initiators)
}

/// The parameter list of REGISTER AND MOVE (SPC-4 section 6.16.4).
fn decode_move(list: &[u8; BASIC_LENGTH], rest: &[u8]) -> Result<Request, Refusal> {
    let (key, new_key) = keys(list);
    let length = u32::from_be_bytes([list[20], list[21], list[22], list[23]]);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let id = rest.get(..length).ok_or(Refusal::ParameterListLength)?;
    let Some((initiator, [])) = TransportId::decode(id) else {
        return Err(Refusal::InvalidFieldInParameterList);
    };
    Ok(Request::Move(Move {
        key,
        new_key,
        unregister: list[17] & 0x02 != 0,
        aptpl: list[17] & 0x01 != 0,
        port: u16::from_be_bytes([list[18], list[19]]),
        initiator,
    }))
}
