//! Calls of RPCSEC_GSS, and what their replies are.

use std::sync::atomic::{AtomicU32, Ordering};

use millrace_krb5::{Context, PLAIN_AT};

/// Reads words and opaques.
#[derive(Debug)]
pub struct Words<'a>(pub &'a [u8]);

impl Words<'_> {
    /// The next word.
    pub fn word(&mut self) -> u32 {
        let (word, rest) = self.0.split_first_chunk().unwrap();
        self.0 = rest;
        u32::from_be_bytes(*word)
    }

    /// The next variable-length opaque.
    pub fn opaque(&mut self) -> Vec<u8> {
        let len = self.word() as usize;
        let (bytes, rest) = self.0.split_at(len + pad(len));
        self.0 = rest;
        bytes[..len].to_vec()
    }
}

/// Bytes of padding after an opaque.
fn pad(len: usize) -> usize {
    len.wrapping_neg() % 4
}

/// The procedure that a call names, and its transaction id.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Transaction id.
    pub xid: u32,
    /// Program.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure.
    pub procedure: u32,
}

/// Words in network order.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A variable-length opaque.
pub fn opaque(bytes: &[u8]) -> Vec<u8> {
    [&words(&[bytes.len() as u32])[..], bytes, &[0; 3][..pad(bytes.len())]].concat()
}

/// The verifier and the results of a successful reply.
pub fn accepted(reply: &[u8], xid: u32) -> (Vec<u8>, &[u8]) {
    let (verifier, status, results) = answered(reply, xid);
    assert_eq!(status, 0, "accept_stat");
    (verifier, results)
}

/// The verifier of an accepted reply, its status, and what follows.
pub fn answered(reply: &[u8], xid: u32) -> (Vec<u8>, u32, &[u8]) {
    let mut d = Words(reply);
    assert_eq!([(); 3].map(|()| d.word()), [xid, 1, 0], "xid, reply, accepted");
    d.word();
    let verifier = d.opaque();
    (verifier, d.word(), d.0)
}

/// The `auth_stat` of a denied reply.
pub fn denied(reply: &[u8], xid: u32) -> u32 {
    let mut d = Words(reply);
    assert_eq!([(); 4].map(|()| d.word()), [xid, 1, 1, 1], "xid, reply, denied, auth error");
    d.word()
}

/// A header up to the credential, of which `body` is the body.
pub fn header(to: Target, body: &[u8]) -> Vec<u8> {
    [words(&[to.xid, 0, 2, to.program, to.version, to.procedure, 6]), opaque(body)].concat()
}

/// The body of a credential.
pub fn credential(purpose: u32, sequence: u32, service: u32, handle: &[u8]) -> Vec<u8> {
    [words(&[1, purpose, sequence, service]), opaque(handle)].concat()
}

/// A call that establishes a context with a token.
pub fn init(to: Target, token: &[u8]) -> Vec<u8> {
    [header(to, &credential(1, 0, 1, &[])), words(&[0, 0]), opaque(token)].concat()
}

/// The client's side of a context.
#[derive(Debug)]
pub struct Client {
    /// The keys, as initiator.
    pub keys: Box<Context>,
    /// The server's handle.
    pub handle: Vec<u8>,
    next: AtomicU32,
}

impl Client {
    /// The client's side of a context that the reply to [`init`] has established with these keys. Returns the server's token too.
    pub fn established(reply: &[u8], xid: u32, keys: impl FnOnce(&[u8]) -> Box<Context>) -> Self {
        let (verifier, results) = accepted(reply, xid);
        let mut results = Words(results);
        let handle = results.opaque();
        let [major, minor, window] = [(); 3].map(|()| results.word());
        assert_eq!([major, minor], [0, 0]);
        let keys = keys(&results.opaque());
        assert!(results.0.is_empty());
        keys.verify([&window.to_be_bytes()[..]], &verifier).unwrap();
        Self { keys, handle, next: AtomicU32::new(1) }
    }

    /// The next sequence number.
    pub fn next(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// `header` with its verifier.
    pub fn signed(&self, header: Vec<u8>) -> Vec<u8> {
        let mic = self.keys.mic([&header[..]]);
        [header, words(&[6]), opaque(&mic)].concat()
    }

    /// The verified header of a call.
    pub fn header(&self, to: Target, sequence: u32, service: u32) -> Vec<u8> {
        self.signed(header(to, &credential(0, sequence, service, &self.handle)))
    }

    /// Protected arguments. `service` is 1 without, 2 with integrity, 3 with privacy.
    pub fn body(&self, sequence: u32, service: u32, arguments: &[u8]) -> Vec<u8> {
        let plain = [&words(&[sequence]), arguments].concat();
        match service {
            1 => arguments.to_vec(),
            2 => [opaque(&plain), opaque(&self.keys.mic([&plain[..]]))].concat(),
            _ => opaque(&self.sealed(&plain)),
        }
    }

    /// A token with encrypted bytes.
    pub fn sealed(&self, plain: &[u8]) -> Vec<u8> {
        let mut token = [&[0; PLAIN_AT], plain, &vec![0; self.keys.wrap_tail()]].concat();
        self.keys.wrap(&mut [&mut token], [9; 16]).unwrap();
        token
    }

    /// A call.
    pub fn call(&self, to: Target, sequence: u32, service: u32, arguments: &[u8]) -> Vec<u8> {
        [self.header(to, sequence, service), self.body(sequence, service, arguments)].concat()
    }

    /// The status of a reply to the call with this number, and its results, which are in the clear.
    pub fn results(&self, reply: &[u8], to: Target, sequence: u32, service: u32) -> (u32, Vec<u8>) {
        let (verifier, status, results) = answered(reply, to.xid);
        self.keys.verify([&sequence.to_be_bytes()[..]], &verifier).unwrap();
        if status != 0 || service == 1 {
            return (status, results.to_vec());
        }
        let mut d = Words(results);
        let mut body = d.opaque();
        let plain = if service == 2 {
            self.keys.verify([&body[..]], &d.opaque()).unwrap();
            body
        } else {
            let plain = self.keys.unwrap(&mut [&mut body]).unwrap();
            body[plain].to_vec()
        };
        assert!(d.0.is_empty(), "{} bytes after the results", d.0.len());
        let mut d = Words(&plain);
        assert_eq!(d.word(), sequence);
        (0, d.0.to_vec())
    }
}
