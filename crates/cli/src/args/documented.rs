//! Tests that compare the documentation with the command line definition.

use clap::CommandFactory;
use millrace_doccheck::Program;

use super::Cli;

const MILLRACE: Program =
    Program { name: "millrace", package: "millrace-cli", command: Cli::command, refused: |_| None };

#[test]
fn every_command_in_a_page_is_accepted() {
    let seen = MILLRACE.check_blocks();
    assert!(seen > 30, "only {seen} commands were found in the pages");
}

#[test]
fn every_command_and_option_in_prose_exists() {
    let seen = MILLRACE.check_prose();
    assert!(seen > 40, "only {seen} were found in the pages");
}

#[test]
fn every_example_in_help_is_accepted() {
    MILLRACE.check_examples();
}

#[test]
fn every_command_has_examples() {
    MILLRACE.check_help();
}

#[test]
fn command_reference_is_current() {
    MILLRACE.check_reference("docs/reference/commands.md", "Commands");
}
