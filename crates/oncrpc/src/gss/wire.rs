//! Forms on the wire (RFC 2203 section 5).

use millrace_xdr::{Decode, Decoder, Encode, Encoder, XdrError, pad};

use super::seal::Header;
use crate::{AuthStat, Protection, message::RPCSEC_GSS};

/// The only version (RFC 5403 and RFC 7861 have others, which NFS does not use).
const VERSION: u32 = 1;
/// The largest sequence number.
pub(crate) const MAX_SEQUENCE: u32 = 0x8000_0000;
/// Bytes of the longest token that establishes a context. Those with the groups of a user of Active Directory are the longest.
pub(crate) const MAX_TOKEN: usize = 64 << 10;
/// `GSS_S_COMPLETE` (RFC 2744 section 3.9.1).
pub(crate) const COMPLETE: u32 = 0;

/// What a call is for (`rpc_gss_proc_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A call of the program.
    Data(Protection),
    /// The first token of a context.
    Init,
    /// A further token.
    ContinueInit,
    /// The end of a context.
    Destroy,
}

/// A credential (RFC 2203 section 5.2.2 and 5.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GssCredential<'a> {
    pub(crate) purpose: Purpose,
    pub(crate) sequence: u32,
    pub(crate) handle: &'a [u8],
}

impl<'a> GssCredential<'a> {
    /// Decodes the body of a credential, of a call of procedure `procedure`.
    ///
    /// # Errors
    /// The status with which the call is denied.
    pub(crate) fn decode(body: &'a [u8], procedure: u32) -> Result<Self, AuthStat> {
        let malformed = |_| AuthStat::BadCred;
        let mut d = Decoder::from_bytes(body);
        if d.u32().map_err(malformed)? != VERSION {
            return Err(AuthStat::RejectedCred);
        }
        let [purpose, sequence, service] = d.words().map_err(malformed)?;
        let handle = d.opaque(body.len()).map_err(malformed)?;
        if d.remaining() > 0 {
            return Err(AuthStat::BadCred);
        }
        let purpose = match purpose {
            0 => Purpose::Data(Protection::from_wire(service).ok_or(AuthStat::BadCred)?),
            1 if handle.is_empty() => Purpose::Init,
            1 => return Err(AuthStat::BadCred),
            2 => Purpose::ContinueInit,
            3 => Purpose::Destroy,
            _ => return Err(AuthStat::RejectedCred),
        };
        if procedure != 0 && !matches!(purpose, Purpose::Data(_)) {
            return Err(AuthStat::BadCred);
        }
        Ok(Self { purpose, sequence, handle })
    }

    /// Appends the credential with its flavor.
    pub(crate) fn append_to(&self, header: &mut Header) {
        let (purpose, service) = match self.purpose {
            Purpose::Data(protection) => (0, protection),
            Purpose::Init => (1, Protection::Authentication),
            Purpose::ContinueInit => (2, Protection::Authentication),
            Purpose::Destroy => (3, Protection::Authentication),
        };
        let (handle, padding) = (self.handle.len(), pad(self.handle.len()));
        let body = 20 + handle + padding;
        let words = [RPCSEC_GSS, body as u32, VERSION, purpose, self.sequence, service as u32, handle as u32];
        header.extend_from_slice(words.map(u32::to_be_bytes).as_flattened());
        header.extend_from_slice(self.handle);
        header.extend_from_slice(&[0; 3][..padding]);
    }

    /// Whether the arguments of a call with this body of its credential are readable before they are opened, and at which
    /// distance from the header.
    pub(crate) fn distance_of_arguments(body: &[u8]) -> Option<usize> {
        let service = body.get(12..16).and_then(|word| word.first_chunk())?;
        match Protection::from_wire(u32::from_be_bytes(*service))? {
            Protection::Authentication => Some(0),
            Protection::Integrity => Some(8), // A length and the sequence number.
            Protection::Privacy => None,
        }
    }
}

impl Encode for GssCredential<'_> {
    fn encode(&self, e: &mut Encoder) {
        let mut bytes = Header::new();
        self.append_to(&mut bytes);
        e.put_raw(&bytes);
    }
}

/// The results of a call that establishes a context (RFC 2203 section 5.2.3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InitResults<'a> {
    pub(crate) handle: &'a [u8],
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) window: u32,
    pub(crate) token: &'a [u8],
}

impl Encode for InitResults<'_> {
    fn encode(&self, e: &mut Encoder) {
        e.put_opaque(self.handle);
        e.put_words([self.major, self.minor, self.window]);
        e.put_opaque(self.token);
    }
}

impl<'a> Decode<'a> for InitResults<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let handle = d.opaque(crate::MAX_AUTH_BODY)?;
        let [major, minor, window] = d.words()?;
        Ok(Self { handle, major, minor, window, token: d.opaque(MAX_TOKEN)? })
    }
}
