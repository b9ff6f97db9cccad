//! Tests that compare the documentation with the definitions of a program's commands: every command line in a
//! page is accepted, every command and option in its text exists, and the reference page is up to date. For
//! tests only.

#![allow(clippy::unwrap_used)] // A failed check panics.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

/// The package whose binary `cargo run` runs without `-p`.
const DEFAULT_PACKAGE: &str = "millrace-cli";

/// A program and the definitions of its commands.
pub struct Program {
    /// The name of the program.
    pub name: &'static str,
    /// The package that contains it, as `cargo run -p` takes it.
    pub package: &'static str,
    /// The definition of its command line.
    pub command: fn() -> clap::Command,
    /// The reason why the program rejects a command line (with the program's name) that [`Self::command`]
    /// accepts.
    pub refused: fn(&[String]) -> Option<String>,
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The Markdown pages at the top of the repository and below `docs/`.
fn pages() -> Vec<PathBuf> {
    let mut dirs = vec![repository().join("docs")];
    let mut found: Vec<PathBuf> = ["README.md", "CONTRIBUTING.md"].map(|p| repository().join(p)).to_vec();
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                found.push(path);
            }
        }
    }
    found
}

impl Program {
    /// The arguments of each call of the program in `script`, a piece of shell.
    pub fn calls(&self, script: &str) -> Vec<Vec<String>> {
        let joined = script.replace("\\\n", " ");
        joined.lines().filter_map(shlex::split).flat_map(|words| self.calls_of_line(&words)).collect()
    }

    /// The arguments of each call in the words of one line, up to a redirection.
    fn calls_of_line(&self, words: &[String]) -> Vec<Vec<String>> {
        let ends = |w: &String| matches!(w.as_str(), "|" | "||" | "&&" | "&" | ";");
        let commands = words.split(ends).map(|c| c.strip_prefix(&["sudo".to_owned()]).unwrap_or(c));
        let ours = commands.filter_map(|c| match c {
            [program, args @ ..] if program == self.name => Some(args),
            [cargo, run, args @ ..] if cargo == "cargo" && run == "run" => self.arguments_of_cargo_run(args),
            _ => None,
        });
        let until_redirection = |args: &[String]| args.iter().take_while(|w| *w != ">").cloned().collect();
        ours.map(until_redirection).collect()
    }

