//! Reading a configuration file.

use std::{path::Path, str::FromStr};

use millrace_server::InvalidSetting;

use crate::{Config, DaemonError, diagnostics, keys};

impl FromStr for Config {
    type Err = DaemonError;

    /// Reads TOML text. Unknown keys are errors.
    fn from_str(text: &str) -> Result<Self, DaemonError> {
        let keys: keys::File =
            toml::from_str(text).map_err(|e| DaemonError::Config(diagnostics::one_line(text, &e)))?;
        Ok(Self { warnings: diagnostics::deprecated(text), ..keys.into() })
    }
}

impl Config {
    /// Reads a TOML file. Its exports, targets and limits must be valid independent of the command line.
    ///
    /// # Errors
    /// The file cannot be read, or is invalid; with line and column.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, DaemonError> {
        Self::read(path.as_ref(), |_| Ok(()))
    }

    /// As [`Self::from_file`], and checks that directories and the files of LUNs exist. Opens no address.
    ///
    /// # Errors
    /// As [`Self::from_file`].
    pub fn check_file(path: impl AsRef<Path>) -> Result<Self, DaemonError> {
        Self::read(path.as_ref(), |config| config.server.check_files())
    }

    /// Reads the file at `path` and checks its settings, then calls `check`.
    fn read(
        path: &Path,
        check: impl FnOnce(&Self) -> Result<(), InvalidSetting>,
    ) -> Result<Self, DaemonError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| DaemonError::ReadConfig { path: path.to_owned(), source })?;
        let named = |what: String| DaemonError::Config(format!("{}: {what}", path.display()));
        let mut config: Self = text.parse().map_err(|e: DaemonError| named(e.to_string()))?;
        config.warnings.extend(diagnostics::readable_secrets(&text, path));
        let checked = config.server.check_settings().and_then(|()| check(&config));
        checked.map_err(|invalid| named(diagnostics::located(&text, &key(&invalid), &invalid.reason)))?;
        Ok(config)
    }
}

/// The key of an invalid setting in a file: `limits.rtmax`, or `export.1.name` for the name of the second export.
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
        assert!(warnings.iter().any(|w| w.contains("chmod o-r")), "{warnings:?}");
        for (value, expected) in [
            ("{ bytes = \"%zz\" }", "write % itself as %25"),
            ("{ octets = \"x\" }", "unknown field `octets`"),
            ("7", "expected text, or { bytes"),
        ] {
            let message = refused(&format!("state_dir = {value}\n"));
            assert!(message.contains(expected), "{value}: {message}");
        }
    }

    #[test]
    fn errors_have_a_position_and_a_suggestion() {
        let a = export("/a", "memory:1MiB");
        for (text, expected) in [
            (
                format!("{a}  readonly = true\n"),
                "line 4, column 3: there is no key `readonly`; is `read_only` meant?",
            ),
            ("zzz = 1\n".to_owned(), "line 1, column 1: unknown field `zzz`, expected one of"),
            (format!("{a}{a}"), "line 5, column 1: export /a is configured twice"),
            (format!("[limits]\n  credits = 0\n{a}"), "line 2, column 3: limits.credits is 0"),
            (format!("[limits]\nmemory = \"1MiB\"\n{a}"), "line 2, column 1: limits.memory is 1MiB"),
            (format!("x = [\n{a}"), "line 3, column"),
            (export("a", "memory:1MiB"), "line 2, column 1: export name `a`"),
            (export("/a", "local:DIR/none"), "line 3, column 1: there is no directory"),
            (format!("state_dir = \"DIR/none\"\n{a}"), "line 1, column 1: there is no directory"),
            (
                export("/a", "local:DIR") + "[[target]]\nname = \"t\"\nlun = [{path = \"/a/none\"}]\n",
                "line 6, column 9: the LUN /a/none of target iqn.2026-01.example.millrace:t: there is no file",
            ),
            (
                "\ndesign = \"read-read\"\n".to_owned(),
                "line 2, column 10: design read-read is a research option",
            ),
            (
                format!("{a}clients = [\n  \"*(rw)\",\n  \"10.0.0.5(rww)\",\n]\n"),
                "line 6, column 3: `rww` is not an export option",
            ),
            ("registration = \"all-physical\"\n".to_owned(), "research option: use millrace-lab"),
            (
                format!("{a}[[target]]\nname = \"t\"\n[[target.lun]]\n  path = \"/b/disk\"\n"),
                "line 7, column 3: the LUN /b/disk of target iqn.2026-01.example.millrace:t: no export contains it",
            ),
            (format!("{a}[[target]]\nname = \"t\"\n"), "line 4, column 1: target iqn"),
            ("[[target]]\nname = \"a b\"\n".to_owned(), "line 2, column 8: an iSCSI name"),
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
            assert!(message.contains(expected) && message.lines().count() == 1, "{expected}\nbut: {message}");
        }
    }

    #[test]
    fn keys_of_the_read_read_design_are_read_with_a_warning() {
        let text = "design = \"read-write\"\nexposed_buffers = \"not-accepted\"\n[exposure]\nregions = 8\n";
        let config: Config = text.parse().unwrap();
        let message = &config.warnings;
        assert_eq!(message.len(), 3, "{message:?}");
        for (line, key) in ["design", "exposed_buffers", "exposure"].into_iter().enumerate() {
            let start = format!("line {}, column ", line + 1);
            assert!(message[line].starts_with(&start) && message[line].contains(key), "{message:?}");
            assert!(message[line].contains("millrace-lab"), "{message:?}");
        }
        assert!("crc = true\n".parse::<Config>().unwrap().warnings.is_empty());
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
            [[export]]
            name = "/vol"
            backend = "memory:1GiB"
            [[target]]
            name = "disks"
            initiators = ["iqn.1993-08.org.debian:01:abc"]
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
                assert!(
                    warning.starts_with(&format!("line {line}, ")) && warning.contains("chmod o-r"),
                    "{warning}"
                );
                assert!(!warning.contains("123456789012"), "{warning}");
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
        assert!(e.contains("line 2") && e.contains("listen_tpc"), "{e}");
        let e = "shards = 1\nprovider = \"roce\"\n".parse::<Config>().unwrap_err().to_string();
        assert!(e.contains("line 2") && e.contains("auto, iwarp or verbs"), "{e}");
    }

    #[test]
    fn overlapping_directories_are_rejected_with_the_line_of_the_second() {
        for (one, two) in
            [("DIR/a", "DIR/a"), ("DIR/a", "DIR/a/b"), ("DIR/a/b", "DIR/a"), ("DIR/link", "DIR/a/b")]
        {
            let text = export("/x", &format!("local:{one}")) + &export("/y", &format!("local:{two}"));
            let message = refused(&text);
            assert!(
                message.contains("line 6, column 1: the directories of exports /x and /y overlap"),
                "{message}"
            );
        }
    }
}
