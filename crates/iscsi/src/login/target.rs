//! The login of a target.

use super::{Established, Exchange, LoginError, LoginPdu, Status, is_security};
use crate::{
    chap::{Algorithm, Challenge, MIN_CHALLENGE, Mutual},
    name::{IscsiName, TargetAddress},
    negotiation::{Negotiation, Parameters, Settings, is_operational},
    pdu::{Bhs, Isid, LoginRequest, LoginResponse, Numbers, Request, Response, Stage, opcode},
    text,
};

/// The parameters of a target's login.
#[derive(Debug, Clone)]
pub struct TargetConfig {
    /// Settings.
    pub settings: Settings,
    /// Portal group tag of the portal.
    pub portal_group: u16,
    /// The first status number of the connection.
    pub stat_sn: u32,
    /// Random bytes for one CHAP challenge, never used twice.
    pub random: [u8; 33],
}

/// Who logs in, and to which target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Name of the initiator. Not authenticated before [`Authority::establish`].
    pub initiator: IscsiName,
    /// Name of the target; `None` for a discovery session.
    pub target: Option<IscsiName>,
    /// The initiator's part of the session identifier.
    pub isid: Isid,
    /// Connection identifier.
    pub cid: u16,
}

/// The conditions for an initiator that may log in.
#[derive(Debug, Clone)]
pub struct Admission {
    /// Credentials, if it has to authenticate.
    pub chap: Option<Mutual>,
}

/// A session that begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Identifier of the session (TSIH), not 0.
    pub tsih: u16,
    /// Number of commands that the target accepts at first, at least 1.
    pub window: u32,
}

/// Why an initiator may not log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// A status such as [`Status::NOT_FOUND`] or [`Status::FORBIDDEN`].
    Status(Status),
    /// The target is at another address.
    Redirect {
        /// The address.
        address: TargetAddress,
        /// Whether the target has moved permanently.
        permanent: bool,
    },
}

/// The decisions of the embedder about a login.
pub trait Authority {
    /// Decides whether the target exists and the initiator may log in. Called once per login, before the
    /// authentication.
    ///
    /// # Errors
    ///
    /// The initiator may not log in.
    fn admit(&mut self, identity: &Identity) -> Result<Admission, Refusal>;

    /// Creates a session with these parameters. An older session with the same initiator, target and ISID ends
    /// (RFC 7143 section 6.3.5). Called once, after the authentication.
    ///
    /// # Errors
    ///
    /// The status of the failure.
    fn establish(&mut self, identity: &Identity, parameters: &Parameters) -> Result<Grant, Status>;
}

/// The answer of a target to a PDU.
#[derive(Debug)]
pub struct TargetReply {
    /// The PDU to send; `None` if the connection ends without one.
    pub pdu: Option<LoginPdu>,
    /// The state of the login.
    pub progress: Progress,
}

/// The state of a login after a PDU.
#[derive(Debug)]
pub enum Progress {
    /// The login continues.
    Continue,
    /// The full feature phase begins after the PDU is sent.
    Established(Box<Established>),
    /// The login failed: the connection ends after the PDU is sent.
    Failed(LoginError),
}

/// The pairs of a text.
type Keys<'a> = Vec<(&'a str, &'a str)>;

/// The state of the authentication.
#[derive(Debug)]
enum Auth {
    /// The names have not been received yet.
    Unknown,
    /// The initiator has to select CHAP.
    Required(Mutual),
    /// The initiator has to offer algorithms.
    Selected(Mutual),
    /// The initiator has to respond.
    Challenged(Mutual, Challenge),
    /// No authentication is necessary, or it is complete.
    Done,
}

/// The login of a connection at a target.
#[derive(Debug)]
pub struct TargetLogin {
    config: TargetConfig,
    exchange: Exchange,
    /// The header fields of the first request; its stage is the current one.
    first: Option<LoginRequest>,
    identity: Option<Identity>,
    auth: Auth,
    negotiation: Option<Negotiation>,
    stat_sn: u32,
    /// Number of commands that the next response allows.
    window: u32,
}

impl TargetLogin {
    /// A login that waits for the first PDU.
    pub fn new(config: TargetConfig) -> Self {
        let stat_sn = config.stat_sn;
        let exchange = Exchange::default();
        Self {
            config,
            exchange,
            first: None,
            identity: None,
            auth: Auth::Unknown,
            negotiation: None,
            stat_sn,
            window: 1,
        }
    }

