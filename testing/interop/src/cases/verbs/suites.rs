//! The test suites of the crates, on a device.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail, ensure};

use super::{
    super::Case,
    common::{Device, INSIDE, boot},
};
use crate::lab::{Lab, Skipped};

/// A suite that runs on the device whose address is in `MILLRACE_TEST_VERBS`.
#[derive(Clone, Copy)]
struct Suite {
    name: &'static str,
    file: &'static str,
    /// Arguments of the test program that select its tests.
    tests: &'static str,
    /// Environment variables of the suite.
    environment: &'static str,
    devices: &'static [Device],
    /// Kernel messages that the suite provokes on purpose.
    provokes: &'static [&'static str],
}

/// Kernel messages of rxe and siw about a protocol violation.
const VIOLATIONS: &[&str] = &["non-flush error status", "siw: got TERMINATE"];

const fn suite(
    name: &'static str,
    file: &'static str,
    tests: &'static str,
    provokes: &'static [&'static str],
) -> Suite {
    Suite { name, file, tests, environment: "", devices: &Device::BOTH, provokes }
}

const SUITES: [Suite; 8] = [
    suite("rdma", "tests/verbs/main.rs", "", VIOLATIONS),
    // With memory windows and the features that need them, shared receive queues.
    Suite {
        environment: "MILLRACE_TEST_RXE_WINDOWS=1",
        devices: &[Device::Rxe],
        ..suite("rdma-windows", "tests/verbs/main.rs", "", VIOLATIONS)
    },
    suite("rpcrdma", "tests/rpcrdma/main.rs", "echo::", &[]),
    suite("rpcrdma-hostile", "tests/rpcrdma/main.rs", "hostile_requester:: --skip read_read::", VIOLATIONS),
    suite("server", "tests/server/main.rs", "nfs3::", &[]),
    suite("server-life", "tests/server/main.rs", "life::", &[]),
    // The suite cancels streams of READs while the server writes into their memory, which then returns to the
    // client.
    suite("client", "tests/client/main.rs", "server::", VIOLATIONS),
    suite("client-no-copy", "tests/copied_bytes.rs", "", &[]),
];
/// Longer than on a host, since system calls of a guest are slow.
const LIMIT: Duration = Duration::from_secs(300);

pub(super) fn cases() -> Vec<Case> {
    let case = |d: Device, suite: Suite| {
        Case::new(format!("verbs/{}/suite-{}", d.name(), suite.name), move |lab| run(lab, d, suite))
    };
    SUITES.iter().flat_map(|s| s.devices.iter().map(|d| case(*d, *s))).collect()
}

fn run(lab: &mut Lab, device: Device, suite: Suite) -> Result<()> {
    let program = program(suite.file)?;
    suite.provokes.iter().for_each(|text| lab.expect_log(text));
    let mut guest = boot(lab, device)?;
    let program = guest.host_file(&program);
    let Suite { environment, tests, .. } = suite;
    let command = format!("MILLRACE_TEST_VERBS={INSIDE} {environment} {program} {tests} --test-threads 1");
    let output = guest.spawn(&command)?.wait(LIMIT)?.ok()?.stdout;
    ensure!(output.contains("test result: ok.") && !output.contains("running 0 tests"), "{output}");
    lab.finish(vec![guest], &[])
}

/// The program that `cargo test --no-run` built from a suite. `testing/interop/run` keeps cargo's output.
fn program(file: &str) -> Result<PathBuf> {
    let Ok(list) = std::env::var("MILLRACE_INTEROP_SUITES") else {
        bail!(Skipped("MILLRACE_INTEROP_SUITES is not set: testing/interop/run builds the suites".into()));
    };
    let list_text = fs::read_to_string(&list).with_context(|| list.clone())?;
    // `Executable tests/client/main.rs (target/debug/deps/client-0123456789abcdef)`
    let found = list_text.lines().find_map(|l| {
        let (what, path) = l.trim().strip_prefix("Executable ")?.split_once(" (")?;
        (what == file).then(|| path.trim_end_matches(')').to_owned())
    });
    let found = found.with_context(|| format!("{list} names no program of {file}"))?;
    fs::canonicalize(&found).with_context(|| found.clone())
}
