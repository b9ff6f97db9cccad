//! The kernel's client, with rpc.gssd, uses Millrace's server.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use super::{
    super::{Case, tls},
    FLAVORS, boot, boot_with,
};
use crate::{
    cases::kernel_client::mount::NFS_MOUNT,
    guest::{Guest, GuestOptions},
    lab::Lab,
    program,
    realm::{HOST_NAME, Realm, USERS},
    server::{RDMA_PORT, Server, ServerOptions, TCP_PORT},
};

/// The anonymous user.
const ANONYMOUS: u32 = 65_534;
/// What programs print for EACCES, EKEYEXPIRED and ENOKEY.
const REFUSED: [&str; 3] = ["Permission denied", "Key has expired", "Required key not available"];

/// Writes a file, and reads it from the server.
const ROUND_TRIP: &str = "set -e; cd /tmp; [ -e data ] || head -c 1200001 /dev/urandom >data; cp data /mnt/x/file; sync /mnt/x/file; \
                          dd if=/mnt/x/file iflag=direct bs=1M status=none | cmp - data; rm /mnt/x/file";

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for proto in ["tcp", "rdma"] {
        cases.push(Case::new(format!("krb5/kernel-client/{proto}"), move |lab| flavors(lab, proto)));
    }
    cases.push(Case::new("krb5/kernel-client/refusals", refusals));
    cases.push(Case::new("krb5/kernel-client/renewal", renewal));
    cases.push(Case::new("krb5/kernel-client/tls", with_tls));
    cases
}

/// A server with an export for each flavor, whose root every user may change. Their directories have the same names.
fn serve(lab: &Lab, realm: &Realm) -> Result<Server> {
    serve_with(lab, realm, "", "")
}

/// As [`serve`]. `tables` are further ones of the configuration, and `policy` a further line of each export.
fn serve_with(lab: &Lab, realm: &Realm, tables: &str, policy: &str) -> Result<Server> {
    let keytab = realm.add_keys("server.keytab", &[&format!("nfs/{HOST_NAME}")])?;
    let kerberos = format!("[kerberos]\nkeytab = {keytab:?}\ndomain = \"test\"\n{tables}");
    let mut options = ServerOptions::default().tables(&kerberos);
    for flavor in FLAVORS {
        let dir = lab.directory(flavor)?;
        fs::set_permissions(&dir, PermissionsExt::from_mode(0o1777))?;
        let policy = format!("sync_metadata = false\nsec = [\"{flavor}\"]\n{policy}");
        options = options.local(&format!("/{flavor}"), &dir, &policy);
    }
    lab.server(&options)
}

/// Starts rpc.gssd, and waits until the kernel can use it.
fn start_gssd(guest: &mut Guest) -> Result<()> {
    guest.must(
        "mount -t rpc_pipefs rpc_pipefs /run/rpc_pipefs
         setsid rpc.gssd -f -vv >/tmp/gssd.log 2>&1 </dev/null &
         for i in $(seq 100); do
           ls -l /proc/$(pgrep -x rpc.gssd)/fd 2>/dev/null | grep -q clntXX/gssd && exit; sleep 0.05
         done; exit 1",
    )?;
    Ok(())
}

/// The command that mounts an export on `/mnt/x`. `more` is further options, each after a comma.
fn mount(version: &str, proto: &str, export: &str, more: &str) -> String {
    let port = if proto == "rdma" { RDMA_PORT } else { TCP_PORT };
    let of_v3 = match version {
        "3" => format!(",nolock,mountport={TCP_PORT},mountproto=tcp,mountvers=3"),
        _ => String::new(),
    };
    format!(
        "{NFS_MOUNT}mkdir -p /mnt/x && nfs_mount vers={version},proto={proto},port={port},retry=0{of_v3}{more} {HOST_NAME}:/{export} /mnt/x"
    )
}

/// Runs a command of a user in the guest.
fn as_user(user: &str, command: &str) -> String {
    let id = id_of(user);
    format!("setpriv --reuid {id} --regid {id} --clear-groups bash -c '{command}'")
}

fn id_of(user: &str) -> u32 {
    USERS.iter().find(|(name, _)| *name == user).map_or(0, |(_, id)| *id)
}

/// Gets a ticket for a principal, and gives it to a user of the guest, in place of the previous one.
fn give_ticket(realm: &Realm, guest: &mut Guest, principal: &str, user: &str) -> Result<()> {
    let file = guest.host_file(&realm.ticket(principal)?);
    let id = id_of(user);
    guest.must(&format!("install -m 600 -o {id} -g {id} {file} /tmp/new && mv /tmp/new /tmp/krb5cc_{id}"))?;
    Ok(())
}

fn owner(file: &Path) -> Result<(u32, u32)> {
    let metadata = fs::metadata(file).with_context(|| file.display().to_string())?;
    Ok((metadata.uid(), metadata.gid()))
}

