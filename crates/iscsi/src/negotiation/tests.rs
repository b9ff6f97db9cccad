//! Negotiations by text, and of random settings.

use proptest::prelude::*;

use super::*;

fn lines(text: &[u8]) -> Vec<String> {
    text::pairs(text).map(|p| p.unwrap()).map(|(k, v)| format!("{k}={v}")).collect()
}

/// Lets `side` receive `keys` and returns its answers.
fn receive(side: &mut Negotiation, keys: &str) -> Result<String, NegotiationError> {
    let mut out = Vec::new();
    for line in keys.split_whitespace() {
        let (key, value) = line.split_once('=').unwrap();
        side.receive(key, value, &mut out)?;
    }
    Ok(lines(&out).join(" "))
}

fn open(side: &mut Negotiation) -> String {
    let mut out = Vec::new();
    side.open(&mut out);
    lines(&out).join(" ")
}

fn target(settings: Settings) -> Negotiation {
    Negotiation::new(false, false, settings)
}

fn initiator(settings: Settings) -> Negotiation {
    Negotiation::new(true, false, settings)
}

const ISER: IserSettings = IserSettings { max_send_data: 8192, max_unexpected_pdus: 4 };

#[test]
fn an_initiator_offers_its_settings() {
    assert_eq!(
        open(&mut initiator(Settings::default())),
        "HeaderDigest=None,CRC32C DataDigest=None,CRC32C MaxConnections=1 InitialR2T=Yes ImmediateData=Yes \
         MaxRecvDataSegmentLength=262144 MaxBurstLength=262144 FirstBurstLength=65536 DefaultTime2Wait=0 \
         DefaultTime2Retain=20 MaxOutstandingR2T=1 DataPDUInOrder=Yes DataSequenceInOrder=Yes \
         ErrorRecoveryLevel=0"
    );
    let iser = Settings { iser: Some(ISER), max_receive_data: 128, ..Settings::default() };
    assert_eq!(
        open(&mut initiator(iser.clone())),
        "RDMAExtensions=Yes HeaderDigest=None DataDigest=None MaxConnections=1 InitialR2T=Yes \
         ImmediateData=Yes MaxBurstLength=262144 FirstBurstLength=65536 DefaultTime2Wait=0 \
         DefaultTime2Retain=20 MaxOutstandingR2T=1 DataPDUInOrder=Yes DataSequenceInOrder=Yes \
         ErrorRecoveryLevel=0 InitiatorRecvDataSegmentLength=512 TargetRecvDataSegmentLength=8192 \
         MaxOutstandingUnexpectedPDUs=4"
    );
    assert_eq!(open(&mut target(iser.clone())), "", "open-iscsi rejects MaxOutstandingUnexpectedPDUs");
    let answer = receive(&mut target(iser), "MaxOutstandingUnexpectedPDUs=8");
    assert_eq!(answer.unwrap(), "MaxOutstandingUnexpectedPDUs=4");
    assert_eq!(open(&mut target(Settings::default())), "MaxRecvDataSegmentLength=262144");
    assert_eq!(
        open(&mut Negotiation::new(true, true, Settings { iser: Some(ISER), ..Settings::default() })),
        "HeaderDigest=None DataDigest=None MaxRecvDataSegmentLength=262144 DefaultTime2Wait=0 \
         DefaultTime2Retain=20 ErrorRecoveryLevel=0"
    );
}

