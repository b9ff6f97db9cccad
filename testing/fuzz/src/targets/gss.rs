//! A server with RPCSEC_GSS (RFC 2203) and Kerberos 5. Input: an encryption type, and operations of a client that has a
//! context: records, credentials and arguments of any content, with the right protection or without, and calls that are right
//! but for one byte. Arguments with a checksum are executed only as they were sent, and another user's calls get the right
//! replies meanwhile.

use std::{sync::Arc, time::Duration};

use millrace_kerberos_testing::{Client, Target, credential, header, init, opaque, words};
use millrace_krb5::{Context, Enctype, Parameters, Role};
use millrace_oncrpc::{
    GssCaller,
    gss::{Accepted, Acceptor, GssServer, Refused},
};
use millrace_runtime::RuntimeExt;

use super::serving::{Connection, ECHO, PROGRAM, Server, VERSION, marked};
use crate::bytes::{Input, operations};

/// Maximum number of operations of one script.
const OPERATIONS: usize = 64;
/// Kinds of operations: bytes of the stream; a record; a token that establishes a context; a call with this body of its
/// credential; one with these protected arguments (service, then what is in them); a call of which one byte is changed
/// (service, distance of its number, position, change); the end of the context; another connection; a pause.
const BYTES: u8 = 0;
const RECORD: u8 = 1;
const INIT: u8 = 2;
const CREDENTIAL: u8 = 3;
const BODY: u8 = 4;
const SEALED: u8 = 5;
const CHANGED: u8 = 6;
const DESTROY: u8 = 7;
const CONNECT: u8 = 8;
const PAUSE: u8 = 9;
const KINDS: u8 = 10;
const XID: u32 = 0x5a00;

fn keys(enctype: Enctype, role: Role, end: Duration) -> Box<Context> {
    let key = &[7; 32][..enctype.key_len()];
    let parameters = Parameters { role, enctype, key, acceptor_subkey: true, sequence: 5, end };
    Box::new(Context::new(&parameters).expect("the key has the length of keys"))
}

/// Accepts names, which are the tokens.
struct Names(Enctype, Duration);

impl Acceptor for Names {
    fn accept(&self, token: &[u8]) -> Result<Accepted, Refused> {
        match std::str::from_utf8(token) {
            Ok(name) => Ok(Accepted {
                token: b"hello".to_vec(),
                context: keys(self.0, Role::Acceptor, self.1),
                caller: GssCaller { principal: name.to_owned(), user: None },
            }),
            Err(_) => {
                Err(Refused { token: token.to_vec(), major: 9 << 16, minor: 7, reason: "no name".into() })
            }
        }
    }
}

fn at(procedure: u32) -> Target {
    Target { xid: XID, program: PROGRAM, version: VERSION, procedure }
}

async fn establish(connection: &mut Connection, enctype: Enctype, name: &str) -> Client {
    let reply = connection.call(&init(at(0), name.as_bytes())).await.expect("a reply");
    Client::established(&reply, XID, |_| keys(enctype, Role::Initiator, Duration::MAX))
}

/// Makes a call that is right.
async fn expect_service(connection: &mut Connection, client: &Client) {
    for service in 1..=3 {
        let (sequence, word) = (client.next(), words(&[0x1234 + 2 * service]));
        let call = client.call(at(ECHO), sequence, service, &word);
        let reply = connection.call(&call).await.expect("a reply");
        assert_eq!(client.results(&reply, at(ECHO), sequence, service), (0, word));
    }
}

