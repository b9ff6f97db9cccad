//! Validation of a configuration: the checks that open neither addresses nor files.

use std::path::PathBuf;

use millrace_rpcrdma::Design;

use crate::{
    ServerError,
    config::{Backend, Config},
    design::ExposedBuffers,
    error::InvalidSetting,
};

impl Config {
    /// Checks everything that can be checked without opening files or addresses.
    ///
    /// # Errors
    /// [`ServerError::Config`] with the reason and the required change.
    pub fn check(&self) -> Result<(), ServerError> {
        if self.listen_rdma.is_empty() && self.listen_tcp.is_empty() {
            let what = "there is no address to listen on; give listen_rdma, listen_tcp or both";
            return Err(ServerError::Config(what.into()));
        }
        self.check_service()
    }

    /// Checks everything except the addresses, which a [`Hosted`](crate::Hosted) server ignores.
    pub(crate) fn check_service(&self) -> Result<(), ServerError> {
        self.check_settings()?;
        Ok(check_design(self)?)
    }

    /// Checks the settings that are independent of the addresses: exports, limits and number of shards.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn check_settings(&self) -> Result<(), InvalidSetting> {
        if self.shards == Some(0) {
            return Err(InvalidSetting::new("shards", "shards is 0; give at least 1"));
        }
        for (i, e) in self.exports.iter().enumerate() {
            e.check().map_err(|reason| InvalidSetting::new(format!("exports.{i}.name"), reason))?;
        }
        self.check_overlaps()?;
        self.limits.check()
    }

    /// Rejects exports with the same name, and overlapping directories, in which the weaker of two policies
    /// would apply to a file.
    fn check_overlaps(&self) -> Result<(), InvalidSetting> {
        let mut seen: Vec<(&str, Option<PathBuf>)> = Vec::new();
        for (i, e) in self.exports.iter().enumerate() {
            let dir = match &e.backend {
                // Links and `..` are resolved if the directory exists; otherwise the paths are compared as
                // text.
                Backend::Local { path } => Some(path.canonicalize().unwrap_or_else(|_| path.clone())),
                Backend::Memory { .. } => None,
            };
            if seen.iter().any(|(name, _)| *name == e.name) {
                let what =
                    format!("export {} is configured twice; give each export a different name", e.name);
                return Err(InvalidSetting::new(format!("exports.{i}.name"), what));
            }
            let inside = |a: &Option<PathBuf>, b: &Option<PathBuf>| match (a, b) {
                (Some(a), Some(b)) => a.starts_with(b) || b.starts_with(a),
                _ => false,
            };
            if let Some((other, _)) = seen.iter().find(|(_, d)| inside(d, &dir)) {
                let what = format!(
                    "the directories of exports {other} and {} overlap; export one of them, or directories that do \
                     not overlap",
                    e.name
                );
                return Err(InvalidSetting::new(format!("exports.{i}.backend"), what));
            }
            seen.push((&e.name, dir));
        }
        Ok(())
    }
}

