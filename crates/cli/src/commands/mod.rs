//! The commands of `millrace`. Similar commands share a file.
//!
//! `run` executes the command of a parsed command line (`args`). A `Failure` contains the message and the
//! exit status of a command that fails.

mod attributes;
mod bench;
mod blk;
mod certs;
mod change;
mod check_config;
mod clean;
mod completions;
mod copy;
mod devices;
mod doctor;
mod list;
mod man;
mod mount;
mod reload;
mod serve;
mod show;
mod state;
mod top;
mod usage;

pub(crate) use change::remove_tree;
use millrace_program::failure::{CommandResult, Failure, Outcome};

use crate::{
    args::{CertsCommand, Command},
    demo,
    session::{self, Session},
};

/// Runs a command.
pub(crate) fn run(command: Command) -> CommandResult {
    match command {
        Command::Serve(args) => serve::run(&args),
        Command::CheckConfig(args) => check_config::run(&args),
        Command::Reload(args) => reload::run(&args),
        Command::State(args) => state::run(&args),
        Command::Certs(args) => match args.command {
            CertsCommand::Init(args) => certs::init(&args),
        },
        Command::Top(args) => top::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Exports(args) => show::exports(&args),
        Command::Ls(args) => list::ls(&args),
        Command::Stat(args) => show::stat(&args),
        Command::Tree(args) => list::tree(&args),
        Command::Find(args) => list::find(&args),
        Command::Cat(args) => show::cat(&args),
        Command::Put(args) => copy::put(&args),
        Command::Get(args) => copy::get(&args),
        Command::Cp(args) => copy::cp(&args),
        Command::Sync(args) => copy::sync(&args),
        Command::Rm(args) => change::rm(&args),
        Command::Mkdir(args) => change::mkdir(&args),
        Command::Mv(args) => change::mv(&args),
        Command::Ln(args) => change::ln(&args),
        Command::Chmod(args) => attributes::chmod(&args),
        Command::Chown(args) => attributes::chown(&args),
        Command::Touch(args) => attributes::touch(&args),
        Command::Df(args) => show::df(&args),
        Command::Du(args) => usage::du(&args),
        Command::Clean(args) => clean::run(&args),
        Command::Mount(args) => mount::run(&args),
        Command::Umount(args) => mount::umount(&args),
        Command::Blk(args) => blk::run(args.command),
        Command::Devices(args) => devices::run(&args),
        Command::Bench(args) => bench::run(args),
        Command::Man(args) => man::run(&args),
        Command::Completions(args) => completions::run(&args),
    }
}

/// Runs `one` with a session for each URL. Prints each error and continues with the next URL.
async fn each<T: Into<Outcome>>(
    urls: &[String],
    mut one: impl AsyncFnMut(&Session) -> Result<T, Failure>,
) -> CommandResult {
    // Reject an invalid URL before the first operation.
    for url in urls {
        session::parse(url)?;
    }
    let (mut failed, mut is_partial) = (0, false);
    for url in urls {
        match Session::with(url, &mut one).await {
            Ok(outcome) => match outcome.into() {
                Outcome::Done => {}
                Outcome::Failed => failed += 1, // It has named what failed.
                _ => is_partial = true,
            },
            Err(e) if urls.len() == 1 || e.is_silent() => return Err(e),
            Err(e) => {
                eprintln!("millrace: {e}");
                failed += 1;
            }
        }
    }
    Ok(match failed {
        0 if !is_partial => Outcome::Done,
        n if n == urls.len() => Outcome::Failed,
        _ => Outcome::Partial,
    })
}
