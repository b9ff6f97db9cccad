//! The login phase of a connection.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use millrace_admission::Account;
use millrace_iscsi::{
    login::{
        Admission, Authority, Established, Grant, Identity, LoginPdu, Progress, Refusal, Status,
        TargetConfig as LoginConfig, TargetLogin,
    },
    negotiation::Parameters,
    pdu::Bhs,
    session,
};
use millrace_runtime::{RuntimeExt, Sleep};
use millrace_tls::TransportSecurity;

use crate::{
    config::{ConnectionLimits, TargetConfig},
    end::End,
    reserve::{self, Receives},
    service::Service,
    stats::count,
    table::{Control, Login, Order, Session, TargetTable},
};

/// Tag of the only portal group.
pub(crate) const PORTAL_GROUP: u16 = 1;
/// The command window of a discovery session, which has no tasks.
const DISCOVERY_WINDOW: u32 = 1;
/// The first status number of a connection.
const FIRST_STAT_SN: u32 = 1;

/// The result of a login.
pub(crate) struct LoggedIn {
    pub(crate) established: Established,
    pub(crate) session: Session,
    /// `None` in a discovery session.
    pub(crate) target: Option<TargetConfig>,
    /// A discovery session counts as a login, and ends within its time limit.
    pub(crate) discovery: Option<(Login, Sleep)>,
}

/// Decides on a login with the table of targets.
struct Gate<'a> {
    table: &'a Arc<TargetTable>,
    control: &'a Arc<Control>,
    limits: &'a ConnectionLimits,
    security: TransportSecurity,
    receives: Receives,
    account: &'a mut Account,
    /// Bytes that the account was charged for the session when the login began.
    held: usize,
    target: Option<TargetConfig>,
    session: Option<Session>,
}

impl Authority for Gate<'_> {
    fn admit(&mut self, identity: &Identity) -> Result<Admission, Refusal> {
        let Some(name) = &identity.target else { return Ok(Admission { chap: None }) };
        let target = self.table.target(name).ok_or(Refusal::Status(Status::NOT_FOUND))?;
        if self.security < target.xprtsec {
            tracing::warn!(initiator = %identity.initiator, target = %name, "the target wants TLS (xprtsec={})", target.xprtsec);
            return Err(Refusal::Status(Status::FORBIDDEN));
        }
        if !target.permits(&identity.initiator, self.security) {
            return Err(Refusal::Status(Status::FORBIDDEN));
        }
        let chap = target.chap.clone();
        self.target = Some(target);
        Ok(Admission { chap })
    }

    fn establish(&mut self, identity: &Identity, parameters: &Parameters) -> Result<Grant, Status> {
        self.account.take_receives_unconditionally(self.receives.fixed);
        let window = match identity.target {
            Some(_) => reserve::window(self.limits, self.receives, parameters, self.account, self.held)?,
            None => {
                self.account.give_receives(self.held);
                DISCOVERY_WINDOW
            }
        };
        let Identity { initiator, target, isid, .. } = identity.clone();
        let nexus = session::Nexus { initiator, isid, target };
        let session = self.table.register(nexus, self.control).map_err(|refusal| {
            let (class, detail) = refusal.status();
            Status { class, detail }
        })?;
        // A registered session is notified of later changes of the table.
        if let Some(target) = &self.target {
            let present = self.table.target(&target.name);
            let Some(present) = present.filter(|present| Arc::ptr_eq(&present.device, &target.device)) else {
                return Err(Status::REMOVED);
            };
            if self.security < present.xprtsec {
                return Err(Status::FORBIDDEN);
            }
        }
        let tsih = session.tsih;
        self.session = Some(session);
        Ok(Grant { tsih, window })
    }
}

/// The PDUs of a connection in the login phase.
pub(crate) trait LoginTransport: Send {
    /// The receives that the transport posts before the response that completes a login.
    fn receives(&self) -> Receives;

    /// Receives a PDU with its data segment. `None` for a Hello of iSER, which is answered.
    fn receive(&mut self) -> impl Future<Output = Result<Option<(Bhs, Vec<u8>)>, End>> + Send;

    /// Sends a PDU. If it completes a login, the next PDUs are those of the full feature phase.
    fn send(
        &mut self,
        pdu: LoginPdu,
        established: Option<&Established>,
    ) -> impl Future<Output = Result<(), End>> + Send;

    /// Charges the arena memory of PDUs that are being sent, and releases that of sent ones.
    fn settle(&mut self, account: &mut Account);
}

impl Service {
    /// Performs the login. When a session is reinstated, the last response waits for the end of the old one.
    pub(crate) async fn log_in(
        &self,
        transport: &mut impl LoginTransport,
        account: &mut Account,
    ) -> Result<LoggedIn, End> {
        let security = self.security();
        let Some(permit) = self.table.start_login(account.client(), security, account.touch()) else {
            return Err(End::Refused("too many connections are in the login phase".into()));
        };
        let control = &Arc::clone(&permit.control);
        let mut limit = self.rt.sleep(self.limits.login_timeout);
        let receives = transport.receives();
        let (settings, held) = reserve::settings(&self.limits, receives, account);
        let mut random = [0; 33];
        self.rt.fill_random(&mut random);
        let mut login = TargetLogin::new(LoginConfig {
            settings,
            portal_group: PORTAL_GROUP,
            stat_sn: FIRST_STAT_SN,
            random,
        });
        let (table, limits) = (&self.table, &self.limits);
        let (target, session) = (None, None);
        let mut gate = Gate { table, control, limits, security, receives, account, held, target, session };
        loop {
            let received = self.unless_ended(control, gate.account, &mut limit, transport.receive()).await?;
            transport.settle(gate.account);
            let Some((bhs, data)) = received else { continue };
            let reply = login.receive(&bhs, &data, &mut gate);
            if let Some(session) = &mut gate.session
                && let Some(predecessor) = session.predecessor.take()
            {
                // The sender is dropped, never used. There is no time limit: if this session ended before, the next one
                // would not wait for the commands of the old one.
                let _ended = predecessor.await;
            }
            let established = match &reply.progress {
                Progress::Established(established) => Some(&**established),
                Progress::Continue | Progress::Failed(_) => None,
            };
            if let Some(pdu) = reply.pdu {
                let sent = transport.send(pdu, established);
                self.unless_ended(control, gate.account, &mut limit, sent).await?;
                transport.settle(gate.account);
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
                    let discovery = discovery.then_some((permit, limit));
                    return Ok(LoggedIn {
                        established: *established,
                        session,
                        target: gate.target,
                        discovery,
                    });
                }
            }
        }
    }

    /// Completes `step` of a login, unless the time limit passes, the connection is ordered to end, its account is evicted, or
    /// its client is not trusted any more.
    async fn unless_ended<T>(
        &self,
        control: &Control,
        account: &Account,
        limit: &mut Sleep,
        step: impl Future<Output = Result<T, End>>,
    ) -> Result<T, End> {
        let mut step = pin!(step);
        poll_fn(|cx| {
            if control.order(cx) == Order::End || account.poll_evicted(cx).is_ready() {
                return Poll::Ready(Err(End::Closed));
            }
            if let Poll::Ready(end) = self.poll_untrusted(cx) {
                return Poll::Ready(Err(end));
            }
            if limit.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(End::Stalled));
            }
            step.as_mut().poll(cx)
        })
        .await
    }
}
