//! Encryption with integrity: AES in CBC mode with ciphertext stealing (RFC 3962 section 5), and HMAC of the plaintext
//! (RFC 3961 section 5.3) or of the ciphertext (RFC 8009 section 5).
//!
//! A message begins with the confounder, so that the initial vector is zero. It is encrypted where it is, in one pass:
//! HMAC and cipher process one portion after the other, while it is in the processor's cache.

use aes::{
    Aes128Dec, Aes128Enc, Aes256Dec, Aes256Enc, Block,
    cipher::{
        Array, BlockCipherDecrypt, BlockCipherEncrypt, BlockModeDecrypt, BlockModeEncrypt, InnerIvInit,
        KeyInit, consts::U16,
    },
};

use crate::{
    derive::{Key, Purpose, derive, derive_mac, first_half},
    enctype::Enctype,
    mac::Mac,
    parts::Ring,
};

/// Bytes of a block of AES, and of a confounder.
pub(crate) const BLOCK: usize = 16;
/// Bytes that HMAC and cipher process alternately: half of the first cache of data of current processors.
const PORTION: usize = 16 << 10;

/// The keys of one direction.
pub(crate) struct Keys {
    enctype: Enctype,
    /// Ke.
    encryption: Key,
    /// HMAC with Ki.
    integrity: Mac,
}

impl Keys {
    pub(crate) fn new(enctype: Enctype, base: &Key, usage: u32) -> Self {
        Self {
            enctype,
            encryption: derive(enctype, base, usage, Purpose::Encryption),
            integrity: derive_mac(enctype, base, usage, Purpose::Integrity),
        }
    }

    /// Encrypts the next `len` bytes, at least a block, and returns their HMAC.
    pub(crate) fn encrypt(&self, ring: &mut Ring, len: usize) -> Mac {
        match self.enctype.key_len() {
            16 => self.pass(Encrypt::new(&Aes128Enc::new(&first_half(&self.encryption).into())), ring, len),
            _ => self.pass(Encrypt::new(&Aes256Enc::new(&(*self.encryption).into())), ring, len),
        }
    }

    /// Decrypts the next `len` bytes, at least a block, and returns their HMAC. The plaintext must not be used before
    /// the HMAC is verified.
    pub(crate) fn decrypt(&self, ring: &mut Ring, len: usize) -> Mac {
        match self.enctype.key_len() {
            16 => self.pass(Decrypt::new(&Aes128Dec::new(&first_half(&self.encryption).into())), ring, len),
            _ => self.pass(Decrypt::new(&Aes256Dec::new(&(*self.encryption).into())), ring, len),
        }
    }

    fn pass<D: Direction>(&self, mut cipher: D, ring: &mut Ring, len: usize) -> Mac {
        let mut mac = self.integrity.clone();
        if self.enctype.authenticates_ciphertext() {
            mac.update(&[0; BLOCK]); // The initial vector.
        }
        let mac_first = self.enctype.authenticates_ciphertext() == D::INPUT_IS_CIPHERTEXT;
        let mut process = |bytes: &mut [u8], cipher: &mut dyn FnMut(&mut [u8])| {
            if mac_first {
                mac.update(bytes);
            }
            cipher(bytes);
            if !mac_first {
                mac.update(bytes);
            }
        };
        // The last two blocks, of which one is incomplete, are exchanged. A single block is not changed.
        let rest = if len == BLOCK { 0 } else { len - (len.div_ceil(BLOCK) - 2) * BLOCK };
        let mut left = len - rest;
        while left > 0 {
            let together = ring.next(left.min(PORTION));
            let whole = together.len() / BLOCK * BLOCK;
            if whole > 0 {
                process(&mut together[..whole], &mut |bytes| cipher.blocks(bytes));
                ring.advance(whole);
                left -= whole;
            } else {
                copied(ring, &mut [0; BLOCK], |block| process(block, &mut |bytes| cipher.blocks(bytes)));
                left -= BLOCK;
            }
        }
        if rest > 0 {
            copied(ring, &mut [0; 2 * BLOCK][..rest], |last| process(last, &mut |bytes| cipher.last(bytes)));
        }
        mac
    }
}

