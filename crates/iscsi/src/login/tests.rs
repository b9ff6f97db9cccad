//! Logins of both roles against each other, and against hostile peers.

use proptest::prelude::*;

use super::*;
use crate::{
    chap::{Credentials, Mutual, Secret},
    negotiation::{IserSettings, Parameters, Settings, settings_strategy},
    pdu::{LoginRequest, LoginResponse, Numbers, Request, RequestNumbers, Response, Stage},
    text,
};

const ISID: Isid = Isid([0, 2, 0x3d, 0, 0, 1]);
const I: &str = "iqn.2001-04.com.example:i";
const T: &str = "iqn.2001-04.com.example:t";

/// An authority with one target.
#[derive(Default)]
struct One {
    chap: Option<Mutual>,
    redirect: bool,
    established: u32,
}

impl Authority for One {
    fn admit(&mut self, identity: &Identity) -> Result<Admission, Refusal> {
        if self.redirect {
            let address = "[2001:db8::1]:3260".parse().unwrap();
            return Err(Refusal::Redirect { address, permanent: false });
        }
        match &identity.target {
            Some(t) if t.as_str() != T => Err(Refusal::Status(Status::NOT_FOUND)),
            _ => Ok(Admission { chap: self.chap.clone() }),
        }
    }

    fn establish(&mut self, _: &Identity, _: &Parameters) -> Result<Grant, Status> {
        self.established += 1;
        Ok(Grant { tsih: 9, window: 32 })
    }
}

fn credentials(name: &str, secret: &str) -> Credentials {
    Credentials { name: name.to_owned(), secret: Secret::new(secret.as_bytes()).unwrap() }
}

fn mutual(two: bool) -> Mutual {
    let target = two.then(|| credentials("tuser", "target-secret"));
    Mutual::new(credentials("iuser", "initiator-secret"), target).unwrap()
}

fn initiator(settings: Settings) -> InitiatorConfig {
    InitiatorConfig {
        initiator: I.parse().unwrap(),
        target: Some(T.parse().unwrap()),
        isid: ISID,
        cid: 1,
        cmd_sn: 5,
        settings,
        chap: None,
        random: [0x11; 33],
        redirects: 0,
    }
}

fn target(settings: Settings) -> TargetLogin {
    TargetLogin::new(TargetConfig { settings, portal_group: 1, stat_sn: 100, random: [0x22; 33] })
}

type Ends = (Result<Established, LoginError>, Result<Established, LoginError>);

/// Runs a login; the transcript has byte 1 of the header and the text of each PDU.
fn run(config: InitiatorConfig, mut target: TargetLogin, authority: &mut One) -> (Ends, Vec<String>) {
    let line = |who: &str, pdu: &LoginPdu| {
        let keys: Vec<_> =
            text::pairs(&pdu.data).map(|p| p.unwrap()).map(|(k, v)| format!("{k}={v}")).collect();
        format!("{who} {:02x} {}", pdu.bhs[1], keys.join(" ")).trim_end().to_owned()
    };
    let (mut initiator, mut pdu) = InitiatorLogin::new(config);
    let mut transcript = Vec::new();
    loop {
        transcript.push(line("I", &pdu));
        assert!(transcript.len() < 300, "endless login");
        let reply = target.receive(&pdu.bhs, &pdu.data, authority);
        let answer = reply.pdu.unwrap();
        transcript.push(line("T", &answer));
        let step = initiator.receive(&answer.bhs, &answer.data);
        let ours = match (step, reply.progress) {
            (Ok(InitiatorStep::Send(next)), Progress::Continue) => {
                pdu = next;
                continue;
            }
            (step, Progress::Established(t)) => (step, Ok(*t)),
            (step, Progress::Failed(e)) => (step, Err(e)),
            (step, Progress::Continue) => (step, Err(LoginError::NotLogin)),
        };
        let first = match ours.0 {
            Ok(InitiatorStep::Established(e)) => Ok(*e),
            Ok(step) => panic!("{step:?}"),
            Err(e) => Err(e),
        };
        return ((first, ours.1), transcript);
    }
}

