//! Latency breakdown of an operation at both ends: tables, JSON and the plot of TR06 figure 10.

use std::{fmt::Write, path::Path};

use millrace_bench::{Figure, breakdown::Breakdown};
use millrace_oncrpc::{Stage, stages::StageSums};
use millrace_plot::{Heading, PlotError, Stacked, StackedGroup};
use millrace_program::{
    table::{Align, Table},
    units::{ByteSize, grouped, short},
};
use serde_json::{Map, Value, json};

/// For each stage, microseconds per operation at each end and the share of the end's time; their sums, and
/// the measured latency. Stages without time at both ends are omitted.
fn table_of(breakdown: &Breakdown) -> Table {
    let mut header = vec![("stage", Align::Left)];
    for (end, _) in breakdown.ends() {
        header.extend([(end, Align::Right), ("%", Align::Right)]);
    }
    let mut t = Table::new(&header);
    for stage in Stage::ALL {
        if breakdown.ends().any(|(_, sums)| !sums.time(stage).is_zero()) {
            let cells = breakdown.ends().flat_map(|(_, sums)| match per_call(sums, stage) {
                0.0 => ["-".to_owned(), "-".to_owned()],
                us => [format!("{us:.2}"), format!("{:.1}", share(sums, stage))],
            });
            t.row(std::iter::once(stage.name().to_owned()).chain(cells));
        }
    }
    let sums = breakdown.ends().flat_map(|(_, sums)| [format!("{:.2}", total(sums)), String::new()]);
    t.row(std::iter::once("sum".to_owned()).chain(sums));
    t.row(["measured".to_owned(), format!("{:.2}", breakdown.mean_us)]);
    t
}

/// Microseconds of `stage` per call.
fn per_call(sums: &StageSums, stage: Stage) -> f64 {
    sums.time(stage).as_secs_f64() * 1e6 / sums.calls.max(1) as f64
}

/// Microseconds per call.
fn total(sums: &StageSums) -> f64 {
    sums.total().as_secs_f64() * 1e6 / sums.calls.max(1) as f64
}

/// Share of `stage` in a call's time, in percent.
fn share(sums: &StageSums, stage: Stage) -> f64 {
    sums.time(stage).as_secs_f64() * 100.0 / sums.total().as_secs_f64().max(1e-12)
}

/// Formats `figures`, each as a table with a heading.
pub(crate) fn text(figures: &[Figure]) -> String {
    let mut out = String::new();
    for f in figures {
        let Some(b) = &f.breakdown else { continue };
        let words = [&f.design, &f.registration].into_iter().flatten().map(String::as_str);
        let setting = words.chain([f.proto.as_str()]).collect::<Vec<_>>().join(", ");
        let sampled: Vec<_> = b.ends().map(|(end, s)| format!("{} at the {end}", grouped(s.calls))).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{} of {}: {setting}, threads {} with {} in flight; {} MB/s; microseconds of an operation.\nSampled calls: {}\n{}",
            f.test.to_uppercase(),
            ByteSize(f.record).human(),
            f.threads,
            f.outstanding,
            f.mb_per_s.map_or_else(|| "-".into(), short),
            sampled.join(", "),
            table_of(b),
        );
    }
    out
}

/// Formats a figure's breakdown as one line of JSON.
pub(crate) fn json(f: &Figure) -> String {
    let end = |sums: &StageSums| {
        let stages = Stage::ALL.into_iter().filter(|s| !sums.time(*s).is_zero());
        let stages = stages.map(|s| (s.name().to_owned(), Value::from(per_call(sums, s))));
        json!({
            "sampled_calls": sums.calls,
            "sum_us": total(sums),
            "stages_us": stages.collect::<Map<_, _>>(),
        })
    };
    let b = f.breakdown.as_ref();
    json!({
        "workload": "breakdown",
        "test": f.test,
        "proto": f.proto,
        "provider": f.provider,
        "design": f.design,
        "registration": f.registration,
        "server_registration": f.server_registration,
        "threads": f.threads,
        "record": f.record,
        "outstanding": f.outstanding,
        "mb_per_s": f.mb_per_s,
        "mean_us": b.map(|b| b.mean_us),
        "client": b.map(|b| end(&b.client)),
        "server": b.and_then(|b| b.server.as_ref()).map(end),
    })
    .to_string()
}

/// Groups of stages in the plot, from the bottom up: as many as there are colours, the same in each plot.
const PARTS: [(&str, &[Stage]); 8] = [
    ("registration", &[Stage::Registration]),
    ("deregistration", &[Stage::Deregistration]),
    ("RDMA Read wait", &[Stage::ReadWait]),
    ("execution", &[Stage::Execution]),
    (
        "headers, buffers, posting",
        &[Stage::Encode, Stage::Decode, Stage::Buffer, Stage::Send, Stage::WritePost, Stage::Reply],
    ),
    ("completion (server)", &[Stage::Completion]),
    ("waiting for a turn", &[Stage::Queue, Stage::Receive, Stage::Delivery]),
    ("wait for the reply (client)", &[Stage::Wait]),
];

