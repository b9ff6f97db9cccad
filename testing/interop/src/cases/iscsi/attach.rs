//! `millrace blk attach` on the host, with the Linux kernel's target and the host's FUSE.

use std::{path::Path, time::Duration};

use anyhow::Result;

use super::{super::Case, lio};
use crate::{
    lab::{self, Lab},
    program,
    tree::{self, Manifest},
};

/// Time limit of a script on the host.
const LIMIT: Duration = Duration::from_secs(300);
/// Writes the disk, and makes ranges zero that begin and end within a block: the disk equals the image afterwards.
const BYTES: &str = "
set -e
head -c $(stat --format %s $disk) /dev/urandom > image
dd if=image of=$disk bs=1M conv=notrunc,fsync status=none
cmp image $disk
for file in image $disk; do
  fallocate --punch-hole --offset 1000 --length 3000000 $file
  fallocate --zero-range --offset 5000001 --length 100 $file
  echo middle | dd of=$file bs=1 seek=7000001 conv=notrunc,fsync status=none
done
cmp image $disk
if truncate --size 1M $disk; then exit 1; fi
if dd if=image of=$disk bs=1M seek=64 conv=notrunc status=none; then exit 1; fi";
/// Copies a tree to ext4 on a loop device.
const TREE: &str = "
set -e
mkfs.ext4 -q $disk
mkdir x && mount -o loop $disk x
cp -a tree x/ && fstrim x && umount x
e2fsck -fn $disk
mount -o loop,ro $disk x";

pub(super) fn cases() -> Vec<Case> {
    vec![Case::new("lio/tcp/attach", attach)]
}

fn attach(lab: &mut Lab) -> Result<()> {
    // Without thin provisioning LIO does not report its limit of WRITE SAME; after the refusal, zeros are written.
    lab.expect_log("exceeds max_write_same_len");
    let mut guest = lio::serve(lab, false, false)?;
    let at = lab.directory("attached")?;
    let (url, at_text) = (lio::url(&guest, false), at.display().to_string());
    lab::millrace(&["blk", "attach", "--daemon", &url, &at_text])?.ok()?;
    on_host(&lab.dir, BYTES)?;
    guest.must(&format!("cmp {} /dev/shm/disk", guest.host_file(&lab.dir.join("image"))))?;
    let source = lab.dir.join("tree");
    tree::make(&source, 1, true)?;
    let want = Manifest::of(&source)?;
    on_host(&lab.dir, TREE)?;
    want.expect_same(&Manifest::of(&lab.dir.join("x/tree"))?, "the tree on the disk")?;
    program::must("umount", &[&lab.dir.join("x").display().to_string()])?;
    program::must("umount", &[&at_text])?;
    lab.finish(vec![guest], &[])
}

/// Runs a script (bash) in the directory of the case.
fn on_host(dir: &Path, script: &str) -> Result<()> {
    let script = format!("cd {} && disk=attached/disk\n{script}", dir.display());
    program::run("bash", &["-c", &script], LIMIT)?.ok().map(drop)
}
