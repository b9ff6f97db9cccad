//! The network: a bridge with the host's address, and a tap device for each guest.

use anyhow::Result;

use crate::program::must;

/// The host's address, at which servers of the host listen.
pub(crate) const HOST: &str = "10.77.0.1";
/// The default MTU: the largest one of a tap device.
pub(crate) const LARGE_MTU: u32 = 65521;
/// The MTU of an ordinary Ethernet.
pub(crate) const ETHERNET_MTU: u32 = 1500;

const BRIDGE: &str = "wire";

/// The address of guest `number` (1 to 250).
pub(crate) fn address(number: u32) -> String {
    format!("10.77.0.{}", number + 1)
}

/// The name of the tap device of guest `number`.
pub(crate) fn tap(number: u32) -> String {
    format!("tap{number}")
}

/// Creates the bridge.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn make_bridge() -> Result<()> {
    must("ip", &["link", "add", BRIDGE, "type", "bridge"])?;
    must("ip", &["addr", "add", &format!("{HOST}/24"), "dev", BRIDGE])?;
    must("ip", &["link", "set", BRIDGE, "up"])?;
    Ok(())
}

/// Makes the host use CUBIC, as the guests do, instead of the machine's default. (The namespace cannot set its own
/// default; a route can.)
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn use_cubic() -> Result<()> {
    let route =
        ["10.77.0.0/24", "dev", BRIDGE, "proto", "kernel", "scope", "link", "src", HOST, "congctl", "cubic"];
    must("ip", &[["route", "change"].as_slice(), &route].concat())?;
    Ok(())
}

/// Connects guest `number` to the bridge and sets the MTU of both.
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

/// Takes guest `number` off the bridge. Its link stays up: the driver of the guest does not survive a tap device that is
/// down.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn disconnect(number: u32) -> Result<()> {
    must("ip", &["link", "set", &tap(number), "nomaster"]).map(drop)
}

/// Returns guest `number` to the bridge.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn connect(number: u32) -> Result<()> {
    must("ip", &["link", "set", &tap(number), "master", BRIDGE]).map(drop)
}