/// Changes the next bytes, which are in several parts, in a copy.
fn copied(ring: &mut Ring, copy: &mut [u8], change: impl FnOnce(&mut [u8])) {
    let at = ring.position();
    ring.read(copy);
    change(copy);
    ring.seek(at);
    ring.write(copy);
}

/// Encryption or decryption in CBC mode with ciphertext stealing.
trait Direction {
    const INPUT_IS_CIPHERTEXT: bool;

    /// Processes whole blocks.
    fn blocks(&mut self, bytes: &mut [u8]);

    /// Processes the last 17 to 32 bytes.
    fn last(&mut self, bytes: &mut [u8]);
}

struct Encrypt<'a, C: BlockCipherEncrypt<BlockSize = U16>>(cbc::Encryptor<&'a C>);

impl<'a, C: BlockCipherEncrypt<BlockSize = U16>> Encrypt<'a, C> {
    fn new(cipher: &'a C) -> Self {
        Self(cbc::Encryptor::inner_iv_init(cipher, &Block::default()))
    }
}

impl<C: BlockCipherEncrypt<BlockSize = U16>> Direction for Encrypt<'_, C> {
    const INPUT_IS_CIPHERTEXT: bool = false;

    fn blocks(&mut self, bytes: &mut [u8]) {
        self.0.encrypt_blocks(Array::slice_as_chunks_mut(bytes).0);
    }

    fn last(&mut self, bytes: &mut [u8]) {
        let mut last = [Block::default(); 2];
        Array::slice_as_flattened_mut(&mut last)[..bytes.len()].copy_from_slice(bytes);
        self.0.encrypt_blocks(&mut last);
        // The receiver computes the end of the last block but one from the last block.
        last.swap(0, 1);
        bytes.copy_from_slice(&Array::slice_as_flattened(&last)[..bytes.len()]);
    }
}

struct Decrypt<'a, C: BlockCipherDecrypt<BlockSize = U16>> {
    cipher: &'a C,
    cbc: cbc::Decryptor<&'a C>,
}

impl<'a, C: BlockCipherDecrypt<BlockSize = U16>> Decrypt<'a, C> {
    fn new(cipher: &'a C) -> Self {
        Self { cipher, cbc: cbc::Decryptor::inner_iv_init(cipher, &Block::default()) }
    }
}