#[test]
fn a_target_applies_the_function_of_each_key() {
    let mut side = target(Settings {
        header_digest: DigestPolicy::Require,
        max_burst: 65536,
        first_burst: 32768,
        immediate_data: false,
        max_outstanding_r2t: 4,
        ..Settings::default()
    });
    let answers = receive(
        &mut side,
        "HeaderDigest=None,CRC32C DataDigest=CRC32C,None MaxConnections=8 InitialR2T=No ImmediateData=Yes \
         MaxRecvDataSegmentLength=0x1000 MaxBurstLength=16776192 FirstBurstLength=16384 DefaultTime2Wait=5 \
         DefaultTime2Retain=20 MaxOutstandingR2T=16 DataPDUInOrder=No DataSequenceInOrder=No \
         ErrorRecoveryLevel=2 IFMarker=Yes OFMarker=No IFMarkInt=1~2 TaskReporting=FastAbort,RFC3720 \
         iSCSIProtocolLevel=2 RDMAExtensions=Yes TargetRecvDataSegmentLength=8192 \
         MaxOutstandingUnexpectedPDUs=1 X-com.example.key=1",
    );
    assert_eq!(
        answers.unwrap(),
        "HeaderDigest=CRC32C DataDigest=CRC32C MaxConnections=1 InitialR2T=Yes ImmediateData=No \
         MaxBurstLength=65536 FirstBurstLength=16384 DefaultTime2Wait=5 DefaultTime2Retain=20 \
         MaxOutstandingR2T=4 DataPDUInOrder=Yes DataSequenceInOrder=Yes ErrorRecoveryLevel=0 IFMarker=No \
         OFMarker=No IFMarkInt=Irrelevant TaskReporting=RFC3720 iSCSIProtocolLevel=1 RDMAExtensions=No \
         TargetRecvDataSegmentLength=Irrelevant X-com.example.key=NotUnderstood"
    );
    assert!(!side.offer_missing(&mut Vec::new()));
    let p = side.finish().unwrap();
    assert_eq!((p.header_digest, p.data_digest), (true, true));
    assert_eq!((p.max_send_data, p.max_receive_data), (4096, 262_144));
    assert_eq!((p.initial_r2t, p.immediate_data, p.max_burst, p.first_burst), (true, false, 65536, 16384));
    assert_eq!((p.max_outstanding_r2t, p.time2wait, p.time2retain, p.iser), (4, 5, 20, None));
}

#[test]
fn invalid_offers_are_rejected_and_irrelevant_ones_named() {
    let mut side = target(Settings { max_burst: 0x00ff_ffff, ..Settings::default() });
    assert_eq!(
        receive(&mut side, "HeaderDigest=MD5 MaxBurstLength=511 FirstBurstLength=16777216 InitialR2T=maybe"),
        Ok("HeaderDigest=Reject MaxBurstLength=Reject FirstBurstLength=Reject InitialR2T=Reject".to_owned())
    );
    assert_eq!(side.finish().unwrap().max_burst, 262_144);
    let mut side = Negotiation::new(false, true, Settings::default());
    assert_eq!(
        receive(&mut side, "MaxBurstLength=512 HeaderDigest=None MaxConnections=1").unwrap(),
        "MaxBurstLength=Irrelevant HeaderDigest=None MaxConnections=Irrelevant"
    );
    let unsolicited = NegotiationError::Unsolicited("MaxBurstLength".to_owned());
    assert_eq!(receive(&mut target(Settings::default()), "MaxBurstLength=Reject"), Err(unsolicited));
    let unsolicited = NegotiationError::Unsolicited("X-a".to_owned());
    assert_eq!(receive(&mut target(Settings::default()), "X-a=NotUnderstood"), Err(unsolicited));
    let twice = receive(&mut side, "HeaderDigest=None");
    assert_eq!(twice, Err(NegotiationError::Repeated("HeaderDigest")));
    for key in ["MaxRecvDataSegmentLength=511", "MaxRecvDataSegmentLength=16777216"] {
        let error = receive(&mut target(Settings::default()), key);
        assert_eq!(error, Err(NegotiationError::Answer("MaxRecvDataSegmentLength")), "{key}");
    }
}

#[test]
fn a_target_offers_what_the_initiator_has_omitted() {
    let settings = Settings { max_burst: 65536, immediate_data: false, ..Settings::default() };
    let mut side = target(settings);
    assert_eq!(side.finish(), Err(NegotiationError::Unacceptable("ImmediateData")));
    let mut out = Vec::new();
    assert!(side.offer_missing(&mut out));
    assert_eq!(lines(&out), ["ImmediateData=No", "MaxBurstLength=65536"]);
    assert_eq!(side.finish(), Err(NegotiationError::Unanswered("MaxBurstLength")));
    assert_eq!(receive(&mut side, "ImmediateData=No MaxBurstLength=512"), Ok(String::new()));
    assert!(!side.offer_missing(&mut Vec::new()));
    let p = side.finish().unwrap();
    assert_eq!((p.immediate_data, p.max_burst, p.first_burst), (false, 512, 512));
}

