//! Call and reply headers and credentials (RFC 5531 sections 8 to 10).

use millrace_xdr::{Decode, Decoder, Encode, Encoder, Message, XdrError};
use smallvec::SmallVec;

use crate::GssIdentity;

/// The version of ONC RPC (RFC 5531).
pub const RPC_VERSION: u32 = 2;
/// `msg_type` of a call.
pub const MSG_CALL: u32 = 0;
/// `msg_type` of a reply.
pub const MSG_REPLY: u32 = 1;
/// Maximum bytes of the body of a credential or verifier (RFC 5531 section 8.2).
pub const MAX_AUTH_BODY: usize = 400;
/// Bytes of the header of a successful reply with an AUTH_NONE verifier.
pub const SUCCESS_HEADER_BYTES: usize = 24;

pub(crate) const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;
/// The flavor of RPCSEC_GSS (RFC 2203 section 3).
pub(crate) const RPCSEC_GSS: u32 = 6;
/// The flavor of a probe for TLS (RFC 9289 section 4.1).
pub(crate) const AUTH_TLS: u32 = 7;
/// The verifier of the answer of a server that supports TLS.
const STARTTLS: &[u8; 8] = b"STARTTLS";
const MSG_ACCEPTED: u32 = 0;
const MSG_DENIED: u32 = 1;
const MAX_MACHINE_NAME: usize = 255;
const MAX_GIDS: usize = 16;

/// AUTH_SYS (RFC 5531 appendix A).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuthSys {
    /// An arbitrary number that the caller chooses.
    pub stamp: u32,
    /// Host name of the caller, at most 255 bytes.
    pub machine: SmallVec<[u8; 64]>,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Supplementary group ids, at most 16.
    pub gids: SmallVec<[u32; 16]>,
}

/// A call's credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS.
    Sys(AuthSys),
    /// RPCSEC_GSS, of a received call that was verified.
    Gss(GssIdentity),
    /// An unsupported flavor; its body is dropped.
    Other(u32),
}

impl Credential {
    /// Encodes the credential, for a caller that sends it with every call.
    pub fn encoded(&self) -> EncodedCredential {
        let (flavor, body) = match self {
            Self::None => (AUTH_NONE, Vec::new()),
            Self::Sys(sys) => (AUTH_SYS, sys.body()),
            Self::Gss(_) => (RPCSEC_GSS, Vec::new()),
            Self::Other(flavor) => (*flavor, Vec::new()),
        };
        let words = [flavor, body.len() as u32].map(u32::to_be_bytes);
        EncodedCredential([words.as_flattened(), &body].concat().into())
    }
}

/// An encoded credential: flavor and body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedCredential(Box<[u8]>);

/// A decoded call header without its credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallHeader {
    /// Transaction id.
    pub xid: u32,
    /// Program.
    pub prog: u32,
    /// Version of the program.
    pub vers: u32,
    /// Procedure.
    pub proc: u32,
}

/// `auth_stat` (RFC 5531 section 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum AuthStat {
    /// Bad credential.
    BadCred = 1,
    /// The client must begin a new session.
    RejectedCred = 2,
    /// Bad verifier.
    BadVerf = 3,
    /// Verifier expired or replayed.
    RejectedVerf = 4,
    /// Rejected for security reasons.
    TooWeak = 5,
    /// Bogus response verifier.
    InvalidResp = 6,
    /// Unknown reason; also every value that is not listed here.
    Failed = 7,
    /// The security context does not exist any more, or the call is not signed with it (RFC 2203 section 5.3.3.3).
    GssCredProblem = 13,
    /// The security context cannot be used for further calls.
    GssCtxProblem = 14,
}

impl AuthStat {
    fn from_wire(value: u32) -> Self {
        match value {
            1 => Self::BadCred,
            2 => Self::RejectedCred,
            3 => Self::BadVerf,
            4 => Self::RejectedVerf,
            5 => Self::TooWeak,
            6 => Self::InvalidResp,
            13 => Self::GssCredProblem,
            14 => Self::GssCtxProblem,
            _ => Self::Failed,
        }
    }
}

