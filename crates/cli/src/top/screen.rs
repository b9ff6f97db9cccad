//! Terminal user interface of `millrace top`.

use ratatui::{
    Frame,
    layout::{Constraint, Layout},
    style::{Modifier, Style},
    text::Line,
    widgets::{Block, Paragraph, RenderDirection, Row as Cells, Sparkline, Table},
};

use super::{GROUPS, History, Order, Rates, Row, title};

/// Width below which a table has no percentiles, so that names have room.
const WIDE: u16 = 74;

/// Height below which there are no graphs, so that tables have room.
const TALL: u16 = 24;

/// What the keys do.
const HELP: &str = "\
q, Esc   quit
o        sort by calls per second
b        sort by bytes per second
9        sort by the 99th percentile of the latency
n        sort by name
h, ?     show or hide this help

The graphs have the last reports of all exports, from 0 to the highest.
p50 and p99 are percentiles of the time in the server.";

/// Draws the screen: a summary line, graphs, one table for each group (for NFSv4 clients, if there are any) or the help, a
/// line about iSCSI if it is used, and a line with the keys.
pub(crate) fn draw(
    frame: &mut Frame<'_>,
    server: &str,
    order: Order,
    rates: &Rates,
    history: &History,
    help: bool,
) {
    let [head, graphs, clients, exports, nfs4, procedures, iscsi, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(if frame.area().height < TALL { 0 } else { 3 }),
        Constraint::Fill(2),
        Constraint::Fill(1),
        if rates.nfs4_client.is_empty() { Constraint::Length(0) } else { Constraint::Fill(1) },
        Constraint::Fill(2),
        Constraint::Length(rates.iscsi.iter().len() as u16),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Line::from(summary(server, rates)), head);
    let areas = Layout::horizontal([Constraint::Fill(1); 3]).spacing(1).areas::<3>(graphs);
    for (figure, (area, name)) in areas.into_iter().zip(["ops/s", "read MB/s", "write MB/s"]).enumerate() {
        frame.render_widget(graph(history, figure, name, area.width), area);
    }
    if help {
        let area = [exports, nfs4, procedures].into_iter().fold(clients, |area, other| area.union(other));
        frame.render_widget(Paragraph::new(HELP).block(Block::bordered()), area);
    } else {
        let areas = [clients, exports, nfs4, procedures].into_iter();
        for (area, (group, rows)) in areas.zip(GROUPS.into_iter().zip(rates.groups())) {
            frame.render_widget(table(group, rows, area.width), area);
        }
    }
    if let Some(rates) = rates.iscsi {
        frame.render_widget(Line::from(rates.to_string()), iscsi);
    }
    let line = format!("q quit  h help  sort: o ops  b bytes  9 p99  n name  (now: {order:?})");
    frame.render_widget(Line::from(line), keys);
}

fn summary(server: &str, rates: &Rates) -> String {
    let mib = 1024.0 * 1024.0;
    let about = rates.about().map(|about| format!(" ({about})")).unwrap_or_default();
    format!(
        "{server}{about}: {} connections, {} calls over RDMA in progress, {:.0} of {:.0} MiB",
        rates.connections,
        rates.in_progress,
        rates.memory / mib,
        rates.memory_limit / mib
    )
}

/// The last values of a figure, the newest at the right.
fn graph<'r>(history: &History, figure: usize, name: &str, width: u16) -> Sparkline<'r> {
    let last = history.last(figure);
    let value = if figure == 0 { format!("{last:.0}") } else { format!("{last:.1}") };
    // The heights are relative to the highest; thousandths keep those of small rates.
    let heights = history.values(figure).take(width.into()).map(|value| (value * 1000.0) as u64);
    Sparkline::default()
        .block(Block::new().title(format!("{name} {value}")))
        .direction(RenderDirection::RightToLeft)
        .data(heights)
}

