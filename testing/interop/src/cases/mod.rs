//! The cases, a file for each group.

mod bad_input;
mod churn;
mod container;
mod guide;
mod iscsi;
mod kernel_client;
mod kills;
mod knfsd;
mod krb5;
mod load;
mod tls;
mod verbs;

use anyhow::Result;

use crate::{lab::Lab, machine::Machine};

/// The cases that also run with the kernel that users have.
const CORE: [&str; 12] = [
    "kernel-client/rdma/memory/mtu-1500",
    "kernel-client/rdma/local/mtu-1500",
    "kernel-client/tcp/local/tree",
    "kernel-client/tcp/memory/tree-mtu-1500",
    "knfsd/rdma/tree-mtu-1500",
    "knfsd/rdma/files",
    "verbs/rxe/devices",
    "verbs/rxe/millrace-to-millrace",
    "verbs/rxe/kernel-to-millrace",
    "iscsi/tcp/memory/tree",
    "iscsi/iser/memory/tree",
    "lio/tcp/copy",
];

/// The function of a case. It ends with [`Lab::finish`].
type CaseFn = Box<dyn Fn(&mut Lab) -> Result<()> + Send>;

/// One case.
pub(crate) struct Case {
    /// `GROUP/.../WHAT`, unique.
    pub(crate) name: String,
    /// The function.
    pub(crate) run: CaseFn,
    /// Whether it is omitted with `--quick`.
    pub(crate) long: bool,
}

impl Case {
    fn new(name: impl Into<String>, run: impl Fn(&mut Lab) -> Result<()> + Send + 'static) -> Self {
        Self { name: name.into(), run: Box::new(run), long: false }
    }

    fn long(name: impl Into<String>, run: impl Fn(&mut Lab) -> Result<()> + Send + 'static) -> Self {
        Self { long: true, ..Self::new(name, run) }
    }
}

/// Every case, in the order of their execution.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(kernel_client::cases());
    cases.extend(knfsd::cases());
    cases.extend(bad_input::cases());
    cases.extend(churn::cases());
    cases.extend(verbs::cases());
    cases.extend(guide::cases());
    cases.extend(container::cases());
    cases.extend(iscsi::cases());
    cases.extend(kills::cases());
    cases.extend(load::cases());
    cases.extend(tls::cases());
    cases.extend(krb5::cases());
    cases
}

/// The cases that run on `machine`.
pub(crate) fn of(machine: Machine) -> Vec<Case> {
    let mut cases = all();
    if machine == Machine::Qemu {
        cases.retain(|c| CORE.contains(&c.name.as_str()));
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_core_case_exists() {
        assert_eq!(of(Machine::Qemu).len(), CORE.len());
    }

    #[test]
    fn case_names_are_unique() {
        let mut names: Vec<String> = all().into_iter().map(|c| c.name).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
