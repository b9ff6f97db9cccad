//! A disk over iSER, with both ends in one guest.

use anyhow::{Result, ensure};

use super::{
    super::Case,
    common::{Device, EXPORT, GuestServer, INSIDE, boot, millrace},
};
use crate::lab::Lab;

/// The URL of the portal.
const PORTAL: &str = "iser://10.99.0.1:3260";
/// The URL of the disk.
const DISK: &str = "iser://10.99.0.1:3260/iqn.2026-01.example.lab:disk/0";

pub(super) fn cases() -> Vec<Case> {
    Device::BOTH.map(|d| Case::new(format!("verbs/{}/disk", d.name()), move |lab| disk(lab, d))).into()
}

/// Copies an image to the disk and back, and verifies random writes.
fn disk(lab: &mut Lab, device: Device) -> Result<()> {
    let mut guest = boot(lab, device)?;
    let options =
        format!("--lun iqn.2026-01.example.lab:disk={EXPORT}/disk,size=64MiB --listen-iser {INSIDE}:3260");
    let server = GuestServer::start(&mut guest, INSIDE, &options)?;
    let millrace = millrace(&guest)?;
    let list = guest.must(&format!("{millrace} blk ls {PORTAL}"))?;
    ensure!(list.contains("64 MiB"), "the list of targets is {list}");
    guest.must(&format!(
        "set -e
        head -c 64M /dev/urandom > image
        {millrace} blk cp image {DISK}
        {millrace} blk cp {DISK} back
        [ \"$(sha256sum < image)\" = \"$(sha256sum < back)\" ]"
    ))?;
    let (interop, seconds) = (guest.interop()?, if lab.quick { 5 } else { 60 });
    guest.must(&format!("{interop} exercise {DISK} --seconds {seconds}"))?;
    server.finish(&mut guest)?;
    lab.finish(vec![guest], &[])
}
