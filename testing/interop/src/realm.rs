//! A realm of Kerberos for the host and the guests of a case.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{guest::Guest, lab::Lab, network::HOST, program};

/// Names of the host and of the first guest, of which the realm has `nfs/NAME` and `host/NAME`.
pub(crate) const HOST_NAME: &str = "nfs.test";
/// The name of the guest.
pub(crate) const GUEST_NAME: &str = "guest.test";
const NAME: &str = "TEST.MILLRACE";
/// Users of the host and of the guests, with their ids.
pub(crate) const USERS: [(&str, u32); 3] = [("alice", 41_001), ("bob", 41_002), ("mayfly", 41_003)];
const LIMIT: Duration = Duration::from_secs(20);

/// A realm whose key distribution center is at the host's address, and ends with the sandbox of the case. Its users have the
/// password `secret`; tickets of `mayfly`, and those for and of `host/guest.test`, last [`Realm::SHORT`]. No host has the user
/// `mallory`.
pub(crate) struct Realm {
    dir: PathBuf,
}

impl Realm {
    /// The life of short tickets.
    pub(crate) const SHORT: Duration = Duration::from_secs(6);

    /// Starts the center, and makes the host a member of the realm, without a keytab.
    ///
    /// # Errors
    /// When a program of it fails.
    pub(crate) fn new(lab: &Lab) -> Result<Self> {
        let dir = lab.directory("realm")?;
        let realm = Self { dir };
        let at = realm.dir.display();
        let center = format!(
            "[kdcdefaults]\n kdc_listen = {HOST}:88\n kdc_tcp_listen = {HOST}:88\n\
             [realms]\n {NAME} = {{\n  database_name = {at}/principal\n  key_stash_file = {at}/stash\n }}\n"
        );
        fs::write(realm.file("kdc.conf"), center)?;
        fs::write(realm.file("krb5.conf"), realm.configuration())?;
        program::must("bash", &["-c", &realm.join(&[])])?;
        realm.run(&["kdb5_util", "create", "-s", "-r", NAME, "-P", "master"], "")?;
        let short = Self::SHORT.as_secs();
        realm.administer(&format!(
            "addprinc -randkey nfs/{HOST_NAME}\n\
             addprinc -randkey host/{HOST_NAME}\n\
             addprinc -randkey nfs/{GUEST_NAME}\n\
             addprinc -randkey -maxlife {short}sec host/{GUEST_NAME}\n\
             addprinc -pw secret alice\n\
             addprinc -pw secret bob\n\
             addprinc -pw secret mallory\n\
             addprinc -pw secret -maxlife {short}sec mayfly\n"
        ))?;
        realm.run(&["krb5kdc"], "")?;
        Ok(realm)
    }

    fn configuration(&self) -> String {
        format!(
            "[libdefaults]\n default_realm = {NAME}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n \
             dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n\
             [realms]\n {NAME} = {{\n  kdc = {HOST}\n }}\n[domain_realm]\n .test = {NAME}\n\
             [logging]\n kdc = FILE:{0}/kdc.log\n default = FILE:{0}/default.log\n",
            self.dir.display()
        )
    }

    /// The script that gives a machine its own copy of `/etc`, as a member of the realm. `hosts` are addresses with names.
    fn join(&self, hosts: &[(&str, &str)]) -> String {
        let hosts: String = hosts.iter().map(|(address, name)| format!("{address} {name}\n")).collect();
        let (mut users, mut groups) = (String::new(), String::new());
        for (name, id) in USERS {
            users.push_str(&format!("{name}:x:{id}:{id}::/tmp:/bin/bash\n"));
            groups.push_str(&format!("{name}:x:{id}:\n"));
        }
        format!(
            "set -e; cp -a /etc /dev/shm/etc; cd /dev/shm/etc
cat >krb5.conf <<'END'
{}END
rm -f krb5.keytab
cat >idmapd.conf <<'END'
[General]
Domain = test
Local-Realms = {NAME}
[Translation]
Method = nsswitch
GSS-Methods = nsswitch
END
first() {{ cat - $1 >$1.new; mv $1.new $1; }}
first passwd <<'END'
{users}END
first group <<'END'
{groups}END
# rpc.idmapd ends without a group of this name.
echo $(id -un 65534):x:65534: >>group
first hosts <<'END'
127.0.0.1 localhost
{HOST} {HOST_NAME}
{hosts}END
mount --bind /dev/shm/etc /etc",
            self.configuration()
        )
    }

    /// Makes the first guest a member of the realm, with the keys of these of its principals, and gives the host its name.
    ///
    /// # Errors
    /// When a program fails.
    pub(crate) fn add_guest(&self, guest: &mut Guest, principals: &[&str]) -> Result<()> {
        let address = guest.address();
        self.add_keys("guest.keytab", principals)?;
        let keytab = guest.host_file(&self.file("guest.keytab"));
        let join = self.join(&[(&address, GUEST_NAME)]);
        guest.must(&format!(
            "{join}\nhostname {GUEST_NAME}; cp {keytab} /etc/krb5.keytab; mount -t tmpfs none /var/tmp"
        ))?;
        let hosts = fs::read_to_string("/etc/hosts")?;
        Ok(fs::write("/etc/hosts", format!("{address} {GUEST_NAME}\n{hosts}"))?)
    }

    /// Path of a file of the realm.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Gives these principals of the realm other keys, and adds the keys to a keytab, whose path is returned.
    ///
    /// # Errors
    /// When a program fails.
    pub(crate) fn add_keys(&self, keytab: &str, principals: &[&str]) -> Result<PathBuf> {
        let file = self.file(keytab);
        self.administer(&format!("ktadd -k {} {}\n", file.display(), principals.join(" ")))?;
        Ok(file)
    }

    /// Gets a ticket for a user. Returns the file.
    ///
    /// # Errors
    /// When kinit(1) fails.
    pub(crate) fn ticket(&self, user: &str) -> Result<PathBuf> {
        let file = self.file(&format!("tickets-{user}"));
        // Programs that read the file see the old tickets or the new ones.
        let new = file.with_extension("new");
        self.run(&["kinit", "-c", &format!("FILE:{}", new.display()), user], "secret\n")?;
        fs::rename(&new, &file)?;
        Ok(file)
    }

    /// Gives commands to kadmin.local(8).
    fn administer(&self, commands: &str) -> Result<()> {
        let output = self.run(&["kadmin.local", "-r", NAME], commands)?;
        match output.lines().find(|line| !line.starts_with("No policy specified")) {
            Some(line) => bail!("kadmin.local: {line}"),
            None => Ok(()),
        }
    }

    /// Runs a program of Kerberos with this input. Returns its errors.
    fn run(&self, command: &[&str], input: &str) -> Result<String> {
        let words: Vec<_> = command.iter().map(|word| format!("'{word}'")).collect();
        let profile = self.file("kdc.conf").display().to_string();
        let script = format!("export KRB5_KDC_PROFILE={profile}\n{} <<'END'\n{input}END\n", words.join(" "));
        let output = program::run("bash", &["-c", &script], LIMIT)?.ok();
        Ok(output.with_context(|| command.join(" "))?.stderr)
    }
}

/// The argument of `env` that has a program use these tickets.
pub(crate) fn with_tickets(file: &Path) -> String {
    format!("KRB5CCNAME=FILE:{}", file.display())
}
