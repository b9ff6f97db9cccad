//! The page for people: the state of a server in HTML without scripts.
//!
//! Names come from clients, exports and files: [`Escaped`] writes every one of them.

use std::{
    fmt::{self, Display, Write},
    net::SocketAddr,
    time::{Duration, Instant},
};

use millrace_buffer::{ByteSize, grouped};
use millrace_server::{ClientReport, UsageStats};

use crate::{
    samples::{INTERVAL, RATES, Rates},
    snapshot::Snapshot,
    warnings::Warning,
};

/// Permits the page its style, and nothing else: no script, form, frame or other resource.
pub(crate) const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Maximum number of rows of a table.
pub(crate) const ROWS: usize = 32;
/// Maximum length of a name in characters.
const MAX_NAME: usize = 128;
/// Size of a curve.
const WIDTH: f64 = 240.0;
const HEIGHT: f64 = 48.0;
const STYLE: &str = include_str!("status_page.css");

/// What the page shows.
#[derive(Default)]
pub(crate) struct StatusPage {
    /// Name of the host.
    pub(crate) host: String,
    /// Listening addresses by protocol.
    pub(crate) addresses: Vec<(&'static str, Vec<SocketAddr>)>,
    pub(crate) snapshot: Snapshot,
    /// The oldest first.
    pub(crate) rates: Vec<Rates>,
    /// At most [`ROWS`].
    pub(crate) nfs4_clients: Vec<ClientReport>,
    /// The latest first.
    pub(crate) warnings: Vec<Warning>,
    /// Time since the start of the server.
    pub(crate) uptime: Duration,
}

impl StatusPage {
    pub(crate) fn html(&self) -> String {
        let mut out = String::new();
        // Writing to a `String` cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let host = Escaped(&self.host);
        write!(
            out,
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Millrace on {host}</title>\
             <meta name=\"viewport\" content=\"width=device-width\"><meta http-equiv=\"refresh\" content=\"{}\">\
             <style>{STYLE}</style></head><body><main><h1>Millrace on {host}</h1>",
            INTERVAL.as_secs()
        )?;
        self.summary(out)?;
        self.activity(out)?;
        self.exports(out)?;
        self.clients(out)?;
        self.nfs4(out)?;
        self.disks(out)?;
        self.warnings(out)?;
        out.write_str("</main></body></html>\n")
    }

    fn summary(&self, out: &mut String) -> fmt::Result {
        let Snapshot { stats, hung_shards, process, .. } = &self.snapshot;
        match hung_shards.len() {
            0 => out.write_str("<p class=\"good\">Ready: all shards answer.</p>")?,
            n => write!(
                out,
                "<p class=\"bad\">Not ready: {n} of {} shards do not answer. See whether a file system hangs.</p>",
                stats.shards
            )?,
        }
        out.write_str("<section><dl>")?;
        let mut item = |name: &str, value: &str| write!(out, "<dt>{name}</dt><dd>{}</dd>", Escaped(value));
        item("Version", env!("CARGO_PKG_VERSION"))?;
        item("Running for", &duration(self.uptime))?;
        for (protocol, addresses) in self.addresses.iter().filter(|(_, addresses)| !addresses.is_empty()) {
            item(protocol, &addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))?;
        }
        let open = [("TCP", stats.tcp.open), ("RDMA", stats.rdma.open), ("iSCSI", stats.iscsi.open)];
        let open: Vec<_> = open.iter().map(|(transport, n)| format!("{n} {transport}")).collect();
        item("Connections", &open.join(", "))?;
        if let Some(process) = process {
            let memory = bytes(process.resident_bytes);
            let limit = process.max_fds.map_or_else(|| "unlimited".to_owned(), grouped);
            let files = grouped(process.open_fds);
            item("Process", &format!("{memory} of memory, {files} open files (limit {limit})"))?;
        }
        out.write_str("</dl><p><a href=\"/metrics\">Metrics</a> for Prometheus</p></section>")
    }

    fn activity(&self, out: &mut String) -> fmt::Result {
        out.write_str("<div class=\"row\">")?;
        let rates = |of: fn(&Rates) -> f64| self.rates.iter().map(of).collect::<Vec<_>>();
        curve(out, "Calls", &rates(|r| r.calls), |rate| format!("{}/s", grouped(rate.round() as u64)))?;
        let per_second = |rate: f64| format!("{}/s", bytes(rate as u64));
        curve(out, "Read", &rates(|r| r.read), per_second)?;
        curve(out, "Written", &rates(|r| r.written), per_second)?;
        out.write_str("</div>")
    }

