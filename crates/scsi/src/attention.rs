//! Unit attention conditions (SAM-5 section 5.14).

use crate::sense::{AdditionalSense, Sense, SenseKey};

/// A unit attention condition, in the order of reporting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum UnitAttention {
    PowerOn,
    DeviceReset,
    NexusLoss,
    CommandsCleared,
    ReservationsPreempted,
    ReservationsReleased,
    RegistrationsPreempted,
    ModeParametersChanged,
    CapacityChanged,
    InquiryChanged,
    ReportedLunsChanged,
}

impl UnitAttention {
    const ALL: [Self; 11] = [
        Self::PowerOn,
        Self::DeviceReset,
        Self::NexusLoss,
        Self::CommandsCleared,
        Self::ReservationsPreempted,
        Self::ReservationsReleased,
        Self::RegistrationsPreempted,
        Self::ModeParametersChanged,
        Self::CapacityChanged,
        Self::InquiryChanged,
        Self::ReportedLunsChanged,
    ];

    pub(crate) const fn sense(self) -> Sense {
        let additional = match self {
            Self::PowerOn => AdditionalSense::POWER_ON,
            Self::DeviceReset => AdditionalSense::DEVICE_RESET,
            Self::NexusLoss => AdditionalSense::NEXUS_LOSS,
            Self::CommandsCleared => AdditionalSense::COMMANDS_CLEARED,
            Self::ReservationsPreempted => AdditionalSense::RESERVATIONS_PREEMPTED,
            Self::ReservationsReleased => AdditionalSense::RESERVATIONS_RELEASED,
            Self::RegistrationsPreempted => AdditionalSense::REGISTRATIONS_PREEMPTED,
            Self::ModeParametersChanged => AdditionalSense::MODE_PARAMETERS_CHANGED,
            Self::CapacityChanged => AdditionalSense::CAPACITY_CHANGED,
            Self::InquiryChanged => AdditionalSense::INQUIRY_CHANGED,
            Self::ReportedLunsChanged => AdditionalSense::REPORTED_LUNS_CHANGED,
        };
        Sense::new(SenseKey::UnitAttention, additional)
    }
}

/// The pending conditions of an I_T_L nexus: each at most once.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Attentions(u16);

impl Attentions {
    pub(crate) fn raise(&mut self, attention: UnitAttention) {
        self.0 |= 1 << attention as u8;
    }

    pub(crate) fn clear(&mut self, attention: UnitAttention) {
        self.0 &= !(1 << attention as u8);
    }

    /// These conditions and `others`.
    pub(crate) const fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Takes the condition to report next.
    pub(crate) fn take(&mut self) -> Option<UnitAttention> {
        let next = UnitAttention::ALL.into_iter().find(|a| self.0 & 1 << *a as u8 != 0)?;
        self.clear(next);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_reported_once_in_order() {
        let mut pending = Attentions::default();
        for attention in
            [UnitAttention::CapacityChanged, UnitAttention::PowerOn, UnitAttention::CapacityChanged]
        {
            pending.raise(attention);
        }
        assert_eq!(pending.take(), Some(UnitAttention::PowerOn));
        assert_eq!(pending.take(), Some(UnitAttention::CapacityChanged));
        assert_eq!(pending.take(), None);
        for attention in UnitAttention::ALL {
            pending.raise(attention);
        }
        pending.clear(UnitAttention::ReportedLunsChanged);
        assert_eq!(std::iter::from_fn(|| pending.take()).count(), 10);
    }
}