/// The Read-Read design requires consent, and for addresses other than loopback, consent for networks.
fn check_design(config: &Config) -> Result<(), InvalidSetting> {
    if config.design == Design::ReadWrite {
        return Ok(());
    }
    let open = config.listen_rdma.iter().find(|a| !a.ip().is_loopback());
    let rejected = |reason: &str| Err(InvalidSetting::new("design", reason));
    match (config.exposed_buffers, open) {
        (ExposedBuffers::NotAccepted, _) => rejected(
            "the read-read design lets every client read the server's \
            exposed buffers, by guessing tags those of others too, and hold its memory; if that is what you want, add \
            --i-accept-exposed-buffers",
        ),
        (ExposedBuffers::AcceptedOnLoopback, Some(addr)) => rejected(&format!(
            "listen_rdma is {addr}, which other hosts may reach, and the read-read design would expose the \
             server's buffers to them; listen on 127.0.0.1, or give --i-accept-exposed-buffers twice"
        )),
        _ if config.exposure.done_seconds == 0 => {
            rejected("exposure.done_seconds is 0; no client could acknowledge a reply in time")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::{ByteSize, ExportConfig, Exposure, Limits};

    use super::*;

    fn design_check(addr: &str, exposed_buffers: ExposedBuffers, done_seconds: u64) -> Result<(), String> {
        let config = Config {
            listen_rdma: vec![addr.parse().unwrap()],
            design: Design::ReadRead,
            exposed_buffers,
            exposure: Exposure { done_seconds, ..Exposure::default() },
            ..Config::default()
        };
        config.check().map_err(|e| e.to_string())
    }

    #[test]
    fn the_read_read_design_requires_consent_per_scope() {
        use ExposedBuffers::{AcceptedOnLoopback, AcceptedOnNetworks, NotAccepted};
        for addr in ["127.0.0.1:1", "[::1]:1", "0.0.0.0:1", "10.0.0.1:1"] {
            let e = design_check(addr, NotAccepted, 1).unwrap_err();
            assert!(e.contains("--i-accept-exposed-buffers"), "{e}");
            assert!(design_check(addr, AcceptedOnNetworks, 1).is_ok());
        }
        assert!(design_check("127.0.0.1:1", AcceptedOnLoopback, 1).is_ok());
        assert!(design_check("[::1]:1", AcceptedOnLoopback, 1).is_ok());
        for addr in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
            let e = design_check(addr, AcceptedOnLoopback, 1).unwrap_err();
            assert!(e.contains("twice"), "{e}");
        }
        assert!(design_check("127.0.0.1:1", AcceptedOnLoopback, 0).is_err());
    }

    #[test]
    fn invalid_limits_are_rejected() {
        let base = || Config {
            listen_tcp: vec!["127.0.0.1:2049".parse().unwrap()],
            limits: Limits { credits: 32, ..Limits::default() },
            ..Config::default()
        };
        let rejected = |c: Config, text: &str| {
            let e = c.check().unwrap_err().to_string();
            assert!(e.contains(text), "{e}");
        };
        let with = |f: fn(&mut Config)| {
            let mut c = base();
            f(&mut c);
            c
        };
        rejected(with(|c| c.limits.rtmax = ByteSize(8 << 20)), "rtmax");
        rejected(with(|c| c.limits.wtmax = ByteSize(5000)), "wtmax");
        rejected(with(|c| c.limits.credits = 0), "credits");
        rejected(with(|c| c.limits.memory = ByteSize(1 << 20)), "limits.memory");
        rejected(with(|c| c.limits.inline_size = ByteSize(10)), "inline_size");
        rejected(with(|c| c.limits.shared_receives = 15), "shared_receives");
        rejected(
            with(|c| (c.limits.shared_receives, c.limits.inline_size) = (16384, ByteSize(64 << 10))),
            "shared_receives",
        );
        rejected(with(|c| c.limits.max_connections_per_client = Some(0)), "max_connections_per_client");
        rejected(with(|c| c.limits.stall_timeout = 0), "stall_timeout");
        rejected(with(|c| c.limits.idle_timeout = 86_401), "idle_timeout");
        rejected(with(|c| c.shards = Some(0)), "shards");
        rejected(with(|c| (c.listen_rdma.clear(), c.listen_tcp.clear()).0), "listen");
    }

    #[test]
    fn overlapping_directories_are_rejected_through_links() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::create_dir(dir.path().join("a2")).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
        let checked = |one: &str, two: &str| {
            let of =
                |name: &str, at: &str| ExportConfig::new(name, Backend::Local { path: dir.path().join(at) });
            let exports = vec![of("/x", one), of("/x/y", two)];
            Config { exports, ..Config::default() }.check_settings()
        };
        for (one, two) in [("a", "a"), ("a", "a/b"), ("a/b", "a"), ("link", "a/b")] {
            let e = checked(one, two).unwrap_err();
            assert_eq!(e.field, "exports.1.backend");
            assert!(e.reason.contains("the directories of exports /x and /x/y overlap"), "{e}");
        }
        checked("a", "a2").unwrap();
    }
}
