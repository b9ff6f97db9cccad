//! The documentation's commands are those of the program: each that it shows is understood, and the reference of all of
//! them is made from their definitions. Tests only.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use clap::{CommandFactory, Parser};

use super::Cli;

/// Where the repository is.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The repository's Markdown: at its top and below `docs/`.
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

/// The arguments of each call of `millrace` in `script`, a piece of shell.
fn calls(script: &str) -> Vec<Vec<String>> {
    let joined = script.replace("\\\n", " ");
    joined.lines().filter_map(shlex::split).flat_map(|words| calls_of_line(&words)).collect()
}

/// Of a line's words, those of each command that is `millrace`: up to a redirection.
fn calls_of_line(words: &[String]) -> Vec<Vec<String>> {
    let ends = |w: &String| matches!(w.as_str(), "|" | "||" | "&&" | "&" | ";");
    let commands = words.split(ends).map(|c| c.strip_prefix(&["sudo".to_owned()]).unwrap_or(c));
    let ours = commands.filter_map(|c| match c {
        [program, args @ ..] if program == "millrace" => Some(args),
        [cargo, run, args @ ..]
            if cargo == "cargo" && run == "run" && !args.contains(&"--example".into()) =>
        {
            args.split(|w| w == "--").nth(1)
        }
        _ => None,
    });
    let until_redirection = |args: &[String]| args.iter().take_while(|w| *w != ">").cloned().collect();
    ours.map(until_redirection).collect()
}

/// Why the program refuses a command line, if it does.
fn refused(args: &[String]) -> Option<String> {
    use clap::error::ErrorKind::{DisplayHelp, DisplayVersion};
    match Cli::try_parse_from([&["millrace".to_owned()], args].concat()) {
        Ok(cli) => cli.check().err(),
        Err(e) if matches!(e.kind(), DisplayHelp | DisplayVersion) => None,
        Err(e) => Some(e.to_string()),
    }
}

#[test]
fn every_command_that_a_page_shows_is_understood() {
    let mut seen = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for script in text.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("sh\n")) {
            for args in calls(script) {
                seen += 1;
                let why = refused(&args);
                assert!(why.is_none(), "{}: {args:?}: {}", page.display(), why.unwrap_or_default());
            }
        }
    }
    assert!(seen > 40, "only {seen} commands were found in the pages");
}

#[test]
fn every_command_and_option_that_a_sentence_names_is_there() {
    use clap::error::ErrorKind::{InvalidSubcommand, UnknownArgument};
    let mut seen = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let prose: String = text.split("```").step_by(2).collect();
        for code in prose.split('`').skip(1).step_by(2).filter(|c| c.starts_with("millrace ")) {
            // What is written large, and dots, stand for something; arguments may be left out.
            let mut words: Vec<String> = shlex::split(code).unwrap_or_default();
            words.retain(|w| w != "...");
            if words[1].chars().all(|c| c.is_ascii_uppercase()) {
                continue;
            }
            seen += 1;
            let wrong = Cli::try_parse_from(&words)
                .err()
                .filter(|e| matches!(e.kind(), InvalidSubcommand | UnknownArgument));
            assert!(wrong.is_none(), "{}: {code}: {}", page.display(), wrong.unwrap());
        }
    }
    assert!(seen > 40, "only {seen} were found in the pages");
}

#[test]
fn every_example_of_the_help_is_understood() {
    fn check(command: &clap::Command) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in help.lines().filter_map(|l| l.strip_prefix("  millrace ")) {
            // What stands behind two spaces says what it does.
            let line = line.split("  ").next().unwrap_or_default();
            for args in calls(&format!("millrace {line}")) {
                let why = refused(&args);
                assert!(why.is_none(), "{}: {args:?}: {}", command.get_name(), why.unwrap_or_default());
            }
        }
        command.get_subcommands().for_each(check);
    }
    check(&Cli::command());
}

#[test]
fn calls_are_found_in_shell_and_wrong_ones_refused() {
    let script = "sudo millrace ls 'nfs://h/e?proto=tcp' | sort   # comment\n\
        cargo run --release -- demo && millrace df \\\n  nfs://h/e > out\nls millrace\nmillrace lss x";
    let found = calls(script);
    assert_eq!(
        found,
        [&["ls", "nfs://h/e?proto=tcp"][..], &["demo"], &["df", "nfs://h/e"], &["lss", "x"]]
            .map(|c| c.to_vec())
    );
    let refusals: Vec<bool> = found.iter().map(|args| refused(args).is_some()).collect();
    assert_eq!(refusals, [false, false, false, true]);
}

const HEAD: &str = "\
# Commands

What `millrace COMMAND --help` prints. The global options at the end of `millrace --help` belong to every command. This page is made from
the definitions of the commands: `MILLRACE_UPDATE_DOCS=1 cargo test -p millrace-cli documented` writes it again.
";

/// The page of all commands.
fn reference() -> String {
    let mut root = Cli::command().term_width(110).mut_args(|a| a.hide_env_values(true));
    root.build();
    let mut sections = String::new();
    let mut contents = String::new();
    describe(&root, "millrace", (&mut contents, &mut sections));
    format!("{HEAD}\n{contents}{sections}")
}

fn describe(command: &clap::Command, path: &str, (contents, sections): (&mut String, &mut String)) {
    let mut shown = command.clone();
    if path != "millrace" {
        shown = shown.mut_args(|a| if a.get_help_heading().is_some() { a.hide(true) } else { a });
    }
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    writeln!(contents, "- [`{path}`](#{}): {about}", path.replace(' ', "-")).unwrap();
    let help = shown.render_help().to_string();
    let help: String = help.lines().flat_map(|l| [l.trim_end(), "\n"]).collect();
    writeln!(sections, "\n## {path}\n\n```text\n{}\n```", help.trim_end()).unwrap();
    for sub in command.get_subcommands().filter(|s| s.get_name() != "help" && !s.is_hide_set()) {
        describe(sub, &format!("{path} {}", sub.get_name()), (contents, sections));
    }
}

#[test]
fn the_reference_of_commands_is_what_their_definitions_give() {
    let path = repository().join("docs/reference/commands.md");
    let made = reference();
    if std::env::var_os("MILLRACE_UPDATE_DOCS").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap();
    let differs = made.lines().zip(there.lines()).find(|(made, there)| made != there);
    let how = "write it again: MILLRACE_UPDATE_DOCS=1 cargo test -p millrace-cli documented";
    assert!(made == there, "{} is not up to date ({differs:?}); {how}", path.display());
}
