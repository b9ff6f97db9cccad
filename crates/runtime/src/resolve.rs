//! Name resolution.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
};

use futures::channel::oneshot;

use crate::Runtime;

/// Resolves `host`, a name or an IP address, and returns its addresses with `port`: at least one, in the order
/// of getaddrinfo(3). The lookup runs as blocking work of `rt`.
///
/// # Errors
/// Those of the lookup; [`io::ErrorKind::NotFound`] if it returns no address.
pub async fn resolve(rt: &dyn Runtime, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (done, found) = oneshot::channel();
    let name = host.to_owned();
    rt.spawn_blocking(Box::new(move || {
        let addresses = (name.as_str(), port).to_socket_addrs().map(Vec::from_iter);
        drop(done.send(addresses));
    }));
    match found.await {
        Ok(Ok(addresses)) if addresses.is_empty() => {
            Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"))
        }
        Ok(result) => result,
        Err(_) => Err(io::Error::other("the runtime has shut down")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokio_rt::TokioRuntime;

    #[test]
    fn names_and_addresses_are_resolved() {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(async {
            let rt = TokioRuntime::current();
            let rt = &*rt;
            let v6 = resolve(rt, "::1", 3260).await.unwrap();
            assert_eq!(v6, ["[::1]:3260".parse().unwrap()]);
            let local = resolve(rt, "localhost", 2049).await.unwrap();
            assert!(local.iter().all(|a| a.ip().is_loopback() && a.port() == 2049) && !local.is_empty());
            resolve(rt, "name with spaces", 1).await.unwrap_err();
        });
    }
}