const OPERATIONAL: [&str; 2] = [
    "I 87 HeaderDigest=None,CRC32C DataDigest=None,CRC32C MaxConnections=1 InitialR2T=Yes ImmediateData=Yes \
     MaxRecvDataSegmentLength=262144 MaxBurstLength=262144 FirstBurstLength=65536 DefaultTime2Wait=0 \
     DefaultTime2Retain=20 MaxOutstandingR2T=1 DataPDUInOrder=Yes DataSequenceInOrder=Yes ErrorRecoveryLevel=0",
    "T 87 MaxRecvDataSegmentLength=262144 HeaderDigest=None DataDigest=None MaxConnections=1 InitialR2T=Yes \
     ImmediateData=Yes MaxBurstLength=262144 FirstBurstLength=65536 DefaultTime2Wait=0 DefaultTime2Retain=20 \
     MaxOutstandingR2T=1 DataPDUInOrder=Yes DataSequenceInOrder=Yes ErrorRecoveryLevel=0",
];

#[test]
fn a_login_without_authentication_has_the_expected_text() {
    let mut one = One::default();
    let ((i, t), transcript) = run(initiator(Settings::default()), target(Settings::default()), &mut one);
    let expected = [
        &format!("I 81 InitiatorName={I} TargetName={T} SessionType=Normal AuthMethod=None"),
        "T 81 TargetPortalGroupTag=1 AuthMethod=None",
        OPERATIONAL[0],
        OPERATIONAL[1],
    ];
    assert_eq!(transcript, expected);
    let (i, t) = (i.unwrap(), t.unwrap());
    assert_eq!(i, t);
    assert_eq!((i.tsih, i.cid, i.cmd_sn, i.max_cmd_sn, i.stat_sn), (9, 1, 5, 36, 102));
    assert_eq!((i.portal_group, one.established), (Some(1), 1));
}

#[test]
fn headers_have_the_expected_bytes() {
    let (_, pdu) = InitiatorLogin::new(initiator(Settings::default()));
    let length = pdu.data.len() as u8;
    let mut expected = [0; 48];
    expected[..2].copy_from_slice(&[0x43, 0x81]);
    expected[7] = length;
    expected[8..14].copy_from_slice(&ISID.0);
    expected[21] = 1; // CID.
    expected[27] = 5; // CmdSN.
    assert_eq!(pdu.bhs, expected);
    let keys = format!("InitiatorName={I}\0TargetName={T}\0SessionType=Normal\0AuthMethod=None\0");
    assert_eq!(pdu.data, keys.as_bytes());
    let answer = target(Settings::default()).receive(&pdu.bhs, &pdu.data, &mut One::default()).pdu.unwrap();
    let mut expected = [0; 48];
    expected[..2].copy_from_slice(&[0x23, 0x81]);
    expected[7] = 39;
    expected[8..14].copy_from_slice(&ISID.0);
    expected[27] = 100; // StatSN.
    expected[31] = 5; // ExpCmdSN.
    expected[35] = 5; // MaxCmdSN: one command, until the login has succeeded.
    assert_eq!(answer.bhs, expected);
    assert_eq!(answer.data, b"TargetPortalGroupTag=1\0AuthMethod=None\0");
}

#[test]
fn chap_in_one_and_both_directions() {
    for two in [false, true] {
        let mut one = One { chap: Some(mutual(two)), ..One::default() };
        let config = InitiatorConfig { chap: Some(mutual(two)), ..initiator(Settings::default()) };
        let ((i, t), transcript) = run(config, target(Settings::default()), &mut one);
        assert_eq!(i.unwrap(), t.unwrap());
        let challenge = |byte: &str| byte.repeat(32);
        let methods = if two { "CHAP" } else { "CHAP,None" };
        assert_eq!(
            transcript[0],
            format!("I 00 InitiatorName={I} TargetName={T} SessionType=Normal AuthMethod={methods}")
        );
        assert_eq!(transcript[1], "T 00 TargetPortalGroupTag=1 AuthMethod=CHAP");
        assert_eq!(transcript[2], "I 00 CHAP_A=8,7,5");
        assert_eq!(transcript[3], format!("T 00 CHAP_A=8 CHAP_I=34 CHAP_C=0x{}", challenge("22")));
        // Computed with Python's hashlib.sha3_256.
        let response =
            "I 81 CHAP_N=iuser CHAP_R=0x6ed133d8f8eda06a565e3554a8a1c3fa67e5a99dda9a262879b58aad7d86cf09";
        if two {
            assert_eq!(transcript[4], format!("{response} CHAP_I=17 CHAP_C=0x{}", challenge("11")));
            assert_eq!(
                transcript[5],
                "T 81 CHAP_N=tuser CHAP_R=0x51689463d0f2a20a05bb965b1e58fd4311b0024d32c4b3eaf4b27e74654a6ae1"
            );
        } else {
            assert_eq!(&transcript[4..6], [response, "T 81"]);
        }
        assert_eq!(&transcript[6..], OPERATIONAL);
    }
}