    /// Takes a PDU with its data segment. After [`Progress::Established`] and [`Progress::Failed`], the login
    /// takes no more PDUs.
    pub fn receive(&mut self, bhs: &Bhs, data: &[u8], authority: &mut dyn Authority) -> TargetReply {
        if bhs[0] & 0x3f != opcode::LOGIN_REQUEST {
            return TargetReply { pdu: None, progress: Progress::Failed(LoginError::NotLogin) };
        }
        match self.step(bhs, data, authority) {
            Ok(reply) => reply,
            Err((error, text)) => self.failure(bhs, error, text),
        }
    }

    fn step(
        &mut self,
        bhs: &Bhs,
        data: &[u8],
        authority: &mut dyn Authority,
    ) -> Result<TargetReply, (LoginError, Vec<u8>)> {
        let plain = |e: LoginError| (e, Vec::new());
        let request = self.header(bhs).map_err(plain)?;
        if let Some(text) = self.exchange.receive(data, request.continued).map_err(plain)? {
            self.text(&request, &text, authority)?;
        }
        let next = self.transit(&request).map_err(plain)?;
        let mut tsih = 0;
        let mut progress = Progress::Continue;
        if next == Some(Stage::FullFeature) {
            let established = self.establish(&request, authority).map_err(plain)?;
            tsih = established.tsih;
            progress = Progress::Established(Box::new(established));
        }
        let data = self.exchange.take();
        let continued = !self.exchange.outgoing.is_empty();
        let pdu = self.response(&request, next, continued, tsih, Status::SUCCESS, data);
        if let (Some(next), Some(first)) = (next, &mut self.first) {
            first.stage = next;
        }
        Ok(TargetReply { pdu: Some(pdu), progress })
    }

    /// Decodes a header and compares it with the first one.
    fn header(&mut self, bhs: &Bhs) -> Result<LoginRequest, LoginError> {
        let Request::Login(request) = Request::decode(bhs)? else { return Err(LoginError::NotLogin) };
        let Some(first) = self.first else {
            if request.version_min > 0 {
                return Err(LoginError::Status(Status::VERSION));
            }
            if request.tsih != 0 {
                return Err(LoginError::Status(Status::NO_SESSION)); // Sessions have one connection.
            }
            self.first = Some(request);
            return Ok(request);
        };
        let same = |r: &LoginRequest| (r.isid, r.tsih, r.itt, r.cid, r.numbers.cmd_sn);
        if same(&first) != same(&request) {
            return Err(LoginError::Field("header: ISID, TSIH, tag, CID or CmdSN differ from the first PDU"));
        }
        if first.stage != request.stage {
            return Err(LoginError::Field("stage"));
        }
        Ok(request)
    }

    /// Answers the keys of a complete text.
    fn text(
        &mut self,
        request: &LoginRequest,
        text: &[u8],
        authority: &mut dyn Authority,
    ) -> Result<(), (LoginError, Vec<u8>)> {
        let plain = |e: LoginError| (e, Vec::new());
        let mut keys = text::parse(text).map_err(|e| plain(e.into()))?;
        if self.identity.is_none() {
            self.identify(request, &mut keys, authority)?;
        }
        self.keys(request.stage, keys).map_err(plain)
    }

    fn keys(&mut self, stage: Stage, mut keys: Keys<'_>) -> Result<(), LoginError> {
        if stage == Stage::Security {
            self.authenticate(&mut keys)?;
        } else if !matches!(self.auth, Auth::Done) {
            return Err(LoginError::Authentication("the initiator skipped it"));
        } else if self.negotiation.is_none() {
            let discovery = self.identity.as_ref().is_some_and(|i| i.target.is_none());
            let mut negotiation = Negotiation::new(false, discovery, self.config.settings.clone());
            negotiation.open(&mut self.exchange.outgoing);
            self.negotiation = Some(negotiation);
        }
        for (key, value) in keys {
            match &mut self.negotiation {
                _ if key == "InitiatorAlias" => {}
                _ if is_security(key) || ["InitiatorName", "TargetName", "SessionType"].contains(&key) => {
                    return Err(LoginError::Key(key.to_owned()));
                }
                Some(negotiation) => negotiation.receive(key, value, &mut self.exchange.outgoing)?,
                None if is_operational(key) => return Err(LoginError::Key(key.to_owned())),
                None => text::push(&mut self.exchange.outgoing, key, "NotUnderstood"),
            }
        }
        Ok(())
    }

