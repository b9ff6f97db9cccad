//! The login of an initiator.

use super::{Established, Exchange, LoginError, LoginPdu, Status, is_security, target::peer_challenge};
use crate::{
    chap::{Algorithm, Challenge, Mutual},
    name::{AddressError, IscsiName, TargetAddress},
    negotiation::{Negotiation, Settings, is_operational},
    pdu::{Bhs, Isid, LoginRequest, LoginResponse, Request, RequestNumbers, Response, Stage},
    text,
};

/// Maximum number of redirections that an initiator follows in one attempt to connect.
pub const MAX_REDIRECTS: u32 = 4;

/// The parameters of an initiator's login.
#[derive(Debug, Clone)]
pub struct InitiatorConfig {
    /// Name of the initiator.
    pub initiator: IscsiName,
    /// Name of the target; `None` for a discovery session.
    pub target: Option<IscsiName>,
    /// The initiator's part of the session identifier. A login with the same ISID ends an older session with
    /// this target.
    pub isid: Isid,
    /// Connection identifier.
    pub cid: u16,
    /// The first command number of the session.
    pub cmd_sn: u32,
    /// Settings.
    pub settings: Settings,
    /// Credentials. With those of the target, the target has to authenticate; without, it may skip CHAP.
    pub chap: Option<Mutual>,
    /// Random bytes for one CHAP challenge, never used twice.
    pub random: [u8; 33],
    /// Number of redirections that led to this login.
    pub redirects: u32,
}

/// The next step of an initiator after a PDU.
#[derive(Debug)]
pub enum InitiatorStep {
    /// Send this PDU.
    Send(LoginPdu),
    /// The full feature phase has begun.
    Established(Box<Established>),
    /// It connects to another address, and logs in there with one redirection more.
    Redirect {
        /// The address.
        address: TargetAddress,
        /// Whether the target has moved permanently.
        permanent: bool,
    },
}

/// The state of the authentication.
#[derive(Debug)]
enum Auth {
    /// The target has to select a method.
    Offered,
    /// The target has to select an algorithm.
    Selected,
    /// The target has to respond.
    Challenged(Challenge),
    /// Complete, or not necessary.
    Done,
}

/// The login of a connection at an initiator.
#[derive(Debug)]
pub struct InitiatorLogin {
    config: InitiatorConfig,
    exchange: Exchange,
    stage: Stage,
    /// The next stage of the last request.
    requested: Option<Stage>,
    auth: Auth,
    negotiation: Negotiation,
    portal_group: Option<u16>,
    exp_stat_sn: u32,
}

impl InitiatorLogin {
    /// A login, and its first PDU.
    pub fn new(config: InitiatorConfig) -> (Self, LoginPdu) {
        let mut exchange = Exchange::default();
        let out = &mut exchange.outgoing;
        text::push(out, "InitiatorName", config.initiator.as_str());
        match &config.target {
            Some(target) => {
                text::push(out, "TargetName", target.as_str());
                // The default, which Linux's target requires.
                text::push(out, "SessionType", "Normal");
            }
            None => text::push(out, "SessionType", "Discovery"),
        }
        let (methods, auth) = match &config.chap {
            Some(mutual) if mutual.target().is_some() => ("CHAP", Auth::Offered),
            Some(_) => ("CHAP,None", Auth::Offered),
            None => ("None", Auth::Done),
        };
        text::push(out, "AuthMethod", methods);
        let mut login = Self {
            exchange,
            stage: Stage::Security,
            requested: None,
            auth,
            negotiation: Negotiation::new(true, config.target.is_none(), config.settings.clone()),
            portal_group: None,
            exp_stat_sn: 0,
            config,
        };
        let first = login.request();
        (login, first)
    }

    /// Takes a PDU with its data segment. After an error, the connection ends.
    ///
    /// # Errors
    ///
    /// The target refuses the login, or violates the protocol.
    pub fn receive(&mut self, bhs: &Bhs, data: &[u8]) -> Result<InitiatorStep, LoginError> {
        let Response::Login(response) = Response::decode(bhs)? else { return Err(LoginError::NotLogin) };
        // Errors of tgt have no ISID.
        let error = response.status_class > 1;
        if response.itt != 0 || response.isid != self.config.isid && !error {
            return Err(LoginError::Field("tag or ISID"));
        }
        if response.status_class != 0 {
            return self.refused(&response, data);
        }
        if response.version_active != 0 {
            return Err(LoginError::Field("version"));
        }
        if response.stage != self.stage {
            return Err(LoginError::Field("stage"));
        }
        if response.next.is_some() && response.next != self.requested {
            return Err(LoginError::Field("next stage"));
        }
        self.exp_stat_sn = response.numbers.stat_sn.wrapping_add(1);
        if let Some(text) = self.exchange.receive(data, response.continued)? {
            self.keys(&text)?;
        }
        match response.next {
            Some(_) if !self.exchange.outgoing.is_empty() => Err(LoginError::Field("stage before all keys")),
            Some(_) if !matches!(self.auth, Auth::Done) => {
                Err(LoginError::Authentication("the target skipped it"))
            }
            Some(Stage::FullFeature) => {
                Ok(InitiatorStep::Established(Box::new(self.established(&response)?)))
            }
            Some(next) => {
                self.stage = next;
                self.negotiation.open(&mut self.exchange.outgoing);
                Ok(InitiatorStep::Send(self.request()))
            }
            None => Ok(InitiatorStep::Send(self.request())),
        }
    }

