//! The conformance tests of libiscsi, iscsi-test-cu(1): over TCP on the host, and over iSER through the initiator of a
//! guest's kernel, which passes their commands on (SG_IO).
//!
//! The iSER of libiscsi 1.19, the version of Debian 12, cannot write (docs/limits.md).

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};

use super::{
    super::Case,
    initiator::{Backend, Setup, Transport, boot, log_in, log_out},
};
use crate::{
    lab::Lab,
    program::{self, Output},
};

/// The program on the host. It runs in guests too, which have the host's suite of Debian.
const PROGRAM: &str = "/usr/bin/iscsi-test-cu";
/// Time limit of the tests.
const LIMIT: Duration = Duration::from_secs(300);

/// Tests that fail without a fault of the target: the first expects the status of a block that it did not ask for, the
/// second sends a write with immediate data and without the Data-Out PDU whose number is to be wrong.
const FAULTY: [&str; 2] = ["GetLBAStatus.UnmapSingle", "iSCSIdatasn.iSCSIDataSnInvalid"];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for backend in [Backend::Memory, Backend::Local] {
        let tcp = Setup::of(Transport::Tcp, backend);
        cases.push(Case::new(tcp.case("conformance"), move |lab| on_host(lab, tcp)));
        let iser = Setup::of(Transport::Iser, backend);
        cases.push(Case::new(iser.case("conformance"), move |lab| in_guest(lab, iser)));
    }
    cases
}

fn on_host(lab: &mut Lab, setup: Setup) -> Result<()> {
    let mut server = lab.server(&setup.options(lab)?)?;
    // The tests of the family iSCSI violate the protocol.
    server.expect_fault("iscsi_connections_closed_total{reason=\"malformed\"}");
    for (family, least) in [("SCSI", 180), ("iSCSI", 14)] {
        let output = program::run(PROGRAM, &["--dataloss", "--test", family, &setup.url()], LIMIT)?;
        judge(&output, least).with_context(|| format!("family {family}"))?;
    }
    lab.finish(Vec::new(), &[&server])
}

fn in_guest(lab: &mut Lab, setup: Setup) -> Result<()> {
    let server = lab.server(&setup.options(lab)?)?;
    let mut guest = boot(lab, setup)?;
    let disk = log_in(&mut guest, setup)?;
    let program = guest.host_file(Path::new(PROGRAM));
    let libraries = guest.host_file(Path::new("/usr/lib"));
    let script =
        format!("LD_LIBRARY_PATH={libraries}/$(uname -m)-linux-gnu {program} --dataloss --test LINUX {disk}");
    let output = guest.spawn(&script)?.wait(guest.limit(LIMIT))?;
    judge(&output, 140)?;
    log_out(&mut guest)?;
    lab.finish(vec![guest], &[&server])
}

/// Checks that at least this number of tests ran, and that only [`FAULTY`] ones failed.
fn judge(output: &Output, least: u32) -> Result<()> {
    let (passed, failed) = results(&output.stdout);
    let faults: Vec<_> = failed.iter().filter(|test| !FAULTY.contains(&test.as_str())).collect();
    ensure!(faults.is_empty(), "{faults:?} failed: {}", output.stdout);
    ensure!(passed >= least, "only {passed} tests passed: {}{}", output.stdout, output.stderr);
    Ok(())
}

/// The number of tests that passed (also those that skip themselves), and the names of those that failed. The result of a
/// test follows its name, after messages of any number of lines.
fn results(text: &str) -> (u32, Vec<String>) {
    let (mut suite, mut test) = ("", "");
    let (mut passed, mut failed) = (0, Vec::new());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("Suite: ") {
            suite = name;
        } else if let Some((name, _)) = line.strip_prefix("  Test: ").and_then(|rest| rest.split_once(" ..."))
        {
            test = name;
        }
        match line.rsplit("...").next() {
            Some("passed") => passed += 1,
            Some("FAILED") => failed.push(format!("{suite}.{test}")),
            _ => {}
        }
    }
    (passed, failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_found_after_messages() {
        let text = "Suite: Read6\n  Test: Simple ...passed\n  Test: BeyondEol ...    [SKIPPED] too large\n\
                    passed\nSuite: Unmap\n  Test: VPD ...FAILED\n    1. test.c:1  - CU_FAIL(\"FAILED\")\n\
                    \x20 Test: Simple ...    [FAILED] UNMAP\n    [OK] passed\nFAILED\nRun Summary:\n";
        assert_eq!(results(text), (2, vec!["Unmap.VPD".to_owned(), "Unmap.Simple".to_owned()]));
    }
}
