//! Kerberos: files with every flavor, lost and ended contexts, and why there is none.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use millrace_client::{Client, Error, Identity, RetryPolicy, SecurityFlavor, Version};
use millrace_kerberos_testing::{Realm, realm_tests};
use millrace_server::{Config, KerberosSettings, Running, Server};
use rustix::fs::{CWD, FileType, Mode};

use crate::common::{VERSIONS, run};

const LOOPBACK: &str = "127.0.0.1";
/// Limits of calls that are to fail.
const SHORT: Duration = Duration::from_secs(2);
const FLAVORS: [&str; 3] = ["krb5", "krb5i", "krb5p"];

/// Settings of a server, with this id of another user than alice.
fn settings(realm: &Realm, other: u32) -> KerberosSettings {
    let users = BTreeMap::from([("alice", "1000:100".to_owned()), ("mayfly", format!("{other}:200"))]);
    let users = users.into_iter().map(|(who, ids)| (format!("{who}@TEST.MILLRACE"), ids.parse().unwrap()));
    KerberosSettings { keytab: Some(realm.file("loopback.keytab")), users: users.collect(), domain: None }
}

fn config(kerberos: KerberosSettings, at: SocketAddr, exports: &[&str]) -> Config {
    Config {
        exports: exports.iter().map(|e| e.parse().unwrap()).collect(),
        listen_tcp: vec![at],
        listen_rdma: vec![any()],
        shards: Some(1),
        kerberos: Some(kerberos),
        ..Config::default()
    }
}

fn start(realm: &Realm, exports: &[&str]) -> Running {
    Server::start(config(settings(realm, 2000), any(), exports)).unwrap()
}

/// Lets all users create files in an export.
async fn open_to_all(url: &str) {
    let root = Identity { uid: 0, gid: 0, ..Identity::default() };
    let client = Client::builder(url).credential(root).connect().await.unwrap();
    client.set_permissions("/", 0o777).await.unwrap();
}

fn any() -> SocketAddr {
    SocketAddr::new(LOOPBACK.parse().unwrap(), 0)
}

