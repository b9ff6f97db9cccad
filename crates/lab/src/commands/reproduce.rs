//! `millrace-lab reproduce`.

use std::{io::IsTerminal, time::Duration};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millrace_cli_common::{
    failure::{CommandResult, Failure, Outcome},
    output,
};
use millrace_reproduce::{Progress, ReproduceError, Reproduction, Setting, Verdict, claims};

use crate::args::ReproduceArgs;

pub(super) fn run(args: &ReproduceArgs) -> CommandResult {
    let setting = Setting { seed: args.seed, small: args.small };
    let run = Reproduction { claims: claims::named(&args.only).map_err(failure)?, setting };
    let display = ProgressDisplay::new(run.claims.len());
    let outcomes = run.run(|p| display.update(p));
    display.end();
    millrace_reproduce::write(&outcomes, setting, &args.out).map_err(failure)?;
    output::line(&format!("SIMULATED, not measured; seed {}.\n", args.seed))?;
    for o in &outcomes {
        output::line(&format!("{:4} {:5}  {}", o.claim.id, o.verdict.word(), o.claim.claim))?;
        if o.verdict != Verdict::Holds {
            output::line(&format!("            {}", o.why))?;
        }
    }
    output::line(&format!(
        "\n{}. The report: {}",
        millrace_reproduce::summary(&outcomes),
        args.out.join("index.html").display()
    ))?;
    Ok(Outcome::Done)
}

/// Converts an error of the reproduction to a failure of the command.
pub(super) fn failure(e: ReproduceError) -> Failure {
    match e {
        ReproduceError::Unknown { .. } | ReproduceError::UnknownStudy { .. } => Failure::usage(e.to_string()),
        _ => Failure::new(e.to_string()),
    }
}

/// Progress of the run: a bar on a terminal, otherwise a line for each claim.
struct ProgressDisplay {
    bar: Option<ProgressBar>,
}

impl ProgressDisplay {
    fn new(claims: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar =
                ProgressBar::with_draw_target(Some(claims as u64), ProgressDrawTarget::stderr_with_hz(8));
            if let Ok(style) =
                ProgressStyle::with_template("{pos} of {len} claims [{bar:30}] {elapsed}  {wide_msg}")
            {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        Self { bar }
    }

    fn update(&self, progress: Progress) {
        match (progress, &self.bar) {
            (Progress::Began(id), Some(bar)) => bar.set_message(format!("{id} is running")),
            (Progress::Ended(id, verdict), Some(bar)) => {
                bar.inc(1);
                bar.set_message(format!("{id} {}", verdict.word()));
            }
            (Progress::Began(_), None) => {}
            (Progress::Ended(id, verdict), None) => eprintln!("{id} {}", verdict.word()),
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