/// The reason why an accepted call was not executed (`accept_stat`, RFC 5531 section 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptError {
    /// The program is not available on this server.
    ProgUnavail,
    /// The program is available in other versions only.
    ProgMismatch {
        /// Lowest version.
        low: u32,
        /// Highest version.
        high: u32,
    },
    /// The procedure does not exist.
    ProcUnavail,
    /// The arguments cannot be decoded.
    GarbageArgs,
    /// An error of the server, such as lack of memory.
    SystemErr,
}

/// The RPC versions that a peer supports (RPC_MISMATCH).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RpcMismatch {
    /// Lowest version.
    pub low: u32,
    /// Highest version.
    pub high: u32,
}

impl AuthSys {
    /// Encodes the body of the credential. Names are truncated to 255 bytes, and groups to 16, as the type
    /// requires.
    fn body(&self) -> Vec<u8> {
        let machine = &self.machine[..self.machine.len().min(MAX_MACHINE_NAME)];
        let gids = &self.gids[..self.gids.len().min(MAX_GIDS)];
        let mut out = Vec::with_capacity(MAX_AUTH_BODY);
        out.extend([self.stamp, machine.len() as u32].map(u32::to_be_bytes).as_flattened());
        out.extend(machine);
        out.resize(out.len().next_multiple_of(4), 0);
        out.extend([self.uid, self.gid, gids.len() as u32].map(u32::to_be_bytes).as_flattened());
        gids.iter().for_each(|gid| out.extend(gid.to_be_bytes()));
        out
    }
}

impl<'a> Decode<'a> for AuthSys {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let stamp = d.u32()?;
        let machine = SmallVec::from_slice(d.opaque(MAX_MACHINE_NAME)?);
        let (uid, gid) = (d.u32()?, d.u32()?);
        let mut gids = SmallVec::new();
        for _ in 0..d.count(MAX_GIDS, 4)? {
            gids.push(d.u32()?);
        }
        Ok(Self { stamp, machine, uid, gid, gids })
    }
}

impl Encode for Credential {
    fn encode(&self, e: &mut Encoder) {
        match self {
            Self::None => e.put_words([AUTH_NONE, 0]),
            _ => e.put(&self.encoded()),
        }
    }
}

impl Encode for EncodedCredential {
    fn encode(&self, e: &mut Encoder) {
        e.put_raw(&self.0);
    }
}

impl<'a> Decode<'a> for Credential {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let (flavor, at, body) = auth_body(d)?;
        Self::from_body(flavor, body, at)
    }
}

impl Credential {
    /// Decodes the credential with this flavor and body. `at` is the position of the body, for errors.
    pub(crate) fn from_body(flavor: u32, body: &[u8], at: usize) -> Result<Self, XdrError> {
        match flavor {
            AUTH_NONE => Ok(Self::None),
            AUTH_SYS => {
                let mut body_reader = Decoder::from_bytes(body);
                let sys = body_reader.get()?;
                match body_reader.remaining() {
                    0 => Ok(Self::Sys(sys)),
                    rest => Err(XdrError::TooLong { at, len: body.len(), max: body.len() - rest }),
                }
            }
            other => Ok(Self::Other(other)),
        }
    }
}

/// The reason why a message has no valid call header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallHeaderError {
    /// Not an RPC message: the message type is missing or unknown. RFC 5531 requires no reply.
    NotRpc,
    /// A reply, or a call that ends within the fixed part of its header. RFC 5531 defines no reply.
    NotACall,
    /// Unsupported RPC version.
    RpcVersion {
        /// Transaction id of the call.
        xid: u32,
    },
    /// Malformed credential or verifier.
    Auth {
        /// Transaction id of the call.
        xid: u32,
        /// Status for the reply.
        stat: AuthStat,
    },
}