realm_tests! {
    fn files_are_read_and_written_with_every_flavor(realm) {
        realm.log_in("alice");
        let server = start(realm, &["/all=memory:64MiB,sec=krb5p:krb5i:krb5:sys,squash=none"]);
        let ends = [server.tcp_addr().unwrap(), server.rdma_addr().unwrap()];
        run(async {
            open_to_all(&format!("nfs://{}/all?proto=tcp", ends[0])).await;
            for (at, proto, version) in VERSIONS
                .into_iter()
                .flat_map(|version| [(ends[0], "tcp", version), (ends[1], "rdma", version)])
            {
                for flavor in FLAVORS {
                    let url = format!("nfs://{at}/all?proto={proto}&vers={version}&sec={flavor}&nconnect=2");
                    let client = Client::connect(url.as_str()).await.unwrap();
                    let data: Vec<u8> = (0..3_000_001u32).map(|i| (i * 7 + i / 65_536) as u8).collect();
                    let name = format!("{version}-{flavor}");
                    client.write(&name, &data).await.unwrap();
                    assert!(client.read(&name).await.unwrap() == data, "{url}");
                    let owner = client.metadata(&name).await.unwrap();
                    assert_eq!((owner.uid(), owner.gid()), (1000, 100), "{url}");
                    client.rename(&name, "other").await.unwrap();
                    client.remove_file("other").await.unwrap();
                    client.shutdown().await;
                    if version != Version::V3 {
                        // With NFSv3, it does not wait.
                        let stats = server.stats();
                        assert_eq!((stats.nfs4_confirmed_clients, stats.gss.contexts), (0, 0), "{url}");
                    }
                }
            }
        });
        server.stop_blocking(Duration::from_secs(1));
    }

    fn a_flavor_that_the_server_does_not_accept_is_refused_with_those_that_it_does(realm) {
        realm.log_in("alice");
        let exports = ["/p=memory:16MiB,sec=krb5p", "/sys=memory:16MiB", "/two=memory:16MiB,sec=krb5i:sys"];
        let server = start(realm, &exports);
        let at = server.tcp_addr().unwrap();
        run(async {
            for version in VERSIONS {
                for (export, flavor, right) in [
                    ("p", "sys", "krb5p"),
                    ("p", "krb5", "krb5p"),
                    ("p", "krb5i", "krb5p"),
                    ("sys", "krb5p", "sys"),
                    ("two", "krb5p", "krb5i, sys"),
                ] {
                    let url = format!("nfs://{at}/{export}?vers={version}&sec={flavor}");
                    let e = Client::builder(url.as_str()).retry(RetryPolicy::NONE).connect().await.err().unwrap();
                    let text = e.to_string();
                    println!("{url}: {text}");
                    let first = right.split(',').next().unwrap();
                    assert!(text.contains(&format!("it accepts: {right}; use sec={first}")), "{url}: {text}");
                    assert!(matches!(&e, Error::SecurityFlavor { used, .. } if used.to_string() == flavor));
                    assert_eq!(e.raw_os_error(), Some(rustix::io::Errno::ACCESS.raw_os_error()));
                }
            }
        });
        server.stop_blocking(Duration::from_secs(1));
    }

    fn a_missing_or_expired_ticket_and_an_unknown_service_are_named(realm, "clockskew = 1") {
        let server = start(realm, &["/p=memory:16MiB,sec=krb5p"]);
        let at = server.tcp_addr().unwrap();
        let connect = |url: String| async move {
            Client::builder(url.as_str()).retry(RetryPolicy::NONE).connect().await
        };
        let errno = |e: &Error| rustix::io::Errno::from_raw_os_error(e.raw_os_error().unwrap());
        run(async {
            for version in VERSIONS {
                let url = |host: &str| format!("nfs://{host}:{}/p?vers={version}&sec=krb5p", at.port());
                realm.log_out();
                let e = connect(url(LOOPBACK)).await.err().unwrap();
                println!("{e}");
                assert!(e.to_string().contains("kinit"), "{e}");
                assert_eq!(errno(&e), rustix::io::Errno::ACCESS);

                realm.log_in("alice");
                let e = connect(url("localhost")).await.err().unwrap();
                println!("{e}");
                assert!(e.to_string().contains("alice@TEST.MILLRACE to nfs@localhost"), "{e}");
                connect(url(LOOPBACK)).await.unwrap();

                // The ticket is valid for two seconds: a slow machine needs more than one to begin.
                let client = loop {
                    realm.log_in("mayfly");
                    if let Ok(client) = connect(url(LOOPBACK)).await {
                        break client;
                    }
                };
                let expired = loop {
                    match client.metadata("/").await {
                        Err(e) => break e,
                        Ok(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                    }
                };
                println!("{expired}");
                let text = expired.to_string();
                assert!(
                    ["mayfly@TEST.MILLRACE", "127.0.0.1", "expired", "kinit"].iter().all(|part| text.contains(part)),
                    "{text}"
                );
                assert_eq!(errno(&expired), rustix::io::Errno::KEYEXPIRED);
            }
        });
        server.stop_blocking(Duration::from_secs(1));
    }

    fn tickets_that_take_too_long_are_named_and_no_reason_to_try_another_port(realm) {
        // Opening it blocks, as the lock of a cache or a key distribution center.
        rustix::fs::mknodat(CWD, realm.default_cache(), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let server = start(realm, &["/p=memory:16MiB,sec=krb5p"]);
        let at = server.tcp_addr().unwrap();
        run(async {
            for version in VERSIONS {
                for retry in [RetryPolicy::NONE, RetryPolicy { max_elapsed: SHORT, ..RetryPolicy::default() }] {
                    let url = format!("nfs://{at}/p?vers={version}&sec=krb5p");
                    let client = Client::builder(url.as_str()).retry(retry).connect_timeout(SHORT).timeout(SHORT);
                    let e = client.connect().await.err().unwrap();
                    println!("{e}");
                    assert!(matches!(e, Error::Kerberos { .. }) && e.to_string().contains("no ticket of nfs@127.0.0.1"), "{e}");
                }
            }
            // The threads return.
            drop(std::fs::File::options().read(true).write(true).open(realm.default_cache()).unwrap());
        });
        server.stop_blocking(Duration::from_secs(1));
    }

    fn a_context_that_the_server_has_lost_is_replaced_and_the_call_repeated(realm) {
        realm.log_in("alice");
        for version in VERSIONS {
            let exports = ["/p=memory:16MiB,sec=krb5p:sys,squash=none"];
            let mut server = start(realm, &exports);
            let at = server.tcp_addr().unwrap();
            run(async {
                open_to_all(&format!("nfs://{at}/p")).await;
                for retry in [RetryPolicy::default(), RetryPolicy::NONE] {
                    let url = format!("nfs://{at}/p?vers={version}&sec=krb5p");
                    let client = Client::builder(url.as_str()).retry(retry).connect().await.unwrap();
                    client.create_dir("a").await.unwrap();
                    for other in [3000, 4000] {
                        // Other settings end all contexts.
                        server.reload(&config(settings(realm, other), at, &exports)).unwrap();
                        client.create_dir(format!("a/{other}")).await.unwrap();
                    }
                    client.remove_dir_all("a").await.unwrap();
                    assert_eq!(client.stats().reconnects, 0);
                    client.shutdown().await;
                }
            });
            server.stop_blocking(Duration::from_secs(1));
        }
    }

    fn owners_that_the_server_names_are_users_of_this_host(realm) {
        realm.log_in("alice");
        let kerberos = KerberosSettings {
            users: BTreeMap::from([("alice@TEST.MILLRACE".to_owned(), "daemon".parse().unwrap())]),
            domain: Some("example.org".into()),
            ..settings(realm, 2000)
        };
        let server = Server::start(config(kerberos, any(), &["/p=memory:16MiB,sec=krb5i:sys,squash=none"])).unwrap();
        let at = server.tcp_addr().unwrap();
        run(async {
            open_to_all(&format!("nfs://{at}/p")).await;
            for (domain, version, expected) in [
                ("Example.ORG", Version::V4_2, (1, 1)),
                ("other.net", Version::V4_2, (65534, 65534)),
                ("other.net", Version::V3, (1, 1)),
            ] {
                let url = format!("nfs://{at}/p?vers={version}&sec=krb5i");
                let client = Client::builder(url.as_str()).domain(Some(domain.into())).connect().await.unwrap();
                client.write("file", b"x").await.unwrap();
                let file = client.metadata("file").await.unwrap();
                assert_eq!((file.uid(), file.gid()), expected, "{domain}, {version}");
                let mut entries = client.read_dir("/").await.unwrap();
                let entry = entries.next_entry().await.unwrap().unwrap();
                assert_eq!(entry.metadata().uid(), expected.0, "{domain}, {version}");
            }
        });
        server.stop_blocking(Duration::from_secs(1));
    }

    fn another_caller_has_the_tickets_of_the_own_cache(realm) {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can give files to other users");
            return;
        }
        // No user has these ids.
        let [owner, stranger] = [3_123_123, 3_123_124];
        let path = |uid: u32| std::path::PathBuf::from(format!("/tmp/krb5cc_{uid}"));
        for uid in [owner, stranger] {
            let _ = std::fs::remove_file(path(uid));
        }
        let own = realm.ticket("alice", &[]);
        std::fs::copy(own.trim_start_matches("FILE:"), path(owner)).unwrap();
        std::os::unix::fs::chown(path(owner), Some(owner), None).unwrap();
        std::os::unix::fs::symlink(path(owner), path(stranger)).unwrap();
        realm.administer("addprinc -pw secret bob\n");
        realm.log_in("bob");
        let server = start(realm, &["/p=memory:16MiB,sec=krb5p:sys,squash=none"]);
        let at = server.tcp_addr().unwrap();
        run(async {
            open_to_all(&format!("nfs://{at}/p")).await;
            for version in VERSIONS {
                // The tickets of this process are not used for others.
                let root = Client::connect(format!("nfs://{at}/p?vers={version}&sec=krb5p")).await.unwrap();
                let of = |uid| root.as_caller(&Identity { uid, gid: uid, ..Identity::default() });
                let name = format!("{version}");
                of(owner).create_dir(&name).await.unwrap();
                assert_eq!(of(owner).metadata(&name).await.unwrap().uid(), 1000);
                for uid in [stranger, 3_123_125] {
                    let e = of(uid).metadata(&name).await.unwrap_err();
                    println!("{e}");
                    assert!(e.to_string().contains(&format!("kinit -c FILE:/tmp/krb5cc_{uid}")), "{e}");
                }
            }
        });
        for uid in [owner, stranger] {
            std::fs::remove_file(path(uid)).unwrap();
        }
        server.stop_blocking(Duration::from_secs(1));
    }
}

#[test]
fn an_unknown_flavor_is_no_option() {
    let e = "nfs://h/?sec=krb4".parse::<millrace_client::Url>().unwrap_err();
    assert!(e.to_string().contains("write sys, krb5, krb5i or krb5p"), "{e}");
    assert_eq!(SecurityFlavor::default(), SecurityFlavor::Sys);
}