    fn exports(&self, out: &mut String) -> fmt::Result {
        let Snapshot { stats, spaces, .. } = &self.snapshot;
        let rows = stats.exports.iter().map(|(name, usage)| {
            let space = spaces.iter().find(|(export, _)| export == name).map(|(_, space)| space);
            let size = |value: fn(&millrace_vfs::FsStat) -> u64| {
                Cell::Number(space.map_or_else(String::new, |space| bytes(value(space))))
            };
            let used =
                space.filter(|space| space.total_bytes > 0).map_or(Cell::Number(String::new()), |space| {
                    // As df: a part of what is not reserved for root.
                    let used = space.total_bytes.saturating_sub(space.free_bytes) as f64;
                    Cell::Share(used / (used + space.available_bytes as f64).max(1.0))
                });
            let [calls, time, read, written] = usage_cells(usage);
            let (total, available) = (size(|s| s.total_bytes), size(|s| s.available_bytes));
            vec![Cell::Name(name.clone()), total, available, used, calls, time, read, written]
        });
        let columns = ["Export", "Size", "Available", "Used", "Calls", "Mean time", "Read", "Written"];
        table(out, "Exports", &columns, rows, stats.exports.len())
    }

    fn clients(&self, out: &mut String) -> fmt::Result {
        let clients = &self.snapshot.stats.clients;
        let rows = clients.iter().map(|(address, usage)| {
            let [calls, time, read, written] = usage_cells(usage);
            vec![Cell::Name(address.to_string()), calls, time, read, written]
        });
        let columns = ["Client", "Calls", "Mean time", "Read", "Written"];
        table(out, "Clients", &columns, rows, clients.len())
    }

    fn nfs4(&self, out: &mut String) -> fmt::Result {
        let stats = &self.snapshot.stats;
        let rows = self.nfs4_clients.iter().map(|client| {
            let number = |n: usize| Cell::Number(grouped(n as u64));
            vec![
                Cell::Name(String::from_utf8_lossy(&client.owner).into_owned()),
                Cell::Name(client.address.to_string()),
                Cell::Number(duration(client.lease_age)),
                number(client.sessions),
                number(client.opens),
                number(client.locks),
            ]
        });
        let title = format!(
            "NFSv4 state: {} opens, {} locks, {} delegations",
            grouped(stats.nfs4_opens),
            grouped(stats.nfs4_locks),
            grouped(stats.nfs4_delegations)
        );
        let columns = ["NFSv4 client", "Address", "Last renewal", "Sessions", "Opens", "Locks"];
        table(out, &title, &columns, rows, stats.nfs4_confirmed_clients as usize)
    }

    fn disks(&self, out: &mut String) -> fmt::Result {
        let luns = &self.snapshot.stats.luns;
        if luns.is_empty() {
            return Ok(());
        }
        let rows = luns.iter().map(|lun| {
            vec![
                Cell::Name(lun.target.clone()),
                Cell::Number(lun.lun.to_string()),
                Cell::Name(lun.path.display().to_string()),
                Cell::Number(bytes(lun.bytes)),
                Cell::Number(grouped(lun.usage.reads + lun.usage.writes)),
                Cell::Number(bytes(lun.usage.bytes_read)),
                Cell::Number(bytes(lun.usage.bytes_written)),
            ]
        });
        let columns = ["Target", "LUN", "File", "Size", "Commands", "Read", "Written"];
        table(out, "Disks", &columns, rows, luns.len())
    }

    fn warnings(&self, out: &mut String) -> fmt::Result {
        let now = Instant::now();
        let rows = self.warnings.iter().map(|warning| {
            let age = duration(now.saturating_duration_since(warning.at));
            let level = if warning.is_error { "error" } else { "warning" };
            vec![
                Cell::Name(format!("{age} ago")),
                Cell::Name(level.to_owned()),
                Cell::Text(warning.text.clone()),
            ]
        });
        table(out, "Last warnings", &["Time", "Level", "Text"], rows, self.warnings.len())
    }
}

/// A cell of a table.
enum Cell {
    /// A name, of which [`MAX_NAME`] characters are shown.
    Name(String),
    /// A text in several lines.
    Text(String),
    Number(String),
    /// A part of 1.
    Share(f64),
}

impl Cell {
    fn class(&self) -> &'static str {
        match self {
            Self::Name(_) => "",
            Self::Text(_) => " class=\"wrap\"",
            Self::Number(_) | Self::Share(_) => " class=\"n\"",
        }
    }
}