#[test]
fn md5_is_offered_alone_and_then_required() {
    let config =
        InitiatorConfig { chap: Some(mutual(false).with_md5_only()), ..initiator(Settings::default()) };
    let mut one = One { chap: Some(mutual(false)), ..One::default() };
    let ((i, t), transcript) = run(config.clone(), target(Settings::default()), &mut one);
    assert_eq!(i.unwrap(), t.unwrap());
    assert_eq!(transcript[2], "I 00 CHAP_A=5");
    assert!(transcript[3].starts_with("T 00 CHAP_A=5 "));
    // The target selects an algorithm that was not offered.
    let (mut login, _) = InitiatorLogin::new(config);
    let response = |n| LoginResponse {
        stage: Stage::Security,
        next: None,
        continued: false,
        version_max: 0,
        version_active: 0,
        isid: ISID,
        tsih: 0,
        itt: 0,
        numbers: Numbers { stat_sn: n, ..Numbers::default() },
        status_class: 0,
        status_detail: 0,
    };
    let mut receive =
        |n, data: &[u8]| login.receive(&Response::Login(response(n)).encode(data.len() as u32), data);
    receive(0, b"AuthMethod=CHAP\0").unwrap();
    let challenge = format!("CHAP_A=7\0CHAP_I=1\0CHAP_C=0x{}\0", "22".repeat(32));
    assert!(matches!(receive(1, challenge.as_bytes()), Err(LoginError::Authentication(_))));
}

#[test]
fn errors_need_no_isid() {
    let (mut login, pdu) = InitiatorLogin::new(initiator(Settings::default()));
    let mut one = One::default();
    let mut answer = target(Settings::default()).receive(&pdu.bhs, &pdu.data, &mut one).pdu.unwrap();
    answer.bhs[8..14].fill(0);
    (answer.bhs[36], answer.bhs[37]) = (2, 1);
    let error = login.receive(&answer.bhs, &[]).unwrap_err();
    assert_eq!(error, LoginError::Status(Status::AUTHENTICATION));
    (answer.bhs[36], answer.bhs[37]) = (0, 0);
    let (mut login, _) = InitiatorLogin::new(initiator(Settings::default()));
    assert!(matches!(login.receive(&answer.bhs, &answer.data), Err(LoginError::Field(_))));
}

#[test]
fn wrong_credentials_fail() {
    let attempt = |i: Option<Mutual>, t: Option<Mutual>| {
        let mut one = One { chap: t, ..One::default() };
        let config = InitiatorConfig { chap: i, ..initiator(Settings::default()) };
        let ((i, t), _) = run(config, target(Settings::default()), &mut one);
        (i.unwrap_err(), t.err(), one.established)
    };
    let denied = LoginError::Status(Status::AUTHENTICATION);
    let other = |n, s| Some(Mutual::new(credentials(n, s), None).unwrap());
    for i in [None, other("iuser", "another-secret"), other("other", "initiator-secret"), Some(mutual(true))]
    {
        let (error, _, established) = attempt(i, Some(mutual(false)));
        assert_eq!((error, established), (denied.clone(), 0));
    }
    // The target does not authenticate: it skips CHAP, or has another secret.
    assert_eq!(
        attempt(Some(mutual(true)), None),
        (denied, Some(LoginError::Authentication("the initiator does not offer the required method")), 0)
    );
    let wrong =
        Mutual::new(credentials("iuser", "initiator-secret"), Some(credentials("tuser", "wrong-secret")));
    let (error, ..) = attempt(Some(mutual(true)), Some(wrong.unwrap()));
    assert_eq!(error, LoginError::Authentication("wrong name or secret"));
    // An initiator with credentials may log in where none are required.
    let config = InitiatorConfig { chap: Some(mutual(false)), ..initiator(Settings::default()) };
    let ((i, t), _) = run(config, target(Settings::default()), &mut One::default());
    assert_eq!(i.unwrap(), t.unwrap());
}

