//! Why a command is refused, and the unit attention conditions that commands establish for other initiator ports.

/// A command is not executed: the status, and the sense data of CHECK CONDITION.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// RESERVATION CONFLICT status.
    #[error(
        "reservation conflict: another initiator port holds a reservation, or the reservation key is not this nexus's; read the reservations and register"
    )]
    Conflict,
    /// A service action, scope or type that is invalid, or REGISTER AND MOVE without a reservation.
    #[error(
        "invalid field in CDB: the service action, scope or type is not supported; see REPORT CAPABILITIES"
    )]
    InvalidFieldInCdb,
    /// A parameter list with an invalid key, bit or TransportID.
    #[error(
        "invalid field in parameter list: a key, bit or TransportID does not apply to the service action; correct the parameter list"
    )]
    InvalidFieldInParameterList,
    /// The parameter list has fewer or more bytes than its format.
    #[error(
        "parameter list length error: the list is shorter or longer than its format; send the length of SPC-4 section 6.16"
    )]
    ParameterListLength,
    /// RELEASE by the holder with another scope or type.
    #[error(
        "invalid release of persistent reservation: scope and type differ from the reservation's; read the reservation and repeat"
    )]
    InvalidRelease,
    /// The registrations exceed [`MAX_REGISTRATIONS`](super::MAX_REGISTRATIONS).
    #[error(
        "insufficient registration resources: the unit has no room for the registrations; remove others with PREEMPT or CLEAR"
    )]
    InsufficientRegistrationResources,
}

impl Refusal {
    /// ASC and ASCQ of the sense data of CHECK CONDITION, whose sense key is ILLEGAL REQUEST. `None`: the status is
    /// RESERVATION CONFLICT, without sense data.
    pub fn additional_sense(self) -> Option<(u8, u8)> {
        match self {
            Self::Conflict => None,
            Self::InvalidFieldInCdb => Some((0x24, 0x00)),
            Self::InvalidFieldInParameterList => Some((0x26, 0x00)),
            Self::ParameterListLength => Some((0x1a, 0x00)),
            Self::InvalidRelease => Some((0x26, 0x04)),
            Self::InsufficientRegistrationResources => Some((0x55, 0x04)),
        }
    }
}

/// A unit attention condition of reservations (SPC-4 section 5.13.11).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attention {
    /// RESERVATIONS PREEMPTED: CLEAR removed the registration.
    ReservationsPreempted,
    /// RESERVATIONS RELEASED: the reservation was released or has another type; the registration remains.
    ReservationsReleased,
    /// REGISTRATIONS PREEMPTED: PREEMPT removed the registration.
    RegistrationsPreempted,
}

impl Attention {
    /// ASC and ASCQ of the sense data, whose sense key is UNIT ATTENTION.
    pub fn additional_sense(self) -> (u8, u8) {
        match self {
            Self::ReservationsPreempted => (0x2a, 0x03),
            Self::ReservationsReleased => (0x2a, 0x04),
            Self::RegistrationsPreempted => (0x2a, 0x05),
        }
    }
}
