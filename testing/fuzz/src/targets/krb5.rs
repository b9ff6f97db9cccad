//! Tokens of Kerberos 5 (RFC 4121).
//!
//! An input is: encryption type, what it is (0: a MIC, 1: a wrap token, then as received; 2: a plaintext that is
//! wrapped, rotated and changed), lengths of three parts, and the bytes.

use std::time::Duration;

use millrace_krb5::{Context, Enctype, PLAIN_AT, Parameters, Role, TokenError};

use crate::{bytes::Input, heap::bounded};

const MESSAGE: &[u8] = b"a message";
/// Bytes of a header (RFC 4121 section 4.2.6).
const HEADER: usize = 16;

fn context(enctype: Enctype, role: Role) -> Context {
    let (key, end) = (&[7; 32][..enctype.key_len()], Duration::ZERO);
    let parameters = Parameters { role, enctype, key, acceptor_subkey: true, sequence: 1, end };
    Context::new(&parameters).expect("the key has the length of keys")
}

/// The bytes in three parts, of which the first two have these lengths at most.
fn parts(bytes: &mut [u8], first: u8, second: u8) -> [&mut [u8]; 3] {
    let (first, rest) = bytes.split_at_mut(usize::from(first).min(bytes.len()));
    let (second, third) = rest.split_at_mut(usize::from(second).min(rest.len()));
    [first, second, third]
}

/// A token that [`Context::wrap`] makes.
fn wrapped(sender: &Context, plain: &[u8]) -> Vec<u8> {
    let mut token = [&[0; PLAIN_AT], plain, &vec![0; sender.wrap_tail()]].concat();
    sender.wrap(&mut [&mut token], [9; 16]).expect("the token has room");
    token
}

/// Executes the target with `input`.
pub(super) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let enctype = Enctype::ALL[usize::from(input.u8()) % Enctype::ALL.len()];
    let [initiator, acceptor] = [Role::Initiator, Role::Acceptor].map(|role| context(enctype, role));
    let (kind, first, second) = (input.u8() % 3, input.u8(), input.u8());
    match kind {
        0 => {
            let token = input.rest();
            let result = bounded(0, || acceptor.verify([MESSAGE], token));
            // No input but the sender's own token is right.
            assert_eq!(result.is_ok(), *token == *initiator.mic([MESSAGE]));
        }
        1 => {
            let received = input.rest();
            let [mut whole, mut divided] = [received.to_vec(), received.to_vec()];
            let result = bounded(0, || acceptor.unwrap(&mut [&mut whole]));
            assert_eq!(bounded(0, || acceptor.unwrap(&mut parts(&mut divided, first, second))), result);
            if let Ok(plain) = result {
                assert_eq!(divided[plain.clone()], whole[plain]);
            }
        }
        _ => {
            let (rotation, at, change) = (input.u16(), usize::from(input.u16()), input.u8());
            let plain = input.rest();
            let mut token = wrapped(&initiator, plain);
            let len = token.len();
            token[6..8].copy_from_slice(&rotation.to_be_bytes());
            token[HEADER..].rotate_right(usize::from(rotation) % (len - HEADER));
            token[at % len] ^= change;
            // RRC alone is not protected.
            let intact = change == 0 || matches!(at % len, 6 | 7);
            match bounded(0, || acceptor.unwrap(&mut parts(&mut token, first, second))) {
                Ok(opened) => assert!(intact && token[opened] == *plain),
                Err(TokenError::Checksum) => assert_ne!(change, 0),
                Err(_) => assert!(at % len < HEADER && change != 0),
            }
        }
    }
}

/// Correct tokens of each encryption type.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (number, enctype) in (0..).zip(Enctype::ALL) {
        let initiator = context(enctype, Role::Initiator);
        seeds.push([&[number, 0, 0, 0][..], &initiator.mic([MESSAGE])].concat());
        seeds.push([&[number, 1, 20, 30][..], &wrapped(&initiator, MESSAGE)].concat());
        seeds.push([&[number, 2, 20, 30, 0, 28, 0, 0, 0][..], &[0x5a; 100]].concat());
    }
    seeds
}
