//! Medians, ratios, and comparison with the goals.

use millrace_program::{
    table::{Align, Table},
    units::{ByteSize, grouped, short},
};

use super::{Case, MountBench, Run, Subject};
use crate::Figure;

/// Goal of a mount.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Goal {
    /// At least this fraction of the lower rate of passthrough and library.
    OfLower(f64),
    /// At least this fraction of the rate of the passthrough.
    OfPassthrough(f64),
    /// A listing within this number of seconds.
    Seconds(f64),
    /// No goal.
    Nothing,
}

/// Ratio of rates that are equal within the noise.
const ALIKE: f64 = 0.95;

impl Case {
    fn goal(self) -> Goal {
        match self {
            Self::Read => Goal::OfLower(0.7),
            Self::Write => Goal::OfLower(0.6),
            Self::RandomRead => Goal::OfPassthrough(0.5),
            Self::Stat => Goal::OfPassthrough(ALIKE),
            Self::List => Goal::Seconds(2.0),
            Self::ListAttributes => Goal::Nothing,
        }
    }

    fn title(self, config: &MountBench) -> String {
        let (files, entries) = (grouped(config.files.into()), grouped(config.entries.into()));
        match self {
            Self::Read => "sequential read 1 MiB, MB/s".into(),
            Self::Write => "sequential write 1 MiB, MB/s".into(),
            Self::RandomRead => "random read 4 KiB, 8 jobs, /s".into(),
            Self::Stat => format!("stat of {files} cached files, /s"),
            Self::List => format!("list {entries} names, s"),
            Self::ListAttributes => format!("list {entries} with attributes, s"),
        }
    }

    /// The value in the table: a rate, or the duration of a listing in seconds.
    fn value(self, f: &Figure, entries: u32) -> Option<f64> {
        match self {
            Self::Read | Self::Write => f.mb_per_s,
            Self::RandomRead | Self::Stat => f.ops_per_s,
            Self::List | Self::ListAttributes => f.ops_per_s.map(|rate| f64::from(entries) / rate),
        }
    }

    fn show(self, value: Option<f64>) -> String {
        match (self, value) {
            (_, None) => "-".into(),
            (Self::RandomRead | Self::Stat, Some(v)) => grouped(v.round() as u64),
            (_, Some(v)) => short(v),
        }
    }
}

/// Results of a comparison.
pub struct Report {
    pub(super) config: MountBench,
    pub(super) runs: Vec<Run>,
}

impl Report {
    fn median(&self, case: Case, subject: Subject) -> Option<f64> {
        let of = self.runs.iter().filter(|r| r.case == case && r.subject == subject);
        let figure = Figure::median(&of.map(|r| r.figure.clone()).collect::<Vec<_>>())?;
        case.value(&figure, self.config.entries)
    }

    /// The ratio that is compared with the goal, the goal, and whether it is reached.
    fn judged(&self, case: Case) -> [String; 3] {
        let of = |subject| self.median(case, subject);
        let (mount, passthrough) = (of(Subject::Mount), of(Subject::Passthrough));
        let over = |limit: Option<f64>| mount.zip(limit).map(|(m, limit)| m / limit);
        let (shown, goal, reached) = match case.goal() {
            Goal::OfLower(goal) => {
                let lower = passthrough.zip(of(Subject::Library)).map(|(a, b)| a.min(b));
                let ratio = over(lower);
                (ratio, format!(">= {goal} of the lower"), ratio.map(|r| r >= goal))
            }
            Goal::OfPassthrough(goal) => {
                let ratio = over(passthrough);
                (ratio, format!(">= {goal} of passthrough"), ratio.map(|r| r >= goal))
            }
            Goal::Seconds(most) => (over(passthrough), format!("< {most} s"), mount.map(|m| m < most)),
            Goal::Nothing => (over(passthrough), String::new(), None),
        };
        let reached = reached.map_or("", |r| if r { "yes" } else { "no" });
        [shown.map_or_else(|| "-".into(), short), goal, reached.into()]
    }

    /// The RDMA provider, if the transport is RDMA.
    pub fn provider(&self) -> Option<&str> {
        self.runs.iter().find_map(|r| r.figure.provider.as_deref())
    }

    /// Table of medians, ratios and goals.
    pub fn table(&self) -> Table {
        let mut t = Table::new(&[
            ("", Align::Left),
            ("library", Align::Right),
            ("passthrough", Align::Right),
            ("mount", Align::Right),
            ("ratio", Align::Right),
            ("goal", Align::Left),
            ("reached", Align::Left),
        ]);
        for case in Case::ALL {
            let values = Subject::ALL.map(|s| case.show(self.median(case, s)));
            t.row([case.title(&self.config)].into_iter().chain(values).chain(self.judged(case)));
        }
        t
    }

    /// Peak memory of the mount's process in a listing, of all runs; it is remounted before each listing.
    pub fn listing_memory(&self, case: Case) -> Option<ByteSize> {
        let of = self.runs.iter().filter(|r| r.case == case && r.subject == Subject::Mount);
        of.filter_map(|r| r.resident).max().map(ByteSize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::At;

    fn run(case: Case, subject: Subject, mb_per_s: f64, ops_per_s: f64) -> Run {
        let figure = Figure { mb_per_s: Some(mb_per_s), ops_per_s: Some(ops_per_s), ..Figure::default() };
        Run { case, subject, figure, resident: Some(1 << 20) }
    }

    fn report(runs: Vec<Run>) -> Report {
        let config = MountBench {
            runs: 1,
            size: 1,
            random_ops: 1,
            files: 10,
            entries: 1000,
            proto: millrace_client::Proto::Tcp,
            at: At::LOOPBACK,
            tmpfs: "/".into(),
            passthrough: Vec::new(),
        };
        Report { config, runs }
    }

    #[test]
    fn a_read_is_compared_with_the_lower_of_library_and_passthrough() {
        let with = |mount| {
            report(vec![
                run(Case::Read, Subject::Library, 3000.0, 1.0),
                run(Case::Read, Subject::Passthrough, 1000.0, 1.0),
                run(Case::Read, Subject::Mount, mount, 1.0),
            ])
        };
        assert_eq!(with(700.0).judged(Case::Read), ["0.70", ">= 0.7 of the lower", "yes"]);
        assert_eq!(with(690.0).judged(Case::Read), ["0.69", ">= 0.7 of the lower", "no"]);
        assert_eq!(report(Vec::new()).judged(Case::Read)[2], "");
    }

    #[test]
    fn a_listing_is_shown_and_judged_in_seconds() {
        let with = |rate| report(vec![run(Case::List, Subject::Mount, 0.0, rate)]);
        assert_eq!(with(1000.0).judged(Case::List), ["-", "< 2 s", "yes"]);
        assert_eq!(with(400.0).judged(Case::List)[2], "no");
        let text = with(400.0).table().to_string();
        assert!(text.contains("list 1,000 names, s") && text.contains("2.50"), "{text}");
        assert_eq!(with(1.0).listing_memory(Case::List), Some(ByteSize(1 << 20)));
    }
}
