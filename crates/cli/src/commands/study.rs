//! `millrace study`.

use millrace_reproduce::{Setting, studies};

use crate::{
    args::StudyArgs,
    failure::{CommandResult, Outcome},
    output,
};

pub(super) fn run(args: &StudyArgs) -> CommandResult {
    let setting = Setting { seed: args.seed, small: args.small };
    let chosen = studies::named(&args.name)?;
    output::line(&format!("SIMULATED, not measured; seed {}.", args.seed))?;
    for study in chosen {
        output::line(&format!("\n{}: {}", study.name, study.question))?;
        study.write(&study.run(setting)?, setting, &args.out)?;
        output::line(&format!("  {}", args.out.join(format!("{}.md", study.name)).display()))?;
    }
    Ok(Outcome::Done)
}
