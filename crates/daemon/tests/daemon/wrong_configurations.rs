//! The errors of wrong configuration files.

use millrace_daemon::{Config, DaemonError, Diagnostic};
use proptest::prelude::*;

/// The errors of a file with `text`, in which DIR is an existing directory.
fn errors(text: &str) -> Vec<Diagnostic> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    std::fs::write(&file, text.replace("DIR", dir.path().to_str().unwrap())).unwrap();
    match Config::check_file(&file) {
        Err(DaemonError::Config(errors)) => errors,
        other => panic!("{text}: {other:?}"),
    }
}

/// An export in lines 1 to 3, followed by `rest` from line 4.
fn export(rest: &str) -> String {
    format!("[[export]]\nname = \"/a\"\nbackend = \"memory:1MiB\"\n{rest}")
}

fn check(text: &str, expected: &[(usize, usize, &str)]) {
    let errors = errors(text);
    let places: Vec<_> = errors.iter().map(|e| (e.line, e.column)).collect();
    let wanted: Vec<_> = expected.iter().map(|(line, column, _)| (*line, *column)).collect();
    assert_eq!(places, wanted, "{text}\n{errors:#?}");
    for (error, (.., part)) in errors.iter().zip(expected) {
        assert!(error.message.contains(part), "{text}\n{part}\nbut: {}", error.message);
        for word in ["sequence", "invalid type", "variant", "usize", "u32", "missing field", "expected a map"]
        {
            assert!(!error.message.contains(word), "{text}\n{}", error.message);
        }
    }
}

#[test]
fn addresses_are_explained() {
    for (address, part) in [
        ("\"localhost:9464\"", "write 127.0.0.1:9464"),
        ("\"127.0.0.1\"", "no port; write for example 127.0.0.1:2049"),
        ("\"127.0.0.1:70000\"", "ports are 1 to 65535"),
        ("\"::1\"", "no port; write for example [::1]:2049"),
        ("\"9464\"", "write [::]:9464 for all addresses"),
        ("9464", "write [::]:9464 for all addresses"),
        ("\"http://127.0.0.1:9464/metrics\"", "leave http:// out"),
        ("true", "`metrics` is an address and a port"),
        ("[\"127.0.0.1:1\"]", "`metrics` is an address and a port"),
    ] {
        check(&format!("metrics = {address}\n{}", export("")), &[(1, 11, part)]);
    }
    check(
        &format!("listen_tcp = \"0.0.0.0:2049\"\n{}", export("")),
        &[(1, 14, "`listen_tcp` is a list; write listen_tcp = [\"0.0.0.0:2049\"]")],
    );
    check(&format!("listen_tcp = [\"[::1]:2049\", 2049]\n{}", export("")), &[(1, 29, "[::]:2049")]);
}

#[test]
fn keys_and_tables_are_explained() {
    let memory = "backend = \"memory:1MiB\"\n";
    for (text, expected) in [
        (export("readonly = true\n"), (4, 1, "there is no key `readonly`; is `read_only` meant?")),
        (export("ro = true\n"), (4, 1, "write read_only = true")),
        (export("no_root_squash = true\n"), (4, 1, "write squash = \"none\"")),
        (export("path = \"/srv\"\n"), (4, 1, "write backend = \"local:PATH\"")),
        (
            export("listen_tcp = []\n"),
            (4, 1, "`listen_tcp` is a key of the whole file; move it above the first [table]"),
        ),
        (format!("credits = 1\n{}", export("")), (1, 1, "`credits` is a key of [limits]; move it there")),
        (
            format!("squash = \"all\"\n{}", export("")),
            (1, 1, "`squash` is a key of [[export]]; move it there"),
        ),
        (format!("zzz = 1\n{}", export("")), (1, 1, "unknown field `zzz`, expected one of `export`")),
        (format!("[[exports]]\nname = \"/a\"\n{memory}"), (1, 3, "is `export` meant?")),
        (format!("[export]\nname = \"/a\"\n{memory}"), (1, 1, "write [[export]], with two brackets")),
        (export("[target]\nname = \"t\"\n"), (4, 1, "write [[target]], with two brackets")),
        (
            export("[[target]]\nname = \"t\"\n[target.lun]\npath = \"/a/x\"\n"),
            (6, 1, "write [[target.lun]], with two brackets"),
        ),
        (export("[[limits]]\ncredits = 1\n"), (4, 1, "there is one table limits; write [limits]")),
        (format!("limits = 3\n{}", export("")), (1, 10, "`limits` is a table; write [limits] in a line")),
        (
            format!("[[export]]\n{memory}"),
            (1, 1, "this [[export]] has no `name`; add it, such as name = \"/data\""),
        ),
        (
            "[[export]]\nname = \"/a\"\n".to_owned(),
            (1, 1, "has no `backend`; add it, such as backend = \"local:"),
        ),
        (export("name = \"/b\"\n"), (4, 1, "duplicate key")),
        (export("[[export]\n"), (4, 10, "unclosed array table")),
        (export("squash = all\n"), (4, 10, "string values must be quoted")),
        (export("clients = [10.0.0.0/8]\n"), (4, 16, "write text in quotation marks")),
        (export("clients = [\"*\"\n"), (4, 15, "unclosed array")),
    ] {
        check(&text, &[expected]);
    }
}