/// Root, with the keys of the machine, and users with tickets use files, with each version of NFS and flavor.
fn flavors(lab: &mut Lab, proto: &str) -> Result<()> {
    let (realm, mut guest) = boot(lab, &["host/guest.test"])?;
    let server = serve(lab, &realm)?;
    start_gssd(&mut guest)?;
    for user in ["alice", "bob"] {
        give_ticket(&realm, &mut guest, user, user)?;
    }
    for version in ["3", "4.2"] {
        for flavor in FLAVORS {
            used(lab, &mut guest, [version, proto, flavor])
                .with_context(|| format!("version {version}, {flavor}"))?;
        }
    }
    lab.finish(vec![guest], &[&server])
}

fn used(lab: &Lab, guest: &mut Guest, [version, proto, flavor]: [&str; 3]) -> Result<()> {
    guest.must(&mount(version, proto, flavor, &format!(",sec={flavor}")))?;
    guest.must(ROUND_TRIP)?;
    guest.must("cd /mnt/x && echo root >root && chmod 600 root")?;
    guest.must(&as_user(
        "alice",
        "cd /mnt/x && umask 077 && cp /tmp/data alice && cmp /tmp/data alice && touch open",
    ))?;
    let denied = guest.run(&as_user("bob", "cat /mnt/x/alice"))?.failed()?;
    ensure!(denied.contains("Permission denied"), "reading the file of another user: {denied}");
    let denied = guest.run(&as_user("alice", "cat /mnt/x/root"))?.failed()?;
    ensure!(denied.contains("Permission denied"), "reading the file of root: {denied}");
    // NFSv4 clients with Kerberos exchange names of owners.
    guest.must("cd /mnt/x && chown bob:bob open && [ \"$(stat -c %U:%G open alice)\" = \"$(printf 'bob:bob\\nalice:alice')\" ]")?;
    let dir = lab.directory(flavor)?;
    for (file, user) in [("root", "root"), ("alice", "alice"), ("open", "bob")] {
        let id = id_of(user);
        let found = owner(&dir.join(file))?;
        ensure!(found == (id, id), "{file} belongs to {found:?}");
    }
    guest.must("rm /mnt/x/root /mnt/x/alice /mnt/x/open && umount /mnt/x")?;
    Ok(())
}

/// What is refused, and to whom.
fn refusals(lab: &mut Lab) -> Result<()> {
    let (realm, mut guest) = boot(lab, &["nfs/guest.test"])?;
    let mut server = serve(lab, &realm)?;
    server.expect_fault("refused_calls_total");
    start_gssd(&mut guest)?;
    let dir = lab.directory("krb5p")?;
    let log = |server: &Server| fs::read_to_string(server.log_file());
    for version in ["3", "4.2"] {
        let mount = |more: &str| mount(version, "tcp", "krb5p", more);
        // Flavors that the export does not accept, and the one that it does if there is no choice.
        for flavor in ["sys", "krb5", "krb5i"] {
            let mounted = guest.run(&format!("{} && ls /mnt/x", mount(&format!(",sec={flavor}"))))?;
            guest.run("umount /mnt/x")?;
            ensure!(mounted.status != 0, "version {version}: sec={flavor} is accepted");
        }
        guest.must(&mount(""))?;
        guest.must("grep ' /mnt/x .*sec=krb5p' /proc/mounts")?;
        guest.must(ROUND_TRIP)?;
        // A user without a ticket, and one who is no user of the server's host.
        guest.must("rm -f /tmp/krb5cc_*")?;
        let denied = guest.run(&as_user("bob", "touch /mnt/x/bob"))?.failed()?;
        ensure!(REFUSED.iter().any(|text| denied.contains(text)), "without a ticket: {denied}");
        give_ticket(&realm, &mut guest, "mallory", "alice")?;
        guest.must(&as_user("alice", "touch /mnt/x/anonymous"))?;
        let found = owner(&dir.join("anonymous"))?;
        ensure!(found.0 == ANONYMOUS, "the file of a principal without a user belongs to {found:?}");
        let text = "a principal without a user of this host is anonymous principal=\"mallory@TEST.MILLRACE\"";
        ensure!(log(&server)?.contains(text), "the log has no `{text}`");
        guest.must("rm /mnt/x/anonymous && umount /mnt/x")?;
    }
    wrong_keys(&realm, &mut guest, &server)?;
    lab.finish(vec![guest], &[&server])
}