#[test]
fn discovery_and_iser_have_the_expected_text() {
    let config = InitiatorConfig { target: None, ..initiator(Settings::default()) };
    let ((i, t), transcript) = run(config, target(Settings::default()), &mut One::default());
    assert_eq!(transcript[0], format!("I 81 InitiatorName={I} SessionType=Discovery AuthMethod=None"));
    assert_eq!(transcript[1], "T 81 AuthMethod=None");
    assert_eq!(
        transcript[3],
        "T 87 MaxRecvDataSegmentLength=262144 HeaderDigest=None DataDigest=None DefaultTime2Wait=0 \
         DefaultTime2Retain=20 ErrorRecoveryLevel=0"
    );
    assert_eq!(i.as_ref().unwrap().target, None);
    assert_eq!(i.unwrap(), t.unwrap());

    let iser = IserSettings { max_send_data: 8192, max_unexpected_pdus: 4 };
    let settings = Settings { iser: Some(iser), max_receive_data: 8192, ..Settings::default() };
    let ((i, t), transcript) =
        run(initiator(settings.clone()), target(settings.clone()), &mut One::default());
    assert!(transcript[2].starts_with("I 87 RDMAExtensions=Yes HeaderDigest=None DataDigest=None "));
    assert!(transcript[2].ends_with(
        "InitiatorRecvDataSegmentLength=8192 TargetRecvDataSegmentLength=8192 MaxOutstandingUnexpectedPDUs=4"
    ));
    assert!(transcript[3].starts_with("T 87 RDMAExtensions=Yes "));
    assert!(transcript[3].ends_with(" MaxOutstandingUnexpectedPDUs=4"));
    assert_eq!(i.as_ref().unwrap().parameters.iser.unwrap().max_unexpected_pdus, 4);
    assert_eq!(i.unwrap(), t.unwrap());
    let ((i, _), _) = run(initiator(settings), target(Settings::default()), &mut One::default());
    assert!(matches!(i, Err(LoginError::Negotiation(_))));
    let unknown = InitiatorConfig {
        target: Some("eui.0123456789abcdef".parse().unwrap()),
        ..initiator(Settings::default())
    };
    let ((i, t), _) = run(unknown, target(Settings::default()), &mut One::default());
    assert_eq!(
        (i, t),
        (Err(LoginError::Status(Status::NOT_FOUND)), Err(LoginError::Status(Status::NOT_FOUND)))
    );
}

#[test]
fn redirections_are_bounded() {
    let mut one = One { redirect: true, ..One::default() };
    for redirects in 0..=MAX_REDIRECTS {
        let config = InitiatorConfig { redirects, ..initiator(Settings::default()) };
        let (mut login, pdu) = InitiatorLogin::new(config);
        let answer = target(Settings::default()).receive(&pdu.bhs, &pdu.data, &mut one).pdu.unwrap();
        assert_eq!(
            (&answer.bhs[36..38], &answer.data[..]),
            (&[1, 1][..], &b"TargetAddress=[2001:db8::1]:3260\0"[..])
        );
        match login.receive(&answer.bhs, &answer.data) {
            Ok(InitiatorStep::Redirect { address, permanent: false }) => {
                assert_eq!((address.host.as_str(), redirects < MAX_REDIRECTS), ("2001:db8::1", true));
            }
            other => assert_eq!((other.unwrap_err(), redirects), (LoginError::Redirects, MAX_REDIRECTS)),
        }
        let hostile = login.receive(&answer.bhs, b"TargetAddress=a;b\0");
        assert!(hostile.is_err());
    }
}

/// A request of a hand-made initiator.
fn request(stage: Stage, next: Option<Stage>, continued: bool, data: &[u8]) -> LoginPdu {
    let request = LoginRequest {
        stage,
        next,
        continued,
        version_max: 0,
        version_min: 0,
        isid: ISID,
        tsih: 0,
        itt: 7,
        cid: 1,
        numbers: RequestNumbers { cmd_sn: 5, exp_stat_sn: 0 },
    };
    LoginPdu { bhs: Request::Login(request).encode(data.len() as u32), data: data.to_vec() }
}

const FIRST: &str = "InitiatorName=iqn.2001-04.com.example:i\0TargetName=iqn.2001-04.com.example:t\0";

