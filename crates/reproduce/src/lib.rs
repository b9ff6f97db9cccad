//! The claims of the papers that Millrace is built from, and whether they hold on simulated machines.
//!
//! A [`Claim`] is data: a sentence, the paper's figures, rules that say beforehand when the claim holds ([`rule`]), the
//! pictures to draw, and an experiment that fills named curves ([`Curves`]) by running the real client and server in
//! virtual time. [`Reproduction`] runs claims, [`write()`] writes the report. Everything in it is **simulated, not
//! measured**.
//!
//! [`studies`] go past the papers.
//!
//! The rules were written, with the papers' figures, before any experiment was run; `docs/reproduction.md` says how.

mod claim;
pub mod claims;
mod curves;
mod error;
mod lab;
mod picture;
mod report;
pub mod rule;
mod run;
pub mod studies;

pub use claim::{Claim, Experiment, Setting};
pub use curves::Curves;
pub use error::ReproduceError;
pub use picture::{Picture, Unit};
pub use report::{summary, write};
pub use run::{Outcome, Progress, Reproduction, Verdict};
