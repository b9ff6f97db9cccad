//! Logins between this project's two roles, with the settings of an input.

use std::collections::VecDeque;

use millrace_iscsi::{
    chap::{Credentials, Mutual, Secret},
    login::{
        Admission, Authority, Established, Grant, Identity, InitiatorConfig, InitiatorLogin, InitiatorStep,
        LoginPdu, MAX_LOGIN_DATA, MAX_ROUNDS, Progress, Refusal, Status, TargetConfig, TargetLogin,
    },
    negotiation::{DigestPolicy, IserSettings, Parameters, Settings},
    pdu::{Isid, Lengths, Request, Response},
};

use crate::{bytes::Input, heap::bounded};

const INITIATOR: &str = "iqn.2001-04.com.example:i";
const TARGET: &str = "iqn.2001-04.com.example:t";

/// Who has which CHAP credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chap {
    /// Neither end.
    None,
    /// The target requires credentials of the initiator.
    Initiator,
    /// Each end requires credentials of the other.
    Mutual,
    /// The initiator has its own, which the target does not require.
    Unused,
    /// The target requires them of an initiator that has none.
    Missing,
    /// The initiator requires those of a target that has no own ones.
    OneSided,
    /// The initiator requires them of a target that does not authenticate.
    Ignored,
}

/// Both ends of a login.
#[derive(Debug)]
pub(super) struct Ends {
    initiator: Settings,
    target: Settings,
    discovery: bool,
    redirect: bool,
    chap: Chap,
    wrong_initiator: bool,
    wrong_target: bool,
}

/// How a login ended at both ends; `None` if an end still waits for a PDU.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    initiator: Option<Result<Established, String>>,
    target: Option<Result<Established, String>>,
}

/// A length in the range of the field and beyond.
fn length(input: &mut Input<'_>) -> u32 {
    u32::from(input.u16()) << (input.u8() % 10)
}

fn settings(input: &mut Input<'_>) -> Settings {
    let flags = input.u8();
    let policy =
        |bits| [DigestPolicy::Refuse, DigestPolicy::Accept, DigestPolicy::Require][usize::from(bits % 3)];
    let iser = IserSettings { max_send_data: length(input), max_unexpected_pdus: u32::from(input.u8() % 9) };
    Settings {
        header_digest: policy(flags & 3),
        data_digest: policy(flags >> 2 & 3),
        initial_r2t: flags & 16 != 0,
        immediate_data: flags & 32 != 0,
        max_receive_data: length(input),
        max_burst: length(input),
        first_burst: length(input),
        max_outstanding_r2t: input.u16(),
        iser: (flags & 64 != 0).then_some(iser),
    }
}

fn credentials(name: &str, right: bool) -> Credentials {
    let secret = if right { format!("the secret of {name}") } else { format!("not the secret of {name}") };
    Credentials { name: name.to_owned(), secret: Secret::new(secret.as_bytes()).expect("a secret") }
}

fn mutual(initiator: bool, target: Option<bool>) -> Mutual {
    let target = target.map(|right| credentials("target", right));
    Mutual::new(credentials("initiator", initiator), target).expect("different secrets")
}

impl Ends {
    pub(super) fn read(input: &mut Input<'_>) -> Self {
        let (flags, chap) = (input.u8(), input.u8());
        let all = [
            Chap::None,
            Chap::Initiator,
            Chap::Mutual,
            Chap::Unused,
            Chap::Missing,
            Chap::OneSided,
            Chap::Ignored,
        ];
        Self {
            discovery: flags & 1 != 0,
            redirect: flags & 2 != 0,
            wrong_initiator: flags & 4 != 0,
            wrong_target: flags & 8 != 0,
            chap: all[usize::from(chap) % all.len()],
            initiator: settings(input),
            target: settings(input),
        }
    }

    /// Whether the target authenticates the initiator, and cannot succeed.
    fn initiator_is_false(&self) -> bool {
        match self.chap {
            Chap::Missing => true,
            Chap::Initiator | Chap::Mutual | Chap::OneSided => self.wrong_initiator,
            Chap::None | Chap::Unused | Chap::Ignored => false,
        }
    }

    /// Whether the initiator authenticates the target, and cannot succeed.
    fn target_is_false(&self) -> bool {
        match self.chap {
            Chap::OneSided | Chap::Ignored => true,
            Chap::Mutual => self.wrong_target,
            Chap::None | Chap::Initiator | Chap::Unused | Chap::Missing => false,
        }
    }

    /// Whether the policies of both ends for digests, or their transports, contradict each other.
    fn contradict(&self) -> bool {
        let iser = (self.initiator.iser.is_some(), self.target.iser.is_some());
        let contrary = |a, b| {
            matches!(
                (a, b),
                (DigestPolicy::Refuse, DigestPolicy::Require) | (DigestPolicy::Require, DigestPolicy::Refuse)
            )
        };
        // There are no digests with iSER.
        let policy =
            |settings: &Settings, policy| if settings.iser.is_some() { DigestPolicy::Refuse } else { policy };
        let digest = |of: fn(&Settings) -> DigestPolicy| {
            contrary(policy(&self.initiator, of(&self.initiator)), policy(&self.target, of(&self.target)))
        };
        digest(|s| s.header_digest) || digest(|s| s.data_digest) || !self.discovery && iser.0 != iser.1
    }

