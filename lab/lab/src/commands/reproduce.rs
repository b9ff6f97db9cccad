//! `millrace-lab reproduce`.

use std::{io::IsTerminal, time::Duration};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millrace_program::{
    failure::{CommandResult, Failure, Outcome},
    output,
};
use millrace_reproduce::{Column, Columns, Progress, ReproduceError, Reproduction, Setting, claims};

use crate::args::ReproduceArgs;

pub(super) fn run(args: &ReproduceArgs) -> CommandResult {
    let setting = Setting::raw(args.seed, args.small);
    let columns = match args.raw_only {
        true => Columns::Raw,
        false => Columns::Both { sensitivity: args.sensitivity, causes: args.causes },
    };
    let run = Reproduction { claims: claims::named(&args.only).map_err(failure)?, setting, columns };
    let display = ProgressDisplay::new();
    let results = run.run(|p| display.update(p)).map_err(|e| Failure::new(e.to_string()))?;
    display.end();
    millrace_reproduce::write(&results, setting, &args.out).map_err(failure)?;
    output::line(&format!("SIMULATED, not measured; seed {}.\n", args.seed))?;
    for o in &results.outcomes {
        output::line(&format!("{:4} {}", o.claim.id, o.claim.claim))?;
        for (name, column) in [("raw numbers only", Some(&o.raw)), ("calibrated", o.calibrated.as_ref())] {
            if let Some(Column { verdict, why, .. }) = column {
                output::line(format!("     {name}: {} {why}", verdict.word()).trim_end())?;
            }
        }
    }
    output::line(&format!(
        "\n{}.\nThe report: {}",
        millrace_reproduce::summary(&results.outcomes),
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

/// Progress of the run: one line on a terminal, otherwise a line for each step.
struct ProgressDisplay {
    bar: Option<ProgressBar>,
}

impl ProgressDisplay {
    fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(8));
            if let Ok(style) = ProgressStyle::with_template("{pos} steps {elapsed}  {wide_msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        Self { bar }
    }

    fn update(&self, progress: Progress) {
        match (progress, &self.bar) {
            (Progress::Began(id), Some(bar)) => bar.set_message(format!("{id} is running")),
            (Progress::Calibrated(name), Some(bar)) => {
                bar.inc(1);
                bar.set_message(format!("{name} is calibrated"));
            }
            (Progress::Ended(id, verdict), Some(bar)) => {
                bar.inc(1);
                bar.set_message(format!("{id} {}", verdict.word()));
            }
            (Progress::Changed(name), Some(bar)) => {
                bar.inc(1);
                bar.set_message(format!("{name} was changed"));
            }
            (Progress::Calibrated(name), None) => eprintln!("{name}: calibrated"),
            (Progress::Changed(name), None) => eprintln!("{name}: changed"),
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
