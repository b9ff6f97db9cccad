//! `millrace man`.

use std::{fs, io};

use clap::CommandFactory;
use millrace_program::failure::{CommandResult, Failure, Outcome};

use crate::{
    args::{Cli, ManArgs},
    describe, manual,
};

pub(super) fn run(args: &ManArgs) -> CommandResult {
    let write = || -> io::Result<()> {
        for page in manual::pages(Cli::command(), &describe::today())? {
            let directory = args.dir.join(format!("man{}", page.section));
            fs::create_dir_all(&directory)?;
            fs::write(directory.join(format!("{}.{}", page.name, page.section)), page.text)?;
        }
        Ok(())
    };
    write()
        .map_err(|e| Failure::new(format!("cannot write the manual pages to {}: {e}", args.dir.display())))?;
    Ok(Outcome::Done)
}
