//! Reading a configuration file.

use std::{ops::Range, path::Path, str::FromStr};

use millrace_server::InvalidSetting;
use serde::Deserialize;
use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue, Deserializer},
};

use crate::{
    Config, DaemonError, Diagnostic, control_group,
    diagnostics::{self, Source},
    keys,
    words::{Place, in_words, meant},
};

/// Maximum number of reported errors.
const MAX_ERRORS: usize = 20;

impl FromStr for Config {
    type Err = DaemonError;

    /// Reads TOML text. Unknown keys are errors.
    fn from_str(text: &str) -> Result<Self, DaemonError> {
        let source = Source { file: "configuration", text };
        Reading::new(source).config().map_err(DaemonError::Config)
    }
}

impl Config {
    /// Reads a TOML file. Its exports, targets and limits must be valid independent of the command line.
    ///
    /// # Errors
    /// The file cannot be read, or is invalid; with all errors and their places.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, DaemonError> {
        Self::read(path.as_ref(), None)
    }

    /// As [`Self::from_file`], and checks that directories and the files of LUNs exist. Opens no address. The warnings
    /// include those of a start of the server, which for host names looks them up.
    ///
    /// # Errors
    /// As [`Self::from_file`].
    pub fn check_file(path: impl AsRef<Path>) -> Result<Self, DaemonError> {
        let check = |config: &Self| {
            let of_metrics = config.invalid_metrics().collect();
            [config.server.invalid_files(), config.conflicting_addresses(), of_metrics].concat()
        };
        Self::read(path.as_ref(), Some(check))
    }

    /// Reads the file at `path` and checks its settings, with those of `check`, which also wants all warnings.
    fn read(path: &Path, check: Option<fn(&Self) -> Vec<InvalidSetting>>) -> Result<Self, DaemonError> {
        let unreadable = |source| DaemonError::ReadConfig { path: path.to_owned(), source };
        let bytes = std::fs::read(path).map_err(unreadable)?;
        let (text, valid) = match std::str::from_utf8(&bytes) {
            Ok(text) => (text.into(), None),
            Err(e) => (String::from_utf8_lossy(&bytes), Some(e.valid_up_to())),
        };
        let file = path.display().to_string();
        let source = Source { file: &file, text: &text };
        if let Some(valid) = valid {
            let what = "the file is not UTF-8; save it as UTF-8, and write paths as { bytes = \"...\" }";
            return Err(DaemonError::Config(vec![source.diagnostic(valid..valid + 1, what)]));
        }
        let mut reading = Reading::new(source);
        reading.check(check);
        let mut config = reading.config().map_err(DaemonError::Config)?;
        config.warnings.extend(diagnostics::readable_secrets(source, path));
        if check.is_some() {
            let found = config.server.questionable_settings();
            config.warnings.extend(found.iter().map(|found| source.at_key(&key(found), &found.reason)));
            let memory = control_group::warning(&config.server);
            config.warnings.extend(memory.map(|what| source.at_key("limits.memory", &what)));
        }
        Ok(config)
    }
}

/// The keys of a file that could be read, and the errors.
struct Reading<'t> {
    source: Source<'t>,
    config: Option<Config>,
    errors: Vec<Diagnostic>,
    /// Whether the text is TOML.
    is_toml: bool,
    /// The first parts of the keys of which something was left out: their other settings cannot be judged.
    incomplete: Vec<String>,
}