impl CallHeader {
    /// Decodes the header of a call, from its transaction id to its verifier, and its credential. Afterwards `d`
    /// is at the arguments.
    ///
    /// Unknown credential flavors are accepted, because the NULL procedure is executed with any flavor.
    ///
    /// # Errors
    /// [`CallHeaderError`], in the order of checks of RFC 5531.
    pub fn decode(d: &mut Decoder<'_>) -> Result<(Self, Credential), CallHeaderError> {
        Self::decode_with(d, Credential::from_body)
    }

    /// As [`Self::decode`]. `credential` decodes the credential from its flavor, its body and the position of
    /// the body.
    #[inline] // 40 instructions fewer for each call of a server.
    pub(crate) fn decode_with<C>(
        d: &mut Decoder<'_>,
        credential: impl FnOnce(u32, &[u8], usize) -> Result<C, XdrError>,
    ) -> Result<(Self, C), CallHeaderError> {
        #[cfg(feature = "call-counts")]
        crate::call_counts::HEADERS_DECODED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let short = |_| CallHeaderError::NotACall;
        let no_type = |_| CallHeaderError::NotRpc;
        let [xid, message_type] = d.words().map_err(no_type)?;
        match message_type {
            MSG_CALL => {}
            MSG_REPLY => return Err(CallHeaderError::NotACall),
            _ => return Err(CallHeaderError::NotRpc),
        }
        // The remaining header may differ in other versions, so it is not decoded.
        if d.u32().map_err(short)? != RPC_VERSION {
            return Err(CallHeaderError::RpcVersion { xid });
        }
        let [prog, vers, proc] = d.words().map_err(short)?;
        let auth = |stat| CallHeaderError::Auth { xid, stat };
        let cred = auth_body(d).and_then(|(flavor, at, body)| credential(flavor, body, at));
        let cred = cred.map_err(|_| auth(AuthStat::BadCred))?;
        skip_verifier(d).map_err(|_| auth(AuthStat::BadVerf))?;
        Ok((Self { xid, prog, vers, proc }, cred))
    }
}

/// Flavor, position and body of a credential or verifier.
fn auth_body<'a>(d: &mut Decoder<'a>) -> Result<(u32, usize, &'a [u8]), XdrError> {
    let flavor = d.u32()?;
    let at = d.position();
    Ok((flavor, at, d.opaque(MAX_AUTH_BODY)?))
}

fn skip_verifier(d: &mut Decoder<'_>) -> Result<(), XdrError> {
    auth_body(d).map(drop)
}

/// Appends the header of a call with transaction id 0, which the transport replaces, by
/// [`millrace_xdr::Message::set_xid`] or by sending four other bytes instead of the first four. `cred` is a
/// [`Credential`] or an [`EncodedCredential`].
pub fn call_header(e: &mut Encoder, prog: u32, vers: u32, proc: u32, cred: &impl Encode) {
    e.put_words([0, MSG_CALL, RPC_VERSION, prog, vers, proc]);
    e.put(cred);
    e.put(&Credential::None);
}

/// Appends the answer to a probe for TLS (RFC 9289 section 4.1).
pub(crate) fn starttls(e: &mut Encoder, xid: u32) {
    success_header(e, xid, AUTH_NONE, STARTTLS);
}

/// Appends the header of a successful reply with a verifier.
pub(crate) fn success_header(e: &mut Encoder, xid: u32, flavor: u32, verifier: &[u8]) {
    e.put_words([xid, MSG_REPLY, MSG_ACCEPTED, flavor]);
    e.put_opaque(verifier);
    e.put_u32(0);
}

/// Whether an answer to a probe for TLS has the verifier of a server that supports it. Its status does not matter.
pub(crate) fn offers_tls(d: &mut Decoder<'_>, xid: u32) -> bool {
    let header = [(); 3].map(|()| d.u32().unwrap_or(u32::MAX));
    header == [xid, MSG_REPLY, MSG_ACCEPTED]
        && auth_body(d).is_ok_and(|(flavor, _, body)| flavor == AUTH_NONE && body == STARTTLS)
}

