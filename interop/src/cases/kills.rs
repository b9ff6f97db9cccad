//! Clients write to a server that is killed and restarted every two seconds. Their reads, and the final files
//! of the server, contain the data that was written last.

mod locks;

use std::{
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::{
    Case,
    kernel_client::mount::{Backend, EXPORT, boot, mount_command},
};
use crate::{
    guest::GuestOptions,
    lab::{self, Lab},
    network::HOST,
    server::{RDMA_PORT, Server, TCP_PORT},
};

/// Time from one start of the server to its end.
pub(super) const LIFE: Duration = Duration::from_secs(2);
/// Time limit of a client's final check, during which the server runs.
const FINISH: Duration = Duration::from_secs(120);

/// A running client.
pub(super) enum Running {
    Guest(crate::guest::Job),
    Host(Child),
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for proto in ["rdma", "tcp"] {
        cases.push(Case::new(format!("kills/library/{proto}"), move |lab| library(lab, proto)));
        cases.push(Case::new(format!("kills/mount/{proto}"), move |lab| mount(lab, proto)));
        cases.push(Case::new(format!("kills/kernel-client/{proto}"), move |lab| kernel_client(lab, proto)));
    }
    cases.extend(locks::cases());
    cases
}

fn kills(lab: &Lab) -> u32 {
    if lab.quick { 4 } else { 200 }
}

/// Seconds for which the client writes to a server that lives for `life`.
pub(super) fn seconds(lab: &Lab, life: Duration) -> u64 {
    u64::from(kills(lab)) * life.as_secs()
}

fn url(proto: &str) -> String {
    let port = if proto == "rdma" { RDMA_PORT } else { TCP_PORT };
    format!("nfs://{HOST}:{port}{EXPORT}?proto={proto}&mountport={TCP_PORT}")
}

pub(super) fn exercise(lab: &Lab, place: &str) -> Result<Running> {
    let child = Command::new(std::env::current_exe()?)
        .args(["exercise", place, "--seconds", &seconds(lab, LIFE).to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    Ok(Running::Host(child))
}

/// Kills the server `life` after each start while the client runs, and waits for the client's end.
pub(super) fn kill_until_the_end(
    lab: &Lab,
    server: &mut Server,
    client: Running,
    life: Duration,
) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(seconds(lab, life));
    while Instant::now() < end {
        thread::sleep(life);
        server.stop("KILL")?;
        server.start_again()?;
    }
    let report = match client {
        Running::Guest(job) => job.wait(FINISH)?.ok()?.stdout,
        Running::Host(child) => {
            let out = child.wait_with_output()?;
            if !out.status.success() {
                bail!("the client: {}", String::from_utf8_lossy(&out.stderr).trim());
            }
            String::from_utf8_lossy(&out.stdout).into_owned()
        }
    };
    println!("{} kills; {}", kills(lab), report.trim());
    Ok(())
}

fn library(lab: &mut Lab, proto: &str) -> Result<()> {
    let mut server = lab.server(&Backend::Local.options(lab)?)?;
    let client = exercise(lab, &url(proto))?;
    kill_until_the_end(lab, &mut server, client, LIFE)?;
    lab.finish(vec![], &[&server])
}

fn mount(lab: &mut Lab, proto: &str) -> Result<()> {
    let mut server = lab.server(&Backend::Local.options(lab)?)?;
    let at = lab.directory("mounted")?;
    let mounted = lab::millrace(&["mount", &url(proto), &at.display().to_string(), "--daemon"])?;
    mounted.ok()?;
    let client = exercise(lab, &at.display().to_string())?;
    kill_until_the_end(lab, &mut server, client, LIFE)?;
    crate::program::must("umount", &[&at.display().to_string()]).context("unmount")?;
    lab.finish(vec![], &[&server])
}

fn kernel_client(lab: &mut Lab, proto: &str) -> Result<()> {
    lab.expect_log("not responding, still trying");
    lab.expect_log("nfs: server 10.77.0.1 OK");
    let mut server = lab.server(&Backend::Local.options(lab)?)?;
    let mut guest = boot(lab, &GuestOptions::default())?;
    guest.must(&mount_command(proto, "/mnt/x", ",hard"))?;
    let interop = guest.interop()?;
    let job = guest
        .spawn(&format!("{interop} exercise /mnt/x --truncate-alone --seconds {}", seconds(lab, LIFE)))?;
    kill_until_the_end(lab, &mut server, Running::Guest(job), LIFE)?;
    lab.finish(vec![guest], &[&server])
}
