//! Types used by several operations (RFC 8881 section 3.3).

use crate::schema::xdr_struct;

xdr_struct! {
    /// `clientid4`: a client ID, assigned by the server to one incarnation of a client.
    #[derive(PartialOrd, Ord, Hash)]
    pub struct ClientId {
        /// The number.
        pub number: u64,
    }
}

/// `sessionid4`: a session ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 16]);

impl ::millrace_xdr::Encode for SessionId {
    fn encode(&self, e: &mut ::millrace_xdr::Encoder) {
        e.put(&self.0);
    }
}

impl<'a> ::millrace_xdr::Decode<'a> for SessionId {
    fn decode(d: &mut ::millrace_xdr::Decoder<'a>) -> Result<Self, ::millrace_xdr::XdrError> {
        Ok(Self(d.get()?))
    }
}

xdr_struct! {
    /// `stateid4`: an identifier of an open, of locks or of a delegation.
    #[derive(PartialOrd, Ord, Hash)]
    pub struct Stateid {
        /// Number of changes of the state; in requests, 0 means the most recent one.
        pub seqid: u32,
        /// Identifies the state.
        pub other: [u8; 12],
    }
}

impl Stateid {
    /// All zeros: an access without an open (RFC 8881 section 8.2.3).
    pub const ANONYMOUS: Self = Self { seqid: 0, other: [0; 12] };
    /// All ones: a READ that share reservations do not restrict.
    pub const READ_BYPASS: Self = Self { seqid: u32::MAX, other: [0xff; 12] };
    /// The current stateid of the COMPOUND.
    pub const CURRENT: Self = Self { seqid: 1, other: [0; 12] };
    /// A stateid that is never valid.
    pub const INVALID: Self = Self { seqid: u32::MAX, other: [0; 12] };

    /// Whether it is one of the special stateids, or has their `other` field.
    pub fn is_special(&self) -> bool {
        self.other == [0; 12] || self.other == [0xff; 12]
    }
}
