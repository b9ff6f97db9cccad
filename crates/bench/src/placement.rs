//! Placement of the two ends of a measurement on separate cores.
//!
//! Otherwise the scheduler decides in each run whether both ends share a core, which changes the rate of small operations
//! by half.

use std::fs;

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use serde::Serialize;

/// The calling thread, for system calls on affinity.
const THIS_THREAD: Pid = Pid::from_raw(0);

/// Where the ends of a measurement run. The keys are those of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Processors {
    /// Number of the processor of the client; `None` if the scheduler selects it.
    #[serde(rename = "client_processor")]
    client: Option<usize>,
    /// Number of the processor of the server; `None` if the scheduler selects it.
    #[serde(rename = "server_processor")]
    server: Option<usize>,
    /// Why they are not pinned.
    #[serde(skip)]
    reason: String,
}

impl Processors {
    /// The scheduler selects processors, because of `reason`.
    pub(crate) fn any(reason: impl Into<String>) -> Self {
        Self { client: None, server: None, reason: reason.into() }
    }

    /// The placement as a sentence for the header of a table.
    pub(crate) fn condition(&self) -> String {
        match (self.client, self.server) {
            (Some(client), Some(server)) => {
                format!("The client runs on processor {client}, the server on processor {server}.")
            }
            _ => format!(
                "Client and server are not pinned ({}): runs in which they share a core do not compare with others.",
                self.reason
            ),
        }
    }
}

/// Pins the calling thread to the core of the client until it is dropped, with the threads that it starts.
pub(crate) struct Placement {
    processors: Processors,
    /// The processors of this thread, of the client and of the server; `None` if they are not pinned.
    sets: Option<[CpuSet; 3]>,
}

impl Placement {
    /// Pins the calling thread if it may use two cores. Otherwise nothing changes.
    pub(crate) fn separate() -> Self {
        let not_pinned = |reason: String| Self { processors: Processors::any(reason), sets: None };
        let own = match sched_getaffinity(THIS_THREAD) {
            Ok(own) => own,
            Err(e) => return not_pinned(format!("sched_getaffinity failed: {e}")),
        };
        let permitted = (0..CpuSet::count()).filter(|cpu| own.is_set(*cpu) == Ok(true));
        let Some((client, server)) = two_cores(permitted, core) else {
            return not_pinned("this process may use one core only".into());
        };
        let sets = [own, only(client), only(server)];
        if let Err(e) = sched_setaffinity(THIS_THREAD, &sets[1]) {
            return not_pinned(format!("sched_setaffinity failed: {e}"));
        }
        let processors = Processors { client: Some(client), server: Some(server), reason: String::new() };
        Self { processors, sets: Some(sets) }
    }

    /// Calls `start` on the core of the server. The processes that it starts stay there.
    pub(crate) fn at_server<T>(&self, start: impl FnOnce() -> T) -> T {
        let Some([_, client, server]) = &self.sets else { return start() };
        set(server);
        let started = start();
        set(client);
        started
    }

    /// Where the ends run.
    pub(crate) fn processors(&self) -> &Processors {
        &self.processors
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        if let Some([own, ..]) = &self.sets {
            set(own);
        }
    }
}

fn set(processors: &CpuSet) {
    // It fails only if an administrator has taken these processors from the process meanwhile.
    sched_setaffinity(THIS_THREAD, processors).ok();
}

/// The set of `cpu`, which another set contains.
fn only(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu).ok(); // Fails for numbers that no set can contain.
    set
}

/// The first processor of `permitted`, and the first one of another core. `core` identifies the core of a processor.
fn two_cores(
    mut permitted: impl Iterator<Item = usize>,
    core: impl Fn(usize) -> String,
) -> Option<(usize, usize)> {
    let first = permitted.next()?;
    let of_first = core(first);
    Some((first, permitted.find(|cpu| core(*cpu) != of_first)?))
}

/// The processors of the core of `cpu`, as text (`Documentation/ABI/stable/sysfs-devices-system-cpu`). Without that file
/// each processor is a core.
fn core(cpu: usize) -> String {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    fs::read_to_string(path).unwrap_or_else(|_| cpu.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_of_one_core_are_not_two_cores() {
        let pairs = |cpu: usize| (cpu / 2).to_string();
        assert_eq!(two_cores([2, 3, 6, 7].into_iter(), pairs), Some((2, 6)));
        assert_eq!(two_cores([2, 3].into_iter(), pairs), None);
        assert_eq!(two_cores([5].into_iter(), pairs), None);
        assert_eq!(two_cores(std::iter::empty(), pairs), None);
    }

    /// The processors of threads and processes that this thread starts.
    fn inherited() -> [String; 2] {
        let of = |status: String| {
            let line = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
            line.unwrap().trim().to_owned()
        };
        let thread = std::thread::spawn(|| fs::read_to_string("/proc/thread-self/status").unwrap());
        let process = std::process::Command::new("cat").arg("/proc/self/status").output().unwrap();
        [of(thread.join().unwrap()), of(String::from_utf8(process.stdout).unwrap())]
    }

    #[test]
    fn threads_and_processes_stay_on_the_core_on_which_they_are_started() {
        let before = inherited();
        let placement = Placement::separate();
        let Processors { client, server, .. } = placement.processors().clone();
        let expected =
            |cpu: Option<usize>| cpu.map_or_else(|| before.clone(), |cpu| [cpu.to_string(), cpu.to_string()]);
        assert_eq!(inherited(), expected(client));
        assert_eq!(placement.at_server(inherited), expected(server));
        assert_eq!(inherited(), expected(client));
        assert_eq!(client.is_some(), placement.processors().condition().contains("runs on processor"));
        drop(placement);
        assert_eq!(inherited(), before);
    }

    #[test]
    fn a_process_with_one_processor_is_not_pinned() {
        let own = sched_getaffinity(THIS_THREAD).unwrap();
        let first = (0..CpuSet::count()).find(|cpu| own.is_set(*cpu) == Ok(true)).unwrap();
        set(&only(first));
        let placement = Placement::separate();
        assert_eq!(placement.processors(), &Processors::any("this process may use one core only"));
        drop(placement);
        set(&own);
    }
}
