//! Macros that declare an XDR type and derive encoding and decoding.

/// A struct, encoded as its fields in order. A type without lifetime is `Copy`, unless declared as
/// `Name: Clone`.
macro_rules! xdr_struct {
    ($(#[$m:meta])* pub struct $name:ident<$lt:lifetime> { $($(#[$fm:meta])* pub $f:ident: $t:ty),* $(,)? }) => {
        $(#[$m])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name<$lt> { $($(#[$fm])* pub $f: $t),* }

        impl ::millrace_xdr::Encode for $name<'_> {
            fn encode(&self, e: &mut ::millrace_xdr::Encoder) {
                $(::millrace_xdr::Encode::encode(&self.$f, e);)*
            }
        }

        impl<$lt> ::millrace_xdr::Decode<$lt> for $name<$lt> {
            fn decode(d: &mut ::millrace_xdr::Decoder<$lt>) -> Result<Self, ::millrace_xdr::XdrError> {
                Ok(Self { $($f: d.get()?),* })
            }
        }
    };
    ($(#[$m:meta])* pub struct $name:ident { $($fields:tt)* }) => {
        $crate::schema::xdr_struct! { $(#[$m])* #[derive(Copy)] pub struct $name: Clone { $($fields)* } }
    };
    ($(#[$m:meta])* pub struct $name:ident: Clone { $($(#[$fm:meta])* pub $f:ident: $t:ty),* $(,)? }) => {
        $(#[$m])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name { $($(#[$fm])* pub $f: $t),* }

        impl ::millrace_xdr::Encode for $name {
            fn encode(&self, e: &mut ::millrace_xdr::Encoder) {
                $(::millrace_xdr::Encode::encode(&self.$f, e);)*
            }
        }

        impl<'a> ::millrace_xdr::Decode<'a> for $name {
            fn decode(d: &mut ::millrace_xdr::Decoder<'a>) -> Result<Self, ::millrace_xdr::XdrError> {
                Ok(Self { $($f: d.get()?),* })
            }
        }
    };
}

/// An enum with explicit values; other values are rejected.
macro_rules! xdr_enum {
    ($(#[$m:meta])* pub enum $name:ident { $($(#[$vm:meta])* $v:ident = $n:literal),* $(,)? }) => {
        $(#[$m])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum $name { $($(#[$vm])* $v = $n),* }

        impl $name {
            /// All values in ascending order.
            pub const ALL: &'static [Self] = &[$(Self::$v),*];

            /// The encoded value.
            pub const fn number(self) -> u32 {
                self as u32
            }
        }

        impl From<$name> for u32 {
            fn from(v: $name) -> Self {
                v.number()
            }
        }

        impl TryFrom<u32> for $name {
            type Error = u32;

            /// Returns the number if it is not a valid value.
            fn try_from(n: u32) -> Result<Self, u32> {
                match n {
                    $($n => Ok(Self::$v),)*
                    _ => Err(n),
                }
            }
        }

        impl ::millrace_xdr::Encode for $name {
            fn encode(&self, e: &mut ::millrace_xdr::Encoder) {
                e.put_u32(self.number());
            }
        }

        impl<'a> ::millrace_xdr::Decode<'a> for $name {
            fn decode(d: &mut ::millrace_xdr::Decoder<'a>) -> Result<Self, ::millrace_xdr::XdrError> {
                let n = d.u32()?;
                Self::try_from(n).map_err(|n| d.invalid(n))
            }
        }
    };
}

pub(crate) use {xdr_enum, xdr_struct};
