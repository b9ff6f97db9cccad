//! The login phase of a connection.

use std::{future::poll_fn, sync::Arc};

use millrace_iscsi::{
    login::{
        Admission, Authority, Established, Identity, Progress, Refusal, Status, TargetConfig as LoginConfig,
        TargetLogin,
    },
    pdu::{Bhs, Part},
    session,
};

use super::{Link, TcpTarget, end::End, input::Broken, output::Segment};
use crate::{
    config::TargetConfig,
    stats::count,
    table::{Session, TargetTable},
};

/// Tag of the only portal group.
pub(super) const PORTAL_GROUP: u16 = 1;
/// The first status number of a connection.
const FIRST_STAT_SN: u32 = 1;

/// The result of a login.
pub(super) struct LoggedIn {
    pub(super) established: Established,
    pub(super) session: Session,
    /// `None` in a discovery session.
    pub(super) target: Option<TargetConfig>,
}

/// Decides on a login with the table of targets.
struct Gate<'a> {
    table: &'a Arc<TargetTable>,
    target: Option<TargetConfig>,
    session: Option<Session>,
}

impl Authority for Gate<'_> {
    fn admit(&mut self, identity: &Identity) -> Result<Admission, Refusal> {
        let Some(name) = &identity.target else { return Ok(Admission { chap: None }) };
        let target = self.table.target(name).ok_or(Refusal::Status(Status::NOT_FOUND))?;
        if !target.permits(&identity.initiator) {
            return Err(Refusal::Status(Status::FORBIDDEN));
        }
        let chap = target.chap.clone();
        self.target = Some(target);
        Ok(Admission { chap })
    }

    fn establish(&mut self, identity: &Identity) -> Result<u16, Status> {
        let Identity { initiator, target, isid, .. } = identity.clone();
        let nexus = session::Nexus { initiator, isid, target };
        let session = self.table.register(nexus).map_err(|refusal| {
            let (class, detail) = refusal.status();
            Status { class, detail }
        })?;
        // A session that is registered learns of later changes of the table.
        if let Some(target) = &self.target {
            let present = self.table.target(&target.name);
            if !present.is_some_and(|present| Arc::ptr_eq(&present.device, &target.device)) {
                return Err(Status::REMOVED);
            }
        }
        let tsih = session.tsih;
        self.session = Some(session);
        Ok(tsih)
    }
}

impl TcpTarget {
    /// Performs the login. When a session is reinstated, the last response waits for the end of the old one.
    pub(super) async fn log_in(&self, link: &mut Link) -> Result<LoggedIn, End> {
        let Some(_permit) = self.table.start_login() else {
            return Err(End::Refused("too many connections are in the login phase".into()));
        };
        let mut random = [0; 33];
        self.rt.fill_random(&mut random);
        let mut login = TargetLogin::new(LoginConfig {
            settings: self.limits.settings.clone(),
            portal_group: PORTAL_GROUP,
            window: self.limits.first_window(),
            stat_sn: FIRST_STAT_SN,
            random,
        });
        let mut gate = Gate { table: &self.table, target: None, session: None };
        loop {
            let (bhs, data) = receive(link).await?;
            let reply = login.receive(&bhs, &data, &mut gate);
            if let Some(session) = &mut gate.session
                && let Some(predecessor) = session.predecessor.take()
            {
                // The sender is dropped, never used.
                let _ended = predecessor.await;
            }
            if let Some(pdu) = reply.pdu {
                link.output.push(&pdu.bhs, Segment::Bytes(pdu.data), 0);
                link.flush().await.map_err(Broken::from)?;
            }
            match reply.progress {
                Progress::Continue => {}
                Progress::Failed(e) => return Err(End::Refused(e.to_string())),
                Progress::Established(established) => {
                    let Some(session) = gate.session.take() else {
                        return Err(End::Refused("the session is not registered".into()));
                    };
                    let discovery = established.target.is_none();
                    count(if discovery { &self.stats.discoveries } else { &self.stats.logins });
                    let parameters = &established.parameters;
                    let (header, data) = (parameters.header_digest, parameters.data_digest);
                    link.input.reader.set(parameters.max_receive_data, header, data);
                    (link.output.header_digest, link.output.data_digest) = (header, data);
                    return Ok(LoggedIn { established: *established, session, target: gate.target });
                }
            }
        }
    }
}

/// Receives a PDU of the login phase.
async fn receive(link: &mut Link) -> Result<(Bhs, Vec<u8>), Broken> {
    let mut data = Vec::new();
    loop {
        let (part, missing) = link.input.reader.next();
        match part {
            Part::End => break,
            Part::Data => {
                // At most MAX_LOGIN_DATA bytes.
                let at = data.len();
                data.resize(at + missing, 0);
                let to = &mut data[at..];
                let n = poll_fn(|cx| link.input.poll_part(cx, &mut *link.stream, &mut [to])).await?;
                data.truncate(at + n);
            }
            _ => {
                poll_fn(|cx| link.input.poll_part(cx, &mut *link.stream, &mut [])).await?;
            }
        }
    }
    let bhs = link.input.reader.header().copied().unwrap_or([0; 48]);
    link.input.reader.finish();
    Ok((bhs, data))
}
