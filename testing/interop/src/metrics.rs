//! The counters of a server, read from `/metrics`.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};

/// Counters that must stay zero, except those that the case declares.
const FAULTS: [&str; 10] = [
    "connections_failed_total{transport=\"tcp\"}",
    "connections_failed_total{transport=\"rdma\"}",
    "connections_turned_away_total",
    "refused_calls_total",
    "replayed_calls_total",
    "rdma_protocol_errors_total",
    "rdma_out_of_memory_total",
    "iscsi_connections_closed_total{reason=\"malformed\"}",
    "iscsi_connections_closed_total{reason=\"stalled\"}",
    "iscsi_logins_refused_total",
];

/// One sample of the counters. Names are without the prefix `millrace_`, with labels as printed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics(BTreeMap<String, u64>);

impl Metrics {
    /// Reads the counters of the server at `address`.
    ///
    /// # Errors
    /// When the server does not answer, or its answer has no counters.
    pub(crate) fn scrape(address: &str) -> Result<Self> {
        let limit = Some(Duration::from_secs(10));
        let mut stream = TcpStream::connect(address).with_context(|| format!("no metrics at {address}"))?;
        stream.set_read_timeout(limit)?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: interop\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        match text.split_once("\r\n\r\n") {
            Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(Self::parse(body)),
            _ => {
                bail!("the answer of {address} has no counters: {}", text.lines().next().unwrap_or_default())
            }
        }
    }

    fn parse(body: &str) -> Self {
        let lines = body.lines().filter_map(|l| l.strip_prefix("millrace_")?.rsplit_once(' '));
        Self(lines.filter_map(|(name, v)| Some((name.to_owned(), v.parse().ok()?))).collect())
    }

    /// The value of one counter.
    ///
    /// # Errors
    /// When there is no counter of this name.
    pub(crate) fn get(&self, name: &str) -> Result<u64> {
        self.0.get(name).copied().ok_or_else(|| anyhow!("the server has no counter millrace_{name}"))
    }

    /// Bytes of memory in use: network buffers, and content of memory exports.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub(crate) fn memory_in_use(&self) -> Result<u64> {
        Ok(self.get("memory_in_use_bytes{kind=\"transient\"}")?
            + self.get("memory_in_use_bytes{kind=\"stored\"}")?)
    }

    /// Open connections over all transports.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub(crate) fn connections(&self) -> Result<u64> {
        let names =
            ["connections{transport=\"tcp\"}", "connections{transport=\"rdma\"}", "iscsi_connections"];
        names.iter().map(|name| self.get(name)).sum()
    }

    /// The counters of faults that are not 0 and not in `declared`, as text.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub(crate) fn faults(&self, declared: &[String]) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for name in FAULTS.iter().filter(|n| !declared.iter().any(|d| d == *n)) {
            match self.get(name)? {
                0 => {}
                n => found.push(format!("{name} is {n}")),
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_names_and_labels_and_undeclared_faults_are_found() {
        let mut text = String::from("# HELP x\n");
        for name in FAULTS {
            text.push_str(&format!("millrace_{name} 0\n"));
        }
        text.push_str(
            "millrace_connections{transport=\"tcp\"} 1\nmillrace_connections{transport=\"rdma\"} 2\n\
             millrace_iscsi_connections 4\n",
        );
        assert_eq!(Metrics::parse(&text).connections().unwrap(), 7);
        assert!(Metrics::parse(&text).faults(&[]).unwrap().is_empty());
        let text = text.replace("refused_calls_total 0", "refused_calls_total 4");
        assert_eq!(Metrics::parse(&text).faults(&[]).unwrap(), ["refused_calls_total is 4"]);
        assert!(Metrics::parse(&text).faults(&["refused_calls_total".into()]).unwrap().is_empty());
        assert!(Metrics::parse("# EOF").get("connections").is_err());
    }
}
