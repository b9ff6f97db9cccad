//! A realm with a key distribution center on a loopback port, for tests.
//!
//! A test of [`realm_tests`] runs itself again in a process whose environment names the realm's krb5.conf: the library
//! reads it from there only. Without the programs of MIT Kerberos it states that, and passes.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use tempfile::TempDir;

const PROGRAMS: [&str; 4] = ["krb5kdc", "kdb5_util", "kadmin.local", "kinit"];
/// The folder of the realm, in the process that a test starts.
const VARIABLE: &str = "MILLRACE_TEST_REALM";
/// Names the default credential cache in the process that a test starts. No file is there at first.
const DEFAULT_CACHE: &str = "KRB5CCNAME";
/// Starts of a center, each at another port, before the test fails.
const STARTS: usize = 10;
/// Attempts to connect to a center that starts, 10 ms apart.
const CONNECTS: usize = 1000;

/// The files of a realm, as tests use them: `server.keytab` has the key of `nfs/server.test`, `loopback.keytab` that of
/// `nfs/127.0.0.1`; `alice` and `mayfly`, whose
/// tickets last two seconds, are users.
#[derive(Debug)]
pub struct Realm {
    dir: PathBuf,
}

/// A realm that runs.
struct Running {
    dir: TempDir,
    center: Child,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.center.kill();
        let _ = self.center.wait();
    }
}

/// Declares tests that are given a [`Realm`]: `fn NAME(REALM) { .. }`, or with a setting of `[libdefaults]` in
/// krb5.conf(5) `fn NAME(REALM, SETTING) { .. }`.
#[macro_export]
macro_rules! realm_tests {
    ($(fn $name:ident($realm:ident $(, $setting:literal)?) $body:block)*) => {
        $(#[test]
        fn $name() {
            let setting = concat!("" $(, $setting)?);
            $crate::run(concat!(module_path!(), "::", stringify!($name)), setting, |$realm| $body);
        })*
    };
}