/// Calls, their mean time, and bytes.
fn usage_cells(usage: &UsageStats) -> [Cell; 4] {
    let calls = usage.latency.count();
    let mean = match usage.latency.nanos.checked_div(calls) {
        Some(nanos) => format!("{:.3} ms", nanos as f64 / 1e6),
        None => String::new(),
    };
    [grouped(calls), mean, bytes(usage.bytes_read), bytes(usage.bytes_written)].map(Cell::Number)
}

/// A table with the first [`ROWS`] of `total` rows.
fn table(
    out: &mut String,
    title: &str,
    columns: &[&str],
    rows: impl Iterator<Item = Vec<Cell>>,
    total: usize,
) -> fmt::Result {
    write!(out, "<section><h2>{}</h2>", Escaped(title))?;
    let mut rows = rows.take(ROWS).peekable();
    let Some(first) = rows.peek() else {
        return out.write_str("<p class=\"dim\">None</p></section>");
    };
    out.write_str("<table><tr>")?;
    for (column, cell) in columns.iter().zip(first) {
        write!(out, "<th{}>{column}</th>", cell.class())?;
    }
    out.write_str("</tr>")?;
    for row in rows {
        out.write_str("<tr>")?;
        for cell in row {
            write!(out, "<td{}>", cell.class())?;
            match &cell {
                // `bdi`: a name cannot change the direction of the text beside it.
                Cell::Name(name) => write!(out, "<bdi>{}</bdi>", Escaped(&shortened(name)))?,
                Cell::Text(text) => write!(out, "<bdi>{}</bdi>", Escaped(text))?,
                Cell::Number(number) => write!(out, "{}", Escaped(number))?,
                Cell::Share(share) => {
                    let percent = (100.0 * share).clamp(0.0, 100.0).round();
                    write!(
                        out,
                        "<meter max=\"100\" low=\"85\" high=\"95\" optimum=\"0\" value=\"{percent}\"></meter> {percent} %"
                    )?;
                }
            }
            out.write_str("</td>")?;
        }
        out.write_str("</tr>")?;
    }
    out.write_str("</table>")?;
    if let Some(hidden @ 1..) = total.checked_sub(ROWS) {
        write!(out, "<p class=\"dim\">{} more</p>", grouped(hidden as u64))?;
    }
    out.write_str("</section>")
}

/// The curve of `values`, the oldest first, and the last one as `text`.
fn curve(out: &mut String, title: &str, values: &[f64], text: impl Fn(f64) -> String) -> fmt::Result {
    let peak = values.iter().copied().fold(0.0, f64::max);
    let last = text(values.last().copied().unwrap_or_default());
    write!(out, "<figure><figcaption>{title} <b>{last}</b></figcaption>")?;
    write!(out, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\">")?;
    write!(out, "<title>{title}: {last}, at most {}</title>", text(peak))?;
    let step = WIDTH / (RATES - 1) as f64;
    let start = WIDTH - step * values.len().saturating_sub(1) as f64;
    let mut points = String::new();
    for (n, value) in values.iter().enumerate() {
        let height = if peak > 0.0 { value / peak * (HEIGHT - 4.0) } else { 0.0 };
        write!(points, "{:.1},{:.1} ", start + step * n as f64, HEIGHT - 2.0 - height)?;
    }
    if values.len() > 1 {
        write!(out, "<polygon points=\"{start:.1},{HEIGHT} {points}{WIDTH},{HEIGHT}\"/>")?;
        write!(out, "<polyline points=\"{}\"/>", points.trim_end())?;
    }
    let span = duration(INTERVAL * values.len() as u32);
    write!(out, "</svg><small>at most {} in {span}</small></figure>", text(peak))
}

/// A text in HTML, as content or as value of an attribute.
struct Escaped<'t>(&'t str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            c if c.is_control() => f.write_char(char::REPLACEMENT_CHARACTER),
            c => f.write_char(c),
        })
    }
}

/// The beginning of a name that is too long.
fn shortened(name: &str) -> String {
    let mut chars = name.chars();
    let mut short: String = chars.by_ref().take(MAX_NAME).collect();
    if chars.next().is_some() {
        short.push('…');
    }
    short
}

fn bytes(n: u64) -> String {
    ByteSize(n).human().to_string()
}

