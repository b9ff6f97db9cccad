//! One end of a session, without I/O.

use std::{
    io::{IoSlice, IoSliceMut},
    mem,
    sync::Arc,
};

use millrace_buffer::Stash;

use crate::{
    ClientConfig, PeerCertificate, PeerName, Protocol, ServerConfig, TlsError,
    handshake::{Established, Handshake, MAX_RECEIVED, Secrets},
    record::{ContentType, HEADER, Key, MAX_CIPHERTEXT, MAX_PLAIN, OVERHEAD, record_len},
};

/// Bytes of one read from the stream.
const READ: usize = 64 << 10;
/// Bytes of encrypted data that wait for the stream, from which on no data is accepted: with one more record, a write of
/// 64 KiB and its overhead.
const WRITE: usize = 3 * (MAX_PLAIN + OVERHEAD);
/// Consecutive records without data, from which on the peer is malicious: updates of keys, tickets and empty records.
const MAX_WITHOUT_DATA: u32 = 32;

/// Maximum bytes of memory of a handshake: what the peer sends, the copies of rustls, the certificates, and this end's
/// messages.
pub const HANDSHAKE_BYTES: usize = 2 * MAX_RECEIVED;
/// Maximum bytes of memory of a session while data moves: a read and the incomplete record before it, and what waits for the
/// stream. An idle session has its keys only, less than 3 KiB.
pub const SESSION_BYTES: usize = READ + HEADER + MAX_CIPHERTEXT + WRITE + MAX_PLAIN + OVERHEAD;

const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
const CLOSE_NOTIFY: u8 = 0;
const USER_CANCELED: u8 = 90;
const UNEXPECTED_MESSAGE: u8 = 10;

/// One end of a session, without I/O.
///
/// Ciphertext from the peer goes to [`Self::space`] and [`Self::received`], and [`Self::read`] returns its data. Data for the
/// peer goes to [`Self::write`], and [`Self::outgoing`] returns the ciphertext. The handshake proceeds in
/// [`Self::handshake`].
pub struct Session {
    state: State,
    /// Ciphertext, after the decrypted data that is not read yet.
    incoming: Stash,
    /// Bytes of decrypted data at the start of `incoming`.
    ready: usize,
    /// Bytes after the decrypted data that belong to its record.
    trailer: usize,
    outgoing: Stash,
    /// Whether the peer has ended its direction.
    closed: bool,
    /// Whether this end has ended its direction.
    closing: bool,
}

enum State {
    Handshake(Box<Handshake>),
    Open(Box<Open>),
    Failed(TlsError),
}

/// A session after its handshake.
struct Open {
    seal: Key,
    open: Key,
    secrets: Secrets,
    client_certificate: Option<Arc<PeerCertificate>>,
    protocol: Option<Protocol>,
    client: bool,
    /// Consecutive records without data.
    without_data: u32,
    /// Whether the peer has asked for another key.
    update: bool,
    message: HandshakeMessage,
}

/// An incomplete handshake message after the handshake; its body is not stored.
#[derive(Default)]
struct HandshakeMessage {
    header: [u8; 4],
    /// Received bytes of the header.
    have: usize,
    /// Bytes of the body that are missing.
    left: usize,
}

impl Session {
    /// The client's end of a session with the server of this name.
    ///
    /// # Errors
    /// [`TlsError::Local`].
    pub fn client(config: &ClientConfig, name: &PeerName) -> Result<Self, TlsError> {
        Handshake::client(config, name).map(Self::new)
    }

    /// The server's end of a session.
    ///
    /// # Errors
    /// [`TlsError::Local`].
    pub fn server(config: &ServerConfig) -> Result<Self, TlsError> {
        Handshake::server(config).map(Self::new)
    }

    fn new(handshake: Handshake) -> Self {
        Self {
            state: State::Handshake(handshake.into()),
            incoming: Stash::default(),
            ready: 0,
            trailer: 0,
            outgoing: Stash::default(),
            closed: false,
            closing: false,
        }
    }

