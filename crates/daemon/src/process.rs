//! Statistics of this process, with the names that Prometheus's client libraries give them.

use std::fs;

use rustix::{
    param::{clock_ticks_per_second, page_size},
    process::{Resource, getrlimit},
};

/// Statistics of a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Process {
    /// Time of processors in user and system mode.
    pub(crate) cpu_seconds: f64,
    pub(crate) resident_bytes: u64,
    pub(crate) virtual_bytes: u64,
    pub(crate) open_fds: u64,
    /// The limit of open files; `None`: unlimited.
    pub(crate) max_fds: Option<u64>,
    /// Start of the process in seconds after 1970.
    pub(crate) start_seconds: f64,
}

impl Process {
    /// Those of this process; `None` without `/proc`. `boot` is the result of [`boot_seconds`].
    pub(crate) fn read(boot: f64) -> Option<Self> {
        // The number since Linux 6.2; the listing of an older kernel has opened one.
        let open_fds = match fs::metadata("/proc/self/fd").ok()?.len() {
            0 => (fs::read_dir("/proc/self/fd").ok()?.count() as u64).saturating_sub(1),
            number => number,
        };
        let of_process = Self::parse(&fs::read_to_string("/proc/self/stat").ok()?, boot)?;
        let max_fds = getrlimit(Resource::Nofile).current;
        Some(Self { open_fds, max_fds, ..of_process })
    }

    /// Those in `/proc/PID/stat` (proc_pid_stat(5)).
    fn parse(stat: &str, boot: f64) -> Option<Self> {
        // The name of the program, in parentheses, may contain any characters. The third field follows it.
        let fields: Vec<_> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let seconds = |ticks: u64| ticks as f64 / clock_ticks_per_second() as f64;
        Some(Self {
            cpu_seconds: seconds(field(14)? + field(15)?),
            resident_bytes: field(24)? * page_size() as u64,
            virtual_bytes: field(23)?,
            open_fds: 0,
            max_fds: None,
            start_seconds: boot + seconds(field(22)?),
        })
    }
}

/// Time of the start of the system in seconds after 1970.
pub(crate) fn boot_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn names_of_programs_do_not_shift_the_fields() {
        let fields = (4..=52).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        let process = Process::parse(&format!("1 (a) b ) R {fields}\n"), 1000.0).unwrap();
        let tick = clock_ticks_per_second() as f64;
        assert_eq!(process.cpu_seconds, (14.0 + 15.0) / tick);
        assert_eq!((process.virtual_bytes, process.resident_bytes), (23, 24 * page_size() as u64));
        assert_eq!(process.start_seconds, 1000.0 + 22.0 / tick);
        assert!(Process::parse("1 (a) R 1 2 3", 0.0).is_none());
    }

    #[test]
    fn this_process_has_statistics() {
        let file = fs::File::open("/proc/self/stat").unwrap();
        let process = Process::read(boot_seconds().unwrap()).unwrap();
        drop(file);
        assert!(
            process.open_fds >= 1 && process.max_fds.is_none_or(|max| max >= process.open_fds),
            "{process:?}"
        );
        assert!(process.resident_bytes > 0 && process.virtual_bytes > process.resident_bytes, "{process:?}");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!(process.start_seconds > 0.0 && process.start_seconds < now + 5.0, "{process:?}");
    }
}
