//! The commands of the guide's page for Linux users, exactly as the page gives them.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use anyhow::{Context, Result, ensure};

use super::Case;
use crate::{guest::GuestOptions, lab, lab::Lab, network::HOST, program::Background};

const PAGE: &str = include_str!("../../../../docs/guide/linux.md");

pub(super) fn cases() -> Vec<Case> {
    vec![Case::new("guide/mount-it-from-linux", mount_it)]
}

/// Serves, mounts and inspects the mount with the commands of the page. Only the names of the server, of the
/// network card and of the served directory are replaced. Drivers are not loaded, because the guest's kernel
/// has them built in.
fn mount_it(lab: &mut Lab) -> Result<()> {
    let dir = lab.directory("data")?;
    fs::write(dir.join("file"), "content")?;
    fs::set_permissions(&dir, PermissionsExt::from_mode(0o1777))?;
    let _server = serve(&block("millrace serve")?, &dir, &lab.dir.join("log"))?;
    let mut guest = lab.guest(&GuestOptions::default())?;
    let in_guest = |text: &str| {
        let lines = text.lines().filter(|l| !l.starts_with("modprobe"));
        let text = lines.collect::<Vec<_>>().join("\n");
        text.replace("SERVER", HOST).replace("eth0", "vec0")
    };
    // The error that the page's table gives for a client without a device.
    let mount = in_guest(&block("rdma link add")?);
    let mount = mount.lines().last().unwrap_or_default().replace(",nolock", ",nolock,retry=0");
    let refusal = guest.run(&format!("timeout 60 {mount}"))?.failed()?;
    ensure!(refusal.contains("Protocol error"), "without a device, mount prints {refusal}");
    let look = in_guest(&block("mountstats")?);
    for (proto, how) in [("rdma", "rdma link add"), ("tcp", ",proto=tcp")] {
        // The guest's root directory, which contains /mnt, is not writable.
        guest.must("mountpoint --quiet /mnt || mount -t tmpfs none /mnt")?;
        guest.must(&format!("set -e\n{}", in_guest(&block(how)?)))?;
        ensure!(guest.must("cat /mnt/file")? == "content", "the file has other content over {proto}");
        guest.must(&format!("echo {proto} > /mnt/written"))?;
        let written = fs::read_to_string(dir.join("written"))?;
        ensure!(written.trim() == proto, "the guest wrote {proto}, but the file has {written:?}");
        let seen = guest.must(&look)?;
        ensure!(seen.contains(&format!("xprt:\t{proto} ")), "over {proto}, mountstats prints {seen:?}");
        guest.must("umount /mnt")?;
    }
    let fstab = in_guest(&block("_netdev")?);
    guest.must(&format!("echo '{fstab}' > /tmp/fstab && mount --fstab /tmp/fstab /mnt && cat /mnt/file"))?;
    lab.finish(vec![guest], &[])
}

/// The code block of the page that contains `what`.
fn block(what: &str) -> Result<String> {
    let mut blocks = PAGE.split("```").skip(1).step_by(2);
    let block =
        blocks.find(|b| b.contains(what)).with_context(|| format!("no code block contains {what:?}"))?;
    Ok(block.split_once('\n').map_or("", |(_language, code)| code).trim_end().to_owned())
}

/// Runs the page's command with `dir` as the served directory, and waits until the server is ready.
fn serve(command: &str, dir: &Path, log: &Path) -> Result<Background> {
    let words = command.split_whitespace().skip(1);
    let words = words.map(|w| w.replace("/srv/data", &dir.display().to_string()));
    let mut command = Command::new(lab::millrace_program()?);
    Background::start(command.args(words), log)
}
