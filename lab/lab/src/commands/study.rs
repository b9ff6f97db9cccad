//! `millrace-lab study`.

use millrace_program::{
    failure::{CommandResult, Outcome},
    output,
};
use millrace_reproduce::{Setting, studies};

use super::reproduce::failure;
use crate::args::StudyArgs;

pub(super) fn run(args: &StudyArgs) -> CommandResult {
    let setting = Setting::raw(args.seed, args.small);
    let chosen = studies::named(&args.name).map_err(failure)?;
    output::line(&format!("SIMULATED, not measured; seed {}.", args.seed))?;
    for study in chosen {
        output::line(&format!("\n{}: {}", study.name, study.question))?;
        let results = study.run(setting).map_err(failure)?;
        study.write(&results, setting, &args.out).map_err(failure)?;
        output::line(&format!("  {}", args.out.join(format!("{}.md", study.name)).display()))?;
    }
    Ok(Outcome::Done)
}
