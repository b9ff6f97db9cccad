//! Credentials and negotiations, and why they fail.

use std::time::Duration;

use millrace_krb5::{Context, Enctype, Role};

use crate::{Acceptor, Credential, Error, Initiator, Progress, Refusal};
use millrace_kerberos_testing::{Realm, realm_tests};

/// What both sides have after a negotiation.
struct Both {
    initiator: Box<Context>,
    acceptor: Box<Context>,
    /// The principal of the initiator, as each side states it.
    names: [String; 2],
    /// That of the acceptor, as each side states it.
    services: [String; 2],
    /// The user of the initiator at the acceptor.
    local_user: Option<String>,
}

/// Why a negotiation failed.
#[derive(Debug)]
enum Failure {
    Initiator(Error),
    Acceptor(Refusal),
}

fn negotiate(client: &Credential, service: &str, server: &Credential) -> Result<Both, Failure> {
    let first = Initiator::new(service).unwrap().step(client, &[]).map_err(Failure::Initiator)?;
    let Progress::Continue { token, next } = first else { panic!("{first:?}") };
    let second = Acceptor::new().unwrap().step(server, &token).map_err(Failure::Acceptor)?;
    let Progress::Established { token, initiator: seen, acceptor: host, local_user, context: acceptor } =
        second
    else {
        panic!("{second:?}")
    };
    let third = next.step(client, &token).map_err(Failure::Initiator)?;
    let Progress::Established { token, initiator: own, acceptor: service, context: initiator, .. } = third
    else {
        panic!("{third:?}")
    };
    assert_eq!(token, []);
    Ok(Both { initiator, acceptor, names: [own, seen], services: [service, host], local_user })
}

fn server(realm: &Realm) -> Credential {
    Credential::of_keytab(Some(&realm.file("server.keytab"))).unwrap()
}

/// The text of a failure, which must be the acceptor's.
fn refusal(result: Result<Both, Failure>) -> (String, Vec<u8>) {
    match result.map(|both| both.names) {
        Err(Failure::Acceptor(refusal)) => (refusal.to_string(), refusal.token),
        other => panic!("{other:?}"),
    }
}

