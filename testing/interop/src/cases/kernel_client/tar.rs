//! The example of `millrace-server` that serves a tar archive.

use std::{fs, process::Command};

use anyhow::{Result, ensure};

use super::{
    super::Case,
    mount::{EXPORT, boot, mount_command},
};
use crate::{
    guest::GuestOptions,
    lab,
    lab::Lab,
    network::HOST,
    program::{Background, must},
    server::{RDMA_PORT, TCP_PORT},
};

pub(super) fn cases() -> Vec<Case> {
    let case = |proto| Case::new(format!("kernel-client/{proto}/tar"), move |lab| read_archive(lab, proto));
    ["rdma", "tcp"].map(case).into()
}

/// Type, mode, size, time and target of everything in the current directory. A directory's size is that of its storage.
const LIST: &str = r"find . -type d -printf '%P %y %m %Ts\n' -o -printf '%P %y %m %s %Ts %l\n' | sort";

/// A guest reads the files of the served archive, and cannot change them.
fn read_archive(lab: &mut Lab, proto: &str) -> Result<()> {
    let tree = lab.directory("tree")?;
    let long_name = "n".repeat(200);
    must(
        "bash",
        &[
            "-c",
            &format!(
                "set -e; cd {}; umask 022; mkdir -p deep/er; seq 500000 > deep/er/numbers; echo short > short; \
                 : > empty; echo long > {long_name}; ln -s deep/er/numbers link; chmod 755 short; \
                 for i in $(seq 300); do echo $i > deep/file$i; done; tar -cf ../archive.tar .",
                tree.display()
            ),
        ],
    )?;
    let archive = fs::canonicalize(lab.dir.join("archive.tar"))?;
    let _server = Background::start(
        Command::new(lab::example("serve_tar")?).args([
            format!("{HOST}:{TCP_PORT}"),
            format!("{HOST}:{RDMA_PORT}"),
            format!("{EXPORT}=local:{}", archive.display()),
        ]),
        &lab.dir.join("log"),
    )?;
    let mut guest = boot(lab, &GuestOptions::default())?;
    guest.must(&mount_command(proto, "/mnt/x", ""))?;
    let original = guest.host_file(&fs::canonicalize(&tree)?);
    let listed = guest.must(&format!("cd /mnt/x && {LIST}"))?;
    ensure!(listed == guest.must(&format!("cd {original} && {LIST}"))?, "the archive's list is {listed}");
    guest.must(&format!("diff --recursive --no-dereference {original} /mnt/x"))?;
    for change in ["touch /mnt/x/new", "rm /mnt/x/short", "mkdir /mnt/x/dir", "mv /mnt/x/short /mnt/x/moved"]
    {
        let refusal = guest.run(change)?.failed()?;
        ensure!(refusal.contains("Read-only file system"), "`{change}` says {refusal}");
    }
    lab.finish(vec![guest], &[])
}