    fn refused(&self, response: &LoginResponse, data: &[u8]) -> Result<InitiatorStep, LoginError> {
        let status = Status { class: response.status_class, detail: response.status_detail };
        if status != Status::MOVED_TEMPORARILY && status != Status::MOVED_PERMANENTLY {
            return Err(LoginError::Status(status));
        }
        if self.config.redirects >= MAX_REDIRECTS {
            return Err(LoginError::Redirects);
        }
        let keys = text::parse(data)?;
        let address = keys.iter().find(|(key, _)| *key == "TargetAddress").ok_or(AddressError)?.1.parse()?;
        Ok(InitiatorStep::Redirect { address, permanent: status == Status::MOVED_PERMANENTLY })
    }

    fn keys(&mut self, text: &[u8]) -> Result<(), LoginError> {
        let keys = text::parse(text)?;
        if self.stage == Stage::Security {
            self.authenticate(&keys)?;
        }
        for (key, value) in keys {
            match key {
                "TargetPortalGroupTag" => {
                    let tag = text::number(value).and_then(|n| u16::try_from(n).ok());
                    self.portal_group = Some(tag.ok_or_else(|| LoginError::Key(key.to_owned()))?);
                }
                "TargetAlias" | "TargetAddress" => {}
                _ if self.stage == Stage::Operational && !is_security(key) => {
                    self.negotiation.receive(key, value, &mut self.exchange.outgoing)?;
                }
                _ if self.stage == Stage::Operational || is_operational(key) => {
                    return Err(LoginError::Key(key.to_owned()));
                }
                _ if is_security(key) => {}
                _ => text::push(&mut self.exchange.outgoing, key, "NotUnderstood"),
            }
        }
        Ok(())
    }

    /// Takes the keys of the security stage.
    fn authenticate(&mut self, keys: &[(&str, &str)]) -> Result<(), LoginError> {
        let get = |key: &'static str| keys.iter().find(|(k, _)| *k == key).map(|(_, value)| *value);
        let need = |key: &'static str| get(key).ok_or(LoginError::Missing(key));
        let Some(mutual) = &self.config.chap else {
            return match get("AuthMethod") {
                None | Some("None") => Ok(()),
                Some(_) => {
                    Err(LoginError::Authentication("the target requires it, but there are no credentials"))
                }
            };
        };
        let out = &mut self.exchange.outgoing;
        match &self.auth {
            Auth::Offered if keys.is_empty() => {}
            Auth::Offered => match need("AuthMethod")? {
                "CHAP" => {
                    let offer: Vec<_> = mutual.algorithms().map(Algorithm::number).collect();
                    text::push(out, "CHAP_A", &offer.join(","));
                    self.auth = Auth::Selected;
                }
                "None" if mutual.target().is_none() => self.auth = Auth::Done,
                _ => return Err(LoginError::Authentication("the target refuses CHAP")),
            },
            Auth::Selected => {
                let algorithm = Algorithm::from_number(need("CHAP_A")?)
                    .filter(|selected| mutual.algorithms().any(|a| a == *selected))
                    .ok_or(LoginError::Authentication("the target selects an unknown algorithm"))?;
                let theirs = peer_challenge(algorithm, need("CHAP_I")?, need("CHAP_C")?)?;
                let own = mutual.initiator();
                text::push(out, "CHAP_N", &own.name);
                text::push(out, "CHAP_R", &text::binary_text(&theirs.response(&own.secret)));
                self.auth = Auth::Done;
                if mutual.target().is_some() {
                    let challenge = Challenge::new(algorithm, &self.config.random);
                    if challenge.bytes == theirs.bytes {
                        return Err(LoginError::Authentication("both challenges are equal"));
                    }
                    text::push(out, "CHAP_I", &challenge.id.to_string());
                    text::push(out, "CHAP_C", &text::binary_text(&challenge.bytes));
                    self.auth = Auth::Challenged(challenge);
                }
            }
            Auth::Challenged(challenge) => {
                let response = text::binary(need("CHAP_R")?);
                let name = need("CHAP_N")?;
                let known = mutual.target().zip(response);
                if !known.is_some_and(|(target, response)| challenge.verify(target, name, &response)) {
                    return Err(LoginError::Authentication("wrong name or secret"));
                }
                self.auth = Auth::Done;
            }
            Auth::Done => {}
        }
        Ok(())
    }

    /// The next request: the outgoing text, and the next stage when this side is ready for it.
    fn request(&mut self) -> LoginPdu {
        let data = self.exchange.take();
        let continued = !self.exchange.outgoing.is_empty();
        let ready = !continued
            && !self.exchange.incoming.is_partial()
            && !matches!(self.auth, Auth::Offered | Auth::Selected);
        let next = if self.stage == Stage::Security { Stage::Operational } else { Stage::FullFeature };
        self.requested = ready.then_some(next);
        let request = LoginRequest {
            stage: self.stage,
            next: self.requested,
            continued,
            version_max: 0,
            version_min: 0,
            isid: self.config.isid,
            tsih: 0,
            itt: 0,
            cid: self.config.cid,
            numbers: RequestNumbers { cmd_sn: self.config.cmd_sn, exp_stat_sn: self.exp_stat_sn },
        };
        let bhs = Request::Login(request).encode(u32::try_from(data.len()).unwrap_or(0));
        LoginPdu { bhs, data }
    }

    fn established(&self, response: &LoginResponse) -> Result<Established, LoginError> {
        if response.tsih == 0 {
            return Err(LoginError::Field("TSIH: 0"));
        }
        Ok(Established {
            initiator: self.config.initiator.clone(),
            target: self.config.target.clone(),
            isid: self.config.isid,
            tsih: response.tsih,
            cid: self.config.cid,
            portal_group: self.portal_group,
            cmd_sn: self.config.cmd_sn,
            max_cmd_sn: response.numbers.max_cmd_sn,
            stat_sn: self.exp_stat_sn,
            parameters: self.negotiation.finish()?,
        })
    }
}
