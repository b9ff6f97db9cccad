//! The attribute `change` of NFSv4, which is the time of the last change.

use millrace_vfs::Time;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The change attribute of an object that last changed at `ctime`. File systems advance ctime with every change.
pub(crate) fn change(ctime: Time) -> u64 {
    (ctime.seconds as u64).wrapping_mul(NANOS_PER_SECOND).wrapping_add(u64::from(ctime.nanos))
}

/// The time with a change attribute.
pub(crate) fn time(change: u64) -> Time {
    Time {
        seconds: (change / NANOS_PER_SECOND).cast_signed(),
        nanos: u32::try_from(change % NANOS_PER_SECOND).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_a_time() {
        let ctime = Time { seconds: 1_700_000_000, nanos: 999_999_999 };
        assert_eq!(time(change(ctime)), ctime);
        assert_eq!(time(change(ctime) + 1), Time { seconds: 1_700_000_001, nanos: 0 });
    }
}
