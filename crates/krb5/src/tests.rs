//! Tests of contexts and tokens.

use std::time::Duration;

use proptest::prelude::*;

use crate::{
    Context, Enctype, KeyLength, PLAIN_AT, Parameters, Role, TokenError,
    derive::Key,
    encryption::{BLOCK, Keys},
    parts::Ring,
    token::HEADER,
};

/// The bytes that `digits` are; spaces are ignored.
pub(crate) fn hex(digits: &str) -> Vec<u8> {
    data_encoding::HEXLOWER_PERMISSIVE.decode(digits.replace(' ', "").as_bytes()).unwrap()
}

/// A base key.
pub(crate) fn key(bytes: &[u8]) -> Key {
    let mut key = Key::default();
    key[..bytes.len()].copy_from_slice(bytes);
    key
}

/// `bytes` in parts of these lengths, as far as they suffice, and the remainder.
pub(crate) fn parts_of<'a>(mut bytes: &'a mut [u8], lengths: &[usize]) -> Vec<&'a mut [u8]> {
    let mut parts = Vec::new();
    for len in lengths {
        let (part, rest) = std::mem::take(&mut bytes).split_at_mut((*len).min(bytes.len()));
        parts.push(part);
        bytes = rest;
    }
    parts.push(bytes);
    parts
}

const KEY: [u8; 32] = *b"not a secret: a key of the tests";
/// Usages of what the initiator and the acceptor seal.
const SEAL: [u32; 2] = [24, 22];

fn context(enctype: Enctype, role: Role, acceptor_subkey: bool) -> Context {
    let key = &KEY[..enctype.key_len()];
    let sequence = 0x0ecc_5cda;
    let end = Duration::from_secs(1);
    Context::new(&Parameters { role, enctype, key, acceptor_subkey, sequence, end }).unwrap()
}

/// Both sides of a context.
fn both(enctype: Enctype) -> [Context; 2] {
    [Role::Initiator, Role::Acceptor].map(|role| context(enctype, role, true))
}

/// A wrap token for `plain`.
fn wrapped(sender: &Context, plain: &[u8], lengths: &[usize]) -> Vec<u8> {
    let mut token = [&[0; PLAIN_AT], plain, &vec![0; sender.wrap_tail()]].concat();
    sender.wrap(&mut parts_of(&mut token, lengths), [9; BLOCK]).unwrap();
    token
}

/// The plaintext of a token.
fn unwrapped(receiver: &Context, token: &[u8], lengths: &[usize]) -> Result<Vec<u8>, TokenError> {
    let mut token = token.to_vec();
    let plain = receiver.unwrap(&mut parts_of(&mut token, lengths))?;
    Ok(token[plain].to_vec())
}

/// The token as a peer sends it that rotates by `count`.
fn rotated(token: &[u8], count: u16) -> Vec<u8> {
    let mut token = token.to_vec();
    token[6..8].copy_from_slice(&count.to_be_bytes());
    let len = token.len() - HEADER;
    token[HEADER..].rotate_right(usize::from(count) % len);
    token
}

