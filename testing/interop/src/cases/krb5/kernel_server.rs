//! Millrace's client uses the kernel's server, with rpc.svcgssd.

use std::{fs, path::Path, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;

use super::{super::Case, FLAVORS, boot};
use crate::{
    cases::knfsd,
    guest::Guest,
    lab::{self, Lab},
    program::{self, Output},
    realm::{GUEST_NAME, Realm, USERS, with_tickets},
};

const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn cases() -> Vec<Case> {
    let case = |version| Case::new(format!("krb5/knfsd/v{version}"), move |lab| flavors(lab, version));
    ["3", "4.2"].map(case).into()
}

/// Starts the kernel's server.
fn start(lab: &mut Lab, version: &str) -> Result<(Realm, Guest)> {
    lab.expect_log("NFSD: ");
    let (realm, mut guest) = boot(lab, &["nfs/guest.test"])?;
    guest.must(if version == "3" { knfsd::START } else { knfsd::START_V4_ONLY })?;
    guest.must(
        "chmod 1777 /mnt/export
         setsid rpc.idmapd -f -S >/tmp/idmapd.log 2>&1 </dev/null &
         setsid rpc.svcgssd -f -vv -n >/tmp/svcgssd.log 2>&1 </dev/null &
         waits() { ls -l /proc/$(pgrep -x $1)/fd 2>/dev/null | grep -q $2; }
         for i in $(seq 100); do
           waits rpc.svcgssd auth.rpcsec.init && waits rpc.idmapd nfs4.nametoid && exit; sleep 0.05
         done; cat /tmp/*.log >&2; exit 1",
    )?;
    Ok((realm, guest))
}

fn export(guest: &mut Guest, flavor: &str) -> Result<()> {
    let options = format!("rw,sec={flavor},async,no_root_squash,insecure,no_subtree_check,fsid=0");
    guest.must(&format!("exportfs -i -o {options} '*:/mnt/export'")).map(drop)
}

/// The URL of a path of the export.
fn url(version: &str, proto: &str, flavor: &str, path: &str) -> String {
    let export = if version == "3" { "/mnt/export" } else { "" };
    format!("nfs://{GUEST_NAME}{export}/{path}?proto={proto}&vers={version}&sec={flavor}")
}

/// Runs `millrace` with these tickets.
fn millrace(tickets: &Path, args: &[&str]) -> Result<Output> {
    let program = lab::millrace_program()?.display().to_string();
    program::run("env", &[&[with_tickets(tickets).as_str(), &program], args].concat(), LIMIT)
}

/// Files are copied with each flavor over both transports, and other flavors than that of the export are refused.
fn flavors(lab: &mut Lab, version: &str) -> Result<()> {
    let (realm, mut guest) = start(lab, version)?;
    let alice = realm.ticket("alice")?;
    let (file, back) = (lab.dir.join("data"), lab.dir.join("back"));
    fs::write(&file, (0..3_000_001u32).map(|i| (i * 7 + i / 65_536) as u8).collect::<Vec<_>>())?;
    for flavor in FLAVORS {
        export(&mut guest, flavor)?;
        for proto in ["tcp", "rdma"] {
            let at = |path: &str| url(version, proto, flavor, path);
            let what = || format!("{flavor} over {proto}");
            let copy =
                |from: &str, to: &str| millrace(&alice, &["cp", from, to])?.ok().with_context(what).map(drop);
            copy(&file.display().to_string(), &at("file"))?;
            let inside = guest.host_file(&file);
            guest.must(&format!("cmp {inside} /mnt/export/file")).with_context(what)?;
            // Linux 7.3 signs other data than it sends as the results of READ, and its own client fails with EIO too.
            if (version, flavor) != ("4.2", "krb5i") {
                copy(&at("file"), &back.display().to_string())?;
                ensure!(fs::read(&file)? == fs::read(&back)?, "{}: the copy differs", what());
                fs::remove_file(&back)?;
            }
            let owner = guest.must("stat -c %u /mnt/export/file")?;
            ensure!(owner.trim() == USERS[0].1.to_string(), "{}: the file belongs to {owner}", what());
            millrace(&alice, &["rm", &at("file")])?.ok().with_context(what)?;
        }
        let other = if flavor == "krb5p" { "sys" } else { "krb5p" };
        let stderr = millrace(&alice, &["ls", &url(version, "tcp", other, "")])?.failed()?;
        ensure!(stderr.contains(&format!("use sec={flavor}")), "sec={other} instead of {flavor}: {stderr}");
    }
    machine(&realm, version)?;
    if version == "4.2" {
        renewal(lab, &realm)?;
    }
    lab.finish(vec![guest], &[])
}

/// Without tickets, the keys of the machine are used, if there are any.
fn machine(realm: &Realm, version: &str) -> Result<()> {
    let list = || millrace(&realm.file("no-such-file"), &["ls", &url(version, "tcp", "krb5p", "")]);
    let missing = list()?.failed()?;
    ensure!(missing.contains("kinit"), "without a ticket: {missing}");
    fs::copy(realm.add_keys("host.keytab", &["host/nfs.test"])?, "/etc/krb5.keytab")?;
    list()?.ok().context("the keys of the machine").map(drop)
}

/// Tickets are renewed while programs use a mount. Without a new ticket they are refused.
fn renewal(lab: &Lab, realm: &Realm) -> Result<()> {
    let at = lab.directory("mount")?;
    let (url, file) = (url("4.2", "tcp", "krb5p", ""), at.join("renewed"));
    let mayfly = realm.ticket("mayfly")?;
    millrace(&mayfly, &["mount", &url, &at.display().to_string(), "--daemon", "-o", "actimeo=0"])?.ok()?;
    // Longer than the life of a ticket.
    for round in 0..5 {
        fs::write(&file, format!("{round}")).with_context(|| format!("round {round}"))?;
        thread::sleep(Realm::SHORT / 3);
        realm.ticket("mayfly")?;
        let read = fs::read_to_string(&file).with_context(|| format!("round {round}"))?;
        ensure!(read == round.to_string(), "round {round}: the file contains {read}");
    }
    thread::sleep(Realm::SHORT + Duration::from_secs(1));
    let refused = fs::write(&file, "late").err().and_then(|e| e.raw_os_error());
    ensure!(
        refused == Some(Errno::KEYEXPIRED.raw_os_error()),
        "after the ticket, the mount fails with {refused:?}"
    );
    let expired = millrace(&mayfly, &["ls", &url])?.failed()?;
    let says = |text: &&str| expired.contains(*text);
    ensure!(["expired", "get a new ticket: kinit"].iter().all(says), "after the ticket: {expired}");
    realm.ticket("mayfly")?;
    fs::write(&file, "late")?;
    program::must("umount", &[&at.display().to_string()]).map(drop)
}