/// The status with which a target without authentication answers `pdus`.
fn status(pdus: &[LoginPdu]) -> Option<(u8, u8)> {
    let mut login = target(Settings::default());
    for (n, pdu) in pdus.iter().enumerate() {
        let reply = login.receive(&pdu.bhs, &pdu.data, &mut One::default());
        match reply.progress {
            Progress::Failed(_) => {
                assert_eq!(n, pdus.len() - 1, "an earlier PDU fails");
                return reply.pdu.map(|p| (p.bhs[36], p.bhs[37]));
            }
            _ => assert_eq!(reply.pdu.unwrap().bhs[36], 0),
        }
    }
    Some((0, 0))
}

#[test]
fn hostile_initiators_are_refused() {
    use Stage::{FullFeature, Operational, Security};
    let security = |text: &str| request(Security, None, false, text.as_bytes());
    let operational = |text: &str| request(Operational, None, false, text.as_bytes());
    for (text, expected) in [
        (FIRST.to_owned(), (0, 0)),
        (String::new(), (2, 7)),
        (FIRST.replace("TargetName", "X"), (2, 7)),
        (format!("{FIRST}SessionType=Other\0"), (2, 9)),
        (FIRST.replace(":i", ":i\x1b[2J"), (2, 0)),
        (FIRST.replace("iqn", "qin"), (2, 0)),
        (format!("{FIRST}{FIRST}"), (2, 0)),
        (format!("{FIRST}A"), (2, 0)),
        (format!("{FIRST}A=1"), (2, 0)),
        (format!("{FIRST}MaxBurstLength=512\0"), (2, 0xb)),
        (format!("{FIRST}AuthMethod=KRB5\0"), (2, 1)),
        (format!("{FIRST}CHAP_A=5\0"), (2, 0xb)),
    ] {
        assert_eq!(status(&[security(&text)]), Some(expected), "{text:?}");
    }
    let first = security(FIRST);
    let changed = |at: usize| {
        let mut pdu = security("");
        pdu.bhs[at] ^= 1;
        pdu
    };
    for at in [8, 14, 16, 20, 24] {
        assert_eq!(status(&[first.clone(), changed(at)]), Some((2, 0)), "byte {at}");
    }
    assert_eq!(status(&[first.clone(), security(FIRST)]), Some((2, 0xb)));
    assert_eq!(status(&[first.clone(), operational("")]), Some((2, 0)));
    // CSG 2; next stage 2 or before the current; T with C; version; TSIH.
    for (at, value, expected) in [
        (1, 8, (2, 0)),
        (1, 0x82, (2, 0)),
        (1, 0x84, (2, 0)),
        (1, 0xc1, (2, 0)),
        (3, 1, (2, 5)),
        (15, 1, (2, 0xa)),
    ] {
        let mut pdu = first.clone();
        pdu.bhs[at] = value;
        assert_eq!(status(&[pdu]), Some(expected), "byte {at} {value:#04x}");
    }
    // PDUs of the full feature phase, or of a target.
    for byte0 in [0x00, 0x01, 0x05, 0x23, 0x3f] {
        let mut pdu = first.clone();
        pdu.bhs[0] = byte0;
        assert_eq!(status(&[pdu]), None);
    }
    // Text without end.
    let endless = |data: &[u8]| vec![request(Security, None, true, data); MAX_ROUNDS as usize + 1];
    assert_eq!(status(&endless(b"")), Some((2, 0)));
    assert_eq!(status(&endless(&[0; 8192])[..9]), Some((2, 0)));
    let rounds = [vec![first.clone()], vec![security(""); MAX_ROUNDS as usize]].concat();
    assert_eq!(status(&rounds), Some((2, 0)));
    assert_eq!(status(&[request(Security, None, false, &[0; 8193])]), Some((2, 0)));
    // Security skipped, although it is necessary.
    let mut one = One { chap: Some(mutual(false)), ..One::default() };
    for stage in [Operational, Security] {
        let pdu = request(stage, Some(FullFeature), false, FIRST.as_bytes());
        let reply = target(Settings::default()).receive(&pdu.bhs, &pdu.data, &mut one);
        assert!(!matches!(reply.progress, Progress::Established(_)));
        assert_eq!(reply.pdu.unwrap().bhs[1] & 0x80, 0);
    }
    assert_eq!(one.established, 0);
}