#[test]
fn values_are_explained() {
    for (text, expected) in [
        (export("squash = \"no_root_squash\"\n"), (4, 10, "for \"no_root_squash\" write squash = \"none\"")),
        (export("squash = \"no_all_squash\"\n"), (4, 10, "`squash` is one of \"none\", \"root\", \"all\"")),
        (export("squash = \"rot\"\n"), (4, 10, "for \"rot\" write squash = \"root\"")),
        (export("squash = false\n"), (4, 10, "`squash` is")),
        (export("identities = \"server\"\n"), (4, 14, "write identities = \"server-user\"")),
        (export("read_only = \"yes\"\n"), (4, 13, "write read_only = true or read_only = false")),
        (export("sync_metadata = 1\n"), (4, 17, "`sync_metadata` is true or false")),
        (export("clients = \"10.0.0.0/8\"\n"), (4, 11, "write clients = [\"10.0.0.0/8\"]")),
        (export("clients = [\"10.0.0.0/8\", 7]\n"), (4, 26, "write \"7\", in quotation marks")),
        (
            export("clients = [\"10.0.0.5/8\"]\n"),
            (4, 12, "write 10.0.0.0/8 for the network, or 10.0.0.5 for the host"),
        ),
        (export("clients = [\"10.0.0.5(rww)\"]\n"), (4, 12, "`rww` is not an export option")),
        (export("anon_uid = 4294967296\n"), (4, 12, "`anon_uid` is 4294967296; give 0 to 4294967295")),
        (export("anon_uid = \"www-data\"\n"), (4, 12, "`anon_uid` is a whole number")),
        (format!("shards = \"2\"\n{}", export("")), (1, 10, "write shards = 2")),
        (format!("shards = -1\n{}", export("")), (1, 10, "`shards` is -1; give 0 or more")),
        (format!("shards = 2.5\n{}", export("")), (1, 10, "`shards` is a whole number")),
        (format!("shards = 0\n{}", export("")), (1, 1, "shards is 0; give at least 1")),
        (format!("provider = \"roce\"\n{}", export("")), (1, 12, "auto, iwarp or verbs")),
        (export("[limits]\nmemory = \"1 GX\"\n"), (5, 10, "1 GX")),
        (export("[limits]\nmemory = 1.5\n"), (5, 10, "`memory` is a size in bytes")),
        (export("[limits]\nrtmax = 5000\n"), (5, 1, "multiple of 4096")),
        (export("[nfs4]\nlease = 0\n"), (5, 1, "1 to 3600 seconds")),
        (export("[kerberos]\ndomain = \"@example.org\"\n"), (5, 1, "no name of DNS")),
        ("[[export]]\nname = 7\nbackend = \"memory:1MiB\"\n".to_owned(), (2, 8, "write name = \"7\"")),
        ("[[export]]\nname = \"a\"\nbackend = \"memory:1MiB\"\n".to_owned(), (2, 1, "not an absolute path")),
        ("[[export]]\nname = \"/a\"\nbackend = \"/srv\"\n".to_owned(), (3, 11, "local:PATH")),
        (
            "[[export]]\nname = \"/a\"\nbackend = \"local:DIR/none\"\n".to_owned(),
            (3, 1, "there is no directory"),
        ),
        (
            export(
                "[[target]]\nname = \"t\"\nlun = [{ path = \"/a/x\", size = \"1MiB\", block_size = 513 }]\n",
            ),
            (6, 53, "512 or 4096"),
        ),
    ] {
        check(&text, &[expected]);
    }
}

