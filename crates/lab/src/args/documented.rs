//! The documentation of the commands. Tests only.

use clap::{CommandFactory, Parser};
use millrace_doccheck::Program;

use super::Cli;

const LAB: Program = Program {
    name: "millrace-lab",
    command: Cli::command,
    refused: |line| Cli::try_parse_from(line).ok().and_then(|cli| cli.check().err()),
};

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_that_a_page_shows_is_understood() {
    let seen = LAB.check_blocks();
    assert!(seen > 10, "only {seen} commands were found in the pages");
}

#[test]
fn every_command_and_option_that_a_sentence_names_is_there() {
    let seen = LAB.check_prose();
    assert!(seen > 10, "only {seen} were found in the pages");
}

#[test]
fn every_example_of_the_help_is_understood() {
    LAB.check_examples();
}

#[test]
fn every_command_teaches_by_example() {
    LAB.check_help();
}

#[test]
fn the_reference_of_commands_is_what_their_definitions_give() {
    LAB.check_reference("docs/reference/lab-commands.md", "Lab commands");
}