impl<'t> Reading<'t> {
    /// Reads all keys. Each one with an error is left out, and the others are read again, so that all errors are found.
    fn new(source: Source<'t>) -> Self {
        let (table, syntax) = DeTable::parse_recoverable(source.text);
        let mut read = Self {
            source,
            config: None,
            errors: Vec::new(),
            is_toml: syntax.is_empty(),
            incomplete: Vec::new(),
        };
        for e in syntax.iter().take(MAX_ERRORS) {
            read.add(source.diagnostic(e.span().unwrap_or_default(), &in_words(e.message(), None)));
        }
        let mut root = Spanned::new(table.span(), DeValue::Table(table.into_inner()));
        // The tables, by their places, from which keys were removed.
        let mut left_out: Vec<(Range<usize>, String)> = Vec::new();
        // A key may be left out, and then the tables that need it.
        for _ in 0..4 * MAX_ERRORS {
            if read.errors.len() >= MAX_ERRORS {
                break;
            }
            let DeValue::Table(table) = root.get_ref() else { break };
            let table = Spanned::new(root.span(), table.clone());
            let e = match keys::File::deserialize(Deserializer::from(table)) {
                Ok(keys) => {
                    read.config = Some(keys.into());
                    break;
                }
                Err(e) => e,
            };
            let at = e.span().unwrap_or_default();
            let mut path = Vec::new();
            if !find(&root, &at, &mut path) {
                read.add(source.diagnostic(at, &in_words(e.message(), None)));
                break;
            }
            let missing = e.message().strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
            let is_known = match missing {
                Some(key) => {
                    !read.is_toml || left_out.iter().any(|(table, k)| (table, k.as_str()) == (&at, key))
                }
                // What a whole table lacks may be what was left out.
                None => left_out.iter().any(|(table, _)| *table == at),
            };
            let Some((parent, value)) = remove(&mut root, &path) else { break };
            if !is_known {
                let written = source.text.get(value.span()).unwrap_or_default();
                let place = Place { path: path.clone(), value: value.get_ref(), written };
                let error = source.diagnostic(at, &in_words(e.message(), Some(&place)));
                if !read.is_in_unknown_table(error.line) {
                    read.add(error);
                }
            }
            read.incomplete.extend(path.first().cloned());
            let misspelt = meant(e.message()).map(str::to_owned);
            left_out.extend(misspelt.or(path.pop()).map(|key| (parent, key)));
        }
        read
    }

    /// Adds an error, unless a line has another one that may be its cause.
    fn add(&mut self, error: Diagnostic) {
        if self.errors.iter().all(|other| self.is_toml || other.line != error.line) {
            self.errors.push(error);
        }
    }

    /// Whether the header of a table above the line `line` has an error of the syntax, so that the table is not known.
    fn is_in_unknown_table(&self, line: usize) -> bool {
        let is_header = |e: &Diagnostic| {
            self.source.text.lines().nth(e.line - 1).is_some_and(|text| text.trim_start().starts_with('['))
        };
        !self.is_toml && self.errors.iter().any(|e| e.line < line && is_header(e))
    }

    /// Checks the settings, with those of `check`.
    fn check(&mut self, check: Option<fn(&Config) -> Vec<InvalidSetting>>) {
        let Some(config) = self.config.as_ref().filter(|_| self.is_toml) else { return };
        let mut invalid = config.server.invalid_settings();
        invalid.extend(check.into_iter().flat_map(|check| check(config)));
        let is_complete = |key: &str| !self.incomplete.iter().any(|top| key.split('.').next() == Some(top));
        let found =
            invalid.iter().map(|found| (key(found), &found.reason)).filter(|(key, _)| is_complete(key));
        let errors: Vec<_> = found.take(MAX_ERRORS).map(|(key, why)| self.source.at_key(&key, why)).collect();
        self.errors.extend(errors);
    }

    /// The configuration, or the errors in the order of their places.
    fn config(mut self) -> Result<Config, Vec<Diagnostic>> {
        self.errors.sort_by_key(|e| (e.line, e.column));
        self.errors.dedup();
        self.errors.truncate(MAX_ERRORS);
        self.config.filter(|_| self.errors.is_empty()).ok_or(self.errors)
    }
}

/// Finds the innermost entry or element whose key or value is the bytes `at`. Appends the way to it to `path`.
fn find(value: &Spanned<DeValue<'_>>, at: &Range<usize>, path: &mut Vec<String>) -> bool {
    let mut is_in = |part: String, key: Option<Range<usize>>, value: &Spanned<DeValue<'_>>| {
        path.push(part);
        let found = find(value, at, path) || value.span() == *at || key.is_some_and(|key| key == *at);
        if !found {
            path.pop();
        }
        found
    };
    match value.get_ref() {
        DeValue::Table(table) => {
            table.iter().any(|(key, value)| is_in(key.get_ref().to_string(), Some(key.span()), value))
        }
        DeValue::Array(list) => list.iter().enumerate().any(|(i, value)| is_in(i.to_string(), None, value)),
        _ => false,
    }
}