/// Runs a test with a setting of `[libdefaults]`, or an empty one.
pub fn run(test: &str, setting: &str, case: impl FnOnce(&Realm)) {
    if let Some(dir) = std::env::var_os(VARIABLE) {
        return case(&Realm { dir: dir.into() });
    }
    let missing: Vec<_> = PROGRAMS.into_iter().filter(|name| program(name).is_none()).collect();
    if !missing.is_empty() {
        println!(
            "skipped: without {}; Debian: apt install krb5-kdc krb5-admin-server krb5-user",
            missing.join(", ")
        );
        return;
    }
    let running = running();
    let (_, test) = test.split_once("::").unwrap();
    let config = fs::read_to_string(running.dir.path().join("krb5.conf")).unwrap();
    let config = config.replacen("[libdefaults]", &format!("[libdefaults]\n {setting}"), 1);
    let file = running.dir.path().join(format!("krb5.conf.{}", test.replace("::", ".")));
    fs::write(&file, config).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(VARIABLE, running.dir.path())
        .env("KRB5_CONFIG", file)
        .env(DEFAULT_CACHE, running.dir.path().join(format!("cache.{}", test.replace("::", "."))))
        .env("KRB5_KTNAME", running.dir.path().join("no-default-keytab"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The realm of the tests that run now.
fn running() -> Arc<Running> {
    static RUNNING: Mutex<Weak<Running>> = Mutex::new(Weak::new());
    let mut running = RUNNING.lock().unwrap();
    running.upgrade().unwrap_or_else(|| {
        let started = Arc::new(start());
        *running = Arc::downgrade(&started);
        started
    })
}

/// The path of a program of MIT Kerberos, some of which are not for users and so in `sbin`.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|dir| dir.join(name)).find(|file| file.exists())
}

fn start() -> Running {
    let dir = TempDir::new().unwrap();
    for _ in 0..STARTS {
        // A port that is free now. Another program can take it before the center does.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        configure(dir.path(), port);
        let realm = Realm { dir: dir.path().to_owned() };
        if !dir.path().join("principal").exists() {
            realm.command("kdb5_util", &["create", "-r", "TEST.MILLRACE", "-s", "-P", "master"], "");
            realm.administer(
                "addprinc -randkey nfs/server.test\n\
                 addprinc -randkey nfs/other.test\n\
                 addprinc -randkey nfs/127.0.0.1\n\
                 addprinc -pw secret alice\n\
                 addprinc -pw secret -maxlife 2sec mayfly\n\
                 ktadd -k server.keytab nfs/server.test\n\
                 ktadd -k other.keytab nfs/other.test\n\
                 ktadd -k loopback.keytab nfs/127.0.0.1\n",
            );
        }
        let mut center = realm.program("krb5kdc").arg("-n").stdin(Stdio::null()).spawn().unwrap();
        for _ in 0..CONNECTS {
            if center.try_wait().unwrap().is_some() {
                break;
            }
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Running { dir, center };
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = center.kill();
        let _ = center.wait();
    }
    let mut log = String::new();
    let _ = fs::File::open(dir.path().join("kdc.log")).and_then(|mut file| file.read_to_string(&mut log));
    panic!("krb5kdc does not start:\n{log}");
}

fn configure(dir: &Path, port: u16) {
    let at = dir.display();
    let client = format!(
        "[libdefaults]
 default_realm = TEST.MILLRACE
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
[realms]
 TEST.MILLRACE = {{
  kdc = 127.0.0.1:{port}
 }}
[domain_realm]
 .test = TEST.MILLRACE
[logging]
 kdc = FILE:{at}/kdc.log
 default = FILE:{at}/default.log
"
    );
    let center = format!(
        "[kdcdefaults]
 kdc_listen = 127.0.0.1:{port}
 kdc_tcp_listen = 127.0.0.1:{port}
[realms]
 TEST.MILLRACE = {{
  database_name = {at}/principal
  key_stash_file = {at}/stash
  acl_file = {at}/acl
  supported_enctypes = aes256-cts-hmac-sha384-192:normal aes128-cts-hmac-sha256-128:normal aes256-cts:normal aes128-cts:normal camellia256-cts:normal
 }}
"
    );
    fs::write(dir.join("krb5.conf"), client).unwrap();
    fs::write(dir.join("kdc.conf"), center).unwrap();
}

impl Realm {
    /// Path of a file of the realm.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(program(name).unwrap());
        command
            .current_dir(&self.dir)
            .env("KRB5_CONFIG", self.file("krb5.conf"))
            .env("KRB5_KDC_PROFILE", self.file("kdc.conf"));
        command
    }

    /// Runs a program of the realm with `input`, which must succeed.
    fn command(&self, name: &str, arguments: &[&str], input: &str) -> Output {
        Self::complete(self.program(name).args(arguments), input)
    }

    fn complete(command: &mut Command, input: &str) -> Output {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{command:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        output
    }

    /// Gives commands to kadmin.local(8).
    pub fn administer(&self, commands: &str) {
        let output = self.command("kadmin.local", &["-r", "TEST.MILLRACE"], commands);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let errors: Vec<_> = errors.lines().filter(|line| !line.starts_with("No policy specified")).collect();
        assert!(errors.is_empty(), "{errors:?}");
    }

    /// Gets a ticket for a user with the password `secret`, and returns the name of the credential cache. `options`
    /// are those of kinit(1).
    pub fn ticket(&self, user: &str, options: &[&str]) -> String {
        let name = format!("cache-{}-{}", user.replace('/', "-"), std::process::id());
        self.ticket_in(&self.file(&name), user, options)
    }

    /// As [`Self::ticket`], in the default credential cache of the test.
    pub fn log_in(&self, user: &str) {
        self.ticket_in(&self.default_cache(), user, &[]);
    }

    /// Removes the default credential cache of the test, if there is one.
    pub fn log_out(&self) {
        let removed = fs::remove_file(self.default_cache());
        assert!(removed.is_ok() || !self.default_cache().exists(), "{removed:?}");
    }

    /// The file of the default credential cache of the test.
    pub fn default_cache(&self) -> PathBuf {
        std::env::var_os(DEFAULT_CACHE).unwrap().into()
    }

    fn ticket_in(&self, file: &Path, user: &str, options: &[&str]) -> String {
        let cache = format!("FILE:{}", file.display());
        // With the krb5.conf of the test.
        let mut kinit = Command::new(program("kinit").unwrap());
        Self::complete(kinit.args(["-c", &cache]).args(options).arg(user), "secret\n");
        cache
    }
}
