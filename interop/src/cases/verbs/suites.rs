//! The behavioural suites of the crates, on a device.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail, ensure};

use super::{
    super::Case,
    place::{Device, INSIDE, boot},
};
use crate::lab::{Lab, Skipped};

/// A suite that runs on a device where `MILLRACE_TEST_VERBS` names its address.
#[derive(Clone, Copy)]
struct Suite {
    name: &'static str,
    file: &'static str,
    /// What it is told by the environment.
    environment: &'static str,
    devices: &'static [Device],
    /// What devices say of what it does wrong on purpose.
    provokes: &'static [&'static str],
}

/// What rxe and siw say when a connection breaks the rules.
const BROKEN_RULES: &[&str] = &["non-flush error status", "siw: got TERMINATE"];

const fn suite(name: &'static str, file: &'static str, provokes: &'static [&'static str]) -> Suite {
    Suite { name, file, environment: "", devices: &Device::BOTH, provokes }
}

const SUITES: [Suite; 7] = [
    suite("rdma", "tests/verbs/main.rs", BROKEN_RULES),
    // With memory windows, and with what needs them: shared receive queues.
    Suite {
        environment: "MILLRACE_TEST_RXE_WINDOWS=1",
        devices: &[Device::Rxe],
        ..suite("rdma-windows", "tests/verbs/main.rs", BROKEN_RULES)
    },
    suite("rpcrdma", "tests/echo.rs", &[]),
    suite("rpcrdma-hostile", "tests/hostile_requester.rs", BROKEN_RULES),
    suite("server", "tests/nfs3.rs", &[]),
    suite("server-life", "tests/life.rs", &[]),
    // Streams of READs are broken off while the server writes into their memory, which then is the client's again.
    suite("client", "tests/server.rs", BROKEN_RULES),
];
/// A guest's system calls are slow.
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
    let environment = suite.environment;
    let job =
        guest.spawn(&format!("MILLRACE_TEST_VERBS={INSIDE} {environment} {program} --test-threads 1"))?;
    let said = job.wait(LIMIT)?.ok()?.stdout;
    ensure!(said.contains("test result: ok."), "{said}");
    lab.finish(vec![guest], &[])
}

/// The program that `cargo test --no-run` made of a suite. `interop/run` keeps what cargo said.
fn program(file: &str) -> Result<PathBuf> {
    let Ok(list) = std::env::var("MILLRACE_INTEROP_SUITES") else {
        bail!(Skipped("MILLRACE_INTEROP_SUITES is not set: interop/run builds the suites".into()));
    };
    let said = fs::read_to_string(&list).with_context(|| list.clone())?;
    // `Executable tests/echo.rs (target/debug/deps/echo-0123456789abcdef)`
    let found = said.lines().find_map(|l| {
        let (what, path) = l.trim().strip_prefix("Executable ")?.split_once(" (")?;
        (what == file).then(|| path.trim_end_matches(')').to_owned())
    });
    let found = found.with_context(|| format!("{list} names no program of {file}"))?;
    fs::canonicalize(&found).with_context(|| found.clone())
}