/// Removes the value at `path`. Returns the place of the table or list that had it, and the value.
fn remove<'v>(
    value: &mut Spanned<DeValue<'v>>,
    path: &[String],
) -> Option<(Range<usize>, Spanned<DeValue<'v>>)> {
    let (parent, (part, rest)) = (value.span(), path.split_first()?);
    match value.get_mut() {
        DeValue::Table(table) if rest.is_empty() => Some((parent, table.remove(part.as_str())?)),
        DeValue::Table(table) => remove(table.get_mut(part.as_str())?, rest),
        DeValue::Array(list) => {
            let index = part.parse().ok()?;
            if !rest.is_empty() {
                return remove(list.get_mut(index)?, rest);
            }
            let mut values: Vec<_> = std::mem::replace(list, DeArray::new()).into_iter().collect();
            let removed = (index < values.len()).then(|| values.remove(index));
            *list = values.into_iter().collect();
            Some((parent, removed?))
        }
        _ => None,
    }
}

/// The key of a setting in a file: `limits.rtmax`, or `export.1.name` for the name of the second export.
fn key(invalid: &InvalidSetting) -> String {
    // The fields `exports`, `targets` and `luns` of the configuration are `[[export]]`, `[[target]]` and `[[target.lun]]`
    // in a file.
    let key = |field| match field {
        "exports" => "export",
        "targets" => "target",
        "luns" => "lun",
        other => other,
    };
    invalid.field.split('.').map(key).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use millrace_iscsi::chap::{Credentials, Mutual, Secret};
    use millrace_oncrpc::stages::DEFAULT_SAMPLE;
    use millrace_rdma::registration::Strategy;
    use millrace_rdma_providers::ProviderChoice;
    use millrace_server::TransportSecurity;
    use millrace_server::{
        Backend, ByteSize, Delegations, ExportConfig, Identities, Nfs4Settings, Squash, TargetSettings,
    };

    use super::*;

    fn refused(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(&file, text.replace("DIR", dir.path().to_str().unwrap())).unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
        Config::check_file(&file).unwrap_err().to_string()
    }

    fn export(name: &str, backend: &str) -> String {
        format!("[[export]]\nname = \"{name}\"\nbackend = \"{backend}\"\n")
    }

    /// Paths that are not UTF-8 have the text form of `name_bytes` in the output of `ls --json`.
    #[test]
    fn paths_need_not_be_utf8() {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &[u8]| dir.path().join(OsStr::from_bytes(name));
        std::fs::create_dir_all(at(b"se\xf1or 100%")).unwrap();
        std::fs::write(at(b"se\xf1or 100%/d\xff"), [0; 512]).unwrap();
        std::fs::write(at(b"s\xe9cret"), "secret of the host").unwrap();
        let text = "state_dir = { bytes = \"DIR/se%F1or 100%25\" }\ncontrol = { bytes = \"DIR/c%FF\" }\n\
                    [[export]]\nname = \"/a\"\nbackend = { bytes = \"local:DIR/se%f1or 100%25\" }\n\
                    [[target]]\nname = \"t\"\nincoming_user = { name = \"host\", secret_file = { bytes = \"DIR/s%E9cret\" } }\n\
                    [[target.lun]]\npath = { bytes = \"/a/d%FF\" }\n";
        let file = dir.path().join("c.toml");
        std::fs::write(&file, text.replace("DIR", dir.path().to_str().unwrap())).unwrap();
        let Config { server, control, warnings, .. } = Config::check_file(&file).unwrap();
        let local = Backend::Local { path: at(b"se\xf1or 100%") };
        assert_eq!((server.state_dir, control), (Some(at(b"se\xf1or 100%")), Some(at(b"c\xff"))));
        assert_eq!(server.exports[0].backend, local);
        assert_eq!(server.targets[0].luns[0].path.as_os_str().as_bytes(), b"/a/d\xff");
        assert!(warnings.iter().any(|w| w.message.contains("chmod o-r")), "{warnings:?}");
        for (value, expected) in [
            ("{ bytes = \"%zz\" }", "write % itself as %25"),
            ("{ octets = \"x\" }", "unknown field `octets`"),
            ("7", "`state_dir` is text, or { bytes"),
        ] {
            let message = refused(&format!("state_dir = {value}\n"));
            assert!(message.contains(expected), "{value}: {message}");
        }
    }

    #[test]
    fn errors_have_a_position_and_a_suggestion() {
        let a = export("/a", "memory:1MiB");
        for (text, expected) in [
            (format!("{a}  readonly = true\n"), ":4:3: there is no key `readonly`; is `read_only` meant?"),
            ("zzz = 1\n".to_owned(), ":1:1: unknown field `zzz`, expected one of"),
            (format!("{a}{a}"), ":5:1: export /a is configured twice"),
            (format!("[limits]\n  credits = 0\n{a}"), ":2:3: limits.credits is 0"),
            (format!("[limits]\nmemory = \"1MiB\"\n{a}"), ":2:1: limits.memory is 1MiB"),
            (format!("x = [\n{a}"), ":3:"),
            (export("a", "memory:1MiB"), ":2:1: export name `a`"),
            (export("/a", "local:DIR/none"), ":3:1: there is no directory"),
            (format!("state_dir = \"DIR/none\"\n{a}"), ":1:1: there is no directory"),
            (
                export("/a", "local:DIR") + "[[target]]\nname = \"t\"\nlun = [{path = \"/a/none\"}]\n",
                ":6:9: the LUN /a/none of target iqn.2026-01.example.millrace:t: there is no file",
            ),
            ("\ndesign = \"new\"\n".to_owned(), ":2:1: unknown field `design`, expected one of"),
            (
                format!("{a}clients = [\n  \"*(rw)\",\n  \"10.0.0.5(rww)\",\n]\n"),
                ":6:3: `rww` is not an export option",
            ),
            ("registration = \"all-physical\"\n".to_owned(), "research option: use millrace-lab"),
            (
                format!("{a}[[target]]\nname = \"t\"\n[[target.lun]]\n  path = \"/b/disk\"\n"),
                ":7:3: the LUN /b/disk of target iqn.2026-01.example.millrace:t: no export contains it",
            ),
            (format!("{a}[[target]]\nname = \"t\"\n"), ":4:1: target iqn"),
            ("[[target]]\nname = \"a b\"\n".to_owned(), ":2:8: an iSCSI name"),
            (
                "[[target]]\nname = \"t\"\nlun = [{path = \"/a/x\", block_size = 513}]\n".to_owned(),
                "512 or 4096",
            ),
            (format!("{TARGET}secret = \"short\"\n"), "user host: a CHAP secret of 5 bytes"),
            (format!("{TARGET}secret = 123456789012\n"), "a secret is text"),
            (format!("{TARGET}secret_file = \"DIR/none\"\n"), "none: No such file or directory"),
            (TARGET.to_owned(), "user host: give either secret or secret_file"),
            (TARGET.replace("incoming", "outgoing") + "secret = \"123456789012\"\n", "needs incoming_user"),
        ] {
            let message = refused(&text);
            assert!(!message.contains("123456789012"), "{message}");
            assert!(message.contains(expected), "{expected}\nbut: {message}");
        }
    }

    #[test]
    fn rules_for_certificates_are_read() {
        let text = r#"
            [[export]]
            name = "/a"
            backend = "memory:1MiB"
            xprtsec = ["mtls"]
            [[export.certificates]]
            san = "URI:spiffe://example/ns/web"
            uid = 1000
            gid = 100
            groups = [7]
            [[export.certificates]]
            subject = "CN=web,O=Example"
            issuer = "CN=CA"
            serial = "00:0A:ff"
            fingerprint = "FINGERPRINT"
            read_only = true
        "#;
        let text = text.replace("FINGERPRINT", &"aB:".repeat(32));
        let config: Config = text.parse().unwrap();
        let [san, other] = &config.server.exports[0].certificates[..] else { panic!("not two") };
        assert_eq!(san.san.as_ref().unwrap().to_string(), "URI:spiffe://example/ns/web");
        let identity = san.identity.as_ref().unwrap();
        assert_eq!((identity.uid, identity.gid, &identity.gids[..]), (1000, 100, &[7][..]));
        assert_eq!(
            (other.subject.as_deref(), other.issuer.as_deref()),
            (Some("CN=web,O=Example"), Some("CN=CA"))
        );
        assert_eq!((other.serial.as_deref(), other.fingerprint), (Some(&[0x0a, 0xff][..]), Some([0xab; 32])));
        assert!(other.read_only && !san.read_only && other.identity.is_none());
        let a = export("/a", "memory:1MiB") + "xprtsec = [\"mtls\"]\n[[export.certificates]]\n";
        let tls = "[tls]\ncertificate = \"DIR/c\"\nkey = \"DIR/k\"\nclient_ca = \"DIR/c\"\n";
        for (keys, expected) in [
            ("san = \"web\"\n", ":6:7: `web` is not a name of a certificate: write DNS:NAME"),
            ("subject = \"CN=a\"\nuid = 7\n", ":5:1: uid and gid are given together"),
            ("subject = \"CN=a\"\ngroups = [7]\n", "groups beside them"),
            ("fingerprint = \"AA:BB\"\n", "32 bytes as 64 hexadecimal digits"),
            ("serial = \"1g\"\n", "pairs of hexadecimal digits"),
            ("common_name = \"a\"\n", "unknown field `common_name`"),
            ("read_only = true\n", "for no certificate"),
        ] {
            let message = refused(&format!("{a}{keys}{tls}"));
            assert!(message.contains(expected), "{expected}\nbut: {message}");
        }
    }

    /// A target whose initiators authenticate with a secret that is missing.
    const TARGET: &str = "[[target]]\nname = \"t\"\n[target.incoming_user]\nname = \"host\"\n";

    #[test]
    fn all_keys_of_a_target_are_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("secret"), "a secret of a file\n").unwrap();
        let text = r#"
            listen_iscsi = "[::1]:3260"
            listen_iser = "[::1]:3261"
            [tls]
            certificate = "/etc/server.pem"
            key = "/etc/server.key"
            client_ca = "/etc/ca.pem"
            [[export]]
            name = "/vol"
            backend = "memory:1GiB"
            [[target]]
            name = "disks"
            initiators = ["iqn.1993-08.org.debian:01:abc"]
            xprtsec = ["mtls"]
            incoming_user = { name = "host", secret_file = "DIR/secret" }
            outgoing_user = { name = "server", secret = "another secret" }
            addresses = ["192.0.2.1:3260,1"]
            [[target.lun]]
            path = "/vol/disk0"
            block_size = 4096
            size = "512MiB"
            [[target.lun]]
            path = "/vol/disk1"
            read_only = true
            lun = 5
        "#;
        let config: Config = text.replace("DIR", dir.path().to_str().unwrap()).parse().unwrap();
        config.check().unwrap();
        let shown = format!("{config:?}");
        assert!(!shown.contains("another secret") && !shown.contains("a secret of a file"), "{shown}");
        let credentials = |name: &str, secret: &str| {
            let secret = Secret::new(secret.as_bytes()).unwrap();
            Credentials { name: name.into(), secret }
        };
        let chap = Mutual::new(
            credentials("host", "a secret of a file"),
            Some(credentials("server", "another secret")),
        );
        let expected = TargetSettings {
            name: "iqn.2026-01.example.millrace:disks".parse().unwrap(),
            luns: vec![
                "/vol/disk0,block=4096,size=512M".parse().unwrap(),
                "/vol/disk1,ro,lun=5".parse().unwrap(),
            ],
            initiators: vec!["iqn.1993-08.org.debian:01:abc".parse().unwrap()],
            chap: Some(chap.unwrap()),
            xprtsec: TransportSecurity::Mtls,
            addresses: vec!["192.0.2.1:3260,1".parse().unwrap()],
        };
        assert_eq!(config.server.targets, [expected]);
        assert_eq!(config.server.listen_iscsi, Some("[::1]:3260".parse().unwrap()));
        assert_eq!(config.server.listen_iser, Some("[::1]:3261".parse().unwrap()));
    }

    #[test]
    fn secrets_that_all_users_can_read_are_warned_about() {
        use std::{fs, os::unix::fs::PermissionsExt};
        let dir = tempfile::tempdir().unwrap();
        let (file, secret) = (dir.path().join("c.toml"), dir.path().join("secret"));
        fs::write(&secret, "a secret of a file").unwrap();
        let users = format!(
            "[target.incoming_user]\nname = \"a\"\nsecret = \"123456789012\"\n[target.outgoing_user]\nname = \"b\"\nsecret_file = \"{}\"\n",
            secret.display()
        );
        let target = "[[target]]\nname = \"t\"\nlun = [{path = \"/a/x\", size = \"1MiB\"}]\n";
        fs::write(&file, export("/a", "memory:1MiB") + target + &users).unwrap();
        for (mode, lines) in [(0o644, vec![9, 12]), (0o640, vec![])] {
            for path in [&file, &secret] {
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            }
            let warnings = Config::from_file(&file).unwrap().warnings;
            assert_eq!(warnings.len(), lines.len(), "{warnings:?}");
            for (warning, line) in warnings.iter().zip(lines) {
                assert!(warning.line == line && warning.message.contains("chmod o-r"), "{warning}");
                assert!(!format!("{warning:?}").contains("123456789012"), "{warning}");
            }
        }
    }

    const FILE: &str = r#"
        listen_rdma = ["127.0.0.1:20049"]
        listen_tcp = ["127.0.0.1:2049", "[::1]:2049"]
        shards = 2
        manage_groups = true
        provider = "iwarp"
        metrics = "127.0.0.1:9464"
        registration = "dynamic"
        [limits]
        rtmax = "4MiB"
        credits = 32
        [nfs4]
        lease = 30
        server_owner = "pair"
        server_scope = "site"
        boot_epoch = 5
        [stages]
        sample = 7
        [[export]]
        name = "/data"
        backend = "local:/srv/data"
        read_only = true
        squash = "all"
        identities = "server-user"
        delegations = "write"
        clients = ["*(ro)", "10.0.0.0/8(no_root_squash)"]
        [[export]]
        name = "/scratch"
        backend = "memory:2GiB"
    "#;

    #[test]
    fn all_keys_of_a_file_are_read() {
        let config: Config = FILE.parse().unwrap();
        config.check().unwrap();
        let (c, default) = (config.server, millrace_server::Config::default());
        assert_eq!((c.exports.len(), c.listen_tcp.len(), c.shards), (2, 2, Some(2)));
        assert_eq!((c.provider, default.provider), (ProviderChoice::Iwarp, ProviderChoice::Auto));
        assert_eq!(
            (c.limits.rtmax, c.limits.wtmax, c.limits.credits),
            (ByteSize(4 << 20), ByteSize(1 << 20), 32)
        );
        assert_eq!((c.exports[0].squash, c.exports[0].identities), (Squash::All, Identities::ServerUser));
        assert_eq!(
            (c.exports[0].delegations, c.exports[1].delegations),
            (Delegations::Write, Delegations::None)
        );
        let clients = ["*(ro)", "10.0.0.0/8(no_root_squash)"].map(|c| c.parse().unwrap());
        assert_eq!((&c.exports[0].clients[..], c.exports[0].allow_auth_none), (&clients[..], false));
        assert!(c.manage_groups && !default.manage_groups);
        assert_eq!(c.registration, Some(Strategy::Dynamic));
        let nfs4 = Nfs4Settings {
            lease: 30,
            server_owner: Some("pair".into()),
            server_scope: Some("site".into()),
            boot_epoch: Some(5),
        };
        assert_eq!((c.nfs4, default.nfs4.lease), (nfs4, 90));
        assert_eq!((c.stages.sample, default.stages.sample), (7, DEFAULT_SAMPLE));
        assert_eq!(
            c.exports[1],
            ExportConfig::new("/scratch", Backend::Memory { capacity: ByteSize(2 << 30) })
        );
    }

    #[test]
    fn an_unknown_key_is_an_error_with_its_line() {
        let e = "shards = 1\nlisten_tpc = []\n".parse::<Config>().unwrap_err().to_string();
        assert!(e.contains(":2:") && e.contains("listen_tpc"), "{e}");
        let e = "shards = 1\nprovider = \"roce\"\n".parse::<Config>().unwrap_err().to_string();
        assert!(e.contains(":2:") && e.contains("auto, iwarp or verbs"), "{e}");
    }

    #[test]
    fn overlapping_directories_are_rejected_with_the_line_of_the_second() {
        for (one, two) in
            [("DIR/a", "DIR/a"), ("DIR/a", "DIR/a/b"), ("DIR/a/b", "DIR/a"), ("DIR/link", "DIR/a/b")]
        {
            let text = export("/x", &format!("local:{one}")) + &export("/y", &format!("local:{two}"));
            let message = refused(&text);
            assert!(message.contains(":6:1: the directories of exports /x and /y overlap"), "{message}");
        }
    }
}
