//! A file system on the disk: a tree is written, and is equal after another login.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::{
    super::{Case, kernel_client::mount},
    initiator::{Backend, Setup, Transport, boot, log_in, log_in_again, log_out},
};
use crate::lab::Lab;

/// Result of fio in the guest.
const RESULT: &str = "/tmp/fio.json";
/// Time limit of the verified random operations.
const LIMIT: Duration = Duration::from_secs(2700);

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for transport in [Transport::Tcp, Transport::Iser] {
        let memory = Setup::of(transport, Backend::Memory);
        let local = Setup::of(transport, Backend::Local);
        let trees = [
            ("tree", memory),
            ("tree", local),
            ("block-4096", Setup { block: 4096, ..memory }),
            ("chap", Setup { chap: true, ..memory }),
        ];
        for (what, setup) in trees {
            cases.push(Case::new(setup.case(what), move |lab| tree(lab, setup)));
        }
        for setup in [memory, local] {
            cases.push(Case::new(setup.case("random"), move |lab| random(lab, setup)));
        }
        cases.push(Case::new(memory.case("logins"), move |lab| logins(lab, memory)));
    }
    // iSER has no digests.
    let digests = Setup { digests: true, ..Setup::of(Transport::Tcp, Backend::Memory) };
    cases.push(Case::new(digests.case("digests"), move |lab| tree(lab, digests)));
    cases
}

/// Makes a partition with ext4, copies a tree to it and compares it after another login.
fn tree(lab: &mut Lab, setup: Setup) -> Result<()> {
    let server = lab.server(&setup.options(lab)?)?;
    let mut guest = boot(lab, setup)?;
    lab.expect_log("EXT4-fs");
    let want = mount::make_tree(lab, &mut guest, "/tmp/tree", 1)?;
    let disk = log_in(&mut guest, setup)?;
    let size = guest.must(&format!("blockdev --getss --getsize64 {disk}"))?;
    ensure!(size == format!("{}\n{}\n", setup.block, 128 << 20), "block and disk have {size} bytes");
    guest.must(&format!(
        "echo ',,L' | sfdisk --quiet {disk} && mkfs.ext4 -q {disk}1 && mkdir /mnt/x && mount {disk}1 /mnt/x && \
         cp -a /tmp/tree /mnt/x/ && fstrim /mnt/x && umount /mnt/x"
    ))?;
    log_out(&mut guest)?;
    let disk = log_in_again(&mut guest)?;
    guest.must(&format!("e2fsck -fn {disk}1 && mount -o ro {disk}1 /mnt/x"))?;
    want.expect_same(&mount::manifest(&mut guest, "/mnt/x/tree")?, "the tree on the disk")?;
    guest.must("umount /mnt/x")?;
    log_out(&mut guest)?;
    lab.finish(vec![guest], &[&server])
}

/// Reads and writes random blocks and verifies them: 1,000,000 operations, or 20,000. A file in memory copies the small
/// ones, and takes the memory of whole blocks of 64 KiB in the large ones, at any offset.
fn random(lab: &mut Lab, setup: Setup) -> Result<()> {
    let server = lab.server(&setup.options(lab)?)?;
    let mut guest = boot(lab, setup)?;
    let disk = log_in(&mut guest, setup)?;
    // A loop over the disk has about 22,000 operations, and fio ends at `number_ios` times `loops`.
    let (operations, loops) = (20_000, if lab.quick { 1 } else { 50 });
    let fio = format!(
        "fio --name=random --filename={disk} --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite \
         --bssplit=4k/60:12k/20:64k/15:512k/5 --blockalign=4k --number_ios={operations} --loops={loops} \
         --verify=crc32c --verify_fatal=1 --verify_backlog=256 --randseed=1 --output-format=json --output={RESULT}"
    );
    guest.spawn(&fio)?.wait(guest.limit(LIMIT))?.ok()?;
    let result: Value = serde_json::from_str(&guest.must(&format!("cat {RESULT}"))?)?;
    let of = |direction: &str| result["jobs"][0][direction]["total_ios"].as_u64().unwrap_or_default();
    let (written, read) = (of("write"), of("read"));
    ensure!(written + read >= operations * loops, "{written} writes and {read} reads were done");
    log_out(&mut guest)?;
    lab.finish(vec![guest], &[&server])
}

/// Logs in and out many times; the server keeps nothing.
fn logins(lab: &mut Lab, setup: Setup) -> Result<()> {
    let server = lab.server(&setup.options(lab)?)?;
    let mut guest = boot(lab, setup)?;
    log_in(&mut guest, setup)?;
    for _ in 0..if lab.quick { 10 } else { 100 } {
        log_out(&mut guest)?;
        log_in_again(&mut guest)?;
    }
    log_out(&mut guest)?;
    lab.finish(vec![guest], &[&server])
}
