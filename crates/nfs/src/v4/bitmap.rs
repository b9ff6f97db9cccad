//! `bitmap4` (RFC 8881 section 3.3.7).

use std::fmt;

use millrace_xdr::{Decode, Decoder, Encode, Encoder, XdrError};

use super::{Attribute, Operation};

/// Number of words of a [`Bitmap`]: enough for all attributes and operations of minor version 2.
const WORDS: usize = 3;

/// Maximum number of words of a decoded bitmap. Words that a [`Bitmap`] does not have are skipped.
pub const MAX_BITMAP_WORDS: usize = 64;

/// A set of attributes (or, in EXCHANGE_ID, of operations, and in `open_arguments` of arguments).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Bitmap {
    words: [u32; WORDS],
}

impl Bitmap {
    /// The empty set.
    pub const EMPTY: Self = Self { words: [0; WORDS] };

    /// The set of these attributes.
    pub const fn of(attributes: &[Attribute]) -> Self {
        let mut set = Self::EMPTY;
        let mut i = 0;
        while i < attributes.len() {
            set = set.with(attributes[i]);
            i += 1;
        }
        set
    }

    /// The set of these operations.
    pub const fn of_operations(operations: &[Operation]) -> Self {
        let mut set = Self::EMPTY;
        let mut i = 0;
        while i < operations.len() {
            let n = operations[i].number();
            set.words[n as usize / 32] |= 1 << (n % 32);
            i += 1;
        }
        set
    }

    /// Whether the set contains the operation.
    pub const fn contains_operation(self, operation: Operation) -> bool {
        !self.intersection(Self::of_operations(&[operation])).is_empty()
    }

    /// The set with an attribute added.
    #[must_use]
    pub const fn with(mut self, attribute: Attribute) -> Self {
        let n = attribute.number();
        self.words[n as usize / 32] |= 1 << (n % 32);
        self
    }

    /// Adds an attribute.
    pub const fn insert(&mut self, attribute: Attribute) {
        *self = self.with(attribute);
    }

    /// Whether the set contains the attribute.
    pub const fn contains(self, attribute: Attribute) -> bool {
        let n = attribute.number();
        self.words[n as usize / 32] & 1 << (n % 32) != 0
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        let [a, b, c] = self.words;
        a | b | c == 0
    }

    /// Elements of either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        let ([a, b, c], [x, y, z]) = (self.words, other.words);
        Self { words: [a | x, b | y, c | z] }
    }

    /// Elements of both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        let ([a, b, c], [x, y, z]) = (self.words, other.words);
        Self { words: [a & x, b & y, c & z] }
    }

    /// Elements that `other` does not contain.
    #[must_use]
    pub const fn difference(self, other: Self) -> Self {
        let ([a, b, c], [x, y, z]) = (self.words, other.words);
        Self { words: [a & !x, b & !y, c & !z] }
    }

    /// Whether the sets have an element in common.
    pub const fn intersects(self, other: Self) -> bool {
        !self.intersection(other).is_empty()
    }

    /// The set with these words, as [`words`](Self::words) returns them.
    pub const fn from_words(words: [u32; WORDS]) -> Self {
        Self { words }
    }

    /// The words, the least significant first.
    pub const fn words(self) -> [u32; WORDS] {
        self.words
    }

    /// The numbers of the elements in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        let [a, b, c] = self.words.map(u128::from);
        let mut left = a | b << 32 | c << 64;
        std::iter::from_fn(move || {
            let lowest = (left != 0).then(|| left.trailing_zeros())?;
            left &= left - 1;
            Some(lowest)
        })
    }

    /// Decodes a bitmap; `true` if it also has an element above those that a [`Bitmap`] can contain.
    ///
    /// # Errors
    /// More than [`MAX_BITMAP_WORDS`] words, or a truncated message.
    pub fn decode_any(d: &mut Decoder<'_>) -> Result<(Self, bool), XdrError> {
        let count = d.count(MAX_BITMAP_WORDS, 4)?;
        let mut set = Self::EMPTY;
        let mut higher = false;
        for i in 0..count {
            let word = d.u32()?;
            match set.words.get_mut(i) {
                Some(w) => *w = word,
                None => higher |= word != 0,
            }
        }
        Ok((set, higher))
    }
}

impl From<[u32; WORDS]> for Bitmap {
    /// Converts from the words of a `bitmap4`; the first word has attributes 0 to 31.
    fn from(words: [u32; WORDS]) -> Self {
        Self::from_words(words)
    }
}

/// The names of the attributes, and the numbers of unknown ones.
impl fmt::Debug for Bitmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut set = f.debug_set();
        for n in self.iter() {
            match Attribute::try_from(n) {
                Ok(a) => set.entry(&format_args!("{a}")),
                Err(n) => set.entry(&n),
            };
        }
        set.finish()
    }
}

/// Omits trailing zero words.
impl Encode for Bitmap {
    fn encode(&self, e: &mut Encoder) {
        match self.words {
            [0, 0, 0] => e.put_u32(0),
            [a, 0, 0] => e.put_words([1, a]),
            [a, b, 0] => e.put_words([2, a, b]),
            [a, b, c] => e.put_words([3, a, b, c]),
        }
    }
}

/// Ignores elements that a [`Bitmap`] cannot contain; [`Bitmap::decode_any`] reports them.
impl<'a> Decode<'a> for Bitmap {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Self::decode_any(d).map(|(set, _)| set)
    }
}
