//! Studies of machines and distances beyond the papers. One command produces each page with its plots, from the
//! text of the published page and the figures of the simulation. They are **simulated, not measured**.

mod block;
mod credits;
mod distance;
mod modern;
mod page;
mod registration;

use std::path::Path;

use millrace_bench::BenchError;

use crate::{Curves, Picture, ReproduceError, Setting};

/// A study.
#[derive(Clone, Copy)]
pub struct Study {
    /// The name of the study, and of its page.
    pub name: &'static str,
    /// The question, in a sentence.
    pub question: &'static str,
    /// The published page. The study writes it with the plot NAME, and without a summary a table of its figures,
    /// between `<!-- NAME -->` and `<!-- end -->`; and with the summary after `<!-- summary -->`.
    page: &'static str,
    /// One table instead of those of the plots.
    summary: Option<fn(&Curves) -> String>,
    pictures: &'static [Picture],
    experiment: fn(Setting) -> Result<Curves, BenchError>,
}

/// All studies.
pub const ALL: [Study; 5] =
    [distance::STUDY, credits::STUDY, registration::STUDY, block::STUDY, modern::STUDY];

/// The study of this name, or all studies for `all`.
///
/// # Errors
/// When there is no such study; the error lists the names.
pub fn named(name: &str) -> Result<Vec<Study>, ReproduceError> {
    let found: Vec<_> = ALL.into_iter().filter(|s| name == "all" || s.name == name).collect();
    if found.is_empty() {
        let known = ALL.map(|s| s.name).join(", ") + ", all";
        return Err(ReproduceError::UnknownStudy { asked: name.to_owned(), known });
    }
    Ok(found)
}

impl Study {
    /// Runs the experiment.
    ///
    /// # Errors
    /// When the simulation fails.
    pub fn run(&self, setting: Setting) -> Result<Curves, ReproduceError> {
        Ok((self.experiment)(setting)?)
    }

    /// Writes the page `OUT/NAME.md` and its plots.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, curves: &Curves, setting: Setting, out: &Path) -> Result<(), ReproduceError> {
        page::write(self, curves, setting, out)
    }
}
