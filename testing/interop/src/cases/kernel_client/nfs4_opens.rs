//! Files that two guests have open with NFSv4.2: one of them removes a file, or the administrator revokes the opens.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};

use super::{
    super::Case,
    mount::{EXPORT, boot, mount_v4_command},
};
use crate::{
    guest::{Guest, GuestOptions},
    lab::{self, Lab},
    server::ServerOptions,
};

/// Time limit of programs that wait for the other guest.
const LIMIT: Duration = Duration::from_secs(120);

/// The part of the Python programs that all have. `wait` waits until the other guest, or the administrator, creates a file.
const COMMON: &str = r#"
import errno, fcntl, os, time
os.chdir("/mnt/x")
def create(name):
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
def wait(name):
    while not os.path.exists(name):
        time.sleep(0.05)
"#;

/// Writes and reads a file after the other guest has removed it; the data that is read is not in the cache.
const USE_REMOVED: &str = r#"
f = os.open("gone", os.O_RDWR | os.O_CREAT)
os.write(f, b"before" * 20000)
os.fsync(f)
create("opened")
wait("removed")
os.pwrite(f, b"after", 120000)
os.fsync(f)
with open("/proc/sys/vm/drop_caches", "w") as caches:
    caches.write("3")
data = os.pread(f, 200000, 0)
assert data == b"before" * 20000 + b"after", (len(data), data[-20:])
os.ftruncate(f, 7)
assert os.fstat(f).st_size == 7
os.close(f)
assert sorted(os.listdir(".")) == ["opened", "removed"], os.listdir(".")
"#;

const REMOVE: &str = r#"
wait("opened")
os.unlink("gone")
create("removed")
"#;

/// Writes a file under a lock until it is revoked. Prints the error that follows.
const LOCKED: &str = r#"
f = os.open("shared", os.O_RDWR)
fcntl.lockf(f, fcntl.LOCK_EX, 100)
os.write(f, b"locked")
os.fsync(f)
create("locked")
wait("revoked")
try:
    os.pwrite(f, b"revoked", 0)
    os.fsync(f)
    print("none")
except OSError as e:
    print(errno.errorcode[e.errno])
"#;

/// Reads a file without a lock before and after its open is revoked.
const READ: &str = r#"
f = os.open("shared", os.O_RDONLY)
os.pread(f, 100, 0)
create("read")
wait("revoked")
with open("/proc/sys/vm/drop_caches", "w") as caches:
    caches.write("3")
print(os.pread(f, 100, 0).decode())
"#;

pub(super) fn cases() -> Vec<Case> {
    let case = |name: &str, proto: &'static str, run: fn(&mut Lab, &'static str) -> Result<()>| {
        Case::new(format!("kernel-client/{proto}/local/{name}"), move |lab| run(lab, proto))
    };
    ["tcp", "rdma"]
        .into_iter()
        .flat_map(|proto| [case("nfs4-removed", proto, removed), case("nfs4-revoked", proto, revoked)])
        .collect()
}

fn python(program: &str) -> String {
    format!("python3 - <<'END'\n{COMMON}{program}END")
}

/// Boots two guests, which identify themselves by their host names.
fn boot_two(lab: &mut Lab) -> Result<[Guest; 2]> {
    let mut guests = [boot(lab, &GuestOptions::default())?, boot(lab, &GuestOptions::default())?];
    for (n, guest) in guests.iter_mut().enumerate() {
        guest.must(&format!("hostname client{n}"))?;
    }
    Ok(guests)
}

/// A file that a guest has open exists until it closes it, on a local and a memory file system.
fn removed(lab: &mut Lab, proto: &'static str) -> Result<()> {
    let options =
        ServerOptions::default().local(EXPORT, &lab.directory("export")?, "").memory("/scratch", "16MiB");
    let server = lab.server(&options)?;
    let mut guests = boot_two(lab)?;
    for export in [EXPORT, "/scratch"] {
        for guest in &mut guests {
            guest.must(&mount_v4_command(proto, export, "/mnt/x", ",lookupcache=none"))?;
        }
        let user = guests[0].spawn(&python(USE_REMOVED))?;
        guests[1].spawn(&python(REMOVE))?.wait(LIMIT)?.ok()?;
        user.wait(LIMIT)?.ok().with_context(|| format!("on the export {export}"))?;
        for guest in &mut guests {
            guest.must("umount /mnt/x")?;
        }
    }
    lab.finish(guests.into(), &[&server])
}

/// The administrator lists the opens of both guests and revokes them: the guest with a lock gets EIO, the other one
/// reads on.
fn revoked(lab: &mut Lab, proto: &'static str) -> Result<()> {
    lab.expect_log("lost 1 locks");
    let (dir, control) = (lab.directory("export")?, lab.dir.join("control"));
    let mut options = ServerOptions::default().local(EXPORT, &dir, "");
    options.config = format!("control = \"{}\"\n", control.display());
    let server = lab.server(&options)?;
    let mut guests = boot_two(lab)?;
    for guest in &mut guests {
        guest.must(&mount_v4_command(proto, EXPORT, "/mnt/x", ",lookupcache=none"))?;
    }
    guests[0].must("echo > /mnt/x/shared")?;
    let holder = guests[0].spawn(&python(LOCKED))?;
    guests[1].must("until [ -e /mnt/x/locked ]; do sleep 0.05; done")?;
    let reader = guests[1].spawn(&python(READ))?;
    guests[0].must("until [ -e /mnt/x/read ]; do sleep 0.05; done")?;
    list(&control)?;
    let file = format!("{EXPORT}/shared");
    let revoked = state(&control, &["revoke", "--file", &file])?;
    ensure!(revoked == format!("3 opens and lock owners of {file} are revoked\n"), "revoke: {revoked}");
    std::fs::write(dir.join("revoked"), "")?;
    let error = holder.wait(LIMIT)?.ok()?.stdout;
    ensure!(error.trim() == "EIO", "the write of a guest whose lock is revoked has the error {error}");
    let data = reader.wait(LIMIT)?.ok()?.stdout;
    ensure!(data.trim() == "locked", "a guest whose open is revoked reads {data:?}");
    for guest in &mut guests {
        guest.must("umount /mnt/x")?;
    }
    lab.finish(guests.into(), &[&server])
}

/// Checks the lists of clients, and of the opens and locks of the file.
fn list(control: &Path) -> Result<()> {
    let clients = state(control, &["--json"])?;
    for name in ["client0", "client1"] {
        let count = clients.lines().filter(|line| line.contains(name)).count();
        ensure!(count == 1, "the list of clients has {count} of the name {name}: {clients}");
    }
    let opens = state(control, &["--json", "--file", &format!("{EXPORT}/shared")])?;
    for (what, expected) in
        [("\"open\"", 2), ("\"locks\"", 1), ("\"access\":\"rw\"", 1), ("\"access\":\"r\"", 1)]
    {
        let count = opens.lines().filter(|line| line.contains(what)).count();
        ensure!(
            count == expected,
            "the list of opens has {count} lines with {what}, not {expected}: {opens}"
        );
    }
    Ok(())
}

/// The output of `millrace state`.
fn state(control: &Path, args: &[&str]) -> Result<String> {
    let socket = control.display().to_string();
    Ok(lab::millrace(&[&["state"], args, &["--socket", &socket]].concat())?.ok()?.stdout)
}
