//! File handles of a mount (name_to_handle_at(2), open_by_handle_at(2)), as nfsd and other servers use to
//! re-export it.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod common;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use common::{CASES, Export, fuse_is_available};
use millrace_client::{Options, handles::Client};
use millrace_runtime::tokio_rt::TokioRuntime;
use millrace_server::Server;

/// Gets the handles of a file and a directory, and opens them on request: prints the file's content and the
/// directory's path, or the errno.
const BY_HANDLE: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
mount = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)

class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]

def handle(name):
    handle, number = Handle(128), ctypes.c_int()
    if libc.name_to_handle_at(mount, name.encode(), ctypes.byref(handle), ctypes.byref(number), 0) < 0:
        sys.exit(f"name_to_handle_at: {os.strerror(ctypes.get_errno())}")
    return handle

def open_by(handle):
    fd = libc.open_by_handle_at(mount, ctypes.byref(handle), os.O_RDONLY)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "open_by_handle_at")
    return fd

handles = [handle("dir/file"), handle("dir/sub")]
print("taken", flush=True)
for _ in sys.stdin:
    try:
        file, sub = [open_by(h) for h in handles]
        print(os.read(file, 100).decode(), os.listdir(sub), os.path.relpath(os.readlink(f"/proc/self/fd/{sub}"), sys.argv[1]))
        os.close(file), os.close(sub)
    except OSError as e:
        print(e.errno)
    sys.stdout.flush()
"#;

fn can_run() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let has_python =
        Command::new("python3").args(["-c", "import ctypes"]).status().is_ok_and(|s| s.success());
    if !is_root || !has_python {
        eprintln!("SKIPPED, NOTHING WAS TESTED: opening by handle requires root and python3");
    }
    is_root && has_python && fuse_is_available()
}

/// A process with [`BY_HANDLE`], which has the handles.
struct ByHandle {
    python: Child,
    output: BufReader<ChildStdout>,
}

impl ByHandle {
    fn start(mount: &Path) -> Self {
        let mut python = Command::new("python3");
        python.args(["-c", BY_HANDLE]).arg(mount).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut python = python.spawn().unwrap();
        let output = BufReader::new(python.stdout.take().unwrap());
        let mut this = Self { python, output };
        assert_eq!(this.line(), "taken");
        this
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Opens the file and the directory.
    fn open(&mut self) -> String {
        writeln!(self.python.stdin.as_ref().unwrap()).unwrap();
        self.line()
    }
}

impl Drop for ByHandle {
    fn drop(&mut self) {
        drop(self.python.stdin.take());
        self.python.wait().unwrap();
    }
}

#[test]
fn file_handles_survive_forget() {
    if !can_run() {
        return;
    }
    for case in CASES {
        let export = Export::start(case.local);
        // Names are looked up each time: a failed lookup drops the dentry, and with it the inode.
        let (a, b) = (export.mount(case.proto, "lookupcache=none"), export.mount("tcp", ""));
        fs::create_dir_all(b.at.join("dir/sub/below")).unwrap();
        fs::write(b.at.join("dir/file"), "content").unwrap();
        let mut by_handle = ByHandle::start(&a.at);
        let mut open = || by_handle.open();
        assert_eq!(open(), "content ['below'] dir/sub", "{case:?}");
        for (old, new) in [("file", "other"), ("sub", "moved")] {
            fs::rename(b.at.join("dir").join(old), b.at.join("dir").join(new)).unwrap();
            assert!(!a.at.join("dir").join(old).exists());
        }
        assert_eq!(open(), "content ['below'] dir/moved", "{case:?}: after the kernel has forgotten them");
        fs::remove_file(b.at.join("dir/other")).unwrap();
        fs::write(b.at.join("dir/other"), "of another file").unwrap();
        assert!(fs::read_to_string(a.at.join("dir/other")).is_ok());
        assert_eq!(open(), rustix::io::Errno::STALE.raw_os_error().to_string(), "{case:?}");
        drop(by_handle);
        a.unmount();
        b.unmount();
    }
}

#[test]
fn moved_files_open_by_handle_while_their_old_names_are_cached() {
    if !can_run() {
        return;
    }
    for options in ["actimeo=3600", "actimeo=3600,allow_other"] {
        let export = Export::start(true);
        let (a, b) = (export.mount("tcp", options), export.mount("tcp", ""));
        fs::create_dir_all(b.at.join("dir/sub/below")).unwrap();
        fs::write(b.at.join("dir/file"), "content").unwrap();
        let mut by_handle = ByHandle::start(&a.at);
        let mut name = "dir/file".to_owned();
        for n in 0..100 {
            let new = format!("dir/file{n}");
            assert!(a.at.join(&name).exists(), "cached in the kernel of a");
            fs::rename(b.at.join(&name), b.at.join(&new)).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600 + n % 8);
            fs::set_permissions(b.at.join(&new), mode).unwrap();
            assert_eq!(by_handle.open(), "content ['below'] dir/sub", "{options}: {n}");
            name = new;
        }
        drop(by_handle);
        a.unmount();
        b.unmount();
    }
}

#[test]
fn mount_can_be_reexported() {
    if !can_run() {
        return;
    }
    let export = Export::start(false);
    // The server's I/O threads are not root, so that limits for users apply.
    let mounted = export.mount("rdma", "allow_other");
    fs::create_dir(mounted.at.join("dir")).unwrap();
    fs::write(mounted.at.join("dir/file"), "content").unwrap();
    let config = Export::config(&format!("local:{}", mounted.at.display()));
    let again = Server::start(config).unwrap();
    let url = format!("nfs://{}/data?proto=tcp", again.tcp_addr().unwrap()).parse().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let rt = TokioRuntime::from_handle(tokio::runtime::Handle::current());
        let client = Client::connect(rt, &url, Options::default()).await.unwrap();
        let file = client.open("dir/file").await.unwrap();
        let mut content = [0; 20];
        assert_eq!(file.read(0, &mut content).await.unwrap(), 7);
        assert_eq!(&content[..7], b"content");
        let new = client.create_file("dir/new", 0o644).await.unwrap();
        new.write(0, b"by the second client").await.unwrap();
        new.close().await.unwrap();
    });
    assert_eq!(fs::read_to_string(mounted.at.join("dir/new")).unwrap(), "by the second client");
    drop(again);
    mounted.unmount();
}
