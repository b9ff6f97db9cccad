//! NFS file handles: the handle of a file system with the id of its export and an authentication tag.
//!
//! | bytes | contents |
//! |---|---|
//! | 1 | layout version, 1 |
//! | 3 | zero |
//! | 4 | export id, big-endian |
//! | 0 to 48 | the file system's handle |
//! | 8 | tag: SipHash-2-4 of all preceding bytes, with the export's key |
//!
//! The tag distinguishes a damaged or forged handle (BADHANDLE) from that of a removed file (STALE). With a
//! secret in the state directory it also authenticates handles. Otherwise the key is derived from the
//! export's name and backend, so that handles survive a restart, and the tag detects damage only. Confinement
//! is independent of the tag: a file system accesses no file outside its root with any handle.
//!
//! Directories of the pseudo file system of NFSv4 ([`PseudoSealer`]) have handles of another layout:
//!
//! | bytes | contents |
//! |---|---|
//! | 1 | layout version, 2 |
//! | 3 | zero |
//! | 8 | number of the directory, big-endian |
//! | 8 | tag, with the key of the pseudo file system |

use std::{io, path::Path};

use millrace_vfs::Handle;
use smallvec::SmallVec;

use crate::siphash::siphash;

const VERSION: u8 = 1;
/// Layout version of handles of the pseudo file system.
const PSEUDO_VERSION: u8 = 2;
/// The key without a secret: tags detect damage only.
const PUBLIC_KEY: [u64; 2] = [0x7075_626c_6963_206b, 0x6579_0000_0000_0001];
const HEAD: usize = 8;
const TAG: usize = 8;
/// Maximum bytes of an NFS handle (RFC 1813 section 2.4, NFS3_FHSIZE).
pub(crate) const MAX_HANDLE: usize = 64;
const SECRET_FILE: &str = "handle.key";

const _: () = assert!(HEAD + Handle::MAX + TAG <= MAX_HANDLE);

/// The bytes of an NFS handle.
pub(crate) type HandleBytes = SmallVec<[u8; MAX_HANDLE]>;

/// The id of an export in its handles. It is derived from the name only, so it survives restarts and a
/// changed order of the configuration.
pub(crate) fn export_id(name: &str) -> u32 {
    let h = siphash([0x6d69_6c6c_7261_6365, 0x6578_706f_7274_0000], name.as_bytes());
    (h ^ (h >> 32)) as u32 // XOR of both halves.
}

/// A file handle with a decoded layout and an unverified tag ([`Sealer::open`] verifies it).
pub(crate) struct SealedHandle<'h> {
    export: u32,
    sealed: &'h [u8],
    tag: u64,
}

impl<'h> SealedHandle<'h> {
    /// Decodes the layout of `handle`; `None` if it is invalid.
    pub(crate) fn decode(handle: &'h [u8]) -> Option<Self> {
        if handle.len() > MAX_HANDLE {
            return None;
        }
        let (sealed, tag) = handle.split_last_chunk::<TAG>()?;
        match sealed.first_chunk::<HEAD>()? {
            [VERSION, 0, 0, 0, id @ ..] => {
                Some(Self { export: u32::from_be_bytes(*id), sealed, tag: u64::from_be_bytes(*tag) })
            }
            _ => None,
        }
    }

    /// Id of the handle's export.
    pub(crate) fn export(&self) -> u32 {
        self.export
    }
}

/// Creates and verifies the handles of one export.
#[derive(Clone)]
pub(crate) struct Sealer {
    id: u32,
    key: [u64; 2],
}

impl Sealer {
    /// Creates the sealer of the export `name`, with a key derived from the server's secret or, without one,
    /// from the name and backend.
    pub(crate) fn new(name: &str, backend: &str, secret: Option<[u64; 2]>) -> Self {
        let base = secret.unwrap_or(PUBLIC_KEY);
        let identity = format!("{name}\0{backend}");
        let half = |n: u8| siphash([base[0], base[1] ^ u64::from(n)], identity.as_bytes());
        Self { id: export_id(name), key: [half(1), half(2)] }
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Creates the NFS handle of `fs`.
    pub(crate) fn seal(&self, fs: &Handle) -> HandleBytes {
        let mut out = HandleBytes::new();
        out.extend_from_slice(&[VERSION, 0, 0, 0]);
        out.extend_from_slice(&self.id.to_be_bytes());
        out.extend_from_slice(fs.as_bytes());
        let tag = siphash(self.key, &out);
        out.extend_from_slice(&tag.to_be_bytes());
        out
    }

    /// Returns the file system's handle in `handle`, if its tag is valid.
    pub(crate) fn open(&self, handle: &SealedHandle<'_>) -> Option<Handle> {
        if handle.export != self.id || handle.tag != siphash(self.key, handle.sealed) {
            return None;
        }
        Handle::new(handle.sealed.get(HEAD..)?)
    }
}

/// Creates and verifies the handles of the pseudo file system of NFSv4.
#[derive(Clone)]
pub(crate) struct PseudoSealer {
    key: [u64; 2],
}

impl PseudoSealer {
    /// Creates the sealer, with a key derived from the server's secret if there is one.
    pub(crate) fn new(secret: Option<[u64; 2]>) -> Self {
        let base = secret.unwrap_or(PUBLIC_KEY);
        let half = |n: u8| siphash([base[0], base[1] ^ u64::from(n)], b"pseudo file system");
        Self { key: [half(1), half(2)] }
    }