#[test]
fn booleans_whose_answer_has_one_result_need_none() {
    let mut side = initiator(Settings { immediate_data: false, ..Settings::default() });
    open(&mut side);
    let rest = "HeaderDigest=None DataDigest=None MaxConnections=1 MaxBurstLength=262144 FirstBurstLength=65536 \
        DefaultTime2Wait=0 DefaultTime2Retain=20 MaxOutstandingR2T=1 ErrorRecoveryLevel=0";
    receive(&mut side, rest).unwrap();
    let p = side.finish().unwrap();
    assert_eq!((p.immediate_data, p.initial_r2t), (false, true));
    // A target without the key has the default.
    receive(&mut side, "ImmediateData=NotUnderstood").unwrap();
    assert_eq!(side.finish(), Err(NegotiationError::Unacceptable("ImmediateData")));
    // ImmediateData=Yes needs an answer.
    let mut side = initiator(Settings::default());
    open(&mut side);
    receive(&mut side, rest).unwrap();
    assert_eq!(side.finish(), Err(NegotiationError::Unanswered("ImmediateData")));
}

#[test]
fn an_initiator_checks_the_answers() {
    for (answer, error) in [
        ("MaxBurstLength=Reject", NegotiationError::Rejected("MaxBurstLength")),
        ("MaxBurstLength=1", NegotiationError::Answer("MaxBurstLength")),
        ("HeaderDigest=MD5", NegotiationError::Answer("HeaderDigest")),
        ("HeaderDigest=None,CRC32C", NegotiationError::Answer("HeaderDigest")),
        ("InitialR2T=1", NegotiationError::Answer("InitialR2T")),
        ("InitialR2T=Yes InitialR2T=Yes", NegotiationError::Repeated("InitialR2T")),
    ] {
        let mut side = initiator(Settings::default());
        open(&mut side);
        assert_eq!(receive(&mut side, answer), Err(error), "{answer}");
    }
    // A known digest that the settings exclude is no violation.
    for (policy, answer) in [(DigestPolicy::Require, "None"), (DigestPolicy::Refuse, "CRC32C")] {
        let mut side = initiator(Settings { data_digest: policy, ..Settings::default() });
        open(&mut side);
        let result = receive(&mut side, &format!("DataDigest={answer}"));
        assert_eq!(result, Err(NegotiationError::Unacceptable("DataDigest")), "{answer}");
    }
    // The defaults respect the settings, or the login fails.
    let mut side = initiator(Settings { header_digest: DigestPolicy::Require, ..Settings::default() });
    open(&mut side);
    let rest = "DataDigest=None MaxConnections=1 InitialR2T=Yes ImmediateData=Yes MaxBurstLength=262144 \
        FirstBurstLength=65536 DefaultTime2Wait=0 DefaultTime2Retain=20 MaxOutstandingR2T=1 DataPDUInOrder=Yes \
        DataSequenceInOrder=Yes ErrorRecoveryLevel=0";
    receive(&mut side, rest).unwrap();
    assert_eq!(side.finish(), Err(NegotiationError::Unanswered("HeaderDigest")));
    receive(&mut side, "HeaderDigest=NotUnderstood").unwrap();
    assert_eq!(side.finish(), Err(NegotiationError::Unacceptable("HeaderDigest")));
}

#[test]
fn iser_needs_the_consent_of_both() {
    let iser = || Settings { iser: Some(ISER), max_receive_data: 8192, ..Settings::default() };
    let mut side = target(iser());
    assert_eq!(side.finish(), Err(NegotiationError::Unacceptable("RDMAExtensions")));
    let answers = receive(
        &mut side,
        "RDMAExtensions=Yes InitiatorRecvDataSegmentLength=128 TargetRecvDataSegmentLength=262144 \
         HeaderDigest=CRC32C,None MaxOutstandingUnexpectedPDUs=2 MaxAHSLength=0 iSERHelloRequired=Yes \
         TaggedBufferForSolicitedDataOnly=Yes MaxRecvDataSegmentLength=1024",
    );
    assert_eq!(
        answers.unwrap(),
        "RDMAExtensions=Yes InitiatorRecvDataSegmentLength=Reject TargetRecvDataSegmentLength=8192 \
         HeaderDigest=None MaxOutstandingUnexpectedPDUs=4"
    );
    let p = side.finish().unwrap();
    assert_eq!((p.max_receive_data, p.max_send_data), (8192, 8192));
    let expected = IserParameters { max_unexpected_pdus: 2, hello_required: true, solicited_only: true };
    assert_eq!(p.iser, Some(expected));
    let mut side = initiator(iser());
    open(&mut side);
    receive(&mut side, "RDMAExtensions=No").unwrap();
    assert!(side.finish().is_err());
    let one = receive(&mut target(iser()), "MaxOutstandingUnexpectedPDUs=1");
    assert_eq!(one, Err(NegotiationError::Answer("MaxOutstandingUnexpectedPDUs")));
}

