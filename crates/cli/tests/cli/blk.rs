//! `millrace blk` and a server with iSCSI targets, as processes.

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt},
        net::UnixStream,
    },
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::common::{
    HANG, Server, fails, kill, millrace,
    mounting::{Mounting, fuse_is_available},
    noise, ok, run, shell, text,
};

const NAME: &str = "iqn.2026-01.example.millrace:disk";
const SIZE: usize = 4 << 20;

/// Serves two disks of 4 MiB and of 1 MiB, and returns the address of iSCSI.
fn serve() -> (Server, String) {
    let server = Server::start(&[
        "--provider",
        "iwarp",
        "--listen-iscsi",
        "127.0.0.1:0",
        "--export",
        "/m=memory:64MiB",
        "--lun",
        "disk=/m/disk0,size=4MiB",
        "--lun",
        "disk=/m/disk1,size=1MiB,block=4096",
    ]);
    let address = iscsi_address(&server);
    (server, address)
}

fn iscsi_address(server: &Server) -> String {
    server.ready.split_whitespace().find_map(|w| w.strip_prefix("iscsi=")).unwrap().to_owned()
}

#[test]
fn disks_are_listed_described_and_copied() {
    let (_server, address) = serve();
    let list = ok(&["blk", "ls", &format!("iscsi://{address}")]);
    assert!(list.contains(NAME) && list.contains("4 MiB") && list.contains("1 MiB"), "{list}");
    let disk = format!("iscsi://{address}/{NAME}/0");
    let info: serde_json::Value = serde_json::from_str(&ok(&["blk", "info", "--json", &disk])).unwrap();
    assert_eq!((&info["capacity"], &info["block_size"]), (&SIZE.into(), &512.into()));
    assert!(ok(&["blk", "info", &disk]).contains("4,194,304 bytes"));

    let dir = tempfile::tempdir().unwrap();
    let (image, back) = (dir.path().join("image"), dir.path().join("back"));
    let data = noise(SIZE, 1);
    fs::write(&image, &data).unwrap();
    for scheme in ["iscsi", "iser"] {
        let disk = format!("{scheme}://{address}/{NAME}/0");
        ok(&["blk", "cp", "--quiet", text(&image), &disk]);
        ok(&["blk", "cp", "--quiet", &disk, text(&back)]);
        assert!(fs::read(&back).unwrap() == data, "{scheme}");
        fs::remove_file(&back).unwrap();
    }

    // The end of the image is within a block, whose rest is kept.
    let short = noise(700, 2);
    fs::write(&image, &short).unwrap();
    ok(&["blk", "cp", "--quiet", "--digests", text(&image), &disk]);
    ok(&["blk", "cp", "--quiet", &disk, text(&back)]);
    let copied = fs::read(&back).unwrap();
    assert!(copied[..700] == short && copied[700..] == data[700..]);
}

