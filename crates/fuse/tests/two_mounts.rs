//! Two mounts of one export must see each other's changes as two kernel NFS clients do (`scenarios/`).

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod common;
mod scenarios;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use common::{Export, cases_of_versions, for_each, fuse_is_available};
use scenarios::Shell;

/// Printed after each command.
const END: &str = "end of the command";

/// A shell on one of the mounts.
struct Local {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Local {
    fn start(dir: &Path) -> Self {
        let mut sh = Command::new("sh");
        let mut child = sh.current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }
}

impl Shell for Local {
    fn run(&mut self, command: &str) -> Result<String, String> {
        let input = self.child.stdin.as_mut().unwrap();
        writeln!(input, "{command}\necho \"{END}\"").unwrap();
        let mut output = String::new();
        while !output.ends_with(&format!("{END}\n")) {
            if self.out.read_line(&mut output).map_err(|e| e.to_string())? == 0 {
                return Err(format!("the shell has ended: {output}"));
            }
        }
        Ok(output.trim_end().trim_end_matches(END).to_owned())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

/// Runs all cases on two mounts with `options`, and returns the failures.
fn run_all(export: &Export, protos: [&str; 2], options: &str) -> Vec<String> {
    let mounts = protos.map(|proto| export.mount(proto, options));
    let mut failures = Vec::new();
    for (n, scenario) in scenarios::SCENARIOS.iter().enumerate() {
        let dir = format!("case{n}");
        fs::create_dir(mounts[0].at.join(&dir)).unwrap();
        fs::set_permissions(mounts[0].at.join(&dir), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let [mut a, mut b] = [0, 1].map(|i| Local::start(&mounts[i].at.join(&dir)));
        if let Err(e) = scenarios::run_scenario(scenario, [&mut a, &mut b], false, true) {
            failures.push(format!("{protos:?} {options}: {e}"));
        }
    }
    mounts.into_iter().for_each(common::Mounted::unmount);
    failures
}

#[test]
fn two_mounts_behave_like_two_kernel_clients() {
    if !fuse_is_available() || !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED, NOTHING WAS TESTED: only root can switch users");
        return;
    }
    let failures = for_each(cases_of_versions(), |(case, version)| {
        let export = Export::start(case.local);
        let failures = run_all(&export, [case.proto, "tcp"], &format!("allow_other,{version}"));
        failures.into_iter().map(|failure| format!("{case:?} {failure}")).collect::<Vec<_>>()
    });
    let failures = failures.concat();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn names_in_a_large_directory_expire() {
    if !fuse_is_available() {
        return;
    }
    const NAMES: usize = 1000; // Several batches.
    let export = Export::start(true);
    let (a, b) = (export.mount("tcp", ""), export.mount("tcp", "actimeo=3600"));
    let name = |mount: &common::Mounted, kind: &str, n: usize| mount.at.join(format!("dir/{kind}{n}"));
    fs::create_dir(a.at.join("dir")).unwrap();
    (0..NAMES).for_each(|n| fs::write(name(&a, "old", n), "").unwrap());
    // b caches the old names, and that the new ones do not exist.
    let seen = |kind: &str| (0..NAMES).filter(|n| name(&b, kind, *n).exists()).count();
    assert_eq!((seen("old"), seen("new")), (NAMES, 0));
    (0..NAMES).for_each(|n| fs::rename(name(&a, "old", n), name(&a, "new", n)).unwrap());
    // Opening the directory shows the change, and waits until the names have expired.
    assert_eq!(fs::read_dir(b.at.join("dir")).unwrap().count(), NAMES);
    assert_eq!((seen("old"), seen("new")), (0, NAMES));
    a.unmount();
    b.unmount();
}
