//! Output of the demo.

use std::{fmt::Write, time::Duration};

use millrace_client::handles::Client;
use millrace_program::{
    table::{Align, Table},
    units::{ByteSize, grouped},
};
use millrace_server::Running;
use serde_json::{Value, json};

use super::{tree::Selection, verify::Verified};
use crate::copy_summary::CopySummary;

/// Operations and bytes of one pass, counted by the server and by this process.
#[derive(Debug, Clone, Default)]
pub(super) struct TransferCounts {
    /// Sends of the server: replies.
    pub(super) server_sends: u64,
    /// Sends of the client: calls.
    pub(super) client_sends: u64,
    pub(super) rdma_writes: u64,
    pub(super) rdma_reads: u64,
    pub(super) write_bytes: u64,
    pub(super) read_bytes: u64,
    /// Bytes that the client's provider received from the socket directly into the registered memory.
    pub(super) placed_directly: u64,
    /// Payload bytes copied in user space above the provider, client and server together.
    pub(super) copied: u64,
}

impl TransferCounts {
    pub(super) fn now(server: &Running) -> Self {
        let o = server.stats().operations;
        Self {
            server_sends: o.sends,
            client_sends: 0,
            rdma_writes: o.writes,
            rdma_reads: o.reads,
            write_bytes: o.write_bytes,
            read_bytes: o.read_bytes,
            placed_directly: 0,
            copied: millrace_buffer::copied::total(),
        }
    }

    pub(super) fn since(mut self, before: &Self) -> Self {
        self.server_sends -= before.server_sends;
        self.rdma_writes -= before.rdma_writes;
        self.rdma_reads -= before.rdma_reads;
        self.write_bytes -= before.write_bytes;
        self.read_bytes -= before.read_bytes;
        self.copied -= before.copied;
        self
    }

    /// Adds the counters of the client's connections.
    pub(super) fn with_client(mut self, client: &Client) -> Self {
        for c in client.stats().connections.iter().filter_map(|c| c.queue_pair.as_ref()) {
            self.client_sends += c.sends;
            self.placed_directly += c.placed_directly;
        }
        self
    }

    fn add(&mut self, other: &Self) {
        self.server_sends += other.server_sends;
        self.client_sends += other.client_sends;
        self.rdma_writes += other.rdma_writes;
        self.rdma_reads += other.rdma_reads;
        self.write_bytes += other.write_bytes;
        self.read_bytes += other.read_bytes;
        self.placed_directly += other.placed_directly;
        self.copied += other.copied;
    }

    fn json(&self) -> Value {
        json!({
            "sends": self.server_sends + self.client_sends,
            "rdma_writes": self.rdma_writes,
            "rdma_write_bytes": self.write_bytes,
            "rdma_reads": self.rdma_reads,
            "rdma_read_bytes": self.read_bytes,
            "bytes_placed_directly": self.placed_directly,
            "bytes_copied": self.copied,
        })
    }
}

/// The copies to the server and back over one transport.
pub(super) struct Pass {
    pub(super) to_server: CopySummary,
    pub(super) from_server: CopySummary,
    /// Processor time of this process, which is client and server, without the comparison.
    pub(super) processor_time: Duration,
    pub(super) transferred: TransferCounts,
    pub(super) verified: Verified,
}

/// The passes that are shown, by transport.
#[derive(Default)]
pub(super) struct Passes {
    pub(super) rdma: Vec<Pass>,
    pub(super) tcp: Vec<Pass>,
}

/// Bytes per second of one direction in all passes.
fn rate<'a>(copies: impl Iterator<Item = &'a CopySummary>) -> String {
    let (bytes, seconds) = copies.fold((0, 0.0), |(b, s), copy| (b + copy.bytes, s + copy.seconds));
    format!("{:.0} MB/s", bytes as f64 / seconds / 1e6)
}

fn transferred(passes: &[Pass]) -> TransferCounts {
    let mut sum = TransferCounts::default();
    passes.iter().for_each(|pass| sum.add(&pass.transferred));
    sum
}

/// Processor time for each GB of file data, if there is some: of both ends, and of the local files.
fn processor_time(passes: &[Pass]) -> String {
    let bytes: u64 = passes.iter().map(|pass| pass.to_server.bytes + pass.from_server.bytes).sum();
    let time: Duration = passes.iter().map(|pass| pass.processor_time).sum();
    if bytes == 0 { "-".into() } else { format!("{:.2} s", time.as_secs_f64() / (bytes as f64 / 1e9)) }
}

/// The contents of the demo's output.
pub(super) struct Summary {
    root: String,
    what: &'static str,
    files: u64,
    bytes: u64,
    cut: bool,
    rdma: String,
    tcp: String,
    pub(super) passes: Option<Passes>,
    pub(super) regions_exposed: u64,
}

impl Summary {
    pub(super) fn new(selection: &Selection, server: &Running) -> Self {
        let addr = |a: Option<std::net::SocketAddr>| a.map_or_else(|| "-".into(), |a| a.to_string());
        Self {
            root: selection.root.display().to_string(),
            what: selection.what,
            files: selection.files,
            bytes: selection.bytes,
            cut: selection.cut,
            rdma: addr(server.rdma_addr()),
            tcp: addr(server.tcp_addr()),
            passes: None,
            regions_exposed: 0,
        }
    }

