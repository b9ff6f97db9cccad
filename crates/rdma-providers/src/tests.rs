//! Names of providers, and their selection on a machine with or without RDMA devices.
#![cfg(all(feature = "iwarp", feature = "verbs"))]

use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// An address of TEST-NET-3 (RFC 5737), which belongs to no interface.
const FOREIGN: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9));

#[test]
fn names_are_read_and_written() {
    for choice in [ProviderChoice::Auto, ProviderChoice::Iwarp, ProviderChoice::Verbs] {
        assert_eq!(choice.to_string().parse(), Ok(choice));
    }
    assert!("roce".parse::<ProviderChoice>().unwrap_err().contains("auto, iwarp or verbs"));
}

#[test]
fn iwarp_serves_every_address() {
    for ip in [LOOPBACK, FOREIGN, Ipv6Addr::UNSPECIFIED.into()] {
        assert_eq!(ProviderChoice::Iwarp.to_listen(ip).unwrap().provider.name(), "iwarp");
        assert_eq!(ProviderChoice::Iwarp.to_connect((ip, 20049).into()).unwrap().provider.name(), "iwarp");
    }
}

#[test]
fn verbs_refuses_an_address_of_no_device_and_auto_selects_iwarp() {
    let refused = ProviderChoice::Verbs.to_listen(FOREIGN).unwrap_err();
    assert!(refused.to_string().contains("choose the provider iwarp"), "{refused}");
    let chosen = ProviderChoice::Auto.to_listen(FOREIGN).unwrap();
    assert_eq!(chosen.provider.name(), "iwarp");
    assert!(!chosen.why.is_empty());
}

#[test]
fn an_unspecified_address_selects_iwarp_unless_verbs_is_requested() {
    let any = Ipv4Addr::UNSPECIFIED.into();
    assert_eq!(ProviderChoice::Auto.to_listen(any).unwrap().provider.name(), "iwarp");
    match ProviderChoice::Verbs.to_listen(any) {
        Ok(chosen) => assert_eq!(chosen.provider.name(), "verbs"),
        Err(e) => assert!(!matches!(e, ProviderError::NoDevice(_)), "{e}"),
    }
}
