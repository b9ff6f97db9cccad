//! Programs of other projects on the host: those of QEMU use a disk of Millrace's target, and the same disk through the
//! NBD socket of `millrace blk attach`, as does fio with the recipe in `tools/fio`. `millrace blk` uses a disk of tgt.

use std::{fs, time::Duration};

use anyhow::Result;

use super::{
    super::Case,
    initiator::{Backend, Setup, Transport},
};
use crate::{
    lab::{self, Lab},
    program,
};

/// Time limit of a script.
const LIMIT: Duration = Duration::from_secs(120);

/// Copies an image to the disk at `$url`, and verifies patterns, discarded and zeroed ranges.
const QEMU: &str = "
check() {
  qemu-img convert -n -f raw -O raw image $1
  qemu-img compare -f raw -F raw image $1
  qemu-io -f raw -c 'write -P 17 4608 3M' -c 'read -P 17 4608 3M' -c 'discard 8M 4M' -c 'read -P 0 8M 4M' \
    -c 'write -z 12M 1M' -c 'read -P 0 12M 1M' -c flush $1
}
head -c 32M /dev/urandom >image
truncate -s 128M image
check $url
$millrace blk attach --nbd socket $url >attach-log 2>&1 &
trap 'kill $!' EXIT
until [ -S socket ]; do sleep 0.1; done
check nbd+unix:///?socket=$PWD/socket
URI=nbd+unix:///?socket=$PWD/socket fio --output-format=json nbd.fio >fio-results
[ $(grep -c '\"error\" : 0' fio-results) = 4 ]
trap - EXIT
kill -INT $!
wait $!";

/// Starts tgt with a disk of 64 MiB, a plain file, at `$url`.
pub(super) const START_TGT: &str = "
mount -t tmpfs interop /run && mkdir /run/tgtd
tgtd --foreground --iscsi portal=127.0.0.1:3260 >tgtd-log 2>&1 &
trap 'kill $!' EXIT
admin() { tgtadm --lld iscsi --op $*; }
until admin show --mode target >/dev/null 2>&1; do sleep 0.1; done
target=iqn.2026-01.example.lab:tgt
truncate -s 64M disk
admin new --mode target --tid 1 -T $target
admin new --mode logicalunit --tid 1 --lun 1 -b $PWD/disk
admin bind --mode target --tid 1 -I ALL
url=iscsi://127.0.0.1:3260/$target/1
";

/// Copies an image to the disk of tgt and back, without and with digests, and then with CHAP in both directions.
const TGT: &str = "
copy() {
  head -c 64M /dev/urandom >image
  rm -f back
  $millrace blk cp $* image $url
  cmp image disk
  $millrace blk cp $* $url back
  cmp image back
}
$millrace blk ls iscsi://127.0.0.1 | grep -q $target
copy
! $millrace blk info --digests $url 2>refusal
grep -q 'HeaderDigest.*permit CRC32C digests at the target' refusal
for digest in HeaderDigest DataDigest; do admin update --mode target --tid 1 --name $digest --value CRC32C; done
copy --digests
for name in initiator target; do
  printf secret-of-$name >secret-of-$name
  admin new --mode account --user $name --password secret-of-$name
done
admin bind --mode account --tid 1 --user initiator
admin bind --mode account --tid 1 --user target --outgoing
! $millrace blk info $url 2>refusal
grep -q 'requires CHAP.*--chap-user' refusal
copy --chap-user initiator --chap-secret-file secret-of-initiator --target-user target \
  --target-secret-file secret-of-target";

pub(super) fn cases() -> Vec<Case> {
    let setup = Setup::of(Transport::Tcp, Backend::Memory);
    vec![
        Case::new(setup.case("qemu"), move |lab| qemu(lab, setup)),
        Case::new("tgt/copy", |lab| {
            on_host(lab, "", &format!("{START_TGT}{TGT}"), LIMIT)?;
            lab.finish(Vec::new(), &[])
        }),
    ]
}

/// The recipe for fio on the NBD socket.
const RECIPE: &str = include_str!("../../../../../tools/fio/nbd.fio");

fn qemu(lab: &mut Lab, setup: Setup) -> Result<()> {
    let recipe = RECIPE.replace("size=256m", "size=128m").replace("runtime=5", "runtime=1");
    fs::write(lab.dir.join("nbd.fio"), recipe)?;
    let server = lab.server(&setup.options(lab)?)?;
    on_host(lab, &setup.url(), QEMU, LIMIT)?;
    lab.finish(Vec::new(), &[&server])
}

/// Runs a script (bash) in the directory of the case.
pub(super) fn on_host(lab: &Lab, url: &str, script: &str, limit: Duration) -> Result<()> {
    let (dir, millrace) = (lab.dir.display(), lab::millrace_program()?);
    let script = format!("set -eu\ncd {dir}\nurl={url}\nmillrace={}\n{script}", millrace.display());
    program::run("bash", &["-c", &script], limit)?.ok().map(drop)
}