/// The text of a binary value in base64.
fn base64(bytes: &[u8]) -> String {
    format!("0b{}", data_encoding::BASE64.encode(bytes))
}

#[test]
fn hostile_chap_is_refused() {
    let own = |r: &str| format!("CHAP_N=iuser\0CHAP_R={r}\0");
    let answer = crate::chap::Challenge::new(crate::chap::Algorithm::Md5, &[0x22; 33])
        .response(&Secret::new(b"initiator-secret").unwrap());
    let good = text::binary_text(&answer);
    let reflected = format!("{}CHAP_I=1\0CHAP_C=0x{}\0", own(&good), "22".repeat(16));
    for (text, accepted) in [
        (own(&good), true),
        (format!("{}CHAP_I=1\0CHAP_C=0x{}\0", own(&good), "33".repeat(16)), true),
        (reflected, false),
        (format!("{}CHAP_I=1\0CHAP_C=0x33\0", own(&good)), false),
        (format!("{}CHAP_I=256\0CHAP_C=0x{}\0", own(&good), "33".repeat(16)), false),
        (format!("{}CHAP_I=1\0CHAP_C=0x{}\0", own(&good), "33".repeat(1025)), false),
        (own("0x"), false),
        (own("0b"), false),
        (own(&good[..good.len() - 2]), false),
        (own(&"0x00".repeat(16)), false),
        (format!("CHAP_R={good}\0"), false),
        // Names are text, not binary values; responses may be, in both forms, and have one length.
        (own(&good).replace("iuser", "0x6975736572"), false),
        (own(&good).replace("iuser", "0baXVzZXI="), false),
        (own(&base64(&answer)), true),
        (own(&format!("{good}00")), false),
        (own(&format!("0x{}", "00".repeat(1024))), false),
        (own(&format!("0x{}", "00".repeat(1025))), false),
    ] {
        let mut one = One { chap: Some(mutual(true)), ..One::default() };
        let mut login = target(Settings::default());
        let mut last = None;
        for data in [format!("{FIRST}AuthMethod=CHAP\0"), "CHAP_A=9,5,8\0".to_owned(), text.clone()] {
            let pdu = request(Stage::Security, None, false, data.as_bytes());
            last = Some(login.receive(&pdu.bhs, &pdu.data, &mut one));
        }
        let failed = matches!(last.unwrap().progress, Progress::Failed(_));
        assert_eq!(!failed, accepted, "{text:?}");
    }
}

#[test]
fn answers_longer_than_a_pdu_are_continued() {
    let mut login = target(Settings::default());
    let keys: String = (0..110).map(|i| format!("X-{i:061}=1\0")).collect();
    let text = format!("{FIRST}{keys}");
    let (one, two) = text.as_bytes().split_at(5000);
    let mut receive = |continued: bool, data: &[u8]| {
        let pdu = request(Stage::Security, (!continued).then_some(Stage::Operational), continued, data);
        login.receive(&pdu.bhs, &pdu.data, &mut One::default()).pdu.unwrap()
    };
    assert_eq!(receive(true, one).data, b"");
    let first = receive(false, two);
    assert_eq!((first.bhs[1], first.data.len()), (0x40, 8192));
    let rest = receive(false, b"");
    assert_eq!(rest.bhs[1], 0x81);
    let all = [first.data, rest.data].concat();
    assert_eq!(text::parse(&all).unwrap().len(), 111);
    assert!(all.ends_with(b"=NotUnderstood\0"));
}