fn policy() -> impl Strategy<Value = DigestPolicy> {
    prop_oneof![Just(DigestPolicy::Refuse), Just(DigestPolicy::Accept), Just(DigestPolicy::Require)]
}

prop_compose! {
    pub(crate) fn settings(iser: bool)(
        digests in (policy(), policy()),
        lengths in (0u32..0x0200_0000, 0u32..0x0200_0000, 0u32..0x0200_0000, 0u32..0x0200_0000),
        booleans: (bool, bool),
        max_outstanding_r2t: u16,
        max_unexpected_pdus in 0u32..10,
    ) -> Settings {
        Settings {
            header_digest: digests.0,
            data_digest: digests.1,
            max_receive_data: lengths.0,
            initial_r2t: booleans.0,
            immediate_data: booleans.1,
            max_burst: lengths.1,
            first_burst: lengths.2,
            max_outstanding_r2t,
            iser: iser.then_some(IserSettings { max_send_data: lengths.3, max_unexpected_pdus }),
        }
    }
}

proptest! {
    /// Both sides compute the same parameters, or a digest policy of one contradicts that of the other.
    #[test]
    fn both_sides_agree(
        (a, b) in any::<bool>().prop_flat_map(|iser| (settings(iser), settings(iser))),
        discovery: bool,
    ) {
        let contradiction = |a, b| {
            matches!((a, b), (DigestPolicy::Refuse, DigestPolicy::Require)
                | (DigestPolicy::Require, DigestPolicy::Refuse))
        };
        let contradiction = a.iser.is_none()
            && (contradiction(a.header_digest, b.header_digest) || contradiction(a.data_digest, b.data_digest));
        let mut i = Negotiation::new(true, discovery, a);
        let mut t = Negotiation::new(false, discovery, b);
        let mut to_target = Vec::new();
        i.open(&mut to_target);
        let mut to_initiator = Vec::new();
        t.open(&mut to_initiator);
        for line in text::pairs(&to_target) {
            let (key, value) = line.unwrap();
            t.receive(key, value, &mut to_initiator).unwrap();
        }
        prop_assert!(!t.offer_missing(&mut Vec::new()) || contradiction);
        let mut rest = Vec::new();
        let received: Result<(), _> = text::pairs(&to_initiator)
            .map(|line| line.unwrap())
            .try_for_each(|(key, value)| i.receive(key, value, &mut rest));
        prop_assert_eq!(received.is_err(), contradiction);
        prop_assert!(rest.is_empty());
        if !contradiction {
            let (i, t) = (i.finish().unwrap(), t.finish().unwrap());
            prop_assert_eq!((i.max_send_data, i.max_receive_data), (t.max_receive_data, t.max_send_data));
            prop_assert!(i.first_burst <= i.max_burst);
            prop_assert_eq!(i.iser.is_some(), t.iser.is_some());
            let same = |p| Parameters { max_send_data: 0, max_receive_data: 0, iser: None, ..p };
            prop_assert_eq!(same(i), same(t));
        }
    }

    #[test]
    fn hostile_keys_do_not_exceed_the_settings(
        ours in settings(false),
        keys in proptest::collection::vec((0..COUNT_OF_KEYS, "[0-9]{1,9}|Yes|No|None|CRC32C|Reject|[ -~]{0,9}"), 0..20),
        opens: bool,
        role: bool,
    ) {
        let mut side = Negotiation::new(role, false, ours.clone());
        if opens {
            side.open(&mut Vec::new());
        }
        for (key, value) in keys {
            let _ = side.receive(KEYS[key].name, &value, &mut Vec::new());
        }
        if let Ok(p) = side.finish() {
            prop_assert!(p.max_burst <= ours.max_burst.clamp(512, 0x00ff_ffff));
            prop_assert!(p.first_burst <= p.max_burst);
            prop_assert!(!p.immediate_data || ours.immediate_data);
            prop_assert!(p.initial_r2t || !ours.initial_r2t);
            prop_assert!((512..=0x00ff_ffff).contains(&p.max_send_data));
        }
    }
}
