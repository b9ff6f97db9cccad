//! The domain of this host in the names of owners, as idmapd(8) finds it.

use std::{fs, path::Path};

/// What idmapd(8) takes if the host has no domain.
const FALLBACK: &str = "localdomain";

/// The domain in the names of the owners of this host: that of `Domain` in `/etc/idmapd.conf`; else the domain of the host's
/// name; `localdomain` if there is none. May block.
pub fn default_domain() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    domain_of(Path::new("/etc/idmapd.conf"), Path::new("/etc/hosts"), host.trim())
}

fn domain_of(idmapd: &Path, hosts: &Path, host: &str) -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let stated = || stated_domain(&read(idmapd)).map(str::to_owned);
    let of_host = |name: &str| name.split_once('.').map(|(_, domain)| domain.to_owned());
    let named = || canonical_name(&read(hosts), host).and_then(of_host);
    let found = stated().or_else(|| of_host(host)).or_else(named).filter(|domain| !domain.is_empty());
    found.unwrap_or_else(|| FALLBACK.to_owned())
}

/// `Domain` of `[General]` in idmapd.conf(5).
fn stated_domain(file: &str) -> Option<&str> {
    let mut section = "";
    file.lines().map(str::trim).find_map(|line| {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name.trim();
        }
        let (key, value) = line.split_once('=').filter(|_| !line.starts_with(['#', ';']))?;
        let is_domain = section.eq_ignore_ascii_case("general") && key.trim().eq_ignore_ascii_case("domain");
        Some(value.trim()).filter(|value| is_domain && !value.is_empty())
    })
}

/// The canonical name of a host in hosts(5).
fn canonical_name<'f>(file: &'f str, host: &str) -> Option<&'f str> {
    file.lines().find_map(|line| {
        let names = line.split('#').next()?.split_whitespace().skip(1);
        names.clone().any(|name| name == host).then(|| names.clone().next())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_domain_is_that_of_idmapd_or_of_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let (idmapd, hosts) = (dir.path().join("idmapd.conf"), dir.path().join("hosts"));
        let domain = |host| domain_of(&idmapd, &hosts, host);
        assert_eq!((&*domain("a.example.org"), &*domain("a")), ("example.org", FALLBACK));
        fs::write(&hosts, "127.0.0.1 localhost\n127.0.1.1\ta.corp.example a # its own\n").unwrap();
        assert_eq!([domain("a"), domain("b"), domain("localhost")], ["corp.example", FALLBACK, FALLBACK]);
        for (file, expected) in [
            ("[General]\n#Domain = no\nVerbosity = 0\nDomain = Cell.Example\n", "Cell.Example"),
            ("[general]\ndomain=cell.example", "cell.example"),
            ("[Mapping]\nDomain = no\n[General]\nDomain =\n", "corp.example"),
            ("Domain = no\n", "corp.example"),
        ] {
            fs::write(&idmapd, file).unwrap();
            assert_eq!(domain("a"), expected, "{file}");
        }
    }
}
