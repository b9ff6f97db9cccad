//! The report: `index.html`, `claims.md`, `claims.json` and the plots.

mod html;
mod json;
mod markdown;

use std::{fs, path::Path};

use crate::{Outcome, ReproduceError, Setting, Verdict};

/// The remark that accompanies every figure.
const SIMULATED: &str = "simulated, not measured";

/// Writes the report on `outcomes` into `dir`, which is created if it does not exist: `index.html`
/// (self-contained), `claims.md`, `claims.json`, and each plot as SVG and PNG in `pictures/`.
///
/// # Errors
/// When a file cannot be written.
pub fn write(outcomes: &[Outcome], setting: Setting, dir: &Path) -> Result<(), ReproduceError> {
    let pictures = dir.join("pictures");
    fs::create_dir_all(&pictures)
        .map_err(|source| ReproduceError::File { path: pictures.clone(), source })?;
    let drawn = outcomes.iter().map(|o| draw(o, setting, &pictures)).collect::<Result<Vec<_>, _>>()?;
    let put = |name: &str, text: String| {
        let path = dir.join(name);
        fs::write(&path, text).map_err(|source| ReproduceError::File { path, source })
    };
    put("claims.json", json::claims(outcomes, setting)?)?;
    put("claims.md", markdown::claims(outcomes, setting))?;
    put("index.html", html::page(outcomes, &drawn, setting))
}

/// The plots of a claim as SVG; empty if its experiment failed.
fn draw(outcome: &Outcome, setting: Setting, dir: &Path) -> Result<Vec<String>, ReproduceError> {
    let claim = &outcome.claim;
    let note = conditions(outcome, setting);
    let has = |p: &&crate::Picture| p.all_curves().any(|c| !outcome.curves.points(c).is_empty());
    let draw = |p: &crate::Picture| {
        p.draw(&outcome.curves, &note, dir, &format!("{}-{}", claim.id.to_lowercase(), p.name))
    };
    claim.pictures.iter().filter(has).map(draw).collect()
}

/// The conditions of a claim's figures.
fn conditions(outcome: &Outcome, setting: Setting) -> String {
    let small = if setting.small { ", small form" } else { "" };
    format!("{SIMULATED}; {}; seed {}{small}", outcome.claim.profiles.join(", "), setting.seed)
}

/// The numbers of claims by verdict: "9 hold, 6 fail".
pub fn summary(outcomes: &[Outcome]) -> String {
    let count = |v: Verdict| outcomes.iter().filter(|o| o.verdict == v).count();
    format!("{} hold, {} fail", count(Verdict::Holds), count(Verdict::Fails))
}
