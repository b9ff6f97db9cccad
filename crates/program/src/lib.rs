//! What the programs `millrace` and `millrace-lab` share: exit codes, standard output, executors, values of arguments;
//! text tables, sizes, samples of metrics, processor time.

pub mod args;
pub mod cpu;
pub mod executor;
pub mod failure;
pub mod output;
pub mod samples;
pub mod table;
pub mod units;

use std::{ffi::OsStr, io::IsTerminal};

/// Whether lines of the log on standard error have colours: on a terminal that has them, unless the user wants none
/// (NO_COLOR, <https://no-color.org>).
pub fn coloured_log() -> bool {
    let variable = |name| std::env::var_os(name).unwrap_or_default();
    std::io::stderr().is_terminal() && has_colours(&variable("NO_COLOR"), &variable("TERM"))
}

fn has_colours(no_color: &OsStr, term: &OsStr) -> bool {
    no_color.is_empty() && term != "dumb"
}

/// Warns on standard error, as `program`, if this is a debug build.
pub fn warn_of_debug_build(program: &str) {
    if cfg!(debug_assertions) {
        eprintln!(
            "{program}: this is a debug build, whose measurements are not meaningful; use cargo run --release"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_without_colours_and_a_user_who_wants_none_get_none() {
        let colours = |no_color: &str, term: &str| has_colours(no_color.as_ref(), term.as_ref());
        assert!(colours("", "xterm") && colours("", ""));
        assert!(!colours("1", "xterm") && !colours("0", "xterm") && !colours("", "dumb"));
    }
}
