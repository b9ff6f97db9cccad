//! Tests of the documentation of the commands.

use clap::{CommandFactory, Parser};
use millrace_doccheck::Program;

use super::Cli;

const LAB: Program = Program {
    name: "millrace-lab",
    package: "millrace-lab",
    command: Cli::command,
    refused: |line| Cli::try_parse_from(line).ok().and_then(|cli| cli.check().err()),
};

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_in_a_code_block_is_accepted() {
    let seen = LAB.check_blocks();
    assert!(seen > 10, "found only {seen} commands in the pages");
}

#[test]
fn every_command_and_option_in_the_text_exists() {
    let seen = LAB.check_prose();
    assert!(seen > 10, "found only {seen} commands and options in the pages");
}

#[test]
fn every_example_of_the_help_is_accepted() {
    LAB.check_examples();
}

#[test]
fn every_command_has_examples() {
    LAB.check_help();
}

#[test]
fn the_command_reference_is_up_to_date() {
    LAB.check_reference("docs/lab/commands.md", "Lab commands");
}