/// The text of a failure, which must be the initiator's.
fn failure(result: Result<Both, Failure>) -> String {
    match result.map(|both| both.names) {
        Err(Failure::Initiator(error)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

realm_tests! {
    fn both_sides_have_the_same_context(realm) {
        let client = Credential::of_cache(Some(&realm.ticket("alice", &[]))).unwrap();
        let (principal, lifetime) = client.inquire().unwrap();
        assert_eq!(principal, "alice@TEST.MILLRACE");
        assert!(lifetime.unwrap() > Duration::from_secs(3600));
        let Both { initiator, acceptor, names, services, local_user } =
            negotiate(&client, "nfs@server.test", &server(realm)).unwrap();
        assert_eq!(names, ["alice@TEST.MILLRACE"; 2]);
        assert_eq!(services, ["nfs/server.test@TEST.MILLRACE"; 2]);
        assert_eq!(local_user.as_deref(), Some("alice"));
        assert_eq!((initiator.role(), acceptor.role()), (Role::Initiator, Role::Acceptor));
        assert_eq!(initiator.enctype(), acceptor.enctype());
        assert!(Enctype::ALL.contains(&initiator.enctype()));
        assert_eq!(initiator.end(), acceptor.end());
        acceptor.verify([&b"message"[..]], &initiator.mic([&b"message"[..]])).unwrap();
        initiator.verify([&b"message"[..]], &acceptor.mic([&b"message"[..]])).unwrap();
    }

    fn the_end_of_a_context_is_that_of_the_ticket(realm) {
        let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let before = now();
        let client = Credential::of_cache(Some(&realm.ticket("alice", &["-l", "1h"]))).unwrap();
        let after = now();
        let Both { initiator, acceptor, .. } = negotiate(&client, "nfs@server.test", &server(realm)).unwrap();
        let hour = Duration::from_secs(3600);
        let second = Duration::from_secs(1);
        for context in [initiator, acceptor] {
            assert!(context.end() + second > before + hour && context.end() < after + hour + second, "{context:?}");
        }
    }

    fn a_keytab_that_changes_is_read_again(realm) {
        realm.administer("addprinc -randkey nfs/changing.test\nktadd -k changing.keytab nfs/changing.test\n");
        let server = Credential::of_keytab(Some(&realm.file("changing.keytab"))).unwrap();
        let client = Credential::of_cache(Some(&realm.ticket("alice", &[]))).unwrap();
        negotiate(&client, "nfs@changing.test", &server).unwrap();
        realm.administer("ktadd -k changing.keytab nfs/changing.test\n");
        let client = Credential::of_cache(Some(&realm.ticket("alice", &[]))).unwrap();
        negotiate(&client, "nfs@changing.test", &server).unwrap();
    }

    fn a_server_accepts_for_every_service_of_its_keytab(realm) {
        let both = realm.file("both.keytab");
        realm.administer(
            "addprinc -randkey nfs/one.test\naddprinc -randkey nfs/two.test\n\
             ktadd -k both.keytab nfs/one.test nfs/two.test\n",
        );
        let server = Credential::of_keytab(Some(&both)).unwrap();
        let client = Credential::of_cache(Some(&realm.ticket("alice", &[]))).unwrap();
        for service in ["nfs@one.test", "nfs@two.test"] {
            negotiate(&client, service, &server).unwrap();
        }
    }

    // Both sides accept a ticket for as long after its end as clocks may differ: 5 minutes without this setting.
    fn an_expired_ticket_is_refused_by_both_sides(realm, "clockskew = 1") {
        // The ticket is valid for two seconds: a slow machine needs more than one to begin.
        let (cache, client, token) = (0..20)
            .find_map(|_| {
                let cache = realm.ticket("mayfly", &[]);
                let client = Credential::of_cache(Some(&cache)).unwrap();
                let first = Initiator::new("nfs@server.test").unwrap().step(&client, &[]).ok()?;
                let Progress::Continue { token, .. } = first else { panic!("{first:?}") };
                Some((cache, client, token))
            })
            .expect("no ticket was used within two seconds");
        while client.inquire().is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
        let text = client.inquire().unwrap_err().to_string();
        println!("{text}");
        assert!(text.contains(&cache) && text.contains("expired") && text.contains("kinit"), "{text}");
        std::thread::sleep(Duration::from_secs(3));
        let text = failure(negotiate(&client, "nfs@server.test", &server(realm)));
        println!("{text}");
        assert!(text.contains("nfs@server.test") && text.contains(&cache), "{text}");
        assert!(text.contains("expired") && text.contains("kinit"), "{text}");
        let refusal = Acceptor::new().unwrap().step(&server(realm), &token).unwrap_err();
        println!("{refusal}");
        assert!(refusal.to_string().contains("expired"), "{refusal}");
    }

    fn a_missing_keytab_is_named_with_the_command_that_writes_one(realm) {
        let path = realm.file("missing.keytab");
        let text = Credential::of_keytab(Some(&path)).err().unwrap().to_string();
        println!("{text}");
        assert!(text.contains(path.to_str().unwrap()) && text.contains("ktadd"), "{text}");
    }

    fn a_missing_cache_is_named_with_the_command_that_fills_one(realm) {
        let cache = format!("FILE:{}", realm.file("missing-cache").display());
        let text = Credential::of_cache(Some(&cache)).err().unwrap().to_string();
        println!("{text}");
        assert!(text.contains(&cache) && text.contains("kinit"), "{text}");
        // Without a name, the default cache is meant, which does not exist either.
        let text = Credential::of_cache(None).err().unwrap().to_string();
        assert!(text.contains("default credential cache") && text.contains("kinit"), "{text}");
    }

    fn a_keytab_of_another_service_is_refused_with_a_token_for_the_peer(realm) {
        let client = Credential::of_cache(Some(&realm.ticket("alice", &[]))).unwrap();
        let other = Credential::of_keytab(Some(&realm.file("other.keytab"))).unwrap();
        let (text, token) = refusal(negotiate(&client, "nfs@server.test", &other));
        println!("{text}");
        assert!(text.contains("nfs/server.test@TEST.MILLRACE") && text.contains("ktadd"), "{text}");
        // With the token, the client can state why the server refuses.
        assert!(!token.is_empty());
    }

    fn an_old_key_is_refused_as_such(realm) {
        let client = Credential::of_cache(Some(&realm.ticket("alice", &[]))).unwrap();
        realm.administer("addprinc -randkey nfs/rekeyed.test\nktadd -k old.keytab nfs/rekeyed.test\n");
        realm.administer("cpw -randkey nfs/rekeyed.test\n");
        let old = Credential::of_keytab(Some(&realm.file("old.keytab"))).unwrap();
        let (text, _) = refusal(negotiate(&client, "nfs@rekeyed.test", &old));
        println!("{text}");
        assert!(text.contains("another version") && text.contains("ktadd"), "{text}");
    }

    fn a_service_that_the_realm_does_not_have_is_named(realm) {
        let client = Credential::of_cache(Some(&realm.ticket("alice", &[]))).unwrap();
        let text = failure(negotiate(&client, "nfs@nowhere.test", &server(realm)));
        println!("{text}");
        assert!(text.contains("nfs@nowhere.test") && text.contains("addprinc"), "{text}");
    }

    fn what_is_no_token_of_kerberos_is_refused(realm) {
        let client = Credential::of_cache(Some(&realm.ticket("alice", &[]))).unwrap();
        let server = server(realm);
        let first = Initiator::new("nfs@server.test").unwrap().step(&client, &[]).unwrap();
        let Progress::Continue { token, .. } = first else { panic!("{first:?}") };
        // The same, as a mechanism token inside SPNEGO (RFC 4178), whose OID is 1.3.6.1.5.5.2.
        let spnego = [&[0x60, 0x08, 0x06, 0x06, 0x2b, 6, 1, 5, 5, 2][..], &token].concat();
        let mut wrong_oid = token.clone();
        wrong_oid[12] ^= 1;
        for (what, bytes) in [
            ("empty", &[][..]),
            ("zeros", &[0; 100]),
            ("ones", &[0xff; 100]),
            ("SPNEGO", &spnego),
            ("another mechanism", &wrong_oid),
            ("a context token of nothing", &token[..17]),
        ] {
            let refusal = Acceptor::new().unwrap().step(&server, bytes).unwrap_err();
            println!("{what}: {refusal}");
            let Error::Status(status) = refusal.error else { panic!("{refusal}") };
            assert_ne!(status.major, 0);
            assert!(!status.text.is_empty());
        }
        for len in 0..token.len() {
            Acceptor::new().unwrap().step(&server, &token[..len]).unwrap_err();
        }
        for at in 0..token.len() {
            let mut changed = token.clone();
            changed[at] ^= 0x10;
            // Some bytes are not protected, such as the name of the realm beside a ticket.
            let _ = Acceptor::new().unwrap().step(&server, &changed);
        }
        Acceptor::new().unwrap().step(&server, &token).unwrap();
    }

    fn a_context_with_camellia_is_refused_by_name(realm, "permitted_enctypes = camellia256-cts-cmac") {
        realm.administer(
            "addprinc -e camellia256-cts:normal -randkey nfs/camellia.test\n\
             ktadd -norandkey -k camellia.keytab nfs/camellia.test\n",
        );
        let server = Credential::of_keytab(Some(&realm.file("camellia.keytab"))).unwrap();
        let client = Credential::of_cache(Some(&realm.ticket("alice", &[]))).unwrap();
        let (text, _) = refusal(negotiate(&client, "nfs@camellia.test", &server));
        println!("{text}");
        assert!(text.contains("26") && text.contains("permitted_enctypes"), "{text}");
    }

    fn contexts_are_made_by_several_threads_at_a_time(realm) {
        let client = Credential::of_cache(Some(&realm.ticket("alice", &[]))).unwrap();
        let server = server(realm);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        negotiate(&client, "nfs@server.test", &server).unwrap();
                    }
                });
            }
        });
    }
}

#[test]
fn a_name_with_a_nul_is_refused() {
    let error = Credential::of_cache(Some("FILE:/tmp/a\0b")).err().unwrap();
    assert_eq!(error.to_string(), "the credential cache \"FILE:/tmp/a\\0b\" contains a NUL character");
}
