//! OPEN, CLOSE and OPEN_DOWNGRADE: arguments and results (RFC 8881 sections 18.2, 18.16, 18.18).

use millrace_xdr::{Decode, Decoder, Encode, Encoder, XdrError};

use super::{Bitmap, ChangeInfo, ClientId, Delegation, Name, OPAQUE_LIMIT, Opaque, Stateid, Verifier};
use crate::schema::{xdr_enum, xdr_struct};

/// `share_access` of OPEN (RFC 8881 section 18.16.1, RFC 9754).
pub mod share_access {
    /// Read.
    pub const READ: u32 = 0x1;
    /// Write.
    pub const WRITE: u32 = 0x2;
    /// Read and write: the bits that are not about delegations.
    pub const BOTH: u32 = 0x3;
    /// The kind of delegation that the client wants: the values below.
    pub const WANT_MASK: u32 = 0xff00;
    /// No preference.
    pub const WANT_NO_PREFERENCE: u32 = 0;
    /// A read delegation.
    pub const WANT_READ_DELEG: u32 = 0x100;
    /// A write delegation.
    pub const WANT_WRITE_DELEG: u32 = 0x200;
    /// Any delegation.
    pub const WANT_ANY_DELEG: u32 = 0x300;
    /// No delegation.
    pub const WANT_NO_DELEG: u32 = 0x400;
    /// Cancel a wanted delegation.
    pub const WANT_CANCEL: u32 = 0x500;
    /// Signal when a delegation becomes available.
    pub const WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL: u32 = 0x1_0000;
    /// Send a delegation when there is no contention.
    pub const WANT_PUSH_DELEG_WHEN_UNCONTENDED: u32 = 0x2_0000;
    /// A delegation of the time attributes.
    pub const WANT_DELEG_TIMESTAMPS: u32 = 0x10_0000;
    /// Either an open stateid or a delegation.
    pub const WANT_OPEN_XOR_DELEGATION: u32 = 0x20_0000;
}

/// `share_deny` of OPEN.
pub mod share_deny {
    /// Nothing.
    pub const NONE: u32 = 0;
    /// Others must not read.
    pub const READ: u32 = 1;
    /// Others must not write.
    pub const WRITE: u32 = 2;
    /// Both.
    pub const BOTH: u32 = 3;
}

/// Flags of the result of OPEN (RFC 8881 section 18.16.2).
pub mod open_flags {
    /// Byte-range locks follow POSIX.
    pub const LOCKTYPE_POSIX: u32 = 0x04;
    /// A file that is removed while open remains accessible.
    pub const PRESERVE_UNLINKED: u32 = 0x08;
    /// The stateid is not an open stateid (RFC 9754).
    pub const NO_OPEN_STATEID: u32 = 0x10;
    /// The server may send CB_NOTIFY_LOCK.
    pub const MAY_NOTIFY_LOCK: u32 = 0x20;
}

xdr_struct! {
    /// `open_owner4` and `lock_owner4`: a holder of opens or locks.
    #[derive(Copy, Hash)]
    pub struct StateOwner<'a> {
        /// Ignored in requests, which belong to the client of the session.
        pub client_id: ClientId,
        /// Identifies the owner on its client.
        pub owner: Opaque<'a, OPAQUE_LIMIT>,
    }
}

/// `createhow4`: how OPEN handles an existing file. `A` is the type of the attributes of a new file:
/// [`Attributes`](super::Attributes) or [`Fattr`](super::Fattr).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateHow<A> {
    /// Use it, and set its size if given.
    Unchecked(A),
    /// Fail.
    Guarded(A),
    /// Fail unless it was created with this verifier. The client sets attributes later.
    Exclusive(Verifier),
    /// Fail unless it was created with this verifier.
    Exclusive41(Verifier, A),
}

impl<A: Encode> Encode for CreateHow<A> {
    fn encode(&self, e: &mut Encoder) {
        let (mode, verifier, attributes) = match self {
            Self::Unchecked(a) => (0, None, Some(a)),
            Self::Guarded(a) => (1, None, Some(a)),
            Self::Exclusive(v) => (2, Some(v), None),
            Self::Exclusive41(v, a) => (3, Some(v), Some(a)),
        };
        e.put_u32(mode);
        verifier.into_iter().for_each(|v| e.put(v));
        attributes.into_iter().for_each(|a| e.put(a));
    }
}

impl<'a, A: Decode<'a>> Decode<'a> for CreateHow<A> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.u32()? {
            0 => d.get().map(Self::Unchecked),
            1 => d.get().map(Self::Guarded),
            2 => d.get().map(Self::Exclusive),
            3 => Ok(Self::Exclusive41(d.get()?, d.get()?)),
            n => Err(d.invalid(n)),
        }
    }
}

xdr_enum! {
    /// `open_delegation_type4`.
    pub enum DelegationType {
        /// No delegation.
        None = 0,
        /// A read delegation.
        Read = 1,
        /// A write delegation.
        Write = 2,
        /// No delegation, with a reason.
        NoneExt = 3,
        /// A read delegation that includes the time attributes (RFC 9754).
        ReadAttrs = 4,
        /// A write delegation that includes the time attributes (RFC 9754).
        WriteAttrs = 5,
    }
}