/// Plots, for each design, strategy and test of `figures`, the shares of an operation's time over the number
/// of threads: a block of bars for each record at each end, as in TR06 figure 10. Returns the names of the
/// files without extension.
///
/// # Errors
/// A file cannot be written.
pub(crate) fn draw(figures: &[Figure], note: &str, dir: &Path) -> Result<Vec<String>, PlotError> {
    let of = |f: &Figure| {
        let word = |w: &Option<String>| w.clone().unwrap_or_else(|| f.proto.clone());
        (f.test.clone(), word(&f.design), word(&f.registration))
    };
    let mut names = Vec::new();
    for (i, first) in figures.iter().enumerate() {
        let setting = of(first);
        if figures.iter().take(i).any(|f| of(f) == setting) {
            continue;
        }
        let same: Vec<&Figure> = figures.iter().filter(|f| of(f) == setting).collect();
        let (test, design, registration) = setting;
        let title = format!(
            "Where the time of a {} goes: {design}, registration {registration}",
            test.to_uppercase()
        );
        let name = format!("fig10-{test}-breakdown-{design}-{registration}");
        picture(&same, Heading { title, note: note.into() }).write(dir, &name)?;
        names.push(name);
    }
    Ok(names)
}

fn picture(figures: &[&Figure], heading: Heading) -> Stacked {
    let mut groups = Vec::new();
    let mut records: Vec<u64> = figures.iter().map(|f| f.record).collect();
    records.sort_unstable();
    records.dedup();
    for end in ["client", "server"] {
        for record in &records {
            let bars = figures.iter().filter(|f| f.record == *record).filter_map(|f| {
                let (_, sums) = f.breakdown.as_ref()?.ends().find(|(e, _)| *e == end)?;
                let part = |stages: &[Stage]| stages.iter().map(|s| share(sums, *s)).sum();
                Some((f.threads.to_string(), PARTS.map(|(_, stages)| part(stages)).to_vec()))
            });
            let bars: Vec<_> = bars.collect();
            if !bars.is_empty() {
                groups.push(StackedGroup { name: format!("{end}, {}", ByteSize(*record).human()), bars });
            }
        }
    }
    Stacked {
        heading,
        x_label: "threads".into(),
        y_label: "% of an operation's time at this end".into(),
        stages: PARTS.map(|(name, _)| name.to_owned()).to_vec(),
        groups,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn figure(threads: usize, record: u64) -> Figure {
        let us = Duration::from_micros;
        let client = StageSums::new(4, [(Stage::Encode, us(8)), (Stage::Wait, us(72))]);
        let server = StageSums::new(2, [(Stage::Execution, us(10)), (Stage::Reply, us(30))]);
        Figure {
            test: "read".into(),
            proto: "rdma".into(),
            design: Some("read-write".into()),
            registration: Some("fast".into()),
            threads,
            record,
            breakdown: Some(Breakdown { client, server: Some(server), mean_us: 20.5 }),
            ..Figure::default()
        }
    }

    #[test]
    fn a_table_has_means_shares_sums_and_the_measured_latency() {
        let table = table_of(&figure(1, 4096).breakdown.unwrap()).to_string();
        let rows: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["stage", "client", "%", "server", "%"]);
        for row in [
            &["encode", "2.00", "10.0", "-", "-"][..],
            &["wait", "18.00", "90.0", "-", "-"],
            &["execution", "-", "-", "5.00", "25.0"],
            &["reply", "-", "-", "15.00", "75.0"],
            &["sum", "20.00", "20.00"],
            &["measured", "20.50"],
        ] {
            assert!(rows.iter().any(|r| r == row), "{row:?} is not in\n{table}");
        }
        assert_eq!(rows.len(), 2 + 6, "{table}");
    }

    #[test]
    fn json_has_both_ends() {
        let value: Value = serde_json::from_str(&json(&figure(2, 4096))).unwrap();
        assert_eq!(
            (value["client"]["stages_us"]["wait"].as_f64(), value["mean_us"].as_f64()),
            (Some(18.0), Some(20.5))
        );
        assert_eq!(
            (value["server"]["sum_us"].as_f64(), value["server"]["sampled_calls"].as_u64()),
            (Some(20.0), Some(2))
        );
    }

    #[test]
    fn every_stage_is_in_one_group_of_the_plot() {
        for stage in Stage::ALL {
            assert_eq!(PARTS.iter().filter(|(_, stages)| stages.contains(&stage)).count(), 1, "{stage}");
        }
        assert!(PARTS.len() <= millrace_plot::COLOURS);
    }

    #[test]
    fn a_plot_has_a_block_per_end_and_record_and_a_bar_per_number_of_threads() {
        let all = [figure(1, 1024), figure(1, 4096), figure(2, 1024), figure(2, 4096)];
        let picture = picture(&all.iter().collect::<Vec<_>>(), Heading::default());
        let names: Vec<_> = picture.groups.iter().map(|g| g.name.as_str()).collect();
        assert_eq!(names, ["client, 1 KiB", "client, 4 KiB", "server, 1 KiB", "server, 4 KiB"]);
        for group in &picture.groups {
            assert_eq!(group.bars.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>(), ["1", "2"]);
            assert!(group.bars.iter().all(|(_, parts)| (parts.iter().sum::<f64>() - 100.0).abs() < 1e-9));
        }
        let dir = tempfile::tempdir().unwrap();
        let names = draw(&all, "", dir.path()).unwrap();
        assert_eq!(names, ["fig10-read-breakdown-read-write-fast"]);
        assert!(dir.path().join("fig10-read-breakdown-read-write-fast.png").is_file());
    }
}
