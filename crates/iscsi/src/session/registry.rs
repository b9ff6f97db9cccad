//! The sessions of a target server.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::{name::IscsiName, pdu::Isid};

/// Limits of a [`Registry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegistryLimits {
    /// Maximum number of sessions. 65535 admits one less, so that a number is free.
    pub sessions: u16,
    /// Maximum number of sessions of an initiator name.
    pub sessions_per_initiator: u16,
    /// Maximum number of connections in the login phase.
    pub logins: u32,
}

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
    /// Too many sessions, or too many of the initiator.
    #[error(
        "the initiator opens a session, but {0} sessions are open; close unused sessions or raise the limit"
    )]
    Sessions(u16),
}

impl Refusal {
    /// Status-Class and Status-Detail of the Login Response (RFC 7143 section 11.13.5).
    pub const fn status(self) -> (u8, u8) {
        match self {
            Self::NoSession(_) => (0x02, 0x0a),
            Self::Connection(_) => (0x02, 0x06),
            Self::Sessions(_) => (0x03, 0x02),
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

/// A connection in the login phase. Dropping it ends the phase.
#[derive(Debug)]
pub struct LoginPermit(Arc<AtomicU32>);

impl Drop for LoginPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Entry<S> {
    nexus: Nexus,
    session: S,
}

/// The sessions of a target server, by nexus and TSIH. `S` is what the owner needs to reach a session.
#[derive(Debug)]
pub struct Registry<S> {
    limits: RegistryLimits,
    sessions: HashMap<u16, Entry<S>>,
    nexuses: HashMap<Nexus, u16>,
    logins: Arc<AtomicU32>,
    last: u16,
}

impl<S> Registry<S> {
    /// A registry without sessions.
    pub fn new(limits: RegistryLimits) -> Self {
        let (sessions, nexuses) = (HashMap::new(), HashMap::new());
        Self { limits, sessions, nexuses, logins: Arc::default(), last: 0 }
    }

    /// A new connection begins its login phase. `None` if too many are in it: the owner closes the connection.
    pub fn start_login(&self) -> Option<LoginPermit> {
        let below = |n: u32| (n < self.limits.logins).then_some(n + 1);
        self.logins.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below).ok()?;
        Some(LoginPermit(Arc::clone(&self.logins)))
    }

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
        let sessions = self.limits.sessions.min(u16::MAX - 1);
        if self.sessions.len() >= usize::from(sessions) {
            return Err(Refusal::Sessions(sessions));
        }
        let same = self.nexuses.keys().filter(|n| n.initiator == nexus.initiator).count();
        if same >= usize::from(self.limits.sessions_per_initiator) {
            return Err(Refusal::Sessions(self.limits.sessions_per_initiator));
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
        // At most 65534 of the 65535 numbers are in use.
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

    const LIMITS: RegistryLimits = RegistryLimits { sessions: 4, sessions_per_initiator: 2, logins: 2 };

    fn nexus(initiator: &str, isid: u8, target: Option<&str>) -> Nexus {
        let name = |name: &str| format!("iqn.2026-01.example:{name}").parse().unwrap();
        Nexus { initiator: name(initiator), isid: Isid([0x80, 0, 0, 0, 0, isid]), target: target.map(name) }
    }

    #[test]
    fn the_same_isid_reinstates_the_session_of_the_same_target() {
        let mut r = Registry::new(LIMITS);
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
        let mut r = Registry::new(LIMITS);
        let tsih = r.insert(nexus("a", 1, Some("t")), ()).unwrap();
        assert_eq!(r.admit(&nexus("a", 1, Some("t")), tsih).unwrap_err().status(), (2, 6));
        assert_eq!(r.admit(&nexus("b", 1, Some("t")), tsih).unwrap_err().status(), (2, 0x0a));
        assert_eq!(r.admit(&nexus("a", 1, Some("t")), 9), Err(Refusal::NoSession(9)));
    }

    #[test]
    fn sessions_are_limited_in_total_and_by_initiator() {
        let mut r = Registry::new(LIMITS);
        r.insert(nexus("a", 1, None), ()).unwrap();
        r.insert(nexus("a", 2, None), ()).unwrap();
        assert_eq!(r.insert(nexus("a", 3, None), ()), Err(Refusal::Sessions(2)));
        r.insert(nexus("b", 1, None), ()).unwrap();
        r.insert(nexus("c", 1, None), ()).unwrap();
        assert_eq!(r.insert(nexus("d", 1, None), ()), Err(Refusal::Sessions(4)));
        assert_eq!(Refusal::Sessions(4).status(), (3, 2));
        assert_eq!(r.iter().count(), 4);
    }

    #[test]
    fn a_tsih_is_not_zero_and_not_in_use() {
        let mut r = Registry::new(LIMITS);
        r.insert(nexus("a", 1, None), ()).unwrap();
        r.last = u16::MAX - 1;
        assert_eq!(r.insert(nexus("a", 2, None), ()), Ok(u16::MAX));
        assert_eq!(r.insert(nexus("b", 1, None), ()), Ok(2), "0 is reserved, and 1 is in use");
    }

    #[test]
    fn ten_thousand_half_open_logins_are_limited() {
        let r: Registry<()> = Registry::new(LIMITS);
        let permits: Vec<_> = (0..10_000).filter_map(|_| r.start_login()).collect();
        assert_eq!(permits.len(), 2);
        drop(permits);
        assert!(r.start_login().is_some());
    }
}
