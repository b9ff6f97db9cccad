//! Selects the lines of a guest's kernel log that make a case fail.

/// The least important level that is reported for every line: 4, warning.
const WARNING: u8 = 4;
/// The least important level for the subsystems under test: 5, notice ("server not responding").
const NOTICE: u8 = 5;

const SUBSYSTEMS: [&str; 8] = ["rpcrdma", "svcrdma", "siw", "rxe", "nfs", "sunrpc", "infiniband", "rpc:"];
/// Texts of kernel faults, which are reported at any level.
const KERNEL_FAULTS: [&str; 6] = ["BUG:", "WARNING:", "Oops", "Call Trace", "Kernel panic", "hung_task"];

/// Messages that every guest prints, and why they are ignored.
const IGNORED: [(&str, &str); 11] = [
    ("Kernel command line: ", "its paths contain names of subsystems"),
    ("Unknown kernel command line parameters", "the same; the parameters are for the agent"),
    ("Failed to initialize ubd device 0", "the guest has no disk"),
    ("epollctl add err", "a guest's console is a file of the host, which cannot be polled"),
    ("netif_napi_add_weight_locked", "UML's network driver uses a larger NAPI weight than usual"),
    ("Registering the id_resolver key type", "NFSv4 of the guest's kernel starts"),
    ("hrtimer: interrupt took", "the host ran other processes during the emulation"),
    ("clocksource: ", "the same, which makes an emulated clock unstable"),
    ("speed is unknown", "a tap has no speed"),
    ("db_root: cannot open", "the guest has no directory for the configuration of LIO"),
    ("iwpm_register_pid", "no port mapper runs in the guest; siw does not need one"),
];

/// The unexpected lines of a raw kernel log (`<LEVEL>[TIME] TEXT`). `expected` contains texts of the messages
/// that the case provokes.
pub(crate) fn unexpected_lines<'a>(log: &'a str, expected: &[String]) -> Vec<&'a str> {
    log.lines().filter(|l| is_reported(l) && !expected.iter().any(|e| l.contains(e.as_str()))).collect()
}

fn is_reported(line: &str) -> bool {
    if IGNORED.iter().any(|(text, _)| line.contains(text)) {
        return false;
    }
    let level = line.strip_prefix('<').and_then(|l| l.split_once('>')).and_then(|(n, _)| n.parse().ok());
    // The level is in the lowest three bits; the others are the facility.
    let level = level.map_or(NOTICE, |n: u32| (n & 7) as u8);
    let ours = SUBSYSTEMS.iter().any(|s| line.to_lowercase().contains(s));
    level <= WARNING || (level <= NOTICE && ours) || KERNEL_FAULTS.iter().any(|t| line.contains(t))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_stack_traces_and_notices_of_the_subsystems_are_reported() {
        let log = "<6>[    0.1] siw: all is well\n<5>[    0.2] Linux version 7\n<4>[    0.3] something odd\n\
                   <5>[    0.4] nfs: server 10.77.0.1 not responding\n<6>[    0.5] Call Trace:\n\
                   <3>[    0.6] Failed to initialize ubd device 0 :Couldn't determine size\n";
        let found = unexpected_lines(log, &[]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(unexpected_lines(log, &["not responding".into(), "odd".into(), "Trace".into()]).len(), 0);
    }
}
