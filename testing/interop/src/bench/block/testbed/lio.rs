//! The kernel's target in a guest.

use anyhow::Result;

use super::DISK;
use crate::{
    guest::{Guest, GuestOptions},
    lab::Lab,
};

/// The port of the portal of iSER: siw's listener is a TCP socket, and the portal of TCP has its port. The lab's kernel
/// is patched so that LIO takes the next one.
pub(super) const ISER_PORT: u16 = 3261;

/// A portal for each transport, and a disk that the kernel keeps in its own pages, which is the quickest kind.
const START: &str = "
set -e
t=/sys/kernel/config/target
mkdir -p $t /run/target && echo /run/target > $t/dbroot
mkdir -p $t/core/rd_mcp_0/disk
echo rd_pages=$pages > $t/core/rd_mcp_0/disk/control
echo 1 > $t/core/rd_mcp_0/disk/enable
p=$t/iscsi/$target/tpgt_1
mkdir -p $p/lun/lun_0 $p/np/0.0.0.0:3260
ln -s $t/core/rd_mcp_0/disk $p/lun/lun_0/disk
echo 1 > $p/attrib/generate_node_acls
echo 1 > $p/attrib/cache_dynamic_acls
echo 0 > $p/attrib/demo_mode_write_protect
echo 0 > $p/attrib/authentication
echo 1 > $p/np/0.0.0.0:3260/iser
echo 1 > $p/enable";

/// Boots a guest that serves a disk of [`DISK`] bytes over both transports.
pub(super) fn boot(lab: &mut Lab, target: &str) -> Result<Guest> {
    for text in
        ["TARGET_CORE", "iSCSI/", "Unable to", "RX Data", "dbroot", "failed to allocate", "MODE SENSE"]
    {
        lab.expect_log(text);
    }
    let mut guest = lab.guest(&GuestOptions { memory: 1024, ..GuestOptions::default() })?;
    guest.add_siw()?;
    guest.must(&format!("target={target} pages={}{START}", DISK / 4096))?;
    Ok(guest)
}
