//! Vital product data pages (SPC-4 section 7.8, SBC-3 section 6.5).

use super::{
    Disk, MAX_TRANSFER_BYTES, MAX_UNMAP_DESCRIPTORS, MAX_WRITE_SAME_BLOCKS, TARGET_PORT, command::Job,
    inquiry::VENDOR,
};
use crate::{bytes::put, config::TargetConfig, sense::Sense};

/// Supported pages, in order.
const PAGES: [u8; 7] = [0x00, 0x80, 0x83, 0x86, 0xb0, 0xb1, 0xb2];

/// Bytes of a transfer that is efficient.
const OPTIMAL_BYTES: u32 = 1 << 20;
/// Bytes of a physical block.
const PHYSICAL_BYTES: u32 = 4096;

impl Job {
    /// The page with this code.
    pub(super) fn vital_page(&self, code: u8) -> Result<Vec<u8>, Sense> {
        let disk = &self.disk;
        let body = match code {
            0x00 => PAGES.to_vec(),
            0x80 => disk.serial().into_bytes(),
            0x83 => disk.identification(&self.target),
            0x86 => extended(),
            0xb0 => disk.block_limits(),
            // MEDIUM ROTATION RATE: not reported.
            0xb1 => vec![0; 60],
            0xb2 => disk.provisioning_page(),
            _ => return Err(Sense::cdb_field(2, None)),
        };
        // All pages are shorter than 64 KiB.
        let length = (body.len() as u16).to_be_bytes();
        Ok([&[0, code], &length[..], &body].concat())
    }
}

/// Extended INQUIRY data: simple, ordered and head of queue tasks; no other feature.
fn extended() -> Vec<u8> {
    let mut body = vec![0; 60];
    put(&mut body, 1, &[0x07]);
    body
}

/// A designation descriptor.
fn designator(protocol_and_code_set: u8, kind: u8, value: &[u8]) -> Vec<u8> {
    // Designators are shorter than 256 bytes.
    [&[protocol_and_code_set, kind, 0, value.len() as u8], value].concat()
}

/// A SCSI name string designator: NUL-terminated, in words of four bytes.
fn name_string(kind: u8, name: &str) -> Vec<u8> {
    let mut value = name.as_bytes().to_vec();
    value.resize((value.len() + 1).next_multiple_of(4), 0);
    designator(ISCSI | UTF8, PIV | kind | 8, &value)
}

/// PROTOCOL IDENTIFIER of iSCSI, in bits 7 to 4.
const ISCSI: u8 = 0x50;
/// CODE SET.
const BINARY: u8 = 1;
const ASCII: u8 = 2;
const UTF8: u8 = 3;
/// PIV, and ASSOCIATION with the target port and the target device.
const PIV: u8 = 0x80;
const PORT: u8 = 0x10;
const DEVICE: u8 = 0x20;

impl Disk {
    fn serial(&self) -> String {
        format!("{:016x}", self.config.identifier)
    }

    /// Device identification: the disk, the target port, the target device.
    fn identification(&self, target: &TargetConfig) -> Vec<u8> {
        // NAA 3: locally assigned.
        let naa = 3 << 60 | self.config.identifier & (u64::MAX >> 4);
        let [high, low] = TARGET_PORT.to_be_bytes();
        let port = [0, 0, high, low];
        [
            designator(BINARY, 3, &naa.to_be_bytes()),
            designator(ASCII, 1, &[&VENDOR[..], self.serial().as_bytes()].concat()),
            designator(ISCSI | BINARY, PIV | PORT | 4, &port),
            designator(ISCSI | BINARY, PIV | PORT | 5, &port),
            name_string(PORT, &format!("{},t,0x{TARGET_PORT:04x}", target.name)),
            name_string(DEVICE, &target.name),
        ]
        .concat()
    }

    /// Block limits; the body after the header of four bytes.
    fn block_limits(&self) -> Vec<u8> {
        let size = self.block_bytes();
        let mut body = vec![0; 60];
        let mut page = |at: usize, field: u32| put(&mut body, at - 4, &field.to_be_bytes());
        page(8, MAX_TRANSFER_BYTES / size);
        page(12, OPTIMAL_BYTES / size);
        if self.thin {
            page(20, u32::MAX);
            page(24, MAX_UNMAP_DESCRIPTORS);
            page(28, (PHYSICAL_BYTES / size).max(1));
            // UGAVALID, alignment 0.
            page(32, 0x8000_0000);
        }
        page(36, 0);
        page(40, MAX_WRITE_SAME_BLOCKS);
        // WSNZ, MAXIMUM COMPARE AND WRITE LENGTH, OPTIMAL TRANSFER LENGTH GRANULARITY.
        let [high, low] = ((PHYSICAL_BYTES / size).max(1) as u16).to_be_bytes();
        put(&mut body, 0, &[1, 255, high, low]);
        body
    }

    /// Logical block provisioning.
    fn provisioning_page(&self) -> Vec<u8> {
        // LBPU, LBPWS, LBPWS10, LBPRZ, anchors; PROVISIONING TYPE thin.
        if self.thin { vec![0, 0xe6, 2, 0] } else { vec![0; 4] }
    }
}