    fn initiator(&self) -> InitiatorConfig {
        let right = !self.wrong_initiator;
        let chap = match self.chap {
            Chap::None | Chap::Missing => None,
            Chap::Initiator | Chap::Unused => Some(mutual(right, None)),
            Chap::Mutual | Chap::OneSided | Chap::Ignored => Some(mutual(right, Some(true))),
        };
        InitiatorConfig {
            initiator: INITIATOR.parse().expect("a name"),
            target: (!self.discovery).then(|| TARGET.parse().expect("a name")),
            isid: Isid([0x80, 0, 0, 0, 0, 1]),
            cid: 1,
            cmd_sn: 5,
            settings: self.initiator.clone(),
            chap,
            random: [0x11; 33],
            redirects: 0,
        }
    }

    fn target(&self) -> (TargetConfig, Gate) {
        let chap = match self.chap {
            Chap::None | Chap::Unused | Chap::Ignored => None,
            Chap::Initiator | Chap::Missing | Chap::OneSided => Some(mutual(true, None)),
            Chap::Mutual => Some(mutual(true, Some(!self.wrong_target))),
        };
        // A response that was seen in another execution answers no challenge of an execution with a wrong secret.
        let random = [0x22 | u8::from(self.wrong_initiator) << 2 | u8::from(self.wrong_target) << 3; 33];
        let settings = self.target.clone();
        let config = TargetConfig { settings, portal_group: 1, stat_sn: 100, random };
        (config, Gate { chap, redirect: self.redirect, admitted: 0, established: 0 })
    }

    /// Executes a login. `change` decides which PDUs each PDU is replaced with before it is delivered; the flag is
    /// whether the target receives it.
    pub(super) fn log_in(&self, mut change: impl FnMut(bool, LoginPdu) -> Vec<LoginPdu>) -> Outcome {
        let (config, mut gate) = self.target();
        let mut target = TargetLogin::new(config);
        let (mut initiator, first) = InitiatorLogin::new(self.initiator());
        let mut out = Outcome::default();
        let (mut queue, mut delivered, mut received) = (VecDeque::from([(true, first)]), 0, 0);
        while let Some((to_target, pdu)) = queue.pop_front() {
            for pdu in change(to_target, pdu) {
                let ended = if to_target { out.target.is_some() } else { out.initiator.is_some() };
                if ended {
                    continue;
                }
                (delivered, received) = (delivered + 1, received + pdu.data.len() + 48);
                assert!(delivered <= 2 * (MAX_ROUNDS + 1), "a login of {delivered} PDUs");
                let answer = bounded(received + 8192, || match to_target {
                    true => out.deliver_to_target(&mut target, &mut gate, &pdu),
                    false => out.deliver_to_initiator(&mut initiator, &pdu),
                });
                queue.extend(answer.map(|answer| (!to_target, answer)));
            }
        }
        assert!(gate.admitted <= 1 && gate.established <= gate.admitted);
        assert!(gate.established == 1 || !matches!(out.target, Some(Ok(_))));
        self.check(&out);
        out
    }

    /// Checks the conditions that hold for all PDUs that may have been delivered.
    fn check(&self, out: &Outcome) {
        if let Some(Ok(established)) = &out.target {
            assert!(!self.initiator_is_false(), "a false initiator has logged in");
            within(&established.parameters, &self.target, established.target.is_none());
        }
        if let Some(Ok(established)) = &out.initiator {
            assert!(!self.target_is_false(), "the initiator trusts a false target");
            within(&established.parameters, &self.initiator, established.target.is_none());
        }
    }
}

impl Outcome {
    fn deliver_to_target(
        &mut self,
        target: &mut TargetLogin,
        gate: &mut Gate,
        pdu: &LoginPdu,
    ) -> Option<LoginPdu> {
        let reply = target.receive(&pdu.bhs, &pdu.data, gate);
        if let Some(pdu) = &reply.pdu {
            assert!(matches!(Response::decode(&pdu.bhs), Ok(Response::Login(_))));
            encoded(pdu);
        }
        self.target = match reply.progress {
            Progress::Continue => None,
            Progress::Established(established) => Some(Ok(*established)),
            Progress::Failed(error) => Some(Err(error.to_string())),
        };
        reply.pdu
    }

    fn deliver_to_initiator(&mut self, initiator: &mut InitiatorLogin, pdu: &LoginPdu) -> Option<LoginPdu> {
        let step = initiator.receive(&pdu.bhs, &pdu.data);
        self.initiator = match step {
            Ok(InitiatorStep::Send(pdu)) => {
                assert!(matches!(Request::decode(&pdu.bhs), Ok(Request::Login(_))));
                encoded(&pdu);
                return Some(pdu);
            }
            Ok(InitiatorStep::Established(established)) => Some(Ok(*established)),
            Ok(InitiatorStep::Redirect { address, .. }) => Some(Err(format!("moved to {address}"))),
            Err(error) => Some(Err(error.to_string())),
        };
        None
    }
}