    /// Takes the names from the first text, and passes them to the authority, which admits or refuses the login.
    fn identify(
        &mut self,
        request: &LoginRequest,
        keys: &mut Keys<'_>,
        authority: &mut dyn Authority,
    ) -> Result<(), (LoginError, Vec<u8>)> {
        let identity = identity(request, keys).map_err(|e| (e, Vec::new()))?;
        let admission = authority.admit(&identity).map_err(|refusal| match refusal {
            Refusal::Status(status) => (LoginError::Status(status), Vec::new()),
            Refusal::Redirect { address, permanent } => {
                let mut text = Vec::new();
                text::push(&mut text, "TargetAddress", &address.to_string());
                let status = if permanent { Status::MOVED_PERMANENTLY } else { Status::MOVED_TEMPORARILY };
                (LoginError::Status(status), text)
            }
        })?;
        if identity.target.is_some() {
            let tag = self.config.portal_group.to_string();
            text::push(&mut self.exchange.outgoing, "TargetPortalGroupTag", &tag);
        }
        self.auth = admission.chap.map_or(Auth::Done, Auth::Required);
        self.identity = Some(identity);
        Ok(())
    }

    /// Takes the keys of the security stage.
    fn authenticate(&mut self, keys: &mut Keys<'_>) -> Result<(), LoginError> {
        let out = &mut self.exchange.outgoing;
        if let Some(methods) = take(keys, "AuthMethod") {
            let (method, auth) = match std::mem::replace(&mut self.auth, Auth::Unknown) {
                Auth::Required(mutual) => ("CHAP", Auth::Selected(mutual)),
                Auth::Done => ("None", Auth::Done),
                _ => return Err(LoginError::Key("AuthMethod".to_owned())),
            };
            if !text::list(methods).any(|m| m == method) {
                return Err(LoginError::Authentication("the initiator does not offer the required method"));
            }
            text::push(out, "AuthMethod", method);
            self.auth = auth;
        }
        match std::mem::replace(&mut self.auth, Auth::Unknown) {
            Auth::Selected(mutual) => {
                let Some(algorithms) = take(keys, "CHAP_A") else {
                    self.auth = Auth::Selected(mutual);
                    return Ok(());
                };
                let algorithm = text::list(algorithms)
                    .find_map(Algorithm::from_number)
                    .ok_or(LoginError::Authentication("the initiator offers no supported algorithm"))?;
                let challenge = Challenge::new(algorithm, &self.config.random);
                text::push(out, "CHAP_A", algorithm.number());
                text::push(out, "CHAP_I", &challenge.id.to_string());
                text::push(out, "CHAP_C", &text::binary_text(&challenge.bytes));
                self.auth = Auth::Challenged(mutual, challenge);
            }
            Auth::Challenged(mutual, challenge) => {
                verify(&mutual, &challenge, keys, out)?;
                self.auth = Auth::Done;
            }
            other => self.auth = other,
        }
        Ok(())
    }

    /// The stage that follows the response, if both sides are ready. Without, the login continues in its stage.
    fn transit(&mut self, request: &LoginRequest) -> Result<Option<Stage>, LoginError> {
        let Some(next) = request.next.filter(|_| self.exchange.fits()) else { return Ok(None) };
        if !matches!(self.auth, Auth::Done) || self.exchange.incoming.is_partial() {
            return Ok(None);
        }
        if next == Stage::FullFeature
            && let Some(negotiation) = &mut self.negotiation
            && negotiation.offer_missing(&mut self.exchange.outgoing)
        {
            return Ok(None);
        }
        Ok(Some(next))
    }

    fn establish(
        &mut self,
        request: &LoginRequest,
        authority: &mut dyn Authority,
    ) -> Result<Established, LoginError> {
        let identity = self.identity.clone().ok_or(LoginError::Missing("InitiatorName"))?;
        let parameters = match &self.negotiation {
            Some(negotiation) => negotiation.finish()?,
            None => {
                Negotiation::new(false, identity.target.is_none(), self.config.settings.clone()).finish()?
            }
        };
        let Grant { tsih, window } =
            authority.establish(&identity, &parameters).map_err(LoginError::Status)?;
        self.window = window;
        Ok(Established {
            portal_group: identity.target.as_ref().map(|_| self.config.portal_group),
            initiator: identity.initiator,
            target: identity.target,
            isid: identity.isid,
            tsih,
            cid: identity.cid,
            cmd_sn: request.numbers.cmd_sn,
            max_cmd_sn: self.max_cmd_sn(request.numbers.cmd_sn),
            stat_sn: self.stat_sn.wrapping_add(1),
            parameters,
        })
    }

