//! Clients write to a server that is killed and restarted every two seconds. Their reads, and the final files
//! of the server, contain the data that was written last.

mod lock_stress;
mod locks;

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

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

impl Running {
    fn is_running(&mut self) -> Result<bool> {
        Ok(match self {
            Self::Guest(job) => job.is_running(),
            Self::Host(child) => child.try_wait()?.is_none(),
        })
    }

    /// Waits for the end of the client, and returns its report.
    fn report(self) -> Result<String> {
        match self {
            Self::Guest(job) => Ok(job.wait(FINISH)?.ok()?.stdout),
            Self::Host(child) => {
                let out = child.wait_with_output()?;
                if !out.status.success() {
                    bail!("the client: {}", String::from_utf8_lossy(&out.stderr).trim());
                }
                Ok(String::from_utf8_lossy(&out.stdout).into_owned())
            }
        }
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for proto in ["rdma", "tcp"] {
        cases.push(Case::new(format!("kills/library/{proto}"), move |lab| library(lab, proto)));
        cases.push(Case::new(format!("kills/mount/{proto}"), move |lab| mount(lab, proto)));
        cases.push(Case::new(format!("kills/kernel-client/{proto}"), move |lab| kernel_client(lab, proto)));
    }
    cases.extend(locks::cases());
    cases.extend(lock_stress::cases());
    cases
}

fn kills(lab: &Lab) -> u32 {
    if lab.quick { 4 } else { 200 }
}

/// The file whose existence ends the client's workload.
pub(super) fn end(lab: &Lab) -> PathBuf {
    lab.dir.join("end")
}

fn url(proto: &str) -> String {
    let port = if proto == "rdma" { RDMA_PORT } else { TCP_PORT };
    format!("nfs://{HOST}:{port}{EXPORT}?proto={proto}&mountport={TCP_PORT}")
}

pub(super) fn exercise(lab: &Lab, place: &str) -> Result<Running> {
    let child = Command::new(std::env::current_exe()?)
        .args(["exercise", place, "--until", &end(lab).display().to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    Ok(Running::Host(child))
}

/// Kills the server many times while the client runs, each time `life` after its start, and when it is `in_use`. Then ends
/// the client.
pub(super) fn kill_repeatedly(
    lab: &Lab,
    server: &mut Server,
    mut client: Running,
    life: Duration,
    in_use: impl Fn(&Server) -> Result<()>,
) -> Result<()> {
    let (mut kills, begun) = (0, Instant::now());
    while kills < self::kills(lab) && client.is_running()? {
        thread::sleep(life);
        in_use(server)?;
        server.stop("KILL")?;
        server.start_again()?;
        kills += 1;
    }
    ensure!(client.is_running()?, "the client ended after {kills} kills: {}", client.report()?);
    fs::write(end(lab), "")?;
    let report = client.report()?;
    lab.report(&format!("{kills} kills in {} s; {}", begun.elapsed().as_secs(), report.trim()))
}

fn library(lab: &mut Lab, proto: &str) -> Result<()> {
    let mut server = lab.server(&Backend::Local.options(lab)?)?;
    let client = exercise(lab, &url(proto))?;
    kill_repeatedly(lab, &mut server, client, LIFE, |_| Ok(()))?;
    lab.finish(vec![], &[&server])
}

fn mount(lab: &mut Lab, proto: &str) -> Result<()> {
    let mut server = lab.server(&Backend::Local.options(lab)?)?;
    let at = lab.directory("mounted")?;
    let mounted = lab::millrace(&["mount", &url(proto), &at.display().to_string(), "--daemon"])?;
    mounted.ok()?;
    let client = exercise(lab, &at.display().to_string())?;
    kill_repeatedly(lab, &mut server, client, LIFE, |_| Ok(()))?;
    crate::program::must("umount", &[&at.display().to_string()]).context("unmount")?;
    lab.finish(vec![], &[&server])
}

fn kernel_client(lab: &mut Lab, proto: &str) -> Result<()> {
    lab.expect_log("not responding, still trying");
    lab.expect_log("nfs: server 10.77.0.1 OK");
    let mut server = lab.server(&Backend::Local.options(lab)?)?;
    // The kernel may send a call again to the last server, which answers it from its replay cache.
    server.expect_fault("replayed_calls_total");
    let mut guest = boot(lab, &GuestOptions::default())?;
    guest.must(&mount_command(proto, "/mnt/x", ",hard"))?;
    let interop = guest.interop()?;
    let end = guest.host_file(&end(lab));
    let job = guest.spawn(&format!("{interop} exercise /mnt/x --truncate-alone --until {end}"))?;
    kill_repeatedly(lab, &mut server, Running::Guest(job), LIFE, |_| Ok(()))?;
    lab.finish(vec![guest], &[&server])
}
