//! Callers with Kerberos, with a key distribution center: flavors of exports, users, retransmissions.

mod caller;
mod exports;
mod limits;
mod machine;
mod owners;

use std::{
    cell::Cell,
    collections::BTreeMap,
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use millrace_gssapi::{Credential, Initiator, Progress};
use millrace_kerberos_testing::{
    Client, Realm, Target, Words, answered, denied, init, opaque, realm_tests, words,
};
use millrace_nfs::{
    mount::{self, Dirpath},
    v3::{
        CreateArgs, CreateHow, CreateOk, DirOpArgs, FileHandle, FsinfoArgs, GetattrArgs, GetattrOk,
        Procedure, Res, Sattr, SetattrArgs, Status, WccData,
    },
};
use millrace_oncrpc::RpcError;
use millrace_server::{Config, KerberosSettings, Running, Server};
use millrace_xdr::{Decode, Decoder, Encode, Encoder, Message};

use crate::common::{Caller, Proto, arena, config, run};

const NFS: (u32, u32) = (100_003, 3);
const MOUNT: (u32, u32) = (100_005, 3);
/// `auth_stat` of calls with a flavor that the export refuses, and without a context.
const TOOWEAK: u32 = 5;
const CREDPROBLEM: u32 = 13;
/// Services: `krb5`, `krb5i`, `krb5p`.
const SERVICES: [u32; 3] = [1, 2, 3];

fn settings(realm: &Realm, users: &[(&str, &str)]) -> Option<KerberosSettings> {
    let users: BTreeMap<_, _> = users
        .iter()
        .map(|(principal, user)| (format!("{principal}@TEST.MILLRACE"), user.parse().unwrap()))
        .collect();
    Some(KerberosSettings { keytab: Some(realm.file("server.keytab")), users, domain: None })
}

/// A connection, with the numbers of its calls.
struct Connection {
    stream: TcpStream,
    xid: Cell<u32>,
}

fn encoded(value: &impl Encode) -> Vec<u8> {
    let mut e = Encoder::new(&arena(1 << 20), 1024);
    e.put(value);
    e.finish().unwrap().head.to_vec()
}

fn decoded<T: for<'a> Decode<'a>>(bytes: &[u8]) -> T {
    Decoder::from_bytes(bytes).get().unwrap()
}

impl Connection {
    fn new(server: &Running) -> Self {
        let stream = TcpStream::connect(server.tcp_addr().unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { stream, xid: Cell::new(1) }
    }

    fn at(&self, (program, version): (u32, u32), procedure: u32) -> Target {
        self.xid.set(self.xid.get() + 1);
        Target { xid: self.xid.get(), program, version, procedure }
    }

    fn send(&self, call: &[u8]) -> Vec<u8> {
        let mut stream = &self.stream;
        stream.write_all(&[&words(&[(1 << 31) | call.len() as u32]), call].concat()).unwrap();
        let mut mark = [0; 4];
        stream.read_exact(&mut mark).unwrap();
        let mut reply = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
        stream.read_exact(&mut reply).unwrap();
        reply
    }

    /// The results of a call with AUTH_SYS of root, or the `auth_stat`.
    fn sys(&self, program: (u32, u32), procedure: u32, args: &[u8]) -> Result<Vec<u8>, u32> {
        let to = self.at(program, procedure);
        let credential = words(&[1, 20, 0, 0, 0, 0, 0, 0, 0]);
        let call =
            [&words(&[to.xid, 0, 2, to.program, to.version, procedure])[..], &credential, args].concat();
        of_reply(&self.send(&call), to, |reply| answered(reply, to.xid).2.to_vec())
    }

    /// The client's side of a context of a user with a ticket.
    fn context(&self, cache: &str) -> Client {
        self.context_with("server.test", cache).unwrap()
    }

    /// The same with the service of a host, or the major status.
    fn context_with(&self, host: &str, cache: &str) -> Result<Client, u32> {
        let credential = Credential::of_cache(Some(cache)).unwrap();
        let first = Initiator::new(&format!("nfs@{host}")).unwrap().step(&credential, &[]).unwrap();
        let Progress::Continue { token, next } = first else { panic!("{first:?}") };
        let to = self.at(NFS, 0);
        let reply = self.send(&init(to, &token));
        let mut results = Words(answered(&reply, to.xid).2);
        let (_handle, major) = (results.opaque(), results.word());
        if major != 0 {
            return Err(major);
        }
        Ok(Client::established(&reply, to.xid, |token| {
            let last = next.step(&credential, token).unwrap();
            let Progress::Established { context, acceptor, .. } = last else { panic!("{last:?}") };
            assert_eq!(acceptor, format!("nfs/{host}@TEST.MILLRACE"));
            context
        }))
    }

    /// The results of a call with a context, or the `auth_stat`.
    fn with(
        &self,
        client: &Client,
        service: u32,
        procedure: Procedure,
        args: &impl Encode,
    ) -> Result<Vec<u8>, u32> {
        self.repeated(client, service, self.at(NFS, procedure.number()), args)
    }

    fn repeated(
        &self,
        client: &Client,
        service: u32,
        to: Target,
        args: &impl Encode,
    ) -> Result<Vec<u8>, u32> {
        let sequence = client.next();
        let reply = self.send(&client.call(to, sequence, service, &encoded(args)));
        of_reply(&reply, to, |reply| {
            let (status, results) = client.results(reply, to, sequence, service);
            assert_eq!(status, 0);
            results
        })
    }

    /// Handle and flavors of an export.
    fn mount(&self, export: &str) -> (FileHandle, Vec<u32>) {
        let args = opaque(export.as_bytes());
        assert_eq!(args, encoded(&Dirpath(export.as_bytes())));
        let results = self.sys(MOUNT, mount::Procedure::Mnt.number(), &args).unwrap();
        let mut d = Words(&results);
        assert_eq!(d.word(), 0, "{export}");
        let handle = FileHandle::new(&d.opaque()).unwrap();
        (handle, (0..d.word()).map(|_| d.word()).collect())
    }
}

fn of_reply<T>(reply: &[u8], to: Target, accepted: impl FnOnce(&[u8]) -> T) -> Result<T, u32> {
    let denies = Words(&reply[8..]).word() == 1;
    if denies { Err(denied(reply, to.xid)) } else { Ok(accepted(reply)) }
}

fn create(dir: FileHandle, name: &str) -> CreateArgs<'_> {
    CreateArgs { where_: DirOpArgs { dir, name: name.as_bytes() }, how: CreateHow::Guarded(Sattr::default()) }
}

/// The owner of a created file.
fn owner(results: &[u8]) -> Result<u32, Status> {
    let created: Res<CreateOk, WccData> = decoded(results);
    created.into_result().map(|ok| ok.attributes.unwrap().uid).map_err(|(status, _)| status)
}

/// Lets all users create files in a directory.
fn open_to_all(connection: &Connection, dir: FileHandle) {
    let attributes = Sattr { mode: Some(0o777), ..Sattr::default() };
    let args = SetattrArgs { object: dir, attributes, guard: None };
    let results = connection.sys(NFS, Procedure::Setattr.number(), &encoded(&args)).unwrap();
    assert_eq!(Words(&results).word(), 0);
}

realm_tests! {
    fn files_are_used_with_the_flavors_of_their_export(realm) {
        run(async {
            let exports = [
                "/p=memory:8MiB,sec=krb5p",
                "/ki=memory:8MiB,sec=krb5i:krb5,secure",
                "/sys=memory:8MiB",
                "/all=memory:8MiB,sec=krb5p:krb5i:krb5:sys,auth_none",
            ];
            let server = Server::start(Config { kerberos: settings(realm, &[]), ..config(&exports) }).unwrap();
            let connection = Connection::new(&server);
            let alice = connection.context(&realm.ticket("alice", &[]));
            for (export, flavors, sys, services) in [
                ("/p", &[390_005][..], false, [false, false, true]),
                ("/sys", &[1], true, [false; 3]),
                ("/all", &[390_005, 390_004, 390_003, 1, 0], true, [true; 3]),
            ] {
                let (root, offered) = connection.mount(export);
                assert_eq!(offered, flavors, "{export}");
                let admitted = |result: Result<Vec<u8>, u32>| match result {
                    Ok(_) => true,
                    Err(stat) => {
                        assert_eq!(stat, TOOWEAK);
                        false
                    }
                };
                let fsstat = FsinfoArgs { root };
                for (service, expected) in SERVICES.into_iter().zip(services) {
                    let result = connection.with(&alice, service, Procedure::Fsstat, &fsstat);
                    assert_eq!(admitted(result), expected, "{export} with service {service}");
                }
                let result = connection.sys(NFS, Procedure::Fsstat.number(), &encoded(&fsstat));
                assert_eq!(admitted(result), sys, "{export} with sys");
                // RFC 2623 section 2.3.2.
                for procedure in [Procedure::Fsinfo, Procedure::Getattr] {
                    assert!(admitted(connection.sys(NFS, procedure.number(), &encoded(&fsstat))), "{export}");
                }
            }
            server.stop(Duration::from_secs(5)).await;
        });
    }

    fn principals_are_users_of_the_table_or_of_the_host_or_anonymous(realm) {
        run(async {
            realm.administer(
                "addprinc -pw secret daemon\naddprinc -pw secret root\naddprinc -pw secret stranger\n\
                 addprinc -pw secret host/client.test\n",
            );
            let exports = ["/x=memory:8MiB,sec=krb5:sys,squash=none", "/root=memory:8MiB,sec=krb5:sys"];
            let kerberos = settings(realm, &[("alice", "1000:100")]);
            let server = Server::start(Config { kerberos, ..config(&exports) }).unwrap();
            let connection = Connection::new(&server);
            let dir = connection.mount("/x").0;
            open_to_all(&connection, dir);
            for (user, uid) in
                [("alice", 1000), ("daemon", 1), ("root", 65_534), ("stranger", 65_534), ("host/client.test", 0)]
            {
                let client = connection.context(&realm.ticket(user, &[]));
                let name = user.replace('/', "-");
                let results = connection.with(&client, 1, Procedure::Create, &create(dir, &name)).unwrap();
                assert_eq!(owner(&results), Ok(uid), "{user}");
            }
            assert_eq!(server.stats().gss.contexts, 5);
            server.stop(Duration::from_secs(5)).await;
        });
    }

    fn a_retransmission_with_another_sequence_number_is_executed_once(realm) {
        run(async {
            let exports = ["/x=memory:8MiB,sec=krb5p:krb5i:krb5,squash=none"];
            realm.administer("addprinc -pw secret bob\n");
            let kerberos = settings(realm, &[("alice", "0:0"), ("bob", "0:0")]);
            let server = Server::start(Config { kerberos, ..config(&exports) }).unwrap();
            let connection = Connection::new(&server);
            let dir = connection.mount("/x").0;
            let alice = connection.context(&realm.ticket("alice", &[]));
            let bob = connection.context(&realm.ticket("bob", &[]));
            for service in SERVICES {
                let name = service.to_string();
                let (to, args) = (connection.at(NFS, Procedure::Create.number()), create(dir, &name));
                let first = connection.repeated(&alice, service, to, &args).unwrap();
                assert_eq!(owner(&first), Ok(0));
                // The client may have another connection, and another protection.
                let other = Connection::new(&server);
                for service in SERVICES {
                    assert_eq!(other.repeated(&alice, service, to, &args).unwrap(), first, "a retransmission");
                }
                let again = connection.repeated(&bob, service, to, &args).unwrap();
                assert_eq!(owner(&again), Err(Status::Exist), "another user");
                let again = connection.repeated(&alice, service, Target { xid: to.xid + 1000, ..to }, &args).unwrap();
                assert_eq!(owner(&again), Err(Status::Exist), "another call");
            }
            server.stop(Duration::from_secs(5)).await;
        });
    }

    fn a_context_is_used_on_all_transports_and_a_replay_on_any_is_discarded(realm) {
        run(async {
            let exports = ["/x=memory:8MiB,sec=krb5p:krb5i:krb5"];
            let server = Server::start(Config { kerberos: settings(realm, &[]), ..config(&exports) }).unwrap();
            let connection = Connection::new(&server);
            let args = encoded(&GetattrArgs { object: connection.mount("/x").0 });
            let alice = connection.context(&realm.ticket("alice", &[]));
            for service in SERVICES {
                let rdma = Caller::connect(&server, Proto::Rdma).await;
                let (to, sequence) = (connection.at(NFS, Procedure::Getattr.number()), alice.next());
                let call = alice.call(to, sequence, service, &args);
                let message = || Message::from_view(rdma.arena.copy_from(&call).unwrap());
                let reply = rdma.send(message(), 0, Some(to.xid)).await.unwrap();
                let (status, results) = alice.results(&reply.message.head.to_vec(), to, sequence, service);
                assert_eq!((status, Words(&results).word()), (0, 0));
                let e = rdma.send(message(), 0, Some(to.xid)).await.unwrap_err();
                assert!(matches!(e, RpcError::Disconnected { .. }), "{e}");
                // The server closes the connection without an answer.
                let mut tcp = &Connection::new(&server).stream;
                tcp.write_all(&[&words(&[(1 << 31) | call.len() as u32]), &call[..]].concat()).unwrap();
                assert_eq!(tcp.read(&mut [0]).unwrap_or(0), 0);
            }
            assert_eq!(server.stats().gss.discarded, 6);
            server.stop(Duration::from_secs(5)).await;
        });
    }

    fn keys_of_the_keytab_are_replaced_while_the_server_runs(realm) {
        run(async {
            let host = "rolled.test";
            let add = format!("ktadd -k rolled.keytab nfs/{host}\n");
            realm.administer(&format!("addprinc -randkey nfs/{host}\naddprinc -pw secret late\n{add}"));
            let kerberos = settings(realm, &[("alice", "1000:100")]).map(|settings| KerberosSettings {
                keytab: Some(realm.file("rolled.keytab")),
                ..settings
            });
            let exports = ["/x=memory:8MiB,sec=krb5p:krb5i:krb5"];
            let server = Server::start(Config { kerberos, ..config(&exports) }).unwrap();
            let connection = Connection::new(&server);
            let (root, _) = connection.mount("/x");
            let works = |client: &Client| {
                let args = GetattrArgs { object: root };
                assert!(connection.with(client, 3, Procedure::Getattr, &args).is_ok());
            };
            let old = realm.ticket("alice", &[]);
            let context = connection.context_with(host, &old).unwrap();
            works(&context);
            realm.administer(&add);
            let new = realm.ticket("late", &[]);
            for ticket in [&old, &new] {
                works(&connection.context_with(host, ticket).unwrap());
            }
            realm.administer(&format!("ktremove -k rolled.keytab nfs/{host} old\n"));
            works(&context);
            let refused = connection.context_with(host, &old).unwrap_err();
            assert_eq!(refused, 13 << 16, "GSS_S_FAILURE: there is no key for the ticket");
            works(&connection.context_with(host, &new).unwrap());
            server.stop(Duration::from_secs(5)).await;
        });
    }

    fn contexts_end_when_kerberos_is_configured_otherwise(realm) {
        run(async {
            let start = Config { kerberos: settings(realm, &[]), ..config(&["/x=memory:8MiB,sec=krb5"]) };
            let mut server = Server::start(start.clone()).unwrap();
            let connection = Connection::new(&server);
            let root = connection.mount("/x").0;
            let cache = realm.ticket("alice", &[]);
            let alice = connection.context(&cache);
            let getattr = |client: &Client| {
                let results = connection.with(client, 1, Procedure::Getattr, &GetattrArgs { object: root })?;
                Ok::<_, u32>(decoded::<Res<GetattrOk, ()>>(&results).into_result().is_ok())
            };
            assert!(server.reload(&start).unwrap().changed.is_empty());
            assert_eq!(getattr(&alice), Ok(true));
            let changed = Config { kerberos: settings(realm, &[("alice", "1:1")]), ..start.clone() };
            assert_eq!(server.reload(&changed).unwrap().changed, ["kerberos"]);
            assert_eq!(getattr(&alice), Err(CREDPROBLEM));
            assert_eq!(getattr(&connection.context(&cache)), Ok(true));

            let keytab = Some(realm.file("missing.keytab"));
            let missing = Config { kerberos: Some(KerberosSettings { keytab, ..Default::default() }), ..start };
            let e = server.reload(&missing).unwrap_err().to_string();
            assert!(e.contains("[kerberos]") && e.contains("missing.keytab") && e.contains("ktadd"), "{e}");
            let e = Server::start(missing).err().unwrap().to_string();
            assert!(e.contains("missing.keytab"), "{e}");
            server.stop(Duration::from_secs(5)).await;
        });
    }
}

#[test]
fn exports_with_kerberos_that_is_not_configured_are_errors() {
    for export in ["/x=memory:8MiB,sec=sys:krb5", "/x=memory:8MiB,client=::1(sec=krb5p)"] {
        let invalid = config(&[export]).invalid_settings();
        assert_eq!(invalid[0].field, "exports.0.sec");
        assert!(invalid[0].reason.contains("there is no [kerberos]"), "{}", invalid[0].reason);
    }
    assert_eq!(config(&["/x=memory:8MiB,sec=sys"]).invalid_settings(), []);
}
