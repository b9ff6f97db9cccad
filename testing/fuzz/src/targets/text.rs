//! Text formats: universal addresses, URLs, mount options, configuration files.

use crate::heap::bounded;

/// A universal address (RFC 5665), as a port mapper sends it.
pub(super) mod address {
    use millrace_oncrpc::rpcbind::{parse_universal_address, universal_address};

    use super::*;

    /// Executes the target with `input`.
    pub(in crate::targets) fn run(input: &[u8]) {
        let text = String::from_utf8_lossy(input);
        if let Some(addr) = bounded(text.len(), || parse_universal_address(&text)) {
            assert_eq!(parse_universal_address(&universal_address(&addr)), Some(addr));
        }
    }

    /// Addresses of both families.
    pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
        ["127.0.0.1.8.1", "::1.8.1", "::.78.81", "fe80::1.0.111"].map(|s| s.as_bytes().to_vec()).into()
    }
}

/// A URL.
pub(super) mod url {
    use millrace_client::Url;

    use super::*;

    /// Executes the target with `input`.
    pub(in crate::targets) fn run(input: &[u8]) {
        let text = String::from_utf8_lossy(input);
        match bounded(text.len(), || text.parse::<Url>()) {
            Ok(url) => {
                let path = url.path.as_encoded_bytes();
                assert!(path.starts_with(b"/") && !path.contains(&0) && !url.host.is_empty());
                assert!(url.port != Some(0));
                let again = url.to_string();
                assert_eq!(again.parse::<Url>().expect("a URL that was printed is parsed"), url, "{again}");
            }
            Err(e) => assert!(!e.to_string().is_empty()),
        }
    }

    /// URLs with each part and option.
    pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
        [
            "nfs://server/export",
            "nfs://10.0.0.1:7",
            "nfs://[::1]:2049/data/a%20b?proto=tcp&rsize=256K",
            "nfs://h:1/a/b?proto=rdma&provider=verbs&design=read-write&nconnect=4&rsize=65536&\
             wsize=1m&mountport=635&noresvport&registration=cache&xprtsec=mtls&tls_ca=/a%20b&tls_cert=c&tls_key=k&tls_name=n",
        ]
        .map(|s| s.as_bytes().to_vec())
        .into()
    }
}

/// Options after `-o`.
pub(super) mod mount_options {
    use std::time::Duration;

    use millrace_client::{Identity, Options, Url};
    use millrace_fuse::MountOptions;

    use super::*;

    /// Executes the target with `input`.
    pub(in crate::targets) fn run(input: &[u8]) {
        let text = String::from_utf8_lossy(input);
        for sloppy in [false, true] {
            let mut options = MountOptions::default();
            match bounded(text.len(), || options.read(&text, sloppy)) {
                Ok(()) => accepted(&options),
                Err(e) => assert!(!e.to_string().is_empty()),
            }
        }
    }

    fn accepted(options: &MountOptions) {
        thread_local! {
            // Created once, because the default identity is read from /proc.
            static BASE: Options = Options::default().credential(Identity { uid: 0, gid: 0, gids: Vec::new(), machine: String::new() });
        }
        let base = BASE.with(Clone::clone);
        if let Ok((url, applied)) = options.apply(&Url::new("server", "/export"), base) {
            assert_eq!(url.to_string().parse::<Url>().expect("a URL that was printed is parsed"), url);
            assert!(applied.timeout > Duration::ZERO && applied.retry.max_elapsed >= applied.timeout);
        }
    }

    /// Lists with each option.
    pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
        [
            "ro,rsize=256K,soft,timeo=600,retrans=2",
            "rw,_netdev,noatime,proto=tcp,port=2049,nconnect=4,actimeo=60,lookupcache=positive",
            "soft,timeo=864000,retrans=86400",
            "noac,hard,vers=3,nolock,local_lock=all,sync,x-systemd.automount,allow_other,default_permissions",
            "acregmin=1,acregmax=2,acdirmin=3,acdirmax=4,wsize=1M,mountport=635,registration=fast,writeback,resvport",
        ]
        .map(|s| s.as_bytes().to_vec())
        .into()
    }
}

