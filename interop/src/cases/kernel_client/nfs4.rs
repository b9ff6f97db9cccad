//! The kernel mounts the server with NFSv4.2.

use std::fs;

use anyhow::{Result, ensure};

use super::{
    super::Case,
    mount::{EXPORT, boot, manifest, mount_v4_command},
};
use crate::{
    guest::GuestOptions,
    lab::Lab,
    server::ServerOptions,
    tree::{Manifest, make},
};

pub(super) fn cases() -> Vec<Case> {
    let name = |proto: &str| format!("kernel-client/{proto}/local/nfs4-read");
    ["tcp", "rdma"].map(|proto| Case::new(name(proto), move |lab| read(lab, proto))).into()
}

/// The guest finds all exports below `/`, and reads a tree of the server.
fn read(lab: &mut Lab, proto: &'static str) -> Result<()> {
    let dir = lab.directory("export")?;
    make(&dir.join("tree"), 3, lab.quick)?;
    let inner = lab.directory("inner")?;
    fs::write(inner.join("inside"), "inner file\n")?;
    let options = ServerOptions::default()
        .local(EXPORT, &dir, "sync_metadata = false")
        .local("/deep/er/inner", &inner, "read_only = true")
        .memory("/scratch", "16MiB");
    let server = lab.server(&options)?;
    let want = Manifest::of(&dir.join("tree"))?;
    let mut guest = boot(lab, &GuestOptions::default())?;
    guest.must(&mount_v4_command(proto, "/", "/mnt/all", ""))?;
    let listed = guest.must("cd /mnt/all && find . -maxdepth 3 -not -path './export/tree/*' | sort")?;
    ensure!(
        listed.split_whitespace().eq([
            ".",
            "./deep",
            "./deep/er",
            "./deep/er/inner",
            "./export",
            "./export/tree",
            "./scratch"
        ]),
        "the root of all exports has {listed}"
    );
    guest.must("[ \"$(cat /mnt/all/deep/er/inner/inside)\" = 'inner file' ]")?;
    guest.must("[ \"$(stat -c %a:%F /mnt/all/deep)\" = 555:directory ]")?;
    want.expect_same(
        &manifest(&mut guest, "/mnt/all/export/tree")?,
        "the tree below the root of all exports",
    )?;
    guest.must("umount -R /mnt/all")?;
    guest.must(&mount_v4_command(proto, &format!("{EXPORT}/tree"), "/mnt/x", ""))?;
    want.expect_same(&manifest(&mut guest, "/mnt/x")?, "the tree of a mounted subdirectory")?;
    guest.must("umount /mnt/x")?;
    lab.finish(vec![guest], &[&server])
}