/// A table for an area of `width` columns.
fn table<'r>(group: &'r str, rows: &'r [Row], width: u16) -> Table<'r> {
    let columns = if width < WIDE { 4 } else { 6 };
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(10),
        Constraint::Length(12),
        Constraint::Length(12),
        Constraint::Length(9),
        Constraint::Length(9),
    ];
    let head = [title(group), "ops/s", "read MB/s", "write MB/s", "p50 us", "p99 us"];
    let head = Cells::new(head.into_iter().take(columns)).style(Style::new().add_modifier(Modifier::BOLD));
    let cells = rows.iter().map(|r| {
        let [ops, read, written, p50, p99] = r.texts();
        Cells::new([r.name.clone(), ops, read, written, p50, p99].into_iter().take(columns))
    });
    Table::new(cells, widths.into_iter().take(columns)).header(head).block(Block::bordered())
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;

    #[test]
    fn screen_shows_each_group() {
        let row = |name: &str, ops, bytes: Option<f64>| Row {
            name: name.into(),
            ops,
            read: bytes,
            written: bytes.map(|b| b / 2.0),
            p50: Some(1.5),
            p99: None,
        };
        let rates = Rates {
            connections: 3.0,
            in_progress: 1.0,
            memory: 2_097_152.0,
            memory_limit: 1_073_741_824.0,
            client: vec![row("10.0.0.1", 1234.0, Some(5.0)), row("other", 1.0, Some(0.0))],
            export: vec![row("/data", 1235.0, Some(5.0))],
            procedure: vec![row("NFSv4 READ", 1000.4, None)],
            ..Rates::default()
        };
        let mut terminal = Terminal::new(TestBackend::new(74, 18)).unwrap();
        terminal.draw(|f| draw(f, "host:9464", Order::Ops, &rates, &History::default(), false)).unwrap();
        let shown: Vec<String> = (0..18)
            .map(|y| (0..74).map(|x| terminal.backend().buffer()[(x, y)].symbol()).collect())
            .collect();
        let shown: Vec<&str> = shown.iter().map(|l| l.trim_end()).collect();
        let bar = format!("┌{}┐", "─".repeat(72));
        let end = format!("└{}┘", "─".repeat(72));
        let line = |cells: [&str; 6]| {
            let [a, b, c, d, e, f] = cells;
            format!("│{a:<15} {b:<10} {c:<12} {d:<12} {e:<9} {f:<9}│")
        };
        let empty = format!("│{}│", " ".repeat(72));
        let head = |g| line([g, "ops/s", "read MB/s", "write MB/s", "p50 us", "p99 us"]);
        let expected = [
            "host:9464: 3 connections, 1 calls over RDMA in progress, 2 of 1024 MiB".to_owned(),
            bar.clone(),
            head("client"),
            line(["10.0.0.1", "1234", "5.0", "2.5", "1.5", "-"]),
            line(["other", "1", "0.0", "0.0", "1.5", "-"]),
            empty.clone(),
            end.clone(),
            bar.clone(),
            head("export"),
            end.clone(),
            bar,
            head("procedure"),
            line(["NFSv4 READ", "1000", "-", "-", "1.5", "-"]),
        ];
        eprintln!("{}", shown.join("\n"));
        for want in &expected {
            assert!(shown.contains(&want.as_str()), "{want}");
        }
        assert!(shown.last().unwrap().contains("q quit"));
    }

    fn shown(rates: &Rates, width: u16, help: bool) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, 18)).unwrap();
        terminal.draw(|f| draw(f, "host:9464", Order::Ops, rates, &History::default(), help)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn names_have_room_on_a_narrow_terminal_and_the_keys_are_explained() {
        let name = "millrace vm 5549";
        let row = Row { name: name.into(), ops: 1.0, read: None, written: None, p50: None, p99: None };
        let rates = Rates { client: vec![row], ..Rates::default() };
        assert!(shown(&rates, 60, false).contains(name), "{}", shown(&rates, 60, false));
        let help = shown(&rates, 60, true);
        assert!(help.contains("sort by bytes per second") && !help.contains(name), "{help}");
    }
    #[test]
    fn graphs_have_the_last_reports() {
        let mut history = History::default();
        for ops in [0.0, 500.0, 1000.0] {
            let row =
                Row { name: "/m".into(), ops, read: Some(ops / 1e6), written: None, p50: None, p99: None };
            history.add(&Rates { export: vec![row], ..Rates::default() });
        }
        let mut terminal = Terminal::new(TestBackend::new(92, TALL)).unwrap();
        let (rates, order) = (Rates::default(), Order::Ops);
        terminal.draw(|f| draw(f, "host:9464", order, &rates, &history, false)).unwrap();
        let buffer = terminal.backend().buffer();
        let lines: Vec<String> = (1..4).map(|y| (0..30).map(|x| buffer[(x, y)].symbol()).collect()).collect();
        assert_eq!(lines[0].trim_end(), "ops/s 1000");
        assert_eq!((&*lines[1], &*lines[2]), (&*format!("{:>30}", "█"), &*format!("{:>30}", "██")));
        let second: String = (31..61).map(|x| buffer[(x, 1)].symbol()).collect();
        assert_eq!(second.trim_end(), "read MB/s 0.0");
    }
}
