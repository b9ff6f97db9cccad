//! The counters of a server in another process, as it shows them at `/metrics` (OpenMetrics text).

use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer.
const MAX_ANSWER: u64 = 16 << 20;

/// One value of one counter.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The name, without `millrace_`.
    pub name: String,
    labels: Vec<(String, String)>,
    /// As it stands there.
    pub value: f64,
}

impl Sample {
    /// The value of a label, if it has that label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

/// Asks the server whose metrics are at `address` (`HOST:PORT`, say) for its counters.
///
/// # Errors
/// When it does not answer, or not with the counters of a Millrace server.
pub fn scrape(address: impl ToSocketAddrs) -> io::Result<Vec<Sample>> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for addr in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&addr, PATIENCE) {
            Ok(stream) => return ask(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

fn ask(mut stream: TcpStream) -> io::Result<Vec<Sample>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: millrace\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut text)?;
    let body = text.split_once("\r\n\r\n").filter(|(head, _)| head.starts_with("HTTP/1.1 200"));
    let samples = body.map(|(_, body)| parse(body)).unwrap_or_default();
    if samples.is_empty() {
        let what = "what answers there is not the metrics address of a Millrace server";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(samples)
}

/// The samples of a text; lines that are not understood are left out.
pub fn parse(text: &str) -> Vec<Sample> {
    text.lines().filter_map(|l| sample(l.strip_prefix("millrace_")?)).collect()
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

/// Labels up to the closing brace, with what follows it. A backslash in a value is before `"`, `\` or `n`.
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
    fn samples_are_read_with_their_labels_and_nonsense_is_left_out() {
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