/// A duration in its two largest units.
fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use millrace_server::LunStats;
    use millrace_vfs::FsStat;

    use super::*;

    /// Ends every context of the page if it is not escaped.
    const HOSTILE: &str = "</td><script>alert(1)</script>\"' onload=x <!-- & \u{0}\n\u{202e}";

    /// A page in which every text is `name`, with `rows` rows in each table.
    fn page(name: &str, rows: usize) -> StatusPage {
        let mut page = StatusPage { host: name.to_owned(), ..StatusPage::default() };
        let stats = &mut page.snapshot.stats;
        for n in 0..rows {
            stats.exports.push((format!("{name}{n}"), UsageStats::default()));
            let space = FsStat { total_bytes: 100, free_bytes: 40, available_bytes: 20, ..FsStat::default() };
            page.snapshot.spaces.push((format!("{name}{n}"), space));
            stats.luns.push(LunStats {
                target: name.to_owned(),
                lun: n as u16,
                path: name.into(),
                bytes: 1,
                usage: Default::default(),
            });
            page.nfs4_clients.push(ClientReport {
                id: millrace_nfs::v4::ClientId { number: n as u64 },
                owner: name.as_bytes().into(),
                address: [10, 0, 0, 1].into(),
                lease_age: Duration::from_secs(3),
                sessions: 1,
                opens: 2,
                locks: 3,
                revoked: 0,
            });
            page.warnings.push(Warning { at: Instant::now(), is_error: n == 0, text: name.to_owned() });
        }
        stats.nfs4_confirmed_clients = rows as u64;
        page
    }

    /// The names of the elements of a page.
    fn elements(html: &str) -> Vec<&str> {
        let starts = html.split('<').skip(1).map(|rest| rest.trim_start_matches('/'));
        let mut names: Vec<_> = starts.filter_map(|rest| rest.split([' ', '>', '/']).next()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    #[test]
    fn hostile_names_are_text() {
        let (good, hostile) = (page("name", 2).html(), page(HOSTILE, 2).html());
        assert_eq!(elements(&hostile), elements(&good));
        assert!(!elements(&good).contains(&"script"));
        let quotes = |html: &str| html.matches(['"', '\'']).count();
        assert_eq!(quotes(&hostile), quotes(&good));
        assert!(!hostile.contains('\0'));
        let shown = "&lt;/td&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39; onload=x &lt;!-- &amp; \u{fffd}\u{fffd}";
        assert!(hostile.matches(shown).count() > 2 * 5, "{hostile}");
    }

    #[test]
    fn the_size_is_bounded() {
        let html = page(&"<".repeat(1000), 20_000).html();
        assert!(
            html.contains(&format!("<p class=\"dim\">{} more</p>", grouped(20_000 - ROWS as u64))),
            "{html}"
        );
        assert!(html.len() < 256 << 10, "{} bytes", html.len());
    }

    #[test]
    fn the_state_of_a_server_is_shown() {
        let mut page = page("/data", 1);
        page.addresses = vec![("RDMA", vec!["[::1]:20049".parse().unwrap()]), ("iSCSI", Vec::new())];
        page.uptime = Duration::from_secs(93_784);
        page.rates = vec![Rates::default(), Rates { calls: 1234.4, read: 2048.0, written: 0.0 }];
        let stats = &mut page.snapshot.stats;
        (stats.shards, stats.nfs4_opens) = (4, 4321);
        let usage = &mut stats.exports[0].1;
        (usage.latency.nanos, usage.latency.buckets[0], usage.bytes_written) = (3_000_000, 2, 3 << 20);
        let html = page.html();
        for part in [
            "Ready: all shards answer.",
            "<dt>RDMA</dt><dd>[::1]:20049</dd>",
            "<dd>1 d 2 h</dd>",
            "Calls <b>1,234/s</b>",
            "Read <b>2 KiB/s</b>",
            "240.0,2.0",
            "4,321 opens",
            "value=\"75\"></meter> 75 %",
            "<td class=\"n\">1.500 ms</td>",
            "<td class=\"n\">3 MiB</td>",
            "<bdi>error</bdi>",
        ] {
            assert!(html.contains(part), "{part} is not in\n{html}");
        }
        assert!(!html.contains("<dt>iSCSI"), "{html}");
        page.snapshot.hung_shards = vec![1];
        assert!(page.html().contains("Not ready: 1 of 4 shards do not answer."));
    }

    #[test]
    fn an_idle_server_has_a_page() {
        let html = StatusPage::default().html();
        assert!(html.contains("None") && !html.contains("NaN") && !html.contains("inf"), "{html}");
    }
}
