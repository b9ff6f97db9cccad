//! The calibration of simulated hosts: the mechanisms that raw numbers do not define, and for each of their
//! parameters one figure of a paper that sets it.
//!
//! The table was written before any calibrated experiment was run; `docs/lab/calibration.md` states the method.

mod table;
mod values;

pub use table::PARAMETERS;
pub use values::Values;
pub(crate) use values::of_testbed;

/// Hosts that share parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Testbed {
    /// OpenSolaris on two Opterons with SDR InfiniBand (TR06, Designing 2007, Beneficial 2006): `sdr-opensolaris`.
    OpenSolaris,
    /// Linux on the same Opterons (TR06, figures 7, 8, 14 and 15): the software of `ddr-linux-allphys`.
    LinuxOpterons,
    /// Linux on two Xeons of 3.6 GHz (Designing 2007 section 5.3): `ddr-linux-allphys`, `ipoib-ud`.
    LinuxXeons,
    /// Solaris (Callaghan 2003): `gige-2003`.
    Solaris,
    /// Linux on four cores of Xeon 5150 (WAN 2008) with IPoIB-UD: `wan-infinihost`.
    WanDatagram,
    /// The same with IPoIB-CM.
    WanConnected,
}

impl Testbed {
    /// All testbeds, in the order of the table.
    pub const ALL: [Self; 6] = [
        Self::OpenSolaris,
        Self::LinuxOpterons,
        Self::LinuxXeons,
        Self::Solaris,
        Self::WanDatagram,
        Self::WanConnected,
    ];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenSolaris => "OpenSolaris, Opterons",
            Self::LinuxOpterons => "Linux, Opterons",
            Self::LinuxXeons => "Linux, Xeons 3.6 GHz",
            Self::Solaris => "Solaris, 2003",
            Self::WanDatagram => "WAN 2008, IPoIB-UD",
            Self::WanConnected => "WAN 2008, IPoIB-CM",
        }
    }
}

/// A figure of a paper.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// The value.
    pub value: f64,
    /// The quantity, with its unit.
    pub what: &'static str,
    /// The paper and the section.
    pub source: &'static str,
}

/// A parameter of a mechanism, and the figure that sets it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameter {
    /// The hosts that share the parameter.
    pub testbed: Testbed,
    /// The work that takes the time.
    pub mechanism: &'static str,
    /// The name, such as `tmpfs.byte_ps`.
    pub name: &'static str,
    /// The unit of the value.
    pub unit: &'static str,
    /// The smallest and the largest value that the source permits.
    pub range: (f64, f64),
    /// The source of the range.
    pub permitted: &'static str,
    /// The figure that sets the parameter.
    pub point: Figure,
    /// Another figure that could have set it, for a cross-check, if a text states one.
    pub alternative: Option<Figure>,
    /// The rules that use the figure, by claim and [`what`](crate::rule::Rule::what). They are marked as
    /// calibrated and not counted.
    pub rules: &'static [(&'static str, &'static str)],
}

/// The parameter whose figure a rule of a claim uses, if there is one.
pub fn calibrates(claim: &str, rule: &str) -> Option<&'static Parameter> {
    PARAMETERS.iter().find(|p| p.rules.contains(&(claim, rule)))
}

/// The table of parameters for documents, in Markdown.
pub fn table() -> String {
    let row = |p: &Parameter| {
        let alternative = p.alternative.map_or_else(|| "none stated".to_owned(), |f| figure(&f));
        let rules: Vec<_> = p.rules.iter().map(|(id, what)| format!("{id}: {what}")).collect();
        format!(
            "| {} | {} | `{}`, {} | {} to {}: {} | {} | {alternative} | {} |\n",
            p.testbed.name(),
            p.mechanism,
            p.name,
            p.unit,
            p.range.0,
            p.range.1,
            p.permitted,
            figure(&p.point),
            rules.join("; ")
        )
    };
    PARAMETERS.iter().map(row).collect()
}

fn figure(f: &Figure) -> String {
    format!("{} {} ({})", f.value, f.what, f.source)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::claims;

    #[test]
    fn every_parameter_has_a_range_and_figures_with_their_sources() {
        for p in PARAMETERS {
            assert!(p.range.0 < p.range.1 && !p.permitted.is_empty(), "{}", p.name);
            for f in [Some(p.point), p.alternative].into_iter().flatten() {
                assert!(f.value > 0.0 && !f.what.is_empty() && !f.source.is_empty(), "{}", p.name);
            }
            assert_ne!(Some(p.point), p.alternative, "{}", p.name);
        }
    }

    #[test]
    fn no_figure_sets_two_parameters_and_no_host_has_a_parameter_twice() {
        for (n, a) in PARAMETERS.iter().enumerate() {
            for b in &PARAMETERS[n + 1..] {
                assert_ne!(a.point, b.point);
                assert!((a.testbed, a.name) != (b.testbed, b.name));
            }
        }
    }

    #[test]
    fn rules_that_use_a_figure_exist() {
        for p in PARAMETERS {
            for (id, what) in p.rules {
                let claim = claims::ALL.iter().find(|c| c.id == *id).unwrap();
                assert!(claim.rules.iter().any(|r| r.what == *what), "{id} has no rule {what:?}");
                assert!(calibrates(id, what).is_some());
            }
        }
        assert!(calibrates("C2", "READ at 1 thread, Read-Write over Read-Read").is_none());
    }

    #[test]
    fn the_documented_table_is_the_table_of_the_program() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lab/calibration.md");
        let text = fs::read_to_string(page).unwrap();
        assert!(text.contains(&table()), "docs/lab/calibration.md must contain:\n{}", table());
    }
}
