//! Sparse files and copies on the server with NFSv4.2.

use anyhow::{Context, Result, ensure};

use super::{
    super::Case,
    mount::{EXPORT, boot, mount_v4_command, must_have_sent},
};
use crate::{
    guest::{Guest, GuestOptions},
    lab::Lab,
    server::ServerOptions,
};

/// `find_part WHENCE OFFSET` prints the result of lseek(2) with `SEEK_DATA` (3) or `SEEK_HOLE` (4) on the file `data`.
/// `copy_range FROM TO LENGTH` copies within the server, from `data` to `copy`, by copy_file_range(2) (number 326 on
/// x86-64), and continues after a short copy.
const TOOLS: &str = r#"
find_part() { perl -e '
  open(my $f, "<", "data") or die $!;
  my $at = sysseek($f, $ARGV[1], $ARGV[0]);
  print defined($at) ? $at + 0 : "none"' "$@"; }
copy_range() { perl -e '
  my ($from, $to, $left) = @ARGV;
  open(my $in, "<", "data") or die $!;
  open(my $out, "+>>", "copy") or die $!; close $out;
  open($out, "+<", "copy") or die $!;
  while ($left > 0) {
    my ($i, $o) = (pack("q", $from), pack("q", $to));
    my $n = syscall(326, fileno($in), $i, fileno($out), $o, $left + 0, 0);
    die "copy_file_range: $!" if $n <= 0;
    $from += $n; $to += $n; $left -= $n;
  }' "$@"; }
set -e
"#;

/// Makes the same changes to `data` and, by writes, to the model `/tmp/model`.
const CHANGES: &str = "
head -c 3000000 /dev/urandom > /tmp/model
cat /tmp/model > data
fallocate --punch-hole --offset 65536 --length 1048576 data
dd if=/dev/zero of=/tmp/model bs=65536 seek=1 count=16 conv=notrunc status=none
fallocate --punch-hole --offset 2000001 --length 70000 data
dd if=/dev/zero of=/tmp/model bs=1 seek=2000001 count=70000 conv=notrunc status=none
fallocate --offset 100 --length 1000 data
[ $(stat -c %s data) = 3000000 ]
fallocate --offset 2999000 --length 1001000 data
truncate --size 4000000 /tmp/model
[ $(stat -c %s data) = 4000000 ]
cmp data /tmp/model";

/// Copies aligned and unaligned ranges, and a whole file.
const COPIES: &str = "
copy_range 0 0 4000000
cmp copy data
cmp copy /tmp/model
copy_range 5 70001 1500000
dd if=/tmp/model of=/tmp/expected bs=70001 count=1 status=none
tail -c +6 /tmp/model | head -c 1500000 >> /tmp/expected
tail -c +1570002 /tmp/model >> /tmp/expected
cmp copy /tmp/expected
cp data whole
cmp whole /tmp/model
if cp --reflink=always data clone 2> /dev/null; then cmp clone /tmp/model; fi";

/// Reads pages that end in holes of a few bytes, over which a reply to READ_PLUS must not become longer than the page.
const SHORT_HOLES: &str = "
for hole in 1 7 15 16 19 20 24 40 4095; do
  rm -f data /tmp/model; truncate --size 262144 data /tmp/model
  head -c $((0x33000 - 0x26998 - hole)) /dev/urandom > /tmp/part
  dd if=/tmp/part of=data oflag=direct,seek_bytes seek=$((0x26998)) bs=1M conv=notrunc status=none
  dd if=/tmp/part of=/tmp/model oflag=seek_bytes seek=$((0x26998)) bs=1M conv=notrunc status=none
  echo 3 > /proc/sys/vm/drop_caches
  dd if=data iflag=skip_bytes,count_bytes skip=$((0x32000)) count=4096 bs=4096 status=none > /tmp/got
  dd if=/tmp/model iflag=skip_bytes,count_bytes skip=$((0x32000)) count=4096 bs=4096 status=none | cmp - /tmp/got
  cmp data /tmp/model
done";

pub(super) fn cases() -> Vec<Case> {
    let case = |proto: &'static str| {
        Case::new(format!("kernel-client/{proto}/local/nfs4-ranges"), move |lab| ranges(lab, proto))
    };
    ["tcp", "rdma"].into_iter().map(case).collect()
}

/// Changes ranges of files on a local and a memory file system, and compares all bytes.
fn ranges(lab: &mut Lab, proto: &'static str) -> Result<()> {
    let options =
        ServerOptions::default().local(EXPORT, &lab.directory("export")?, "").memory("/scratch", "64MiB");
    let server = lab.server(&options)?;
    let mut guest = boot(lab, &GuestOptions::default())?;
    for export in [EXPORT, "/scratch"] {
        guest.must(&mount_v4_command(proto, export, "/mnt/x", ""))?;
        change(&mut guest).with_context(|| format!("on the export {export}"))?;
        guest.must("umount /mnt/x")?;
    }
    lab.finish(vec![guest], &[&server])
}

fn change(guest: &mut Guest) -> Result<()> {
    guest.must(&format!("{TOOLS}cd /mnt/x{CHANGES}"))?;
    for (part, expected) in [("4 0", "65536"), ("3 65536", "1114112"), ("3 4000000", "none")] {
        let got = guest.must(&format!("{TOOLS}cd /mnt/x; find_part {part}"))?;
        ensure!(got.trim() == expected, "lseek with whence and offset {part} returned {got}, not {expected}");
    }
    guest.must(&format!("{TOOLS}cd /mnt/x{COPIES}"))?;
    guest.must(&format!("{TOOLS}cd /mnt/x{SHORT_HOLES}"))?;
    must_have_sent(guest, &["ALLOCATE", "DEALLOCATE", "SEEK", "COPY"])
}
