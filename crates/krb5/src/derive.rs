//! Derivation of the keys of a key usage from a base key (RFC 3961 section 5.1, RFC 8009 section 3).

use aes::{
    Aes128Enc, Aes256Enc, Block,
    cipher::{BlockCipherEncrypt, KeyInit, consts::U16},
};
use zeroize::Zeroizing;

use crate::{enctype::Enctype, mac::Mac};

/// The bytes of a key; those after its length are zero.
pub(crate) type Key = Zeroizing<[u8; 32]>;

/// What a derived key is for: the last byte of the constant from which it is derived (RFC 3961 section 5.3).
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    /// Kc: checksums.
    Checksum = 0x99,
    /// Ke: encryption.
    Encryption = 0xaa,
    /// Ki: integrity of encrypted messages.
    Integrity = 0x55,
}

impl Purpose {
    /// Length of the key in bytes.
    fn key_len(self, enctype: Enctype) -> usize {
        match self {
            Self::Encryption => enctype.key_len(),
            Self::Checksum | Self::Integrity => enctype.hmac_key_len(),
        }
    }
}

/// The key of `enctype` for `usage` and `purpose`.
pub(crate) fn derive(enctype: Enctype, base: &Key, usage: u32, purpose: Purpose) -> Key {
    let [a, b, c, d] = usage.to_be_bytes();
    let constant = [a, b, c, d, purpose as u8];
    let mut key = Key::default();
    let out = &mut key[..purpose.key_len(enctype)];
    match enctype {
        Enctype::Aes128Sha1 => dk(&Aes128Enc::new(&first_half(base).into()), &constant, out),
        Enctype::Aes256Sha1 => dk(&Aes256Enc::new(&(**base).into()), &constant, out),
        Enctype::Aes128Sha256 | Enctype::Aes256Sha384 => kdf_hmac_sha2(enctype, base, &constant, out),
    }
    key
}

/// HMAC with the key for `usage` and `purpose`.
pub(crate) fn derive_mac(enctype: Enctype, base: &Key, usage: u32, purpose: Purpose) -> Mac {
    Mac::new(enctype, &derive(enctype, base, usage, purpose)[..purpose.key_len(enctype)])
}

/// The key of AES-128.
pub(crate) fn first_half(key: &Key) -> [u8; 16] {
    let [a, _] = key.as_chunks().0 else { unreachable!("32 bytes are two halves") };
    *a
}

/// DK (RFC 3961 section 5.1): the n-folded constant, encrypted again and again.
fn dk(cipher: &impl BlockCipherEncrypt<BlockSize = U16>, constant: &[u8], out: &mut [u8]) {
    let mut block = Block::from(n_fold(constant));
    for part in out.chunks_mut(block.len()) {
        cipher.encrypt_block(&mut block);
        part.copy_from_slice(&block[..part.len()]);
    }
}

/// KDF-HMAC-SHA2 (RFC 8009 section 3) without a context. One block of the hash function is enough for any key.
fn kdf_hmac_sha2(enctype: Enctype, base: &Key, label: &[u8], out: &mut [u8]) {
    let mut mac = Mac::new(enctype, &base[..enctype.key_len()]);
    mac.update(&1u32.to_be_bytes());
    mac.update(label);
    mac.update(&[0]);
    mac.update(&(8 * out.len() as u32).to_be_bytes());
    mac.finish(out);
}

