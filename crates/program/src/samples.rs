//! Counters of a server in another process, from its `/metrics` endpoint (OpenMetrics text).

use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

/// Time limit for the response of a server.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of a response in bytes.
const MAX_RESPONSE: u64 = 16 << 20;

/// A sample of a metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Metric name, without `millrace_` if it begins with it.
    pub name: String,
    labels: Vec<(String, String)>,
    /// Value.
    pub value: f64,
}

impl Sample {
    /// The value of a label, if present.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

/// Reads the counters of the server with the metrics endpoint `address` (such as `HOST:PORT`).
///
/// # Errors
/// The server does not respond, or is not a Millrace server.
pub fn scrape(address: impl ToSocketAddrs) -> io::Result<Vec<Sample>> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for addr in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&addr, TIMEOUT) {
            Ok(stream) => return ask(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

fn ask(mut stream: TcpStream) -> io::Result<Vec<Sample>> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: millrace\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.take(MAX_RESPONSE).read_to_string(&mut text)?;
    let body = text.split_once("\r\n\r\n").filter(|(head, _)| head.starts_with("HTTP/1.1 200"));
    let samples = body.map(|(_, body)| parse(body)).unwrap_or_default();
    if samples.is_empty() {
        let what = "the response is not that of a Millrace server's metrics endpoint";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(samples)
}

/// Parses samples; ignores lines that are not understood.
pub fn parse(text: &str) -> Vec<Sample> {
    let process = |line: &&str| line.starts_with("process_");
    text.lines()
        .filter_map(|line| sample(line.strip_prefix("millrace_").or(Some(line).filter(process))?))
        .collect()
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, value) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let value = value.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// Parses labels up to the closing brace; also returns the rest. A backslash in a value precedes `"`, `\` or
/// `n`.
fn labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut out = Vec::new();
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Some((out, after));
        }
        let (name, quoted) = rest.strip_prefix(',').unwrap_or(rest).split_once("=\"")?;
        let mut value = String::new();
        let mut letters = quoted.char_indices();
        let end = loop {
            match letters.next()? {
                (_, '\\') => value.push(match letters.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (at, '"') => break at,
                (_, c) => value.push(c),
            }
        };
        out.push((name.to_owned(), value));
        rest = quoted.get(end + 1..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_parsed_with_labels_and_invalid_lines_ignored() {
        let text = "# HELP millrace_a x\nmillrace_a 3\nmillrace_b_total{k=\"v\"} 1.5\nother 1\nmillrace_c{k=\"v\n\
                    millrace_d{k=\"a\\\"}\\\\ \\n\",le=\"+Inf\"} 7\nmillrace_e{} x\nmillrace_f";
        let samples = parse(text);
        let seen: Vec<_> = samples.iter().map(|s| (s.name.as_str(), s.value)).collect();
        assert_eq!(seen, [("a", 3.0), ("b_total", 1.5), ("d", 7.0)]);
        assert_eq!(samples[1].label("k"), Some("v"));
        assert_eq!((samples[2].label("k"), samples[2].label("le")), (Some("a\"}\\ \n"), Some("+Inf")));
        assert_eq!(samples[2].label("x"), None);
    }
}
