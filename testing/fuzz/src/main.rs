//! `millrace-fuzz`: long runs of the deterministic driver, and single inputs.
#![allow(clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use millrace_fuzz::{TARGETS, drive, target};

const USAGE: &str = "usage: millrace-fuzz list | TARGET --executions N [--seed N] | TARGET --input HEX | \
                     TARGET --write-seeds DIRECTORY";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["list"] => {
            TARGETS.iter().for_each(|t| println!("{}", t.name));
            Some(())
        }
        [name, "--executions", n] => run(name, n, "1"),
        [name, "--executions", n, "--seed", seed] => run(name, n, seed),
        [name, "--input", hex] => input(name, hex),
        [name, "--write-seeds", directory] => write_seeds(name, directory),
        _ => None,
    };
    if done.is_none() {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    ExitCode::SUCCESS
}

fn run(name: &str, executions: &str, seed: &str) -> Option<()> {
    let (executions, seed) = (executions.parse().ok()?, seed.parse().ok()?);
    let took = drive::run(target(name)?, executions, seed).as_secs_f64();
    println!("{name}: {executions} executions, seed {seed}, {took:.1} s, {:.0}/s", executions as f64 / took);
    Some(())
}

fn input(name: &str, hex: &str) -> Option<()> {
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let pairs = hex.as_bytes().chunks(2);
    let bytes: Option<Vec<u8>> = pairs.map(|p| Some(digit(*p.first()?)? << 4 | digit(*p.get(1)?)?)).collect();
    drive::execute(target(name)?, &bytes?);
    println!("{name}: passed");
    Some(())
}

/// Writes an initial corpus for libFuzzer.
fn write_seeds(name: &str, directory: &str) -> Option<()> {
    let seeds = (target(name)?.seeds)();
    std::fs::create_dir_all(directory).expect("the directory is made");
    for (n, seed) in seeds.iter().enumerate() {
        std::fs::write(format!("{directory}/seed-{n:02}"), seed).expect("a seed is written");
    }
    println!("{name}: {} seeds in {directory}", seeds.len());
    Some(())
}
