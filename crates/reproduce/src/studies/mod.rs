//! Studies of machines and distances that the papers did not have. Each is a page with pictures, made by one command,
//! out of a text that is written by hand and figures that the simulation gives. They are **simulated, not measured**.

mod credits;
mod distance;
mod page;
mod registration;

use std::path::Path;

use millrace_bench::BenchError;

use crate::{Curves, Picture, ReproduceError, Setting};

/// A study.
#[derive(Clone, Copy)]
pub struct Study {
    /// Its name, which is that of its page too.
    pub name: &'static str,
    /// What is asked, in a sentence.
    pub question: &'static str,
    /// The page: in a line `{NAME}` stands the picture of that name, and its figures as a table.
    text: &'static str,
    pictures: &'static [Picture],
    experiment: fn(Setting) -> Result<Curves, BenchError>,
}

/// All studies.
pub const ALL: [Study; 3] = [distance::STUDY, credits::STUDY, registration::STUDY];

/// The study of this name; with `all`, all of them.
///
/// # Errors
/// When there is none of that name: with a list of those that there are.
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
    /// When the simulation does not come to its end.
    pub fn run(&self, setting: Setting) -> Result<Curves, ReproduceError> {
        Ok((self.experiment)(setting)?)
    }

    /// Writes the page `OUT/NAME.md` and its pictures beside it.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, curves: &Curves, setting: Setting, out: &Path) -> Result<(), ReproduceError> {
        page::write(self, curves, setting, out)
    }
}
