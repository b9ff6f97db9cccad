//! The manual pages: of the commands from their definitions, of the configuration file and of the helper of mount(8) from
//! the pages of the reference.

mod markdown;
mod roff;

use std::io;

use clap::Command;
use clap_mangen::Man;

use self::{
    markdown::converted,
    roff::{escaped, example, literal, section, tidy},
};

/// A manual page.
pub(crate) struct Page {
    pub(crate) name: String,
    /// 1, 5 or 8.
    pub(crate) section: char,
    pub(crate) text: String,
}

/// Makes all pages, with this date.
pub(crate) fn pages(command: Command, date: &str) -> io::Result<Vec<Page>> {
    let mut root = command.disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    of_command(&root, &root, date, &mut pages)?;
    pages.push(of_configuration(date));
    pages.push(of_mount_helper(&root, date));
    Ok(pages)
}

/// The blocks of the text below the options of a command, with their titles if they have one: `Examples:`.
fn blocks(command: &Command) -> Vec<(Option<String>, String)> {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let block = |block: &str| match block.split_once('\n') {
        Some((title, body)) if title.ends_with(':') && body.starts_with("  ") => {
            (Some(title.trim_end_matches(':').to_owned()), body.to_owned())
        }
        _ => (None, block.to_owned()),
    };
    text.split("\n\n").map(block).collect()
}

/// The block with this title.
fn titled(command: &Command, titles: &[&str]) -> Option<String> {
    let found =
        blocks(command).into_iter().find(|(title, _)| title.as_deref().is_some_and(|t| titles.contains(&t)));
    found.map(|(_, body)| body)
}

const EXAMPLES: [&str; 2] = ["Examples", "Start here"];
const EXIT_CODES: &str = "Exit codes";

fn title(name: &str, section: char, date: &str) -> String {
    format!(
        ".TH {} {section} {date} \"millrace {}\" Millrace\n",
        name.to_uppercase(),
        env!("CARGO_PKG_VERSION")
    )
}

fn of_command(command: &Command, root: &Command, date: &str, pages: &mut Vec<Page>) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let man = Man::new(command.clone());
    let mut out = Vec::new();
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    let mut notes = String::new();
    for (heading, body) in blocks(command) {
        match heading {
            Some(heading) if EXAMPLES.contains(&&*heading) || heading == EXIT_CODES => {}
            Some(heading) => notes += &format!(".SS {}\n{}", escaped(&heading), example(&body)),
            // Text whose lines are broken for a terminal, and lists.
            None if body.lines().any(|line| line.starts_with(' ')) => {
                notes += &format!(".PP\n{}", example(&body))
            }
            None => notes += &format!(".PP\n{}\n", escaped(&body.replace('\n', " "))),
        }
    }
    out.extend(notes.into_bytes());
    man.render_options_section(&mut out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    let mut text = title(&name, '1', date) + &String::from_utf8_lossy(&out);
    text += &titled(command, &EXAMPLES).map(|body| literal("EXAMPLES", &body)).unwrap_or_default();
    text += &titled(root, &[EXIT_CODES]).map(|body| literal("EXIT STATUS", &body)).unwrap_or_default();
    text += &files(&name);
    text += &see_also(&name, root);
    pages.push(Page { name, section: '1', text: tidy(&text) });
    command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set())
        .try_for_each(|sub| of_command(sub, root, date, pages))
}

/// Files that a command uses.
fn files(name: &str) -> String {
    let configuration = ("/etc/millrace.toml", "the configuration of the server, millrace.toml(5)");
    let control = ("/run/millrace/control", "the control socket of the server");
    let fstab = ("/etc/fstab", "mounts of the type \"millrace\", mount.millrace(8)");
    let files = match name {
        "millrace-serve" => vec![configuration, control],
        "millrace-check-config" => vec![configuration],
        "millrace-reload" | "millrace-state" | "millrace-state-revoke" => vec![control],
        "millrace-mount" => vec![fstab],
        "millrace" => vec![configuration, control, fstab],
        _ => return String::new(),
    };
    let entry = |(path, what): (&str, &str)| format!(".TP\n{}\n{}\n", escaped(path), escaped(what));
    section("FILES") + &files.into_iter().map(entry).collect::<String>()
}

fn see_also(name: &str, root: &Command) -> String {
    let mut pages: Vec<String> = match name {
        "millrace" => {
            root.get_subcommands().map(|sub| format!("millrace\\-{}(1)", escaped(sub.get_name()))).collect()
        }
        _ => vec!["millrace(1)".into()],
    };
    let others: &[&str] = match name {
        "millrace" => &["mount.millrace(8)", "millrace.toml(5)"],
        "millrace-serve" | "millrace-check-config" | "millrace-reload" => &["millrace.toml(5)", "exports(5)"],
        "millrace-mount" => &["mount.millrace(8)", "nfs(5)", "fuse(4)"],
        _ => &[],
    };
    pages.extend(others.iter().map(ToString::to_string));
    section("SEE ALSO") + &pages.join(",\n") + "\n"
}