/// n-fold (RFC 3961 section 5.1): the ones' complement sum of copies of `input`, each rotated to the right by 13 bits
/// more than the one before.
pub(crate) fn n_fold<const N: usize>(input: &[u8]) -> [u8; N] {
    let len = input.len();
    // Byte `at` of the copies.
    let byte = |at: usize| {
        let (copy, offset) = (at / len, at % len);
        let first = (8 * offset + 8 * len - 13 * copy % (8 * len)) % (8 * len);
        let two = u16::from_be_bytes([input[first / 8], input[(first / 8 + 1) % len]]);
        (two >> (8 - first % 8)) as u8
    };
    let copies = (1..).map(|n| n * len).find(|all| all % N == 0).unwrap_or(0);
    let mut sums = [0u32; N];
    (0..copies).for_each(|at| sums[at % N] += u32::from(byte(at)));
    // The carry of the first byte is added to the last one.
    let mut carry = 0;
    loop {
        for sum in sums.iter_mut().rev() {
            carry += *sum;
            *sum = carry & 0xff;
            carry >>= 8;
        }
        if carry == 0 {
            return sums.map(|sum| sum as u8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{hex, key};

    #[test]
    fn n_fold_is_that_of_rfc_3961() {
        // RFC 3961 appendix A.1.
        assert_eq!(n_fold::<8>(b"012345")[..], hex("be072631276b1955"));
        assert_eq!(n_fold::<7>(b"password")[..], hex("78a07b6c af85fa"));
        assert_eq!(n_fold::<8>(b"Rough Consensus, and Running Code")[..], hex("bb6ed30870b7f0e0"));
        assert_eq!(n_fold::<21>(b"password")[..], hex("59e4a8ca7c0385c3c37b3f6d2000247cb6e6bd5b3e"));
        assert_eq!(
            n_fold::<24>(b"MASSACHVSETTS INSTITVTE OF TECHNOLOGY")[..],
            hex("db3b0d8f0b061e603282b308a50841229ad798fab9540c1b")
        );
        assert_eq!(n_fold::<21>(b"Q")[..], hex("518a54a215a8452a518a54a215a8452a518a54a215"));
        assert_eq!(n_fold::<21>(b"ba")[..], hex("fb25d531ae8974499f52fd92ea9857c4ba24cf297e"));
        assert_eq!(n_fold::<8>(b"kerberos")[..], hex("6b65726265726f73"));
        assert_eq!(n_fold::<16>(b"kerberos")[..], hex("6b65726265726f737b9b5b2b93132b93"));
        assert_eq!(n_fold::<21>(b"kerberos")[..], hex("8372c236344e5f1550cd0747e15d62ca7a5a3bcea4"));
        assert_eq!(
            n_fold::<32>(b"kerberos")[..],
            hex("6b65726265726f737b9b5b2b93132b935c9bdcdad95c9899c4cae4dee6d6cae4")
        );
    }

    #[test]
    fn keys_are_those_of_rfc_3961_and_rfc_8009() {
        // Kc, Ke and Ki of key usage 2. With SHA-1 from MIT krb5, with SHA-2 from RFC 8009 appendix A.
        for (enctype, base, checksum, encryption, integrity) in [
            (
                Enctype::Aes128Sha1,
                "42263c6e89f4fc28b8df68ee09799f15",
                "34280a382bc92769b2da2f9ef066854b",
                "5b14fc4e250e14ddf9dccf1af6674f53",
                "4ed31063621684f09ae8d89991af3e8f",
            ),
            (
                Enctype::Aes256Sha1,
                "fe697b52bc0d3ce14432ba036a92e65bbb52280990a2fa27883998d72af30161",
                "bfab388bdcb238e9f9c98d6a878304f04d30c82556375ac507a7a852790f4674",
                "c7cfd9cd75fe793a586a542d87e0d1396f1134a104bb1a9190b8c90ada3ddf37",
                "97151b4c76945063e2eb0529dc067d97d7bba90776d8126d91f34f3101aea8ba",
            ),
            (
                Enctype::Aes128Sha256,
                "3705d96080c17728a0e800eab6e0d23c",
                "b31a018a48f54776f403e9a396325dc3",
                "9b197dd1e8c5609d6e67c3e37c62c72e",
                "9fda0e56ab2d85e1569a688696c26a6c",
            ),
            (
                Enctype::Aes256Sha384,
                "6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52",
                "ef5718be86cc84963d8bbb5031e9f5c4ba41f28faf69e73d",
                "56ab22bee63d82d7bc5227f6773f8ea7a5eb1c825160c38312980c442e5c7e49",
                "69b16514e3cd8e56b82010d5c73012b622c4d00ffc23ed1f",
            ),
        ] {
            let base = key(&hex(base));
            for (purpose, want) in [
                (Purpose::Checksum, checksum),
                (Purpose::Encryption, encryption),
                (Purpose::Integrity, integrity),
            ] {
                let want = hex(want);
                let derived = derive(enctype, &base, 2, purpose);
                assert_eq!(derived[..want.len()], want, "{enctype}, {purpose:?}");
                assert!(derived[want.len()..].iter().all(|b| *b == 0));
            }
        }
    }

    #[test]
    fn checksums_are_those_of_mit_krb5_and_rfc_8009() {
        // With SHA-1 from MIT krb5: message, key usage, key, checksum.
        for (enctype, message, usage, base, want) in [
            (
                Enctype::Aes128Sha1,
                "eight nine ten eleven twelve thirteen",
                3,
                "9062430c8cda3388922e6d6a509f5b7a",
                "01a4b088d45628f6946614e3",
            ),
            (
                Enctype::Aes256Sha1,
                "fourteen",
                4,
                "b1ae4cd8462aff1677053cc9279aac30b796fb81ce21474dd3ddbcfea4ec76d7",
                "e08739e3279e2903ec8e3836",
            ),
        ] {
            let mut mac = derive_mac(enctype, &key(&hex(base)), usage, Purpose::Checksum);
            mac.update(message.as_bytes());
            assert!(mac.is(&hex(want)), "{enctype}");
        }
        // RFC 8009 appendix A: the key of key usage 2, checksum.
        let message = hex("000102030405060708090a0b0c0d0e0f1011121314");
        for (enctype, base, want) in [
            (Enctype::Aes128Sha256, "3705d96080c17728a0e800eab6e0d23c", "d78367186643d67b411cba9139fc1dee"),
            (
                Enctype::Aes256Sha384,
                "6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52",
                "45ee791567eefca37f4ac1e0222de80d43c3bfa06699672a",
            ),
        ] {
            let mut mac = derive_mac(enctype, &key(&hex(base)), 2, Purpose::Checksum);
            mac.update(&message);
            assert!(mac.is(&hex(want)), "{enctype}");
        }
    }
}