async fn attack(server: &Server, enctype: Enctype, script: &[u8]) {
    let (mut honest, mut connection) = (server.connect(1), server.connect(2));
    let other = establish(&mut honest, enctype, "other").await;
    let mut client = establish(&mut connection, enctype, "user").await;
    let mut script = Input::new(script);
    for _ in 0..OPERATIONS {
        let Some((kind, operand)) = script.operation() else { break };
        let mut input = Input::new(operand);
        let record = match kind % KINDS {
            BYTES => {
                connection.exchange(operand).await;
                continue;
            }
            RECORD => operand.to_vec(),
            INIT => init(at(0), operand),
            CREDENTIAL => [client.signed(header(at(ECHO), operand)), words(&[2])].concat(),
            BODY => {
                let service = u32::from(input.u8());
                [client.header(at(ECHO), client.next(), service), input.rest().to_vec()].concat()
            }
            SEALED => {
                let (service, sequence) = (u32::from(input.u8()), client.next());
                let mut content = input.rest().to_vec();
                // An even word, if it is one: see `Echo`.
                content.iter_mut().for_each(|byte| *byte &= !1);
                let body = match service % 2 {
                    0 => [opaque(&content), opaque(&client.keys.mic([&content[..]]))].concat(),
                    _ => opaque(&client.sealed(&content)),
                };
                [client.header(at(ECHO), sequence, 2 + service % 2), body].concat()
            }
            CHANGED => {
                let service = u32::from(input.u8() % 4);
                let sequence = client.next().wrapping_add(u32::from(input.u16()) << (input.u8() % 24));
                let (at_byte, change) = (usize::from(input.u16()), input.u8());
                let word = if change == 0 { 2 } else { 3 };
                let mut call = client.call(at(ECHO), sequence, service, &words(&[word]));
                let len = call.len();
                // Arguments, checksum or padding. A change of the header may be none to what is protected.
                let body = client.header(at(ECHO), sequence, service).len();
                let place = at_byte % (len - body);
                // Of a wrap token, the field RRC says how the rest is rotated, and alone is not protected.
                if service == 3 && matches!(place, 10 | 11) {
                    continue;
                }
                call[body + place] ^= change;
                call
            }
            DESTROY => client.signed(header(at(0), &credential(3, client.next(), 1, &client.handle))),
            CONNECT => {
                connection = server.connect(2);
                client = establish(&mut connection, enctype, "user").await;
                continue;
            }
            _ => {
                server.rt.sleep(Duration::from_millis(10 * u64::from(input.u8()))).await;
                continue;
            }
        };
        connection.exchange(&marked(&record)).await;
    }
    expect_service(&mut honest, &other).await;
}

/// Executes the target with `input`.
pub(super) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let enctype = Enctype::ALL[usize::from(input.u8()) % Enctype::ALL.len()];
    let gss = Arc::new(GssServer::default());
    let server = Server::new(|config, rt| {
        gss.set(Some(Arc::new(Names(enctype, rt.wall_clock() + Duration::from_secs(3600)))));
        config.connection.gss = Arc::clone(&gss);
    });
    server.run(attack(&server, enctype, input.rest()));
    // Those of one user are limited.
    assert!(gss.stats().contexts <= OPERATIONS + 2, "{:?}", gss.stats());
}

/// Each operation, with numbers and lengths at their limits.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let handle = [0; 8];
    let bodies = |service: u32, sequence: u32| credential(0, sequence, service, &handle);
    let mut seeds = Vec::new();
    for enctype in 0..Enctype::ALL.len() as u8 {
        let mut script: Vec<(u8, Vec<u8>)> = vec![
            (INIT, b"user".to_vec()),
            (INIT, vec![0xff; 40]),
            (INIT, vec![b'n'; 1024]),
            (RECORD, init(at(0), b"another")),
            (RECORD, header(at(0), &credential(2, 0, 1, &handle))),
            (CREDENTIAL, bodies(1, 1)),
            (CREDENTIAL, bodies(3, 0x8000_0000)),
            (CREDENTIAL, [&credential(0, 1, 4, &[7; 400])[..], &[0; 4]].concat()),
            (BODY, [&[2][..], &opaque(&words(&[1, 2])), &opaque(&[4; 28])].concat()),
            (BODY, [&[3][..], &words(&[u32::MAX, 5])].concat()),
            (SEALED, [&[0][..], &words(&[4, 6])].concat()),
            (SEALED, [&[1][..], &words(&[4, 6])].concat()),
            (BYTES, b"\x80\0\0\x10".to_vec()),
            (CONNECT, Vec::new()),
            (PAUSE, vec![200]),
            (DESTROY, Vec::new()),
            (CHANGED, vec![1]),
            (CONNECT, Vec::new()),
        ];
        for service in 0..4 {
            script.extend([
                (CHANGED, vec![service, 0, 0, 0, 0, 0, 0]),
                (CHANGED, vec![service, 0, 1, 9, 0, 0, 0]),
                (CHANGED, vec![service, 0, 0, 0, 0, 5, 0x80]),
                (CHANGED, vec![service, 0, 0, 0, 0, 40, 1]),
                (CONNECT, Vec::new()),
            ]);
        }
        let script: Vec<_> = script.iter().map(|(kind, operand)| (*kind, &operand[..])).collect();
        seeds.push([&[enctype][..], &operations(&script)].concat());
    }
    seeds
}