    /// The arguments that `cargo run` passes to this program, if it runs this program.
    fn arguments_of_cargo_run<'a>(&self, args: &'a [String]) -> Option<&'a [String]> {
        let mut parts = args.splitn(2, |w| w == "--");
        let (of_cargo, passed) = (parts.next()?, parts.next()?);
        let package =
            of_cargo.iter().skip_while(|w| *w != "-p").nth(1).map_or(DEFAULT_PACKAGE, String::as_str);
        (package == self.package && !of_cargo.contains(&"--example".into())).then_some(passed)
    }

    /// The reason why the program rejects `args`, if it does.
    fn refuses(&self, args: &[String]) -> Option<String> {
        use clap::error::ErrorKind::{DisplayHelp, DisplayVersion};
        let line = [&[self.name.to_owned()], args].concat();
        match (self.command)().try_get_matches_from(&line) {
            Ok(_) => (self.refused)(&line),
            Err(e) if matches!(e.kind(), DisplayHelp | DisplayVersion) => None,
            Err(e) => Some(e.to_string()),
        }
    }

    /// Checks that the program accepts every command line in the `sh` blocks of all pages. Returns their
    /// number.
    ///
    /// # Panics
    /// When the program rejects one.
    pub fn check_blocks(&self) -> usize {
        let mut seen = 0;
        for page in pages() {
            let text = fs::read_to_string(&page).unwrap();
            let blocks = text.split("```").skip(1).step_by(2);
            for args in blocks.filter_map(|block| block.strip_prefix("sh\n")).flat_map(|s| self.calls(s)) {
                seen += 1;
                let why = self.refuses(&args);
                assert!(why.is_none(), "{}: {args:?}: {}", page.display(), why.unwrap_or_default());
            }
        }
        seen
    }

    /// Checks that every command and option of the program that the prose of all pages names exists. Returns
    /// their number.
    ///
    /// # Panics
    /// When one does not exist.
    pub fn check_prose(&self) -> usize {
        use clap::error::ErrorKind::{InvalidSubcommand, UnknownArgument};
        let mut seen = 0;
        let prefix = format!("{} ", self.name);
        for page in pages() {
            let text = fs::read_to_string(&page).unwrap();
            let prose: String = text.split("```").step_by(2).collect();
            for code in prose.split('`').skip(1).step_by(2).filter(|c| c.starts_with(&prefix)) {
                // Upper-case words and dots are placeholders; arguments may be left out.
                let mut words: Vec<String> = shlex::split(code).unwrap_or_default();
                words.retain(|w| w != "...");
                if words[1].chars().all(|c| c.is_ascii_uppercase()) {
                    continue;
                }
                seen += 1;
                let wrong = (self.command)()
                    .try_get_matches_from(&words)
                    .err()
                    .filter(|e| matches!(e.kind(), InvalidSubcommand | UnknownArgument));
                assert!(wrong.is_none(), "{}: {code}: {}", page.display(), wrong.unwrap());
            }
        }
        seen
    }

    /// Checks that the program accepts every example in the help of its commands.
    ///
    /// # Panics
    /// When the program rejects one.
    pub fn check_examples(&self) {
        self.check_examples_of(&(self.command)());
    }

    fn check_examples_of(&self, command: &clap::Command) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let script = help.replace("\\\n", " ");
        for line in script.lines().filter_map(|l| l.strip_prefix(&format!("  {} ", self.name))) {
            // Two spaces separate the example from its explanation.
            let line = line.trim_start().split("  ").next().unwrap_or_default();
            for args in self.calls(&format!("{} {line}", self.name)) {
                let why = self.refuses(&args);
                assert!(why.is_none(), "{}: {args:?}: {}", command.get_name(), why.unwrap_or_default());
            }
        }
        command.get_subcommands().for_each(|c| self.check_examples_of(c));
    }

    /// Checks that every command has a summary and an example.
    ///
    /// # Panics
    /// When one is missing.
    pub fn check_help(&self) {
        fn check(command: &clap::Command, path: &str) {
            for sub in command.get_subcommands().filter(|c| !c.is_hide_set()) {
                let path = format!("{path} {}", sub.get_name());
                assert!(sub.get_about().is_some(), "{path} has no summary");
                if sub.has_subcommands() {
                    check(sub, &path);
                } else {
                    let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
                    assert!(help.contains("Examples:") && help.contains(&path), "{path} has no example");
                }
            }
        }
        check(&(self.command)(), self.name);
    }

    /// Checks that the reference page `page` matches the definitions of the commands. With
    /// `MILLRACE_UPDATE_DOCS` in the environment, writes the page.
    ///
    /// # Panics
    /// When the page differs.
    pub fn check_reference(&self, page: &str, title: &str) {
        let path = repository().join(page);
        let how = format!("MILLRACE_UPDATE_DOCS=1 cargo test -p {} documented", self.package);
        let made = self.reference(title, &how);
        if std::env::var_os("MILLRACE_UPDATE_DOCS").is_some() {
            fs::write(&path, &made).unwrap();
        }
        let there = fs::read_to_string(&path).unwrap_or_default();
        let differs = made.lines().zip(there.lines()).find(|(made, there)| made != there);
        assert!(made == there, "{} is not up to date ({differs:?}); regenerate it: {how}", path.display());
    }

    fn reference(&self, title: &str, how: &str) -> String {
        let mut root = (self.command)().term_width(110).mut_args(|a| a.hide_env_values(true));
        root.build();
        let mut page = Reference::default();
        page.describe(&root, self.name, self.name);
        format!(
            "# {title}\n\nWhat `{0} COMMAND --help` prints, without lists of commands, the options of every command (`--help`, \
             `--version`,\nand the global options at the end of `{0} --help`) and what an earlier command has.\n\
             `{how}` writes it again.\n{1}",
            self.name, page.sections
        )
    }
}

/// The parts of a reference page.
#[derive(Default)]
struct Reference {
    sections: String,
    /// The options of the commands so far, by name and help with defaults, with the first command that has them.
    seen: BTreeMap<(String, String), String>,
    /// The long paragraphs so far.
    paragraphs: BTreeSet<String>,
}

