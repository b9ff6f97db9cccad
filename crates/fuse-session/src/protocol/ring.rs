//! Requests over io_uring (`FUSE_OVER_IO_URING`, 7.42): the memory of an entry (`fuse_uring_req_header` and the payload)
//! and the commands (`fuse_uring_cmd_req`).

use std::io::IoSlice;

use crate::protocol::{DecodeError, Header};

/// Alignment of the payload: the kernel copies it page by page.
const PAGE: usize = 4096;
/// Size of `fuse_uring_req_header`.
const HEADER: usize = 288;
/// Offset of `op_in` in it, and its size.
const OPERATION: usize = 128;
const OPERATION_SIZE: usize = 128;
/// Offsets of `commit_id` and `payload_sz` in it (`fuse_uring_ent_in_out`).
const COMMIT_ID: usize = 264;
const PAYLOAD_SIZE: usize = 272;
/// Size of `fuse_out_header`.
const REPLY_HEADER: usize = 16;

/// Commands on the device (`enum fuse_uring_cmd`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum RingCommand {
    /// Registers the memory of an entry, and waits for its first request (`FUSE_IO_URING_CMD_REGISTER`).
    Register = 1,
    /// Sends the reply that is in the entry, and waits for its next request (`FUSE_IO_URING_CMD_COMMIT_AND_FETCH`).
    CommitAndFetch = 2,
}

impl RingCommand {
    /// Encodes the argument of a command for a queue (`fuse_uring_cmd_req`). `commit` is [`RingRequest::commit`], or 0.
    pub fn argument(queue: u16, commit: u64) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[8..16].copy_from_slice(&commit.to_ne_bytes());
        bytes[16..18].copy_from_slice(&queue.to_ne_bytes());
        bytes
    }
}

/// A request in an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingRequest<'a> {
    /// The number with which the reply is committed.
    pub commit: u64,
    /// The message as `/dev/fuse` would return it, for [`Header::decode`].
    pub message: &'a [u8],
}

/// The memory of an entry, into which the kernel writes requests, and from which it reads replies.
#[derive(Debug)]
pub struct RingEntry {
    bytes: Vec<u8>,
    /// Offset of the header. The payload follows it after [`PAGE`] bytes, on its own pages.
    start: usize,
}

impl RingEntry {
    /// Memory with space for `payload` bytes in addition to the header. It is allocated with zeros: pages that neither
    /// side has used take no memory.
    pub fn new(payload: usize) -> Self {
        let bytes = vec![0; 2 * PAGE + payload];
        let start = bytes.as_ptr().align_offset(PAGE).min(PAGE);
        let mut entry = Self { bytes, start };
        entry.bytes.truncate(start + PAGE + payload);
        entry
    }

    /// The header and the payload, as the kernel expects them at registration.
    pub fn parts(&mut self) -> [&mut [u8]; 2] {
        let (head, payload) = self.bytes[self.start..].split_at_mut(PAGE);
        [&mut head[..HEADER], payload]
    }

    /// Completes the request that the kernel has written: the header and the fixed part of the operation are copied to the
    /// bytes before the payload, so that the message is contiguous.
    ///
    /// # Errors
    /// [`DecodeError`]: the lengths in the entry contradict each other.
    pub fn request(&mut self) -> Result<RingRequest<'_>, DecodeError> {
        let (head, payload) = self.bytes[self.start..].split_at(PAGE);
        let (stated, commit) = (number(head, 0), long_number(head, COMMIT_ID));
        let size = number(head, PAYLOAD_SIZE) as usize;
        let inconsistent = DecodeError::Length { stated, received: size };
        let operation =
            (stated as usize).checked_sub(Header::SIZE.saturating_add(size)).ok_or(inconsistent)?;
        if operation > OPERATION_SIZE || size > payload.len() {
            return Err(inconsistent);
        }
        let bytes = &mut self.bytes[self.start..];
        let at = PAGE - operation - Header::SIZE;
        bytes.copy_within(..Header::SIZE, at);
        bytes.copy_within(OPERATION..OPERATION + operation, at + Header::SIZE);
        Ok(RingRequest { commit, message: &bytes[at..PAGE + size] })
    }

    /// Writes a reply, whose first part has its whole header. `false`: it does not fit.
    #[must_use]
    pub fn set_reply(&mut self, message: &[IoSlice<'_>]) -> bool {
        let Some((header, first)) = message.first().and_then(|part| part.split_at_checked(REPLY_HEADER))
        else {
            return false;
        };
        let [head, payload] = self.parts();
        let others = message[1..].iter().map(|part| &**part);
        let mut length = 0;
        for part in std::iter::once(first).chain(others) {
            let Some(space) = payload.get_mut(length..length + part.len()) else { return false };
            space.copy_from_slice(part);
            length += part.len();
        }
        head[..REPLY_HEADER].copy_from_slice(header);
        head[PAYLOAD_SIZE..PAYLOAD_SIZE + 4].copy_from_slice(&(length as u32).to_ne_bytes());
        true
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |field| u32::from_ne_bytes(*field))
}

fn long_number(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |field| u64::from_ne_bytes(*field))
}