/// `open_claim4`: the file, and the right by which the client opens it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim<'a> {
    /// CLAIM_NULL: a name in the current directory.
    Null(Name<'a>),
    /// CLAIM_PREVIOUS: the current file handle, opened before the server restarted, with a delegation of this
    /// type.
    Previous(DelegationType),
    /// CLAIM_DELEGATE_CUR: a name in the current directory, opened under a delegation.
    DelegateCur(Stateid, Name<'a>),
    /// CLAIM_DELEGATE_PREV: a name in the current directory, delegated before the client restarted.
    DelegatePrev(Name<'a>),
    /// CLAIM_FH: the current file handle.
    Fh,
    /// CLAIM_DELEG_CUR_FH: the current file handle, opened under a delegation.
    DelegCurFh(Stateid),
    /// CLAIM_DELEG_PREV_FH: the current file handle, delegated before the client restarted.
    DelegPrevFh,
}

impl Encode for Claim<'_> {
    fn encode(&self, e: &mut Encoder) {
        match self {
            Self::Null(name) => put_claim(e, 0, name),
            Self::Previous(delegation) => put_claim(e, 1, delegation),
            Self::DelegateCur(stateid, name) => {
                put_claim(e, 2, stateid);
                e.put(name);
            }
            Self::DelegatePrev(name) => put_claim(e, 3, name),
            Self::Fh => put_claim(e, 4, &()),
            Self::DelegCurFh(stateid) => put_claim(e, 5, stateid),
            Self::DelegPrevFh => put_claim(e, 6, &()),
        }
    }
}

fn put_claim(e: &mut Encoder, claim: u32, data: &impl Encode) {
    e.put_u32(claim);
    e.put(data);
}

impl<'a> Decode<'a> for Claim<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.u32()? {
            0 => d.get().map(Self::Null),
            1 => d.get().map(Self::Previous),
            2 => Ok(Self::DelegateCur(d.get()?, d.get()?)),
            3 => d.get().map(Self::DelegatePrev),
            4 => Ok(Self::Fh),
            5 => d.get().map(Self::DelegCurFh),
            6 => Ok(Self::DelegPrevFh),
            n => Err(d.invalid(n)),
        }
    }
}

/// Arguments of OPEN. `A` is the type of the attributes of a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenArgs<'a, A> {
    /// Ignored in minor version 1 and later.
    pub seqid: u32,
    /// Bits of [`share_access`]; other bits are not rejected.
    pub share_access: u32,
    /// Bits of [`share_deny`]; other bits are not rejected.
    pub share_deny: u32,
    /// Owner of the open.
    pub owner: StateOwner<'a>,
    /// How to create the file; `None`: it must exist. (XDR discriminants 0 and 1, as those of an optional
    /// value.)
    pub create: Option<CreateHow<A>>,
    /// The file.
    pub claim: Claim<'a>,
}

impl<A: Encode> Encode for OpenArgs<'_, A> {
    fn encode(&self, e: &mut Encoder) {
        e.put_u32(self.seqid);
        e.put_u32(self.share_access);
        e.put_u32(self.share_deny);
        e.put(&self.owner);
        e.put(&self.create);
        e.put(&self.claim);
    }
}

impl<'a, A: Decode<'a>> Decode<'a> for OpenArgs<'a, A> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self {
            seqid: d.get()?,
            share_access: d.get()?,
            share_deny: d.get()?,
            owner: d.get()?,
            create: d.get()?,
            claim: d.get()?,
        })
    }
}

xdr_struct! {
    /// Result of OPEN.
    #[derive(Copy)]
    pub struct OpenOk<'a> {
        /// Stateid of the open.
        pub stateid: Stateid,
        /// Change of the directory.
        pub dir: ChangeInfo,
        /// Bits of [`open_flags`].
        pub flags: u32,
        /// Attributes that were set.
        pub set: Bitmap,
        /// Delegation.
        pub delegation: Delegation<'a>,
    }
}

xdr_struct! {
    /// Arguments of CLOSE. The result is a [`StateidOk`].
    pub struct CloseArgs {
        /// Ignored in minor version 1 and later.
        pub seqid: u32,
        /// Stateid of the open.
        pub stateid: Stateid,
    }
}

xdr_struct! {
    /// Result of CLOSE, OPEN_DOWNGRADE, LOCK and LOCKU.
    pub struct StateidOk {
        /// The changed stateid.
        pub stateid: Stateid,
    }
}

xdr_struct! {
    /// Arguments of OPEN_DOWNGRADE. The result is a [`StateidOk`].
    pub struct OpenDowngradeArgs {
        /// Stateid of the open.
        pub stateid: Stateid,
        /// Ignored in minor version 1 and later.
        pub seqid: u32,
        /// Remaining bits of [`share_access`].
        pub share_access: u32,
        /// Remaining bits of [`share_deny`].
        pub share_deny: u32,
    }
}

xdr_struct! {
    /// Arguments of OPENATTR (RFC 8881 section 18.17). The result has no data.
    pub struct OpenattrArgs {
        /// Whether to create the directory of named attributes.
        pub create: bool,
    }
}
