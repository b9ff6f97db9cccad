//! Classification of the outcome of a command: complete, to be repeated, or an error of the operation.

use millrace_iscsi::session::Outcome;
use millrace_scsi::{AdditionalSense, Sense, SenseKey, Status};

use crate::error::Failure;

/// TASK ABORTED (SAM-5 section 5.3.1), which [`Status`] lacks, because disks do not send it.
const TASK_ABORTED: u8 = 0x40;

/// The consequence of the outcome of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The command is complete, with this number of bytes transferred.
    Done(u32),
    /// A unit attention condition: the command was not executed and is sent again at once.
    Attention(Sense),
    /// A deferred error: the device could not write data of completed writes to the medium. The command was not executed
    /// and is sent again at once.
    Deferred(Sense),
    /// The command was not executed and is sent again at once.
    Again(Failure),
    /// The command was not executed and is sent again later.
    Later(Failure),
    /// The command failed.
    Failed(Failure),
}

/// Judges an outcome.
pub(crate) fn judge(outcome: Outcome) -> Verdict {
    let (status, sense, transferred) = match outcome {
        Outcome::Completed { status, sense, transferred, .. } => (status, sense, transferred),
        Outcome::TargetFailure(code) => {
            return Verdict::Later(Failure::Other(format!(
                "the target failed with the response code {code:#04x}"
            )));
        }
        Outcome::Aborted => return Verdict::Again(Failure::Other("the command was aborted".into())),
        Outcome::Rejected(reason) => {
            return Verdict::Failed(Failure::Other(format!("the target rejected the command: {reason}")));
        }
    };
    let is = |s: Status| status == s as u8;
    if is(Status::Good) {
        return Verdict::Done(transferred);
    }
    if is(Status::Busy) || is(Status::TaskSetFull) {
        return Verdict::Later(Failure::Other("the target is busy".into()));
    }
    if status == TASK_ABORTED {
        return Verdict::Again(Failure::Other("another initiator aborted the command".into()));
    }
    if is(Status::ReservationConflict) {
        return Verdict::Failed(Failure::Reserved);
    }
    let Some(sense) = Sense::decode(&sense).filter(|_| is(Status::CheckCondition)) else {
        return Verdict::Failed(Failure::Other(format!("status {status:#04x} without sense data")));
    };
    if sense.deferred {
        return match sense.key {
            // These deferred errors have no consequence for data.
            SenseKey::NoSense | SenseKey::RecoveredError | SenseKey::Completed => {
                Verdict::Again(Failure::Sense(sense))
            }
            _ => Verdict::Deferred(sense),
        };
    }
    match sense.key {
        SenseKey::NoSense | SenseKey::RecoveredError | SenseKey::Completed => Verdict::Done(transferred),
        SenseKey::UnitAttention => Verdict::Attention(sense),
        SenseKey::AbortedCommand => Verdict::Again(Failure::Sense(sense)),
        SenseKey::NotReady => Verdict::Later(Failure::Sense(sense)),
        _ => Verdict::Failed(Failure::Sense(sense)),
    }
}

/// Whether a unit attention condition reports an event after which a volatile write cache may be empty: a power on or
/// reset (SPC-4 annex F: 29h), except for the loss of the I_T nexus and changes of the transceiver.
pub(crate) const fn is_reset(additional: AdditionalSense) -> bool {
    matches!(additional, AdditionalSense(0x29, qualifier) if !matches!(qualifier, 0x05..=0x07))
}

/// Whether a unit attention condition reports that the mode parameters, such as the write cache, may have changed.
pub(crate) const fn is_mode_change(additional: AdditionalSense) -> bool {
    matches!(additional, AdditionalSense(0x2a, 0x00 | 0x01))
}

#[cfg(test)]
mod tests {
    use millrace_iscsi::pdu::Residual;

    use super::*;

    fn verdict(status: u8, sense: &[u8]) -> Verdict {
        let sense = sense.to_vec();
        judge(Outcome::Completed { status, sense, residual: Residual::None, transferred: 512 })
    }

    #[test]
    fn outcomes_have_the_expected_verdicts() {
        let sense = |key, additional| Sense::new(key, additional).to_bytes();
        assert_eq!(verdict(0, &[]), Verdict::Done(512));
        assert_eq!(verdict(2, &sense(SenseKey::RecoveredError, AdditionalSense::NONE)), Verdict::Done(512));
        let attention = Sense::new(SenseKey::UnitAttention, AdditionalSense::POWER_ON);
        assert_eq!(verdict(2, &attention.to_bytes()), Verdict::Attention(attention));
        let lost = Sense::new(SenseKey::MediumError, AdditionalSense::WRITE_ERROR).into_deferred();
        assert_eq!(verdict(2, &lost.to_bytes()), Verdict::Deferred(lost));
        let recovered = Sense::new(SenseKey::RecoveredError, AdditionalSense::NONE).into_deferred();
        assert_eq!(verdict(2, &recovered.to_bytes()), Verdict::Again(Failure::Sense(recovered)));
        let aborted = sense(SenseKey::AbortedCommand, AdditionalSense::NONE);
        for again in [verdict(2, &aborted), verdict(TASK_ABORTED, &[]), judge(Outcome::Aborted)] {
            assert!(matches!(again, Verdict::Again(_)));
        }
        for later in [verdict(0x08, &[]), verdict(0x28, &[]), judge(Outcome::TargetFailure(1))] {
            assert!(matches!(later, Verdict::Later(_)));
        }
        assert_eq!(verdict(0x18, &[]), Verdict::Failed(Failure::Reserved));
        let medium = sense(SenseKey::MediumError, AdditionalSense::READ_ERROR);
        for failed in [verdict(2, &medium), verdict(2, &[]), verdict(0x30, &medium)] {
            assert!(matches!(failed, Verdict::Failed(_)));
        }
    }

    #[test]
    fn only_resets_endanger_the_write_cache() {
        assert!(is_reset(AdditionalSense::POWER_ON) && is_reset(AdditionalSense::DEVICE_RESET));
        assert!(!is_reset(AdditionalSense::NEXUS_LOSS) && !is_reset(AdditionalSense::CAPACITY_CHANGED));
        assert!(is_mode_change(AdditionalSense::MODE_PARAMETERS_CHANGED));
    }
}