#[test]
fn standard_streams_pipes_and_devices_are_copied_to_their_end() {
    let (_server, address) = serve();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (image, back) = (at("image"), at("back"));
    let (mut data, short) = (noise(SIZE, 1), noise(2_000_700, 2));
    fs::write(&image, &data).unwrap();
    for scheme in ["iscsi", "iser"] {
        let disk = format!("{scheme}://{address}/{NAME}/0");
        shell(r#"cat "$2" | "$0" blk cp - "$1""#, &[&disk, text(&image)]);
        shell(r#""$0" blk cp "$1" - | cat > "$2""#, &[&disk, text(&back)]);
        assert!(fs::read(&back).unwrap() == data, "{scheme}");
        fs::remove_file(&back).unwrap();
    }
    let disk = format!("iscsi://{address}/{NAME}/0");
    // The end of the input is within a block, whose rest is kept. What the shell has read is not copied.
    fs::write(&image, [b"line\n", &short[..]].concat()).unwrap();
    let script = r#"{ read -r _; "$0" blk cp --json - "$1"; } < "$2""#;
    shell(script, &[&disk, text(&image)]);
    data[..short.len()].copy_from_slice(&short);
    shell(r#"echo start > "$2"; "$0" blk cp "$1" - >> "$2""#, &[&disk, text(&back)]);
    assert!(fs::read(&back).unwrap() == [b"start\n", &data[..]].concat());

    let pipe = at("pipe");
    shell(r#"mkfifo "$2"; cat "$3" > "$2" & "$0" blk cp "$2" "$1""#, &[&disk, text(&pipe), text(&image)]);
    shell(r#"cat "$2" > "$3" & "$0" blk cp "$1" "$2"; wait"#, &[&disk, text(&pipe), text(&back)]);
    data[..short.len() + 5].copy_from_slice(&fs::read(&image).unwrap());
    assert!(fs::read(&back).unwrap() == data);
    ok(&["blk", "cp", &disk, "/dev/null"]);
    // The reader ends first.
    assert_eq!(shell(r#""$0" blk cp "$1" - | head -c 1 > "$2""#, &[&disk, "/dev/null"]), "");

    let small = format!("iscsi://{address}/{NAME}/1");
    let more = fails(1, &["blk", "cp", "/dev/zero", &small]);
    assert!(more.contains("1048576 bytes") && more.contains("choose a larger target"), "{more}");
    assert!(fails(2, &["blk", "cp", "--json", &disk, "-"]).contains("--json"));
    assert!(fails(2, &["blk", "cp", "-", "-"]).contains("neither source nor target is a URL"));
    assert!(!Path::new("-").exists());
}

#[test]
fn the_name_of_the_file_of_a_disk_need_not_be_utf8() {
    let lun = OsStr::from_bytes(b"disk=/m/se\xf1or,size=1MiB");
    let args = ["--export", "/m=memory:16MiB", "--listen-iscsi", "127.0.0.1:0", "--lun"].map(OsStr::new);
    let server = Server::start_with("127.0.0.1:0", "127.0.0.1:0", &[&args[..], &[lun]].concat());
    let list = ok(&["blk", "ls", &format!("iscsi://{}", iscsi_address(&server))]);
    assert!(list.contains("1 MiB"), "{list}");
    let stat = ok(&["stat", "--json", &server.url("tcp", "/m/se%F1or")]);
    assert!(stat.contains("\"size\":1048576"), "{stat}");
}

#[test]
fn each_error_is_one_sentence_that_says_what_to_do() {
    let (server, address) = serve();
    let portal = format!("iscsi://{address}");
    let disk = |name: &str, lun: u32| format!("{portal}/{name}/{lun}");
    let unknown = fails(1, &["blk", "info", &disk("iqn.2026-01.example.millrace:none", 0)]);
    assert!(unknown.contains("millrace blk ls"), "{unknown}");
    let no_lun = fails(1, &["blk", "info", &disk(NAME, 7)]);
    assert!(no_lun.contains("no such LUN") && no_lun.contains("millrace blk ls"), "{no_lun}");
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    fs::write(&image, noise(SIZE, 1)).unwrap();
    let small = fails(1, &["blk", "cp", text(&image), &disk(NAME, 1)]);
    assert!(small.contains("1048576 bytes") && small.contains("choose a larger target"), "{small}");
    let no_target = fails(2, &["blk", "info", &portal]);
    assert!(no_target.contains("names no target"), "{no_target}");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let unreachable = fails(1, &["blk", "ls", &format!("iscsi://{free}")]);
    let (nfs_tcp, nfs_rdma) = (&server.tcp, &server.rdma);
    let wrong_protocol = |url: String| fails(1, &["blk", "info", &format!("{url}/{NAME}/0")]);
    for error in [
        unreachable,
        wrong_protocol(format!("iscsi://{nfs_tcp}")),
        wrong_protocol(format!("iser://{nfs_rdma}")),
        wrong_protocol(format!("iser://{nfs_tcp}")),
    ] {
        assert!(error.contains("check that the target runs, and that the port is that of the"), "{error}");
    }
}

#[test]
fn chap_secrets_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let (config, secret, wrong) = (dir.path().join("c.toml"), dir.path().join("s"), dir.path().join("w"));
    let targets = "[[export]]\nname = \"/m\"\nbackend = \"memory:16MiB\"\n\n[[target]]\nname = \"disk\"\n\
                   incoming_user = { name = \"host\", secret = \"secret of the host\" }\n\n\
                   [[target.lun]]\npath = \"/m/disk0\"\nsize = \"1MiB\"\n";
    fs::write(&config, targets).unwrap();
    fs::write(&secret, "secret of the host\n").unwrap();
    fs::write(&wrong, "another secret....\n").unwrap();
    let server = Server::start(&["--listen-iscsi", "127.0.0.1:0", "--config", text(&config)]);
    let disk = format!("iscsi://{}/{NAME}/0", iscsi_address(&server));
    let with = |file: &Path| {
        ["blk", "info", "--chap-user", "host", "--chap-secret-file", text(file), &disk].map(str::to_owned)
    };
    assert!(ok(&with(&secret)).contains("1 MiB"));
    let refused = fails(1, &with(&wrong));
    assert!(refused.contains("check the CHAP name and secret of this initiator"), "{refused}");
    let required = fails(1, &["blk", "info", &disk]);
    assert!(required.contains("the target requires CHAP") && required.contains("--chap-user"), "{required}");
    let no_secret = fails(2, &["blk", "info", "--chap-user", "host", &disk]);
    assert!(no_secret.contains("--chap-secret-file"), "{no_secret}");
}

#[test]
fn secret_of_an_attached_disk_is_not_in_the_list_of_processes() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("c.toml");
    let target = "[[export]]\nname = \"/m\"\nbackend = \"memory:16MiB\"\n\n[[target]]\nname = \"disk\"\n\
                  incoming_user = { name = \"host\", secret = \"secret-of-the-host\" }\n\n\
                  [[target.lun]]\npath = \"/m/disk\"\nsize = \"1MiB\"\n";
    fs::write(&config, target).unwrap();
    let server = Server::start(&["--config", text(&config), "--listen-iscsi", "127.0.0.1:0"]);
    let url = format!("iscsi://host%secret-of-the-host@{}/{NAME}/0", iscsi_address(&server));
    let socket = dir.path().join("disk.sock");
    let mut command = millrace();
    command.args(["blk", "attach", "--nbd", text(&socket), &url]);
    let mut attached = Mounting::start(command, dir.path());
    assert!(attached.ready.starts_with("ready nbd+unix"), "{}", attached.ready);
    let line = fs::read_to_string(format!("/proc/{}/cmdline", attached.child.id())).unwrap();
    assert!(line.contains("iscsi://host@127.0.0.1") && !line.contains("secret-of-the-host"), "{line}");
    kill(attached.child.id(), "TERM");
    assert_eq!(attached.end().0.code(), Some(0));
}

/// Starts `millrace blk attach`.
fn attach(url: &str, at: &Path, more: &[&str]) -> Mounting {
    let mut command = millrace();
    command.args(["blk", "attach", url, text(at)]).args(more);
    Mounting::start(command, at)
}

#[test]
fn attached_disk_is_a_file_until_a_signal_or_umount() {
    if !fuse_is_available() {
        return;
    }
    let (_server, address) = serve();
    let url = format!("iscsi://{address}/{NAME}/0");
    let (at, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (disk, image) = (at.path().join("disk"), dir.path().join("image"));
    let mut data = noise(SIZE, 3);
    fs::write(&image, &data).unwrap();
    ok(&["blk", "cp", "--quiet", text(&image), &url]);
    for end in ["TERM", "INT", "umount"] {
        let mut attached = attach(&url, at.path(), &[]);
        assert!(fs::read(&disk).unwrap() == data, "{end}");
        let mut file = OpenOptions::new().write(true).open(&disk).unwrap();
        file.seek(SeekFrom::Start(1000)).unwrap();
        file.write_all(end.as_bytes()).unwrap();
        data[1000..1000 + end.len()].copy_from_slice(end.as_bytes());
        drop(file);
        match end {
            "umount" => assert!(Command::new("umount").arg(at.path()).status().unwrap().success()),
            signal => kill(attached.child.id(), signal),
        }
        let (status, log) = attached.end();
        assert_eq!(status.code(), Some(0), "{log}");
    }
    ok(&["blk", "cp", "--quiet", &url, text(&image)]);
    assert!(fs::read(&image).unwrap() == data);

    let mut attached = attach(&url, at.path(), &["--read-only"]);
    assert!(OpenOptions::new().write(true).open(&disk).is_err());
    let in_use = fails(1, &["blk", "attach", "--log", "error", &url, text(at.path())]);
    assert!(in_use.contains("not empty"), "{in_use}");
    kill(attached.child.id(), "TERM");
    attached.end();
    let no_directory = fails(1, &["blk", "attach", "--log", "error", &url, text(&image)]);
    assert!(no_directory.contains("not a directory"), "{no_directory}");
}

#[test]
fn a_program_that_waits_for_a_silent_target_can_be_killed() {
    if !fuse_is_available() {
        return;
    }
    let (server, address) = serve();
    let at = tempfile::tempdir().unwrap();
    let mut attached = attach(&format!("iscsi://{address}/{NAME}/0"), at.path(), &["--timeout", "600"]);
    let disk = at.path().join("disk");
    let mut first = [0; 4];
    File::open(&disk).unwrap().read_exact_at(&mut first, 0).unwrap();
    kill(server.child.id(), "STOP");
    let mut reader = Command::new("cat").arg(&disk).stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(reader.try_wait().unwrap().is_none());
    let begun = Instant::now();
    reader.kill().unwrap();
    reader.wait().unwrap();
    assert!(begun.elapsed() < HANG / 2, "{:?}", begun.elapsed());
    kill(server.child.id(), "CONT");
    kill(attached.child.id(), "TERM");
    assert_eq!(attached.end().0.code(), Some(0));
}

#[test]
fn attached_disk_is_served_to_nbd_clients() {
    let (_server, address) = serve();
    let url = format!("iscsi://{address}/{NAME}/1");
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("disk.sock");
    let mut command = millrace();
    command.args(["blk", "attach", "--nbd", text(&socket), &url]);
    let mut attached = Mounting::start(command, dir.path());
    assert_eq!(attached.ready, format!("ready nbd+unix:///?socket={}\n", text(&socket)));
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);

    // The shortest handshake: the server's greeting, the client's flags, NBD_OPT_EXPORT_NAME.
    let mut client = UnixStream::connect(&socket).unwrap();
    client.set_read_timeout(Some(HANG)).unwrap();
    let mut greeting = [0; 18];
    client.read_exact(&mut greeting).unwrap();
    assert_eq!(greeting[..16], *b"NBDMAGICIHAVEOPT");
    client.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    let mut export = [0; 10];
    client.read_exact(&mut export).unwrap();
    assert_eq!(export[..8], (1_u64 << 20).to_be_bytes());

    let in_use = fails(1, &["blk", "attach", "--log", "error", "--nbd", text(&socket), &url]);
    assert!(in_use.contains("another process listens there"), "{in_use}");
    kill(attached.child.id(), "TERM");
    let (status, log) = attached.end();
    assert!(status.success() && !socket.exists(), "{log}");
    let neither = run(&["blk", "attach", &url]);
    assert_eq!(neither.status.code(), Some(2));
}