/// Checks the lengths of a PDU that a login sends.
fn encoded(pdu: &LoginPdu) {
    assert!(pdu.data.len() <= MAX_LOGIN_DATA as usize);
    assert_eq!(Lengths::of(&pdu.bhs), Lengths { ahs: 0, data: pdu.data.len() as u32 });
}

/// Checks that `agreed` does not exceed the settings of this side.
fn within(agreed: &Parameters, own: &Settings, discovery: bool) {
    let range = |length: u32| length.clamp(512, 0x00ff_ffff);
    assert!((512..=0x00ff_ffff).contains(&agreed.max_send_data));
    assert!((512..=0x00ff_ffff).contains(&agreed.max_receive_data));
    assert!(agreed.max_receive_data <= range(own.max_receive_data), "{agreed:?} {own:?}");
    assert!(agreed.first_burst <= agreed.max_burst);
    for (digest, policy) in [(agreed.header_digest, own.header_digest), (agreed.data_digest, own.data_digest)]
    {
        assert!(!digest || policy != DigestPolicy::Refuse && own.iser.is_none());
        assert!(digest || policy != DigestPolicy::Require || own.iser.is_some());
    }
    if !discovery {
        assert!(agreed.max_burst <= range(own.max_burst), "{agreed:?} {own:?}");
        assert!(!agreed.immediate_data || own.immediate_data);
        assert!(agreed.initial_r2t || !own.initial_r2t);
        assert!((1..=own.max_outstanding_r2t.max(1)).contains(&agreed.max_outstanding_r2t));
        assert_eq!(agreed.iser.is_some(), own.iser.is_some());
    }
}

/// The decisions of the target.
#[derive(Debug)]
struct Gate {
    chap: Option<Mutual>,
    redirect: bool,
    admitted: u32,
    established: u32,
}

impl Authority for Gate {
    fn admit(&mut self, identity: &Identity) -> Result<Admission, Refusal> {
        self.admitted += 1;
        if self.redirect {
            let address = "[2001:db8::1]:3260".parse().expect("an address");
            return Err(Refusal::Redirect { address, permanent: false });
        }
        match &identity.target {
            Some(name) if name.as_str() != TARGET => Err(Refusal::Status(Status::NOT_FOUND)),
            _ => Ok(Admission { chap: self.chap.clone() }),
        }
    }

    fn establish(&mut self, _: &Identity, _: &Parameters) -> Result<Grant, Status> {
        self.established += 1;
        Ok(Grant { tsih: 9, window: 32 })
    }
}

/// Two honest ends agree, unless their settings contradict each other or one does not authenticate.
pub(super) fn negotiation(input: &mut Input<'_>) {
    let ends = Ends::read(input);
    let out = ends.log_in(|_, pdu| vec![pdu]);
    let fails = ends.redirect || ends.initiator_is_false() || ends.target_is_false() || ends.contradict();
    match (out.initiator, out.target) {
        (Some(Ok(initiator)), Some(Ok(target))) => {
            assert!(!fails, "{ends:?}");
            agree(&initiator, &target);
        }
        other => assert!(fails, "{other:?} {ends:?}"),
    }
}

fn agree(initiator: &Established, target: &Established) {
    let (i, t) = (&initiator.parameters, &target.parameters);
    assert_eq!((i.max_send_data, i.max_receive_data), (t.max_receive_data, t.max_send_data));
    assert_eq!(i.iser.is_some(), t.iser.is_some());
    let same = |p: &Parameters| Parameters { max_send_data: 0, max_receive_data: 0, iser: None, ..*p };
    assert_eq!(same(i), same(t));
    let own = |e: &Established| Established { parameters: same(&e.parameters), ..e.clone() };
    assert_eq!(own(initiator), Established { portal_group: initiator.portal_group, ..own(target) });
}

/// Settings of both ends with each policy and each kind of authentication.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let settings =
        |flags: u8| [&[flags][..], &[0x20, 0, 0, 4, 0x40, 0, 4, 0x40, 0, 4, 0x40, 0, 2, 0, 1]].concat();
    let both =
        [(0x35, 0x35), (0x25, 0x15), (0x3a, 0x35), (0x30, 0x3a), (0x75, 0x75), (0x75, 0x35), (0x35, 0x75)];
    let mut out = Vec::new();
    for (n, (initiator, target)) in (0..).zip(both) {
        out.push([&[0, n][..], &settings(initiator), &settings(target)].concat());
    }
    for (flags, chap) in [(1, 0), (2, 0), (4, 1), (4, 2), (8, 2), (1, 2), (0, 2), (1, 4)] {
        out.push([&[flags, chap][..], &settings(0x35), &settings(0x35)].concat());
    }
    out
}
