//! Discovery of targets and of their logical units.

use std::time::Duration;

use millrace_iscsi::{
    discovery::{DiscoveredTarget, SendTargets, decode},
    name::IscsiName,
};
use millrace_runtime::timeout;
use millrace_scsi::{
    Lun,
    initiator::{report_luns, report_luns_cdb},
};

use crate::{
    Error, Options, Url,
    exchange::Exchange,
    login::Dialer,
    unit::{UnitInfo, identify},
};

/// Maximum number of logical units that [`logical_units`] lists.
const MAX_UNITS: usize = 1024;
/// Parameter data of REPORT LUNS that is requested, in bytes.
const ALLOCATION: u32 = MAX_UNITS as u32 * 8 + 8;

/// Asks the portal of `url` for the targets that the initiator may log in to, with a discovery session (RFC 7143
/// appendix C).
///
/// # Errors
/// The connection, the login or the discovery fails.
pub async fn discover(url: &Url, options: &Options) -> Result<Vec<DiscoveredTarget>, Error> {
    let dialer = Dialer::new(url, None, options)?;
    let work = async {
        let mut exchange = open(&dialer).await?;
        let answer = exchange.text(SendTargets::All.encode()).await?;
        exchange.log_out().await;
        decode(&answer).map_err(|e| Error::Malformed { url: url.to_string(), reason: e.to_string() })
    };
    limited(&dialer, options.connect_timeout, work).await
}

/// Lists the disks of a target with their LUNs, at most 1024. Logical units that cannot be used have the reason as text.
///
/// # Errors
/// The connection or the login fails, or the target does not list its logical units.
pub async fn logical_units(
    url: &Url,
    target: &IscsiName,
    options: &Options,
) -> Result<Vec<(Lun, Result<UnitInfo, String>)>, Error> {
    let dialer = Dialer::new(url, Some(target.clone()), options)?;
    let work = async {
        let mut exchange = open(&dialer).await?;
        let failed = |reason: String| Error::Unit { url: format!("{url} {target}"), reason };
        let first = Lun::new(0).ok_or_else(|| failed("LUN 0".into()))?;
        let listed = exchange.execute(first, report_luns_cdb(ALLOCATION), ALLOCATION).await?;
        let listed = listed.map_err(|failure| failed(format!("REPORT LUNS: {failure}")))?;
        let (luns, _) = report_luns(&listed).map_err(|e| failed(e.to_string()))?;
        let mut units = Vec::new();
        for lun in luns {
            units.push((lun, identify(&mut exchange, lun).await?));
        }
        exchange.log_out().await;
        Ok(units)
    };
    limited(&dialer, options.timeout, work).await
}

async fn open(dialer: &Dialer) -> Result<Exchange, Error> {
    let connection = dialer.connect().await?;
    Ok(Exchange::new(connection, dialer.rt.clone(), dialer.portal()))
}

async fn limited<T>(
    dialer: &Dialer,
    limit: Duration,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let result = timeout(&*dialer.rt, limit, work).await;
    result.unwrap_or_else(|| {
        let reason = format!("no answer for {limit:?}");
        Err(Error::Connect { portal: dialer.portal(), reason, source: None })
    })
}
