//! Tests of each kind of plot in both files.

use std::{collections::HashMap, fs, io::BufReader};

use plotters::style::RGBColor;

use super::*;

fn series(name: &str, colour: usize, second: bool, values: &[f64]) -> Series {
    Series { name: name.into(), values: values.iter().map(|v| Some(*v)).collect(), colour, second }
}

fn threads() -> Places {
    Places { label: "threads".into(), names: ["1", "2", "4", "8"].map(Into::into).into() }
}

fn heading(title: &str) -> Heading {
    let note =
        "embedded server, iwarp provider on loopback, 8 records in flight per thread; medians of 3 runs";
    Heading { title: title.into(), note: note.into() }
}

fn lines() -> Lines {
    let mut gap = series("all-physical", 3, false, &[900.0, 1700.0, 2500.0, 2600.0]);
    gap.values[1] = None;
    let series = vec![
        series("dynamic", 0, false, &[812.5, 1500.0, 2011.0, 2100.0]),
        series("fast", 1, false, &[1000.0, 1650.0, 2311.0, 2400.0]),
        series("cache", 2, true, &[1100.0, 1800.0, 2611.0, 2700.0]),
        gap,
    ];
    Lines {
        heading: heading("READ, 128 KiB records: MB/s by registration strategy"),
        x: threads(),
        y: Axis { label: "MB/s".into(), scale: Scale::Linear, series },
    }
}

fn bars() -> BarsWithLines {
    let name = |design: &str, n: usize| format!("{design}, {} KiB", 128 << n);
    let bar = |second: bool, design, n: usize| {
        let base = 1000.0 + 150.0 * n as f64 - if second { 300.0 } else { 0.0 };
        series(&name(design, n), n, second, &[base, base * 1.5, base * 1.9, base * 2.0])
    };
    let bars = (0..4).flat_map(|n| [bar(false, "read-write", n), bar(true, "read-read", n)]).collect();
    let lines = vec![
        series("CPU, read-write", 6, false, &[50.0, 90.0, 120.0, 130.0]),
        series("CPU, read-read", 6, true, &[80.0, 120.0, 160.0, 180.0]),
    ];
    BarsWithLines {
        heading: heading("READ: bandwidth and client CPU by design"),
        x: threads(),
        bars: Axis { label: "MB/s".into(), scale: Scale::Linear, series: bars },
        lines: Axis { label: "CPU % (100 = one core)".into(), scale: Scale::Linear, series: lines },
    }
}

fn stacked() -> Stacked {
    let bar = |n: usize| ((1 << n).to_string(), vec![30.0 - n as f64, 20.0, 10.0 + n as f64, 40.0]);
    let group = |name: &str| StackedGroup { name: name.into(), bars: (0..4).map(bar).collect() };
    Stacked {
        heading: heading("Where the time of an operation goes"),
        x_label: "threads".into(),
        y_label: "% of an operation's time".into(),
        stages: ["registration", "transport", "execution", "deregistration"].map(Into::into).into(),
        groups: vec![group("client, 128 KiB"), group("server, 128 KiB"), group("server, 1 MiB")],
    }
}

/// Writes `picture`, and returns the SVG's text and the number of pixels of each colour in the PNG.
fn written(write: impl Fn(&Path, &str) -> Result<(), PlotError>) -> (String, HashMap<[u8; 3], usize>) {
    let dir = tempfile::tempdir().unwrap();
    let below = dir.path().join("made/when/missing");
    write(&below, "picture").unwrap();
    let svg = fs::read_to_string(below.join("picture.svg")).unwrap();
    let file = BufReader::new(fs::File::open(below.join("picture.png")).unwrap());
    let mut reader = png::Decoder::new(file).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert!(
        svg.contains(&format!("<svg width=\"{}\" height=\"{}\"", info.width / 2, info.height / 2)),
        "{svg}"
    );
    let mut colours = HashMap::new();
    for p in pixels.chunks_exact(3) {
        *colours.entry([p[0], p[1], p[2]]).or_insert(0) += 1;
    }
    (svg, colours)
}