    /// Whether the handshake is complete.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// The certificate that the client has proved to this server; `None` before the end of the handshake.
    pub fn client_certificate(&self) -> Option<&Arc<PeerCertificate>> {
        let State::Open(open) = &self.state else { return None };
        open.client_certificate.as_ref()
    }

    /// The protocol on which the ends have agreed by ALPN; `None` before the end of the handshake, and if they have named none.
    pub fn protocol(&self) -> Option<Protocol> {
        let State::Open(open) = &self.state else { return None };
        open.protocol
    }

    /// Free space for ciphertext.
    pub fn space(&mut self) -> &mut [u8] {
        let open = matches!(self.state, State::Open(_));
        self.incoming.room(if open { READ } else { HEADER + MAX_CIPHERTEXT })
    }

    /// Records that `n` bytes were received into [`Self::space`].
    pub fn received(&mut self, n: usize) {
        self.incoming.commit(n);
    }

    /// Proceeds with the handshake. Returns whether it is complete; otherwise more ciphertext is needed, after that of
    /// [`Self::outgoing`] is sent.
    ///
    /// # Errors
    /// [`TlsError`]; [`Self::outgoing`] has an alert for the peer.
    pub fn handshake(&mut self) -> Result<bool, TlsError> {
        let State::Handshake(handshake) = &mut self.state else { return self.open().map(|_| true) };
        let client = handshake.is_client();
        match handshake.process(&mut self.incoming, &mut self.outgoing) {
            Ok(false) => return Ok(false),
            Ok(true) => {}
            Err(e) => return Err(self.fail(e)),
        }
        let ended = State::Failed(TlsError::Local("no handshake".into()));
        let State::Handshake(handshake) = mem::replace(&mut self.state, ended) else { return Ok(false) };
        let Established { seal, open, secrets, client_certificate, protocol } =
            handshake.finish().map_err(|e| self.fail(e))?;
        self.state = State::Open(Box::new(Open {
            seal,
            open,
            secrets,
            client_certificate,
            protocol,
            client,
            without_data: 0,
            update: false,
            message: HandshakeMessage::default(),
        }));
        Ok(true)
    }

    /// Ends the session because of `e`. Later operations return it too.
    fn fail(&mut self, e: TlsError) -> TlsError {
        self.incoming = Stash::default();
        (self.ready, self.trailer) = (0, 0);
        self.state = State::Failed(e.clone());
        e
    }

    fn open(&mut self) -> Result<&mut Open, TlsError> {
        match &mut self.state {
            State::Open(open) => Ok(open),
            State::Failed(e) => Err(e.clone()),
            State::Handshake(_) => Err(TlsError::Local("the handshake is not complete".into())),
        }
    }