/// The server's keys are not those of the realm, then no keys at all, then the right ones again.
fn wrong_keys(realm: &Realm, guest: &mut Guest, server: &Server) -> Result<()> {
    let (keytab, right) = (realm.file("server.keytab"), realm.file("right.keytab"));
    fs::rename(&keytab, &right)?;
    // A realm that was made again has other keys with the numbers of the previous ones.
    let wrong = format!(
        "printf 'addent -password -p nfs/{HOST_NAME}@TEST.MILLRACE -k 2 -e aes256-cts-hmac-sha1-96\\nwrong\\nwkt {}\\n' | ktutil",
        keytab.display()
    );
    for (make, reason) in [
        (wrong.as_str(), "the keytab has another version of the service's key than the ticket"),
        ("true", "server.keytab' not found"),
    ] {
        let _ = fs::remove_file(&keytab);
        program::must("bash", &["-c", make])?;
        let mounted = guest.run(&mount("4.2", "tcp", "krb5p", ",sec=krb5p"))?;
        ensure!(mounted.status != 0, "{reason}: the mount succeeded");
        let log = fs::read_to_string(server.log_file())?;
        let is_reason = |line: &str| line.contains("security context refused: ") && line.contains(reason);
        ensure!(log.lines().any(is_reason), "no context was refused with the reason `{reason}`");
    }
    fs::rename(&right, &keytab)?;
    guest.must(&mount("4.2", "tcp", "krb5p", ",sec=krb5p"))?;
    guest.must(ROUND_TRIP)?;
    guest.must("umount /mnt/x")?;
    Ok(())
}

/// Tickets are renewed and the server's keys are replaced while a user and root write and read. Without a new ticket the
/// user is refused.
fn renewal(lab: &mut Lab) -> Result<()> {
    let (realm, mut guest) = boot(lab, &["host/guest.test"])?;
    let server = serve(lab, &realm)?;
    start_gssd(&mut guest)?;
    give_ticket(&realm, &mut guest, "mayfly", "mayfly")?;
    guest.must(&mount("4.2", "tcp", "krb5p", ",sec=krb5p"))?;
    guest.must("head -c 1000000 /dev/urandom >/tmp/data")?;
    let load = |name: &str| {
        format!(
            "set -e; until [ -e /tmp/stop ]; do cp /tmp/data /mnt/x/{name}; sync /mnt/x/{name}; \
             dd if=/mnt/x/{name} iflag=direct bs=1M status=none | cmp - /tmp/data; echo .; sleep 0.1; done"
        )
    };
    let mut loads = [guest.spawn(&load("root"))?, guest.spawn(&as_user("mayfly", &load("mayfly")))?];
    // Longer than the life of a ticket.
    for round in 0..5 {
        thread::sleep(Realm::SHORT / 3);
        give_ticket(&realm, &mut guest, "mayfly", "mayfly")?;
        if round % 3 == 1 {
            realm.add_keys("server.keytab", &[&format!("nfs/{HOST_NAME}")])?;
        }
        for load in &mut loads {
            ensure!(load.is_running(), "a load has ended in round {round}");
        }
    }
    guest.must("touch /tmp/stop")?;
    for load in loads {
        let rounds = load.wait(Duration::from_secs(60))?.ok()?.stdout;
        ensure!(rounds.contains('.'), "a load has not transferred a file");
    }
    thread::sleep(Realm::SHORT + Duration::from_secs(1));
    let denied = guest.run(&as_user("mayfly", "timeout 20 touch /mnt/x/late"))?.failed()?;
    ensure!(REFUSED.iter().any(|text| denied.contains(text)), "after the ticket: {denied}");
    give_ticket(&realm, &mut guest, "mayfly", "mayfly")?;
    guest.must(&as_user("mayfly", "touch /mnt/x/late"))?;
    guest.must("umount /mnt/x")?;
    lab.finish(vec![guest], &[&server])
}

/// Kerberos within TLS. The contexts are made in the clear, on connections of rpc.gssd.
fn with_tls(lab: &mut Lab) -> Result<()> {
    let options = GuestOptions { memory: 768, tlshd: true, ..GuestOptions::default() };
    let (realm, mut guest) = boot_with(lab, &options, &["host/guest.test"])?;
    let pki = tls::pki(lab)?;
    tls::tlshd(&mut guest, &pki, "ca", "client", "guest")?;
    let server = serve_with(lab, &realm, &tls::table(&pki, "server"), "xprtsec = [\"mtls\"]")?;
    start_gssd(&mut guest)?;
    give_ticket(&realm, &mut guest, "alice", "alice")?;
    for (version, flavor) in [("3", "krb5i"), ("4.2", "krb5"), ("4.2", "krb5p")] {
        let what = || format!("version {version}, {flavor}");
        guest
            .must(&mount(version, "tcp", flavor, &format!(",sec={flavor},xprtsec=mtls")))
            .with_context(what)?;
        guest.must(ROUND_TRIP).with_context(what)?;
        guest.must(&as_user("alice", "touch /mnt/x/alice")).with_context(what)?;
        let found = owner(&lab.directory(flavor)?.join("alice"))?;
        ensure!(found.0 == id_of("alice"), "{}: the file belongs to {found:?}", what());
        guest.must("rm /mnt/x/alice && umount /mnt/x")?;
    }
    lab.finish(vec![guest], &[&server])
}
