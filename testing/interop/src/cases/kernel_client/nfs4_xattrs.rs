//! Extended attributes, and clones of files, with NFSv4.2.

use anyhow::{Context, Result};

use super::{
    super::Case,
    mount::{EXPORT, boot, mount_v4_command, must_have_sent},
};
use crate::{guest::GuestOptions, lab::Lab, server::ServerOptions};

/// The part of the Python programs that both have. `fails` expects the error of a call.
const COMMON: &str = r#"
import errno, os
file, directory = "/mnt/x/file", "/mnt/x/directory"
values = {"user.text": b"second value", "user.bytes": bytes(range(256)) * 8, "user.empty": b""}
values.update(("user.number%d" % n, b"%d" % n) for n in range(20))
def fails(error, call, *args):
    try:
        call(*args)
    except OSError as e:
        assert e.errno == error, e
    else:
        raise AssertionError("%s%s has no error" % (call.__name__, args))
"#;

/// Sets and replaces attributes.
const SET: &str = r#"
open(file, "w").close()
os.mkdir(directory)
os.setxattr(file, "user.text", b"first")
for name in values:
    os.setxattr(file, name, values[name], os.XATTR_REPLACE if name == "user.text" else os.XATTR_CREATE)
fails(errno.EEXIST, os.setxattr, file, "user.text", b"third", os.XATTR_CREATE)
fails(errno.ENODATA, os.setxattr, file, "user.none", b"third", os.XATTR_REPLACE)
os.setxattr(directory, "user.text", b"of a directory")
"#;

/// Gets, lists and removes the attributes.
const GET: &str = r#"
def listed(path):
    return sorted(name for name in os.listxattr(path) if name.startswith("user."))
assert listed(file) == sorted(values), listed(file)
for name in values:
    assert os.getxattr(file, name) == values[name], name
assert listed(directory) == ["user.text"]
assert os.getxattr(directory, "user.text") == b"of a directory"
fails(errno.ENODATA, os.getxattr, file, "user.none")
os.removexattr(file, "user.bytes")
fails(errno.ENODATA, os.getxattr, file, "user.bytes")
fails(errno.ENODATA, os.removexattr, file, "user.bytes")
del values["user.bytes"]
assert listed(file) == sorted(values), listed(file)
"#;

/// Clones a file whose end is not that of a block. Changes of the clone, and of the file, leave the other one unchanged.
const CLONES: &str = "set -e
head -c 3000000 /dev/urandom > /tmp/model
cd /mnt/x
cp /tmp/model data
cp --reflink=always data clone
cp --reflink=always clone second
cmp clone /tmp/model
cp /tmp/model /tmp/changed
for file in clone /tmp/changed; do
  printf 'changed' | dd of=$file bs=1 seek=70000 conv=notrunc status=none
  dd if=/dev/zero of=$file bs=65536 seek=4 count=2 conv=notrunc status=none
  truncate --size 2000001 $file
done
cmp clone /tmp/changed
cmp data /tmp/model
: > data
cmp clone /tmp/changed
cmp second /tmp/model";

pub(super) fn cases() -> Vec<Case> {
    let case = |name: &str, proto: &'static str, run: fn(&mut Lab, &'static str) -> Result<()>| {
        Case::new(format!("kernel-client/{proto}/{name}"), move |lab| run(lab, proto))
    };
    ["tcp", "rdma"]
        .into_iter()
        .flat_map(|proto| {
            [case("local/nfs4-xattrs", proto, xattrs), case("memory/nfs4-clone", proto, clones)]
        })
        .collect()
}

/// Uses attributes on a local and a memory file system. The guest mounts again before it gets them, so that it has none in
/// its cache.
fn xattrs(lab: &mut Lab, proto: &'static str) -> Result<()> {
    let options =
        ServerOptions::default().local(EXPORT, &lab.directory("export")?, "").memory("/scratch", "16MiB");
    let server = lab.server(&options)?;
    let mut guest = boot(lab, &GuestOptions::default())?;
    for export in [EXPORT, "/scratch"] {
        let programs: [(&str, &[&str]); 2] =
            [(SET, &["SETXATTR"]), (GET, &["GETXATTR", "LISTXATTRS", "REMOVEXATTR"])];
        for (program, operations) in programs {
            guest.must(&mount_v4_command(proto, export, "/mnt/x", ""))?;
            guest
                .must(&format!("python3 - <<'END'\n{COMMON}{program}END"))
                .with_context(|| format!("on the export {export}"))?;
            must_have_sent(&mut guest, operations)?;
            guest.must("umount /mnt/x")?;
        }
    }
    lab.finish(vec![guest], &[&server])
}

fn clones(lab: &mut Lab, proto: &'static str) -> Result<()> {
    let server = lab.server(&ServerOptions::default().memory(EXPORT, "16MiB"))?;
    let mut guest = boot(lab, &GuestOptions::default())?;
    guest.must(&mount_v4_command(proto, EXPORT, "/mnt/x", ""))?;
    guest.must(CLONES)?;
    must_have_sent(&mut guest, &["CLONE"])?;
    guest.must("umount /mnt/x")?;
    guest.must(&mount_v4_command(proto, EXPORT, "/mnt/x", ""))?;
    guest.must("cmp /mnt/x/clone /tmp/changed && cmp /mnt/x/second /tmp/model")?;
    guest.must("umount /mnt/x")?;
    lab.finish(vec![guest], &[&server])
}
