//! Certificates, keys, authorities, revocation lists and tokens that are replaced while the server runs, as cert-manager,
//! certbot and cron jobs do: the files are read again each minute, without a reload. What cannot be used, such as a new
//! certificate whose key is not there yet, changes nothing.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use futures::{channel::oneshot, future::select, pin_mut};
use millrace_runtime::{RuntimeExt, RuntimeRef};
use millrace_tls::TlsAcceptor;

use crate::access::Access;

/// Time from one look at the files to the next.
pub(crate) const PERIOD: Duration = Duration::from_secs(60);

/// What is renewed: the certificates of the server, and the access to its metrics.
pub(crate) struct Renewal {
    tls: Arc<TlsAcceptor>,
    access: Arc<ArcSwap<Access>>,
    /// The last error of each, which is logged once.
    errors: Mutex<[Option<String>; 2]>,
}

impl Renewal {
    pub(crate) fn new(tls: Arc<TlsAcceptor>, access: Arc<ArcSwap<Access>>) -> Self {
        Self { tls, access, errors: Mutex::default() }
    }

    /// Looks at the files every `period` until `stopping` completes.
    pub(crate) async fn run(self, rt: RuntimeRef, period: Duration, stopping: impl Future<Output = ()>) {
        let this = Arc::new(self);
        let renew = async {
            loop {
                rt.sleep(period).await;
                let (this, (done, ended)) = (Arc::clone(&this), oneshot::channel::<()>());
                rt.spawn_blocking(Box::new(move || {
                    this.renew();
                    drop(done);
                }));
                let _ = ended.await;
            }
        };
        pin_mut!(renew, stopping);
        select(renew, stopping).await;
    }

    /// Reads the files.
    fn renew(&self) {
        let tls = self.tls.renew().map_err(|e| e.to_string());
        let old = self.access.load_full();
        let access = old.renewed().map_err(|e| e.to_string()).map(|new| match new {
            // Not over what a reload has stored meanwhile.
            Some(new) => Arc::ptr_eq(&self.access.compare_and_swap(&old, Arc::new(new)), &old),
            None => false,
        });
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        for ((what, result), last) in [("tls", tls), ("metrics_access", access)].into_iter().zip(&mut *errors)
        {
            if result == Ok(true) {
                tracing::info!("the files of [{what}] have changed; new connections use them");
            }
            let error = result.err();
            if let Some(e) = error.as_ref().filter(|_| error != *last) {
                tracing::warn!("the files of [{what}] have changed and cannot be used: {e}");
            }
            *last = error;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use hyper::{HeaderMap, header::AUTHORIZATION};
    use millrace_runtime::tokio_rt::TokioRuntime;
    use millrace_tls::{ServerConfig, ServerFiles};
    use rcgen::{CertificateParams, KeyPair};

    use super::*;
    use crate::MetricsAccess;

    #[tokio::test]
    async fn a_replaced_token_is_read_and_a_bad_one_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let token_file = dir.path().join("token");
        let (first, second) = ("0123456789abcdef", "fedcba9876543210");
        fs::write(&token_file, first).unwrap();
        let settings = MetricsAccess { token_file: Some(token_file.clone()), ..MetricsAccess::default() };
        let access = Arc::new(ArcSwap::from_pointee(Access::load(&settings).unwrap()));
        let admits = |token: &str| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, format!("Bearer {token}").parse().unwrap())]);
            access.load().admits(&headers, false)
        };
        let renewal = Renewal::new(Arc::default(), Arc::clone(&access));
        fs::write(&token_file, "short").unwrap();
        renewal.renew();
        assert!(admits(first));
        let [tls, token] = renewal.errors.lock().unwrap().clone();
        assert!(tls.is_none() && token.unwrap().contains("token_file"));

        fs::write(&token_file, second).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let period = Duration::from_millis(1);
        let stopping = async {
            let _ = stopped.await;
        };
        let task = tokio::spawn(renewal.run(TokioRuntime::current(), period, stopping));
        while !admits(second) {
            tokio::task::yield_now().await;
        }
        assert!(!admits(first));
        drop(stop);
        task.await.unwrap();
    }

    #[test]
    fn an_error_of_one_table_does_not_hide_that_of_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let [certificate, key, token_file] =
            ["certificate", "key", "token"].map(|name| dir.path().join(name));
        let pair = KeyPair::generate().unwrap();
        let signed = CertificateParams::new(["nfs.test".to_owned()]).unwrap().self_signed(&pair).unwrap();
        fs::write(&certificate, signed.pem()).unwrap();
        fs::write(&key, pair.serialize_pem()).unwrap();
        fs::write(&token_file, "0123456789abcdef").unwrap();
        let files = ServerFiles { certificate, key: key.clone(), client_ca: None, client_crl: None };
        let tls = Arc::new(TlsAcceptor::default());
        tls.set(Some(ServerConfig::load(&files).unwrap()));
        let settings = MetricsAccess { token_file: Some(token_file.clone()), ..MetricsAccess::default() };
        let access = Arc::new(ArcSwap::from_pointee(Access::load(&settings).unwrap()));
        let renewal = Renewal::new(tls, access);
        let errors = || renewal.errors.lock().unwrap().each_ref().map(|e| e.clone().unwrap_or_default());

        fs::remove_file(&key).unwrap();
        fs::remove_file(&token_file).unwrap();
        renewal.renew();
        let [tls, token] = errors();
        assert!(tls.contains(key.to_str().unwrap()) && token.contains("token_file"), "{tls}; {token}");
        fs::write(&key, pair.serialize_pem()).unwrap();
        renewal.renew();
        assert_eq!(errors()[0], "", "the key is there again");
    }
}