/// The configuration of a server. Input: the form (a file; the short form of an export; the options of clients; a size),
/// and the text.
pub(super) mod configuration {
    use std::{fmt::Display, str::FromStr};

    use millrace_daemon::Config;
    use millrace_server::{Backend, ByteSize, ClientRule, ExportConfig};

    use super::*;
    use crate::bytes::Input;

    /// Executes the target with `input`.
    pub(in crate::targets) fn run(input: &[u8]) {
        let mut input = Input::new(input);
        let form = input.u8() % 5;
        let text = String::from_utf8_lossy(input.rest());
        match form {
            0 => file(&text),
            1 => drop(bounded(text.len(), || text.parse::<ExportConfig>())),
            2 => drop(bounded(text.len(), || text.parse::<Backend>())),
            3 => drop(bounded(text.len(), || text.parse::<ClientRule>())),
            _ => printed::<ByteSize>(&text),
        }
    }

    fn printed<T>(text: &str)
    where
        T: FromStr<Err: std::fmt::Debug + PartialEq> + Display + PartialEq + std::fmt::Debug,
    {
        if let Ok(value) = bounded(text.len(), || text.parse::<T>()) {
            assert_eq!(value.to_string().parse::<T>().as_ref(), Ok(&value));
        }
    }

    /// Checks that a file is rejected if its text is, and that the message of at most 20 errors, each with the line of the file,
    /// cannot change a terminal.
    fn file(text: &str) {
        thread_local! {
            // In memory if possible, because ext4 flushes a file that is truncated and closed.
            static FILE: tempfile::NamedTempFile = tempfile::NamedTempFile::new_in("/dev/shm")
                .or_else(|_| tempfile::NamedTempFile::new())
                .expect("a file");
        }
        let parsed = text.parse::<Config>();
        let read = FILE.with(|file| {
            std::fs::write(file.path(), text).expect("a file is written");
            Config::from_file(file.path())
        });
        assert!(parsed.is_ok() || read.is_err(), "a file is accepted whose text is rejected");
        let errors = [read.map(drop), parsed.and_then(|config| config.check())];
        for error in errors.into_iter().filter_map(Result::err) {
            let message = error.to_string();
            assert!((1..=4 * 20).contains(&message.lines().count()), "{message}");
            assert!(!message.contains(|c: char| c.is_control() && c != '\n' && c != '\t'), "{message:?}");
        }
    }

    /// A file with each kind of key, and the short forms.
    pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
        [
            (0, "listen_rdma = [\"127.0.0.1:20049\"]\nlisten_tcp = [\"[::1]:2049\"]\nshards = 2\nprovider = \"iwarp\"\n\
                 metrics = \"127.0.0.1:9464\"\nregistration = \"dynamic\"\n[limits]\nrtmax = \"4MiB\"\ncredits = 32\n\
                 [stages]\nsample = 7\n[[export]]\nname = \"/data\"\nbackend = \"memory:1MiB\"\nread_only = true\n\
                 squash = \"root\"\nclients = [\"10.0.0.0/8\"]\n[[export]]\nname = \"/scratch\"\nbackend = \"memory:2GiB\"\n"),
            (0, "shards = 1\nlisten_tpc = []\n"),
            (0, "[limits]\nstall_timeout = 60\nidle_timeout = 360\nmemory = \"1GiB\"\nmax_connections = 9\n"),
            (1, "/data=local:/srv/data,ro,squash=all,anon_uid=7,anon_gid=8,client=10.0.0.0/8,client=::1,secure"),
            (2, "memory:2GiB"),
            (3, "10.0.0.0/8"),
            (3, "fd00::/8"),
            (4, "512MiB"),
        ]
        .map(|(form, text)| [&[form][..], text.as_bytes()].concat())
        .into()
    }
}