/// Minimum number of words about options of an earlier command that are not repeated.
const REPEATED: usize = 20;
/// Minimum number of words of a paragraph of an earlier command that is not repeated.
const LONG: usize = 40;

impl Reference {
    fn describe(&mut self, command: &clap::Command, program: &str, path: &str) {
        let mut shown = command.clone();
        let mut earlier = BTreeMap::<String, (usize, Vec<String>)>::new();
        if path != program {
            for option in command.get_arguments().filter(|a| !a.is_hide_set()) {
                let Some(name) = option.get_long().map(|l| format!("--{l}")) else { continue };
                let help = option.get_help().map(ToString::to_string).unwrap_or_default();
                let words = help.split_whitespace().count();
                let help = format!("{help} {:?}", (option.get_value_names(), option.get_default_values()));
                let first = self.seen.entry((name.clone(), help)).or_insert_with(|| path.to_owned());
                if first != path && option.get_help_heading().is_none() {
                    let (total, options) = earlier.entry(first.clone()).or_default();
                    *total += words;
                    options.push(name);
                }
            }
            earlier.retain(|_, (words, _)| *words >= REPEATED);
            let general = |a: &clap::Arg| {
                a.get_help_heading().is_some() || matches!(a.get_id().as_str(), "help" | "version")
            };
            let repeated = |a: &clap::Arg| {
                earlier.values().flat_map(|(_, o)| o).any(|o| a.get_long() == o.strip_prefix("--"))
            };
            shown = shown.mut_args(|a| if general(&a) || repeated(&a) { a.hide(true) } else { a });
        }
        let help = shown.render_help().to_string();
        let help: Vec<_> = help.lines().map(str::trim_end).collect();
        let help = help.join("\n");
        let is_new =
            |p: &&str| p.split_whitespace().count() < LONG || self.paragraphs.insert((*p).to_owned());
        // The commands have sections of the page.
        let described = |p: &&str| !p.starts_with("Commands:\n");
        let help: Vec<_> = help.split("\n\n").filter(described).filter(is_new).collect();
        writeln!(self.sections, "\n## {path}\n\n```text\n{}\n```", help.join("\n\n").trim_end()).unwrap();
        // The options of a command apply to those below it.
        let below = |first: &str| path.strip_prefix(first).is_some_and(|rest| rest.starts_with(' '));
        for (first, (_, options)) in earlier.into_iter().filter(|(first, _)| !below(first)) {
            writeln!(
                self.sections,
                "\nAlso, as [`{first}`](#{}): `{}`.",
                first.replace(' ', "-"),
                options.join("`, `")
            )
            .unwrap();
        }
        for sub in command.get_subcommands().filter(|s| s.get_name() != "help" && !s.is_hide_set()) {
            self.describe(sub, program, &format!("{path} {}", sub.get_name()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &'static str, package: &'static str) -> Program {
        let command =
            || clap::Command::new("x").subcommand(clap::Command::new("ls").arg(clap::Arg::new("url")));
        Program { name, package, command, refused: |_| None }
    }

    #[test]
    fn calls_are_found_in_shell_and_invalid_ones_rejected() {
        let script = "sudo millrace ls 'nfs://h/e?proto=tcp' | sort   # comment\n\
            cargo run --release -- demo && millrace df \\\n  nfs://h/e > out\nls millrace\nmillrace lss x\n\
            cargo run --release -p millrace-lab -- security\ncargo run -p millrace-cli -- top\ncargo run --example ls -- x";
        let found = program("millrace", "millrace-cli").calls(script);
        assert_eq!(
            found,
            [&["ls", "nfs://h/e?proto=tcp"][..], &["demo"], &["df", "nfs://h/e"], &["lss", "x"], &["top"]]
                .map(|c| c.to_vec())
        );
        assert_eq!(program("millrace-lab", "millrace-lab").calls(script), [["security"]]);
        let refusals: Vec<bool> =
            found.iter().map(|args| program("millrace", "millrace-cli").refuses(args).is_some()).collect();
        assert_eq!(refusals, [false, true, true, true, true]);
    }
}

/// The programs in the guide.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../docs/guide/first-program.md")]
    mod first_program {}
    #[doc = include_str!("../../../docs/guide/library.md")]
    mod library {}
    #[doc = include_str!("../../../docs/guide/rust-adapters.md")]
    mod rust_adapters {}
}