/// Checks that the SVG contains each of `texts` as a separate text.
fn contains(svg: &str, texts: &[&str]) {
    let found: Vec<String> = svg.lines().map(|l| l.trim().replace("&apos;", "'")).collect();
    for text in texts {
        assert!(found.iter().any(|s| s == text), "{found:?} does not contain '{text}'");
    }
}

fn pixels(colours: &HashMap<[u8; 3], usize>, n: usize) -> usize {
    let RGBColor(r, g, b) = frame::hue(n);
    colours.get(&[r, g, b]).copied().unwrap_or(0)
}

#[test]
fn lines_are_drawn_and_named_in_both_files() {
    let (svg, colours) = written(|dir, name| lines().write(dir, name));
    contains(
        &svg,
        &["READ, 128 KiB records: MB/s by registration strategy", "MB/s", "threads", "8", "2,500"],
    );
    contains(&svg, &["dynamic", "fast", "cache", "all-physical"]);
    assert!((0..4).all(|n| pixels(&colours, n) > 500), "{colours:?}");
    // Three markers and one line segment are drawn for three values of which only two are adjacent.
    assert!(pixels(&colours, 3) < pixels(&colours, 1) * 3 / 4);
}

#[test]
fn a_line_under_another_is_wider_than_it() {
    let one = series("one", 0, false, &[800.0, 1500.0, 2000.0, 2100.0]);
    let drawn = |second: &[f64]| {
        let y = Axis { series: vec![one.clone(), series("other", 1, false, second)], ..lines().y };
        written(|dir, name| Lines { y: y.clone(), ..lines() }.write(dir, name)).1
    };
    let (apart, hidden) = (drawn(&[100.0, 200.0, 300.0, 400.0]), drawn(&[800.0, 1500.0, 2000.0, 2100.0]));
    assert!(pixels(&hidden, 0) > pixels(&apart, 0) / 2, "{hidden:?}");
    assert!(pixels(&hidden, 1) > pixels(&apart, 1) / 2, "{hidden:?}");
}

#[test]
fn bars_and_lines_have_separate_axes() {
    let (svg, colours) = written(|dir, name| bars().write(dir, name));
    contains(
        &svg,
        &["MB/s", "CPU % (100 = one core)", "2,500", "150", "read-read, 256 KiB", "CPU, read-write"],
    );
    assert!((0..4).all(|n| pixels(&colours, n) > 20_000), "{colours:?}");
    let pale = [153, 199, 225];
    assert!(colours.get(&pale).is_some_and(|n| *n > 10_000), "{colours:?}");
    let alone = BarsWithLines {
        lines: Axis { label: "CPU %".into(), scale: Scale::Linear, series: Vec::new() },
        ..bars()
    };
    let (svg, _) = written(|dir, name| alone.write(dir, name));
    assert!(!svg.contains("CPU %"), "an axis without lines is drawn");
}

#[test]
fn the_area_of_a_stage_is_proportional_to_its_value() {
    let (svg, colours) = written(|dir, name| stacked().write(dir, name));
    contains(
        &svg,
        &["% of an operation's time", "client, 128 KiB", "server, 1 MiB", "transport", "threads", "100"],
    );
    let [registration, transport, files, rest] = [0, 1, 2, 3].map(|n| pixels(&colours, n) as f64);
    for (part, of_registration) in [(transport, 20.0 / 28.5), (files, 11.5 / 28.5), (rest, 40.0 / 28.5)] {
        assert!((part / registration - of_registration).abs() < 0.05, "{part} of {registration}");
    }
}

#[test]
fn the_error_names_a_path_that_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = lines().write(&file, "picture").unwrap_err().to_string();
    assert!(error.starts_with("cannot draw ") && error.contains("file"), "{error}");
}