    /// Whether all files are identical after both passes.
    pub(super) fn all_identical(&self) -> bool {
        self.passes.as_ref().is_some_and(|passes| {
            let mut all = passes.rdma.iter().chain(&passes.tcp);
            all.all(|p| p.verified.differ.is_empty() && p.verified.same == self.files)
        })
    }

    pub(super) fn opening(&self) -> String {
        let some = if self.cut { " (a part of it)" } else { "" };
        format!(
            "Millrace demo: copies a tree to a server and back, over RDMA and over TCP.\n\n\
             tree    {} - {}\n        {} files, {}{some}\n\
             server  in this process, files in memory, rdma={} tcp={}\n        RDMA provider: iwarp (in software, over TCP)\n\n",
            self.root,
            self.what,
            grouped(self.files),
            ByteSize(self.bytes).human(),
            self.rdma,
            self.tcp
        )
    }

    pub(super) fn closing(&self) -> String {
        let Some(Passes { rdma, tcp }) = &self.passes else { return String::new() };
        let mut out = String::new();
        let mut t = Table::new(&[("", Align::Left), ("RDMA", Align::Right), ("TCP", Align::Right)]);
        let mut row = |what: &str, of: &dyn Fn(&[Pass]) -> String| t.row([what.into(), of(rdma), of(tcp)]);
        row("to the server", &|passes| rate(passes.iter().map(|p| &p.to_server)));
        row("from the server", &|passes| rate(passes.iter().map(|p| &p.from_server)));
        row("processor time per GB", &processor_time);
        row("copied by Millrace", &|passes| ByteSize(transferred(passes).copied).human().to_string());
        row("identical", &|passes| {
            let same = passes.iter().map(|p| p.verified.same).min();
            format!("{} files", grouped(same.unwrap_or_default()))
        });
        let _ = writeln!(out, "{t}");
        let _ = writeln!(
            out,
            "Each is the mean of {} passes, after one that is not shown. Processor time is that of both ends and of the\n\
             local files; RDMA is in software here, where the processor places the data that an adapter would.\n",
            rdma.len()
        );
        let counts = transferred(rdma);
        let _ = writeln!(out, "Transfers over RDMA:\n{}", transfers(&counts, self.regions_exposed));
        out.push_str(&self.verdict(rdma, tcp));
        out
    }

    fn verdict(&self, rdma: &[Pass], tcp: &[Pass]) -> String {
        if self.all_identical() {
            return format!(
                "All {} files are identical after each copy: content (SHA-256), modes and times.\n\
                 Small files or a slow disk limit these rates; `millrace bench compare` measures the transports alone.\n",
                grouped(self.files)
            );
        }
        let mut out = String::new();
        for (proto, p) in rdma.iter().map(|p| ("RDMA", p)).chain(tcp.iter().map(|p| ("TCP", p))) {
            let missing = self.files.saturating_sub(p.verified.same);
            if missing > 0 || !p.verified.differ.is_empty() {
                let _ = writeln!(out, "OVER {proto} {missing} FILES DIFFER OR ARE MISSING:");
            }
            for name in p.verified.differ.iter().take(10) {
                let _ = writeln!(out, "  {name}");
            }
        }
        out
    }

    pub(super) fn json(&self) -> String {
        let pass = |p: &Pass| {
            json!({
                "to_server": p.to_server,
                "from_server": p.from_server,
                "processor_seconds": p.processor_time.as_secs_f64(),
                "files_same": p.verified.same,
                "bytes_same": p.verified.bytes,
                "differ": p.verified.differ,
            })
        };
        let all = |passes: &[Pass]| {
            let each: Vec<_> = passes.iter().map(pass).collect();
            json!({ "passes": each, "moved": transferred(passes).json() })
        };
        let passes = self.passes.as_ref();
        json!({
            "tree": self.root,
            "files": self.files,
            "bytes": self.bytes,
            "server_regions_exposed": self.regions_exposed,
            "rdma": passes.map(|passes| all(&passes.rdma)),
            "tcp": passes.map(|passes| all(&passes.tcp)),
            "same": self.all_identical(),
        })
        .to_string()
    }
}

/// The table of transfers.
fn transfers(m: &TransferCounts, regions_exposed: u64) -> Table {
    let mut t = Table::bare(&[Align::Left, Align::Right, Align::Left]);
    let mut row = |what: &str, n: u64, why: String| t.row([format!("  {what}"), grouped(n), why]);
    row(
        "SENDs",
        m.server_sends + m.client_sends,
        format!(
            "{} calls and {} replies, with small data inline",
            grouped(m.client_sends),
            grouped(m.server_sends)
        ),
    );
    row(
        "RDMA Writes",
        m.rdma_writes,
        format!("the server wrote {} to the client's memory", ByteSize(m.write_bytes).human()),
    );
    row(
        "RDMA Reads",
        m.rdma_reads,
        format!("the server read {} from the client's memory", ByteSize(m.read_bytes).human()),
    );
    row(
        "bytes placed directly",
        m.placed_directly,
        "at the client: from the socket to the destination buffer".into(),
    );
    row("bytes copied", m.copied, "in user space above the provider, on both ends".into());
    row("server regions exposed", regions_exposed, "memory of the server that clients can access".into());
    t
}
