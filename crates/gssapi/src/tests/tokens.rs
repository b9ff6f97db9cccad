//! `millrace_krb5` against the library: each verifies and opens what the other makes.

use std::{ffi::CString, path::Path};

use millrace_krb5::{Context, Enctype, PLAIN_AT};
use rand_xoshiro::{
    Xoshiro256PlusPlus,
    rand_core::{Rng, SeedableRng},
};

use crate::{
    calls::{Cred, Name, SecurityContext, Usage},
    ffi::PerMessage,
};
use millrace_kerberos_testing::{Realm, realm_tests};

/// Messages with each encryption type: 10,000 in all.
const MESSAGES: usize = 2500;
const SEED: u64 = 44;
/// Bytes of a header (RFC 4121 section 4.2.6).
const HEADER: usize = 16;

/// An established context of both sides, in the library.
fn established(realm: &Realm, service: &str, keytab: &Path) -> [SecurityContext; 2] {
    let cache = CString::new(realm.ticket("alice", &[])).unwrap();
    let keytab = CString::new(keytab.to_str().unwrap()).unwrap();
    let client = Cred::acquire(Usage::Initiate, &[(c"ccache", &cache)], "test").unwrap();
    let server =
        Cred::acquire(Usage::Accept, &[(c"rcache", c"none:"), (c"keytab", &keytab)], "test").unwrap();
    let target = Name::of_service(service).unwrap();
    let [mut initiator, mut acceptor] = [(); 2].map(|()| SecurityContext::new().unwrap());
    let first = initiator.init(&client, &target, &[]);
    assert!(first.result.unwrap().is_none());
    let second = acceptor.accept(&server, &first.token);
    second.result.unwrap().unwrap();
    initiator.init(&client, &target, &second.token).result.unwrap().unwrap();
    [initiator, acceptor]
}

/// `bytes` in up to five parts of random lengths.
fn divided<'a>(mut bytes: &'a mut [u8], random: &mut Xoshiro256PlusPlus) -> Vec<&'a mut [u8]> {
    let mut parts = Vec::new();
    for _ in 0..random.next_u64() % 5 {
        let at = random.next_u64() as usize % (bytes.len() + 1);
        let (part, rest) = std::mem::take(&mut bytes).split_at_mut(at);
        parts.push(part);
        bytes = rest;
    }
    parts.push(bytes);
    parts
}

/// A rotation as peers use it, or any.
fn rotate(token: &mut [u8], tail: usize, random: &mut Xoshiro256PlusPlus) {
    let count = match random.next_u64() % 4 {
        0 => 0,
        1 => tail as u16,
        2 => 28,
        _ => random.next_u64() as u16,
    };
    token[6..8].copy_from_slice(&count.to_be_bytes());
    let len = token.len() - HEADER;
    token[HEADER..].rotate_right(usize::from(count) % len);
}

/// Exchanges one message in both directions, signed and sealed.
fn exchange(
    own: &Context,
    library: &SecurityContext,
    functions: &PerMessage,
    message: &mut [u8],
    random: &mut Xoshiro256PlusPlus,
) {
    let original = message.to_vec();
    let mic = own.mic(divided(message, random).iter().map(|part| &**part));
    assert!(library.verify(functions, &original, &mic));
    let mic = library.mic(functions, &original);
    own.verify(divided(message, random).iter().map(|part| &**part), &mic).unwrap();

    let mut token = [&[0; PLAIN_AT], &original[..], &vec![0; own.wrap_tail()]].concat();
    let mut confounder = [0; 16];
    random.fill_bytes(&mut confounder);
    own.wrap(&mut divided(&mut token, random), confounder).unwrap();
    rotate(&mut token, own.wrap_tail(), random);
    assert_eq!(library.unwrap(functions, &token).unwrap(), original);

    let mut token = library.wrap(functions, &original);
    assert_eq!(token.len(), PLAIN_AT + original.len() + own.wrap_tail());
    rotate(&mut token, own.wrap_tail(), random);
    let plain = own.unwrap(&mut divided(&mut token, random)).unwrap();
    assert_eq!(token[plain], original);
}

fn compare(realm: &Realm, enctype: Enctype) {
    println!("seed {SEED}");
    let mut random = Xoshiro256PlusPlus::seed_from_u64(SEED + u64::from(enctype.number()));
    let functions = PerMessage::load(PerMessage::FILE).unwrap();
    // A service whose only key has the type.
    let (host, keytab) = (format!("{enctype}.test"), format!("{enctype}.keytab"));
    realm.administer(&format!(
        "addprinc -e {enctype}:normal -randkey nfs/{host}\nktadd -norandkey -k {keytab} nfs/{host}\n"
    ));
    // Each side once with the library's code, and once with Millrace's.
    for own_is_initiator in [true, false] {
        let [initiator, acceptor] = established(realm, &format!("nfs@{host}"), &realm.file(&keytab));
        let (own, library) = if own_is_initiator { (initiator, acceptor) } else { (acceptor, initiator) };
        let own = own.export().unwrap();
        assert_eq!(own.enctype(), enctype);
        for i in 0..MESSAGES / 2 {
            let len = if i % 100 == 0 { 100_000 } else { 300 };
            let mut message = vec![0; random.next_u64() as usize % len];
            random.fill_bytes(&mut message);
            exchange(&own, &library, &functions, &mut message, &mut random);
        }
    }
}

realm_tests! {
    fn tokens_of_aes128_sha1_equal_those_of_mit(realm, "permitted_enctypes = aes128-cts-hmac-sha1-96") {
        compare(realm, Enctype::Aes128Sha1);
    }

    fn tokens_of_aes256_sha1_equal_those_of_mit(realm, "permitted_enctypes = aes256-cts-hmac-sha1-96") {
        compare(realm, Enctype::Aes256Sha1);
    }

    fn tokens_of_aes128_sha256_equal_those_of_mit(realm, "permitted_enctypes = aes128-cts-hmac-sha256-128") {
        compare(realm, Enctype::Aes128Sha256);
    }

    fn tokens_of_aes256_sha384_equal_those_of_mit(realm, "permitted_enctypes = aes256-cts-hmac-sha384-192") {
        compare(realm, Enctype::Aes256Sha384);
    }
}
