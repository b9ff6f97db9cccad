//! Share reservations (RFC 8881, 9.7).

use millrace_nfs::v4::Status;

/// Access or denial of reading: OPEN4_SHARE_ACCESS_READ, OPEN4_SHARE_DENY_READ.
pub(crate) const READ: u8 = 1;
/// Access or denial of writing: OPEN4_SHARE_ACCESS_WRITE, OPEN4_SHARE_DENY_WRITE.
pub(crate) const WRITE: u8 = 2;

/// Access to a file, and access that is denied to others. Either is a set of [`READ`] and [`WRITE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Share {
    pub(crate) access: u8,
    pub(crate) deny: u8,
}

impl Share {
    /// The arguments `share_access`, without the bits for delegations, and `share_deny`.
    pub(crate) fn new(access: u32, deny: u32) -> Result<Self, Status> {
        match (u8::try_from(access), u8::try_from(deny)) {
            (Ok(access @ 1..=3), Ok(deny @ 0..=3)) => Ok(Self { access, deny }),
            _ => Err(Status::Inval),
        }
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self { access: self.access | other.access, deny: self.deny | other.deny }
    }

    /// Whether two opens exclude each other.
    pub(crate) fn conflicts(self, other: Self) -> bool {
        self.access & other.deny != 0 || self.deny & other.access != 0
    }

    fn is_part_of(self, other: Self) -> bool {
        self.access & !other.access == 0 && self.deny & !other.deny == 0
    }

    /// All values.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..16).map(|bits| Self { access: bits & 3, deny: bits >> 2 })
    }

    fn bit(self) -> u16 {
        1 << (self.access | self.deny << 2)
    }
}

/// The share reservations of the OPENs of an open owner for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Shares {
    /// One bit for each value of [`Share`].
    opened: u16,
}

impl Shares {
    pub(crate) fn add(&mut self, share: Share) {
        self.opened |= share.bit();
    }

    fn opened(self) -> impl Iterator<Item = Share> {
        Share::all().filter(move |share| self.opened & share.bit() != 0)
    }

    /// The union of access and of denial of all OPENs.
    pub(crate) fn union(self) -> Share {
        self.opened().fold(Share::default(), Share::union)
    }

    /// The OPENs that remain after OPEN_DOWNGRADE to `share`; `None` unless it is the union of some of the
    /// OPENs (RFC 8881, 18.18.3).
    pub(crate) fn downgraded(self, share: Share) -> Option<Self> {
        let mut rest = Self::default();
        self.opened().filter(|opened| opened.is_part_of(share)).for_each(|opened| rest.add(opened));
        (rest.union() == share).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_defined_values_are_accepted() {
        for access in 0..6 {
            for deny in 0..6 {
                let valid = (1..=3).contains(&access) && deny <= 3;
                assert_eq!(Share::new(access, deny).is_ok(), valid, "{access} {deny}");
            }
        }
        assert_eq!(Share::new(0x101, 0), Err(Status::Inval));
        assert_eq!(Share::new(1, 0x100), Err(Status::Inval));
    }

    #[test]
    fn a_downgrade_leaves_the_union_of_some_opens() {
        let share = |access, deny| Share { access, deny };
        let mut shares = Shares::default();
        shares.add(share(READ, 0));
        shares.add(share(WRITE, WRITE));
        assert_eq!(shares.union(), share(3, WRITE));
        assert_eq!(shares.downgraded(share(3, WRITE)), Some(shares));
        assert_eq!(shares.downgraded(share(READ, 0)).unwrap().union(), share(READ, 0));
        assert_eq!(shares.downgraded(share(WRITE, WRITE)).unwrap().union(), share(WRITE, WRITE));
        for other in [share(3, 0), share(READ, WRITE), share(WRITE, 0), share(3, 3), share(0, 0)] {
            let expected = (other == share(0, 0)).then(Shares::default);
            assert_eq!(shares.downgraded(other), expected, "{other:?}");
        }
    }
}
