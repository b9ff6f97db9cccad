//! Initiators use a disk of a server that is killed and restarted every two seconds. Their reads contain the data that
//! was written last. The disk is in the page cache of the server's host, which survives.

use anyhow::Result;

use super::{
    super::{
        Case,
        kills::{Running, exercise, kill_until_the_end, seconds},
    },
    initiator::{Backend, Setup, Transport, boot, log_in, log_out},
};
use crate::lab::Lab;

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
    kill_until_the_end(lab, &mut server, client)?;
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
    let interop = guest.interop()?;
    let client = guest.spawn(&format!("{interop} exercise {disk} --seconds {}", seconds(lab)))?;
    kill_until_the_end(lab, &mut server, Running::Guest(client))?;
    log_out(&mut guest)?;
    lab.finish(vec![guest], &[&server])
}