    /// Whether `handle` has the layout of the pseudo file system.
    pub(crate) fn is_pseudo(handle: &[u8]) -> bool {
        handle.first() == Some(&PSEUDO_VERSION)
    }

    /// Creates the handle of the directory `number`.
    pub(crate) fn seal(&self, number: u64) -> HandleBytes {
        let mut out = HandleBytes::new();
        out.extend_from_slice(&[PSEUDO_VERSION, 0, 0, 0]);
        out.extend_from_slice(&number.to_be_bytes());
        let tag = siphash(self.key, &out);
        out.extend_from_slice(&tag.to_be_bytes());
        out
    }

    /// Returns the number of the directory, if `handle` is valid.
    pub(crate) fn open(&self, handle: &[u8]) -> Option<u64> {
        let (sealed, tag) = handle.split_last_chunk::<TAG>()?;
        let number = sealed.strip_prefix(&[PSEUDO_VERSION, 0, 0, 0])?.try_into().ok()?;
        (u64::from_be_bytes(*tag) == siphash(self.key, sealed)).then(|| u64::from_be_bytes(number))
    }
}

/// Reads the secret in `state_dir`, or creates it with access for the owner only.
pub(crate) fn secret(state_dir: &Path, random: impl FnOnce(&mut [u8])) -> io::Result<[u64; 2]> {
    let bytes = millrace_vfs_local::secret_file(&state_dir.join(SECRET_FILE), |bytes| random(bytes))?;
    let (a, b) = bytes.split_at(8);
    let half = |b: &[u8]| b.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte)); // Little-endian.
    Ok([half(a), half(b)])
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn sealer() -> Sealer {
        Sealer::new("/data", "local:/srv/data", None)
    }

    fn open(sealer: &Sealer, handle: &[u8]) -> Option<Handle> {
        sealer.open(&SealedHandle::decode(handle)?)
    }

    #[test]
    fn handles_have_the_documented_layout() {
        let s = sealer();
        let h = s.seal(&Handle::new(&[0xaa, 0xbb]).unwrap());
        assert_eq!(h.len(), 18);
        assert_eq!(&h[..4], &[1, 0, 0, 0]);
        assert_eq!(&h[4..8], &export_id("/data").to_be_bytes());
        assert_eq!(&h[8..10], &[0xaa, 0xbb]);
        assert_eq!(s.seal(&Handle::new(&[7; Handle::MAX]).unwrap()).len(), MAX_HANDLE);
    }

    #[test]
    fn handles_survive_a_restart_and_belong_to_one_export() {
        let fs = Handle::new(b"inode 7").unwrap();
        let h = sealer().seal(&fs);
        assert_eq!(open(&sealer(), &h), Some(fs));
        assert_eq!(open(&Sealer::new("/other", "local:/srv/data", None), &h), None);
        assert_eq!(open(&Sealer::new("/data", "local:/srv/data", Some([1, 2])), &h), None);
    }

    #[test]
    fn the_secret_is_created_once_with_private_permissions() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let first = secret(dir.path(), |b| b.fill(7)).unwrap();
        assert_eq!(secret(dir.path(), |b| b.fill(9)).unwrap(), first);
        let file = dir.path().join(SECRET_FILE);
        assert_eq!(first, [0x0707_0707_0707_0707; 2]);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&file, b"short").unwrap();
        assert!(secret(dir.path(), |_| ()).is_err());
    }

    proptest! {
        #[test]
        fn handles_round_trip(bytes in proptest::collection::vec(any::<u8>(), 0..=Handle::MAX)) {
            let fs = Handle::new(&bytes).unwrap();
            prop_assert_eq!(open(&sealer(), &sealer().seal(&fs)), Some(fs));
        }

        #[test]
        fn a_flipped_bit_is_detected(bytes in proptest::collection::vec(any::<u8>(), 0..=Handle::MAX), bit: proptest::sample::Index) {
            let mut h = sealer().seal(&Handle::new(&bytes).unwrap());
            let bit = bit.index(h.len() * 8);
            h[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(open(&sealer(), &h), None);
        }

        #[test]
        fn handles_of_the_pseudo_file_system_round_trip(number in any::<u64>(), bit: proptest::sample::Index) {
            let sealer = PseudoSealer::new(None);
            let mut h = sealer.seal(number);
            prop_assert!(PseudoSealer::is_pseudo(&h) && SealedHandle::decode(&h).is_none());
            prop_assert_eq!(sealer.open(&h), Some(number));
            prop_assert_eq!(PseudoSealer::new(Some([1, 2])).open(&h), None);
            let bit = bit.index(h.len() * 8);
            h[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(sealer.open(&h), None);
        }

        #[test]
        fn forged_handles_are_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(open(&sealer(), &bytes), None);
        }
    }
}