/// A token for `plain` with `filler` more bytes, with any flags.
fn sealed(enctype: Enctype, usage: u32, flags: u8, plain: &[u8], filler: u16) -> Vec<u8> {
    let mut header = [5, 4, flags, 0xff, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    header[4..6].copy_from_slice(&filler.to_be_bytes());
    let filler = vec![0xf1; usize::from(filler)];
    let tag = vec![0; enctype.checksum_len()];
    let mut token = [&header, &[9; BLOCK], plain, &filler, &header, &tag].concat();
    let len = token.len() - HEADER - tag.len();
    let mut whole = [&mut token[..]];
    let mut ring = Ring::new(&mut whole);
    ring.advance(HEADER);
    let mac = Keys::new(enctype, &key(&KEY[..enctype.key_len()]), usage).encrypt(&mut ring, len);
    let mut tag = tag;
    mac.finish(&mut tag);
    ring.write(&tag);
    token
}

#[test]
fn each_side_verifies_and_opens_what_the_other_sends() {
    for enctype in Enctype::ALL {
        let [initiator, acceptor] = both(enctype);
        for (sender, receiver) in [(&initiator, &acceptor), (&acceptor, &initiator)] {
            for len in (0..100).chain([1000, 65_536, 100_001]) {
                let plain: Vec<u8> = (0..len).map(|i| i as u8).collect();
                let mic = sender.mic([&plain[..]]);
                assert_eq!(mic.len(), sender.mic_len());
                receiver.verify([&plain[..]], &mic).unwrap();
                assert_eq!(sender.verify([&plain[..]], &mic), Err(TokenError::Direction));
                let token = wrapped(sender, &plain, &[]);
                assert_eq!(unwrapped(receiver, &token, &[]).unwrap(), plain);
                assert_eq!(unwrapped(sender, &token, &[]), Err(TokenError::Direction));
            }
        }
    }
}

#[test]
fn the_lengths_are_those_of_rfc_4121_with_each_encryption_type() {
    for (enctype, mic, overhead) in [
        (Enctype::Aes128Sha1, 28, 60),
        (Enctype::Aes256Sha1, 28, 60),
        (Enctype::Aes128Sha256, 32, 64),
        (Enctype::Aes256Sha384, 40, 72),
    ] {
        let context = context(enctype, Role::Initiator, false);
        assert_eq!((context.mic_len(), PLAIN_AT + context.wrap_tail()), (mic, overhead), "{enctype}");
    }
}

#[test]
fn tokens_begin_with_the_headers_of_rfc_4121() {
    for (role, subkey, mic, wrap) in [
        (
            Role::Initiator,
            true,
            "0404 04ff ffffffff 00000000 0ecc5cda",
            "0504 06ff 00000000 00000000 0ecc5cdb",
        ),
        (
            Role::Acceptor,
            false,
            "0404 01ff ffffffff 00000000 0ecc5cda",
            "0504 03ff 00000000 00000000 0ecc5cdb",
        ),
    ] {
        let context = context(Enctype::Aes256Sha1, role, subkey);
        assert_eq!(context.mic([&b"message"[..]])[..16], hex(mic));
        assert_eq!(wrapped(&context, b"message", &[])[..16], hex(wrap));
    }
}

#[test]
fn any_rotation_is_undone() {
    for enctype in Enctype::ALL {
        let [initiator, acceptor] = both(enctype);
        let plain: Vec<u8> = (0..57).collect();
        let token = wrapped(&initiator, &plain, &[]);
        let len = token.len() as u16;
        for count in (0..2 * len).chain([28, 0x7fff, 0xffff]) {
            for lengths in [&[][..], &[1, 15, 3, 0, 0, 14, 29], &[40; 4]] {
                assert_eq!(
                    unwrapped(&acceptor, &rotated(&token, count), lengths).unwrap(),
                    plain,
                    "RRC {count}"
                );
            }
        }
        // As Windows and MIT krb5 with DCE send it: the trailer precedes the content, which remains where it is.
        let tail = initiator.wrap_tail();
        let mut received = rotated(&token, tail as u16);
        assert_eq!(
            acceptor.unwrap(&mut [&mut received]).unwrap(),
            PLAIN_AT + tail..PLAIN_AT + tail + plain.len()
        );
    }
}

#[test]
fn filler_is_removed_and_a_length_of_it_beyond_the_token_refused() {
    for enctype in Enctype::ALL {
        let [_, acceptor] = both(enctype);
        for filler in [0, 1, 15, 16, 400] {
            let token = sealed(enctype, SEAL[0], 6, b"plaintext", filler);
            assert_eq!(unwrapped(&acceptor, &token, &[]).unwrap(), b"plaintext");
            assert_eq!(unwrapped(&acceptor, &rotated(&token, 77), &[16, 5, 80]).unwrap(), b"plaintext");
            let mut more = token.clone();
            more[4..6].copy_from_slice(&(filler + 1).to_be_bytes());
            assert_eq!(unwrapped(&acceptor, &more, &[]), Err(TokenError::Checksum));
            more[4..6].copy_from_slice(&0xffffu16.to_be_bytes());
            assert_eq!(unwrapped(&acceptor, &more, &[]), Err(TokenError::Length(token.len())));
        }
    }
}

#[test]
fn tokens_with_other_flags_are_refused_by_name() {
    let enctype = Enctype::Aes256Sha1;
    let [_, acceptor] = both(enctype);
    for (flags, want) in [
        (6, Ok(b"plaintext".to_vec())),
        (6 | 0xf8, Ok(b"plaintext".to_vec())), // A receiver ignores unknown flags.
        (7, Err(TokenError::Direction)),
        (2, Err(TokenError::Subkey)),
        (4, Err(TokenError::NotSealed)),
    ] {
        let token = sealed(enctype, SEAL[0], flags, b"plaintext", 0);
        assert_eq!(unwrapped(&acceptor, &token, &[]), want, "flags {flags}");
    }
}

#[test]
fn tokens_with_the_key_of_another_usage_enctype_or_context_are_refused() {
    let enctype = Enctype::Aes128Sha1;
    let [initiator, acceptor] = both(enctype);
    for usage in [22, 23, 25] {
        let token = sealed(enctype, usage, 6, b"plaintext", 0);
        assert_eq!(unwrapped(&acceptor, &token, &[]), Err(TokenError::Checksum), "usage {usage}");
    }
    // The key that signs does not seal, and the reverse.
    let mic = initiator.mic([]);
    assert_eq!(unwrapped(&acceptor, &[&mic[..], &[0; 40]].concat(), &[]), Err(TokenError::Kind([4, 4])));
    let token = wrapped(&initiator, b"plaintext", &[]);
    assert_eq!(acceptor.verify([], &token[..28]), Err(TokenError::Kind([5, 4])));
    let sha256 = context(Enctype::Aes128Sha256, Role::Initiator, true);
    assert_eq!(acceptor.verify([&b"m"[..]], &sha256.mic([&b"m"[..]])), Err(TokenError::Length(32)));
    let other = Parameters {
        role: Role::Initiator,
        enctype,
        key: &[1; 16],
        acceptor_subkey: true,
        sequence: 0,
        end: Duration::ZERO,
    };
    let other = Context::new(&other).unwrap();
    assert_eq!(acceptor.verify([&b"m"[..]], &other.mic([&b"m"[..]])), Err(TokenError::Checksum));
    assert_eq!(unwrapped(&acceptor, &wrapped(&other, b"m", &[]), &[]), Err(TokenError::Checksum));
}

#[test]
fn short_and_long_tokens_are_refused() {
    for enctype in Enctype::ALL {
        let [initiator, acceptor] = both(enctype);
        let plain = b"plaintext of 28 bytes.......";
        let mic = initiator.mic([&plain[..]]);
        for len in (0..mic.len()).chain([mic.len() + 1, 400]) {
            let mut token = mic.to_vec();
            token.resize(len, 0);
            assert_eq!(acceptor.verify([&plain[..]], &token), Err(TokenError::Length(len)));
        }
        let token = wrapped(&initiator, plain, &[]);
        for rotation in [0, 28, 0xffff] {
            let token = rotated(&token, rotation);
            for len in 0..token.len() {
                let want = match len < token.len() - plain.len() {
                    true => TokenError::Length(len),
                    false => TokenError::Checksum,
                };
                assert_eq!(unwrapped(&acceptor, &token[..len], &[]), Err(want));
            }
            assert_eq!(unwrapped(&acceptor, &[&token[..], &[0]].concat(), &[]), Err(TokenError::Checksum));
        }
        let mut short = vec![0; PLAIN_AT + initiator.wrap_tail() - 1];
        let len = short.len();
        assert_eq!(initiator.wrap(&mut [&mut short], [0; 16]), Err(TokenError::Length(len)));
        assert_eq!(initiator.wrap(&mut [], [0; 16]), Err(TokenError::Length(0)));
        assert_eq!(acceptor.unwrap(&mut [&mut [], &mut []]), Err(TokenError::Length(0)));
    }
}

#[test]
fn any_changed_bit_of_a_mic_or_its_message_is_refused() {
    for enctype in Enctype::ALL {
        let [initiator, acceptor] = both(enctype);
        let message = *b"a message";
        let mic = initiator.mic([&message[..]]);
        for bit in 0..8 * mic.len() {
            let mut mic = mic.to_vec();
            mic[bit / 8] ^= 1 << (bit % 8);
            acceptor.verify([&message[..]], &mic).unwrap_err();
        }
        for bit in 0..8 * message.len() {
            let mut message = message;
            message[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(acceptor.verify([&message[..]], &mic), Err(TokenError::Checksum));
        }
    }
}

#[test]
fn any_changed_bit_of_a_wrap_token_is_refused() {
    for enctype in Enctype::ALL {
        let [initiator, acceptor] = both(enctype);
        for (rotation, len) in [(0, 20), (0, 33), (28, 20), (45, 33)] {
            let plain = vec![0x5a; len];
            let token = rotated(&wrapped(&initiator, &plain, &[]), rotation);
            for bit in 0..8 * token.len() {
                let mut changed = token.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                // RRC is not protected, but it cannot change the plaintext: a rotation by the length is none.
                let count = u16::from_be_bytes([changed[6], changed[7]]);
                let same = usize::from(count.abs_diff(rotation)) % (token.len() - HEADER) == 0;
                match unwrapped(&acceptor, &changed, &[]) {
                    Ok(opened) => assert!(count != rotation && same && opened == plain, "bit {bit}"),
                    Err(_) => assert!(count == rotation || !same, "bit {bit}"),
                }
            }
        }
    }
}

#[test]
fn a_key_of_another_length_is_refused() {
    for (enctype, len) in
        [(Enctype::Aes128Sha256, 32), (Enctype::Aes256Sha1, 16), (Enctype::Aes256Sha384, 24)]
    {
        let parameters = Parameters {
            role: Role::Initiator,
            enctype,
            key: &KEY[..len],
            acceptor_subkey: false,
            sequence: 0,
            end: Duration::ZERO,
        };
        assert_eq!(Context::new(&parameters).unwrap_err(), KeyLength { enctype, len });
    }
}

#[test]
fn nothing_that_is_printed_contains_a_key() {
    let context = context(Enctype::Aes256Sha1, Role::Acceptor, true);
    assert_eq!(format!("{context:?}"), "Context { role: Acceptor, enctype: Aes256Sha1, end: 1s, .. }");
}

#[test]
fn enctypes_have_the_numbers_of_iana() {
    for enctype in Enctype::ALL {
        assert_eq!(Enctype::from_number(enctype.number()), Some(enctype));
    }
    // Triple DES, RC4 and Camellia.
    assert!([0, 1, 3, 16, 21, 23, 25, 26].iter().all(|number| Enctype::from_number(*number).is_none()));
}

proptest! {
    #[test]
    fn tokens_do_not_depend_on_the_division_into_parts(
        plain in proptest::collection::vec(any::<u8>(), 0..200),
        lengths in proptest::collection::vec(0usize..50, 0..12),
        rotation in any::<u16>(),
        enctype in proptest::sample::select(&Enctype::ALL[..]),
    ) {
        let whole = both(enctype);
        let divided = both(enctype);
        let mut copy = plain.clone();
        let mic = divided[0].mic(parts_of(&mut copy, &lengths).iter().map(|part| &**part));
        prop_assert_eq!(&*mic, &*whole[0].mic([&plain[..]]));
        whole[1].verify(parts_of(&mut copy, &lengths).iter().map(|part| &**part), &mic).unwrap();
        let token = wrapped(&divided[0], &plain, &lengths);
        prop_assert_eq!(&token, &wrapped(&whole[0], &plain, &[]));
        prop_assert_eq!(unwrapped(&whole[1], &rotated(&token, rotation), &lengths).unwrap(), plain);
    }

    #[test]
    fn arbitrary_bytes_are_refused(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        lengths in proptest::collection::vec(0usize..50, 0..6),
        wrap in any::<bool>(),
    ) {
        let [_, acceptor] = both(Enctype::Aes128Sha256);
        let header = if wrap { &[5, 4, 6, 0xff][..] } else { &[4, 4, 4, 0xff, 0xff, 0xff, 0xff, 0xff] };
        for (byte, want) in bytes.iter_mut().zip(header) {
            *byte = *want;
        }
        acceptor.verify([], &bytes).unwrap_err();
        acceptor.unwrap(&mut parts_of(&mut bytes, &lengths)).unwrap_err();
    }
}
