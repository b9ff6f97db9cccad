//! Scenarios in which two clients of one export see each other's changes, as shell commands for either, and a
//! runner.
//!
//! The reference is the Linux NFS client. The tests of this crate run the scenarios on two mounts of
//! `millrace mount`, and the lab (`testing/interop/`) runs them on two kernels that mount the export.

#![allow(unreachable_pub)] // Included by this crate and by the lab.

use std::time::{Duration, Instant};

/// One of the two clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientId {
    A,
    B,
}
use ClientId::{A, B};

/// Expected output of a step: all lines, joined by spaces.
#[derive(Debug, Clone, Copy)]
pub enum Expected {
    /// Any output, but the command must succeed.
    Anything,
    /// This text.
    Text(&'static str),
    /// This text, now or soon: changed names are expired in the kernel asynchronously.
    Eventually(&'static str),
    /// The first text on our mount. The Linux client may also print the second: it uses cached names,
    /// positive and negative, for `acdirmin`.
    MountOrLinux(&'static str, &'static str),
    /// This text on our mount, anything on the Linux client.
    MountOnly(&'static str),
    /// This text on our mount after a while, anything on the Linux client: without pre-operation attributes,
    /// the Linux client cannot distinguish a remote change of a directory from a local one.
    MountEventually(&'static str),
}
use Expected::{Anything, Eventually, MountEventually, MountOnly, MountOrLinux, Text};

/// Shell commands for each client, which start in an empty directory of the export.
pub struct Scenario {
    pub name: &'static str,
    pub steps: &'static [(ClientId, &'static str, Expected)],
}

/// A shell on one client that keeps its state between commands and starts in the scenario's directory.
pub trait Shell {
    /// Runs `command` and returns its output.
    ///
    /// # Errors
    /// A description of the failure.
    fn run(&mut self, command: &str) -> Result<String, String>;
}

/// Time limit for steps that may succeed late.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Runs a scenario. `by_kernel`: on the Linux client. `has_before`: the server returns pre-operation
/// attributes of directories.
///
/// # Errors
/// The failed step and its output.
pub fn run_scenario(
    scenario: &Scenario,
    [a, b]: [&mut dyn Shell; 2],
    by_kernel: bool,
    has_before: bool,
) -> Result<(), String> {
    for (n, (at, command, expected)) in scenario.steps.iter().enumerate() {
        let shell: &mut dyn Shell = if *at == A { &mut *a } else { &mut *b };
        let started = Instant::now();
        loop {
            let failure =
                |what: &str| format!("{}, step {} ({at:?}: {command}): {what}", scenario.name, n + 1);
            let output = shell.run(command).map_err(|e| failure(&e))?;
            let output = output.split_whitespace().collect::<Vec<_>>().join(" ");
            let fits = match expected {
                Anything => true,
                Text(text) | Eventually(text) => output == *text,
                MountOrLinux(text, on_linux) => output == *text || (by_kernel && output == *on_linux),
                MountOnly(text) => by_kernel || output == *text,
                MountEventually(text) => (by_kernel && !has_before) || output == *text,
            };
            if fits {
                break;
            }
            let is_final =
                !matches!(expected, Eventually(_) | MountEventually(_)) || started.elapsed() > MAX_WAIT;
            if is_final {
                return Err(failure(&format!("printed {output:?}, expected {expected:?}")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

/// All scenarios.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "log rotation by rename",
        steps: &[
            (A, "echo old > x", Anything),
            (B, "cat x", Text("old")),
            (A, "mv x y; echo new > x", Anything),
            (B, "cat x", MountOrLinux("new", "old")),
        ],
    },
    Scenario {
        name: "append to a rotated log by its new name after a listing",
        steps: &[
            (A, "echo old > x", Anything),
            (B, "cat x", Text("old")),
            (A, "mv x y; echo new > x", Anything),
            (B, "ls", Text("x y")),
            (B, "cat x; echo more >> x", Text("new")),
            (A, "cat x; cat y", Text("new more old")),
        ],
    },
    Scenario {
        name: "log rotation while the log is open",
        steps: &[
            (A, "echo old > x", Anything),
            (B, "exec 3>> x; echo one >&3", Anything),
            (A, "mv x y", Anything),
            (B, "echo two >&3; exec 3>&-", Anything),
            (A, "cat y; ls", Text("old one two y")),
        ],
    },
    Scenario {
        name: "open of a cached name that now refers to another file",
        steps: &[
            (A, "echo old > x", Anything),
            (B, "stat -c %s x", Text("4")),
            (A, "mv x y; echo newer > x", Anything),
            (B, "cat x", MountOrLinux("newer", "old")),
        ],
    },
    Scenario {
        name: "replacement by rename",
        steps: &[
            (A, "echo old > x", Anything),
            (B, "cat x", Text("old")),
            (A, "echo new > t; mv t x", Anything),
            (B, "cat x", Text("new")),
            (B, "echo newer > t; mv t x", Anything),
            (A, "cat x", Text("newer")),
        ],
    },
    Scenario {
        name: "file removed and created again",
        steps: &[
            (A, "echo one > f", Anything),
            (B, "cat f", Text("one")),
            (A, "rm f; echo two > f", Anything),
            (B, "cat f", Text("two")),
            (A, "rm f", Anything),
            (B, "cat f 2>&1 | sed 's/.*: //'", Text("No such file or directory")),
            (B, "echo three > f", Anything),
            (A, "cat f", MountOrLinux("three", "")),
        ],
    },
    Scenario {
        name: "alternating appends",
        steps: &[
            (A, "echo a1 >> f", Anything),
            (B, "echo b1 >> f", Anything),
            (A, "echo a2 >> f", Anything),
            (B, "echo b2 >> f; cat f", Text("a1 b1 a2 b2")),
            (A, "echo a3 >> f; cat f", Text("a1 b1 a2 b2 a3")),
            (B, "cat f", Text("a1 b1 a2 b2 a3")),
        ],
    },
    Scenario {
        name: "alternating appends to an open file",
        steps: &[
            (A, "exec 3>> f; echo a1 >&3", Anything),
            (B, "exec 3>> f; echo b1 >&3", Anything),
            // Attributes are cached for at least acregmin (3 s).
            (A, "sleep 4; echo a2 >&3", Anything),
            (B, "sleep 4; echo b2 >&3; exec 3>&-", Anything),
            // Linux 7.3 appends at the new end, but with its old page: zeros instead of b1.
            (A, "exec 3>&-; cat f", MountOnly("a1 b1 a2 b2")),
        ],
    },
    Scenario {
        name: "append after a remote truncation",
        steps: &[
            (A, "echo 123456789 > f", Anything),
            (B, "cat f", Text("123456789")),
            (A, "truncate -s 3 f", Anything),
            (B, "echo x >> f; cat f", Text("123x")),
            (A, "cat f", Text("123x")),
        ],
    },
    Scenario {
        name: "remote truncation and extension",
        steps: &[
            (A, "echo 123456789 > f", Anything),
            (B, "cat f", Text("123456789")),
            (A, "truncate -s 3 f", Anything),
            (B, "cat f; echo; stat -c %s f", Text("123 3")),
            (A, "truncate -s 8 f; echo end >> f", Anything),
            (B, "tr '\\0' . < f; stat -c %s f", Text("123.....end 12")),
            (A, ": > f", Anything),
            (B, "cat f; stat -c %s f", Text("0")),
        ],
    },
    Scenario {
        name: "remote remove of an open file",
        steps: &[
            (A, "echo content > f", Anything),
            (B, "exec 3< f", Anything),
            (A, "rm f", Anything),
            (B, "cat <&3 2>&1 | sed 's/.*: //'", Text("Stale file handle")),
            (B, "exec 3<&-; ls -A", Text("")),
        ],
    },
    Scenario {
        name: "local remove of an open file",
        steps: &[
            (A, "echo content > f", Anything),
            (B, "exec 3< f; rm f; cat <&3", Text("content")),
            (A, "ls -A | sed 's/nfs.*/nfs/'", Text(".nfs")),
            (B, "exec 3<&-", Anything),
            (A, "ls -A", Eventually("")),
        ],
    },
    Scenario {
        name: "times and sizes after close",
        steps: &[
            (A, "echo one > f; touch -d @1000000000 f", Anything),
            (B, "cat f; stat -c '%s %Y' f", Text("one 4 1000000000")),
            (A, "echo longer > f; touch -d @1100000000 f", Anything),
            (B, "cat f; stat -c '%s %Y' f", Text("longer 7 1100000000")),
            (B, "touch -d @1200000000 f", Anything),
            (A, "cat f; stat -c '%s %Y' f", Text("longer 7 1200000000")),
        ],
    },
    Scenario {
        name: "hard links",
        steps: &[
            (A, "echo one > f", Anything),
            (B, "cat f; stat -c %h f", Text("one 1")),
            (A, "ln f g", Anything),
            (B, "cat f; stat -c %h f; cat g", Text("one 2 one")),
            (B, "echo two > g", Anything),
            (A, "cat f; rm f; cat g; stat -c %h g", Text("two two 1")),
            (B, "cat g; stat -c %h g", Text("two 1")),
        ],
    },
    Scenario {
        name: "link to a file renamed remotely",
        steps: &[
            (A, "echo old > f", Anything),
            (B, "stat -c %s f", Text("4")),
            (A, "ln f taken; rm f; echo new > f", Anything),
            (B, "ln f mine; rm f; cat mine", MountOrLinux("new", "old")),
        ],
    },
    Scenario {
        name: "remote rename of one of two hard links",
        steps: &[
            (A, "echo old > f; ln f g", Anything),
            (B, "cat f; cat g; cat f", Text("old old old")),
            (A, "rm g; echo new > g", Anything),
            (B, "cat f; cat g", MountOrLinux("old new", "old old")),
        ],
    },
    Scenario {
        name: "listing after remote changes",
        steps: &[
            (B, "ls", Text("")),
            (A, "touch a b; mkdir d; touch d/x", Anything),
            (B, "ls; ls d", Text("a b d x")),
            (A, "rm a; mv b c; touch d/y", Anything),
            (B, "ls; ls d", Text("c d x y")),
            (B, "cat b 2>&1 | sed 's/.*: //'; stat -c %n c", Text("No such file or directory c")),
            (A, "rm -r d; touch d", Anything),
            (B, "ls; stat -c %F d", Text("c d regular empty file")),
        ],
    },
    Scenario {
        name: "cached names after a local change of the directory",
        steps: &[
            (A, "touch there", Anything),
            (
                B,
                "stat -c %n there; stat -c %n nothing 2>&1 | sed 's/.*: //'",
                Text("there No such file or directory"),
            ),
            (A, "rm there; touch nothing", Anything),
            (B, "touch own", Anything),
            (B, "stat -c %n nothing 2>&1 | sed 's/.*: //'", MountEventually("nothing")),
            (B, "stat -c %n there 2>&1 | sed 's/.*: //'", MountEventually("No such file or directory")),
        ],
    },
    Scenario {
        name: "cached names corrected by a failed operation",
        steps: &[
            (
                B,
                "ls -d d f 2>&1 | sed 's/.*: //'",
                Text("No such file or directory No such file or directory"),
            ),
            (A, "mkdir d; touch f", Anything),
            (B, "mkdir d 2>&1 | sed 's/.*: //'", Text("File exists")),
            (B, "stat -c %n d 2>&1", Eventually("d")),
            (B, "stat -c %n f", Anything),
            (A, "rm f; rmdir d", Anything),
            (B, "rmdir d 2>&1 | sed 's/.*: //'", Text("No such file or directory")),
            (B, "stat -c %n d 2>&1 | sed 's/.*: //'", Eventually("No such file or directory")),
        ],
    },
    Scenario {
        name: "modes and owners",
        steps: &[
            (A, "echo secret > f; chmod 644 f", Anything),
            (B, "setpriv --reuid 4711 --regid 4711 --clear-groups cat f", Text("secret")),
            (A, "chmod 600 f", Anything),
            (
                B,
                "setpriv --reuid 4711 --regid 4711 --clear-groups cat f 2>&1 | sed 's/.*: //'",
                Text("Permission denied"),
            ),
            (A, "chown 4711 f", Anything),
            (
                B,
                "setpriv --reuid 4711 --regid 4711 --clear-groups cat f; stat -c '%a %u' f",
                Text("secret 600 4711"),
            ),
            (A, "chmod 640 f; chown 0:4712 f", Anything),
            (
                B,
                "setpriv --reuid 4711 --regid 4711 --groups 4712 cat f; stat -c '%a %u %g' f",
                Text("secret 640 0 4712"),
            ),
        ],
    },
    Scenario {
        name: "directory used as a lock",
        steps: &[
            (A, "mkdir lock && echo got it", Text("got it")),
            (B, "mkdir lock 2>/dev/null || echo busy", Text("busy")),
            (A, "rmdir lock", Anything),
            (B, "mkdir lock && echo got it", Text("got it")),
            (A, "mkdir lock 2>/dev/null || echo busy", Text("busy")),
            (B, "rmdir lock", Anything),
            (A, "mkdir lock && rmdir lock && echo got it", Text("got it")),
        ],
    },
    Scenario {
        name: "symbolic links and renamed directories",
        steps: &[
            (A, "mkdir d; echo one > d/f; ln -s d/f l", Anything),
            (B, "cat l", Text("one")),
            (A, "echo two > d/g; ln -sfn d/g l", Anything),
            (B, "ls > /dev/null; readlink l; cat l", Text("d/g two")),
            (A, "mv d e; ln -sfn e/f l", Anything),
            (B, "ls; cat l", Text("e l one")),
            (B, "mv e d", Anything),
            (A, "ls; cat d/f", Text("d l one")),
        ],
    },
];
