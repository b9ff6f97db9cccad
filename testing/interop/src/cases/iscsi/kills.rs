//! Initiators use a disk of a server that is killed and restarted every few seconds. Their reads contain the data that
//! was written last. The disk is in the page cache of the server's host, which survives.

use std::time::Duration;

use anyhow::Result;

use super::{
    super::{
        Case,
        kills::{self, LIFE, Running, exercise, kill_repeatedly},
    },
    faults::written,
    initiator::{Backend, Setup, Transport, boot, log_in, log_out},
};
use crate::lab::Lab;

/// Minimum time from one start of the server to its end with the kernel's initiator, which connects two seconds after the
/// loss of a connection (DefaultTime2Wait). The server ends only after the initiator has written again: if it ends between
/// the kernel's binding of the connection and the first login request, iscsid does not stop the connection, and the kernel
/// refuses to bind another one for the session (ENOTCONN) until the session fails.
const LIFE_FOR_KERNEL: Duration = Duration::from_secs(3);

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for transport in [Transport::Tcp, Transport::Iser] {
        let setup = Setup::of(transport, Backend::Local);
        cases.push(Case::new(setup.case("kills"), move |lab| kernel(lab, setup)));
        cases.push(Case::new(setup.case("kills-library"), move |lab| library(lab, setup)));
    }
    cases
}

/// The initiator in user space, on the server's host.
fn library(lab: &mut Lab, setup: Setup) -> Result<()> {
    let mut server = lab.server(&setup.options(lab)?)?;
    let client = exercise(lab, &setup.url())?;
    kill_repeatedly(lab, &mut server, client, LIFE, |server| written(server, 1))?;
    lab.finish(Vec::new(), &[&server])
}

/// The kernel's initiator.
fn kernel(lab: &mut Lab, setup: Setup) -> Result<()> {
    for text in
        ["detected conn error", "ping timeout", "session recovery", "Power-on or device reset", "iser: "]
    {
        lab.expect_log(text);
    }
    let mut server = lab.server(&setup.options(lab)?)?;
    let mut guest = boot(lab, setup)?;
    let disk = log_in(&mut guest, setup)?;
    // The driver of disks fails a command whose connection was lost 5 times, unless there is no limit.
    guest.must("for f in /sys/class/scsi_disk/*/max_retries; do echo -1 > $f; done")?;
    let interop = guest.interop()?;
    let end = guest.host_file(&kills::end(lab));
    let client = Running::Guest(guest.spawn(&format!("{interop} exercise {disk} --until {end}"))?);
    kill_repeatedly(lab, &mut server, client, LIFE_FOR_KERNEL, |server| written(server, 1))?;
    log_out(&mut guest)?;
    lab.finish(vec![guest], &[&server])
}