#[test]
fn addresses_in_use_by_another_service_are_rejected() {
    let twice = |keys: &str| format!("provider = \"iwarp\"\n{keys}{}", export(""));
    let in_use = "is in use by listen_tcp (";
    for (keys, place) in [
        ("listen_tcp = [\"127.0.0.1:2049\"]\nlisten_rdma = [\"127.0.0.1:2049\"]\n", (3, 16, in_use)),
        ("listen_tcp = [\"0.0.0.0:2049\"]\nmetrics = \"127.0.0.1:2049\"\n", (3, 1, in_use)),
        ("listen_tcp = [\"127.0.0.1:2049\", \"127.0.0.1:2049\"]\n", (2, 33, in_use)),
        ("listen_tcp = [\"[::]:2049\", \"[::1]:2049\"]\n", (2, 28, in_use)),
        ("listen_tcp = [\"[::]:2049\"]\nmetrics = \"127.0.0.1:2049\"\n", (3, 1, in_use)),
        (
            "listen_iscsi = \"127.0.0.1:1\"\nmetrics = \"127.0.0.1:1\"\n",
            (3, 1, "is in use by listen_iscsi ("),
        ),
    ] {
        check(&twice(keys), &[place]);
    }
    for keys in [
        "listen_tcp = [\"0.0.0.0:2049\", \"[::]:2049\"]\nlisten_rdma = [\"127.0.0.1:20049\"]\n",
        "listen_tcp = [\"127.0.0.1:0\", \"127.0.0.1:0\"]\nmetrics = \"127.0.0.1:0\"\n",
        "listen_tcp = [\"127.0.0.1:1\", \"127.0.0.2:1\"]\n",
        "listen_iscsi = \"127.0.0.1:3260\"\nlisten_iser = \"127.0.0.1:3260\"\n",
    ] {
        twice(keys).parse::<Config>().unwrap().check().unwrap();
    }
}

#[test]
fn all_errors_of_a_file_are_reported_in_their_order() {
    let text = "shards = \"two\"\nlisten_tpc = []\n[[export]]\nnmae = \"/a\"\nbackend = \"disk:/x\"\nsquash = \"x\"\n\
                [[export]]\nname = \"/a\"\nbackend = \"memory:1MiB\"\nclients = [\"*\", \"a b\", \"10.0.0.0/33\"]\n\
                [limits]\ncredits = 0\nrtmax = 5000\n";
    check(
        text,
        &[
            (1, 10, "`shards` is a whole number"),
            (2, 1, "is `listen_tcp` meant?"),
            (4, 1, "is `name` meant?"),
            (5, 11, "not a backend"),
            (6, 10, "`squash` is one of"),
            (10, 17, "not a network"),
            (10, 24, "not a network"),
            (12, 1, "limits.credits is 0"),
            (13, 1, "limits.rtmax is 5000"),
        ],
    );
    // Two exports with the same name, and one of a directory that does not exist.
    let text = export(&export("")) + "[[export]]\nname = \"/b\"\nbackend = \"local:DIR/none\"\n";
    check(&text, &[(5, 1, "configured twice"), (9, 1, "there is no directory")]);
    // Errors of the syntax.
    check("a = \nb = ]\n[[export]]\nname = /a\n", &[(1, 5, ""), (2, 5, ""), (4, 8, "")]);
    check(
        "a = = 1\n[limits\ncredits = 1\n[[export]]\nzzz = 1\n",
        &[(1, 5, "extra `=`"), (2, 8, "unclosed table")],
    );
    let many = "x = [\n".to_owned() + &"[[export]]\n".repeat(1000);
    assert!(errors(&many).len() <= 20);
    assert!(errors(&"[[export]]\n".repeat(1000)).len() <= 20);
}

#[test]
fn an_excerpt_shows_the_line_without_secrets_and_control_characters() {
    let excerpt = |text: &str| errors(text)[0].excerpt.clone();
    assert_eq!(
        excerpt(&export("\tsquash = \"\u{e9}\"  # \u{e9}\n")).unwrap(),
        "  |\n4 | \tsquash = \"\u{e9}\"  # \u{e9}\n  | \t         ^^^"
    );
    assert!(excerpt("a = \"\u{1b}[2J\"\n").is_none_or(|shown| !shown.contains('\u{1b}')));
    assert!(errors("\"\\u001b[2J\" = 1\n").iter().all(|e| !e.message.contains('\u{1b}')));
    for secret in
        ["secret = 123456789012\n", "secret = 123456789012x\n", "secret = \"\"\"\n123456789012\\q\"\"\"\n"]
    {
        let target = format!("[[target]]\nname = \"t\"\n[target.incoming_user]\nname = \"a\"\n{secret}");
        assert!(!format!("{:?}", errors(&target)).contains("123456789012"), "{secret}");
    }
    for user in [
        "incoming_user = { name = \"a\", secrt = \"123456789012\" }\n",
        "incoming_user = { name = \"a\", password = \"123456789012\" }\n",
        "incoming_user = \"a:123456789012\"\n",
        "incoming_user = [\"a\", \"123456789012\"]\n",
        "incoming_user = { name = \"a\", secret =\n\"123456789012\" }\n",
        "[target.incoming_usr]\nname = \"a\"\nsecrt = \"123456789012\"\n",
    ] {
        let excerpts: Vec<_> =
            errors(&format!("[[target]]\nname = \"t\"\n{user}")).into_iter().map(|e| e.excerpt).collect();
        assert!(!format!("{excerpts:?}").contains("123456789012"), "{user}: {excerpts:?}");
    }
    assert_eq!(excerpt(&format!("x = 1 # {}\n", "y".repeat(1000))), None);
}