    const fn max_cmd_sn(&self, cmd_sn: u32) -> u32 {
        cmd_sn.wrapping_add(self.window.saturating_sub(1))
    }

    fn response(
        &mut self,
        request: &LoginRequest,
        next: Option<Stage>,
        continued: bool,
        tsih: u16,
        status: Status,
        data: Vec<u8>,
    ) -> LoginPdu {
        let cmd_sn = request.numbers.cmd_sn;
        let stat_sn = self.stat_sn;
        self.stat_sn = stat_sn.wrapping_add(1);
        let response = LoginResponse {
            stage: request.stage,
            next,
            continued,
            version_max: 0,
            version_active: 0,
            isid: request.isid,
            tsih,
            itt: request.itt,
            numbers: Numbers { stat_sn, exp_cmd_sn: cmd_sn, max_cmd_sn: self.max_cmd_sn(cmd_sn) },
            status_class: status.class,
            status_detail: status.detail,
        };
        let bhs = Response::Login(response).encode(u32::try_from(data.len()).unwrap_or(0));
        LoginPdu { bhs, data }
    }

    /// The response that ends the login. The header of the request may be invalid: only its identifiers count.
    fn failure(&mut self, bhs: &Bhs, error: LoginError, text: Vec<u8>) -> TargetReply {
        let mut plain = *bhs;
        plain[1] = 0;
        let pdu = match Request::decode(&plain) {
            Ok(Request::Login(r)) => Some(self.response(&r, None, false, r.tsih, error.status(), text)),
            _ => None,
        };
        TargetReply { pdu, progress: Progress::Failed(error) }
    }
}

/// Removes a key.
fn take<'a>(keys: &mut Keys<'a>, key: &str) -> Option<&'a str> {
    keys.iter().position(|(k, _)| *k == key).map(|i| keys.remove(i).1)
}

/// Removes the keys with the names of the session.
fn identity(request: &LoginRequest, keys: &mut Keys<'_>) -> Result<Identity, LoginError> {
    let initiator = take(keys, "InitiatorName").ok_or(LoginError::Missing("InitiatorName"))?.parse()?;
    let target = take(keys, "TargetName");
    let target = match take(keys, "SessionType") {
        None | Some("Normal") => Some(target.ok_or(LoginError::Missing("TargetName"))?.parse()?),
        Some("Discovery") => None,
        Some(_) => return Err(LoginError::Status(Status::SESSION_TYPE)),
    };
    Ok(Identity { initiator, target, isid: request.isid, cid: request.cid })
}

/// Verifies the initiator's response to `challenge`, and responds to its own challenge, if any.
fn verify(
    mutual: &Mutual,
    challenge: &Challenge,
    keys: &mut Keys<'_>,
    out: &mut Vec<u8>,
) -> Result<(), LoginError> {
    let name = take(keys, "CHAP_N").ok_or(LoginError::Missing("CHAP_N"))?;
    let response = take(keys, "CHAP_R").ok_or(LoginError::Missing("CHAP_R"))?;
    let response = text::binary(response).ok_or(LoginError::Authentication("invalid CHAP_R"))?;
    if !challenge.verify(mutual.initiator(), name, &response) {
        return Err(LoginError::Authentication("wrong name or secret"));
    }
    let (Some(id), Some(bytes)) = (take(keys, "CHAP_I"), take(keys, "CHAP_C")) else { return Ok(()) };
    let own = mutual.target().ok_or(LoginError::Authentication("the target has no own secret"))?;
    let theirs = peer_challenge(challenge.algorithm, id, bytes)?;
    if theirs.bytes == challenge.bytes {
        return Err(LoginError::Authentication("the initiator sent the target's challenge back"));
    }
    text::push(out, "CHAP_N", &own.name);
    text::push(out, "CHAP_R", &text::binary_text(&theirs.response(&own.secret)));
    Ok(())
}

/// The challenge of a peer.
pub(super) fn peer_challenge(algorithm: Algorithm, id: &str, bytes: &str) -> Result<Challenge, LoginError> {
    let id = text::number(id).and_then(|id| u8::try_from(id).ok());
    let id = id.ok_or(LoginError::Authentication("invalid CHAP_I"))?;
    let bytes = text::binary(bytes).filter(|b| b.len() >= MIN_CHALLENGE);
    let bytes = bytes.ok_or(LoginError::Authentication("invalid or too short CHAP_C"))?;
    Ok(Challenge { algorithm, id, bytes })
}
