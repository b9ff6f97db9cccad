//! Persistent reservations of two initiators (SPC-4 section 5.13).

use anyhow::{Result, ensure};

use super::{
    super::Case,
    initiator::{Backend, Setup, Transport, boot, log_in, log_out},
};
use crate::lab::Lab;

/// Commands with the guest that runs each, in order. `persist` and `refused` are defined in [`FUNCTIONS`].
const DIALOGUE: [(usize, &str); 14] = [
    (0, "write"),
    (1, "write"),
    (0, "persist --out --register --param-sark=0x11"),
    (1, "persist --out --register --param-sark=0x22"),
    // Write exclusive, registrants only.
    (0, "persist --out --reserve --param-rk=0x11 --prout-type=5"),
    (1, "write"),
    (1, "persist --out --register --param-rk=0x22 --param-sark=0"),
    (1, "refused write"),
    (1, "dd if=$disk of=/dev/null bs=4k count=1 iflag=direct"),
    (0, "write"),
    (1, "persist --out --register --param-sark=0x33"),
    (1, "persist --out --preempt --param-rk=0x33 --param-sark=0x11 --prout-type=1"),
    (0, "refused write"),
    (1, "write && persist --out --clear --param-rk=0x33"),
];

const FUNCTIONS: &str = "
persist() { sg_persist --no-inquiry \"$@\" $disk >/dev/null; }
write() { dd if=/dev/zero of=$disk bs=4k count=1 oflag=direct; }
refused() { ! \"$@\" 2>/dev/null; }
";

pub(super) fn cases() -> Vec<Case> {
    [Transport::Tcp, Transport::Iser]
        .map(|transport| {
            let setup = Setup::of(transport, Backend::Memory);
            Case::new(setup.case("reservations"), move |lab| run(lab, setup))
        })
        .into()
}

fn run(lab: &mut Lab, setup: Setup) -> Result<()> {
    lab.expect_log("reservation conflict");
    lab.expect_log("I/O error, dev sd");
    lab.expect_log("Reservations");
    lab.expect_log("Registrations");
    let server = lab.server(&setup.options(lab)?)?;
    let mut guests = [boot(lab, setup)?, boot(lab, setup)?];
    let disks = [log_in(&mut guests[0], setup)?, log_in(&mut guests[1], setup)?];
    for (step, (n, command)) in DIALOGUE.iter().enumerate() {
        let output = guests[*n].run(&format!("disk={}{FUNCTIONS}{command}", disks[*n]))?;
        ensure!(output.status == 0, "step {step}, `{command}` in guest {n}: {}", output.stderr);
    }
    for guest in &mut guests {
        log_out(guest)?;
    }
    lab.finish(guests.into(), &[&server])
}
