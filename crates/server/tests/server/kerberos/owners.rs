//! Owners as names.

use std::{collections::BTreeMap, time::Duration};

use millrace_kerberos_testing::realm_tests;
use millrace_nfs::v4::*;
use millrace_nfs4_conformance::compound::{Call, Session, getattr, op, open, putfh};
use millrace_server::{Config, KerberosSettings, Server};

use super::{
    SERVICES,
    caller::{GssCaller, principal, tickets},
    settings,
};
use crate::common::{Proto, config, run};

/// User and group of a file.
async fn owners(c: &impl Call, session: &Session, file: &[u8]) -> (String, String) {
    let asked = [Attribute::Owner, Attribute::OwnerGroup];
    let results = session.send(c, [putfh(file), getattr(&asked)]).await;
    let values: Fattr<'_> = results.skip(&[Operation::Putfh]).take(Operation::Getattr);
    let values = values.decode_values().unwrap();
    (format!("{:?}", values.owner.unwrap()), format!("{:?}", values.owner_group.unwrap()))
}

/// Sets user and group of a file.
async fn chown(
    c: &impl Call,
    session: &Session,
    file: &[u8],
    owner: &'static str,
    group: &'static str,
) -> Status {
    let name = |name: &'static str| match name.parse() {
        Ok(id) => Owner::Id(id),
        Err(_) => Owner::Name(name.as_bytes()),
    };
    let attributes =
        Attributes { owner: Some(name(owner)), owner_group: Some(name(group)), ..Attributes::default() };
    let stateid = Stateid::ANONYMOUS;
    session.status(c, [putfh(file), op(Operation::Setattr, SetattrArgs { stateid, attributes })]).await
}

/// The owners of the entries of the root of the export.
async fn listed(c: &impl Call, session: &Session) -> BTreeMap<String, String> {
    let requested = Bitmap::of(&[Attribute::Owner, Attribute::Filehandle]);
    let args = ReaddirArgs { cookie: 0, verifier: [0; 8], dircount: 4096, maxcount: 4096, requested };
    let root = session.path(c, "x").await.unwrap();
    let results = session.send(c, [putfh(&root), op(Operation::Readdir, args)]).await;
    let list: ReaddirOk<'_> = results.skip(&[Operation::Putfh]).take(Operation::Readdir);
    let entry = |entry: &Entry<'_>| {
        let owner = entry.attributes.decode_values().unwrap().owner.unwrap();
        (String::from_utf8_lossy(&entry.name).into_owned(), format!("{owner:?}"))
    };
    list.entries.iter().map(entry).collect()
}

realm_tests! {
    fn callers_with_kerberos_get_and_set_owners_as_names_and_others_as_numbers(realm) {
        run(async {
            let exports = ["/x=memory:8MiB,sec=krb5p:krb5i:krb5:sys,squash=none"];
            let mut kerberos = settings(realm, &[(&principal(0), "root"), ("robot", "1000:1000")]);
            kerberos.as_mut().unwrap().domain = Some("test.millrace".into());
            let start = Config { kerberos: kerberos.clone(), ..config(&exports) };
            let mut server = Server::start(start.clone()).unwrap();
            let tickets = tickets(realm, &[0]);
            let first = GssCaller::connect(&server, Proto::Tcp, &tickets, 1).await;
            for service in SERVICES {
                let c = first.with_service(service);
                let session = Session::new(&c, b"names").await;
                let dir = session.path(&c, "x").await.unwrap();
                let created = [putfh(&dir), open(b"o", "file", 3, 0, true)];
                assert_eq!(session.status(&c, created).await, Status::Ok);
                let file = session.path(&c, "x/file").await.unwrap();
                let set = async |owner, group| chown(&c, &session, &file, owner, group).await;
                let get = async || owners(&c, &session, &file).await;
                let named = |name: &str| format!("\"{name}@test.millrace\"");

                assert_eq!(set("root@test.millrace", "root@test.millrace").await, Status::Ok);
                assert_eq!(get().await, (named("root"), named("root")));
                assert_eq!(set("daemon@test.millrace", "daemon@TEST.MILLRACE").await, Status::Ok);
                assert_eq!(get().await, (named("daemon"), named("daemon")));
                assert_eq!(listed(&c, &session).await["file"], named("daemon"));
                // One with numbers only, and an id without a name.
                assert_eq!(set("robot@Test.Millrace", "3999999999").await, Status::Ok);
                assert_eq!(get().await, (named("robot"), "3999999999".into()));
                for owner in ["no-such-user@test.millrace", "daemon@elsewhere", "daemon", "@test.millrace"] {
                    assert_eq!(set(owner, "0").await, Status::BadOwner, "{owner}");
                }
                assert_eq!(set("", "0").await, Status::Inval);
                assert_eq!(get().await.0, named("robot"));

                let current = Attributes { owner: Some(Owner::Name(b"robot@test.millrace")), ..Attributes::default() };
                let verify = op(Operation::Verify, current);
                assert_eq!(session.status(&c, [putfh(&file), verify]).await, Status::Ok);

                let sys = first.sys();
                let of_sys = Session::new(sys, b"numbers").await;
                assert_eq!(owners(sys, &of_sys, &file).await, ("1000".into(), "3999999999".into()));
                assert_eq!(listed(sys, &of_sys).await["file"], "1000");
                for (owner, group) in [("daemon@test.millrace", "0"), ("0", "daemon@test.millrace")] {
                    assert_eq!(chown(sys, &of_sys, &file, owner, group).await, Status::BadOwner);
                }
                assert_eq!(chown(sys, &of_sys, &file, "1", "0").await, Status::Ok);
                assert_eq!(get().await, (named("daemon"), named("root")));
            }
            // Another domain, in a running server.
            let domain = Some("cell.example".to_owned());
            let changed = KerberosSettings { domain, ..kerberos.unwrap() };
            server.reload(&Config { kerberos: Some(changed.clone()), ..start.clone() }).unwrap();
            let c = GssCaller::connect(&server, Proto::Tcp, &tickets, 1).await;
            let session = Session::new(&c, b"another domain").await;
            let file = session.path(&c, "x/file").await.unwrap();
            assert_eq!(owners(&c, &session, &file).await.0, "\"daemon@cell.example\"");
            // Without a domain: numbers, and names in the realm.
            let without = KerberosSettings { domain: None, ..changed };
            server.reload(&Config { kerberos: Some(without), ..start }).unwrap();
            let c = GssCaller::connect(&server, Proto::Tcp, &tickets, 1).await;
            let session = Session::new(&c, b"no domain").await;
            let file = session.path(&c, "x/file").await.unwrap();
            assert_eq!(chown(&c, &session, &file, "robot@test.millrace", "0").await, Status::Ok);
            assert_eq!(owners(&c, &session, &file).await, ("1000".into(), "0".into()));
            server.stop(Duration::from_secs(5)).await;
        });
    }
}
