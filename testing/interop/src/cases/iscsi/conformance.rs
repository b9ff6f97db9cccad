//! The conformance tests of libiscsi, iscsi-test-cu(1): over TCP on the host, and over iSER through the initiator of a
//! guest's kernel, which passes their commands on (SG_IO). The same tests run on tgt and on the kernel's target, for
//! comparison.
//!
//! The iSER of libiscsi 1.19, the version of Debian 12, cannot write (docs/limits.md).

use std::{fmt, fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};

use super::{
    super::Case,
    initiator::{Backend, Setup, Transport, boot, log_in, log_out},
    lio,
    programs::{START_TGT, on_host},
};
use crate::{
    lab::Lab,
    program::{self, Output},
};

/// The program on the host. It runs in guests too, which have the host's suite of Debian.
const PROGRAM: &str = "/usr/bin/iscsi-test-cu";
/// Time limit of the tests.
const LIMIT: Duration = Duration::from_secs(300);
/// The families of tests over TCP, with the least number of tests that a target passes entirely.
const FAMILIES: [(&str, usize); 2] = [("SCSI", 120), ("iSCSI", 14)];

/// Tests that fail without a fault of the target: the first expects the status of a block that it did not ask for, the
/// second sends a write with immediate data and without the Data-Out PDU whose number is to be wrong.
const FAULTY: [&str; 2] = ["GetLBAStatus.UnmapSingle", "iSCSIdatasn.iSCSIDataSnInvalid"];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for backend in [Backend::Memory, Backend::Local] {
        let tcp = Setup::of(Transport::Tcp, backend);
        cases.push(Case::new(tcp.case("conformance"), move |lab| of_millrace(lab, tcp)));
        let iser = Setup::of(Transport::Iser, backend);
        cases.push(Case::new(iser.case("conformance"), move |lab| in_guest(lab, iser)));
    }
    cases.push(Case::long("tgt/conformance", of_tgt));
    cases.push(Case::long("lio/tcp/conformance", of_lio));
    cases
}

fn of_millrace(lab: &mut Lab, setup: Setup) -> Result<()> {
    let mut server = lab.server(&setup.options(lab)?)?;
    // The tests of the family iSCSI violate the protocol.
    server.expect_fault("iscsi_connections_closed_total{reason=\"malformed\"}");
    for (family, least) in FAMILIES {
        let output = test(family, &setup.url())?;
        judge(lab, family, &output, least)?;
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
    judge(lab, "LINUX", &output, 100)?;
    log_out(&mut guest)?;
    lab.finish(vec![guest], &[&server])
}

/// tgt on the host, with a plain file.
fn of_tgt(lab: &mut Lab) -> Result<()> {
    // The program takes the name of a file for that of a family.
    let tests =
        "for family in SCSI iSCSI; do iscsi-test-cu --dataloss --test $family $url >of-$family || true; done";
    on_host(lab, "", &format!("{START_TGT}{tests}"), 2 * LIMIT)?;
    for (family, _) in FAMILIES {
        report(lab, family, &fs::read_to_string(lab.dir.join(format!("of-{family}")))?)?;
    }
    lab.finish(Vec::new(), &[])
}

/// The kernel's target in a guest, with a file in memory.
fn of_lio(lab: &mut Lab) -> Result<()> {
    for text in [
        "cmd exceeds last lba",
        "TARGET_CORE",
        "underflow/overflow",
        "Fixing up flags",
        "does not advertise PROTECT",
        "DataOut timeout",
        "within-command recovery",
        "CmdSN",
        "received DataSN",
        "target_cmd_size_check",
        "ABORT_TASK",
        "unknown iSCSI OpCode",
        "unknown opcode",
    ] {
        lab.expect_log(text);
    }
    let guest = lio::serve(lab, false, false)?;
    let url = lio::url(&guest, false);
    for (family, _) in FAMILIES {
        report(lab, family, &test(family, &url)?.stdout)?;
    }
    lab.finish(vec![guest], &[])
}

/// Runs a family of tests on the host.
fn test(family: &str, url: &str) -> Result<Output> {
    program::run(PROGRAM, &["--dataloss", "--test", family, url], LIMIT)
}

/// Reports the results of a family of tests, of which at least one has passed.
fn report(lab: &Lab, family: &str, text: &str) -> Result<Results> {
    fs::write(lab.dir.join(format!("of-{family}")), text)?;
    let results = Results::of(text);
    ensure!(results.passed > 0, "family {family}: no test passed: {text}");
    lab.report(&format!("{family}: {results}"))?;
    Ok(results)
}

/// Checks that at least this number of tests passed entirely, and that only [`FAULTY`] ones failed.
fn judge(lab: &Lab, family: &str, output: &Output, least: usize) -> Result<()> {
    let results = report(lab, family, &output.stdout).with_context(|| output.stderr.clone())?;
    let faults: Vec<_> = results.failed.iter().filter(|test| !FAULTY.contains(&test.as_str())).collect();
    ensure!(faults.is_empty(), "family {family}: {faults:?} failed: {}", output.stdout);
    ensure!(
        results.passed >= least,
        "family {family}: only {} tests passed: {}",
        results.passed,
        output.stdout
    );
    Ok(())
}

/// The results of tests.
#[derive(Debug, Default, PartialEq, Eq)]
struct Results {
    passed: usize,
    /// Tests that passed and skipped something, often all, for example a command that the target does not support.
    skipped: usize,
    /// The names of the tests that failed.
    failed: Vec<String>,
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, skipped, failed } = self;
        write!(f, "{passed} passed, {skipped} skipped, {} failed {}", failed.len(), failed.join(" "))
    }
}

impl Results {
    /// The results in the output of the program. The result of a test follows its name, after messages of any number of
    /// lines.
    fn of(text: &str) -> Self {
        let (mut suite, mut test, mut skips) = ("", "", false);
        let mut results = Self::default();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("Suite: ") {
                suite = name;
            } else if let Some((name, _)) =
                line.strip_prefix("  Test: ").and_then(|rest| rest.split_once(" ..."))
            {
                (test, skips) = (name, false);
            }
            skips |= line.contains("[SKIPPED]");
            // Messages of the end of a test follow its result.
            match line.rsplit("...").next().unwrap_or_default() {
                end if end.starts_with("FAILED") => results.failed.push(format!("{suite}.{test}")),
                end if end.starts_with("passed") && skips => results.skipped += 1,
                end if end.starts_with("passed") => results.passed += 1,
                _ => {}
            }
        }
        results
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_found_after_messages() {
        let text = "Suite: Read6\n  Test: Simple ...passed\n  Test: BeyondEol ...    [SKIPPED] too large\n\
                    passed\nSuite: Unmap\n  Test: VPD ...FAILED\n    1. test.c:1  - CU_FAIL(\"FAILED\")\n\
                    \x20 Test: Simple ...    [FAILED] UNMAP\n    [OK] passed\nFAILED\n\
                    \x20 Test: Zero ...passed    [FAILED] READ\nRun Summary:\n";
        let failed = vec!["Unmap.VPD".to_owned(), "Unmap.Simple".to_owned()];
        let results = Results::of(text);
        assert_eq!(results, Results { passed: 2, skipped: 1, failed });
        assert_eq!(results.to_string(), "2 passed, 1 skipped, 2 failed Unmap.VPD Unmap.Simple");
    }
}