impl<C: BlockCipherDecrypt<BlockSize = U16>> Direction for Decrypt<'_, C> {
    const INPUT_IS_CIPHERTEXT: bool = true;

    fn blocks(&mut self, bytes: &mut [u8]) {
        self.cbc.decrypt_blocks(Array::slice_as_chunks_mut(bytes).0);
    }

    fn last(&mut self, bytes: &mut [u8]) {
        let (first, second) = bytes.split_at(BLOCK);
        let mut last = Block::default();
        last.copy_from_slice(first);
        let mut before = last;
        // Zeros followed the plaintext, so that this end is that of the ciphertext block before.
        self.cipher.decrypt_block(&mut before);
        before[..second.len()].copy_from_slice(second);
        let mut blocks = [before, last];
        self.cbc.decrypt_blocks(&mut blocks);
        bytes.copy_from_slice(&Array::slice_as_flattened(&blocks)[..bytes.len()]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tests::{hex, key, parts_of};

    /// What `encrypt` makes of `plain` in parts of these lengths: ciphertext and HMAC.
    fn encrypted(keys: &Keys, plain: &[u8], lengths: &[usize]) -> Vec<u8> {
        let mut token = [&[0; Ring::START], plain].concat();
        let mut parts = parts_of(&mut token, lengths);
        let mut ring = Ring::new(&mut parts);
        ring.advance(Ring::START);
        let mut sum = vec![0; keys.enctype.checksum_len()];
        keys.encrypt(&mut ring, plain.len()).finish(&mut sum);
        [&token[Ring::START..], &sum].concat()
    }

    /// The reverse, if the HMAC is right.
    fn decrypted(keys: &Keys, sealed: &[u8], lengths: &[usize]) -> Option<Vec<u8>> {
        let (cipher, sum) = sealed.split_at(sealed.len() - keys.enctype.checksum_len());
        let mut token = [&[0; Ring::START], cipher].concat();
        let mut parts = parts_of(&mut token, lengths);
        let mut ring = Ring::new(&mut parts);
        ring.advance(Ring::START);
        keys.decrypt(&mut ring, cipher.len()).is(sum).then(|| token.split_off(Ring::START))
    }

    #[test]
    fn ciphertext_stealing_is_that_of_rfc_3962() {
        // RFC 3962 appendix B.
        let keys = Keys {
            enctype: Enctype::Aes128Sha1,
            encryption: key(b"chicken teriyaki"),
            integrity: Mac::new(Enctype::Aes128Sha1, &[]),
        };
        let plain = b"I would like the General Gau's Chicken, please, and wonton soup.";
        for want in [
            "c6353568f2bf8cb4d8a580362da7ff7f97",
            "fc00783e0efdb2c1d445d4c8eff7ed2297687268d6ecccc0c07b25e25ecfe5",
            "39312523a78662d5be7fcbcc98ebf5a897687268d6ecccc0c07b25e25ecfe584",
            "97687268d6ecccc0c07b25e25ecfe584b3fffd940c16a18c1b5549d2f838029e39312523a78662d5be7fcbcc98ebf5",
            "97687268d6ecccc0c07b25e25ecfe5849dad8bbb96c4cdc03bc103e1a194bbd839312523a78662d5be7fcbcc98ebf5a8",
            "97687268d6ecccc0c07b25e25ecfe58439312523a78662d5be7fcbcc98ebf5a8\
             4807efe836ee89a526730dbc2f7bc8409dad8bbb96c4cdc03bc103e1a194bbd8",
        ] {
            let want = hex(want);
            let plain = &plain[..want.len()];
            let sealed = encrypted(&keys, plain, &[]);
            assert_eq!(sealed[..want.len()], want, "{} bytes", plain.len());
            assert_eq!(decrypted(&keys, &sealed, &[]).unwrap(), plain);
        }
    }

    #[test]
    fn encryption_is_that_of_rfc_8009() {
        // RFC 8009 appendix A: key usage 2; confounder, plaintext, ciphertext.
        let plain = hex("000102030405060708090a0b0c0d0e0f1011121314");
        for (enctype, base, samples) in [
            (
                Enctype::Aes128Sha256,
                "3705d96080c17728a0e800eab6e0d23c",
                [
                    (
                        "7e5895eaf2672435bad817f545a37148",
                        0,
                        "ef85fb890bb8472f4dab20394dca781dad877eda39d50c870c0d5a0a8e48c718",
                    ),
                    (
                        "7bca285e2fd4130fb55b1a5c83bc5b24",
                        6,
                        "84d7f30754ed987bab0bf3506beb09cfb55402cef7e6877ce99e247e52d16ed4421dfdf8976c",
                    ),
                    (
                        "56ab21713ff62c0a1457200f6fa9948f",
                        16,
                        "3517d640f50ddc8ad3628722b3569d2ae07493fa8263254080ea65c1008e8fc2\
                         95fb4852e7d83e1e7c48c37eebe6b0d3",
                    ),
                    (
                        "a7a4e29a4728ce10664fb64e49ad3fac",
                        21,
                        "720f73b18d9859cd6ccb4346115cd336c70f58edc0c4437c5573544c31c813bc\
                         e1e6d072c186b39a413c2f92ca9b8334a287ffcbfc",
                    ),
                ],
            ),
            (
                Enctype::Aes256Sha384,
                "6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52",
                [
                    (
                        "f764e9fa15c276478b2c7d0c4e5f58e4",
                        0,
                        "41f53fa5bfe7026d91faf9be959195a058707273a96a40f0a01960621ac612748b9bbfbe7eb4ce3c",
                    ),
                    (
                        "b80d3251c1f6471494256ffe712d0b9a",
                        6,
                        "4ed7b37c2bcac8f74f23c1cf07e62bc7b75fb3f637b9f559c7f664f69eab7b60\
                         92237526ea0d1f61cb20d69d10f2",
                    ),
                    (
                        "53bf8a0d105265d4e276428624ce5e63",
                        16,
                        "bc47ffec7998eb91e8115cf8d19dac4bbbe2e163e87dd37f49beca92027764f6\
                         8cf51f14d798c2273f35df574d1f932e40c4ff255b36a266",
                    ),
                    (
                        "763e65367e864f02f55153c7e3b58af1",
                        21,
                        "40013e2df58e8751957d2878bcd2d6fe101ccfd556cb1eae79db3c3ee86429f2\
                         b2a602ac86fef6ecb647d6295fae077a1feb517508d2c16b4192e01f62",
                    ),
                ],
            ),
        ] {
            let keys = Keys::new(enctype, &key(&hex(base)), 2);
            for (confounder, len, want) in samples {
                let plain = [&hex(confounder), &plain[..len]].concat();
                assert_eq!(encrypted(&keys, &plain, &[]), hex(want), "{enctype}, {len} bytes");
                assert_eq!(decrypted(&keys, &hex(want), &[]).unwrap(), plain);
            }
        }
    }

    #[test]
    fn encryption_with_sha1_is_that_of_mit_krb5() {
        // Messages of `krb5_c_encrypt`, whose confounders are random: plaintext, key usage, key, ciphertext.
        for (enctype, plain, usage, base, sealed) in [
            (
                Enctype::Aes128Sha1,
                "",
                0,
                "5a5c0f0ba54f3828b2195e66ca24a289",
                "49ff8e11c173d9583a3254fbe7b1f1df36c538e8416784a1672e6676",
            ),
            (
                Enctype::Aes128Sha1,
                "392062797465737373",
                2,
                "9062430c8cda3388922e6d6a509f5b7a",
                "68fb9679601f45c78857b2bf820fd6e53eca8d42fd4b1d7024a09205abb7cd2ec26c355d2f",
            ),
            (
                Enctype::Aes128Sha1,
                "333020627974657320627974657320627974657320627974657320627974",
                4,
                "dceeb70b3de76562e689226c76429148",
                "c96081032d5d8eeb7e32b4089f789d0faa481dea74c0f97cbf3146ddfcf8e800\
                 156ecb532fc203e30ff600b63b350939fece510f02d7ff1e7bac",
            ),
            (
                Enctype::Aes256Sha1,
                "31",
                1,
                "b9477e1ff0329c0050e20ce6c72d2dff27e8fe541ab0954429a9cb5b4f7b1e2a",
                "406150b97aeb76d43b36b62cc1ecdfbe6f40e95755e0beb5c27825f3a4",
            ),
            (
                Enctype::Aes256Sha1,
                "31332062797465732062797465",
                3,
                "e5a72be9b7926c1225bafef9c1872e7ba4cdb2b17893d84abd90acdd8764d966",
                "d8f1aafeec84587cc3e700a774e56651a6d693e174ec4473b5e6d96f80297a653fb818ad893e719f96",
            ),
            (
                Enctype::Aes256Sha1,
                "333020627974657320627974657320627974657320627974657320627974",
                4,
                "f1c795e9248a09338d82c3f8d5b567040b0110736845041347235b1404231398",
                "d1137a4d634cfece924dbc3bf6790648bd5cff7de0e7b99460211d0daef3d79a\
                 295c688858f3b34b9cbd6eebae81daf6b734d4d498b6714f1c1d",
            ),
        ] {
            let keys = Keys::new(enctype, &key(&hex(base)), usage);
            let opened = decrypted(&keys, &hex(sealed), &[]).unwrap();
            assert_eq!(opened[BLOCK..], hex(plain));
            assert_eq!(encrypted(&keys, &opened, &[]), hex(sealed));
        }
    }

    proptest! {
        #[test]
        fn the_division_into_parts_does_not_matter(
            plain in proptest::collection::vec(any::<u8>(), BLOCK..200),
            lengths in proptest::collection::vec(0usize..40, 0..12),
            enctype in proptest::sample::select(&Enctype::ALL[..]),
        ) {
            let keys = Keys::new(enctype, &key(&[7; 32][..enctype.key_len()]), 24);
            let sealed = encrypted(&keys, &plain, &[]);
            prop_assert_eq!(&encrypted(&keys, &plain, &lengths), &sealed);
            prop_assert_eq!(decrypted(&keys, &sealed, &lengths).unwrap(), plain);
        }
    }
}
