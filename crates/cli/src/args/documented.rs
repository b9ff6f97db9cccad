//! The documentation of the commands. Tests only.

use clap::CommandFactory;
use millrace_doccheck::Program;

use super::Cli;

const MILLRACE: Program = Program { name: "millrace", command: Cli::command, refused: |_| None };

#[test]
fn every_command_that_a_page_shows_is_understood() {
    let seen = MILLRACE.check_blocks();
    assert!(seen > 30, "only {seen} commands were found in the pages");
}

#[test]
fn every_command_and_option_that_a_sentence_names_is_there() {
    let seen = MILLRACE.check_prose();
    assert!(seen > 40, "only {seen} were found in the pages");
}

#[test]
fn every_example_of_the_help_is_understood() {
    MILLRACE.check_examples();
}

#[test]
fn every_command_teaches_by_example() {
    MILLRACE.check_help();
}

#[test]
fn the_reference_of_commands_is_what_their_definitions_give() {
    MILLRACE.check_reference("docs/reference/commands.md", "Commands");
}
