//! Format of file handles.
//!
//! A tag byte (kernel or index), the body, and an 8-byte message authentication code ([`mac`]) of both.
//! Handles not issued by this export (random bytes, another server's, a kernel handle of an object outside
//! the export made by a local user) fail the check and are rejected before their content is used.

use millrace_vfs::{FsError, FsResult, Handle};
use rustix::fs::Statx;

use super::{
    attr,
    mac::{Key, mac},
    sys::KernelHandle,
};

const TAG_KERNEL: u8 = b'K';
const TAG_INDEX: u8 = b'I';
const MAC_BYTES: usize = 8;
const INDEX_BYTES: usize = 20;
const DEVICE_BYTES: usize = 8;

/// Content of a verified handle.
#[derive(Debug)]
pub(super) enum Body {
    /// A kernel file handle.
    Kernel(KernelHandle),
    /// Inode number, birth time and subvolume.
    Index,
}

fn seal(key: &Key, body: &[u8]) -> Option<Handle> {
    let mut bytes = [0; Handle::MAX];
    let len = body.len() + MAC_BYTES;
    bytes.get_mut(..body.len())?.copy_from_slice(body);
    bytes.get_mut(body.len()..len)?.copy_from_slice(&mac(key, body).to_le_bytes());
    Handle::new(&bytes[..len])
}

/// Encodes a kernel handle; `None` if it is too long, or its type exceeds a byte.
pub(super) fn from_kernel(key: &Key, k: &KernelHandle) -> Option<Handle> {
    let mut body = [0; Handle::MAX];
    body[0] = TAG_KERNEL;
    body[1] = u8::try_from(k.kind).ok()?;
    let len = 2 + k.bytes().len();
    body.get_mut(2..len)?.copy_from_slice(k.bytes());
    seal(key, &body[..len])
}

/// Encodes inode number and birth time (zero if the file system does not store it), and the subvolume if it
/// differs from that of the export's `root`.
pub(super) fn from_stat(key: &Key, st: &Statx, root: &Statx) -> Option<Handle> {
    let has_btime = attr::has(st, rustix::fs::StatxFlags::BTIME);
    let (seconds, nanos) = if has_btime { (st.stx_btime.tv_sec, st.stx_btime.tv_nsec) } else { (0, 0) };
    let mut body = [0; 1 + INDEX_BYTES + DEVICE_BYTES];
    body[0] = TAG_INDEX;
    body[1..9].copy_from_slice(&st.stx_ino.to_le_bytes());
    body[9..17].copy_from_slice(&seconds.to_le_bytes());
    body[17..21].copy_from_slice(&nanos.to_le_bytes());
    body[21..].copy_from_slice(&attr::device_number(st).to_le_bytes());
    let len = if attr::same_device(st, root) { 1 + INDEX_BYTES } else { body.len() };
    seal(key, &body[..len])
}

/// Verifies and decodes a handle.
pub(super) fn open(key: &Key, handle: &Handle) -> FsResult<Body> {
    let bytes = handle.as_bytes();
    let at = bytes.len().checked_sub(MAC_BYTES).ok_or(FsError::BadHandle)?;
    let (body, mark) = bytes.split_at(at);
    // Compares all bytes, so that the time does not depend on the position of the first difference.
    let difference = mac(key, body).to_le_bytes().iter().zip(mark).fold(0, |acc, (a, b)| acc | (a ^ b));
    if difference != 0 {
        return Err(FsError::BadHandle);
    }
    match body {
        [TAG_KERNEL, kind, rest @ ..] => {
            KernelHandle::new((*kind).into(), rest).map(Body::Kernel).ok_or(FsError::BadHandle)
        }
        [TAG_INDEX, rest @ ..] if [INDEX_BYTES, INDEX_BYTES + DEVICE_BYTES].contains(&rest.len()) => {
            Ok(Body::Index)
        }
        _ => Err(FsError::BadHandle),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn kernel_handle_round_trips_and_needs_its_key() {
        let k = KernelHandle::new(1, &[7; 8]).unwrap();
        let h = from_kernel(&[1; 16], &k).unwrap();
        let Body::Kernel(back) = open(&[1; 16], &h).unwrap() else { panic!("tag") };
        assert_eq!((back.kind, back.bytes()), (1, &[7u8; 8][..]));
        assert_eq!(open(&[2; 16], &h).unwrap_err(), FsError::BadHandle);
    }

    #[test]
    fn oversized_kernel_handle_is_rejected() {
        assert!(from_kernel(&[1; 16], &KernelHandle::new(1, &[0; 38]).unwrap()).is_some());
        assert!(from_kernel(&[1; 16], &KernelHandle::new(1, &[0; 39]).unwrap()).is_none());
        assert!(from_kernel(&[1; 16], &KernelHandle::new(256, &[0; 8]).unwrap()).is_none());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_a_bad_handle(bytes in proptest::collection::vec(any::<u8>(), 0..=48)) {
            let h = Handle::new(&bytes).unwrap();
            prop_assert_eq!(open(&[9; 16], &h).unwrap_err(), FsError::BadHandle);
        }

        #[test]
        fn flipped_bit_makes_a_bad_handle(bit in 0usize..144) {
            let h = from_kernel(&[3; 16], &KernelHandle::new(1, &[5; 8]).unwrap()).unwrap();
            let mut bytes = h.as_bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(open(&[3; 16], &Handle::new(&bytes).unwrap()).unwrap_err(), FsError::BadHandle);
        }
    }
}
