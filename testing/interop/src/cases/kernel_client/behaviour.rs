//! Operations of programs on files other than sequential reads and writes of whole files.

use anyhow::{Context, Result, ensure};

use super::{
    super::Case,
    mount::{Backend, EXPORT, boot, mount_command, mount_v4_command},
};
use crate::{guest::GuestOptions, lab::Lab};

/// Each script runs in a new directory of the mount. `again` unmounts and mounts, so that the guest's cache
/// answers nothing, and `refuse COMMAND` requires that the command fails. Every line must succeed; a `[ ]`
/// must be alone on its line.
const SCRIPTS: [(&str, &str); 7] = [
    ("append", APPEND),
    ("truncate", TRUNCATE),
    ("rename-over-open", RENAME_OVER_OPEN),
    ("unlink-while-open", UNLINK_WHILE_OPEN),
    ("mmap", MMAP),
    ("holes", HOLES),
    ("exclusive-create", EXCLUSIVE),
];

const APPEND: &str = "
for i in $(seq 200); do echo line $i >> log; done
again
for i in $(seq 201 300); do echo line $i >> log; done
again
cmp log <(for i in $(seq 300); do echo line $i; done)";

const TRUNCATE: &str = "
head -c 300000 /dev/urandom > /tmp/data; cp /tmp/data f
truncate -s 70001 f; again
cmp f <(head -c 70001 /tmp/data)
truncate -s 200000 f; again
cmp f <(head -c 70001 /tmp/data; head -c 129999 /dev/zero)
: > f; again
[ ! -s f ]";

const RENAME_OVER_OPEN: &str = "
echo old > target; echo new > source
exec 3< target
mv source target
[ $(cat target) = new ]
[ $(cat <&3) = old ]
exec 3<&-
again
[ \"$(ls -A)\" = target ]
[ $(cat target) = new ]";

// The client renames the file until it is closed.
const UNLINK_WHILE_OPEN: &str = "
head -c 100000 /dev/urandom > /tmp/data; cp /tmp/data f
exec 3<> f
rm f
[ ! -e f ]
ls -A | grep -q '^\\.nfs'
cmp /tmp/data <(cat <&3)
echo more >&3
exec 3>&-
again
[ -z \"$(ls -A)\" ]";

const MMAP: &str = "
fio --name=m --filename=$PWD/f --size=4M --bs=4k --ioengine=mmap --rw=randwrite --verify=sha256 --end_fsync=1 \\
  --do_verify=0 --randseed=5 --output=/tmp/fio
sum=$(sha256sum < f)
again
[ \"$sum\" = \"$(sha256sum < f)\" ]
fio --name=m --filename=$PWD/f --size=4M --bs=4k --ioengine=mmap --rw=randwrite --verify=sha256 --verify_only=1 \\
  --randseed=5 --output=/tmp/fio";

const HOLES: &str = "
dd if=/dev/urandom of=/tmp/data bs=1000 count=1 status=none
for at in 0 5000 70000 3000000; do dd if=/tmp/data of=f bs=1 seek=$at conv=notrunc status=none; done
again
[ $(stat -c %s f) = 3001000 ]
for at in 0 5000 70000 3000000; do cmp -i $at:0 -n 1000 f /tmp/data; done
cmp -i 71000:0 -n 2929000 f /dev/zero";

const EXCLUSIVE: &str = "
set -o noclobber
echo mine > f
refuse eval 'echo other > f'
again
[ $(cat f) = mine ]
mkdir d; refuse mkdir d
ln -s nowhere l; refuse ln -s elsewhere l
ln f g; refuse ln f g
[ $(stat -c %h f) = 2 ]";

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (proto, backend) in [("rdma", Backend::Memory), ("rdma", Backend::Local), ("tcp", Backend::Local)] {
        let name = format!("kernel-client/{proto}/{}/behaviour", backend.name());
        cases.push(Case::new(name, move |lab| run(lab, &mount_command(proto, "/mnt/x", ""), backend)));
        let name = format!("kernel-client/{proto}/{}/nfs4-behaviour", backend.name());
        let mount = mount_v4_command(proto, EXPORT, "/mnt/x", "");
        cases.push(Case::new(name, move |lab| run(lab, &mount, backend)));
    }
    for proto in ["rdma", "tcp"] {
        cases.push(Case::new(format!("kernel-client/{proto}/durable/fsync"), move |lab| fsync(lab, proto)));
    }
    cases
}

fn run(lab: &mut Lab, mount: &str, backend: Backend) -> Result<()> {
    let server = lab.server(&backend.options(lab)?)?;
    let mut guest = boot(lab, &GuestOptions::default())?;
    guest.must(mount)?;
    for (name, script) in SCRIPTS {
        let prelude = format!(
            "set -eE -o pipefail\ntrap 'echo line $LINENO: $BASH_COMMAND >&2' ERR\n\
             again() {{ cd /; umount /mnt/x; {mount}; cd /mnt/x/{name}; }}\n\
             refuse() {{ if \"$@\" 2>/dev/null; then echo \"not refused: $*\" >&2; exit 1; fi; }}\n\
             mkdir /mnt/x/{name}; cd /mnt/x/{name}\n"
        );
        guest.must(&format!("{prelude}{script}")).with_context(|| name.to_owned())?;
    }
    lab.finish(vec![guest], &[&server])
}

/// Data that `fsync` has acknowledged survives a server that is killed immediately, and it is in the server's
/// file before the guest has unmounted anything.
fn fsync(lab: &mut Lab, proto: &str) -> Result<()> {
    lab.expect_log("not responding, still trying");
    lab.expect_log("nfs: server 10.77.0.1 OK");
    let mut server = lab.server(&Backend::Durable.options(lab)?)?;
    let mut guest = boot(lab, &GuestOptions::default())?;
    guest.must(&mount_command(proto, "/mnt/x", ""))?;
    guest
        .must("head -c 3000000 /dev/urandom > /tmp/data && dd if=/tmp/data of=/mnt/x/f bs=64k conv=fsync")?;
    ensure!(
        server.metrics()?.get("nfs_calls_total{version=\"3\",procedure=\"COMMIT\"}")? > 0,
        "fsync sent no COMMIT"
    );
    server.stop("KILL")?;
    let want = guest.must("sha256sum < /tmp/data")?;
    let have = crate::program::must("sha256sum", &[&lab.dir.join("export/f").display().to_string()])?.stdout;
    ensure!(
        have.split(' ').next() == want.split(' ').next(),
        "the server's file has the sum {have} instead of {want}"
    );
    server.start_again()?;
    guest.must("cmp /tmp/data /mnt/x/f && echo more >> /mnt/x/f && sync /mnt/x/f")?;
    lab.finish(vec![guest], &[&server])
}