#[test]
fn hostile_targets_are_refused() {
    let (_, pdu) = InitiatorLogin::new(initiator(Settings::default()));
    let good = target(Settings::default()).receive(&pdu.bhs, &pdu.data, &mut One::default()).pdu.unwrap();
    let receive = |change: &dyn Fn(&mut LoginPdu)| {
        let mut answer = good.clone();
        change(&mut answer);
        InitiatorLogin::new(initiator(Settings::default())).0.receive(&answer.bhs, &answer.data)
    };
    assert!(receive(&|_| {}).is_ok());
    for (at, value) in
        [(0, 0x20), (0, 0x03), (1, 0x85), (1, 0x83), (1, 0x08), (1, 0xc1), (3, 1), (8, 1), (19, 1), (36, 2)]
    {
        assert!(receive(&|p| p.bhs[at] = value).is_err(), "byte {at} {value:#04x}");
    }
    for text in [
        "AuthMethod=CHAP\0",
        "AuthMethod\0",
        "MaxBurstLength=512\0",
        "TargetPortalGroupTag=65536\0",
        "TargetPortalGroupTag=1\0TargetPortalGroupTag=1\0",
        "A=\x1b\0",
        "A=1",
    ] {
        assert!(receive(&|p| p.data = text.as_bytes().to_vec()).is_err(), "{text:?}");
    }
    // A target that never continues.
    let (mut login, _) = InitiatorLogin::new(initiator(Settings::default()));
    let mut stuck = good;
    (stuck.bhs[1], stuck.data) = (0, Vec::new());
    let endless = (0..=MAX_ROUNDS).map(|_| login.receive(&stuck.bhs, &stuck.data).map(|_| ()));
    assert_eq!(endless.last(), Some(Err(LoginError::TooLong)));
    // TSIH 0 at the end.
    let (mut login, pdu) = InitiatorLogin::new(initiator(Settings::default()));
    let mut other = target(Settings::default());
    let a = other.receive(&pdu.bhs, &pdu.data, &mut One::default()).pdu.unwrap();
    let Ok(InitiatorStep::Send(pdu)) = login.receive(&a.bhs, &a.data) else { panic!("no request") };
    let mut a = other.receive(&pdu.bhs, &pdu.data, &mut One::default()).pdu.unwrap();
    a.bhs[15] = 0;
    assert_eq!(login.receive(&a.bhs, &a.data).unwrap_err(), LoginError::Field("TSIH: 0"));
}

proptest! {
    /// Both sides establish the same session, or the initiator fails. (The target may have established it when
    /// the initiator does not accept its last answer, such as a rejected digest.)
    #[test]
    fn random_configurations_agree(
        (a, b) in any::<bool>().prop_flat_map(|iser| (settings_strategy(iser), settings_strategy(iser))),
        discovery: bool,
        chap in 0..3,
    ) {
        let chap = (chap > 0).then(|| mutual(chap == 2));
        let mut one = One { chap: chap.clone(), ..One::default() };
        let name = (!discovery).then(|| T.parse().unwrap());
        let config = InitiatorConfig { chap, target: name, ..initiator(a) };
        let ((i, t), _) = run(config, target(b), &mut one);
        match (i, t) {
            (Ok(i), Ok(t)) => {
                prop_assert_eq!(i.parameters.max_send_data, t.parameters.max_receive_data);
                prop_assert_eq!(i.parameters.max_receive_data, t.parameters.max_send_data);
                prop_assert_eq!((i.tsih, i.stat_sn, i.max_cmd_sn), (t.tsih, t.stat_sn, t.max_cmd_sn));
            }
            (i, _) => prop_assert!(i.is_err()),
        }
    }

    #[test]
    fn hostile_bytes_do_not_panic(
        pdus in proptest::collection::vec((any::<u8>(), proptest::collection::vec(any::<u8>(), 0..60), 0usize..8), 1..8),
    ) {
        let keys = ["", FIRST, "AuthMethod=CHAP\0", "CHAP_A=5\0", "CHAP_N=iuser\0CHAP_R=0x00\0", "MaxBurstLength=512\0",
            "HeaderDigest=CRC32C\0", "RDMAExtensions=Yes\0"];
        let mut one = One { chap: Some(mutual(true)), ..One::default() };
        let mut login = target(Settings::default());
        let config = InitiatorConfig { chap: Some(mutual(true)), ..initiator(Settings::default()) };
        let (mut other, _) = InitiatorLogin::new(config);
        for (byte1, noise, key) in pdus {
            let data = [keys[key].as_bytes(), &noise].concat();
            let mut pdu = request(Stage::Security, None, false, &data);
            pdu.bhs[1] = byte1;
            let _ = login.receive(&pdu.bhs, keys[key].as_bytes(), &mut one);
            let _ = login.receive(&pdu.bhs, &data, &mut one);
            (pdu.bhs[0], pdu.bhs[19]) = (0x23, 0);
            pdu.bhs[32..].fill(0);
            let _ = other.receive(&pdu.bhs, keys[key].as_bytes());
            let _ = other.receive(&pdu.bhs, &data);
        }
        prop_assert_eq!(one.established, 0);
    }
}