    /// Copies received data to `bufs`, in order. `None`: more ciphertext is needed. `Some(0)` is the end of the peer's
    /// direction, unless all of `bufs` are empty.
    ///
    /// # Errors
    /// [`TlsError`], after the data before it.
    pub fn read(&mut self, bufs: &mut [IoSliceMut<'_>]) -> Result<Option<usize>, TlsError> {
        let mut n = 0;
        for buf in bufs {
            let mut at = 0;
            while at < buf.len() {
                if self.ready == 0 {
                    match self.decrypt() {
                        Ok(true) => {}
                        Ok(false) | Err(_) if n + at > 0 => return Ok(Some(n + at)),
                        Ok(false) => return Ok(self.closed.then_some(0)),
                        Err(e) => return Err(e),
                    }
                }
                let take = self.ready.min(buf.len() - at);
                buf[at..at + take].copy_from_slice(&self.incoming.bytes()[..take]);
                at += take;
                self.ready -= take;
                self.incoming.consume(take);
                if self.ready == 0 {
                    self.incoming.consume(mem::take(&mut self.trailer));
                }
            }
            n += at;
        }
        Ok(Some(n))
    }

    /// Decrypts records until there is data. Returns whether there is.
    fn decrypt(&mut self) -> Result<bool, TlsError> {
        while self.ready == 0 && !self.closed {
            match self.decrypt_record() {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(e) => {
                    if !matches!(e, TlsError::Alert(_)) {
                        self.alert(2, UNEXPECTED_MESSAGE);
                    }
                    return Err(self.fail(e));
                }
            }
        }
        Ok(self.ready > 0)
    }

    /// Decrypts the next record, if it is complete. Returns whether it was.
    fn decrypt_record(&mut self) -> Result<bool, TlsError> {
        let State::Open(open) = &mut self.state else { return self.open().map(|_| false) };
        let bytes = self.incoming.bytes_mut();
        let Some(len) = record_len(bytes)?.filter(|len| *len <= bytes.len()) else { return Ok(false) };
        let (kind, data) = open.open.open(&mut bytes[..len])?;
        let content = &bytes[HEADER..HEADER + data];
        if kind == ContentType::Data && data > 0 {
            open.message.must_be_complete()?;
            open.without_data = 0;
            self.ready = data;
            self.trailer = len - HEADER - data;
            self.incoming.consume(HEADER);
            return Ok(true);
        }
        open.without_data += 1;
        if open.without_data > MAX_WITHOUT_DATA {
            return Err(TlsError::misbehaved("too many records without data"));
        }
        match kind {
            ContentType::Data => open.message.must_be_complete()?,
            ContentType::Handshake => open.handshake_record(content)?,
            ContentType::Alert => match *content {
                [_, CLOSE_NOTIFY] => self.closed = true,
                [_, USER_CANCELED] => {}
                [_, code] => return Err(TlsError::Alert(code)),
                _ => return Err(TlsError::misbehaved("an alert that is no alert")),
            },
        }
        self.incoming.consume(len);
        Ok(true)
    }

    /// Accepts data for the peer from `bufs`, in order. Returns the number of bytes; 0 if the ciphertext of earlier data must
    /// be sent first.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn write(&mut self, bufs: &[IoSlice<'_>]) -> Result<usize, TlsError> {
        self.update_keys()?;
        let mut bytes = bufs.iter().flat_map(|b| (!b.is_empty()).then_some(&**b));
        let (mut piece, mut n): (&[u8], _) = (&[], 0);
        let mut left = bufs.iter().map(|b| b.len()).sum::<usize>();
        if left > 0
            && let Some(room) = WRITE.checked_sub(self.outgoing.len())
        {
            // Once for all records, so that the memory does not grow.
            let records = left.div_ceil(MAX_PLAIN).min(room / (MAX_PLAIN + OVERHEAD) + 1);
            self.outgoing.room(left.min(records * MAX_PLAIN) + records * OVERHEAD);
        }
        while left > 0 && self.outgoing.len() <= WRITE {
            let State::Open(open) = &mut self.state else { return self.open().map(|_| 0) };
            if open.seal.is_used_up() {
                open.send_key_update(&mut self.outgoing)?;
            }
            let len = left.min(MAX_PLAIN);
            let record = self.outgoing.room(len + OVERHEAD);
            let mut at = HEADER;
            while at < HEADER + len {
                if piece.is_empty() {
                    piece = bytes.next().unwrap_or_default();
                }
                let (now, rest) = piece.split_at(piece.len().min(HEADER + len - at));
                record[at..at + now.len()].copy_from_slice(now);
                (piece, at) = (rest, at + now.len());
            }
            open.seal.seal(ContentType::Data, record)?;
            self.outgoing.commit(len + OVERHEAD);
            n += len;
            left -= len;
        }
        Ok(n)
    }

    /// Sends another key if the peer has asked for it.
    fn update_keys(&mut self) -> Result<(), TlsError> {
        let room = self.outgoing.len() <= WRITE;
        let open = self.open()?;
        if open.update && room {
            open.update = false;
            let State::Open(open) = &mut self.state else { return Ok(()) };
            open.send_key_update(&mut self.outgoing)?;
        }
        Ok(())
    }