#[test]
fn a_file_that_is_not_utf8_has_an_error_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    std::fs::write(&file, b"shards = 1\ncontrol = \"\xff\"\n").unwrap();
    let e = Config::check_file(&file).unwrap_err().to_string();
    assert!(e.contains("c.toml:2:12: the file is not UTF-8"), "{e}");
}

/// Pieces of files, most of them valid.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("[[export]]\n"),
        Just("[export]\n"),
        Just("[[target]]\n"),
        Just("[[target.lun]]\n"),
        Just("[limits]\n"),
        Just("[target.incoming_user]\n"),
        Just("[nfs4]\n"),
        Just("name = \"/a\"\n"),
        Just("name = \"t\"\n"),
        Just("backend = \"memory:1MiB\"\n"),
        Just("squash = \"all\"\n"),
        Just("clients = [\"*\", "),
        Just("]\n"),
        Just("credits = 18446744073709551615\n"),
        Just("inline_size = 9223372036854775807\n"),
        Just("memory = 9223372036854775807\n"),
        Just("rtmax = \"16777215TiB\"\n"),
        Just("lun = [{path = \"/a/x\"}]\n"),
        Just("max_connections = 9223372036854775807\n"),
        Just("listen_tcp = [\"[::]:1\", 2]\n"),
        Just("secret = \"x"),
        Just("\"\"\""),
        Just("\u{e9}\t= {"),
        Just("limits.rtmax = 1\n"),
        Just("shards = -1\n"),
        Just("busy_poll = 9223372036854775807\n"),
    ];
    prop::collection::vec(prop_oneof![9 => piece.prop_map(String::from), 1 => any::<String>()], 0..12)
        .prop_map(|p| p.concat())
}

proptest! {
    #[test]
    fn no_text_causes_a_panic_and_each_error_has_a_place_in_it(text in prop_oneof![any::<String>(), pieces()]) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(&file, &text).unwrap();
        let errors = match Config::check_file(&file) {
            Ok(config) => config.warnings,
            Err(DaemonError::Config(errors)) => errors,
            Err(other) => panic!("{other}"),
        };
        let lines: Vec<&str> = text.split('\n').collect();
        for error in errors {
            let line = lines[error.line - 1];
            prop_assert!(error.column <= line.chars().count() + 1, "{error}");
            prop_assert!(!error.to_string().contains(char::is_control), "{error:?}");
        }
    }
}

#[test]
fn consequences_of_an_error_are_not_reported() {
    let user = "[[target]]\nname = \"t\"\nincoming_user = { name = \"a\", secrt = \"123456789012\" }\n";
    check(user, &[(3, 31, "is `secret` meant?")]);
    check(
        "[[target]]\nname = \"t\"\nincoming_user = 7\noutgoing_user = { name = \"a\", secret = \"123456789012\" }\n",
        &[(3, 17, "")],
    );
    check("[limits]\nmemory = \"64GX\"\ncredits = 16384\n", &[(2, 10, "not a size")]);
    let valid = "[[target]]\nname = \"t\"\n";
    let second = "[[target]]\nname = \"u\"\noutgoing_user = { name = \"a\", secret = \"123456789012\" }\n";
    check(&format!("{valid}{second}"), &[(3, 1, "outgoing_user needs incoming_user")]);
}

/// The command line may resolve it.
#[test]
fn an_address_for_two_services_is_an_error_of_the_check_only() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    let twice = "listen_rdma = [\"127.0.0.1:7\"]\nlisten_tcp = [\"127.0.0.1:7\"]\nprovider = \"iwarp\"\n";
    std::fs::write(&file, twice.to_owned() + &export("")).unwrap();
    assert!(Config::check_file(&file).is_err());
    let config = Config::from_file(&file).unwrap();
    assert!(config.check().is_err());
}
