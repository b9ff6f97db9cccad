//! The wire: a bridge with the host's end, and one tap for each guest.

use anyhow::Result;

use crate::program::must;

/// The host's address, where servers of the host listen.
pub(crate) const HOST: &str = "10.77.0.1";
/// The MTU of the wire where a case does not choose: the largest that a tap has.
pub(crate) const LARGE_MTU: u32 = 65521;
/// What an ordinary Ethernet has.
pub(crate) const ETHERNET_MTU: u32 = 1500;

const BRIDGE: &str = "wire";

/// The address of guest `number` (1 to 250).
pub(crate) fn address(number: u32) -> String {
    format!("10.77.0.{}", number + 1)
}

/// The tap of guest `number`.
pub(crate) fn tap(number: u32) -> String {
    format!("tap{number}")
}

/// Makes the bridge.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn make_bridge() -> Result<()> {
    must("ip", &["link", "add", BRIDGE, "type", "bridge"])?;
    must("ip", &["addr", "add", &format!("{HOST}/24"), "dev", BRIDGE])?;
    must("ip", &["link", "set", BRIDGE, "up"])?;
    Ok(())
}

/// Makes the host's end use CUBIC, as the guests do, whatever the machine prefers. (A namespace may not choose for itself;
/// a route may.)
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn use_cubic() -> Result<()> {
    let route =
        ["10.77.0.0/24", "dev", BRIDGE, "proto", "kernel", "scope", "link", "src", HOST, "congctl", "cubic"];
    must("ip", &[["route", "change"].as_slice(), &route].concat())?;
    Ok(())
}

/// Connects guest `number` to the bridge; the bridge follows the MTU.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn make_tap(number: u32, mtu: u32) -> Result<()> {
    let (tap, mtu) = (tap(number), mtu.to_string());
    must("ip", &["tuntap", "add", "dev", &tap, "mode", "tap"])?;
    must("ip", &["link", "set", &tap, "mtu", &mtu, "master", BRIDGE, "up"])?;
    must("ip", &["link", "set", BRIDGE, "mtu", &mtu])?;
    Ok(())
}