    /// Sends another key before the next data, as after 2^24 records.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn refresh_key(&mut self) -> Result<(), TlsError> {
        self.open()?.update = true;
        self.update_keys()
    }

    /// Ends this end's direction: the closure alert follows the data of earlier writes.
    pub fn close(&mut self) {
        if !mem::replace(&mut self.closing, true) {
            self.alert(1, CLOSE_NOTIFY);
        }
    }

    /// Appends an alert, if the session is open. (rustls sends those of the handshake.)
    fn alert(&mut self, level: u8, code: u8) {
        if let State::Open(open) = &mut self.state {
            // Fails if the key has no further numbers; then the peer finds the stream truncated.
            let _ = seal_small(&mut open.seal, ContentType::Alert, &[level, code], &mut self.outgoing);
        }
    }

    /// Ciphertext for the peer.
    pub fn outgoing(&mut self) -> &[u8] {
        // Fails with the session, whose later operations return the error.
        let _ = self.update_keys();
        self.outgoing.bytes()
    }

    /// Records that the stream has taken the first `n` bytes of [`Self::outgoing`].
    pub fn sent(&mut self, n: usize) {
        self.outgoing.consume(n);
        if self.outgoing.is_empty() {
            self.outgoing.shrink();
        }
    }

    /// Returns memory that is not needed while the peer sends nothing.
    pub fn shrink(&mut self) {
        if self.ready == 0 {
            self.incoming.shrink();
        }
    }
}

impl Open {
    fn send_key_update(&mut self, out: &mut Stash) -> Result<(), TlsError> {
        seal_small(&mut self.seal, ContentType::Handshake, &[KEY_UPDATE, 0, 0, 1, 0], out)?;
        self.seal = self.secrets.next_seal()?;
        Ok(())
    }

    /// Processes the messages of a handshake record after the handshake (RFC 8446 section 4.6).
    fn handshake_record(&mut self, mut content: &[u8]) -> Result<(), TlsError> {
        if content.is_empty() {
            return Err(TlsError::misbehaved("an empty handshake record"));
        }
        while let Some((byte, rest)) = content.split_first() {
            if self.message.left > 0 {
                let skip = self.message.left.min(content.len());
                self.message.left -= skip;
                content = &content[skip..];
                continue;
            }
            self.message.header[self.message.have] = *byte;
            self.message.have += 1;
            content = rest;
            if self.message.have < self.message.header.len() {
                continue;
            }
            self.message.have = 0;
            let [kind, high, middle, low] = self.message.header;
            let len = u32::from_be_bytes([0, high, middle, low]) as usize;
            match kind {
                // Nothing is resumed.
                NEW_SESSION_TICKET if self.client && len <= 1 << 17 => self.message.left = len,
                KEY_UPDATE => {
                    // The next record has another key, so the message ends this one.
                    let &[request @ 0..=1] = content else {
                        return Err(TlsError::misbehaved("an invalid update of keys"));
                    };
                    self.open = self.secrets.next_open()?;
                    self.update |= request == 1;
                    return Ok(());
                }
                _ => return Err(TlsError::misbehaved("a message that has no place after the handshake")),
            }
        }
        Ok(())
    }
}

impl HandshakeMessage {
    fn must_be_complete(&self) -> Result<(), TlsError> {
        if self.have > 0 || self.left > 0 {
            return Err(TlsError::misbehaved("data within a handshake message"));
        }
        Ok(())
    }
}

/// Appends a record with a few bytes.
fn seal_small(key: &mut Key, kind: ContentType, bytes: &[u8], out: &mut Stash) -> Result<(), TlsError> {
    let record = out.room(bytes.len() + OVERHEAD);
    record[HEADER..HEADER + bytes.len()].copy_from_slice(bytes);
    key.seal(kind, record)?;
    out.commit(bytes.len() + OVERHEAD);
    Ok(())
}
