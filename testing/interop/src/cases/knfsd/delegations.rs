//! The read delegations of a mount, granted and recalled by the Linux kernel's server.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use super::{Case, START_V4_ONLY, Variant, url};
use crate::{
    guest::{Guest, GuestOptions},
    lab::{self, Lab},
    network::LARGE_MTU,
    program,
};

/// Opens of a delegated file.
const OPENS: usize = 20;
/// Time limit of a grant.
const LIMIT: Duration = Duration::from_secs(10);

pub(super) fn cases() -> Vec<Case> {
    let case = |proto: &'static str| {
        let variant = Variant { proto, options: "&vers=4.2", mtu: LARGE_MTU };
        Case::new(format!("knfsd/{proto}/delegations"), move |lab| run(lab, variant))
    };
    ["tcp", "rdma"].into_iter().map(case).collect()
}

/// A mount reads delegated files without requests, and what others write after the recall.
fn run(lab: &mut Lab, variant: Variant) -> Result<()> {
    lab.expect_log("NFSD: ");
    let mut guest = lab.guest(&GuestOptions { memory: 1024, mtu: variant.mtu, ..GuestOptions::default() })?;
    guest.add_siw()?;
    guest.must(START_V4_ONLY)?;
    let mounted = lab.directory("mounted")?;
    let at = mounted.display().to_string();
    lab::millrace(&["mount", &url(&guest, variant, "/mnt/export"), &at, "--daemon"])?.ok()?;
    let text = lab.dir.join("text");
    fs::write(&text, "by client\n")?;
    let text = text.display().to_string();
    // The server does not delegate a file again shortly after a recall: each change has its own file.
    changed_by(&mut guest, &mounted.join("local"), |guest| {
        guest.must("timeout 30 sh -c 'echo by local > /mnt/export/local'").map(drop)
    })?;
    changed_by(&mut guest, &mounted.join("client"), |guest| {
        lab::millrace(&["put", &text, &url(guest, variant, "/mnt/export/client")])?.ok().map(drop)
    })?;
    changed_by(&mut guest, &mounted.join("rename"), |guest| {
        guest.must("cd /mnt/export && echo by rename > new && timeout 30 mv new rename").map(drop)
    })?;
    program::must("umount", &[&at])?;
    ensure!(delegations(&mut guest)? == 0, "after the end of the mount, the server has its delegations");
    lab.finish(vec![guest], &[])
}

/// Number of delegations that the server has granted.
fn delegations(guest: &mut Guest) -> Result<usize> {
    // Without clients there is no such file.
    Ok(guest.must("cat /proc/fs/nfsd/clients/*/states || :")?.matches("type: deleg").count())
}

/// Number of ACCESS, GETATTR, LOOKUP, OPEN and READ that the server has executed.
fn operations(guest: &mut Guest) -> Result<u64> {
    // `proc4ops`, the number of operations, and a counter for each.
    let sum = "awk '$1 == \"proc4ops\" { print $(3 + 3) + $(9 + 3) + $(15 + 3) + $(18 + 3) + $(25 + 3) }'";
    Ok(guest.must(&format!("{sum} /proc/net/rpc/nfsd"))?.trim().parse()?)
}

/// The mount obtains the delegation of a new file. The server recalls it for a change, which the mount then reads.
fn changed_by(guest: &mut Guest, file: &Path, change: impl FnOnce(&mut Guest) -> Result<()>) -> Result<()> {
    let name = file.file_name().unwrap_or_default().display();
    let expect = |expected: &str| -> Result<()> {
        let text = fs::read_to_string(file)?;
        ensure!(text.trim_end() == expected, "{name} reads {text:?} instead of {expected:?}");
        Ok(())
    };
    guest.must(&format!("echo first > /mnt/export/{name}"))?;
    expect("first")?;
    // The mount requests the delegation of a file that is opened again.
    expect("first")?;
    let deadline = Instant::now() + LIMIT;
    while delegations(guest)? == 0 {
        ensure!(Instant::now() < deadline, "the server does not delegate {name}");
    }
    // The mount looks the names up under the delegation.
    let mut before = operations(guest)?;
    expect("first")?;
    while operations(guest)? != before {
        ensure!(Instant::now() < deadline, "an open of {name} under a delegation takes requests");
        before = operations(guest)?;
        expect("first")?;
    }
    for _ in 0..OPENS {
        expect("first")?;
    }
    let more = operations(guest)? - before;
    ensure!(more == 0, "{OPENS} opens of {name} under a delegation took {more} operations");
    change(guest)?;
    ensure!(delegations(guest)? == 0, "{name} is delegated after its change");
    expect(&format!("by {name}"))
}