fn of_configuration(date: &str) -> Page {
    let text = title("millrace.toml", '5', date)
        + &section("NAME")
        + "millrace.toml \\- configuration file of the Millrace server\n"
        + &section("DESCRIPTION")
        + &converted(include_str!("configuration"), None, None)
        + &section("FILES")
        + ".TP\n/etc/millrace.toml\nthe file that the service reads\n"
        + &section("SEE ALSO")
        + "millrace\\-serve(1),\nmillrace\\-check\\-config(1),\nmillrace\\-reload(1),\nexports(5)\n";
    Page { name: "millrace.toml".into(), section: '5', text: tidy(&text) }
}

fn of_mount_helper(root: &Command, date: &str) -> Page {
    const OPTIONS: &str = "Options of `millrace mount -o`";
    let options = converted(include_str!("options"), Some(OPTIONS), None);
    let options = options.replacen("Options of millrace mount \\-o", "MOUNT OPTIONS", 1);
    let exit = titled(root, &[EXIT_CODES]).map(|body| literal("EXIT STATUS", &body)).unwrap_or_default();
    let text = title("mount.millrace", '8', date)
        + &section("NAME")
        + "mount.millrace \\- mount an NFS export with FUSE\n"
        + &section("SYNOPSIS")
        + "\\fBmount.millrace\\fR \\fIURL\\fR \\fIDIRECTORY\\fR [\\fB\\-sfnv\\fR] [\\fB\\-o\\fR \\fIOPTIONS\\fR]\n"
        + &section("DESCRIPTION")
        + "This is \\fBmillrace mount\\fR as a helper of mount(8), which calls it for file systems of the type \\(dqmillrace\\(dq. \
           It ends when the file system is mounted; the mount has a process in the background.\n"
        + &options
        + &literal("EXAMPLES", "nfs://server/data /mnt millrace allow_other,_netdev 0 0")
        + &exit
        + &section("FILES")
        + ".TP\n/etc/fstab\nthe table of file systems\n"
        + &section("SEE ALSO")
        + "millrace\\-mount(1),\nfstab(5),\nnfs(5),\nmount(8)\n";
    Page { name: "mount.millrace".into(), section: '8', text: tidy(&text) }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    fn page(name: &str) -> Page {
        let pages = pages(Cli::command(), "2026-01-02").unwrap();
        pages.into_iter().find(|page| page.name == name).unwrap()
    }

    #[test]
    fn pages_of_commands_have_the_usual_sections() {
        for page in pages(Cli::command(), "2026-01-02").unwrap() {
            let sections = ["NAME", "DESCRIPTION", "SEE ALSO"];
            let of_commands = ["SYNOPSIS", "OPTIONS", "EXAMPLES", "EXIT STATUS"];
            // Those of groups of commands are in the pages of the commands.
            let is_group = page.text.contains(".SH SUBCOMMANDS") && page.name != "millrace";
            let of_commands = of_commands.into_iter().filter(|_| page.section == '1');
            let of_commands = of_commands.filter(|section| !is_group || *section != "EXAMPLES");
            for section in sections.into_iter().chain(of_commands) {
                let heading =
                    |line: &str| line == format!(".SH {section}") || line == format!(".SH \"{section}\"");
                assert!(page.text.lines().any(heading), "{} has no {section}\n{}", page.name, page.text);
            }
            assert!(!page.text.contains("EXTRA"), "{}", page.name);
        }
        assert!(page("millrace-serve").text.contains("/run/millrace/control"));
        assert!(page("millrace-check-config").text.contains("millrace.toml(5)"));
    }

    #[test]
    fn the_pages_of_files_have_all_keys_and_options() {
        let (configuration, mount) = (page("millrace.toml"), page("mount.millrace"));
        assert_eq!((configuration.section, mount.section), ('5', '8'));
        for key in ["listen_tcp", "max_connections", "squash", "block_size", "backend = \"local:/srv/e\""] {
            assert!(configuration.text.contains(key), "{key}");
        }
        for option in ["timeo=", "allow_other", "lookupcache="] {
            assert!(mount.text.contains(option), "{option}");
        }
        for page in [configuration, mount] {
            assert!(!page.text.contains("](") && !page.text.contains("|---"), "{}", page.text);
        }
    }
}
