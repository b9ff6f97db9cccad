//! Delegations: what OPEN returns, DELEGRETURN and DELEGPURGE (RFC 8881 sections 18.5, 18.6, 18.16.2).

use millrace_xdr::{Decode, Decoder, Encode, Encoder, XdrError};

use super::{ClientId, DelegationType, MAX_OWNER, Opaque, Stateid};
use crate::schema::xdr_struct;

xdr_struct! {
    /// `nfsace4`: an access control entry.
    #[derive(Copy)]
    pub struct Ace<'a> {
        /// 0: allow, 1: deny, 2: audit, 3: alarm.
        pub ace_type: u32,
        /// Bits: inheritance, and 0x40 for a group.
        pub flags: u32,
        /// Permissions.
        pub access_mask: u32,
        /// User, group, or a special name such as `EVERYONE@`.
        pub who: Opaque<'a, MAX_OWNER>,
    }
}

impl Ace<'_> {
    /// An entry that permits nothing to any user: clients must then send ACCESS.
    pub const NOTHING: Self = Self { ace_type: 0, flags: 0, access_mask: 0, who: Opaque(b"EVERYONE@") };
}

xdr_struct! {
    /// `open_read_delegation4`.
    #[derive(Copy)]
    pub struct ReadDelegation<'a> {
        /// Stateid of the delegation.
        pub stateid: Stateid,
        /// Whether the server recalls it at once.
        pub recall: bool,
        /// Users that the client can admit without asking the server.
        pub permissions: Ace<'a>,
    }
}

/// `nfs_space_limit4`: how much a client with a write delegation can write without asking the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceLimit {
    /// Maximum file size in bytes.
    Size(u64),
    /// Maximum number of blocks.
    Blocks {
        /// Number of blocks.
        blocks: u32,
        /// Size of a block in bytes.
        block_size: u32,
    },
}

impl Encode for SpaceLimit {
    fn encode(&self, e: &mut Encoder) {
        match self {
            Self::Size(size) => {
                e.put_u32(1);
                e.put_u64(*size);
            }
            Self::Blocks { blocks, block_size } => {
                [2, *blocks, *block_size].iter().for_each(|&n| e.put_u32(n))
            }
        }
    }
}

impl<'a> Decode<'a> for SpaceLimit {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.u32()? {
            1 => d.get().map(Self::Size),
            2 => Ok(Self::Blocks { blocks: d.get()?, block_size: d.get()? }),
            n => Err(d.invalid(n)),
        }
    }
}

xdr_struct! {
    /// `open_write_delegation4`.
    #[derive(Copy)]
    pub struct WriteDelegation<'a> {
        /// Stateid of the delegation.
        pub stateid: Stateid,
        /// Whether the server recalls it at once.
        pub recall: bool,
        /// How much the client can write.
        pub limit: SpaceLimit,
        /// Users that the client can admit without asking the server.
        pub permissions: Ace<'a>,
    }
}

/// `open_none_delegation4`: why there is no delegation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoDelegation {
    /// The client has requested none.
    NotWanted,
    /// Another client uses the file.
    Contention {
        /// Whether the server will send a delegation when there is no contention.
        will_push: bool,
    },
    /// The server lacks resources.
    Resource {
        /// Whether the server will signal that resources are available.
        will_signal: bool,
    },
    /// No delegation for this type of file.
    NotSuppFtype,
    /// No write delegation for this type of file.
    WriteDelegNotSuppFtype,
    /// A delegation cannot be upgraded.
    NotSuppUpgrade,
    /// A delegation cannot be downgraded.
    NotSuppDowngrade,
    /// A wanted delegation was cancelled.
    Cancelled,
    /// The file is a directory.
    IsDir,
}

impl Encode for NoDelegation {
    fn encode(&self, e: &mut Encoder) {
        let (why, flag) = match self {
            Self::NotWanted => (0, None),
            Self::Contention { will_push } => (1, Some(*will_push)),
            Self::Resource { will_signal } => (2, Some(*will_signal)),
            Self::NotSuppFtype => (3, None),
            Self::WriteDelegNotSuppFtype => (4, None),
            Self::NotSuppUpgrade => (5, None),
            Self::NotSuppDowngrade => (6, None),
            Self::Cancelled => (7, None),
            Self::IsDir => (8, None),
        };
        e.put_u32(why);
        flag.into_iter().for_each(|flag| e.put_bool(flag));
    }
}

impl<'a> Decode<'a> for NoDelegation {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(match d.u32()? {
            0 => Self::NotWanted,
            1 => Self::Contention { will_push: d.bool()? },
            2 => Self::Resource { will_signal: d.bool()? },
            3 => Self::NotSuppFtype,
            4 => Self::WriteDelegNotSuppFtype,
            5 => Self::NotSuppUpgrade,
            6 => Self::NotSuppDowngrade,
            7 => Self::Cancelled,
            8 => Self::IsDir,
            n => return Err(d.invalid(n)),
        })
    }
}

/// `open_delegation4`: the delegation that OPEN returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delegation<'a> {
    /// None.
    None,
    /// A read delegation.
    Read(ReadDelegation<'a>),
    /// A write delegation.
    Write(WriteDelegation<'a>),
    /// None, for this reason. Only for a client that wanted a delegation, or wanted none.
    NoneExt(NoDelegation),
    /// A read delegation that includes the time attributes (RFC 9754).
    ReadAttrs(ReadDelegation<'a>),
    /// A write delegation that includes the time attributes (RFC 9754).
    WriteAttrs(WriteDelegation<'a>),
}

impl Delegation<'_> {
    /// The discriminant.
    pub const fn delegation_type(&self) -> DelegationType {
        match self {
            Self::None => DelegationType::None,
            Self::Read(_) => DelegationType::Read,
            Self::Write(_) => DelegationType::Write,
            Self::NoneExt(_) => DelegationType::NoneExt,
            Self::ReadAttrs(_) => DelegationType::ReadAttrs,
            Self::WriteAttrs(_) => DelegationType::WriteAttrs,
        }
    }
}

impl Encode for Delegation<'_> {
    fn encode(&self, e: &mut Encoder) {
        e.put(&self.delegation_type());
        match self {
            Self::None => {}
            Self::Read(read) | Self::ReadAttrs(read) => e.put(read),
            Self::Write(write) | Self::WriteAttrs(write) => e.put(write),
            Self::NoneExt(why) => e.put(why),
        }
    }
}

impl<'a> Decode<'a> for Delegation<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.get()? {
            DelegationType::None => Ok(Self::None),
            DelegationType::Read => d.get().map(Self::Read),
            DelegationType::Write => d.get().map(Self::Write),
            DelegationType::NoneExt => d.get().map(Self::NoneExt),
            DelegationType::ReadAttrs => d.get().map(Self::ReadAttrs),
            DelegationType::WriteAttrs => d.get().map(Self::WriteAttrs),
        }
    }
}

xdr_struct! {
    /// Arguments of DELEGRETURN. The result has no data.
    pub struct DelegreturnArgs {
        /// Stateid of the delegation.
        pub stateid: Stateid,
    }
}

xdr_struct! {
    /// Arguments of DELEGPURGE. The result has no data.
    pub struct DelegpurgeArgs {
        /// Client ID.
        pub client_id: ClientId,
    }
}
