//! What the demo prints.

use std::fmt::Write;

use millrace_bench::{
    table::{Align, Table},
    units::{ByteSize, grouped},
};
use millrace_client::nfs3::Client;
use millrace_server::Running;
use serde_json::{Value, json};

use super::{tree::Chosen, verify::Verified};
use crate::copy_summary::CopySummary;

/// What moved, counted by the server and by this process.
#[derive(Debug, Clone, Default)]
pub(super) struct Moved {
    /// Sends of the server: replies.
    pub(super) server_sends: u64,
    /// Sends of the client: calls.
    pub(super) client_sends: u64,
    pub(super) rdma_writes: u64,
    pub(super) rdma_reads: u64,
    pub(super) write_bytes: u64,
    pub(super) read_bytes: u64,
    /// At the client, from the socket straight into the region meant.
    pub(super) placed_directly: u64,
    /// Payload bytes copied in user space above the provider, client and server together.
    pub(super) copied: u64,
}

impl Moved {
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

    /// Adds what the client's connections tell.
    pub(super) fn with_client(mut self, client: &Client) -> Self {
        for c in client.stats().connections.iter().filter_map(|c| c.queue_pair.as_ref()) {
            self.client_sends += c.sends;
            self.placed_directly += c.placed_directly;
        }
        self
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

/// One transport's way there and back.
pub(super) struct Pass {
    pub(super) proto: &'static str,
    pub(super) there: CopySummary,
    pub(super) back: CopySummary,
    pub(super) moved: Moved,
    pub(super) verified: Verified,
}

/// All that the demo tells.
pub(super) struct Summary {
    root: String,
    what: &'static str,
    files: u64,
    bytes: u64,
    cut: bool,
    rdma: String,
    tcp: String,
    pub(super) passes: Option<(Pass, Pass)>,
    pub(super) regions_exposed: u64,
}

impl Summary {
    pub(super) fn new(chosen: &Chosen, server: &Running) -> Self {
        let addr = |a: Option<std::net::SocketAddr>| a.map_or_else(|| "-".into(), |a| a.to_string());
        Self {
            root: chosen.root.display().to_string(),
            what: chosen.what,
            files: chosen.files,
            bytes: chosen.bytes,
            cut: chosen.cut,
            rdma: addr(server.rdma_addr()),
            tcp: addr(server.tcp_addr()),
            passes: None,
            regions_exposed: 0,
        }
    }

    /// Whether every byte came back, both times.
    pub(super) fn is_right(&self) -> bool {
        self.passes.as_ref().is_some_and(|(a, b)| {
            [a, b].iter().all(|p| p.verified.differ.is_empty() && p.verified.same == self.files)
        })
    }

    pub(super) fn opening(&self) -> String {
        let some = if self.cut { " (the first of it)" } else { "" };
        format!(
            "Millrace demo: a tree goes to a server and back, over RDMA and over TCP.\n\n\
             tree    {} - {}\n        {} files, {}{some}\n\
             server  in this process, files in memory, rdma={} tcp={}\n        RDMA by the iwarp provider: an adapter in software, over a TCP socket\n\n",
            self.root,
            self.what,
            grouped(self.files),
            ByteSize(self.bytes).human(),
            self.rdma,
            self.tcp
        )
    }

    pub(super) fn closing(&self) -> String {
        let Some((rdma, tcp)) = &self.passes else { return String::new() };
        let mut out = String::new();
        let mut t = Table::new(&[("", Align::Left), ("RDMA", Align::Right), ("TCP", Align::Right)]);
        let rate = |r: &CopySummary| format!("{:.0} MB/s", r.bytes_per_second / 1e6);
        let time = |p: &Pass| format!("{:.1} s", p.there.seconds + p.back.seconds);
        let checked = |p: &Pass| format!("{} files", grouped(p.verified.same));
        t.row(["to the server".into(), rate(&rdma.there), rate(&tcp.there)]);
        t.row(["and back".into(), rate(&rdma.back), rate(&tcp.back)]);
        t.row(["both ways took".into(), time(rdma), time(tcp)]);
        t.row(["came back the same".into(), checked(rdma), checked(tcp)]);
        let _ = writeln!(out, "{t}");
        let _ = writeln!(out, "What moved how, over RDMA:\n{}", self.moved(&rdma.moved));
        out.push_str(&self.verdict(rdma, tcp));
        out
    }

    fn moved(&self, m: &Moved) -> Table {
        let mut t = Table::bare(&[Align::Left, Align::Right, Align::Left]);
        let mut row = |what: &str, n: u64, why: String| t.row([format!("  {what}"), grouped(n), why]);
        row(
            "SENDs",
            m.server_sends + m.client_sends,
            format!(
                "{} calls and {} replies; small data travels in them",
                grouped(m.client_sends),
                grouped(m.server_sends)
            ),
        );
        row(
            "RDMA Writes",
            m.rdma_writes,
            format!("the server put {} into the client's memory", ByteSize(m.write_bytes).human()),
        );
        row(
            "RDMA Reads",
            m.rdma_reads,
            format!("the server fetched {} from the client's memory", ByteSize(m.read_bytes).human()),
        );
        row(
            "bytes placed directly",
            m.placed_directly,
            "at the client: socket to final place, no stop between".into(),
        );
        row("bytes copied", m.copied, "in user space above the provider, both ends together".into());
        row(
            "server regions exposed",
            self.regions_exposed,
            "memory of the server that clients can reach".into(),
        );
        t
    }

    fn verdict(&self, rdma: &Pass, tcp: &Pass) -> String {
        if self.is_right() {
            return format!(
                "All {} files came back the same both times: content (SHA-256), modes and times.\n\
                 Files are small or the disk is slow? `millrace bench compare` measures the transports alone.\n",
                grouped(self.files)
            );
        }
        let mut out = String::new();
        for p in [rdma, tcp] {
            let missing = self.files.saturating_sub(p.verified.same);
            let _ =
                writeln!(out, "OVER {} {missing} FILES DID NOT COME BACK THE SAME:", p.proto.to_uppercase());
            for name in p.verified.differ.iter().take(10) {
                let _ = writeln!(out, "  {name}");
            }
        }
        out
    }

    pub(super) fn json(&self) -> String {
        let pass = |p: &Pass| {
            json!({
                "to_server": p.there,
                "from_server": p.back,
                "moved": p.moved.json(),
                "files_same": p.verified.same,
                "bytes_same": p.verified.bytes,
                "differ": p.verified.differ,
            })
        };
        let (rdma, tcp) =
            self.passes.as_ref().map_or((Value::Null, Value::Null), |(a, b)| (pass(a), pass(b)));
        json!({
            "tree": self.root,
            "files": self.files,
            "bytes": self.bytes,
            "server_regions_exposed": self.regions_exposed,
            "rdma": rdma,
            "tcp": tcp,
            "same": self.is_right(),
        })
        .to_string()
    }
}