/// The status of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyStatus {
    /// The call was executed; the results follow.
    Success,
    /// The call was accepted and not executed.
    Accept(AcceptError),
    /// The credential was rejected.
    Auth(AuthStat),
    /// The RPC version was rejected.
    Mismatch(RpcMismatch),
}

/// A decoded reply header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHeader {
    /// Transaction id of the call.
    pub xid: u32,
    /// Status of the call.
    pub status: ReplyStatus,
}

/// The header of an accepted reply, with its verifier.
pub(crate) struct Accepted<'a> {
    pub(crate) flavor: u32,
    pub(crate) verifier: &'a [u8],
    pub(crate) status: ReplyStatus,
}

impl<'a> Decode<'a> for Accepted<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        d.u32()?;
        expect(d, MSG_REPLY)?;
        expect(d, MSG_ACCEPTED)?;
        let (flavor, _, verifier) = auth_body(d)?;
        Ok(Self { flavor, verifier, status: accepted_status(d)? })
    }
}

impl Encode for ReplyHeader {
    /// Encodes the header, with an AUTH_NONE verifier if the call was accepted.
    fn encode(&self, e: &mut Encoder) {
        let denied = matches!(self.status, ReplyStatus::Auth(_) | ReplyStatus::Mismatch(_));
        if denied {
            e.put_words([self.xid, MSG_REPLY, MSG_DENIED]);
        } else {
            e.put_words([self.xid, MSG_REPLY, MSG_ACCEPTED]);
            e.put(&Credential::None);
        }
        let mut put = |words: &[u32]| words.iter().for_each(|w| e.put_u32(*w));
        match self.status {
            ReplyStatus::Success => put(&[0]),
            ReplyStatus::Accept(AcceptError::ProgUnavail) => put(&[1]),
            ReplyStatus::Accept(AcceptError::ProgMismatch { low, high }) => put(&[2, low, high]),
            ReplyStatus::Accept(AcceptError::ProcUnavail) => put(&[3]),
            ReplyStatus::Accept(AcceptError::GarbageArgs) => put(&[4]),
            ReplyStatus::Accept(AcceptError::SystemErr) => put(&[5]),
            ReplyStatus::Mismatch(RpcMismatch { low, high }) => put(&[0, low, high]),
            ReplyStatus::Auth(stat) => put(&[1, stat as u32]),
        }
    }
}

/// Encodes a reply without results in `reply`.
pub(crate) fn bare_reply(xid: u32, status: ReplyStatus, mut reply: Encoder) -> Option<Message> {
    reply.truncate(0);
    ReplyHeader { xid, status }.encode(&mut reply);
    reply.finish().ok()
}

impl<'a> Decode<'a> for ReplyHeader {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let xid = d.u32()?;
        expect(d, MSG_REPLY)?;
        let status = match d.u32()? {
            MSG_ACCEPTED => {
                skip_verifier(d)?;
                accepted_status(d)?
            }
            MSG_DENIED => match d.u32()? {
                0 => ReplyStatus::Mismatch(RpcMismatch { low: d.u32()?, high: d.u32()? }),
                1 => ReplyStatus::Auth(AuthStat::from_wire(d.u32()?)),
                other => return Err(d.invalid(other)),
            },
            other => return Err(d.invalid(other)),
        };
        Ok(Self { xid, status })
    }
}

fn accepted_status(d: &mut Decoder<'_>) -> Result<ReplyStatus, XdrError> {
    Ok(ReplyStatus::Accept(match d.u32()? {
        0 => return Ok(ReplyStatus::Success),
        1 => AcceptError::ProgUnavail,
        2 => AcceptError::ProgMismatch { low: d.u32()?, high: d.u32()? },
        3 => AcceptError::ProcUnavail,
        4 => AcceptError::GarbageArgs,
        5 => AcceptError::SystemErr,
        other => return Err(d.invalid(other)),
    }))
}

fn expect(d: &mut Decoder<'_>, expected: u32) -> Result<(), XdrError> {
    match d.u32()? {
        got if got == expected => Ok(()),
        got => Err(d.invalid(got)),
    }
}
