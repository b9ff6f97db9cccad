//! The claims of the papers on which Millrace is based, and their verification on simulated machines.
//!
//! A [`Claim`] is data: a sentence, the paper's figures, rules that define in advance when the claim holds
//! ([`rule`]), the plots, and an experiment that produces named curves ([`Curves`]) by running the real
//! client and server in virtual time. [`Reproduction`] runs claims, [`write()`] writes the report. All
//! results are **simulated, not measured**.
//!
//! [`studies`] contains experiments beyond the papers.
//!
//! The rules and the papers' figures were written before any experiment was run; see `docs/lab/reproduction.md`.

pub mod calibration;
pub mod causes;
mod claim;
pub mod claims;
mod column;
mod curves;
mod error;
mod lab;
mod pairs;
mod picture;
mod report;
pub mod rule;
mod run;
mod search;
mod sensitivity;
pub mod studies;

pub use claim::{Claim, Modification, Setting};
pub use column::{Column, Outcome, Verdict};
pub use curves::Curves;
pub use error::ReproduceError;
pub use picture::{Picture, Unit};
pub use report::{summary, write};
pub use run::{Columns, Progress, Reproduction, Results};
pub use search::Found;
pub use sensitivity::{Change, Moved, Variation};
