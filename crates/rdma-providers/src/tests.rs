//! Names of providers, and their selection on a machine with or without RDMA devices.
#![cfg(all(feature = "iwarp", feature = "verbs"))]

use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Of TEST-NET-3 (RFC 5737): nobody's.
const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9));

#[test]
fn names_are_read_and_written() {
    for choice in [ProviderChoice::Auto, ProviderChoice::Iwarp, ProviderChoice::Verbs] {
        assert_eq!(choice.to_string().parse(), Ok(choice));
    }
    assert!("roce".parse::<ProviderChoice>().unwrap_err().contains("auto, iwarp or verbs"));
}

#[test]
fn iwarp_serves_every_address() {
    for ip in [LOOPBACK, NOBODY, Ipv6Addr::UNSPECIFIED.into()] {
        assert_eq!(ProviderChoice::Iwarp.to_listen(ip).unwrap().provider.name(), "iwarp");
        assert_eq!(ProviderChoice::Iwarp.to_connect(ip).unwrap().provider.name(), "iwarp");
    }
}

#[test]
fn an_address_of_no_device_is_refused_by_verbs_and_given_to_iwarp_by_auto() {
    let refused = ProviderChoice::Verbs.to_listen(NOBODY).unwrap_err();
    assert!(refused.to_string().contains("choose the provider iwarp"), "{refused}");
    let chosen = ProviderChoice::Auto.to_listen(NOBODY).unwrap();
    assert_eq!(chosen.provider.name(), "iwarp");
    assert!(!chosen.why.is_empty());
}

#[test]
fn an_unspecified_address_is_served_by_iwarp_unless_verbs_is_asked_for() {
    let any = Ipv4Addr::UNSPECIFIED.into();
    assert_eq!(ProviderChoice::Auto.to_listen(any).unwrap().provider.name(), "iwarp");
    match ProviderChoice::Verbs.to_listen(any) {
        Ok(chosen) => assert_eq!(chosen.provider.name(), "verbs"),
        Err(e) => assert!(!matches!(e, NotUsable::NoDevice(_)), "{e}"),
    }
}
