//! Identifiers of disks, with which initiators recognise a disk on several paths.

use crate::siphash::siphash;

/// Derives identifiers that differ between disks and between servers: initiators treat disks with equal identifiers as
/// one.
pub(super) struct Identifiers {
    key: [u64; 2],
}

impl Identifiers {
    /// Identifiers from the server's secret, or from the identity of the host if there is none.
    pub(super) fn new(secret: Option<[u64; 2]>) -> Self {
        Self { key: secret.unwrap_or_else(host_key) }
    }

    /// The identifier of the disk with the file at `path`, the same after every start.
    pub(super) fn of(&self, path: &[u8]) -> u64 {
        siphash(self.key, &[b"lun\0", path].concat())
    }
}

/// A key from the machine ID (machine-id(5)), or from the name of the host.
fn host_key() -> [u64; 2] {
    let id = std::fs::read("/etc/machine-id").ok().filter(|id| !id.trim_ascii().is_empty());
    let id = id.unwrap_or_else(|| std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default());
    [0, 1].map(|half| siphash([0x6d69_6c6c_7261_6365, half], &id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_differ_between_disks_and_servers_and_are_stable() {
        let (a, b) = (Identifiers::new(Some([1, 2])), Identifiers::new(Some([1, 3])));
        assert_eq!(a.of(b"/vol/0"), Identifiers::new(Some([1, 2])).of(b"/vol/0"));
        let different = [a.of(b"/vol/0"), a.of(b"/vol/1"), b.of(b"/vol/0")].map(|id| id & (u64::MAX >> 4));
        assert!(different[0] != different[1] && different[0] != different[2], "{different:?}");
        assert_eq!(Identifiers::new(None).of(b"/vol/0"), Identifiers::new(None).of(b"/vol/0"));
    }
}
