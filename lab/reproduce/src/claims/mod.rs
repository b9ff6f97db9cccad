//! The claims, one file each: rules, plots, and the experiment.
//!
//! `ALL` lists them; `named` selects those that the command line names.

mod c01;
mod c02;
mod c03;
mod c04;
mod c05;
mod c06;
pub(crate) mod c07;
mod c08;
pub(crate) mod c09;
pub(crate) mod c10;
mod c11;
mod c12;
pub(crate) mod c13;
pub(crate) mod c14;
mod c15;

use crate::{Claim, ReproduceError};

/// All claims, in order.
pub const ALL: [Claim; 15] = [
    c01::CLAIM,
    c02::CLAIM,
    c03::CLAIM,
    c04::CLAIM,
    c05::CLAIM,
    c06::CLAIM,
    c07::CLAIM,
    c08::CLAIM,
    c09::CLAIM,
    c10::CLAIM,
    c11::CLAIM,
    c12::CLAIM,
    c13::CLAIM,
    c14::CLAIM,
    c15::CLAIM,
];

/// The claims with these names, in order, or all if there are no names. Case is ignored.
///
/// # Errors
/// When a name is unknown; the error lists the known names.
pub fn named(ids: &[String]) -> Result<Vec<Claim>, ReproduceError> {
    let known = |id: &&String| ALL.iter().any(|c| c.id.eq_ignore_ascii_case(id.trim()));
    if let Some(asked) = ids.iter().find(|id| !known(id)) {
        let known = ALL.map(|c| c.id).join(", ");
        return Err(ReproduceError::Unknown { asked: asked.clone(), known });
    }
    let wanted = |c: &Claim| ids.is_empty() || ids.iter().any(|id| c.id.eq_ignore_ascii_case(id.trim()));
    Ok(ALL.into_iter().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_complete() {
        for (n, c) in ALL.iter().enumerate() {
            assert_eq!(c.id, format!("C{}", n + 1));
            assert!([c.claim, c.source, c.figures].iter().all(|t| !t.is_empty()), "{}", c.id);
            assert!(!c.rules.is_empty() && !c.pictures.is_empty() && !c.profiles.is_empty(), "{}", c.id);
            assert!(c.rules.iter().all(|r| r.band.least <= r.band.most && !r.paper.is_empty()), "{}", c.id);
        }
    }

    #[test]
    fn every_curve_of_a_rule_is_in_a_picture() {
        for c in ALL {
            let drawn: Vec<_> = c.pictures.iter().flat_map(|p| p.all_curves()).collect();
            for rule in c.rules {
                for curve in rule.measure.curves() {
                    assert!(drawn.contains(&curve), "{}: {curve} is not drawn", c.id);
                }
            }
        }
    }

    #[test]
    fn titles_and_legends_fit_a_picture() {
        for c in ALL {
            for p in c.pictures {
                assert!(p.title.len() <= 75, "{}: {}", c.id, p.title);
                assert!(p.all_curves().all(|name| name.len() <= 30), "{}: {}", c.id, p.name);
            }
        }
    }

    #[test]
    fn claims_are_chosen_by_name_and_the_error_for_an_unknown_one_lists_all() {
        let ids = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            named(&names).map(|claims| claims.iter().map(|c| c.id).collect::<Vec<_>>())
        };
        assert_eq!(ids(&["c13", "C2"]).unwrap(), ["C2", "C13"]);
        assert_eq!(ids(&[]).unwrap().len(), 15);
        let error = ids(&["C2", "C16"]).unwrap_err().to_string();
        assert!(
            error.contains("\"C16\"") && error.contains("C1, C2, C3") && error.contains("C15"),
            "{error}"
        );
    }
}
