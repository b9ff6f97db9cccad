//! The sessions of a target server.

use std::collections::HashMap;

use crate::{name::IscsiName, pdu::Isid};

/// Maximum number of sessions of a [`Registry`]: all TSIHs except 0, and one that remains free.
const MAX_SESSIONS: usize = u16::MAX as usize - 1;

/// The identity of a session (RFC 7143 section 4.4.3.1, an I_T nexus).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Nexus {
    /// Name of the initiator.
    pub initiator: IscsiName,
    /// The initiator's part of the session identifier.
    pub isid: Isid,
    /// Name of the target; `None` for a discovery session.
    pub target: Option<IscsiName>,
}

/// Why a login is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The login names a session that does not exist.
    #[error("the initiator logs in to session {0:#06x}, which does not exist")]
    NoSession(u16),
    /// The login adds a connection to a session that has its only one.
    #[error("the initiator adds a connection to session {0:#06x}; sessions have one connection")]
    Connection(u16),
    /// Too many sessions, or too many of the initiator's address.
    #[error("the initiator opens a session, but too many are open; close unused sessions")]
    Sessions,
}

impl Refusal {
    /// Status-Class and Status-Detail of the Login Response (RFC 7143 section 11.13.5).
    pub const fn status(self) -> (u8, u8) {
        match self {
            Self::NoSession(_) => (0x02, 0x0a),
            Self::Connection(_) => (0x02, 0x06),
            Self::Sessions => (0x03, 0x02),
        }
    }
}

/// The condition under which a session can be registered at its login.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission<'a, S> {
    /// No condition: [`Registry::insert`].
    New,
    /// The initiator reinstates this session: the owner closes it, with its connection and tasks, removes it, and then
    /// admits the login again.
    Reinstate {
        /// TSIH of the old session.
        tsih: u16,
        /// The old session.
        session: &'a S,
    },
}

#[derive(Debug)]
struct Entry<S> {
    nexus: Nexus,
    session: S,
}

/// The sessions of a target server, by nexus and TSIH. `S` is what the owner needs to reach a session.
#[derive(Debug)]
pub struct Registry<S> {
    sessions: HashMap<u16, Entry<S>>,
    nexuses: HashMap<Nexus, u16>,
    last: u16,
}

impl<S> Default for Registry<S> {
    fn default() -> Self {
        Self { sessions: HashMap::new(), nexuses: HashMap::new(), last: 0 }
    }
}

impl<S> Registry<S> {
    /// Decides on an authenticated login with this TSIH, before its last response. The owner inserts the session
    /// without another login in between.
    ///
    /// # Errors
    ///
    /// The login is refused.
    pub fn admit(&self, nexus: &Nexus, tsih: u16) -> Result<Admission<'_, S>, Refusal> {
        let existing = self.nexuses.get(nexus).copied();
        if tsih != 0 {
            return Err(if existing == Some(tsih) {
                Refusal::Connection(tsih)
            } else {
                Refusal::NoSession(tsih)
            });
        }
        if let Some((tsih, entry)) = existing.and_then(|tsih| Some((tsih, self.sessions.get(&tsih)?))) {
            return Ok(Admission::Reinstate { tsih, session: &entry.session });
        }
        if self.sessions.len() >= MAX_SESSIONS {
            return Err(Refusal::Sessions);
        }
        Ok(Admission::New)
    }

    /// Registers a session whose login was admitted as new, and returns its TSIH, which is not 0.
    ///
    /// # Errors
    ///
    /// Those of [`Registry::admit`]; a session with the same nexus is [`Refusal::Connection`].
    pub fn insert(&mut self, nexus: Nexus, session: S) -> Result<u16, Refusal> {
        if let Admission::Reinstate { tsih, .. } = self.admit(&nexus, 0)? {
            return Err(Refusal::Connection(tsih));
        }
        // One number at least is free.
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.sessions.contains_key(&self.last) {
                break;
            }
        }
        self.nexuses.insert(nexus.clone(), self.last);
        self.sessions.insert(self.last, Entry { nexus, session });
        Ok(self.last)
    }

    /// Removes a session that has ended.
    pub fn remove(&mut self, tsih: u16) -> Option<S> {
        let entry = self.sessions.remove(&tsih)?;
        self.nexuses.remove(&entry.nexus);
        Some(entry.session)
    }

    /// The sessions with their TSIHs, in any order.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &Nexus, &S)> {
        self.sessions.iter().map(|(&tsih, entry)| (tsih, &entry.nexus, &entry.session))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nexus(initiator: &str, isid: u8, target: Option<&str>) -> Nexus {
        let name = |name: &str| format!("iqn.2026-01.example:{name}").parse().unwrap();
        Nexus { initiator: name(initiator), isid: Isid([0x80, 0, 0, 0, 0, isid]), target: target.map(name) }
    }

    #[test]
    fn the_same_isid_reinstates_the_session_of_the_same_target() {
        let mut r = Registry::default();
        let first = nexus("a", 1, Some("t"));
        assert_eq!(r.insert(first.clone(), "old"), Ok(1));
        assert_eq!(r.admit(&first, 0), Ok(Admission::Reinstate { tsih: 1, session: &"old" }));
        assert_eq!(r.insert(first.clone(), "new"), Err(Refusal::Connection(1)));
        for other in [nexus("a", 2, Some("t")), nexus("a", 1, Some("u")), nexus("a", 1, None)] {
            assert_eq!(r.admit(&other, 0), Ok(Admission::New));
        }
        assert_eq!(r.remove(1), Some("old"));
        assert_eq!(r.remove(1), None);
        assert_eq!(r.insert(first, "new"), Ok(2));
    }

    #[test]
    fn a_tsih_names_an_existing_session() {
        let mut r = Registry::default();
        let tsih = r.insert(nexus("a", 1, Some("t")), ()).unwrap();
        assert_eq!(r.admit(&nexus("a", 1, Some("t")), tsih).unwrap_err().status(), (2, 6));
        assert_eq!(r.admit(&nexus("b", 1, Some("t")), tsih).unwrap_err().status(), (2, 0x0a));
        assert_eq!(r.admit(&nexus("a", 1, Some("t")), 9), Err(Refusal::NoSession(9)));
    }

    #[test]
    fn sessions_are_limited_by_the_number_of_tsihs() {
        let mut r = Registry::default();
        let nth = |n: usize| {
            let [a, b] = (n as u16).to_be_bytes();
            Nexus { isid: Isid([0x80, 0, 0, 0, a, b]), ..nexus("a", 1, None) }
        };
        for n in 0..MAX_SESSIONS {
            r.insert(nth(n), ()).unwrap();
        }
        assert_eq!(r.insert(nth(MAX_SESSIONS), ()), Err(Refusal::Sessions));
        assert_eq!(Refusal::Sessions.status(), (3, 2));
        r.remove(7).unwrap();
        assert!(r.insert(nth(MAX_SESSIONS), ()).is_ok());
    }

    #[test]
    fn a_tsih_is_not_zero_and_not_in_use() {
        let mut r = Registry::default();
        r.insert(nexus("a", 1, None), ()).unwrap();
        r.last = u16::MAX - 1;
        assert_eq!(r.insert(nexus("a", 2, None), ()), Ok(u16::MAX));
        assert_eq!(r.insert(nexus("b", 1, None), ()), Ok(2), "0 is reserved, and 1 is in use");
    }
}
